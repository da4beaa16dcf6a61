"""Argument checks and their wording.

Every message states what must hold, what was given, and what to do. ``owner`` is the name a user
typed (``MeanFieldContrastiveLoss``), so that the message names it; it may be empty.
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path

import torch
from torch import Tensor

NEAR = 0.6
"""How near a word must be to be suggested: the share of letters that it has in common."""


class UntrustedError(ValueError):
    """What somebody else may have made reaches outside of its folder, and is not trusted."""

    def __init__(self, law: str) -> None:
        super().__init__(
            f"{law}. Nothing outside was opened. If you trust whoever made it, pass trust=True (on "
            "the command line: --trust)."
        )


def suggestion(given: str, options: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest option, or an empty string.

    Never the same word, or another way to write the same path; upper and lower case do not matter.
    """
    return _in_words(_nearest(given, options)[1])


def path_suggestion(
    given: str | Path, paths: Iterable[str | Path], names: Iterable[str] = ()
) -> str:
    """Return `suggestion` for the closest path, or the closest of some names that may be meant.

    A folder and a suffix that both paths have do not count: they say nothing about which is meant.
    What is written with a slash is a path: a near path comes before any name, and a folder has a
    slash where the given one has.
    """
    text = str(given)
    slash = "/" if text.endswith("/") else ""
    options = (f"{path}{slash}" if slash and Path(path).is_dir() else str(path) for path in paths)
    (path_nearness, path), (nearness, name) = _nearest(text, options, _apart), _nearest(text, names)
    is_path = bool(path) and ("/" in text or path_nearness >= nearness)
    return _in_words(path if is_path else name)


def _in_words(meant: str) -> str:
    return f" Did you mean {meant!r}?" if meant else ""


def _nearest(
    given: str,
    options: Iterable[str],
    compared: Callable[[str, str], tuple[str, str]] = lambda one, other: (one, other),
) -> tuple[float, str]:
    """Return how near the nearest option is, and the option; 0 and "" if none is near enough.

    ``compared`` returns the parts of an option and of ``given`` that count.
    """
    same = os.path.normpath(given)
    best, meant = NEAR, ""
    for each in options:
        if os.path.normpath(each) == same:
            continue
        match = difflib.SequenceMatcher(None, *compared(each.lower(), given.lower()))
        # Upper bounds, which are quick.
        if match.real_quick_ratio() < best or match.quick_ratio() < best:
            continue
        nearness = match.ratio()
        if nearness > best or (nearness == best and not meant):
            best, meant = nearness, each
    return (best, meant) if meant else (0.0, "")


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return two paths without the folder and the suffix that both have.

    Example:
        >>> _apart("runs/one.index", "runs/nowhere.index"), _apart("a/x.csv", "b/x.tsv")
        (('one', 'nowhere'), ('a/x.csv', 'b/x.tsv'))
    """
    one, other = one.rstrip("/"), other.rstrip("/")
    if os.path.dirname(one) == os.path.dirname(other):
        one, other = os.path.basename(one), os.path.basename(other)
    (stem, suffix), (other_stem, other_suffix) = os.path.splitext(one), os.path.splitext(other)
    return (stem, other_stem) if suffix == other_suffix else (one, other)


def some(names: Sequence[str], shown: int = 5) -> str:
    """Return the first few of many names and how many more there are, for a message."""
    short = [name if len(name) <= 200 else f"{name[:200]}..." for name in names[:shown]]
    listed = ", ".join(short)
    return listed if len(names) <= shown else f"{listed} and {len(names) - shown:,} more"


def one_of(name: str, given: object, options: Iterable[str], owner: str) -> str:
    """Return ``given`` if it is one of ``options``; else raise with the list of options."""
    options = list(options)
    if isinstance(given, str) and given in options:
        return given
    listed = ", ".join(repr(option) for option in options)
    hint = suggestion(given, options) if isinstance(given, str) else ""
    raise ValueError(f"{name} must be one of {listed} for {owner}; got {given!r}.{hint}")


def number(name: str, given: object, owner: str, *, above: float = -math.inf) -> float:
    """Return ``given`` as a finite float greater than ``above``."""
    value = _real(name, given, owner)
    if not value > above:
        raise ValueError(
            f"{name} must be greater than {above:g}{_for(owner)}; got {given!r}. "
            f"Pass a number above {above:g}."
        )
    return value


def not_negative(name: str, given: object, owner: str) -> float:
    """Return ``given`` as a finite float of at least zero."""
    value = _real(name, given, owner)
    if value < 0:
        raise ValueError(
            f"{name} must be zero or more{_for(owner)}; got {given!r}. Pass 0 to switch it off."
        )
    return value


def _real(name: str, given: object, owner: str) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(
            f"{name} must be a number{_for(owner)}; got {given!r}. Pass an int or a float."
        )
    try:
        value = float(given)
    except OverflowError:  # a whole number beyond the range of floats
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(
            f"{name} must be finite{_for(owner)}; got {given!r}. Pass an ordinary number."
        )
    return value


def count(name: str, given: object, owner: str, *, least: int = 1) -> int:
    """Return ``given`` as an integer of at least ``least``."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TypeError(f"{name} must be a whole number{_for(owner)}; got {given!r}. Pass an int.")
    if given < least:
        raise ValueError(
            f"{name} must be at least {least}{_for(owner)}; got {given!r}. Pass a larger number."
        )
    return int(given)


def flag(name: str, given: object, owner: str) -> bool:
    """Return ``given`` if it is True or False."""
    if not isinstance(given, bool):
        raise TypeError(
            f"{name} must be True or False{_for(owner)}; got {given!r}. Pass one of the two."
        )
    return given


def _for(owner: str) -> str:
    return f" for {owner}" if owner else ""


def unused(name: str, given: object, why: str, owner: str) -> None:
    """Refuse an argument of the common signature that has no meaning for this owner."""
    if given is not None:
        raise ValueError(f"{name} must be None for {owner}: {why}")


def embeddings_of_a_batch(given: object, owner: str, embedding_size: int | None = None) -> Tensor:
    """Return ``given`` if it is a floating-point tensor ``(B, D)`` with B and D at least one."""
    if not isinstance(given, Tensor):
        raise TypeError(
            f"embeddings must be a torch.Tensor of shape (batch, embedding_size) for {owner}; "
            f"got {type(given).__name__}. Convert it, for example with torch.as_tensor."
        )
    shape = tuple(given.shape)
    if given.ndim != 2:
        raise ValueError(
            f"embeddings must have shape (batch, embedding_size) for {owner}; got {shape}. "
            "Flatten or pool all other dimensions first."
        )
    if not given.is_floating_point():
        raise TypeError(
            f"embeddings must be floating point for {owner}; got {given.dtype}. "
            "Pass the output of the network, or convert with embeddings.float()."
        )
    if 0 in shape:
        raise ValueError(
            f"embeddings must hold at least one row and one column for {owner}; got {shape}. "
            "Skip empty batches."
        )
    if embedding_size is not None and shape[1] != embedding_size:
        raise ValueError(
            f"embeddings must have {embedding_size} columns, the embedding_size of this {owner}; "
            f"got {shape[1]}. Build the loss with embedding_size={shape[1]} or change the network."
        )
    return given


def finite_embeddings(given: Tensor | None, owner: str, name: str = "embeddings") -> None:
    """Refuse embeddings with NaN or infinity, with their rows; waits for the device."""
    if given is None:
        return
    bad = (~given.isfinite()).any(dim=1).nonzero().flatten().tolist()
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise ValueError(
            f"{name} must be finite for {owner}; got NaN or infinity in {len(bad)} of "
            f"{len(given)} rows ({shown}). Lower the learning rate or clip the gradient; "
            "check=False lets such values through."
        )


def same_device(embeddings: Tensor, class_vectors: Tensor, owner: str) -> None:
    """Refuse embeddings on another device than the class vectors."""
    if embeddings.device != class_vectors.device:
        raise ValueError(
            f"embeddings must be on {class_vectors.device}, where the class vectors of this "
            f"{owner} are; got {embeddings.device}. Move the loss, "
            f"before the optimiser is made: loss.to({str(embeddings.device)!r})."
        )


def labels_of_a_batch(
    given: object, embeddings: Tensor, num_classes: int | None, owner: str
) -> Tensor:
    """Return labels ``(B,)`` as int64, or multi-hot ``(B, C)`` as they are, on the batch's device.

    Only what needs no synchronisation with the device is checked: type, shape, dtype, device.
    """
    if not isinstance(given, Tensor):
        raise TypeError(
            f"labels must be a torch.Tensor of class indices (batch,) or of 0/1 entries "
            f"(batch, classes) for {owner}; got {type(given).__name__}. "
            "Convert them, for example with torch.as_tensor."
        )
    batch, shape = embeddings.shape[0], tuple(given.shape)
    classes = num_classes if num_classes is not None else "classes"
    if given.ndim not in (1, 2):
        raise ValueError(
            f"labels must have shape ({batch},) or ({batch}, {classes}) for {owner}; got {shape}. "
            "Flatten class indices, or pass one 0/1 entry per class."
        )
    if given.layout != torch.strided or given.is_complex():
        kind = given.dtype if given.is_complex() else given.layout
        raise TypeError(
            f"labels must be a dense tensor of real numbers for {owner}; got {kind}. "
            "Convert them, for example with labels.to_dense()."
        )
    if shape[0] != batch:
        raise ValueError(
            f"labels must have one row for each of the {batch} embeddings for {owner}; "
            f"got shape {shape}. Pass the labels of this batch."
        )
    # One column: class indices that were not flattened, unless there is just one class.
    is_column = num_classes is None and shape[1:] == (1,)
    if given.ndim == 2 and (is_column or shape[1] == 0 or num_classes not in (None, shape[1])):
        hint = " For class indices pass labels.squeeze(1)." if shape[1] == 1 else ""
        raise ValueError(
            f"multi-hot labels must have shape ({batch}, {classes}) for {owner}; got {shape}.{hint}"
        )
    if given.ndim == 1 and (given.is_floating_point() or given.dtype == torch.bool):
        raise TypeError(
            f"labels must be integer class indices for {owner}; got {given.dtype} of shape {shape}."
            " Convert them with labels.long(), or pass multi-hot labels of shape (batch, classes)."
        )
    # Data loaders leave labels in main memory, so these are moved. Every other mixture of devices
    # is a mistake, which moving would hide.
    if given.device != embeddings.device and given.device.type != "cpu":
        raise ValueError(
            f"labels must be on {embeddings.device}, where the embeddings are, or on the CPU "
            f"for {owner}; got {given.device}. Move them with labels.to(embeddings.device)."
        )
    given = given.to(embeddings.device)
    return given if given.is_floating_point() or given.dtype == torch.bool else given.long()


def labels_in_range(low: int, high: int, num_classes: int, owner: str) -> None:
    """Refuse a batch whose smallest or largest class index lies outside ``[0, num_classes)``."""
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in [0, {num_classes}) for {owner}; got {low if low < 0 else high}. "
            "Re-index classes from 0 or raise num_classes."
        )
