"""Weiss: mean field theory for deep metric learning.

Every pair-against-pair loss becomes points-against-class-fields.
"""

from weiss.evaluation import (
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
    PairLoss,
    make_loss,
)
from weiss.optim import parameter_groups

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "BinomialDevianceLoss",
    "ClassWiseMultiSimilarityLoss",
    "ContrastiveLoss",
    "MeanFieldBinomialDevianceLoss",
    "MeanFieldClassWiseMultiSimilarityLoss",
    "MeanFieldContrastiveLoss",
    "MeanFieldLoss",
    "PairLoss",
    "Retrieval",
    "__version__",
    "concatenate_embeddings",
    "evaluate_retrieval",
    "make_loss",
    "parameter_groups",
    "retrieval_metrics",
]
