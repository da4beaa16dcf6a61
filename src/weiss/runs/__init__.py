"""What training writes and everyone reads: recipes, run folders, states, summaries.

A recipe is one experiment: a TOML file with one section for each subject; `Recipe` is all of it,
with defaults. An unknown key, a word where a number must be, or settings that contradict each other
raise ValueError with the name of the key. A `Run` is the folder that training writes.
"""

from weiss.runs.evaluate import embed_runs, evaluate_run
from weiss.runs.evaluator import Embedded
from weiss.runs.folder import Kept, Run, build_backbone, build_loss
from weiss.runs.overrides import override_from, overrides_from, recipe_with
from weiss.runs.pretrained import pretrained_run, without_head
from weiss.runs.recipe import Recipe, differences, recipe_from_dict
from weiss.runs.recipe_files import (
    MAIN_RECIPES,
    REALITY_CHECK_RECIPES,
    recipe_file,
    recipe_from,
    shipped_recipes,
)
from weiss.runs.recipe_sections import (
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
    "MAIN_RECIPES",
    "REALITY_CHECK_RECIPES",
    "Augment",
    "Backbone",
    "Data",
    "Embedded",
    "Evaluate",
    "Fields",
    "Kept",
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
    "overrides_from",
    "pretrained_run",
    "recipe_file",
    "recipe_from",
    "recipe_from_dict",
    "recipe_with",
    "shipped_recipes",
    "to_toml",
    "to_toml_value",
    "without_head",
]
