"""Random numbers that depend only on where they are used.

A generator with a state gives different numbers after a resume, in another process, or after one
more draw elsewhere. Here a number is a hash of its indices, (seed, use, epoch, position, draw) for
a crop, so every process and every resumed run sees the same, on every platform and NumPy version.

The hash is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied once for each word.
"""

from numbers import Integral

import numpy as np

from weiss._base.arrays import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 2**64 - 1
# The first index is the use of the numbers, so that two uses never share any.
ORDER, CLASSES, SMALL, LARGE, CROPS, SPLITS, FOLDS, JITTER, SHEET, QUERIES, STEPS = range(1, 12)
TRIALS, VIEWS, FONTS, SPREAD = 12, 13, 14, 15


def uniform(seed: int, *where: int | Array) -> Array:
    """Return numbers of [0, 1), one for each combination of indices.

    Args:
        seed: which stream.
        where: indices (any integers), scalars or arrays that broadcast together.

    Returns:
        float64 of the broadcast shape.

    Example:
        >>> import numpy as np
        >>> from weiss._base.draws import uniform
        >>> uniform(0, 3, np.arange(3)).round(3)
        array([0.803, 0.729, 0.332])
        >>> bool(uniform(0, 3, 2) == uniform(0, 3, np.arange(3))[2])
        True
    """
    # The upper 53 bits are a double's mantissa: every value is exact, and 1 is never reached.
    return np.asarray((_hash(seed, *where) >> np.uint64(11)) * 2.0**-53)


def permutation(size: int, seed: int, *where: int) -> Array:
    """Return 0 .. size-1 in the order that (seed, where) gives.

    Example:
        >>> from weiss._base.draws import permutation
        >>> permutation(5, 0, 1).tolist()
        [0, 4, 2, 1, 3]
    """
    return np.argsort(_hash(seed, *where, np.arange(size)), kind="stable")


def seed_at(seed: int, *where: int) -> int:
    """Return a seed of 63 bits for a generator of another library.

    Example:
        >>> from weiss._base.draws import seed_at
        >>> seed_at(0, 1) == seed_at(0, 1) != seed_at(0, 2)
        True
    """
    return int(_hash(seed, *where) >> np.uint64(1))


def _hash(seed: int, *where: int | Array) -> Array:
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise TypeError(f"seed must be a whole number; got {seed!r}. Pass an int.")
    words = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for index in (seed, *where):
            # Negative indices wrap into 64 bits, Python's like NumPy's own.
            index = int(index) & _MASK if isinstance(index, Integral) else index
            words = _mix(words + (np.asarray(index).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return words


def _mix(words: Array) -> Array:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
