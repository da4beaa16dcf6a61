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

The number of classes decides how far the repulsion reaches by default. Below `MANY_CLASSES` beta
and margin follow from the distances that C random directions in D dimensions have: `auto_settings`.

ProxyAnchor (Kim et al., CVPR 2020) of rate 32 and margin 0.1 is 32 times this child with the
settings `PROXY_ANCHOR`: sums for averages, of each class's sum the second part alone, and the
repulsion averaged over all classes, not over those of the batch.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Unpack, cast

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
"""The word that `auto_settings` replaces by a number."""
MANY_CLASSES = 1500
"""From so many classes on the repulsion has a short reach. Linear heads were better with the long
one at 500 classes, worse with it at 1,500 (one seed) and 2,000; a small pretrained network was
worse with it at 1,000 already (docs/one_loss.md)."""


class Settings(NamedTuple):
    """The four numbers of multi-similarity of one class against the rest."""

    alpha: float
    beta: float
    delta: float
    margin: float


SHORT_REACH = Settings(alpha=0.01, beta=80.0, delta=0.2, margin=0.0)
"""The settings of MFCWMS: attraction hardly saturates, only what is nearer than 0.2 is repelled."""


def long_reach(num_classes: int, embedding_size: int) -> Settings:
    """Return settings for C classes in D dimensions whose repulsion reaches random directions.

    With ``delta + margin`` above 1 fields in random directions are within reach, so a class is
    pushed away also from classes that it does not resemble. Beta and margin have the scale of
    random directions (`random_directions`).
    """
    beta, margin = random_directions(num_classes, embedding_size)
    return Settings(alpha=8.0, beta=beta, delta=1.0, margin=margin)


def auto_settings(num_classes: int, embedding_size: int) -> Settings:
    """Return what ``"auto"`` means in `MeanFieldRestMultiSimilarityLoss`.

    `long_reach` for fewer than `MANY_CLASSES`, from there on `SHORT_REACH` (docs/one_loss.md has
    the runs).

    Args:
        num_classes: C.
        embedding_size: D.

    Example:
        >>> from weiss.losses.rest_multi_similarity import auto_settings
        >>> alpha, beta, delta, margin = auto_settings(num_classes=100, embedding_size=512)
        >>> alpha, round(beta, 1), delta, round(margin, 3)
        (8.0, 34.3, 1.0, 0.095)
        >>> auto_settings(num_classes=11318, embedding_size=512).delta
        0.2
    """
    if num_classes >= MANY_CLASSES:
        return SHORT_REACH
    return long_reach(num_classes, embedding_size)


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

    Settings that are ``"auto"`` follow from C and D, for cosine distances (`auto_settings`), each
    on its own: from `MANY_CLASSES` on ``alpha=8, delta=1`` alone leave beta 80 and margin 0. Give
    all four, for example ``**long_reach(C, D)._asdict()``, or none. Where these defaults are ahead
    and where not: docs/one_loss.md.

    Args:
        num_classes: C, the number of training classes.
        embedding_size: D.
        alpha: rate of the attraction, greater than 0; ``"auto"``: 8 below `MANY_CLASSES`, else
            0.01.
        beta: rate of the repulsion, greater than 0; ``"auto"``: ``sqrt(D ln C / 2)`` below
            `MANY_CLASSES`, else 80.
        delta: the middle of the two centres, a distance; ``"auto"``: 1 below `MANY_CLASSES`, else
            0.2.
        margin: the attraction has its centre at ``delta - margin``, the repulsion at
            ``delta + margin``; ``"auto"``: ``sqrt(ln C / D)`` below `MANY_CLASSES`, else 0.
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
        alpha: float | Literal["auto"] = "auto",
        beta: float | Literal["auto"] = "auto",
        delta: float | Literal["auto"] = "auto",
        margin: float | Literal["auto"] = "auto",
        keeps: str = "full",
        over: str = "present",
        divides_by: str = "present",
        **rest: Unpack[MeanFieldArgs],
    ) -> None:
        auto = auto_settings(
            checks.count("num_classes", num_classes, self._owner),
            checks.count("embedding_size", embedding_size, self._owner),
        )
        given = zip((alpha, beta, delta, margin), auto, strict=True)
        numbers = Settings(*(cast("float", own if one == AUTO else one) for one, own in given))
        description = RestMultiSimilarity(*numbers, keeps, over, divides_by)
        super().__init__(description, num_classes, embedding_size, **rest)
