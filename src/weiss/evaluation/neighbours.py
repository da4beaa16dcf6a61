"""Exact nearest neighbours by blocked matrix products, never the whole Q x G matrix.

Dimensions: Q queries, G gallery items, D embedding size, k neighbours; q and g rows of a block.

Why not ``torch.topk`` on every block of scores: on a GPU selecting 50 of a million costs as much as
computing the million. A block of scores is split into chunks of columns, and first only the
largest score of each chunk is compared. The k best scores of a row lie in the k chunks with the
largest maxima; all others are skipped. The selection is exact.

Ties: of two items at the same computed distance the one with the lower index comes first. The
top k+1 scores show whether the k-th place is tied; the few rows with a tie are resolved by counting
from the left. The distances come from a matrix product: those of two equal items may differ in the
last bit, depending on their place in a block.

Precision: cosines in the precision of the inputs, at least float32 and never TF32. Euclidean
distances in float64, since ``|x|^2 - 2 x.y`` cancels digits that float32 does not have.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss.evaluation.embeddings import ROWS, Embeddings, compute_dtype, take
from weiss.theory.distances import unit

CPU_BUDGET = 512 * 2**20
NOBODY = -1
"""The index of a neighbour that does not exist."""


def default_budget(device: torch.device) -> int:
    """Return how many bytes a search may use beside its inputs."""
    if device.type != "cuda":
        return CPU_BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    return min(free // 4, 32 * 2**30)


def nearest_neighbours(
    query: Embeddings,
    gallery: Embeddings,
    num_neighbours: Array,
    *,
    distance: str,
    leave_one_out: bool,
    device: torch.device,
    budget: int,
    rows: Array,
) -> Iterator[tuple[Array, Tensor]]:
    """Find the nearest gallery items of some queries, block by block.

    Args:
        query: ``(Q, D)`` tensor, array or memory map.
        gallery: ``(G, D)`` likewise.
        num_neighbours: ``(Q,)`` how many neighbours each query needs. Queries with similar
            numbers share a block, so that one large class does not make every query expensive.
        distance: ``"cosine"`` or ``"euclidean"``.
        leave_one_out: the gallery is the query set, and no query finds itself.
        device: where to compute.
        budget: bytes the search may use beside its inputs, about.
        rows: the queries to search for; the others are left out.

    Yields:
        Rows of queries, and the ``(q, k)`` indices of their neighbours, nearest first; k is their
        largest number, at most the size of the gallery. `NOBODY` fills missing neighbours.
    """
    dtype = torch.float64 if distance == "euclidean" else compute_dtype(query, gallery)
    prepared = _Gallery(gallery, dtype, distance, device, budget // 2)
    num_neighbours = np.minimum(num_neighbours, len(prepared))
    rows = rows[np.argsort(num_neighbours[rows], kind="stable")]
    width = prepared.block_width(budget // 2)
    start = 0
    while start < len(rows):
        # As many rows as fit if all need as much as the last of those that would fit at first.
        height = prepared.block_height(width, num_neighbours[rows[start]], budget // 2)
        k = int(num_neighbours[rows[min(start + height, len(rows)) - 1]])
        height = prepared.block_height(width, k, budget // 2)
        block = rows[start : start + height]
        k = int(num_neighbours[block].max())
        yield block, _search(query, block, prepared, k, width, leave_one_out)
        start += height


def _search(
    query: Embeddings,
    block: Array,
    gallery: "_Gallery",
    k: int,
    width: int,
    leave_one_out: bool,
) -> Tensor:
    query_qD = gallery.like(take(query, block))
    itself_q = torch.from_numpy(block).to(query_qD.device)
    best: tuple[Tensor, Tensor] | None = None
    for start in range(0, len(gallery), width):
        score_qg = gallery.score(query_qD, start, start + width)
        if leave_one_out:
            _forget_itself(score_qg, itself_q - start)
        found = _largest(score_qg, k)
        found = found[0], found[1] + start
        best = found if best is None else _merged(best, found, k)
    assert best is not None
    score_qk, index_qk = best
    return index_qk.masked_fill(score_qk == -math.inf, NOBODY)


class _Gallery:
    """Gallery items prepared so that ``query @ items.T + bias`` is larger for closer items."""

    def __init__(
        self,
        items: Embeddings,
        dtype: torch.dtype,
        distance: str,
        device: torch.device,
        budget: int,
    ) -> None:
        self.items, self.dtype, self.distance, self.device = items, dtype, distance, device
        self.itemsize = torch.finfo(dtype).bits // 8
        self._buffer = torch.empty(0, dtype=dtype, device=device)
        self.origin = self._origin() if distance == "euclidean" else None
        whole = items.shape[0] * items.shape[1] * self.itemsize
        self.ready = self._prepare(0, len(items)) if whole <= budget else None

    def __len__(self) -> int:
        return len(self.items)

    def block_width(self, budget: int) -> int:
        """Choose g so that a block of scores can have 64 rows."""
        width = max(budget // (64 * self.itemsize), 1024)
        if self.ready is None:  # items are read, converted and scaled block by block as well
            width = min(width, max(budget // (4 * self.items.shape[1] * self.itemsize), 64))
        return min(width, len(self))

    def block_height(self, width: int, k: int, budget: int) -> int:
        """Choose q so that scores, queries and lists of k neighbours fit the budget."""
        scores = width * self.itemsize * 4 // 3
        queries = 3 * self.items.shape[1] * self.itemsize
        lists = 64 * int(k)  # scores, indices and their orders; hits, ranks and precisions
        return max(budget // (scores + queries + lists), 1)

    def like(self, rows_nD: Tensor) -> Tensor:
        """Prepare rows like the items: unit length, or centred."""
        rows_nD = rows_nD.to(self.device, self.dtype)
        if self.origin is not None:
            return rows_nD - self.origin
        # The largest entry first, so that no square leaves the range of the dtype.
        return unit(rows_nD / rows_nD.abs().amax(dim=1, keepdim=True))

    def score(self, query_qD: Tensor, start: int, stop: int) -> Tensor:
        """Return ``(q, g)`` scores of the items from start to stop; larger is closer."""
        if self.ready is None:
            items_gD, bias_g = self._prepare(start, min(stop, len(self)))
        else:
            items_gD, bias = self.ready[0][start:stop], self.ready[1]
            bias_g = None if bias is None else bias[start:stop]
        score_qg = self._product(query_qD, items_gD)
        return score_qg if bias_g is None else score_qg.add_(bias_g)

    def _product(self, query_qD: Tensor, items_gD: Tensor) -> Tensor:
        """Return ``query @ items.T``, in a buffer that the next call overwrites.

        New memory for every block would cost page faults. On a CPU the product is numpy's (torch's
        was measured at 0.6 times its speed on an AMD EPYC).
        """
        shape = len(query_qD), len(items_gD)
        if self._buffer.numel() < shape[0] * shape[1]:
            self._buffer = torch.empty(shape[0] * shape[1], dtype=self.dtype, device=self.device)
        score_qg = self._buffer[: shape[0] * shape[1]].view(shape)
        if self.device.type == "cpu":
            np.matmul(query_qD.numpy(), items_gD.numpy().T, out=score_qg.numpy())
        else:
            with _without_tf32():
                torch.mm(query_qD, items_gD.T, out=score_qg)
        return score_qg

    def _prepare(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        items_gD = self.like(take(self.items, slice(start, stop)))
        if self.origin is None:
            return items_gD, None
        # -|q - x|^2 / 2 = q.x - |x|^2 / 2 - |q|^2 / 2, and the last term does not change the order.
        return items_gD, items_gD.square().sum(dim=1) / -2

    def _origin(self) -> Tensor:
        """Return a point near the mean: distances do not change, but squares cancel less there.

        It is the mean rounded to a power of two about as large as the spread, so that subtracting
        it is exact for most data, points on a grid among them, and equal distances stay equal.
        """
        total_D = torch.zeros(self.items.shape[1], dtype=torch.float64, device=self.device)
        square_D = torch.zeros_like(total_D)
        for start in range(0, len(self), ROWS):
            rows_nD = take(self.items, slice(start, start + ROWS)).to(self.device).double()
            total_D += rows_nD.sum(dim=0)
            square_D += rows_nD.square().sum(dim=0)
        mean_D = total_D / len(self)
        spread = (square_D / len(self) - mean_D.square()).clamp_min(0).mean().sqrt().item()
        step = 2.0 ** math.ceil(math.log2(max(2 * spread, 1e-30)))
        return (torch.round(mean_D / step) * step).to(self.dtype)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Keep full float32 in products, whatever a training script has allowed."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _largest(score_qg: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each row and their columns, ties by column."""
    width = score_qg.shape[1]
    if k >= width:
        score_qk, index_qk = score_qg.sort(dim=1, descending=True, stable=True)
        return score_qk, index_qk
    score_qk, index_qk = _top(score_qg, k + 1)
    is_contested_q = score_qk[:, k - 1] == score_qk[:, k]
    score_qk, index_qk = score_qk[:, :k], index_qk[:, :k]
    contested = is_contested_q.nonzero().squeeze(1)
    # A few rows at a time: resolving ties needs several copies of them.
    for part in torch.split(contested, max(len(score_qg) // 16, 1)):
        index_qk[part] = _settle(score_qg[part], score_qk[part, k - 1], k)
        score_qk[part] = score_qg[part].gather(1, index_qk[part])
    # By index first, then stably by score: equal scores stay in the order of their indices.
    index_qk, order_qk = index_qk.sort(dim=1)
    score_qk, order_qk = score_qk.gather(1, order_qk).sort(dim=1, descending=True, stable=True)
    return score_qk, index_qk.gather(1, order_qk)


def _top(score_qg: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest scores of each row and their columns; ties in any order."""
    chunk, num_chunks = _chunks(score_qg.shape[1], k)
    if num_chunks + k * chunk < score_qg.shape[1] / 3:
        return _top_by_chunks(score_qg, k)
    return score_qg.topk(k, dim=1)


def _chunks(width: int, k: int) -> tuple[int, int]:
    """Choose the size and number of chunks so that maxima and candidates are about as many."""
    chunk = 2 ** round(math.log2(max(math.sqrt(width / k), 1.0)))
    return chunk, width // chunk


def _top_by_chunks(score_qg: Tensor, k: int) -> tuple[Tensor, Tensor]:
    height, width = score_qg.shape
    chunk, num_chunks = _chunks(width, k)
    even = chunk * num_chunks
    # Chunk m holds the columns m, m + num_chunks, m + 2 num_chunks, ...: so spread out, maxima of
    # neighbouring chunks are found side by side in memory.
    maximum_qm = score_qg[:, :even].view(height, chunk, num_chunks).amax(dim=1)
    chunk_qk = maximum_qm.topk(k, dim=1, sorted=False).indices
    offset_c = torch.arange(0, even, num_chunks, device=score_qg.device)
    column_qp = (chunk_qk[:, :, None] + offset_c).flatten(1)
    if even < width:  # columns that fill no chunk are all candidates
        rest_r = torch.arange(even, width, device=score_qg.device)
        column_qp = torch.cat([column_qp, rest_r.expand(height, -1)], dim=1)
    row_q1 = torch.arange(0, height * width, width, device=score_qg.device)[:, None]
    candidate_qp = score_qg.reshape(-1).take(column_qp + row_q1)
    score_qk, place_qk = candidate_qp.topk(k, dim=1)
    return score_qk, column_qp.gather(1, place_qk)


def _settle(score_ng: Tensor, last_n: Tensor, k: int) -> Tensor:
    """Return the k columns of rows whose k-th score is shared: all above it, then from the left."""
    above_ng = score_ng > last_n[:, None]
    level_ng = score_ng == last_n[:, None]
    free_n1 = k - above_ng.sum(dim=1, keepdim=True)
    chosen_ng = above_ng | (level_ng & (level_ng.cumsum(dim=1, dtype=torch.int32) <= free_n1))
    return chosen_ng.nonzero()[:, 1].view(len(score_ng), k)


def _merged(
    best: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], k: int
) -> tuple[Tensor, Tensor]:
    """Join two lists of best scores; of equal scores the first list's, with lower indices, win."""
    score = torch.cat([best[0], found[0]], dim=1)
    index = torch.cat([best[1], found[1]], dim=1)
    score, order = score.sort(dim=1, descending=True, stable=True)
    return score[:, :k], index.gather(1, order)[:, :k]


def _forget_itself(score_qg: Tensor, column_q: Tensor) -> None:
    """Make each query's own column the worst, where it lies in this block."""
    inside_q = (column_q >= 0) & (column_q < score_qg.shape[1])
    column_q1 = column_q.clamp(0, score_qg.shape[1] - 1)[:, None]
    kept_q1 = score_qg.gather(1, column_q1)
    score_qg.scatter_(1, column_q1, kept_q1.masked_fill(inside_q[:, None], -math.inf))
