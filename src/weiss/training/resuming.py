"""The whole of a run's state as tensors and facts, and back.

What is restored is what was there to the last bit: tensors are copied into memory that the
program has laid out itself, so that nothing depends on where a file happened to be read to.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss.checkpoints import State
from weiss.config import Recipe, differences, recipe_from_dict
from weiss.runs import Run
from weiss.self_consistency import ClassMeans
from weiss.training.experiment import Experiment
from weiss.training.guards import NotFiniteError, in_words

MAY_CHANGE = (
    "train.epochs",
    "train.patience",
    "train.checkpoint_seconds",
    "train.device",
    "data.root",
    "data.keep",
    "data.num_workers",
    "data.cache",
    "track.",
)
"""What of a recipe may be said anew when a run goes on: nothing that its past depends on."""


@dataclass
class Position:
    """Where a run is.

    Attributes:
        epoch: how many epochs are done.
        step: steps done of the epoch in hand.
        steps: steps done in all.
        seconds: time it took, over all restarts.
        epoch_seconds: time the epoch in hand took so far.
        loss_total: sum of the losses of the epoch in hand.
        loss_count: how many they are.
        history: a line for each epoch, as metrics.jsonl has them.
    """

    epoch: int = 0
    step: int = 0
    steps: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    loss_total: float = 0.0
    loss_count: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """What changes in training.

    Attributes:
        model: the network.
        loss: the loss, with its class vectors.
        optimizer: over both.
        scaler: of gradients in half precision.
        means: the sums of the epoch in hand.
    """

    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    means: ClassMeans

    def pack(self, at: Position, data: dict[str, Any]) -> State:
        """Return the state.

        Args:
            at: where the run is.
            data: what the data were, to be recognised.

        Raises:
            NotFiniteError: a parameter is NaN or infinite; such a state is not worth keeping.
        """
        self.refuse_not_finite(at)
        learned = self._learned()
        moments = {
            f"optimizer.{index}.{key}": value
            for index, values in self.optimizer.state_dict()["state"].items()
            for key, value in values.items()
            if isinstance(value, Tensor)
        }
        running = {"means.sums": self.means.sums_CD, "means.counts": self.means.counts_C}
        tensors = {**learned, **moments, **running, **_random_states(self.means.sums_CD.device)}
        facts = {"position": asdict(at), "data": data, "scaler": self.scaler.state_dict()}
        return State(tensors, facts)

    def refuse_not_finite(self, at: Position) -> None:
        """Raise NotFiniteError if a parameter is NaN or infinite; asks the device once."""
        learned = {k: v for k, v in self._learned().items() if v.is_floating_point()}
        if bool(torch.stack([value.isfinite().all() for value in learned.values()]).all()):
            return
        name = next(name for name, value in learned.items() if not bool(value.isfinite().all()))
        rates = in_words({g["name"]: g["lr"] for g in self.optimizer.param_groups})
        raise NotFiniteError(
            f"parameters must stay finite; {name} was not after step {at.step} of epoch "
            f"{at.epoch + 1}, with the learning rates {rates}."
        )

    def _learned(self) -> dict[str, Tensor]:
        return {
            **{f"model.{name}": value for name, value in self.model.state_dict().items()},
            **{f"loss.{name}": value for name, value in self.loss.state_dict().items()},
        }

    def unpack(self, state: State) -> Position:
        """Take up a state; return where the run was."""
        tensors = state.tensors
        self.model.load_state_dict(_under("model.", tensors))
        self.loss.load_state_dict(_under("loss.", tensors))
        described = self.optimizer.state_dict()
        described["state"] = self._moments(_under("optimizer.", tensors))
        self.optimizer.load_state_dict(described)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state.facts["scaler"])
        self.means.sums_CD.copy_(tensors["means.sums"])
        self.means.counts_C.copy_(tensors["means.counts"])
        _set_random_states(tensors, self.means.sums_CD.device)
        return Position(**state.facts["position"])

    def _moments(self, tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            parameter = parameters[int(index)]
            # In the parameter's own layout, as the optimiser would have made it.
            is_alike = value.shape == parameter.shape and key != "step"
            place = torch.empty_like(parameter) if is_alike else torch.empty_like(value)
            moments.setdefault(int(index), {})[key] = place.detach().copy_(value)
        return moments


def changes_since(run: Run, recipe: Recipe) -> list[str]:
    """Return what a recipe says otherwise than the run it is to go on with.

    Raises:
        ValueError: it says something otherwise that the run's past depends on.
    """
    changed = differences(recipe_from_dict(run.recipe()), recipe)
    allowed: tuple[str, ...] = MAY_CHANGE
    if recipe.schedule.name == "cosine":
        # Its rates have depended on the number of epochs from the first step on.
        allowed = tuple(key for key in MAY_CHANGE if key != "train.epochs")
    refused = [line for line in changed if not line.startswith(allowed)]
    if refused:
        listed = "\n  ".join(refused)
        raise ValueError(
            f"a run must go on with its own recipe; that of {run.folder} differs in\n  {listed}\n"
            "Leave the recipe out to take the run's own, or start a run in another folder."
        )
    return changed


def data_facts(experiment: Experiment) -> dict[str, Any]:
    """Return what data can be recognised by: names, classes and splits, not every pixel."""
    table = experiment.table
    words = [*table.class_names, *map(str, table.splits)]
    words += [table.source.name(row) for row in range(len(table))]
    digest = hashlib.blake2b("\n".join(words).encode(errors="replace"), digest_size=8)
    digest.update(np.ascontiguousarray(table.labels).data)
    return {
        "images": len(experiment.train_rows),
        "classes": experiment.num_classes,
        "digest": digest.hexdigest(),
    }


def refuse_other_data(state: State, experiment: Experiment, run: Run) -> None:
    """Refuse to go on with other data than those a run began with."""
    before, now = state.facts["data"], data_facts(experiment)
    if before != now:
        were, are = (
            f"{facts['images']:,} images of {facts['classes']:,} classes ({facts['digest']})"
            for facts in (before, now)
        )
        raise ValueError(
            f"the data must be those the run in {run.folder} began with; they were {were} and are "
            f"{are}. Bring them back, or start a run in another folder."
        )


def _under(prefix: str, tensors: Any) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["random.cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_states(tensors: Any, device: torch.device) -> None:
    torch.set_rng_state(tensors["random.cpu"].clone())
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"].clone(), device)
