"""Make an index of a collection, add to it, remove from it.

    collection -> blocks of embeddings -> a segment -> store, map, threshold -> manifest

The manifest is replaced last: until then readers see the old index. Finished blocks stay in the
folder when a process dies, and the next call with the same arguments continues from there.

This is one piece: the three changes share every step after the segment.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import count as a_count
from weiss._base.checks import some, suggestion
from weiss._base.files import replacing
from weiss._base.progress import Bar
from weiss.catalogue.calibration import index_threshold
from weiss.catalogue.collection import Collection, open_collection
from weiss.catalogue.embedding import BatchEmbedder, content_digest, embed_collection
from weiss.catalogue.index_folder import (
    SKIPPED,
    IndexFolder,
    Manifest,
    Segment,
    clear_workspace,
)
from weiss.catalogue.index_store import drop_orphans, drop_store, store_address, update_store
from weiss.catalogue.item_map import make_map, mean_fields, write_map
from weiss.catalogue.networks import Network, network_of_run, without_folders
from weiss.catalogue.records import OtherModelError, UnknownItemError
from weiss.catalogue.segments import (
    Block,
    OpenSegment,
    alive_rows,
    all_vectors,
    ids_by_class,
    open_segments,
    write_segment,
)
from weiss.data import DATASETS, Table
from weiss.evaluation.metrics import TITLES
from weiss.runs import recipe_from_dict, to_toml
from weiss.runs.card import card
from weiss.runs.folder import CARD, MODEL, RECIPE, RESULT, Run

Skipped = Sequence[tuple[str, str]]
"""Images that could not be read: their names, and why."""
BATCH = 128
"""Pictures of a forward pass, if the recipe has no number."""
MOST_NAMES = 10_000
"""With more names a similar name is not searched for: it takes long."""


@dataclass(frozen=True)
class Change:
    """The result of a change of an index.

    Attributes:
        num_items: items of the index now.
        num_added: items that were added.
        num_removed: items that were removed.
        skipped: images that this change could not read: name and reason.
        already: names that the index had with the same content; they were left alone.
        lines: a summary for people.
    """

    num_items: int
    num_added: int
    num_removed: int
    skipped: tuple[str, ...]
    already: tuple[str, ...]
    lines: tuple[str, ...]


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
    """Make an index: embed a collection and write all files that a search needs.

    Args:
        run: the run folder whose network embeds.
        data: a folder of images, or with one subfolder for each class; a list of files; the name of
            a data set; or a table.
        folder: the index folder. Embeddings of an earlier call with the same data are used.
        root: the folder of a named data set, or the folder that the paths of a list start from.
        split: ``"all"``, or a part of the data.
        store: ``"faiss"``, or ``"milvus:ADDRESS"``.
        kind: of a faiss index: auto, flat, ivf, hnsw.
        batch_size: pictures of a forward pass; the recipe's by default.
        device: where to embed.
        num_workers: decoding processes; one for each core by default.
        false_match_rate: the share of impostors that may find a match, for the threshold.
        replace_old: replace an index that exists.
        quiet: print nothing.

    Raises:
        ValueError: the data, the run or the folder cannot be used.
    """
    index = IndexFolder(folder)
    _refuse_folder(index, run, data, replace_old)
    address = store_address(index, store, kind)
    _check_batch_size(batch_size)
    if not 0 < false_match_rate < 1:
        raise ValueError(f"--false-match-rate must lie between 0 and 1; got {false_match_rate}.")
    source = Run(run)
    network = network_of_run(source, device)
    collection = open_collection(data, root=root, split=split)
    with index.writing():
        _refuse_folder(index, run, data, replace_old)  # another process may have written meanwhile
        drop_orphans(index, address)
        index.sweep()
        old = index.readable_manifest()
        next_id = old.next_id if old is not None else 0
        embedder = _embedder(network, source, batch_size)
        segment, skipped, speed = _embed_segment(
            index, collection, embedder, next_id, num_workers, quiet
        )
        skipped_file = _write_skipped(index, skipped)
        model_folder = index.new_name("model")
        copied = copy_model(source, index.path(model_folder))
        now = _now()
        manifest = Manifest(
            name=collection.name,
            next_id=next_id + segment.count,
            num_items=segment.count,
            segments=(segment,),
            removed=None,
            skipped=skipped_file,
            model=network.manifest_facts(model_folder),
            data={"name": collection.name, "split": split},
            scores=dict(network.facts["scores"]),
            settings={"kind": kind, "false_match_rate": false_match_rate},
            store={"address": address},
            map=None,
            threshold=None,
            threshold_why="",
            made=now,
            updated=now,
            files={f"{model_folder}/{name}": {} for name in copied},
        )
        num_classes, details = complete(index, manifest, skipped, device, run=source)
        if old is not None:
            drop_store(index, old)
    classes = f" of {num_classes:,} classes" if num_classes else ", without classes"
    made = (
        f"{collection.name}: {segment.count:,} images{classes}, {network.embedding_size} "
        f"dimensions, {speed}"
    )
    lines = (made, *collection.remarks, *details)
    change = Change(segment.count, segment.count, 0, _in_lines(skipped), (), lines)
    return _report(change, index, quiet)


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

    An item whose name and content the index has is left alone. If the content differs, nothing is
    added.

    Args:
        folder: the index folder.
        data: what to add, as for `build_index`.
        run: the run that the index was made with, as a check; optional.
        root: as for `build_index`.
        split: as for `build_index`.
        batch_size: pictures of a forward pass.
        device: where to embed.
        num_workers: decoding processes.
        quiet: print nothing.

    Raises:
        OtherModelError: the run is not the one that the index was made with.
    """
    index = IndexFolder(folder)
    index.manifest()  # raises if there is no index, before the lock makes a folder
    _check_batch_size(batch_size)
    collection = open_collection(data, root=root, split=split)
    with index.writing():
        drop_orphans(index)
        index.sweep()
        manifest, (segments, removed) = index.reading(lambda m: open_segments(index, m))
        model = Run(index.path(manifest.model["folder"]))
        network = network_of_run(model, device)
        if run is not None and not network_of_run(run, "cpu").is_model_of(manifest.model):
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
        embedder = _embedder(network, model, batch_size)
        segment, skipped, speed = _embed_segment(
            index, collection.take(new), embedder, manifest.next_id, num_workers, quiet
        )
        # An image that could not be read before and can be now is no longer listed.
        again = {*collection.names, *(name for name, _ in skipped)}
        before = [each for each in _read_skipped(index, manifest) if each[0] not in again]
        changed = replace(
            manifest,
            next_id=manifest.next_id + segment.count,
            num_items=manifest.num_items + segment.count,
            segments=(*manifest.segments, segment),
            skipped=_write_skipped(index, [*before, *skipped]),
            updated=_now(),
        )
        num_classes, details = complete(index, changed, [*before, *skipped], device)
    lines = [
        f"{manifest.name}: {segment.count:,} images added, {speed}; now "
        f"{changed.num_items:,} of {num_classes:,} classes",
        *collection.remarks,
        *details,
    ]
    if already:
        lines.insert(
            1, f"{len(already):,} were in it already with the same content: {some(list(already))}"
        )
    change = Change(
        changed.num_items, segment.count, 0, _in_lines(skipped), tuple(already), tuple(lines)
    )
    return _report(change, index, quiet)


def remove_items(
    folder: str | Path, what: Sequence[str | int], *, device: str = "auto", quiet: bool = False
) -> Change:
    """Remove items from an index; their ids are never used again.

    Args:
        folder: the index folder.
        what: names of items, ids, or ``class:NAME`` for all items of a class.
        device: has no effect; nothing is embedded.
        quiet: print nothing.

    Raises:
        UnknownItemError: the index does not have one of them; nothing is removed.
    """
    index = IndexFolder(folder)
    index.manifest()
    with index.writing():
        drop_orphans(index)
        index.sweep()
        manifest, (segments, removed) = index.reading(lambda m: open_segments(index, m))
        gone = _find_ids(what, segments, removed)
        left = manifest.num_items - len(gone)
        if not left:
            raise ValueError(
                f"an index must keep an item; these are all {len(gone):,} of {index.folder}. "
                "Remove the folder itself instead."
            )
        name = index.new_name("removed")
        with replacing(index.path(name)) as path, path.open("wb") as file:
            np.save(file, np.union1d(removed, gone).astype("<i8"), allow_pickle=False)
        changed = replace(manifest, num_items=left, removed=name, updated=_now())
        skipped = _read_skipped(index, manifest)
        _, details = complete(index, changed, skipped, device, removed=gone)
    line = f"{manifest.name}: {len(gone):,} images removed; now {left:,}"
    change = Change(left, 0, len(gone), (), (), (line, *details))
    return _report(change, index, quiet)


def complete(
    index: IndexFolder,
    manifest: Manifest,
    skipped: Skipped,
    device: str,
    *,
    run: Run | None = None,
    removed: Array | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Make store, map and threshold of changed items, then replace the manifest.

    Args:
        index: the index folder.
        manifest: the new items and the model; store, map and threshold are those of the old state.
        skipped: all images that the index has skipped, in this change or an earlier one.
        device: where the test data of ``run`` are embedded.
        run: the run of the model, if its test data may be used for the threshold.
        removed: ids that this change removes.

    Returns:
        The number of classes; and lines about store and threshold.
    """
    segments, gone = open_segments(index, manifest)
    ids, vectors = all_vectors(segments, gone)
    store = update_store(index, manifest, ids, vectors, removed)
    model = Run(index.path(manifest.model["folder"]))
    map_name = index.new_name("map")
    with replacing(index.path(map_name)) as path:
        write_map(path, make_map(vectors, ids, *mean_fields(model)))
    names, labels = _class_labels(segments, gone)
    threshold, why = index_threshold(manifest, vectors, names, labels, model, run, device)
    whole = replace(
        manifest, store=store.facts, map=map_name, threshold=threshold, threshold_why=why
    )
    files = {name: whole.files.get(name) or index.file_facts(name) for name in whole.named()}
    whole = replace(whole, files=files)
    lines = "".join(f"{line}\n" for line in _in_lines(skipped))
    index.switch(whole, _index_card(whole, len(names), len(skipped)), lines)
    clear_workspace(index.building)
    store.after_switch()
    if threshold is None:
        line = f"no threshold: {why}"
    else:
        line = (
            f"a match from similarity {threshold['similarity']:.3f} on: "
            f"{100 * threshold['false_match_rate']:.1f} % of impostors reach it, "
            f"{100 * threshold['true_match_rate']:.1f} % of queries whose class is in the index\n"
            f"  measured on {why}"
        )
    return len(names), (store.facts["says"], line)


def copy_model(run: Run, folder: Path) -> list[str]:
    """Copy a run without states and paths of the machine; return the names of the files.

    The copy is a run folder: `Run`, `network_of_run` and `weiss export` accept it.
    """
    copy = Run(folder)
    nested = without_places(run.recipe())
    copy.write_recipe(to_toml(nested))
    with replacing(folder / MODEL) as temporary:
        shutil.copyfile(run.folder / MODEL, temporary)
    names = [RECIPE, MODEL]
    if run.is_finished():
        result = run.result()
        result["data"] = _data_name(str(result.get("data", "")))
        copy.write_card(card(recipe_from_dict(nested), result))
        copy.write_result(result)
        names += [CARD, RESULT]
    return names


def without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without paths of the machine.

    Example:
        >>> without_places({"data": {"name": "/home/me/photos", "root": "/data"}})
        {'data': {'name': 'photos'}}
    """
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        if isinstance(value, dict):
            found[key] = without_places(value)
        else:
            found[key] = without_folders(value)
    if isinstance(found.get("data"), dict):
        data = {k: v for k, v in found["data"].items() if k not in ("root", "cache")}
        if "name" in data:
            data["name"] = _data_name(data["name"])
        found["data"] = data
    return found


def _data_name(name: str) -> str:
    return name if name in DATASETS else Path(name).name or "photos"


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is not None:
        a_count("--batch-size", batch_size, "weiss index")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _refuse_folder(
    index: IndexFolder, run: str | Path, data: str | Path | Table, replace_old: bool
) -> None:
    """Refuse a folder that holds other files, or that overlaps with the run or the images."""
    named = {"RUN": Path(run)}
    if not isinstance(data, Table) and str(data) not in DATASETS:
        named["IMAGES"] = Path(data)
    for word, path in named.items():
        if how := _overlap(index.folder, path):
            raise ValueError(
                f"--out must be a folder of its own; {index.folder} would {how} {word}, {path}. "
                "Choose another name beside it."
            )
    index.refuse_foreign()
    if index.exists() and not replace_old:
        raise ValueError(
            f"{index.folder} must not hold an index yet; it does. Add to it with --add, choose "
            "another --out, or replace it with --replace."
        )


def _overlap(one: Path, other: Path) -> str:
    """Return how two paths overlap, links followed: "be", "lie in", "hold" or "" for not at all."""
    one, other = one.resolve(), other.resolve()
    if one == other:
        return "be"
    if other in one.parents:
        return "lie in"
    return "hold" if one in other.parents else ""


def _embedder(network: Network, run: Run, batch_size: int | None) -> BatchEmbedder:
    assert network.model is not None
    size = batch_size or run.recipe().get("evaluate", {}).get("batch_size") or BATCH
    return BatchEmbedder(
        network.model,
        next(network.model.parameters()).device,
        network.preprocessing,
        network.embedding_size,
        network.fingerprint,
        int(size),
    )


def _embed_segment(
    index: IndexFolder,
    collection: Collection,
    embedder: BatchEmbedder,
    first: int,
    num_workers: int | None,
    quiet: bool,
) -> tuple[Segment, Skipped, str]:
    """Embed a collection into a segment; return it, the skipped images, and the speed in words."""
    begun = time.monotonic()
    total = len(collection.table)
    with Bar(total, f"embedding {collection.name}", unit="images", delay=1.0) as bar:
        paths, before = embed_collection(
            collection,
            embedder,
            index.building,
            num_workers=num_workers,
            advance=(lambda worth: None) if quiet else bar.advance,
        )
    rate = (total - before) / max(time.monotonic() - begun, 1e-9)
    speed = f"embedded at {rate:,.0f} images/s"
    if before:
        speed = f"{speed}, {before:,} earlier" if before < total else "embedded earlier"
    rows, why = 0, dict[int, str]()
    for path in paths:
        count, errors = Block.summary(path)
        rows += count
        why |= errors
    skipped = [(collection.names[row], text) for row, text in sorted(why.items())]
    skipped = [*collection.left_out, *skipped]
    if not rows:
        clear_workspace(index.building)
        raise ValueError(
            f"at least one image of {collection.name} must be readable; none of {total:,} is:\n  "
            + "\n  ".join(_in_lines(skipped[:10]))
        )
    segment = write_segment(
        index,
        first,
        (Block.read(path) for path in paths),
        rows,
        embedder.embedding_size,
        collection.names,
        collection.classes,
    )
    return segment, skipped, speed


def _find_ids(what: Sequence[str | int], segments: Sequence[OpenSegment], removed: Array) -> Array:
    """Return the sorted ids of names, ids and ``class:NAME``."""
    by_name = {
        segment.names[row]: segment.first + int(row)
        for segment in segments
        for row in alive_rows(segment, removed)
    }
    alive = set(by_name.values())
    by_class = ids_by_class(segments, removed)
    found: set[int] = set()
    for each in map(str, what):
        if each in by_name:
            found.add(by_name[each])
        elif each.isdecimal() and int(each) in alive:
            found.add(int(each))
        elif each.startswith("class:") and each.removeprefix("class:") in by_class:
            found.update(by_class[each.removeprefix("class:")].tolist())
        else:
            known = [f"class:{name}" for name in by_class] if each.startswith("class:") else by_name
            hint = suggestion(each, known) if len(known) <= MOST_NAMES else ""
            raise UnknownItemError(
                f"what is removed must be in the index; {each!r} is neither a name, nor an id, nor "
                f"class:NAME of it.{hint}"
            )
    return np.array(sorted(found), dtype=np.int64)


def _without_known(
    collection: Collection, segments: Sequence[OpenSegment], removed: Array
) -> tuple[Array, list[str]]:
    """Return the rows to add, and the names that the index has with the same content."""
    known: dict[str, bytes] = {}
    for segment in segments:
        for row in alive_rows(segment, removed):
            known[segment.names[row]] = segment.digests[row].tobytes()
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
            f"have another content: {some(other)}. Remove these first (--remove NAME), or rename "
            "the files."
        )
    return np.array(rows, dtype=np.int64), already


def _class_labels(segments: Sequence[OpenSegment], removed: Array) -> tuple[list[str], Array]:
    """Return the sorted classes of all items, and int64 ``(n,)`` the class of each.

    The class is -1 for an item without a class, or with several.
    """
    alive = [alive_rows(segment, removed).tolist() for segment in segments]
    names = sorted(
        {
            segment.class_names[label]
            for segment, rows in zip(segments, alive, strict=True)
            for label in set(chain.from_iterable(map(segment.labels.__getitem__, rows)))
        }
    )
    number = {name: at for at, name in enumerate(names)}
    one = []
    for segment, rows in zip(segments, alive, strict=True):
        numbers = [number.get(name, -1) for name in segment.class_names]
        for labels in (segment.labels[row] for row in rows):
            one.append(numbers[labels[0]] if len(labels) == 1 else -1)
    return names, np.array(one, dtype=np.int64)


def _in_lines(skipped: Skipped) -> tuple[str, ...]:
    return tuple(f"{name}: {why}" for name, why in skipped)


def _read_skipped(index: IndexFolder, manifest: Manifest) -> Skipped:
    if manifest.skipped is None:
        return ()
    lines = index.path(manifest.skipped).read_text(encoding="utf-8").split("\n")
    return [(name, why) for name, tab, why in (line.partition("\t") for line in lines) if tab]


def _write_skipped(index: IndexFolder, skipped: Skipped) -> str | None:
    """Write the skipped images to a file of the index; return its name, None without any."""
    if not skipped:
        return None
    name = index.new_name("skipped")
    with replacing(index.path(name)) as path:
        path.write_text("".join(f"{each}\t{why}\n" for each, why in skipped), encoding="utf-8")
    return name


def _report(change: Change, index: IndexFolder, quiet: bool) -> Change:
    lines = [*change.lines]
    if change.skipped:
        number = len(change.skipped)
        lines.append(f"{number:,} could not be read and are left out ({SKIPPED} lists them):")
        lines += [f"  {line}" for line in change.skipped[:10]]
        lines += [f"  and {number - 10:,} more"] if number > 10 else []
    lines.append(f"Wrote {index.folder}. Search it: weiss search {index.folder} IMAGE")
    if not quiet:
        print("\n".join(lines), flush=True)
    return change


def _index_card(manifest: Manifest, num_classes: int, num_skipped: int) -> str:
    """Return the card of an index, in Markdown."""
    model, shape = manifest.model, manifest.model["preprocessing"]
    measured = manifest.scores.get("measured_on", "nothing")
    rows = [
        f"| {title} | {100 * manifest.scores[name]:.2f} |"
        for name, title in TITLES.items()
        if name in manifest.scores
    ]
    table = "\n".join([f"| per cent | {measured} |", "|---|---:|", *rows])
    classes = f" of {num_classes:,} classes" if num_classes else ", without classes"
    skipped = f"- {num_skipped:,} files could not be read: `{SKIPPED}`.\n" if num_skipped else ""
    threshold = f"There is no threshold: {manifest.threshold_why}."
    if (found := manifest.threshold) is not None:
        threshold = (
            f"A hit with a similarity of {found['similarity']:.3f} or more is a match. "
            f"{100 * found['false_match_rate']:.1f} % of impostors, pictures whose class is not in "
            f"the index, find a match; {100 * found['true_match_rate']:.1f} % of those whose class "
            f"is in it find one of their class. Measured on {found['basis']}. In a much larger "
            "collection more impostors find a match."
        )
    return f"""# Index of {manifest.name}

{manifest.num_items:,} images{classes}, to be searched by a picture: `weiss search INDEX IMAGE`, \
`weiss serve INDEX`.

- Made {manifest.made}, changed {manifest.updated}.
- Store: {manifest.store["says"]}.
{skipped}
## Model

- {model["backbone"]}, trained with {model["loss"]} on {model["num_classes"]:,} classes of \
{model["trained_on"]}; {model["protocol"]}.
- Input: {shape["size"]} x {shape["size"]} pixels; output: {model["embedding_size"]} dimensions, \
compared by cosine.
- Fingerprint `{model["fingerprint"]}`; an export with the same one can replace it.

{table if rows else "Nothing was measured."}

## When something is a match

{threshold}
"""
