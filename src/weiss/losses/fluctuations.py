"""The next order of the expansion: what the spread of the classes adds to a mean-field loss.

The mean-field step puts the field ``M_c`` for every partner of class c. The samples of a class are
spread around their mean, and on the sphere that mean is shorter than the field. At self-consistency

    <F_j>_{j in c} = l_c M_c,   |M_c| = 1,   l_c = <F_j . M_c>                 (the order parameter)

and the similarity of a sample of c with one of c' is, fluctuations counted from the means,

    F_i . F_j = l_c l_c' M_c.M_c'  +  l_c' (dF_i . M_c')  +  l_c (dF_j . M_c)  +  dF_i . dF_j

The second and the third term are known from distances to fields. Of the last only the second moment
is kept, with the spread taken to be the same in all directions across the field,

    <(dF_i . dF_j)^2>  =  tr(S_c S_c')  ->  t_c t_c' / (D - 1),    t_c = <1 - (F_i . M_c)^2>

That closes both averages over pairs without a pair: sums over samples and fields, and numbers a
class. For an exponential of rate b (a repulsion; an attraction has the other sign) it is a sum of
cumulants,

    log<e^{b (delta - d_ij)}>  =  n_cc' + n_c'c - b (delta - 1 + l_c l_c' M_c.M_c')
                                  + Lambda(b^2 t_c t_c'),
    n_cc' = log<e^{b (delta - 1 + l_c' F_i . M_c')}>_{i in c},
    Lambda(k^2) = k^2 / (2 (D - 1)) + ...                                        (`log_mean_exp`)

and for a hinge, whose second derivative is a delta function at the margin, the average over a
Gaussian of mean ``x`` and variance ``v``, a hinge rounded over its width:

    <[x + sqrt(v) z]_+>  =  x Phi(x / sqrt(v)) + sqrt(v) phi(x / sqrt(v)),
    v_cc' = l_c^2 <(dF_j . M_c)^2>_{j in c'} + t_c t_c' / (D - 1)

The correction is what these say beyond the mean-field loss, less the same at zero spread, which
would be a constant inside a class and is the dropped ``r(M_c, M_c')`` between two. It is taken at
given fields: they feel the mean-field loss alone, as a fluctuation around a saddle point does not
move the point. docs/fluctuations.md goes through every step.

Dimensions: B batch, K slots (classes present), D embedding size.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from weiss import _check
from weiss.distances import cosine_distance
from weiss.interactions import ClosedForm, Interactions, LinearLink, Link, closed_form_of
from weiss.membership import Membership

FLUCTUATIONS = ("none", "second")


class _Spread(NamedTuple):
    """What is known of the classes of a batch.

    Attributes:
        order_K: ``l_c``.
        num_across: D - 1, the directions across a field.
        across_KK: ``t_c t_c' / (D - 1)``.
        along_KK: ``<(dF_j . M_c)^2>_{j in c'}`` at row c, column c'.
    """

    order_K: Tensor
    num_across: int
    across_KK: Tensor
    along_KK: Tensor


def checked(
    fluctuations: str,
    interactions: Interactions,
    distance: str,
    average: str,
    impl: str,
    owner: str,
) -> str:
    """Return the option, or say what it cannot go together with.

    Args:
        fluctuations: ``"none"`` or ``"second"``.
        interactions: of the loss.
        distance: of the loss.
        average: of the loss.
        impl: of the loss.
        owner: its name, for messages.
    """
    if _check.one_of("fluctuations", fluctuations, FLUCTUATIONS, owner) == "none":
        return fluctuations
    asked = f"for {owner} with fluctuations='second'"
    form = closed_form_of(interactions)
    if form is None or form.kind == "softplus":
        raise ValueError(
            f"interactions must be hinges or exponentials {asked}; got {interactions}. Only their "
            "averages over a spread are known in closed form. Use fluctuations='none'."
        )
    needed = {"distance": ("cosine",), "average": ("classes",), "impl": ("auto", "reference")}
    given = {"distance": distance, "average": average, "impl": impl}
    for name, allowed in needed.items():
        if given[name] not in allowed:
            raise ValueError(
                f"{name} must be {' or '.join(map(repr, allowed))} {asked}; got {given[name]!r}. "
                "The correction stands as a plain formula on the sphere only."
            )
    return fluctuations


def refuse_shards(parts: int, owner: str) -> None:
    """Refuse classes that processes share."""
    if parts > 1:
        raise ValueError(
            f"fluctuations must be 'none' for {owner} where processes share the classes; got "
            "'second'. The spread of a class is measured in one process."
        )


def correction(
    interactions: Interactions, embeddings: Tensor, fields: Tensor, members: Membership
) -> Tensor:
    """Return what to add to the mean-field loss of a batch, at given fields.

    Args:
        interactions: two hinges or two exponentials.
        embeddings: ``(B, D)``.
        fields: ``(C, D)``; no gradient reaches them.
        members: the classes of the samples, one each.

    Returns:
        As `fluctuation_correction`.
    """
    dtype = torch.promote_types(torch.promote_types(embeddings.dtype, fields.dtype), torch.float32)
    fields_KD = fields.detach().index_select(0, members.class_K).to(dtype)
    dist_BK = cosine_distance(embeddings.to(dtype), fields_KD)
    dist_KK = cosine_distance(fields_KD, fields_KD)
    size = fields.shape[1]
    return fluctuation_correction(interactions, dist_BK, dist_KK, members, size)


def fluctuation_correction(
    interactions: Interactions,
    dist_BK: Tensor,
    dist_KK: Tensor,
    members: Membership,
    embedding_size: int,
) -> Tensor:
    """Return what to add to the mean-field loss of a batch; 0 where its classes have no spread.

    ``1/K sum_c [phi_a(A_c / 2) - phi_a(<a>_c) + phi_a(a(0)) - phi_a(a(0) / 2)]
    + 1/(2K) sum_{c != c'} [phi_r(P_cc') - phi_r(N_cc' + N_c'c) + phi_r(2 r_cc') - phi_r(r_cc')]``

    with ``A_c`` and ``P_cc'`` the averages over pairs as the top of this file closes them, and
    ``r_cc' = r(d(M_c, M_c'))``. Classes that are not in the batch have no known spread and are
    left as they are.

    Args:
        interactions: two hinges or two exponentials.
        dist_BK: ``(B, K)`` cosine distances from the samples to the fields of the classes present.
        dist_KK: ``(K, K)`` those between these fields.
        members: the classes of the samples, one each.
        embedding_size: D.

    Returns:
        The correction, a scalar.
    """
    if members.sample_P is not None:
        raise ValueError(
            "labels must be class indices, shape (batch,), with fluctuations='second'; got "
            "multi-hot labels. A sample of two classes belongs to the spread of both. "
            "Use fluctuations='none'."
        )
    slots = _Slots(members, dist_BK.dtype)
    spread = _spread(dist_BK, slots, embedding_size)
    # Distances to the class means, which are shorter than the fields.
    near_BK = 1.0 - spread.order_K * (1.0 - dist_BK)
    near_KK = 1.0 - spread.order_K[:, None] * spread.order_K * (1.0 - dist_KK)
    form = closed_form_of(interactions)
    assert form is not None
    over_pairs = _exponentials if form.kind == "exp" else _hinges
    pairs_K, pairs_KK = over_pairs(interactions, form, near_BK, near_KK, spread, slots)

    link = interactions.attraction_link
    half, two = dist_BK.new_tensor(0.5), dist_BK.new_tensor(2.0)
    pull_K = slots.mean(link, interactions.attraction(slots.own(dist_BK)))
    none_K = interactions.attraction(torch.zeros_like(pull_K))
    inside_K = link.apply(link.times(pairs_K, half)) - link.apply(pull_K)
    inside_K = inside_K + link.apply(none_K) - link.apply(link.times(none_K, half))

    link = interactions.repulsion_link
    push_KK = slots.mean(link, interactions.repulsion(dist_BK))
    none_KK = interactions.repulsion(dist_KK)
    between_KK = link.apply(pairs_KK) - link.apply(link.add(push_KK, push_KK.T))
    between_KK = between_KK + link.apply(link.times(none_KK, two)) - link.apply(none_KK)

    used_K = members.used_K
    itself_KK = torch.eye(len(used_K), dtype=torch.bool, device=used_K.device)
    is_pair_KK = used_K[:, None] & used_K & ~itself_KK
    inside = inside_K.masked_fill(~used_K, 0.0).sum()
    between = between_KK.masked_fill(~is_pair_KK, 0.0).sum() / 2
    return (inside + between) / used_K.sum()


class _Slots:
    """Averages over the samples of each class present."""

    def __init__(self, members: Membership, dtype: torch.dtype) -> None:
        self.slot_B, self.number = members.slot_P, members.num_slots
        self.weight_K = members.count_K.to(dtype).reciprocal()

    def mean(self, link: Link, x_B: Tensor) -> Tensor:
        """Average the rows ``(B, ...)`` of each class on a link's scale: ``(K, ...)``."""
        sum_K = link.segment_sum(x_B, self.slot_B, self.number)
        return link.times(sum_K, self.weight_K.view(-1, *[1] * (x_B.ndim - 1)))

    def own(self, x_BK: Tensor) -> Tensor:
        """Return ``(B,)``, of each sample the entry of its own class."""
        return x_BK.gather(1, self.slot_B[:, None]).squeeze(1)


def _spread(dist_BK: Tensor, slots: _Slots, embedding_size: int) -> _Spread:
    """Measure order and spread of each class from distances to fields."""
    sim_BK, plain = 1.0 - dist_BK, LinearLink()
    mean_KK = slots.mean(plain, sim_BK)
    along_KK = slots.mean(plain, (sim_BK - mean_KK.index_select(0, slots.slot_B)).square()).T
    across_K = slots.mean(plain, 1.0 - slots.own(sim_BK).square()).clamp_min(0.0)
    num_across = max(embedding_size - 1, 1)
    across_KK = across_K[:, None] * across_K / num_across
    return _Spread(mean_KK.diagonal(), num_across, across_KK, along_KK)


def _exponentials(
    interactions: Interactions,
    form: ClosedForm,
    near_BK: Tensor,
    near_KK: Tensor,
    spread: _Spread,
    slots: _Slots,
) -> tuple[Tensor, Tensor]:
    """Return logarithms of the averages over pairs, in a class ``(K,)`` and of two ``(K, K)``."""
    pull_K = slots.mean(interactions.attraction_link, interactions.attraction(slots.own(near_BK)))
    pull_K = 2 * pull_K - interactions.attraction(near_KK.diagonal())
    push_KK = slots.mean(interactions.repulsion_link, interactions.repulsion(near_BK))
    push_KK = push_KK + push_KK.T - interactions.repulsion(near_KK)
    num_across = spread.num_across
    product_KK = spread.across_KK * num_across
    return (
        pull_K + log_mean_exp(form.pull_rate**2 * product_KK.diagonal(), num_across),
        push_KK + log_mean_exp(form.push_rate**2 * product_KK, num_across),
    )


def _hinges(
    interactions: Interactions,
    form: ClosedForm,
    near_BK: Tensor,
    near_KK: Tensor,
    spread: _Spread,
    slots: _Slots,
) -> tuple[Tensor, Tensor]:
    """Return the averages over pairs, in a class ``(K,)`` and of two classes ``(K, K)``."""
    var_KK = spread.order_K.square()[:, None] * spread.along_KK + spread.across_KK
    var_BK = var_KK.index_select(0, slots.slot_B)
    pull_B = rounded_hinge(slots.own(near_BK) - form.pull_at, slots.own(var_BK))
    push_KK = slots.mean(LinearLink(), rounded_hinge(form.push_at - near_BK, var_BK))
    # Either class's samples among the other's spread: two estimates of one average.
    return slots.mean(LinearLink(), pull_B), (push_KK + push_KK.T) / 2


def log_mean_exp(square: Tensor, dimensions: int) -> Tensor:
    """Average ``e^{k z}`` over the cosine z of two random directions, and take the logarithm.

    ``sqrt(n^2 + k^2) - n - n log((n + sqrt(n^2 + k^2)) / (2 n))`` with ``n = dimensions / 2``, the
    leading order for many dimensions. It begins as a Gaussian's cumulant, ``k^2 / (2 dimensions)``,
    and ends as ``k``: no product of two spreads is larger than their lengths allow.

    Args:
        square: ``k^2``, of any shape.
        dimensions: p, in which the directions are drawn.

    Returns:
        The logarithm, of the same shape.
    """
    half = dimensions / 2
    root = (half**2 + square).sqrt()
    rest = square / (root + half)  # root - half, without cancellation
    return rest - half * torch.log1p(rest / (2 * half))


def rounded_hinge(x: Tensor, var: Tensor) -> Tensor:
    """Average a hinge over a Gaussian, ``<[x + sqrt(var) z]_+>_{z ~ N(0, 1)}``.

    ``x Phi(x / s) + s phi(x / s)`` with ``s = sqrt(var)``; the hinge itself where var is 0.

    Args:
        x: of any shape, where the Gaussian stands.
        var: of the same shape, its variance.

    Returns:
        The average, of the same shape.
    """
    is_wide = var > torch.finfo(var.dtype).eps ** 1.5  # less is rounding of distances
    width = var.masked_fill(~is_wide, 1.0).sqrt()
    place = x / width
    density = (-place.square() / 2).exp() / math.sqrt(2 * math.pi)
    return torch.where(is_wide, x * torch.special.ndtr(place) + width * density, x.relu())
