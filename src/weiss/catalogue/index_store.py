"""The store of an index: how it is opened, made, updated and dropped, whatever its kind."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import Manifest, collection_line
from weiss.catalogue.store_table import STORES, store_at
from weiss.catalogue.stores import VectorStore


def store_address(home: Path, address: str, kind: str) -> str:
    """Check ``--store`` and ``--kind``; return the address in the form that the manifest keeps."""
    store = store_at(address)
    if store is None:
        raise ValueError(
            f"--store must be {' or '.join(each.form for each in STORES)}; got {address!r}. For "
            f"example: {', '.join(each.example for each in STORES)}."
        )
    return store.checked_address(address, home, kind)


def open_store(index: IndexFolder, manifest: Manifest, *, to_change: bool = False) -> VectorStore:
    """Open the store of an index, a file read-only or to change it; warn about a server."""
    kind = _kind(manifest.store["address"])
    if server := kind.elsewhere(manifest.store["address"]):
        warnings.warn(
            f"the items of {manifest.name} are outside of the index folder, in {server}. It is "
            "contacted now.",
            stacklevel=2,
        )
    return kind.open(index.folder, manifest.store, manifest.embedding_size, to_change=to_change)


def drop_store(index: IndexFolder, manifest: Manifest) -> None:
    """Delete what an index that was replaced has in a database."""
    if not _kind(manifest.store["address"]).suffix:
        open_store(index, manifest).drop()


def keep_in_store(index: IndexFolder, manifest: Manifest, ids: Array) -> None:
    """Delete from a database what a killed change has left of items other than ``ids``."""
    if not _kind(manifest.store["address"]).suffix:
        store = open_store(index, manifest)
        store.keep_only(ids)
        store.close()


def drop_orphans(index: IndexFolder, address: str = "") -> None:
    """Delete collections that a killed change has left; call it before `IndexFolder.sweep`.

    Of the servers in the note only the one that is used anyway, ``address``, is contacted.
    """
    manifest, used = index.readable_manifest(), ""
    if manifest is None and index.exists():
        return  # damaged
    if manifest is not None:
        used = collection_line(manifest.store, manifest.embedding_size)
        address = address or manifest.store["address"]
    for line in index.noted() - {used}:
        found = re.fullmatch(r"(weiss_[0-9a-f]{8}) ([0-9]{1,6}) (\S+)", line)
        kind = store_at(found[3]) if found else None
        if found is None or kind is None or (kind.elsewhere(found[3]) and found[3] != address):
            continue
        facts = {"address": found[3], "collection": found[1]}
        try:
            kind.refuse(facts)
            left = kind.open(index.folder, facts, int(found[2]))
        except (ValueError, ConnectionError, ImportError):
            continue  # it does not exist, or the server does not answer
        left.drop()


def update_store(
    index: IndexFolder, manifest: Manifest, ids: Array, vectors: Array, before: Array | None
) -> tuple[dict[str, Any], Callable[[], object]]:
    """Make the store of a new index, or update that of an old one.

    A store in the index folder is made anew when items are removed, because faiss (the centres of
    lists, the graph) and Milvus Lite keep traces of them. On a server they are deleted.

    The manifest has the new items; its ``store`` and ``removed`` are the old ones, or the address
    alone for a new index. ``ids`` ``(n,)`` and ``vectors`` ``(n, D)`` are of all items. ``before``
    are the ids of the old index; None for a new one.

    Returns:
        What the manifest keeps about it; and what to call after the switch: it removes items from a
        database, which readers of the old manifest still search.
    """
    facts, kind = dict(manifest.store), _kind(manifest.store["address"])
    is_new = before is None
    after_switch: Callable[[], object] = lambda: None  # noqa: E731
    if before is not None and not kind.elsewhere(facts["address"]):
        is_new = manifest.removed is not None or not np.isin(before, ids).all()
        after_switch = partial(drop_store, index, manifest) if is_new else after_switch
    if kind.suffix:
        facts["file"] = index.new_name("store", kind.suffix)
    elif is_new:
        facts["collection"] = index.new_name("weiss").replace("-", "_")
        index.note(collection_line(facts, manifest.embedding_size))
    if is_new:
        store = kind.make(index.folder, facts, ids, vectors, manifest.settings["kind"])
    else:
        assert before is not None
        store = open_store(index, manifest, to_change=True)
        store.keep_only(before)  # a change that was killed may have left others
        new = ~np.isin(ids, before)
        store.add(ids[new], np.asarray(vectors[new]))
        after_switch = partial(store.keep_only, ids)
    if kind.suffix:
        store.save(index.path(facts["file"]))
    return {**facts, "says": store.describe(len(ids))}, after_switch


def _kind(address: str) -> type[VectorStore]:
    """Return the kind of store of a manifest, which was checked when it was read."""
    kind = store_at(address)
    assert kind is not None
    return kind
