"""Embed the missing shards of a folder on a Ray cluster, by `ray.data`.

    a block for each missing shard: names, labels, further columns
      -> map_batches: an actor with a network -> Parquet file -> number of the shard, images

The data set moves names, no pixels: an actor reads the files of its shard itself, as every worker
of `weiss embed` does, and holds the lock of the shard while it does. So both kinds of workers can
share a folder, and whatever dies, only unfinished shards are embedded again. Ray places the actors,
and begins them and their shards again when a worker or a machine dies. ray is imported when it is
used.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weiss._base.clusters import connected, slots
from weiss._base.files import alone
from weiss.catalogue.collection import Collection
from weiss.catalogue.embed_column import EmbedColumn
from weiss.catalogue.embeddings_folder import (
    Claims,
    Contents,
    EmbeddingsFolder,
    given_columns,
    imported_pyarrow,
)
from weiss.data.object_storage import Objects
from weiss.data.sources import Files

FILE, NUMBER = "weiss.file", "weiss.shard"
"""Further columns of a block: where each image is below the root, and the shard."""
DEATHS = 3
"""Actors that may die one after the other while they load the network, as their machine dies."""
HELD_SECONDS, MOST_HELD_SECONDS, LOOK_SECONDS = 0.5, 8.0, 1.0
"""Between two looks at shards that other commands hold, at first and at most; and at the progress
of a task."""


def options_of_network(
    needs: Mapping[str, float], device: str, machines: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return what an actor with a network needs, as options of Ray.

    GPUs: none for the device ``"cpu"``, one for ``"cuda"``, and one for ``"auto"`` if the cluster
    has any. Cores, which decode: with a GPU its share of the machine's, otherwise one.

    Args:
        needs: numbers that replace these: ``gpus``, ``cpus``, ``memory`` in GB.
        device: of the network.
        machines: the resources of each machine, as Ray names them.

    Example:
        >>> options_of_network({}, "auto", [{"CPU": 32.0, "GPU": 4.0}, {"CPU": 64.0}])
        {'num_gpus': 1.0, 'num_cpus': 8}
    """
    with_gpus = [each for each in machines if each.get("GPU")]
    gpus = needs.get("gpus", float(device == "cuda" or (device == "auto" and bool(with_gpus))))
    shares = [int(each.get("CPU", 0) * gpus / each["GPU"]) for each in with_gpus if gpus]
    found = {"num_gpus": gpus, "num_cpus": needs.get("cpus", max(1, min(shares, default=1)))}
    return found | ({"memory": int(needs["memory"] * 1e9)} if needs.get("memory") else {})


def embed_on_ray(
    out: EmbeddingsFolder,
    contents: Contents,
    collection: Collection,
    further: Any,
    *,
    cluster: str,
    needs: Mapping[str, float],
    device: str,
    trust: bool,
    advance: Callable[[int], None],
) -> None:
    """Embed until no shard is missing.

    Args:
        out: the folder, on all machines.
        contents: of the folder.
        collection: its items, which are files or objects.
        further: their further columns, or None.
        cluster: the address of the cluster.
        needs: see `options_of_network`.
        device: where the networks are: auto, cpu or cuda.
        trust: as for `weiss.runs.Run`.
        advance: called with numbers of images that are done.

    Raises:
        ValueError: there is no such cluster, or it has no room for a network.
        RuntimeError: a machine cannot embed.
    """
    if not out.missing(contents):
        return
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"--device must be auto, cpu or cuda with --cluster, where Ray chooses the GPU; got "
            f"{device!r}."
        )
    with connected(cluster) as ray:
        machines = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        options = options_of_network(needs, device, machines)
        if not (room := sum(slots(each, options) for each in machines)):
            wanted = ", ".join(f"{name} {value:g}" for name, value in options.items())
            raise ValueError(
                f"the cluster must have room for a network, which needs {wanted}; it has none. "
                "Add a machine, or ask for less with --needs."
            )
        wait = HELD_SECONDS
        while missing := out.missing(contents):
            done = 0
            # What other commands hold is worth no actor, which would load the network for nothing.
            if free := free_shards(out, missing):
                blocks = [_block(contents, number, collection, further) for number in free]
                place = str(out.folder.absolute()), _root(collection), device, trust
                given = place, blocks, min(room, len(free)), options
                # A data set cannot be made through the client of Ray: a task makes it there.
                is_here = cluster == "auto"
                found = _embedded(*given) if is_here else _by_a_task(ray, out, contents, given)
                for rows in found:
                    done += rows
                    advance(rows)
            if done:
                wait = HELD_SECONDS
            else:
                time.sleep(wait)
                wait = min(2 * wait, MOST_HELD_SECONDS)


def free_shards(out: EmbeddingsFolder, numbers: Sequence[int]) -> list[int]:
    """Return which missing shards no other worker holds, one lock at a time."""
    free = []
    with Claims(out, numbers) as claims:
        for number in claims:
            free.append(number)
            claims.release(number)
    return free


def _embedded(
    place: tuple[str, str, str, bool],
    blocks: list[Any],
    actors: int,
    options: Mapping[str, float],
) -> Iterator[int]:
    """Yield how many images of each block are embedded, in the order of time."""
    import ray.data

    engine: Any = ray.data
    folder, root, device, trust = place
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # from_arrow would ask a task of the cluster about each block, and may join blocks.
    dataset = engine.from_blocks(blocks)
    dataset.context.enable_progress_bars = False
    dataset.context.max_consecutive_actor_init_deaths = DEATHS
    dataset = dataset.map_batches(
        ShardWriter,
        fn_constructor_args=(folder, root, device, int(options["num_cpus"])),
        fn_constructor_kwargs={"trust": trust},
        batch_size=None,  # a block is a shard
        batch_format="pyarrow",
        compute=engine.ActorPoolStrategy(size=actors),
        **options,
    )
    try:
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from batch.column("rows").to_pylist()
    except ray.exceptions.RayError as error:
        raise _failure(error, folder) from error


def _by_a_task(
    ray: Any, out: EmbeddingsFolder, contents: Contents, arguments: tuple[Any, ...]
) -> Iterator[int]:
    """Do what `_embedded` does in a task of the cluster; count the shards that appear."""

    def left() -> int:
        return sum(len(contents.rows(number)) for number in out.missing(contents))

    before = left()
    task = ray.remote(_embed_all).options(num_cpus=0).remote(*arguments)
    is_done = False
    while not is_done:
        is_done = bool(ray.wait([task], timeout=LOOK_SECONDS)[0])
        now = left()
        yield before - now
        before = now
    try:
        ray.get(task)
    except ray.exceptions.RayError as error:
        raise _failure(error, str(out.folder)) from error


def _embed_all(*arguments: Any) -> int:
    return sum(_embedded(*arguments))


def _failure(error: Exception, folder: str) -> RuntimeError:
    """Return the error for what an actor raised, whose words are in Ray's text of several lines."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    found = [line for line in lines if re.match(r"(?!ray\.)[\w.]+(Error|Exception): ", line)]
    said = (found or lines[-1:])[0]
    return RuntimeError(
        f"the machines of the cluster must be able to embed; one could not: {said} Finished files "
        f"in {folder} are kept: start the same command again."
    )


def _root(collection: Collection) -> str:
    source = collection.table.source
    assert isinstance(source, (Files, Objects))
    return source.root if isinstance(source, Objects) else str(source.root.absolute())


def _block(contents: Contents, number: int, collection: Collection, further: Any) -> Any:
    pa, source = imported_pyarrow(), collection.table.source
    assert isinstance(source, (Files, Objects))
    rows = contents.rows(number)
    table = given_columns(contents, number, collection, further)
    files = pa.array([str(source.paths[row]) for row in rows], pa.string())
    numbers = pa.array([number] * len(rows), pa.int64())
    return table.append_column(FILE, files).append_column(NUMBER, numbers)


class ShardWriter:
    """Embeds the images of a shard and writes its file; an actor of Ray.

    Args:
        folder: of the embeddings.
        root: the folder or the address of the images.
        device: of the network.
        cores: that this actor has, to decode.
        trust: as for `weiss.runs.Run`.
    """

    def __init__(self, folder: str, root: str, device: str, cores: int, *, trust: bool) -> None:
        self._out, self._root = EmbeddingsFolder(folder), root
        if not self._out.exists():
            raise RuntimeError(
                f"--out must be one folder for all machines of the cluster; {socket.gethostname()} "
                f"does not see the embeddings in {folder}. Use a shared disk."
            )
        self._contents = self._out.contents()
        self._embed = EmbedColumn(
            self._out.model,
            root=root,
            batch_size=self._contents.batch_size,
            device=device,
            num_workers=cores if cores > 1 else 0,
            trust=trust,
        )

    def __call__(self, table: Any) -> Any:
        """Write the shard of a block; return its number, and how many images it has.

        A shard that is there, or that another worker holds, has 0.
        """
        number, names = table.column(NUMBER)[0].as_py(), table.column(FILE).to_pylist()
        if (wanted := len(self._contents.rows(number))) != len(names):
            raise RuntimeError(f"a block must be shard {number}, {wanted} rows; got {len(names)}")
        path, done = self._out.shard(number), 0
        try:
            with alone(path, wait=False):
                if not path.is_file():
                    self._write(number, names, table.drop_columns([FILE, NUMBER]))
                    done = len(names)
        except BlockingIOError:
            pass
        return imported_pyarrow().table({"number": [number], "rows": [done]})

    def _write(self, number: int, names: list[str], given: Any) -> None:
        source = self._embed.source(names)
        if isinstance(source, Files) and not any(
            os.path.lexists(source.file(row)) for row in range(len(names))
        ):
            raise RuntimeError(
                f"the images must be seen by all machines of the cluster; {socket.gethostname()} "
                f"sees none of {len(names):,} in {self._root}. Use a shared disk."
            )
        block = self._embed.block(source)
        self._out.write_shard(self._contents, number, given, block)
