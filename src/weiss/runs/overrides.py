"""Changes of a recipe: ``section.key=value`` as text, or keys and values.

A change has a dotted key and a value; the value None goes back to the default. The command line
reads its texts once, by `overrides_from`; inside the program changes are dicts of values.
"""

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from weiss.backbones.by_name import BACKBONES
from weiss.backbones.embedder import NO_HEAD
from weiss.losses.by_name import LOSSES
from weiss.runs.recipe import RENAMED, Recipe, recipe_from_dict, with_new_keys
from weiss.runs.recipe_sections import Backbone, Loss

Overrides = Mapping[str, Any] | Sequence[str]
"""Values by dotted key, ``{"train.epochs": 20}``, or texts, ``["train.epochs=20"]``."""
HEAD = ("backbone", "head")
"""The one key of which the word none is a value."""

SHORT = {
    "loss": "loss.name",
    "backbone": "backbone.name",
    "weights": "backbone.weights",
    "embedding_size": "backbone.embedding_size",
    "epochs": "train.epochs",
    "batch_size": "train.batch_size",
    "lr": "optim.lr",
}
"""Short names of the keys that are changed most, for `weiss train` and `EmbeddingEstimator`."""


def recipe_with(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Return a recipe with some changes, given as for `recipe_from`.

    Example:
        >>> from weiss.runs import recipe_from, recipe_with
        >>> recipe_with(recipe_from("glyphs"), {"loss.name": "ms"}).loss.arguments
        {}
    """
    return recipe_from_dict(overridden(recipe.as_dict(), overrides))


def overrides_from(texts: Sequence[str]) -> dict[str, Any]:
    """Read texts ``section.key=value``; of two for one key the last counts.

    Example:
        >>> overrides_from(["train.epochs=20", "optim.class_lr=none"])
        {'train.epochs': 20, 'optim.class_lr': None}
    """
    if isinstance(texts, str):
        raise TypeError(f"overrides must be a list of key=value; got {texts!r}. Use [...].")
    return {".".join(path): value for path, value in map(override_from, texts)}


def with_options(
    options: Mapping[str, Any], overrides: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return changes by options of their own, those not None, and overrides, by ``name``, in one.

    Raises:
        ValueError: a key has two values.
    """
    given = {key: value for key, value in options.items() if value is not None}
    for key in given.keys() & overrides.keys():
        if given[key] != overrides[key]:
            raise ValueError(
                f"{key} must have one value; got {given[key]!r} by its own option and "
                f"{overrides[key]!r} by {name}. Leave one of them out."
            )
    return {**given, **overrides}


def override_from(override: str) -> tuple[tuple[str, ...], Any]:
    """Read ``section.key=value``: the parts of the key, and a value of TOML, else plain text.

    ``none`` is None, for the default; ``backbone.head=none`` is no head.

    Example:
        >>> override_from("train.epochs = 20")
        (('train', 'epochs'), 20)
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ValueError(
            f"an override must read section.key=value; got {override!r}. Write train.epochs=20, "
            "for example."
        )
    if not text:
        raise ValueError(
            f"an override must have a value; got {override!r}. Write {key}=none for the default."
        )
    if text == "none" and path != HEAD:
        return path, None
    if len(path) == 1 and path[0] != "seed" and path[0] in Recipe.model_fields:
        raise ValueError(
            f"{key} is a section and cannot be set as a whole; got {override!r}. Set its keys: "
            f"{key}.KEY=VALUE."
        )
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        # TOML wants digits on both sides of a point.
        is_number = re.fullmatch(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?", text)
        return path, float(text) if is_number else text
    value = parsed["value"]
    # A date, or a text that continues with further keys, is meant as plain text.
    is_text = len(parsed) > 1 or isinstance(value, (datetime.date, datetime.time))
    return path, text if is_text else value


def overridden(values: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the nested dicts of a recipe with some changes."""
    values = with_new_keys(values)
    given = overrides if isinstance(overrides, Mapping) else overrides_from(overrides)
    changes = {RENAMED.get(key, key): value for key, value in given.items()}
    _change_loss(values, changes)
    _change_backbone(values, changes)
    _change_fields(values, changes)
    for key, value in changes.items():
        *above, last = key.split(".")
        section = values
        for depth, part in enumerate(above, 1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                name = ".".join(above[:depth])
                raise ValueError(f"{key} cannot be set: {name} is no section but {section!r}.")
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return values


def _change_loss(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop the settings of a loss that is replaced by another."""
    old, new = _old_and_new("loss", values, changes)
    if old == new:
        return
    values["loss"] = {}
    if not (isinstance(old, str) and isinstance(new, str) and {old, new} <= set(LOSSES)):
        return  # refused later, by its name
    optim, train = values.get("optim"), values.get("train")
    if isinstance(optim, dict) and LOSSES[old].class_lr_scale != LOSSES[new].class_lr_scale:
        # Fields and proxies need rates of different size.
        optim.pop("class_lr", None)
    if isinstance(train, dict) and LOSSES[old].sampling != LOSSES[new].sampling:
        train.pop("sampler", None)
    if isinstance(values.get("fields"), dict) and not Loss(name=new).has_fields:
        values["fields"].pop("start", None)


def _change_fields(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop where fields start, if they are found in a way that does not ask."""
    section, how = values.get("fields"), changes.get("fields.how")
    if isinstance(section, dict) and how not in (None, "joint"):
        section.pop("start", None)


def _change_backbone(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop the arguments of a network that is replaced by another.

    The pooling too, but for two networks for photographs, whose usual one is the same: there it is
    part of the experiment. The embedding size too, if the network loses its head or gets one.
    """
    section, head = values.get("backbone"), changes.get(".".join(HEAD))
    before = section.get("head") if isinstance(section, dict) else head
    if head is not None and head != before and NO_HEAD in (head, before):
        values["backbone"].pop("embedding_size", None)
    old, new = _old_and_new("backbone", values, changes)
    if old == new:
        return
    dropped = set()
    if not (_is_for_photographs(old) and _is_for_photographs(new)):
        dropped.add("pooling")
    if isinstance(new, str) and new in BACKBONES and not BACKBONES[new].needs_weights:
        # It starts from random weights, and has nothing yet that could be frozen.
        dropped |= {"weights", "freeze_bn", "train", "lora_rank", "lora_alpha"}
    kept = set(Backbone.model_fields) - dropped
    values["backbone"] = {k: v for k, v in values.get("backbone", {}).items() if k in kept}


def _is_for_photographs(name: Any) -> bool:
    return isinstance(name, str) and name in BACKBONES and BACKBONES[name].needs_weights


def _old_and_new(name: str, values: dict[str, Any], changes: Mapping[str, Any]) -> tuple[Any, Any]:
    section, key = values.get(name, {}), f"{name}.name"
    if key not in changes or not isinstance(section, dict):
        return None, None
    default = Recipe.model_fields[name].default.name
    return section.get("name", default), changes[key] or default
