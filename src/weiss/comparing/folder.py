"""The folder of a comparison: a command starts a comparison there, or joins the one it holds.

    plan.json       what the comparison is: kind, options, recipe, and an identity
    summary.json    the results so far
    LOSS/...        the units, most of them run folders

There is nothing else: a unit is finished when its folder holds its result. (Before 0.2 a database
said who did what, by default in ledger.sqlite3. It is not read, and may be deleted.)
"""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weiss._base.files import alone, read_json, replacing
from weiss.comparing.contenders import merged_losses
from weiss.comparing.plan import Plan
from weiss.runs import differences, recipe_from_dict, records
from weiss.runs.folder import Run
from weiss.runs.recipe import OF_A_MACHINE
from weiss.runs.summaries import FORMAT

PLAN = "plan.json"


def join(plan: Plan, out: Path, command: str = "") -> Plan:
    """Start a comparison in a folder, or join the one it holds; see `carry_out`.

    Returns:
        The plan of what this and earlier commands asked for together; device and data folders are
        those of this command.

    Raises:
        ValueError: the folder holds another comparison, or the recipe has changed.
    """
    if Run(out).exists():
        raise ValueError(
            f"--out must name a folder for many runs; {out} is a run itself. Choose another."
        )
    out.mkdir(parents=True, exist_ok=True)
    with alone(out / PLAN):
        held = read_plan(out)
        if held is None:
            identity = uuid.uuid4().hex
            held = {"format": FORMAT, "id": identity, "command": command, **plan.describe()}
            _write_plan(out, held)
        options = _grown(held, plan, out)
        if options != held["options"]:
            lines = [*held.get("command", "").splitlines(), command]
            asked = "\n".join(line for line in dict.fromkeys(lines) if line)
            _write_plan(out, {**held, "options": options, "command": asked})
    return type(plan)(plan.recipe, options)


def grown_plan(plan: Plan, out: Path) -> Plan:
    """Return the plan as the folder has it now: a later command may have made it grow."""
    held = read_plan(out)
    return plan if held is None else type(plan)(plan.recipe, held["options"])


def continued(plan: Plan, out: Path) -> Plan:
    """Return the plan together with that of the comparison a folder holds; nothing is written.

    Raises:
        ValueError: the folder holds another comparison, or the recipe has changed.
    """
    held = read_plan(out)
    return plan if held is None else type(plan)(plan.recipe, _grown(held, plan, out))


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


def _grown(held: Mapping[str, Any], plan: Plan, out: Path) -> dict[str, Any]:
    """Return the old and the new options together; refuse other changes."""
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
    return options
