"""Small problems on a GPU, captured as CUDA graphs and replayed.

A small loss is a dozen launches of a few microseconds each, and Python needs many times longer to
launch them than the GPU to run them. A problem that comes back with the same sizes is captured
after a few times, inside the loss: from then on it is one launch.

A graph reads and writes the same memory in every replay. In a training loop a batch mostly comes
back in the memory of an earlier one, and the graph reads it there; batches in ever new memory are
copied to an input buffer of the graph first. The value is copied at once. The gradients are
borrowed buffers of the graph (`Found.borrowed`): a backward pass before the next replay copies
them, a later one computes them again.
"""

import threading
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from weiss.kernels.problem import BorrowedBuffers, BufferOwner, Counts, Found, Problem, Task

BEFORE = 3
"""How often a problem is computed without a graph, in the same memory, before it is captured."""
BEFORE_COPIES = 6
"""How often in any memory before it is captured with input buffers."""
KEPT = 4
"""How many graphs a loss keeps; the last batch of an epoch may be smaller than the others. Problems
beyond these are computed without a graph: capturing again and again is too expensive."""
REPLAYS_PER_CAPTURE = 100
"""How many replays pay for one more capture, when `KEPT` graphs have been captured."""
SEEN = 64
"""For how many problems the number of occurrences is stored."""

Key = tuple[Any, ...]
"""What two problems must have in common to be computed by the same launches."""


class CapturedCounts:
    """`Counts` that a CUDA graph copies to the host midway.

    Without it the host would have to wait for the whole graph.
    """

    # Memory of counts that were deleted unread; a class variable, so that it outlives them.
    _unread: ClassVar[list[Tensor]] = []
    _was_read = True

    def __init__(self, ready: Any) -> None:
        self._counts = torch.empty(3, dtype=torch.int32, pin_memory=True)
        self._source, self._ready = self._counts, ready
        self._is_clean = False

    @staticmethod
    def made() -> "CapturedCounts | None":
        """Return new counts; None where torch has no event that a graph can record."""
        try:
            return CapturedCounts(torch.cuda.Event(external=True))  # type: ignore[no-untyped-call]
        except TypeError:  # torch before 2.8
            return None

    def __del__(self) -> None:
        """Keep memory that a replay may still write to, so that nobody else gets it."""
        # The event may belong to an earlier replay, so it cannot tell when this one has written.
        if not self._was_read:
            self._unread.append(self._counts)

    def copy(self, counts: Tensor) -> None:
        """Add the copy to the host to the graph that is being captured."""
        self._source = counts
        self._counts.copy_(counts, non_blocking=True)
        self._ready.record()

    def clear(self) -> None:
        """Forget the counts of the last replay, before the next one."""
        # Counts that nobody waited for may still arrive, and look like the new ones.
        self._is_clean, self._was_read = self._was_read, False
        self._counts.fill_(-1)

    def read(self) -> list[int]:
        """See `Counts`: those of the last replay."""
        self._was_read = True
        if self._is_clean:
            self._ready.synchronize()
            counts: list[int] = self._counts.tolist()
            if counts[-1] >= 0:
                return counts
        counts = self._source.tolist()  # which waits for the whole graph
        return counts


class CudaGraphs:
    """The CUDA graphs of one loss. A copy of the loss starts without any."""

    def __init__(self) -> None:
        self._graphs: dict[Key, _Graph] = {}
        self._times: dict[Key, tuple[int, Problem]] = {}
        self._captured = self._replayed = 0
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CudaGraphs":
        """Return an empty one: a graph belongs to the memory of one loss."""
        return CudaGraphs()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the graphs."""
        return CudaGraphs, ()

    def fuse(self, task: Task) -> tuple[Found, Counts]:
        """Compute a small problem as `weiss.kernels.fused.fuse` does, by a replay if possible."""
        wants = task.wants_embeddings or task.wants_fields
        # A graph around the whole step captures these launches too.
        if not wants or (task.fields_CD.is_cuda and torch.cuda.is_current_stream_capturing()):
            return _fuse(task)
        x_BD, labels_B = task.embeddings_BD, task.labels
        key = _key(task)
        here = (*key, x_BD.data_ptr(), labels_B.data_ptr(), x_BD.stride(), labels_B.stride())
        graph = self._graphs.get(here) or self._graphs.get(key)
        if graph is None:
            with self._lock:
                graph = self._capture(key, here, task)
            if graph is None:
                return _fuse(task)
        self._replayed += 1
        return graph.replay(x_BD, labels_B)

    def _capture(self, key: Key, here: Key, task: Task) -> "_Graph | None":
        """Capture a problem if it has come often enough, and there is room for its graph."""
        problem = task.problem
        times = self._count(key, problem)
        in_place = self._count(here, problem) > BEFORE
        if times < 0 or not (in_place or times > BEFORE_COPIES):
            return None
        if self._captured >= KEPT + self._replayed // REPLAYS_PER_CAPTURE:
            return None
        for old in [known for known in self._graphs if known[:2] != key[:2]]:
            del self._graphs[old]  # of fields in other memory, or of other settings
        if len(self._graphs) >= KEPT:
            return None
        self._captured += 1
        try:
            graph = _Graph(task, copies=not in_place)
        except Exception as error:  # of any library below: without a graph it has worked
            self._times[key] = (-(2**62), problem)
            warnings.warn(
                f"the loss is computed kernel by kernel, for capturing it as a CUDA graph failed "
                f"({error})",
                stacklevel=3,
            )
            return None
        self._graphs[here if in_place else key] = graph
        return graph

    def _count(self, key: Key, problem: Problem) -> int:
        """Return how often a problem has come, this time included."""
        times, counted = self._times.pop(key, (0, problem))
        times = times + 1 if counted is problem else 1  # the id of a deleted problem is used again
        self._times[key] = (times, problem)
        while len(self._times) > SEEN:
            del self._times[next(iter(self._times))]
        return times


def _key(task: Task) -> Key:
    from weiss.kernels.fused import precision

    x_BD, fields_CD, labels_B = task.embeddings_BD, task.fields_CD, task.labels
    like = x_BD.shape, x_BD.dtype, labels_B.dtype, fields_CD.shape, task.shard.first, *task[-2:]
    # Threads may share a stream; each has its own graphs, which it replays one by one.
    where = torch.cuda.current_stream(fields_CD.device).cuda_stream, threading.get_ident()
    return (fields_CD.data_ptr(), id(task.problem), *like, precision(), *where)


class _Graph:
    """One captured problem: its inputs and outputs are always in the same memory."""

    def __init__(self, task: Task, *, copies: bool) -> None:
        device = task.fields_CD.device
        self._problem = task.problem  # kept alive, so that no other problem gets its id
        self._graph, self._owner = torch.cuda.CUDAGraph(), BufferOwner()
        captured = CapturedCounts.made()
        self._inputs: tuple[Tensor, Tensor] | None = None
        task = task._replace(fields_CD=task.fields_CD.detach())
        if copies:
            given = task.embeddings_BD
            x_BD = torch.empty(given.shape, dtype=given.dtype, device=device).copy_(given)
            self._inputs = x_BD, task.labels.clone()
            task = task._replace(embeddings_BD=x_BD, classes=self._inputs[1])
        # Once without a graph: kernels are compiled for tensors aligned as these are.
        _fuse(task)
        before = torch.cuda.current_stream(device)
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        try:
            # "thread_local": other threads may go on preparing batches.
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._found, counts = _fuse(task, captured)
        except Exception:
            torch.cuda.set_stream(before)  # which torch does not do after a failure
            raise
        self._captured_counts = captured
        self._counts: Counts = counts if captured is None else captured

    def replay(self, embeddings_BD: Tensor, labels_B: Tensor) -> tuple[Found, Counts]:
        """Copy the inputs if the graph has buffers for them, and launch it."""
        if self._inputs is not None:
            self._inputs[0].copy_(embeddings_BD)
            self._inputs[1].copy_(labels_B)
        if self._captured_counts is not None:
            self._captured_counts.clear()
        owner, found = self._owner, self._found
        with owner.lock:
            owner.replays += 1
            borrowed = BorrowedBuffers(owner, owner.replays)
            self._graph.replay()
        value = found.value.clone()
        return Found(value, found.embeddings_BD, found.fields_CD, None, borrowed), self._counts


def _fuse(task: Task, captured: CapturedCounts | None = None) -> tuple[Found, Counts]:
    from weiss.kernels import fused

    return fused.fuse("small", task, None if captured is None else captured.copy)
