"""The folder of a comparison: what it is, whether a command belongs to it, and what was found.

    plan.json       what the comparison is: kind, options, recipe, and an identity
    summary.json    what was found so far
    ledger.sqlite3  who works on what, unless --storage names another place
    LOSS/...        the units, most of them run folders

Whoever reads comparisons needs the plan and the units; the ledger is for those at work.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weiss._base.files import alone, replacing
from weiss.comparing.contenders import merged
from weiss.comparing.ledger import Ledger
from weiss.comparing.plan import Description, Plan
from weiss.comparing.significance import compared
from weiss.comparing.units import failures_on_disk, results_on_disk
from weiss.runs import Recipe, differences, recipe_from_dict
from weiss.runs.folder import Run
from weiss.runs.summaries import FORMAT, SUMMARY, UNTRAINED

PLAN, LEDGER = "plan.json", "ledger.sqlite3"
OF_A_MACHINE = (
    "train.device",
    "train.graphs",
    "data.root",
    "data.keep",
    "data.num_workers",
    "data.cache",
    "track.",
)
"""What of a recipe may differ from machine to machine."""


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
        command: what was typed, to be kept for the record; a line for each that let it grow.

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
    held, is_new = _held_now(out), False
    if held is not None:
        _grown(held, plan, out)  # refused before anything is created or changed
    else:
        held, is_new = _begin(plan, out, command)
    try:
        ledger = open_ledger(out, storage, study)
        registered = {key: held[key] for key in ("kind", "options", "recipe")}
        identity, found = ledger.register(held["id"], registered)
        if identity != held["id"]:
            raise ValueError(
                f"the storage must belong to the comparison in {out}; the one it holds under the "
                f"name {ledger.study!r} belongs to another folder. Name that folder in --out, or "
                "choose another name with --study."
            )
    except (ValueError, OSError, ImportError):
        if is_new:
            (out / PLAN).unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()
        raise
    grown = _grown(found, plan, out)
    while grown["options"] != found["options"] and not ledger.change_plan(found, grown):
        found = _found(ledger)  # somebody else has let it grow in the meantime
        grown = _grown(found, plan, out)
    if held["options"] != grown["options"]:
        with alone(out / PLAN):
            held = read_plan(out) or held  # another command may have let it grow meanwhile
            lines = [*held.get("command", "").splitlines(), command]
            asked = "\n".join(line for line in dict.fromkeys(lines) if line)
            with replacing(out / PLAN) as temporary:
                entry = {**held, **_found(ledger), "command": asked}
                temporary.write_text(_text(entry), encoding="utf-8")
    # Where this machine keeps data and computes is its own affair.
    return ledger, {**grown, "recipe": plan.recipe.as_dict()}


def grown_plan(plan: Plan, ledger: Ledger) -> Plan:
    """Return the plan as it is registered now: a later command may have let it grow."""
    return type(plan)(plan.recipe, _found(ledger)["options"])


def _found(ledger: Ledger) -> Description:
    found = ledger.registered()
    if found is None:
        raise ValueError(
            f"the storage must keep the comparison {ledger.study!r} until it is done; it has been "
            "removed. Start the command again."
        )
    return found[1]


def _begin(plan: Plan, out: Path, command: str) -> tuple[dict[str, Any], bool]:
    """Write the plan of a new comparison; of several that begin at once all take the first one's.

    Returns:
        The plan that the folder holds now, and whether it is this one.
    """
    entry = {"format": FORMAT, "id": uuid.uuid4().hex, "command": command, **plan.describe()}
    out.mkdir(parents=True, exist_ok=True)
    try:
        _create(out / PLAN, _text(entry))
    except FileExistsError:
        held = _held_now(out)
        assert held is not None
        _grown(held, plan, out)
        return held, False
    return entry, True


def _held_now(out: Path) -> dict[str, Any] | None:
    """Read the plan of a folder, which somebody else may be writing at this moment."""
    end = time.monotonic() + 1
    while True:
        try:
            return read_plan(out)
        except ValueError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)


def _create(path: Path, text: str) -> None:
    """Write a file that must not be there; whole, where the file system can."""
    own = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        own.write_text(text, encoding="utf-8")
        os.link(own, path)  # which fails where there is one, unlike a rename
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    finally:
        own.unlink(missing_ok=True)


def _text(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, indent=2) + "\n"


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
    for key in plan.may_grow:
        if isinstance(old.get(key), dict):  # search spaces: new ones may come, none may change
            both = set(old[key]) & set(new[key])
            changed += [
                f"{key}.{name}: {old[key][name]} -> {new[key][name]}"
                for name in sorted(both)
                if old[key][name] != new[key][name]
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
            options[key] = merged(old, new) if key == "losses" else _larger(old[key], new[key])
    if options not in (old, new):
        type(plan)(plan.recipe, options).check()  # what was asked for apart must do together too
    return {"kind": held["kind"], "options": options, "recipe": held["recipe"]}


def _larger(old: Any, new: Any) -> Any:
    if isinstance(old, dict):
        return {**old, **new}
    return max(old, new)


def _recipe_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = differences(recipe_from_dict(old), recipe_from_dict(new))
    return [line for line in lines if not line.startswith(OF_A_MACHINE)]


def write_summary(plan: Plan, out: Path) -> dict[str, Any]:
    """Put together what lies in the folder of a comparison, and write summary.json."""
    found = summarise(plan, out)
    with replacing(out / SUMMARY) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def summarise(plan: Plan, out: Path) -> dict[str, Any]:
    """Put together what lies in the folder of a comparison; nothing is written.

    Args:
        plan: the comparison.
        out: its folder.

    Returns:
        The summary, see `weiss.runs.summaries`.
    """
    done = results_on_disk(plan.ready, out)
    open_units = plan.ready(done)
    rows = plan.rows(done, failures_on_disk(open_units, out))
    recipe: Recipe = plan.recipe
    failed = {key for row in rows for key in row["failed"]}
    held = read_plan(out) or {}
    return {
        "format": FORMAT,
        "kind": plan.kind,
        "title": plan.title,
        "question": plan.question,
        "data": recipe.data.name,
        "backbone": recipe.backbone.name,
        "embedding_size": recipe.backbone.embedding_size,
        "batch_size": recipe.train.batch_size,
        "measured_on": _measured_on(done.values()),
        "selected_on": "test" if recipe.evaluate.on == "test" else "held-out training classes",
        "is_complete": not open_units and not failed,
        "num_units": plan.num_units,
        "num_done": len(done),
        "axes": [dict(axis) for axis in plan.axes],
        "rows": rows,
        "tests": compared([row for row in rows if row["loss"] != UNTRAINED], plan.tested),
        "protocol": plan.options,
        "recipe": recipe.as_dict(),
        "command": held.get("command", ""),
        "made_with": _made_with(rows, done, out),
    }


def _measured_on(results: Iterable[Mapping[str, Any]]) -> str:
    """Return what scores are of: the test set wherever it was looked at."""
    places = {"test" if "test" in r else str(r.get("measured_on", "")) for r in results} - {""}
    return "test" if "test" in places else (sorted(places) or ["nothing"])[0]


def _made_with(
    rows: Sequence[Mapping[str, Any]], done: Mapping[str, Mapping[str, Any]], out: Path
) -> dict[str, Any]:
    """Return what the first of the runs, or of the measurements, says it was made with."""
    keys = [*(key for row in rows for key in row["runs"]), *done]
    for run in (Run(out / key) for key in keys):
        if run.exists():
            found: dict[str, Any] = run.recipe().get("made_with", {})
            return found
    return next((dict(r["made_with"]) for r in done.values() if "made_with" in r), {})
