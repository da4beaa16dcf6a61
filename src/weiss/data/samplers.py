"""The items of each batch: a pure function of (seed, epoch).

A sampler has no state. ``batches(epoch)`` is the whole epoch, ``(steps, batch size)`` item indices,
the same in every process and after every restart. To resume in an epoch is to start at a later row;
each of several processes uses its columns of a row, so that together they see the same batch as one
process.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from weiss._base import checks, draws
from weiss._base.arrays import Array
from weiss.data.table import Table


class Sampler(Protocol):
    """The interface of a sampler."""

    @property
    def num_items(self) -> int:
        """How many items there are to choose from."""

    def batches(self, epoch: int) -> Array:
        """Return the epoch's batches, ``(steps, batch_size)`` item indices."""


@dataclass(frozen=True)
class Shuffled:
    """Plain shuffling. An epoch shows every item once; the last partial batch is dropped."""

    num_items: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a batch larger than the data."""
        checks.count("batch_size", self.batch_size, "Shuffled")
        if self.batch_size > self.num_items:
            raise ValueError(
                f"batch_size must be at most the number of training items, {self.num_items:,}, "
                f"for Shuffled; got {self.batch_size:,}. Use a smaller batch."
            )

    def batches(self, epoch: int) -> Array:
        """Return the epoch's batches, ``(N // batch_size, batch_size)``."""
        steps = self.num_items // self.batch_size
        order = draws.permutation(self.num_items, self.seed, draws.ORDER, epoch)
        return order[: steps * self.batch_size].reshape(steps, self.batch_size)


class PerClass:
    """Batches of some classes with the same number of items each: 8 x 4, or 32 x 1.

    Classes take turns in a shuffled order, so over time all are seen equally often, and so do the
    items of a class; a class with fewer items than ``per_class`` repeats them, and an item with
    several of a batch's classes may be in it for each. An epoch is ``steps`` batches: by default
    N // batch size; in the paper's second protocol 100.

    Args:
        table: the training part; single- or multi-label.
        num_classes: classes in a batch.
        per_class: items of each.
        seed: of all choices.
        steps: batches in an epoch.
    """

    def __init__(
        self,
        table: Table,
        num_classes: int,
        per_class: int,
        seed: int = 0,
        steps: int | None = None,
    ) -> None:
        self.num_classes = checks.count("num_classes", num_classes, "PerClass")
        self.per_class = checks.count("per_class", per_class, "PerClass")
        self.batch_size = self.num_classes * self.per_class
        self.num_items = len(table)
        present = table.classes()
        if self.num_classes > len(present):
            raise ValueError(
                f"num_classes must be at most the number of training classes, {len(present):,}, "
                f"for PerClass; got {num_classes:,}. Use fewer classes in a batch."
            )
        default = max(len(table) // self.batch_size, 1)
        self.steps = default if steps is None else checks.count("steps", steps, "PerClass")
        self.seed = seed
        if table.is_multi_label:
            self._items = [np.flatnonzero(table.labels[:, c]) for c in present]
        else:
            order = np.argsort(table.labels, kind="stable")
            ends = np.cumsum(table.class_sizes()[present])[:-1]
            self._items = np.split(order, ends)

    def batches(self, epoch: int) -> Array:
        """Return the epoch's batches, ``(steps, batch_size)``; items of a class are adjacent."""
        # Round r is a permutation of all classes, cut into batches; the rest of a round, less than
        # a batch, is dropped, so no class is twice in a batch.
        num_all = len(self._items)
        steps = np.arange(epoch * self.steps, (epoch + 1) * self.steps)
        rounds, positions = np.divmod(steps, num_all // self.num_classes)
        orders = {
            r: draws.permutation(num_all, self.seed, draws.CLASSES, r) for r in set(rounds.tolist())
        }
        batches = []
        for r, first in zip(rounds.tolist(), (positions * self.num_classes).tolist(), strict=True):
            chosen = orders[r][first : first + self.num_classes].tolist()
            batches.append(np.concatenate([self._turn(c, r) for c in chosen]))
        return np.stack(batches)

    def _turn(self, c: int, turn: int) -> Array:
        """Return the items of class c in a round: its items in shuffled rounds of their own."""
        items: Array = self._items[c]
        if len(items) <= self.per_class:
            # All of them, repeated as needed, in the order of this turn.
            order = draws.permutation(len(items), self.seed, draws.SMALL, c, turn)
            return np.asarray(items[np.resize(order, self.per_class)])
        in_round = len(items) // self.per_class
        round_number, position = divmod(turn, in_round)
        order = draws.permutation(len(items), self.seed, draws.LARGE, c, round_number)
        chosen = order[position * self.per_class : (position + 1) * self.per_class]
        return np.asarray(items[chosen])


def share_of(batch: Array, process: int, num_processes: int) -> Array:
    """Return one process's part of each batch: contiguous columns of ``(steps, batch_size)``.

    Concatenated in the order of processes, the parts are the batch of one process.
    """
    checks.count("num_processes", num_processes, "a batch")
    if batch.shape[-1] % num_processes:
        raise ValueError(
            f"batch_size must be a multiple of the number of processes, {num_processes}; got "
            f"{batch.shape[-1]}. Change either."
        )
    if not 0 <= process < num_processes:
        raise ValueError(
            f"process must lie in [0, {num_processes}); got {process}. Pass this process's rank."
        )
    width = batch.shape[-1] // num_processes
    return batch[..., process * width : (process + 1) * width]
