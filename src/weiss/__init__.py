"""Weiss: mean field theory for deep metric learning.

Every pair-against-pair loss becomes points-against-class-fields.

The public names are loaded when they are first used: a process that only decodes images, or a
command that only prints its help, does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weiss._version import __version__

if TYPE_CHECKING:
    from weiss.evaluation.retrieval import (
        Retrieval,
        concatenate_embeddings,
        evaluate_retrieval,
        retrieval_metrics,
    )
    from weiss.losses import (
        LOSSES,
        BinomialDevianceLoss,
        ClassWiseMultiSimilarityLoss,
        ContrastiveLoss,
        MeanFieldBinomialDevianceLoss,
        MeanFieldClassWiseMultiSimilarityLoss,
        MeanFieldContrastiveLoss,
        MeanFieldLoss,
        MeanFieldRestMultiSimilarityLoss,
        PairLoss,
        RestMultiSimilarityLoss,
        make_loss,
    )
    from weiss.losses.parameter_groups import parameter_groups
    from weiss.losses.shards import shard_classes, whole_fields
    from weiss.training.estimator import EmbeddingEstimator as EmbeddingEstimator

__all__ = [
    "LOSSES",
    "BinomialDevianceLoss",
    "ClassWiseMultiSimilarityLoss",
    "ContrastiveLoss",
    "MeanFieldBinomialDevianceLoss",
    "MeanFieldClassWiseMultiSimilarityLoss",
    "MeanFieldContrastiveLoss",
    "MeanFieldLoss",
    "MeanFieldRestMultiSimilarityLoss",
    "PairLoss",
    "RestMultiSimilarityLoss",
    "Retrieval",
    "__version__",
    "concatenate_embeddings",
    "evaluate_retrieval",
    "make_loss",
    "parameter_groups",
    "retrieval_metrics",
    "shard_classes",
    "whole_fields",
]

_HOMES = {
    "weiss.evaluation": (
        "Retrieval",
        "concatenate_embeddings",
        "evaluate_retrieval",
        "retrieval_metrics",
    ),
    "weiss.losses.parameter_groups": ("parameter_groups",),
    "weiss.losses.shards": ("shard_classes", "whole_fields"),
}
_NEEDS_SCIKIT_LEARN = {"EmbeddingEstimator": "weiss.training.estimator"}
"""Public too, but not in ``__all__``: ``from weiss import *`` works where it is not installed."""
_HOME_OF = _NEEDS_SCIKIT_LEARN | {name: home for home, names in _HOMES.items() for name in names}


_PACKAGES = (
    "backbones",
    "catalogue",
    "data",
    "evaluation",
    "losses",
    "reporting",
    "runs",
    "theory",
    "training",
)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"weiss.{name}")
    if name not in __all__ and name not in _NEEDS_SCIKIT_LEARN:
        raise AttributeError(f"module 'weiss' has no attribute {name!r}")
    # Most public names are losses.
    value = getattr(import_module(_HOME_OF.get(name, "weiss.losses")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_NEEDS_SCIKIT_LEARN, *_PACKAGES])
