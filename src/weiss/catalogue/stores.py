"""Stores of vectors: what each of them can do, and the one that an address means.

A store holds vectors of unit length under ids and finds those with the largest cosine. Two are
there: faiss, in a file of the index folder, and Milvus, a database that runs by itself.

Dimensions: n items, q queries, D embedding size.
"""

from pathlib import Path, PurePosixPath
from typing import Protocol

from weiss._base.arrays import Array
from weiss.catalogue.faiss_store import FaissStore
from weiss.catalogue.milvus_store import MilvusStore

MILVUS = "milvus:"
"""What the address of a Milvus store begins with."""


class Store(Protocol):
    """Vectors under ids, searched by cosine similarity."""

    def add(self, ids: Array, vectors: Array) -> None:
        """Add items: ids int64 ``(n,)``, new to the store; vectors ``(n, D)`` of unit length."""

    def remove(self, ids: Array) -> int:
        """Remove items; return how many of the ids ``(n,)`` were there."""

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query.

        Args:
            queries: ``(q, D)`` of unit length.
            k: how many.

        Returns:
            ids int64 ``(q, k)`` and cosine similarities float32 ``(q, k)``, best first, equal ones
            by id; id -1 and minus infinity where the store has fewer than k items. Which of
            several equal items come last into the k is not said.
        """

    def __len__(self) -> int:
        """Return how many items there are."""

    def describe(self) -> str:
        """Say in one line what kind of store it is, why, and how it is set."""


def refuse_address(address: str) -> None:
    """Refuse an address that is not to be written down: with a password, or a file elsewhere.

    Args:
        address: as a manifest holds it: ``milvus:`` and a server, or a file below the index folder.
    """
    where = address.removeprefix(MILVUS)
    if "@" in where:
        raise ValueError(
            "the address of Milvus must hold neither name nor password, since it is written down "
            "in the index; it holds an @. Give host:port alone."
        )
    parts = PurePosixPath(where).parts
    leads_out = ".." in parts or where.startswith(("/", "~")) or set("\\:") & set(where)
    if where.endswith(".db") and leads_out:
        raise ValueError(
            "the file of Milvus must lie in the index folder, so that both move together; "
            f"{PurePosixPath(where).name} does not. Give a name alone: {MILVUS}items.db"
        )


def make_store(address: str, *, dimension: int, collection: str = "index") -> Store:
    """Make an empty store.

    Args:
        address: ``"faiss"``, or ``"milvus:"`` and where Milvus is: ``host:19530``,
            ``http://host:19530`` or a file name that ends in ``.db``.
        dimension: D.
        collection: the name of a Milvus collection, any words; not used by faiss.

    Raises:
        ValueError: no such address, or a collection of that name holds items already.
    """
    where = _milvus_address(address)
    if where is None:
        return FaissStore(dimension)
    store = MilvusStore(where, collection, dimension)
    if len(store):
        store.close()
        raise ValueError(
            f"the Milvus collection {store.collection} must be new or empty; it holds items "
            "already. Give the index another name, or drop the collection."
        )
    return store


def open_store(
    address: str, *, dimension: int, collection: str = "index", path: str | Path | None = None
) -> Store:
    """Open a store that is there already.

    Args:
        address: as for `make_store`.
        dimension: D, which must be the store's.
        collection: as it was called when it was made.
        path: the file of a faiss store; it is mapped and read only.

    Raises:
        ValueError: no such address, a damaged file, or vectors of another dimension.
    """
    where = _milvus_address(address)
    if where is not None:
        return MilvusStore(where, collection, dimension, create=False)
    if path is None:
        raise ValueError("path must be given for a faiss store; got None. Pass its file.")
    return FaissStore.load(path, dimension=dimension, mapped=True)


def _milvus_address(address: str) -> str | None:
    """Return what follows ``milvus:``, or None for faiss."""
    if address == "faiss":
        return None
    if address.startswith(MILVUS) and address != MILVUS:
        return address.removeprefix(MILVUS)
    raise ValueError(
        f"store must be 'faiss' or 'milvus:ADDRESS'; got {address!r}. For example: "
        "milvus:localhost:19530, or milvus:catalogue.db for a local file."
    )
