"""Comparisons that are a table of runs: the traditional protocol, and studies over settings.

Every row is a recipe, every seed of it a run. Rows do not depend on each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

from weiss.comparing import units
from weiss.comparing.contenders import Contender, contenders_of
from weiss.comparing.plan import Plan, check_count, row_of, settings_of, title_of
from weiss.comparing.units import Results, Unit
from weiss.runs import Recipe, recipe_with, without_head
from weiss.runs.experiment import open_data
from weiss.runs.folder import build_loss
from weiss.runs.summaries import EPOCH, SCORES, UNTRAINED, summarised

COSTS = ("seconds", "images_per_second", "peak_gpu_memory_gb")


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        name: unique; its folder below the study's.
        loss: short name, or ``"untrained"``.
        title: for people, without the values of the axes.
        changes: what is changed for this loss alone, by keys of the recipe.
        at: the values of the axes, by key.
        recipe: what is trained; its seed is the first.
        num_seeds: how many runs; None for as many as the comparison has.
    """

    name: str
    loss: str
    title: str
    changes: Mapping[str, Any]
    at: dict[str, Any]
    recipe: Recipe
    num_seeds: int | None = None


class RunTable(Plan):
    """A comparison of recipes, each with several seeds; the network before training is a row."""

    may_grow = ("losses", "seeds")

    @cached_property
    def variants(self) -> list[Variant]:
        """The rows: for each loss one for every combination of the axes' values."""
        places = [
            dict(zip((axis["key"] for axis in self.axes), values, strict=True))
            for values in product(*(axis["values"] for axis in self.axes))
        ]
        # Only settings of the trunk change the network before training, which has no head.
        bare = {key for axis in self.axes if (key := axis["key"]).startswith("backbone.")}
        bare -= {"backbone.embedding_size", "backbone.head", "backbone.pooling"}
        untrained = [{k: v for k, v in place.items() if k in bare} for place in places]
        title = title_of(UNTRAINED, self.recipe)
        rows = [
            Variant(
                name=_name(UNTRAINED, at),
                loss=UNTRAINED,
                title=title,
                changes={},
                at=at,
                recipe=without_head(recipe_with(self.recipe, at)),
                # A pretrained network is the same with every seed.
                num_seeds=None if title == UNTRAINED else 1,
            )
            for number, at in enumerate(untrained)
            if at not in untrained[:number]
        ]
        rows += [
            Variant(
                name=_name(each.folder, at),
                loss=each.loss,
                title=each.title,
                changes=each.changes,
                at=at,
                recipe=each.recipe(self.recipe, at),
                num_seeds=each.seeds,
            )
            for each in contenders_of(self.options["losses"])
            for at in places
        ]
        return rows

    def _keys(self, variant: Variant) -> dict[int, str]:
        """Return the key of a row's unit for each seed."""
        first = self.recipe.seed
        seeds = range(first, first + (variant.num_seeds or self.options["seeds"]))
        return {seed: f"{variant.name}/seed-{seed}" for seed in seeds}

    @property
    def num_units(self) -> int:
        """The runs of all rows."""
        return sum(len(self._keys(variant)) for variant in self.variants)

    @property
    def num_trainings(self) -> int:
        """The runs of all rows but those of the network before training."""
        trained = [variant for variant in self.variants if variant.loss != UNTRAINED]
        return sum(len(self._keys(variant)) for variant in trained)

    def check(self) -> None:
        """Refuse unknown losses, no seeds, and data that cannot be opened."""
        self._check_contenders()
        check_count("--seeds", self.options["seeds"])
        variants = self.variants  # checks every recipe
        for variant in variants:
            # Losses of other libraries refuse their arguments only when they are built.
            build_loss(variant.recipe.as_dict()["loss"], 2, 2)
        open_data(variants[0].recipe)

    def _check_contenders(self) -> None:
        """Refuse the same training under two names, and changes of what the axes vary."""
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
        """Return every unfinished unit, seed by seed: so a partial table is a fair comparison."""
        return [unit for unit in self._units if unit.key not in done]

    @cached_property
    def _units(self) -> list[Unit]:
        wanted = [
            (seed, row, key)
            for row, variant in enumerate(self.variants)
            for seed, key in self._keys(variant).items()
        ]
        found = []
        for seed, row, key in sorted(wanted):
            variant = self.variants[row]
            unit = units.untrained if variant.loss == UNTRAINED else units.training
            found.append(unit(key, partial(recipe_with, variant.recipe, {"seed": seed})))
        return found

    def rows(self, done: Results, failures: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each recipe."""
        return [self._row(variant, done, failures) for variant in self.variants]

    def _row(self, variant: Variant, done: Results, failures: Mapping[str, str]) -> dict[str, Any]:
        keys = self._keys(variant)
        finished = {seed: key for seed, key in keys.items() if key in done}
        return row_of(
            variant.name,
            variant.loss,
            variant.title,
            changes=dict(variant.changes),
            at=variant.at,
            settings={} if variant.loss == UNTRAINED else settings_of(variant.recipe),
            runs=list(finished.values()),
            repetitions=list(finished),
            failed={key: failures[key] for key in keys.values() if key in failures},
            scores=run_scores([done[key] for key in finished.values()]),
        )


def _name(folder: str, at: Mapping[str, Any]) -> str:
    """Return the name of a row: its folder, and below it one for the values of the axes."""
    where = "_".join(f"{key.rpartition('.')[2]}-{value}" for key, value in at.items())
    return f"{folder}/{where}" if where else folder


def run_scores(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean and interval of each score of some runs: on the test set where it was measured.

    Scores on held-out classes, where these chose the epoch, are added as ``valid.*``.
    """
    scores: dict[str, Any] = {}
    for name in SCORES:
        tested = [result.get("test", result).get(name) for result in results]
        scores[name] = summarised(tested)
        if any("test" in result for result in results):
            scores[f"valid.{name}"] = summarised([result.get(name) for result in results])
    for name in (EPOCH, *COSTS):
        scores[name] = summarised([result.get(name) for result in results])
    return {name: found for name, found in scores.items() if found is not None}


class Traditional(RunTable):
    """The paper's traditional protocol: fixed settings, the official split, several seeds."""

    kind = "traditional"
    title = "Traditional protocol"
    question = "Which loss gives the best embedding with its usual settings?"
    tested = (*SCORES, EPOCH)

    def __init__(self, recipe: Recipe, options: Mapping[str, Any]) -> None:
        super().__init__(recipe, options)
        if any(each.changes for each in contenders_of(self.options["losses"])):
            self.question = "Which loss, with which settings, gives the best embedding?"


def traditional(recipe: Recipe, losses: Sequence[str], *, seeds: int = 10) -> Plan:
    """Return the traditional protocol: each loss with its usual settings and several seeds.

    Args:
        recipe: the experiment. Its settings of the loss hold for the loss it names; the others
            have their defaults.
        losses: short names; ``"mf_cwms:delta=0.8"`` is a loss with a changed setting, which is a
            row of its own (`weiss.comparing.contenders`).
        seeds: runs of each loss, counted from the recipe's seed.
    """
    texts = [each.text for each in contenders_of(losses)]
    return Traditional(recipe, {"losses": texts, "seeds": seeds})
