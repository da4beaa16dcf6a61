"""Small problems on a GPU, recorded as CUDA graphs and replayed.

A small loss is a dozen launches of a few microseconds each, and Python needs many times longer to
launch them than the GPU to do the work. A problem that comes back with the same sizes is recorded
after a few times, inside the loss: from then on it is one launch, and one product out, when its
gradient is asked for.

A recording reads and writes the same memory every time. In a training loop a batch mostly comes
back in the memory of an earlier one, and is read where it is; if batches wander, they are copied to
a place of their own first. Values are copied at once; gradients are lent (`Found.lent`), for a
backward pass that comes before the next replay, and computed again for one that comes later.
"""

import threading
import warnings
from typing import Any

import torch
from torch import Tensor

from weiss.kernels.problem import Found, Lender, Loan, Notepad, Noticed, Problem, Shard

MOST_DISTANCES, MOST_NUMBERS = 2**22, 2**23
"""Larger problems, or fields of more numbers, take the GPU longer than the host, and their memory
is better given back."""
BEFORE = 3
"""How often a problem is computed plainly, in the same memory, before it is recorded there."""
WANDERING = 6
"""How often before it is recorded with copies."""
KEPT = 4
"""How many recordings a loss keeps; the last batch of an epoch may be smaller than the others.
Problems beyond these are computed plainly: recording is too dear to take turns."""
PAID = 100
"""How many replays pay for one more recording, when as many as are kept have been made."""
SEEN = 64
"""Of how many kinds of problems the times are counted."""

Kind = tuple[Any, ...]
"""What two problems must have in common to be computed by the same launches."""


class Recordings:
    """What one loss has recorded. Copies of a loss begin anew."""

    def __init__(self) -> None:
        self._known: dict[Kind, _Recording] = {}
        self._times: dict[Kind, tuple[int, Problem]] = {}
        self._made = self._replayed = 0
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Recordings":
        """Return an empty one: a recording knows the memory of one loss."""
        return Recordings()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the recordings here."""
        return Recordings, ()

    def fuse(
        self,
        problem: Problem,
        embeddings_BD: Tensor,
        fields_CD: Tensor,
        labels_B: Tensor,
        shard: Shard,
        *,
        wants_embeddings: bool,
        wants_fields: bool,
    ) -> tuple[Found, Noticed]:
        """Compute as `weiss.kernels.fused.fuse` does, from a recording if there is one."""
        wants = wants_embeddings, wants_fields
        asked = problem, embeddings_BD, fields_CD, labels_B, shard, wants
        if not _can_be_recorded(problem, embeddings_BD, fields_CD, shard, wants):
            return _fuse(*asked)
        kind = _kind(*asked)
        places = embeddings_BD.data_ptr(), labels_B.data_ptr()
        here = (*kind, *places, embeddings_BD.stride(), labels_B.stride())
        recording = self._known.get(here) or self._known.get(kind)
        if recording is None:
            with self._lock:
                recording = self._recorded(kind, here, asked)
            if recording is None:
                return _fuse(*asked)
        self._replayed += 1
        return recording.replay(embeddings_BD, labels_B)

    def _recorded(self, kind: Kind, here: Kind, asked: Any) -> "_Recording | None":
        """Record a problem if it has come often enough, and there is room for it."""
        problem = asked[0]
        times = self._count(kind, problem)
        is_due = self._count(here, problem) > BEFORE
        if times < 0 or not (is_due or times > WANDERING):
            return None
        if self._made >= KEPT + self._replayed // PAID:
            return None
        for old in [known for known in self._known if known[:2] != kind[:2]]:
            del self._known[old]  # of fields that were elsewhere, or of a loss that was another
        if len(self._known) >= KEPT:
            return None
        self._made += 1
        try:
            recording = _Recording(*asked, copies=not is_due)
        except Exception as error:  # of any library below: the plain way has worked
            self._times[kind] = (-(2**62), problem)
            warnings.warn(
                f"the loss is computed kernel by kernel, for recording it failed ({error})",
                stacklevel=3,
            )
            return None
        self._known[here if is_due else kind] = recording
        return recording

    def _count(self, kind: Kind, problem: Problem) -> int:
        """Return how often a problem has come, this time included."""
        times, counted = self._times.pop(kind, (0, problem))
        times = times + 1 if counted is problem else 1  # a number may be that of a problem now gone
        self._times[kind] = (times, problem)
        while len(self._times) > SEEN:
            del self._times[next(iter(self._times))]
        return times


def _kind(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    labels_B: Tensor,
    shard: Shard,
    wants: tuple[bool, bool],
) -> Kind:
    from weiss.kernels.fused import precision

    # Threads may share a stream; each has its own recordings, which it replays one by one.
    who = torch.cuda.current_stream(fields_CD.device).cuda_stream, threading.get_ident()
    like = embeddings_BD.shape, embeddings_BD.dtype, labels_B.dtype, fields_CD.shape
    return (fields_CD.data_ptr(), id(problem), *like, shard.first, wants, precision(), *who)


def _can_be_recorded(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    shard: Shard,
    wants: tuple[bool, bool],
) -> bool:
    distances = embeddings_BD.shape[0] * fields_CD.shape[0]
    is_small = distances <= MOST_DISTANCES and fields_CD.numel() <= MOST_NUMBERS
    return (
        is_small
        and problem.products == "float32"
        and shard.parts == 1
        and any(wants)
        and fields_CD.is_cuda
        and fields_CD.is_contiguous()
        # Whoever records the whole step records this with it.
        and not torch.cuda.is_current_stream_capturing()
    )


class _Recording:
    """One problem: its inputs and outputs are always in the same place."""

    def __init__(
        self,
        problem: Problem,
        embeddings_BD: Tensor,
        fields_CD: Tensor,
        labels_B: Tensor,
        shard: Shard,
        wants: tuple[bool, bool],
        *,
        copies: bool,
    ) -> None:
        device = fields_CD.device
        self._problem = problem  # alive, so that no other has its number
        self._graph, self._lender, self._notepad = torch.cuda.CUDAGraph(), Lender(), Notepad.made()
        self._own: tuple[Tensor, Tensor] | None = None
        if copies:
            x_BD = torch.empty(embeddings_BD.shape, dtype=embeddings_BD.dtype, device=device)
            self._own = x_BD.copy_(embeddings_BD), labels_B.clone()
        x_BD, own_B = self._own or (embeddings_BD, labels_B)
        asked = problem, x_BD, fields_CD.detach(), own_B, shard, wants
        # Once plainly: what is compiled for these tensors, aligned as they are, must be there.
        _fuse(*asked)
        before = torch.cuda.current_stream(device)
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        try:
            # "thread_local": other threads may go on preparing batches.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found, self._noticed = _fuse(*asked, self._notepad)
        except Exception:
            torch.cuda.set_stream(before)  # which torch leaves as it was when it failed
            raise

    def replay(self, embeddings_BD: Tensor, labels_B: Tensor) -> tuple[Found, Noticed]:
        if self._own is not None:
            self._own[0].copy_(embeddings_BD)
            self._own[1].copy_(labels_B)
        if self._notepad is not None:
            self._notepad.wipe()
        lender, found = self._lender, self._found
        with lender.lock:
            lender.turn += 1
            lent = Loan(lender, lender.turn)
            self._graph.replay()
        value = found.value.clone()
        return Found(value, found.embeddings_BD, found.fields_CD, None, lent), self._noticed


def _fuse(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    labels_B: Tensor,
    shard: Shard,
    wants: tuple[bool, bool],
    notepad: Notepad | None = None,
) -> tuple[Found, Noticed]:
    from weiss.kernels import fused

    return fused.fuse(
        problem,
        embeddings_BD,
        fields_CD,
        labels_B,
        shard,
        wants_embeddings=wants[0],
        wants_fields=wants[1],
        notepad=notepad,
    )
