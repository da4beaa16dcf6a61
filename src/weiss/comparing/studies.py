"""Every study: five vary settings of a recipe, two measure the losses themselves.

To add one, write a class here, add it to `STUDIES` and its kind to `weiss.runs.summaries`.
Reports choose its table and its picture by its kind and axes (`weiss.reporting.tables`,
`weiss.reporting.pictures`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from weiss._base import checks
from weiss.backbones.embedder import EMBEDDING_SIZE
from weiss.comparing import units
from weiss.comparing.breakdown import gap_at, gap_of
from weiss.comparing.contenders import contenders_of, plain_losses
from weiss.comparing.costs import device_of, measure_cost
from weiss.comparing.plan import Plan, check_count, row_of, settings_of, title_of
from weiss.comparing.run_table import RunTable
from weiss.comparing.units import Result, Results, Unit
from weiss.losses.by_name import FAMILIES
from weiss.runs import Recipe, embed_runs, recipe_with
from weiss.runs.experiment import open_data
from weiss.runs.provenance import made_with
from weiss.runs.summaries import UNTRAINED, summarised

MEAN_FIELD = ("mf_contrastive", "mf_cwms")


class Dimension(RunTable):
    """MAP@R against the size of the embedding (the paper's figure 2)."""

    kind = "dimension"
    title = "Embedding dimensions"
    question = "How many dimensions does an embedding need?"
    default_losses = ("proxy_anchor", *MEAN_FIELD)
    default_axes = (
        {
            "key": "backbone.embedding_size",
            "label": "embedding dimensions",
            "values": [32, 64, 128, 256, 512, 1024],
            "log": True,
        },
    )


class BatchSize(RunTable):
    """MAP@R against the batch size (the paper's tables 4, 5, 10 and 11)."""

    kind = "batch-size"
    title = "Batch size"
    question = "How large must a batch be?"
    default_losses = ("proxy_anchor", "mf_cwms")
    default_axes = (
        {
            "key": "train.batch_size",
            "label": "batch size",
            "values": [30, 60, 90, 120, 150, 180, 300, 500],
            "log": True,
        },
    )


class BetaDelta(RunTable):
    """MAP@R against beta and delta of MFCWMS (the paper's figure 3).

    The paper's delta, 0.6 to 1, is a cosine; as distances 1 - cos these are 0.4 to 0.
    """

    kind = "beta-delta"
    title = "beta and delta of MFCWMS"
    question = "How carefully must beta and delta of MFCWMS be chosen?"
    default_losses = ("mf_cwms",)
    default_axes = (
        {"key": "loss.beta", "label": "beta", "values": [50.0, 60.0, 70.0, 80.0, 90.0]},
        {"key": "loss.delta", "label": "delta (distance)", "values": [0.0, 0.1, 0.2, 0.3, 0.4]},
    )


class Regularisation(RunTable):
    """MAP@R against the weight of the fields' regulariser (the paper's table 6)."""

    kind = "regularisation"
    title = "Regularisation of the fields"
    question = "Does it help to keep the fields of different classes apart?"
    default_losses = MEAN_FIELD
    default_axes = (
        {
            "key": "loss.reg_weight",
            "label": "weight of the regulariser",
            "values": [0.0, 0.01, 0.1, 1.0, 10.0, 100.0],
            "log": True,
        },
    )


class FieldsStudy(RunTable):
    """MAP@R of the three ways to find the fields."""

    kind = "fields"
    title = "Ways to find the fields"
    question = "Should fields be trained with the network, solved in turns, or set to class means?"
    default_losses = MEAN_FIELD
    default_axes = (
        {
            "key": "fields.how",
            "label": "how the fields are found",
            "short": "fields",
            "values": ["joint", "alternating", "class_mean"],
        },
    )
    tested = ("map_at_r",)


class Measurement(Plan):
    """A study of the losses themselves, not of trained networks; it has one axis."""

    may_grow = ("losses",)

    def _recipe(self, loss: str) -> Recipe:
        return recipe_with(self.recipe, {"loss.name": loss})

    def _row(
        self, key: str, loss: str, at: dict[str, Any], failures: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return a row without scores and settings."""
        failed = {key: failures[key]} if key in failures else {}
        return row_of(key, loss, title_of(loss, self.recipe), at=at, failed=failed)


class Classes(Measurement):
    """Time and memory of a step of each loss against the number of classes."""

    kind = "classes"
    title = "Cost against the number of classes"
    question = "What does a step of a loss cost when there are many classes?"
    default_losses = ("arcface", "proxy_anchor", *MEAN_FIELD)
    default_axes = (
        {
            "key": "num_classes",
            "label": "classes",
            "short": "number of classes",
            "values": [100, 1_000, 10_000, 100_000],
            "log": True,
        },
    )

    @property
    def num_units(self) -> int:
        """Losses times numbers of classes."""
        return len(self._places())

    @property
    def num_trainings(self) -> int:
        """None: it measures losses alone."""
        return 0

    def check(self) -> None:
        """Refuse unknown losses and numbers below two."""
        plain_losses(self.options["losses"])
        for value in self.axes[0]["values"]:
            check_count("--values num_classes", value, 2)

    def ready(self, done: Results) -> list[Unit]:
        """Return what is not measured yet."""
        return [
            units.computed(key, partial(self._measure, loss, number))
            for key, loss, number in self._places()
            if key not in done
        ]

    def _places(self) -> list[tuple[str, str, int]]:
        return [
            (f"{loss}/num_classes-{number}", loss, number)
            for loss in self.options["losses"]
            for number in self.axes[0]["values"]
        ]

    def _measure(self, loss: str, number: int, folder: Path) -> Result:
        recipe = self._recipe(loss)
        size = recipe.train.batch_size
        found = measure_cost(
            loss,
            number,
            batch_size=size if isinstance(size, int) else 128,
            embedding_size=recipe.backbone.embedding_size or EMBEDDING_SIZE,
            settings=recipe.loss.arguments,
            device=recipe.train.device,
            seed=recipe.seed,
        )
        return {**found, "made_with": made_with(device_of(recipe.train.device))}

    def rows(self, done: Results, failures: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each loss and number of classes."""
        found = []
        for key, loss, number in self._places():
            result = done.get(key, {})
            row = self._row(key, loss, {"num_classes": number}, failures)
            row |= {"settings": settings_of(self._recipe(loss)), "device": result.get("device")}
            if "milliseconds" in result:
                memory = summarised([result["megabytes"]])
                row["scores"] = {"milliseconds": result["milliseconds"], "megabytes": memory}
            if "failed" in result:
                row["failed"] = {key: result["failed"]}
            found.append(row)
        return found


class Breakdown(Measurement):
    """Where the mean-field approximation breaks down: the gap against the spread of a class.

    Curves are of drawn classes. Points beside them are the recipe's own network, before and after
    training with each mean-field loss, on its training classes.
    """

    kind = "breakdown"
    title = "Where the approximation breaks down"
    question = "How much does it cost to put a class's mean in the place of its samples?"
    default_losses = MEAN_FIELD
    default_axes = (
        {
            "key": "spread",
            "label": "spread of a class, mean 1 - cos to its own mean",
            "short": "spread",
            "values": [0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5],
        },
    )

    @property
    def num_units(self) -> int:
        """For each loss the drawn classes, two networks and a training; and one start."""
        return len(self.options["losses"]) * (len(self.axes[0]["values"]) + 3) + 1

    @property
    def num_trainings(self) -> int:
        """One for each loss."""
        return len(self.options["losses"])

    def check(self) -> None:
        """Refuse losses without a mean-field form, a wrong spread, data that cannot be opened."""
        for loss in plain_losses(self.options["losses"]):
            checks.one_of("--losses", loss, [f"mf_{name}" for name in FAMILIES], "this study")
        for spread in self.axes[0]["values"]:
            checks.not_negative("--values spread", spread, "this study")
        open_data(self.recipe)

    def ready(self, done: Results) -> list[Unit]:
        """Return what is not measured yet, networks first, which take longest."""
        start = f"{UNTRAINED}/seed-{self.recipe.seed}"
        wanted = [units.untrained(start, partial(recipe_with, self.recipe, {}))]
        for loss in self.options["losses"]:
            trained = f"{loss}/seed-{self.recipe.seed}"
            wanted.append(units.training(trained, partial(self._recipe, loss)))
            for name, run in (("untrained", start), ("trained", trained)):
                if run in done:
                    measure = partial(self._of_network, loss, run)
                    wanted.append(units.computed(f"{loss}/{name}-network", measure))
            for spread in self.axes[0]["values"]:
                draw = partial(self._of_draw, loss, spread)
                wanted.append(units.computed(f"{loss}/spread-{spread:g}", draw, is_light=True))
        return [unit for unit in wanted if unit.key not in done]

    def _of_draw(self, loss: str, spread: float, folder: Path) -> Result:
        size = self.recipe.train.batch_size
        return gap_at(
            loss.removeprefix("mf_"),
            spread,
            num_classes=max(int(size) // 4, 2) if isinstance(size, int) else 32,
            per_class=12,
            embedding_size=self.recipe.backbone.embedding_size or EMBEDDING_SIZE,
            settings=self._recipe(loss).loss.arguments,
            seed=self.recipe.seed,
        )

    def _of_network(self, loss: str, run: str, folder: Path) -> Result:
        study = folder.parent.parent  # the key of this unit has two parts
        embedded = embed_runs(
            [study / run],
            split="train",
            device=self.recipe.train.device,
            overrides=units.data_overrides(self.recipe),
            trust=True,
        )[0]
        return gap_of(
            embedded.embeddings,
            embedded.table.labels,
            loss.removeprefix("mf_"),
            self._recipe(loss).loss.arguments,
        )

    def rows(self, done: Results, failures: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each loss and spread, and for each loss and network."""
        networks = {"untrained": title_of(UNTRAINED, self.recipe), "trained": "trained"}
        found = []
        for loss in self.options["losses"]:
            for spread in self.axes[0]["values"]:
                key = f"{loss}/spread-{spread:g}"
                found.append(self._row(key, loss, {"spread": spread}, failures))
            for name, title in networks.items():
                row = self._row(f"{loss}/{name}-network", loss, {}, failures)
                found.append(row | {"network": title})
        for row in found:
            row["settings"] = dict(self._recipe(row["loss"]).loss.arguments)
            numbers = done.get(row["name"], {}).items()
            row["scores"] = {k: summarised([v]) for k, v in numbers if isinstance(v, float)}
        return found


STUDIES: dict[str, type[Plan]] = {
    study.kind: study
    for study in (Dimension, BatchSize, BetaDelta, Regularisation, Classes, FieldsStudy, Breakdown)
}
"""Every study by its name."""


def make_study(
    name: str,
    recipe: Recipe,
    *,
    losses: Sequence[str] | None = None,
    seeds: int = 1,
    values: Mapping[str, Sequence[Any]] | None = None,
) -> Plan:
    """Return a study by its name.

    Args:
        name: a key of `STUDIES`.
        recipe: the experiment that it varies.
        losses: short names; by default those of the paper's figure. Studies that train also take
            changed settings, as in ``"mf_cwms:alpha=0.1"``.
        seeds: runs of each row, where the study trains.
        values: other values for its axes, by key.
    """
    study = STUDIES[checks.one_of("a study", name, STUDIES, "weiss study")]
    axes: dict[str, list[Any]] = {a["key"]: list(a["values"]) for a in study.default_axes}
    for key, given in (values or {}).items():
        checks.one_of("--values", key, axes, f"the study {name!r}")
        axes[key] = list(given)
        if not given or any(value in given[:at] for at, value in enumerate(given)):
            raise ValueError(
                f"--values must give {key} at least one value, and none twice; got {axes[key]}."
            )
    wanted = contenders_of(study.default_losses if losses is None else losses)
    options: dict[str, Any] = {"losses": [each.text for each in wanted], "values": axes}
    if issubclass(study, RunTable):
        options["seeds"] = check_count("--seeds", seeds)
    elif seeds != 1:
        raise ValueError(f"--seeds must be left out for the study {name!r}; got {seeds}.")
    return study(recipe, options)
