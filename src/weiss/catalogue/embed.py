"""Embed a collection into a folder of Parquet shards, by any number of processes at once.

    folder.begin -> workers: claim a shard, embed, write -> no shard is missing -> folder.finish

Every worker does the same: it begins at its share of the shards, embeds each that is missing and
that no other worker holds, and ends when none is missing. So the same command can be started again
after a kill, on another GPU, by torchrun or as tasks of Ray, and nothing is divided beforehand.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weiss._base.checks import count as a_count
from weiss._base.checks import some
from weiss._base.clusters import check_address, check_needs
from weiss._base.decoding import usable_cores
from weiss._base.progress import Bar
from weiss._version import __version__
from weiss.catalogue.building import check_batch_size, copy_model, embedder_of, refuse_overlap
from weiss.catalogue.collection import (
    Collection,
    checked_columns,
    column_remarks,
    is_list,
    open_items,
)
from weiss.catalogue.embed_on_ray import embed_on_ray
from weiss.catalogue.embedding import data_digest, embedded_blocks
from weiss.catalogue.embeddings_folder import (
    FORMAT,
    SKIPPED,
    Claims,
    Contents,
    EmbeddingsFolder,
    given_columns,
    imported_pyarrow,
    own_columns,
)
from weiss.catalogue.networks import network_of_run
from weiss.data import DATASETS
from weiss.data.list_columns import arrow_columns
from weiss.data.object_storage import Objects, is_address, local_list
from weiss.data.sources import Files
from weiss.runs.folder import Run

WAIT_SECONDS = 0.5
"""Between two looks at shards that other workers hold."""


@dataclass(frozen=True)
class Embedded:
    """The result of `embed_images`.

    Attributes:
        num_items: rows of all shards.
        skipped: images without a vector: name and reason.
        seconds: that this call took.
        lines: a summary for people.
    """

    num_items: int
    skipped: tuple[tuple[str, str], ...]
    seconds: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Rank:
    """Which of several workers this is; torchrun says it by the environment."""

    number: int = 0
    of: int = 1
    here: int = 0
    of_here: int = 1

    @classmethod
    def of_torchrun(cls) -> "Rank":
        """Return the rank that torchrun has given; alone without it."""
        names = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
        return cls(*(int(os.environ.get(name, usual)) for name, usual in names))

    def device(self, asked: str) -> str:
        """Return the device of this worker: with several GPUs each has its own."""
        import torch

        if asked not in ("auto", "cuda") or self.of_here == 1 or not torch.cuda.is_available():
            return asked
        return f"cuda:{self.here % torch.cuda.device_count()}"


def embed_images(
    run: str | Path,
    data: str | Path,
    folder: str | Path,
    *,
    root: str | Path | None = None,
    split: str = "all",
    nested: bool = False,
    class_name: str | None = None,
    shard_items: int | None = None,
    batch_size: int | None = None,
    device: str = "auto",
    num_workers: int | None = None,
    quiet: bool = False,
    trust: bool = False,
    rank: Rank | None = None,
    cluster: str | None = None,
    needs: Mapping[str, float] | None = None,
) -> Embedded:
    """Embed a collection into a folder of Parquet shards, or continue where it was interrupted.

    Args:
        run: the run folder whose network embeds.
        data: what `weiss.catalogue.build_index` takes, but no table.
        folder: where to write. The same call may run there several times at once, also on several
            machines that share the folder.
        root: as for `build_index`, as ``split``, ``nested`` and ``class_name``.
        split: see ``root``.
        nested: see ``root``.
        class_name: see ``root``.
        shard_items: rows of a shard; 2048 or a little more by default. A killed worker loses the
            shard that it was at.
        batch_size: pictures of a forward pass; the recipe's by default.
        device: where to embed.
        num_workers: decoding processes; one for each core by default.
        quiet: print nothing.
        trust: as for `weiss.runs.Run`.
        rank: which of several workers this is; torchrun's by default.
        cluster: embed on a Ray cluster instead: ``"auto"``, the one that this machine belongs to,
            or ``"ray://HOST:PORT"``. All its machines must see the folder and the images.
        needs: with a cluster, what each network needs: ``gpus``, ``cpus``, ``memory`` in GB; see
            `weiss.catalogue.embed_on_ray.options_of_network`.

    Raises:
        ValueError: the data, the run or the folder cannot be used, or the folder holds embeddings
            of other images or of another network.
    """
    begun, rank, out = time.monotonic(), rank or Rank.of_torchrun(), EmbeddingsFolder(folder)
    imported_pyarrow()  # now, not when the first shard is embedded
    check_batch_size(batch_size)
    if cluster is not None:
        check_address(cluster)
        check_needs(needs or {}, "a network")
        if rank.of > 1 or num_workers is not None:
            raise ValueError(
                "torchrun and num_workers must be left out with --cluster, where Ray decides how "
                "many processes work. Give --needs cpus=4, say."
            )
    elif needs:
        raise ValueError("--needs must come with --cluster: processes here share the machine.")
    if shard_items is not None:
        a_count("--shard-items", shard_items, "embedding")
    # Workers on other machines embed by the folder's own copy of the model.
    named = {} if Path(run) == out.model else {"RUN": Path(run)}
    if str(data) not in DATASETS and not is_address(data):
        named["IMAGES"] = Path(data)
    refuse_overlap(out.folder, named)
    source = Run(run, trust=trust)
    network = network_of_run(source, rank.device(device) if cluster is None else "cpu")
    options = {"split": split, "nested": nested, "class_name": class_name}
    collection, further, columns_digest = _opened(data, root, options)
    embedder = embedder_of(network, source, batch_size)
    wanted = Contents(
        format=FORMAT,
        weiss_version=__version__,
        name=collection.name,
        split=split,
        num_items=len(collection.table),
        several_labels=any(len(each) > 1 for each in collection.classes),
        shard_items=shard_items or embedder.block_size,
        batch_size=embedder.batch_size,
        data_digest=data_digest(collection),
        columns_digest=columns_digest,
        left_out=[list(each) for each in collection.left_out],
        model=network.manifest_facts("model"),
        scores=dict(network.facts["scores"]),
    )
    if cluster is not None and not isinstance(collection.table.source, (Files, Objects)):
        raise ValueError(
            f"with --cluster the images must be files; those of {collection.name} are in memory. "
            "Leave --cluster out."
        )
    contents = out.begin(wanted, lambda path: copy_model(source, path))
    out.remove_damaged(contents)
    before = contents.num_items - sum(len(contents.rows(n)) for n in out.missing(contents))
    total = contents.num_items
    with Bar(total, f"embedding {collection.name}", unit="images", delay=1.0) as bar:
        advance = (lambda worth: None) if quiet or rank.number else bar.advance
        advance(before)
        if cluster is not None:
            embed_on_ray(
                out,
                contents,
                collection,
                further,
                cluster=cluster,
                needs=needs or {},
                device=device,
                trust=trust,
                advance=advance,
            )
        else:
            cores = max(1, usable_cores() // rank.of_here)
            workers = num_workers if num_workers is not None or rank.of_here == 1 else cores
            for shards in _until_done(out, contents, rank):
                blocks = embedded_blocks(
                    collection,
                    embedder,
                    ((number, contents.rows(number)) for number in shards),
                    num_workers=workers,
                    advance=advance,
                )
                for number, block in blocks:
                    given = given_columns(contents, number, collection, further)
                    block = block.counted_from(contents.rows(number).start)
                    out.write_shard(contents, number, given, block)
                    shards.release(number)
    skipped = out.finish(contents)
    seconds = time.monotonic() - begun
    lines = _lines(collection, contents, before, seconds, skipped, out.folder)
    if not quiet and not rank.number:
        print("\n".join(lines), flush=True)
    return Embedded(contents.num_items, tuple(skipped), seconds, lines)


def _opened(
    data: str | Path, root: str | Path | None, options: Mapping[str, Any]
) -> tuple[Collection, Any, str]:
    """Return the collection, the further columns of a list or None, and a digest of these.

    The digest is that of the list, and empty if there are no such columns.
    """
    if not is_list(data):
        return open_items(data, root=root, **options), None, ""
    with local_list(data, root) as (path, root):
        collection = open_items(path, root=root, **options)
        further, left_out = arrow_columns(path, collection.table)
        digest = "" if further is None else hashlib.sha256(path.read_bytes()).hexdigest()
    names = [] if further is None else further.column_names
    if taken := sorted({*own_columns()} & {*names}):
        raise ValueError(
            f"further columns of {data} must have names of their own; {some(taken)} would be those "
            "of the embeddings. Rename them."
        )
    # Now, not when they are indexed.
    kept = checked_columns(dict.fromkeys(names, ()), collection.name)
    remarks = (*collection.remarks, *column_remarks(kept, left_out))
    return replace(collection, remarks=remarks), further, digest


def _until_done(out: EmbeddingsFolder, contents: Contents, rank: Rank) -> Iterator[Claims]:
    """Yield claims on missing shards, own share first, until none is missing.

    What another worker holds is waited for: if it dies, its shard is taken.
    """
    while missing := out.missing(contents):
        start = len(missing) * rank.number // rank.of
        with Claims(out, missing[start:] + missing[:start]) as claims:
            yield claims
            has_worked = claims.num_taken > 0
        if not has_worked:
            time.sleep(WAIT_SECONDS)


def _lines(
    collection: Collection,
    contents: Contents,
    before: int,
    seconds: float,
    skipped: list[tuple[str, str]],
    folder: Path,
) -> tuple[str, ...]:
    new = contents.num_items - before
    speed = f"embedded at {new / max(seconds, 1e-9):,.0f} images/s" if new else "embedded earlier"
    speed += f", {before:,} earlier" if before and new else ""
    lines = [
        f"{contents.name}: {contents.num_items:,} images in {contents.num_shards:,} shards, "
        f"{contents.model['embedding_size']} dimensions, {speed}",
        *collection.remarks,
    ]
    if skipped:
        lines.append(
            f"{len(skipped):,} could not be read, without a vector ({SKIPPED} lists them):"
        )
        lines += [f"  {name}: {why}" for name, why in skipped[:10]]
        lines += [f"  and {len(skipped) - 10:,} more"] if len(skipped) > 10 else []
    lines.append(f"Wrote {folder}. Index it: weiss index {folder} --out INDEX")
    return tuple(lines)
