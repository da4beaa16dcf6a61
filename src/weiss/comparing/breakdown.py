"""Where the mean-field approximation breaks down: a pair loss against its child, over the spread.

The mean-field child of a pair loss replaces every partner by the field of its class. That is exact
for classes without extent and less exact the wider they are. Both are computed on the same
embeddings, with the same settings, in float64, with the fields at the class means:

    gap = pair - mean_field,        excess = gap - gap of the same classes without extent

(the two differ by a constant even then: docs/theory.md, section 4). The *spread* of classes is the
mean distance ``1 - cos`` of a sample from the mean direction of its class, one less the order
parameter ``|<F_i>|``; it is of second order in the fluctuations ``F_i - M_c``.

Results with the paper's settings, for 32 orthogonal classes of 16 samples in 128 dimensions:
``excess / (pair - pair_at_zero)``, the share of the cost of the extent that the child misses.

    spread         0.01   0.02   0.05   0.1    0.2    0.3    0.5    0.7
    contrastive    1.00   0.95   0.24   0.07  -0.06  -0.14  -0.31  -0.53
    cwms           0.25   0.24   0.23   0.21   0.17   0.12   0.00  -0.15
    binomial       0.00   0.01   0.01   0.02   0.02   0.00  -0.12  -0.34

- Contrastive: two samples are about twice as far from each other as from their field, so between
  half of ``pos_margin`` and all of it the parent attracts and the child does not. The excess is
  below 10 % of the cost from a spread of 0.084, and beyond -10 % from 0.25. With no margin it is
  exactly ``-<spread_c^2> / 2``.
- CWMS: 25 % from the smallest spread, below 10 % from 0.33, beyond -10 % from 0.64; of first
  order, since the child drops a constant inside its logarithm, which changes its slope.
- Binomial: within 3 % up to a spread of 0.3, beyond -10 % from 0.47; of second order.

Fields that minimise the child's loss (`weiss.losses.self_consistency.solve_fields`) change no share
by more than 0.03. If classes are closer than the repulsion
reaches, the child misses more: MFCWMS misses 43 % in 8 dimensions at a spread of 0.2.

Dimensions: N samples, C classes, D embedding size, K classes present; b rows of a block.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks
from weiss.losses import MeanFieldLoss, PairLoss, loss_settings, make_loss
from weiss.losses.by_name import FAMILIES
from weiss.theory.distances import DISTANCES, unit
from weiss.theory.interactions import Interactions

NOT_SHARED = (
    *("reg_weight", "reg_scale", "max_labels_per_sample", "class_lr", "check", "impl"),
    *("skip", "matmul_dtype", "fluctuations", "keeps", "over", "divides_by"),
)
"""Settings that do not change the energy of a pair; they are ignored."""
CELLS = 8_000_000
"""Distances computed at a time: 64 MB, and a few times as much for the steps after."""
CANDIDATES = 32
"""Directions drawn for each class if there are more classes than dimensions."""
BISECTIONS = 60


def gap_at(
    family: str,
    spread: float,
    *,
    num_classes: int = 32,
    per_class: int = 16,
    embedding_size: int = 128,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Compare a pair loss with its child on drawn classes of a given spread; see `gap_of`.

    The spread cannot reach 1: the mean of a few random directions is about ``1 / sqrt(per_class)``
    long.

    Example:
        >>> from weiss.comparing.breakdown import gap_at
        >>> found = gap_at("binomial", 0.2, num_classes=4, per_class=5, embedding_size=8)
        >>> round(found["spread"], 6)
        0.2
    """
    owner = "gap_at"
    checks.count("num_classes", num_classes, owner)
    checks.count("embedding_size", embedding_size, owner)
    checks.not_negative("spread", spread, owner)
    if checks.count("per_class", per_class, owner) < 2:
        raise ValueError(
            f"per_class must be at least 2 for {owner}; got {per_class}. A class of one sample has "
            "no extent."
        )
    embeddings, labels = draw_classes(spread, num_classes, per_class, embedding_size, seed)
    return gap_of(embeddings, labels, family, settings)


@torch.no_grad()
def draw_classes(
    spread: float, num_classes: int, per_class: int, embedding_size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw float64 embeddings ``(N, D)`` of length one, and their classes ``(N,)``.

    Class directions are orthogonal if the dimensions suffice, and otherwise drawn one after the
    other, each the furthest of `CANDIDATES` from those before. A sample is its class's direction
    turned towards a random one by the same angle for all samples, which bisection finds.
    """
    generator = torch.Generator().manual_seed(seed)

    def directions(number: int) -> Tensor:
        drawn = torch.randn(number, embedding_size, generator=generator, dtype=torch.float64)
        return unit(drawn)

    centres_CD = directions(num_classes)
    if num_classes <= embedding_size:
        centres_CD = torch.linalg.qr(centres_CD.T).Q.T.contiguous()
    else:
        for c in range(1, num_classes):
            drawn = directions(CANDIDATES)
            closest = (drawn @ centres_CD[:c].T).amax(dim=1)
            centres_CD[c] = drawn[closest.argmin()]
    labels = torch.arange(num_classes).repeat_interleave(per_class)
    to_ND, from_ND = directions(len(labels)), centres_CD[labels]

    def turned(angle: float) -> Tensor:
        return unit(np.cos(angle) * from_ND + np.sin(angle) * to_ND)

    if not spread:
        return from_ND, labels
    low, high = 0.0, np.pi / 2
    widest = spread_of(turned(high), labels)
    if widest < spread:
        raise ValueError(
            f"spread must be at most {widest:.4f} for {per_class} samples a class, the spread of "
            f"random directions; got {spread!r}. Lower it or raise per_class."
        )
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_less = spread_of(turned(middle), labels) < spread
        low, high = (middle, high) if is_less else (low, middle)
    return turned(high), labels


@torch.no_grad()
def spread_of(embeddings: Tensor, labels: Tensor) -> float:
    """Return the mean of ``1 - cos`` between samples ``(N, D)`` and mean directions of classes."""
    unit_ND = unit(embeddings.double())
    cosine_N = (unit_ND * unit(_class_means(unit_ND, labels))[labels]).sum(dim=1)
    return max(float((1.0 - cosine_N).mean()), 0.0)  # rounding may give a negative one


def gap_of(
    embeddings: Tensor | np.ndarray[Any, Any],
    labels: Tensor | np.ndarray[Any, Any],
    family: str,
    settings: Mapping[str, Any] | None = None,
    *,
    most: int = 12_000,
    seed: int = 0,
) -> dict[str, float]:
    """Compare a pair loss with its child on given embeddings, such as those of a trained network.

    A class without extent has every embedding at the mean of the class (under cosine, at its
    direction). All samples are one batch. Pairs are computed in blocks of whole classes against all
    samples, never N x N.

    Args:
        embeddings: ``(N, D)``, in any precision.
        labels: ``(N,)`` whole numbers, one class a sample; they need not be consecutive.
        family: one of `FAMILIES`.
        settings: arguments that the pair loss and its child share; those of the child alone
            (``reg_weight``) are ignored. Where the child finds a default by the numbers of classes
            and dimensions, both have it.
        most: if there are more samples, whole classes are drawn until the next does not fit.
        seed: of that draw.

    Returns:
        ``spread``, ``pair``, ``mean_field`` with the fields at the class means, ``gap``,
        ``excess``, and the pair loss without extent, ``pair_at_zero``.
    """
    owner = "gap_of"
    checks.one_of("family", family, FAMILIES, owner)
    samples_ND, labels_N = _checked(embeddings, labels, owner)
    shared = {k: v for k, v in (settings or {}).items() if k not in NOT_SHARED}
    # Of all classes, as in a training; fewer may be compared.
    sizes = int(labels_N.max()) + 1, samples_ND.shape[1]
    of_child = loss_settings(f"mf_{family}", shared, sizes)
    shared = {key: of_child[key] for key in loss_settings(family, shared)}
    samples_ND, labels_N = _at_most(samples_ND, labels_N, checks.count("most", most, owner), seed)
    num_classes, size = int(labels_N.max()) + 1, samples_ND.shape[1]
    with torch.random.fork_rng(devices=[]):  # the child draws fields; they are replaced
        pair = make_loss(family, num_classes, size, **shared)
        child = make_loss(f"mf_{family}", num_classes, size, **shared).double()
    assert isinstance(pair, PairLoss)
    assert isinstance(child, MeanFieldLoss)
    on_sphere = unit if pair.distance == "cosine" else torch.clone
    samples_ND = on_sphere(samples_ND)
    fields_CD = on_sphere(_class_means(samples_ND, labels_N))
    with torch.no_grad():
        child.fields.copy_(fields_CD)
        at_means_ND = fields_CD[labels_N]  # the same classes without extent
        mean_field = float(child(samples_ND, labels_N))
        mean_field_at_zero = float(child(at_means_ND, labels_N))
    energy = pair_value(pair, samples_ND, labels_N)
    energy_at_zero = pair_value(pair, at_means_ND, labels_N)
    return {
        "spread": spread_of(samples_ND, labels_N),
        "pair": energy,
        "mean_field": mean_field,
        "gap": energy - mean_field,
        # Constants first: they may be a hundred times as large as the excess.
        "excess": (energy - energy_at_zero) - (mean_field - mean_field_at_zero),
        "pair_at_zero": energy_at_zero,
    }


@torch.no_grad()
def pair_value(loss: PairLoss, embeddings: Tensor, labels: Tensor, *, cells: int = CELLS) -> float:
    """Return the value of a pair loss, computed in blocks instead of N x N distances at once.

    The sum is symmetric, so each block of classes is compared with itself and the classes after it.
    It has at most ``cells`` distances, but a class is never divided: one of n samples needs n x N.
    """
    order_N = labels.argsort(stable=True)
    sorted_ND = embeddings[order_N]
    count_K = _numbered(labels).bincount()
    slot_N = torch.arange(len(count_K)).repeat_interleave(count_K)
    start_K = count_K.cumsum(0) - count_K
    weight_K = 1.0 / count_K.to(embeddings.dtype)
    if loss.average == "samples":
        weight_K = torch.full_like(weight_K, len(count_K) / len(labels))
    if loss.average == "none":
        weight_K = torch.ones_like(weight_K)
    total, link, rest_K = 0.0, loss.interactions.repulsion_link, None
    if loss.interactions.sharing is not None:
        rest_K = torch.full_like(weight_K, link.empty(weight_K.dtype))
    for first, last in _blocks(count_K.tolist(), cells):
        begin = int(start_K[first])
        end = begin + int(count_K[first:last].sum())
        dist_bN = DISTANCES[loss.distance](sorted_ND[begin:end], sorted_ND[begin:])
        total += _block_sum(
            loss.interactions,
            dist_bN,
            slot_N[begin:] - first,
            weight_K[first:],
            last - first,
            None if rest_K is None else rest_K[first:],
        )
    if rest_K is not None:
        total += float(link.apply(rest_K).sum())
    return total / len(count_K)


def _blocks(counts: list[int], cells: int) -> list[tuple[int, int]]:
    """Divide classes into blocks whose distances to all samples from there on fit into cells."""
    blocks, first, rows, left = [], 0, 0, sum(counts)
    for c, count in enumerate(counts):
        if rows and (rows + count) * left > cells:
            blocks.append((first, c))
            left -= rows
            first, rows = c, 0
        rows += count
    return [*blocks, (first, len(counts))]


def _block_sum(
    interactions: Interactions,
    dist_bN: Tensor,
    slot_N: Tensor,
    weight_K: Tensor,
    num_rows: int,
    rest_K: Tensor | None,
) -> float:
    """Return the share of a block of classes in the pair loss, before the division by C.

    The rows are the first b of the columns and hold ``num_rows`` classes; ``slot_N`` is the class
    of each column, from 0, and ``weight_K`` the weight of the sum over each class. If the
    repulsions of a class share a link, they are added to ``rest_K`` instead.
    """
    slot_b = slot_N[: len(dist_bN)]
    same_bN = slot_b[:, None] == slot_N

    link = interactions.attraction_link
    pull_bb = interactions.attraction(dist_bN[:, : len(slot_b)])
    pull_bb = pull_bb.masked_fill(~same_bN[:, : len(slot_b)], link.empty(pull_bb.dtype))
    pull_k = link.segment_sum(link.sum(pull_bb, dim=1), slot_b, num_rows)
    attraction = link.apply(link.times(pull_k, weight_K[:num_rows].square() / 2)).sum()

    link = interactions.repulsion_link
    push_bN = interactions.repulsion(dist_bN)
    push_bN = push_bN.masked_fill(same_bN, link.empty(push_bN.dtype))
    push_kN = link.segment_sum(push_bN, slot_b, num_rows)
    push_Kk = link.segment_sum(push_kN.T, slot_N, len(weight_K))
    push_Kk = link.times(push_Kk, weight_K[:, None] * weight_K[:num_rows])
    # Each pair of classes once, instead of half the sum over both orders.
    is_later_Kk = torch.arange(len(weight_K))[:, None] > torch.arange(num_rows)
    if rest_K is not None:
        push_Kk = push_Kk.masked_fill(~is_later_Kk, link.empty(push_Kk.dtype))
        rest_K.copy_(link.add(rest_K, link.sum(push_Kk, dim=1)))
        rest_K[:num_rows] = link.add(rest_K[:num_rows], link.sum(push_Kk, dim=0))
        return float(attraction)
    repulsion = link.apply(push_Kk).masked_fill(~is_later_Kk, 0.0).sum()
    return float(attraction + repulsion)


def _class_means(samples_ND: Tensor, labels_N: Tensor) -> Tensor:
    """Return ``(C, D)`` the mean of each class, in the samples' own precision."""
    sums_CD = samples_ND.new_zeros(int(labels_N.max()) + 1, samples_ND.shape[1])
    sums_CD.index_add_(0, labels_N, samples_ND)
    return sums_CD / labels_N.bincount().clamp_min(1)[:, None]


def _checked(embeddings: Any, labels: Any, owner: str) -> tuple[Tensor, Tensor]:
    """Return embeddings as float64 and labels as 0 .. K - 1, both on the CPU."""
    samples_ND = torch.as_tensor(embeddings).detach().cpu()
    checks.embeddings_of_a_batch(samples_ND, owner)
    labels_N = torch.as_tensor(labels).detach().cpu()
    if labels_N.shape != samples_ND.shape[:1]:
        raise ValueError(
            f"labels must hold one class for each of the {len(samples_ND)} embeddings, shape "
            f"({len(samples_ND)},), for {owner}; got {tuple(labels_N.shape)}. Samples of several "
            "classes cannot be compared this way."
        )
    if labels_N.is_floating_point() or labels_N.dtype == torch.bool:
        raise TypeError(
            f"labels must be whole numbers for {owner}; got {labels_N.dtype}. Pass class indices."
        )
    if not samples_ND.isfinite().all():
        raise ValueError(
            f"embeddings must be finite for {owner}; got NaN or infinity. Embed with a network "
            "that has not diverged."
        )
    return samples_ND.double(), _numbered(labels_N)


def _numbered(labels_N: Tensor) -> Tensor:
    """Return labels as 0 .. K - 1, in their order."""
    numbered_N: Tensor = torch.unique(labels_N, return_inverse=True)[1]
    return numbered_N


def _at_most(samples_ND: Tensor, labels_N: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keep whole classes, in a random order, up to a number of samples; at least one class."""
    if len(samples_ND) <= most:
        return samples_ND, labels_N
    count_C = labels_N.bincount()
    order_C = torch.randperm(len(count_C), generator=torch.Generator().manual_seed(seed))
    number = max(int((count_C[order_C].cumsum(0) <= most).sum()), 1)
    kept_N = torch.isin(labels_N, order_C[:number])
    return samples_ND[kept_N], _numbered(labels_N[kept_N])
