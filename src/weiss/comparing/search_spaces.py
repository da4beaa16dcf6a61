"""Hyper-parameter search: the search space of each loss, and the settings to try next.

A suggestion is a function of the space, the scores of earlier trials, the seed and the number of
the trial. There is no other state: a search that was killed continues unchanged, and every worker
computes the same settings for a trial. (Only this file imports optuna.)
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from weiss._base import checks, draws
from weiss.losses import LOSSES, loss_settings
from weiss.runs.toml_text import read_toml

SAMPLERS = ("gp", "tpe")
SPACES = Path(__file__).with_name("search_spaces.toml")
CLASS_LR = "class_lr"
MOST_STARTUP = 10
"""At most this many trials are drawn at random before the model of the scores is used."""


@dataclass(frozen=True)
class Range:
    """The range of a hyper-parameter; with ``log`` its logarithm is searched."""

    low: float
    high: float
    log: bool = False


Space = dict[str, Range]
"""The hyper-parameters of a loss: arguments of it, and ``class_lr``."""


class Tried(NamedTuple):
    """A trial whose settings are known, and its score, larger is better; None while unknown."""

    settings: Mapping[str, float]
    value: float | None


def search_space(loss: str, file: str | Path | None = None) -> Space:
    """Return the search space of a loss.

    Args:
        loss: a key of `weiss.LOSSES`.
        file: a TOML file with entries ``[LOSS]``; for other losses ``search_spaces.toml`` of this
            package is used.

    Example:
        >>> from weiss.comparing.search_spaces import search_space
        >>> search_space("mf_cwms")["beta"]
        Range(low=10.0, high=200.0, log=False)
    """
    checks.one_of("loss", loss, LOSSES, "a search")
    shipped = _read(SPACES)
    given = {} if file is None else _read(Path(file))
    unknown = [name for name in given if name not in LOSSES]
    if unknown:
        raise ValueError(
            f"every entry of {file} must be a loss; {unknown[0]!r} is not."
            f"{checks.suggestion(unknown[0], LOSSES)}"
        )
    where = file if loss in given else SPACES.name
    entry = {k: v for k, v in (shipped | given)[loss].items() if k != "source"}
    return space_from(loss, entry, f"[{loss}] of {where}")


def space_from(loss: str, entry: Mapping[str, Any], name: str) -> Space:
    """Return a search space from plain values, ``{"beta": {"low": 10, "high": 200}}``, checked.

    ``name`` is that of the space in error messages.
    """
    known = [*loss_settings(loss, {})]
    known += [CLASS_LR] if LOSSES[loss].class_lr_scale is not None else []
    if not entry:
        raise ValueError(f"{name} must name a parameter to search; it names none.")
    return {key: _range(f"{key} in {name}", key, given, known) for key, given in entry.items()}


def _range(name: str, key: str, given: Any, known: Sequence[str]) -> Range:
    if key not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}.{checks.suggestion(key, known)}"
        )
    ends = {"low", "high"}
    if not (isinstance(given, Mapping) and ends <= set(given) <= {*ends, "log"}):
        raise ValueError(
            f"{name} must be {{ low = NUMBER, high = NUMBER }}, optionally with log = true; got "
            f"{given!r}."
        )
    low, high, log = given["low"], given["high"], given.get("log", False)
    numbers = all(isinstance(end, (int, float)) and math.isfinite(end) for end in (low, high))
    if not numbers or not isinstance(log, bool) or isinstance(low, bool) or not low < high:
        raise ValueError(f"{name} must go from a low to a higher number; got {dict(given)!r}.")
    if log and low <= 0:
        raise ValueError(f"{name} must have low above 0 for log = true; got {low}.")
    return Range(float(low), float(high), log)


def suggest(
    space: Space,
    before: Sequence[Tried],
    *,
    seed: int,
    trials: int,
    sampler: str = "gp",
) -> dict[str, float]:
    """Return the settings of the next trial, by Bayesian optimisation of the scores so far.

    Args:
        space: of the loss.
        before: every earlier trial, in order; those without a value are still running.
        seed: of the whole search; each trial derives its own from its number.
        trials: the planned number; half of them, at most ten, are drawn at random first.
        sampler: ``"gp"``, a Gaussian process with expected improvement, or ``"tpe"``.

    Returns:
        A value for each parameter.

    Example:
        >>> from weiss.comparing.search_spaces import Range, Tried, suggest
        >>> space = {"beta": Range(10.0, 200.0)}
        >>> first = suggest(space, [], seed=0, trials=6)
        >>> first == suggest(space, [], seed=0, trials=6)
        True
    """
    import optuna

    checks.one_of("sampler", sampler, SAMPLERS, "a search")
    number = len(before)
    startup = min(MOST_STARTUP, max(trials // 2, 1))
    own_seed = draws.seed_at(seed, draws.TRIALS, number) % 2**32
    distributions: dict[str, Any] = {
        name: optuna.distributions.FloatDistribution(each.low, each.high, log=each.log)
        for name, each in space.items()
    }
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            # One warning a trial that a sampler is experimental helps nobody.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            options: dict[str, Any] = {"seed": own_seed, "n_startup_trials": startup}
            chosen: Any = (
                optuna.samplers.GPSampler(**options)
                if sampler == "gp"
                else optuna.samplers.TPESampler(**options, multivariate=True)
            )
            study = optuna.create_study(direction="maximize", sampler=chosen)
            state = optuna.trial.TrialState
            for each in before:
                study.add_trial(
                    optuna.create_trial(
                        params=dict(each.settings),
                        distributions=distributions,
                        value=each.value,
                        state=state.RUNNING if each.value is None else state.COMPLETE,
                    )
                )
            return {name: float(v) for name, v in study.ask(distributions).params.items()}
    finally:
        optuna.logging.set_verbosity(verbosity)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise ValueError(
            f"a file of search spaces must be readable; {path} is not: {error.strerror}."
        ) from None
