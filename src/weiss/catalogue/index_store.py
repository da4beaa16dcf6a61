"""The store of an index: its address, and how it is opened, made, updated and dropped.

The address is ``faiss``, for a file in the index folder, or ``milvus:`` and a server or a database
file in the index folder.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import one_of
from weiss.catalogue.faiss_store import KINDS, FaissStore
from weiss.catalogue.index_folder import IndexFolder, Manifest, collection_line
from weiss.catalogue.milvus_store import MILVUS, MilvusStore, public_address, refuse_address
from weiss.catalogue.stores import Store


def store_address(index: IndexFolder, address: str, kind: str) -> str:
    """Check the address that the user gave; return it in the form that the manifest keeps.

    A Milvus file lies in the index folder, and a bare name means a file there.
    """
    one_of("--kind", kind, KINDS, "weiss index")
    if address == "faiss":
        return address
    where = address.removeprefix(MILVUS)
    if not where or where == address:
        raise ValueError(
            f"--store must be faiss or milvus:ADDRESS; got {address!r}. For example: "
            "milvus:localhost:19530, or milvus:items.db for a file in the index folder."
        )
    if kind != "auto":
        raise ValueError(f"--kind is for faiss; leave it out for Milvus. Got {kind!r}.")
    if where.endswith(".db") and Path(where).name != where:
        home = index.folder.resolve()
        path = Path(where).resolve()
        address = MILVUS + (path.relative_to(home) if home in path.parents else path).as_posix()
    refuse_address(address)
    return address


def open_store(index: IndexFolder, manifest: Manifest) -> Store:
    """Open the store of an index, a faiss file read-only; warn about a server elsewhere."""
    where, size = manifest.store, int(manifest.model["embedding_size"])
    address = where["address"]
    if address == "faiss":
        return FaissStore.load(index.path(where["file"]), dimension=size, mapped=True)
    if not address.endswith(".db"):
        server = public_address(address.removeprefix(MILVUS))
        warnings.warn(
            f"the items of {manifest.name} are outside of the index folder, in Milvus at {server}. "
            "It is contacted now.",
            stacklevel=2,
        )
    return _milvus(index, address, where.get("collection", "index"), size)


def drop_store(index: IndexFolder, manifest: Manifest) -> None:
    """Delete the Milvus collection of an index that was replaced."""
    if manifest.store["address"] != "faiss":
        store = open_store(index, manifest)
        assert isinstance(store, MilvusStore)
        store.drop()


def drop_orphans(index: IndexFolder, address: str = "") -> None:
    """Delete collections that a killed change has left; call it before `IndexFolder.sweep`.

    Of the servers in the note only the one that is used anyway, ``address``, is contacted.
    """
    manifest, used = index.readable_manifest(), ""
    if manifest is None and index.exists():
        return  # damaged
    if manifest is not None:
        used = collection_line(manifest.store, int(manifest.model["embedding_size"]))
        address = address or manifest.store["address"]
    for line in index.noted() - {used}:
        found = re.fullmatch(rf"(weiss_[0-9a-f]{{8}}) ([0-9]{{1,6}}) ({MILVUS}\S+)", line)
        if found is None or not (found[3].endswith(".db") or found[3] == address):
            continue
        try:
            refuse_address(found[3])
            left = _milvus(index, found[3], found[1], int(found[2]))
        except (ValueError, ConnectionError, ImportError):
            continue  # it does not exist, or the server does not answer
        left.drop()


@dataclass(frozen=True)
class UpdatedStore:
    """A store that holds the items of a new manifest.

    Attributes:
        facts: what the manifest keeps about it.
        after_switch: removes items from a database that readers of the old manifest still search;
            to be called after the switch.
    """

    facts: dict[str, Any]
    after_switch: Callable[[], object] = lambda: None


def update_store(
    index: IndexFolder, manifest: Manifest, ids: Array, vectors: Array, removed: Array | None
) -> UpdatedStore:
    """Make the store of a new index, or update that of an old one.

    Args:
        index: the index folder.
        manifest: the new items; its ``store`` is the old one, or the address alone for a new index.
        ids: int64 ``(n,)``, all items.
        vectors: float32 ``(n, D)``.
        removed: the ids that this change removes; None if it adds the last segment.
    """
    old, address = manifest.store, manifest.store["address"]
    is_new = "says" not in old
    if address == "faiss":
        if is_new:
            made = FaissStore.build(ids, vectors, kind=manifest.settings["kind"])
        else:
            made = FaissStore.load(index.path(old["file"]))
            _apply(made, manifest, ids, vectors, removed)
        name = index.new_name("store")
        made.save(index.path(name))
        return UpdatedStore({"address": address, "file": name, "says": made.describe()})
    if is_new:
        collection = index.new_name("weiss").replace("-", "_")
        size = int(manifest.model["embedding_size"])
        facts = {"address": address, "collection": collection}
        index.note(collection_line(facts, size))
        store = _milvus(index, address, collection, size, create=True)
        store.add(ids, vectors)
        return UpdatedStore({**facts, "says": store.describe()})
    opened = open_store(index, manifest)
    assert isinstance(opened, MilvusStore)
    if removed is None:
        _apply(opened, manifest, ids, vectors, None)
        return UpdatedStore({**old, "says": opened.describe()})
    gone = removed
    facts = {**old, "says": opened.describe(len(ids))}
    return UpdatedStore(facts, lambda: opened.remove(gone))


def _apply(
    store: Store, manifest: Manifest, ids: Array, vectors: Array, removed: Array | None
) -> None:
    if removed is not None:
        store.remove(removed)
        return
    new = ids >= manifest.segments[-1].first
    # A change that failed before its manifest may have left these ids in a database.
    store.remove(ids[new])
    store.add(ids[new], np.asarray(vectors[new]))


def _milvus(
    index: IndexFolder, address: str, collection: str, dimension: int, *, create: bool = False
) -> MilvusStore:
    where = address.removeprefix(MILVUS)
    if where.endswith(".db"):
        home = index.folder.resolve()
        path = (home / where).resolve()
        if home not in path.parents:
            raise ValueError(
                f"{where} must lie in the index folder; it is a link that leads out of it"
            )
        where = str(path)
    return MilvusStore(where, collection, dimension, create=create)
