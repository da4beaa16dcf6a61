"""Make an index of a collection, add to it, remove from it, compact it.

    collection -> blocks of embeddings -> segments -> store, map, threshold -> manifest -> sweep

The manifest is replaced after all other files: until then readers see the old index. Then what it
no longer names is deleted: no file has a trace of a removed item. Finished blocks stay in the
folder when a process dies, and the next call with the same arguments continues from there.

This is one piece: the four changes share every step after the segment.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import count as a_count
from weiss._base.checks import some, suggestion
from weiss._base.devices import refuse_absent_device
from weiss._base.files import replacing
from weiss._base.progress import Bar
from weiss.catalogue.calibration import index_threshold, without
from weiss.catalogue.collection import (
    Collection,
    kept_columns,
    open_collection,
)
from weiss.catalogue.embedding import BatchEmbedder, content_digests, embed_collection
from weiss.catalogue.embeddings_folder import Contents, EmbeddingsFolder
from weiss.catalogue.export import score_table
from weiss.catalogue.index_folder import SKIPPED, IndexFolder, clear_workspace
from weiss.catalogue.index_store import open_store, sweep, update_store
from weiss.catalogue.item_map import make_map, mean_fields, write_map
from weiss.catalogue.manifest import Manifest, Segment, refuse_facts
from weiss.catalogue.networks import Network, data_name, network_of_run, without_folders
from weiss.catalogue.records import OtherModelError, UnknownItemError, in_short, kept_threshold
from weiss.catalogue.segments import Block, Items, compacted, write_segment
from weiss.catalogue.store_table import store_at
from weiss.data import DATASETS, Table
from weiss.data.content import in_several_classes
from weiss.data.list_columns import kinds
from weiss.data.object_storage import is_address
from weiss.runs import recipe_from_dict, to_toml
from weiss.runs.card import card
from weiss.runs.dimension import at_dimension
from weiss.runs.folder import CARD, MODEL, RECIPE, RESULT, Run
from weiss.runs.summaries import UNTRAINED

Skipped = Sequence[tuple[str, str]]
"""Images that could not be read: their names, and why."""
BATCH = 128
"""Pictures of a forward pass, if the recipe has no number."""
NOTHING: Array = np.zeros(0, dtype=np.int64)
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
    nested: bool = False,
    class_name: str | None = None,
    store: str = "faiss",
    kind: str = "auto",
    batch_size: int | None = None,
    device: str = "auto",
    num_workers: int | None = None,
    false_match_rate: float = 0.05,
    threshold: float | None = None,
    own_items_only: bool = False,
    replace_old: bool = False,
    quiet: bool = False,
    trust: bool = False,
) -> Change:
    """Make an index: embed a collection and write all files that a search needs.

    Args:
        run: the run folder whose network embeds.
        data: a folder of images, or with one subfolder for each class; a list of files; the name of
            a data set; a table; or a folder of `weiss.catalogue.embed_images`, whose vectors are
            taken if the run is that which made them.
        folder: the index folder. Embeddings of an earlier call with the same data are used.
        root: the folder of a named data set, or the folder that the paths of a list start from.
        split: ``"all"``, or a part of the data.
        nested: as for `weiss.data.Assembly`: every folder that holds images is a class.
        class_name: the class of all items of a folder without subfolders.
        store: ``"faiss"``, or ``"milvus:ADDRESS"``.
        kind: of a faiss index: auto, flat, int8, binary, ivf, hnsw.
        batch_size: pictures of a forward pass; the recipe's by default.
        device: where to embed.
        num_workers: decoding processes; one for each core by default.
        false_match_rate: the share of impostors that may find a match, for the threshold.
        threshold: the similarity from which on a hit is a match; by default it is measured.
        own_items_only: measure the threshold on the items alone, never on the run's test data.
        replace_old: replace an index that exists.
        quiet: print nothing.
        trust: as for `weiss.runs.Run`.

    Raises:
        ValueError: the data, the run or the folder cannot be used.
    """
    index = IndexFolder(folder)
    _refuse_folder(index, run, data, replace_old)
    address = checked_options(index, store, kind, batch_size, false_match_rate, threshold, device)
    source = Run(run, trust=trust)
    network = network_of_run(source, device)
    refuse_facts(network.manifest_facts("model-00000000"), dict(network.facts["scores"]))
    embeddings, collection = None, None
    if not isinstance(data, Table) and EmbeddingsFolder(data).exists():
        embeddings = EmbeddingsFolder(data)
        name, split = _check_embeddings(
            embeddings,
            network,
            {
                "--root": root is not None,
                "--split": split != "all",
                "--nested": nested,
                "--class": class_name is not None,
                "--batch-size": batch_size is not None,
            },
        )
    else:
        collection = open_collection(
            data, root=root, split=split, nested=nested, class_name=class_name
        )
        name = collection.name
    with index.writing():
        _refuse_folder(index, run, data, replace_old)  # another process may have written meanwhile
        sweep(index, address)
        old = index.readable_manifest()
        next_id = old.next_id if old is not None else 0
        model_folder = index.new_name("model")
        copied = copy_model(source, index.path(model_folder))
        # From here on the copy counts: a run that trains may replace its network.
        network = network_of_run(index.path(model_folder), device, trust=trust)
        model, scores = network.manifest_facts(model_folder), dict(network.facts["scores"])
        if collection is not None:
            embedder = embedder_of(network, source, batch_size)
            segment, skipped, speed = _embed_segment(
                index, collection, embedder, next_id, num_workers, quiet
            )
            remarks = collection.remarks
        else:
            assert embeddings is not None
            segment, skipped, remarks = _copy_segment(index, embeddings, next_id)
            speed = "embedded earlier"
        manifest = Manifest(
            name=name,
            next_id=next_id + segment.count,
            segments=(segment,),
            model=model,
            data={"name": name, "split": split},
            scores=scores,
            settings={
                **{"kind": kind, "false_match_rate": false_match_rate},
                **({} if threshold is None else {"threshold": float(threshold)}),
            },
            store={"address": address},
            made=_now(),
            files={f"{model_folder}/{name}": {} for name in copied},
        )
        is_trained = model["loss"] != UNTRAINED
        # A network that has trained on nothing has no test data of its own.
        tested = source if is_trained and not own_items_only else None
        manifest, num_classes, details = complete(
            index, manifest, skipped, device, run=tested, trust=trust
        )
        clear_workspace(index.building)
        sweep(index, *([] if old is None else [old.store["address"]]))
    classes = f" of {_of_classes(num_classes)}" if num_classes else ", without classes"
    made = (
        f"{name}: {segment.count:,} images{classes}, {network.embedding_size} dimensions, {speed}"
    )
    by = () if is_trained else (f"embedded by {model['protocol']}",)
    lines = (made, *by, *remarks, *details)
    change = Change(segment.count, segment.count, 0, _in_lines(skipped), (), lines)
    return _report(change, index, quiet)


def add_items(
    folder: str | Path,
    data: str | Path | Table,
    *,
    run: str | Path | None = None,
    root: str | Path | None = None,
    split: str = "all",
    nested: bool = False,
    class_name: str | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    num_workers: int | None = None,
    quiet: bool = False,
    trust: bool = False,
) -> Change:
    """Add a collection to an index, embedded by the index's own model.

    An item whose name and content the index has is left alone. If the content differs, nothing is
    added. If ``run`` is given, it must be the one that the index was made with. The other arguments
    are those of `build_index`.

    Raises:
        OtherModelError: the run is another one.
    """
    index = IndexFolder(folder)
    index.manifest()  # raises if there is no index, before the collection is opened
    check_batch_size(batch_size)
    collection = open_collection(data, root=root, split=split, nested=nested, class_name=class_name)
    with _changing(index) as (manifest, items):
        model = Run(index.path(manifest.model["folder"]), trust=trust)
        network = network_of_run(model, device)
        if run is not None:
            with _as_in(manifest, Run(run, trust=trust)) as same:
                given = network_of_run(same, "cpu")
            if not given.is_model_of(manifest.model):
                raise OtherModelError(
                    f"an index must have vectors of one model; {Path(run).name} is another than "
                    f"the one that {index.folder} was made with. Leave RUN out to use that one, or "
                    "make another index."
                )
        new, known, gone = _without_known(collection, items)
        collection = replace(collection, left_out=(*collection.left_out, *gone))
        already = [collection.names[row] for row in known]
        stays = _other_values(collection.take(known), items)
        other_kinds = _other_kinds(collection.take(new), items)
        if not len(new):
            raise ValueError(
                f"there must be something to add; all {len(already):,} items of {collection.name} "
                f"are in the index already, with the same content.{f' {stays}' if stays else ''}"
            )
        embedder = embedder_of(network, model, batch_size)
        segment, skipped, speed = _embed_segment(
            index, collection.take(new), embedder, manifest.next_id, num_workers, quiet
        )
        # An image that could not be read before and can be now is no longer listed.
        again = {*collection.names, *(name for name, _ in skipped)}
        before = [each for each in _read_skipped(index, manifest) if each[0] not in again]
        changed = replace(
            manifest,
            next_id=manifest.next_id + segment.count,
            segments=(*manifest.segments, segment),
        )
        changed, num_classes, details = complete(
            index, changed, [*before, *skipped], device, before=items
        )
        clear_workspace(index.building)
    lines = [
        f"{manifest.name}: {segment.count:,} images added, {speed}; now "
        f"{changed.num_items:,} of {_of_classes(num_classes)}",
        *collection.remarks,
        *filter(None, [other_kinds]),
        *details,
    ]
    if num_classes and not any(collection.classes):
        lines.append(
            "what was added has no class. To give it one: remove it, and add it with --class NAME"
        )
    if already:
        told = f"{len(already):,} were in it already with the same content: {some(already)}"
        lines[1:1] = [told, stays] if stays else [told]
    change = Change(
        changed.num_items, segment.count, 0, _in_lines(skipped), tuple(already), tuple(lines)
    )
    return _report(change, index, quiet)


def remove_items(
    folder: str | Path, what: Sequence[str | int], *, device: str = "auto", quiet: bool = False
) -> Change:
    """Remove items from an index and from all its files; their ids are never used again.

    ``what`` holds names of items, ids, or ``class:NAME`` for all items of a class; ``device`` has
    no effect.

    Raises:
        UnknownItemError: the index does not have one of them; nothing is removed.
    """
    index = IndexFolder(folder)
    with _changing(index) as (manifest, items):
        gone = _find_ids(what, items)
        left = len(items.ids) - len(gone)
        if not left:
            raise ValueError(
                f"an index must keep an item; these are all {len(gone):,} of {index.folder}. "
                "Remove the folder itself instead."
            )
        skipped = _read_skipped(index, manifest)
        clear_workspace(index.building)  # an addition that was killed may have left these items
        details = complete(index, manifest, skipped, device, before=items, gone=gone)[2]
    line = f"{manifest.name}: {len(gone):,} images removed; now {left:,}"
    change = Change(left, 0, len(gone), (), (), (line, *details))
    return _report(change, index, quiet)


def compact_index(folder: str | Path, *, quiet: bool = False) -> Change:
    """Write an index anew where it has traces of removed items, or too many small files.

    Every change does that too. It is needed after a change that was killed, and for an index in
    which an older version has removed items. Where there is nothing to do, the index stays the
    same. Kept embeddings of an addition that was killed stay in any case.
    """
    index = IndexFolder(folder)
    with _changing(index) as (manifest, items):
        skipped, details = _read_skipped(index, manifest), tuple[str, ...]()
        segments = compacted(index, manifest, items, NOTHING)
        if segments == manifest.segments and manifest.removed is None:
            with closing(open_store(index, manifest)) as store:
                store.keep_only(items.ids)
            _switch(index, manifest, len(items.by_class()), skipped)  # the card may be older
        else:
            manifest = replace(manifest, segments=segments)
            manifest, _, details = complete(index, manifest, skipped, "cpu", before=items)
    line = f"{manifest.name}: {len(items.ids):,} images in {len(manifest.files):,} files"
    return _report(Change(len(items.ids), 0, 0, (), (), (line, *details)), index, quiet)


@contextmanager
def _as_in(manifest: Manifest, run: Run) -> Iterator[Run]:
    """Give a run at the dimension of an index, if it has trained that."""
    size = manifest.embedding_size
    is_trained = size in (run.recipe()["backbone"].get("dimensions") or ())
    with at_dimension(run, size if is_trained else None) as same:
        yield same


@contextmanager
def _changing(index: IndexFolder) -> Iterator[tuple[Manifest, Items]]:
    """Hold the lock of an index that is changed; delete before and after what it has not."""
    index.manifest()  # raises if there is no index, before the lock makes a folder
    with index.writing():
        sweep(index)
        yield index.reading(lambda manifest: Items(index, manifest))
        sweep(index)


def complete(
    index: IndexFolder,
    manifest: Manifest,
    skipped: Skipped,
    device: str,
    *,
    run: Run | None = None,
    before: Items | None = None,
    gone: Array = NOTHING,
    trust: bool = False,
) -> tuple[Manifest, int, tuple[str, ...]]:
    """Compact the segments, make store, map and threshold, then replace the manifest.

    The manifest has the new segments; the rest is of the old state. ``skipped`` are the images that
    any change has skipped. The test data of ``run``, if it is given, may be used for the threshold.
    ``before`` are the items of the old index, None for a new one; ``gone`` are ids to remove;
    ``trust`` is that of `weiss.runs.Run`, for the model, as that of ``run`` is.
    Return the new manifest, the number of classes, and lines about store and threshold.
    """
    items = Items(index, manifest, before)
    manifest = replace(manifest, segments=compacted(index, manifest, items, gone))
    items = Items(index, manifest, items)
    ids, vectors = items.ids, items.vectors()
    ids_before = None if before is None else before.ids
    model = Run(
        index.path(manifest.model["folder"]), trust=trust or (run is not None and run.trust)
    )
    names = list(items.by_class())
    labels = items.labels(names)
    map_name = index.new_name("map")
    with replacing(index.path(map_name)) as path:
        write_map(path, make_map(vectors, ids, *mean_fields(model), labels=labels))
    shared = in_several_classes(items.digests(), labels)
    counted = without(labels, shared)
    threshold, why = index_threshold(manifest, vectors, names, counted, model, run, device)
    facts, store = update_store(index, manifest, ids, vectors, ids_before)
    with closing(store):
        whole = replace(
            manifest,
            num_items=len(ids),
            removed=None,
            skipped=_write_skipped(index, skipped),
            store=facts,
            map=map_name,
            threshold=threshold,
            threshold_why=why,
            updated=_now(),
        )
        files = {name: whole.files.get(name) or index.file_facts(name) for name in whole.named()}
        whole = replace(whole, files=files)
        _switch(index, whole, len(names), skipped)
        store.keep_only(ids)
    if threshold is None:
        line = f"no threshold: {why}. To give one: --threshold SIMILARITY"
    else:
        found = kept_threshold(threshold)
        line = (
            f"a match from similarity {found.similarity_in_words()} on: "
            f"{found.rate('false_match_rate')} of impostors reach it, "
            f"{found.rate('true_match_rate')} of queries whose class is in the index\n"
            f"  measured on {why}{'; in brackets 95 % intervals' if found.intervals else ''}"
        )
    lines = [line, *([_in_several(items, shared)] if shared else [])]
    return whole, len(names), (facts["says"], *lines)


def _in_several(items: Items, shared: Sequence[Array]) -> str:
    """Return how many photos are in more than one class, and the names of the first."""
    found = [[items.find(id) for id in items.ids[rows].tolist()] for rows in shared]
    names = [" = ".join(segment.names[row] for segment, row in group) for group in found]
    are, them = ("photo is", "it") if len(shared) == 1 else ("photos are", "them")
    return (
        f"{len(shared):,} {are} in more than one class; the threshold ignores {them}: "
        f"{some(names, 3)}"
    )


def copy_model(run: Run, folder: Path) -> list[str]:
    """Copy a run to a run folder without states and paths of the machine; return its files."""
    copy = Run(folder)
    nested = without_places(run.recipe())
    copy.write_recipe(to_toml(nested))
    with replacing(folder / MODEL) as temporary:
        shutil.copyfile(run.folder / MODEL, temporary)
    names = [RECIPE, MODEL]
    if run.is_finished():
        result = run.result()
        result["data"] = data_name(str(result.get("data", "")))
        copy.write_card(card(recipe_from_dict(nested), result))
        copy.write_result(result)
        names += [CARD, RESULT]
    return names


def without_places(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without paths of the machine.

    Example:
        >>> data = {"name": "/home/me/photos", "root": "/data", "cache": "/tmp", "split": "all"}
        >>> without_places({"data": data, "seed": 3})
        {'data': {'name': 'photos', 'split': 'all'}, 'seed': 3}
    """
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found[key] = without_places(value) if isinstance(value, dict) else without_folders(value)
    if isinstance(found.get("data"), dict):
        data = {k: v for k, v in found["data"].items() if k not in ("root", "cache")}
        if "name" in data:
            data["name"] = data_name(data["name"])
        found["data"] = data
    return found


def check_batch_size(batch_size: int | None) -> None:
    """Refuse a size of batches that is no positive number."""
    if batch_size is not None:
        a_count("--batch-size", batch_size, "embedding")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _refuse_folder(
    index: IndexFolder, run: str | Path, data: str | Path | Table, replace_old: bool
) -> None:
    named = {"RUN": Path(run)}
    if not isinstance(data, Table) and str(data) not in DATASETS and not is_address(data):
        named["IMAGES"] = Path(data)
    refuse_folder(index, named, replace_old)


def checked_options(
    index: IndexFolder,
    store: str,
    kind: str,
    batch_size: int | None,
    false_match_rate: float,
    threshold: float | None,
    device: str,
) -> str:
    """Return the address of the store; refuse what `build_index` cannot use, before a network."""
    address = store_at(store).checked_address(store, index.folder, kind)
    check_batch_size(batch_size)
    if not 0 < false_match_rate < 1:
        raise ValueError(f"--false-match-rate must lie between 0 and 1; got {false_match_rate}.")
    if threshold is not None and not -1 <= threshold <= 1:
        raise ValueError(
            f"--threshold must be a cosine, between -1 and 1; got {threshold}. Leave it out to "
            "measure one."
        )
    refuse_absent_device(device, "device")
    return address


def refuse_folder(index: IndexFolder, named: Mapping[str, Path], replace_old: bool) -> None:
    """Refuse a folder that holds other files, or that overlaps with the run or the images."""
    refuse_overlap(index.folder, named)
    index.refuse_foreign()
    if index.exists() and not replace_old:
        raise ValueError(
            f"{index.folder} must not hold an index yet; it does. Add to it with --add, choose "
            "another --out, or replace it with --replace."
        )


def refuse_overlap(folder: Path, named: Mapping[str, Path]) -> None:
    """Refuse a folder to write to that is, holds or lies in one that is read."""
    for word, path in named.items():
        if how := _overlap(folder, path):
            raise ValueError(
                f"--out must be a folder of its own; {folder} would {how} {word}, {path}. "
                "Choose another name beside it."
            )


def _overlap(one: Path, other: Path) -> str:
    """Return how two paths overlap, links followed: "be", "lie in", "hold" or "" for not at all."""
    one, other = one.resolve(), other.resolve()
    if one == other:
        return "be"
    if other in one.parents:
        return "lie in"
    return "hold" if one in other.parents else ""


def embedder_of(network: Network, run: Run, batch_size: int | None) -> BatchEmbedder:
    """Return a network with the size of its batches: the given one, or that of the run's recipe."""
    size = batch_size or run.recipe().get("evaluate", {}).get("batch_size") or BATCH
    return BatchEmbedder(network, int(size))


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
    parts, why = [NOTHING], dict[int, str]()
    for block in map(Block.read, paths):
        parts.append(block.rows)
        why |= block.errors
    rows = np.concatenate(parts)
    skipped = [(collection.names[row], text) for row, text in sorted(why.items())]
    skipped = [*collection.left_out, *skipped]
    if not len(rows):
        clear_workspace(index.building)
        sweep(index)
        raise ValueError(
            f"at least one image of {collection.name} must be readable; none of {total:,} is:\n  "
            + "\n  ".join(_in_lines(skipped[:10]))
        )
    segment = write_segment(
        index,
        first + np.arange(len(rows)),
        embedder.network.embedding_size,
        [collection.names[row] for row in rows],
        [collection.classes[row] for row in rows],
        collection.take(rows).columns,
        map(Block.read, paths),
    )
    return segment, skipped, speed


def _check_embeddings(
    embeddings: EmbeddingsFolder, network: Network, given: Mapping[str, bool]
) -> tuple[str, str]:
    """Return the name and the split of finished embeddings by this network; refuse others."""
    for option, is_given in given.items():
        if is_given:
            raise ValueError(
                f"{option} must be left out for {embeddings.folder}, which is embedded already."
            )
    contents = embeddings.contents()
    if not network.is_model_of(contents.model):
        raise OtherModelError(
            f"an index must have vectors of one model; {embeddings.folder} was embedded by another "
            f"than RUN. Leave RUN out to use that one, or embed the images again."
        )
    if missing := embeddings.missing(contents):
        raise ValueError(
            f"{embeddings.folder} must be finished; {len(missing):,} of {contents.num_shards:,} "
            "shards are missing. Start `weiss embed` again: it continues."
        )
    return contents.name, contents.split


def _copy_segment(
    index: IndexFolder, embeddings: EmbeddingsFolder, first: int
) -> tuple[Segment, Skipped, tuple[str, ...]]:
    """Copy embeddings into a segment; return it, the skipped images, and remarks on columns."""
    contents: Contents = embeddings.contents()
    names, classes = embeddings.read_items(contents)
    columns, left_out = embeddings.read_columns(contents)
    kept, remarks = kept_columns(columns, left_out, contents.name)
    skipped = embeddings.skipped(contents)
    if not names:
        raise ValueError(
            f"at least one image of {contents.name} must have a vector; none of "
            f"{contents.num_items:,} has:\n  " + "\n  ".join(_in_lines(skipped[:10]))
        )
    segment = write_segment(
        index,
        first + np.arange(len(names)),
        contents.model["embedding_size"],
        names,
        classes,
        kept,
        embeddings.read_blocks(contents),
    )
    return segment, skipped, remarks


def _find_ids(what: Sequence[str | int], items: Items) -> Array:
    """Return the sorted ids of names, ids and ``class:NAME``."""
    by_name = {segment.names[row]: id for id, segment, row in items}
    by_class = items.by_class()
    found: set[int] = set()
    for each in map(str, what):
        if each in by_name:
            found.add(by_name[each])
        elif each.isdecimal() and int(each) in items:
            found.add(int(each))
        elif each.startswith("class:") and each.removeprefix("class:") in by_class:
            found.update(by_class[each.removeprefix("class:")].tolist())
        else:
            known = [f"class:{name}" for name in by_class] if each.startswith("class:") else by_name
            hint = suggestion(each, known) if len(known) <= MOST_NAMES else ""
            if each in by_class:
                hint = f" To remove all items of the class {each}: class:{each}"
            raise UnknownItemError(
                f"what is removed must be in the index; {each!r} is neither a name, nor an id, nor "
                f"class:NAME of it.{hint}"
            )
    return np.array(sorted(found), dtype=np.int64)


def _without_known(
    collection: Collection, items: Items
) -> tuple[Array, Array, list[tuple[str, str]]]:
    """Return the rows to add, and those that the index has with the same content.

    Also the names of those that the index has, but the collection no longer, and why.
    """
    known = {segment.names[row]: segment.digests[row].tobytes() for _, segment, row in items}
    is_known = np.array([name in known for name in collection.names], dtype=bool)
    again = np.flatnonzero(is_known)
    already, other, gone = [], [], []
    for row, digest in zip(again, content_digests(collection.table.take(again)), strict=True):
        name = collection.names[row]
        if isinstance(digest, str):
            gone.append((name, digest))
        elif digest == known[name]:
            already.append(row)
        else:
            other.append(name)
    if other:
        raise ValueError(
            f"an item's name must be new to the index, or its content the same; {len(other):,} "
            f"have another content: {some(other)}. Remove these first (--remove NAME), or rename "
            "the files."
        )
    return np.flatnonzero(~is_known), np.array(already, dtype=np.int64), gone


def _other_values(collection: Collection, items: Items) -> str:
    """Return in how many items, all in the index, and in which columns a list differs from it."""
    if not collection.columns:
        return ""
    known = {segment.names[row]: segment.item(row).columns for _, segment, row in items}
    number, differ = 0, dict[str, None]()
    for row, name in enumerate(collection.names):
        other = [key for key, v in collection.columns.items() if v[row] != known[name].get(key)]
        number += bool(other)
        differ |= dict.fromkeys(other)
    if not number:
        return ""
    return (
        f"{number:,} of them have other values in {', '.join(differ)} now; the index keeps the old "
        "ones. To replace them: remove these items, then add them again."
    )


def _other_kinds(collection: Collection, items: Items) -> str:
    """Return which columns hold other kinds of values than the index has in them."""
    told = []
    for name, values in collection.columns.items():
        new, known = kinds(values), kinds(items.column(name))
        other = {kind: value for kind, value in new.items() if known and kind not in known}
        if other:
            here = " and ".join(f"{kind}, such as {in_short(v)!r}" for kind, v in other.items())
            told.append(f"{name} holds {here}; in the index it holds {' and '.join(known)}")
    if not told:
        return ""
    return (
        f"columns of another kind than in the index: {some(told, 12)}. A condition compares a "
        "number with numbers alone, and text with text. For one kind: remove what was added, "
        "correct the list, add it again."
    )


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


def _switch(index: IndexFolder, manifest: Manifest, num_classes: int, skipped: Skipped) -> None:
    lines = "".join(f"{line}\n" for line in _in_lines(skipped))
    index.switch(manifest, _index_card(manifest, num_classes, len(skipped)), lines)


def _report(change: Change, index: IndexFolder, quiet: bool) -> Change:
    lines = [*change.lines]
    if change.skipped:
        number = len(change.skipped)
        left_out = "is left out ({} lists it)" if number == 1 else "are left out ({} lists them)"
        lines.append(f"{number:,} could not be read and {left_out.format(SKIPPED)}:")
        lines += [f"  {line}" for line in change.skipped[:10]]
        lines += [f"  and {number - 10:,} more"] if number > 10 else []
    lines.append(f"Wrote {index.folder}. Search it: weiss search {index.folder} IMAGE")
    if not quiet:
        print("\n".join(lines), flush=True)
    return change


def _of_classes(number: int) -> str:
    return "1 class" if number == 1 else f"{number:,} classes"


def _index_card(manifest: Manifest, num_classes: int, num_skipped: int) -> str:
    """Return the card of an index, in Markdown."""
    model, shape = manifest.model, manifest.model["preprocessing"]
    classes = f" of {_of_classes(num_classes)}" if num_classes else ", without classes"
    files = "file" if num_skipped == 1 else "files"
    skipped = f"- {num_skipped:,} {files} could not be read: `{SKIPPED}`.\n" if num_skipped else ""
    threshold = f"There is no threshold: {manifest.threshold_why}."
    if manifest.threshold is not None:
        found = kept_threshold(manifest.threshold)
        threshold = (
            f"A hit with a similarity of {found.similarity_in_words()} or more is a match. "
            f"{found.rate('false_match_rate')} of impostors, pictures whose class is not in "
            f"the index, find a match; {found.rate('true_match_rate')} of those whose class "
            f"is in it find one of their class. Measured on {found.basis}. In brackets: 95 % "
            "intervals. In a much larger collection more impostors find a match."
        )
    made = (
        f"{model['backbone']}, trained with {model['loss']} on {model['num_classes']:,} classes of "
        f"{model['trained_on']}; {model['protocol']}."
    )
    made = f"{model['protocol']}." if model["loss"] == UNTRAINED else made
    return f"""# Index of {manifest.name}

{manifest.num_items:,} images{classes}, to be searched by a picture: `weiss search INDEX IMAGE`, \
`weiss serve INDEX`.

- Made {manifest.made}, changed {manifest.updated}.
- Store: {manifest.store["says"]}.
{skipped}
## Model

- {made}
- Input: {shape["size"]} x {shape["size"]} pixels; output: {model["embedding_size"]} dimensions, \
compared by cosine.
- Fingerprint `{model["fingerprint"]}`; an export with the same one can replace it.

{score_table(manifest.scores)}

## When something is a match

{threshold}
"""
