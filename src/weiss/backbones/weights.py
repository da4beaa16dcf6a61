"""Weights from a file or an address into a network: all of them, or an error.

A file is recognised by its first bytes, not by its name. Nothing in it is ever run: safetensors
holds numbers only, and PyTorch files are read with ``weights_only``. Everything is checked before
anything is copied into the network.
"""

import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from weiss._base.checks import some
from weiss._base.files import cache_folder
from weiss._base.tensor_files import DamagedFileError, read_tensors

if TYPE_CHECKING:
    from weiss._base.downloads import Checksum

CLASSIFIERS = ("fc", "last_linear")
"""Names of the classifier in public ResNet and BN-Inception weights."""
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys of the weights in files of training programs."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes of every name by data parallelism, torch.compile and trainers."""
COUNTER = "num_batches_tracked"
"""Batch normalisation's count of batches: absent in old files, and not needed."""
SHOWN = 3


def load_weights(
    module: nn.Module,
    source: str | Path,
    *,
    classifiers: Sequence[str] = CLASSIFIERS,
    checksum: "Checksum | None" = None,
    cache: str | Path | None = None,
) -> None:
    """Load weights into a module; every name and every shape must agree.

    Accepted, because it is common and harmless: names wrapped as in `WRAPPERS` and `PREFIXES`,
    another floating-point precision, vectors stored as ``(1, n)``, a missing
    ``num_batches_tracked``, and the classifier where the module has none.

    Args:
        module: the network; its dtype and device stay.
        source: a safetensors or PyTorch file, or its http(s) address.
        classifiers: names of layers that the file may have and the module may lack.
        checksum: of a download.
        cache: folder for downloads; ``weiss/weights`` in the user's cache folder if None.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no weights file, or holds weights of another architecture. The
            module is unchanged.
    """
    path = _local_file(str(source), checksum, cache)
    try:
        weights, metadata = read_weights(path)
    except ValueError as error:
        if not is_address(str(source)):
            raise
        # So that the next call downloads it again.
        path.unlink(missing_ok=True)
        raise ValueError(f"{error} It came from {source} and was deleted.") from error
    _refuse_other_version(module, metadata, path)
    _copy(module, weights, classifiers, path)


def is_address(source: str) -> bool:
    """Return whether this is an http(s) address rather than a file."""
    return source.lower().startswith(("http://", "https://"))


def _local_file(source: str, checksum: "Checksum | None", cache: str | Path | None) -> Path:
    if not is_address(source):
        return Path(source).expanduser()
    from weiss._base.downloads import fetch

    target = (Path(cache) if cache else cache_folder() / "weights") / _cached_name(source)
    return fetch(source, target, checksum=checksum, what="pretrained weights")


def _cached_name(address: str) -> Path:
    """Return the path below the cache: readable, and different for different addresses."""
    parts = urlsplit(address)
    # No password, and no path outside the folder: letters, digits, _ and -, dots inside.
    given = [parts.hostname or "", str(parts.port or ""), *parts.path.split("/")]
    steps = [re.sub(r"[^\w.-]|^\.+", "_", step) for step in given if step.strip(".")]
    name = steps.pop() if len(steps) > 1 else "weights"
    if parts.query:
        name = f"{hashlib.sha256(parts.query.encode()).hexdigest()[:8]}-{name}"
    return Path(*steps, name)


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a weights file.

    Args:
        path: a safetensors file, or a PyTorch file with a state dict in it.

    Returns:
        The tensors by name, on the CPU; and the metadata of the file (safetensors only).
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"weights must be an existing file; there is no {path}.")
    if path.is_dir():
        raise ValueError(f"weights must be a file; {path} is a folder. Pass a file inside it.")
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise ValueError(f"weights must not be empty; {path} has zero bytes. Fetch it again.")
    if start.lstrip()[:1] == b"<":
        raise ValueError(
            f"weights must be a safetensors or PyTorch file; {path} is a web page. "
            "Fetch the file itself, and look at the page: it may ask for a login."
        )
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(
            f"weights must be a safetensors or PyTorch file; {path} is a Git LFS pointer. "
            "Fetch what it points to: git lfs pull."
        )
    if start[8:9] == b"{":
        return _read_safetensors(path)
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        return _read_pytorch(path), {}
    raise ValueError(
        f"weights must be a safetensors or PyTorch file; {path} is neither "
        f"(it begins with {start[:8]!r}). Convert it, or fetch it again."
    )


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        return read_tensors(path)
    except DamagedFileError as error:
        raise ValueError(
            f"weights must be a whole file; {error} Delete it and fetch it again."
        ) from error


def _read_pytorch(path: Path) -> dict[str, Tensor]:
    try:
        # An open file, because torch would interpret the name.
        with path.open("rb") as file:
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        LookupError,
        ValueError,
        TypeError,
    ) as error:
        if "Unsupported" not in str(error) and "TorchScript" not in str(error):
            raise _damaged(path, error) from error
        raise ValueError(
            f"weights must hold tensors only; {path} also holds Python objects or a program, and "
            "loading those would run code from the file. Save the state dict alone where you trust "
            "it: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
        ) from error
    while isinstance(found, Mapping):
        inner = [found[key] for key in WRAPPERS if isinstance(found.get(key), Mapping)]
        if not inner:
            break
        found = inner[0]
    if not isinstance(found, Mapping) or not found:
        raise ValueError(
            f"weights must be a state dict, tensors by name; {path} holds "
            f"{'an empty one' if isinstance(found, Mapping) else type(found).__name__}. "
            "Save model.state_dict()."
        )
    others = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(
            f"weights must be a state dict, tensors by name; in {path} these are no tensors: "
            f"{some(others, SHOWN)}. Save model.state_dict() alone, or under the key 'state_dict'."
        )
    return {str(name): value for name, value in found.items()}


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ValueError(
        f"weights must be a whole file; {path} is damaged or cut off ({reason}). "
        "Delete it and fetch it again."
    )


def _refuse_other_version(module: nn.Module, metadata: Mapping[str, str], path: Path) -> None:
    """Refuse ResNet weights of v1 in v1.5 and the reverse, where the metadata tell."""
    pattern = re.compile(r"ResNet-?(\d+)[ _-]v(1\.5|1)(?![\d.])", re.IGNORECASE)
    stated = pattern.search(metadata.get("arch", ""))
    wanted = pattern.search(str(getattr(module, "architecture", "")))
    if stated and wanted and stated[2] != wanted[2]:
        raise ValueError(
            f"weights must be those of {wanted[0]}; {path} is of {metadata['arch']!r}. "
            "Names and shapes agree, so it would load, but the features would be wrong. "
            f"Use the backbone 'resnet{stated[1]}{'_v1' if stated[2] == '1' else ''}'."
        )


def _copy(
    module: nn.Module, weights: dict[str, Tensor], classifiers: Sequence[str], path: Path
) -> None:
    """Check all weights, then load them."""
    own = module.state_dict()
    weights = _trunk_of(_without_prefix(weights, own), own)
    for layer in classifiers:
        if not any(name.startswith(f"{layer}.") for name in own):
            weights = {k: v for k, v in weights.items() if not k.startswith(f"{layer}.")}
    for name, value in weights.items():
        # Public BN-Inception files keep the vectors of batch normalisation as (1, n).
        if name in own and own[name].ndim == 1 and value.shape == (1, *own[name].shape):
            weights[name] = value[0]
    missing = [name for name in own if name not in weights and not name.endswith(COUNTER)]
    unexpected = [name for name in weights if name not in own]
    different = [
        f"{name} is {_kind(weights[name])}, must be {_kind(own[name])}"
        for name in own
        if name in weights and _kind(weights[name]) != _kind(own[name])
    ]
    if missing or unexpected or different:
        found = [
            f"{len(names)} {what} ({some(names, SHOWN)})"
            for what, names in (
                ("missing", missing),
                ("unexpected", unexpected),
                ("of another shape or kind", different),
            )
            if names
        ]
        name = getattr(module, "architecture", "") or type(module).__name__
        raise ValueError(
            f"weights must be those of {name}, {len(own)} tensors; of the {len(weights)} in "
            f"{path}: {'; '.join(found)}. "
            "Pass the weights of this network, or build the one they belong to."
        )
    broken = [name for name, value in weights.items() if not value.isfinite().all()]
    if broken:
        raise ValueError(
            f"weights must be finite; in {path} these hold NaN or infinity: {some(broken, SHOWN)}. "
            "Take an earlier checkpoint."
        )
    module.load_state_dict({**own, **weights})


def _without_prefix(weights: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove prefixes that all names of the file have and no name of the module has."""
    for prefix in PREFIXES * 2:
        is_wrapped = all(name.startswith(prefix) for name in weights)
        if is_wrapped and not any(name.startswith(prefix) for name in own):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _trunk_of(weights: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the trunk's part of the weights of an Embedder, without its prefix."""
    inside = {
        name.removeprefix("trunk."): value
        for name, value in weights.items()
        if name.startswith("trunk.")
    }
    is_embedder = inside and not any(name.startswith("trunk.") for name in own)
    return inside if is_embedder else weights


def _kind(tensor: Tensor) -> str:
    """Return what must agree as text: the shape, and whether it is floating point."""
    return f"{tuple(tensor.shape)}{'' if tensor.is_floating_point() else ' of whole numbers'}"
