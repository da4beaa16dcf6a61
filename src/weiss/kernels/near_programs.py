"""The Triton programs behind `weiss.kernels.near`: mark which pairs may repel, add up over those.

Marks are bits, kept twice: for each class a run of words with a bit for every sample, and for each
sample one with a bit for every class. Going through the bits of a word from the lowest on takes
pairs in a fixed order, and needs neither lists nor sorting.

Names and the run of integers are those of `weiss.kernels.programs`.

(triton only here and in the other programs; imported when a kernel is first used.)
"""

import triton
import triton.language as tl

from weiss.kernels.cosine_programs import linear_energy
from weiss.kernels.half_programs import cosines_of_a_tile
from weiss.kernels.programs import COUNT, FACTS

BITS = tl.constexpr(32)
"""In a word."""


@triton.jit
def mark(
    half, copy, labels, by_class, by_sample, batch, first_class, num_here, row_words, column_words,
    least, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Mark the pairs of a block whose cosine is above ``least``, and samples with their own class.

    `copy` holds the directions of the block's fields, in the precision of `half`, those of the
    batch. What is no number is marked too, so that it is not hidden.
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
