"""Short training, for a machine without a GPU: settings for a frozen trunk, and when to use them.

The trunk of a pretrained network computes features once; the head and the class vectors train on
them in seconds. Then the last stages may be unfrozen.
"""

from collections.abc import Mapping
from typing import Any

from weiss._base.devices import is_cpu
from weiss.backbones.embedder import NO_HEAD
from weiss.backbones.trained_part import FROZEN
from weiss.runs.recipe import Recipe
from weiss.runs.recipe_files import is_own_images, recipe_from

SETTINGS = {
    "backbone.train": FROZEN,
    "optim.lr": 1e-3,
    "schedule.name": "cosine",
    "train.epochs": 30,
    "train.warmup_epochs": 0,
    "train.patience": 0,
}
"""For a frozen trunk. The rate is ten times that of a whole network, because a head moves little at
the latter; docs/catalogue.md has the measurements."""
UNFROZEN = {"train.epochs": 20, "train.warmup_on": "features", "optim.layer_decay": 0.1}
"""What differs where stages are unfrozen after a warm-up on features: the last stage has a tenth of
the rate of the head, which is the rate of a whole network."""
WARMUP = 0.75
"""The share of the epochs that is warm-up then."""


def frozen_settings(
    source: str | None, given: Mapping[str, Any], unfreeze: int = 0
) -> dict[str, Any]:
    """Return the changes with which a recipe trains on features of its frozen trunk.

    Args:
        source: of the recipe, as for `recipe_from`.
        given: changes by hand, which win.
        unfreeze: how many of the last stages train afterwards; 0 for none.

    Raises:
        ValueError: the network starts from random weights, whose features say little.
    """
    recipe = _described(source, given)
    if not recipe.backbone.is_pretrained:
        raise ValueError(
            "--frozen and --unfreeze must have pretrained weights to start from; the network "
            f"{recipe.backbone.name!r} starts from random ones. Set backbone.weights, or leave the "
            "option out."
        )
    changes: dict[str, Any] = dict(SETTINGS)
    if unfreeze:
        changes |= {**UNFROZEN, "backbone.train": f"last:{unfreeze}"}
        epochs = given.get("train.epochs", UNFROZEN["train.epochs"])
        if isinstance(epochs, int):  # anything else is refused later
            changes["train.warmup_epochs"] = int(WARMUP * epochs)
    else:
        changes["optim.layer_decay"] = None  # of a recipe whose stages train
    if recipe.loss.has_fields and recipe.fields.how == "joint":
        changes["fields.start"] = "class_means"
    return {**changes, **given}


def is_frozen_by_default(source: str | None, given: Mapping[str, Any]) -> bool:
    """Return whether a recipe trains on features where nobody has chosen.

    So it is for a folder or list of images, with pretrained weights, on a CPU; not for a named
    recipe, a file, a data set or a run, which say what trains. ``given`` are the changes by hand.
    """
    if {"backbone.train", "train.warmup_on", "optim.layer_decay"} & set(given):
        return False
    if given.get("backbone.head") == NO_HEAD:  # which leaves nothing that could train
        return False
    if source is None or not is_own_images(source):
        return False
    recipe = _described(source, given)
    return recipe.backbone.is_pretrained and is_cpu(recipe.train.device)


def _described(source: str | None, given: Mapping[str, Any]) -> Recipe:
    """Return the recipe with what describes its network, loss and device.

    Without the other changes, which may need those that are to be made.
    """
    sections = ("backbone.", "loss.", "fields.how", "train.device")
    described = {key: value for key, value in given.items() if key.startswith(sections)}
    described.pop("backbone.head", None)
    return recipe_from(source, described)
