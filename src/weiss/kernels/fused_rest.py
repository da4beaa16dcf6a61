"""The launches of fused kernels for one class against the rest (`weiss.kernels.one_against_rest`).

For each block of classes `Rest.interact` sums its columns and turns cosines into slopes. With
``keeps="full"`` rows have sums too, over all blocks: for several blocks there is a pass of `sum_up`
over all of them first, and `join`.
"""

import torch
from torch import Tensor

from weiss.kernels import fused_rest_programs as programs
from weiss.kernels.problem import Problem, Shard

CHUNK, SAMPLES = 1024, 64
"""Tiles of a row, and samples of a class, that a program takes at a time."""


class Rest:
    """Sums of columns and rows of one problem, and the launches that compute them.

    Args:
        problem: exponentials with logarithmic links.
        shard: which classes the fields belong to.
        labels: of the batch.
        ints: the batch by class, see `weiss.kernels.fused_programs`.
        inverse: one over the length of each field here; 1 for a class with several.
        wants: whether any gradient is wanted.
    """

    def __init__(
        self, problem: Problem, shard: Shard, labels: Tensor, ints: Tensor, inverse: Tensor,
        *, wants: bool,
    ) -> None:  # fmt: skip
        form, sharing = problem.form, problem.interactions.sharing
        assert form is not None
        assert sharing is not None
        self.numbers = form.pull_at, form.pull_rate, form.push_at, form.push_rate
        self.is_full, self.by_all = sharing.keeps == "full", sharing.divides_by == "all"
        self.is_over_all = sharing.over == "all"
        self.shard, self.labels, self.ints, self.inverse = shard, labels, ints, inverse
        self.average, self.wants = problem.average, wants
        self.batch, self.num_here = labels.shape[0], inverse.shape[0]
        self.softs: Tensor | None = None

    def begin(self, splits: int, tile: dict[str, int], num_tiles: int) -> None:
        """Make room for sums, in parts for shares of the batch and for tiles of columns."""
        self.splits, self.tile, self.num_tiles = splits, tile, num_tiles
        self.pushes, self.pulls = torch.empty(
            2, splits, self.num_here, dtype=torch.float32, device=self.inverse.device
        )
        self.rows = self.inverse.new_empty(self.batch, num_tiles) if self.is_full else self.pushes

    def interact(
        self, low: int, cosines: Tensor, values: Tensor, place: int, along: Tensor | None
    ) -> None:
        """Turn the cosines of a block into slopes, in place, and store its values."""
        if self.softs is None:  # for "full" this is the only block
            self.sum_up(low, cosines, 0)
            if self.is_full:
                self.join()
        here = cosines.shape[1]
        pull_at, pull_rate, push_at, push_rate = self.numbers
        programs.slopes[(-(-here // self.tile["COLUMNS"]), self.splits)](
            cosines, self.labels, self.ints, self.inverse, self.pushes, self.pulls, self.softs,
            along, values, self.batch, self.shard.first, here, self.num_here, low, self.splits,
            place, self.shard.num_classes, pull_at, pull_rate, push_at, push_rate,
            AVERAGE=self.average, FULL=self.is_full, OVER_ALL=self.is_over_all, BY_ALL=self.by_all,
            SLOPES=self.wants, ALONG=along is not None, **self.tile,
        )  # fmt: skip

    def sum_up(self, low: int, cosines: Tensor, tile: int) -> None:
        """Sum the columns of a block, and its part of the rows, of tiles from `tile` on."""
        here = cosines.shape[1]
        programs.sums[(-(-here // self.tile["COLUMNS"]), self.splits)](
            cosines, self.labels, self.ints, self.inverse, self.pushes, self.pulls, self.rows,
            self.batch, self.shard.first, here, self.num_here, low, tile, self.num_tiles,
            *self.numbers, AVERAGE=self.average, FULL=self.is_full, OVER_ALL=self.is_over_all,
            **self.tile,
        )  # fmt: skip

    def join(self) -> None:
        """Join rows and columns to the sums of present classes, of all shards."""
        parts = self.shard.parts
        # Of other shards there are zeros; with one, every number is written.
        make = self.inverse.new_zeros if parts > 1 else self.inverse.new_empty
        table = make((parts + 1, self.batch))
        programs.totals[(self.batch,)](
            self.pushes, self.rows, self.labels, table, self.batch, self.shard.first, self.num_here,
            self.num_tiles, self.splits, self.shard.index, parts, CHUNK=CHUNK,
        )  # fmt: skip
        table = self.shard.add_up(table)
        self.softs = self.inverse.new_empty(self.batch)
        programs.join[(self.batch,)](table, self.ints, self.softs, self.batch, parts, CHUNK=SAMPLES)
