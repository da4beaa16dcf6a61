"""Tensors in safetensors files, replaced atomically and verified by a checksum.

The format holds numbers and text only, so nothing in a file can run. (safetensors only here.)
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from weiss._base.files import refuse_special_file, replacing

DIGEST = "weiss_digest"
"""The metadata entry with the checksum of a file that `write_tensors` wrote."""


class DamagedFileError(ValueError):
    """A file that is cut off, or whose content has changed since it was written."""


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], facts: dict[str, str]) -> None:
    """Write tensors and text (`facts`) by name to a file; after an error it is unchanged."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # A copy of its own for each: the format refuses tensors that share memory.
    copies = {name: on_host(tensor) for name, tensor in tensors.items()}
    facts = {**facts, DIGEST: digest_of(copies, facts)}
    with replacing(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(copies, temporary, metadata=facts)
            temporary.chmod(mode)  # the library makes it readable by the owner only
        except SafetensorError as error:
            # The library reports a full disk as an error of the format, with the number as text.
            refused = OSError(f"{path} could not be written: {error}")
            number = re.search(r"os error (\d+)", str(error))
            refused.errno = int(number[1]) if number else None
            raise refused from error


def read_tensors(
    path: str | Path, *, is_ours: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file; one that `write_tensors` wrote is compared with its checksum.

    Args:
        path: the file.
        is_ours: `write_tensors` wrote it, so that it must have a checksum.

    Returns:
        The tensors by name, on the CPU; and the text by name.

    Raises:
        DamagedFileError: the file is cut off, or its content has changed since it was written.
    """
    from safetensors import SafetensorError, safe_open

    refuse_special_file(path)
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = dict(file.metadata() or {})
    except (SafetensorError, UnicodeDecodeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DamagedFileError(f"{path} is damaged or cut off ({reason}).") from error
    digest = facts.pop(DIGEST, None)
    if digest is None and is_ours:
        raise DamagedFileError(f"{path} is damaged: it has no checksum.")
    if digest is not None and digest != digest_of(tensors, facts):
        raise DamagedFileError(f"{path} is damaged: its content does not match its checksum.")
    return tensors, facts


def on_host(tensor: Tensor) -> Tensor:
    """Return a copy in main memory that shares nothing, in the order of its indices."""
    copy = tensor.detach().cpu()
    copy = copy.clone() if copy.data_ptr() == tensor.data_ptr() else copy
    return copy.contiguous()


def digest_of(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    """Return a checksum of tensors and text: names, types, shapes, every byte."""
    state = hashlib.blake2b(digest_size=16)
    for name, word in sorted(facts.items()):
        state.update(f"{name}={word}\n".encode())
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()
