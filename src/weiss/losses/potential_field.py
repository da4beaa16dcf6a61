"""Potential-field loss: samples and proxies as charges, whose influence decays with distance.

Charges of one class attract each other, those of different classes repel each other, with the
potentials of a charge at ``z``, felt at ``r``:

    psi_att(r, z) = -1 / max(|r - z|, delta)^alpha       no attraction nearer than delta
    psi_rep(r, z) = +1 / min(|r - z|, delta)^alpha       no repulsion beyond delta

Every class has ``M`` proxies ``p_c1 ... p_cM``. The loss is the energy of all charges, each in the
field of all others: those of its class attract it, the others repel it,

    U = sum_i Psi_{y_i}(x_i) + sum_c sum_m Psi_c(p_cm)
    Psi_c(r) = sum over charges z of class c, psi_att(r, z) + sum over the others, psi_rep(r, z)

for the B samples ``x_i`` of a batch and all proxies, all at unit length. Bhatnagar and Ahuja,
*Potential Field Based Deep Metric Learning* (CVPR 2025, arXiv 2405.18560). Theirs are these
equations, Adam, proxies at 100 times the rate of the network, batches of 100 in 200 epochs, and 15
proxies a class for CUB and Cars, 2 for SOP. They choose delta between 0.1 and 0.3 and alpha up to 6
by cross-validation and give no values for a data set. Their program is not public, so this is our
reading:

- delta 0.2, the middle of their range, and alpha 3, the middle of theirs
- proxies begin in random directions
- a pair's energy is counted from its least value, which changes no gradient: an attraction is 0
  nearer than delta, a repulsion is 0 beyond it, and the least loss is 0. It is a sum, as printed,
  so it grows with the batch and with the number of proxies
- nearer than 0.01, where ``|r - z|^2 = 2 - 2 cos`` has too few digits in float32, a pair of
  different classes has the energy of 0.01 and no force

Dimensions: B batch, C classes, M proxies of a class, N = B + C M charges, D embedding size.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weiss._base import checks
from weiss.losses.parameter_groups import PROXY_LR_SCALE
from weiss.theory.distances import unit

NEAREST = 0.01
MOST_ALPHA = 16.0
"""Beyond, the force between charges that are barely further apart overflows float32: the energy has
the derivative ``alpha / 2 * NEAREST ** -(alpha + 2)`` by the squared distance, 8e36 here."""
BLOCK = 2**24
"""At most so many pairs are formed at a time; with more charges, blocks are computed again in the
backward pass."""


class PotentialFieldLoss(nn.Module):
    """The energy of samples and proxies, called by `weiss.losses.Baseline`.

    Args:
        num_classes: C.
        embedding_size: D.
        proxies_per_class: M.
        alpha: how fast potentials decay, above zero, at most 16.
        delta: distance within which a class no longer attracts its own and repels others, above
            0.01.

    Attributes:
        proxies: ``(C M, D)`` parameter, those of a class together, drawn from N(0, 1/D).
    """

    class_lr_scale = PROXY_LR_SCALE

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int = 15,
        alpha: float = 3.0,
        delta: float = 0.2,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.num_classes = num_classes
        self.proxies_per_class = checks.count("proxies_per_class", proxies_per_class, owner)
        self.alpha = checks.number("alpha", alpha, owner, above=0.0)
        if self.alpha > MOST_ALPHA:
            raise ValueError(
                f"alpha must be at most {MOST_ALPHA:g} for {owner}; got {alpha!r}, with which the "
                "energy of near charges or its gradient is infinite in float32. Pass a smaller "
                "number."
            )
        self.delta = checks.number("delta", delta, owner, above=NEAREST)
        drawn = torch.randn(num_classes * proxies_per_class, embedding_size) / embedding_size**0.5
        self.proxies = nn.Parameter(drawn)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: None = None,
        ref_labels: None = None,
    ) -> Tensor:
        """Return the energy of ``(B, D)`` embeddings of ``(B,)`` class indices and all proxies."""
        given = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        for name, value in given.items():
            why = "every sample is compared with every other and with all proxies."
            checks.unused(name, value, why, type(self).__name__)
        of_proxies = torch.arange(self.num_classes, device=labels.device)
        of_proxies = of_proxies.repeat_interleave(self.proxies_per_class)
        charges_ND = unit(torch.cat([embeddings, self.proxies]))
        classes_N = torch.cat([labels, of_proxies])
        rows = max(BLOCK // len(charges_ND), 1)
        if rows >= len(charges_ND):
            return self._energy(charges_ND, classes_N, 0, rows)
        blocks = [
            checkpoint(self._energy, charges_ND, classes_N, start, rows, use_reentrant=False)
            for start in range(0, len(charges_ND), rows)
        ]
        return torch.stack(blocks).sum()

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return ``(B, C)`` logits of ``(B, D)`` embeddings: ``sum_m 1 / |x - p_cm|^alpha``.

        That is minus the potential of class c without the samples, except for a term that all
        classes have alike.
        """
        square_BP = _square_distances(unit(embeddings), unit(self.proxies))
        each_BCM = square_BP.pow(-self.alpha / 2).view(len(embeddings), self.num_classes, -1)
        return each_BCM.sum(dim=2)

    def _energy(self, charges_ND: Tensor, classes_N: Tensor, start: int, rows: int) -> Tensor:
        """Return the energy of some charges in the field of all others."""
        here = slice(start, start + rows)
        square_RN = _square_distances(charges_ND[here], charges_ND)
        same_RN = classes_N[here, None] == classes_N
        # A charge has no energy in its own field.
        alone_RN = torch.arange(len(classes_N), device=classes_N.device)
        alone_RN = alone_RN[here, None] == alone_RN
        power = -self.alpha / 2
        least = square_RN.new_full((), self.delta**2).pow(power)
        attraction_RN = least - square_RN.clamp_min(self.delta**2).pow(power)
        repulsion_RN = square_RN.clamp_max(self.delta**2).pow(power) - least
        energy_RN = torch.where(same_RN, attraction_RN, repulsion_RN)
        return energy_RN.masked_fill(alone_RN, 0.0).sum()


def _square_distances(x_ND: Tensor, y_MD: Tensor) -> Tensor:
    """Return ``(N, M)`` squared distances of unit vectors, at least that of ``NEAREST``."""
    return (2.0 - 2.0 * (x_ND @ y_MD.T)).clamp_min(NEAREST**2)
