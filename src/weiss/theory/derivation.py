"""From one description of attraction and repulsion to the pair loss and its mean-field child.

This file is the only place where anything is averaged. Write ``a`` for the attraction, ``r`` for
the repulsion, ``phi`` for their links, ``<.>`` for the average over the members of a class. With
``C_B`` the classes present in the batch, the pair loss is

    L = 1/|C_B| sum_{c in C_B} phi_a( <a(d_ij)>_{i,j in c} / 2 )
      + 1/(2 |C_B|) sum_{c != c' in C_B} phi_r( <r(d_ij)>_{i in c, j in c'} )          (pairs)

Mean field: write each sample as its class's field plus a fluctuation, ``F_i = M_c + dF_i``, expand
every average, and drop all terms with fluctuations of *both* partners. What remains of a pair
average is a sum over points, ``<g(F_i, F_j)> -> <g(F_i, M_c')> + <g(M_c, F_j)> - g(M_c, M_c')``.
The last term is dropped too (it is constant inside a class, and made to vanish between classes by
the soft constraint), which gives

    L = 1/|C_B| sum_{c in C_B} phi_a( <a(d(F_i, M_c))>_{i in c} )
      + 1/(2 |C_B|) sum_{c != c'} phi_r( N_cc' + N_c'c )                                (fields)
      + lambda/C sum_{c != c'} psi_r( r(d(M_c, M_c')) )^2                               (constraint)

with ``N_cc' = <r(d(F_i, M_c'))>_{i in c}`` for a class in the batch and 0 for one that is not;
``c'`` runs over all C classes; ``psi_r`` is ``phi_r`` without its division by beta, as the paper
prints it, or ``phi_r`` itself, as the released program has it. docs/theory.md goes through every
step.

One against the rest (`weiss.theory.interactions.OneAgainstRest`): the averages of a class with all
others share a link. The repulsions of the two forms are then

    1/|C_B| sum_{c in C_B} phi_r( sum_{c' != c in C_B} <r(d_ij)>_{i in c, j in c'} )   (rest, pairs)
    1/|C_B| sum_{c in C_B} phi_r( sum_{c' != c} N_cc' + N_c'c )                       (rest, fields)

with c' over all C classes in the second. There c may run over all classes, too (``over="all"``). It
may drop ``N_cc'``, a class's samples against the other fields (``keeps="half"``), and divide by C
instead of ``|C_B|`` (``divides_by="all"``).

Dimensions: B batch, C classes, P memberships, K slots (classes present), as in `membership`.
"""

import torch
from torch import Tensor

from weiss.theory.interactions import Interactions, Link, OneAgainstRest
from weiss.theory.membership import Membership

AVERAGES = ("classes", "samples", "none")


def pair_loss(
    interactions: Interactions, dist_PP: Tensor, members: Membership, average: str
) -> Tensor:
    """All pairs of the batch, self-pairs included: line (pairs) above, or (rest, pairs).

    Args:
        interactions: attraction, repulsion and their links.
        dist_PP: ``(P, P)`` distances between the samples of the memberships; with class indices,
            between the samples.
        members: the classes of the samples.
        average: ``"classes"``; ``"samples"`` replaces every ``n_c`` by the mean class size,
            ``"none"`` by 1, so that averages are sums.

    Returns:
        The loss, a scalar.
    """
    weight_K, num_present = _weights(members, dist_PP.dtype, average)

    link = interactions.attraction_link
    other_class_PP = members.slot_P[:, None] != members.slot_P
    pull_PP = interactions.attraction(dist_PP)
    pull_P = link.sum(pull_PP.masked_fill(other_class_PP, link.empty(pull_PP.dtype)), dim=1)
    pull_K = link.segment_sum(pull_P, members.slot_P, members.num_slots)
    pull_K = link.apply(link.times(pull_K, weight_K.square() / 2))
    attraction = pull_K.masked_fill(~members.used_K, 0.0).sum()

    link = interactions.repulsion_link
    push_PP = interactions.repulsion(dist_PP)
    # A pair that shares any class does not repel, whichever two classes it is counted under.
    push_PP = push_PP.masked_fill(members.sharing(), link.empty(push_PP.dtype))
    push_KP = link.segment_sum(push_PP, members.slot_P, members.num_slots)
    push_KK = link.segment_sum(push_KP.T, members.slot_P, members.num_slots)
    push_KK = link.times(push_KK, weight_K[:, None] * weight_K)
    is_pair_KK = members.different()
    if interactions.sharing is None:
        repulsion = link.apply(push_KK).masked_fill(~is_pair_KK, 0.0).sum() / 2
    else:
        push_K = link.sum(push_KK.masked_fill(~is_pair_KK, link.empty(push_KK.dtype)), dim=1)
        repulsion = link.apply(push_K).masked_fill(~members.used_K, 0.0).sum()

    return (attraction + repulsion) / num_present


def mean_field_loss(
    interactions: Interactions, dist_BC: Tensor, members: Membership, average: str
) -> Tensor:
    """Every sample against every class's field: line (fields) above, or (rest, fields).

    Nothing of size C x C is formed. An ordered pair of classes of which only one is in the batch
    contributes ``phi(N_cc')``, and there are two such orders, which cancel the 1/2; only the small
    block of classes that are both present couples ``N_cc'`` with ``N_c'c``.

    Args:
        interactions: attraction, repulsion and their links.
        dist_BC: ``(B, C)`` distances from the samples to the fields.
        members: the classes of the samples.
        average: ``"classes"``; ``"samples"`` replaces every ``n_c`` by the mean class size,
            ``"none"`` by 1, so that averages are sums.

    Returns:
        The loss without its soft constraint, a scalar.
    """
    num_classes = dist_BC.shape[1]
    weight_K, num_present = _weights(members, dist_BC.dtype, average)

    link = interactions.attraction_link
    column_P1 = members.class_P.clamp_max(num_classes - 1)[:, None]  # padding is masked below
    pull_P = interactions.attraction(members.rows(dist_BC).gather(1, column_P1).squeeze(1))
    pull_K = link.segment_sum(pull_P, members.slot_P, members.num_slots)
    pull_K = link.apply(link.times(pull_K, weight_K))
    attraction = pull_K.masked_fill(~members.used_K, 0.0).sum()

    own_BC = members.own(num_classes)
    push_KC = _push(interactions, dist_BC, own_BC, members, weight_K)
    sharing = interactions.sharing
    if sharing is not None:
        divisor = num_classes if sharing.divides_by == "all" else num_present
        rest = _against_the_rest(interactions.repulsion_link, sharing, push_KC, members)
        return attraction / num_present + rest / divisor
    is_one_sided_KC = members.used_K[:, None] & ~own_BC.any(dim=0)
    link = interactions.repulsion_link
    one_sided = link.apply(push_KC).masked_fill(~is_one_sided_KC, 0.0).sum()

    # The present classes once more, on their own: cheap, and free of a gather on (K, C).
    dist_BK, own_BK = dist_BC[:, members.class_K], own_BC[:, members.class_K]
    push_KK = _push(interactions, dist_BK, own_BK, members, weight_K)
    two_sided_KK = link.apply(link.add(push_KK, push_KK.T))
    two_sided = two_sided_KK.masked_fill(~members.different(), 0.0).sum() / 2

    return (attraction + one_sided + two_sided) / num_present


def _against_the_rest(
    link: Link, sharing: OneAgainstRest, push_KC: Tensor, members: Membership
) -> Tensor:
    """Return ``sum_c phi_r(sum_{c'} N_cc' + N_c'c)`` from ``N`` ``(K, C)``, or half of each sum."""
    num_classes, empty = push_KC.shape[1], link.empty(push_KC.dtype)
    push_KC = push_KC.masked_fill(~members.used_K[:, None], empty)
    push_C = link.sum(push_KC, dim=0)
    # One place more than classes, for the slots that are not used.
    column_K = members.class_K.masked_fill(~members.used_K, num_classes)
    if sharing.keeps == "full":
        own_C = push_KC.new_full((num_classes + 1,), empty)
        own_C = own_C.scatter(0, column_K, link.sum(push_KC, dim=1))[:num_classes]
        push_C = link.add(push_C, own_C)
    energy_C = link.apply(push_C)
    if sharing.over == "present":
        is_absent_C = torch.ones(num_classes + 1, dtype=torch.bool, device=push_KC.device)
        energy_C = energy_C.masked_fill(is_absent_C.scatter(0, column_K, False)[:num_classes], 0.0)
    return energy_C.sum()


def _push(
    interactions: Interactions,
    dist_BC: Tensor,
    own_BC: Tensor,
    members: Membership,
    weight_K: Tensor,
) -> Tensor:
    """Return ``N_cc'``, the push of each present class against each column, ``(K, C)``."""
    link = interactions.repulsion_link
    push_BC = interactions.repulsion(dist_BC)
    # A class never repels its own members.
    push_BC = push_BC.masked_fill(own_BC, link.empty(push_BC.dtype))
    push_KC = link.segment_sum(members.rows(push_BC), members.slot_P, members.num_slots)
    return link.times(push_KC, weight_K[:, None])


def soft_constraint(interactions: Interactions, dist_CC: Tensor, reg_scale: str) -> Tensor:
    """Keep the fields apart, so that the dropped term ``g(M_c, M_c')`` is small.

    ``1/C sum_{c != c'} psi_r(r(d(M_c, M_c')))^2``, where ``psi_r`` is the link without its division
    by beta (``reg_scale="paper"``) or with it (``"released"``, smaller by ``beta^2``); for losses
    with a linear link the two are the same.

    Args:
        interactions: attraction, repulsion and their links.
        dist_CC: ``(C, C)`` distances between the fields.
        reg_scale: ``"paper"`` or ``"released"``.

    Returns:
        The constraint without its factor lambda, a scalar.
    """
    link = interactions.repulsion_link
    push_CC = interactions.repulsion(dist_CC)
    push_CC = link.undivided(push_CC) if reg_scale == "paper" else link.apply(push_CC)
    itself_CC = torch.eye(len(dist_CC), dtype=torch.bool, device=dist_CC.device)
    return push_CC.square().masked_fill(itself_CC, 0.0).sum() / len(dist_CC)


def _weights(members: Membership, dtype: torch.dtype, average: str) -> tuple[Tensor, Tensor]:
    """Return ``1 / n_c`` for each slot, or 1 for sums, and the number of classes present."""
    count_K, num_present = members.count_K.to(dtype), members.used_K.sum()
    if average == "none":
        return torch.ones_like(count_K), num_present
    if average == "samples":
        mean_count = (count_K * members.used_K).sum() / num_present
        count_K = mean_count.expand_as(count_K)
    return count_K.reciprocal(), num_present
