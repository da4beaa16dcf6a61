"""What every store of vectors can do, and the checks that all of them share.

A store keeps vectors of unit length under ids and finds those with the largest cosine.
`weiss.catalogue.store_table` lists the stores that an index can have.

Dimensions: n items, q queries, D embedding size.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.records import damaged

TOLERANCE = 5e-4
"""Allowed error of a length: a vector that was stored in half precision passes."""
MOST = 1.001
"""The largest similarity of two such vectors, and minus the least: beyond it one is damaged."""
ROUNDING = 1e-6
"""By how much a similarity differs when it is computed in another order."""


class VectorStore(ABC):
    """Vectors under ids, searched by cosine similarity; and its place in an index.

    The manifest of an index keeps facts about its store: ``address``, ``says`` (one line), and
    ``file`` or ``collection``. A file is written anew by every change. A collection is a part of a
    database and changes in place.

    Attributes:
        suffix: of the name of its file in the index: a dot and at most 12 small letters or digits;
            empty for a database.
        pattern: matches the addresses of this kind of store.
        form: how they look, for messages.
        example: some of them, for messages.
    """

    suffix: ClassVar[str]
    pattern: ClassVar[str]
    form: ClassVar[str]
    example: ClassVar[str]

    @classmethod
    @abstractmethod
    def checked_address(cls, address: str, home: Path, kind: str) -> str:
        """Return the address that a user gave as the manifest keeps it, or refuse it.

        ``home`` is the index folder, and ``kind`` the kind of a faiss index that was asked for,
        which other stores refuse unless it is ``"auto"``.
        """

    @classmethod
    def refuse(cls, address: str) -> None:
        """Raise ValueError for an address that a manifest must not have."""
        return

    @classmethod
    def elsewhere(cls, address: str) -> str:
        """Return which server keeps the vectors; empty if they are in the index folder."""
        return ""

    @classmethod
    @abstractmethod
    def make(cls, home: Path, facts: Mapping[str, Any], dimension: int, kind: str) -> Self:
        """Make the empty store of a new index."""

    @classmethod
    @abstractmethod
    def open(
        cls, home: Path, facts: Mapping[str, Any], dimension: int, *, to_change: bool = False
    ) -> Self:
        """Open the store of an index; a file can be changed only with ``to_change``.

        A file that is read whole is compared with its checksum, however large it is. What is wrong
        is a ValueError or `DamagedIndexError`, never an error of the library.
        """

    def save(self, path: Path) -> None:
        """Write a store that is a file."""
        return

    def keep_only(self, ids: Array) -> None:
        """Remove all other items from the collection of a database."""
        return

    def drop(self) -> None:
        """Delete the collection of a database; the store cannot be used after that."""
        return

    def close(self) -> None:
        """Close the connection to a database."""
        return

    @abstractmethod
    def add(self, ids: Array, vectors: Array) -> None:
        """Add items: ids int64 ``(n,)``, new to the store; vectors ``(n, D)`` of unit length.

        A store may keep the array of the vectors, which must not change afterwards.
        """

    @abstractmethod
    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query ``(q, D)`` of unit length.

        Returns:
            ids int64 ``(q, k)`` and cosine similarities float32 ``(q, k)``, best first, equal ones
            by id; id -1 and minus infinity where the store has fewer than k items.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def describe(self, num_items: int | None = None) -> str:
        """Return one line: the kind of the store, why it was chosen, and its settings.

        If given, the line shows ``num_items`` instead of the current number.
        """


def unit_vectors(name: str, given: Array, owner: str) -> Array:
    """Return vectors ``(n, D)`` as contiguous float32; refuse them unless all have unit length.

    ``name`` is the argument and ``owner`` the store, for messages.
    """
    vectors = np.ascontiguousarray(given, dtype=np.float32)
    # The sum of squares is not finite if any entry is not.
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    wrong = np.flatnonzero(~(np.abs(lengths - 1) <= TOLERANCE))
    if len(wrong):
        raise ValueError(
            f"{name} must be finite and have unit length for {owner}; row {wrong[0]} has length "
            f"{lengths[wrong[0]]:g}. Divide each by its length, and leave out what the network "
            "could not embed."
        )
    return vectors


def refuse_known(known: Array, owner: str) -> None:
    """Refuse ids that are in the store already."""
    if len(known):
        raise ValueError(
            f"ids must be new to this {owner}; {known[0]} is in it already"
            f"{f' and {len(known) - 1:,} more' if len(known) > 1 else ''}. "
            "Leave it out."
        )


def best_first(ids: Array, similarities: Array, k: int) -> tuple[Array, Array]:
    """Sort the results ``(q, m)`` of a search: most similar first, then by id; pad to ``(q, k)``.

    Negative ids mean that nothing was found; they become -1 with similarity minus infinity.

    Raises:
        DamagedIndexError: a similarity is none that two vectors of unit length can have.
    """
    is_wrong = (ids >= 0) & ~(np.abs(similarities) <= MOST + ROUNDING)
    if is_wrong.any():
        id, similarity = ids[is_wrong][0], similarities[is_wrong][0]
        why = f"item {id} has a similarity of {similarity:g}, which must lie in -1..1"
        raise damaged("the store", why)
    # Rounding can carry a product of unit vectors above one.
    similarities = np.where(ids < 0, -np.inf, np.clip(similarities, -1, 1))
    order = np.lexsort((ids, -similarities), axis=-1)
    ids, similarities = (np.take_along_axis(each, order, 1) for each in (ids, similarities))
    if ids.shape[1] < k:
        room = ((0, 0), (0, k - ids.shape[1]))
        ids = np.pad(ids, room, constant_values=-1)
        similarities = np.pad(similarities, room, constant_values=-np.inf)
    return ids.astype(np.int64), similarities.astype(np.float32)
