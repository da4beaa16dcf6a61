"""Comparisons that are a table of runs: the traditional protocol, and studies over settings.

Every row is a recipe, every seed of it a run. Rows do not depend on each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from weiss.comparing import units
from weiss.comparing.contenders import Contender, contenders_of
from weiss.comparing.plan import Plan, check_count, settings_of, title_of
from weiss.comparing.units import Results, Unit
from weiss.runs import Recipe, recipe_from_dict, recipe_with
from weiss.runs.experiment import open_data
from weiss.runs.folder import build_loss
from weiss.runs.summaries import SCORES, UNTRAINED, summarised

COSTS = ("seconds", "images_per_second", "peak_gpu_memory_gb")


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        name: unique; its folder below the study's.
        loss: short name, or ``"untrained"``.
        title: what people call it, the place on the axes aside.
        changes: what is changed for this loss alone, by keys of the recipe.
        at: the values of the axes, by key.
        recipe: what is trained; its seed is the first.
        num_seeds: how many there are; None for as many as the comparison says.
    """

    name: str
    loss: str
    title: str
    changes: Mapping[str, Any]
    at: dict[str, Any]
    recipe: Recipe
    num_seeds: int | None = None

    def with_seed(self, seed: int) -> Recipe:
        """Return the recipe with another seed."""
        return recipe_from_dict({**self.recipe.as_dict(), "seed": seed})


class RunTable(Plan):
    """A comparison of recipes, each with several seeds; the network before training is a row."""

    may_grow = ("losses", "seeds")

    @property
    def variants(self) -> list[Variant]:
        """The rows: for each loss one at every place of the axes."""
        places = [
            dict(zip((axis["key"] for axis in self.axes), values, strict=True))
            for values in product(*(axis["values"] for axis in self.axes))
        ]
        # What is said of the network changes it untrained as well; the rest does not.
        bare = {key for axis in self.axes if (key := axis["key"]).startswith("backbone.")}
        untrained = [{k: v for k, v in place.items() if k in bare} for place in places]
        rows = [
            self._untrained(place)
            for number, place in enumerate(untrained)
            if place not in untrained[:number]
        ]
        losses = contenders_of(self.options["losses"])
        rows += [self._variant(contender, at) for contender in losses for at in places]
        return rows

    def _untrained(self, at: dict[str, Any]) -> Variant:
        recipe = recipe_with(self.recipe, at)
        title = title_of(UNTRAINED, self.recipe)
        return Variant(_name(UNTRAINED, at), UNTRAINED, title, {}, at, recipe)

    def _variant(self, contender: Contender, at: dict[str, Any]) -> Variant:
        name, recipe = _name(contender.folder, at), contender.recipe(self.recipe, at)
        title, changes = contender.title, contender.changes
        return Variant(name, contender.loss, title, changes, at, recipe, contender.seeds)

    def seeds(self, variant: Variant) -> range:
        """Return the seeds of a row."""
        first = self.recipe.seed
        return range(first, first + (variant.num_seeds or self.options["seeds"]))

    @property
    def num_units(self) -> int:
        """The runs of all rows."""
        return sum(len(self.seeds(variant)) for variant in self.variants)

    def check(self) -> None:
        """Refuse losses that are none, no seeds, and data that cannot be opened."""
        self._check_contenders()
        check_count("--seeds", self.options["seeds"])
        variants = self.variants  # every recipe is checked
        for variant in variants:
            # Losses of other libraries are only refused when they are built.
            build_loss(variant.recipe.as_dict()["loss"], 2, 2)
        open_data(variants[0].recipe)

    def _check_contenders(self) -> None:
        """Refuse what is trained twice under two names, and what the axes change anyway."""
        seen: list[tuple[Contender, dict[str, Any]]] = []
        for contender in contenders_of(self.options["losses"]):
            for axis in self.axes:
                if axis["key"] in contender.changes:
                    raise ValueError(
                        f"--losses must not change {axis['key']}, which this study varies; got "
                        f"{contender.text!r}. Use --values {axis['key']}=A,B."
                    )
            recipe = contender.recipe(self.recipe, {})
            trained = {**recipe.as_dict(), "loss": settings_of(recipe), "name": recipe.loss.name}
            for other, same in seen:
                if same == trained:
                    raise ValueError(
                        f"--losses must differ in what they train; {contender.text!r} is the same "
                        f"as {other.text!r} here. Leave one of them out."
                    )
            seen.append((contender, trained))

    def ready(self, done: Results) -> list[Unit]:
        """Return every unit that is not done, seed by seed: a table half done is a fair one."""
        variants = self.variants
        places = [(seed, row) for row, each in enumerate(variants) for seed in self.seeds(each)]
        wanted = []
        for seed, row in sorted(places):
            variant = variants[row]
            key = f"{variant.name}/seed-{seed}"
            if key not in done:
                unit = units.untrained if variant.loss == UNTRAINED else units.training
                wanted.append(unit(key, variant.with_seed(seed)))
        return wanted

    def rows(self, done: Results, failures: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each recipe."""
        return [self._row(variant, done, failures) for variant in self.variants]

    def _row(self, variant: Variant, done: Results, failures: Mapping[str, str]) -> dict[str, Any]:
        keys = [f"{variant.name}/seed-{seed}" for seed in self.seeds(variant)]
        there = [key for key in keys if key in done]
        return {
            "name": variant.name,
            "loss": variant.loss,
            "title": variant.title,
            "changes": dict(variant.changes),
            "at": variant.at,
            "settings": {} if variant.loss == UNTRAINED else settings_of(variant.recipe),
            "runs": there,
            "repetitions": [int(key.rpartition("-")[2]) for key in there],
            "failed": {key: failures[key] for key in keys if key in failures},
            "scores": run_scores([done[key] for key in there]),
        }


def _name(folder: str, at: Mapping[str, Any]) -> str:
    """Return the name of a row: its folder, and below it one for its place on the axes."""
    where = "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in at.items())
    return f"{folder}/{where}" if where else folder


def run_scores(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and interval of what runs measured: on the test set wherever it was looked at.

    Scores on held-out classes, where these chose the epoch, stand beside as ``valid.*``.
    """
    scores: dict[str, Any] = {}
    for name in SCORES:
        tested = [result.get("test", result).get(name) for result in results]
        scores[name] = summarised(tested)
        if any("test" in result for result in results):
            scores[f"valid.{name}"] = summarised([result.get(name) for result in results])
    for name in ("epoch", *COSTS):
        scores[name] = summarised([result.get(name) for result in results])
    return {name: found for name, found in scores.items() if found is not None}


class Traditional(RunTable):
    """The paper's traditional protocol: fixed settings, the official split, several seeds."""

    kind = "traditional"
    title = "Traditional protocol"
    question = "Which loss gives the best embedding with its usual settings?"
    tested = ("map_at_r", "precision_at_1", "r_precision")

    def __init__(self, recipe: Recipe, options: Mapping[str, Any]) -> None:
        super().__init__(recipe, options)
        if any(each.changes for each in contenders_of(self.options["losses"])):
            self.question = "Which loss, with which settings, gives the best embedding?"
