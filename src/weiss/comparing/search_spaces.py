"""Hyper-parameter search: where each loss is searched, and what to try next.

A suggestion is a function of what is known: the space, the scores of earlier trials, the seed and
the number of the trial. There is no state to keep or to lose, so a search that was killed goes on
as if nothing had happened, and whoever asks for a trial gets the same settings.
(optuna only here.)
"""

import math
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weiss._base import checks, draws
from weiss.losses import LOSSES, loss_settings

SAMPLERS = ("gp", "tpe")
SPACES = Path(__file__).with_name("search_spaces.toml")
CLASS_LR = "class_lr"
MOST_STARTUP = 10
"""At most so many trials are drawn at random before a model of the scores leads."""


@dataclass(frozen=True)
class Range:
    """Where a hyper-parameter is searched.

    Attributes:
        low: the lower end.
        high: the upper end.
        log: whether it is searched by its logarithm.
    """

    low: float
    high: float
    log: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the range as plain values."""
        return asdict(self)


Space = dict[str, Range]
"""The hyper-parameters of a loss: arguments of it, and ``class_lr``."""


@dataclass(frozen=True)
class Tried:
    """A trial whose settings are known.

    Attributes:
        settings: values by name.
        value: its score, larger is better; None while it is not known.
    """

    settings: Mapping[str, float]
    value: float | None


def search_space(loss: str, file: str | Path | None = None) -> Space:
    """Return where the hyper-parameters of a loss are searched.

    Args:
        loss: a key of `weiss.LOSSES`.
        file: a TOML file with an entry ``[LOSS]``, as ``search_spaces.toml`` has them; a loss that
            it does not name is searched as that file says.

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
            f"every entry of {file} must be a loss; {unknown[0]!r} is none."
            f"{checks.suggestion(unknown[0], LOSSES)}"
        )
    where = file if loss in given else SPACES.name
    entry = {k: v for k, v in (shipped | given)[loss].items() if k != "source"}
    return space_from(loss, entry, f"[{loss}] of {where}")


def space_from(loss: str, entry: Mapping[str, Any], name: str) -> Space:
    """Return a search space from plain values, checked.

    Args:
        loss: a key of `weiss.LOSSES`.
        entry: ``{"beta": {"low": 10, "high": 200}}``.
        name: what to call it where something is wrong.
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
    is_table = isinstance(given, Mapping) and {"low", "high"} <= set(given) <= {
        "low",
        "high",
        "log",
    }
    if not is_table:
        raise ValueError(
            f"{name} must read {{ low = NUMBER, high = NUMBER }}, perhaps with log = true; got "
            f"{given!r}."
        )
    low, high, log = given["low"], given["high"], given.get("log", False)
    numbers = all(isinstance(end, (int, float)) and math.isfinite(end) for end in (low, high))
    if not numbers or not isinstance(log, bool) or isinstance(low, bool) or not low < high:
        raise ValueError(f"{name} must go from a low to a higher number; got {dict(given)!r}.")
    if log and low <= 0:
        raise ValueError(f"{name} must have low above 0 to be searched by logarithm; got {low}.")
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
        space: where to search.
        before: every earlier trial, in order; those without a value yet are known to be under way.
        seed: of the whole search; each trial draws by its own number.
        trials: how many there are to be: half of them, at most ten, are drawn at random first.
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
            # That a sampler is experimental is for its developers to say, not for each trial.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            chosen: Any = (
                optuna.samplers.GPSampler(seed=own_seed, n_startup_trials=startup)
                if sampler == "gp"
                else optuna.samplers.TPESampler(
                    seed=own_seed, n_startup_trials=startup, multivariate=True
                )
            )
            study = optuna.create_study(direction="maximize", sampler=chosen)
            for each in before:
                study.add_trial(_as_trial(optuna, each, distributions))
            return {name: float(v) for name, v in study.ask(distributions).params.items()}
    finally:
        optuna.logging.set_verbosity(verbosity)


def _as_trial(optuna: Any, tried: Tried, distributions: Mapping[str, Any]) -> Any:
    state = optuna.trial.TrialState
    return optuna.create_trial(
        params=dict(tried.settings),
        distributions=dict(distributions),
        value=tried.value,
        state=state.RUNNING if tried.value is None else state.COMPLETE,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML in UTF-8: {error}.") from None
    except OSError as error:
        raise ValueError(
            f"a file of search spaces must be readable; {path} is not: {error.strerror}."
        ) from None
