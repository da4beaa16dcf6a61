"""Weights from a file or an address into a network: all of them, or an error.

A file is recognised by its first bytes, not by its name. Nothing in it is ever run: safetensors
holds numbers only, and PyTorch files are read with ``weights_only``. Everything is checked before
anything is copied into the network.
"""

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from weiss._base.checks import some
from weiss._base.files import cache_folder, refuse_special_file
from weiss._base.tensor_files import DamagedFileError, read_tensors

if TYPE_CHECKING:
    from weiss._base.downloads import Checksum

CLASSIFIERS = ("fc", "last_linear")
"""Names of the classifier in public ResNet and BN-Inception weights."""
EMBEDDINGS = ("embedding",)
"""Names of the last layer in checkpoints of metric learning programs, such as ProxyAnchor's."""
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys of the weights in files of training programs."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""Prefixes of every name by data parallelism, torch.compile and trainers."""
COUNTER = "num_batches_tracked"
"""Batch normalisation's count of batches: absent in old files, and not needed."""
REFUSED = re.compile(r"(?:GLOBAL|class|function|module) `?([\w.]+)")
"""What a file names that is no tensor, in torch's message."""
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
    ``num_batches_tracked``, and the classifier where the module has none. The embedding layer of
    another metric learning program (`EMBEDDINGS`) is left out with a warning.

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
    address = str(source)
    is_address = address.lower().startswith(("http://", "https://"))
    if is_address:
        from weiss._base.downloads import DownloadError, fetch

        target = (Path(cache) if cache else cache_folder() / "weights") / _cached_name(address)
        try:
            path = fetch(address, target, checksum=checksum, what="pretrained weights")
        except DownloadError as error:
            raise DownloadError(f"{error} Or name a weights file: --weights FILE.") from error
    else:
        path = Path(source).expanduser()
    try:
        weights, metadata = read_weights(path)
    except ValueError as error:
        if not is_address:
            raise
        # So that the next call downloads it again.
        path.unlink(missing_ok=True)
        raise ValueError(f"{error} It came from {source} and was deleted.") from error
    _refuse_other_version(module, metadata, path)
    _copy(module, weights, classifiers, path)


def _cached_name(address: str) -> Path:
    """Return the path below the cache: readable, and different for different addresses."""
    parts = urlsplit(address)
    exact = f"{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password
    # No path outside the folder: letters, digits, _ and -, dots inside.
    steps = [re.sub(r"[^\w.-]|^\.+", "_", step) for step in exact.split("/") if step.strip(".")]
    name = steps.pop() if len(steps) > 1 else "weights"
    if parts.query or exact != "/".join([*steps, name]):
        name = f"{hashlib.sha256(f'{exact}?{parts.query}'.encode()).hexdigest()[:8]}-{name}"
    return Path(*steps, name)


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file, or a PyTorch file with a state dict in it.

    Returns:
        The tensors by name, on the CPU; and the metadata of the file (safetensors only).
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"weights must be an existing file; there is no {path}.")
    if path.is_dir():
        raise ValueError(f"weights must be a file; {path} is a folder. Pass a file inside it.")
    refuse_special_file(path)
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise ValueError(f"weights must not be empty; {path} has zero bytes. Fetch it again.")
    if start[8:9] == b"{":  # first: the eight bytes before it, a length, may look like a web page
        try:
            return read_tensors(path)
        except DamagedFileError as error:
            raise ValueError(
                f"weights must be a whole file; {error} Delete it and fetch it again."
            ) from error
    if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
        return _read_pytorch(path), {}
    if start.lstrip()[:1] == b"<":
        what = "is a web page. Fetch the file itself, and look at the page: it may ask for a login."
    elif start.startswith(b"version https://git-lfs"):
        what = "is a Git LFS pointer. Fetch what it points to: git lfs pull."
    else:
        what = f"is neither (it begins with {start[:8]!r}). Convert it, or fetch it again."
    raise ValueError(f"weights must be a safetensors or PyTorch file; {path} {what}")


def _read_pytorch(path: Path) -> dict[str, Tensor]:
    try:
        # An open file, because torch would interpret the name.
        with path.open("rb") as file:
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
    # torch raises many kinds of errors, also AssertionError and AttributeError.
    except Exception as error:
        # torch advises to load what it refused with weights_only=False: that is not repeated here.
        if isinstance(error, UnpicklingError) or "TorchScript" in str(error):
            name = REFUSED.search(str(error))
            found = f"({name[1]})" if name else "(or it is damaged)"
            raise ValueError(
                f"weights must hold tensors only; {path} also holds code, or Python objects that "
                f"run code when they are loaded {found}. It was not run. "
                "Ask for a safetensors file; or convert it where you trust it: "
                "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
            ) from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"weights must be a whole file; {path} is damaged or cut off ({reason}). "
            "Delete it and fetch it again."
        ) from error
    for _ in WRAPPERS:  # a limit, because a mapping may contain itself
        inside = [found.get(key) for key in WRAPPERS] if isinstance(found, Mapping) else []
        found = next((inner for inner in inside if isinstance(inner, Mapping)), found)
    if not isinstance(found, Mapping) or not found:
        what = "an empty one" if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(
            f"weights must be a state dict, tensors by name; {path} holds {what}. "
            "Save model.state_dict()."
        )
    others = [str(name) for name, value in found.items() if not _is_plain(value)]
    if others:
        raise ValueError(
            f"weights must be a state dict, tensors by name; in {path} these are no dense tensors: "
            f"{some(others, SHOWN)}. Save model.state_dict() alone, or under the key 'state_dict'."
        )
    return {str(name): value for name, value in found.items()}


def _is_plain(value: object) -> bool:
    """Return whether this is a tensor with a number for each of its indices."""
    return isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta


def _refuse_other_version(module: nn.Module, metadata: Mapping[str, str], path: Path) -> None:
    """Refuse ResNet weights of v1 in v1.5 and the reverse, where the metadata tell.

    Which version a network is, its architecture says or, of timm's, the stride of a bottleneck.
    """
    pattern = re.compile(r"ResNet-?(\d+)[ _-]v(1\.5|1)(?![\d.])", re.IGNORECASE)
    stated = pattern.search(metadata.get("arch", ""))
    wanted = pattern.search(str(getattr(module, "architecture", "")) or _bottlenecks(module))
    if stated and wanted and stated[2] != wanted[2]:
        raise ValueError(
            f"weights must be those of {wanted[0]}; {path} is of {metadata['arch']!r}. "
            "Names and shapes agree, so it would load, but the features would be wrong. "
            f"Use the backbone 'resnet{stated[1]}{'_v1' if stated[2] == '1' else ''}'."
        )


def _bottlenecks(module: nn.Module) -> str:
    """Return the version of a ResNet with the names of torchvision; empty for other networks."""
    strides = {
        name: getattr(dict(module.named_modules()).get(f"layer2.0.{name}"), "stride", None)
        for name in ("conv1", "conv2", "conv3")
    }
    if strides["conv3"] is None:  # no bottleneck
        return ""
    depth = sum(name.endswith(".conv3") for name, _ in module.named_modules()) * 3 + 2
    return f"ResNet-{depth} {'v1' if strides['conv1'] == (2, 2) else 'v1.5'}"


def _copy(
    module: nn.Module, weights: dict[str, Tensor], classifiers: Sequence[str], path: Path
) -> None:
    """Check all weights, then load them."""
    own = module.state_dict()
    weights = _trunk_of(_without_prefix(weights, own), own)
    for layer in classifiers:
        if not any(name.startswith(f"{layer}.") for name in own):
            weights = {k: v for k, v in weights.items() if not k.startswith(f"{layer}.")}
    left_out = {
        name: value
        for name, value in weights.items()
        if name not in own and name.startswith(tuple(f"{layer}." for layer in EMBEDDINGS))
    }
    weights = {name: value for name, value in weights.items() if name not in left_out}
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
    # After the cast: in half precision large numbers become infinite.
    broken = [k for k, v in weights.items() if not v.to(own[k].dtype).isfinite().all()]
    if broken:
        raise ValueError(
            f"weights must be finite in {own[broken[0]].dtype}, as the network has it; these of "
            f"{path} are not: {some(broken, SHOWN)}. Take an earlier checkpoint, or build the "
            "network in float32."
        )
    if left_out:
        layers = ", ".join(f"{name} {_kind(value)}" for name, value in left_out.items())
        warnings.warn(
            f"{path} is a network that was trained to embed: its last layer ({layers}) is left "
            "out, and the trunk alone is loaded. The head here starts from random weights, so "
            "embeddings differ from those of that network until it is trained.",
            stacklevel=4,
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
    prefix = "trunk."
    inside = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    is_embedder = inside and not any(name.startswith(prefix) for name in own)
    return inside if is_embedder else weights


def _kind(tensor: Tensor) -> str:
    """Return what must agree as text: the shape, and whether it is floating point."""
    return f"{tuple(tensor.shape)}{'' if tensor.is_floating_point() else ' of whole numbers'}"
