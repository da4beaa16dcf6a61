"""What competes in a comparison: a loss with its usual settings, or with some of them changed.

    mf_cwms                     as the recipe has it; a loss of another name with its defaults
    mf_cwms:delta=0.8           a setting of the loss changed
    cwms:train.per_class=2      any other setting of the recipe changed

Each is a row of the table, with a folder and a title that say what it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weiss import _check
from weiss.config import Recipe, recipe_with
from weiss.losses import LOSSES

SHARED = ("data", "seed")
"""What all that compete have in common, or there would be nothing to compare."""


@dataclass(frozen=True)
class Contender:
    """A loss and what is changed for it.

    Attributes:
        text: as it was asked for, without spaces.
        loss: short name.
        changes: values as they are typed, by their place in the recipe: ``{"loss.delta": "0.8"}``.
    """

    text: str
    loss: str
    changes: Mapping[str, str]

    @classmethod
    def from_text(cls, text: str) -> "Contender":
        """Read ``NAME`` or ``NAME:KEY=VALUE:KEY=VALUE``; a KEY without a section is the loss's."""
        name, *changed = (part.strip() for part in text.split(":"))
        _check.one_of("--losses", name, LOSSES, "a comparison")
        changes: dict[str, str] = {}
        for change in changed:
            key, equals, value = (part.strip() for part in change.partition("="))
            if not (key and equals and value):
                raise ValueError(
                    f"--losses must read NAME or NAME:KEY=VALUE; got {text!r}. Write "
                    f"{name}:delta=0.8 for a setting of the loss, {name}:optim.lr=1e-5 for another."
                )
            whole = key if "." in key else f"loss.{key}"
            if whole == "loss.name" or {key, whole.partition(".")[0]} & set(SHARED):
                raise ValueError(
                    f"--losses must not change {key} for one loss alone; got {text!r}. Losses are "
                    "compared on the same data and seeds: use --set for all of them."
                )
            if whole in changes:
                raise ValueError(f"--losses must give {key} once for a loss; got {text!r}.")
            changes[whole] = value
        words = [f"{_short(key)}={value}" for key, value in changes.items()]
        return cls(":".join([name, *words]), name, changes)

    @property
    def folder(self) -> str:
        """A name for its folder: the loss, and what is changed."""
        words = [f"{_short(key)}-{value}" for key, value in self.changes.items()]
        return "_".join([self.loss, *(re.sub(r"[^\w.+-]+", "-", word) for word in words)])

    @property
    def title(self) -> str:
        """What people call it: the loss's title, and what is changed."""
        words = [f"{_short(key)} {value}" for key, value in self.changes.items()]
        return ", ".join([LOSSES[self.loss].title, *words])

    def recipe(self, recipe: Recipe, at: Mapping[str, object]) -> Recipe:
        """Return a recipe with this loss, what is changed for it, and the values of axes.

        Args:
            recipe: the comparison's.
            at: the values by their keys.
        """
        changes = {"loss.name": self.loss, **self.changes, **at}
        return recipe_with(recipe, [f"{key}={value}" for key, value in changes.items()])


def contenders_of(losses: Sequence[str]) -> list[Contender]:
    """Return what competes, checked: known losses, at least one, none twice."""
    if not losses:
        raise ValueError(
            f"--losses must name at least one loss; got none. Known: {', '.join(LOSSES)}."
        )
    found = [Contender.from_text(text) for text in losses]
    folders = [each.folder for each in found]
    for each in found:
        if folders.count(each.folder) > 1:
            raise ValueError(f"--losses must name each loss once; got {each.text!r} twice.")
    return found


def plain_losses(losses: Sequence[str]) -> list[str]:
    """Return short names of losses, checked, for comparisons in which none is changed."""
    for each in contenders_of(losses):
        if each.changes:
            raise ValueError(
                f"--losses must be short names here; got {each.text!r}. Settings can be changed "
                "for one loss in `weiss bench traditional` and in studies that train every loss."
            )
    return [each.loss for each in contenders_of(losses)]


def _short(key: str) -> str:
    """Return a key without its section where that is the loss's, else the whole of it."""
    return key.removeprefix("loss.")
