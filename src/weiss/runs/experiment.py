"""What a recipe says about data: which items train, in which batches, and what is measured.

`Experiment` stands between the recipe and the loop. It resolves what the recipe leaves open, names
what cannot be (a batch larger than the data) in terms of the recipe's keys, serves batches under
training classes counted from 0, and holds the `Evaluator`.

Dimensions: N items, B batch, C training classes, D embedding size.
"""

import math
import warnings
from collections.abc import Iterator
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
    PerClass,
    Pipeline,
    RandomCrop,
    Shuffled,
    Table,
    class_folds,
    leave_fold_out,
    open_table,
)
from weiss.data.samplers import Sampler
from weiss.data.sources import Files, Vectors
from weiss.losses import LOSSES
from weiss.runs.evaluator import Evaluator
from weiss.runs.recipe import Recipe, recipe_from_dict

LARGEST_AUTO_BATCH = 128
KEPT_SIDE = 256
"""Images are kept with at least this shorter side, so that small crops still show detail."""


def open_data(recipe: Recipe) -> Table:
    """Return the table a recipe asks for, a part of the training classes held out if it says so."""
    data, evaluate = recipe.data, recipe.evaluate
    if data.name not in DATASETS and not Path(data.name).exists():
        raise ValueError(
            f"data.name must be a data set ({', '.join(DATASETS)}), a folder, or a list of files; "
            f"{data.name!r} is none, seen from this folder."
            f"{checks.suggestion(data.name, DATASETS)} Say where the data are: --set data.name=PATH"
        )
    how = data.how
    table = open_table(data.name, root=data.root, how=how, allow_missing=data.allow_missing)
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


def complete_backbone(recipe: Recipe, table: Table) -> Recipe:
    """Fill in how long vectors are, for a network that takes vectors."""
    section = recipe.as_dict()["backbone"]
    if section["name"] != "features" or "num_features" in section:
        return recipe
    if not isinstance(table.source, Vectors):
        raise ValueError(
            f"backbone.name must be a network for images, since {table.name} holds images; got "
            "'features'."
        )
    return _with(recipe, "backbone", num_features=int(table.source.vectors.shape[1]))


class Experiment:
    """The data of a run, ready to be trained and measured on.

    Args:
        recipe: what is asked for.
        table: what `open_data` made of it.
        input: what the network wants.
        device: where batches go.
        processes: who shares the work.

    Attributes:
        recipe: the same with everything that was left open filled in.
        class_names: C names, of the training classes; the loss counts them in this order.
        steps: batches in an epoch.
        evaluator: measures a network on any split.
        measured: the splits that are evaluated in training: ``["test"]``, ``["valid"]``, or none.
    """

    def __init__(
        self,
        recipe: Recipe,
        table: Table,
        input: InputSpec,
        device: torch.device,
        processes: Processes,
    ) -> None:
        if not table.has("train"):
            raise ValueError(f"{table.name} must have items to train on; it has {table.sizes()}.")
        self.device, self.processes = device, processes
        recipe = with_sizes(recipe, input)
        self.pipeline = open_pipeline(recipe, table, device, processes)
        self.evaluator = Evaluator(self.pipeline, recipe.evaluate, processes)
        self.table = self.pipeline.table
        self.train_rows = self.table.rows("train")
        train = self.table.take(self.train_rows).compact()
        self.class_names = train.class_names
        self.recipe = _batch_of(recipe, train, processes)
        self._index_C = torch.from_numpy(self.table.take(self.train_rows).classes()).to(device)
        self._lookup = torch.full((self.table.num_classes,), -1, dtype=torch.int64, device=device)
        self._lookup[self._index_C] = torch.arange(len(self._index_C), device=device)
        self.sampler = _sampler(self.recipe, train)
        self.steps = len(self.sampler.batches(0))
        augment = self.recipe.augment
        assert augment.size
        self._random = RandomCrop(
            augment.size,
            area=augment.area,
            ratio=augment.ratio,
            flip=augment.flip,
            resize=augment.resize,
            seed=recipe.seed,
        )
        wanted = "valid" if self.recipe.evaluate.on == "held_out" else "test"
        self.measured = [wanted] if self.can_be_measured(wanted) else []

    @property
    def num_classes(self) -> int:
        """C, the number of training classes."""
        return len(self.class_names)

    def can_be_measured(self, split: str) -> bool:
        """Say whether a split has items of two classes; warn if it has items of one."""
        if not self.table.has(split):
            return False
        if len(self.table.part(split).classes()) > 1:
            return True
        warnings.warn(
            f"the {split} part of {self.table.name} has a single class, among whose images "
            "whatever is found is right: it is not measured. Hold out more classes "
            "(data.held_out, evaluate.folds), or add some.",
            stacklevel=3,
        )
        return False

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels of this process's part of each batch of an epoch.

        Args:
            epoch: counts from 0.
            start: the step to begin with.
        """
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
        """Count training classes from 0: losses know no others."""
        if labels.ndim == 2:
            return labels[:, self._index_C].float()
        return self._lookup[labels]


def open_pipeline(
    recipe: Recipe, table: Table, device: torch.device, processes: Processes
) -> Pipeline:
    """Return the images of a table as a recipe wants them kept."""
    keep = recipe.data.keep
    # Processes that each decoded and kept everything would need their number times the memory; on
    # disk one decodes, and the system's file cache is shared by all.
    if keep == "auto" and processes.local_size > 1 and isinstance(table.source, Files):
        keep = "disk"
    sides = (recipe.evaluate.resize, recipe.augment.size, recipe.augment.resize, KEPT_SIDE)
    return Pipeline(
        table,
        device=device,
        keep=keep,
        short_side=max(side for side in sides if side is not None),
        skip_bad=recipe.data.skip_bad,
        num_workers=recipe.data.num_workers,
        cache=recipe.data.cache,
    )


def _with(recipe: Recipe, section: str, **values: Any) -> Recipe:
    nested = recipe.as_dict()
    nested[section] = {**nested.get(section, {}), **values}
    return recipe_from_dict(nested)


def with_sizes(recipe: Recipe, input: InputSpec) -> Recipe:
    """Fill in the sizes of images that the network has of its own."""
    size = input.size or 1
    recipe = _with(recipe, "augment", size=recipe.augment.size or size)
    own = recipe.evaluate.size or size
    resize = recipe.evaluate.resize or max(input.resize or own, own)
    return _with(recipe, "evaluate", size=own, resize=resize)


def _batch_of(recipe: Recipe, train: Table, processes: Processes) -> Recipe:
    """Fill in sampler, batch size and rate of class vectors; refuse what the data cannot fill."""
    settings = recipe.train
    name = recipe.sampler_name
    per_class = settings.per_class if name == "per_class" else 1
    unit = math.lcm(processes.size * settings.accumulate, per_class)
    size = settings.batch_size
    if not isinstance(size, int):
        # A quarter of the data at most, so that an epoch has a few steps.
        most = min(LARGEST_AUTO_BATCH, max(len(train) // 4, 2))
        if name == "per_class":
            most = min(most, settings.per_class * train.num_classes)
        least = 2 * unit if recipe.loss.compares_pairs else unit
        size = int(max(most // unit * unit, least))
    if size % unit:
        raise ValueError(
            f"train.batch_size must be a multiple of {unit}, to be shared by {processes.size} "
            f"processes in {settings.accumulate} parts each; got {size}. Change either."
        )
    if name == "shuffled" and size > len(train):
        raise ValueError(
            f"train.batch_size must be at most the number of training images, {len(train):,} in "
            f"{train.name}; got {size:,}. Use a smaller batch, or train.batch_size=auto."
        )
    if name == "per_class" and size // settings.per_class > train.num_classes:
        raise ValueError(
            f"a batch must not need more classes than the {train.num_classes:,} that train in "
            f"{train.name}; train.batch_size={size} with train.per_class={settings.per_class} "
            f"needs {size // settings.per_class:,}. Use a smaller batch or more images of a class."
        )
    scale = LOSSES[recipe.loss.name].class_lr_scale
    if recipe.optim.class_lr is None and scale is not None:
        recipe = _with(recipe, "optim", class_lr=recipe.optim.lr * scale)
    return _with(recipe, "train", batch_size=size, sampler=name)


def _sampler(recipe: Recipe, train: Table) -> Sampler:
    settings = recipe.train
    assert isinstance(settings.batch_size, int)
    if settings.sampler == "per_class":
        per_class = settings.per_class
        classes = settings.batch_size // per_class
        return PerClass(train, classes, per_class, recipe.seed, settings.steps)
    return Shuffled(len(train), settings.batch_size, recipe.seed)
