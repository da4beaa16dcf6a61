"""What an index has beside its items: the store that is searched, the map, the threshold.

They follow from the items and the model, and are made anew with every change.

Dimensions: n items, D embedding size.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import one_of
from weiss._base.files import replacing
from weiss.catalogue import tidying
from weiss.catalogue.calibration import Calibration, calibrate, enough
from weiss.catalogue.faiss_store import KINDS, FaissStore
from weiss.catalogue.folder import IndexFolder, Manifest
from weiss.catalogue.items import DamagedIndexError
from weiss.catalogue.mapping import make_map, write_map
from weiss.catalogue.milvus_store import MilvusStore
from weiss.catalogue.milvus_store import shown as shown_address
from weiss.catalogue.model_copy import mean_fields, trained_classes
from weiss.catalogue.segments import OpenSegment, alive_rows, all_vectors, open_segments
from weiss.catalogue.stores import MILVUS, Store, make_store, open_store, refuse_address
from weiss.runs import embed_runs
from weiss.runs.folder import Run


@dataclass(frozen=True)
class Derived:
    """An index ready to be switched to.

    Attributes:
        manifest: whole, with every file in it.
        num_classes: how many classes its items have.
        lines: what to say about store and threshold.
        after_switch: what must not happen earlier: to take items out of a store that whoever reads
            the old manifest searches too.
    """

    manifest: Manifest
    num_classes: int
    lines: tuple[str, ...]
    after_switch: Callable[[], None]


def derive(
    index: IndexFolder,
    manifest: Manifest,
    new_files: Sequence[str],
    *,
    run: Run | None,
    device: str,
    removed: Array | None = None,
) -> Derived:
    """Make store, map and threshold of an index.

    Args:
        index: the index folder.
        manifest: its items and model; what it says of store, map and threshold is the old state.
        new_files: files that it names and did not name before.
        run: the run of its model, if its data may be asked for a threshold.
        device: where these would be embedded.
        removed: ids that this change takes out.

    Returns:
        The whole of it; nothing that a reader sees has changed yet.
    """
    segments, gone = open_segments(index, manifest)
    ids, vectors = all_vectors(segments, gone)
    files = [*new_files]
    store, after = _stored(index, manifest, ids, vectors, removed)
    model = Run(index.path(manifest.model["folder"]))
    fields, field_names = mean_fields(model)
    map_name = index.new_name("map")
    with replacing(index.path(map_name)) as path:
        write_map(path, make_map(vectors, ids, fields, field_names))
    files += [map_name] + ([store["file"]] if "file" in store else [])
    names, labels = class_labels(segments, gone)
    threshold, why = _threshold(manifest, vectors, names, labels, model, run, device)
    whole = replace(manifest, store=store, map=map_name, threshold=threshold, threshold_why=why)
    described = manifest.files | index.described(files)
    kept = {*whole.named(), *files}
    whole = replace(whole, files={name: described[name] for name in described if name in kept})
    if threshold is None:
        line = f"no threshold: {why}"
    else:
        line = (
            f"a match from similarity {threshold['similarity']:.3f} on: "
            f"{100 * threshold['false_match_rate']:.1f} % of strangers reach it, "
            f"{100 * threshold['true_match_rate']:.1f} % of those whose class is there\n"
            f"  measured on {why}"
        )
    return Derived(whole, len(names), (store["says"], line), after)


def class_labels(segments: Sequence[OpenSegment], removed: Array) -> tuple[list[str], Array]:
    """Return the classes that have items, and of every item its class.

    Returns:
        C names in order; and int64 ``(n,)``, -1 where an item has no class or several.
    """
    alive = [alive_rows(segment, removed).tolist() for segment in segments]
    names = sorted(
        {
            segment.class_names()[label]
            for segment, rows in zip(segments, alive, strict=True)
            for label in set(chain.from_iterable(map(segment.labels().__getitem__, rows)))
        }
    )
    number = {name: at for at, name in enumerate(names)}
    one = []
    for segment, rows in zip(segments, alive, strict=True):
        labels, known = segment.labels(), segment.class_names()
        numbers = [number.get(name, -1) for name in known]
        one += [numbers[labels[row][0]] if len(labels[row]) == 1 else -1 for row in rows]
    return names, np.array(one, dtype=np.int64)


def kept_address(index: IndexFolder, address: str, kind: str) -> str:
    """Return the address of a store as the manifest keeps it, before anything is embedded.

    Args:
        index: the index folder. A Milvus file lies in it: a name alone means one there.
        address: what somebody asked for.
        kind: of a faiss index.

    Raises:
        ValueError: there is no such store or kind, or it must not be written down.
    """
    one_of("--kind", kind, KINDS, "weiss index")
    if address == "faiss":
        return address
    where = address.removeprefix(MILVUS)
    if where and where != address:
        if kind != "auto":
            raise ValueError(
                f"--kind is for faiss; Milvus chooses for itself. Leave it out; got {kind!r}."
            )
        if where.endswith(".db") and Path(where).name != where:
            home = index.folder.resolve()
            path = Path(where).resolve()
            address = MILVUS + (path.relative_to(home) if home in path.parents else path).as_posix()
        refuse_address(address)
        return address
    raise ValueError(
        f"--store must be faiss or milvus:ADDRESS; got {address!r}. For example: "
        "milvus:localhost:19530, or milvus:items.db for a file in the index folder."
    )


def store_of(index: IndexFolder, manifest: Manifest) -> Store:
    """Open the store of an index; one outside of its folder is named in a warning."""
    where = manifest.store
    if where["address"].startswith(MILVUS) and not where["address"].endswith(".db"):
        warnings.warn(
            f"the items of {manifest.name} are kept outside of the index folder: by Milvus at "
            f"{shown_address(where['address'].removeprefix(MILVUS))}, which is now asked.",
            stacklevel=2,
        )
    size = int(manifest.model["embedding_size"])
    file = where.get("file")
    return open_store(
        _from_here(index, where["address"]),
        dimension=size,
        collection=where.get("collection", "index"),
        path=None if file is None else index.path(file),
    )


def drop_store(index: IndexFolder, manifest: Manifest) -> None:
    """Remove what an index that was replaced has left outside of its folder."""
    if manifest.store["address"] != "faiss":
        store = store_of(index, manifest)
        assert isinstance(store, MilvusStore)
        store.drop()


def drop_orphans(index: IndexFolder, address: str = "") -> None:
    """Delete collections that a change which was killed has left; before `IndexFolder.sweep`.

    Args:
        index: the index folder.
        address: of a server that is asked anyway; others that the note names are left alone.
    """
    try:
        manifest = index.manifest() if index.exists() else None
    except DamagedIndexError:
        return
    used = ""
    if manifest is not None:
        used = tidying.collection_line(manifest.store, int(manifest.model["embedding_size"]))
        address = address or manifest.store["address"]
    for line in tidying.noted(index.folder) - {used}:
        found = re.fullmatch(rf"(weiss_[0-9a-f]{{8}}) ([0-9]{{1,6}}) ({MILVUS}\S+)", line)
        if found is None or not (found[3].endswith(".db") or found[3] == address):
            continue
        try:
            refuse_address(found[3])
            where = _from_here(index, found[3])
            left = open_store(where, dimension=int(found[2]), collection=found[1])
        except (ValueError, ConnectionError, ImportError):
            continue  # it is not there, or nobody answers
        assert isinstance(left, MilvusStore)
        left.drop()


def _stored(
    index: IndexFolder, manifest: Manifest, ids: Array, vectors: Array, removed: Array | None
) -> tuple[dict[str, Any], Callable[[], None]]:
    """Return what the manifest says of the store, and what is to be done after the switch."""
    old, address = manifest.store, manifest.store["address"]
    is_new = "says" not in old
    if address == "faiss":
        if is_new:
            made = FaissStore.build(ids, vectors, kind=manifest.settings["kind"])
        else:
            made = FaissStore.load(index.path(old["file"]))
            _update(made, manifest, ids, vectors, removed)
        name = index.new_name("store")
        made.save(index.path(name))
        return {"address": address, "file": name, "says": made.describe()}, lambda: None
    if is_new:
        collection = index.new_name("weiss").replace("-", "_")
        size = int(manifest.model["embedding_size"])
        said = {"address": address, "collection": collection}
        tidying.note(index.folder, tidying.collection_line(said, size))
        store = make_store(_from_here(index, address), dimension=size, collection=collection)
        store.add(ids, vectors)
        return {**said, "says": store.describe()}, lambda: None
    store = store_of(index, manifest)
    if removed is None:
        _update(store, manifest, ids, vectors, None)
        return {**old, "says": store.describe()}, lambda: None
    # The database is one for all: whoever searches the old index must find its items until then.
    gone = removed
    assert isinstance(store, MilvusStore)
    says = store.describe(len(ids))
    return {**old, "says": says}, lambda: _and_nothing(store.remove(gone))


def _update(
    store: Store, manifest: Manifest, ids: Array, vectors: Array, removed: Array | None
) -> None:
    """Bring a store from the items that were there to those that are."""
    if removed is not None:
        store.remove(removed)
        return
    new = ids >= manifest.segments[-1].first
    # A change that was broken off before its manifest may have left these in a database.
    store.remove(ids[new])
    store.add(ids[new], np.asarray(vectors[new]))


def _and_nothing(_: object) -> None:
    return None


def _from_here(index: IndexFolder, address: str) -> str:
    """Return an address as `open_store` takes it."""
    where = address.removeprefix(MILVUS)
    if address == "faiss" or not where.endswith(".db"):
        return address
    home = index.folder.resolve()
    path = (home / where).resolve()
    if home not in path.parents:
        raise ValueError(f"{where} must lie in the index folder; it is a link that leads out of it")
    return f"{MILVUS}{path}"


def _threshold(
    manifest: Manifest,
    vectors: Array,
    names: Sequence[str],
    labels: Array,
    model: Run,
    run: Run | None,
    device: str,
) -> tuple[dict[str, Any] | None, str]:
    """Return the threshold and what it rests on; or None, and why there is none."""
    rate = float(manifest.settings["false_match_rate"])
    trained = trained_classes(model)
    held_out = np.array([name not in trained for name in names], dtype=bool)
    lack = enough(labels, held_out)
    if not lack:
        found = calibrate(vectors, labels, held_out, false_match_rate=rate)
        return _in_words(found, "this index", rate)
    old = manifest.threshold
    if run is None and old is not None and old["source"] != "this index":
        # Set on the run's own data, which the index does not have: it holds as before.
        return old, manifest.threshold_why
    if run is None:
        return None, f"{lack} in this index"
    try:
        tested = embed_runs([run], device=device)[0]
    # Whatever keeps a run's data from being opened, an index can do without them.
    except (ValueError, OSError, RuntimeError):
        return None, f"{lack} in this index, and the run's own test data could not be opened"
    table = tested.table
    if table.is_multi_label:
        return None, f"{lack} in this index, and the run's test items have several classes each"
    held_out = np.array([name not in trained for name in table.class_names], dtype=bool)
    lack_too = enough(table.labels, held_out)
    if lack_too:
        return None, f"{lack}, in this index and among the run's own test data"
    embeddings = tested.embeddings.float().cpu().numpy()
    found = calibrate(embeddings, table.labels, held_out, false_match_rate=rate)
    return _in_words(found, "the run's own test data", rate)


def _in_words(found: Calibration, source: str, rate: float) -> tuple[dict[str, Any], str]:
    half = found.num_setting_classes
    why = (
        f"{found.num_classes:,} classes of {source} that never trained: {half:,} of them, "
        f"{found.num_setting:,} queries, set it to at most {100 * rate:g} % false matches; the "
        f"others, {found.num_measuring:,} queries, measured it against {found.num_gallery:,} items"
    )
    return {
        "similarity": found.similarity,
        "false_match_rate": found.false_match_rate,
        "true_match_rate": found.true_match_rate,
        "basis": why,
        "wanted": rate,
        "source": source,
    }, why
