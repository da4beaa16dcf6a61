"""Which recipe is meant: a shipped one, a file, that of a data set or a run, or for own images."""

from pathlib import Path

from weiss._base import checks
from weiss._base.files import refuse_special_file
from weiss.data.datasets import DATASETS, LISTS
from weiss.data.object_storage import is_address
from weiss.runs.folder import RECIPE
from weiss.runs.overrides import Overrides, overridden
from weiss.runs.recipe import Recipe, recipe_from_dict
from weiss.runs.toml_text import read_toml

MAIN_RECIPES = {
    **{name: f"{name}_bn_inception" for name in ("cub", "cars", "sop", "inshop")},
    "inshop_joined": "inshop_bn_inception",
    "glyphs": "glyphs",
    "glyphs_still": "glyphs",
    "glyphs_many": "glyphs",
}
"""The recipe that the name of a data set stands for."""

REALITY_CHECK_RECIPES = {name: f"{name}_mlrc" for name in ("cub", "cars", "sop", "glyphs")}
"""The recipe that the name of a data set stands for in the reality check."""

RECIPES = Path(__file__).with_name("recipes")
"""The folder of the recipes that come with Weiss."""


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with Weiss: their files by their names."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def recipe_from(
    source: str | Path | None = None, overrides: Overrides = (), *, root: str | None = None
) -> Recipe:
    """Return the recipe that a name or a path stands for.

    Args:
        source: the name of a shipped recipe; the name of a data set, for its main recipe; a
            ``.toml`` file; a run folder, for the recipe of the run; a folder of images or a list
            of them, for the recipe ``photos`` on these; None for ``glyphs``.
        overrides: values by dotted key, None for the default; or texts ``"section.key=value"``,
            the value as in TOML, or a word without quotes, ``none`` for the default. They win
            over everything, in any order; of two for one key the last. A new ``loss.name`` drops
            the settings of the old loss, a new ``backbone.name`` the arguments of the old network
            and its pooling, which stays between our networks for photographs.
        root: the folder of a named data set; short for an override of ``data.root``.

    Returns:
        The recipe, checked.

    Raises:
        ValueError: with every problem, one a line.

    Example:
        >>> from weiss.runs import recipe_from
        >>> recipe_from("cars", {"optim.lr": 3e-5}, root="/data/cars").data.root
        '/data/cars'
    """
    path, data = _found("glyphs" if source is None else str(source))
    values = read_toml(path)
    if data is not None:
        values.setdefault("data", {})["name"] = data
    if root is not None:
        values.setdefault("data", {})["root"] = str(root)
    name = f"recipe {path.stem!r}" if path.parent == RECIPES else f"recipe {path}"
    return recipe_from_dict(overridden(values, overrides), name)


def recipe_file(source: str) -> Path:
    """Return the file of the recipe that `recipe_from` would use for a source."""
    return _found(source)[0]


def is_own_images(source: str | Path) -> bool:
    """Return whether a source of `recipe_from` is a folder or a list of images."""
    path, data = _found(str(source))
    return path == shipped_recipes()["photos"] and data is not None


def _found(source: str) -> tuple[Path, str | None]:
    """Return the file of the recipe, and the data to use it on if it names none."""
    shipped, path = shipped_recipes(), Path(source)
    if source in shipped:
        return shipped[source], None
    if source in DATASETS:
        return shipped[MAIN_RECIPES[source]], source
    if is_address(source):
        return shipped["photos"], source
    if path.suffix == ".toml" and path.is_file():
        return path, None
    if path.is_dir():
        own = path / RECIPE
        return (own, None) if own.is_file() else (shipped["photos"], source)
    if path.suffix.lower() in LISTS and path.is_file():
        return shipped["photos"], source
    refuse_special_file(path)
    hint = checks.path_suggestion(source, sorted(path.parent.glob("*")), [*shipped, *DATASETS])
    raise ValueError(
        f"a recipe must be one of {', '.join(shipped)}; a data set ({', '.join(DATASETS)}); a "
        f".toml file; a run folder; or a folder or a {', '.join(LISTS)} list of images; got "
        f"{source!r}, which is none of these.{hint}"
    )
