"""The few things processes of one run say to each other.

Every process embeds its part of a batch. The parts are joined, so that each process computes the
loss of the whole batch; gradients then flow back into the part it owns.
"""

import os
from collections.abc import Iterable
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
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @property
    def group(self) -> Any:
        """The process group, or None for a single process."""
        return torch.distributed.group.WORLD if self.size > 1 else None

    def join(self, part: Tensor) -> Tensor:
        """Return the parts of all processes, of one shape, one below the other.

        No gradient flows through it; `owned` says which rows are this process's.
        """
        if self.size == 1:
            return part
        own = part.detach().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        torch.distributed.all_gather(parts, own)
        return torch.cat(parts)

    def owned(self, joined: Tensor) -> Tensor:
        """Return the rows of a joined tensor that came from this process."""
        width = len(joined) // self.size
        return joined[self.rank * width : (self.rank + 1) * width]

    def collect(self, part: Tensor, total: int) -> Tensor:
        """Return rows that were dealt out in turn, row i to process ``i % size``, in order again.

        Args:
            part: ``(n, D)`` this process's rows; their number may differ by one between processes.
            total: N, the number of all rows.

        Returns:
            ``(N, D)``, the same in every process.
        """
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
        """Give every process the main one's values, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            torch.distributed.broadcast(tensor, src=0)

    def agree_on(self, number: int, device: torch.device) -> int:
        """Return the main process's number."""
        told = torch.tensor([number], device=device)
        self.agree([told])
        return int(told.item())

    def any(self, flag: bool, device: torch.device) -> bool:
        """Say whether any process says so."""
        if self.size == 1:
            return flag
        flags = torch.tensor([float(flag)], device=device)
        torch.distributed.all_reduce(flags)
        return bool(flags.item())

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            torch.distributed.barrier()


def have_met() -> bool:
    """Say whether processes of a launch have found each other in this program."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_main_process() -> bool:
    """Say whether this is the main process of a launch, or the only one."""
    return not have_met() or torch.distributed.get_rank() == 0


def part_processes() -> None:
    """Take leave of the other processes of a launch, where there are any."""
    if have_met():
        torch.distributed.destroy_process_group()


def share_of_cores(workers: int) -> dict[str, str]:
    """Return the environment in which each of some processes uses its share of the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = str(max((cores or 1) // workers, 1))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
