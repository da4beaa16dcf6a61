"""Make an index of a collection, add to it, remove from it.

    collection -> embedding: blocks -> a segment -> store, map, threshold -> manifest

Until the manifest is replaced, last of all, nothing has changed for whoever reads. What was
embedded before a process died is kept in the folder, and the next one goes on from there.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import count as a_count
from weiss._base.checks import some, suggestion
from weiss._base.files import replacing
from weiss.catalogue.changes import (
    Change,
    embed_segment,
    embedder_of,
    finish,
    in_lines,
    read_skipped,
    sayer,
    told,
    write_skipped,
)
from weiss.catalogue.collection import Collection, open_collection
from weiss.catalogue.derived import derive, drop_orphans, drop_store, kept_address
from weiss.catalogue.embedding import content_digest
from weiss.catalogue.folder import IndexFolder, Manifest
from weiss.catalogue.items import DamagedIndexError, OtherModelError, UnknownItemError
from weiss.catalogue.model_copy import copy_model, is_model_of, model_words
from weiss.catalogue.networks import network_of_run
from weiss.catalogue.segments import OpenSegment, alive_rows, open_segments
from weiss.catalogue.tidying import overlap
from weiss.data import DATASETS, Table
from weiss.runs.folder import Run

HINTS = 10_000
"""Names up to which the nearest to one that is not there is looked for."""


def build_index(
    run: str | Path,
    data: str | Path | Table,
    folder: str | Path,
    *,
    root: str | Path | None = None,
    split: str = "all",
    store: str = "faiss",
    kind: str = "auto",
    batch_size: int | None = None,
    device: str = "auto",
    num_workers: int | None = None,
    false_match_rate: float = 0.05,
    replace_old: bool = False,
    quiet: bool = False,
) -> Change:
    """Make an index: embed a collection and write all that a search needs.

    Args:
        run: the run folder whose network embeds.
        data: a folder of images, or with one subfolder a class; a list of files; the name of a
            data set; or a table.
        folder: where to write. What an earlier call finished of the same is not done again.
        root: the folder of a named data set, or what the paths of a list start from.
        split: ``"all"``, or the part of the data to take.
        store: ``"faiss"``, or ``"milvus:ADDRESS"``.
        kind: of a faiss index: auto, flat, ivf, hnsw.
        batch_size: pictures a forward pass; the recipe's by default.
        device: where to embed.
        num_workers: decoding processes; one for each core by default.
        false_match_rate: how many strangers may find a match, for the threshold.
        replace_old: put it in the place of an index that is there.
        quiet: print nothing.

    Returns:
        What was done.

    Raises:
        ValueError: the data, the run or the folder cannot be used.
    """
    index, say = IndexFolder(folder), sayer(quiet)
    _refuse_folder(index, run, data, replace_old)
    address = kept_address(index, store, kind)
    if batch_size is not None:
        a_count("--batch-size", batch_size, "weiss index")
    if not 0 < false_match_rate < 1:
        raise ValueError(f"--false-match-rate must lie between 0 and 1; got {false_match_rate}.")
    source = Run(run)
    network = network_of_run(source, device)
    collection = open_collection(data, root=root, split=split)
    with index.writing():
        _refuse_folder(index, run, data, replace_old)  # another may have written in the meantime
        drop_orphans(index, address)
        index.sweep()
        old = _replaced(index)
        next_id = old.next_id if old is not None else 0
        embedder = embedder_of(network, source, batch_size)
        segment, skipped, how_fast = embed_segment(
            index, collection, embedder, next_id, num_workers, quiet
        )
        skipped_file = write_skipped(index, skipped)
        model_folder = index.new_name("model")
        copied = copy_model(source, index.path(model_folder))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = Manifest(
            name=collection.name,
            next_id=next_id + segment.count,
            num_items=segment.count,
            segments=(segment,),
            removed=None,
            skipped=skipped_file,
            model=model_words(network, model_folder),
            data={"name": collection.name, "split": split},
            scores=dict(network.facts["scores"]),
            settings={"kind": kind, "false_match_rate": false_match_rate},
            store={"address": address},
            map=None,
            threshold=None,
            threshold_why="",
            made=now,
            updated=now,
        )
        new_files = [*segment.files(), *(f"{model_folder}/{name}" for name in copied)]
        new_files += [] if skipped_file is None else [skipped_file]
        done = derive(index, manifest, new_files, run=source, device=device)
        finish(index, done, skipped)
        if old is not None:
            drop_store(index, old)
    lines = (
        _made_line(done.manifest, done.num_classes, how_fast),
        *collection.remarks,
        *done.lines,
    )
    change = Change(segment.count, segment.count, 0, in_lines(skipped), (), lines)
    return told(change, index, say)


def add_items(
    folder: str | Path,
    data: str | Path | Table,
    *,
    run: str | Path | None = None,
    root: str | Path | None = None,
    split: str = "all",
    batch_size: int | None = None,
    device: str = "auto",
    num_workers: int | None = None,
    quiet: bool = False,
) -> Change:
    """Add a collection to an index, embedded by the index's own model.

    An item whose name is there with the same content is left alone; with another content it is
    refused, and nothing changes.

    Args:
        folder: the index folder.
        data: what to add, as for `build_index`.
        run: the run it was made with, to make sure; may be left out.
        root: as for `build_index`.
        split: as for `build_index`.
        batch_size: pictures a forward pass.
        device: where to embed.
        num_workers: decoding processes.
        quiet: print nothing.

    Returns:
        What was done.

    Raises:
        OtherModelError: the run is not the one that the index was made with.
    """
    index, say = IndexFolder(folder), sayer(quiet)
    index.manifest()  # which refuses what is none, before a lock makes a folder of it
    if batch_size is not None:
        a_count("--batch-size", batch_size, "weiss index")
    collection = open_collection(data, root=root, split=split)
    with index.writing():
        drop_orphans(index)
        index.sweep()
        manifest, (segments, removed) = index.reading(lambda m: open_segments(index, m))
        model = Run(index.path(manifest.model["folder"]))
        network = network_of_run(model, device)
        if run is not None and not is_model_of(network_of_run(run, "cpu"), manifest.model):
            raise OtherModelError(
                f"an index must have vectors of one model; {Path(run).name} is another than the "
                f"one that {index.folder} was made with. Leave RUN out to use that one, or make "
                "another index."
            )
        new, already = _without_known(collection, segments, removed)
        if not len(new):
            raise ValueError(
                f"there must be something to add; all {len(already):,} items of {collection.name} "
                "are in the index already, with the same content."
            )
        embedder = embedder_of(network, model, batch_size)
        segment, skipped, how_fast = embed_segment(
            index, collection.take(new), embedder, manifest.next_id, num_workers, quiet
        )
        # What could not be read before and can be now is no longer left out.
        again = {*collection.names, *(name for name, _ in skipped)}
        before = [each for each in read_skipped(index, manifest) if each[0] not in again]
        skipped_file = write_skipped(index, [*before, *skipped])
        changed = replace(
            manifest,
            next_id=manifest.next_id + segment.count,
            num_items=manifest.num_items + segment.count,
            segments=(*manifest.segments, segment),
            skipped=skipped_file,
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        new_files = [*segment.files(), *([] if skipped_file is None else [skipped_file])]
        done = derive(index, changed, new_files, run=None, device=device)
        finish(index, done, [*before, *skipped])
    lines = [
        f"{manifest.name}: {segment.count:,} images added, {how_fast}; now "
        f"{changed.num_items:,} of {done.num_classes:,} classes",
        *collection.remarks,
        *done.lines,
    ]
    if already:
        lines.insert(1, f"{len(already):,} were there already, the same: {some(list(already))}")
    change = Change(
        changed.num_items, segment.count, 0, in_lines(skipped), tuple(already), tuple(lines)
    )
    return told(change, index, say)


def remove_items(
    folder: str | Path, what: Sequence[str | int], *, device: str = "auto", quiet: bool = False
) -> Change:
    """Remove items from an index; their ids are never used again.

    Args:
        folder: the index folder.
        what: names of items, ids, or ``class:NAME`` for all items of a class.
        device: where the threshold is computed anew.
        quiet: print nothing.

    Returns:
        What was done.

    Raises:
        UnknownItemError: something of it is not there; nothing changes.
    """
    index, say = IndexFolder(folder), sayer(quiet)
    index.manifest()
    with index.writing():
        drop_orphans(index)
        index.sweep()
        manifest, (segments, removed) = index.reading(lambda m: open_segments(index, m))
        gone = find_ids(what, segments, removed)
        left = manifest.num_items - len(gone)
        if not left:
            raise ValueError(
                f"an index must keep an item; these are all {len(gone):,} of {index.folder}. "
                "Remove the folder itself instead."
            )
        name = index.new_name("removed")
        with replacing(index.path(name)) as path, path.open("wb") as file:
            np.save(file, np.union1d(removed, gone).astype("<i8"), allow_pickle=False)
        changed = replace(
            manifest,
            num_items=left,
            removed=name,
            updated=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        done = derive(index, changed, [name], run=None, device=device, removed=gone)
        finish(index, done, read_skipped(index, manifest))
        done.after_switch()
    line = f"{manifest.name}: {len(gone):,} images removed; now {left:,}"
    return told(Change(left, 0, len(gone), (), (), (line, *done.lines)), index, say)


def _refuse_folder(
    index: IndexFolder, run: str | Path, data: str | Path | Table, replace_old: bool
) -> None:
    """Refuse a folder for an index that holds something, or that has to do with what it is of."""
    named = {"RUN": Path(run)}
    if not isinstance(data, Table) and str(data) not in DATASETS:
        named["IMAGES"] = Path(data)
    for word, path in named.items():
        if how := overlap(index.folder, path):
            raise ValueError(
                f"--out must be a folder of its own; {index.folder} would {how} {word}, {path}. "
                "Choose another name beside it."
            )
    index.refuse_foreign()
    if index.exists() and not replace_old:
        raise ValueError(
            f"{index.folder} must not hold an index yet; it does. Add to it with --add, choose "
            "another --out, or put a new one in its place with --replace."
        )


def _replaced(index: IndexFolder) -> Manifest | None:
    """Return the index that is there and is to be replaced; one that is damaged counts as none."""
    try:
        return index.manifest() if index.exists() else None
    except DamagedIndexError:
        return None


def find_ids(what: Sequence[str | int], segments: Sequence[OpenSegment], removed: Array) -> Array:
    """Return the sorted ids that names, numbers and ``class:NAME`` mean."""
    by_name: dict[str, int] = {}
    by_class: dict[str, list[int]] = {}
    for segment in segments:
        for row in alive_rows(segment, removed):
            item = segment.item(int(row))
            by_name[item.name] = item.id
            for name in item.class_names:
                by_class.setdefault(name, []).append(item.id)
    alive = set(by_name.values())
    found: set[int] = set()
    for each in what:
        said = str(each)
        if said in by_name:
            found.add(by_name[said])
        elif said.isdecimal() and int(said) in alive:
            found.add(int(said))
        elif said.startswith("class:") and said.removeprefix("class:") in by_class:
            found.update(by_class[said.removeprefix("class:")])
        else:
            known = [f"class:{name}" for name in by_class] if said.startswith("class:") else by_name
            hint = suggestion(said, known) if len(known) <= HINTS else ""  # which takes long
            raise UnknownItemError(
                f"what is removed must be in the index; {said!r} is neither a name, nor an id, nor "
                f"class:NAME of it.{hint}"
            )
    return np.array(sorted(found), dtype=np.int64)


def _without_known(
    collection: Collection, segments: Sequence[OpenSegment], removed: Array
) -> tuple[Array, list[str]]:
    """Return the rows to add, and the names that are there with the same content."""
    known: dict[str, bytes] = {}
    for segment in segments:
        names = segment.names()
        rows_there = alive_rows(segment, removed)
        known |= {names[row]: segment.digests[row].tobytes() for row in rows_there}
    rows, already, other = [], [], []
    for row, name in enumerate(collection.names):
        if name not in known:
            rows.append(row)
        elif content_digest(collection.table, row) == known[name]:
            already.append(name)
        else:
            other.append(name)
    if other:
        raise ValueError(
            f"an item's name must be new to the index, or its content the same; {len(other):,} "
            f"are there with another content: {some(other)}. Remove these first (--remove NAME), "
            "or rename the files."
        )
    return np.array(rows, dtype=np.int64), already


def _made_line(manifest: Manifest, num_classes: int, how_fast: str) -> str:
    classes = f" of {num_classes:,} classes" if num_classes else ", without classes"
    return (
        f"{manifest.name}: {manifest.num_items:,} images{classes}, "
        f"{manifest.model['embedding_size']} dimensions, {how_fast}"
    )
