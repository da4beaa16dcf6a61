"""The store of an index: how it is opened, made, updated and dropped, whatever its kind."""

import re
import warnings
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.manifest import Manifest, collection_line
from weiss.catalogue.store_table import store_at
from weiss.catalogue.stores import VectorStore


def open_store(index: IndexFolder, manifest: Manifest, *, to_change: bool = False) -> VectorStore:
    """Open the store of an index, a file read-only or to change it; warn about a server."""
    kind = store_at(manifest.store["address"])
    if server := kind.elsewhere(manifest.store["address"]):
        warnings.warn(
            f"the items of {manifest.name} are outside of the index folder, in {server}. It is "
            "contacted now.",
            stacklevel=2,
        )
    return kind.open(index.folder, manifest.store, manifest.embedding_size, to_change=to_change)


def sweep(index: IndexFolder, *addresses: str) -> None:
    """Delete collections and files that the manifest no longer names; the caller holds the lock.

    Called before a change, because one before may have been killed, and after it. Of the servers in
    the note only those that are used anyway are contacted: that of the index, and ``addresses``.
    """
    manifest, used = index.readable_manifest(), ""
    if manifest is not None:
        used = collection_line(manifest.store, manifest.embedding_size)
        addresses = (*addresses, manifest.store["address"])
    elif index.exists():
        return  # damaged: it is unknown what belongs to it
    for line in index.noted() - {used}:
        found = re.fullmatch(r"(weiss_[0-9a-f]{8}) ([0-9]{1,6}) (\S+)", line)
        if found is None:
            continue
        collection, dimension, address = found.groups()
        try:
            kind = store_at(address)
            kind.refuse(address)
            if not kind.suffix and (address in addresses or not kind.elsewhere(address)):
                facts = {"address": address, "collection": collection}
                kind.open(index.folder, facts, int(dimension)).drop()
        except (ValueError, ImportError):
            continue  # it does not exist
    index.sweep(manifest)


def update_store(
    index: IndexFolder, manifest: Manifest, ids: Array, vectors: Array, before: Array | None
) -> tuple[dict[str, Any], VectorStore]:
    """Make the store of a new index, or update that of an old one.

    A store in the index folder is made anew when items are removed, because faiss (the centres of
    lists, the graph) and Milvus Lite keep traces of them. On a server they are deleted.

    The manifest has the new items; its ``store`` and ``removed`` are the old ones, or the address
    alone for a new index. ``ids`` ``(n,)`` and ``vectors`` ``(n, D)`` are of all items. ``before``
    are the ids of the old index; None for a new one.

    Returns:
        What the manifest keeps about it; and the store, which still has items that are removed if
        it is on a server: readers of the old manifest search it until the switch.
    """
    facts, kind = dict(manifest.store), store_at(manifest.store["address"])
    known = ids[:0] if before is None else before
    loses = manifest.removed is not None or not np.isin(known, ids).all()
    is_new = before is None or (loses and not kind.elsewhere(facts["address"]))
    if kind.suffix:
        facts["file"] = index.new_name("store", kind.suffix)
    elif is_new:
        facts["collection"] = index.new_name("weiss").replace("-", "_")
        index.note(collection_line(facts, manifest.embedding_size))
    if is_new:
        # The store gets a checksum: damage must not get it too. New segments have none yet.
        parts = [segment.vectors for segment in manifest.segments]
        index.compare(manifest, [name for name in parts if name in manifest.files])
        size, faiss_kind = manifest.embedding_size, manifest.settings["kind"]
        store = kind.make(index.folder, facts, size, faiss_kind)
        store.add(ids, vectors)
    else:
        store = open_store(index, manifest, to_change=True)
        store.keep_only(known)  # a change that was killed may have left others
        new = ~np.isin(ids, known)
        store.add(ids[new], np.asarray(vectors[new]))
    if kind.suffix:
        store.save(index.path(facts["file"]))
    return {**facts, "says": store.describe(len(ids))}, store
