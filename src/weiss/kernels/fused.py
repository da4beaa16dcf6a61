"""Mean-field losses in fused kernels, for CUDA devices.

The steps (fused_programs.py has the programs):

    measure            directions of the batch, lengths of the fields; who shares a class with whom
    rank_and_multiply  slots of classes; cosines of batch and fields
    interact           cosines -> the loss, and its derivative by each cosine
    averages, couple   the same among present classes, where links are logarithmic; put in place
    gradients          derivative^T x batch, derivative x fields
    finish             sums of parts, projections

A **small** problem is all launches and little work: six to nine of them, the matrix products
included. A **large** one is all matrix products, which cuBLAS computes fastest: a block of classes
at a time, with one pass of `interact` over the cosines between the first product and the other two.
In float32 the kernels split each factor in parts for the tensor cores (tf32x3), which keeps the
digits of float32; with TF32 allowed (``torch.set_float32_matmul_precision``) they use that.
Products in **bfloat16** are so fast that this one pass would be most of the time: there cosines
become slopes in the kernel that computes them, and are never written (fused_bfloat16_programs.py).

**One against the rest** (fused_rest.py) has two passes in the place of `interact`, `averages` and
`couple`: sums of columns, then slopes. Where rows have sums too (``keeps="full"``), the second
begins when the first is through all blocks. A large problem computes cosines again for that, except
those that meanwhile fit in the memory of the gradient to come.

With **several fields a class** (fused_sublattices.py) a problem of any size is computed as a large
one. The first product is with all fields. `join` makes cosines with classes of it, in a smaller
block, and the same programs turn them into slopes. `spread` gives every field its share of them, in
place of the first product, and the other two products follow.

The normalisation of fields and batch is part of it (see `geometry`). The host reads nothing from
the device, sums run in a fixed order, and no atomic additions are used: a CUDA graph can capture
it, and results are the same on every run.

The file is one piece: small, large and bfloat16 problems share most of the launches.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from weiss.kernels import fused_bfloat16_programs as bfloat16_programs
from weiss.kernels import fused_programs as programs
from weiss.kernels import fused_sublattices as sublattices
from weiss.kernels.fused_rest import Rest
from weiss.kernels.problem import Counts, DeviceCounts, Found, Task
from weiss.theory.sublattices import each_of, rows_of

MOST_BLOCK_DISTANCES, LEAST_BLOCK_DISTANCES = 2**27, 2**20
"""Distances in a block of a large problem: a quarter as many as its fields have entries, so that
memory stays that of their gradient, within these bounds; half as many where they are copied. With
several fields a class the joined distances are among them."""
ALIGNED = 128
"""Blocks of a large problem have a multiple of so many classes."""
CHUNK = 1024
TILE = 32
KEPT_SUMS = 16
"""Sums over blocks that are kept apart until the end: one for a block, as long as they are few."""
MATMUL_DTYPE = torch.bfloat16
"""What the factors of products are rounded to on request."""
BFLOAT16_TILE = {"ROWS": 64, "COLUMNS": 128, "STEP": 64, "num_warps": 4, "maxnreg": 168}
"""How their cosines are cut up, and registers so few that three programs share a processor."""
SHARES = 66
"""Programs that share the classes of a tile whose samples belong together."""
LARGEST_SUMMED_EXPONENT = 80.0
"""The sum of a batch of exponentials up to here is finite in float32 and in bfloat16."""
PROGRAMS = 1056
"""Programs that go over whatever there is, in turns."""
MANY_CLASSES = 4096
"""Classes from which on tiles may be large, and a GPU is still full."""
FILLING = 800
"""Programs that fill a GPU."""
LARGE_TILE = {"ROWS": 8, "COLUMNS": 256}
"""Of the pass over the cosines of a large problem."""
LARGE_REST_TILE = {"ROWS": 8, "COLUMNS": 128, "num_warps": 1}
"""The same for one against the rest: sums of columns stay in a thread, those of rows in a warp."""


def fuse(
    kernel: str, task: Task, copy_counts: Callable[[Tensor], None] | None = None
) -> tuple[Found, Counts]:
    """Compute the loss, its gradients and the counts of wrong values in the batch.

    Args:
        kernel: ``"small"``, ``"large"`` or ``"bfloat16"``, see `weiss.kernels.plan.Plan`.
        task: interactions with a closed form, cosine distance, fields in float32, class indices.
        copy_counts: called with the counts of a small problem as soon as they are computed.
    """
    work = Work(task, MATMUL_DTYPE if kernel == "bfloat16" else torch.float32)
    if kernel == "bfloat16":
        found = work.bfloat16()
    elif kernel == "large":
        found = work.large()
    else:
        found = work.small(copy_counts)
    return found, work.counts


class _Tiles(NamedTuple):
    """How a small problem is cut up: the best of those tried on an H200.

    Attributes:
        multiply: of the cosines of batch and fields.
        interact: of what makes of them the loss and its slopes.
        gradients: of the gradients.
    """

    multiply: dict[str, int]
    interact: dict[str, int]
    gradients: dict[str, int]

    def shares(self, batch: int, num_classes: int) -> int:
        """Return in how many shares `interact` takes the batch, to fill a GPU."""
        columns = _tiles(num_classes, self.interact["COLUMNS"])
        return max(1, min(FILLING // columns, _tiles(batch, self.interact["ROWS"]), 8))


_FEW = _Tiles(
    {"ROWS": 16, "COLUMNS": 32, "STEP": 64, "num_warps": 4},
    {"ROWS": 32, "COLUMNS": 16},
    {"SIDE": 16, "ACROSS": 64, "STEP": 32, "num_warps": 4},
)
_MANY = _Tiles(
    {"ROWS": 64, "COLUMNS": 64, "STEP": 32, "num_warps": 4},
    {"ROWS": 8, "COLUMNS": 64},
    {"SIDE": 32, "ACROSS": 256, "STEP": 32, "num_warps": 8},
)


def _tiles_of(num_classes: int, embedding_size: int) -> _Tiles:
    """Return the tiles for a number of classes; none wider than a vector, or 16."""
    tiles = _FEW if num_classes < MANY_CLASSES else _MANY
    width = max(1 << (embedding_size - 1).bit_length(), 16)
    across = min(tiles.gradients["ACROSS"], width)
    warps = min(tiles.gradients["num_warps"], max(across // 32, 1))
    gradients = {**tiles.gradients, "ACROSS": across, "num_warps": warps}
    return tiles._replace(gradients=gradients)


class _Block(NamedTuple):
    """Classes of a large problem, from `low` on; where cosines with their fields lie; if known."""

    low: int
    cosines: Tensor
    is_known: bool = False


class Work:
    """One problem, and the launches that solve it."""

    def __init__(self, task: Task, matmul_dtype: torch.dtype) -> None:
        x_BD, fields_CD = task.embeddings_BD.detach(), task.fields_CD.detach()
        form = task.problem.form
        assert form is not None
        self.x = x_BD if x_BD.stride(1) == 1 else x_BD.contiguous()
        self.labels, self.fields = task.labels.contiguous(), fields_CD.contiguous()
        self.shard, self.wants_x = task.shard, task.wants_embeddings
        self.wants_fields = task.wants_fields
        self.wants = self.wants_x or self.wants_fields
        self.batch, self.size = x_BD.shape
        self.num_here, self.each = fields_CD.shape[0], each_of(fields_CD)
        self.gamma = task.problem.gamma
        self.width = 1 << (self.size - 1).bit_length()
        self.device = fields_CD.device
        self.numbers = form.pull_at, form.pull_rate, form.push_at, form.push_rate
        self.kind, self.by_samples = form.kind, task.problem.average == "samples"
        self.couples = form.kind == "exp" and task.problem.interactions.sharing is None
        self.precision = precision()
        facts = programs.FACTS.value * self.batch + programs.NUM_FACTS.value
        self.ints = torch.empty(facts + self.num_here, dtype=torch.int32, device=self.device)
        low = programs.FACTS.value * self.batch + 1
        self.counts = DeviceCounts(self.ints[low : low + 3])
        self.unit = torch.empty(self.batch, self.size, dtype=matmul_dtype, device=self.device)
        self.inverse_x = self._empty(self.batch)
        self.inverse = self._empty(self.num_here * self.each)
        # Products times these are cosines with classes. Those that were joined are cosines already.
        self.scales = self.inverse
        if self.gamma is not None:
            self.scales = torch.ones(self.num_here, device=self.device)
        self.splits = max(1, min(self.batch // 256, 8))
        self.tiles = _tiles_of(self.num_here, self.size)
        self.rest: Rest | None = None
        if task.problem.interactions.sharing is not None:
            self.rest = Rest(
                task.problem, self.shard, self.labels, self.ints, self.scales, wants=self.wants
            )

    def small(self, copy_counts: Callable[[Tensor], None] | None) -> Found:
        """Compute everything in Triton."""
        self.measure(fields=True)
        cosines = self._empty(self.batch, self.num_here)
        tile, cut = self.tiles.interact, self.tiles.gradients
        self.splits = self.tiles.shares(self.batch, self.num_here)
        # What normalisation takes of each field, in parts for shares of the batch.
        along = self._empty(self.splits, self.num_here)
        self.rank(cosines)
        if copy_counts is not None:
            copy_counts(self.counts.counts)
        blocks = _tiles(self.num_here, tile["COLUMNS"]) * self.splits
        values = self._empty(blocks + self._num_coupled_values())
        if self.couples:
            self._couple(cosines, self.inverse, values[blocks:], by_slot=False)
        if self.rest is not None:
            self.rest.begin(self.splits, tile, _tiles(self.num_here, tile["COLUMNS"]))
        self._interact(0, self.num_here, cosines, values, 0, tile, along)
        gradient = torch.empty_like(self.fields) if self.wants_fields else None
        num_parts, parts = 0, values
        if self.wants_x:  # enough programs to fill a GPU, each with a few hundred classes at least
            num_parts = max(1, min(32, self.num_here // 256))
            parts = self._empty(num_parts, self.batch, self.size)
        share = _tiles(_tiles(self.num_here, max(num_parts, 1)), cut["STEP"]) * cut["STEP"]
        across = _tiles(self.size, cut["ACROSS"])
        field_tiles = _tiles(self.num_here, cut["SIDE"]) * across if self.wants_fields else 0
        tiles = field_tiles + num_parts * _tiles(self.batch, cut["SIDE"]) * across
        if tiles:
            programs.gradients[(tiles,)](
                self.unit, self.fields, cosines, along, gradient, parts, self.batch,
                self.num_here, self.splits, field_tiles, share, D=self.size,
                PRECISION=self.precision, **cut,
            )  # fmt: skip
        return self.finish(parts, num_parts, values, gradient)

    def large(self) -> Found:
        """Compute blocks of classes, with the matrix products of the library."""
        self.measure(fields=self.gamma is None)
        if self.gamma is not None:
            self.lengths(self.fields, self.inverse, None, len(self.inverse), 0)
        self.rank(None)
        self.counts = self.counts.sent()
        tile = LARGE_TILE if self.rest is None else LARGE_REST_TILE
        distances = min(self.fields.numel() // 4, MOST_BLOCK_DISTANCES)
        distances = max(distances, LEAST_BLOCK_DISTANCES)
        each = self.each + (self.gamma is not None)  # of a sample and a class, the joined included
        width = max(min(distances // (self.batch * each), self.num_here), 1)
        # Rows that begin at odd places cost the products half their speed.
        width = max(width // ALIGNED * ALIGNED, min(width, ALIGNED))
        num_blocks, tiles_each = _tiles(self.num_here, width), _tiles(width, tile["COLUMNS"])
        programs_each = tiles_each * self.splits
        place = num_blocks * programs_each
        values = torch.zeros(place + self._num_coupled_values(), device=self.device)
        if self.couples:
            self._couple_present(values[place:])
        space = self._empty(self.batch * width * self.each)
        self.joined = self._empty(0 if self.gamma is None else self.batch * width)
        gradient = torch.empty_like(self.fields) if self.wants_fields else None
        num_parts = min(num_blocks, KEPT_SUMS) if self.wants_x else 0
        parts = self._empty(num_parts, self.batch, self.size) if self.wants_x else values
        blocks = []
        for low in range(0, self.num_here, width):
            columns = min(width, self.num_here - low) * self.each
            blocks.append(_Block(low, space[: self.batch * columns].view(self.batch, columns)))
        if self.rest is not None:
            self.rest.begin(self.splits, tile, num_blocks * tiles_each)
            if self.rest.is_full:
                blocks = self._sum_rows(blocks, gradient, tiles_each)
        for number, (low, cosines, is_known) in enumerate(blocks):
            here = cosines.shape[1] // self.each
            factors = rows_of(self.fields[low : low + here])
            if not is_known:
                torch.mm(self.unit, factors.T, out=cosines)
            joined = self._join(low, cosines)
            self._interact(low, here, joined, values, number * programs_each, tile)
            if self.gamma is not None and self.wants:
                inverse = self.inverse[low * self.each :]
                sublattices.spread(cosines, inverse, self.gamma, joined)
            if self.wants_x:
                _multiply(cosines, factors, parts[number % KEPT_SUMS], adds=number >= KEPT_SUMS)
            if gradient is not None:
                of_block = rows_of(gradient[low : low + here])
                torch.mm(cosines.T, self.unit, out=of_block)
                self._finish_fields(factors, of_block, len(factors), low * self.each)
        return self.finish(parts, num_parts, values, gradient)

    def _sum_rows(
        self, blocks: list[_Block], gradient: Tensor | None, tiles_each: int
    ) -> list[_Block]:
        """Go over all blocks for the sums of rows; return them for the next pass, in its order.

        That goes from the last block to the first. When it comes to a block, no earlier row of the
        gradient is written yet: cosines lie in that memory, of as many blocks as fit.
        """
        assert self.rest is not None
        *others, last = blocks
        again = [last._replace(is_known=True)]
        room = gradient.view(-1) if gradient is not None else self._empty(0)
        end = len(room)
        for low, cosines, _ in reversed(others):
            end = min(end, self.fields[:low].numel()) - cosines.numel()
            if end >= 0:
                cosines = room[end : end + cosines.numel()].view_as(cosines)
            # Where no gradient is wanted, nobody reads them again.
            again.append(_Block(low, cosines, end >= 0 or not self.rest.wants))
        for number, (low, cosines, _) in enumerate(reversed(again)):
            factors = rows_of(self.fields[low : low + cosines.shape[1] // self.each])
            torch.mm(self.unit, factors.T, out=cosines)
            self.rest.sum_up(low, self._join(low, cosines), number * tiles_each)
        self.rest.join()
        return again

    def _join(self, low: int, cosines: Tensor) -> Tensor:
        """Return cosines with the classes of a block, from those with their fields."""
        if self.gamma is None:
            return cosines
        here = cosines.shape[1] // self.each
        joined = self.joined[: self.batch * here].view(self.batch, here)
        sublattices.join(cosines, self.inverse[low * self.each :], self.gamma, joined)
        return joined

    def bfloat16(self) -> Found:
        """Compute blocks of classes, whose cosines become slopes before they are written."""
        self.measure(fields=False)
        self.rank(None)
        self.counts = self.counts.sent()
        # Slopes and a copy of the fields: a quarter of what the fields' gradient takes.
        width = int(0.5 * self.num_here * self.size / (self.batch + self.size))
        least, most = LEAST_BLOCK_DISTANCES // self.batch, 2 * MOST_BLOCK_DISTANCES // self.batch
        width = max(min(width, most), least, 1)
        width = _tiles(min(width, self.num_here), ALIGNED) * ALIGNED
        num_blocks = _tiles(self.num_here, width)
        place = self._num_coupled_values()
        values = self._empty(place + num_blocks * self._num_meetings(width))
        slopes = self.unit.new_empty(self.batch, width)
        copy = self.unit.new_empty(width, self.size)
        gradient = torch.empty_like(self.fields) if self.wants_fields else None
        num_parts = min(num_blocks, KEPT_SUMS) if self.wants_x else 0
        parts = self._empty(num_parts, self.batch, self.size) if self.wants_x else values
        for number in range(num_blocks):
            low = number * width
            here = min(width, self.num_here - low)
            self.lengths(self.fields, self.inverse, copy, here, low)
            place = self._meet(low, here, copy, slopes, values, place)
            if self.kind == "exp":
                if number == 0:  # not sooner: its many small launches pass while others work
                    self._couple_present(values)
                self._put_coupled(low, here, slopes)
            if self.wants_x:
                part, adds = parts[number % KEPT_SUMS], number >= KEPT_SUMS
                _multiply(slopes[:, :here], copy[:here], part, adds=adds)
            if gradient is not None:
                of_block = gradient[low : low + here]
                _multiply(slopes[:, :here].T, self.unit, of_block)
                self._finish_fields(copy, of_block, here, low)
        return self.finish(parts, num_parts, values[:place], gradient)

    def _num_meetings(self, width: int) -> int:
        """Return how many programs `_meet` has for a block, and so how many values."""
        row_tiles = _tiles(self.batch, BFLOAT16_TILE["ROWS"])
        together = 2 * row_tiles * SHARES if self.kind == "exp" else 0
        return row_tiles * _tiles(width, BFLOAT16_TILE["COLUMNS"]) + together

    def _meet(
        self, low: int, here: int, copy: Tensor, slopes: Tensor, values: Tensor, place: int
    ) -> int:
        """Compute the slopes of a block; return where the next may put its values."""
        row_tiles = _tiles(self.batch, BFLOAT16_TILE["ROWS"])
        num_tiles = row_tiles * _tiles(here, BFLOAT16_TILE["COLUMNS"])
        width = slopes.shape[1]
        tile = {"BY_SAMPLES": self.by_samples, "D": self.size, **BFLOAT16_TILE}
        if self.kind != "exp":
            bfloat16_programs.meet_linear[(num_tiles,)](
                self.unit, copy, slopes, self.labels, self.ints, self.inverse, values, self.batch,
                self.shard.first, here, width, low, place, *self.numbers,
                SOFT=self.kind == "softplus", **tile,
            )  # fmt: skip
            return place + num_tiles
        push, shared = self.numbers[2:], (row_tiles, SHARES)
        shift = max(push[0] * push[1] - LARGEST_SUMMED_EXPONENT, 0.0)
        given = (self.unit, copy, slopes, self.ints, self.inverse, values, self.batch, here, width)
        bfloat16_programs.meet_log[(num_tiles,)](*given, low, place, *push, **tile)
        place += num_tiles
        tile.pop("maxnreg", None)  # the others need more registers
        bfloat16_programs.meet_log_together[shared](*given, low, place, *push, shift, **tile)
        place += row_tiles * SHARES
        bfloat16_programs.meet_log_across[shared](*given, low, place, *push, shift, **tile)
        return place + row_tiles * SHARES

    def measure(self, *, fields: bool) -> None:
        """Find directions and classes of the batch, and the lengths of fields."""
        rows = 8 if fields else CHUNK
        programs.measure[(self.batch + _tiles(self.num_here, rows),)](
            self.x, self.labels, self.fields, self.unit, self.inverse_x, self.inverse, self.ints,
            self.batch, self.num_here, self.x.stride(0), D=self.size, WIDTH=self.width, ROWS=rows,
            CHUNK=CHUNK, FIELDS=fields,
        )  # fmt: skip

    def lengths(
        self, fields: Tensor, inverse: Tensor, copy: Tensor | None, num_here: int, low: int,
        *, normalised: bool = False,
    ) -> None:  # fmt: skip
        """Find one over the length of each field of a block; copy them in another precision."""
        rows = num_here if copy is None else _tiles(num_here, ALIGNED) * ALIGNED
        programs.lengths[(_tiles(rows, 8),)](
            fields, inverse, fields if copy is None else copy, num_here, low,
            D=self.size, WIDTH=self.width, ROWS=8, COPIES=copy is not None, NORMALISED=normalised,
        )  # fmt: skip

    def rank(self, cosines: Tensor | None) -> None:
        """Find the slots, and with a place for them the cosines."""
        cut = self.tiles.multiply
        tiles = _tiles(self.batch, cut["ROWS"]) * _tiles(self.num_here, cut["COLUMNS"])
        programs.rank_and_multiply[(self.batch + (tiles if cosines is not None else 0),)](
            self.unit, self.fields, self.labels, self.ints, self.inverse if cosines is None else
            cosines, self.batch, self.shard.num_classes, self.shard.first, self.num_here,
            D=self.size, PRECISION=self.precision, CHUNK=CHUNK, MULTIPLIES=cosines is not None,
            **cut,
        )  # fmt: skip

    def _num_coupled_values(self) -> int:
        return _tiles(self.batch, TILE) ** 2 if self.couples else 0

    def _couple_present(self, values: Tensor) -> None:
        """Couple present classes, from cosines of their own."""
        low = programs.CLASS.value * self.batch
        column = (self.ints[low : low + self.batch].long() - self.shard.first).clamp_(
            0, self.num_here - 1
        )
        fields = rows_of(self.fields.index_select(0, column))
        inverse = self._empty(len(fields))
        self.lengths(fields, inverse, None, len(fields), 0)
        cosines = self.unit.float() @ fields.T
        if self.gamma is not None:
            joined = self._empty(self.batch, self.batch)
            sublattices.join(cosines, inverse, self.gamma, joined)
            cosines, inverse = joined, inverse.new_ones(self.batch)
        self._couple(cosines, inverse, values, by_slot=True)

    def _couple(self, cosines: Tensor, inverse: Tensor, values: Tensor, *, by_slot: bool) -> None:
        """Couple present classes where links are logarithmic: a table of averages, and slopes."""
        tiles = _tiles(self.batch, TILE)
        table = self._empty(self.batch, self.batch)
        self.coupled = self._empty(self.batch, self.batch)
        self.coupled_parts = self._empty(tiles, self.batch)
        width = cosines.shape[1]
        programs.averages[(tiles, tiles)](
            cosines, inverse, self.ints, table, self.batch, self.shard.first, self.num_here, width,
            self.numbers[2], self.numbers[3], ROWS=TILE, COLUMNS=TILE, BY_SAMPLES=self.by_samples,
            BY_SLOT=by_slot,
        )  # fmt: skip
        table = self.shard.add_up(table)
        programs.couple[(tiles, tiles)](
            cosines, inverse, self.ints, table, self.coupled, self.coupled_parts, values,
            self.batch, self.shard.first, self.num_here, width, *self.numbers,
            ROWS=TILE, COLUMNS=TILE, BY_SAMPLES=self.by_samples, BY_SLOT=by_slot,
        )  # fmt: skip

    def _interact(
        self, low: int, here: int, cosines: Tensor, values: Tensor, place: int,
        tile: dict[str, int], along: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Turn the cosines of a block into slopes, in place."""
        if self.rest is not None:
            self.rest.interact(low, cosines, values, place, along)
            return
        grid = (_tiles(here, tile["COLUMNS"]), self.splits)
        first, (pull_at, pull_rate, push_at, push_rate) = self.shard.first, self.numbers
        if self.kind != "exp":
            programs.interact_linear[grid](
                cosines, cosines, self.labels, self.ints, self.scales, along, values,
                self.batch, first, here, self.num_here, low, place, pull_at, pull_rate, push_at,
                push_rate, SOFT=self.kind == "softplus", BY_SAMPLES=self.by_samples,
                ALONG=along is not None, **tile,
            )  # fmt: skip
            return
        programs.interact_log[grid](
            cosines, cosines, self.ints, self.scales, along, values, self.batch, here,
            self.num_here, low, place, push_at, push_rate, BY_SAMPLES=self.by_samples,
            ALONG=along is not None, **tile,
        )  # fmt: skip
        self._put_coupled(low, here, cosines, along)

    def _put_coupled(
        self, low: int, here: int, slopes: Tensor, along: Tensor | None = None
    ) -> None:
        programs.put_coupled[(self.batch,)](
            self.scales, self.ints, self.coupled, self.coupled_parts, slopes, along, self.batch,
            self.shard.first, here, slopes.shape[1], len(self.coupled_parts), low, ROWS=CHUNK,
            ALONG=along is not None,
        )  # fmt: skip

    def _finish_fields(self, fields: Tensor, gradient: Tensor, here: int, low: int) -> None:
        programs.finish_fields[(_tiles(here, 8),)](
            fields, self.inverse, gradient, here, low, D=self.size, WIDTH=self.width, ROWS=8
        )

    def finish(
        self, parts: Tensor, num_parts: int, values: Tensor, gradient: Tensor | None
    ) -> Found:
        """Add up the parts of the batch's gradient, and the values."""
        value = torch.empty((), device=self.device)
        found = self._empty(self.batch, self.size) if num_parts else None
        programs.finish_batch[(self.batch if num_parts else 1,)](
            self.unit, self.inverse_x, parts, values if found is None else found, values, value,
            self.batch, num_parts, values.shape[0], D=self.size, WIDTH=self.width, CHUNK=CHUNK,
            WANTED=num_parts > 0,
        )  # fmt: skip
        return Found(value, found, gradient)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)


def precision() -> str:
    """Return how kernels take products of float32, as torch's own are allowed to."""
    try:
        highest = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set by torch's newer names, it cannot be read by the older one
        highest = torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "tf32x3" if highest else "tf32"


def scale_in_place(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply one or two gradients by a number on the device; by one, at no cost."""
    first, second = gradients[0], gradients[-1]
    programs.scale[(PROGRAMS,)](
        first, first.numel() if len(gradients) > 1 else 0, second, second.numel(), factor,
        CHUNK=CHUNK,
    )  # fmt: skip


def _multiply(left: Tensor, right: Tensor, out: Tensor, *, adds: bool = False) -> None:
    """Write a matrix product in float32, or add it, whatever the precision of its factors."""
    if left.dtype == torch.float32:
        torch.addmm(out, left, right, beta=int(adds), out=out)
    elif left.device.type == "cpu":  # where kernels are interpreted
        out.copy_(left.float() @ right.float() + (out if adds else 0.0))
    elif adds:
        out += torch.mm(left, right, out_dtype=torch.float32)
    else:
        torch.mm(left, right, out_dtype=torch.float32, out=out)


def _tiles(length: int, of: int) -> int:
    return -(-length // of)
