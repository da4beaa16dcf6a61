"""The baselines, most from pytorch-metric-learning (PML), as modules that keep their precision.

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
from weiss.theory.distances import unit

LIBRARIES = ("pytorch_metric_learning.", "weiss.losses.")
"""Where the losses come from whose arguments are checked by name."""
COUNTS = ("centers_per_class", "sub_centers", "proxies_per_class")
"""Arguments of baselines that are whole numbers: vectors of a class."""
CLASSES_IN_COLUMNS = ("W", "fc")
"""Names of PML's parameters ``(D, C)``, with one column per class; others have one row."""
SAME = 1e-5
"""Added to a squared distance of centres, as in SoftTriple's program: its root has a slope."""


class Baseline(nn.Module):
    """A PML loss, with its miner if it has one; or another loss with PML's signature.

    Args:
        loss: a loss of `pytorch_metric_learning.losses`, or a module called in the same way.
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
        distance = getattr(self.loss, "distance", None)
        return logits if distance is None or distance.is_inverted else -logits

    @property
    def class_vectors(self) -> Tensor | None:
        """The class vectors ``(C, D)``; None for a loss over pairs or with several per class."""
        vectors: Tensor | None = next(self.loss.parameters(), None)
        if vectors is None:
            return None
        if any(hasattr(self.loss, name) for name in CLASSES_IN_COLUMNS):
            vectors = vectors.T
        return vectors if vectors.shape == (self.num_classes, self.embedding_size) else None

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


class SparseCenters(nn.Module):
    """SoftTriple's pull on the centres of a class: their mean distance, over all classes.

    ``1/(C S (S - 1)) sum_c sum_{s < t} sqrt(2 - 2 w_cs . w_ct)``, of unit centres; half the mean
    over pairs. PML's `SparseCentersRegularizer` has this value but forms all ``(C S)^2`` products.

    Args:
        centers_per_class: S.
    """

    def __init__(self, centers_per_class: int) -> None:
        super().__init__()
        self.centers_per_class = centers_per_class

    def forward(self, centers: Tensor) -> Tensor:
        """Return the value for centres ``(C S, D)``, those of a class together; 0 for one each."""
        if self.centers_per_class == 1:
            return centers.sum() * 0.0
        each = self.centers_per_class
        unit_CSD = unit(centers).view(-1, each, centers.shape[1])
        is_pair_SS = torch.ones(each, each, dtype=torch.bool, device=centers.device).triu(1)
        cos_CP = (unit_CSD @ unit_CSD.mT)[:, is_pair_SS]
        return torch.sqrt(2.0 + SAME - 2.0 * cos_CP.clamp_max(1.0)).mean() / 2


def from_pml(
    name: str, miner: Callable[[Any, dict[str, Any]], Any] | None = None, **defaults: Any
) -> tuple[Callable[..., Baseline], Callable[[], dict[str, Any]]]:
    """Return what builds the PML loss of this name, and what returns its default numbers.

    The builder takes ``num_classes, embedding_size`` for a loss that holds vectors of classes, and
    only arguments of the loss for one over the samples of a batch; both also ``check``. ``miner``
    makes a miner of PML's module of miners and these arguments, and removes its own from them.
    A default ``weight_reg_weight`` is the weight of `SparseCenters`.
    """

    def build(*sizes: int, check: bool = True, **arguments: Any) -> Baseline:
        from pytorch_metric_learning import losses, miners

        named = _sizes(sizes, name)
        given = defaults | arguments
        for what in defaults:
            checks.number(what, given[what], name)
        mines = None if miner is None else miner(miners, given)
        kind = getattr(losses, name)
        given = _checked(kind, given)
        if "weight_reg_weight" in defaults and "weight_regularizer" not in given:
            each = given.get("centers_per_class", _numbers_of(kind)["centers_per_class"])
            given["weight_regularizer"] = SparseCenters(each)
        return Baseline(kind(**named, **given), mines, *sizes, check=check)

    return build, lambda: _pml_numbers(name) | defaults


def from_here(
    kind: type[nn.Module],
) -> tuple[Callable[..., Baseline], Callable[[], dict[str, Any]]]:
    """Return what builds a baseline of Weiss's own, and what returns its default numbers."""

    def build(*sizes: int, check: bool = True, **arguments: Any) -> Baseline:
        named = _sizes(sizes, kind.__name__)
        return Baseline(kind(**named, **_checked(kind, arguments)), None, *sizes, check=check)

    return build, lambda: _numbers_of(kind)


def _sizes(sizes: tuple[int, ...], owner: str) -> dict[str, int]:
    named = dict(zip(("num_classes", "embedding_size"), sizes, strict=False))
    return {name: checks.count(name, size, owner) for name, size in named.items()}


def _checked(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that a loss takes; refuse others, and text where it needs numbers."""
    known: set[str] = set()
    for above in kind.__mro__:
        if "__init__" in vars(above) and above.__module__.startswith(LIBRARIES):
            known |= set(signature(above.__init__).parameters)  # type: ignore[misc]
    numbers = _numbers_of(kind)
    for name, given in arguments.items():
        if name not in known - {"self", "kwargs", "args"}:
            hint = checks.suggestion(name, numbers)
            raise TypeError(f"{kind.__name__} has no argument {name!r}.{hint}")
        if name in COUNTS:
            checks.count(name, given, kind.__name__)
        elif name in numbers:
            checks.number(name, given, kind.__name__)
    return arguments


def _pml_numbers(name: str) -> dict[str, Any]:
    from pytorch_metric_learning import losses

    return _numbers_of(getattr(losses, name))


def _numbers_of(kind: type) -> dict[str, Any]:
    """Return the hyper-parameters of a loss that are numbers, with the loss's own defaults."""
    declared = signature(kind.__init__).parameters.values()  # type: ignore[misc]
    return {
        each.name: each.default
        for each in declared
        if isinstance(each.default, (int, float)) and not isinstance(each.default, bool)
    }
