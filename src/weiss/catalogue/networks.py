"""A network that embeds pictures, from a run, a safetensors or an ONNX export.

Also its preprocessing, its fingerprint and the facts that an export keeps in its metadata;
`weiss.catalogue.export` writes the files. onnxruntime is imported only here. This is one piece: the
three kinds of networks share preprocessing, facts and checks.

Dimensions: B pictures, c channels, S side of the crop, D embedding size.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks, images
from weiss._base.arrays import Array
from weiss._base.devices import refuse_absent_device
from weiss._base.files import refuse_special_file
from weiss._base.tensor_files import DIGEST, DamagedFileError, read_tensors
from weiss._version import __version__
from weiss.backbones import Embedder
from weiss.catalogue.onnx_content import DIGEST_PLACE, digest_of_onnx, has_external_tensors
from weiss.data import DATASETS, CentreCrop
from weiss.data.resample import resample
from weiss.data.store import store_of
from weiss.runs import Recipe, recipe_from_dict
from weiss.runs.card import not_trained
from weiss.runs.completion import image_sizes
from weiss.runs.folder import LOSS, OF_TRAINING, Run, build_backbone
from weiss.runs.summaries import UNTRAINED

FORMAT = 1
"""The version of the metadata of an export."""
FORMATS = ONNX, SAFETENSORS = "onnx", "safetensors"
INPUT, OUTPUT = "images", "embeddings"
"""The names of an ONNX file's input and output."""
AT_ONCE = 64
"""Pictures that are prepared and embedded together."""
NEEDED = ("weiss_format", "preprocessing", "embedding_size", "fingerprint")
"""Metadata without which a file cannot be used."""
AS_JSON = frozenset(
    {"weiss_format", "preprocessing", "embedding_size", "backbone", "loss", "seed", "epoch"}
    | {"num_classes", "scores", "class_names"}
)
"""Metadata in JSON; all others are plain text."""
UNSEEN = "every class counts as one that it never saw"
FOLDERS = re.compile(r"(^|(?<!http)(?<!https):)(?:[A-Za-z]:[\\/]|[~/\\]).*[/\\]")


@dataclass(frozen=True)
class Preprocessing:
    """From pixels of any size to the input of a network, exactly as in an evaluation.

    Args:
        channels: 3 for colour (red, green, blue), 1 for grey.
        size: height and width of the centre crop, S.
        resize: length of the shorter side before the crop; at least ``size``.
        short_side: a longer shorter side is first reduced to this, in 8 bits, as in the image store
            of a training.
        scaled_decoding: JPEG files are decoded at a fraction of their size before that, as in that
            training.
    """

    channels: int
    size: int
    resize: int
    short_side: int
    # Not in the text, by which an unfinished index finds its parts (`collection_key`).
    scaled_decoding: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.channels not in (1, 3):
            raise ValueError(
                f"channels must be 1 (grey) or 3 (colour) for Preprocessing; got {self.channels}."
            )
        CentreCrop(self.size, self.resize)
        checks.count("short_side", self.short_side, "Preprocessing")
        checks.flag("scaled_decoding", self.scaled_decoding, "Preprocessing")

    def as_dict(self) -> dict[str, Any]:
        """Return the preprocessing for JSON."""
        # Named only where it is on: indexes and exports of other runs keep what they say.
        scaled = {"scaled_decoding": True} if self.scaled_decoding else {}
        return {
            **scaled,
            "channels": self.channels,
            "colours": "red, green, blue" if self.channels == 3 else "grey",
            "values": "float32 from 0 to 255, not normalised: mean and std are in the network",
            "layout": "batch, channels, height, width",
            "short_side": self.short_side,
            "resize": self.resize,
            "size": self.size,
            "interpolation": "bilinear, antialiased where it shrinks (Pillow's BILINEAR)",
            "steps": self.steps(),
        }

    def steps(self) -> list[str]:
        """Return the steps in words."""
        kind = "RGB" if self.channels == 3 else "grey"
        first = f"decode upright to 8-bit {kind}, transparent pixels over white"
        reduce = f"reduce the shorter side to {self.short_side} if it is longer, to 8 bits"
        resize = f"resize the shorter side to {self.resize}; the longer rounds down"
        crop = f"cut out the central {self.size} x {self.size}"
        if self.scaled_decoding:
            first += (
                "; a JPEG file at the smallest of 1/2, 1/4 and 1/8 of its size whose shorter side "
                f"is at least {self.short_side}"
            )
        return [first, *([reduce] if self.short_side != self.resize else []), resize, crop]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Preprocessing":
        """Return the preprocessing that `as_dict` described."""
        names = ("channels", "size", "resize", "short_side")
        lacking = [name for name in names if name not in given]
        if lacking:
            raise ValueError(f"preprocessing must have {', '.join(names)}; it lacks {lacking}.")
        channels, size, resize, short_side = (
            checks.count(name, given[name], "Preprocessing") for name in names
        )
        return cls(channels, size, resize, short_side, given.get("scaled_decoding", False))

    @property
    def reduction(self) -> images.Reduction:
        """How image files are made smaller when they are decoded."""
        return images.Reduction(self.short_side, self.scaled_decoding)

    def prepare(self, pixels: Sequence[Array]) -> Array:
        """Resize and crop B pictures as `weiss.data.Pipeline.evaluation` does.

        They are uint8 ``(height, width, 1 or 3)`` of any sizes. Colour is converted to grey for a
        grey network; grey is repeated for a colour network. Return float32 ``(B, c, S, S)`` in
        0..255.
        """
        for one in pixels:
            _check_picture(one)
        if not len(pixels):
            return np.zeros((0, self.channels, self.size, self.size), dtype=np.float32)
        shown = [images.reduced(one, self.short_side) for one in pixels]
        has_colour = any(one.shape[2] == 3 for one in shown)
        if has_colour:
            shown = [np.repeat(one, 3, axis=2) if one.shape[2] == 1 else one for one in shown]
        store = store_of(shown)
        windows = CentreCrop(self.size, self.resize).windows(store.sizes)
        batch = resample(store.pixels, store.starts, store.sizes[:, 1], windows)
        if has_colour and self.channels == 1:
            # After resizing and in floating point, as the network itself does it.
            luma = torch.tensor(images.LUMA).view(-1, 1, 1)
            batch = (batch * luma).sum(dim=1, keepdim=True)
        elif self.channels == 3:
            batch = batch.expand(-1, 3, -1, -1)
        return np.ascontiguousarray(batch.numpy())


def _check_picture(given: Any) -> None:
    if not isinstance(given, np.ndarray) or given.dtype != np.uint8:
        kind = given.dtype if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(
            f"pixels must be arrays of uint8 for prepare; got {kind}. "
            "Read files with weiss._base.images.decode."
        )
    if given.ndim != 3 or given.shape[2] not in (1, 3) or 0 in given.shape:
        raise ValueError(
            f"pixels must have shape (height, width, 1 or 3) for prepare; got {given.shape}. "
            "Put channels last, and leave empty pictures out."
        )


class Network:
    """Embeds pictures; made by `network_of_run` and `network_of_file`.

    Args:
        forward: float32 ``(B, c, S, S)`` in 0..255 to float32 ``(B, D)`` of unit length.
        facts: as `facts_of_run` gives them.
        model: the torch module; None for an ONNX file.

    Attributes:
        preprocessing: how pictures are prepared for it.
        embedding_size: D.
        fingerprint: of its tensors, see `fingerprint_of`.
    """

    def __init__(
        self,
        forward: Callable[[Array], Array],
        facts: dict[str, Any],
        model: Embedder | None = None,
    ) -> None:
        self._forward, self.facts, self.model = forward, facts, model
        self.preprocessing = Preprocessing.from_dict(facts["preprocessing"])
        self.embedding_size: int = facts["embedding_size"]
        self.fingerprint: str = facts["fingerprint"]

    def embed(self, images: Array) -> Array:
        """Return float32 ``(B, D)`` of unit length for a batch ``(B, c, S, S)`` of `prepare`."""
        wanted = (self.preprocessing.channels, *2 * (self.preprocessing.size,))
        given = np.asarray(images)
        if given.ndim != 4 or given.shape[1:] != wanted:
            raise ValueError(
                f"images must have shape (batch, {', '.join(map(str, wanted))}) for Network.embed; "
                f"got {given.shape}. Use prepare, or embed_pixels, for pictures of other sizes."
            )
        if not len(given):
            return np.zeros((0, self.embedding_size), dtype=np.float32)
        return self._forward(np.ascontiguousarray(given, dtype=np.float32))

    def prepare(self, pixels: Sequence[Array]) -> Array:
        """Return ``(B, c, S, S)`` of B pictures, see `Preprocessing.prepare`."""
        return self.preprocessing.prepare(pixels)

    def embed_pixels(self, pixels: Sequence[Array]) -> Array:
        """Return float32 ``(B, D)`` of unit length for B pictures, see `Preprocessing.prepare`."""
        starts = range(0, max(len(pixels), 1), AT_ONCE)
        return np.concatenate([self.embed(self.prepare(pixels[i : i + AT_ONCE])) for i in starts])

    def manifest_facts(self, folder: str) -> dict[str, Any]:
        """Return what the manifest of an index keeps about its model, which lies in ``folder``."""
        return {
            "folder": folder,
            "fingerprint": self.fingerprint,
            "embedding_size": self.embedding_size,
            "backbone": self.facts["backbone"]["name"],
            "section": self.facts["backbone"],
            "loss": self.facts["loss"]["name"],
            "trained_on": self.facts["data"],
            "num_classes": self.facts["num_classes"],
            "protocol": self.facts["protocol"],
            "preprocessing": self.facts["preprocessing"],
        }

    def is_model_of(self, index: dict[str, Any]) -> bool:
        """Return whether this network gives the vectors of an index with these `manifest_facts`.

        Tensors, backbone and preprocessing must be the same.
        """
        ours = [self.fingerprint, self.facts.get("backbone"), self.facts["preprocessing"]]
        theirs = [index["fingerprint"], index["section"], index["preprocessing"]]
        return bool(json.loads(json.dumps(ours)) == json.loads(json.dumps(theirs)))


def network_of_run(run: str | Path | Run, device: str = "auto", *, trust: bool = False) -> Network:
    """Return the best network of a run; devices are auto, cpu, cuda, cuda:N and mps.

    ``trust`` is that of `weiss.runs.Run`, for a path.
    """
    run = run if isinstance(run, Run) else Run(run, trust=trust)
    model = run.model()
    return _of_torch(model, facts_of_run(run, model), device)


def network_of_file(
    path: str | Path,
    device: str = "auto",
    *,
    threads: int | None = None,
    format: str | None = None,
    trust: bool = False,
) -> Network:
    """Return the network of a file that `weiss.catalogue.export.export_run` wrote.

    A safetensors file is computed by torch, an ONNX file by onnxruntime, with its own choice of
    ``threads`` by default. ``format`` is ``"onnx"`` or ``"safetensors"``, for a file name without
    that suffix. With ``trust`` the file may name other files and addresses: tensors that an ONNX
    file keeps in files beside it, a network that timm looks up elsewhere; and an ONNX file needs no
    checksum.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or no export.
        UntrustedError: it needs ``trust``.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".") if format is None else format
    if kind not in FORMATS or path.is_dir():
        raise ValueError(
            f"the file of a network must be one of {', '.join(FORMATS)}, by its suffix; got "
            f"{path}. Make one from a run: weiss export RUN --out model.onnx"
        )
    refuse_special_file(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"the file of a network must exist; there is no {path}. "
            f"Make it from a run: weiss export RUN --out {path}"
        )
    if kind == ONNX:
        return _of_onnx(path, device, threads, trust)
    return _of_safetensors(path, device, trust)


def fingerprint_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of a network's tensors: names, types, shapes and bytes.

    The same for a run and for its exports, on any device. Tensors of the loss do not count.

    Example:
        >>> fingerprint_of({"a": torch.zeros(1)}) == fingerprint_of({"b": torch.zeros(1)})
        False
    """
    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if not name.startswith(LOSS):
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            state.update(plain.view(torch.uint8).numpy().data)
    return state.hexdigest()


def facts_of_run(run: Run, model: Embedder) -> dict[str, Any]:
    """Return the facts that an export keeps in its metadata; no folders of this machine."""
    recipe, kept = recipe_from_dict(run.recipe()), run.model_facts() or {}
    if model.input.kind != "images":
        raise ValueError(
            f"the network must take images; that of {run.folder} takes vectors "
            f"(backbone.name={recipe.backbone.name!r}). Train one on images."
        )
    result = run.result() if run.is_finished() else {}
    sizes = image_sizes(recipe, model.input)
    # Where a training keeps images as they are, a catalogue reduces them at once, by the same
    # filter: it holds no large pictures, and differs by the rounding to 8 bits alone.
    side = sizes.kept or sizes.resize
    scaled = recipe.data.scaled_decoding
    shape = Preprocessing(model.input.channels, sizes.evaluate, sizes.resize, side, scaled)
    section = {k: v for k, v in recipe.as_dict()["backbone"].items() if k not in OF_TRAINING}
    loss = recipe.as_dict()["loss"]
    is_trained = result.get("loss") != UNTRAINED
    return {
        "weiss_format": FORMAT,
        "weiss_version": __version__,
        "preprocessing": shape.as_dict(),
        "embedding_size": model.embedding_size,
        "distance": "cosine",
        "fingerprint": fingerprint_of(model.state_dict()),
        "arch": model.architecture,
        "backbone": {key: without_folders(value) for key, value in section.items()},
        "starts_from": _start_of(recipe),
        "loss": {**loss, "name": result.get("loss", loss["name"])}
        if is_trained
        else {"name": UNTRAINED},
        "seed": recipe.seed,
        "epoch": kept.get("epoch", 0),
        "num_classes": len(kept.get("class_names", ())),
        "data": data_name(recipe.data.name) if is_trained else "nothing",
        "protocol": _protocol(recipe) if is_trained else f"{not_trained(recipe)}; {UNSEEN}",
        "scores": {
            "measured_on": result.get("measured_on", "a run that had not come to its end"),
            **kept.get("metrics", {}),
            **({"test": result["test"]} if "test" in result else {}),
        },
    }


def words_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return facts as the metadata of a file: text as it is, `AS_JSON` as JSON."""
    return {name: json.dumps(v) if name in AS_JSON else v for name, v in facts.items()}


def _of_torch(model: Embedder, facts: dict[str, Any], device: str) -> Network:
    refuse_absent_device(device, "device")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()

    def forward(images: Array) -> Array:
        with torch.inference_mode():
            found: Array = model(torch.from_numpy(images).to(device)).cpu().numpy()
        return found

    return Network(forward, facts, model)


def _of_safetensors(path: Path, device: str, trust: bool) -> Network:
    try:
        tensors, words = read_tensors(path, is_ours=not trust)
    except DamagedFileError as error:
        raise ValueError(f"{error} Copy it anew, or export it again.") from error
    facts = _facts(path, words, (*NEEDED, "backbone"))
    own = {name: value for name, value in tensors.items() if not name.startswith(LOSS)}
    try:
        model = build_backbone(dict(facts["backbone"]), weights=False, trust=trust)
        model.load_state_dict(own)
    except checks.UntrustedError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{path} must hold the network that its metadata describe; it does not ({error}). "
            "Export it again."
        ) from error
    if fingerprint_of(own) != facts["fingerprint"]:
        raise ValueError(
            f"the tensors of {path} must have the fingerprint in its metadata; they do not. "
            "Export it again."
        )
    return _of_torch(model, facts, device)


def _of_onnx(path: Path, device: str, threads: int | None, trust: bool) -> Network:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"onnxruntime must be installed to use {path.name}; importing it failed ({error}). "
            "Install it: pip install 'weiss[onnx]'"
        ) from error

    content = path.read_bytes()
    place, digest = DIGEST_PLACE.search(content), digest_of_onnx(content)
    if place is not None and place[1] != digest:
        raise ValueError(
            f"{path} is damaged: its content does not match its checksum. Copy it anew, or export "
            f"it again; if it was changed on purpose, remove {DIGEST} from its metadata and pass "
            "trust=True (on the command line: --trust)."
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not printed
    # Its other format is not looked into here.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    if threads is not None:
        options.intra_op_num_threads = checks.count("threads", threads, "network_of_file")
    providers = _providers(device, onnxruntime.get_available_providers())
    try:
        is_whole = not has_external_tensors(content)
        if not is_whole and not trust:
            raise checks.UntrustedError(
                f"an ONNX file must hold all of its tensors; {path} keeps some in other files, "
                "which its checksum does not cover"
            )
        # From memory: exactly the checked bytes are used. Other files lie beside the file.
        model = content if is_whole else str(path)
        session = onnxruntime.InferenceSession(model, options, providers=providers)
        words = session.get_modelmeta().custom_metadata_map  # must be UTF-8
    except checks.UntrustedError:
        raise
    # onnxruntime's errors have no common base class.
    except Exception as error:
        raise ValueError(
            f"{path} must be an ONNX file; it is damaged, cut off, or something else "
            f"({str(error).splitlines()[0]}). Copy it anew, or export it again."
        ) from error
    facts = _facts(path, words)
    if digest is None and not trust:
        raise checks.UntrustedError(
            f"an export must have its checksum, {DIGEST}, in its metadata; {path} has none, so it "
            "was changed since Weiss wrote it"
        )
    ends = [each.name for each in (*session.get_inputs(), *session.get_outputs())]
    if ends != [INPUT, OUTPUT]:
        raise ValueError(
            f"{path} must have one input, {INPUT!r}, and one output, {OUTPUT!r}; it has {ends}. "
            "Export it again."
        )

    def forward(images: Array) -> Array:
        found: Array = session.run([OUTPUT], {INPUT: images})[0]
        return found

    return Network(forward, facts)


def _providers(device: str, there: Sequence[str]) -> list[str]:
    kind = device.partition(":")[0]
    checks.one_of("device", kind, ("auto", "cpu", "cuda"), "an ONNX file")
    cuda, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
    if kind == "cuda" and cuda not in there:
        raise ValueError(
            f"device must not be {device!r} for this onnxruntime, which has no CUDA. "
            "Install onnxruntime-gpu, or choose 'cpu'."
        )
    return [cpu] if kind == "cpu" or cuda not in there else [cuda, cpu]


def _facts(path: Path, words: Mapping[str, str], needed: Sequence[str] = NEEDED) -> dict[str, Any]:
    """Return the facts in the metadata of a file."""
    lacking = [name for name in needed if name not in words]
    if lacking:
        own = " It is a run's own model: pass the run's folder." if "run" in words else ""
        raise ValueError(
            f"{path} must be an export of Weiss, with {', '.join(needed)} in its metadata; it "
            f"lacks {', '.join(lacking)}.{own} Make one from a run: weiss export RUN --out FILE"
        )
    if words["weiss_format"] != str(FORMAT):
        raise ValueError(
            f"{path} must have the format {FORMAT}; it has {words['weiss_format']!r}. It may be of "
            "a newer Weiss: update this one, or export it again."
        )
    try:
        facts: dict[str, Any] = {
            k: json.loads(v) if k in AS_JSON else v for k, v in words.items() if k != DIGEST
        }
        Preprocessing.from_dict(facts["preprocessing"])
        checks.count("embedding_size", facts["embedding_size"], "an export")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the metadata of {path} must be as an export writes them; they are not: {error} "
            "Export it again."
        ) from error
    return facts


def without_folders(value: Any) -> Any:
    """Return a setting without the folders in front of a file name."""
    return FOLDERS.sub(r"\1", value) if isinstance(value, str) else value


def data_name(name: str) -> str:
    """Return the name of a data set, or of a folder without those around it."""
    return name if name in DATASETS else Path(name).name or "photos"


def _start_of(recipe: Recipe) -> str:
    weights = (recipe.backbone.weights or "scratch").replace("\\", "/")
    return "random weights" if weights == "scratch" else PurePosixPath(weights).name


def _protocol(recipe: Recipe) -> str:
    """Return which classes were not trained on, and what chose the epoch."""
    data, evaluate = recipe.data, recipe.evaluate
    share = f"{100 * data.held_out:g} %"
    classes = f"{share} of the classes were held out to test on (seed {data.split_seed})"
    splits = {
        "auto": f"the split that came with the data or, without one, {classes}",
        "given": "the split that came with the data",
        "classes": classes,
        "stratified": f"{share} of every class's images were held out: tested classes trained too",
        "all": "everything trained; no class was held out to test on",
    }
    how = f"the split of {data.name}: test classes did not train"
    how = how if data.name in DATASETS else splits[data.split]
    shared = "; train and test may share classes" if data.shared_classes else ""
    chosen = "the epoch was chosen on the test set"
    if evaluate.on == "held_out":
        part = f"fold {evaluate.fold + 1} of {evaluate.folds} of the training classes"
        chosen = f"{part} was held out too and chose the epoch"
    return f"{how}{shared}; {chosen}"
