"""What a recipe leaves open is filled in here, once: a run's recipe.toml leaves nothing open."""

import math
from typing import NamedTuple

import torch

from weiss._base.devices import multiplies_bfloat16, resolve_precision
from weiss._base.processes import Processes
from weiss.backbones import Embedder, InputSpec
from weiss.backbones.by_name import TIMM
from weiss.data import Table
from weiss.losses import LOSSES, loss_settings
from weiss.runs.recipe import Recipe, recipe_from_dict
from weiss.runs.recipe_sections import Backbone, Loss

LARGEST_AUTO_BATCH = 128
LEAST_KEPT_SIDE = 256
"""``data.side = "auto"`` keeps at least this shorter side, so that small crops show detail. Runs
depend on it: their recipes say "auto", so that an evaluation at another size is still possible."""


class ImageSizes(NamedTuple):
    """The sides of images, in pixels."""

    train: int  # height and width of a training crop
    evaluate: int  # height and width of the centre crop in evaluation
    resize: int  # shorter side before the centre crop
    kept: int | None  # shorter side with which decoded images are kept; None: as they are


def image_sizes(recipe: Recipe, input: InputSpec) -> ImageSizes:
    """Return the sizes that a recipe asks for; the network's own where it asks for none."""
    own, side = input.size or 1, recipe.data.side
    train, evaluate = recipe.augment.size or own, recipe.evaluate.size or own
    resize = recipe.evaluate.resize or max(input.resize or evaluate, evaluate)
    if side == "original":
        return ImageSizes(train, evaluate, resize, None)
    needed = max(resize, train, recipe.augment.resize or 0)
    if side == "auto":
        return ImageSizes(train, evaluate, resize, max(needed, LEAST_KEPT_SIDE))
    if side < needed:
        raise ValueError(
            f"data.side must be at least {needed} pixels, which evaluation or a training crop "
            f"needs; got {side}. Raise it, or lower evaluate.resize, evaluate.size, augment.size "
            "and augment.resize."
        )
    return ImageSizes(train, evaluate, resize, side)


def complete(
    recipe: Recipe, table: Table, model: Embedder, device: torch.device, processes: Processes
) -> Recipe:
    """Return the recipe from which the same run can be made again, whatever defaults may become.

    Raises:
        ValueError: the data cannot fill a batch, or the device cannot do what is asked for.
    """
    name = recipe.loss.name
    recipe = complete_network(recipe, model)
    scale, class_lr = LOSSES[name].class_lr_scale, recipe.optim.class_lr
    if class_lr is None and scale is not None:
        class_lr = recipe.optim.lr * scale
    part = table.part("train").compact()
    arguments = loss_settings(name, recipe.loss.arguments, (part.num_classes, model.embedding_size))
    train = {
        "batch_size": _batch_size(recipe, part, processes),
        "sampler": recipe.sampler_name,
        "precision": _precision(recipe, device),
    }
    completed = recipe.model_copy(
        update={
            "loss": Loss(name=name, **arguments),
            "optim": recipe.optim.model_copy(update={"class_lr": class_lr}),
            "train": recipe.train.model_copy(update=train),
        }
    )
    return recipe_from_dict(completed.as_dict())  # which checks all of it


def complete_network(recipe: Recipe, model: Embedder) -> Recipe:
    """Return the recipe with everything that follows from its network: sizes, pooling."""
    sizes = image_sizes(recipe, model.input)
    evaluate = {"size": sizes.evaluate, "resize": sizes.resize}
    return recipe.model_copy(
        update={
            "backbone": _backbone(recipe.backbone, model),
            "augment": recipe.augment.model_copy(update={"size": sizes.train}),
            "evaluate": recipe.evaluate.model_copy(update=evaluate),
        }
    )


def _precision(recipe: Recipe, device: torch.device) -> str:
    """Return the precision; ``"auto"`` is bfloat16 for kept features on a CPU that has it, too."""
    asked = recipe.train.precision
    if asked == "auto" and recipe.is_on_features(0) and multiplies_bfloat16(device):
        return "bf16"
    return resolve_precision(asked, device)


def _backbone(section: Backbone, model: Embedder) -> Backbone:
    found: dict[str, int | str] = {"embedding_size": model.embedding_size}
    if section.name == "features":
        found["num_features"] = model.trunk.num_features
    pools_itself = section.name.startswith(TIMM) or model.trunk.pooled
    if section.pooling is None and not pools_itself:
        found["pooling"] = model.trunk.pooling
    return section.model_copy(update=found)


def _batch_size(recipe: Recipe, train: Table, processes: Processes) -> int:
    """Return the size of a batch of all processes; refuse one that the data cannot fill."""
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
    return size
