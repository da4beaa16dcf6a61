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

from weiss import _check
from weiss.backbones import BACKBONES, Embedder
from weiss.files import replacing
from weiss.losses import LOSSES
from weiss.networks import (
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
from weiss.runs import LOSS, MODEL, Run
from weiss.tensor_files import DIGEST, read_tensors, write_tensors

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-4
"""How far an entry of an embedding may lie from that of the run's network."""
BATCHES = (1, 2, 7)
"""The batch sizes a file is tried with."""
OPSET = 18
"""ONNX's operators of 2022, which the exporter writes without converting them."""
LARGEST_ONNX = 2**31 - 2**24
"""Bytes of tensors that one ONNX file can hold: 2 GiB less some for the graph."""
FIELDS = f"{LOSS}fields"
CARD = "<!-- model card, written by weiss export -->"
SCORES = {
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
    "precision_at_1": "precision at 1",
    "nmi": "NMI",
    "ami": "AMI",
}


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: the file.
        card: the model card beside it.
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
        return (
            f"{self.path}: {size:.2f} MB, {shape.channels} x {shape.size} x {shape.size} pixels "
            f"to {self.facts['embedding_size']} dimensions\n"
            f"{checked}\n"
            f"model card: {self.card}"
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
        out: the file; its suffix says the format, ``.onnx`` or ``.safetensors``. The card has the
            same name with ``.md``.
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
    kind, card = _kind(out, format, fields), _card_beside(out)
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
        _check.one_of("format", asked, FORMATS, "export_run")
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


def _card_beside(out: Path) -> Path:
    card = out.with_suffix(".md")
    if card == out or (card.exists() and not card.read_bytes().startswith(CARD.encode())):
        raise ValueError(
            f"the model card is to be {card}, which is something else. Move that, or choose "
            "another name for the export."
        )
    return card


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


def model_card(facts: dict[str, Any], name: str, kind: str) -> str:
    """Return what people should know of an exported network, in Markdown.

    Args:
        facts: what its metadata say.
        name: of the file.
        kind: ``"onnx"`` or ``"safetensors"``.
    """
    backbone, loss = facts["backbone"]["name"], facts["loss"]["name"]
    title = BACKBONES[backbone].title if backbone in BACKBONES else backbone
    trained = f"trained with {LOSSES[loss].title}" if loss in LOSSES else "not trained"
    steps = "\n".join(f"{i}. {s}" for i, s in enumerate(facts["preprocessing"]["steps"], start=1))
    return f"""{CARD}
# {name}: pictures to {facts["embedding_size"]} numbers

{title}, {trained} on {facts["data"]} ({facts["num_classes"]:,} classes, epoch {facts["epoch"]}, \
seed {facts["seed"]}), from {facts["starts_from"]}. Pictures of one class are meant to lie close \
together, by the cosine of their vectors; the scores say how far that holds.

## Data and protocol

- Data: {facts["data"]}; {facts["num_classes"]:,} classes trained.
- Protocol: {facts["protocol"]}.

## Scores

{_score_table(facts["scores"])}

## Preprocessing

{steps}

Then float32 from 0 to 255, {facts["preprocessing"]["layout"]}. Mean, standard deviation and the \
order of colours that the network wants are inside the file.

## When is it a match?

{_threshold_hint(facts["loss"])}

## License and limits

- License of this file: to be filled in by whoever ships it. It depends on the terms of \
{_sources(facts)}.
- It saw {facts["num_classes"]:,} classes of {facts["data"]} and nothing else: other kinds of \
pictures, and other ways to take them, need a measurement of their own.
- It finds what looks alike. It was not tested for recognising people.

## Loading

{_loading(name, kind, facts)}
Fingerprint of the tensors: `{facts["fingerprint"]}`. Written by Weiss {facts["weiss_version"]}.
"""


def _score_table(scores: dict[str, Any]) -> str:
    recalls = {key: f"recall at {key[10:]}" for key in scores if key.startswith("recall_at_")}
    named = {key: title for key, title in (SCORES | recalls).items() if key in scores}
    if not named:
        return "Nothing was measured: the data had no part that could be."
    test = scores.get("test")
    head = [f"| per cent | {scores['measured_on']} |", "|---|---:|"]
    if test:
        head = [f"{head[0]} test, looked at once |", f"{head[1]}---:|"]
    rows = [
        f"| {title} | {100 * scores[key]:.2f} |" + (f" {100 * test[key]:.2f} |" if test else "")
        for key, title in named.items()
    ]
    queries = scores.get("queries")
    return "\n".join([*head, *rows]) + (f"\n\n{queries:,} queries." if queries else "")


def _threshold_hint(loss: dict[str, Any]) -> str:
    own = (
        "How similar two pictures must be to count as the same depends on the collection. "
        "`weiss index` sets a threshold on classes that did not train, and says how often it errs."
    )
    if "neg_margin" not in loss or loss.get("distance", "cosine") != "cosine":
        return own
    return (
        f"{own} A first guess: training pushed different classes apart until their cosine fell "
        f"below {1 - loss['neg_margin']:g}. Classes it has not seen lie closer than that."
    )


def _sources(facts: dict[str, Any]) -> str:
    start = facts["starts_from"]
    weights = "" if start == "random weights" else f" and of the weights it started from ({start})"
    return f"the pictures it was trained on ({facts['data']}){weights}"


def _loading(name: str, kind: str, facts: dict[str, Any]) -> str:
    sides = f"{facts['preprocessing']['size']}, {facts['preprocessing']['size']}"
    lines = [
        "```python",
        "from weiss.images import decode",
        "from weiss.networks import network_of_file",
        "",
        f"network = network_of_file({json.dumps(name)})",
        f'vectors = network.embed_pixels([decode("a.jpg", {facts["preprocessing"]["channels"]})])',
        "```",
        "",
    ]
    if kind == ONNX:
        lines += [
            "Or with onnxruntime alone, on pictures that are prepared:",
            "",
            "```python",
            "import onnxruntime",
            "",
            f"session = onnxruntime.InferenceSession({json.dumps(name)})",
            f'(vectors,) = session.run(["{OUTPUT}"], {{"{INPUT}": images}})  '
            f"# float32 (batch, {facts['preprocessing']['channels']}, {sides})",
            "```",
            "",
        ]
    return "\n".join(lines)
