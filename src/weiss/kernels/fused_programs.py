"""The Triton programs behind `weiss.kernels.fused`, which describes how they work together.

The file is one piece: the programs share the integers below and each other's functions. First come
the batch and the matrix products, then the programs that turn cosines into the loss and its
derivative by each cosine: with linear links every cosine stands alone (`interact_linear`); with
logarithmic links the samples of a class are averaged first, against absent classes in
`interact_log`, among present ones in `averages`, `couple` and `put_coupled`.

Dimensions: B batch, C classes, K slots (classes present, most samples first), D embedding size.

One array of integers describes the batch by class, in parts of B each, named below: ``COUNT`` how
many samples share a sample's class, ``ORDER`` how many of them come before it, ``LEADER`` the first
of them, ``FINITE`` whether its vector is; ``MEMBER`` the samples slot by slot, ``CLASS``, ``SIZE``
and ``START`` the class of a slot, how many samples it has (0 for an unused one) and where they
begin in ``MEMBER``. Then the ``FACTS``: the number of classes present; how many labels are too
large, how many negative, how many vectors not finite; how many classes have a second sample. Then
the slot of each class, -1 for one that is absent.

(triton only in files of programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

COUNT, ORDER, LEADER, FINITE = (tl.constexpr(place) for place in range(4))
MEMBER, CLASS, SIZE, START = (tl.constexpr(place) for place in range(4, 8))
FACTS = tl.constexpr(8)
NUM_FACTS = tl.constexpr(5)
EMPTY = tl.constexpr(-1e30)
"""Logarithm of an empty sum: finite, so that no difference of two is NaN."""


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


@triton.jit
def softplus(x, small):
    """``log(1 + e^x)``, from ``small = e^-|x|``, with the digits of small values.

    ``log(1 + s) / s`` on [0, 1] is a polynomial here, right to 3e-7: cheaper than a logarithm, and
    without its loss of digits near 1.
    """
    log1p = 0.0051261019 * small - 0.0290740654
    log1p = log1p * small + 0.0775160864
    log1p = log1p * small - 0.1360224783
    log1p = log1p * small + 0.1907688081
    log1p = log1p * small - 0.2483539879
    log1p = log1p * small + 0.3331812024
    log1p = log1p * small - 0.4999944568
    log1p = log1p * small + 0.9999999404
    return tl.maximum(x, 0.0) + log1p * small


@triton.jit
def repulsion(cos, weight, push_at, push_rate, SOFT: tl.constexpr):
    """Return energies of cosines with other classes where links are linear; their derivatives."""
    return _energy_beyond(cos + (push_at - 1), push_rate, weight, SOFT)


@triton.jit
def linear_energy(cos, is_own, weight, pull_at, pull_rate, push_at, push_rate, SOFT: tl.constexpr):
    """Return energies of cosines where links are linear, and their derivatives."""
    beyond = tl.where(is_own, (1 - pull_at) - cos, cos + (push_at - 1))
    rate = tl.where(is_own, pull_rate, push_rate)
    energy, slope = _energy_beyond(beyond, rate, weight, SOFT)
    return energy, tl.where(is_own, -slope, slope)


@triton.jit
def _energy_beyond(beyond, rate, weight, SOFT: tl.constexpr):
    """Return the energy of what lies beyond a margin: a hinge, or a soft one; its derivative."""
    if SOFT:
        x = rate * beyond
        small = tl.exp(-tl.abs(x))
        part = 1.0 / (1 + small)
        energy = softplus(x, small) / rate * weight
        slope = tl.where(x > 0, part, small * part) * weight
    else:
        energy = tl.maximum(beyond, 0.0) * weight
        slope = tl.where(beyond > 0, weight, 0.0)
    return energy, slope


@triton.jit
def with_exponent(top, total, x):
    """Add ``e^x`` to the sum ``total e^top``; `top` stays the largest exponent so far."""
    higher = tl.maximum(top, x)
    return higher, total * tl.exp(top - higher) + tl.exp(x - higher)


@triton.jit
def averages(
    cosines, inverse, ints, table, batch, first_class, num_here, width, push_at, push_rate,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_SAMPLES: tl.constexpr, BY_SLOT: tl.constexpr,
):  # fmt: skip
    """The table of ``log N_kk'`` between present classes; 0 where the second is not here.

    The columns of the cosines are classes, or slots (BY_SLOT), and so are those of `inverse`.
    """
    k = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    size = tl.load(ints + SIZE * batch + k, mask=k < batch, other=0)
    start = tl.load(ints + START * batch + k, mask=size > 0, other=0)
    used = tl.load(ints + SIZE * batch + j, mask=j < batch, other=0) > 0
    column = tl.load(ints + CLASS * batch + j, mask=used, other=0) - first_class
    here = used & (column >= 0) & (column < num_here)
    column = j if BY_SLOT else tl.where(here, column, 0)
    scale = tl.load(inverse + column, mask=here, other=0.0)
    top = tl.full((ROWS, COLUMNS), EMPTY, tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(0, tl.max(size, 0)):
        live = turn < size
        row = tl.load(ints + MEMBER * batch + start + turn, mask=live, other=0)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        cos = tl.load(cosines + at, mask=live[:, None] & here[None, :], other=0.0) * scale[None, :]
        x = tl.where(live[:, None], push_rate * (push_at - 1 + cos), EMPTY)
        top, total = with_exponent(top, total, x)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    weight = tl.where(BY_SAMPLES, present / batch, 1.0 / tl.maximum(size, 1).to(tl.float32))
    log_mean = top + tl.log(tl.maximum(total, 1e-37)) + tl.log(weight)[:, None]
    log_mean = tl.where(here[None, :] & (size > 0)[:, None], log_mean, 0.0)
    at = k.to(tl.int64)[:, None] * batch + j[None, :]
    tl.store(table + at, log_mean, mask=(k < batch)[:, None] & (j < batch)[None, :])


@triton.jit(do_not_specialize=["low", "place"])
def interact_linear(
    cosines, slopes, labels, ints, inverse, along, values, batch, first_class, num_here, all_here,
    low, place, pull_at, pull_rate, push_at, push_rate, SOFT: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, BY_SAMPLES: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Linear links: every cosine for itself; a program has COLUMNS classes, a share of the batch.

    From cosines (times the length of the field) to the loss, and its derivative by each of them
    over the length of the field. With ALONG, `along` gets what a field's gradient loses to
    normalisation, in as many parts as the batch has shares. The classes are a block of all that are
    here, from class `low` on; its values go to `place`.
    """
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = c < num_here
    scale = tl.load(inverse + low + c, mask=here, other=0.0)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    sums = tl.zeros((COLUMNS,), tl.float32)
    energies = tl.zeros((COLUMNS,), tl.float32)
    for start in range(tl.program_id(1) * ROWS, batch, tl.num_programs(1) * ROWS):
        i = start + tl.arange(0, ROWS)
        live = i < batch
        at = i.to(tl.int64)[:, None] * num_here + c[None, :]
        valid = live[:, None] & here[None, :]
        cos = tl.load(cosines + at, mask=valid, other=0.0)
        own = tl.load(labels + i, mask=live, other=-1) - first_class - low
        size = tl.load(ints + COUNT * batch + i, mask=live, other=1).to(tl.float32)
        weight = tl.where(BY_SAMPLES, 1.0 / batch, 1.0 / (size * present))
        weight = tl.where(live, weight, 0.0)[:, None]
        cos = cos * scale[None, :]
        is_own = own[:, None] == c[None, :]
        energy, by_cos = linear_energy(
            cos, is_own, weight, pull_at, pull_rate, push_at, push_rate, SOFT
        )
        energies += tl.sum(energy, 0)
        if ALONG:
            sums += tl.sum(by_cos * cos, 0)
        by_cos = by_cos * scale[None, :]
        tl.store(slopes + at, by_cos.to(slopes.dtype.element_ty), mask=valid)
    if ALONG:
        part_at = along + tl.program_id(1).to(tl.int64) * all_here + low
        tl.store(part_at + c, sums * scale * scale, mask=here)
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + place + number, tl.sum(tl.where(here, energies, 0.0), 0))


@triton.jit(do_not_specialize=["low", "place"])
def interact_log(
    cosines, slopes, ints, inverse, along, values, batch, num_here, all_here, low, place,
    push_at, push_rate, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_SAMPLES: tl.constexpr,
    ALONG: tl.constexpr,
):  # fmt: skip
    """Logarithmic links, as `interact_linear`, between present classes and those absent.

    Slots with one sample need no average; those with more come first, and are gone through member
    by member: once to average, once more to differentiate. Columns of present classes get a slope
    of zero here.
    """
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = c < num_here
    slot = tl.load(ints + FACTS * batch + NUM_FACTS + low + c, mask=here, other=0)
    absent = slot < 0
    scale = tl.load(inverse + low + c, mask=here, other=0.0)
    present = tl.load(ints + FACTS * batch)
    several = tl.load(ints + FACTS * batch + 4)
    by_sample = present.to(tl.float32) / batch
    share = 1.0 / present.to(tl.float32)
    sums = tl.zeros((COLUMNS,), tl.float32)
    energies = tl.zeros((COLUMNS,), tl.float32)
    for start in range(tl.program_id(1) * ROWS, present, tl.num_programs(1) * ROWS):
        k = start + tl.arange(0, ROWS)
        size = tl.load(ints + SIZE * batch + k, mask=k < batch, other=0)
        begin = tl.load(ints + START * batch + k, mask=size > 0, other=0)
        mean = tl.where(BY_SAMPLES, by_sample, 1.0 / tl.maximum(size, 1).to(tl.float32))
        log_weight = tl.log(mean)[:, None]
        offset = push_rate * (push_at - 1) + log_weight
        shares = tl.where(size > 0, share, 0.0)[:, None]
        counts = tl.where(size > 0, 1.0, 0.0)[:, None]
        if start >= several:
            live = size > 0
            row = tl.load(ints + MEMBER * batch + begin, mask=live, other=0)
            at = row.to(tl.int64)[:, None] * num_here + c[None, :]
            valid = live[:, None] & here[None, :]
            cos = tl.load(cosines + at, mask=valid, other=0.0) * scale[None, :]
            x = tl.where(absent[None, :], push_rate * cos + offset, EMPTY)
            small = tl.exp(-tl.abs(x))
            part = shares / (1 + small)
            slope = tl.where(x > 0, part, small * part)
            energies += tl.sum(softplus(x, small) * counts, 0)
            if ALONG:
                sums += tl.sum(slope * cos, 0)
            stored = (slope * scale[None, :]).to(slopes.dtype.element_ty)
            tl.store(slopes + at, stored, mask=valid)
        else:
            turns = tl.max(size, 0)
            top = tl.full((ROWS, COLUMNS), EMPTY, tl.float32)
            total = tl.zeros((ROWS, COLUMNS), tl.float32)
            for turn in range(0, turns):
                live = turn < size
                row = tl.load(ints + MEMBER * batch + begin + turn, mask=live, other=0)
                at = row.to(tl.int64)[:, None] * num_here + c[None, :]
                valid = live[:, None] & here[None, :]
                cos = tl.load(cosines + at, mask=valid, other=0.0) * scale[None, :]
                x = tl.where(live[:, None], push_rate * cos + offset, EMPTY)
                top, total = with_exponent(top, total, x)
            log_mean = tl.where(absent[None, :], top + tl.log(tl.maximum(total, 1e-37)), EMPTY)
            soft = softplus(log_mean, tl.exp(-tl.abs(log_mean)))
            energies += tl.sum(soft * counts, 0)
            for turn in range(0, turns):
                live = turn < size
                row = tl.load(ints + MEMBER * batch + begin + turn, mask=live, other=0)
                at = row.to(tl.int64)[:, None] * num_here + c[None, :]
                valid = live[:, None] & here[None, :]
                cos = tl.load(cosines + at, mask=valid, other=0.0) * scale[None, :]
                slope = tl.exp(push_rate * cos + offset - soft) * shares
                slope = tl.where(valid & absent[None, :], slope, 0.0)
                if ALONG:
                    sums += tl.sum(slope * cos, 0)
                stored = (slope * scale[None, :]).to(slopes.dtype.element_ty)
                tl.store(slopes + at, stored, mask=valid)
    if ALONG:
        part_at = along + tl.program_id(1).to(tl.int64) * all_here + low
        tl.store(part_at + c, sums * scale * scale, mask=here)
    total_energy = tl.sum(tl.where(here, energies, 0.0), 0) * share / push_rate
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + place + number, total_energy)


@triton.jit
def couple(
    cosines, inverse, ints, table, slopes, parts, values, batch, first_class, num_here, width,
    pull_at, pull_rate, push_at, push_rate, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BY_SAMPLES: tl.constexpr, BY_SLOT: tl.constexpr,
):  # fmt: skip
    """Logarithmic links between present classes: attraction, and repulsion where N_cc' meets N_c'c.

    A tile of slots by slots. Slopes ``(B, K)`` are those of samples against the classes of slots,
    by the cosine; 0 for what is not here. Columns of the cosines are as in `averages`. `parts` gets
    the sums over slots of slope times cosine, tile by tile.
    """
    k = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    size = tl.load(ints + SIZE * batch + k, mask=k < batch, other=0)
    begin = tl.load(ints + START * batch + k, mask=size > 0, other=0)
    inside = j < batch
    used = tl.load(ints + SIZE * batch + j, mask=inside, other=0) > 0
    column = tl.load(ints + CLASS * batch + j, mask=used, other=0) - first_class
    here = used & (column >= 0) & (column < num_here)
    column = j if BY_SLOT else tl.where(here, column, 0)
    scale = tl.load(inverse + column, mask=here, other=0.0)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    mean = tl.where(BY_SAMPLES, present / batch, 1.0 / tl.maximum(size, 1).to(tl.float32))
    log_weight = tl.log(mean)[:, None]
    is_own = k[:, None] == j[None, :]
    rate = tl.where(is_own, pull_rate, push_rate)
    counted = (size > 0)[:, None] & here[None, :]
    turns = tl.max(size, 0)
    top = tl.full((ROWS, COLUMNS), EMPTY, tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(0, turns):
        live = turn < size
        row = tl.load(ints + MEMBER * batch + begin + turn, mask=live, other=0)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        cos = tl.load(cosines + at, mask=live[:, None] & here[None, :], other=0.0) * scale[None, :]
        x = rate * tl.where(is_own, (1 - pull_at) - cos, cos + (push_at - 1))
        x = tl.where(live[:, None], x, EMPTY)
        top, total = with_exponent(top, total, x)
    log_mean = top + tl.log(tl.maximum(total, 1e-37)) + log_weight
    both = counted & ~is_own
    back_at = j.to(tl.int64)[None, :] * batch + k[:, None]
    back = tl.load(table + back_at, mask=both, other=EMPTY)
    highest = tl.maximum(log_mean, back)
    sum_of_both = highest + tl.log(tl.exp(log_mean - highest) + tl.exp(back - highest))
    log_mean = tl.where(both, sum_of_both, log_mean)
    soft = softplus(log_mean, tl.exp(-tl.abs(log_mean)))
    energy = tl.where(counted, soft / rate, 0.0)
    energy = tl.where(both, 0.5 * energy, energy)
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(values + number, tl.sum(tl.sum(energy, 1), 0) / present)
    sums = tl.zeros((COLUMNS,), tl.float32)
    for turn in range(0, turns):
        live = turn < size
        row = tl.load(ints + MEMBER * batch + begin + turn, mask=live, other=0)
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        cos = tl.load(cosines + at, mask=live[:, None] & here[None, :], other=0.0) * scale[None, :]
        x = rate * tl.where(is_own, (1 - pull_at) - cos, cos + (push_at - 1))
        slope = tl.exp(x + log_weight - soft) / present
        slope = tl.where(counted & live[:, None], tl.where(is_own, -slope, slope), 0.0)
        sums += tl.sum(slope * cos, 0)
        to = row.to(tl.int64)[:, None] * batch + j[None, :]
        tl.store(slopes + to, slope, mask=live[:, None] & inside[None, :])
    tl.store(parts + tl.program_id(0) * batch + j, sums, mask=inside)


@triton.jit(do_not_specialize=["low"])
def put_coupled(
    inverse, ints, coupled, parts, slopes, along, batch, first_class, num_here, stride, tiles, low,
    ROWS: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """Put the slopes of present classes into their columns of a block; one program a slot."""
    j = tl.program_id(0)
    column = tl.load(ints + CLASS * batch + j) - first_class - low
    used = tl.load(ints + SIZE * batch + j) > 0
    if used & (column >= 0) & (column < num_here):
        scale = tl.load(inverse + low + column)
        for start in range(0, batch, ROWS):
            i = start + tl.arange(0, ROWS)
            live = i < batch
            slope = tl.load(coupled + i.to(tl.int64) * batch + j, mask=live, other=0.0) * scale
            to = i.to(tl.int64) * stride + column
            tl.store(slopes + to, slope.to(slopes.dtype.element_ty), mask=live)
        if ALONG:
            total = 0.0
            for tile in range(0, tiles):
                total += tl.load(parts + tile * batch + j)
            # The other parts of `along` are zero here: `interact_log` has left this column alone.
            tl.store(along + low + column, total * scale * scale)
