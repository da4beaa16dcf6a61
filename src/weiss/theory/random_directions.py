"""How far apart directions are by chance, and the beta and margin that follow from it."""

import math
from typing import NamedTuple


class Sharpness(NamedTuple):
    """A rate of the repulsion and a margin between the centres; see `random_directions`."""

    beta: float
    margin: float


def random_directions(num_classes: int, embedding_size: int) -> Sharpness:
    """Return beta and margin on the scale of the distances of C random directions in D dimensions.

    A direction has a cosine of about ``N(0, 1/D)`` with another one. So the sum
    ``sum_c e^{-beta d_c}`` over C random fields is the partition function of the random-energy
    model, which freezes into its few nearest terms at ``beta = sqrt(2 D ln C)``. At half of that,
    returned here, the number of fields that share the slope of the logarithm,
    ``(sum_c p_c)^2 / sum_c p_c^2`` with ``p_c`` the terms, grows as ``sqrt(C)``: neither the
    nearest fields alone nor all of them.

        beta = sqrt(D ln C / 2)        margin = sqrt(ln C / D)

    The nearest of C random fields is somewhat nearer than ``1 - margin``, the centre of the
    attraction (for delta 1): by 0.01 to 0.07 for 50 to 12,000 fields in 512 or 128 dimensions.
    Where ``ln C`` is not small beside D cosines are no longer normal, and the margin becomes too
    large, above 1 if ``ln C > D``: give numbers there.

    Args:
        num_classes: C; one class counts as two.
        embedding_size: D.

    Example:
        >>> from weiss.theory.random_directions import random_directions
        >>> beta, margin = random_directions(num_classes=100, embedding_size=512)
        >>> f"{beta:.1f} {margin:.3f}"
        '34.3 0.095'
    """
    log_c = math.log(max(num_classes, 2))
    return Sharpness(math.sqrt(embedding_size * log_c / 2), math.sqrt(log_c / embedding_size))
