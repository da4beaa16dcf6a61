"""Class shards: processes that share the fields of a mean-field loss, each with its own classes.

    loss = shard_classes(make_loss("mf_cwms", num_classes, embedding_size).to(device))

Every process then holds some rows of the fields, of their gradient and of what an optimiser keeps
for them, and computes its own columns of the distances. The loss takes the whole batch in every
process (`gather_batch` joins it) and returns the whole loss; its backward pass gives
the whole gradient of the embeddings, and the gradient of the fields that are here: it needs no
averaging over processes, so a sharded loss must not be wrapped in DistributedDataParallel.

`whole_fields` returns the fields of all classes; all processes must call it together.

Dimensions: C classes, c those of this process, D embedding size.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from weiss._base.processes import blocks_of_all, global_rank, rank_in, size_of, sum_over
from weiss.kernels.problem import Shard
from weiss.losses.modules import MeanFieldLoss

ELEMENTS = 2**24
"""Numbers in a block of rows that one process sends to the others."""


def shard_classes(
    loss: MeanFieldLoss, group: Any = None, *, sizes: Sequence[int] | None = None
) -> MeanFieldLoss:
    """Cut the fields of a loss into shards, one a process; all processes must call it.

    ``loss.fields`` stays the same parameter, with the rows of this process's classes alone: those
    behind the classes of the processes before it. Labels still count all classes. With one process
    nothing changes.

    Args:
        loss: with the same fields in every process, on its device; cut in place. Call it before
            the first forward pass and before the first step of an optimiser.
        group: the processes; all by default.
        sizes: how many classes each process takes, 0 allowed; by default equal shares.

    Returns:
        The loss.

    Example:
        >>> import weiss
        >>> from weiss.losses.shards import shard_classes
        >>> loss = shard_classes(weiss.make_loss("mf_cwms", 10, 4))
        >>> len(loss.fields)  # one process has them all
        10
    """
    owner = "shard_classes"
    if not isinstance(loss, MeanFieldLoss):
        raise TypeError(
            f"loss must be a MeanFieldLoss for {owner}; got {type(loss).__name__}. Other losses "
            "have no fields to share."
        )
    if is_sharded(loss):
        raise ValueError(
            f"the fields must be whole for {owner}; {loss.shard.parts} processes share them. Call "
            "it once."
        )
    number, rank = size_of(group), rank_in(group)
    total = len(loss.fields)
    counts = even_sizes(total, number) if sizes is None else [int(size) for size in sizes]
    if len(counts) != number or sum(counts) != total or min(counts) < 0:
        raise ValueError(
            f"sizes must be {number} whole numbers for {owner}, one a process, whose sum is the "
            f"{total} classes of the loss; got {sizes}. Leave them out for equal ones."
        )
    if number == 1:
        return loss
    if loss.impl == "reference":
        raise ValueError(
            f"impl must not be 'reference' for {owner}: the plain formula knows of no shards. Take "
            "impl='auto'."
        )
    _refuse_different(loss, counts, group)
    first = sum(counts[:rank])
    # The same parameter object, so that an optimiser that holds it stays valid.
    loss.fields.data = loss.fields.data[first : first + counts[rank]].clone()
    loss.fields.grad = None
    loss.shard = _shard(first, counts, rank, group)
    return loss


def is_sharded(loss: nn.Module) -> TypeGuard[MeanFieldLoss]:
    """Return whether processes share the classes of a loss."""
    return isinstance(loss, MeanFieldLoss) and loss.shard.parts > 1


def even_sizes(total: int, number: int) -> list[int]:
    """Return how many classes each process takes; they differ by at most one."""
    return [total // number + (rank < total % number) for rank in range(number)]


def whole_fields(loss: MeanFieldLoss) -> Tensor:
    """Return the fields ``(C, ...)`` of all classes, a copy; all processes must call it together.

    ``loss.load_state_dict`` takes whole fields in any number of processes.
    """
    return whole_rows(loss, loss.fields, loss.fields.device)


@torch.no_grad()
def whole_rows(
    loss: MeanFieldLoss, rows: Tensor, device: torch.device | str, *, wanted: bool = True
) -> Tensor:
    """Return a copy ``(C, ...)`` of the rows of all classes; all processes must call it together.

    ``rows`` has one for each field here. A process by which the result is not wanted keeps nothing.
    """
    width = max(ELEMENTS // max(math.prod(rows.shape[1:]), 1), 1)
    # Written in place: a list of blocks that is joined at the end would need the memory twice.
    total = loss.shard.num_classes if wanted else 0
    whole = torch.empty(total, *rows.shape[1:], dtype=rows.dtype, device=device)
    for first, block in loss.shard.all_blocks(rows.detach(), width):
        if wanted:
            whole[first : first + len(block)] = block
    return whole


def whole_state(loss: nn.Module, *, wanted: bool = True) -> dict[str, Tensor]:
    """Return any loss's state as one process would have it, shards put together in main memory."""
    state: dict[str, Tensor] = loss.state_dict()
    if is_sharded(loss):
        state["fields"] = whole_rows(loss, state["fields"], "cpu", wanted=wanted)
    return state


def _shard(first: int, counts: list[int], rank: int, group: Any) -> Shard:
    # Closures, not methods: a copy of the loss shares the group, which cannot be copied.
    def add(part: Tensor) -> Tensor:
        return sum_over(part, group)

    def show(rows: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
        return blocks_of_all(rows, counts, width, group)

    return Shard(first, sum(counts), add, show, len(counts), rank)


def _refuse_different(loss: MeanFieldLoss, counts: list[int], group: Any) -> None:
    """Refuse fields that differ between processes, by comparing weighted sums."""
    fields = loss.fields.detach()
    place_C = torch.arange(1, len(fields) + 1, dtype=torch.float64, device=fields.device)
    sums_C = fields.flatten(1).sum(dim=1, dtype=torch.float64)
    facts = torch.stack([sums_C.sum(), sums_C @ place_C, place_C[-1]])
    facts = torch.cat([facts, facts.new_tensor(counts)])
    others = facts.clone()
    torch.distributed.broadcast(others, global_rank(0, group), group=group)
    # Sums may differ in their last digits between machines of two kinds.
    rounding = 1e-9 * (1.0 + sums_C.abs() @ place_C)
    differs = ~((facts - others).abs() <= rounding).all()
    if bool(sum_over(differs.double(), group)):
        raise ValueError(
            "fields and sizes must be the same in every process for shard_classes; they differ. "
            "Seed every process alike before the loss is made, or broadcast loss.fields."
        )
