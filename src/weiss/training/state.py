"""Everything of a run that changes: where it is, and the tensors that training moves.

`Parts.pack` and `Parts.unpack` convert it to and from a `State`. Tensors are restored to the last
bit, by copying them into memory that the program has allocated itself.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base.processes import is_main_process
from weiss.losses import MeanFieldLoss
from weiss.losses.self_consistency import ClassMeans
from weiss.losses.shards import is_sharded, whole_rows, whole_state
from weiss.runs.checkpoints import State
from weiss.runs.evaluator import NotFiniteError
from weiss.training.loss_watch import LossWatch


@dataclass
class Position:
    """Where a run is."""

    epoch: int = 0  # how many are done
    step: int = 0  # of the current epoch
    steps: int = 0  # in all
    seconds: float = 0.0  # over all restarts
    epoch_seconds: float = 0.0
    loss_total: float = 0.0  # sum of the losses of the current epoch
    loss_count: int = 0
    skipped: float | None = None  # share of pairs that the gradient of the last step skipped
    history: list[dict[str, Any]] = field(default_factory=list)  # as metrics.jsonl has them
    before: dict[str, Any] | None = None  # metrics of the network before training, and by class

    def note(self, watch: LossWatch, loss: nn.Module) -> None:
        """Store the losses of the current epoch, and the share that its last step skipped."""
        self.loss_total, self.loss_count = watch.total, watch.count
        skipped = getattr(loss, "skipped_share", None)
        # A loss that has computed nothing yet, in this process or this epoch, does not know.
        if self.step and skipped is not None:
            self.skipped = skipped

    def close_epoch(self) -> None:
        """Move to the first step of the next epoch."""
        self.epoch, self.step, self.epoch_seconds = self.epoch + 1, 0, 0.0
        self.loss_total, self.loss_count, self.skipped = 0.0, 0, None


@dataclass(frozen=True)
class Parts:
    """The objects whose tensors training changes; ``means`` are those of the current epoch."""

    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    means: ClassMeans

    def pack(self, at: Position, origin: dict[str, Any]) -> State:
        """Return the state, with the rows of all classes in the main process.

        Where processes share the classes, all must call it together. ``origin`` are facts by which
        a resumed run recognises its recipe and its data.

        Raises:
            NotFiniteError: a parameter is NaN or infinite; such a state is not saved.
        """
        learned = self._learned(whole_state(self.loss, wanted=is_main_process()))
        self.refuse_not_finite(at, learned)
        moments = {
            f"optimizer.{index}.{key}": self._whole(index, value)
            for index, values in self.optimizer.state_dict()["state"].items()
            for key, value in values.items()
            if isinstance(value, Tensor)
        }
        running = {"means.sums": self.means.sums_CD, "means.counts": self.means.counts_C}
        facts = {"position": asdict(at), **origin, "scaler": self.scaler.state_dict()}
        return State({**learned, **moments, **running}, facts)

    def unpack(self, state: State) -> Position:
        """Restore a state; return where the run was."""
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

    def refuse_not_finite(self, at: Position, learned: dict[str, Tensor] | None = None) -> None:
        """Raise NotFiniteError if a parameter is NaN or infinite; waits for the device once."""
        learned = learned or self._learned(self.loss.state_dict())
        learned = {k: v for k, v in learned.items() if v.is_floating_point()}
        finite: dict[torch.device, list[Tensor]] = {}
        for value in learned.values():
            finite.setdefault(value.device, []).append(value.isfinite().all())
        if all(bool(torch.stack(flags).all()) for flags in finite.values()):
            return
        name = next(name for name, value in learned.items() if not bool(value.isfinite().all()))
        raise NotFiniteError(
            f"parameters must stay finite; {name} was not after step {at.step} of epoch "
            f"{at.epoch + 1}."
        )

    def _learned(self, loss: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            **{f"model.{name}": value for name, value in self.model.state_dict().items()},
            **{f"loss.{name}": value for name, value in loss.items()},
        }

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _sharded(self, index: int, moment: Tensor) -> MeanFieldLoss | None:
        """Return the loss if this is a moment of a parameter that is a shard of its fields."""
        loss = self.loss
        if moment.ndim and isinstance(loss, MeanFieldLoss) and is_sharded(loss):
            return loss if self._parameters()[index] is loss.fields else None
        return None

    def _whole(self, index: int, moment: Tensor) -> Tensor:
        """Return a moment of the optimiser; if this process has a shard, with the rows of all."""
        loss = self._sharded(index, moment)
        if loss is None or len(moment) != len(loss.fields):
            return moment
        return whole_rows(loss, moment, "cpu", wanted=is_main_process())

    def _moments(self, tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        parameters = self._parameters()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            parameter, loss = parameters[int(index)], self._sharded(int(index), value)
            if loss is not None and len(value) == loss.shard.num_classes:
                value = value[loss.shard.first :][: len(loss.fields)]  # the rows of this process
            # In the memory layout of the parameter, as the optimiser would have made it.
            is_alike = value.shape == parameter.shape and key != "step"
            place = torch.empty_like(parameter) if is_alike else torch.empty_like(value)
            moments.setdefault(int(index), {})[key] = place.detach().copy_(value)
        return moments


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
