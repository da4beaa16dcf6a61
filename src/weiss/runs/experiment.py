"""The data of a run: which items train, in which batches, and what is measured.

Dimensions: N items, B batch, C training classes, D embedding size.
"""

import warnings
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss._base import checks
from weiss._base.processes import Processes
from weiss.backbones import InputSpec
from weiss.data import (
    DATASETS,
    CentreCrop,
    PerClass,
    Pipeline,
    RandomCrop,
    Shuffled,
    Table,
    class_folds,
    leave_fold_out,
    open_table,
)
from weiss.data.object_storage import is_address
from weiss.data.samplers import Sampler
from weiss.data.sources import Files
from weiss.runs.completion import image_sizes
from weiss.runs.evaluator import Evaluator
from weiss.runs.folder import Run
from weiss.runs.recipe import Recipe


def open_data(recipe: Recipe, table: Table | None = None) -> Table:
    """Return the table that a recipe names, with a fold held out if it asks for one.

    A table that is given is used in place of the one that the recipe names.
    """
    if table is None:
        table = _named_table(recipe)
    data, evaluate = recipe.data, recipe.evaluate
    if evaluate.on == "held_out" and not table.has("valid"):
        classes = table.part("train").classes()
        if len(classes) < evaluate.folds:
            raise ValueError(
                f"evaluate.folds must be at most the number of training classes, {len(classes)}, "
                f"to hold a fold of them out; got {evaluate.folds}. Use fewer folds."
            )
        seed = data.split_seed if evaluate.order == "shuffled" else None
        table = leave_fold_out(table, class_folds(classes, evaluate.folds, seed), evaluate.fold)
    return table.take(np.flatnonzero(table.splits != "unused"))


def refuse_addresses(run: Run, opened: Recipe | None = None) -> None:
    """Refuse a run whose recipe names data in object storage, unless it is trusted.

    With ``opened``, the recipe by which data are opened, only what that has from the run counts.

    Raises:
        UntrustedError: somebody else may have made it, and opening the data would ask there.
    """
    data = run.recipe().get("data", {})
    if opened is not None:
        wanted = {"name": opened.data.name, "root": opened.data.root}
        data = {key: value for key, value in wanted.items() if data.get(key) == value}
    named = [data[key] for key in ("name", "root") if is_address(data.get(key, ""))]
    if named and not run.trust:
        raise checks.UntrustedError(
            f"a run must not open addresses by itself; the recipe of {run.folder} names "
            f"{named[0]}. If you trust who made it: --trust (in Python: trust=True)."
        )


def refuse_folder_among_images(out: Path, recipe: Recipe) -> None:
    """Refuse to write into the folder of photos that is trained on: it would become a class."""
    images = Path(recipe.data.name)
    if recipe.data.name in DATASETS or not images.is_dir():
        return
    found, folder = images.resolve(), out.resolve()
    if found == folder or found in folder.parents:
        raise ValueError(
            f"--out must be a folder of its own; {out} would lie in {images}, the photos to train "
            "on. Choose another name beside it."
        )


def _named_table(recipe: Recipe) -> Table:
    data = recipe.data
    is_there = data.name in DATASETS or is_address(data.name) or Path(data.name).exists()
    if not is_there:
        raise ValueError(
            f"data.name must be a data set ({', '.join(DATASETS)}), a folder, or a list of files; "
            f"{data.name!r} is none, seen from this folder."
            f"{checks.suggestion(data.name, DATASETS)} Say where the data are: --set data.name=PATH"
        )
    return open_table(data.name, root=data.root, how=data.how, allow_missing=data.allow_missing)


def open_pipeline(
    recipe: Recipe, table: Table, input: InputSpec, device: torch.device, processes: Processes
) -> Pipeline:
    """Return the images of a table, decoded and kept as a recipe and its network need them."""
    keep = recipe.data.keep
    # Processes that each decoded and kept everything would need their number times the memory; on
    # disk one decodes, and the system's file cache is shared by all.
    if keep == "auto" and processes.local_size > 1 and isinstance(table.source, Files):
        keep = "disk"
    return Pipeline(
        table,
        device=device,
        keep=keep,
        short_side=image_sizes(recipe, input).kept,
        skip_bad=recipe.data.skip_bad,
        num_workers=recipe.data.num_workers,
        cache=recipe.data.cache,
        scaled_decoding=recipe.data.scaled_decoding,
    )


class Experiment:
    """The data of a run with a complete recipe, ready for training and evaluation.

    Attributes:
        class_names: C names of the training classes, in the order in which the loss has them.
        steps: batches in an epoch.
        measured: the split that is evaluated in training, ``"test"`` or ``"valid"``, or None.
    """

    def __init__(self, recipe: Recipe, pipeline: Pipeline, processes: Processes) -> None:
        augment, evaluate = recipe.augment, recipe.evaluate
        assert augment.size and evaluate.size and evaluate.resize  # noqa: PT018
        self.recipe, self.pipeline, self.processes = recipe, pipeline, processes
        self.device, self.table = pipeline.device, pipeline.table
        crop = CentreCrop(evaluate.size, evaluate.resize)
        self.evaluator = Evaluator(pipeline, crop, evaluate, processes)
        self.train_rows = self.table.rows("train")
        part = self.table.take(self.train_rows)
        train = part.compact()
        self.class_names = train.class_names
        self._index_C = torch.from_numpy(part.classes()).to(self.device)
        self._lookup = torch.full((self.table.num_classes,), -1, device=self.device)
        self._lookup[self._index_C] = torch.arange(len(self._index_C), device=self.device)
        settings = recipe.train
        assert isinstance(settings.batch_size, int)
        self.sampler: Sampler = Shuffled(len(train), settings.batch_size, recipe.seed)
        if settings.sampler == "per_class":
            per_class = settings.per_class
            classes = settings.batch_size // per_class
            self.sampler = PerClass(train, classes, per_class, recipe.seed, settings.steps)
        self.steps = len(self.sampler.batches(0))
        self._random = RandomCrop(
            augment.size,
            area=augment.area,
            ratio=augment.ratio,
            flip=augment.flip,
            resize=augment.resize,
            seed=recipe.seed,
        )
        wanted = "valid" if evaluate.on == "held_out" else "test"
        self.measured = wanted if self.can_be_measured(wanted) else None

    def on(self, pipeline: Pipeline) -> "Experiment":
        """Return the same experiment with another pipeline of the same items."""
        other = copy(self)
        other.pipeline, other.table = pipeline, pipeline.table
        other.evaluator = self.evaluator.on(pipeline)
        return other

    @property
    def num_classes(self) -> int:
        """C, the number of training classes."""
        return len(self.class_names)

    def can_be_measured(self, split: str) -> bool:
        """Return whether a split has items of two classes; warn if it has items of one."""
        if not self.table.has(split):
            return False
        if len(self.table.part(split).classes()) > 1:
            return True
        warnings.warn(
            f"the {split} part of {self.table.name} has a single class, so every result of a "
            "search is right: it is not measured. Hold out more classes (data.held_out, "
            "evaluate.folds), or add some.",
            stacklevel=3,
        )
        return False

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels of this process's part of each batch, from a step on."""
        for batch in self.pipeline.training(
            self.sampler,
            self._random,
            epoch,
            rows=self.train_rows,
            start=start,
            process=self.processes.rank,
            num_processes=self.processes.size,
        ):
            yield batch.images, self._training_labels(batch.labels)

    def train_labels(self) -> Tensor:
        """Return the labels of all training items, in the order of `embed_training`."""
        labels = torch.from_numpy(self.table.labels[self.train_rows]).to(self.device)
        return self._training_labels(labels)

    def embed_training(self, model: nn.Module, **options: Any) -> Tensor:
        """Embed all training items ``(N, D)`` as an evaluation would."""
        return self.evaluator.embed(model, self.train_rows, **options)

    def _training_labels(self, labels: Tensor) -> Tensor:
        """Return labels of the table as the loss counts them: training classes from 0."""
        if labels.ndim == 2:
            return labels[:, self._index_C].float()
        return self._lookup[labels]
