"""What every store of vectors can do, and the checks that all of them share.

A store keeps vectors of unit length under ids and finds those with the largest cosine.
`weiss.catalogue.faiss_store` and `weiss.catalogue.milvus_store` are the two.

Dimensions: n items, q queries, D embedding size.
"""

from typing import Protocol

import numpy as np

from weiss._base.arrays import Array

TOLERANCE = 1e-3
"""Allowed error of a length: a vector that was stored in half precision passes."""


class Store(Protocol):
    """Vectors under ids, searched by cosine similarity."""

    def add(self, ids: Array, vectors: Array) -> None:
        """Add items: ids int64 ``(n,)``, new to the store; vectors ``(n, D)`` of unit length."""

    def remove(self, ids: Array) -> int:
        """Remove items; return how many of the ids ``(n,)`` the store had."""

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query.

        Args:
            queries: ``(q, D)`` of unit length.
            k: how many.

        Returns:
            ids int64 ``(q, k)`` and cosine similarities float32 ``(q, k)``, best first, equal ones
            by id; id -1 and minus infinity where the store has fewer than k items.
        """

    def __len__(self) -> int:
        """Return the number of items."""

    def describe(self) -> str:
        """Return one line: the kind of the store, why it was chosen, and its settings."""


def unit_vectors(name: str, given: object, dimension: int, owner: str) -> Array:
    """Return vectors of unit length as contiguous float32 ``(n, D)``; refuse all others.

    ``name`` is the argument and ``owner`` the store, for messages.
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
            "Pass one row for each vector, from the network the store was made with."
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
    """Return ids as int64 ``(n,)`` if they are different and at least 0; -1 means "no item"."""
    ids = np.asarray(given)
    if ids.size == 0:
        ids = ids.astype(np.int64)
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim != 1:
        raise ValueError(
            f"ids must be whole numbers of shape (n,) for {owner}; got {ids.dtype} of shape "
            f"{ids.shape}. Pass an int64 array."
        )
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
            f"ids must differ for {owner}; {found[times > 1][0]} occurs more than once. "
            "Give every item an id of its own."
        )
    return ids


def new_items(ids: object, vectors: object, dimension: int, owner: str) -> tuple[Array, Array]:
    """Return checked ids ``(n,)`` and vectors ``(n, D)`` of items to add."""
    ids = item_ids(ids, owner)
    vectors = unit_vectors("vectors", vectors, dimension, owner)
    if len(ids) != len(vectors):
        raise ValueError(
            f"there must be one id for each vector of {owner}; got {len(ids)} ids and "
            f"{len(vectors)} vectors."
        )
    return ids, vectors


def refuse_known(known: Array, owner: str) -> None:
    """Refuse ids that are in the store already."""
    if len(known):
        raise ValueError(
            f"ids must be new to this {owner}; {known[0]} is in it already"
            f"{f' and {len(known) - 1:,} more' if len(known) > 1 else ''}. "
            "Remove an item before adding it again."
        )


def best_first(ids: Array, similarities: Array, k: int) -> tuple[Array, Array]:
    """Sort the results ``(q, m)`` of a search: most similar first, then by id; pad to ``(q, k)``.

    Negative ids mean that nothing was found; they become -1 with similarity minus infinity.
    """
    # Rounding can carry a product of unit vectors above one.
    similarities = np.where(ids < 0, -np.inf, np.clip(similarities, -1, 1))
    order = np.lexsort((ids, -similarities), axis=-1)
    room = ((0, 0), (0, k - ids.shape[1]))
    ids = np.pad(np.take_along_axis(ids, order, 1), room, constant_values=-1)
    similarities = np.take_along_axis(similarities, order, 1)
    similarities = np.pad(similarities, room, constant_values=-np.inf)
    return ids.astype(np.int64), similarities.astype(np.float32)
