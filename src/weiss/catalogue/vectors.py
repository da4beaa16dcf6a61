"""What every store asks of ids and vectors, in one wording.

Dimensions: n items, q queries, D embedding size.
"""

import numpy as np

from weiss._base.arrays import Array

TOLERANCE = 1e-3
"""How far a length may be from one: a vector that was kept in half precision still passes."""


def unit_vectors(name: str, given: object, dimension: int, owner: str) -> Array:
    """Return vectors as contiguous float32 ``(n, D)`` if each has unit length.

    Args:
        name: what the caller calls them.
        given: ``(n, D)``, floating point.
        dimension: D.
        owner: the store, for messages.

    Raises:
        TypeError: not numbers.
        ValueError: another shape, a NaN, or a length that is not one.
    """
    vectors = np.asarray(given)
    if not np.issubdtype(vectors.dtype, np.floating):
        raise TypeError(
            f"{name} must be floating point for {owner}; got {vectors.dtype}. "
            "Pass the output of the network."
        )
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise ValueError(
            f"{name} must have shape (n, {dimension}) for this {owner}; got {vectors.shape}. "
            "Pass one row a vector, from the network the store was made with."
        )
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    # The sum of squares is not finite if any entry is not.
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise ValueError(
            f"{name} must be finite for {owner}; row {row} holds a NaN or an infinity. "
            "Leave out what the network could not embed."
        )
    wrong = np.abs(lengths - 1) > TOLERANCE
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"{name} must have unit length for {owner}; row {row} has length {lengths[row]:g}. "
            "Divide each by its length."
        )
    return vectors


def item_ids(given: object, owner: str) -> Array:
    """Return ids as int64 ``(n,)`` if they are whole numbers of at least zero, each once.

    Minus one is what a search answers where there is no item, so that no item may have it.

    Raises:
        TypeError: not whole numbers.
        ValueError: another shape, a negative id, or one that stands there twice.
    """
    ids = np.asarray(given)
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(
            f"ids must be whole numbers for {owner}; got {ids.dtype}. Pass an int64 array."
        )
    if ids.ndim != 1:
        raise ValueError(f"ids must have shape (n,) for {owner}; got {ids.shape}. Flatten them.")
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > np.iinfo(np.int64).max):
        wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise ValueError(
            f"ids must lie between 0 and {np.iinfo(np.int64).max} for {owner}; got {wrong}. "
            "Number the items from 0."
        )
    ids = ids.astype(np.int64)
    found, times = np.unique(ids, return_counts=True)
    if len(found) < len(ids):
        raise ValueError(
            f"ids must differ for {owner}; {found[times > 1][0]} stands there more than once. "
            "Give every item an id of its own."
        )
    return ids


def new_items(ids: object, vectors: object, dimension: int, owner: str) -> tuple[Array, Array]:
    """Return checked ids ``(n,)`` and vectors ``(n, D)`` of items to add."""
    ids = item_ids(ids, owner)
    vectors = unit_vectors("vectors", vectors, dimension, owner)
    if len(ids) != len(vectors):
        raise ValueError(
            f"ids and vectors must be as many for {owner}; got {len(ids)} ids and "
            f"{len(vectors)} vectors. Pass one id a vector."
        )
    return ids, vectors


def refuse_known(known: Array, owner: str) -> None:
    """Refuse ids that are in the store already."""
    if len(known):
        raise ValueError(
            f"ids must be new to this {owner}; {known[0]} is there already"
            f"{f' and {len(known) - 1:,} more' if len(known) > 1 else ''}. "
            "Remove an item before adding it again."
        )


def best_first(ids: Array, similarities: Array, k: int) -> tuple[Array, Array]:
    """Order what was found: most similar first, then by id; nothing as id -1 and minus infinity.

    Args:
        ids: int64 ``(q, m)`` with m at most k; negative where nothing was found.
        similarities: float32 ``(q, m)``.
        k: how many were asked for.

    Returns:
        ids int64 ``(q, k)`` and similarities float32 ``(q, k)``, within -1 and 1.
    """
    # Rounding can carry a product of unit vectors above one, and a distance below zero.
    similarities = np.where(ids < 0, -np.inf, np.clip(similarities, -1, 1))
    order = np.lexsort((ids, -similarities), axis=-1)
    room = ((0, 0), (0, k - ids.shape[1]))
    ids = np.pad(np.take_along_axis(ids, order, 1), room, constant_values=-1)
    similarities = np.take_along_axis(similarities, order, 1)
    similarities = np.pad(similarities, room, constant_values=-np.inf)
    return ids.astype(np.int64), similarities.astype(np.float32)
