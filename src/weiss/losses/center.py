"""Center loss: cross-entropy, and a pull of every sample to the centre of its class.

    1/B sum_i -log softmax(W x_i + b)_{y_i}  +  weight/2 * 1/B sum_i |x_i - c_{y_i}|^2

Wen, Zhang, Li and Qiao, *A Discriminative Feature Learning Approach for Deep Face Recognition*
(ECCV 2016), with their weight 0.003 (lambda there) and averages over the batch as in their program.
They move the centres by a rule of their own, not by the gradient,

    c_j <- c_j - 0.5 * sum_{i in j} (c_j - x_i) / (1 + n_j),

which divides by ``1 + n_j`` so that a class with few samples does not jump. Here that quotient is
what arrives as the gradient of ``c_j``: SGD with a rate of 0.5 then is the published rule, and any
other optimiser starts from the same direction.

Dimensions: B batch, C classes, D embedding size.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from weiss._base import checks
from weiss.losses.parameter_groups import PROXY_LR_SCALE


class CenterLoss(nn.Module):
    """Cross-entropy and center loss together, called by `weiss.losses.Baseline`.

    Args:
        num_classes: C.
        embedding_size: D.
        weight: of the pull to the centres, zero or more; 0.003 in the publication.

    Attributes:
        centers: ``(C, D)`` parameter, drawn from N(0, 1/D), so that a centre is about as long as
            an embedding of length one.
        classifier_weight: ``(C, D)`` parameter W, drawn as in `nn.Linear`.
        classifier_bias: ``(C,)`` parameter b.
    """

    class_lr_scale = PROXY_LR_SCALE

    def __init__(self, num_classes: int, embedding_size: int, weight: float = 0.003) -> None:
        super().__init__()
        self.weight = checks.not_negative("weight", weight, type(self).__name__)
        drawn_CD = torch.randn(num_classes, embedding_size) / embedding_size**0.5
        self.centers = nn.Parameter(drawn_CD)
        classifier = nn.Linear(embedding_size, num_classes)
        self.classifier_weight, self.classifier_bias = classifier.weight, classifier.bias

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: None = None,
        ref_labels: None = None,
    ) -> Tensor:
        """Return the loss of ``(B, D)`` embeddings and ``(B,)`` class indices."""
        given = {"indices_tuple": indices_tuple, "ref_emb": ref_emb, "ref_labels": ref_labels}
        for name, value in given.items():
            why = "it compares every sample with the centre of its class."
            checks.unused(name, value, why, type(self).__name__)
        apart_BD = embeddings - self.centers.detach()[labels]
        pull = apart_BD.square().sum(dim=1).mean() * self.weight / 2
        # Adds 0 to the value, and to the gradient of the centres the step of the publication.
        moves = (self.centers * self._step(apart_BD.detach(), labels)).sum()
        entropy = functional.cross_entropy(self.get_logits(embeddings), labels)
        return entropy + pull + (moves - moves.detach())

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the classifier's ``(B, C)`` logits of ``(B, D)`` embeddings."""
        return functional.linear(embeddings, self.classifier_weight, self.classifier_bias)

    def _step(self, apart_BD: Tensor, labels: Tensor) -> Tensor:
        """Return ``sum_{i in j} (c_j - x_i) / (1 + n_j)``, ``(C, D)``; 0 for an absent class."""
        member_CB = functional.one_hot(labels, len(self.centers)).to(apart_BD.dtype).T
        return -(member_CB @ apart_BD) / (1 + member_CB.sum(dim=1, keepdim=True))
