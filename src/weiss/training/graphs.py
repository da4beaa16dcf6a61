"""The network's passes recorded as CUDA graphs and replayed.

A step of ResNet-50 launches some thousand kernels of a few microseconds each, and on many machines
Python needs longer for that than the GPU for the work. Recorded once, they start by one call.
A graph replays the same kernels on the same memory, so it fits where nothing changes from step to
step but numbers: one process, the whole batch at once, a network without random numbers, and batch
normalisation that stands still.

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


def can_be_recorded(
    model: Embedder, recipe: Recipe, processes: Processes, device: torch.device
) -> bool:
    """Say whether a network's passes in training are the same in every step.

    Args:
        model: the network, in the mode it trains in.
        recipe: its ``train`` says how; sizes resolved.
        processes: who shares each batch.
        device: where it is.
    """
    settings = recipe.train
    alone = processes.size == 1 and settings.accumulate == 1
    # Not in float16, whose steps may be left out when a gradient overflows: never tried.
    wanted = settings.graphs and not settings.compile and settings.precision != "fp16"
    changes = any(isinstance(m, _BatchNorm) and m.training for m in model.modules())
    # A hook would be called while recording, and never again.
    fits = model.trunk.is_static and not changes and not are_hooked(model.modules())
    return device.type == "cuda" and alone and wanted and fits


class Recording:
    """A network's forward pass as a graph, with its backward pass as another.

    Record anew when other parameters train. No other thread may use the GPU meanwhile.

    Args:
        model: the network.
        recipe: sizes resolved.
        precision: makes the context to compute in, which must not keep what it casts.
        device: where it is.

    Raises:
        RuntimeError: something in the network cannot be recorded.
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
            # Gradients come from the stream of the recording, which is waited for.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        self._shape, self._device, self._model = images.shape, device, model
        self._cast: Any = _Cast(model, precision)
        torch.cuda.make_graphed_callables(self._cast, (images,))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the embeddings ``(B, D)`` of images ``(B, c, S, S)``; differentiable once.

        Another number of images than the recipe's is computed without the recording.
        """
        if images.shape != self._shape:
            plain: Tensor = self._model(images)
            return plain
        # A copy, since the next replay writes where this one has written.
        embeddings: Tensor = self._cast(images).clone()
        return embeddings

    def release(self) -> None:
        """Let go of the graphs and of the memory that they keep for themselves.

        What torch has put in the place of ``forward`` refers to its own module: left alone it
        would live until Python looks for cycles, and the memory of a whole batch with it.
        """
        self._cast.__dict__.pop("forward", None)
        if self._device.type == "cuda":
            with suppress(RuntimeError):  # of a device that has failed: that error counts
                torch.cuda.empty_cache()


def recorded(
    model: Embedder, recipe: Recipe, precision: Callable[[], Any], device: torch.device
) -> Recording | Embedder:
    """Return the recording of a network; where that fails the network itself, with a warning."""
    try:
        return Recording(model, recipe, precision, device)
    except (RuntimeError, AssertionError) as error:
        torch.cuda.synchronize(device)
        warnings.warn(
            f"the network is computed kernel by kernel, for recording it failed ({error}); leave "
            "that out with train.graphs=false",
            stacklevel=2,
        )
        return model


class _Cast(nn.Module):
    """A network with its precision inside, where a recording can see it."""

    def __init__(self, model: Embedder, precision: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self._precision = model, precision

    def forward(self, images: Tensor) -> Tensor:
        with self._precision():
            embeddings: Tensor = self.model(images)
            return embeddings
