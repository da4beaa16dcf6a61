"""The losses: the derivation, its instances, and the baselines they are compared with."""

from weiss.losses.baselines import Baseline
from weiss.losses.binomial import (
    BinomialDeviance,
    BinomialDevianceLoss,
    MeanFieldBinomialDevianceLoss,
)
from weiss.losses.by_name import LOSSES, LossEntry, loss_settings, make_loss
from weiss.losses.contrastive import Contrastive, ContrastiveLoss, MeanFieldContrastiveLoss
from weiss.losses.matryoshka import Matryoshka
from weiss.losses.modules import (
    MeanFieldArgs,
    MeanFieldLoss,
    MeanFieldOptions,
    PairArgs,
    PairLoss,
    PairOptions,
)
from weiss.losses.multi_similarity import (
    ClassWiseMultiSimilarity,
    ClassWiseMultiSimilarityLoss,
    MeanFieldClassWiseMultiSimilarityLoss,
)
from weiss.losses.rest_multi_similarity import (
    MeanFieldRestMultiSimilarityLoss,
    RestMultiSimilarity,
    RestMultiSimilarityLoss,
)

__all__ = [
    "LOSSES",
    "Baseline",
    "BinomialDeviance",
    "BinomialDevianceLoss",
    "ClassWiseMultiSimilarity",
    "ClassWiseMultiSimilarityLoss",
    "Contrastive",
    "ContrastiveLoss",
    "LossEntry",
    "Matryoshka",
    "MeanFieldArgs",
    "MeanFieldBinomialDevianceLoss",
    "MeanFieldClassWiseMultiSimilarityLoss",
    "MeanFieldContrastiveLoss",
    "MeanFieldLoss",
    "MeanFieldOptions",
    "MeanFieldRestMultiSimilarityLoss",
    "PairArgs",
    "PairLoss",
    "PairOptions",
    "RestMultiSimilarity",
    "RestMultiSimilarityLoss",
    "loss_settings",
    "make_loss",
]
