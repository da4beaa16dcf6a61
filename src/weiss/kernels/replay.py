"""Small problems on a GPU, recorded as CUDA graphs and replayed.

A small loss is a dozen launches of a few microseconds each, and Python needs many times longer to
launch them than the GPU to do the work. A problem that comes back with the same sizes is recorded
after a few times, inside the loss: from then on it is two copies in, one launch, and one product
out, when its gradient is asked for.

A recording writes to the same memory every time. Values are copied at once; gradients are lent
(`Found.holds`), for a backward pass that comes before the next replay, and computed again for one
that comes later.
"""

import threading
import warnings
from typing import Any

import torch
from torch import Tensor

from weiss.kernels.problem import Found, Noticed, Problem, Shard

MOST_DISTANCES, MOST_NUMBERS = 2**22, 2**23
"""Larger problems, or fields of more numbers, take the GPU longer than the host, and their memory
is better given back."""
BEFORE = 3
"""How often a problem is computed plainly before it is recorded."""
KEPT = 4
"""How many recordings a loss keeps; the last batch of an epoch may be smaller than the others.
Problems beyond these are computed plainly: recording is too dear to take turns."""
SEEN = 64
"""Of how many kinds of problems the times are counted."""


class Recordings:
    """What one loss has recorded. Copies of a loss begin anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], _Recording] = {}
        self._times: dict[tuple[Any, ...], tuple[int, Problem]] = {}

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
        from weiss.kernels import fused  # here, for it brings Triton

        wants = wants_embeddings, wants_fields
        asked = problem, embeddings_BD, fields_CD, labels_B, shard, wants
        if not _can_be_recorded(problem, embeddings_BD, fields_CD, shard, wants):
            return _fuse(*asked)
        place = fields_CD.data_ptr()
        # Threads may share a stream; each has its own recordings, which it replays one by one.
        who = torch.cuda.current_stream(fields_CD.device).cuda_stream, threading.get_ident()
        like = embeddings_BD.shape, embeddings_BD.dtype, labels_B.dtype, fields_CD.shape
        key = (
            place,
            fields_CD.device,
            id(problem),
            like,
            shard.first,
            wants,
            fused.precision(),
            who,
        )
        recording = self._known.get(key)
        if recording is None:
            if not self._is_due(key, problem, place):
                return _fuse(*asked)
            try:
                recording = _Recording(*asked)
            except Exception as error:  # of any library below: the plain way has worked
                self._times[key] = (-(2**62), problem)
                warnings.warn(
                    f"the loss is computed kernel by kernel, for recording it failed ({error})",
                    stacklevel=2,
                )
                return _fuse(*asked)
            self._known[key] = recording
        return recording.replay(embeddings_BD, labels_B)

    def _is_due(self, key: tuple[Any, ...], problem: Problem, place: int) -> bool:
        """Count a problem; say whether it has come often enough, and there is room for it."""
        times, counted = self._times.pop(key, (0, problem))
        times = times + 1 if counted is problem else 1  # a number may be that of a problem now gone
        self._times[key] = (times, problem)
        while len(self._times) > SEEN:
            del self._times[next(iter(self._times))]
        if times <= BEFORE:
            return False
        for old in [known for known in self._known if known[0] != place]:
            del self._known[old]  # of fields that were elsewhere
        return len(self._known) < KEPT


def _can_be_recorded(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    shard: Shard,
    wants: tuple[bool, bool],
) -> bool:
    distances = len(embeddings_BD) * len(fields_CD)
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
    ) -> None:
        device = fields_CD.device
        self._problem = problem  # alive, so that no other has its number
        self._x_BD = torch.empty(embeddings_BD.shape, dtype=embeddings_BD.dtype, device=device)
        self._labels_B = torch.empty(labels_B.shape, dtype=labels_B.dtype, device=device)
        self._graph, self._turn = torch.cuda.CUDAGraph(), 0
        asked = problem, self._x_BD, fields_CD.detach(), self._labels_B, shard, wants
        self._copy(embeddings_BD, labels_B)
        # Once plainly: what is compiled for these tensors, aligned as they are, must be there.
        _fuse(*asked)
        before = torch.cuda.current_stream(device)
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        try:
            # "thread_local": other threads may go on preparing batches.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found, self._noticed = _fuse(*asked)
        except Exception:
            torch.cuda.set_stream(before)  # which torch leaves as it was when it failed
            raise

    def replay(self, embeddings_BD: Tensor, labels_B: Tensor) -> tuple[Found, Noticed]:
        self._copy(embeddings_BD, labels_B)
        self._graph.replay()
        self._turn += 1
        turn = self._turn
        value = self._found.value.clone()
        return self._found._replace(value=value, holds=lambda: self._turn == turn), self._noticed

    def _copy(self, embeddings_BD: Tensor, labels_B: Tensor) -> None:
        self._x_BD.copy_(embeddings_BD.detach())
        self._labels_B.copy_(labels_B)


def _fuse(
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    labels_B: Tensor,
    shard: Shard,
    wants: tuple[bool, bool],
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
    )
