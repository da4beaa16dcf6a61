"""The second store: a collection in Milvus, or in a file by Milvus Lite (pymilvus only here).

Dimensions: n items, q queries, D embedding size.
"""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import count
from weiss.catalogue.vectors import best_first, item_ids, new_items, refuse_known, unit_vectors

BATCH = 4_000
"""Items of a request; fewer if they are more than `MOST_BYTES`, which servers refuse."""
MOST_BYTES = 16_000_000
QUERIES = 256
MOST_FOUND = 16_384
"""Neighbours of a query that a server gives at most."""
LINKS, CARE, CANDIDATES = 32, 80, 128
"""The graph: links of an item, candidates when one is linked, and when one is looked for."""
PORT = 19530


class MilvusStore:
    """Vectors of unit length in a Milvus collection, which stays when this object goes.

    What was added is found at once (consistency level ``Strong``). The index is a graph (HNSW),
    which needs no training and grows.

    Args:
        address: ``host:19530``, ``http://host:19530``, or a file name that ends in ``.db`` for
            Milvus Lite, which lets one process in at a time.
        collection: a name, any words; see `collection_name`.
        dimension: D.
        create: make the collection if it is not there.
        patience: seconds to wait for the server's first answer.

    Raises:
        ImportError: pymilvus is not installed.
        ConnectionError: nobody answers at the address.
        ValueError: no such address or file, or the collection holds something else.
    """

    def __init__(
        self,
        address: str,
        collection: str,
        dimension: int,
        *,
        create: bool = True,
        patience: float = 5.0,
    ) -> None:
        self.dimension = count("dimension", dimension, "MilvusStore")
        self.collection = collection_name(collection)
        self.address = _normal(address)
        self._fresh = 0
        self._client = _connected(self.address, patience)
        try:
            self._open(create)
        except BaseException:
            self._client.close()
            raise

    def __len__(self) -> int:
        """Return how many items there are."""
        with _in_words(self.address):
            rows = self._client.query(self.collection, filter="", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def add(self, ids: Array, vectors: Array) -> None:
        """Add items; an id that is there already is refused, and then none is added.

        Args:
            ids: int64 ``(n,)``.
            vectors: float32 ``(n, D)`` of unit length.
        """
        ids, vectors = new_items(ids, vectors, self.dimension, "MilvusStore")
        refuse_known(self._known(ids), "MilvusStore")
        batch = max(1, min(BATCH, MOST_BYTES // (4 * self.dimension)))
        with _in_words(self.address):
            for start in range(0, len(ids), batch):
                part = slice(start, start + batch)
                rows = zip(ids[part].tolist(), vectors[part], strict=True)
                self._client.insert(
                    self.collection, [{"id": number, "vector": vector} for number, vector in rows]
                )
            self._fresh += len(ids)
            # A server writes what is new to segments by itself and is slowed by being told to.
            # Milvus Lite does it late, and compares what is new item by item until then.
            if _is_file(self.address) and self._fresh >= BATCH:
                self._client.flush(self.collection)
                self._fresh = 0

    def remove(self, ids: Array) -> int:
        """Remove items and return how many of ``ids`` ``(n,)`` were there."""
        known = self._known(item_ids(ids, "MilvusStore"))
        with _in_words(self.address):
            for start in range(0, len(known), BATCH):
                self._client.delete(self.collection, ids=known[start : start + BATCH].tolist())
        return len(known)

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """Find the k most similar items of each query ``(q, D)``; k is at most 16,384.

        Returns:
            ids int64 ``(q, k)`` and cosine similarities float32 ``(q, k)``, best first, equal ones
            by id; id -1 and minus infinity where the store has fewer than k items.
        """
        queries = unit_vectors("queries", queries, self.dimension, "MilvusStore")
        k = count("k", k, "MilvusStore.search")
        if k > MOST_FOUND:
            raise ValueError(
                f"k must be at most {MOST_FOUND:,} for MilvusStore, Milvus gives no more; got "
                f"{k:,}. Ask for fewer, or use the faiss store."
            )
        ids = np.full((len(queries), k), -1, np.int64)
        similarities = np.full((len(queries), k), -np.inf, np.float32)
        settings = {"params": {"ef": max(CANDIDATES, k)}}
        for start in range(0, len(queries), QUERIES):
            with _in_words(self.address):
                answers = self._client.search(
                    self.collection,
                    data=queries[start : start + QUERIES],
                    limit=k,
                    search_params=settings,
                    output_fields=["id"],  # without it some versions send the vectors back
                )
            for row, hits in enumerate(answers, start):
                ids[row, : len(hits)] = [hit["id"] for hit in hits]
                similarities[row, : len(hits)] = [hit["distance"] for hit in hits]
        return best_first(ids, similarities, k)

    def describe(self, num_items: int | None = None) -> str:
        """Say in one line what kind of store it is, why, and how it is set.

        Args:
            num_items: how many it will have when a change is done; by default how many it has.
        """
        count = len(self) if num_items is None else num_items
        return (
            f"Milvus at {shown(self.address)}, collection {self.collection}: {count:,} items "
            f"of {self.dimension} dimensions in a graph (HNSW, {LINKS} links an item, {CANDIDATES} "
            "candidates a search); as was asked for"
        )

    def drop(self) -> None:
        """Delete the collection and everything in it; the store can not be used after."""
        with _in_words(self.address):
            self._client.drop_collection(self.collection)
        self.close()

    def close(self) -> None:
        """Let go of the connection; the collection stays."""
        self._client.close()

    def _open(self, create: bool) -> None:
        """Make the collection, or check that it is what it should be, and load it."""
        with _in_words(self.address):
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
        # Of unit vectors the inner product is the cosine, and nobody divides by lengths again.
        index.add_index(
            "vector",
            index_type="HNSW",
            metric_type="IP",
            params={"M": LINKS, "efConstruction": CARE},
        )
        self._client.create_collection(
            self.collection, schema=schema, index_params=index, consistency_level="Strong"
        )

    def _known(self, ids: Array) -> Array:
        """Return which of the ids ``(n,)`` are in the collection."""
        if not len(ids) or not len(self):
            return ids[:0]
        known: list[int] = []
        with _in_words(self.address):
            for start in range(0, len(ids), BATCH):
                some = ids[start : start + BATCH].tolist()
                rows = self._client.get(self.collection, ids=some, output_fields=["id"])
                known += [row["id"] for row in rows]
        return ids[np.isin(ids, known)]


def collection_name(name: str) -> str:
    """Return a name Milvus accepts: letters, digits and underscores, a letter first.

    Names that had to be changed end in a few digits of their checksum: they stay different.

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


def _is_file(address: str) -> bool:
    return address.endswith(".db")


def shown(address: str) -> str:
    """Return an address without what is nobody's business: a file's folder, a password."""
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
                "It is damaged, or of another program: give another name."
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
        f".db; got {got}. For example localhost:{PORT}."
    )


def _connected(address: str, patience: float) -> Any:
    """Return a client, or say why there is none."""
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
            return MilvusClient(address, timeout=patience)
    except MilvusException as error:
        if _is_file(address):
            raise ValueError(
                f"{shown(address)} must be a Milvus Lite database that nobody else has open; "
                "it could not be opened. Close the program that uses it; if there is none it is "
                "damaged: make the index again."
            ) from error
        raise ConnectionError(
            f"a Milvus server must answer at {shown(address)}; none did within {patience:g} s "
            f"({error.message}). Start it, or check the address."
        ) from error


@contextmanager
def _in_words(address: str) -> Iterator[None]:
    """Say what Milvus says as an error every caller knows."""
    from pymilvus.exceptions import MilvusException

    try:
        with _quietly():
            yield
    except MilvusException as error:
        raise ConnectionError(
            f"Milvus at {shown(address)} must answer; it refused: {error.message}. Check "
            "that it runs and is not full."
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the libraries from printing the traceback of an error that is raised as well."""
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
