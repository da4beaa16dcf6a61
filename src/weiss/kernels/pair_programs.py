"""The Triton programs that find the pairs which repel, and add up over a list of them.

(triton only here and in the other programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

from weiss.kernels.programs import products


@triton.jit
def screen(
    unit, fields, inverse, is_absent, counts, classes, cosines, batch, num_here, room, least,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """List the absent classes whose cosine with a sample is above ``least``, sample by sample.

    Each sample has ``room`` places. Who comes first takes the first place: the lists have no order,
    but their contents do not depend on it.
    """
    row_tiles = tl.cdiv(batch, ROWS)
    i = (tl.program_id(0) % row_tiles) * ROWS + tl.arange(0, ROWS)
    c = (tl.program_id(0) // row_tiles) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = i < batch, c < num_here
    cos = products(unit, i, live, fields, c, inside, D, ROWS, COLUMNS, STEP, PRECISION)
    cos = cos * tl.load(inverse + c, mask=inside, other=0.0)[None, :]
    absent = tl.load(is_absent + c, mask=inside, other=0) != 0
    near = (cos > least) & absent[None, :] & live[:, None]
    if tl.max(tl.max(near.to(tl.int32), 1), 0) > 0:
        counter = counts + i[:, None] + tl.zeros_like(c)[None, :]
        place = tl.atomic_add(counter, 1, mask=near)
        at = i.to(tl.int64)[:, None] * room + place
        near = near & (place < room)
        tl.store(classes + at, tl.zeros_like(i)[:, None] + c[None, :], mask=near)
        tl.store(cosines + at, cos, mask=near)


@triton.jit
def add_lists(
    total, start, index, weight, cosine, vectors, inverse, own, D: tl.constexpr,
    WIDTH: tl.constexpr, PROJECTS: tl.constexpr,
):  # fmt: skip
    """One program a row: the sum of its list's vectors, each times its weight, in the list's order.

    PROJECTS takes off what is along the row's own vector, which was normalised.
    """
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(start + row)
    last = tl.load(start + row + 1)
    column = tl.arange(0, WIDTH)
    inside = column < D
    result = tl.zeros((WIDTH,), tl.float32)
    along = 0.0
    for place in range(first, last):
        source = tl.load(index + place).to(tl.int64)
        by = tl.load(weight + place)
        result += by * tl.load(vectors + source * D + column, mask=inside, other=0.0)
        if PROJECTS:
            along += by * tl.load(cosine + place)
    if PROJECTS:  # noqa: SIM102 (known when compiled, unlike the length)
        if last > first:
            mine = tl.load(own + row * D + column, mask=inside, other=0.0)
            result -= along * tl.load(inverse + row) * mine
    tl.store(total + row * D + column, result, mask=inside)
