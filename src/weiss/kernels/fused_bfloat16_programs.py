"""The Triton programs for products in bfloat16, where each pass over the cosines costs as much.

The cosines of a tile are turned into slopes where they were computed, and only the slopes are
written. Names and the array of integers are those of `weiss.kernels.fused_programs`. A block of
classes begins with class `low`; its slopes lie in rows of `stride`, fewer than 2^31 in all, and
`copy` has as many rows, whether or not there are as many classes. Results for a class that does
not exist are not stored.

(triton only in files of programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

from weiss.kernels.fused_programs import (
    COUNT,
    FACTS,
    MEMBER,
    NUM_FACTS,
    ORDER,
    linear_energy,
    repulsion,
    softplus,
)

LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(1e4)
"""An exponent of two beyond all numbers."""


@triton.jit
def cosines_of_a_tile(
    unit, rows, fields, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Return ``x_i . M_c`` of some rows and of the COLUMNS fields from a pointer on."""
    step = tl.arange(0, STEP)
    left = unit + rows[:, None] * D + step[None, :]
    right = fields + tl.arange(0, COLUMNS)[None, :] * D + step[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for low in range(0, D, STEP):
        if D % STEP == 0:
            a = tl.load(left + low)
            b = tl.load(right + low)
        else:
            inside = low + step < D
            a = tl.load(left + low, mask=inside[None, :], other=0.0)
            b = tl.load(right + low, mask=inside[:, None], other=0.0)
        total = tl.dot(a, b, total)
    return total


@triton.jit(do_not_specialize=["low", "place"])
def meet_linear(
    unit, copy, slopes, labels, ints, inverse, values, batch, first_class, num_here, stride,
    low, place, pull_at, pull_rate, push_at, push_rate, SOFT: tl.constexpr,
    BY_SAMPLES: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Linear links, from vectors to slopes: ROWS samples by COLUMNS classes a program."""
    row_tiles = tl.cdiv(batch, ROWS)
    i = (tl.program_id(0) % row_tiles) * ROWS + tl.arange(0, ROWS)
    begin = (tl.program_id(0) // row_tiles) * COLUMNS
    c = begin + tl.arange(0, COLUMNS)
    live, here = i < batch, c < num_here
    row = tl.minimum(i, batch - 1)
    fields = copy + begin.to(tl.int64) * D
    cos = cosines_of_a_tile(unit, row, fields, D, ROWS, COLUMNS, STEP)
    scale = tl.load(inverse + low + c, mask=here, other=0.0)
    cos = cos * scale[None, :]
    size = tl.load(ints + COUNT * batch + row).to(tl.float32)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    weight = tl.where(BY_SAMPLES, 1.0 / batch, 1.0 / (size * present))
    weight = tl.where(live, weight, 0.0)[:, None]
    own = (tl.load(labels + row) - first_class - low).to(tl.int32)
    # Few tiles have a sample's own class: the others are spared the question.
    if tl.max(((own >= begin) & (own < begin + COLUMNS)).to(tl.int32), 0) > 0:
        is_own = own[:, None] == c[None, :]
        energy, by_cos = linear_energy(
            cos, is_own, weight, pull_at, pull_rate, push_at, push_rate, SOFT
        )
    else:
        energy, by_cos = repulsion(cos, weight, push_at, push_rate, SOFT)
    energy = tl.where(here[None, :], energy, 0.0)
    tl.store(values + place + tl.program_id(0), tl.sum(tl.sum(energy, 1), 0))
    at = i[:, None] * stride + c[None, :]
    stored = (by_cos * scale[None, :]).to(slopes.dtype.element_ty)
    tl.store(slopes + at, stored, mask=live[:, None] & here[None, :])


@triton.jit(do_not_specialize=["low", "place"])
def meet_log(
    unit, copy, slopes, ints, inverse, values, batch, num_here, stride, low, place,
    push_at, push_rate, BY_SAMPLES: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Logarithmic links, from vectors to slopes, where every sample is alone in its class.

    A tile has ROWS samples in the order of slots, the largest classes first: if the first is alone,
    so are all. Other tiles are left to `meet_log_together`. Columns of present classes get no slope
    here; `couple` finds theirs.
    """
    row_tiles = tl.cdiv(batch, ROWS)
    first = (tl.program_id(0) % row_tiles) * ROWS
    if tl.load(ints + COUNT * batch + tl.load(ints + MEMBER * batch + first)) > 1:
        tl.store(values + place + tl.program_id(0), 0.0)
        return
    begin = (tl.program_id(0) // row_tiles) * COLUMNS
    p = first + tl.arange(0, ROWS)
    live = p < batch
    row = tl.load(ints + MEMBER * batch + p, mask=live, other=0)
    cos = cosines_of_a_tile(unit, row, copy + begin.to(tl.int64) * D, D, ROWS, COLUMNS, STEP)
    c = begin + tl.arange(0, COLUMNS)
    here = c < num_here
    scale = tl.load(inverse + low + c, mask=here, other=0.0)
    slot = tl.load(ints + FACTS * batch + NUM_FACTS + low + c, mask=here, other=-1)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    mean = tl.where(BY_SAMPLES, present / batch, 1.0)
    # log2 of 1 / N; infinite, and so without energy or slope, in columns that do not count.
    offset = (push_rate * (push_at - 1) + tl.log(mean)) * -LOG2_E
    offsets = tl.where(here & (slot < 0), offset, FAR)
    x = cos * (scale * push_rate * -LOG2_E)[None, :] + offsets[None, :]
    slope = 1.0 / (1 + tl.exp2(x))
    energy = tl.maximum(-x, 0.0) * LN_2 + _log_of_rest(tl.minimum(slope, 1 - slope))
    energies = tl.where(live, tl.sum(energy, 1), 0.0)
    tl.store(values + place + tl.program_id(0), tl.sum(energies, 0) / (present * push_rate))
    slope = slope * (scale / present)[None, :]
    at = row[:, None] * stride + c[None, :]
    mask = live[:, None] & here[None, :]
    tl.store(slopes + at, slope.to(slopes.dtype.element_ty), mask=mask)


@triton.jit
def _log_of_rest(m):
    """``-log(1 - m)`` for m from 0 to 1/2, right to 5e-5 of itself."""
    total = 0.745194243 * m - 0.057820104
    total = total * m + 0.395802490
    total = total * m + 0.495781484
    total = total * m + 1.000044365
    return total * m


@triton.jit
def _log_of_sum(total, floor, shift):
    """``log(1 + e^shift total)`` for ``floor = e^-shift``, with the digits of small values."""
    larger = tl.maximum(total, floor)
    exponent = tl.where(total > floor, tl.log(larger) + shift, 0.0)
    return softplus(exponent, tl.minimum(total, floor) / larger)


@triton.jit(do_not_specialize=["low", "place"])
def meet_log_together(
    unit, copy, slopes, ints, inverse, values, batch, num_here, stride, low, place,
    push_at, push_rate, shift, BY_SAMPLES: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """What `meet_log` does not compute: tiles with classes of several samples.

    Programs ``(tile, n)`` share the columns of a tile. The samples of a class are added up by a
    product with the matrix of who shares a class; exponentials are taken over
    ``e^shift``, so that such sums are finite. A class that does not lie in the tile is left to
    `meet_log_across`.
    """
    first = tl.program_id(0) * ROWS
    energies = tl.zeros((ROWS,), tl.float32)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    if tl.load(ints + COUNT * batch + tl.load(ints + MEMBER * batch + first)) > 1:
        p = first + tl.arange(0, ROWS)
        live = p < batch
        row = tl.load(ints + MEMBER * batch + p, mask=live, other=0)
        size = tl.load(ints + COUNT * batch + row)
        start = p - tl.load(ints + ORDER * batch + row)
        inside = live & (start >= first) & (start + size <= first + ROWS)
        mean = tl.where(BY_SAMPLES, present / batch, 1.0 / size.to(tl.float32))
        offset = push_rate * (push_at - 1) + tl.log(mean) - shift
        floor = tl.exp(-shift)
        counts = tl.where(inside, 1.0 / size.to(tl.float32), 0.0)
        same = ((start[:, None] == start[None, :]) & inside[:, None]).to(slopes.dtype.element_ty)
        for begin in range(tl.program_id(1) * COLUMNS, num_here, tl.num_programs(1) * COLUMNS):
            cos = cosines_of_a_tile(
                unit, row, copy + tl.cast(begin, tl.int64) * D, D, ROWS, COLUMNS, STEP
            )
            c = begin + tl.arange(0, COLUMNS)
            here = c < num_here
            scale = tl.load(inverse + low + c, mask=here, other=0.0)
            slot = tl.load(ints + FACTS * batch + NUM_FACTS + low + c, mask=here, other=-1)
            power = tl.exp(cos * (push_rate * scale)[None, :] + offset[:, None])
            power = tl.where((here & (slot < 0))[None, :], power, 0.0)
            total = tl.dot(same, power.to(slopes.dtype.element_ty))
            energies += tl.sum(_log_of_sum(total, floor, shift), 1) * counts
            slope = power * (scale / present)[None, :] / (floor + total)
            at = row[:, None] * stride + c[None, :]
            mask = inside[:, None] & here[None, :]
            tl.store(slopes + at, slope.to(slopes.dtype.element_ty), mask=mask)
    number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + place + number, tl.sum(energies, 0) / (present * push_rate))


@triton.jit(do_not_specialize=["low", "place"])
def meet_log_across(
    unit, copy, slopes, ints, inverse, values, batch, num_here, stride, low, place,
    push_at, push_rate, shift, BY_SAMPLES: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """What `meet_log_together` does not compute: a class that begins in a tile and ends in another.

    Programs ``(tile, n)`` share the columns of the class that begins in the tile, if there is one.
    """
    first = tl.program_id(0) * ROWS
    energies = tl.zeros((COLUMNS,), tl.float32)
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    if first + ROWS < batch:
        last = tl.load(ints + MEMBER * batch + first + ROWS - 1)
        start = first + ROWS - 1 - tl.load(ints + ORDER * batch + last)
        size = tl.load(ints + COUNT * batch + last)
        if (start >= first) & (start + size > first + ROWS):
            mean = tl.where(BY_SAMPLES, present / batch, 1.0 / size.to(tl.float32))
            offset = push_rate * (push_at - 1) + tl.log(mean) - shift
            floor = tl.exp(-shift)
            turns = tl.cdiv(size, ROWS)
            for begin in range(tl.program_id(1) * COLUMNS, num_here, tl.num_programs(1) * COLUMNS):
                c = begin + tl.arange(0, COLUMNS)
                here = c < num_here
                scale = tl.load(inverse + low + c, mask=here, other=0.0)
                slot = tl.load(ints + FACTS * batch + NUM_FACTS + low + c, mask=here, other=0)
                fields = copy + tl.cast(begin, tl.int64) * D
                total = tl.zeros((COLUMNS,), tl.float32)
                # First the sum, then the slopes; of a class that fits a tile both at once.
                for turn in range(0, tl.where(turns == 1, 1, 2 * turns)):
                    p = start + (turn % turns) * ROWS + tl.arange(0, ROWS)
                    live = p < start + size
                    row = tl.load(ints + MEMBER * batch + p, mask=live, other=0)
                    cos = cosines_of_a_tile(unit, row, fields, D, ROWS, COLUMNS, STEP)
                    power = tl.exp(cos * (push_rate * scale)[None, :] + offset)
                    if turn < turns:
                        total += tl.sum(tl.where(live[:, None], power, 0.0), 0)
                    if (turn >= turns) | (turns == 1):
                        slope = power * (scale / present / (floor + total))[None, :]
                        at = row[:, None] * stride + c[None, :]
                        mask = live[:, None] & (slot < 0)[None, :]
                        tl.store(slopes + at, slope.to(slopes.dtype.element_ty), mask=mask)
                energies += tl.where(slot < 0, _log_of_sum(total, floor, shift), 0.0)
    number = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + place + number, tl.sum(energies, 0) / (present * push_rate))
