"""The paper's baselines, from pytorch-metric-learning (PML), as modules that keep their precision.

PML rewrites a loss's class vectors to the dtype of whatever embeddings arrive, so that one step
under bfloat16 autocast rounds them permanently. `Baseline` prevents that: it converts the
embeddings to the dtype of the class vectors and runs the loss outside autocast; in at least
float32, also for class vectors of half precision. It refuses embeddings that are not finite, of
which some of PML's losses make a finite value. It also holds a loss together with its miner.

PML is imported when a baseline is built, not before.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        check: as in `weiss.losses.PairOptions`; if False, embeddings that are not finite make the
            value NaN.
    """

    class_lr_scale = PROXY_LR_SCALE
    """Learning rate of proxies over that of the network, for `weiss.parameter_groups`."""

    def __init__(
        self,
        loss: nn.Module,
        miner: nn.Module | None = None,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        check: bool = True,
    ) -> None:
        super().__init__()
        self.check = checks.flag("check", check, type(loss).__name__)
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
        if ref_emb is not None:
            ref_emb = self._as_class_vectors(ref_emb)
        is_finite = embeddings.isfinite().all()
        if ref_emb is not None:
            is_finite = is_finite & ref_emb.isfinite().all()
        if self.check:
            low, high, all_finite = torch.stack([*labels.aminmax(), is_finite.long()]).tolist()
            if self.num_classes is not None:
                checks.labels_in_range(low, high, self.num_classes, owner)
            if not all_finite:
                checks.finite_embeddings(embeddings, owner)
                checks.finite_embeddings(ref_emb, owner, "ref_emb")
        with self._in_at_least_float32(embeddings):
            if self.miner is not None:
                why = "it mines its own tuples."
                checks.unused("indices_tuple", indices_tuple, why, owner)
                indices_tuple = self.miner(embeddings, labels, ref_emb, ref_labels)
            value: Tensor = self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return value.masked_fill(~is_finite, math.nan)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return PML's ``(B, C)`` logits of ``(B, D)`` embeddings, larger for closer classes."""
        if self.num_classes is None:
            raise TypeError(
                f"get_logits needs a loss with class vectors; {type(self.loss).__name__} compares "
                "samples with each other. Use a classification or mean-field loss."
            )
        embeddings = self._as_class_vectors(embeddings)
        with self._in_at_least_float32(embeddings):
            logits: Tensor = self.loss.get_logits(embeddings)  # type: ignore[operator]
        # ProxyNCA returns distances, which are smaller for closer classes.
        return logits if self.loss.distance.is_inverted else -logits  # type: ignore[union-attr]

    @property
    def class_vectors(self) -> Tensor | None:
        """The class vectors ``(C, D)``; None for a loss over pairs or with several per class."""
        vectors: Tensor | None = next(self.loss.parameters(), None)
        if vectors is not None and hasattr(self.loss, "W"):
            vectors = vectors.T  # some of PML's losses keep one column per class
        is_one_each = vectors is not None and len(vectors) == self.num_classes
        return vectors if is_one_each else None

    def _as_class_vectors(self, embeddings: Tensor) -> Tensor:
        owner = type(self.loss).__name__
        checks.embeddings_of_a_batch(embeddings, owner, self.embedding_size)
        vectors = next(self.loss.parameters(), None)
        if vectors is not None:
            checks.same_device(embeddings, vectors, owner)
        own = embeddings if vectors is None else vectors
        return embeddings.to(torch.promote_types(own.dtype, torch.float32))

    @contextmanager
    def _in_at_least_float32(self, embeddings: Tensor) -> Iterator[None]:
        """Switch autocast off, and replace class vectors of half precision by wider copies.

        Gradients reach the class vectors through the copies.
        """
        changed: list[tuple[dict[str, Any], str, nn.Parameter]] = []
        try:
            # Parameters of submodules too, and one that several modules share in each of them.
            for module in self.loss.modules():
                for name, own in module.named_parameters(recurse=False, remove_duplicate=False):
                    if own.dtype != embeddings.dtype:
                        wide = own.to(embeddings.dtype)
                        changed.append((module._parameters, name, own))
                        module._parameters[name] = wide  # type: ignore[assignment]
            with torch.autocast(embeddings.device.type, enabled=False):
                yield
        finally:
            for parameters, name, own in changed:
                parameters[name] = own


def from_pml(
    name: str, miner: Callable[[Any, dict[str, Any]], Any] | None = None, **defaults: Any
) -> tuple[Callable[..., Baseline], Callable[[], dict[str, Any]]]:
    """Return what builds the PML loss of this name, and what returns its default numbers.

    The builder takes ``num_classes, embedding_size`` for a loss that holds vectors of classes, and
    only arguments of the loss for one over the samples of a batch; both also ``check``. ``miner``
    makes a miner of PML's module of miners and these arguments, and removes its own from them.
    """

    def build(*sizes: int, check: bool = True, **arguments: Any) -> Baseline:
        from pytorch_metric_learning import losses, miners

        for what, size in zip(("num_classes", "embedding_size"), sizes, strict=False):
            checks.count(what, size, name)
        given = defaults | arguments
        for what in defaults:
            checks.number(what, given[what], name)
        mines = None if miner is None else miner(miners, given)
        kind = getattr(losses, name)
        return Baseline(kind(*sizes, **_checked(kind, given)), mines, *sizes, check=check)

    return build, lambda: _numbers_of(name) | defaults


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
