"""Every backbone by its short name: one dict for recipes, the command line and comparisons."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weiss._base import checks
from weiss.backbones.bn_inception import BNInception
from weiss.backbones.embedder import Embedder
from weiss.backbones.pooling import POOLINGS
from weiss.backbones.resnet import ResNet
from weiss.backbones.small import SmallNetwork
from weiss.backbones.timm_networks import TimmNetwork
from weiss.backbones.trained_part import ALL, train_only
from weiss.backbones.trunk import Trunk, Vectors
from weiss.backbones.weights import load_weights

if TYPE_CHECKING:
    from weiss._base.downloads import Checksum

TIMM = "timm:"
SCRATCH, IMAGENET = "scratch", "imagenet"


@dataclass(frozen=True)
class BackboneEntry:
    """A backbone with a name."""

    title: str  # the usual name
    build: Callable[..., Trunk]  # makes the trunk, without a classifier, from `arguments`
    needs_weights: bool  # whether ``weights`` must be given
    imagenet: str = ""  # the address of public weights; the file's name ends with its checksum
    arguments: tuple[str, ...] = ()


def _resnet(depth: int, version: str, checksum: str = "") -> BackboneEntry:
    """Describe a ResNet; the checksum is that of torchvision's weights (IMAGENET1K_V1)."""
    address = f"https://download.pytorch.org/models/resnet{depth}-{checksum}.pth"
    title = f"ResNet-{depth} {version}" if depth > 34 else f"ResNet-{depth}"
    build = partial(ResNet, depth, version, num_classes=0)
    return BackboneEntry(title, build, True, address if checksum else "")


BACKBONES: dict[str, BackboneEntry] = {
    "bn_inception": BackboneEntry(
        "BN-Inception",
        partial(BNInception, num_classes=0),
        True,
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
    ),
    "resnet18": _resnet(18, "v1.5", "f37072fd"),
    "resnet34": _resnet(34, "v1.5", "b627a593"),
    "resnet50": _resnet(50, "v1.5", "0676ba61"),
    "resnet101": _resnet(101, "v1.5", "63fe2227"),
    # Without bottlenecks v1 is v1.5; both names exist so that all depths have them.
    "resnet18_v1": _resnet(18, "v1", "f37072fd"),
    "resnet34_v1": _resnet(34, "v1", "b627a593"),
    "resnet50_v1": _resnet(50, "v1"),
    "resnet101_v1": _resnet(101, "v1"),
    "small": BackboneEntry("small network", SmallNetwork, False, arguments=("channels", "widths")),
    "features": BackboneEntry("features", Vectors, False, arguments=("num_features",)),
}
"""Every network that has a name of its own; those of timm are `timm:NAME`."""


def make_backbone(
    name: str,
    embedding_size: int | None = None,
    *,
    weights: str | Path | None = None,
    pooling: str | None = None,
    head: str = "linear",
    freeze_bn: str = "none",
    train: str = ALL,
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    cache: str | Path | None = None,
    **arguments: Any,
) -> Embedder:
    """Build a backbone by its short name: from pixels ``(B, 3, H, W)`` in 0..255 to ``(B, D)``.

    Args:
        name: a key of `BACKBONES`, or ``"timm:NAME"`` for a network of timm.
        embedding_size: D; None for 512, or for the network's features if it has no head.
        weights: the trunk's initial weights: a file, an http(s) address, ``"imagenet"`` for the
            public ones, or ``"scratch"`` for random ones. Required for networks for photographs.
        pooling: ``"avg"``, ``"max"``, ``"avg+max"`` or ``"gem"``; None for the usual one of the
            network: ``"avg+max"`` for BN-Inception, as in the paper, and ResNet; ``"avg"`` for the
            small one, timm's own (``"own"``) for timm.
        head: ``"linear"``; ``"relu"``, Linear-ReLU-Linear, a reading of what the paper writes of
            its MLRC runs; or ``"none"``, for which the pooled features are the embedding.
        freeze_bn: ``"none"``, ``"statistics"`` or ``"all"``; see `Embedder.freeze_batch_norm`.
        train: the part of the trunk that trains: ``"all"``, ``"frozen"``, ``"last:N"`` (its last N
            stages) or ``"lora"``; see `weiss.backbones.trained_part.train_only`.
        lora_rank: of the adapters, for ``"lora"``.
        lora_alpha: for ``"lora"``: what the adapters compute is multiplied by alpha / rank.
        cache: folder for downloaded weights.
        **arguments: of the network: ``num_features`` for ``"features"``, ``channels`` and
            ``widths`` for ``"small"``, those of ``timm.create_model`` for timm.

    Example:
        >>> from weiss.backbones import make_backbone
        >>> model = make_backbone("small", embedding_size=64)
        >>> model.input.size, model.embedding_size
        (32, 64)
    """
    start = None if weights is None else str(weights)
    if isinstance(name, str) and name.startswith(TIMM):
        trunk: Trunk = _timm_trunk(name, start, pooling, arguments)
        pooling = None if pooling == "own" else pooling
    else:
        trunk = _trunk(name, start, arguments)
    model = Embedder(trunk, embedding_size, pooling=pooling, head=head, freeze_bn=freeze_bn)
    if isinstance(trunk, TimmNetwork) and start not in (SCRATCH, IMAGENET):
        load_weights(trunk.network, str(start), classifiers=trunk.classifiers, cache=cache)
    elif not isinstance(trunk, TimmNetwork) and start not in (None, SCRATCH):
        source, checksum = _source(name, str(start))
        load_weights(trunk, source, checksum=checksum, cache=cache)
    train_only(model, train, rank=lora_rank, alpha=lora_alpha)
    return model


def _timm_trunk(
    name: str, start: str | None, pooling: str | None, arguments: dict[str, Any]
) -> TimmNetwork:
    _refuse_no_weights(name, start, f"{IMAGENET!r} (timm's own), ")
    own = pooling in (None, "own")
    if not own:
        checks.one_of("pooling", pooling, [*POOLINGS, "own"], name)
    return TimmNetwork(name.removeprefix(TIMM), start == IMAGENET, own, **arguments)


def _trunk(name: str, start: str | None, arguments: dict[str, Any]) -> Trunk:
    if name not in BACKBONES:
        raise ValueError(
            f"name must be one of {', '.join(map(repr, BACKBONES))}, or 'timm:NAME' for a network "
            f"of timm, for make_backbone; got {name!r}.{checks.suggestion(str(name), BACKBONES)}"
        )
    entry = BACKBONES[name]
    if entry.needs_weights:
        offered = f"{IMAGENET!r} ({entry.imagenet}), " if entry.imagenet else ""
        _refuse_no_weights(name, start, offered)
    for given in arguments:
        if given not in entry.arguments:
            hint = checks.suggestion(given, entry.arguments)
            raise TypeError(f"the backbone {name!r} has no argument {given!r}.{hint}")
    if entry.build is Vectors:
        if "num_features" not in arguments:
            raise TypeError(
                "num_features must be given for 'features': the length of the vectors. "
                "Pass for example num_features=2048."
            )
        why = "there is no network to load them into."
        checks.unused("weights", None if start == SCRATCH else start, why, repr(name))
    return entry.build(**arguments)


def _refuse_no_weights(name: str, start: str | None, offered: str) -> None:
    if start is None:
        raise ValueError(
            f"weights must be given for {name!r}: with random weights a network for photographs "
            "learns little from a few thousand of them. Pass a file, an http(s) address, "
            f"{offered}or {SCRATCH!r} to start from random weights."
        )


def _source(name: str, start: str) -> tuple[str, "Checksum | None"]:
    """Return the file or address that ``weights`` means, and its checksum."""
    if start != IMAGENET:
        return start, None
    address = BACKBONES[name].imagenet
    if not address:
        raise ValueError(
            f"weights={IMAGENET!r} must have a known address; there is none for {name!r}. "
            f"Pass a file or an http(s) address, or {SCRATCH!r} to start from random weights."
        )
    from weiss._base.downloads import Checksum

    digits = address.rpartition("-")[2].removesuffix(".pth")
    return address, Checksum("sha256", digits, f"the name of {address}")
