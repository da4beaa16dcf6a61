"""From pixels to an embedding of unit length.

    images -> conversion -> trunk -> pooling -> head -> unit length

Dimensions: B batch, H height, W width, F features of the trunk, D embedding size.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from weiss._base import checks
from weiss.backbones.pooling import POOLINGS
from weiss.backbones.trunk import InputConversion, InputSpec, Trunk

HEADS = LINEAR, RELU, NO_HEAD = "linear", "relu", "none"
EMBEDDING_SIZE = 512
"""The usual D, where a head can make it any."""
FREEZING = ("none", "statistics", "all")


class Embedder(nn.Module):
    """A trunk with pooling and a head, from pixels to embeddings of unit length.

    Args:
        trunk: the network; see `weiss.backbones.Trunk`.
        embedding_size: D; None for 512, or for F without a head.
        pooling: a name of `weiss.backbones.POOLINGS`; None for the usual one of this trunk.
            Must be None for a trunk that returns vectors.
        head: ``"linear"``, one linear layer; ``"relu"``, Linear-ReLU-Linear with F features
            between (the paper's MLRC runs insert "a fully-connected layer with ReLU activation
            functions"; it says neither where nor how wide); or ``"none"``: the embedding is the
            pooled features. Weights are initialised by Kaiming's
            method (fan-out), biases are zero.
        freeze_bn: the part of the trunk's batch normalisation that is frozen, see
            `freeze_batch_norm`.

    Attributes:
        input: the `InputSpec` of the trunk. Only its sizes matter to the caller: colour order, mean
            and std are applied here.
        embedding_size: D.
        freeze_bn: as given, or as last set by `freeze_batch_norm`.

    Example:
        >>> import torch
        >>> from weiss.backbones import Embedder, SmallNetwork
        >>> model = Embedder(SmallNetwork(), embedding_size=64)
        >>> model(torch.randint(256, (8, 1, 32, 32), dtype=torch.uint8)).shape
        torch.Size([8, 64])
    """

    def __init__(
        self,
        trunk: Trunk,
        embedding_size: int | None = None,
        *,
        pooling: str | None = None,
        head: str = LINEAR,
        freeze_bn: str = "none",
    ) -> None:
        super().__init__()
        if not isinstance(trunk, Trunk):
            raise TypeError(
                f"trunk must be a weiss.backbones.Trunk for Embedder; got {type(trunk).__name__}. "
                "Build one by name with make_backbone, or subclass Trunk."
            )
        if getattr(trunk, "num_classes", 0):
            raise ValueError(
                "trunk must have no classifier for Embedder, which needs its features; got "
                f"{type(trunk).__name__} with num_classes={trunk.num_classes}. Pass num_classes=0."
            )
        head = checks.one_of("head", head, HEADS, "Embedder")
        self.embedding_size = _embedding_size(trunk, embedding_size, head)
        self.conversion = InputConversion(trunk.input)
        self.trunk = trunk
        self.pooling = _pooling(trunk, pooling)
        self.head = _head(trunk.num_features, self.embedding_size, head)
        self.freeze_bn = "none"
        self._frozen: set[nn.Parameter] = set()
        self.freeze_batch_norm(freeze_bn)

    @property
    def input(self) -> InputSpec:
        """The input of the trunk."""
        return self.trunk.input

    @property
    def architecture(self) -> str:
        """The name of the trunk's architecture."""
        return self.trunk.architecture

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(B, D)`` of unit length, float32 or better, also under autocast.

        Images are ``(B, 3, H, W)`` RGB or ``(B, 1, H, W)`` grey in 0..255, not 0..1, uint8 or
        floating point; ``(B, F)`` for a trunk of vectors.
        """
        return _unit(self.head(self.features(images)))

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features ``(B, F)`` before the head."""
        pooled: Tensor = self.pooling(self.trunk(self.conversion(images)))
        return pooled

    def trunk_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the trunk that may train.

        Those of batch normalisation frozen by ``"all"``, and those that `freeze` froze, are left
        out, so that a warm-up that freezes and unfreezes the trunk does not unfreeze them.
        """
        frozen = self._frozen | set(self._affine() if self.freeze_bn == "all" else ())
        yield from (p for p in self.trunk.parameters() if p not in frozen)

    def freeze(self, parameters: Iterable[nn.Parameter]) -> None:
        """Let some parameters of the trunk or the pooling never train; `train` keeps them frozen.

        A module all of whose parameters are frozen stays in evaluation mode, so that the statistics
        of its batch normalisation do not change and it has no dropout.
        """
        for parameter in parameters:
            parameter.requires_grad_(False)
            parameter.grad = None
            self._frozen.add(parameter)
        self.train(self.training)

    def freeze_batch_norm(self, what: str) -> None:
        """Set which part of the trunk's batch normalisation is frozen; `train` keeps it frozen.

        Args:
            what: ``"none"``; ``"statistics"``, the running mean and variance, which then normalise
                in training too, while the affine parameters train; or ``"all"``, both.
        """
        before = self.freeze_bn
        self.freeze_bn = checks.one_of("freeze_bn", what, FREEZING, "Embedder")
        # Unchanged otherwise: a warm-up may have frozen the whole trunk.
        if "all" in (before, self.freeze_bn):
            for parameter in self._affine():
                parameter.requires_grad_(self.freeze_bn != "all" and parameter not in self._frozen)
                # An optimiser updates a parameter with any gradient, even an old one.
                parameter.grad = None
        self.train(self.training)

    def train(self, mode: bool = True) -> "Embedder":
        """Set training mode, except for frozen batch normalisation and frozen modules."""
        super().train(mode)
        if self.freeze_bn == "all":
            for parameter in self._affine():
                parameter.requires_grad_(False)
        if self.freeze_bn != "none":
            for module in self._batch_norms():
                module.eval()
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        for module in self.trunk.modules() if self._frozen else ():
            own = list(module.parameters())
            if own and self._frozen.issuperset(own):
                module.eval()
        return self

    def _batch_norms(self) -> Iterator[nn.Module]:
        return (module for module in self.trunk.modules() if isinstance(module, _BatchNorm))

    def _affine(self) -> Iterator[nn.Parameter]:
        for module in self._batch_norms():
            yield from module.parameters(recurse=False)


class HeadOnly(nn.Module):
    """The part of a network behind its pooled features, with the same head: (B, F) to (B, D)."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.head = model.head

    def forward(self, features: Tensor) -> Tensor:
        """Return the embeddings ``(B, D)`` of pooled features ``(B, F)`` in any precision."""
        return _unit(self.head(features.float()))


class WithoutHead(nn.Module):
    """A network without its head: the same trunk and pooling."""

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.conversion, self.trunk = model.conversion, model.trunk
        self.pooling = model.pooling
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(B, F)`` of unit length for images as `Embedder` takes them."""
        return _unit(self.pooling(self.trunk(self.conversion(images))))


class Unit(nn.Module):
    """Features ``(B, F)`` in any precision to unit length."""

    def forward(self, features: Tensor) -> Tensor:
        """Return ``(B, F)`` of unit length, float32 or better."""
        return _unit(features)


def _unit(raw: Tensor) -> Tensor:
    """Return rows of unit length, float32 or better."""
    return functional.normalize(raw.to(torch.promote_types(raw.dtype, torch.float32)), dim=1)


def _embedding_size(trunk: Trunk, asked: int | None, head: str) -> int:
    if head != NO_HEAD:
        size = EMBEDDING_SIZE if asked is None else asked
        return checks.count("embedding_size", size, "Embedder")
    if asked not in (None, trunk.num_features):
        raise ValueError(
            f"embedding_size must be {trunk.num_features}, the number of features of "
            f"{trunk.architecture or type(trunk).__name__}, for head='none', which has no layer to "
            f"change it; got {asked!r}. Leave it out, or use head='linear'."
        )
    return trunk.num_features


def _pooling(trunk: Trunk, name: str | None) -> nn.Module:
    if trunk.pooled:
        checks.unused(
            "pooling",
            name,
            f"{trunk.architecture or type(trunk).__name__} returns vectors, no maps. Leave it out",
            "Embedder",
        )
        return nn.Identity()
    chosen = trunk.pooling if name is None else name
    return POOLINGS[checks.one_of("pooling", chosen, POOLINGS, "Embedder")]()


def _head(num_features: int, embedding_size: int, kind: str) -> nn.Sequential:
    head = nn.Sequential()
    if kind == NO_HEAD:
        return head  # which returns what it is given
    if kind == RELU:
        head.add_module("hidden", nn.Linear(num_features, num_features))
        head.add_module("relu", nn.ReLU())
    head.add_module("embedding", nn.Linear(num_features, embedding_size))
    for layer in head:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            nn.init.zeros_(layer.bias)
    return head
