"""Vectors in a Milvus server, or in a file by Milvus Lite; pymilvus is imported only here.

Dimensions: n items, q queries, D embedding size.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import count
from weiss.catalogue.stores import best_first, item_ids, new_items, refuse_known, unit_vectors

MILVUS = "milvus:"
"""Prefix of the address of a Milvus store."""
ITEMS_AT_ONCE, MOST_BYTES = 4_000, 16_000_000
"""Items in a request, and bytes: servers refuse larger requests."""
QUERIES_AT_ONCE = 256
MOST_FOUND = 16_384
"""The most neighbours that a server returns for a query."""
LINKS, CONSTRUCTION, CANDIDATES = 32, 80, 128
"""The HNSW graph: M, efConstruction, ef."""


class MilvusStore:
    """Vectors of unit length in a Milvus collection.

    Added items are found at once (consistency level ``Strong``). The index is a graph (HNSW),
    which needs no training and can grow.

    Args:
        address: ``host:19530``, ``http://host:19530``, or a file name that ends in ``.db`` for
            Milvus Lite, which one process at a time can open.
        collection: any name; see `collection_name`.
        dimension: D.
        create: make the collection if it does not exist.
        timeout: seconds to wait for the first answer of the server.

    Raises:
        ImportError: pymilvus is not installed.
        ConnectionError: no server answers at the address.
        ValueError: the address is wrong, or the collection is of another kind.
    """

    def __init__(
        self,
        address: str,
        collection: str,
        dimension: int,
        *,
        create: bool = True,
        timeout: float = 5.0,
    ) -> None:
        self.dimension = count("dimension", dimension, "MilvusStore")
        self.collection = collection_name(collection)
        self.address = _normal(address)
        self._fresh = 0
        self._client = _connected(self.address, timeout)
        try:
            self._open(create)
        except BaseException:
            self._client.close()
            raise

    def __len__(self) -> int:
        """Return the number of items."""
        with _as_connection_error(self.address):
            rows = self._client.query(self.collection, filter="", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def add(self, ids: Array, vectors: Array) -> None:
        """Add vectors ``(n, D)`` under ids ``(n,)``; if it has one of them, none is added."""
        ids, vectors = new_items(ids, vectors, self.dimension, "MilvusStore")
        refuse_known(self._known(ids), "MilvusStore")
        batch = max(1, min(ITEMS_AT_ONCE, MOST_BYTES // (4 * self.dimension)))
        with _as_connection_error(self.address):
            for start in range(0, len(ids), batch):
                part = slice(start, start + batch)
                rows = zip(ids[part].tolist(), vectors[part], strict=True)
                self._client.insert(
                    self.collection, [{"id": number, "vector": vector} for number, vector in rows]
                )
            self._fresh += len(ids)
            # A server flushes by itself. Milvus Lite flushes late, and is slow until then.
            if _is_file(self.address) and self._fresh >= ITEMS_AT_ONCE:
                self._client.flush(self.collection)
                self._fresh = 0

    def remove(self, ids: Array) -> int:
        """Remove items and return how many of ``ids`` ``(n,)`` were there."""
        known = self._known(item_ids(ids, "MilvusStore"))
        with _as_connection_error(self.address):
            for start in range(0, len(known), ITEMS_AT_ONCE):
                self._client.delete(
                    self.collection, ids=known[start : start + ITEMS_AT_ONCE].tolist()
                )
        return len(known)

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query ``(q, D)``; see `Store.search`."""
        queries = unit_vectors("queries", queries, self.dimension, "MilvusStore")
        k = count("k", k, "MilvusStore.search")
        if k > MOST_FOUND:
            raise ValueError(
                f"k must be at most {MOST_FOUND:,} for MilvusStore; got "
                f"{k:,}. Ask for fewer, or use the faiss store."
            )
        ids = np.full((len(queries), k), -1, np.int64)
        similarities = np.full((len(queries), k), -np.inf, np.float32)
        settings = {"params": {"ef": max(CANDIDATES, k)}}
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            with _as_connection_error(self.address):
                answers = self._client.search(
                    self.collection,
                    data=queries[start : start + QUERIES_AT_ONCE],
                    limit=k,
                    search_params=settings,
                    output_fields=["id"],  # without it some versions send the vectors back
                )
            for row, hits in enumerate(answers, start):
                ids[row, : len(hits)] = [hit["id"] for hit in hits]
                similarities[row, : len(hits)] = [hit["distance"] for hit in hits]
        return best_first(ids, similarities, k)

    def describe(self, num_items: int | None = None) -> str:
        """Return one line: the kind of the store, why it was chosen, and its settings."""
        count = len(self) if num_items is None else num_items
        return (
            f"Milvus at {public_address(self.address)}, collection {self.collection}: {count:,} "
            f"items of {self.dimension} dimensions in a graph (HNSW, {LINKS} links an item, "
            f"{CANDIDATES} candidates a search); as was asked for"
        )

    def drop(self) -> None:
        """Delete the collection; the store cannot be used after that."""
        with _as_connection_error(self.address):
            self._client.drop_collection(self.collection)
        self.close()

    def close(self) -> None:
        """Close the connection; the collection stays."""
        self._client.close()

    def _open(self, create: bool) -> None:
        """Make the collection, or check its fields; then load it."""
        with _as_connection_error(self.address):
            if not self._client.has_collection(self.collection):
                if not create:
                    raise ValueError(
                        f"the Milvus collection {self.collection} must exist; it does not. Check "
                        "the address, or make the index again."
                    )
                self._create()
            fields = self._client.describe_collection(self.collection)["fields"]
            found = {field["name"]: field.get("params", {}).get("dim") for field in fields}
            if set(found) != {"id", "vector"} or int(found["vector"]) != self.dimension:
                raise ValueError(
                    f"the Milvus collection {self.collection} must hold ids and vectors of "
                    f"{self.dimension} dimensions; it holds {found}. It belongs to another index: "
                    "use another name, or drop it."
                )
            if self._client.get_load_state(self.collection)["state"].name != "Loaded":
                self._client.load_collection(self.collection)

    def _create(self) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.dimension)
        index = self._client.prepare_index_params()
        # The inner product of unit vectors is their cosine.
        index.add_index(
            "vector",
            index_type="HNSW",
            metric_type="IP",
            params={"M": LINKS, "efConstruction": CONSTRUCTION},
        )
        self._client.create_collection(
            self.collection, schema=schema, index_params=index, consistency_level="Strong"
        )

    def _known(self, ids: Array) -> Array:
        """Return which of the ids ``(n,)`` are in the collection."""
        if not len(ids) or not len(self):
            return ids[:0]
        known: list[int] = []
        with _as_connection_error(self.address):
            for start in range(0, len(ids), ITEMS_AT_ONCE):
                some = ids[start : start + ITEMS_AT_ONCE].tolist()
                rows = self._client.get(self.collection, ids=some, output_fields=["id"])
                known += [row["id"] for row in rows]
        return ids[np.isin(ids, known)]


def collection_name(name: str) -> str:
    """Return a name Milvus accepts: letters, digits and underscores, a letter first.

    A name that had to be changed ends in a part of its checksum, so that names stay different.

    Example:
        >>> collection_name("shoes"), collection_name("summer shoes")
        ('shoes', 'summer_shoes_2e6895')
    """
    made = re.sub(r"[^A-Za-z0-9_]", "_", name)[:200]
    if not made or not made[0].isalpha():
        made = f"weiss_{made}"
    if made == name:
        return name
    return f"{made}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def refuse_address(address: str) -> None:
    """Refuse an address that must not stand in a manifest: with a password, or a file elsewhere.

    Args:
        address: ``milvus:`` and a server, or a file below the index folder.
    """
    where = address.removeprefix(MILVUS)
    if "@" in where:
        raise ValueError(
            "the address of Milvus must hold neither name nor password, because the index keeps "
            "it; it holds an @. Give host:port alone."
        )
    parts = PurePosixPath(where).parts
    leads_out = ".." in parts or where.startswith(("/", "~")) or set("\\:") & set(where)
    if where.endswith(".db") and leads_out:
        raise ValueError(
            "the file of Milvus must lie in the index folder, so that both move together; "
            f"{PurePosixPath(where).name} does not. Give a name alone: {MILVUS}items.db"
        )


def _is_file(address: str) -> bool:
    return address.endswith(".db")


def public_address(address: str) -> str:
    """Return an address without the folder of a file, and without a password."""
    return Path(address).name if _is_file(address) else re.sub(r"//.*@", "//", address)


def _normal(address: str) -> str:
    """Return an address as pymilvus wants it."""
    if re.fullmatch(r"https?://[^/\s@]+/?", address):
        return address
    if _is_file(address):
        path = Path(address).absolute()
        if path.is_file():
            raise ValueError(
                f"{path.name} must be a Milvus Lite database, which is a folder; it is a file. "
                "It is damaged, or belongs to another program: give another name."
            )
        if not path.parent.is_dir():
            raise ValueError(
                f"the folder of {path.name} must exist; it does not. Make it, or give another name."
            )
        return str(path)
    if re.fullmatch(r"[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+", address):
        return f"http://{address}"
    got = "one with a password" if "@" in address else repr(address)
    raise ValueError(
        f"the address of Milvus must be host:port, http://host:port or a file name that ends in "
        f".db; got {got}. For example localhost:19530."
    )


def _connected(address: str, timeout: float) -> Any:
    """Return a client; raise an error that names the reason if there is none."""
    try:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException
    except ImportError as error:
        raise ImportError(
            f"pymilvus must be installed for the Milvus store; importing it failed ({error}). "
            "Install it: pip install 'weiss[milvus]'"
        ) from error
    try:
        with _quietly():
            return MilvusClient(address, timeout=timeout)
    except MilvusException as error:
        if _is_file(address):
            raise ValueError(
                f"{public_address(address)} must be a Milvus Lite database that no other program "
                "has open; it could not be opened. Close that program. If there is none, the "
                "database is damaged: make the index again."
            ) from error
        raise ConnectionError(
            f"a Milvus server must answer at {public_address(address)}; none did within "
            f"{timeout:g} s ({error.message}). Start it, or check the address."
        ) from error


@contextmanager
def _as_connection_error(address: str) -> Iterator[None]:
    """Raise errors of Milvus as ConnectionError."""
    from pymilvus.exceptions import MilvusException

    try:
        with _quietly():
            yield
    except MilvusException as error:
        raise ConnectionError(
            f"Milvus at {public_address(address)} must answer; it refused: {error.message}. Check "
            "that it runs and is not full."
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the libraries from printing the traceback of an error that they also raise."""
    names = ("pymilvus.decorators", "pymilvus.client.connection_manager")
    loggers = [logging.getLogger(name) for name in (*names, "milvus_lite.server_manager")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was
