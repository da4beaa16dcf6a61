"""The Triton programs behind `weiss.kernels.fused`, which says how they work together.

Dimensions: B batch, C classes, K slots (classes present, most samples first), D embedding size.

What they know about a batch by class is one run of integers, in parts of B each, named below:
``COUNT`` how many samples share a sample's class, ``ORDER`` how many of them come before it,
``LEADER`` the first of them, ``FINITE`` whether its vector is; ``MEMBER`` the samples slot by slot,
``CLASS``, ``SIZE`` and ``START`` the class of a slot, how many samples it has (0 for an unused one)
and where they begin in ``MEMBER``. Then the ``FACTS``: the number of classes present; how many
labels are too large, how many negative, how many vectors not finite; how many classes have a second
sample. Then the slot of each class, -1 for one that is absent.

(triton only here and in the other programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

COUNT, ORDER, LEADER, FINITE = (tl.constexpr(place) for place in range(4))
MEMBER, CLASS, SIZE, START = (tl.constexpr(place) for place in range(4, 8))
FACTS = tl.constexpr(8)
NUM_FACTS = tl.constexpr(5)


@triton.jit
def measure(
    x, labels, fields, unit, inverse_x, inverse, ints,
    batch, num_here, stride, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """Directions and classes of samples, lengths of fields; one program a sample, then ROWS fields.

    Without FIELDS their lengths are left for later.
    """
    column = tl.arange(0, WIDTH)
    if tl.program_id(0) < batch:
        row = tl.program_id(0)
        vector = tl.load(x + row.to(tl.int64) * stride + column, mask=column < D, other=0.0).to(
            tl.float32
        )
        length = tl.sqrt(tl.sum(vector * vector, 0))
        scale = tl.where(length > 0, 1.0 / tl.where(length > 0, length, 1.0), 0.0)
        direction = (vector * scale).to(unit.dtype.element_ty)
        tl.store(unit + row * D + column, direction, mask=column < D)
        tl.store(inverse_x + row, scale)
        own = tl.load(labels + row)
        total = 0
        before = 0
        first = row
        for low in range(0, batch, CHUNK):
            other = low + tl.arange(0, CHUNK)
            same = (tl.load(labels + other, mask=other < batch, other=-1) == own) & (other < batch)
            total += tl.sum(same.to(tl.int32), 0)
            before += tl.sum((same & (other < row)).to(tl.int32), 0)
            first = tl.minimum(first, tl.min(tl.where(same, other, row), 0))
        tl.store(ints + COUNT * batch + row, total)
        tl.store(ints + ORDER * batch + row, before)
        tl.store(ints + LEADER * batch + row, first)
        tl.store(ints + FINITE * batch + row, (length < float("inf")).to(tl.int32))
        tl.store(ints + SIZE * batch + row, 0)
    else:
        rows = (tl.program_id(0) - batch) * ROWS + tl.arange(0, ROWS)
        if FIELDS:
            at = rows.to(tl.int64)[:, None] * D + column[None, :]
            inside = (rows < num_here)[:, None] & (column < D)[None, :]
            vectors = tl.load(fields + at, mask=inside, other=0.0)
            lengths = tl.sqrt(tl.sum(vectors * vectors, 1))
            scales = tl.where(lengths > 0, 1.0 / tl.where(lengths > 0, lengths, 1.0), 0.0)
            tl.store(inverse + rows, scales, mask=rows < num_here)
        tl.store(ints + FACTS * batch + NUM_FACTS + rows, -1, mask=rows < num_here)


@triton.jit(do_not_specialize=["low"])
def lengths(
    fields, inverse, copy, num_here, low, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COPIES: tl.constexpr, NORMALISED: tl.constexpr,
):  # fmt: skip
    """One over the length of each field of a block, which begins with field `low`.

    COPIES also writes the block in another precision, and zeros where there are no fields;
    NORMALISED, only its directions.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    at = rows.to(tl.int64)[:, None] * D + column[None, :]
    inside = (rows < num_here)[:, None] & (column < D)[None, :]
    vectors = tl.load(fields + low.to(tl.int64) * D + at, mask=inside, other=0.0)
    length = tl.sqrt(tl.sum(vectors * vectors, 1))
    scales = tl.where(length > 0, 1.0 / tl.where(length > 0, length, 1.0), 0.0)
    tl.store(inverse + low + rows, scales, mask=rows < num_here)
    if COPIES:
        if NORMALISED:
            vectors = vectors * scales[:, None]
        tl.store(copy + at, vectors.to(copy.dtype.element_ty), mask=(column < D)[None, :])


@triton.jit
def _rank(labels, ints, row, batch, num_classes, first_class, num_here, CHUNK: tl.constexpr):
    """Find the slot of a sample's class, the largest first, and its place among members."""
    own_count = tl.load(ints + COUNT * batch + row)
    own_leader = tl.load(ints + LEADER * batch + row)
    own_order = tl.load(ints + ORDER * batch + row)
    slots = 0
    samples = 0
    present = 0
    high = 0
    low_label = 0
    broken = 0
    several = 0
    for low in range(0, batch, CHUNK):
        other = low + tl.arange(0, CHUNK)
        inside = other < batch
        leads = tl.load(ints + LEADER * batch + other, mask=inside, other=-1) == other
        size = tl.load(ints + COUNT * batch + other, mask=inside, other=0)
        ahead = leads & ((size > own_count) | ((size == own_count) & (other < own_leader)))
        slots += tl.sum(ahead.to(tl.int32), 0)
        samples += tl.sum(tl.where(ahead, size, 0), 0)
        present += tl.sum(leads.to(tl.int32), 0)
        if row == 0:
            label = tl.load(labels + other, mask=inside, other=0)
            high += tl.sum((label >= num_classes).to(tl.int32), 0)
            low_label += tl.sum((label < 0).to(tl.int32), 0)
            finite = tl.load(ints + FINITE * batch + other, mask=inside, other=1)
            broken += tl.sum(1 - finite, 0)
            several += tl.sum((leads & (size > 1)).to(tl.int32), 0)
    tl.store(ints + MEMBER * batch + samples + own_order, row)
    if own_order == 0:
        label = tl.load(labels + row)
        tl.store(ints + CLASS * batch + slots, label.to(tl.int32))
        tl.store(ints + SIZE * batch + slots, own_count)
        tl.store(ints + START * batch + slots, samples)
        column = label - first_class
        if (column >= 0) & (column < num_here):
            tl.store(ints + FACTS * batch + NUM_FACTS + column, slots)
    if row == 0:
        tl.store(ints + FACTS * batch, present)
        tl.store(ints + FACTS * batch + 1, high)
        tl.store(ints + FACTS * batch + 2, low_label)
        tl.store(ints + FACTS * batch + 3, broken)
        tl.store(ints + FACTS * batch + 4, several)


@triton.jit
def products(
    a, a_rows, a_inside, b, b_rows, b_inside, D: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the dot products of some rows of a with some rows of b, ``(ROWS, COLUMNS)``."""
    step = tl.arange(0, STEP)
    a_at = a + a_rows.to(tl.int64)[:, None] * D
    b_at = b + b_rows.to(tl.int64)[:, None] * D
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for low in range(0, D, STEP):
        column = low + step
        in_row = column < D
        left = tl.load(a_at + column[None, :], mask=a_inside[:, None] & in_row[None, :], other=0.0)
        right = tl.load(b_at + column[None, :], mask=b_inside[:, None] & in_row[None, :], other=0.0)
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    return total


@triton.jit
def rank_and_multiply(
    unit, fields, labels, ints, cosines, batch, num_classes, first_class, num_here,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr, CHUNK: tl.constexpr, MULTIPLIES: tl.constexpr,
):  # fmt: skip
    """Slots, one program a sample; then ``x_i . M_c``, one program for ROWS x COLUMNS of them."""
    if tl.program_id(0) < batch:
        row = tl.program_id(0)
        _rank(labels, ints, row, batch, num_classes, first_class, num_here, CHUNK)
    elif MULTIPLIES:
        tile = tl.program_id(0) - batch
        row_tiles = tl.cdiv(batch, ROWS)
        i = (tile % row_tiles) * ROWS + tl.arange(0, ROWS)
        c = (tile // row_tiles) * COLUMNS + tl.arange(0, COLUMNS)
        live, here = i < batch, c < num_here
        found = products(unit, i, live, fields, c, here, D, ROWS, COLUMNS, STEP, PRECISION)
        at = i.to(tl.int64)[:, None] * num_here + c[None, :]
        tl.store(cosines + at, found, mask=live[:, None] & here[None, :])


@triton.jit
def gradients(
    unit, fields, slopes, along, gradient, parts, batch, num_here, splits, field_tiles, share,
    D: tl.constexpr, SIDE: tl.constexpr, ACROSS: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``sum_i h_ic x_i - along_c M_c`` of fields; ``sum_c h_ic M_c`` of samples, in parts.

    One program for SIDE x ACROSS numbers of either.
    """
    if tl.program_id(0) < field_tiles:
        _of_fields(
            unit, fields, slopes, along, gradient, batch, num_here, splits,
            D, SIDE, ACROSS, STEP, PRECISION,
        )  # fmt: skip
    else:
        number = tl.program_id(0) - field_tiles
        _of_samples(
            fields, slopes, parts, batch, num_here, share, number, D, SIDE, ACROSS, STEP, PRECISION
        )


@triton.jit
def _of_fields(
    unit, fields, slopes, along, gradient, batch, num_here, splits, D: tl.constexpr,
    SIDE: tl.constexpr, ACROSS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(D, ACROSS)
    c = (tl.program_id(0) // across) * SIDE + tl.arange(0, SIDE)
    d = (tl.program_id(0) % across) * ACROSS + tl.arange(0, ACROSS)
    here, in_row = c < num_here, d < D
    total = tl.zeros((SIDE, ACROSS), tl.float32)
    for low in range(0, batch, STEP):
        i = low + tl.arange(0, STEP)
        h_at = i.to(tl.int64)[:, None] * num_here + c[None, :]
        h = tl.load(slopes + h_at, mask=(i < batch)[:, None] & here[None, :], other=0.0)
        x_at = i[:, None] * D + d[None, :]
        x = tl.load(unit + x_at, mask=(i < batch)[:, None] & in_row[None, :], other=0.0)
        total = tl.dot(tl.trans(h), x, total, input_precision=PRECISION)
    at = c.to(tl.int64)[:, None] * D + d[None, :]
    mask = here[:, None] & in_row[None, :]
    field = tl.load(fields + at, mask=mask, other=0.0)
    lost = _lost(along, c, here, splits, num_here, SIDE)
    tl.store(gradient + at, total - lost[:, None] * field, mask=mask)


@triton.jit
def _lost(along, c, here, splits, num_here, ROWS: tl.constexpr):
    """Add up what normalisation takes of the gradients of some fields."""
    total = tl.zeros((ROWS,), tl.float32)
    for part in range(0, splits):
        at = along + tl.cast(part, tl.int64) * num_here
        total += tl.load(at + c, mask=here, other=0.0)
    return total


@triton.jit
def _of_samples(
    fields, slopes, parts, batch, num_here, share, number, D: tl.constexpr,
    SIDE: tl.constexpr, ACROSS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(D, ACROSS)
    down = tl.cdiv(batch, SIDE)
    part = number // (across * down)
    i = ((number // across) % down) * SIDE + tl.arange(0, SIDE)
    d = (number % across) * ACROSS + tl.arange(0, ACROSS)
    live, in_row = i < batch, d < D
    total = tl.zeros((SIDE, ACROSS), tl.float32)
    for low in range(part * share, tl.minimum((part + 1) * share, num_here), STEP):
        c = low + tl.arange(0, STEP)
        here = c < num_here
        h_at = i.to(tl.int64)[:, None] * num_here + c[None, :]
        h = tl.load(slopes + h_at, mask=live[:, None] & here[None, :], other=0.0)
        m_at = c.to(tl.int64)[:, None] * D + d[None, :]
        m = tl.load(fields + m_at, mask=here[:, None] & in_row[None, :], other=0.0)
        total = tl.dot(h, m, total, input_precision=PRECISION)
    at = (part.to(tl.int64) * batch + i)[:, None] * D + d[None, :]
    tl.store(parts + at, total, mask=live[:, None] & in_row[None, :])


@triton.jit(do_not_specialize=["low"])
def finish_fields(
    fields, inverse, gradient, num_here, low, D: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Take from the gradient of a block, in place, what lies along its fields.

    `fields` and `gradient` begin with the block, `inverse` with all.
    """
    c = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    here = c < num_here
    scale = tl.load(inverse + low + c, mask=here, other=0.0)
    at = c.to(tl.int64)[:, None] * D + d[None, :]
    mask = here[:, None] & (d < D)[None, :]
    field = tl.load(fields + at, mask=mask, other=0.0).to(tl.float32)
    total = tl.load(gradient + at, mask=mask, other=0.0)
    lost = tl.sum(total * field, 1) * scale * scale
    tl.store(gradient + at, total - lost[:, None] * field, mask=mask)


@triton.jit
def finish_batch(
    unit, inverse, parts, gradient, values, value, batch, num_parts, num_values,
    D: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """One program a sample: add up the parts of its gradient, project. The first adds up values."""
    row = tl.program_id(0)
    if WANTED:
        column = tl.arange(0, WIDTH)
        in_row = column < D
        total = tl.zeros((WIDTH,), tl.float32)
        for part in range(0, num_parts):
            at = (tl.cast(part, tl.int64) * batch + row) * D + column
            total += tl.load(parts + at, mask=in_row, other=0.0)
        direction = tl.load(unit + row * D + column, mask=in_row, other=0.0).to(tl.float32)
        found = (total - direction * tl.sum(direction * total, 0)) * tl.load(inverse + row)
        stored = found.to(gradient.dtype.element_ty)
        tl.store(gradient + row * D + column, stored, mask=in_row)
    if row == 0:
        sums = tl.zeros((CHUNK,), tl.float32)
        for low in range(0, num_values, CHUNK):
            at = low + tl.arange(0, CHUNK)
            sums += tl.load(values + at, mask=at < num_values, other=0.0)
        tl.store(value, tl.sum(sums, 0))


@triton.jit
def scale(first, first_size, second, second_size, factor, CHUNK: tl.constexpr):
    """Multiply two tensors in place by a number on the device; by one, do nothing."""
    by = tl.load(factor)
    if by != 1.0:
        stride = tl.num_programs(0).to(tl.int64) * CHUNK
        begin = tl.program_id(0).to(tl.int64) * CHUNK
        for low in range(begin, first_size, stride):
            at = low + tl.arange(0, CHUNK)
            value = tl.load(first + at, mask=at < first_size, other=0.0)
            tl.store(first + at, (value * by).to(first.dtype.element_ty), mask=at < first_size)
        for low in range(begin, second_size, stride):
            at = low + tl.arange(0, CHUNK)
            value = tl.load(second + at, mask=at < second_size, other=0.0)
            tl.store(second + at, (value * by).to(second.dtype.element_ty), mask=at < second_size)
