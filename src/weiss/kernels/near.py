"""Hinges over the pairs that are near, for CUDA devices: exactly what all pairs would give.

Beyond the reach of a hinge a pair of sample and class has no energy and no gradient. Which pairs
are within reach is found by a product of float16, the fastest there is, with an allowance for its
rounding: `mark` leaves a bit for every pair that may be near. Then each field meets its few samples
and each sample its few classes, in float32 whatever precision products are allowed
(near_programs.py). The hinge itself decides about the pairs at its edge, so that a mark too many
changes no bit of the gradients. All this happens for a block of classes at a time, so that marks
are few beside the fields.

This takes the time of one product and of the vectors that are read: for each marked pair one of the
batch and one field. If more than a share of them are near (`PAYS`), by the look of a few thousand
fields, all pairs are faster, and taken.

Dimensions: B batch, C classes, D embedding size.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from weiss.kernels import near_programs
from weiss.kernels.fused import ALIGNED, Work, fuse
from weiss.kernels.problem import Found, Noticed, Problem, Shard, sent

PAYS = {"bfloat16": 0.005, "tf32": 0.015, "tf32x3": 0.1}
"""Share of the pairs that may be near, by how the products of all pairs would be taken."""
ASKED = 4096
"""Fields that are looked at to guess that share."""
BLOCK = 2**18
"""Classes that are marked at a time, at most."""
MARKS = 2**28
"""Pairs that are, at most: with 2 bits each, 64 MiB."""
SHARE = 256
"""Words of classes, 32 each, in a part of a sample's gradient: their fields stay in the GPU's
cache while one sample after the other meets them."""
PARTS = 32
"""Of a sample's gradient, at most; later ones are added to these."""
FIELDS = 8
"""In a program; a divisor of what blocks are aligned to."""
BITS = 32
TILE = {"ROWS": 128, "COLUMNS": 128, "STEP": 64, "num_warps": 8}
"""Of the product that marks."""


def near(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    labels_B: Tensor,
    shard: Shard,
    *,
    wants_embeddings: bool,
    wants_fields: bool,
) -> tuple[Found, Noticed]:
    """Compute the loss and its gradients; arguments as of `weiss.kernels.fused.fuse`.

    Args:
        problem: the loss; a hinge, of cosines.
        embeddings_BD: the whole batch.
        fields_CD: the fields, all of them; float32.
        labels_B: class indices.
        shard: where the fields belong.
        wants_embeddings: compute the gradient of the embeddings.
        wants_fields: compute the gradient of the fields.

    Returns:
        What was found, and what was noticed about the batch.
    """
    exactly = replace(problem, products="float32") if problem.products != "float32" else problem
    work = Work(exactly, embeddings_BD.detach(), fields_CD.detach(), labels_B, shard)
    work.measure(fields=False)
    work.rank(None)
    noticed = work.noticed.sent()
    rival = work.precision if problem is exactly else problem.products
    found = _Blocks(work, problem, wants_embeddings, wants_fields).found(PAYS[rival])
    if found is None:
        found = _all_pairs(work, problem, wants_embeddings, wants_fields)
    return found, noticed


class _Blocks:
    """The classes, block by block."""

    def __init__(self, work: Work, problem: Problem, wants_x: bool, wants_fields: bool) -> None:
        self.work = work
        # What two factors of float16 and the sum of their products may be off.
        reach = problem.reach(work.shard.num_classes)
        self.least = 1.0 - reach - 2.0**-10 - work.size * 2.0**-22
        # A quarter of the classes, so that their copy is an eighth of the fields' gradient.
        columns = max(min(BLOCK, MARKS // work.batch, work.num_here // 4), 1)
        self.width = -(-columns // ALIGNED) * ALIGNED
        self.row_tiles = -(-work.batch // TILE["ROWS"])
        words = self.row_tiles * TILE["ROWS"] // BITS
        self.by_class = work.ints.new_empty(self.width, words)
        self.by_sample = work.ints.new_empty(work.batch, self.width // BITS)
        self.half = work.unit.half()
        self.copy = self.half.new_empty(self.width, work.size)
        num_programs = -(-work.num_here // FIELDS)
        self.values = torch.empty(num_programs, device=work.device)
        self.visits = work.ints.new_empty(num_programs)
        self.gradient = torch.empty_like(work.fields) if wants_fields else None
        self.parts_each = -(-self.width // BITS // SHARE)
        num_blocks = -(-work.num_here // self.width)
        self.rounds = max(PARTS // self.parts_each, 1)
        self.num_parts = self.parts_each * min(num_blocks, self.rounds) if wants_x else 0
        self.parts = torch.empty(self.num_parts, work.batch, work.size, device=work.device)
        self.rest = {
            "D": work.size,
            "WIDTH": work.width,
            "BY_SAMPLES": work.by_samples,
            "num_warps": 1,
        }

    def found(self, pays: float) -> Found | None:
        """Go through all blocks; None if more than a share of the pairs are near.

        The host asks how many there are when the first block is on its way, so that nobody waits;
        in a CUDA graph, which nobody can ask, they are never too many.
        """
        work = self.work
        asks = not (work.fields.is_cuda and torch.cuda.is_current_stream_capturing())
        if asks:
            share, ready = sent(share_near(work.unit, work.fields, self.least))
        for number, low in enumerate(range(0, work.num_here, self.width)):
            here = min(self.width, work.num_here - low)
            work.lengths(work.fields, work.inverse, self.copy, here, low, normalised=True)
            near_programs.mark[(self.row_tiles * -(-here // TILE["COLUMNS"]),)](
                self.half, self.copy, work.labels, self.by_class, self.by_sample, work.batch,
                work.shard.first + low, here, *self._words(), self.least, D=work.size, **TILE,
            )  # fmt: skip
            if asks and low == 0:
                if ready is not None:
                    ready.synchronize()
                if float(share) > pays:
                    return None
            self._add_up(number, low, here)
        parts = self.parts if self.num_parts else self.values
        found = work.finish(parts, self.num_parts, self.values, self.gradient)
        return found._replace(visited=self.visits.sum())

    def _words(self) -> tuple[int, int]:
        """Return how many words of marks a class has, and how many a sample."""
        return self.by_class.shape[1], self.by_sample.shape[1]

    def _add_up(self, number: int, low: int, here: int) -> None:
        """Add up over the marks of a block."""
        work, first, block = self.work, self.work.shard.first + low, slice(low, low + here)
        gradient = None if self.gradient is None else self.gradient[block]
        near_programs.of_fields[(-(-here // FIELDS),)](
            work.unit, work.fields[block], work.inverse[low:], work.labels, work.ints,
            self.by_class, gradient, self.values[low // FIELDS :], self.visits[low // FIELDS :],
            work.batch, first, here, self.by_class.shape[1], *work.numbers,
            ROWS=FIELDS, WANTED=gradient is not None, **self.rest,
        )  # fmt: skip
        if self.num_parts:
            place = number % self.rounds * self.parts_each
            near_programs.of_samples[(self.parts_each * work.batch,)](
                work.fields[block], work.inverse[low:], work.labels, work.ints, self.by_class,
                self.by_sample, self.parts[place:], work.batch, first, self.by_class.shape[1],
                -(-here // TILE["COLUMNS"]) * TILE["COLUMNS"] // BITS, self.by_sample.shape[1],
                SHARE, ADDS=number >= self.rounds, **self.rest,
            )  # fmt: skip


def share_near(unit_BD: Tensor, fields_CD: Tensor, least: float) -> Tensor:
    """Guess which share of all pairs is near, from every so many-th field.

    Args:
        unit_BD: directions of the batch.
        fields_CD: the fields.
        least: the cosine of a pair that is near.

    Returns:
        The share, a 0-d tensor.
    """
    every = -(-len(fields_CD) // ASKED)
    cos_Bc = unit_BD @ normalize(fields_CD[::every]).T
    return (cos_Bc > least).float().mean()


def _all_pairs(work: Work, problem: Problem, wants_x: bool, wants_fields: bool) -> Found:
    everything = replace(problem, skips=False)
    asked = everything, work.x, work.fields, work.labels, work.shard
    found, _ = fuse(*asked, wants_embeddings=wants_x, wants_fields=wants_fields)
    visited = torch.full((), work.batch * work.num_here, device=work.device)
    return found._replace(visited=visited)
