"""ResNet-18, 34, 50 and 101, in both versions of the stride.

    He, Zhang, Ren, Sun: Deep residual learning for image recognition (2016).

The first block of the stages 2 to 4 halves the map. In a bottleneck (1x1, 3x3, 1x1) the paper does
so in the first 1x1 convolution, which skips three quarters of its input: **v1**. Most others do it
in the 3x3 convolution: **v1.5**. Both have the same parameters with the same names, so the weights
of one load into the other and give worse features; `architecture` distinguishes them. ResNet-18 and
34 have no bottlenecks and are the same network in both.

Parameters are named as in torchvision, so its public weights load strictly.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from weiss._base import checks
from weiss.backbones.layers import PLAIN, Layers, layers_of, pair_of
from weiss.backbones.trunk import InputSpec, Trunk

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks of each stage by the depth of the network; from 50 on they are bottlenecks."""
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
"""Outputs of a bottleneck over the width of its middle."""
VERSIONS = ("v1", "v1.5")


class ResNet(Trunk):
    """A residual network.

    Args:
        depth: 18, 34, 50 or 101.
        version: ``"v1.5"`` (torchvision's) or ``"v1"`` (the paper's).
        num_classes: outputs of the classifier ``fc``; 0 for none.

    Attributes:
        num_features: 512 for depths 18 and 34, else 2048.
        architecture: for example ``"ResNet-50 v1.5"``; ``"ResNet-18"``, where there is one version.
    """

    input = InputSpec()
    pooling = "avg+max"
    is_static = True

    def __init__(self, depth: int = 50, version: str = "v1.5", num_classes: int = 1000) -> None:
        super().__init__()
        if depth not in STAGES:
            listed = ", ".join(map(str, STAGES))
            raise ValueError(f"depth must be one of {listed} for ResNet; got {depth!r}.")
        checks.one_of("version", version, VERSIONS, "ResNet")
        is_deep = depth >= 50
        self.architecture = f"ResNet-{depth} {version}" if is_deep else f"ResNet-{depth}"
        self.num_classes = num_classes
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for number, (width, blocks) in enumerate(zip(WIDTHS, STAGES[depth], strict=True), start=1):
            stage = _Stage()
            for index in range(blocks):
                stride = 2 if number > 1 and index == 0 else 1
                if is_deep:
                    first, middle = (stride, 1) if version == "v1" else (1, stride)
                    convolutions = [(channels, width, 1, first), (width, width, 3, middle)]
                    convolutions.append((width, EXPANSION * width, 1, 1))
                else:
                    convolutions = [(channels, width, 3, stride), (width, width, 3, 1)]
                stage.append(_Block(*convolutions))
                channels = convolutions[-1][1]
            self.add_module(f"layer{number}", stage)
        self.num_features = channels
        if num_classes:
            self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """Return the maps ``(B, num_features, h, w)`` of converted images ``(B, 3, H, W)``."""
        layers = layers_of(self._pairs(), images, self.folds)
        x = layers(images, self.conv1, self.bn1)
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        for stage in self._stages():
            x = stage(x, layers)
        return x

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores ``(B, num_classes)``, or the maps if there is no classifier."""
        maps = self.features(images)
        if not self.num_classes:
            return maps
        scores: Tensor = self.fc(maps.mean(dim=(2, 3)))
        return scores

    def parameters_by_stage(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the stem and of the four stages."""
        stem = [*self.conv1.parameters(), *self.bn1.parameters()]
        stages = enumerate(self._stages(), start=1)
        return {"stem": stem, **{f"layer{n}": list(stage.parameters()) for n, stage in stages}}

    def _stages(self) -> "Iterator[_Stage]":
        for number in range(1, 5):
            stage = self.get_submodule(f"layer{number}")
            assert isinstance(stage, _Stage)
            yield stage

    def _pairs(self) -> Iterator[tuple[nn.Conv2d, nn.Module]]:
        yield self.conv1, self.bn1
        for stage in self._stages():
            for block in stage:
                assert isinstance(block, _Block)
                yield from block.pairs()


class _Stage(nn.Sequential):
    """Blocks of one width."""

    def forward(self, x: Tensor, layers: Layers = PLAIN) -> Tensor:
        for block in self:
            x = block(x, layers)
        return x


class _Block(nn.Module):
    """Convolutions in a row with a shortcut around them.

    Args:
        convolutions: of each its inputs, outputs, kernel size and stride.
    """

    def __init__(self, *convolutions: tuple[int, int, int, int]) -> None:
        super().__init__()
        for number, (inputs, outputs, kernel, stride) in enumerate(convolutions, start=1):
            conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"bn{number}", nn.BatchNorm2d(outputs))
        self.num_convolutions = len(convolutions)
        inputs, outputs = convolutions[0][0], convolutions[-1][1]
        stride = max(stride for *_, stride in convolutions)
        self.downsample: nn.Sequential | None = None
        if inputs != outputs or stride != 1:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def pairs(self) -> Iterator[tuple[nn.Conv2d, nn.Module]]:
        yield from self._convolutions()
        if self.downsample is not None:
            yield pair_of(self.downsample)

    def forward(self, x: Tensor, layers: Layers = PLAIN) -> Tensor:
        *first, last = self._convolutions()
        y = x
        for pair in first:
            y = layers(y, *pair)
        around = x if self.downsample is None else layers.projected(x, self.downsample)
        return layers(y, *last, add=around)

    def _convolutions(self) -> Iterator[tuple[Any, Any]]:
        for number in range(1, self.num_convolutions + 1):
            yield getattr(self, f"conv{number}"), getattr(self, f"bn{number}")
