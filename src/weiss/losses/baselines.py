"""The paper's baselines, from pytorch-metric-learning (PML), as modules that keep their precision.

PML rewrites a loss's class vectors to the dtype of whatever embeddings arrive, so that one step
under bfloat16 autocast rounds them permanently. `Baseline` prevents that: it converts the
embeddings to the dtype of the class vectors (without any, to at least float32) and runs the loss
outside autocast. It also holds a loss together with its miner.

PML is imported when a baseline is built, not before.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from weiss._base import checks
from weiss.losses.parameter_groups import PROXY_LR_SCALE


class Baseline(nn.Module):
    """A PML loss, with its miner if it has one.

    Args:
        loss: a loss of `pytorch_metric_learning.losses`.
        miner: a miner of `pytorch_metric_learning.miners`, or None.
        num_classes: C for a loss with class vectors, whose labels must lie in [0, C); else None.
        embedding_size: D for a loss with class vectors; else None.
    """

    class_lr_scale = PROXY_LR_SCALE
    """Learning rate of proxies over that of the network, for `weiss.parameter_groups`."""

    def __init__(
        self,
        loss: nn.Module,
        miner: nn.Module | None = None,
        num_classes: int | None = None,
        embedding_size: int | None = None,
    ) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner
        self.num_classes = num_classes
        self.embedding_size = embedding_size

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of a batch; all arguments as in PML.

        Args:
            embeddings: ``(B, D)`` floating point.
            labels: ``(B,)`` class indices.
            indices_tuple: what a PML miner returned; refused by a baseline with its own miner.
            ref_emb: ``(N, D)`` a second batch, for the losses that take one.
            ref_labels: ``(N,)`` its class indices.

        Returns:
            The loss, a scalar.
        """
        owner = type(self.loss).__name__
        embeddings = self._as_class_vectors(embeddings)
        labels = checks.labels_of_a_batch(labels, embeddings, self.num_classes, owner)
        if labels.ndim != 1:
            raise ValueError(
                f"labels must be class indices of shape (batch,) for {owner}; got multi-hot labels "
                f"of shape {tuple(labels.shape)}. Only the losses of Weiss take those."
            )
        if self.num_classes is not None:
            low, high = torch.stack(labels.aminmax()).tolist()
            checks.labels_in_range(low, high, self.num_classes, owner)
        if ref_emb is not None:
            ref_emb = self._as_class_vectors(ref_emb)
        with torch.autocast(embeddings.device.type, enabled=False):
            if self.miner is not None:
                why = "it mines its own tuples."
                checks.unused("indices_tuple", indices_tuple, why, owner)
                indices_tuple = self.miner(embeddings, labels, ref_emb, ref_labels)
            value: Tensor = self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
            return value

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return PML's ``(B, C)`` logits, larger for closer classes.

        Args:
            embeddings: ``(B, D)`` floating point.
        """
        if self.num_classes is None:
            raise TypeError(
                f"get_logits needs a loss with class vectors; {type(self.loss).__name__} compares "
                "samples with each other. Use a classification or mean-field loss."
            )
        embeddings = self._as_class_vectors(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            logits: Tensor = self.loss.get_logits(embeddings)  # type: ignore[operator]
        # ProxyNCA returns distances, which are smaller for closer classes.
        return logits if self.loss.distance.is_inverted else -logits  # type: ignore[union-attr]

    @property
    def class_vectors(self) -> Tensor | None:
        """The class vectors ``(C, D)``; None for a loss over pairs."""
        vectors = next(self.loss.parameters(), None)
        # Some of PML's losses keep a class a column.
        return vectors.T if vectors is not None and hasattr(self.loss, "W") else vectors

    def _as_class_vectors(self, embeddings: Tensor) -> Tensor:
        owner = type(self.loss).__name__
        checks.embeddings_of_a_batch(embeddings, owner, self.embedding_size)
        vectors = next(self.loss.parameters(), None)
        if vectors is None:
            return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        checks.same_device(embeddings, vectors, owner)
        return embeddings.to(vectors.dtype)


Settings = Callable[[], dict[str, Any]]
"""Gives the numbers a loss is built with where nothing else is said."""


def with_class_vectors(name: str, **defaults: Any) -> tuple[Callable[..., Baseline], Settings]:
    """Return builder and settings of the PML loss of this name that holds a vector a class."""

    def build(num_classes: int, embedding_size: int, **arguments: Any) -> Baseline:
        from pytorch_metric_learning import losses

        checks.count("num_classes", num_classes, name)
        checks.count("embedding_size", embedding_size, name)
        kind = getattr(losses, name)
        loss = kind(num_classes, embedding_size, **defaults | _checked(kind, arguments))
        return Baseline(loss, num_classes=num_classes, embedding_size=embedding_size)

    return build, lambda: _numbers_of(name) | defaults


def over_pairs(name: str, **defaults: Any) -> tuple[Callable[..., Baseline], Settings]:
    """Return builder and settings of the PML loss of this name over the samples of a batch."""

    def build(**arguments: Any) -> Baseline:
        from pytorch_metric_learning import losses

        kind = getattr(losses, name)
        return Baseline(kind(**defaults | _checked(kind, arguments)))

    return build, lambda: _numbers_of(name) | defaults


def multi_similarity_with_miner(
    epsilon: float = 0.1, alpha: float = 2, beta: float = 50, base: float = 0.5, **arguments: Any
) -> Baseline:
    """Build PML's multi-similarity loss behind its miner of margin ``epsilon``."""
    from pytorch_metric_learning import losses, miners

    checks.number("epsilon", epsilon, "MultiSimilarityMiner")
    kind = losses.MultiSimilarityLoss
    own = {"alpha": alpha, "beta": beta, "base": base}
    loss = kind(**_checked(kind, {**own, **arguments}))
    return Baseline(loss, miners.MultiSimilarityMiner(epsilon))


def semihard_triplet(margin: float = 0.1, **arguments: Any) -> Baseline:
    """Build PML's triplet margin loss over semi-hard triplets of the same margin."""
    from pytorch_metric_learning import losses, miners

    checks.number("margin", margin, "TripletMarginLoss")
    kind = losses.TripletMarginLoss
    loss = kind(margin=margin, **_checked(kind, arguments))
    return Baseline(loss, miners.TripletMarginMiner(margin, type_of_triplets="semihard"))


def _checked(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that a PML loss takes; refuse others, and text where it needs numbers."""
    known: set[str] = set()
    for above in kind.__mro__:
        if "__init__" in vars(above) and above.__module__.startswith("pytorch_metric_learning"):
            known |= set(signature(above.__init__).parameters)  # type: ignore[misc]
    numbers = _numbers_of(kind.__name__)
    for name, given in arguments.items():
        if name not in known - {"self", "kwargs", "args"}:
            hint = checks.suggestion(name, numbers)
            raise TypeError(f"{kind.__name__} has no argument {name!r}.{hint}")
        if name in numbers:
            checks.number(name, given, kind.__name__)
    return arguments


def _numbers_of(name: str) -> dict[str, Any]:
    """Return the hyper-parameters of a PML loss that are numbers, with PML's own defaults."""
    from pytorch_metric_learning import losses

    declared = signature(getattr(losses, name).__init__).parameters.values()
    return {
        each.name: each.default
        for each in declared
        if isinstance(each.default, (int, float)) and not isinstance(each.default, bool)
    }
