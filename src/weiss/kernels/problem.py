"""What a kernel computes: a loss, the shard of the fields that is here, and what it returns."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from weiss.theory.interactions import ClosedForm, Interactions, LinearLink, LogLink, closed_form_of
from weiss.theory.membership import Membership


def _itself(part: Tensor) -> Tensor:
    return part


def _own_blocks(fields_CD: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
    for low in range(0, len(fields_CD), width):
        yield low, fields_CD[low : low + width]


@dataclass(frozen=True)
class Shard:
    """Which classes the fields of this process belong to.

    Attributes:
        first: the class of the first field.
        num_classes: C, of all shards together.
        add_up: returns the sum over all shards of a part of a table, of the loss or of a gradient.
        all_blocks: from the fields of this process and a number of rows, the fields of every shard
            in blocks of at most so many rows, each with the class of its first row.
        parts: how many shards there are.
        index: the place of this one among them, from 0.
    """

    first: int
    num_classes: int
    add_up: Callable[[Tensor], Tensor] = _itself
    all_blocks: Callable[[Tensor, int], Iterator[tuple[int, Tensor]]] = _own_blocks
    parts: int = 1
    index: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shard":
        """A copy of a loss belongs to the same processes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to pickle a shard: the other shards are in other processes."""
        if self.parts > 1:
            raise TypeError(
                f"the fields must be whole to be pickled; {self.parts} processes share them. Save "
                "weiss.losses.shards.whole_state(loss) instead."
            )
        return Shard, (self.first, self.num_classes)


@dataclass(frozen=True)
class Problem:
    """A mean-field loss, as kernels see it.

    Attributes:
        interactions: attraction, repulsion and their links.
        distance: ``"cosine"`` or ``"euclidean"``.
        average: ``"classes"``, ``"samples"`` or ``"none"``.
        reg_weight: lambda of the soft constraint.
        reg_scale: ``"paper"`` or ``"released"``.
        gamma: of the soft minimum over the fields of a class; None for one field a class.
    """

    interactions: Interactions
    distance: str
    average: str
    reg_weight: float = 0.0
    reg_scale: str = "paper"
    gamma: float | None = None

    @property
    def rest(self) -> tuple[object, ...]:
        """All settings except the interactions, which may not compare by value."""
        return self.distance, self.average, self.reg_weight, self.reg_scale, self.gamma

    @cached_property
    def form(self) -> ClosedForm | None:
        """The closed form of the interactions; None if they have none."""
        return closed_form_of(self.interactions)

    @property
    def is_hinge(self) -> bool:
        """Whether the repulsion is exactly zero beyond a distance, so that pairs can be skipped."""
        shares = self.interactions.sharing is not None
        return self.form is not None and self.form.kind == "hinge" and not shares

    @property
    def reach(self) -> float:
        """The distance beyond which a hinge has no energy and no gradient."""
        assert self.form is not None
        return self.form.push_at

    @cached_property
    def streams(self) -> bool:
        """Whether the derivatives of its links are known, which all kernels need."""
        links = (self.interactions.attraction_link, self.interactions.repulsion_link)
        return all(type(link) in (LinearLink, LogLink) for link in links)

    def attraction_and_slope(self, dist: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return ``a(d)`` on the scale of its link, and ``a'(d)``; distances of any shape."""
        form = self.form
        if form is None:
            return _by_autograd(self.interactions.attraction, dist)
        return _closed(form.kind, dist - form.pull_at, form.pull_rate)

    def repulsion_and_slope(self, dist: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return ``r(d)`` on the scale of its link, and ``r'(d)``; distances of any shape."""
        form = self.form
        if form is None:
            return _by_autograd(self.interactions.repulsion, dist)
        energy, slope = _closed(form.kind, form.push_at - dist, form.push_rate)
        return energy, -slope


def _closed(kind: str, beyond: Tensor, rate: float) -> tuple[Tensor, Tensor | float]:
    """Return the energy and its slope by ``beyond``, the distance past the margin."""
    if kind == "hinge":
        return beyond.relu(), (beyond > 0).to(beyond.dtype)
    if kind == "exp":
        return rate * beyond, rate
    exponent = rate * beyond
    return softplus(exponent, threshold=40.0) / rate, exponent.sigmoid()


def _by_autograd(energy: Callable[[Tensor], Tensor], dist: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate a function of each distance alone; a constant has slope 0."""
    dist = dist.detach().requires_grad_()
    with torch.enable_grad():
        value = energy(dist)
    if not value.requires_grad:
        return value, torch.zeros_like(dist)
    (slope,) = torch.autograd.grad(value, dist, torch.ones_like(value))
    return value.detach(), slope


class Task(NamedTuple):
    """What a kernel is to compute: a loss of a batch, and its gradients.

    Attributes:
        problem: the loss.
        embeddings_BD: the whole batch.
        fields_CD: the fields, or a shard of them; ``(C, S, D)`` with several fields a class.
        classes: of the batch, counted over all shards: labels, or grouped; fused kernels, which
            group the batch themselves, take class indices ``(B,)``.
        shard: which classes the fields belong to.
        wants_embeddings: compute the gradient of the embeddings.
        wants_fields: compute the gradient of the fields.
    """

    problem: Problem
    embeddings_BD: Tensor
    fields_CD: Tensor
    classes: Membership | Tensor
    shard: Shard
    wants_embeddings: bool = True
    wants_fields: bool = True

    @property
    def labels(self) -> Tensor:
        """The labels of the batch, where it is not grouped."""
        assert isinstance(self.classes, Tensor)
        return self.classes


class BufferOwner:
    """Counts how often buffers were overwritten; the lock is held to write or to copy them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.replays = 0


class BorrowedBuffers(NamedTuple):
    """Gradients in buffers of a CUDA graph (`weiss.kernels.cuda_graphs`), until its next replay.

    Attributes:
        owner: of the buffers.
        replay: the replay that wrote the gradients.
    """

    owner: BufferOwner
    replay: int

    def times(self, gradients: list[Tensor], factor: Tensor) -> list[Tensor] | None:
        """Return copies, multiplied by a number; None if the buffers were overwritten.

        One thread may go backward while another goes forward: the lock prevents a replay between
        the test and the copy. On the device both run in the order in which they are launched.
        """
        with self.owner.lock:
            if self.owner.replays != self.replay:
                return None
            return list(torch._foreach_mul(gradients, factor))


class Found(NamedTuple):
    """What a kernel returns.

    Attributes:
        value: the loss, a scalar; of a shard, its part of it.
        embeddings_BD: gradient of the embeddings, in the dtype it was computed in, because a small
            one may still be multiplied; of a shard, its part. None if not wanted.
        fields_CD: gradient of the fields of this process; None if not wanted.
        visited: how many (sample, class) pairs were computed, a 0-d tensor of integers; None where
            no pair was skipped.
        borrowed: set if the gradients are buffers of a CUDA graph, which its next replay
            overwrites; None where they belong to the caller.
    """

    value: Tensor
    embeddings_BD: Tensor | None
    fields_CD: Tensor | None
    visited: Tensor | None = None
    borrowed: BorrowedBuffers | None = None


class Counts(Protocol):
    """How many wrong values a fused kernel has seen in a batch."""

    def read(self) -> list[int]:
        """Return labels too large, labels negative, vectors not finite; waits for the device."""


class DeviceCounts(NamedTuple):
    """`Counts` on the device, or on their way to the host.

    Attributes:
        counts: int32 ``(3,)``.
        ready: an event after which the counts are on the host; None where they need no event.
    """

    counts: Tensor
    ready: Any = None

    def sent(self) -> "DeviceCounts":
        """Start the copy to the host, so that reading need not wait for later launches."""
        if self.counts.is_cuda and torch.cuda.is_current_stream_capturing():
            return self
        return DeviceCounts(*sent(self.counts))

    def read(self) -> list[int]:
        """See `Counts`."""
        if self.ready is not None:
            self.ready.synchronize()
        counts: list[int] = self.counts.tolist()
        return counts


def sent(values: Tensor) -> tuple[Tensor, Any]:
    """Start to copy values to the host; return the copy, and an event after which it is complete.

    Without an event if the values are on the host.
    """
    if not values.is_cuda:
        return values, None
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return copy, ready
