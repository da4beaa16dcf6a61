"""Communication between the processes of one run.

Every process embeds its part of a batch. The parts are joined, so that each process computes the
loss of the whole batch; gradients then flow back into the part it owns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and which of them this is.

    Attributes:
        rank: which one, from 0.
        size: how many.
        local_size: how many of them on this machine.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    @property
    def group(self) -> Any:
        """The process group, or None for a single process."""
        return torch.distributed.group.WORLD if self.size > 1 else None

    def join(self, part: Tensor) -> Tensor:
        """Return the parts of all processes, of one shape, one below the other.

        No gradient flows through it; `owned` says which rows are this process's.
        """
        return part if self.size == 1 else _gather(part, [len(part)] * self.size, None)

    def owned(self, joined: Tensor) -> Tensor:
        """Return the rows of a joined tensor that came from this process."""
        width = len(joined) // self.size
        return joined[self.rank * width : (self.rank + 1) * width]

    def collect(self, part: Tensor, total: int) -> Tensor:
        """Return all ``(total, D)`` rows in order, where process p has rows p, p + size, ..."""
        if self.size == 1:
            return part
        longest = -(-total // self.size)
        padded = part.new_zeros(longest, *part.shape[1:])
        padded[: len(part)] = part
        joined = self.join(padded).view(self.size, longest, *part.shape[1:])
        return joined.transpose(0, 1).reshape(self.size * longest, *part.shape[1:])[:total]

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over processes."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.size

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Copy the main process's values to every process, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            torch.distributed.broadcast(tensor, src=0)

    def agree_on(self, number: int, device: torch.device) -> int:
        """Return the main process's number."""
        shared = torch.tensor([number], device=device)
        self.agree([shared])
        return int(shared.item())

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set in any process."""
        if self.size == 1:
            return flag
        flags = torch.tensor([float(flag)], device=device)
        torch.distributed.all_reduce(flags)
        return bool(flags.item())

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            torch.distributed.barrier()


def size_of(group: Any = None) -> int:
    """Return the number of processes of a group, of all by default; 1 where there is no group."""
    return torch.distributed.get_world_size(group) if is_distributed() else 1


def rank_in(group: Any = None) -> int:
    """Return which process of a group this is, from 0."""
    return torch.distributed.get_rank(group) if is_distributed() else 0


def global_rank(rank: int, group: Any = None) -> int:
    """Return which of all processes a process of a group is."""
    return rank if group is None else torch.distributed.get_global_rank(group, rank)


def sum_over(tensor: Tensor, group: Any = None) -> Tensor:
    """Return the sum of all processes' tensors of one shape, added up in float32 or better."""
    # A new contiguous tensor: strides may differ between processes.
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    total = torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    total.copy_(tensor.detach())
    torch.distributed.all_reduce(total, group=group)
    return total.to(tensor.dtype)


def blocks_of_all(
    part: Tensor, sizes: Sequence[int], width: int, group: Any = None
) -> Iterator[tuple[int, Tensor]]:
    """Give every process the rows of all, a block at a time, process after process.

    All processes must iterate over all blocks: each is a broadcast.

    Args:
        part: ``(n, ...)`` this process's rows.
        sizes: how many rows each process has.
        width: rows in a block, at most; the same in every process.
        group: the processes; all by default.

    Yields:
        The block's first row among those of all processes, and the block.
    """
    own, first = rank_in(group), 0
    part = part.detach().contiguous()
    for rank, size in enumerate(sizes):
        for low in range(0, size, width):
            rows = min(width, size - low)
            block = part[low : low + rows] if rank == own else part.new_empty(rows, *part.shape[1:])
            torch.distributed.broadcast(block, global_rank(rank, group), group=group)
            yield first + low, block
        first += size


def gather_batch(
    embeddings: Tensor, labels: Tensor, group: Any = None, *, averaged: bool = True
) -> tuple[Tensor, Tensor]:
    """Join the parts of a batch that processes have embedded, for a loss of the whole batch.

    The gradient flows back: each process gets that of its own rows. The loss must be computed
    alike in every process.

    Args:
        embeddings: ``(b, D)`` this process's part; b may differ between processes and may be 0.
        labels: ``(b,)`` or ``(b, C)``, likewise.
        group: the processes; all by default.
        averaged: gradients of the network are averaged over processes afterwards, as
            DistributedDataParallel does. The gradient of a batch is the sum over its parts, so
            gradients are multiplied by the number of processes here. False if they are summed.

    Returns:
        Embeddings ``(B, D)`` and labels of all processes, in the order of their ranks; what was
        given where there is one process.
    """
    if len(embeddings) != len(labels):
        raise ValueError(
            f"embeddings and labels must have as many rows as each other for gather_batch; got "
            f"{len(embeddings)} and {len(labels)}. Pass this process's part of both."
        )
    number = size_of(group)
    if number == 1:
        return embeddings, labels
    count = torch.tensor([len(labels)], device=embeddings.device)
    counts = [torch.empty_like(count) for _ in range(number)]
    torch.distributed.all_gather(counts, count, group=group)
    sizes = [int(each) for each in torch.cat(counts).tolist()]
    factor = float(number) if averaged else 1.0
    joined: Tensor = _Gathered.apply(embeddings, sizes, group, factor)  # type: ignore[no-untyped-call]
    return joined, _gather(labels, sizes, group)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sizes: list[int], group: Any, factor: float) -> Tensor:
        rank = rank_in(group)
        ctx.own, ctx.factor = slice(sum(sizes[:rank]), sum(sizes[: rank + 1])), factor
        return _gather(part, sizes, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient[ctx.own] * ctx.factor, None, None, None


def _gather(part: Tensor, sizes: list[int], group: Any) -> Tensor:
    """Return the rows of all processes, of any dtype, sent as bytes and padded to one length."""
    own = part.detach().contiguous()
    longest = max(sizes)
    padded = own.new_zeros(longest, *own.shape[1:])
    padded[: len(own)] = own
    sent = padded.view(-1).view(torch.uint8)
    received = [torch.empty_like(sent) for _ in sizes]
    torch.distributed.all_gather(received, sent, group=group)
    parts = [each.view(own.dtype).view_as(padded) for each in received]
    return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])


def is_distributed() -> bool:
    """Return whether this process belongs to an initialised process group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_main_process() -> bool:
    """Return whether this is the main process of a launch, or the only one."""
    return rank_in() == 0


def leave_process_group() -> None:
    """Destroy the process group, if there is one."""
    if is_distributed():
        torch.distributed.destroy_process_group()


def share_of_cores(workers: int) -> dict[str, str]:
    """Return environment variables that give each of some processes its share of the cores."""
    from weiss._base.decoding import usable_cores  # which imports Pillow

    threads = str(max(usable_cores() // workers, 1))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
