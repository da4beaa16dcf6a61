"""Every loss by its short name: one dict for recipes, the command line and comparisons."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Literal

from torch import nn

from weiss._base import checks
from weiss.losses.baselines import Baseline, from_here, from_pml
from weiss.losses.binomial import BinomialDevianceLoss, MeanFieldBinomialDevianceLoss
from weiss.losses.center import CenterLoss
from weiss.losses.contrastive import ContrastiveLoss, MeanFieldContrastiveLoss
from weiss.losses.multi_similarity import (
    ClassWiseMultiSimilarityLoss,
    MeanFieldClassWiseMultiSimilarityLoss,
)
from weiss.losses.parameter_groups import FIELD_LR_SCALE, PROXY_LR_SCALE
from weiss.losses.potential_field import PotentialFieldLoss
from weiss.losses.rest_multi_similarity import (
    AUTO,
    MeanFieldRestMultiSimilarityLoss,
    RestMultiSimilarityLoss,
    auto_settings,
)
from weiss.theory.sublattices import DEFAULT_GAMMA


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
        settings: returns its default hyper-parameters.
    """

    title: str
    build: Callable[..., nn.Module]
    sampling: Literal["classes", "pairs"]
    class_lr_scale: float | None
    settings: Callable[[], dict[str, Any]]


ALIKE: dict[str, Any] = {"distance": "cosine", "average": "classes"}
WITH_FIELDS: dict[str, Any] = {**ALIKE, "reg_weight": 0.0, "reg_scale": "paper"}


def _declared(build: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return the keyword arguments that a builder declares, with their defaults."""
    parameters = signature(build).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not Parameter.empty}


def _over_pairs(
    title: str, build: Callable[..., nn.Module], settings: Callable[[], dict[str, Any]]
) -> LossEntry:
    def build_alike(num_classes: int, embedding_size: int, **arguments: Any) -> nn.Module:
        return build(**arguments)

    return LossEntry(title, build_alike, "pairs", None, settings)


def _without_fields(title: str, build: Callable[..., nn.Module]) -> LossEntry:
    return _over_pairs(title, build, lambda: ALIKE | _declared(build))


def _with_fields(title: str, build: Callable[..., nn.Module]) -> LossEntry:
    return LossEntry(
        title, build, "classes", FIELD_LR_SCALE, lambda: WITH_FIELDS | _declared(build)
    )


def _with_proxies(
    title: str, build: Callable[..., Baseline], settings: Callable[[], dict[str, Any]]
) -> LossEntry:
    return LossEntry(title, build, "classes", PROXY_LR_SCALE, settings)


FAMILIES = {
    "contrastive": (("Contrastive", ContrastiveLoss), ("MFCont", MeanFieldContrastiveLoss)),
    "cwms": (
        ("CWMS", ClassWiseMultiSimilarityLoss),
        ("MFCWMS", MeanFieldClassWiseMultiSimilarityLoss),
    ),
    "binomial": (("Binomial", BinomialDevianceLoss), ("MFBinomial", MeanFieldBinomialDevianceLoss)),
    "rest_ms": (
        ("RestMS", RestMultiSimilarityLoss),
        ("MFRestMS", MeanFieldRestMultiSimilarityLoss),
    ),
}
"""Pair losses and their mean-field children, with their titles, by the name of the pair loss."""
DERIVED: dict[str, LossEntry] = {
    **{name: _without_fields(*pair) for name, (pair, _) in FAMILIES.items()},
    **{f"mf_{name}": _with_fields(*child) for name, (_, child) in FAMILIES.items()},
}
"""The losses of the derivation."""
# With the settings of the paper's released program; what it does not set is PML's default.
# ProxyNCA's softmax underflows at this scale, to NaN, for a sample opposite to its proxy; in
# hundreds of dimensions no sample starts there.
MS: dict[str, Any] = {"alpha": 2, "beta": 50, "base": 0.5}
BASELINES: dict[str, LossEntry] = {
    "contrastive_pml": _over_pairs("Contrastive (PML)", *from_pml("ContrastiveLoss")),
    "ms": _over_pairs("MS", *from_pml("MultiSimilarityLoss", **MS)),
    "ms_miner": _over_pairs(
        "MS+Miner",
        *from_pml(
            "MultiSimilarityLoss",
            lambda miners, given: miners.MultiSimilarityMiner(given.pop("epsilon")),
            epsilon=0.1,
            **MS,
        ),
    ),
    "triplet": _over_pairs(
        "Triplet",
        *from_pml(
            "TripletMarginLoss",
            lambda miners, given: miners.TripletMarginMiner(given["margin"], "semihard"),
            margin=0.1,
        ),
    ),
    "arcface": _with_proxies("ArcFace", *from_pml("ArcFaceLoss")),
    "cosface": _with_proxies("CosFace", *from_pml("CosFaceLoss")),
    "proxy_nca": _with_proxies("ProxyNCA", *from_pml("ProxyNCALoss", softmax_scale=32)),
    "proxy_anchor": _with_proxies(
        "ProxyAnchor", *from_pml("ProxyAnchorLoss", margin=0.1, alpha=32)
    ),
    "norm_softmax": _with_proxies("NormSoftmax", *from_pml("NormalizedSoftmaxLoss")),
    # Not in the paper: with the settings of their own publications. SoftTriple's tau, the weight of
    # the pull between the centres of a class, is PML's weight_reg_weight.
    "soft_triple": _with_proxies("SoftTriple", *from_pml("SoftTripleLoss", weight_reg_weight=0.2)),
    "subcenter_arcface": _with_proxies("Sub-centre ArcFace", *from_pml("SubCenterArcFaceLoss")),
    "center": _with_proxies("Center", *from_here(CenterLoss)),
    "potential_field": _with_proxies("Potential field", *from_here(PotentialFieldLoss)),
}
"""Losses to compare with. Those of pytorch-metric-learning import it when they are built."""
LOSSES = DERIVED | BASELINES
"""Every loss that has a short name."""


def loss_settings(
    name: str, given: dict[str, Any], sizes: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return all arguments of a loss: those given, and its defaults for the rest.

    With sizes they build the same loss again, even if defaults change later.

    Args:
        name: a key of `LOSSES`.
        given: arguments of the loss.
        sizes: C and D, from which arguments that are ``"auto"`` by default get their numbers;
            without them the word stays.

    Example:
        >>> from weiss.losses import loss_settings
        >>> loss_settings("mf_contrastive", {"neg_margin": 0.4})["pos_margin"]
        0.02
    """
    entry = LOSSES[checks.one_of("name", name, LOSSES, "loss_settings")]
    defaults = entry.settings()
    settings = defaults | given
    if sizes is not None:
        for key, value in auto_settings(*sizes)._asdict().items():
            if defaults.get(key) == settings.get(key) == AUTO:  # other losses refuse the word
                settings[key] = value
    if settings.get("fields_per_class", 1) != 1 and entry.class_lr_scale == FIELD_LR_SCALE:
        settings.setdefault("fields_gamma", DEFAULT_GAMMA)  # refused for one field a class
    return settings


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
    entry = LOSSES[checks.one_of("name", name, LOSSES, "make_loss")]
    return entry.build(num_classes, embedding_size, **arguments)
