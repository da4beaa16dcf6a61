"""Contrastive loss and its mean-field child.

Pair form (the paper's eq. for Contrastive loss; self-pairs are in the sum):

    1/(2 |C_B|) [ sum_c 1/n_c^2 sum_{i,j in c} [d_ij - m_P]_+
                + sum_{c != c'} 1/(n_c n_c') sum_{i in c, j in c'} [m_N - d_ij]_+ ]

Mean-field form (MFCont; the paper prints ``M_c`` in the repulsion where ``M_c'`` is meant):

    1/|C_B| sum_c 1/n_c sum_{i in c} ( [d(F_i, M_c) - m_P]_+
                                      + sum_{c' != c} [m_N - d(F_i, M_c')]_+ )
    + lambda/C sum_{c != c'} [m_N - d(M_c, M_c')]_+^2
"""

from dataclasses import dataclass
from typing import Unpack

from torch import Tensor
from torch.nn.functional import relu

from weiss.losses.modules import MeanFieldLoss, MeanFieldOptions, PairLoss, PairOptions
from weiss.theory.interactions import Interactions


@dataclass(frozen=True)
class Contrastive(Interactions, form="hinge"):
    """Two hinges, averaged plainly: attraction ``[d - m_P]_+``, repulsion ``[m_N - d]_+``."""

    pos_margin: float = 0.02
    neg_margin: float = 0.3

    @property
    def repulsion_range(self) -> float:
        """``m_N``, where the repulsion ends."""
        return self.neg_margin

    def attraction(self, dist: Tensor) -> Tensor:
        """Pull two samples of a class together while they are further apart than ``m_P``."""
        return relu(dist - self.pos_margin)

    def repulsion(self, dist: Tensor) -> Tensor:
        """Push two samples of different classes apart while they are closer than ``m_N``."""
        return relu(self.neg_margin - dist)


class ContrastiveLoss(PairLoss):
    """The paper's contrastive loss: class-wise, over all pairs of the batch, without anchors.

    ``1/(2 |C_B|) [sum_c <[d_ij - m_P]_+>_{i,j in c} + sum_{c != c'} <[m_N - d_ij]_+>]``

    Not the contrastive loss of pytorch-metric-learning, which the released program uses as this
    baseline (Euclidean on normalised embeddings, mean over the non-zero pairs, margins 0 and 1):
    that one is ``contrastive_pml`` in `weiss.losses.LOSSES`.

    Args:
        pos_margin: ``m_P``; pairs of a class are pulled until this close, always if negative.
        neg_margin: ``m_N``; pairs of two classes are pushed until they are this far apart.
        distance: ``"cosine"`` or ``"euclidean"``.
        **options: see `weiss.losses.PairOptions`.

    Example:
        >>> import torch
        >>> from weiss import ContrastiveLoss
        >>> loss = ContrastiveLoss(pos_margin=0.0, neg_margin=0.5)
        >>> round(loss(torch.eye(2), torch.tensor([0, 0])).item(), 4)
        0.25
    """

    def __init__(
        self,
        pos_margin: float = 0.02,
        neg_margin: float = 0.3,
        distance: str = "cosine",
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(Contrastive(pos_margin, neg_margin), distance, **options)


class MeanFieldContrastiveLoss(MeanFieldLoss):
    """MFCont: the contrastive loss with every partner replaced by its class's mean field.

    ``1/|C_B| sum_c <[d(F_i, M_c) - m_P]_+ + sum_{c' != c} [m_N - d(F_i, M_c')]_+>_{i in c}
    + reg_weight/C sum_{c != c'} [m_N - d(M_c, M_c')]_+^2``

    The defaults are the paper's settings for its traditional protocol (MAP@R 25.3 on CUB, 24.7 on
    Cars, 52.9 on SOP, 67.7 on In-Shop), and its equation's average over classes; the program behind
    those numbers averages over samples, ``average="samples"``. They differ only where a batch
    holds classes in unequal numbers, as shuffled batches do.

    Args:
        num_classes: C, the number of training classes.
        embedding_size: D.
        pos_margin: ``m_P``; samples are pulled to their field until they are this close.
        neg_margin: ``m_N``; samples are pushed from other fields until they are this far.
        reg_weight: lambda of the soft constraint on the fields.
        distance: ``"cosine"`` or ``"euclidean"``.
        **options: see `weiss.losses.MeanFieldOptions`.

    Example:
        >>> import torch
        >>> from weiss import MeanFieldContrastiveLoss
        >>> loss = MeanFieldContrastiveLoss(num_classes=3, embedding_size=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 0, 1, 2])).shape
        torch.Size([])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        pos_margin: float = 0.02,
        neg_margin: float = 0.3,
        reg_weight: float = 0.0,
        distance: str = "cosine",
        **options: Unpack[MeanFieldOptions],
    ) -> None:
        description = Contrastive(pos_margin, neg_margin)
        super().__init__(description, num_classes, embedding_size, reg_weight, distance, **options)
