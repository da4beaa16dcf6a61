"""The interface of a network: its input and its features.

Dimensions: B batch, H height, W width, F features.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base import checks
from weiss._base.images import LUMA

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class InputSpec:
    """The input of a network: ``(x / scale - mean) / std`` of pixels x in 0..255.

    Attributes:
        kind: ``"images"``, or ``"vectors"``, which are not converted.
        channels: 3 for colour, 1 for grey; the length of a vector.
        size: height and width of the images in evaluation; None for vectors.
        resize: short side of an image before its centre is cropped to ``size``.
        bgr: whether blue is the first channel. ``mean`` and ``std`` are in the same order.
        scale: pixels are divided by it.
        mean: one number a channel.
        std: one number a channel.
    """

    kind: str = "images"
    channels: int = 3
    size: int | None = 224
    resize: int | None = 256
    bgr: bool = False
    scale: float = 255.0
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        """Refuse values that do not agree."""
        wanted = self.channels if self.kind == "images" else 0
        if not len(self.mean) == len(self.std) == wanted:
            raise ValueError(
                f"mean and std must hold one number a channel, {wanted}, for InputSpec; "
                f"got {self.mean} and {self.std}."
            )
        if self.kind == "images" and self.channels not in (1, 3):
            raise ValueError(
                f"channels must be 1 (grey) or 3 (colour) for InputSpec; got {self.channels}."
            )

    @classmethod
    def vectors(cls, length: int) -> "InputSpec":
        """Describe vectors of this length."""
        return cls("vectors", length, size=None, resize=None, scale=1.0, mean=(), std=())


class Trunk(nn.Module):
    """A network without its classifier, for `weiss.backbones.Embedder`.

    ``forward`` takes images that `InputConversion` has converted by ``input`` and returns maps
    ``(B, F, h, w)``, or vectors ``(B, F)`` if ``pooled``.

    Attributes:
        input: the input of the network.
        num_features: F.
        pooling: the usual pooling of this network, a name of `weiss.backbones.POOLINGS`.
        pooled: whether ``forward`` returns vectors.
        architecture: a name that distinguishes it from networks with the same parameters.
        folds: whether frozen batch normalisation becomes part of the convolution before it on a
            GPU, see `weiss.backbones.layers`; for networks that can. Set it to False for gradients
            of gradients, for `torch.func` and for reentrant checkpointing.
        is_static: whether every pass does the same operations for any input, none of them random,
            so that it can be captured in a CUDA graph.
    """

    input: InputSpec
    num_features: int
    pooling: str = "avg"
    pooled: bool = False
    architecture: str = ""
    folds: bool = True
    is_static: bool = False

    def parameters_by_stage(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of each stage, from the input to the output.

        Every parameter is in one of them. Empty for a network without an order of its parts, of
        which no part can be frozen.
        """
        return {}


class Vectors(Trunk):
    """No network: precomputed features, vectors of length F."""

    pooled = True
    architecture = "features"

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = checks.count("num_features", num_features, "features")
        self.input = InputSpec.vectors(self.num_features)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors ``(B, F)``."""
        return vectors


class InputConversion(nn.Module):
    """From pixels in 0..255 to the input of a network.

    It is part of the model, so that its callers pass plain pixels. Grey images become colour by
    repetition, colour images grey by `LUMA`.
    """

    mean: Tensor
    std: Tensor
    luma: Tensor
    like: Tensor

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        self.spec = spec
        # In units of pixels, so that one subtraction and one division suffice. Not in the state
        # dict, because they follow from the network.
        numbers = {
            "mean": [m * spec.scale for m in spec.mean],
            "std": [s * spec.scale for s in spec.std],
            "luma": list(LUMA),
        }
        for name, values in numbers.items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        # Follows the network's dtype; the others stay in float32 or better, see `_apply`.
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def _apply(self, *arguments: Any, **options: Any) -> "InputConversion":
        """Move to devices and dtypes, but keep mean, std and luma in float32 or better."""
        exact = {name: getattr(self, name) for name in ("mean", "std", "luma")}
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        for name, value in exact.items():
            moved = getattr(self, name)
            dtype = torch.promote_types(moved.dtype, torch.float32)
            setattr(self, name, value.to(moved.device, dtype) if not moved.is_meta else moved)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Convert a batch to ``(B, channels, H, W)``, or ``(B, F)``, in the network's dtype.

        Images are ``(B, 3, H, W)`` RGB or ``(B, 1, H, W)`` grey in 0..255, uint8 or floating point;
        vectors ``(B, F)`` floating point.
        """
        spec = self.spec
        check_input(images, spec)
        if spec.kind == "vectors":
            return images.to(self.like.dtype)
        images = images.to(self.luma.dtype)
        if spec.channels == 1 and images.shape[1] == 3:
            images = (images * self.luma).sum(dim=1, keepdim=True)
        elif spec.channels == 3 and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        elif spec.bgr:
            images = images.flip(1)
        converted: Tensor = (images - self.mean) / self.std
        return converted.to(self.like.dtype)

    def extra_repr(self) -> str:
        """Show the spec when the module is printed."""
        return str(self.spec)


def check_input(given: object, spec: InputSpec) -> None:
    """Refuse what cannot be a batch for this network, by type, shape and dtype."""
    if spec.kind == "vectors":
        wanted, fits = f"vectors (batch, {spec.channels})", 2
    else:
        wanted, fits = "images (batch, 3 or 1, height, width)", 4
    if not isinstance(given, Tensor):
        raise TypeError(
            f"the input must be a torch.Tensor of {wanted} for Embedder; "
            f"got {type(given).__name__}. Convert it, for example with torch.as_tensor."
        )
    shape = tuple(given.shape)
    if given.ndim != fits or shape[1] not in ((spec.channels,) if fits == 2 else (1, 3)):
        swapped = given.ndim == 4 and fits == 4 and shape[-1] in (1, 3)
        remedy = "Put channels first: images.permute(0, 3, 1, 2)." if swapped else "Stack a batch."
        if given.ndim == fits == 2:
            remedy = f"Build the backbone with num_features={shape[1]}."
        raise ValueError(f"the input must be {wanted} for Embedder; got {shape}. {remedy}")
    if given.dtype != torch.uint8 and not given.is_floating_point():
        raise TypeError(
            f"the input must be uint8 or floating point for Embedder; got {given.dtype}. "
            "Convert it with .float(), pixels in 0..255."
        )
