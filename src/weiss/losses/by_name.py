"""Every loss by its short name: one dict for recipes, the command line and comparisons."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from weiss import _check
from weiss.losses import baselines
from weiss.losses.binomial import BinomialDevianceLoss, MeanFieldBinomialDevianceLoss
from weiss.losses.contrastive import ContrastiveLoss, MeanFieldContrastiveLoss
from weiss.losses.multi_similarity import (
    ClassWiseMultiSimilarityLoss,
    MeanFieldClassWiseMultiSimilarityLoss,
)
from weiss.optim import FIELD_LR_SCALE, PROXY_LR_SCALE


@dataclass(frozen=True)
class LossEntry:
    """What a comparison must know about a loss before it is built.

    Attributes:
        title: the name people use.
        build: takes ``(num_classes, embedding_size, **arguments)``; a loss over pairs does not use
            the first two.
        sampling: ``"pairs"`` if a batch must hold several samples of a class for the loss to
            attract anything, ``"classes"`` if it may hold one of each.
        class_lr_scale: learning rate of its class vectors over the network's; None without any.
    """

    title: str
    build: Callable[..., nn.Module]
    sampling: Literal["classes", "pairs"]
    class_lr_scale: float | None


def _over_pairs(title: str, build: Callable[..., nn.Module]) -> LossEntry:
    def build_alike(num_classes: int, embedding_size: int, **arguments: Any) -> nn.Module:
        return build(**arguments)

    return LossEntry(title, build_alike, "pairs", None)


def _with_fields(title: str, build: Callable[..., nn.Module]) -> LossEntry:
    return LossEntry(title, build, "classes", FIELD_LR_SCALE)


def _with_proxies(title: str, name: str, **defaults: Any) -> LossEntry:
    build = baselines.with_class_vectors(name, **defaults)
    return LossEntry(title, build, "classes", PROXY_LR_SCALE)


LOSSES: dict[str, LossEntry] = {
    "contrastive": _over_pairs("Contrastive", ContrastiveLoss),
    "cwms": _over_pairs("CWMS", ClassWiseMultiSimilarityLoss),
    "binomial": _over_pairs("Binomial", BinomialDevianceLoss),
    "mf_contrastive": _with_fields("MFCont", MeanFieldContrastiveLoss),
    "mf_cwms": _with_fields("MFCWMS", MeanFieldClassWiseMultiSimilarityLoss),
    "mf_binomial": _with_fields("MFBinomial", MeanFieldBinomialDevianceLoss),
    # From here on pytorch-metric-learning, with the settings of the paper's released program; what
    # it does not set is PML's default. ProxyNCA's softmax underflows at this scale, to NaN, for a
    # sample opposite to its proxy; in hundreds of dimensions no sample starts there.
    "contrastive_pml": _over_pairs("Contrastive (PML)", baselines.over_pairs("ContrastiveLoss")),
    "ms": _over_pairs(
        "MS", baselines.over_pairs("MultiSimilarityLoss", alpha=2, beta=50, base=0.5)
    ),
    "ms_miner": _over_pairs("MS+Miner", baselines.multi_similarity_with_miner),
    "triplet": _over_pairs("Triplet", baselines.semihard_triplet),
    "arcface": _with_proxies("ArcFace", "ArcFaceLoss"),
    "cosface": _with_proxies("CosFace", "CosFaceLoss"),
    "proxy_nca": _with_proxies("ProxyNCA", "ProxyNCALoss", softmax_scale=32),
    "proxy_anchor": _with_proxies("ProxyAnchor", "ProxyAnchorLoss", margin=0.1, alpha=32),
    "norm_softmax": _with_proxies("NormSoftmax", "NormalizedSoftmaxLoss"),
}


def make_loss(name: str, num_classes: int, embedding_size: int, **arguments: Any) -> nn.Module:
    """Build a loss by its short name.

    Args:
        name: a key of `LOSSES`, for example ``"mf_cwms"`` or ``"proxy_anchor"``.
        num_classes: C, the number of training classes; pair losses do not use it.
        embedding_size: D; pair losses do not use it.
        **arguments: further arguments of the loss, as its class takes them.

    Returns:
        A module called as ``loss(embeddings, labels)``.

    Example:
        >>> from weiss import make_loss
        >>> make_loss("mf_contrastive", 98, 512, neg_margin=0.4).fields.shape
        torch.Size([98, 512])
    """
    entry = LOSSES[_check.one_of("name", name, LOSSES, "make_loss")]
    return entry.build(num_classes, embedding_size, **arguments)
