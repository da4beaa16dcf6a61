"""Which recipe somebody means: shipped, in a file, of a data set, a run, a folder of images."""

import datetime
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss._base import checks
from weiss.backbones.by_name import BACKBONES, BackboneEntry
from weiss.data.datasets import DATASETS, LISTS
from weiss.losses.by_name import LOSSES
from weiss.runs.recipe import Recipe, recipe_from_dict
from weiss.runs.recipe_sections import Backbone

MAIN_RECIPES = {
    **{name: f"{name}_bn_inception" for name in ("cub", "cars", "sop", "inshop")},
    "inshop_joined": "inshop_bn_inception",
    "glyphs": "glyphs",
    "glyphs_still": "glyphs",
}
"""The recipe that the name of a data set stands for."""

REALITY_CHECK_RECIPES = {name: f"{name}_mlrc" for name in ("cub", "cars", "sop", "glyphs")}
"""The recipe that the name of a data set stands for in the reality check."""

RECIPE_FILE = "recipe.toml"
"""What a folder that holds a run calls its recipe."""


RECIPES = Path(__file__).with_name("recipes")
"""Where the recipes that come with Weiss lie."""


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with Weiss: their files by their names."""
    return {path.stem: path for path in sorted((RECIPES).glob("*.toml"))}


def recipe_from(
    source: str | Path | None = None, overrides: Sequence[str] = (), *, root: str | None = None
) -> Recipe:
    """Return the recipe that somebody means.

    Args:
        source: the name of a shipped recipe; the name of a data set, for its main recipe; a
            ``.toml`` file; a run folder, for the recipe of the run; a folder of images or a list
            of them, for the recipe ``photos`` on these; None for ``glyphs``.
        overrides: ``"section.key=value"`` each, the value as in TOML, or a word without quotes;
            ``none`` goes back to the default. They win over everything, in any order; of two for
            one key the last. A new ``loss.name`` drops what the recipe says of the old loss, a
            new ``backbone.name`` the pooling and the arguments of the old network.
        root: the folder of the data, as ``data.root``.

    Returns:
        The recipe, checked.

    Raises:
        ValueError: with every problem, one a line.

    Example:
        >>> from weiss.runs import recipe_from
        >>> recipe_from("cars", ["optim.lr=3e-5"], root="/data/cars").data.root
        '/data/cars'
    """
    path, data = _found("glyphs" if source is None else str(source))
    values = _read(path)
    if data is not None:
        values.setdefault("data", {})["name"] = data
    if root is not None:
        values.setdefault("data", {})["root"] = str(root)
    shipped = path.parent == RECIPES
    name = f"recipe {path.stem!r}" if shipped else f"recipe {path}"
    return recipe_from_dict(_overridden(values, overrides), name)


def recipe_with(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return a recipe with some changes, as `recipe_from` takes them.

    Args:
        recipe: what to change; it stays as it is.
        overrides: ``"section.key=value"`` each. A new ``loss.name`` drops what the recipe says of
            the old loss.

    Example:
        >>> from weiss.runs import recipe_from, recipe_with
        >>> recipe_with(recipe_from("glyphs"), ["loss.name=ms"]).loss.arguments
        {}
    """
    return recipe_from_dict(_overridden(recipe.as_dict(), overrides))


def recipe_file(source: str) -> Path:
    """Return the file of the recipe that `recipe_from` would use for a source."""
    return _found(source)[0]


def _found(source: str) -> tuple[Path, str | None]:
    """Return the file of the recipe, and the data it is to be used on where it does not say."""
    shipped, path = shipped_recipes(), Path(source)
    if source in shipped:
        return shipped[source], None
    if source in DATASETS:
        return shipped[MAIN_RECIPES[source]], source
    if path.suffix == ".toml" and path.is_file():
        return path, None
    if path.is_dir():
        own = path / RECIPE_FILE
        return (own, None) if own.is_file() else (shipped["photos"], source)
    if path.suffix.lower() in LISTS and path.is_file():
        return shipped["photos"], source
    beside = [str(path.parent / found.name) for found in sorted(path.parent.glob("*"))]
    hint = checks.suggestion(source, [*shipped, *DATASETS, *beside])
    raise ValueError(
        f"a recipe must be one of {', '.join(shipped)}; a data set ({', '.join(DATASETS)}); a "
        f".toml file; a run folder; or a folder or a {', '.join(LISTS)} list of images; got "
        f"{source!r}, which is none of these.{hint}"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path} must be TOML; {str(error)[0].lower()}{str(error)[1:]}. Words need quotes, and "
            "true and false small letters."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8; {error}. Save it as such.") from None


def _overridden(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    if isinstance(overrides, str):
        raise TypeError(f"overrides must be a list of key=value; got {overrides!r}. Use [...].")
    changes = dict(override_from(override) for override in overrides)
    _change_names(values, changes)
    for (*path, last), value in changes.items():
        section = values
        for depth, part in enumerate(path, 1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                whole, above = ".".join((*path, last)), ".".join(path[:depth])
                raise ValueError(f"{whole} cannot be set: {above} is no section but {section!r}.")
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return values


def override_from(override: str) -> tuple[tuple[str, ...], Any]:
    """Read ``section.key=value``.

    Returns:
        The parts of the key, and the value: as in TOML, else plain text; None for the default,
        which is written ``none``.

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
    if text == "none":
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
    # A date, or text that goes on with keys of its own, is not what anybody means: plain text then.
    is_text = len(parsed) > 1 or isinstance(value, (datetime.date, datetime.time))
    return path, text if is_text else value


def _change_names(values: dict[str, Any], changes: Mapping[tuple[str, ...], Any]) -> None:
    """Drop what belongs to a loss or a network that is about to be replaced by another."""
    for name, kept in (("loss", ()), ("backbone", set(Backbone.model_fields) - {"pooling"})):
        section = values.get(name, {})
        if (name, "name") not in changes or not isinstance(section, dict):
            continue
        default = Recipe.model_fields[name].default.name
        old, new = section.get("name", default), changes[name, "name"] or default
        if new == old:
            continue
        values[name] = {key: value for key, value in section.items() if key in kept}
        if name == "backbone" and isinstance(new, str) and new in BACKBONES:
            _change_what_follows_from_the_backbone(values[name], BACKBONES[new])
        if name == "loss":
            _change_what_follows_from_the_loss(values, old, new)


def _change_what_follows_from_the_backbone(section: dict[str, Any], entry: BackboneEntry) -> None:
    if entry.needs_weights:
        return
    # It starts from random weights, and has no statistics yet that could be frozen.
    section.pop("weights", None)
    section.pop("freeze_bn", None)


def _change_what_follows_from_the_loss(values: dict[str, Any], old: Any, new: Any) -> None:
    if not (isinstance(old, str) and isinstance(new, str) and {old, new} <= set(LOSSES)):
        return  # which is refused later, by its name
    optim, train = values.get("optim"), values.get("train")
    if isinstance(optim, dict) and LOSSES[old].class_lr_scale != LOSSES[new].class_lr_scale:
        # Fields and proxies want rates of different size.
        optim.pop("class_lr", None)
    if isinstance(train, dict) and LOSSES[old].sampling != LOSSES[new].sampling:
        train.pop("sampler", None)
