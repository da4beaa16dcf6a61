"""The folder of a comparison: what it is, whether a command belongs to it, and what was found.

plan.json       what the comparison is: kind, options, recipe, and an identity
summary.json    what was found so far
ledger.sqlite3  who works on what, unless --storage names another place
LOSS/...        the units, most of them run folders
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weiss.config import Recipe, differences, recipe_from_dict
from weiss.files import replacing
from weiss.protocols.ledger import Ledger
from weiss.protocols.plan import Description, Plan
from weiss.protocols.scores import compared
from weiss.protocols.units import results_on_disk
from weiss.runs import Run
from weiss.training import UNTRAINED

PLAN, SUMMARY, LEDGER = "plan.json", "summary.json", "ledger.sqlite3"
FORMAT = 1
OF_A_MACHINE = (
    "train.device",
    "data.root",
    "data.keep",
    "data.num_workers",
    "data.cache",
    "track.",
)
"""What of a recipe may differ from machine to machine."""
RACE_SECONDS = 10.0
"""How long to wait for a machine that began at the same moment to write the plan."""


def open_ledger(out: Path, storage: str | None, study: str | None) -> Ledger:
    """Return the ledger of the comparison in a folder."""
    if storage is None:
        return Ledger(str(out / LEDGER), study or "study")
    return Ledger(storage, study or out.resolve().name)


def join(
    plan: Plan,
    out: Path,
    *,
    storage: str | None = None,
    study: str | None = None,
    command: str = "",
) -> tuple[Ledger, Description]:
    """Begin a comparison in a folder, or join the one it holds.

    Args:
        plan: what is asked for.
        out: the folder.
        storage: where workers find each other; a file in the folder by default.
        study: its name there; by default the folder's.
        command: what was typed, to be kept for the record.

    Returns:
        The ledger, and the description of the comparison: what is asked for, and all that was
        asked before and may only grow.

    Raises:
        ValueError: the folder or the storage holds something else, or the recipe has changed.
    """
    if Run(out).exists():
        raise ValueError(
            f"--out must name a folder for many runs; {out} is a run itself. Choose another."
        )
    held = read_plan(out)
    # Before anything is created or changed.
    wanted = plan.describe() if held is None else _grown(held, plan, out)
    ledger = open_ledger(out, storage, study)
    identity = held["id"] if held else uuid.uuid4().hex
    found_identity, found = ledger.register(identity, wanted)
    if found_identity != identity and held is None:
        held = _written_meanwhile(out, found_identity)
        identity = held["id"] if held else identity
    if found_identity != identity:
        raise ValueError(
            f"the storage must belong to the comparison in {out}; the one it holds under the name "
            f"{ledger.study!r} belongs to another folder. Name that folder in --out, or choose "
            "another name with --study."
        )
    grown = _grown(found, plan, out)
    if grown["options"] != found["options"]:
        ledger.change_plan(grown)
    if held is None or held["options"] != grown["options"]:
        entry = {"format": FORMAT, "id": identity, "command": command, **grown}
        with replacing(out / PLAN) as temporary:
            temporary.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
    # Where this machine keeps data and computes is its own affair.
    return ledger, {**grown, "recipe": plan.recipe.as_dict()}


def read_plan(out: Path) -> dict[str, Any] | None:
    """Return what a folder says that it holds; None if nothing."""
    path = out / PLAN
    if not path.is_file():
        return None
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {"id", "kind", "options", "recipe"} <= set(held)
    except (json.JSONDecodeError, UnicodeDecodeError):
        known = False
    if not known:
        raise ValueError(
            f"{path} must be the plan of a comparison; it is not, or is cut off. Restore it, or "
            "choose another folder."
        )
    return held


def _written_meanwhile(out: Path, identity: str) -> dict[str, Any] | None:
    end = time.monotonic() + RACE_SECONDS
    while time.monotonic() < end:
        held = read_plan(out)
        if held is not None and held["id"] == identity:
            return held
        time.sleep(0.2)
    return None


def _grown(held: Mapping[str, Any], plan: Plan, out: Path) -> Description:
    """Return the description that holds what was there and what is wanted; refuse other changes."""
    wanted = plan.describe()
    if held["kind"] != wanted["kind"]:
        raise ValueError(
            f"{out} must hold the comparison that is asked for, {wanted['kind']!r}; it holds "
            f"{held['kind']!r}. Choose another folder."
        )
    changed = _recipe_changes(held["recipe"], wanted["recipe"])
    old, new = held["options"], wanted["options"]
    changed += [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if key not in plan.may_grow and old.get(key) != new.get(key)
    ]
    if changed:
        listed = "\n  ".join(changed)
        raise ValueError(
            f"a comparison must go on with what it began with; {out} began with other settings "
            f"(then -> now):\n  {listed}\nGive the same again, or choose another folder."
        )
    options = dict(old)
    for key in plan.may_grow:
        if key in new:
            options[key] = _larger(old[key], new[key])
    return {"kind": held["kind"], "options": options, "recipe": held["recipe"]}


def _larger(old: Any, new: Any) -> Any:
    if isinstance(old, list):
        return [*old, *(each for each in new if each not in old)]
    if isinstance(old, dict):
        # A search space that is in use stays as it is.
        return {**new, **old}
    return max(old, new)


def _recipe_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = differences(recipe_from_dict(old), recipe_from_dict(new))
    return [line for line in lines if not line.startswith(OF_A_MACHINE)]


def summarise(plan: Plan, out: Path, failures: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Put together what lies in the folder of a comparison, and write summary.json.

    Args:
        plan: the comparison.
        out: its folder.
        failures: units that failed, and why.

    Returns:
        The summary; scores as fractions.
    """
    done = results_on_disk(plan.ready, out)
    rows = plan.rows(done, failures or {})
    recipe: Recipe = plan.recipe
    open_units = plan.ready(done)
    failed = {key for row in rows for key in row["failed"]}
    measured = {"test" if "test" in r else str(r.get("measured_on", "")) for r in done.values()}
    held = read_plan(out) or {}
    found = {
        "format": FORMAT,
        "kind": plan.kind,
        "title": plan.title,
        "question": plan.question,
        "data": recipe.data.name,
        "backbone": recipe.backbone.name,
        "embedding_size": recipe.backbone.embedding_size,
        "batch_size": recipe.train.batch_size,
        "measured_on": "test"
        if "test" in measured
        else (sorted(measured - {""}) or ["nothing"])[0],
        "is_complete": not open_units and not failed,
        "num_units": plan.num_units,
        "num_done": len(done),
        "axes": [dict(axis) for axis in plan.axes],
        "rows": rows,
        "tests": compared([row for row in rows if row["loss"] != UNTRAINED], plan.tested),
        "protocol": plan.options,
        "recipe": recipe.as_dict(),
        "command": held.get("command", ""),
        "made_with": _made_with(rows, out),
    }
    with replacing(out / SUMMARY) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _made_with(rows: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """Return what the first of the runs says it was made with."""
    for key in (key for row in rows for key in row["runs"]):
        found: dict[str, Any] = Run(out / key).recipe().get("made_with", {})
        return found
    return {}
