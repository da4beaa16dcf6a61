"""What a comparison is: its units of work, which of them can be done next, and its table.

A plan is a recipe and options, plain values that can be stored and compared. It knows no workers
and no executor: given the results so far it returns the units that can be done now.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from weiss.comparing.units import Results, Unit
from weiss.losses import LOSSES, loss_settings
from weiss.runs import Recipe
from weiss.runs.gain import start_word
from weiss.runs.summaries import UNTRAINED


class Plan(ABC):
    """A comparison.

    Attributes:
        kind: the protocol or study, as commands name it.
        title: the same for people.
        question: what it answers, in a sentence.
        recipe: the experiment that its runs vary.
        options: everything else that its units follow from: plain values.
        axes: what the rows vary besides the loss: key, label, values, log. The values are the
            option ``values``.
    """

    kind: str
    title: str
    question: str
    may_grow: tuple[str, ...] = ()
    """Options that a later command may raise: no finished unit depends on them."""
    tested: Sequence[str] = ()
    """The scores by which rows are tested against each other."""
    default_losses: tuple[str, ...] = ()
    default_axes: tuple[Mapping[str, Any], ...] = ()

    def __init__(self, recipe: Recipe, options: Mapping[str, Any]) -> None:
        self.recipe, self.options = recipe, dict(options)
        self.axes = [
            {**axis, "values": self.options["values"][axis["key"]]} for axis in self.default_axes
        ]

    def describe(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        return {"kind": self.kind, "options": self.options, "recipe": self.recipe.as_dict()}

    @property
    @abstractmethod
    def num_units(self) -> int:
        """The number of units, or an upper bound."""

    @property
    @abstractmethod
    def num_trainings(self) -> int:
        """The number of units that train a network, or an upper bound."""

    @abstractmethod
    def ready(self, done: Results) -> list[Unit]:
        """Return the unfinished units that can be done now, the most urgent first."""

    @abstractmethod
    def check(self) -> None:
        """Refuse a plan that cannot be completed, before anything starts."""

    @abstractmethod
    def rows(self, done: Results, failures: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the rows of the table, as far as results are known."""


def check_count(name: str, given: Any, least: int = 1) -> int:
    """Return a whole number of at least ``least``."""
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; got {given!r}.")
    return given


def row_of(name: str, loss: str, title: str, **more: Any) -> dict[str, Any]:
    """Return a row of the table; what is not given is empty."""
    empty: dict[str, Any] = {key: {} for key in ("at", "settings", "failed", "scores")}
    empty |= {"runs": [], "repetitions": []}
    return {"name": name, "loss": loss, "title": title, **empty, **more}


def title_of(loss: str, recipe: Recipe) -> str:
    """Return the title of a row: of its loss, or of the network before training."""
    if loss != UNTRAINED:
        return LOSSES[loss].title
    return start_word(recipe)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return all arguments of a recipe's loss, and the learning rate of its class vectors."""
    name = recipe.loss.name
    settings = loss_settings(name, recipe.loss.arguments)
    scale = LOSSES[name].class_lr_scale
    if scale is not None:
        settings["class_lr"] = recipe.optim.class_lr or recipe.optim.lr * scale
    return settings
