"""How a run goes on: the whole of its state out and in, and what it must not go on with.

What is restored is what was there to the last bit: tensors are copied into memory that the
program has laid out itself, so that nothing depends on where a file happened to be read to.
"""

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss._base.files import alone
from weiss._base.processes import Processes, is_main_process
from weiss.losses import MeanFieldLoss
from weiss.losses.self_consistency import ClassMeans
from weiss.losses.shards import is_sharded, whole_rows, whole_state
from weiss.runs import Recipe, differences, recipe_from_dict
from weiss.runs.checkpoints import State
from weiss.runs.evaluator import NotFiniteError
from weiss.runs.experiment import Experiment
from weiss.runs.folder import Run
from weiss.training.loss_watch import LossWatch, in_words

MAY_CHANGE = (
    "train.epochs",
    "train.patience",
    "train.checkpoint_seconds",
    "train.device",
    "train.graphs",
    "train.shard_classes",
    "data.name",
    "data.root",
    "data.keep",
    "data.num_workers",
    "data.cache",
    "track.",
)
"""What of a recipe may be said anew when a run goes on: nothing that its past depends on. (The last
epoch asked for is always evaluated, so a run that was prolonged has one evaluation more.)"""


class BusyFolderError(ValueError):
    """Another program is training in a folder."""


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
        skipped: the share of pairs that the last step's gradient left out, if it left out any.
        history: a line for each epoch, as metrics.jsonl has them.
    """

    epoch: int = 0
    step: int = 0
    steps: int = 0
    seconds: float = 0.0
    epoch_seconds: float = 0.0
    loss_total: float = 0.0
    loss_count: int = 0
    skipped: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def note(self, watch: LossWatch, loss: nn.Module) -> dict[str, float]:
        """Take down the losses of the epoch in hand, and what its last step skipped.

        Returns:
            What a line of metrics says of it: ``skipped``, if anything was.
        """
        self.loss_total, self.loss_count = watch.total, watch.count
        skipped = getattr(loss, "skipped_share", None)
        # A loss that has computed nothing since a restart, or not yet in this epoch, cannot say.
        if self.step and skipped is not None:
            self.skipped = skipped
        return {} if self.skipped is None else {"skipped": self.skipped}

    def close_epoch(self) -> None:
        """Stand before the first step of the next epoch."""
        self.epoch, self.step, self.epoch_seconds = self.epoch + 1, 0, 0.0
        self.loss_total, self.loss_count, self.skipped = 0.0, 0, None


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
        """Return the state, whole in the main process, whoever has the rows of a class's field.

        Where processes share the classes, all must ask at once.

        Args:
            at: where the run is.
            data: what the data were, to be recognised.

        Raises:
            NotFiniteError: a parameter is NaN or infinite; such a state is not worth keeping.
        """
        loss = whole_state(self.loss, wanted=is_main_process())
        learned = self._learned(loss)
        self._refuse_not_finite(at, learned)
        moments = {
            f"optimizer.{index}.{key}": self._whole(index, value)
            for index, values in self.optimizer.state_dict()["state"].items()
            for key, value in values.items()
            if isinstance(value, Tensor)
        }
        running = {"means.sums": self.means.sums_CD, "means.counts": self.means.counts_C}
        tensors = {**learned, **moments, **running}
        facts = {"position": asdict(at), "data": data, "scaler": self.scaler.state_dict()}
        return State(tensors, facts)

    def refuse_not_finite(self, at: Position) -> None:
        """Raise NotFiniteError if a parameter is NaN or infinite; asks the device once."""
        self._refuse_not_finite(at, self._learned(self.loss.state_dict()))

    def _refuse_not_finite(self, at: Position, learned: dict[str, Tensor]) -> None:
        learned = {k: v for k, v in learned.items() if v.is_floating_point()}
        finite: dict[torch.device, list[Tensor]] = {}
        for value in learned.values():
            finite.setdefault(value.device, []).append(value.isfinite().all())
        if all(bool(torch.stack(flags).all()) for flags in finite.values()):
            return
        name = next(name for name, value in learned.items() if not bool(value.isfinite().all()))
        rates = in_words({g["name"]: g["lr"] for g in self.optimizer.param_groups})
        raise NotFiniteError(
            f"parameters must stay finite; {name} was not after step {at.step} of epoch "
            f"{at.epoch + 1}, with the learning rates {rates}."
        )

    def _learned(self, loss: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            **{f"model.{name}": value for name, value in self.model.state_dict().items()},
            **{f"loss.{name}": value for name, value in loss.items()},
        }

    def _shared(self, index: int) -> MeanFieldLoss | None:
        """Return the loss if the optimiser's parameter of this index is a shard of its fields."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        loss = self.loss
        if isinstance(loss, MeanFieldLoss) and is_sharded(loss):
            return loss if parameters[index] is loss.fields else None
        return None

    def _whole(self, index: int, moment: Tensor) -> Tensor:
        """Return what an optimiser keeps for a parameter, for a shard that of all its rows."""
        loss = self._shared(index)
        if loss is None or moment.ndim == 0 or len(moment) != len(loss.fields):
            return moment
        return whole_rows(loss, moment, "cpu", wanted=is_main_process())

    def _here(self, index: int, moment: Tensor) -> Tensor:
        """Return the rows of this process, of what was kept of all rows."""
        loss = self._shared(index)
        if loss is None or moment.ndim == 0 or len(moment) != loss.shard.num_classes:
            return moment
        return moment[loss.shard.first : loss.shard.first + len(loss.fields)]

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
        return Position(**state.facts["position"])

    def _moments(self, tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            parameter, value = parameters[int(index)], self._here(int(index), value)
            # In the parameter's own layout, as the optimiser would have made it.
            is_alike = value.shape == parameter.shape and key != "step"
            place = torch.empty_like(parameter) if is_alike else torch.empty_like(value)
            moments.setdefault(int(index), {})[key] = place.detach().copy_(value)
        return moments


def refuse_another_run(run: Run, resume: bool) -> None:
    """Refuse a folder that holds a run, unless that is to go on."""
    if run.exists() and not resume:
        raise ValueError(
            f"--out must name a folder without a run; {run.folder} holds one. Go on with it: weiss "
            f"train --resume --out {run.folder}. Or choose another folder."
        )
    if run.checkpoints.files() and not run.exists():
        raise ValueError(
            f"--out must name a folder without a run; {run.folder} holds states of one whose "
            "recipe.toml is gone. Bring it back, or choose another folder."
        )


def make_folder(folder: Path) -> None:
    """Make the folder of a run, or say why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--out must be a folder that can be made; {folder} cannot: {error.strerror}. Choose "
            "another place."
        ) from error


@contextmanager
def written_by_one(run: Run) -> Iterator[None]:
    """Let nobody else train in a folder meanwhile, and sweep up after those who were killed."""
    with ExitStack() as stack:
        try:
            stack.enter_context(alone(run.folder / "run", wait=False))
        except BlockingIOError:
            raise BusyFolderError(
                f"{run.folder} must not be written by two programs; another one is training there. "
                "Wait for it, or choose another folder."
            ) from None
        run.sweep()
        yield


def newest_state(run: Run, processes: Processes, device: torch.device) -> State | None:
    """Return the state to go on from: the main process chooses, the others follow."""
    state = run.checkpoints.newest() if processes.is_main else None
    steps = -1 if state is None else int(state.facts["position"]["steps"])
    chosen = processes.agree_on(steps, device)
    return state if processes.is_main or chosen < 0 else run.checkpoints.read(chosen)


def last_good_state(run: Run) -> str:
    """Return a sentence on where a run that ends before its time could go on."""
    files = run.checkpoints.files()
    if not files:
        return "No state had been saved yet."
    return (
        f"The last good state, after step {int(files[-1].stem)} of the run, is kept in "
        f"{files[-1].parent}."
    )


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


def refuse_fewer_epochs(state: State, recipe: Recipe) -> None:
    """Refuse to go on with fewer epochs than are done."""
    done = int(state.facts["position"]["epoch"])
    if recipe.train.epochs < done:
        raise ValueError(
            f"train.epochs must be at least the {done} that the run has done; got "
            f"{recipe.train.epochs}. What is done cannot be taken back."
        )


def warn_of_a_lost_network(at: Position, best: dict[str, Any] | None, metric: str) -> None:
    """Warn where a run has measured a better network than its folder holds."""
    measured = [line for line in at.history if "evaluation" in line]
    if not measured:
        return
    known = max(measured, key=lambda line: float(line["evaluation"][metric]))
    if best is None or best["metrics"][metric] < known["evaluation"][metric]:
        warnings.warn(
            f"the best network so far, of epoch {known['epoch']}, is not in model.safetensors any "
            "more; the best of those there is, and of the epochs to come, takes its place.",
            stacklevel=2,
        )


def _under(prefix: str, tensors: Any) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
