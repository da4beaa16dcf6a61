"""BN-Inception, the paper's network, built from a table.

    Ioffe, Szegedy: Batch normalization (2015), in the form of the common Caffe model.

A convolution here is convolution (with a bias), batch normalisation, ReLU. An inception block
applies up to four branches to its input and concatenates their outputs:

    1x1
    3x3_reduce (1x1) -> 3x3
    double_3x3_reduce (1x1) -> double_3x3_1 (3x3) -> double_3x3_2 (3x3)
    pool (3x3) -> pool_proj (1x1)

A block that halves the map (3c, 4e) has no 1x1 branch, and its pool is not projected. Parameters
are named as in the public weights: ``inception_3a_double_3x3_1.weight`` and
``inception_3a_double_3x3_1_bn.weight``.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from weiss.backbones.layers import Layers, layers_of
from weiss.backbones.trunk import InputSpec, Trunk


class Block(NamedTuple):
    """Output channels of an inception block's convolutions; 0 for an absent one."""

    plain: int
    reduce: int
    single: int
    double_reduce: int
    double: int
    pool: str
    project: int

    @property
    def stride(self) -> int:
        """2 where the block halves the map: there its pool is not projected."""
        return 1 if self.project else 2


BLOCKS = {
    "3a": Block(64, 64, 64, 64, 96, "avg", 32),
    "3b": Block(64, 64, 96, 64, 96, "avg", 64),
    "3c": Block(0, 128, 160, 64, 96, "max", 0),
    "4a": Block(224, 64, 96, 96, 128, "avg", 128),
    "4b": Block(192, 96, 128, 96, 128, "avg", 128),
    "4c": Block(160, 128, 160, 128, 160, "avg", 128),
    "4d": Block(96, 128, 192, 160, 192, "avg", 128),
    "4e": Block(0, 128, 192, 192, 256, "max", 0),
    "5a": Block(352, 192, 320, 160, 224, "avg", 128),
    "5b": Block(352, 192, 320, 192, 224, "max", 128),
}


class BNInception(Trunk):
    """BN-Inception: 1024 features of BGR images in 0..255 less (104, 117, 128).

    Args:
        num_classes: outputs of the classifier ``last_linear``; 0 for none.
    """

    input = InputSpec(bgr=True, scale=1.0, mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0))
    num_features = 1024
    pooling = "avg+max"
    is_static = True
    architecture = "BN-Inception"

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.num_classes = num_classes
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, block in BLOCKS.items():
            channels = self._add_block(f"inception_{name}", block, channels)
        if num_classes:
            self.last_linear = nn.Linear(channels, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the maps ``(B, 1024, h, w)`` of converted images ``(B, 3, H, W)``."""
        layers = layers_of(self._pairs(), images, self.folds)
        x = _halved(self._convolve("conv1_7x7_s2", images, layers))
        x = self._convolve("conv2_3x3", self._convolve("conv2_3x3_reduce", x, layers), layers)
        x = _halved(x)
        for name, block in BLOCKS.items():
            x = self._apply_block(f"inception_{name}", block, x, layers)
        return x

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores ``(B, num_classes)``, or the maps if there is no classifier."""
        maps = self.features(images)
        if not self.num_classes:
            return maps
        scores: Tensor = self.last_linear(maps.mean(dim=(2, 3)))
        return scores

    def parameters_by_stage(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the stem and of the blocks 3, 4 and 5: one stage a map size."""
        found: dict[str, list[nn.Parameter]] = {"stem": []}
        for name, parameter in self.named_parameters():
            is_block = name.startswith("inception_")
            stage = name[: len("inception_3")] if is_block else "stem"
            found.setdefault(stage, []).append(parameter)
        return found

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        self.add_module(name, convolution)
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _pairs(self) -> Iterator[tuple[nn.Conv2d, nn.Module]]:
        for name, module in self.named_children():
            if isinstance(module, nn.Conv2d):
                yield module, getattr(self, f"{name}_bn")

    def _convolve(self, name: str, x: Tensor, layers: Layers) -> Tensor:
        return layers(x, getattr(self, name), getattr(self, f"{name}_bn"))

    def _add_block(self, name: str, block: Block, inputs: int) -> int:
        """Add a block's convolutions and return its number of output channels."""
        if block.plain:
            self._add(f"{name}_1x1", inputs, block.plain, 1)
        self._add(f"{name}_3x3_reduce", inputs, block.reduce, 1)
        self._add(f"{name}_3x3", block.reduce, block.single, 3, block.stride)
        self._add(f"{name}_double_3x3_reduce", inputs, block.double_reduce, 1)
        self._add(f"{name}_double_3x3_1", block.double_reduce, block.double, 3)
        self._add(f"{name}_double_3x3_2", block.double, block.double, 3, block.stride)
        if block.project:
            self._add(f"{name}_pool_proj", inputs, block.project, 1)
        return block.plain + block.single + block.double + (block.project or inputs)

    def _apply_block(self, name: str, block: Block, x: Tensor, layers: Layers) -> Tensor:
        branches = [self._convolve(f"{name}_1x1", x, layers)] if block.plain else []
        double = ("double_3x3_reduce", "double_3x3_1", "double_3x3_2")
        for chain in (("3x3_reduce", "3x3"), double):
            y = x
            for step in chain:
                y = self._convolve(f"{name}_{step}", y, layers)
            branches.append(y)
        if not block.project:
            # The convolutions round up; for odd maps the pool does so only with padding. Zeros
            # change no maximum, because x comes from a ReLU.
            padding = (0, x.shape[3] % 2, 0, x.shape[2] % 2)
            branches.append(_halved(functional.pad(x, padding) if any(padding) else x))
        else:
            pool = functional.avg_pool2d if block.pool == "avg" else functional.max_pool2d
            y = pool(x, 3, stride=1, padding=1)
            branches.append(self._convolve(f"{name}_pool_proj", y, layers))
        return torch.cat(branches, dim=1)


def _halved(x: Tensor) -> Tensor:
    """Pool by maximum to half the size, rounded up, as Caffe does."""
    return functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
