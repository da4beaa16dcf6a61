"""The Triton programs for one class against the rest, whose repulsions share a logarithm.

The formulas are those of `weiss.kernels.one_against_rest`; names and the array of integers those of
`weiss.kernels.fused_programs`. A block of classes begins with class `low`.

    sums     of every column the logarithms of its pushes and pulls, in parts for shares of the
             batch; with FULL, of every row the logarithm of its pushes, in parts for tiles
    totals   of every sample the sums of its row and of the column of its class
    join     these of a class that is present, of all shards: its whole sum
    slopes   cosines -> the loss, and its derivative by each cosine

`totals` and `join` are for ``keeps="full"`` alone.

(triton only in files of programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

from weiss.kernels.fused_programs import (
    COUNT,
    EMPTY,
    FACTS,
    MEMBER,
    NUM_FACTS,
    SIZE,
    START,
    softplus,
    with_exponent,
)


@triton.jit
def _soft(x):
    return softplus(x, tl.exp(-tl.abs(x)))


@triton.jit
def _log_weights(ints, i, live, batch, AVERAGE: tl.constexpr):
    """Return the logarithm of what a term of some samples counts in the average of its class."""
    size = tl.load(ints + COUNT * batch + i, mask=live, other=1).to(tl.float32)
    if AVERAGE == "samples":
        present = tl.load(ints + FACTS * batch).to(tl.float32)
        size = tl.zeros_like(size) + batch / present
    if AVERAGE == "none":
        size = tl.zeros_like(size) + 1.0
    return -tl.log(size)


@triton.jit
def _slots(ints, c, here, batch):
    """Return the slots of some classes; -1 for those that are absent."""
    return tl.load(ints + FACTS * batch + NUM_FACTS + c, mask=here, other=-1)


@triton.jit
def _num_counted(ints, c, here, batch, OVER_ALL: tl.constexpr):
    """Return of how many classes of a tile the sums are in the loss: of all, or those present."""
    counted = here
    if not OVER_ALL:
        counted = _slots(ints, c, here, batch) >= 0
    return tl.sum(counted.to(tl.int32), 0)


@triton.jit
def _with_rows(top, total, x):
    """Add the exponentials of a tile to sums for its columns, as `with_exponent` does for one."""
    higher = tl.maximum(top, tl.max(x, 0))
    return higher, total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)


@triton.jit
def _log_sum(top, total):
    """Return the logarithm of the sum of ``total e^top``, a number."""
    highest = tl.max(top, 0)
    return highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))


@triton.jit
def _joined(parts, at, mask, number, stride, LENGTH: tl.constexpr):
    """Return the logarithm of sums whose parts lie a stride apart, as logarithms."""
    top = tl.full((LENGTH,), EMPTY, tl.float32)
    total = tl.zeros((LENGTH,), tl.float32)
    for part in range(0, number):
        x = tl.load(parts + tl.cast(part, tl.int64) * stride + at, mask=mask, other=EMPTY)
        top, total = with_exponent(top, total, x)
    return top + tl.log(total)


@triton.jit
def _tile(
    cosines, labels, ints, scale, start, begin, batch, own_from, num_here, push_at, push_rate,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, AVERAGE: tl.constexpr,
):  # fmt: skip
    """Return a tile: its place, cosines, logarithms of pushes, and what is asked of own classes.

    `own_from` is the class of the first column of the block.
    """
    i = start + tl.arange(0, ROWS)
    c = begin + tl.arange(0, COLUMNS)
    live, here = i < batch, c < num_here
    at = i.to(tl.int64)[:, None] * num_here + c[None, :]
    counted = live[:, None] & here[None, :]
    cos = tl.load(cosines + at, mask=counted, other=0.0) * scale[None, :]
    log_weight = _log_weights(ints, i, live, batch, AVERAGE)
    own = tl.load(labels + i, mask=live, other=-1) - own_from
    is_own = counted & (own[:, None] == c[None, :])
    x = push_rate * (cos + (push_at - 1)) + log_weight[:, None]
    x = tl.where(counted & ~is_own, x, EMPTY)
    # Few tiles have a sample's own class: the others are spared its pull.
    has_own = tl.max(((own >= begin) & (own < begin + COLUMNS)).to(tl.int32), 0) > 0
    return i, live, at, cos, x, log_weight, is_own, has_own


@triton.jit
def _pulls(cos, log_weight, is_own, pull_at, pull_rate):
    """Return the logarithms of pulls of samples on the fields of their own classes."""
    x = pull_rate * ((1 - pull_at) - cos) + log_weight[:, None]
    return tl.where(is_own, x, EMPTY)


@triton.jit(do_not_specialize=["low", "tile", "num_tiles"])
def sums(
    cosines, labels, ints, inverse, pushes, pulls, rows, batch, first_class, num_here, all_here,
    low, tile, num_tiles, pull_at, pull_rate, push_at, push_rate, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, AVERAGE: tl.constexpr, FULL: tl.constexpr, OVER_ALL: tl.constexpr,
):  # fmt: skip
    """Logarithms of the sums of columns and rows; a program has COLUMNS classes, a share of rows.

    `rows` is ``(batch, num_tiles)``, of which this block has the columns from `tile` on. Pushes of
    columns are summed in tiles with a class that counts, see `_num_counted`.
    """
    begin = tl.program_id(0) * COLUMNS
    c = begin + tl.arange(0, COLUMNS)
    here = c < num_here
    scale = tl.load(inverse + low + c, mask=here, other=0.0)
    push_top = tl.full((COLUMNS,), EMPTY, tl.float32)
    push_total = tl.zeros((COLUMNS,), tl.float32)
    pull_top = tl.full((COLUMNS,), EMPTY, tl.float32)
    pull_total = tl.zeros((COLUMNS,), tl.float32)
    num_counted = _num_counted(ints, low + c, here, batch, OVER_ALL)
    for start in range(tl.program_id(1) * ROWS, batch, tl.num_programs(1) * ROWS):
        i, live, at, cos, x, log_weight, is_own, has_own = _tile(
            cosines, labels, ints, scale, start, begin, batch, first_class + low, num_here,
            push_at, push_rate, ROWS, COLUMNS, AVERAGE,
        )  # fmt: skip
        if num_counted > 0:
            push_top, push_total = _with_rows(push_top, push_total, x)
        if FULL:
            top = tl.max(x, 1)
            row = top + tl.log(tl.sum(tl.exp(x - top[:, None]), 1))
            tl.store(rows + i.to(tl.int64) * num_tiles + tile + tl.program_id(0), row, mask=live)
        if has_own:
            x = _pulls(cos, log_weight, is_own, pull_at, pull_rate)
            pull_top, pull_total = _with_rows(pull_top, pull_total, x)
    at = tl.program_id(1).to(tl.int64) * all_here + low + c
    tl.store(pushes + at, push_top + tl.log(tl.maximum(push_total, 1e-37)), mask=here)
    tl.store(pulls + at, pull_top + tl.log(tl.maximum(pull_total, 1e-37)), mask=here)


@triton.jit
def totals(
    pushes, rows, labels, table, batch, first_class, num_here, num_tiles, splits, index, parts,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Logarithms of the sums of a sample's row, and of the column of its class; one a program.

    `table` is ``(parts + 1, batch)``: over the fields of this shard the row goes to row `index`,
    the column to the last one, 0 where another shard has the field.
    """
    i = tl.program_id(0)
    top = tl.full((CHUNK,), EMPTY, tl.float32)
    total = tl.zeros((CHUNK,), tl.float32)
    for low in range(0, num_tiles, CHUNK):
        tile = low + tl.arange(0, CHUNK)
        x = tl.load(rows + i.to(tl.int64) * num_tiles + tile, mask=tile < num_tiles, other=EMPTY)
        top, total = with_exponent(top, total, x)
    tl.store(table + tl.cast(index, tl.int64) * batch + i, _log_sum(top, total))
    column = tl.load(labels + i) - first_class
    here = (column >= 0) & (column < num_here)
    at = tl.where(here, column, 0) + tl.arange(0, 1)
    others = tl.where(here, _joined(pushes, at, at >= 0, splits, num_here, 1), 0.0)
    tl.store(table + tl.cast(parts, tl.int64) * batch + i + tl.arange(0, 1), others)


@triton.jit
def join(table, ints, softs, batch, parts, CHUNK: tl.constexpr):
    """``log(1 + total)`` of a class that is present, for each of its samples; one slot a program.

    Its total has the rows of all its samples, of all shards, and its column.
    """
    k = tl.program_id(0)
    size = tl.load(ints + SIZE * batch + k)
    if size > 0:
        begin = tl.load(ints + START * batch + k)
        top = tl.full((CHUNK,), EMPTY, tl.float32)
        total = tl.zeros((CHUNK,), tl.float32)
        for low in range(0, size, CHUNK):
            turn = low + tl.arange(0, CHUNK)
            live = turn < size
            sample = tl.load(ints + MEMBER * batch + begin + turn, mask=live, other=0)
            x = _joined(table, sample, live, parts, batch, CHUNK)
            top, total = with_exponent(top, total, x)
        own = _log_sum(top, total)
        first = tl.load(ints + MEMBER * batch + begin)
        others = tl.load(table + tl.cast(parts, tl.int64) * batch + first)
        highest = tl.maximum(own, others)
        soft = _soft(highest + tl.log(tl.exp(own - highest) + tl.exp(others - highest)))
        for turn in range(0, size):
            sample = tl.load(ints + MEMBER * batch + begin + turn)
            tl.store(softs + sample, soft)


@triton.jit(do_not_specialize=["low", "place"])
def slopes(
    cosines, labels, ints, inverse, pushes, pulls, softs, along, values, batch, first_class,
    num_here, all_here, low, splits, place, num_classes, pull_at, pull_rate, push_at, push_rate,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, AVERAGE: tl.constexpr, FULL: tl.constexpr,
    OVER_ALL: tl.constexpr, BY_ALL: tl.constexpr, SLOPES: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    """From cosines and logarithms of sums to the loss and, in place, its derivatives by cosines.

    A program has COLUMNS classes and a share of the batch, as in
    `weiss.kernels.fused_programs.interact_linear`. The repulsion is a sum over the classes present,
    or OVER_ALL, divided by the number of classes present, or BY_ALL by that of all. With FULL
    `softs` are ``log(1 + total)`` of the class of each sample. Without SLOPES only values are
    computed.
    """
    begin = tl.program_id(0) * COLUMNS
    c = begin + tl.arange(0, COLUMNS)
    here = c < num_here
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    pull_share = 1.0 / present
    push_share = pull_share
    if BY_ALL:
        push_share = 1.0 / tl.cast(num_classes, tl.float32)
    push_soft = _soft(_joined(pushes, low + c, here, splits, all_here, COLUMNS))
    pull_soft = _soft(_joined(pulls, low + c, here, splits, all_here, COLUMNS))
    slot = _slots(ints, low + c, here, batch)
    used = slot >= 0
    counted_class = used
    if OVER_ALL:
        counted_class = here
    num_counted = tl.sum(counted_class.to(tl.int32), 0)
    if FULL:
        start = tl.load(ints + START * batch + slot, mask=used, other=0)
        sample = tl.load(ints + MEMBER * batch + start, mask=used, other=0)
        push_soft = tl.where(used, tl.load(softs + sample, mask=used, other=0.0), push_soft)
    number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    push_energy = tl.where(counted_class, push_soft, 0.0)
    energies = push_energy * (push_share / push_rate) + pull_soft * (pull_share / pull_rate)
    counted_here = here & (tl.program_id(1) == 0)
    tl.store(values + place + number, tl.sum(tl.where(counted_here, energies, 0.0), 0))
    if SLOPES:
        scale = tl.load(inverse + low + c, mask=here, other=0.0)
        lost = tl.zeros((COLUMNS,), tl.float32)
        for start in range(tl.program_id(1) * ROWS, batch, tl.num_programs(1) * ROWS):
            i, live, at, cos, x, log_weight, is_own, has_own = _tile(
                cosines, labels, ints, scale, start, begin, batch, first_class + low, num_here,
                push_at, push_rate, ROWS, COLUMNS, AVERAGE,
            )  # fmt: skip
            slope = tl.zeros((ROWS, COLUMNS), tl.float32)
            if num_counted > 0:  # many tiles have absent classes alone
                slope = tl.where(counted_class[None, :], tl.exp(x - push_soft[None, :]), 0.0)
            if FULL:
                soft = tl.load(softs + i, mask=live, other=0.0)
                slope += tl.exp(x - soft[:, None])
            slope = slope * push_share
            if has_own:
                x = _pulls(cos, log_weight, is_own, pull_at, pull_rate)
                slope -= tl.exp(x - pull_soft[None, :]) * pull_share
            if ALONG:
                lost += tl.sum(slope * cos, 0)
            tl.store(cosines + at, slope * scale[None, :], mask=live[:, None] & here[None, :])
        if ALONG:
            part_at = along + tl.program_id(1).to(tl.int64) * all_here + low
            tl.store(part_at + c, lost * scale * scale, mask=here)
