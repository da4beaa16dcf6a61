"""The folder of a comparison: a command starts a comparison there, or joins the one it holds.

    plan.json       what the comparison is: kind, options, recipe, and an identity
    summary.json    the results so far
    ledger.sqlite3  which worker does which unit, unless --storage names another place
    LOSS/...        the units, most of them run folders

Readers of a comparison need the plan and the units; only workers need the ledger.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from weiss._base.files import alone, read_json, replacing
from weiss.comparing.contenders import merged_losses
from weiss.comparing.ledger import Ledger
from weiss.comparing.plan import Description, Plan
from weiss.runs import differences, recipe_from_dict, records
from weiss.runs.folder import Run
from weiss.runs.recipe import OF_A_MACHINE
from weiss.runs.summaries import FORMAT

PLAN, LEDGER = "plan.json", "ledger.sqlite3"


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
    """Start a comparison in a folder, or join the one it holds; see `carry_out`.

    Returns:
        The ledger, and the description of the comparison: what this and earlier commands asked
        for together.

    Raises:
        ValueError: the folder or the storage holds another comparison, or the recipe has changed.
    """
    if Run(out).exists():
        raise ValueError(
            f"--out must name a folder for many runs; {out} is a run itself. Choose another."
        )
    held, is_new = read_plan(out), False
    if held is None:
        out.mkdir(parents=True, exist_ok=True)
        with alone(out / PLAN):
            held = read_plan(out)  # another command may have started it in the meantime
            if held is None:
                is_new = True
                identity = uuid.uuid4().hex
                held = {"format": FORMAT, "id": identity, "command": command, **plan.describe()}
                _write_plan(out, held)
    _grown(held, plan, out)  # refuses before anything else is created or changed
    try:
        ledger = open_ledger(out, storage, study)
        registered = {key: held[key] for key in ("kind", "options", "recipe")}
        identity, found = ledger.register(held["id"], registered)
        if identity != held["id"]:
            raise ValueError(
                f"the storage must belong to the comparison in {out}; its study {ledger.study!r} "
                "belongs to another folder. Name that folder in --out, or choose another name with "
                "--study."
            )
    except (ValueError, OSError, ImportError):
        if is_new:
            (out / PLAN).unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()
        raise
    grown = _grown(found, plan, out)
    while grown["options"] != found["options"] and not ledger.change_plan(found, grown):
        found = _found(ledger)  # another command made it grow in the meantime
        grown = _grown(found, plan, out)
    if held["options"] != grown["options"]:
        with alone(out / PLAN):
            held = read_plan(out) or held  # another command may have made it grow meanwhile
            lines = [*held.get("command", "").splitlines(), command]
            asked = "\n".join(line for line in dict.fromkeys(lines) if line)
            _write_plan(out, {**held, **_found(ledger), "command": asked})
    # Device and data folders are those of this machine.
    return ledger, {**grown, "recipe": plan.recipe.as_dict()}


def grown_plan(plan: Plan, ledger: Ledger) -> Plan:
    """Return the plan as it is registered now: a later command may have made it grow."""
    return type(plan)(plan.recipe, _found(ledger)["options"])


def continued(plan: Plan, out: Path) -> Plan:
    """Return the plan together with that of the comparison a folder holds; nothing is written.

    Raises:
        ValueError: the folder holds another comparison, or the recipe has changed.
    """
    held = read_plan(out)
    return plan if held is None else type(plan)(plan.recipe, _grown(held, plan, out)["options"])


def _found(ledger: Ledger) -> Description:
    found = ledger.registered()
    if found is None:
        raise ValueError(
            f"the storage must keep the comparison {ledger.study!r} until it is done; it has been "
            "removed. Start the command again."
        )
    return found[1]


def _write_plan(out: Path, entry: Mapping[str, Any]) -> None:
    with replacing(out / PLAN) as temporary:
        temporary.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")


def read_plan(out: Path) -> dict[str, Any] | None:
    """Return the plan of the comparison in a folder; None if there is none."""
    path = out / PLAN
    if not path.is_file():
        return None
    why = "it lacks entries"
    try:
        held = records.checked(records.Plan, read_json(path), path)
        if all(held.get(key) is not None for key in ("id", "kind", "options", "recipe")):
            return held
    except ValueError as error:
        why = str(error)
    raise ValueError(
        f"{path} must be the plan of a comparison; it is not, or is truncated: {why} Restore it, "
        "or choose another folder."
    )


def _grown(held: Mapping[str, Any], plan: Plan, out: Path) -> Description:
    """Return the description of the old and the new options together; refuse other changes."""
    wanted = plan.describe()
    if held["kind"] != wanted["kind"]:
        raise ValueError(
            f"{out} must hold the comparison that is asked for, {wanted['kind']!r}; it holds "
            f"{held['kind']!r}. Choose another folder."
        )
    lines = differences(recipe_from_dict(held["recipe"]), recipe_from_dict(wanted["recipe"]))
    changed = [line for line in lines if not line.startswith(OF_A_MACHINE)]
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
            f"a comparison must continue with its own settings; {out} began with other settings "
            f"(then -> now):\n  {listed}\nGive the same again, or choose another folder."
        )
    options = dict(old)
    for key in plan.may_grow:
        if key == "losses":
            options[key] = merged_losses(old, new)
        elif key in new:
            is_dict = isinstance(old[key], dict)
            options[key] = {**old[key], **new[key]} if is_dict else max(old[key], new[key])
    if options not in (old, new):
        type(plan)(plan.recipe, options).check()  # each was checked alone
    return {"kind": held["kind"], "options": options, "recipe": held["recipe"]}
