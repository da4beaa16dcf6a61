"""Vectors in a Milvus server, or in a file by Milvus Lite; pymilvus is imported only here.

Dimensions: n items, q queries, D embedding size.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.stores import VectorStore, best_first, refuse_known, unit_vectors

MILVUS = "milvus:"
"""Prefix of the address of a Milvus store."""
ITEMS_AT_ONCE, MOST_BYTES = 4_000, 16_000_000
"""Items in a request, and bytes: servers refuse larger requests."""
QUERIES_AT_ONCE = 256
MOST_FOUND = 16_384
"""The most neighbours that a server returns for a query."""
LINKS, CONSTRUCTION, CANDIDATES = 32, 80, 128
"""The HNSW graph: M, efConstruction, ef."""


class MilvusStore(VectorStore):
    """Vectors of unit length in a Milvus collection.

    Added items are found at once (consistency level ``Strong``). The index is a graph (HNSW),
    which needs no training and can grow.

    The address is ``host:19530``, ``http://host:19530``, or a file name that ends in ``.db`` for
    Milvus Lite, which one process at a time can open. ``create`` makes the collection if it does
    not exist. ``timeout`` is how many seconds to wait for the first answer of the server.

    Raises:
        ImportError: pymilvus is not installed.
        ConnectionError: no server answers at the address.
        ValueError: the address is wrong, or the collection is of another kind.
    """

    suffix, pattern, form = "", f"{MILVUS}.+", f"{MILVUS}ADDRESS"
    example = f"{MILVUS}localhost:19530, or {MILVUS}items.db for a file in the index folder"

    def __init__(
        self,
        address: str,
        collection: str,
        dimension: int,
        *,
        create: bool = True,
        timeout: float = 5.0,
    ) -> None:
        self.dimension, self.collection = dimension, collection
        self.address = _normal(address)
        self._fresh = 0
        self._client = _connected(self.address, timeout)
        try:
            self._open(create)
        except BaseException:
            self._client.close()
            raise

    @classmethod
    def checked_address(cls, address: str, home: Path, kind: str) -> str:
        """Return the address, that of a file from the index folder on."""
        if kind != "auto":
            raise ValueError(f"--kind is for faiss; leave it out for Milvus. Got {kind!r}.")
        where = address.removeprefix(MILVUS)
        if _is_file(where) and Path(where).name != where:
            home, path = home.resolve(), Path(where).resolve()
            address = MILVUS + (path.relative_to(home) if home in path.parents else path).as_posix()
        cls.refuse(address)
        return address

    @classmethod
    def refuse(cls, address: str) -> None:
        """Refuse an address with a password, or of a file outside of the index folder."""
        where = address.removeprefix(MILVUS)
        if "@" in where:
            raise ValueError(
                "the address of Milvus must hold neither name nor password, because the index "
                "keeps it; it holds an @. Give host:port alone."
            )
        path = PurePosixPath(where)
        leads_out = ".." in path.parts or where.startswith(("/", "~")) or set("\\:") & set(where)
        if _is_file(where) and leads_out:
            raise ValueError(
                "the file of Milvus must lie in the index folder, so that both move together; "
                f"{path.name} does not. Give a name alone: {MILVUS}items.db"
            )

    @classmethod
    def elsewhere(cls, address: str) -> str:
        """Return the server; empty for a file."""
        where = address.removeprefix(MILVUS)
        return "" if _is_file(where) else f"Milvus at {public_address(where)}"

    @classmethod
    def make(cls, home: Path, facts: Mapping[str, Any], dimension: int, kind: str) -> "MilvusStore":
        """Make the collection of a new index."""
        return cls(_inside(facts["address"], home), facts["collection"], dimension)

    @classmethod
    def open(
        cls, home: Path, facts: Mapping[str, Any], dimension: int, *, to_change: bool = False
    ) -> "MilvusStore":
        """Open the collection of an index."""
        return cls(_inside(facts["address"], home), facts["collection"], dimension, create=False)

    def __len__(self) -> int:
        """Return the number of items."""
        with _as_connection_error(self.address):
            rows = self._client.query(self.collection, filter="", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def add(self, ids: Array, vectors: Array) -> None:
        """Add vectors ``(n, D)`` under ids ``(n,)``; if it has one of them, none is added."""
        vectors = unit_vectors("vectors", vectors, "MilvusStore")
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

    def keep_only(self, ids: Array) -> None:
        """Remove all items but those of ``ids`` ``(n,)``, sorted, which the collection has."""
        if len(self) == len(ids):
            return
        bounds = [0, *ids[ITEMS_AT_ONCE::ITEMS_AT_ONCE].tolist(), 2**63 - 1]
        for low, high in pairwise(bounds):
            condition = f"id >= {low} and id < {high}"
            is_more = True
            while is_more:  # at most ITEMS_AT_ONCE stay: a full answer has others
                with _as_connection_error(self.address):
                    rows = self._client.query(
                        self.collection, condition, output_fields=["id"], limit=MOST_FOUND
                    )
                    found = np.array([row["id"] for row in rows], dtype=np.int64)
                    others = found[~np.isin(found, ids)].tolist()
                    for start in range(0, len(others), ITEMS_AT_ONCE):
                        part = others[start : start + ITEMS_AT_ONCE]
                        self._client.delete(self.collection, ids=part)
                is_more = len(rows) == MOST_FOUND

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query ``(q, D)``; see `VectorStore.search`."""
        queries = unit_vectors("queries", queries, "MilvusStore")
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


def _inside(address: str, home: Path) -> str:
    """Return the address for pymilvus; that of a file is its path, in the index folder."""
    where = address.removeprefix(MILVUS)
    if not _is_file(where):
        return where
    home = home.resolve()
    path = (home / where).resolve()
    if home not in path.parents:
        raise ValueError(f"{where} must lie in the index folder; it is a link that leads out of it")
    return str(path)


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
