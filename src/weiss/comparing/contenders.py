"""What ``--losses`` names: a loss with its usual settings, or with some of them changed.

    mf_cwms                     as the recipe has it; a loss of another name with its defaults
    mf_cwms:delta=0.8           with another setting of the loss
    cwms:train.per_class=2      with another setting of its training
    cwms:seeds=2                with two runs, however many the other rows have

Each is a row of the table, with a folder and a title made from its changes. All rows share data,
network, evaluation and the first seed; otherwise they could not be compared.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weiss._base import checks
from weiss.comparing.plan import check_count
from weiss.losses import LOSSES
from weiss.runs import Recipe, override_from, recipe_with, to_toml_value

OWN = ("loss", "fields", "augment", "optim", "schedule", "train")
"""The sections of a recipe in which losses may differ."""
SHARED = ("train.device", "train.graphs", "train.checkpoint_seconds")
"""Keys of these sections that describe the machine and not the loss."""
LONGEST = 80
"""Characters in the name of a folder; some file systems allow no more than 255 bytes."""


@dataclass(frozen=True)
class Contender:
    """A loss and what is changed for it.

    Attributes:
        loss: short name.
        changes: values by their keys in the recipe, sorted: ``{"loss.delta": 0.8}``. None stands
            for the default.
        seeds: how many runs it gets; None for as many as the comparison has.
    """

    loss: str
    changes: Mapping[str, Any]
    seeds: int | None = field(default=None, compare=False)

    @classmethod
    def from_text(cls, text: str) -> "Contender":
        """Read ``NAME`` or ``NAME:KEY=VALUE:KEY=VALUE``; a KEY without a section is the loss's."""
        name, *changed = (part.strip() for part in text.split(":"))
        checks.one_of("--losses", name, LOSSES, "a comparison")
        changes: dict[str, Any] = {}
        for change in changed:
            if not all(map(str.strip, change.partition("="))):
                raise ValueError(
                    f"--losses must be NAME or NAME:KEY=VALUE, without a colon in a value; got "
                    f"{text!r}. Write {name}:delta=0.8 for a setting of the loss, "
                    f"{name}:optim.lr=1e-5 for another."
                )
            is_plain = "." not in change.partition("=")[0]
            path, value = override_from(f"loss.{change}" if is_plain else change)
            key = ".".join(path)
            if key != "loss.seeds":
                _refuse_what_all_share(key, text)
            if key in changes:
                raise ValueError(f"--losses must give {_short(key)} once for a loss; got {text!r}.")
            changes[key] = value
        seeds = changes.pop("loss.seeds", None)
        if seeds is not None:
            check_count(f"seeds in --losses {text!r}", seeds)
        return cls(name, dict(sorted(changes.items())), seeds)

    @property
    def text(self) -> str:
        """The text of ``--losses`` in normal form."""
        return self._trained + ("" if self.seeds is None else f":seeds={self.seeds}")

    @property
    def _trained(self) -> str:
        words = [f"{_short(key)}={_word(value)}" for key, value in self.changes.items()]
        return ":".join([self.loss, *words])

    @property
    def folder(self) -> str:
        """The unique name of its folder: the loss and its changes."""
        words = [f"{_short(key)}-{_word(value)}" for key, value in self.changes.items()]
        plain = "_".join([self.loss, *words])
        safe = re.sub(r"[^A-Za-z0-9_.+-]+", "-", plain)[:LONGEST]
        if safe == plain:
            return plain
        return f"{safe}-{hashlib.sha256(self._trained.encode()).hexdigest()[:8]}"

    @property
    def title(self) -> str:
        """The loss's title and its changes."""
        words = [f"{_short(key)} {_word(value)}" for key, value in self.changes.items()]
        return ", ".join([LOSSES[self.loss].title, *words])

    def recipe(self, recipe: Recipe, at: Mapping[str, object]) -> Recipe:
        """Return the comparison's recipe with this loss, its changes and values of axes by key."""
        changes = {"loss.name": self.loss, **self.changes, **at}
        try:
            return recipe_with(recipe, changes)
        except ValueError as error:
            if not self.changes:
                raise
            raise ValueError(f"--losses {self.text!r} cannot be trained: {error}") from error


def contenders_of(losses: Sequence[str]) -> list[Contender]:
    """Return the contenders, checked: known losses, at least one, none twice."""
    if not losses:
        raise ValueError(
            f"--losses must name at least one loss; got none. Known: {', '.join(LOSSES)}."
        )
    found = [Contender.from_text(text) for text in losses]
    for number, each in enumerate(found):
        if each in found[:number]:
            before = found[found.index(each)].text
            got = f"{before!r} twice" if before == each.text else f"{before!r} and {each.text!r}"
            raise ValueError(f"--losses must name each loss once; got {got}.")
    return found


def merged_losses(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the ``losses`` of a comparison after two commands.

    Both are options of plans: ``losses``, and ``seeds`` if the plan has them. A loss that both
    name gets the larger number of runs.
    """
    seeds = [int(options.get("seeds", 0)) for options in (old, new)]
    found = contenders_of(old["losses"])
    for each in contenders_of(new["losses"]):
        if each not in found:
            found.append(each)
            continue
        at = found.index(each)
        # Of equal numbers None is kept, which means "as many as the comparison has".
        counts = [
            (found[at].seeds or seeds[0], found[at].seeds),
            (each.seeds or seeds[1], each.seeds),
        ]
        wanted, own = max(counts, key=lambda pair: (pair[0], pair[1] is None))
        is_all = own is None and wanted == max(seeds)
        found[at] = replace(each, seeds=None if is_all else wanted)
    return [each.text for each in found]


def plain_losses(losses: Sequence[str]) -> list[str]:
    """Return short names of losses, checked, for comparisons that take no changed settings."""
    found = contenders_of(losses)
    for each in found:
        if each.changes or each.seeds is not None:
            raise ValueError(
                f"--losses must be short names here; got {each.text!r}. A loss can have its own "
                "settings and number of runs in `weiss bench traditional` and in studies that "
                "train every loss."
            )
    return [each.loss for each in found]


def _refuse_what_all_share(key: str, text: str) -> None:
    section, _, inner = key.partition(".")
    if key == "loss.seed":
        section = key = "seed"
    if key == "loss.name":
        raise ValueError(
            f"--losses must not change the name of a loss; got {text!r}. Write the other name in "
            "front of the colon."
        )
    if section == "loss" and inner in Recipe.model_fields:
        raise ValueError(
            f"--losses must name the setting of the section {inner!r} to change; got {text!r}. "
            f"Write {inner}.KEY=VALUE."
        )
    if key == "seed":
        raise ValueError(
            f"--losses must not change seed for one loss alone; got {text!r}. Use --set seed=N for "
            "all of them; seeds=N gives a loss N runs."
        )
    if section not in OWN or key in SHARED:
        raise ValueError(
            f"--losses must not change {key} for one loss alone; got {text!r}. Losses are compared "
            "on the same data, with the same network, evaluation and seeds: use --set for all of "
            f"them. Losses may differ in {', '.join(OWN)} (except {', '.join(SHARED)})."
        )


def _short(key: str) -> str:
    """Return a key without its section if that is the loss."""
    return key.removeprefix("loss.")


def _word(value: Any) -> str:
    """Return a value as a user types it: `override_from` reads the same value."""
    if value is None:
        return "none"
    if isinstance(value, str) and override_from(f"key={value}")[1] == value:
        return value
    return to_toml_value(value)
