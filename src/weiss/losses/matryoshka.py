"""Matryoshka training: a loss over prefixes of the embedding, so that the embedding can be cut.

    L(x) = 1/m sum_k loss(x[:d_k] / |x[:d_k]|; M[:d_k]),   d_1 = D > d_2 > ... > d_m

M are the vectors of the classes (fields, proxies), which are cut with the embedding. The first
numbers of an embedding then say most, and a short prefix, at unit length again, can be searched in
place of the whole (Kusupati et al., *Matryoshka Representation Learning*, NeurIPS 2022).

Dimensions: B batch, C classes, D embedding size, d size of a prefix.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base import checks
from weiss.kernels.cuda_graphs import CudaGraphs
from weiss.losses.baselines import CLASSES_IN_COLUMNS, Baseline
from weiss.losses.modules import MeanFieldLoss, PairLoss
from weiss.theory.distances import unit, working_dtype

CLASSES_IN_ROWS = ("fields", "proxies")
"""Names of parameters ``(C, D)`` or ``(C, S, D)``; those of `CLASSES_IN_COLUMNS` are ``(D, C)``."""


def prefix_of_class_vectors(name: str, vectors: Tensor, size: int) -> Tensor:
    """Return the first numbers of all vectors of classes.

    Args:
        name: of the parameter, also with those of modules before a dot.
        vectors: ``(C, D)`` or ``(C, S, D)``, or ``(D, C)`` for a name of `CLASSES_IN_COLUMNS`.
        size: d.

    Returns:
        ``(C, d)`` or ``(C, S, d)``, or ``(d, C)``.
    """
    return vectors[:size] if _last(name) in CLASSES_IN_COLUMNS else vectors[..., :size]


class Matryoshka(nn.Module):
    """The mean of a loss over prefixes of the embedding.

    ``1/m sum_k loss(x[:d_k] / |x[:d_k]|; M[:d_k])`` for the dimensions ``d_1 > ... > d_m``. The
    whole embedding, ``d_1``, goes to the loss as it is; shorter ones get unit length anew.

    Its parameters are those of the loss. A prefix of fields is copied in every step, so that on a
    GPU only the whole embedding is replayed as a CUDA graph.

    Args:
        loss: a loss of Weiss, or a `Baseline`, also with class shards. Refused are losses for which
            a prefix of a class vector means nothing: mean-field losses with the Euclidean distance
            and the center loss, whose vectors have a length; and losses that keep embeddings of
            earlier batches.
        dimensions: sizes of the prefixes in descending order; the first is D.

    Raises:
        TypeError: the loss is of another kind.
        ValueError: the loss or the dimensions cannot be used.

    Example:
        >>> import torch, weiss
        >>> from weiss.losses import Matryoshka
        >>> loss = Matryoshka(weiss.make_loss("mf_cwms", 10, 64), [64, 16, 4])
        >>> loss(torch.randn(8, 64), torch.arange(8)).shape
        torch.Size([])
    """

    def __init__(self, loss: nn.Module, dimensions: Sequence[int]) -> None:
        super().__init__()
        owner = type(self).__name__
        if not isinstance(loss, (PairLoss, MeanFieldLoss, Baseline)):
            raise TypeError(
                f"loss must be a loss of Weiss for {owner}, or a weiss.losses.Baseline around one "
                f"of pytorch-metric-learning; got {type(loss).__name__}."
            )
        self.dimensions = checked_dimensions(dimensions, owner)
        size = loss.embedding_size
        if size is not None and size != self.dimensions[0]:
            raise ValueError(
                f"dimensions must begin with the embedding size of the loss, {size}, for {owner}; "
                f"got {list(dimensions)}."
            )
        _refuse_loss(loss, owner)
        self.loss = loss

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Compute the mean over prefixes; all arguments as the loss takes them.

        Args:
            embeddings: ``(B, D)`` floating point.
            labels: ``(B,)`` class indices, or ``(B, C)`` multi-hot.
            indices_tuple: for losses that take one.
            ref_emb: ``(N, D)`` a second batch, for losses that take one.
            ref_labels: ``(N,)`` its class indices.

        Returns:
            The loss, a scalar.
        """
        whole, owner = self.dimensions[0], type(self).__name__
        checks.embeddings_of_a_batch(embeddings, owner, whole)
        if ref_emb is not None:
            checks.embeddings_of_a_batch(ref_emb, owner, whole)
        values = []
        # The whole embedding comes last: what the loss reports of its last gradient is of it.
        for size in reversed(self.dimensions):
            more = (None if ref_emb is None else _prefix(ref_emb, size), ref_labels)
            with _cut(self.loss, size):
                values.append(self.loss(_prefix(embeddings, size), labels, indices_tuple, *more))
        return values[0] if len(values) == 1 else torch.stack(values).mean()

    def extra_repr(self) -> str:
        """Show the dimensions when the module is printed."""
        return f"dimensions={list(self.dimensions)}"


def checked_dimensions(dimensions: Sequence[int], owner: str) -> tuple[int, ...]:
    """Return sizes of prefixes; refuse those that do not descend."""
    given = list(dimensions)
    for size in given:
        checks.count("dimensions", size, owner)
    if not given or any(a <= b for a, b in itertools.pairwise(given)):
        raise ValueError(
            f"dimensions must be sizes that descend for {owner}, the whole embedding first, such "
            f"as [128, 32, 8]; got {given}."
        )
    return tuple(given)


def _refuse_loss(loss: PairLoss | MeanFieldLoss | Baseline, owner: str) -> None:
    """Refuse a loss for which a prefix of what it keeps means nothing."""
    if isinstance(loss, MeanFieldLoss) and loss.distance != "cosine":
        raise ValueError(
            f"distance must be 'cosine' for {owner} around a mean-field loss; got "
            f"{loss.distance!r}. A prefix of a field has another length than the field; by the "
            "cosine only its direction counts."
        )
    if not isinstance(loss, Baseline):
        return
    kind = type(loss.loss).__name__
    for name, _ in loss.named_parameters():
        if _last(name) not in (*CLASSES_IN_ROWS, *CLASSES_IN_COLUMNS):
            raise ValueError(
                f"loss must compare embeddings with class vectors by their angle for {owner}; "
                f"{kind} has {_last(name)!r}, of which a prefix means nothing. Choose another loss."
            )
    for module in loss.loss.modules():
        tensors = (kept for kept in vars(module).values() if isinstance(kept, Tensor))
        if any(kept.is_floating_point() for kept in (*tensors, *module.buffers())):
            raise ValueError(
                f"loss must keep no tensors between batches for {owner}, since each would be of "
                f"one size; {kind} does. Choose another loss."
            )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _prefix(embeddings: Tensor, size: int) -> Tensor:
    """Return ``(B, d)`` of unit length; the whole embedding as it is."""
    if size == embeddings.shape[1]:
        return embeddings
    return unit(embeddings[:, :size].to(working_dtype(embeddings, embeddings)))


@contextmanager
def _cut(loss: PairLoss | MeanFieldLoss | Baseline, size: int) -> Iterator[None]:
    """Let a loss with class vectors have those of a prefix; gradients reach the whole ones."""
    whole = loss.embedding_size
    if whole is None or whole == size:
        yield
        return
    changed: list[tuple[dict[str, Any], str, nn.Parameter]] = []
    graphs = loss._graphs if isinstance(loss, MeanFieldLoss) else None
    try:
        loss.embedding_size = size
        if isinstance(loss, MeanFieldLoss):
            loss._graphs = CudaGraphs()  # a prefix lies in other memory in every step
        for module in loss.modules():
            for name, own in module.named_parameters(recurse=False, remove_duplicate=False):
                changed.append((module._parameters, name, own))
                prefix: Any = prefix_of_class_vectors(name, own, size).contiguous()
                module._parameters[name] = prefix
        yield
    finally:
        loss.embedding_size = whole
        if isinstance(loss, MeanFieldLoss) and graphs is not None:
            loss._graphs = graphs
        for parameters, name, own in changed:
            parameters[name] = own
