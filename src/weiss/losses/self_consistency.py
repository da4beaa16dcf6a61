"""Fields against class means: the order parameters of a run, and fields that are solved for.

Mean field theory replaces the samples of a class by one field and asks that the field agree with
what it replaces: ``M_c = <F_i>_{i in c}`` (on the sphere, in direction). A trained field need not
agree. This file measures how far it does (`order_parameters`), and has the two ways to enforce it
outside the network's own steps: minimise the loss over the fields alone (`solve_fields`), or set
them to a running class mean (`follow_class_means`).

Dimensions: B batch, N training items, C classes, D embedding size.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weiss.losses.modules import MeanFieldLoss
from weiss.losses.shards import is_sharded, whole_fields
from weiss.theory.distances import DISTANCES, Distance, unit

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Which quantiles over classes are reported of a value that every class has."""
DISTANCE_ROWS = 2048
"""Rows of the field-against-field distances that are formed at a time: never C x C."""


class ClassMeans:
    """Sums of the embeddings of each class, added up batch by batch, in float32.

    Args:
        num_classes: C.
        embedding_size: D.
        device: where the embeddings are.
    """

    def __init__(self, num_classes: int, embedding_size: int, device: torch.device) -> None:
        self.sums_CD = torch.zeros(num_classes, embedding_size, device=device)
        self.counts_C = torch.zeros(num_classes, device=device)

    def add(self, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch: ``(B, D)`` embeddings, ``(B,)`` classes or ``(B, C)`` multi-hot."""
        rows_BD = embeddings.detach().to(self.sums_CD.dtype)
        if labels.ndim == 2:
            hot_BC = labels.to(self.sums_CD.dtype)
            with torch.autocast(hot_BC.device.type, enabled=False):
                self.sums_CD += hot_BC.T @ rows_BD
            self.counts_C += hot_BC.sum(dim=0)
        else:
            self.sums_CD.index_add_(0, labels.long(), rows_BD)
            self.counts_C.index_add_(0, labels.long(), torch.ones_like(rows_BD[:, 0]))

    def clear(self) -> None:
        """Set all sums to zero."""
        self.sums_CD.zero_()
        self.counts_C.zero_()

    def seen(self) -> Tensor:
        """Return ``(C,)`` bool: was a sample of the class added?"""
        return self.counts_C > 0

    def means(self) -> Tensor:
        """Return ``(C, D)``; zero for a class without a sample."""
        return self.sums_CD / self.counts_C.clamp_min(1.0)[:, None]


@torch.no_grad()
def order_parameters(means: ClassMeans, loss: nn.Module) -> dict[str, Any]:
    """Measure how closely each class is gathered, and whether its field is in its middle.

    A run measures them on the batches of an epoch: augmented images, a network that changes during
    the epoch, class vectors of the epoch's end.

    Args:
        means: of embeddings of unit length.
        loss: any loss; without class vectors only the first entry is returned. Where processes
            share the classes, all must call this together.

    Returns:
        ``class_mean_length``: ``|<F_i>_{i in c}|``, 1 for a class in one point, near 0 for one
        scattered over the sphere. ``residual``: the distance of the class vector from the class
        mean, in the loss's own distance. Both as quantiles over classes (`QUANTILES`).
        ``violating_share``: the share of pairs of fields closer than the loss's repulsion reaches,
        ``#{c < c': d(M_c, M_c') < m_N} / #{c < c'}``.
    """
    seen = means.seen()
    means_CD = means.means()[seen]
    if not len(means_CD):
        return {}
    found: dict[str, Any] = {"class_mean_length": _quantiles(means_CD.norm(dim=1))}
    vectors_CD = getattr(loss, "class_vectors", None)
    if is_sharded(loss):
        vectors_CD = whole_fields(loss)
    if vectors_CD is None or len(vectors_CD) != len(seen):
        return found
    vectors_CD = vectors_CD.detach().to(means_CD.dtype)
    # The baselines' class vectors are compared by angle.
    distance = getattr(loss, "distance", "cosine")
    found["residual"] = _quantiles(_distance_to_own(distance, means_CD, vectors_CD[seen]))
    reach = getattr(getattr(loss, "interactions", None), "repulsion_range", None)
    if reach is not None and len(vectors_CD) > 1:
        found["violating_share"] = _violating_share(DISTANCES[distance], vectors_CD, reach)
    return found


def class_means_of(embeddings: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean embedding ``(C, D)`` of each class; zero for a class without a sample.

    Args:
        embeddings: ``(N, D)``.
        labels: ``(N,)`` classes or ``(N, C)`` multi-hot.
        num_classes: C.
    """
    means = ClassMeans(num_classes, embeddings.shape[1], embeddings.device)
    means.add(embeddings, labels)
    return means.means()


@torch.no_grad()
def follow_class_means(
    loss: MeanFieldLoss, embeddings: Tensor, labels: Tensor, momentum: float
) -> None:
    """Move the fields of the classes in a batch towards the batch's class means.

    ``M_c <- momentum * M_c + (1 - momentum) * <F_i>_{i in c}``

    Args:
        loss: whose fields move.
        embeddings: ``(B, D)``.
        labels: ``(B,)`` classes or ``(B, C)`` multi-hot.
        momentum: the share of the old field that stays.

    Raises:
        ValueError: the classes have several fields.
    """
    if loss.fields_per_class > 1:
        raise ValueError(
            "fields_per_class must be 1 to follow class means: one mean cannot place several "
            f"fields; got {loss.fields_per_class}. Train the fields, or use solve_fields."
        )
    batch = ClassMeans(loss.shard.num_classes, embeddings.shape[1], embeddings.device)
    batch.add(embeddings, labels)
    here = slice(loss.shard.first, loss.shard.first + len(loss.fields))
    moved_CD = momentum * loss.fields + (1.0 - momentum) * batch.means()[here]
    loss.fields.copy_(torch.where(batch.seen()[here, None], moved_CD, loss.fields))


def solve_fields(
    loss: MeanFieldLoss,
    embeddings: Tensor,
    labels: Tensor,
    batches: Iterable[np.ndarray[Any, Any]],
    lr: float,
) -> None:
    """Minimise the loss over the fields alone, the embeddings held still.

    Args:
        loss: whose fields are solved for.
        embeddings: ``(N, D)`` of the training items.
        labels: ``(N,)`` classes or ``(N, C)`` multi-hot.
        batches: rows of the embeddings, batch by batch.
        lr: learning rate of Adam at the start; it falls to zero over the batches.
    """
    batches = list(batches)
    fixed = embeddings.detach()
    was_trained = loss.fields.requires_grad
    loss.fields.requires_grad_(True)
    optimizer = torch.optim.Adam([loss.fields], lr=lr)
    for number, rows in enumerate(batches):
        optimizer.param_groups[0]["lr"] = lr * (1.0 - number / len(batches))
        index = torch.from_numpy(rows).to(fixed.device)
        optimizer.zero_grad()
        loss(fixed[index], labels[index]).backward()
        optimizer.step()
    loss.fields.grad = None
    loss.fields.requires_grad_(was_trained)


def _distance_to_own(distance: str, means_CD: Tensor, vectors_CD: Tensor) -> Tensor:
    """Return ``(C,)`` the distance of each class's vector from the class's mean, row by row."""
    if distance == "euclidean":
        gap_C: Tensor = torch.linalg.vector_norm(means_CD - vectors_CD, dim=1)
        return gap_C
    return 1.0 - (unit(means_CD) * unit(vectors_CD)).sum(dim=1)


def _violating_share(distance: Distance, fields_CD: Tensor, reach: float) -> float:
    number = len(fields_CD)
    closer = fields_CD.new_zeros((), dtype=torch.int64)
    for start in range(0, number, DISTANCE_ROWS):
        with torch.autocast(fields_CD.device.type, enabled=False):
            dist_bC = distance(fields_CD[start : start + DISTANCE_ROWS], fields_CD)
        row_b = torch.arange(start, start + len(dist_bC), device=fields_CD.device)
        column_C = torch.arange(number, device=fields_CD.device)
        closer += ((dist_bC < reach) & (column_C > row_b[:, None])).sum()
    return float(closer) / (number * (number - 1) / 2)


def _quantiles(values_C: Tensor) -> list[float]:
    found: list[float] = torch.quantile(values_C, values_C.new_tensor(QUANTILES)).tolist()
    return found
