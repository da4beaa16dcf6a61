"""The vocabulary of the derivation: attraction, repulsion, link.

A pair loss without anchors defines what two samples do to each other by their distance:
an *attraction* inside a class and a *repulsion* between two classes. The values are averaged over
all pairs of a class (or of two classes), and the average passes through a *link* before the sum
over classes: the identity in the contrastive loss, ``log(1 + x)`` in multi-similarity losses.
Of the repulsion either every pair of classes has a link of its own, or all pairs of a class with
the others share one (`OneAgainstRest`).

`Interactions` is that description. `weiss.theory.derivation` turns it into the pair loss and into
its mean-field child; no loss averages anything itself.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from weiss._base import checks

LARGEST = 1e9
"""The largest hyper-parameter; products of two, squared and summed over classes, stay finite."""


class Link(ABC):
    """How an average over pairs is taken, and what is done to it before the sum over classes.

    A link owns the *scale* its averages live on, so that one derivation serves plain sums and
    sums of exponentials that would overflow. `LinearLink` keeps plain values; `LogLink` keeps
    logarithms. All methods take and return values on the link's own scale, except `apply` and
    `undivided`, which return plain values.
    """

    @abstractmethod
    def empty(self, dtype: torch.dtype) -> float:
        """Return what an empty sum is on this scale; adding it to a sum changes nothing."""

    @abstractmethod
    def sum(self, x: Tensor, dim: int) -> Tensor:
        """Sum over a dimension."""

    @abstractmethod
    def segment_sum(self, x_P: Tensor, segment_P: Tensor, num_segments: int) -> Tensor:
        """Sum the rows ``(P, ...)`` that share a segment; returns ``(num_segments, ...)``."""

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add two sums."""

    @abstractmethod
    def times(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply a sum by a positive weight given as a plain value."""

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """Pass averages through the link; the result is a plain value."""

    @abstractmethod
    def undivided(self, x: Tensor) -> Tensor:
        """Pass averages through the link without its division: ``log(1 + x)``, not over beta."""


class LinearLink(Link):
    """The identity: averages are averages, and ``link(x) = x``."""

    def empty(self, dtype: torch.dtype) -> float:
        return 0.0

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return x.sum(dim)

    def segment_sum(self, x_P: Tensor, segment_P: Tensor, num_segments: int) -> Tensor:
        return _indicator(segment_P, num_segments, x_P.dtype) @ x_P

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def times(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    def apply(self, x: Tensor) -> Tensor:
        return x

    def undivided(self, x: Tensor) -> Tensor:
        return x


class LogLink(Link):
    """``link(x) = log(1 + x) / rate`` for averages of exponentials, kept as logarithms.

    The interaction gives the *exponent*; sums are log-sum-exps and the link is a softplus, so
    nothing overflows for any rate. An empty sum is a very negative finite number rather than minus
    infinity: it vanishes in every sum and its gradient is exactly zero, never ``inf - inf``.

    Args:
        rate: what the link divides its result by, greater than 0.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def empty(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).min / 4

    def sum(self, x: Tensor, dim: int) -> Tensor:
        return x.logsumexp(dim)

    def segment_sum(self, x_P: Tensor, segment_P: Tensor, num_segments: int) -> Tensor:
        shape = (num_segments, *x_P.shape[1:])
        index_P = segment_P.view(-1, *[1] * (x_P.ndim - 1)).expand_as(x_P)
        top = x_P.new_full(shape, self.empty(x_P.dtype))
        top = top.scatter_reduce(0, index_P, x_P.detach(), "amax")
        terms_P = (x_P - top.index_select(0, segment_P)).exp_()
        total = _indicator(segment_P, num_segments, x_P.dtype) @ terms_P
        # The largest term of a segment is exp(0): only segments without a row sum to less.
        return total.clamp_min(1.0).log() + top

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.logaddexp(x, y)

    def times(self, x: Tensor, weight: Tensor) -> Tensor:
        return x + weight.log()

    def apply(self, x: Tensor) -> Tensor:
        return self.undivided(x) / self.rate

    def undivided(self, x: Tensor) -> Tensor:
        # Above 40 softplus(x) and x agree to the last bit even of float64.
        return functional.softplus(x, threshold=40.0)


def _indicator(segment_P: Tensor, num_segments: int, dtype: torch.dtype) -> Tensor:
    """Return ``(num_segments, P)``, 1 where the row belongs to the segment, else 0.

    Sums by segment are products with this matrix. Unlike ``index_add`` they give the same bits on
    every run on a GPU, and torch.compile cannot spoil them (its C++ backend, as of torch 2.13,
    writes to wrong addresses where an ``index_add`` is fused with a transposed read).
    """
    segment = torch.arange(num_segments, device=segment_P.device)
    return (segment[:, None] == segment_P).to(dtype)


@dataclass(frozen=True)
class OneAgainstRest:
    """One link for the repulsion of a class from all others; else each pair has its own.

    Attributes:
        keeps: of the mean-field form. ``"full"`` keeps both parts of a class's sum: its samples
            against the other fields, and the other samples against its field. ``"half"`` keeps the
            second part alone.
        over: of the mean-field form, the classes c that are summed over: ``"present"``, those of
            the batch, as in the pair form; ``"all"``, also those whose fields alone are there.
        divides_by: of the mean-field form. ``"present"`` divides the sum over classes by their
            number in the batch, as the sum of attractions is; ``"all"`` by the number of fields.
    """

    keeps: str = "full"
    over: str = "present"
    divides_by: str = "present"

    def __post_init__(self) -> None:
        """Refuse other words, and a sum over some classes that is divided by the number of all."""
        for name, options in (("keeps", KEEPS), ("over", OVER), ("divides_by", DIVIDES_BY)):
            checks.one_of(name, getattr(self, name), options, type(self).__name__)
        if (self.over, self.divides_by) == ("present", "all"):
            raise ValueError(
                "divides_by must be 'present' for over='present', a mean over the classes of the "
                "batch; got 'all'. Take over='all' for a mean over all classes."
            )


KEEPS = ("full", "half")
OVER = ("present", "all")
DIVIDES_BY = ("present", "all")
Form = Literal["hinge", "exp", "softplus"]
_DESCRIBED = ("attraction", "repulsion", "attraction_link", "repulsion_link", "sharing")


class ClosedForm(NamedTuple):
    """A repulsion and an attraction whose formulas and slopes the kernels contain.

    ========== ======================================== ========== ==========================
    kind       repulsion                                link       attraction
    ========== ======================================== ========== ==========================
    hinge      ``[push_at - d]_+``                      linear     ``[d - pull_at]_+``
    exp        exponent ``push_rate (push_at - d)``     log        ``pull_rate (d - pull_at)``
    softplus   ``log(1 + e^{push_rate (push_at - d)})`` linear     likewise, over ``pull_rate``
               over ``push_rate``
    ========== ======================================== ========== ==========================
    """

    kind: Form
    pull_at: float
    push_at: float
    pull_rate: float = 1.0
    push_rate: float = 1.0


def choice(*options: str) -> str:
    """Declare a setting of `Interactions` that is one of these words; the first is the default."""
    declared: str = field(default=options[0], metadata={"options": options})
    return declared


def rate(default: float) -> float:
    """Declare a hyper-parameter of `Interactions` that must be greater than 0."""
    declared: float = field(default=default, metadata={"above": 0.0})
    return declared


@dataclass(frozen=True)
class Interactions(ABC):
    """What two samples do to each other, as functions of their distance.

    Write one as a frozen dataclass whose fields are the hyper-parameters: it then prints, pickles
    and cannot be changed while a loss uses it. Every field must be a number of at most 1e9 in size,
    one declared with `rate` greater than 0, one declared with `choice` one of its words.

    A subclass may declare ``form=...``: it is then one of the kinds of `ClosedForm`, with the
    hyper-parameters ``pos_margin`` and ``neg_margin`` (hinge) or ``alpha``, ``beta`` and ``delta``;
    with a ``margin``, attraction has its centre at ``delta - margin``, repulsion at ``delta +
    margin``. Then fused kernels can compute it, of those with `OneAgainstRest` exponentials. A
    subclass that changes an energy, a link or what shares one loses it.
    """

    form: ClassVar[Form | None] = None

    def __init_subclass__(cls, form: Form | None = None) -> None:
        """Store the closed form."""
        super().__init_subclass__()
        if form is not None:
            cls.form = form

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that are not numbers or out of range."""
        for declared in fields(self):
            if "options" in declared.metadata:
                given, options = getattr(self, declared.name), declared.metadata["options"]
                checks.one_of(declared.name, given, options, type(self).__name__)
                continue
            above = declared.metadata.get("above", -math.inf)
            # No owner: the user typed the name of a loss, which is not known here.
            value = checks.number(declared.name, getattr(self, declared.name), "", above=above)
            if abs(value) > LARGEST:
                raise ValueError(
                    f"{declared.name} must be at most {LARGEST:g} in size; got {value:g}. "
                    "Beyond it float32 overflows; distances are of order one."
                )

    @property
    def attraction_link(self) -> Link:
        """The link of the attraction; by default the identity."""
        return LinearLink()

    @property
    def repulsion_link(self) -> Link:
        """The link of the repulsion; by default the identity."""
        return LinearLink()

    @property
    def sharing(self) -> OneAgainstRest | None:
        """Which averages of the repulsion share a link; None: each pair of classes has its own."""
        return None

    @property
    def repulsion_range(self) -> float | None:
        """The distance below which two classes count as too close; None where there is none.

        A hyper-parameter called ``delta`` is this distance.
        """
        return getattr(self, "delta", None)

    @abstractmethod
    def attraction(self, dist: Tensor) -> Tensor:
        """Energy of two samples of one class at this distance, on the scale of its link."""

    @abstractmethod
    def repulsion(self, dist: Tensor) -> Tensor:
        """Energy of two samples of different classes at this distance, on the scale of its link."""


def closed_form_of(interactions: Interactions) -> ClosedForm | None:
    """Return the closed form; None without one, or if a subclass changes what `form` describes."""
    line = type(interactions).__mro__

    def definer(name: str) -> int:
        return next(place for place, kind in enumerate(line) if name in vars(kind))

    kind = interactions.form
    if kind is None or any(definer(name) < definer("form") for name in _DESCRIBED):
        return None
    numbers = {
        declared.name: getattr(interactions, declared.name) for declared in fields(interactions)
    }
    needed = {"pos_margin", "neg_margin"} if kind == "hinge" else {"alpha", "beta", "delta"}
    if not needed <= numbers.keys():
        raise TypeError(
            f"{type(interactions).__name__} must have the hyper-parameters "
            f"{', '.join(sorted(needed))} for form={kind!r}; "
            f"it has {', '.join(numbers) or 'none'}. "
            "Leave form out for energies of another kind."
        )
    if kind == "hinge":
        return ClosedForm(kind, numbers["pos_margin"], numbers["neg_margin"])
    delta, margin = numbers["delta"], numbers.get("margin", 0.0)
    return ClosedForm(kind, delta - margin, delta + margin, numbers["alpha"], numbers["beta"])
