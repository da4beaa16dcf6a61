"""Small problems on a GPU, recorded as CUDA graphs and replayed.

A small loss is a dozen launches of a few microseconds each, and Python needs many times longer to
launch them than the GPU to do the work. A problem that comes back with the same sizes is recorded
after a few times, inside the loss: from then on it is two copies in, one launch, and one product
out, when its gradient is asked for.

A recording writes to the same memory every time. Values are copied at once; gradients are lent
(`Found.holds`), for a backward pass that comes before the next replay, and computed again for one
that comes later.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from weiss.kernels.problem import Found, Noticed, Problem, Shard

MOST_DISTANCES = 2**22
"""Larger problems take the GPU longer than the host, and their memory is better given back."""
BEFORE = 3
"""How often a problem is computed plainly before it is recorded."""
KEPT = 4
"""How many recordings a loss keeps; the last batch of an epoch may be smaller than the others."""
SEEN = 64
"""Of how many kinds of problems the times are counted."""


class Recordings:
    """What one loss has recorded. Copies of a loss begin anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], _Recording] = {}
        self._times: dict[tuple[Any, ...], int] = {}
        self._failed = False

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
        if not self._can_record(problem, embeddings_BD, fields_CD, shard, wants):
            return _fuse(problem, embeddings_BD, fields_CD, labels_B, shard, wants)
        stream = torch.cuda.current_stream(fields_CD.device).cuda_stream
        like = embeddings_BD.shape, embeddings_BD.dtype, labels_B.dtype, fields_CD.data_ptr()
        key = (id(problem), like, fields_CD.shape, shard.first, wants, fused.precision(), stream)
        recording = self._known.get(key)
        if recording is None:
            times = self._times[key] = self._times.pop(key, 0) + 1
            if times <= BEFORE:
                while len(self._times) > SEEN:
                    del self._times[next(iter(self._times))]
                return _fuse(problem, embeddings_BD, fields_CD, labels_B, shard, wants)
            try:
                recording = _Recording(problem, embeddings_BD, fields_CD, labels_B, shard, wants)
            except RuntimeError as error:
                self._failed = True
                warnings.warn(
                    f"the loss is computed kernel by kernel, for recording it failed ({error})",
                    stacklevel=2,
                )
                return _fuse(problem, embeddings_BD, fields_CD, labels_B, shard, wants)
            self._known[key] = recording
            while len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return recording.replay(embeddings_BD, labels_B)

    def _can_record(
        self,
        problem: Problem,
        embeddings_BD: Tensor,
        fields_CD: Tensor,
        shard: Shard,
        wants: tuple[bool, bool],
    ) -> bool:
        is_small = len(embeddings_BD) * len(fields_CD) <= MOST_DISTANCES
        plain = problem.products == "float32" and shard.parts == 1 and not self._failed
        return (
            is_small
            and plain
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
        self._problem = problem  # alive, so that no other has its number
        self._x_BD = torch.empty(
            embeddings_BD.shape, dtype=embeddings_BD.dtype, device=fields_CD.device
        )
        self._labels_B = torch.empty(labels_B.shape, dtype=labels_B.dtype, device=fields_CD.device)
        self._graph, self._turn = torch.cuda.CUDAGraph(), 0
        # Other threads go on using the GPU, to prepare batches for instance.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._found, self._noticed = _fuse(
                problem, self._x_BD, fields_CD.detach(), self._labels_B, shard, wants
            )

    def replay(self, embeddings_BD: Tensor, labels_B: Tensor) -> tuple[Found, Noticed]:
        self._x_BD.copy_(embeddings_BD.detach())
        self._labels_B.copy_(labels_B)
        self._graph.replay()
        self._turn += 1
        turn = self._turn
        value = self._found.value.clone()
        return self._found._replace(value=value, holds=lambda: self._turn == turn), self._noticed


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
