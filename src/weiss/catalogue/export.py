"""A run's network as one file to ship: ONNX or safetensors, and a card beside it.

A file takes its name after what it gives has been compared with the run's network; one that fails
is not left behind. (onnx and onnxscript only here.)

Legend: B pictures, c channels, S side of the crop, D embedding size.
"""

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weiss._base import checks
from weiss._base.arrays import Array
from weiss._base.files import replacing
from weiss._base.tensor_files import DIGEST, read_tensors, write_tensors
from weiss.backbones import Embedder
from weiss.catalogue.model_card import NEW, card_beside, model_card
from weiss.catalogue.networks import (
    DIGEST_PLACE,
    FORMATS,
    INPUT,
    ONNX,
    OUTPUT,
    SAFETENSORS,
    Network,
    Preprocessing,
    digest_of_onnx,
    facts_of_run,
    network_of_file,
    words_of,
)
from weiss.runs.folder import LOSS, MODEL, Run

TOLERANCE = 1e-4
"""How far an entry of an embedding may lie from that of the run's network."""
BATCHES = (1, 2, 7)
"""The batch sizes a file is tried with."""
OPSET = 18
"""ONNX's operators of 2022, which the exporter writes without converting them."""
LARGEST_ONNX = 2**31 - 2**24
"""Bytes of tensors that one ONNX file can hold: 2 GiB less some for the graph."""
LARGEST_HEADER = 10**8
"""Bytes of a safetensors file's header, by the format."""
FIELDS = f"{LOSS}fields"


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: the file.
        card: the model card beside it; ``.new`` at its end if somebody has changed the one that
            was there, which is kept.
        difference: the largest between an entry of its embeddings and of the run's network, over
            all that was tried; None if nothing was.
        facts: what the file's metadata say.
    """

    path: Path
    card: Path
    difference: float | None
    facts: dict[str, Any]

    def describe(self) -> str:
        """Return what to tell whoever asked for it."""
        shape = Preprocessing.from_dict(self.facts["preprocessing"])
        size = self.path.stat().st_size / 1e6
        checked = "not checked against the run's network"
        if self.difference is not None:
            sizes = ", ".join(map(str, BATCHES[:-1]))
            checked = (
                f"embeddings as the run's network gives them, to {self.difference:.1e} "
                f"(batches of {sizes} and {BATCHES[-1]})"
            )
        kept = ""
        if self.card.suffix == NEW:
            kept = f"; {self.card.stem} was changed by hand and is kept: compare the two"
        return (
            f"{self.path}: {size:.2f} MB, {shape.channels} x {shape.size} x {shape.size} pixels "
            f"to {self.facts['embedding_size']} dimensions\n"
            f"{checked}\n"
            f"model card: {self.card}{kept}"
        )


def export_run(
    run: str | Path | Run,
    out: str | Path,
    *,
    format: str | None = None,
    check: bool = True,
    fields: bool = False,
) -> Exported:
    """Write the best network of a run to one file, and a card beside it.

    Args:
        run: the run folder.
        out: the file; its suffix says the format, ``.onnx`` or ``.safetensors``. An export that
            is there is replaced, any other file is refused. The card has the same name and
            ``.md``.
        format: ``"onnx"`` or ``"safetensors"``, for a name that does not say it.
        check: compare the file with the run's network before it takes its name. An ONNX file needs
            onnxruntime for that.
        fields: also write the mean fields and the names of their classes; safetensors only.

    Returns:
        Where it is, and how close to the run's network.

    Raises:
        ValueError: the network cannot be exported, or the file does not give its embeddings.
        ImportError: a library is not installed.
    """
    run, out = run if isinstance(run, Run) else Run(run), Path(out)
    kind = _kind(out, format, fields)
    _refuse_other_file(run, out, kind)
    card, _ = card_beside(out)
    model = run.model()
    facts = facts_of_run(run, model)
    if fields:
        facts["class_names"] = (run.model_facts() or {})["class_names"]
    difference = None
    with replacing(out) as temporary, replacing(card) as card_temporary:
        if kind == ONNX:
            temporary.write_bytes(_onnx_file(model, facts))
        else:
            tensors = {**model.state_dict(), **(_fields(run) if fields else {})}
            write_tensors(temporary, tensors, words_of(facts))
        if check:
            written = network_of_file(temporary, "cpu", threads=1, format=kind)
            difference = _largest_difference(written, model, out)
        card_temporary.write_text(model_card(facts, out.name, kind), encoding="utf-8")
    return Exported(out, card, difference, facts)


def _kind(out: Path, asked: str | None, fields: bool) -> str:
    named = out.suffix.lower().removeprefix(".")
    if asked is not None:
        checks.one_of("format", asked, FORMATS, "export_run")
    if (asked or named) not in FORMATS or (named in FORMATS and named != (asked or named)):
        raise ValueError(
            f"out must end in .{ONNX} or .{SAFETENSORS}, as the format is; got {out.name!r}"
            f"{'' if asked is None else f' for format={asked!r}'}. Name the file so"
            f"{', or say format=...' if asked is None else ''}."
        )
    kind = asked or named
    if fields and kind == ONNX:
        raise ValueError(
            "fields must be left out for an ONNX file, which holds the network alone. "
            f"Export to .{SAFETENSORS}."
        )
    if out.is_dir():
        raise ValueError(f"out must be a file; {out} is a folder. Name a file inside it.")
    return kind


def _refuse_other_file(run: Run, out: Path, kind: str) -> None:
    """Refuse to write where something lies that is no export: above all a run's own network."""
    if out.resolve() == (run.folder / MODEL).resolve():
        raise ValueError(
            f"out must not be the run's own network; {out} is. Choose another name, outside of "
            "the run."
        )
    if (out.exists() or out.is_symlink()) and not _is_export(out, kind):
        raise ValueError(
            f"out must be new, or an export to be replaced; {out} is something else. Move that, "
            "or choose another name."
        )


def _is_export(path: Path, kind: str) -> bool:
    """Say whether a file calls itself an export; its tensors are not read."""
    try:
        if kind == ONNX:
            # As ONNX writes an entry of its metadata: the key, twelve letters, then the value.
            return b"\x0a\x0cweiss_format\x12" in path.read_bytes()
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, LARGEST_HEADER)))
        return "weiss_format" in header["__metadata__"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fields(run: Run) -> dict[str, Tensor]:
    tensors, _ = read_tensors(run.folder / MODEL)
    if FIELDS not in tensors:
        raise ValueError(
            f"the loss of {run.folder} must have mean fields to export them; "
            f"{run.recipe()['loss']['name']!r} has none. Leave fields out."
        )
    return {FIELDS: tensors[FIELDS]}


def _onnx_file(model: Embedder, facts: dict[str, Any]) -> bytes:
    """Return a network and its metadata as the bytes of an ONNX file, its checksum included."""
    onnx = _onnx()
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if size > LARGEST_ONNX:
        raise ValueError(
            f"the network must be smaller than 2 GB to be one ONNX file; it has {size / 1e9:.1f} "
            f"GB. Export it to .{SAFETENSORS}."
        )
    proto = _graph(model, Preprocessing.from_dict(facts["preprocessing"]))
    _forget_places(proto)
    onnx.helper.set_model_props(proto, {**words_of(facts), DIGEST: "0" * 32})
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString(deterministic=True)
    place, digest = DIGEST_PLACE.search(content), digest_of_onnx(content)
    assert place is not None
    assert digest is not None
    return content[: place.start(1)] + digest + content[place.end(1) :]


def _onnx() -> Any:
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError as error:
        raise ImportError(
            "onnx and onnxscript must be installed to write ONNX files; importing them failed "
            f"({error}). Install them: pip install 'weiss[onnx]'"
        ) from error
    return onnx


def _graph(model: Embedder, shape: Preprocessing) -> Any:
    """Return the network as an ONNX model that takes batches of any size."""
    # Not one image: the exporter would take a batch of one for the only kind there is.
    example = torch.zeros(2, shape.channels, shape.size, shape.size)
    with warnings.catch_warnings(), torch.no_grad():
        # Between torch and its own copy of trees; nothing here can do anything about it.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        try:
            program = torch.onnx.export(
                model,
                (example,),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ValueError(
                f"the network {model.architecture} could not be written as ONNX "
                f"({str(error).splitlines()[0]}). Export it to .{SAFETENSORS}."
            ) from error
    assert program is not None
    return program.model_proto


def _forget_places(proto: Any) -> None:
    """Remove what the exporter notes for debugging: lines of code, and the folders they lie in."""
    for field, value in proto.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            proto.ClearField(field.name)
        elif field.message_type is not None:
            # A field that is said once is a message itself; one that repeats holds several.
            for inner in [value] if hasattr(value, "ListFields") else value:
                _forget_places(inner)


def _largest_difference(written: Network, model: Embedder, out: Path) -> float:
    """Return how far a file is from the network; raise if that is too far."""
    largest = 0.0
    for images in _trial_images(written.preprocessing):
        with torch.inference_mode():
            expected = model(torch.from_numpy(images)).numpy()
        found = written.embed(images)
        apart = np.inf if found.shape != expected.shape else np.abs(found - expected).max()
        largest = max(largest, float(apart if np.isfinite(apart) else np.inf))
    if largest > TOLERANCE:
        raise ValueError(
            f"the embeddings of {out} must be those of the run's network to {TOLERANCE:g}; they "
            f"are off by {largest:.2g}, so it was not written. Export to another format."
        )
    return largest


def _trial_images(shape: Preprocessing) -> Iterator[Array]:
    """Yield batches ``(B, c, S, S)`` of each size: noise, and pictures with light and edges."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[: shape.size, : shape.size] / shape.size
    for batch in BATCHES:
        whole = (batch, shape.channels, shape.size, shape.size)
        yield random.integers(0, 256, whole).astype(np.float32)
        a, b, radius, light = random.uniform(0.2, 0.8, (4, batch, shape.channels, 1, 1))
        disc = (x - a) ** 2 + (y - b) ** 2 < radius**2 / 4
        picture = 255 * np.where(disc, light, a * x + (1 - a) * y)
        yield np.rint(picture).astype(np.float32)
