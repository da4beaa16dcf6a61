"""Which implementation computes a mean-field loss.

``reference``  the formula as it stands, differentiated by autograd: small problems on a CPU,
               compiled programs, second derivatives;
``streaming``  blocks of classes in plain PyTorch: everything else;
``triton``     fused kernels: what they know, on CUDA devices, where Triton is installed.
"""

import os
import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from weiss.kernels.problem import Problem, Shard

IMPLEMENTATIONS = ("auto", "reference", "streaming", "triton")
SMALL = 2**15
"""Distances up to which the plain formula is the fastest on a CPU."""
LARGEST_EXPONENT = 140.0
"""Of repulsion with products of bfloat16: beside larger ones small ones would be nothing."""
PAIRS_ON_A_CPU, PAIRS_ON_A_GPU = 2**18, 2**25
"""From so many on a hinge looks for those that are near."""
COMPILED = 2**24
"""Distances up to which a compiled program gets the plain formula, which it can fuse."""


def choose(
    asked: str,
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    labels: Tensor,
    owner: str,
) -> str:
    """Return ``"reference"``, ``"streaming"`` or ``"triton"``.

    Args:
        asked: what the user wants, ``"auto"`` among it.
        problem: the loss.
        embeddings_BD: the batch.
        fields_CD: the fields.
        labels: class indices ``(B,)``, or multi-hot.
        owner: name of the loss, for messages.

    Raises:
        ValueError: what is asked for cannot compute this loss, or not here.
    """
    if asked != "auto" and asked != "triton" and problem.products != "float32":
        raise ValueError(
            f"products must be 'float32' for {owner} with impl={asked!r}; got "
            f"{problem.products!r}, which is for the fused kernels. Take impl='auto'."
        )
    if asked == "reference":
        return asked
    if asked == "streaming":
        if not problem.streams:
            raise ValueError(
                f"links must be LinearLink or LogLink for {owner} with impl='streaming', which "
                "must know their derivatives; got another. Take impl='reference'."
            )
        return asked
    # With the soft constraint the plain formula has distances of all fields among each other.
    num_classes = fields_CD.shape[0]  # not len(), which takes longer: small losses are in a hurry
    size = max(embeddings_BD.shape[0], num_classes if problem.reg_weight else 0) * num_classes
    if problem.products == "bfloat16" and not hasattr(torch.ops.aten.mm, "dtype"):
        raise ValueError(
            f"products must be 'float32' for {owner} with torch {torch.__version__}, whose "
            "products of bfloat16 have no sums in float32; got 'bfloat16'. Take torch 2.8 or newer."
        )
    if asked == "auto" and torch.compiler.is_compiling() and size <= COMPILED:
        return "reference"
    why_not = why_not_triton(problem, embeddings_BD, fields_CD, labels)
    if asked == "triton":
        if why_not:
            raise ValueError(
                f"impl='triton' cannot be used for {owner} here: {why_not}. Take impl='auto', "
                "which chooses what can."
            )
        return asked
    _refuse_products(problem, why_not, owner)
    if not problem.streams:
        return "reference"
    if not why_not:
        return "triton"
    is_small = fields_CD.device.type == "cpu" and size <= SMALL
    return "reference" if is_small else "streaming"


def choose_for_shards(
    asked: str,
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    labels: Tensor,
    owner: str,
) -> str:
    """Return ``"streaming"`` or ``"triton"``, by what all processes know alike.

    Kernels of two kinds do not say the same to each other, so the size of a shard, which differs
    between processes, plays no part.

    Args:
        asked: what the user wants, ``"auto"`` among it.
        problem: the loss.
        embeddings_BD: the batch.
        fields_CD: the fields of this process's classes.
        labels: the classes of the batch.
        owner: name of the loss, for messages.

    Raises:
        ValueError: what is asked for, or these links, cannot be computed in shards.
    """
    if asked == "reference" or not problem.streams:
        why = "impl='reference'" if problem.streams else "links other than LinearLink and LogLink"
        raise ValueError(
            f"the fields of {owner} must be whole for {why}; several processes share them. Do not "
            "shard them, or take impl='auto' and one of these links."
        )
    if asked == "auto":
        why_not = why_not_triton(problem, embeddings_BD, fields_CD, labels)
        _refuse_products(problem, why_not, owner)
        return "streaming" if why_not else "triton"
    return choose(asked, problem, embeddings_BD, fields_CD, labels, owner)


def _refuse_products(problem: Problem, why_not: str | None, owner: str) -> None:
    """Refuse products that only the fused kernels have, where something keeps these away."""
    if problem.products != "float32" and why_not:
        raise ValueError(
            f"products must be 'float32' for {owner} here, since {why_not}; got "
            f"{problem.products!r}, which is for the fused kernels."
        )


def why_not_triton(
    problem: Problem, embeddings_BD: Tensor, fields_CD: Tensor, labels: Tensor
) -> str | None:
    """Return what keeps the fused kernels from a problem, in words; None if nothing does."""
    if problem.distance != "cosine":
        return f"its kernels know the cosine distance, not {problem.distance!r}"
    if problem.form is None:
        return "its kernels do not know these interactions, which have no closed form"
    if labels.ndim > 1:
        return "its kernels take class indices, not multi-hot labels"
    form = problem.form
    if problem.products == "bfloat16" and form.kind == "exp":
        exponent = form.push_rate * form.push_at
        if exponent > LARGEST_EXPONENT:
            return f"exponents must be at most {LARGEST_EXPONENT:g} and reach {exponent:g}"
    if fields_CD.dtype != torch.float32 or embeddings_BD.dtype == torch.float64:
        return f"fields must be float32 and embeddings not float64; they are {fields_CD.dtype}"
    if not _has_triton():
        return "Triton is not installed (pip install 'weiss[triton]')"
    if _interprets():
        return None
    if fields_CD.device.type != "cuda":
        return f"the fields are on {fields_CD.device.type}, not on a CUDA device"
    return _why_kernels_fail(fields_CD.device)


@cache
def _why_kernels_fail(device: torch.device) -> str | None:
    """Return why no kernel runs on a device, in words; None if one does. Asked once."""
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
        warnings.warn(f"{reason}; plain PyTorch computes the loss, more slowly.", stacklevel=2)
        return reason
    return None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _interprets() -> bool:
    """Whether Triton runs its kernels in Python, as tests want it to."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def with_skipping(
    skip: str,
    impl: str,
    asked: str,
    problem: Problem,
    embeddings_BD: Tensor,
    labels: Tensor,
    check: bool,
    shard: Shard,
    owner: str,
) -> tuple[str, bool]:
    """Return the implementation to take, and whether it leaves pairs out.

    Args:
        skip: ``"auto"``, ``"on"`` or ``"off"``.
        impl: what `choose` says.
        asked: what the user wants, ``"auto"`` among it.
        problem: the loss.
        embeddings_BD: the batch.
        labels: class indices ``(B,)``, or multi-hot.
        check: whether the device may be asked.
        shard: where the fields belong.
        owner: name of the loss, for messages.

    Raises:
        ValueError: pairs are to be left out, and cannot be.
    """
    if skip == "off" or (skip == "auto" and not check):
        return impl, False
    if skip == "auto":
        # The same in every process, where they share the classes.
        num_here = shard.num_classes // shard.parts
        pays = impl != "reference" and skipping_pays(problem, embeddings_BD, num_here)
        return impl, pays and why_not_skip(problem, impl, labels, shard.parts) is None
    if impl == "reference" and asked == "auto":
        impl = "streaming"
    why_not = why_not_skip(problem, impl, labels, shard.parts)
    if why_not:
        raise ValueError(
            f"skip='on' cannot be used for {owner} here: {why_not}. Take skip='auto', which skips "
            "what can be."
        )
    return impl, True


def why_not_skip(problem: Problem, impl: str, labels: Tensor, parts: int) -> str | None:
    """Return what keeps pairs from being left out, in words; None if nothing does."""
    if impl == "reference":
        return "impl='reference' is the plain formula over all pairs"
    if problem.distance != "cosine":
        return f"it knows the cosine distance, not {problem.distance!r}"
    if problem.form is None:
        return "the interactions have no closed form, so nobody knows how far they reach"
    if labels.ndim > 1:
        return "it takes class indices, not multi-hot labels"
    if impl == "streaming" and labels.device.type != "cpu":
        return "on a GPU it is part of impl='triton'"
    if parts > 1 and labels.device.type != "cpu":
        return f"on a GPU the fields must be whole, and {parts} processes share them"
    return None


def skipping_pays(problem: Problem, embeddings_BD: Tensor, num_fields: int) -> bool:
    """Say whether asking which pairs to leave out is likely to pay.

    For hinges, if there are many pairs. The reach of an exponential, in which nothing is lost to
    rounding, is so long that trained fields are mostly within it.
    """
    least = PAIRS_ON_A_CPU if embeddings_BD.device.type == "cpu" else PAIRS_ON_A_GPU
    return problem.is_hinge and embeddings_BD.shape[0] * num_fields >= least
