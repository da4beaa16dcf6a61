"""The losses of an epoch: their mean, and an error as soon as one is not finite.

A GPU runs behind the program that feeds it; reading every loss at once would make it wait. So
losses are copied to the host as they come, and checked when they have arrived.
"""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from weiss.runs.evaluator import NotFiniteError

SLOTS = 64
"""How many losses may be on their way from a GPU at a time."""


class LossWatch:
    """Collects the losses of an epoch and checks each.

    ``total`` and ``count`` are those of the losses before, for a run resumed within an epoch.
    """

    def __init__(self, device: torch.device, total: float = 0.0, count: int = 0) -> None:
        self.total, self.count = total, count
        self._coming: deque[tuple[Tensor, Any, int, int]] = deque()
        self._slots = torch.zeros(SLOTS, pin_memory=True) if device.type == "cuda" else None
        self._next = 0

    def add(self, loss: Tensor, step: int, epoch: int) -> None:
        """Add a loss, a scalar, and check those that have arrived.

        Raises:
            NotFiniteError: a loss is NaN or infinite, with its step and epoch.
        """
        if self._slots is None:
            self._check(float(loss), step, epoch)
            return
        if len(self._coming) == SLOTS:
            self._receive(wait=True)
        slot = self._slots[self._next % SLOTS]
        self._next += 1
        slot.copy_(loss, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(loss.device))
        self._coming.append((slot, event, step, epoch))
        self._receive(wait=False)

    def finish(self) -> float:
        """Wait for every loss, and return their mean; NaN if there was none."""
        while self._coming:
            self._receive(wait=True)
        return self.total / self.count if self.count else math.nan

    def _receive(self, wait: bool) -> None:
        while self._coming and (wait or self._coming[0][1].query()):
            slot, event, step, epoch = self._coming.popleft()
            event.synchronize()
            self._check(float(slot), step, epoch)
            wait = False

    def _check(self, value: float, step: int, epoch: int) -> None:
        if not math.isfinite(value):
            raise NotFiniteError(
                f"the loss must stay finite; it was {value} at step {step} of epoch {epoch}."
            )
        self.total += value
        self.count += 1
