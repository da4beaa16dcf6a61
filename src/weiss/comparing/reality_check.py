"""The protocol of "A Metric Learning Reality Check" (Musgrave, Belongie, Lim 2020): fair settings.

The training classes are divided into four folds. A trial of a loss is a choice of its
hyper-parameters; its score is the validation MAP@R, averaged over the four ways to train on three
folds and validate on the fourth. Bayesian optimisation chooses the trials. With the best settings
the four networks are trained again, several times. Only these are measured on the test classes:
one by one (separated) and with their embeddings side by side (concatenated).

    settings of trial n -> its folds -> settings of trial n + 1 -> ... -> best settings
        -> repeat r: its folds -> ensemble

The settings of a trial depend on the scores of exactly the trials before it (``at_once`` = 1), so
the table does not depend on the number of workers or on when they were killed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from weiss._base import checks
from weiss.comparing import units
from weiss.comparing.contenders import plain_losses
from weiss.comparing.costs import PER_CLASS
from weiss.comparing.plan import Plan, check_count, row_of, title_of
from weiss.comparing.search_spaces import (
    CLASS_LR,
    SAMPLERS,
    Tried,
    search_space,
    space_from,
    suggest,
)
from weiss.comparing.units import Result, Results, Unit
from weiss.losses import LOSSES
from weiss.runs import Recipe, recipe_with
from weiss.runs.experiment import open_data
from weiss.runs.summaries import SCORES, UNTRAINED, summarised

METRIC = "map_at_r"
TRIALS_BEFORE_PRUNING = 4


@dataclass(frozen=True)
class Trial:
    """A trial, numbered from 0.

    Attributes:
        folds: the validation score of each; None if it is not trained, or not yet.
        failed: why it scores zero, if it failed.
        pruned: why folds were skipped, if some were.
        value: its score; None while it is not known.
    """

    number: int
    settings: dict[str, float]
    folds: list[float | None]
    failed: str | None = None
    pruned: str | None = None
    value: float | None = None


class RealityCheck(Plan):
    """A search, then repeats, for each loss; the network before training is a row."""

    kind = "reality-check"
    title = "Reality check"
    question = "Which loss gives the best embedding when each has the settings that suit it?"
    may_grow = ("losses", "repeats", "spaces")
    tested = ("concatenated.map_at_r", "separated.map_at_r")

    def __init__(self, recipe: Recipe, options: Mapping[str, Any]) -> None:
        super().__init__(recipe, options)
        self.spaces = {
            loss: space_from(loss, entry, f"the search space of {loss}")
            for loss, entry in self.options["spaces"].items()
        }

    @property
    def num_units(self) -> int:
        """Settings and folds of every trial, folds and ensemble of every repeat."""
        losses = self.options["losses"]
        search = len(losses) * self.options["trials"] * (1 + self.options["folds"])
        again = [self._networks(loss) for loss in (UNTRAINED, *losses)]
        return int(search + sum(repeats * (folds + 1) for repeats, folds in again))

    @property
    def num_trainings(self) -> int:
        """A training for each fold of every trial and of every repeat."""
        options = self.options
        times = options["trials"] + options["repeats"]
        return int(len(options["losses"]) * options["folds"] * times)

    def check(self) -> None:
        """Refuse unknown losses, counts of zero, and data with too few classes."""
        options = self.options
        losses = plain_losses(options["losses"])
        check_count("--trials", options["trials"])
        check_count("--repeats", options["repeats"])
        check_count("--folds", options["folds"], 2)
        check_count("--trials-at-once", options["at_once"])
        checks.one_of("--sampler", options["sampler"], SAMPLERS, "a search")
        table = open_data(recipe_with(self.recipe, {"evaluate.on": "test"}))
        if not table.has("test"):
            raise ValueError(
                f"{table.name} must have a test part for the reality check; it has "
                f"{', '.join(table.sizes())}."
            )
        if table.has("valid"):
            raise ValueError(
                f"{table.name} must have no part 'valid' of its own for the reality check, which "
                "validates on folds of the training classes. Mark those items 'train'."
            )
        classes, folds = len(table.part("train").classes()), options["folds"]
        if classes < 2 * folds:
            raise ValueError(
                f"{table.name} must have at least {2 * folds} training classes, two for each of "
                f"{folds} folds; it has {classes}. Use fewer folds (--folds) or more classes."
            )
        most = classes - -(-classes // folds)
        for loss in losses:
            recipe = self.fold_recipe(loss, {}, 0, seed=self.recipe.seed)
            size, each = recipe.train.batch_size, recipe.train.per_class
            if isinstance(size, int) and size // each > most:
                raise ValueError(
                    f"a batch of {size} has {size // each} classes with {each} images each for "
                    f"{loss!r}, but only {most} of {classes} classes train when a fold is left "
                    "out. Use a smaller batch: --set train.batch_size=..., or fewer folds."
                )

    def fold_recipe(
        self, loss: str, settings: Mapping[str, float], fold: int, *, seed: int, test: bool = False
    ) -> Recipe:
        """Return the recipe that trains on all folds but one; with ``test`` it is tested, too."""
        changes: dict[str, Any] = {
            "seed": seed,
            "evaluate.on": "held_out",
            "evaluate.folds": self.options["folds"],
            "evaluate.fold": fold,
            "evaluate.metric": METRIC,
            "evaluate.then_test": test,
        }
        if loss != UNTRAINED:
            if loss == self.recipe.loss.name:
                # Every loss starts from its own defaults: the recipe's are for one loss only.
                changes |= {f"loss.{key}": None for key in self.recipe.loss.arguments}
            changes |= {
                "loss.name": loss,
                "train.sampler": "per_class",
                "train.per_class": PER_CLASS[LOSSES[loss].sampling],
            }
        for name, value in settings.items():
            changes[f"{'optim' if name == CLASS_LR else 'loss'}.{name}"] = value
        return recipe_with(self.recipe, changes)

    def _networks(self, loss: str) -> tuple[int, int]:
        """Return the number of repeats of a row, and of networks in each."""
        if loss == UNTRAINED and title_of(loss, self.recipe) != UNTRAINED:
            return 1, 1  # a pretrained network without a head is the same with every seed and fold
        return self.options["repeats"], self.options["folds"]

    def ready(self, done: Results) -> list[Unit]:
        """Return the units that can be done now, loss by loss."""
        wanted = list(self._repeats(UNTRAINED, {}, done))
        for loss in self.options["losses"]:
            best = self.best(loss, done)
            if best is None:
                wanted += self._search(loss, done)
            elif best.value:
                wanted += self._repeats(loss, best.settings, done)
        return [unit for unit in wanted if unit.key not in done]

    def _search(self, loss: str, done: Results) -> Iterator[Unit]:
        trials = self.trials(loss, done)
        for trial in trials:
            if trial.value is None:
                yield from self._folds_of(loss, trial)
        number = len(trials)
        told = trials[: max(number - self.options["at_once"] + 1, 0)]
        if number < self.options["trials"] and all(trial.value is not None for trial in told):
            # The other trials count as running even if their score is known by now, so that the
            # order in which they finish does not matter.
            before = [Tried(trial.settings, trial.value) for trial in told]
            before += [Tried(trial.settings, None) for trial in trials[len(told) :]]
            options = {key: self.options[key] for key in ("trials", "sampler")}
            settings = partial(suggest, self.spaces[loss], before, seed=self.recipe.seed, **options)
            key = f"{_trial(loss, number)}/settings"
            yield units.computed(key, partial(_settings, settings), is_light=True)

    def _folds_of(self, loss: str, trial: Trial) -> Iterator[Unit]:
        for fold, value in enumerate(trial.folds):
            if value is not None:
                continue
            key = f"{_trial(loss, trial.number)}/fold-{fold}"
            recipe = partial(self.fold_recipe, loss, trial.settings, fold, seed=self.recipe.seed)
            yield units.trial(key, recipe)
            if self.options["prune"]:
                return  # one after the other: the score of this fold decides about the next

    def _repeats(self, loss: str, settings: Mapping[str, float], done: Results) -> Iterator[Unit]:
        repeats, folds = self._networks(loss)
        names = [f"fold-{fold}" for fold in range(folds)]
        for repeat in range(repeats):
            above = f"{loss}/repeat-{repeat:02d}"
            keys = [f"{above}/{name}" for name in names]
            # Each network of an ensemble has its own seed; the search uses the recipe's.
            first = self.recipe.seed + 1 + repeat * len(names)
            unit = units.untrained if loss == UNTRAINED else units.training
            for fold, key in enumerate(keys):
                changes: dict[str, Any] = {"seed": first + fold, "test": True}
                recipe = partial(self.fold_recipe, loss, settings, fold, **changes)
                yield unit(key, recipe, keep_embeddings=True)
            if all(key in done for key in keys):
                yield units.ensemble(f"{above}/ensemble", names, self.recipe)

    def trials(self, loss: str, done: Results) -> list[Trial]:
        """Return every trial of a loss whose settings are known, in order."""
        trials: list[Trial] = []
        for number in range(self.options["trials"]):
            above = _trial(loss, number)
            if f"{above}/settings" not in done:
                break
            settings = done[f"{above}/settings"]["settings"]
            results = [done.get(f"{above}/fold-{f}") for f in range(self.options["folds"])]
            trials.append(self._trial_of(number, settings, results, trials))
        return trials

    def _trial_of(
        self,
        number: int,
        settings: dict[str, float],
        results: Sequence[Result | None],
        earlier: Sequence[Trial],
    ) -> Trial:
        folds = [None if r is None else float(r.get(METRIC, 0.0)) for r in results]
        failed = next((r["failed"] for r in results if r is not None and "failed" in r), None)
        if failed is not None:
            return Trial(number, settings, folds, failed=failed, value=0.0)
        known = [value for value in folds if value is not None]
        if len(known) == len(folds):
            return Trial(number, settings, folds, value=sum(known) / len(known))
        pruned = self._why_pruned(number, known, earlier) if self.options["prune"] else None
        value = sum(known) / len(known) if pruned else None
        return Trial(number, settings, folds, pruned=pruned, value=value)

    def _why_pruned(
        self, number: int, known: Sequence[float], earlier: Sequence[Trial]
    ) -> str | None:
        """Return why the other folds of a trial are skipped: it is below the median; else None."""
        whole = [
            sum(t.folds[: len(known)]) / len(known)  # type: ignore[arg-type]
            for t in earlier[: max(number - self.options["at_once"] + 1, 0)]
            if known and t.pruned is None and t.failed is None and None not in t.folds
        ]
        if len(whole) < TRIALS_BEFORE_PRUNING:
            return None
        mine, others = sum(known) / len(known), median(whole)
        if mine >= others:
            return None
        return (
            f"after {len(known)} of {self.options['folds']} folds its mean {100 * mine:.2f} % was "
            f"below the median {100 * others:.2f} % of {len(whole)} earlier trials"
        )

    def best(self, loss: str, done: Results) -> Trial | None:
        """Return the best trial of a loss, the first of equals; None before all are finished."""
        trials = self.trials(loss, done)
        if len(trials) < self.options["trials"] or any(t.value is None for t in trials):
            return None
        # A pruned trial guides the search, but its score is not comparable: it cannot win.
        whole = [trial for trial in trials if trial.pruned is None]
        return max(whole, key=lambda trial: (trial.value or 0.0, -trial.number))

    def rows(self, done: Results, failures: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return a row for each loss, with its search."""
        return [self._row(loss, done, failures) for loss in (UNTRAINED, *self.options["losses"])]

    def _row(self, loss: str, done: Results, failures: Mapping[str, str]) -> dict[str, Any]:
        num_repeats, num_folds = self._networks(loss)
        repeats = range(num_repeats)
        above = [f"{loss}/repeat-{repeat:02d}" for repeat in repeats]
        there = {n: done[f"{above[n]}/ensemble"] for n in repeats if f"{above[n]}/ensemble" in done}
        scores = {
            f"{how}.{name}": summarised([result[how].get(name) for result in there.values()])
            for how in ("separated", "concatenated")
            for name in SCORES
        }
        scores["seconds"] = summarised([result["seconds"] for result in there.values()])
        folds = [f"{a}/fold-{fold}" for a in above for fold in range(num_folds)]
        row = row_of(
            loss,
            loss,
            title_of(loss, self.recipe),
            runs=[key for key in folds if key in done],
            repetitions=list(there),
            failed={k: why for k, why in failures.items() if k.startswith(f"{loss}/")},
            scores={name: found for name, found in scores.items() if found is not None},
        )
        if loss == UNTRAINED:
            return row
        trials, best = self.trials(loss, done), self.best(loss, done)
        row |= {
            "trials": [vars(trial) for trial in trials],
            "search_space": {k: asdict(each) for k, each in self.spaces[loss].items()},
        }
        if best is not None and best.value:
            row |= {"best_trial": best.number, "best_settings": best.settings}
            row["settings"] = best.settings
        elif best is not None:
            why = next((trial.failed for trial in trials if trial.failed), "MAP@R 0 in all")
            row["failed"][f"{loss}/search"] = f"none of {len(trials)} trials has a score: {why}"
        return row


def _settings(suggested: Callable[[], dict[str, float]], folder: Path) -> Result:
    return {"settings": suggested()}


def _trial(loss: str, number: int) -> str:
    return f"{loss}/trial-{number:03d}"


def reality_check(
    recipe: Recipe,
    losses: Sequence[str],
    *,
    trials: int = 50,
    repeats: int = 10,
    folds: int = 4,
    sampler: str = "gp",
    at_once: int = 1,
    prune: bool = False,
    spaces: str | Path | None = None,
) -> Plan:
    """Return the protocol of "A Metric Learning Reality Check".

    Args:
        recipe: the experiment: data, network, optimiser, batch, early stopping. Its settings of
            the loss are not used: every loss has its defaults and what the search finds.
        losses: short names.
        trials: settings tried for each loss.
        repeats: how often the best settings are trained again.
        folds: parts of the training classes, each left out once.
        sampler: ``"gp"`` or ``"tpe"``; see `weiss.comparing.search_spaces.suggest`.
        at_once: trials of a loss that may run at the same time. The settings of a trial depend on
            the scores of the trials that are at least this many before it.
        prune: skip further folds of a trial whose first ones are below the median.
        spaces: a TOML file of search spaces; see `weiss.comparing.search_spaces.search_space`.
    """
    names = plain_losses(losses)
    options = {
        "losses": names,
        "trials": trials,
        "repeats": repeats,
        "folds": folds,
        "sampler": sampler,
        "at_once": at_once,
        "prune": prune,
        "spaces": {
            loss: {key: asdict(each) for key, each in search_space(loss, spaces).items()}
            for loss in names
        },
    }
    return RealityCheck(recipe, options)
