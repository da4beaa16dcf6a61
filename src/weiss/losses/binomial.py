"""Class-wise binomial deviance and its mean-field child: the derivation applied once more.

    attraction log[1 + e^{a (d - delta)}] / a,  repulsion log[1 + e^{-b (d - delta)}] / b,

averaged plainly. Unlike in CWMS the logarithm stands inside the average: pairs do not compete. For
large rates it is the contrastive loss with both margins at delta. The pair loss is the binomial
deviance of Yi, Lei and Li (2014), made class-wise; the defaults are the rates and the threshold
that multi-similarity losses start from.
"""

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor

from weiss.losses.modules import MeanFieldArgs, MeanFieldLoss, PairArgs, PairLoss
from weiss.theory.interactions import Interactions, LogLink, rate


@dataclass(frozen=True)
class BinomialDeviance(Interactions, form="softplus"):
    """Two soft hinges, averaged plainly."""

    alpha: float = rate(2.0)
    beta: float = rate(50.0)
    delta: float = 0.5

    def attraction(self, dist: Tensor) -> Tensor:
        """Pull like a hinge at ``delta``, rounded over a distance of ``1 / alpha``."""
        return LogLink(self.alpha).apply(self.alpha * (dist - self.delta))

    def repulsion(self, dist: Tensor) -> Tensor:
        """Push like a hinge at ``delta``, rounded over a distance of ``1 / beta``."""
        return LogLink(self.beta).apply(self.beta * (self.delta - dist))


class BinomialDevianceLoss(PairLoss):
    """Class-wise binomial deviance over all pairs of the batch; arguments as in CWMS."""

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, delta: float = 0.5, **rest: Unpack[PairArgs]
    ) -> None:
        super().__init__(BinomialDeviance(alpha, beta, delta), **rest)


class MeanFieldBinomialDevianceLoss(MeanFieldLoss):
    """Class-wise binomial deviance against mean fields; arguments as in MFCWMS."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        alpha: float = 2.0,
        beta: float = 50.0,
        delta: float = 0.5,
        **rest: Unpack[MeanFieldArgs],
    ) -> None:
        super().__init__(BinomialDeviance(alpha, beta, delta), num_classes, embedding_size, **rest)
