"""Which implementation computes a mean-field loss.

``reference``  the formula as it stands, differentiated by autograd: small problems on a CPU, compiled
               programs, second derivatives;
``streaming``  blocks of classes in plain PyTorch: everything else;
``triton``     fused kernels: what they know, on CUDA devices, where Triton is installed.
"""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from weiss.kernels.problem import Problem
from weiss.membership import Membership

IMPLEMENTATIONS = ("auto", "reference", "streaming", "triton")
SMALL = 2**15
"""Distances up to which the plain formula is the fastest on a CPU."""
COMPILED = 2**24
"""Distances up to which a compiled program gets the plain formula, which it can fuse."""


def choose(
    asked: str,
    problem: Problem,
    embeddings_BD: Tensor,
    fields_CD: Tensor,
    members: Membership,
    owner: str,
) -> str:
    """Return ``"reference"``, ``"streaming"`` or ``"triton"``.

    Args:
        asked: what the user wants, ``"auto"`` among it.
        problem: the loss.
        embeddings_BD: the batch.
        fields_CD: the fields.
        members: the classes of the batch.
        owner: name of the loss, for messages.

    Raises:
        ValueError: what is asked for cannot compute this loss, or not here.
    """
    if asked == "reference":
        return asked
    if asked == "streaming":
        if not problem.streams:
            raise ValueError(
                f"links must be LinearLink or LogLink for {owner} with impl='streaming', which "
                "must know their derivatives; got another. Take impl='reference'."
            )
        return asked
    why_not = why_not_triton(problem, embeddings_BD, fields_CD, members)
    if asked == "triton":
        if why_not:
            raise ValueError(
                f"impl='triton' cannot be used for {owner} here: {why_not}. Take impl='auto', which "
                "chooses what can."
            )
        return asked
    size = len(embeddings_BD) * len(fields_CD)
    if not problem.streams or (torch.compiler.is_compiling() and size <= COMPILED):
        return "reference"
    if not why_not:
        return "triton"
    is_small = fields_CD.device.type == "cpu" and size <= SMALL
    return "reference" if is_small else "streaming"


def why_not_triton(
    problem: Problem, embeddings_BD: Tensor, fields_CD: Tensor, members: Membership
) -> str | None:
    """Return what keeps the fused kernels from a problem, in words; None if nothing does."""
    if problem.distance != "cosine":
        return f"its kernels know the cosine distance, not {problem.distance!r}"
    if problem.form is None:
        return "its kernels do not know these interactions, which have no closed form"
    if members.sample_P is not None:
        return "its kernels take class indices, not multi-hot labels"
    if fields_CD.dtype != torch.float32 or embeddings_BD.dtype == torch.float64:
        return f"fields must be float32 and embeddings not float64; they are {fields_CD.dtype}"
    if not _has_triton():
        return "Triton is not installed (pip install 'weiss[triton]')"
    if fields_CD.device.type != "cuda" and not _interprets():
        return f"the fields are on {fields_CD.device.type}, not on a CUDA device"
    return None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _interprets() -> bool:
    """Whether Triton runs its kernels in Python, as tests want it to."""
    import os

    return os.environ.get("TRITON_INTERPRET") == "1"


def why_not_skip(problem: Problem, impl: str, members: Membership) -> str | None:
    """Return what keeps pairs from being left out, in words; None if nothing does."""
    if problem.distance != "cosine":
        return f"it knows the cosine distance, not {problem.distance!r}"
    if problem.form is None:
        return "the interactions have no closed form, so nobody knows how far they reach"
    if members.sample_P is not None:
        return "it takes class indices, not multi-hot labels"
    if impl == "streaming" and members.slot_P.device.type != "cpu":
        return "on a GPU it is part of impl='triton'"
    return None


def skipping_pays(embeddings_BD: Tensor, fields_CD: Tensor) -> bool:
    """Say whether a problem is large enough for asking which pairs to leave out."""
    least = 2**18 if fields_CD.device.type == "cpu" else 2**26
    if fields_CD.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return len(embeddings_BD) * len(fields_CD) >= least
