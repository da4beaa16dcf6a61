"""Exact nearest neighbours by blocked matrix products, never the whole Q x G matrix.

Dimensions: Q queries, G gallery items, D embedding size, k neighbours; q and g rows of a block;
n some of its rows, m candidates or chunks of candidates, p candidates, E size of rounded rows.

Why not ``torch.topk`` on every block of scores: on a GPU selecting 50 of a million costs as much as
computing the million. A block of scores is split into chunks of columns, and first only the
largest score of each chunk is compared. The k best scores of a row lie in the k chunks with the
largest maxima; all others are skipped. The selection is exact.

Most products need not be exact: a large search is screened in half precision, which finds
candidates, and only these are compared in full precision (`weiss.evaluation.screening` bounds the
difference). A query whose candidates prove nothing is compared with all items.

Ties: of two items at the same computed distance the one with the lower index comes first. The
top k+1 scores show whether the k-th place is tied; the few rows with a tie are resolved by counting
from the left. Distances of candidates are summed in one order: two equal items are equally far.
Those of all items come from a matrix product, and may differ in the last bit.

Full precision: cosines in the precision of the inputs, at least float32 and never TF32. Euclidean
distances in float64, since ``|x|^2 - 2 x.y`` cancels digits that float32 does not have.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss.evaluation import screening
from weiss.evaluation.embeddings import ROWS, Embeddings, compute_dtype, take
from weiss.evaluation.screening import Rounded
from weiss.kernels.plan import why_no_triton
from weiss.theory.distances import unit

CPU_BUDGET = 448 * 2**20
NOBODY = -1
"""The index of a neighbour that does not exist."""
MORE = 8
"""How many times the candidates a query gets for which the first ones prove nothing."""
GATHERED = {"cpu": 2**22, "cuda": 2**28}
"""Bytes of candidates that are read at a time."""
CHUNK, PADDING = 16, 256
"""Items of a chunk, and rows of padding after the rounded items, of `weiss.kernels.nearest_chunks`
(which is not imported where there is no Triton)."""
_Found = tuple[Tensor, Tensor]
"""``(q, k)`` scores, best first, and the indices of their items."""


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
    screens: bool = True,
    in_full: Array | None = None,
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
        screens: whether low precision may find the candidates where that is faster.
        in_full: ``(Q,)`` bool; those queries become True that were screened, but had too many
            candidates, and were compared with all items in full precision.

    Yields:
        Rows of queries, and the ``(q, k)`` indices of their neighbours, nearest first; k is their
        largest number, at most the size of the gallery. `NOBODY` fills missing neighbours.
    """
    dtype = torch.float64 if distance == "euclidean" else compute_dtype(query, gallery)
    multiplications = float(len(rows)) * gallery.shape[0] * gallery.shape[1]
    low = screening.low_precision(device, multiplications) if screens else None
    prepared = _Gallery(gallery, dtype, distance, device, budget // 2, low)
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
        index_qk, in_vain_q = _search(query, block, prepared, k, width, leave_one_out)
        if in_full is not None:
            in_full[block] = in_vain_q.cpu().numpy()
        yield block, index_qk
        start += height


def _search(
    query: Embeddings,
    block: Array,
    gallery: "_Gallery",
    k: int,
    width: int,
    leave_one_out: bool,
) -> tuple[Tensor, Tensor]:
    """Return the neighbours of a block of queries, and ``(q,)`` who was screened in vain."""
    query_qD = gallery.like(take(query, block))
    itself_q = torch.from_numpy(block).to(query_qD.device)
    if not leave_one_out:
        itself_q = torch.full_like(itself_q, NOBODY)
    best: _Found | None = None
    in_vain_q = torch.zeros(len(block), dtype=torch.bool, device=query_qD.device)
    for start in range(0, len(gallery), width):
        items = gallery.part(start, start + width)
        own_q = itself_q - start
        if gallery.screens(items, k):
            found, vain_q = _by_screening(query_qD, items, own_q, k, gallery)
            in_vain_q |= vain_q
        else:
            found = _in_full(query_qD, items, own_q, k, gallery)
        found = found[0], found[1] + start
        best = found if best is None else _merged(best, found, k)
    assert best is not None
    score_qk, index_qk = best
    return index_qk.masked_fill(score_qk == -math.inf, NOBODY), in_vain_q


def _in_full(
    query_qD: Tensor, items: "_Items", own_q: Tensor, k: int, gallery: "_Gallery"
) -> _Found:
    """Compare with every item in full precision."""
    score_qg = gallery.product(query_qD, items.rows)
    if items.bias is not None:
        score_qg.add_(items.bias)
    _forget_itself(score_qg, own_q)
    return _largest(score_qg, k)


def _by_screening(
    query_qD: Tensor, items: "_Items", own_q: Tensor, k: int, gallery: "_Gallery"
) -> tuple[_Found, Tensor]:
    """Compare with candidates in full precision, and with every item where these prove nothing.

    Returns:
        What was found, and ``(q,)`` for which queries every item was compared.
    """
    num_candidates = gallery.num_candidates(k)
    (score_qk, index_qk), is_open_q = _candidates_only(
        query_qD, items, own_q, k, gallery, num_candidates
    )
    open_n = is_open_q.nonzero().squeeze(1)
    if len(open_n) and gallery.screens(items, k, MORE * num_candidates):
        (score_nk, index_nk), is_open_n = _candidates_only(
            query_qD[open_n], items, own_q[open_n], k, gallery, MORE * num_candidates
        )
        score_qk[open_n], index_qk[open_n] = score_nk, index_nk
        is_open_q[open_n] = is_open_n
        open_n = open_n[is_open_n]
    # The height of the block was chosen for scores of two bytes.
    for part_n in torch.split(open_n, max(2 * len(query_qD) // gallery.itemsize, 1)):
        score_qk[part_n], index_qk[part_n] = _in_full(
            query_qD[part_n], items, own_q[part_n], k, gallery
        )
    if len(open_n) > len(query_qD) / 2:
        gallery.low = None  # it costs more than it saves here
    return (score_qk, index_qk), is_open_q


def _candidates_only(
    query_qD: Tensor,
    items: "_Items",
    own_q: Tensor,
    k: int,
    gallery: "_Gallery",
    num_candidates: int,
) -> tuple[_Found, Tensor]:
    """Find the nearest among the items, or chunks of items, that low precision finds nearest.

    All others have at most the score of the best that is no candidate, ``outside_q``, in low
    precision; in full precision they are below it plus the slack. If that is below the k-th best
    candidate, then none of them is among the k nearest.

    Returns:
        The k best candidates, and ``(q,)`` whether it is open that they are the nearest.
    """
    assert items.rounded is not None
    factor = None if items.bias is None else 1.0
    low = screening.round_rows(query_qD / items.scale, items.rounded.rows.dtype, factor)
    if gallery.has_kernels:
        from weiss.kernels import nearest_chunks

        maximum_qc = nearest_chunks.maxima(low.rows, items.rounded.rows, len(items.rows))
        score_qm, chunk_qm = _top(maximum_qc, num_candidates + 1)
        candidates = nearest_chunks.exact_scores(
            query_qD, items.rows, items.bias, own_q, chunk_qm[:, :-1]
        )
    else:
        low_qg = gallery.product(low.rows, items.rounded.rows)
        _forget_itself(low_qg, own_q)
        score_qm, column_qm = _top(low_qg, num_candidates + 1)
        column_qp = column_qm[:, :-1]
        candidates = _scores_of(query_qD, items, column_qp), column_qp
    outside_q = screening.before_rounding(score_qm[:, -1])
    found = _nearest_first(*candidates, k)
    limit_q = (outside_q + screening.slack(low, items.rounded)) * items.scale**2
    return found, ~(found[0][:, -1].double() > limit_q)  # NaN proves nothing


def _scores_of(query_qD: Tensor, items: "_Items", column_qp: Tensor) -> Tensor:
    """Return ``(q, p)`` scores of some items of each query, all summed in the same order."""
    score_qp = query_qD.new_empty(column_qp.shape)
    num_bytes = column_qp.shape[1] * query_qD.shape[1] * query_qD.element_size()
    height = max(GATHERED[query_qD.device.type] // num_bytes, 1)
    for start in range(0, len(query_qD), height):
        part = slice(start, start + height)
        items_qpD = items.rows[column_qp[part]]
        if query_qD.device.type == "cpu":  # torch would write all products first
            rows, found = query_qD[part].numpy(), score_qp[part].numpy()
            np.einsum("qpd,qd->qp", items_qpD.numpy(), rows, out=found)
        else:
            score_qp[part] = items_qpD.mul_(query_qD[part, None]).sum(dim=2)
    return score_qp if items.bias is None else score_qp.add_(items.bias[column_qp])


class _Items(NamedTuple):
    """Gallery items for which ``query @ rows.T + bias`` is larger for closer items.

    Attributes:
        rows: ``(g, D)`` of unit length, or centred.
        bias: ``(g,)``, or None.
        scale: a power of two; rows are at most about so long.
        rounded: rows over scale and bias over its square, where they are screened.
    """

    rows: Tensor
    bias: Tensor | None
    scale: float
    rounded: Rounded | None

    def part(self, start: int, stop: int) -> "_Items":
        """Return the items from start to stop."""
        part = slice(start, min(stop, len(self.rows)))
        return _Items(
            self.rows[part],
            None if self.bias is None else self.bias[part],
            self.scale,
            None if self.rounded is None else Rounded(*(each[part] for each in self.rounded)),
        )


class _Gallery:
    """Gallery items, all prepared at once or block by block, and how they are searched.

    Attributes:
        low: the dtype in which they are screened; None without screening.
        has_kernels: whether Triton screens them.
    """

    def __init__(
        self,
        items: Embeddings,
        dtype: torch.dtype,
        distance: str,
        device: torch.device,
        budget: int,
        low: torch.dtype | None,
    ) -> None:
        self.items, self.dtype, self.distance, self.device = items, dtype, distance, device
        self.low = low
        self.has_kernels = low == torch.float16 and why_no_triton(device) is None
        self.itemsize = torch.finfo(dtype).bits // 8
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self.origin = self._origin() if distance == "euclidean" else None
        self._bytes_each = items.shape[1] * (self.itemsize + (0 if low is None else 2))
        whole = items.shape[0] * self._bytes_each
        self.ready = self._prepare(0, len(items)) if whole <= budget else None

    def __len__(self) -> int:
        return len(self.items)

    def block_width(self, budget: int) -> int:
        """Choose g so that a block of scores can have 64 rows."""
        width = max(budget // (64 * self.itemsize), 1024)
        if self.ready is None:  # items are read, converted and scaled block by block as well
            width = min(width, max(budget // (4 * self._bytes_each), 64))
        return min(width, len(self))

    def block_height(self, width: int, k: int, budget: int) -> int:
        """Choose q so that scores, queries and lists of k neighbours fit the budget."""
        scores = width * (self.itemsize if self.low is None else 2) * 4 // 3
        queries = 4 * self.items.shape[1] * self.itemsize
        lists = 64 * int(k)  # scores, indices and their orders; hits, ranks and precisions
        return max(budget // (scores + queries + lists), 1)

    def like(self, rows_nD: Tensor) -> Tensor:
        """Prepare rows like the items: unit length, or centred."""
        rows_nD = rows_nD.to(self.device, self.dtype)
        if self.origin is not None:
            return rows_nD - self.origin
        # The largest entry first, so that no square leaves the range of the dtype.
        return unit(rows_nD / rows_nD.abs().amax(dim=1, keepdim=True))

    def part(self, start: int, stop: int) -> _Items:
        """Return the items from start to stop."""
        if self.ready is None:
            return self._prepare(start, min(stop, len(self)))
        return self.ready.part(start, stop)

    def num_candidates(self, k: int) -> int:
        """Choose how many candidates are likely to be enough, by the slack of the dtype."""
        if self.low == torch.bfloat16:
            return k + k // 2 + 8
        return k + k // 4 + 8

    def screens(self, items: _Items, k: int, num_candidates: int = 0) -> bool:
        """Whether candidates are searched by screening, and are few beside the items."""
        if self.low is None or items.rounded is None:
            return False
        places = len(items.rows) // (CHUNK if self.has_kernels else 1)
        return 4 * (num_candidates or self.num_candidates(k)) < places

    def product(self, query_qD: Tensor, items_gD: Tensor) -> Tensor:
        """Return ``query @ items.T``, in a buffer that the next call overwrites.

        New memory for every block would cost page faults. On a CPU the float32 product is numpy's
        (torch's was measured at 0.6 times its speed on an AMD EPYC).
        """
        shape, dtype = (len(query_qD), len(items_gD)), query_qD.dtype
        num_bytes = shape[0] * shape[1] * dtype.itemsize
        if self._buffer.numel() < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        score_qg = self._buffer[:num_bytes].view(dtype).view(shape)
        if dtype.itemsize == 2:
            return screening.product(query_qD, items_gD, score_qg)
        if self.device.type == "cpu":
            np.matmul(query_qD.numpy(), items_gD.numpy().T, out=score_qg.numpy())
        else:
            with _without_tf32():
                torch.mm(query_qD, items_gD.T, out=score_qg)
        return score_qg

    def _prepare(self, start: int, stop: int) -> _Items:
        rows_gD, bias_g, scale = self.like(take(self.items, slice(start, stop))), None, 1.0
        if self.origin is not None:
            square_g = rows_gD.square().sum(dim=1)
            # -|q - x|^2 / 2 = q.x - |x|^2 / 2 - |q|^2 / 2; the last term does not change the order.
            bias_g = square_g / -2
            length = square_g.max().sqrt().item()
            if 2.0**-500 < length < 2.0**500:
                scale = 2.0 ** math.ceil(math.log2(length))
        rounded = None
        if self.low is not None:
            padding = PADDING if self.has_kernels else 0
            bias = None if bias_g is None else bias_g / scale**2
            rounded = screening.round_rows(rows_gD / scale, self.low, bias, padding=padding)
        return _Items(rows_gD, bias_g, scale, rounded)

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
    return _by_score(score_qk, index_qk)


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


def _nearest_first(score_qp: Tensor, column_qp: Tensor, k: int) -> _Found:
    """Return the k largest scores of each row of a list, and their columns, ties by column."""
    score_qk, place_qk = _top(score_qp, min(k + 1, score_qp.shape[1]))
    index_qk = column_qp.gather(1, place_qk)
    if score_qk.shape[1] > k:
        contested = (score_qk[:, k - 1] == score_qk[:, k]).nonzero().squeeze(1)
        score_qk, index_qk = score_qk[:, :k].clone(), index_qk[:, :k].clone()
        if len(contested):
            column_np, order_np = column_qp[contested].sort(dim=1)
            score_nk, place_nk = _largest(score_qp[contested].gather(1, order_np), k)
            score_qk[contested], index_qk[contested] = score_nk, column_np.gather(1, place_nk)
    return _by_score(score_qk, index_qk)


def _by_score(score_qk: Tensor, index_qk: Tensor) -> _Found:
    """Sort by falling score; equal scores by their indices."""
    index_qk, order_qk = index_qk.sort(dim=1)
    score_qk, order_qk = score_qk.gather(1, order_qk).sort(dim=1, descending=True, stable=True)
    return score_qk, index_qk.gather(1, order_qk)


def _merged(best: _Found, found: _Found, k: int) -> _Found:
    """Join two lists of best scores; of equal scores the first list's, with lower indices, win."""
    score = torch.cat([best[0], found[0]], dim=1)
    index = torch.cat([best[1], found[1]], dim=1)
    score, order = score.sort(dim=1, descending=True, stable=True)
    return score[:, :k], index.gather(1, order)[:, :k]


def _forget_itself(score_qg: Tensor, column_q: Tensor) -> None:
    """Make each query's own column the worst, where it lies in this block."""
    inside_q = (column_q >= 0) & (column_q < score_qg.shape[1])
    place_q = torch.arange(len(score_qg), device=score_qg.device) * score_qg.shape[1]
    place_q += column_q.clamp(0, score_qg.shape[1] - 1)
    flat = score_qg.view(-1)
    flat[place_q] = flat[place_q].masked_fill(inside_q, -math.inf)
