"""Hinges over near pairs only, for CUDA devices: exactly what all pairs would give.

Beyond the reach of a hinge a pair of sample and class has no energy and no gradient. A product in
float16, the fastest there is, with a margin for its rounding, finds the pairs within reach: `mark`
sets a bit for every pair that may be near. Then each field is combined with its few samples and
each sample with its few classes, in float32 whatever precision products may have. Marked pairs
are computed exactly: one that was marked although it is far contributes 0. All
this happens for a block of classes at a time, so that marks are few beside the fields.

This takes the time of one product and of the vectors that are read: for each marked pair one of the
batch and one field. If more than a share of the pairs are near (`PAYS`), estimated from a few
thousand fields, all pairs are faster, and computed.

Marks are bits, kept twice: for each class a row of words with a bit for every sample, and for each
sample one with a bit for every class. Going through the bits of a word from the lowest on takes
pairs in a fixed order, and needs neither lists nor sorting. Names and the array of integers in the
programs are those of `weiss.kernels.fused_programs`.

Dimensions: B batch, C classes, D embedding size.

(triton only in files of programs; imported when a kernel is first used.)
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import normalize

from weiss.kernels.fused import ALIGNED, Work, fuse
from weiss.kernels.fused_bfloat16_programs import cosines_of_a_tile
from weiss.kernels.fused_programs import COUNT, FACTS, linear_energy
from weiss.kernels.problem import Counts, Found, Task, sent

PAYS = {"bfloat16": 0.005, "tf32": 0.015, "tf32x3": 0.1}
"""Above this share of near pairs computing all pairs is faster, by the kind of their products."""
SAMPLED_FIELDS = 4096
"""Fields from which that share is estimated."""
MARKED_CLASSES, MARKED_PAIRS = 2**18, 2**28
"""Classes and pairs that are marked at a time, at most: with 2 bits a pair, 64 MiB."""
WORDS_A_PART = 256
"""Words of 32 classes in a part of a sample's gradient: their fields stay in the GPU's cache while
one sample after the other is combined with them."""
MOST_PARTS = 32
"""Parts of a sample's gradient, at most; later ones are added to these."""
FIELDS = 8
"""Fields in a program; a divisor of `ALIGNED`."""
BITS = tl.constexpr(32)
"""Bits in a word."""
TILE = {"ROWS": 128, "COLUMNS": 128, "STEP": 64, "num_warps": 8}
"""Tile sizes of the matrix product in `mark`."""


def near_pairs(kernel: str, task: Task) -> tuple[Found, Counts]:
    """Compute a hinge of cosines and its gradients from near pairs; all if too many are near.

    `kernel` computes all pairs, see `weiss.kernels.fused.fuse`.
    """
    work = Work(task, torch.float32)
    work.measure(fields=False)
    work.rank(None)
    counts = work.counts.sent()
    rival = kernel if kernel == "bfloat16" else work.precision
    found = _Blocks(work, task.problem.reach).found(PAYS[rival])
    if found is None:
        found, _ = fuse(kernel, task)
        all_pairs = torch.full((), work.batch * work.num_here, device=work.device)
        found = found._replace(visited=all_pairs)
    return found, counts


class _Blocks:
    """The classes, block by block."""

    def __init__(self, work: Work, reach: float) -> None:
        self.work = work
        # The error of two factors in float16 and of the sum of their products.
        self.least = 1.0 - reach - 2.0**-10 - work.size * 2.0**-22
        # A quarter of the classes, so that their copy is an eighth of the fields' gradient.
        columns = max(min(MARKED_CLASSES, MARKED_PAIRS // work.batch, work.num_here // 4), 1)
        self.width = -(-columns // ALIGNED) * ALIGNED
        self.row_tiles = -(-work.batch // TILE["ROWS"])
        words = self.row_tiles * TILE["ROWS"] // BITS.value
        self.by_class = work.ints.new_empty(self.width, words)
        self.by_sample = work.ints.new_empty(work.batch, self.width // BITS.value)
        self.half = work.unit.half()
        self.copy = self.half.new_empty(self.width, work.size)
        num_programs = -(-work.num_here // FIELDS)
        self.values = torch.empty(num_programs, device=work.device)
        self.visits = work.ints.new_empty(num_programs)
        self.gradient = torch.empty_like(work.fields) if work.wants_fields else None
        self.parts_each = -(-self.width // BITS.value // WORDS_A_PART)
        num_blocks = -(-work.num_here // self.width)
        self.rounds = max(MOST_PARTS // self.parts_each, 1)
        self.num_parts = self.parts_each * min(num_blocks, self.rounds) if work.wants_x else 0
        self.parts = torch.empty(self.num_parts, work.batch, work.size, device=work.device)
        self.rest = {
            "D": work.size,
            "WIDTH": work.width,
            "BY_SAMPLES": work.by_samples,
            "num_warps": 1,
        }

    def found(self, pays: float) -> Found | None:
        """Go through all blocks; None if more than a share of the pairs are near.

        The host reads the share after the first block is launched, so that the GPU never waits.
        While a CUDA graph is captured nothing can be read, and near pairs are taken however many.
        """
        work = self.work
        reads = not (work.fields.is_cuda and torch.cuda.is_current_stream_capturing())
        if reads:
            share, ready = sent(_share_near(work.unit, work.fields, self.least))
        for number, low in enumerate(range(0, work.num_here, self.width)):
            here = min(self.width, work.num_here - low)
            work.lengths(work.fields, work.inverse, self.copy, here, low, normalised=True)
            mark[(self.row_tiles * -(-here // TILE["COLUMNS"]),)](
                self.half, self.copy, work.labels, self.by_class, self.by_sample, work.batch,
                work.shard.first + low, here, self.by_class.shape[1], self.by_sample.shape[1],
                self.least, D=work.size, **TILE,
            )  # fmt: skip
            if reads and low == 0:
                if ready is not None:
                    ready.synchronize()
                if float(share) > pays:
                    return None
            self._add_up(number, low, here)
        parts = self.parts if self.num_parts else self.values
        found = work.finish(parts, self.num_parts, self.values, self.gradient)
        return found._replace(visited=self.visits.sum())

    def _add_up(self, number: int, low: int, here: int) -> None:
        """Add up over the marks of a block."""
        work, first, block = self.work, self.work.shard.first + low, slice(low, low + here)
        marked_words = -(-here // TILE["COLUMNS"]) * TILE["COLUMNS"] // BITS.value
        gradient = None if self.gradient is None else self.gradient[block]
        of_fields[(-(-here // FIELDS),)](
            work.unit, work.fields[block], work.inverse[low:], work.labels, work.ints,
            self.by_class, gradient, self.values[low // FIELDS :], self.visits[low // FIELDS :],
            work.batch, first, here, self.by_class.shape[1], *work.numbers,
            ROWS=FIELDS, WANTED=gradient is not None, **self.rest,
        )  # fmt: skip
        if self.num_parts:
            place = number % self.rounds * self.parts_each
            of_samples[(self.parts_each * work.batch,)](
                work.fields[block], work.inverse[low:], work.labels, work.ints, self.by_class,
                self.by_sample, self.parts[place:], work.batch, first, self.by_class.shape[1],
                marked_words, self.by_sample.shape[1], WORDS_A_PART,
                ADDS=number >= self.rounds, **self.rest,
            )  # fmt: skip


def _share_near(unit_BD: Tensor, fields_CD: Tensor, least: float) -> Tensor:
    """Estimate the share of pairs whose cosine is above ``least``, from a part of the fields."""
    every = -(-len(fields_CD) // SAMPLED_FIELDS)
    cos_Bc = unit_BD @ normalize(fields_CD[::every]).T
    return (cos_Bc > least).float().mean()


@triton.jit
def mark(
    half, copy, labels, by_class, by_sample, batch, first_class, num_here, row_words, column_words,
    least, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Mark the pairs of a block whose cosine is above ``least``, and samples with their own class.

    `copy` holds the directions of the block's fields, in the precision of `half`, those of the
    batch. NaN is marked too, so that it is not hidden.
    """
    row_tiles = tl.cdiv(batch, ROWS)
    tile = tl.program_id(0) % row_tiles
    begin = (tl.program_id(0) // row_tiles) * COLUMNS
    i = tile * ROWS + tl.arange(0, ROWS)
    c = begin + tl.arange(0, COLUMNS)
    row = tl.minimum(i, batch - 1)
    fields = copy + begin.to(tl.int64) * D
    cos = cosines_of_a_tile(half, row, fields, D, ROWS, COLUMNS, STEP)
    own = (tl.load(labels + row) - first_class).to(tl.int32)
    is_far = (cos <= least) & (own[:, None] != c[None, :])
    near = (is_far == 0) & (i < batch)[:, None] & (c < num_here)[None, :]
    bits = near.to(tl.int32)
    place = tl.arange(0, BITS)
    words = tl.sum(tl.reshape(bits, (ROWS, COLUMNS // BITS, BITS)) << place[None, None, :], 2)
    at = begin // BITS + tl.arange(0, COLUMNS // BITS)
    at = i.to(tl.int64)[:, None] * column_words + at[None, :]
    tl.store(by_sample + at, words, mask=(i < batch)[:, None])
    words = tl.sum(tl.reshape(bits, (ROWS // BITS, BITS, COLUMNS)) << place[None, :, None], 1)
    at = tile * (ROWS // BITS) + tl.arange(0, ROWS // BITS)
    at = c.to(tl.int64)[None, :] * row_words + at[:, None]
    tl.store(by_class + at, words)


@triton.jit
def _lowest(word):
    """Return the lowest bit of a word that is not zero, as a word and as a place."""
    bit = word & (0 - word)
    # The exponent of a power of two, as float32 writes it.
    return bit, (bit.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def of_fields(
    unit, fields, inverse, labels, ints, by_class, gradient, values, visits, batch, first_class,
    num_here, row_words, pull_at, pull_rate, push_at, push_rate, D: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BY_SAMPLES: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """The energy of marked pairs and the gradient of the fields, ROWS fields a program.

    Of the marks only those of pairs with a gradient are left.
    """
    column = tl.arange(0, WIDTH)
    inside = column < D
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    energies = 0.0
    visited = 0
    for turn in range(0, ROWS):
        c = tl.program_id(0) * ROWS + turn
        if c < num_here:
            at = c.to(tl.int64) * D + column
            field = tl.load(fields + at, mask=inside, other=0.0)
            scale = tl.load(inverse + c)
            total = tl.zeros((WIDTH,), tl.float32)
            along = 0.0
            for number in range(0, row_words):
                word_at = by_class + c.to(tl.int64) * row_words + number
                word = tl.load(word_at).to(tl.uint32, bitcast=True)
                kept = word
                while word != 0:
                    bit, place = _lowest(word)
                    i = number * BITS + place
                    x = tl.load(unit + i * D + column, mask=inside, other=0.0)
                    is_own = tl.load(labels + i) - first_class == c
                    size = tl.load(ints + COUNT * batch + i).to(tl.float32)
                    weight = 1.0 / batch if BY_SAMPLES else 1.0 / (size * present)
                    cos = tl.sum(x * field, 0) * scale
                    energy, slope = linear_energy(
                        cos, is_own, weight, pull_at, pull_rate, push_at, push_rate, False
                    )
                    energies += energy
                    along += slope * cos
                    total += slope * x
                    kept = tl.where(slope == 0, kept ^ bit, kept)
                    visited += 1
                    word = word ^ bit
                tl.store(word_at, kept.to(tl.int32, bitcast=True))
            if WANTED:
                tl.store(gradient + at, (total - along * scale * field) * scale, mask=inside)
    tl.store(values + tl.program_id(0), energies)
    tl.store(visits + tl.program_id(0), visited)


@triton.jit
def of_samples(
    fields, inverse, labels, ints, by_class, by_sample, parts, batch, first_class, row_words,
    words_here, column_words, share, D: tl.constexpr, WIDTH: tl.constexpr, BY_SAMPLES: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """The gradient of the batch, from `share` words of classes a part; one program a sample.

    ADDS it to what the parts are already.
    """
    row = tl.program_id(0) % batch
    part = tl.program_id(0) // batch
    column = tl.arange(0, WIDTH)
    inside = column < D
    present = tl.load(ints + FACTS * batch).to(tl.float32)
    size = tl.load(ints + COUNT * batch + row).to(tl.float32)
    weight = 1.0 / batch if BY_SAMPLES else 1.0 / (size * present)
    own = (tl.load(labels + row) - first_class).to(tl.int32)
    total = tl.zeros((WIDTH,), tl.float32)
    for number in range(part * share, tl.minimum((part + 1) * share, words_here)):
        word = tl.load(by_sample + row.to(tl.int64) * column_words + number)
        word = word.to(tl.uint32, bitcast=True)
        while word != 0:
            bit, place = _lowest(word)
            c = number * BITS + place
            field = tl.load(fields + c.to(tl.int64) * D + column, mask=inside, other=0.0)
            marks = tl.load(by_class + c.to(tl.int64) * row_words + row // BITS)
            slope = ((marks >> (row % BITS)) & 1).to(tl.float32) * tl.load(inverse + c) * weight
            total += tl.where(c == own, -slope, slope) * field
            word = word ^ bit
    at = (part.to(tl.int64) * batch + row) * D + column
    if ADDS:
        total += tl.load(parts + at, mask=inside, other=0.0)
    tl.store(parts + at, total, mask=inside)
