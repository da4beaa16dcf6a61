"""CUDA graphs: capture the forward and backward pass of a network once, replay them in each step.

A step of ResNet-50 launches some thousand kernels of a few microseconds each, and on many machines
Python needs more time for the launches than the GPU for the work. A replay is one launch. It runs
the same kernels on the same memory, so it fits where only numbers change: one process, the whole
batch at once, a network without random numbers, and batch normalisation with frozen statistics.

Dimensions: B batch, c channels, S side of images, D embedding size.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from weiss._base.processes import Processes
from weiss.backbones import Embedder
from weiss.backbones.layers import are_hooked
from weiss.runs import Recipe


def can_be_captured(
    model: Embedder, recipe: Recipe, processes: Processes, device: torch.device
) -> bool:
    """Return whether the passes of a network in training mode are the same in every step."""
    settings = recipe.train
    alone = processes.size == 1 and settings.accumulate == 1
    # Not in float16, which skips a step when a gradient overflows: never tried.
    wanted = settings.graphs and not settings.compile and settings.precision != "fp16"
    changes = any(isinstance(m, _BatchNorm) and m.training for m in model.modules())
    # A hook would be called in the capture, and never in a replay.
    fits = model.trunk.is_static and not changes and not are_hooked(model.modules())
    return device.type == "cuda" and alone and wanted and fits


def captured(
    model: Embedder, recipe: Recipe, precision: Callable[[], Any], device: torch.device
) -> "CapturedNetwork | Embedder":
    """Capture a network; where that fails return the network itself, with a warning."""
    try:
        return CapturedNetwork(model, recipe, precision, device)
    except (RuntimeError, AssertionError) as error:
        torch.cuda.synchronize(device)
        warnings.warn(
            f"the network is computed kernel by kernel, because the capture of its CUDA graph "
            f"failed ({error}); switch the capture off with train.graphs=false",
            stacklevel=2,
        )
        return model


class CapturedNetwork:
    """A network whose forward and backward pass are replayed as CUDA graphs.

    Capture it again when other parameters train. No other thread may use the GPU meanwhile, and
    the context that ``precision`` makes must not cache what it casts.

    Raises:
        RuntimeError: something in the network cannot be captured.
    """

    def __init__(
        self, model: Embedder, recipe: Recipe, precision: Callable[[], Any], device: torch.device
    ) -> None:
        batch, side = int(recipe.train.batch_size), recipe.augment.size
        assert side
        channels = 1 if model.input.channels == 1 else 3
        # As batches come: channels last in memory.
        images = torch.zeros(batch, side, side, channels, device=device).permute(0, 3, 1, 2)
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            # Gradients come from the stream of the capture, which is waited for.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        self._shape, self._device, self._model = images.shape, device, model
        self._cast: Any = _Cast(model, precision)
        torch.cuda.make_graphed_callables(self._cast, (images,))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the embeddings ``(B, D)`` of images ``(B, c, S, S)``; differentiable once.

        Another number of images than the recipe's is computed without a replay.
        """
        if images.shape != self._shape:
            plain: Tensor = self._model(images)
            return plain
        # A copy, since the next replay writes to the same memory.
        embeddings: Tensor = self._cast(images).clone()
        return embeddings

    def release(self) -> None:
        """Free the graphs and their memory.

        The ``forward`` that torch has set refers to its own module: without this the memory of a
        whole batch would live until Python collects cycles.
        """
        self._cast.__dict__.pop("forward", None)
        if self._device.type == "cuda":
            with suppress(RuntimeError):  # of a device that has failed: that error counts
                torch.cuda.empty_cache()


class _Cast(nn.Module):
    """A network with its precision inside, so that a capture includes the casts."""

    def __init__(self, model: Embedder, precision: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self._precision = model, precision

    def forward(self, images: Tensor) -> Tensor:
        with self._precision():
            embeddings: Tensor = self.model(images)
            return embeddings
