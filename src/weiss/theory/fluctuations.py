"""The next order of the expansion: what the spread of the classes adds to a mean-field loss.

At self-consistency ``<F_j>_{j in c} = l_c M_c``, ``|M_c| = 1``, with the order parameter
``l_c = <F_j . M_c>``, and the similarity of a sample of c with one of c' is

    F_i . F_j = l_c l_c' M_c.M_c'  +  l_c' (dF_i . M_c')  +  l_c (dF_j . M_c)  +  dF_i . dF_j

Only the last term needs pairs. Of it the second moment is kept, for a spread that is the same in
all directions across the field:

    <(dF_i . dF_j)^2>  ->  w_cc' = t_c t_c' (D - 2 + (M_c . M_c')^2) / (D - 1)^2,
    t_c = <1 - (F_i . M_c)^2>

Of two classes, for an exponential of rate b and for a hinge (`log_mean_exp`, `rounded_hinge`):

    log<e^{b (delta - d_ij)}>  =  n_cc' + n_c'c - b (delta - 1 + l_c l_c' M_c.M_c')
                                  + Lambda(b^2 (D - 1) w_cc'),
    n_cc' = log<e^{b (delta - 1 + l_c' F_i . M_c')}>_{i in c},
    <[x + sqrt(v) z]_+>  =  x Phi(x / sqrt(v)) + sqrt(v) phi(x / sqrt(v)),
    v_cc' = l_c^2 <(dF_j . M_c)^2>_{j in c'} + w_cc'

Inside a class of n samples, of which the pair loss counts each with itself at distance 0:

    <a(d_ij)>  =  a(0) / n  +  (1 - 1/n) <a(d_ij)>_{i != j},
    d_ij = far_c + u_i + u_j + E_ij,    far_c = n/(n-1) (1 - l_c^2),    sum_{j != i} E_ij = 0,
    <(u_i + u_j)^2>_{i != j} = 2 k^2 l_c^2 <(dF_i . M_c)^2>,            k^2 = n^2 / ((n-1) (n-2)),
    <E_ij^2>_{i != j}  ->  t_c^2 n^2 (n-3) / ((n-1)^2 ((n-1) (D-1) + 2))

The averages over distinct pairs are then those above, with distances ``far_c - k l_c (dF_i . M_c)``
from the samples. A class of one sample shows no spread and is left as it is. The correction is
taken at given fields. docs/fluctuations.md goes through every step, and says where it fails: in
fewer than 16 dimensions.

Dimensions: B batch, K slots (classes present), D embedding size.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from weiss._base import checks
from weiss.theory.distances import cosine_distance, working_dtype
from weiss.theory.interactions import ClosedForm, Interactions, LinearLink, Link, closed_form_of
from weiss.theory.membership import Membership

FLUCTUATIONS = ("none", "second")
NEEDED = {
    "distance": ("cosine",),
    "average": ("classes",),
    "impl": ("auto", "reference"),
    "skip": ("auto", "off"),
    "matmul_dtype": ("float32",),
    "fields_per_class": (1,),
}
"""Settings that the correction allows: it is a plain formula over all pairs."""


def checked(
    fluctuations: str,
    interactions: Interactions,
    settings: Mapping[str, object],
    parts: int,
    owner: str,
) -> str:
    """Return the option; refuse settings, those of `NEEDED`, that it cannot be combined with.

    ``parts`` is the number of processes that share the classes.
    """
    if checks.one_of("fluctuations", fluctuations, FLUCTUATIONS, owner) == "none":
        return fluctuations
    if parts > 1:
        raise ValueError(
            f"fluctuations must be 'none' for {owner} where processes share the classes; got "
            "'second'. The spread of a class is measured in one process."
        )
    asked = f"for {owner} with fluctuations='second'"
    if interactions.sharing is not None:
        raise ValueError(
            f"every pair of classes must have a link of its own {asked}; got one against the rest. "
            "The correction is known for pairs of classes. Use fluctuations='none'."
        )
    form = closed_form_of(interactions)
    if form is None or form.kind == "softplus":
        raise ValueError(
            f"interactions must be hinges or exponentials {asked}; got {interactions}. Only their "
            "averages over a spread are known in closed form. Use fluctuations='none'."
        )
    for name, allowed in NEEDED.items():
        given = settings[name]
        if given not in allowed:
            raise ValueError(
                f"{name} must be {' or '.join(map(repr, allowed))} {asked}; got {given!r}. "
                "The correction exists only for cosine distance, the plain formula and one field a "
                "class."
            )
    return fluctuations


def correction(
    interactions: Interactions, embeddings: Tensor, fields: Tensor, members: Membership
) -> Tensor:
    """Return what to add to the mean-field loss of a batch; 0 where its classes have no spread.

    ``1/K sum_c [phi_a(A_c / 2) - phi_a(<a>_c) + phi_a(a(0)) - phi_a(a(0) / 2)]
    + 1/(2K) sum_{c != c'} [phi_r(P_cc') - phi_r(N_cc' + N_c'c) + phi_r(2 r_cc') - phi_r(r_cc')]``

    with ``A_c`` and ``P_cc'`` the averages over pairs as the top of this file closes them, and
    ``r_cc' = r(d(M_c, M_c'))``. Classes with no sample or one in the batch have no known
    spread and are left as they are: the sums run over the others, K counts all of the batch.

    Args:
        interactions: two hinges or two exponentials.
        embeddings: ``(B, D)``.
        fields: ``(C, D)``; no gradient reaches them.
        members: the classes of the samples, one each.
    """
    if members.sample_P is not None:
        raise ValueError(
            "labels must be class indices, shape (batch,), with fluctuations='second'; got "
            "multi-hot labels. A sample of two classes belongs to the spread of both. "
            "Use fluctuations='none'."
        )
    dtype = working_dtype(embeddings, fields)
    fields_KD = fields.detach().index_select(0, members.class_K).to(dtype)
    dist_BK = cosine_distance(embeddings.to(dtype), fields_KD)
    dist_KK = cosine_distance(fields_KD, fields_KD)
    classes = _Classes(members, dist_BK, dist_KK, fields.shape[1])
    form = closed_form_of(interactions)
    assert form is not None
    pairs_K = _inside_classes(interactions, form, classes)
    pairs_KK = _between_classes(interactions, form, classes)

    link = interactions.attraction_link
    half, two = dist_BK.new_tensor(0.5), dist_BK.new_tensor(2.0)
    pull_K = classes.mean(link, interactions.attraction(classes.own(dist_BK)))
    none_K = interactions.attraction(torch.zeros_like(pull_K))
    inside_K = link.apply(link.times(pairs_K, half)) - link.apply(pull_K)
    inside_K = inside_K + link.apply(none_K) - link.apply(link.times(none_K, half))

    link = interactions.repulsion_link
    push_KK = classes.mean(link, interactions.repulsion(dist_BK))
    none_KK = interactions.repulsion(dist_KK)
    between_KK = link.apply(pairs_KK) - link.apply(link.add(push_KK, push_KK.T))
    between_KK = between_KK + link.apply(link.times(none_KK, two)) - link.apply(none_KK)

    # The distance of a lone sample from its field is no spread: nothing to correct by.
    known_K = members.used_K & (members.count_K > 1)
    is_pair_KK = known_K[:, None] & known_K & members.different()
    inside = inside_K.masked_fill(~known_K, 0.0).sum()
    between = between_KK.masked_fill(~is_pair_KK, 0.0).sum() / 2
    return (inside + between) / members.used_K.sum()


class _Classes:
    """The classes of a batch: averages over the samples of each, order and spread.

    Attributes:
        count_K: n_c.
        order_K: ``l_c``.
        across_K: ``t_c``.
        across_KK: ``w_cc'``.
        num_across: D - 1, the directions across a field.
        along_KK: ``<(dF_j . M_c)^2>_{j in c'}`` at row c, column c'.
        near_BK: distances of samples from class means, which are shorter than the fields.
        near_KK: distances of class means from each other.
    """

    def __init__(
        self, members: Membership, dist_BK: Tensor, dist_KK: Tensor, embedding_size: int
    ) -> None:
        self._slot_B, self._number = members.slot_P, members.num_slots
        self.count_K = members.count_K.to(dist_BK.dtype)
        self.num_across = max(embedding_size - 1, 1)
        sim_BK, sim_KK, plain = 1.0 - dist_BK, 1.0 - dist_KK, LinearLink()
        mean_KK = self.mean(plain, sim_BK)
        self.order_K = mean_KK.diagonal()
        self.across_K = self.mean(plain, 1.0 - self.own(sim_BK).square()).clamp_min(0.0)
        self.across_KK = spread_products(self.across_K, sim_KK, self.num_across)
        self.along_KK = self.mean(plain, (sim_BK - self.of_samples(mean_KK)).square()).T
        self.near_BK = 1.0 - self.order_K * sim_BK
        self.near_KK = 1.0 - self.order_K[:, None] * self.order_K * sim_KK

    def mean(self, link: Link, x_B: Tensor) -> Tensor:
        """Average the rows ``(B, ...)`` of each class on a link's scale: ``(K, ...)``."""
        sum_K = link.segment_sum(x_B, self._slot_B, self._number)
        weight_K = self.count_K.reciprocal()
        return link.times(sum_K, weight_K.view(-1, *[1] * (x_B.ndim - 1)))

    def own(self, x_BK: Tensor) -> Tensor:
        """Return ``(B,)``, of each sample the entry of its own class."""
        return x_BK.gather(1, self._slot_B[:, None]).squeeze(1)

    def of_samples(self, x_K: Tensor) -> Tensor:
        """Return the rows ``(B, ...)`` of the samples' classes."""
        return x_K.index_select(0, self._slot_B)


def _inside_classes(interactions: Interactions, form: ClosedForm, classes: _Classes) -> Tensor:
    """Return the averages over all pairs of a class ``(K,)``, on the scale of the link."""
    link, num_across = interactions.attraction_link, classes.num_across
    count_K = classes.count_K.clamp_min(2)  # one sample has no other: not used
    others_K = count_K - 1
    # Two samples are at the same distance from their mean: they need no factor.
    stretch_K = (count_K > 2) * count_K / (others_K * (count_K - 2).clamp_min(1)).sqrt()
    free_K = count_K.square() * (count_K - 3).clamp_min(0) / others_K.square()
    across_K = classes.across_K.square() * free_K / (others_K * num_across + 2)

    near_K, near_B = classes.near_KK.diagonal(), classes.own(classes.near_BK)
    far_K = near_K * count_K / others_K
    swing_B = classes.of_samples(stretch_K) * (near_B - classes.of_samples(near_K))
    far_B = classes.of_samples(far_K) + swing_B
    if form.kind == "exp":
        single_K = classes.mean(link, interactions.attraction(far_B))
        distinct_K = 2 * single_K - interactions.attraction(far_K)
        square_K = form.pull_rate**2 * across_K * num_across
        distinct_K = distinct_K + log_mean_exp(square_K, num_across)
    else:
        var_K = classes.mean(link, swing_B.square()) + across_K
        pull_B = rounded_hinge(far_B - form.pull_at, classes.of_samples(var_K))
        distinct_K = classes.mean(link, pull_B)
    itself_K = interactions.attraction(torch.zeros_like(far_K))
    return link.add(link.times(itself_K, 1 / count_K), link.times(distinct_K, others_K / count_K))


def _between_classes(interactions: Interactions, form: ClosedForm, classes: _Classes) -> Tensor:
    """Return the averages over pairs of two classes ``(K, K)``, on the scale of the link."""
    link, num_across = interactions.repulsion_link, classes.num_across
    if form.kind == "exp":
        push_KK = classes.mean(link, interactions.repulsion(classes.near_BK))
        push_KK = push_KK + push_KK.T - interactions.repulsion(classes.near_KK)
        square_KK = form.push_rate**2 * classes.across_KK * num_across
        return push_KK + log_mean_exp(square_KK, num_across)
    var_KK = classes.order_K.square()[:, None] * classes.along_KK + classes.across_KK
    push_BK = rounded_hinge(form.push_at - classes.near_BK, classes.of_samples(var_KK))
    push_KK = classes.mean(link, push_BK)
    # Either class's samples among the other's spread: two estimates of one average.
    return (push_KK + push_KK.T) / 2


def spread_products(across_K: Tensor, sim_KK: Tensor, num_across: int) -> Tensor:
    """Return ``tr(S_c S_c')`` of classes spread alike in all directions across their fields.

    ``t_c t_c' (p - 1 + (M_c . M_c')^2) / p^2``: only parallel fields share all p directions across.
    """
    shared_KK = (num_across - 1 + sim_KK.square()) / num_across**2
    return across_K[:, None] * across_K * shared_KK


def log_mean_exp(square: Tensor, dimensions: int) -> Tensor:
    """Average ``e^{k z}`` over the cosine z of two random directions, and take the logarithm.

    ``sqrt(n^2 + k^2) - n - n log((n + sqrt(n^2 + k^2)) / (2 n))`` with ``n = dimensions / 2``, the
    leading order for many dimensions. It begins as a Gaussian's cumulant, ``k^2 / (2 dimensions)``,
    and ends as ``k``: no product of two spreads is larger than their lengths allow. ``square`` is
    ``k^2``, of any shape.
    """
    half = dimensions / 2
    root = (half**2 + square).sqrt()
    rest = square / (root + half)  # root - half, without cancellation
    return rest - half * torch.log1p(rest / (2 * half))


def rounded_hinge(x: Tensor, var: Tensor) -> Tensor:
    """Average a hinge over a Gaussian, ``<[x + sqrt(var) z]_+>_{z ~ N(0, 1)}``.

    ``x Phi(x / s) + s phi(x / s)`` with ``s = sqrt(var)``; the hinge itself where var is 0.
    """
    is_wide = var > torch.finfo(var.dtype).eps ** 1.5  # less is rounding of distances
    width = var.masked_fill(~is_wide, 1.0).sqrt()
    place = x / width
    density = (-place.square() / 2).exp() / math.sqrt(2 * math.pi)
    return torch.where(is_wide, x * torch.special.ndtr(place) + width * density, x.relu())
