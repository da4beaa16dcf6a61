"""What may end a run before its time: a loss that is no number, and somebody who wants it to stop.

A GPU runs behind the program that feeds it; asking it for every loss would make it wait. So losses
are copied to the host as they come, and looked at when they have arrived.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weiss.runs.evaluator import NotFiniteError

SLOTS = 64
"""Losses of a GPU that may be on their way; more than it ever lags behind."""


def in_words(rates: Mapping[str, float]) -> str:
    """Return learning rates as a message names them."""
    return ", ".join(f"{name} {rate:g}" for name, rate in rates.items())


class LossWatch:
    """The losses of an epoch, looked at one by one.

    Args:
        device: where the losses come from.
        total: sum of the losses before, after a restart in mid-epoch.
        count: how many they were.
    """

    def __init__(self, device: torch.device, total: float = 0.0, count: int = 0) -> None:
        self.total, self.count = total, count
        self._is_gpu = device.type == "cuda"
        self._coming: deque[tuple[Tensor, Any, dict[str, Any]]] = deque()
        self._slots = torch.zeros(SLOTS, pin_memory=True) if self._is_gpu else None
        self._next = 0

    def add(self, loss: Tensor, **where: Any) -> None:
        """Take in a loss, and look at those that have arrived.

        Args:
            loss: a scalar.
            **where: what to say about it should it not be finite.

        Raises:
            NotFiniteError: a loss is NaN or infinite.
        """
        if self._slots is None:
            self._look(float(loss), where)
            return
        if len(self._coming) == SLOTS:
            self._arrive(wait=True)
        slot = self._slots[self._next % SLOTS]
        self._next += 1
        slot.copy_(loss, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(loss.device))
        self._coming.append((slot, event, where))
        self._arrive(wait=False)

    def finish(self) -> float:
        """Wait for every loss, and return their mean; NaN if there was none."""
        while self._coming:
            self._arrive(wait=True)
        return self.total / self.count if self.count else math.nan

    def _arrive(self, wait: bool) -> None:
        while self._coming and (wait or self._coming[0][1].query()):
            slot, event, where = self._coming.popleft()
            event.synchronize()
            self._look(float(slot), where)
            wait = False

    def _look(self, value: float, where: dict[str, Any]) -> None:
        if not math.isfinite(value):
            raise NotFiniteError(
                f"the loss must stay finite; it was {value} at step {where['step']} of epoch "
                f"{where['epoch']}, with the learning rates {in_words(where['rates'])}."
            )
        self.total += value
        self.count += 1
