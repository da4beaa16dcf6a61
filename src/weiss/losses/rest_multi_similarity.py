"""Multi-similarity, one class against the rest, and its mean-field child.

Multi-similarity has one logarithm over all negatives where CWMS gives every pair of classes its
own. Class-wise and without anchors, the pair form is

    1/(a |C_B|) sum_c log[1 + <e^{a (d_ij - delta + margin)}>_{i,j in c} / 2]
    + 1/(b |C_B|) sum_c log[1 + sum_{c' != c} <e^{-b (d_ij - delta - margin)}>_{i in c, j in c'}]

and the mean-field form, with ``N_cc' = <e^{-b (d(F_i, M_c') - delta - margin)}>_{i in c}``,

    1/(a |C_B|) sum_{c in C_B} log[1 + <e^{a (d(F_i, M_c) - delta + margin)}>_{i in c}]
    + 1/(b |C_B|) sum_{c in C_B} log[1 + sum_{c' != c} N_cc' + N_c'c]

with c' over all classes. Attraction and repulsion have two centres, ``delta - margin`` and ``delta
+ margin``.

How sharp the repulsion is and how far apart the centres are depends on the distances that C
directions in D dimensions have by chance: `random_directions`.

ProxyAnchor (Kim et al., CVPR 2020) of rate 32 and margin 0.1 is 32 times this child with the
settings `PROXY_ANCHOR`: sums for averages, of each class's sum the second part alone, and the
repulsion averaged over all classes, not over those of the batch.
"""

from dataclasses import dataclass
from typing import Any, Literal, Unpack, cast

from torch import Tensor

from weiss._base import checks
from weiss.losses.modules import MeanFieldArgs, MeanFieldLoss, PairArgs, PairLoss
from weiss.theory.interactions import (
    DIVIDES_BY,
    KEEPS,
    OVER,
    Interactions,
    LogLink,
    OneAgainstRest,
    choice,
    rate,
)
from weiss.theory.random_directions import random_directions

PROXY_ANCHOR: dict[str, Any] = {
    **{"alpha": 32.0, "beta": 32.0, "delta": 1.0, "margin": 0.1},
    **{"average": "none", "keeps": "half", "over": "all", "divides_by": "all"},
}
"""Settings with which the child is ProxyAnchor with its published ones, over its rate of 32."""


AUTO = "auto"
"""The setting of beta and margin that `random_directions` replaces by a number."""


@dataclass(frozen=True)
class RestMultiSimilarity(Interactions, form="exp"):
    """Two exponentials with two centres; the repulsions of a class share a logarithm."""

    alpha: float = rate(8.0)
    beta: float = rate(32.0)
    delta: float = 1.0
    margin: float = 0.1
    keeps: str = choice(*KEEPS)
    over: str = choice(*OVER)
    divides_by: str = choice(*DIVIDES_BY)

    def __post_init__(self) -> None:
        """Refuse hyper-parameters out of range, and words that do not fit together."""
        super().__post_init__()
        OneAgainstRest(self.keeps, self.over, self.divides_by)

    @property
    def sharing(self) -> OneAgainstRest:
        """One class against the rest."""
        return OneAgainstRest(self.keeps, self.over, self.divides_by)

    @property
    def repulsion_range(self) -> float:
        """Where the exponent of the repulsion is 0."""
        return self.delta + self.margin

    @property
    def attraction_link(self) -> LogLink:
        """``log(1 + x) / alpha``."""
        return LogLink(self.alpha)

    @property
    def repulsion_link(self) -> LogLink:
        """``log(1 + x) / beta``."""
        return LogLink(self.beta)

    def attraction(self, dist: Tensor) -> Tensor:
        """Return the exponent ``alpha (d - delta + margin)``."""
        return self.alpha * (dist - (self.delta - self.margin))

    def repulsion(self, dist: Tensor) -> Tensor:
        """Return the exponent ``-beta (d - delta - margin)``."""
        return self.beta * (self.delta + self.margin - dist)


class RestMultiSimilarityLoss(PairLoss):
    """Class-wise multi-similarity of one class against the rest, over all pairs of the batch.

    Args:
        alpha: rate of the attraction, greater than 0.
        beta: rate of the repulsion, greater than 0.
        delta: the middle of the two centres, a distance.
        margin: the attraction has its centre at ``delta - margin``, the repulsion at
            ``delta + margin``.
        **rest: ``distance`` and `weiss.losses.PairOptions`.
    """

    def __init__(
        self,
        alpha: float = 8.0,
        beta: float = 32.0,
        delta: float = 1.0,
        margin: float = 0.1,
        **rest: Unpack[PairArgs],
    ) -> None:
        super().__init__(RestMultiSimilarity(alpha, beta, delta, margin), **rest)


class MeanFieldRestMultiSimilarityLoss(MeanFieldLoss):
    """Multi-similarity of one class against the rest, with mean fields; contains ProxyAnchor.

    Alpha and delta were chosen on held-out classes of CUB and Cars; beta and margin follow from C
    and D (`random_directions`). Where this default is ahead and where not: docs/one_loss.md.

    Args:
        num_classes: C, the number of training classes.
        embedding_size: D.
        alpha: rate of the attraction, greater than 0.
        beta: rate of the repulsion, greater than 0, or ``"auto"``: ``sqrt(D ln C / 2)``, for cosine
            distances.
        delta: the middle of the two centres, a distance.
        margin: the attraction has its centre at ``delta - margin``, the repulsion at
            ``delta + margin``; ``"auto"``: ``sqrt(ln C / D)``, for cosine distances.
        keeps: ``"full"``, or ``"half"`` drops a class's samples against the other fields.
        over: ``"present"`` sums over the classes of the batch, ``"all"`` over all classes.
        divides_by: ``"present"`` or ``"all"``, the classes by whose number the repulsion is
            divided.
        **rest: ``reg_weight``, ``distance`` and `weiss.losses.MeanFieldOptions`.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        alpha: float = 8.0,
        beta: float | Literal["auto"] = "auto",
        delta: float = 1.0,
        margin: float | Literal["auto"] = "auto",
        keeps: str = "full",
        over: str = "present",
        divides_by: str = "present",
        **rest: Unpack[MeanFieldArgs],
    ) -> None:
        chance = random_directions(
            checks.count("num_classes", num_classes, self._owner),
            checks.count("embedding_size", embedding_size, self._owner),
        )
        description = RestMultiSimilarity(
            alpha,
            chance.beta if beta == AUTO else cast("float", beta),
            delta,
            chance.margin if margin == AUTO else cast("float", margin),
            *(keeps, over, divides_by),
        )
        super().__init__(description, num_classes, embedding_size, **rest)
