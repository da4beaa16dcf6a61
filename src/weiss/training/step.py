"""One step of training, from a batch to changed parameters.

The backward pass is cut at the embeddings. The loss of the joined batch gives the gradient of
every embedding; each process, and each part of a batch that is too large for the device, then
sends its own rows of that gradient through the network. So a batch that is shared by processes or
cut into parts has the gradients of the whole, also under losses that compare its samples.

Dimensions: B batch, all processes together; b this process's part; D embedding size.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from weiss._base.devices import autocast
from weiss._base.processes import Processes
from weiss.backbones import Embedder
from weiss.backbones.embedder import HeadOnly
from weiss.backbones.trained_part import stages_after
from weiss.losses import Matryoshka
from weiss.losses.parameter_groups import parameter_groups
from weiss.losses.shards import is_sharded
from weiss.runs import Optim, Recipe
from weiss.training.graphs import CapturedNetwork, can_be_captured, captured


def make_optimizer(recipe: Recipe, model: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """Build the optimiser of a recipe, each kind of parameter at its rate."""
    settings: Optim = recipe.optim
    groups = parameter_groups(
        model, loss, settings.lr, settings.weight_decay, class_lr=settings.class_lr
    )
    if settings.layer_decay != 1:
        groups = [part for group in groups for part in _by_stage(group, model, settings)]
    for group in groups:
        group["rate"] = group["lr"]  # what a schedule multiplies
    if settings.name == "adamw":
        on_gpu = all(p.is_cuda for group in groups for p in group["params"])
        return torch.optim.AdamW(groups, fused=on_gpu)
    if settings.name == "rmsprop":
        return torch.optim.RMSprop(groups, lr=settings.lr, momentum=settings.momentum)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)


def _by_stage(group: dict[str, Any], model: Embedder, settings: Optim) -> Iterator[dict[str, Any]]:
    """Yield the parts of a group: the head at its rate, each stage of the trunk at its own.

    ``lr layer_decay^(1 + s)`` for a stage with s stages after it: as in timm, the head counts.
    """
    after = stages_after(model)
    parts: dict[int | None, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(after.get(parameter), []).append(parameter)
    names = list(reversed(model.trunk.parameters_by_stage()))
    for count, parameters in parts.items():
        if count is None:  # the head, or class vectors
            yield {**group, "params": parameters}
            continue
        rate = group["lr"] * settings.layer_decay ** (count + 1)
        name = f"{group['name']}.{names[count]}"
        yield {**group, "name": name, "params": parameters, "lr": rate}


class Stepper:
    """Takes steps, with a complete recipe and the optimiser of `make_optimizer`."""

    def __init__(
        self,
        recipe: Recipe,
        model: Embedder,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        processes: Processes,
        device: torch.device,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.processes = processes
        sizes = recipe.backbone.dimensions
        self._objective: nn.Module = loss if sizes is None else Matryoshka(loss, sizes)
        self.precision = autocast(recipe.train.precision, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.train.precision == "fp16")
        self._recipe, self._device = recipe, device
        self._settings, self._parts = recipe.optim, recipe.train.accumulate
        self._compiled: Any = torch.compile(model) if recipe.train.compile else model
        self._network: Any = self._compiled
        self._forward: Any = None
        self._phase: tuple[bool, bool] | None = None

    def set_phase(self, warming_up: bool, on_features: bool = False) -> None:
        """Begin or end warm-up, in which the parameters of the trunk do not change.

        The statistics of batch normalisation that is not frozen are no parameters and change.
        With ``on_features`` steps take features ``(b, F)`` in place of images, through the head
        alone and in float32. To be called in training mode, while no thread prepares batches.
        """
        if (warming_up, on_features) == self._phase:
            return
        self.release()
        self._phase = warming_up, on_features
        for parameter in self.model.trunk_parameters():
            parameter.requires_grad_(not warming_up)
            # An optimiser changes every parameter with a gradient, even an old one.
            parameter.grad = None
        self._network = HeadOnly(self.model) if on_features else self._compiled
        self._forward = self._network
        if self.processes.size > 1:
            # Made in each phase: it must know which parameters get gradients.
            self._forward = DistributedDataParallel(self._network)
        elif not on_features and can_be_captured(
            self.model, self._recipe, self.processes, self._device
        ):
            self._forward = captured(self.model, self._recipe, self.precision, self._device)

    def release(self) -> None:
        """Free what only steps need; the next phase makes it again."""
        if isinstance(self._forward, CapturedNetwork):
            self._forward.release()
        self._forward, self._phase = None, None

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step.

        Args:
            images: ``(b, c, S, S)`` or ``(b, F)``, this process's part of the batch.
            labels: ``(b,)`` or ``(b, C)``.

        Returns:
            The loss of the batch, a scalar; its embeddings ``(B, D)`` and labels, joined.
        """
        self.optimizer.zero_grad(set_to_none=True)
        value, joined_BD, labels_B = self._backward(images, labels)
        self.scaler.unscale_(self.optimizer)
        network = [p for p in self.model.parameters() if p.grad is not None]
        if self._settings.clip_value:
            nn.utils.clip_grad_value_(network, self._settings.clip_value)
        if self._settings.clip_norm:
            nn.utils.clip_grad_norm_(network, self._settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return value.detach(), joined_BD.detach(), labels_B

    def _backward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of every parameter that trains."""
        parts = images.chunk(self._parts)
        whole = len(parts) == 1
        if whole:
            with self._precision():
                own_bD = self._forward(images)
        else:
            states = []
            with torch.no_grad(), self._precision(), _frozen_statistics(self.model):
                rows = []
                for part in parts:
                    states.append(_random_state(images.device))
                    rows.append(self._network(part))
                own_bD = torch.cat(rows)
        joined_BD = self.processes.join(own_bD.detach()).requires_grad_()
        labels_B = self.processes.join(labels)
        value = self._objective(joined_BD, labels_B)
        # A loss without a pair to change (no triplet violates its margin) has no gradient.
        if value.requires_grad:
            self.scaler.scale(value).backward()
        gradient_BD = torch.zeros_like(joined_BD) if joined_BD.grad is None else joined_BD.grad
        if not is_sharded(self.loss):  # each field of which has one process, and its gradient
            self.processes.average_gradients(self.loss.parameters())
        # DistributedDataParallel divides by the number of processes; the parts add up to the whole.
        gradient_bD = self.processes.owned(gradient_BD) * self.processes.size
        if whole:
            own_bD.backward(gradient_bD)
            return value, joined_BD, labels_B
        gradients = gradient_bD.chunk(self._parts)
        for state, part, gradient in zip(states, parts, gradients, strict=True):
            _set_random_state(state, images.device)
            with self._unsynchronised(part is not parts[-1]):
                with self._precision():
                    again_bD = self._forward(part)
                again_bD.backward(gradient)
        return value, joined_BD, labels_B

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if isinstance(self._network, HeadOnly) else self.precision()

    def _unsynchronised(self, wanted: bool) -> AbstractContextManager[Any]:
        if wanted and isinstance(self._forward, DistributedDataParallel):
            return self._forward.no_sync()
        return nullcontext()


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch normalisation use the statistics of a batch without updating its own."""
    modules = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    before = [
        (m.momentum, None if m.num_batches_tracked is None else m.num_batches_tracked.clone())
        for m in modules
    ]
    try:
        for module in modules:
            module.momentum = 0.0
        yield
    finally:
        for module, (momentum, batches) in zip(modules, before, strict=True):
            module.momentum = momentum
            if batches is not None and module.num_batches_tracked is not None:
                module.num_batches_tracked.copy_(batches)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), cuda


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
