"""From a table to batches on the device: decode once, crop for every batch.

Images on the device are cropped there. Images in memory or on disk are gathered first. Images that
fit nowhere are decoded by worker processes, some batches ahead. For a GPU a thread prepares the
next batch while the last one trains: Python waits for the backward pass in most of a training step,
so this costs almost nothing. The batches are the same in all cases.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks, draws, images
from weiss._base.arrays import Array
from weiss._base.decoding import CHUNK, Decoders
from weiss._base.devices import gigabytes
from weiss._base.images import Reduction
from weiss.data.cache import STORAGES, open_store
from weiss.data.crops import CentreCrop, RandomCrop, Windows
from weiss.data.resample import resample, to_device
from weiss.data.samplers import Sampler, share_of
from weiss.data.sources import Files, Pixels, Vectors
from weiss.data.store import (
    BadImagesError,
    Storage,
    Store,
    begin_store,
    decode_table,
    store_of,
    workers_for,
)
from weiss.data.table import Table

T = TypeVar("T")
Crop = Callable[[Array], Windows]
"""From the sizes ``(B, 2)`` of images to the windows to crop."""
AHEAD = 2
"""Batches that are prepared for a GPU ahead of the one in use."""


@dataclass(frozen=True)
class Batch:
    """Some items of a table, ready for a network.

    Args:
        images: float32 ``(B, c, S, S)`` in 0..255, or ``(B, F)`` vectors; on the device.
        labels: int64 ``(B,)`` or float ``(B, C)`` multi-hot; on the device.
        items: int64 ``(B,)``, the rows of the table; on the host.
    """

    images: Tensor
    labels: Tensor
    items: Array


class Pipeline:
    """The images of a table, decoded once and served in batches.

    Args:
        table: the items.
        device: where batches go.
        keep: where decoded images are kept: ``"gpu"``, ``"memory"``, ``"disk"``, ``"stream"`` (not
            at all), or ``"auto"``, the first of these that they fit.
        short_side: images are kept with their shorter side reduced to this; None keeps them as
            they are. At 256 an evaluation that resizes to 256 loses nothing. Arrays are never
            reduced.
        skip_bad: leave unreadable images out, with a warning that lists them, rather than raise.
        num_workers: decoding processes; by default one for each usable core. 0 decodes in this
            process; images that are decoded each time need at least one.
        cache: folder for images kept on disk.
        scaled_decoding: decode JPEG files that are at least twice as large as what they are reduced
            to at 1/2, 1/4 or 1/8 of their size: faster, with slightly different pixels. Images of a
            Hugging Face data set are decoded by its library, as usual.
        views: for a table of vectors: ``(V, n, F)``, other vectors of the n items that train.
            `training` serves one of the V in place of each item's own.

    Attributes:
        table: the items that are served, without the bad ones; make the sampler for this one.
        storage: where the images are, and why.
        skipped: what was wrong with the images that were left out.
    """

    def __init__(
        self,
        table: Table,
        *,
        device: str | torch.device = "cpu",
        keep: str = "auto",
        short_side: int | None = 256,
        skip_bad: bool = False,
        num_workers: int | None = None,
        cache: str | Path | None = None,
        scaled_decoding: bool = False,
        views: Tensor | None = None,
    ) -> None:
        checks.one_of("keep", keep, ("auto", *STORAGES), "Pipeline")
        if short_side is not None:
            checks.count("short_side", short_side, "Pipeline")
        checks.flag("scaled_decoding", scaled_decoding, "Pipeline")
        # "cuda" means the current GPU; an empty tensor has its number.
        self.device = torch.empty(0, device=device).device
        self.table = table
        self.skipped: list[str] = []
        self._num_workers, self._reduction = num_workers, Reduction(short_side, scaled_decoding)
        self._store: Store | None = None
        self._vectors: Tensor | None = None
        self._views = None if views is None else views.to(self.device)
        cache = None if cache is None else Path(cache)
        if isinstance(table.source, Vectors):
            self._vectors = torch.from_numpy(np.asarray(table.source.vectors)).float()
            self._vectors = self._vectors.to(self.device)
            self.storage = Storage("memory", "vectors need no decoding")
            return
        if keep == "gpu" and self.device.type != "cuda":
            raise ValueError(
                f"keep must not be 'gpu' for Pipeline on {self.device}; a CUDA device is needed. "
                "Pass device='cuda', or keep='auto'."
            )
        self.storage, self._store, errors = open_store(
            table,
            keep,
            reduction=self._reduction,
            device=self.device,
            num_workers=num_workers,
            cache=cache,
        )
        if self._store is None:
            # Decode everything once: better to stop now than in the third epoch.
            small = replace(self._reduction, short_side=1)
            _, _, errors = decode_table(len, table, small, self._stream_workers(), "checking")
        if errors:
            self._leave_out(errors, skip_bad)

    def describe(self) -> str:
        """Return one line about where the images are."""
        kept = {"gpu": "on the GPU", "memory": "in memory", "disk": "on disk"}
        if self._vectors is not None:
            return f"{len(self.table):,} vectors on {self.device}"
        if self._store is None:
            return f"{len(self.table):,} images, decoded each time ({self.storage.why})"
        size = gigabytes(int(self._store.num_pixels().sum()) * self.table.source.channels)
        where = kept[self.storage.name]
        return f"{len(self.table):,} images, {size} decoded {where} ({self.storage.why})"

    def training(
        self,
        sampler: Sampler,
        crop: RandomCrop,
        epoch: int,
        *,
        rows: Array | None = None,
        start: int = 0,
        process: int = 0,
        num_processes: int = 1,
    ) -> Iterator[Batch]:
        """Serve this process's part of the batches of an epoch, which counts from 0.

        On a GPU they are made on the stream that is current at the first batch; use them there.

        Args:
            sampler: the items of each batch.
            crop: the windows. They depend only on seed, epoch and position in the epoch.
            epoch: the number of the epoch.
            rows: ``(n,)`` the rows of ``pipeline.table`` that the sampler's items index; all by
                default.
            start: the step to begin with, after a restart.
            process: which of several processes this is.
            num_processes: how many share each batch.
        """
        served = len(self.table) if rows is None else len(rows)
        if sampler.num_items != served:
            of = "pipeline.table" if rows is None else "rows"
            raise ValueError(
                f"the sampler must choose from the {served:,} items of {of}; it was made for "
                f"{sampler.num_items:,}. Make it for those, or pass rows=table.rows('train')."
            )
        batches = sampler.batches(epoch)
        if not 0 <= start <= len(batches):
            raise ValueError(
                f"start must lie in [0, {len(batches)}], the steps of an epoch; got {start}. "
                "Resume at a step of this epoch, or with the next epoch."
            )
        positions = np.arange(batches.size).reshape(batches.shape)
        mine = share_of(batches, process, num_processes)[start:]
        my_positions = share_of(positions, process, num_processes)[start:]
        items = mine if rows is None else rows[mine]
        self._check_plan(items, crop.resize or crop.size)
        if self._views is not None:
            drawn = draws.uniform(crop.seed, draws.VIEWS, epoch, my_positions)
            return self._serve_views(mine, items, np.floor(drawn * len(self._views)).astype(int))
        crops = [partial(crop.windows, epoch=epoch, positions=at) for at in my_positions]
        return self._serve(list(items), crops)

    def evaluation(
        self, crop: CentreCrop, *, rows: Array | None = None, batch_size: int = 128
    ) -> Iterator[Batch]:
        """Serve all items, or some rows of ``pipeline.table``, once and in order."""
        checks.count("batch_size", batch_size, "Pipeline.evaluation")
        rows = np.arange(len(self.table)) if rows is None else rows
        self._check_plan(rows, crop.resize)
        parts = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
        return self._serve(parts, [crop.windows] * len(parts))

    def random_crops(
        self, crop: RandomCrop, number: int, places: Array, *, rows: Array, batch_size: int
    ) -> Iterator[Batch]:
        """Serve some rows once and in order, each in a random crop.

        ``places`` ``(n,)`` and a number stand for position and epoch in `RandomCrop.windows`: the
        same ones give the same crop.
        """
        self._check_plan(rows, crop.resize or crop.size)
        starts = range(0, len(rows), batch_size)
        at = [places[i : i + batch_size] for i in starts]
        crops = [partial(crop.windows, epoch=number, positions=each) for each in at]
        return self._serve([rows[i : i + batch_size] for i in starts], crops)

    def _check_plan(self, items: Array, side: int) -> None:
        """Refuse items that are not there; warn if crops enlarge the images that are kept."""
        if items.size and not 0 <= items.min() <= items.max() < len(self.table):
            left_out = f", {len(self.skipped):,} having been left out" if self.skipped else ""
            raise ValueError(
                f"rows and the sampler's items must lie in [0, {len(self.table):,}), the rows of "
                f"pipeline.table{left_out}; got {items.max() if items.min() >= 0 else items.min()}."
                " Ask pipeline.table for rows, and count them for the sampler."
            )
        from_files = self._vectors is None and not isinstance(self.table.source, Pixels)
        kept = self._reduction.short_side
        if from_files and kept is not None and side > kept:
            warnings.warn(
                f"images are kept with a shorter side of at most {kept} pixels and "
                f"will be enlarged to {side}; pass short_side={side} or more to Pipeline",
                stacklevel=3,
            )

    def _serve(self, parts: list[Array], crops: Sequence[Crop]) -> Iterator[Batch]:
        source = self.table.source
        if self._vectors is not None:
            for items in parts:
                yield self._batch(self._vectors[torch.from_numpy(items).to(self.device)], items)
        elif self._store is None and isinstance(source, Files):
            yield from self._stream(source, parts, crops)
        else:
            yield from self._prepared(map(partial, repeat(self._prepare), parts, crops))

    def _serve_views(self, chosen: Array, items: Array, views: Array) -> Iterator[Batch]:
        """Serve views ``(steps, b)`` of items; ``chosen`` counts these among those that train."""
        assert self._views is not None
        for own, rows, which in zip(chosen, items, views, strict=True):
            yield self._batch(self._views[which, own], rows)

    def _prepare(self, items: Array, crop: Crop) -> Batch:
        """Crop items from the store, or read them now if they fit nowhere and are no files."""
        store, source = self._store, self.table.source
        if store is None:
            side = self._reduction.short_side
            read = [images.reduced(source.read(item), side) for item in items]
            return self._cropped(store_of(read), items, crop)
        elsewhere = store.pixels.device != self.device
        return self._cropped(store.gather(items) if elsewhere else store.take(items), items, crop)

    def _prepared(self, jobs: Iterator[Callable[[], Batch]]) -> Iterator[Batch]:
        """Yield the batches of jobs, in order; for a GPU a thread does some of them ahead."""
        if self.device.type != "cuda":
            # The CPU trains; a second thread would only take turns with it.
            for job in jobs:
                yield job()
            return
        stream = torch.cuda.current_stream(self.device)

        def do(job: Callable[[], Batch]) -> Batch:
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                return job()

        with ThreadPoolExecutor(1, "weiss-prepare") as thread:
            try:
                for batch in _begun_ahead((thread.submit(do, job) for job in jobs), AHEAD):
                    yield batch.result()
            finally:
                thread.shutdown(cancel_futures=True)

    def _stream(self, source: Files, parts: list[Array], crops: Sequence[Crop]) -> Iterator[Batch]:
        """Serve from files: worker processes decode the next batches meanwhile."""
        num_workers = self._stream_workers()
        # Every worker decodes one chunk and has one in its queue.
        ahead = AHEAD + -(-2 * num_workers * CHUNK // max(len(parts[0]), 1)) if parts else 0
        with Decoders(num_workers, channels=source.channels, reduction=self._reduction) as decoders:

            def decode(items: Array, crop: Crop) -> Callable[[], Batch]:
                paths = [source.file(item) for item in items]
                finish = begin_store(decoders, paths, source.channels)
                return lambda: self._cropped(finish(), items, crop)

            yield from self._prepared(_begun_ahead(map(decode, parts, crops), ahead))

    def _stream_workers(self) -> int:
        return max(workers_for(len(self.table), self._num_workers), 1)

    def _cropped(self, store: Store, items: Array, crop: Crop) -> Batch:
        """Crop the images of a store, which are these items, on the device."""
        pixels = store.pixels.to(self.device, non_blocking=True)
        windows = crop(store.sizes)
        return self._batch(resample(pixels, store.starts, store.sizes[:, 1], windows), items)

    def _batch(self, shown: Tensor, items: Array) -> Batch:
        labels = torch.from_numpy(np.ascontiguousarray(self.table.labels[items]))
        if self.table.is_multi_label:
            labels = labels.float()
        return Batch(shown, to_device(labels, self.device), items)

    def _leave_out(self, errors: dict[int, str], skip_bad: bool) -> None:
        good = np.setdiff1d(np.arange(len(self.table)), np.array(list(errors)))
        if not skip_bad or not len(good):
            raise BadImagesError(errors, len(self.table))
        self.skipped = list(errors.values())
        listed = "\n  ".join(self.skipped)
        warnings.warn(f"{len(errors):,} unreadable images are left out:\n  {listed}", stacklevel=3)
        self.table = self.table.take(good)
        if self._store is not None:
            self._store = self._store.take(good)


def _begun_ahead(jobs: Iterator[T], ahead: int) -> Iterator[T]:
    """Yield jobs, each made this many before it is asked for."""
    waiting = deque(islice(jobs, ahead))
    while waiting:
        waiting.extend(islice(jobs, 1))
        yield waiting.popleft()
