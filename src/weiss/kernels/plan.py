"""How a mean-field loss is computed: one `Plan`, chosen here and nowhere else.

``impl`` names three implementations:

``reference``  the formula as it stands, differentiated by autograd: small problems on a CPU,
               compiled programs, second derivatives;
``streaming``  blocks of classes in plain PyTorch: everything else;
``triton``     fused kernels on CUDA devices, where Triton is installed.

On a CUDA device a small problem is captured as a CUDA graph, a large one uses the matrix products
of the library, and a hinge of very many pairs skips the pairs that are far.
"""

import os
import warnings
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from weiss.kernels.problem import Problem, Task

IMPLEMENTATIONS = ("auto", "reference", "streaming", "triton")
MATMUL_DTYPES = ("float32", "bfloat16")
SKIPS = ("auto", "on", "off")
REFERENCE_DISTANCES = 2**15
"""Distances up to which the plain formula is the fastest on a CPU."""
COMPILED_DISTANCES = 2**24
"""Distances up to which a compiled program gets the plain formula, which it can fuse."""
SMALL_DISTANCES = 2**24
"""Distances up to which the fused kernels also compute the matrix products."""
CAPTURED_DISTANCES, CAPTURED_NUMBERS = 2**22, 2**23
"""Distances and numbers in the fields up to which launches are captured as a CUDA graph. A larger
problem takes the GPU longer than the host, and its memory is better freed."""
LARGEST_BFLOAT16_EXPONENT = 140.0
"""Of the repulsion with products in bfloat16: next to larger terms, small ones round to zero."""
SKIPPED_PAIRS_CPU, SKIPPED_PAIRS_GPU = 2**18, 2**25
"""Number of pairs from which on a hinge skips far ones by itself. On a GPU the host then waits for
one number each step, which costs little beside so many pairs."""


class Plan(NamedTuple):
    """How one batch of a loss is computed.

    Attributes:
        kernel: ``"reference"``, ``"streaming"``, or of the fused kernels ``"small"`` (all in
            Triton), ``"large"`` (matrix products of the library; with several fields a class
            always) or ``"bfloat16"`` (large, with the factors of matrix products rounded).
        skips: compute near pairs only; if too many are near, `kernel` computes all of them.
        captured: the launches of the kernel are captured as a CUDA graph and replayed.
    """

    kernel: str
    skips: bool = False
    captured: bool = False

    @property
    def is_fused(self) -> bool:
        """Whether Triton kernels compute the loss, which group the batch by class themselves."""
        return self.kernel not in ("reference", "streaming")


REFERENCE = Plan("reference")


def make_plan(
    task: Task,
    owner: str,
    *,
    impl: str = "auto",
    skip: str = "auto",
    matmul_dtype: str = "float32",
) -> Plan:
    """Choose how to compute a loss. Asks the device for nothing.

    Args:
        task: the loss and the batch, its classes not grouped: indices ``(B,)`` or multi-hot.
        owner: name of the loss, for messages.
        impl: one of `IMPLEMENTATIONS`, what the user asks for.
        skip: one of `SKIPS`.
        matmul_dtype: one of `MATMUL_DTYPES`.

    Raises:
        ValueError: the loss cannot be computed as the user asks, or not on this device.
    """
    problem, fields_CD = task.problem, task.fields_CD
    chosen = _implementation(task, owner, impl, matmul_dtype)
    if chosen == "reference":
        if skip != "on":
            return REFERENCE
        chosen = "streaming" if impl == "auto" else chosen
    may_skip = skip == "on" or (skip == "auto" and problem.is_hinge)
    skips = may_skip and _skips(skip, chosen, task, owner)
    if chosen != "triton":
        return Plan(chosen, skips)
    if matmul_dtype == "bfloat16":
        return Plan("bfloat16", skips)
    distances = task.embeddings_BD.shape[0] * fields_CD.shape[0]
    if distances > SMALL_DISTANCES or problem.gamma is not None:
        return Plan("large", skips)
    captured = (
        not skips
        and distances <= CAPTURED_DISTANCES
        and fields_CD.numel() <= CAPTURED_NUMBERS
        and fields_CD.is_cuda
        and fields_CD.is_contiguous()
        and task.shard.parts == 1
        # The soft constraint is added to the gradient, which would be a buffer of the graph.
        and not problem.reg_weight
    )
    return Plan("small", skips, captured)


def _implementation(task: Task, owner: str, impl: str, matmul_dtype: str) -> str:
    """Return ``"reference"``, ``"streaming"`` or ``"triton"``."""
    problem, fields_CD, is_sharded = task.problem, task.fields_CD, task.shard.parts > 1
    if is_sharded and (impl == "reference" or not problem.streams):
        why = "impl='reference'" if problem.streams else "links other than LinearLink and LogLink"
        raise ValueError(
            f"the fields of {owner} must be whole for {why}; several processes share them. Do not "
            "shard them, or take impl='auto' and one of these links."
        )
    if matmul_dtype != "float32":
        _refuse_matmul_dtype(impl, matmul_dtype, owner)
    if impl == "reference":
        return impl
    if impl == "streaming":
        if not problem.streams:
            raise ValueError(
                f"links must be LinearLink or LogLink for {owner} with impl='streaming', which "
                "must know their derivatives; got another. Take impl='reference'."
            )
        return impl
    num_classes = fields_CD.shape[0]  # len() is slower, which small problems notice
    if fields_CD.ndim == 3:
        num_classes *= fields_CD.shape[1]  # several fields a class are as many distances
    # With the soft constraint the plain formula has distances of all fields among each other.
    size = max(task.embeddings_BD.shape[0], num_classes if problem.reg_weight else 0) * num_classes
    compiles = size <= COMPILED_DISTANCES and torch.compiler.is_compiling()
    if impl == "auto" and compiles and not is_sharded:
        return "reference"
    why_not = _why_not_triton(task, matmul_dtype)
    if impl == "triton":
        if why_not:
            raise ValueError(
                f"impl='triton' cannot be used for {owner} here: {why_not}. Take impl='auto', "
                "which chooses what can."
            )
        return impl
    if matmul_dtype != "float32" and why_not:
        raise ValueError(
            f"matmul_dtype must be 'float32' for {owner} here, since {why_not}; got "
            f"{matmul_dtype!r}, which is for the fused kernels."
        )
    if not problem.streams:
        return "reference"
    if not why_not:
        return "triton"
    # Shards of different sizes must run the same kernel, or their messages do not match.
    is_small = fields_CD.device.type == "cpu" and size <= REFERENCE_DISTANCES
    return "reference" if is_small and not is_sharded else "streaming"


def _refuse_matmul_dtype(impl: str, matmul_dtype: str, owner: str) -> None:
    """Refuse products in bfloat16 for plain PyTorch, and for a torch that is too old."""
    if impl in ("reference", "streaming"):
        raise ValueError(
            f"matmul_dtype must be 'float32' for {owner} with impl={impl!r}; got "
            f"{matmul_dtype!r}, which is for the fused kernels. Take impl='auto'."
        )
    if not hasattr(torch.ops.aten.mm, "dtype"):
        raise ValueError(
            f"matmul_dtype must be 'float32' for {owner} with torch {torch.__version__}, whose "
            "products of bfloat16 have no sums in float32; got 'bfloat16'. Take torch 2.8 or newer."
        )


def _why_not_triton(task: Task, matmul_dtype: str) -> str | None:
    """Return why the fused kernels cannot compute a problem; None if they can."""
    problem, fields_CD = task.problem, task.fields_CD
    if problem.distance != "cosine":
        return f"its kernels know the cosine distance, not {problem.distance!r}"
    form = problem.form
    if form is None:
        return "its kernels do not know these interactions, which have no closed form"
    shares = problem.interactions.sharing is not None
    if shares and form.kind != "exp":
        return "of one class against the rest its kernels know exponentials alone"
    if shares and matmul_dtype == "bfloat16":
        return "with these products its kernels give every pair of classes a link of its own"
    if problem.gamma is not None and matmul_dtype == "bfloat16":
        return "with these products its kernels know one field a class (fields_per_class=1)"
    if not shares and problem.average == "none":
        return "its kernels average over classes or samples, and average='none' sums"
    if task.labels.ndim > 1:
        return "its kernels take class indices, not multi-hot labels"
    if matmul_dtype == "bfloat16" and form.kind == "exp":
        exponent = form.push_rate * form.push_at
        if exponent > LARGEST_BFLOAT16_EXPONENT:
            return f"exponents must be at most {LARGEST_BFLOAT16_EXPONENT:g} and reach {exponent:g}"
    if fields_CD.dtype != torch.float32 or task.embeddings_BD.dtype == torch.float64:
        return f"fields must be float32 and embeddings not float64; they are {fields_CD.dtype}"
    return why_no_triton(fields_CD.device)


def why_no_triton(device: torch.device) -> str | None:
    """Return why Triton's kernels cannot be used for tensors on a device; None if they can."""
    if not _has_triton():
        return "Triton is not installed (pip install 'weiss[triton]')"
    if _interprets():
        return None
    if device.type != "cuda":
        return f"the fields are on {device.type}, not on a CUDA device"
    return _why_kernels_fail(device)


@cache
def _why_kernels_fail(device: torch.device) -> str | None:
    """Launch one kernel; return why it fails on a device, or None."""
    if torch.version.hip is not None:
        return "its kernels were never tried on AMD's GPUs"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "its kernels need compute capability 8.0 or higher"
    try:
        from weiss.kernels.fused import scale_in_place

        one = torch.ones((), device=device)
        with torch.cuda.device_of(one):  # type: ignore[no-untyped-call]
            scale_in_place([one], one)
    except Exception as error:  # a missing C compiler, a driver too old: Triton's own words
        reason = f"Triton does not work on this machine ({type(error).__name__}: {error})"
        warnings.warn(f"{reason}; plain PyTorch computes instead, more slowly.", stacklevel=2)
        return reason
    return None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _interprets() -> bool:
    """Whether Triton runs its kernels in Python, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _skips(skip: str, chosen: str, task: Task, owner: str) -> bool:
    """Return whether far pairs are skipped, where the user allows it."""
    embeddings_BD, shard = task.embeddings_BD, task.shard
    why_not = _why_not_skip(task.problem, chosen, task.labels, shard.parts)
    if skip == "on":
        if why_not:
            raise ValueError(
                f"skip='on' cannot be used for {owner} here: {why_not}. Take skip='auto', which "
                "skips far pairs where it can."
            )
        return True
    least = SKIPPED_PAIRS_CPU if embeddings_BD.device.type == "cpu" else SKIPPED_PAIRS_GPU
    # By the mean size of a shard, which is the same in every process.
    if embeddings_BD.shape[0] * (shard.num_classes // shard.parts) < least:
        return False
    # A CUDA graph around the loss cannot ask how many pairs are near.
    if embeddings_BD.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return why_not is None


def _why_not_skip(problem: Problem, chosen: str, labels: Tensor, parts: int) -> str | None:
    """Return why far pairs cannot be skipped; None if they can."""
    if chosen == "reference":
        return "impl='reference' is the plain formula over all pairs"
    if problem.distance != "cosine":
        return f"it knows the cosine distance, not {problem.distance!r}"
    if problem.gamma is not None:
        return "it knows one field a class (fields_per_class=1)"
    if problem.form is None:
        return "the interactions have no closed form, so their range is not known"
    if problem.interactions.sharing is not None:
        return "it gives every pair of classes a link of its own"
    if not problem.is_hinge:
        return "only the repulsion of a hinge ends; exponentials reach every pair"
    if labels.ndim > 1:
        return "it takes class indices, not multi-hot labels"
    if chosen == "streaming" and labels.device.type != "cpu":
        return "on a GPU it is part of impl='triton'"
    if parts > 1 and labels.device.type != "cpu":
        return f"on a GPU the fields must be whole, and {parts} processes share them"
    return None
