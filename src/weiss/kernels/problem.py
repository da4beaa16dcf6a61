"""What a kernel is asked: a batch against fields, or against this process's shard of them."""

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from weiss.theory.interactions import ClosedForm, Interactions, LinearLink, LogLink, closed_form_of

PRODUCTS = ("float32", "bfloat16")


def _alone(table_KK: Tensor) -> Tensor:
    return table_KK


def _own_blocks(fields_CD: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
    for low in range(0, len(fields_CD), width):
        yield low, fields_CD[low : low + width]


@dataclass(frozen=True)
class Shard:
    """Which classes the fields at hand belong to.

    Attributes:
        first: the class of the first field.
        num_classes: C, of all shards together.
        add_up: returns the sum over all shards of a ``(K, K)`` table.
        all_blocks: from the fields at hand and a number of rows, the fields of every shard in
            blocks of at most so many, each with the class of its first row.
        sum_parts: returns the sum over all shards of a part of the loss or of a gradient.
        parts: how many shards there are.
    """

    first: int
    num_classes: int
    add_up: Callable[[Tensor], Tensor] = _alone
    all_blocks: Callable[[Tensor, int], Iterator[tuple[int, Tensor]]] = _own_blocks
    sum_parts: Callable[[Tensor], Tensor] = _alone
    parts: int = 1

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shard":
        """A copy of a loss belongs to the same processes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to leave the processes that share the classes."""
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
        average: ``"classes"`` or ``"samples"``.
        products: ``"float32"``, or ``"bfloat16"`` to round the factors of matrix products.
        skips: leave out (sample, class) pairs whose gradient is zero or below rounding: `reach`.
        reg_weight: lambda of the soft constraint.
        reg_scale: ``"paper"`` or ``"released"``.
    """

    interactions: Interactions
    distance: str
    average: str
    products: str = "float32"
    skips: bool = False
    reg_weight: float = 0.0
    reg_scale: str = "paper"

    @property
    def rest(self) -> tuple[object, ...]:
        """All that is not the interactions."""
        named = (self.distance, self.average, self.products, self.skips)
        return (*named, self.reg_weight, self.reg_scale)

    @cached_property
    def form(self) -> ClosedForm | None:
        """What kernels know of the interactions."""
        return closed_form_of(self.interactions)

    @property
    def is_hinge(self) -> bool:
        """Whether energies are zero beyond a distance, and grow evenly below it."""
        return self.form is not None and self.form.kind == "hinge"

    @cached_property
    def streams(self) -> bool:
        """Whether the derivative of its links is known, so that it can be taken block by block."""
        links = (self.interactions.attraction_link, self.interactions.repulsion_link)
        return all(type(link) in (LinearLink, LogLink) for link in links)

    def reach(self, num_classes: int) -> float:
        """Return the distance beyond which a pair of sample and class may be left out.

        For a hinge nothing is lost. Otherwise every pair that is left out has a coefficient below
        ``2^-24 / C`` of the largest one there can be: all that a sample loses together is less
        than the rounding of a float32 of that size.
        """
        form = self.form
        if form is None:
            return math.inf
        return form.reach(-24 * math.log(2) - math.log(num_classes))


class Lender:
    """Counts how often memory was written to; whoever writes or reads there holds its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turn = 0


class Loan(NamedTuple):
    """Gradients that are there until their lender's next turn.

    Attributes:
        lender: who writes to their memory.
        turn: whose gradients they are.
    """

    lender: Lender
    turn: int

    def times(self, gradients: list[Tensor], factor: Tensor) -> list[Tensor] | None:
        """Return copies, multiplied by a number; None if the gradients are gone.

        One thread may go back while another goes forward: the lock keeps the next turn from coming
        between question and copy. On the device both are in the order in which they are launched.
        """
        with self.lender.lock:
            if self.lender.turn != self.turn:
                return None
            return list(torch._foreach_mul(gradients, factor))


class Found(NamedTuple):
    """What a kernel returns.

    Attributes:
        value: the loss, a scalar; of a shard, its part of it.
        embeddings_BD: gradient of the embeddings, in the dtype it was computed in, since a small
            one may be about to be multiplied; of a shard, its part. None if not wanted.
        fields_CD: gradient of the fields at hand; None if not wanted.
        visited: how many (sample, class) pairs were looked at for the gradient, a 0-d tensor of
            integers; None where all were.
        lent: of gradients that are only lent, for something else will be written in their place;
            None where they are the receiver's own.
    """

    value: Tensor
    embeddings_BD: Tensor | None
    fields_CD: Tensor | None
    visited: Tensor | None = None
    lent: "Loan | None" = None


class Notepad:
    """Where a recording (`weiss.kernels.replay`) leaves its counts, midway, for the host to read.

    Without it the host would have to wait for the whole recording.
    """

    # Of every notepad that was given up unread; here, where the last one still finds it at the end.
    _unread: ClassVar[list[Tensor]] = []
    _was_read = True

    def __init__(self, ready: Any) -> None:
        self._counts = torch.empty(3, dtype=torch.int32, pin_memory=True)
        self._source, self._ready = self._counts, ready
        self._is_clean = False

    @staticmethod
    def made() -> "Notepad | None":
        """Return a new one; None where torch cannot make an event that a recording records."""
        try:
            return Notepad(torch.cuda.Event(external=True))  # type: ignore[no-untyped-call]
        except TypeError:  # torch before 2.8
            return None

    def __del__(self) -> None:
        """Keep memory that may still be written to from being given to somebody else."""
        # The event tells of an earlier replay until this one has come so far: it is no help.
        if not self._was_read:
            self._unread.append(self._counts)

    def note(self, counts: Tensor) -> None:
        """Be written to by the recording that is being made."""
        self._source = counts
        self._counts.copy_(counts, non_blocking=True)
        self._ready.record()

    def wipe(self) -> None:
        """Forget what was written, before a replay."""
        # What nobody has waited for may still be on its way, and look like the new counts.
        self._is_clean, self._was_read = self._was_read, False
        self._counts.fill_(-1)

    def read(self) -> list[int]:
        """Return the counts of the last replay; waits for them."""
        self._was_read = True
        if self._is_clean:
            self._ready.synchronize()
            counts: list[int] = self._counts.tolist()
            if counts[-1] >= 0:
                return counts
        counts = self._source.tolist()  # which waits for the whole recording
        return counts


class Noticed(NamedTuple):
    """What a kernel noticed about a batch on the way.

    Attributes:
        counts: int32 ``(3,)``: labels that are too large, that are negative, vectors not finite.
        ready: an event after which the counts are on the host; None where they are on the device.
        notepad: where else to read them.
    """

    counts: Tensor
    ready: Any = None
    notepad: Notepad | None = None

    def sent(self) -> "Noticed":
        """Begin to copy the counts: whoever asks need not wait for what is launched next."""
        if not self.counts.is_cuda or torch.cuda.is_current_stream_capturing():
            return self
        return Noticed(*sent(self.counts))

    def noted(self, notepad: Notepad) -> "Noticed":
        """Have them written to a notepad, by a recording that is being made."""
        notepad.note(self.counts)
        return self._replace(notepad=notepad)

    def complaints(self) -> list[int]:
        """Return the counts; waits for them."""
        if self.notepad is not None:
            return self.notepad.read()
        if self.ready is not None:
            self.ready.synchronize()
        counts: list[int] = self.counts.tolist()
        return counts


def sent(values: Tensor) -> tuple[Tensor, Any]:
    """Begin to copy values to the host.

    Returns:
        Where they will be, and an event after which they are there; None if they are there already.
    """
    if not values.is_cuda:
        return values, None
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copy.copy_(values, non_blocking=True)
    ready: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return copy, ready


def working_dtype(embeddings_BD: Tensor, fields_CD: Tensor) -> torch.dtype:
    """Return the dtype to compute in: that of both, but at least float32."""
    both = torch.promote_types(embeddings_BD.dtype, fields_CD.dtype)
    return torch.promote_types(both, torch.float32)
