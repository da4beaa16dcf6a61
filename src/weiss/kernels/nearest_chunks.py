"""Nearest neighbours on a CUDA device without a matrix of scores: largest scores of chunks.

`maxima` multiplies rows of half precision and keeps of every product only the largest scores of
chunks of `CHUNK` items: a sixteenth of the matrix. `exact_scores` reads the items of a few chunks,
those that can hold the nearest, and computes their scores in full precision. Which chunks these
are, and the proof that no other can matter, is the caller's: `weiss.evaluation.neighbours`.

A chunk holds every eighth item of a group of 128. A thread of the matrix product has just such
columns in its registers, so that their largest score needs no exchange between threads.

Dimensions: Q queries, G items, D embedding size, E size of the rounded rows; q queries of a block,
m chunks of each, c chunks, p = 16 m items of the chunks.

(triton only in files of programs; imported when a kernel is first used.)
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from weiss.kernels.fused_bfloat16_programs import cosines_of_a_tile

CHUNK = tl.constexpr(16)
"""Items of a chunk."""
STRIDE = tl.constexpr(8)
"""From one item of a chunk to the next; so many chunks share a group."""
TILE = {"ROWS": 128, "COLUMNS": 256, "STEP": 64, "BAND": 32, "num_warps": 8, "num_stages": 3}
"""Tile sizes of the matrix product. BAND tiles of queries meet all items before the next ones do,
so that they stay in the GPU's cache."""
SLOTS = 8
"""Chunks of a program of `exact_scores`."""
READ = 256
"""Entries of an item that are read at a time, at most."""


def num_chunks(num_items: int) -> int:
    """Return how many chunks a number of items has; the last ones may be empty."""
    columns = TILE["COLUMNS"]
    chunks: int = -(-num_items // columns) * columns // CHUNK.value
    return chunks


def maxima(query_qE: Tensor, items_GE: Tensor, num_items: int) -> Tensor:
    """Return ``(q, c)`` float32: the largest product of each query with the items of each chunk.

    Args:
        query_qE: half precision; E a multiple of 64 is fastest.
        items_GE: likewise, with memory for `TILE` ``COLUMNS`` more rows after ``num_items``.
        num_items: the items that count.
    """
    num_queries, size = query_qE.shape
    found_qc = torch.empty(num_queries, num_chunks(num_items), device=query_qE.device)
    row_tiles = -(-num_queries // TILE["ROWS"])
    with torch.cuda.device_of(query_qE):  # type: ignore[no-untyped-call]
        _maxima[(row_tiles * -(-num_items // TILE["COLUMNS"]),)](
            query_qE, items_GE, found_qc, num_queries, num_items, E=size, **TILE
        )
    return found_qc


def exact_scores(
    query_qD: Tensor,
    items_GD: Tensor,
    bias_G: Tensor | None,
    itself_q: Tensor,
    chunk_qm: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return ``(q, p)`` scores ``query . item + bias`` of the items of some chunks, and the items.

    In the precision of the inputs and, for one query, in one order of summation for all items:
    equal items have equal scores. Places beyond the last item, and that of the query itself,
    have the score minus infinity.

    Args:
        query_qD: float32 or float64.
        items_GD: likewise.
        bias_G: likewise, or None.
        itself_q: int64, the item that a query must not find, or a negative number.
        chunk_qm: int64, chunks as in the columns of `maxima`.
    """
    query_qD, chunk_qm = query_qD.contiguous(), chunk_qm.contiguous()
    (num_queries, num_slots), size = chunk_qm.shape, query_qD.shape[1]
    score_qp = query_qD.new_empty(num_queries, num_slots * CHUNK.value)
    item_qp = torch.empty_like(score_qp, dtype=torch.int64)
    with torch.cuda.device_of(query_qD):  # type: ignore[no-untyped-call]
        _exact_scores[(num_queries, -(-num_slots // SLOTS))](
            query_qD, items_GD, bias_G, itself_q, chunk_qm, score_qp, item_qp, len(items_GD),
            num_slots, D=size, READ=min(READ, triton.next_power_of_2(size)), SLOTS=SLOTS,
            num_warps=4,
        )  # fmt: skip
    return score_qp, item_qp


@triton.jit(do_not_specialize=["num_queries", "num_items"])
def _maxima(
    query, items, maxima, num_queries, num_items, E: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """ROWS queries by COLUMNS items a program."""
    row_tiles, column_tiles = tl.cdiv(num_queries, ROWS), tl.cdiv(num_items, COLUMNS)
    band = tl.program_id(0) // (BAND * column_tiles)
    place = tl.program_id(0) % (BAND * column_tiles)
    height = tl.minimum(row_tiles - band * BAND, BAND)
    top = (band * BAND + place % height) * ROWS
    begin = (place // height) * COLUMNS
    i = tl.arange(0, ROWS)
    row = tl.minimum(i, num_queries - 1 - top)
    left = query + top.to(tl.int64) * E
    right = items + begin.to(tl.int64) * E
    score = cosines_of_a_tile(left, row, right, E, ROWS, COLUMNS, STEP)
    if begin + COLUMNS > num_items:
        c = begin + tl.arange(0, COLUMNS)
        score = tl.where((c < num_items)[None, :], score, float("-inf"))
    groups: tl.constexpr = COLUMNS // (CHUNK * STRIDE)
    of_chunks = tl.max(tl.reshape(score, (ROWS, groups, CHUNK, STRIDE)), 2)
    of_chunks = tl.reshape(of_chunks, (ROWS, groups * STRIDE))
    chunk = begin // CHUNK + tl.arange(0, groups * STRIDE)
    at = (top + i).to(tl.int64)[:, None] * (column_tiles * groups * STRIDE) + chunk[None, :]
    tl.store(maxima + at, of_chunks, mask=(i < num_queries - top)[:, None])


@triton.jit(do_not_specialize=["num_items", "num_slots"])
def _exact_scores(
    query, items, bias, itself, chunks, scores, found, num_items, num_slots, D: tl.constexpr,
    READ: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """SLOTS chunks of a query a program. Products are summed entry by entry, without tl.dot."""
    i = tl.program_id(0).to(tl.int64)
    own = tl.load(itself + i)
    first = tl.program_id(1) * SLOTS
    for slot in range(first, tl.minimum(first + SLOTS, num_slots)):
        chunk = tl.load(chunks + i * num_slots + slot)
        c = (chunk // STRIDE) * (CHUNK * STRIDE) + chunk % STRIDE + tl.arange(0, CHUNK) * STRIDE
        row = tl.minimum(c, num_items - 1)
        total = tl.zeros((CHUNK, READ), query.dtype.element_ty)
        for low in range(0, D, READ):
            entry = low + tl.arange(0, READ)
            x = tl.load(query + i * D + entry, mask=entry < D, other=0.0)
            at = row[:, None] * D + entry[None, :]
            y = tl.load(items + at, mask=(entry < D)[None, :], other=0.0)
            total += x[None, :] * y
        score = tl.sum(total, 1)
        if bias is not None:
            score += tl.load(bias + row)
        score = tl.where((c < num_items) & (c != own), score, float("-inf"))
        at = (i * num_slots + slot) * CHUNK + tl.arange(0, CHUNK)
        tl.store(scores + at, score)
        tl.store(found + at, c)
