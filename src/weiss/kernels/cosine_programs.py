"""The Triton programs that turn cosines into the loss and its derivative by each cosine.

Names and the run of integers are those of `weiss.kernels.programs`. Where links are linear every
cosine is for itself (`interact_linear`). Where they are logarithmic the samples of a class come
together first: against absent classes in `interact_log`, among present ones in `averages`, `couple`
and `put_coupled`.

(triton only here and in the other programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

from weiss.kernels.programs import CLASS, COUNT, FACTS, MEMBER, NUM_FACTS, SIZE, START

EMPTY = tl.constexpr(-1e30)
"""Logarithm of an empty sum: finite, so that no difference of two is NaN."""


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
def _with_exponent(top, total, x):
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
        top, total = _with_exponent(top, total, x)
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
                top, total = _with_exponent(top, total, x)
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
        top, total = _with_exponent(top, total, x)
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
