"""What training writes and everyone reads: recipes, run folders, states, summaries.

A recipe is one experiment: a TOML file with one section a subject; `Recipe` is all of it with
defaults filled in. Nothing is guessed: an unknown key, a word where a number belongs, or settings
that contradict each other are refused in terms of the key somebody wrote. A `Run` is the folder
that training leaves behind.
"""

from weiss.runs.evaluate import Embedded, embed_runs, evaluate_run
from weiss.runs.folder import Run, build_backbone, build_loss
from weiss.runs.recipe import Recipe, differences, recipe_from_dict
from weiss.runs.recipe_files import (
    MAIN_RECIPES,
    REALITY_CHECK_RECIPES,
    RECIPE_FILE,
    override_from,
    recipe_file,
    recipe_from,
    recipe_with,
    shipped_recipes,
)
from weiss.runs.recipe_sections import (
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
from weiss.runs.toml_text import to_toml, to_toml_value

__all__ = [
    "BASELINES",
    "MAIN_RECIPES",
    "REALITY_CHECK_RECIPES",
    "RECIPE_FILE",
    "Augment",
    "Backbone",
    "Data",
    "Embedded",
    "Evaluate",
    "Fields",
    "Loss",
    "Optim",
    "Recipe",
    "Run",
    "Schedule",
    "Track",
    "Train",
    "build_backbone",
    "build_loss",
    "differences",
    "embed_runs",
    "evaluate_run",
    "override_from",
    "recipe_file",
    "recipe_from",
    "recipe_from_dict",
    "recipe_with",
    "shipped_recipes",
    "to_toml",
    "to_toml_value",
]
