"""Features of a frozen trunk: computed once, kept on disk, trained on in place of images.

    image, crop -> conversion, trunk, pooling -> features     once for every image and view
    features -> head -> embedding                             in every step

The features of an image depend on the trunk, the crop, the precision and the image. They are kept
in the cache folder by these facts and by the digest of the image's content, wherever the image is.
A run that is resumed, and a run with another loss or seed, find them there. A random view of an
image is the same in every run, for the same reason.

Dimensions: N items of a table, n some of them, V views, F features.
"""

import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weiss._base.arrays import Array
from weiss._base.devices import autocast
from weiss._base.files import cache_folder
from weiss._base.processes import sum_over
from weiss._base.progress import Bar
from weiss._base.tensor_files import (
    DamagedFileError,
    digest_of,
    on_host,
    read_tensors,
    write_tensors,
)
from weiss.backbones import Embedder
from weiss.data import CentreCrop, Pipeline, RandomCrop
from weiss.data.content import digests_of_items
from weiss.data.sources import Vectors
from weiss.runs.completion import image_sizes
from weiss.runs.evaluator import NotFiniteError
from weiss.runs.experiment import Experiment
from weiss.runs.recipe import Recipe

FORMAT = "1"
BATCH = 32
"""Images of a pass. The last ones are repeated until it is full: in passes of one size the features
of an image do not depend on the images beside it, to the last bit."""
PART = 16 * BATCH
"""Images whose features are one file, so that a killed run loses little."""
DIGESTS, FEATURES = "digests", "features"


@dataclass(frozen=True)
class View:
    """How images are shown to a trunk: their centre, or a random crop that a number chooses."""

    crop: CentreCrop | RandomCrop
    number: int = 0

    def batches(self, pipeline: Pipeline, rows: Array, digests: Array) -> Iterator[Tensor]:
        """Yield images of some rows of a pipeline, `BATCH` at a time."""
        if isinstance(self.crop, CentreCrop):
            shown = pipeline.evaluation(self.crop, rows=rows, batch_size=BATCH)
        else:
            # By content: an image has this crop in every table and at every place in it.
            places = np.ascontiguousarray(digests[:, :8]).view(np.uint64)[:, 0]
            shown = pipeline.random_crops(
                self.crop, self.number, places, rows=rows, batch_size=BATCH
            )
        return (batch.images for batch in shown)


def random_views(recipe: Recipe, model: Embedder) -> list[View]:
    """Return the random views that a recipe asks for; they do not depend on its seed."""
    augment, size = recipe.augment, image_sizes(recipe, model.input).train
    crop = RandomCrop(size, augment.area, augment.ratio, augment.flip, augment.resize, seed=0)
    return [View(crop, number) for number in range(augment.views)]


class KeptFeatures:
    """The features of one trunk in one view, in a folder: files of digests and features.

    Args:
        recipe: complete; its precision, sizes of images and cache count.
        model: the network.
        view: how images are shown to it.
        device: the kind of device that computes.
    """

    def __init__(self, recipe: Recipe, model: Embedder, view: View, device: torch.device) -> None:
        parts = {**model.trunk.state_dict(), **model.pooling.state_dict(prefix="pooling.")}
        scaled = " scaled" if recipe.data.scaled_decoding else ""
        facts = {
            "format": FORMAT,
            "torch": torch.__version__,
            "pillow": metadata.version("pillow"),
            "network": f"{model.architecture} {model.pooling} {model.input}",
            "view": repr(view),
            "short side": str(image_sizes(recipe, model.input).kept or "original") + scaled,
            "precision": recipe.train.precision,
            "device": device.type,
        }
        cache = cache_folder() if recipe.data.cache is None else Path(recipe.data.cache)
        key = digest_of({name: on_host(value) for name, value in parts.items()}, facts)
        self.folder, self._num_features = cache / "features" / key, model.trunk.num_features

    def find(self, digests: Array) -> tuple[Tensor, Array]:
        """Return features ``(n, F)`` of images with these digests, ``(n, 16)``; and which are kept.

        Those that are not kept are zero.
        """
        wanted: dict[bytes, list[int]] = {}
        for row, digest in enumerate(digests):
            wanted.setdefault(digest.tobytes(), []).append(row)
        features = torch.zeros(len(digests), self._num_features)
        known = np.zeros(len(digests), dtype=bool)
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                tensors, _ = read_tensors(path, is_ours=True)
                there = [digest.tobytes() for digest in tensors[DIGESTS].numpy()]
                pairs = [(row, at) for at, one in enumerate(there) for row in wanted.get(one, ())]
                rows, ats = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
                features[rows] = tensors[FEATURES][ats].float()
                known[rows] = True
            except (DamagedFileError, KeyError, OSError, RuntimeError) as error:
                path.unlink(missing_ok=True)
                warnings.warn(f"{error} It is deleted and computed again.", stacklevel=2)
        return features, known

    def add(self, digests: Array, features: Tensor) -> None:
        """Keep features ``(n, F)``; a disk that cannot be written to is no reason to stop."""
        tensors = {DIGESTS: torch.from_numpy(digests), FEATURES: features}
        try:
            write_tensors(self.folder / f"{uuid.uuid4().hex}.safetensors", tensors, {})
        except OSError as error:
            warnings.warn(
                f"features could not be kept in {self.folder}: {error}. The next run computes them "
                "again.",
                stacklevel=2,
            )


def experiment_on_features(
    experiment: Experiment,
    model: Embedder,
    *,
    watch: Callable[[], None] = lambda: None,
    quiet: bool = False,
) -> tuple[Experiment, int]:
    """Return an experiment on features in place of images, and how many had to be computed.

    Every item has the features of its centre crop. In training each item that trains is served in
    one of ``augment.views`` random views, drawn anew for each place in an epoch, if there are any.
    All processes must call it; ``watch`` is called between passes and may raise to stop; ``quiet``
    shows no progress.
    """
    recipe, table = experiment.recipe, experiment.table
    every, train = np.arange(len(table)), experiment.train_rows
    views = random_views(recipe, model)
    was_training = model.training
    model.eval()
    try:
        with Bar(len(every) + len(views) * len(train), "features", unit="images") as bar:
            advance = (lambda worth: None) if quiet else bar.advance
            work = _Work(experiment, model, watch, advance)
            vectors, count = work.features(View(experiment.evaluator.crop), every)
            shown = []
            for view in views:
                found, more = work.features(view, train)
                shown.append(found)
                count += more
    finally:
        model.train(was_training)
    pipeline = Pipeline(
        replace(table, source=Vectors(vectors.numpy())),
        device=experiment.device,
        views=torch.stack(shown) if shown else None,
    )
    return experiment.on(pipeline), count


@dataclass(frozen=True)
class _Work:
    """Computes features by one trunk."""

    experiment: Experiment
    model: Embedder
    watch: Callable[[], None]
    advance: Callable[[int], None]

    def features(self, view: View, rows: Array) -> tuple[Tensor, int]:
        """Return the features ``(n, F)`` of some rows, on the host; how many were not kept.

        The rows are shared among the processes, and so is that number, of all of them.
        """
        processes, experiment = self.experiment.processes, self.experiment
        mine = rows[processes.rank :: processes.size]
        kept = KeptFeatures(experiment.recipe, self.model, view, experiment.device)
        digests = digests_of_items(experiment.table.source.take(mine))
        features, known = kept.find(digests)
        missing = np.flatnonzero(~known)
        self.advance(len(mine) - len(missing))
        for start in range(0, len(missing), PART):
            part = missing[start : start + PART]
            found = self._computed(view, mine[part], digests[part])
            kept.add(digests[part], found)
            features[part] = found.float()
        on_device = features.to(experiment.device)
        computed = torch.tensor(len(missing), device=experiment.device)
        if processes.size > 1:
            computed = sum_over(computed, processes.group)
        return processes.collect(on_device, len(rows)).cpu(), int(computed)

    @torch.no_grad()
    def _computed(self, view: View, rows: Array, digests: Array) -> Tensor:
        full = np.resize(np.arange(len(rows)), -(-len(rows) // BATCH) * BATCH)
        precision = autocast(self.experiment.recipe.train.precision, self.experiment.device)
        found = []
        for images in view.batches(self.experiment.pipeline, rows[full], digests[full]):
            self.watch()
            with precision():
                found.append(self.model.features(images).cpu())
            self.advance(min(BATCH, len(rows) - (len(found) - 1) * BATCH))
        features = torch.cat(found)[: len(rows)]
        if not bool(features.isfinite().all()):
            raise NotFiniteError("features must be finite to be trained on; some are not.")
        return features
