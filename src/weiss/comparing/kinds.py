"""Every comparison by its kind: made from what a command says, or from what a folder holds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss._base import checks
from weiss.comparing.contenders import contenders_of, plain_losses
from weiss.comparing.folder import PLAN, read_plan, summarise
from weiss.comparing.plan import Plan
from weiss.comparing.reality_check import RealityCheck
from weiss.comparing.run_table import Traditional
from weiss.comparing.search_spaces import search_space
from weiss.comparing.studies import STUDIES
from weiss.runs import Recipe, recipe_from_dict
from weiss.runs.summaries import SUMMARY

PLANS: dict[str, type[Plan]] = {
    Traditional.kind: Traditional,
    RealityCheck.kind: RealityCheck,
    **STUDIES,
}


def traditional(recipe: Recipe, losses: Sequence[str], *, seeds: int = 10) -> Plan:
    """Return the traditional protocol: each loss with its usual settings and several seeds.

    Args:
        recipe: the experiment. What it says of its own loss holds for that one; the others have
            their defaults.
        losses: short names; ``"mf_cwms:delta=0.8"`` is a loss with a setting changed, which is a
            row of its own (`weiss.comparing.contenders`).
        seeds: runs of each loss, from the recipe's seed on.
    """
    texts = [each.text for each in contenders_of(losses)]
    return Traditional(recipe, {"losses": texts, "seeds": seeds})


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
        recipe: the experiment: data, network, optimiser, batch, when to stop. What it says of a
            loss is not used: every loss has its defaults and what the search finds.
        losses: short names.
        trials: settings tried for each loss.
        repeats: how often the best settings are trained again.
        folds: parts of the training classes, each left out once.
        sampler: ``"gp"`` or ``"tpe"``; see `weiss.comparing.search_spaces.suggest`.
        at_once: trials of a loss that may be under way together. The settings of a trial follow
            from the scores of those that are at least so many before it.
        prune: leave out further folds of a trial whose first ones lie below the median.
        spaces: a TOML file of search spaces; see `weiss.comparing.search_spaces.search_space`.
    """
    options = {
        "losses": plain_losses(losses),
        "trials": trials,
        "repeats": repeats,
        "folds": folds,
        "sampler": sampler,
        "at_once": at_once,
        "prune": prune,
        "spaces": {
            loss: {key: each.as_dict() for key, each in search_space(loss, spaces).items()}
            for loss in losses
        },
    }
    return RealityCheck(recipe, options)


def plan_from(description: Mapping[str, Any]) -> Plan:
    """Return the plan that a description, as `Plan.describe` gives it, stands for."""
    kind = checks.one_of("kind", description["kind"], PLANS, "a comparison")
    return PLANS[kind](recipe_from_dict(description["recipe"]), description["options"])


def current_summary(out: str | Path) -> dict[str, Any]:
    """Return the summary of a comparison as it is now, also of one that is under way.

    Nothing is written. Where less lies in the folder than its summary tells of, its runs having
    been removed, the summary that is there is returned.

    Args:
        out: the folder.
    """
    out = Path(out)
    held = read_plan(out)
    if held is None:
        raise ValueError(f"{out} must be the folder of a comparison; it holds no {PLAN}.")
    now = summarise(plan_from(held), out)
    path = out / SUMMARY
    before: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return now if now["num_done"] >= before.get("num_done", 0) else before
