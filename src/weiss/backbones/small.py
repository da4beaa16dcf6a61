"""A small network for glyphs: 32 x 32 grey, fast on two CPU cores.

The first layer halves the resolution; then three stages of one residual block each at 16, 8 and 4
pixels. About 0.3 million parameters and 12 million multiplications an image; it is fast because the
first, large maps are few and have few channels.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional

from weiss._base import checks
from weiss.backbones.trunk import InputSpec, Trunk


class SmallNetwork(Trunk):
    """A residual network of seven convolutions.

    Args:
        channels: 1 for grey images, 3 for colour.
        widths: channels of the three stages, at 16, 8 and 4 pixels.

    Attributes:
        num_features: the last width.
    """

    input = InputSpec(channels=1, size=32, resize=32, mean=(0.5,), std=(0.5,))
    architecture = "small"

    def __init__(self, channels: int = 1, widths: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ValueError(
                f"channels must be 1 (grey) or 3 (colour) for SmallNetwork; got {channels!r}."
            )
        if not isinstance(widths, Sequence) or isinstance(widths, str):
            raise TypeError(
                f"widths must be a list with one number a stage for SmallNetwork; got {widths!r}. "
                "Pass for example [32, 64, 128]."
            )
        widths = [checks.count("every width", width, "SmallNetwork") for width in widths]
        if not widths:
            raise ValueError("widths must name at least one stage for SmallNetwork; got none.")
        if channels == 3:
            self.input = replace(self.input, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
        self.num_features = widths[-1]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
        )
        inputs = [widths[0], *widths]
        self.stages = nn.Sequential(
            *(_Stage(inputs[i], width, stride=2 if i else 1) for i, width in enumerate(widths))
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps ``(B, num_features, h, w)`` of converted images ``(B, c, H, W)``."""
        maps: Tensor = self.stages(self.stem(images))
        return maps

    def parameters_by_stage(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the stem and of each stage."""
        stages = enumerate(self.stages, start=1)
        named = {f"stage{number}": list(stage.parameters()) for number, stage in stages}
        return {"stem": list(self.stem.parameters()), **named}


class _Stage(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.around: nn.Module = nn.Identity()
        if inputs != width or stride != 1:
            # Averaging first uses every pixel, unlike a 1x1 convolution with a stride.
            self.around = nn.Sequential(
                nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity(),
                nn.Conv2d(inputs, width, 1, bias=False),
                nn.BatchNorm2d(width),
            )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.around(x), inplace=True)
