"""A recipe is one experiment: every setting of a run, checked before anything is loaded.

A recipe is a TOML file with one section a subject; `Recipe` is all of it with defaults filled in.
Nothing is guessed: an unknown key, a word where a number belongs, or settings that contradict each
other are refused in terms of the key somebody wrote. (pydantic only here.)
"""

from weiss.config.files import (
    MAIN_RECIPES,
    REALITY_CHECK_RECIPES,
    RECIPE_FILE,
    override_from,
    recipe_file,
    recipe_from,
    recipe_with,
    shipped_recipes,
)
from weiss.config.recipe import Recipe, differences, recipe_from_dict
from weiss.config.sections import (
    BASELINES,
    Augment,
    Backbone,
    Data,
    Evaluate,
    Fields,
    Loss,
    Optim,
    Schedule,
    Track,
    Train,
)
from weiss.config.toml_text import to_toml, to_toml_value

__all__ = [
    "BASELINES",
    "MAIN_RECIPES",
    "REALITY_CHECK_RECIPES",
    "RECIPE_FILE",
    "Augment",
    "Backbone",
    "Data",
    "Evaluate",
    "Fields",
    "Loss",
    "Optim",
    "Recipe",
    "Schedule",
    "Track",
    "Train",
    "differences",
    "override_from",
    "recipe_file",
    "recipe_from",
    "recipe_from_dict",
    "recipe_with",
    "shipped_recipes",
    "to_toml",
    "to_toml_value",
]
