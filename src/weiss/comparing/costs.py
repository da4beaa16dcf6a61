"""What one step of a loss costs by itself: time and memory, against the number of classes.

A step is the loss's forward pass and the backward pass to the embeddings and the class vectors, in
float32, on given embeddings: without the network. So losses can be compared at a million classes
without data of a million classes.

The work of a loss may depend on the batch: a miner finds more triplets in one than in another. The
embeddings are random directions, as before training; batches are composed as each loss needs them
(`weiss.losses.LossEntry.sampling`): four samples of a class for losses over pairs, one of each for
others.
"""

import gc
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from weiss._base import checks
from weiss._base.devices import available_memory, gigabytes, refuse_absent_device
from weiss.losses import LOSSES, Baseline, MeanFieldLoss, PairLoss, make_loss
from weiss.runs.provenance import device_name
from weiss.theory.distances import unit

PER_CLASS = {"pairs": 4, "classes": 1}
"""Samples of a class in a batch, for each kind of sampling: the paper's 8 x 4 and 32 x 1."""
WARM_UP = 3
"""Warm-up steps, not timed: libraries choose their algorithms in the first ones."""
MEMORY_SHARE = 0.8
"""The share of the free main memory that tensors of a step may take."""
ALLOCATION_FAILURES = (
    "can't allocate memory",
    "not enough memory",
    "Storage size calculation overflowed",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Messages of torch's plain RuntimeError if an allocation fails outside the CUDA caches."""


def measure_cost(
    loss: str,
    num_classes: int,
    *,
    batch_size: int,
    embedding_size: int,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    repeats: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure time and peak memory of one step of a loss alone.

    Memory is what the step adds at its peak: intermediate results, and the gradients of embeddings
    and class vectors. Embeddings, labels and class vectors themselves do not count. On CUDA it is
    torch's own count of allocated blocks. On other devices it is the bytes of all tensors alive at
    once, operation by operation, so it is the same on every run and machine; scratch space inside
    an operation does not count. As in training, the losses of Weiss do not check the values of a
    batch unless ``check`` is among the settings.

    Returns:
        The arguments, the name of the device, and

        ``milliseconds``: ``values``, their ``mean`` and ``median``, and the quartiles as ``low``
        and ``high``; ``megabytes``: of a million bytes each.

        If memory does not suffice, ``failed`` instead of the two, with the reason; such a step is
        stopped before it allocates.

    Example:
        >>> from weiss.comparing.costs import measure_cost
        >>> measure_cost("mf_cwms", 500, batch_size=8, embedding_size=16, device="cpu")["loss"]
        'mf_cwms'
    """
    owner = "measure_cost"
    checks.one_of("loss", loss, LOSSES, owner)
    sizes = {
        "num_classes": checks.count("num_classes", num_classes, owner),
        "batch_size": checks.count("batch_size", batch_size, owner),
        "embedding_size": checks.count("embedding_size", embedding_size, owner),
    }
    checks.count("repeats", repeats, owner)
    where = device_of(device)
    found: dict[str, Any] = {"loss": loss, **sizes, "device": device_name(where)}
    try:
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers do not change
            torch.default_generator.manual_seed(seed)
            return found | _measured(loss, sizes, dict(settings or {}), where, repeats)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        # The rest of CUDA's message is the state of the card and advice on its allocator.
        failed = f"out of memory: {str(error).splitlines()[0].split(' GPU ')[0]}"
    # Only here: the traceback of the error held the tensors.
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
    return found | {"failed": failed}


def device_of(asked: str) -> torch.device:
    """Return a device that this machine must have; ``"auto"`` is a GPU, or the CPU."""
    refuse_absent_device(asked, "device")
    best = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(best if asked == "auto" else asked)


def _measured(
    name: str,
    sizes: dict[str, int],
    settings: dict[str, Any],
    device: torch.device,
    repeats: int,
) -> dict[str, Any]:
    live = LiveMemory(int(MEMORY_SHARE * available_memory()))
    with live:  # refuses class vectors that do not fit, too
        embeddings, labels = _batch(name, **sizes)
        loss = make_loss(name, sizes["num_classes"], sizes["embedding_size"], **settings)
    if isinstance(loss, (MeanFieldLoss, PairLoss, Baseline)):
        loss.check = settings.get("check", False)
    embeddings = embeddings.to(device).requires_grad_()
    labels, loss = labels.to(device), loss.to(device)

    def clear() -> None:
        embeddings.grad = None
        loss.zero_grad(set_to_none=True)

    def step() -> None:
        loss(embeddings, labels).backward()

    is_cuda = device.type == "cuda"
    if is_cuda:
        _times(step, clear, device, WARM_UP)
    clear()
    was_on = gc.isenabled()
    gc.disable()  # a garbage collection during the step would change the peak by chance
    try:
        size = _cuda_peak(step, device) if is_cuda else live.peak_of(step)
    finally:
        if was_on:
            gc.enable()
    if not is_cuda:  # after the memory: a step that is timed then fits
        _times(step, clear, device, WARM_UP)
    values = _times(step, clear, device, repeats)
    low, median, high = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    times = {"mean": float(np.mean(values)), "median": median, "low": low, "high": high}
    return {"milliseconds": {"values": values, **times}, "megabytes": size / 1e6}


def _batch(
    name: str, num_classes: int, batch_size: int, embedding_size: int
) -> tuple[Tensor, Tensor]:
    """Return random directions ``(B, D)``, and classes ``(B,)`` composed as the loss needs."""
    embeddings = unit(torch.randn(batch_size, embedding_size))
    position_B = torch.arange(batch_size) // PER_CLASS[LOSSES[name].sampling]
    # Evenly over all classes, in random order: a loss must not profit from neighbours in memory.
    # C numbers might not fit into memory, so only those of the batch are drawn.
    in_batch = min(int(position_B[-1]) + 1, num_classes)
    class_K = (torch.arange(in_batch, dtype=torch.float64) * num_classes / in_batch).long()
    return embeddings, class_K[torch.randperm(in_batch)][position_B % in_batch]


def _times(
    step: Callable[[], None], clear: Callable[[], None], device: torch.device, repeats: int
) -> list[float]:
    """Return the milliseconds of each of some steps; clearing gradients is not timed."""
    values = []
    for _ in range(repeats):
        clear()
        if device.type == "mps":
            torch.mps.synchronize()
        if device.type == "cuda":
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            stream = torch.cuda.current_stream(device)
            torch.cuda.synchronize(device)
            begin.record(stream)
            step()
            end.record(stream)
            torch.cuda.synchronize(device)
            values.append(float(begin.elapsed_time(end)))
            continue
        started = time.perf_counter()
        step()
        if device.type == "mps":
            torch.mps.synchronize()
        values.append(1000 * (time.perf_counter() - started))
    clear()
    return values


def _cuda_peak(step: Callable[[], None], device: torch.device) -> int:
    """Return the bytes that a step allocates at its peak, by torch's own count."""
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations make inside it, while they live.

    A storage is counted once, however many views it has, from the operation that makes it until
    nothing refers to it. The size of an operation's result is computed before it runs, on tensors
    without data; if it exceeds the limit, a MemoryError is raised. (The operating system would
    grant the memory, and kill the process when it writes to it.) ``live`` are the bytes alive now,
    ``peak`` the most so far.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit, self.live, self.peak = limit, 0, 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def peak_of(self, step: Callable[[], None]) -> int:
        """Return the bytes of the tensors that a step has alive at its peak, beyond those now."""
        before = self.peak = self.live
        with self:
            step()
        return self.peak - before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count the storages that it has made."""
        kwargs = kwargs or {}
        needs = _bytes_needed(func, args, kwargs)
        if self.live + needs > self.limit:
            raise MemoryError(
                f"{gigabytes(self.live + needs)} are needed at once, {gigabytes(self.limit)} "
                "are free"
            )
        # A result that shares its storage with an argument is a view or the changed argument.
        given = _storages((args, kwargs))
        result = func(*args, **kwargs)
        for key, storage in _storages(result).items():
            if key not in given and key not in self._known:
                self._count(key, storage)
        return result

    def _count(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()

        def gone(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def _storages(values: Any) -> dict[int, torch.UntypedStorage]:
    """Return the storages of all tensors in nested values; a storage is one Python object."""
    found = [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return {id(storage): storage for storage in found}


def _bytes_needed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes that an operation will allocate; 0 if they depend on its values."""

    def without_data(value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )
        return torch.device("meta") if isinstance(value, torch.device) else value

    args, kwargs = tree_map(without_data, (args, kwargs))
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta")
    given = _storages((args, kwargs))
    try:
        made = _storages(func(*args, **kwargs))
    except Exception:  # the operation itself will raise what is wrong
        return 0
    return sum(storage.nbytes() for key, storage in made.items() if key not in given)


def _is_out_of_memory(error: Exception) -> bool:
    is_plain = any(words in str(error) for words in ALLOCATION_FAILURES)
    return is_plain or isinstance(error, (MemoryError, torch.OutOfMemoryError))
