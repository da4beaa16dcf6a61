"""Export the network of a run to one file, ONNX or safetensors, with a model card beside it.

The embeddings of the file are compared with those of the run's network before it gets its name; a
file that fails is deleted. onnx and onnxscript are imported only here.

The first line of a card holds a checksum of the rest: a card that the user has edited (to fill in
the license) is not overwritten.

Dimensions: B pictures, c channels, S side of the crop, D embedding size.
"""

import hashlib
import json
import math
import re
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
from weiss._base.files import json_object, replacing, special_file
from weiss._base.tensor_files import DIGEST, read_tensors, write_tensors
from weiss.backbones import BACKBONES, Embedder
from weiss.catalogue.networks import (
    FORMATS,
    INPUT,
    ONNX,
    OUTPUT,
    SAFETENSORS,
    Network,
    Preprocessing,
    facts_of_run,
    network_of_file,
    words_of,
)
from weiss.catalogue.onnx_content import DIGEST_PLACE, digest_of_onnx
from weiss.evaluation.metrics import TITLES
from weiss.losses import LOSSES
from weiss.runs.folder import LOSS, MODEL, Run

TOLERANCE = 1e-4
"""Allowed difference between an entry of an embedding and that of the run's network."""
BATCHES = (1, 2, 7)
"""The batch sizes that a file is checked with."""
OPSET = 18
"""The ONNX operator set that torch's exporter writes without a conversion."""
LARGEST_ONNX = 2**31 - 2**24
"""Bytes of tensors in one ONNX file: 2 GiB less some for the graph."""
LARGEST_HEADER = 10**8
"""Bytes of the header of a safetensors file, by the format."""
FIELDS = f"{LOSS}fields"
HEAD = "<!-- model card, written by weiss export; {} -->"
FIRST_LINE = re.compile(HEAD.format("([0-9a-f]{16})"))
NEW = ".new"
"""Suffix of a new card beside one that the user has edited."""


@dataclass(frozen=True)
class Exported:
    """An exported file, its metadata, and the model card beside it.

    The card ends in ``.new`` if the user has edited the old one. The difference is the largest
    between its embeddings and those of the run's network; None if it was not checked.
    """

    path: Path
    card: Path
    difference: float | None
    facts: dict[str, Any]

    def describe(self) -> str:
        """Return a summary for people."""
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
    trust: bool = False,
) -> Exported:
    """Write the best network of a run to one file, and a card beside it.

    Args:
        run: the run folder.
        out: the file, with the suffix ``.onnx`` or ``.safetensors``. An older export is replaced,
            any other file is refused. The card has the same name and ``.md``.
        format: ``"onnx"`` or ``"safetensors"``, for a file name without that suffix.
        check: compare the file with the run's network; for an ONNX file this needs onnxruntime.
        fields: also write the mean fields and the names of their classes; safetensors only.
        trust: as for `weiss.runs.Run`, for a path.

    Raises:
        ValueError: the network cannot be exported, or the file does not give its embeddings.
        ImportError: a library is not installed.
    """
    run, out = run if isinstance(run, Run) else Run(run, trust=trust), Path(out)
    kind = _kind(out, format, fields)
    _refuse_other_file(run, out, kind)
    card = _card_beside(out)
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
            written = network_of_file(temporary, "cpu", threads=1, format=kind, trust=run.trust)
            difference = _largest_difference(written, model, out)
        card_temporary.write_text(_model_card(facts, out.name, kind), encoding="utf-8")
    return Exported(out, card, difference, facts)


def _kind(out: Path, asked: str | None, fields: bool) -> str:
    named = out.suffix.lower().removeprefix(".")
    if asked is not None:
        checks.one_of("format", asked, FORMATS, "export_run")
    if (asked or named) not in FORMATS or (named in FORMATS and named != (asked or named)):
        raise ValueError(
            f"out must end in .{ONNX} or .{SAFETENSORS}, and fit the format; got {out.name!r}"
            f"{'' if asked is None else f' for format={asked!r}'}. Rename the file."
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
    """Refuse to replace a file that is no export, above all the run's own network."""
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
    """Return whether the metadata of a file are those of an export."""
    if special_file(path):
        return False
    try:
        if kind == ONNX:
            # A metadata entry of ONNX: the key, twelve letters, then the value.
            return b"\x0a\x0cweiss_format\x12" in path.read_bytes()
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json_object(file.read(min(length, LARGEST_HEADER)).decode(), path)
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
    _remove_debug_info(proto)
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
    # Two images: with one, the exporter would fix the batch size.
    example = torch.zeros(2, shape.channels, shape.size, shape.size)
    with warnings.catch_warnings(), torch.no_grad():
        # A warning of torch about its own code.
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


def _remove_debug_info(proto: Any) -> None:
    """Remove lines of code and their folders, which the exporter adds."""
    for field, value in proto.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            proto.ClearField(field.name)
        elif field.message_type is not None:
            # A single field is a message; a repeated one holds several.
            for inner in [value] if hasattr(value, "ListFields") else value:
                _remove_debug_info(inner)


def _largest_difference(written: Network, model: Embedder, out: Path) -> float:
    """Return the largest difference of the embeddings; raise if it is too large."""
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
    """Yield batches ``(B, c, S, S)`` of each size: noise, and discs on a gradient."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[: shape.size, : shape.size] / shape.size
    for batch in BATCHES:
        whole = (batch, shape.channels, shape.size, shape.size)
        yield random.integers(0, 256, whole).astype(np.float32)
        a, b, radius, light = random.uniform(0.2, 0.8, (4, batch, shape.channels, 1, 1))
        disc = (x - a) ** 2 + (y - b) ** 2 < radius**2 / 4
        picture = 255 * np.where(disc, light, a * x + (1 - a) * y)
        yield np.rint(picture).astype(np.float32)


def _card_beside(out: Path) -> Path:
    """Return the path of the card: ``model.onnx.md``, or a new name beside an edited card."""
    card = out.with_name(f"{out.name}.md")
    if not card.exists():
        return card
    first, _, rest = card.read_bytes().partition(b"\n") if card.is_file() else (b"", b"", b"")
    found = FIRST_LINE.fullmatch(first.decode("utf-8", "replace").strip())
    if found is None:
        raise ValueError(
            f"the model card is to be {card}, which is something else. Move that, or choose "
            "another name for the export."
        )
    is_edited = found[1] != _checksum(rest)
    return card.with_name(f"{card.name}{NEW}") if is_edited else card


def _checksum(text: bytes) -> str:
    # Editors and git change the ends of lines, which changes no word.
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()[:16]


def _model_card(facts: dict[str, Any], name: str, kind: str) -> str:
    """Return the model card of a file, in Markdown."""
    backbone, loss = facts["backbone"]["name"], facts["loss"]["name"]
    title = BACKBONES[backbone].title if backbone in BACKBONES else backbone
    shape, start = facts["preprocessing"], facts["starts_from"]
    steps = "\n".join(f"{i}. {step}" for i, step in enumerate(shape["steps"], start=1))
    weights = "" if start == "random weights" else f" and of the weights it started from ({start})"
    if loss in LOSSES:
        made = (
            f"{title}, trained with {LOSSES[loss].title} on {facts['data']} "
            f"({facts['num_classes']:,} classes, epoch {facts['epoch']}, seed {facts['seed']}), "
            f"from {start}."
        )
        terms = f"the pictures it was trained on ({facts['data']}){weights}"
        limits = f"It saw {facts['num_classes']:,} classes of {facts['data']} and nothing else:"
    else:
        made, terms = f"{facts['protocol'].partition(';')[0]}.", f"its weights ({start})"
        limits = "It was not trained on pictures like those that are searched:"
    text = f"""# {name}: pictures to {facts["embedding_size"]} numbers

{made} Pictures of one class are meant to lie close \
together, by the cosine of their vectors; the scores say how far that holds.

## Data and protocol

- Data: {facts["data"]}; {facts["num_classes"]:,} classes trained.
- Protocol: {facts["protocol"]}.

## Scores

{score_table(facts["scores"])}

## Preprocessing

{steps}

Then float32 from 0 to 255, {shape["layout"]}. Mean, standard deviation and the \
order of colours that the network wants are inside the file.

## When is it a match?

{_threshold_hint(facts["loss"])}

## License and limits

- License of this file: to be filled in by whoever ships it. It depends on the terms of \
{terms}.
- {limits} other kinds of \
pictures, and other ways to take them, need a measurement of their own.
- It finds what looks alike. It was not tested for recognising people.

## Loading

{_loading(name, kind, shape)}
Fingerprint of the tensors: `{facts["fingerprint"]}`. Written by Weiss {facts["weiss_version"]}.
"""
    return f"{HEAD.format(_checksum(text.encode()))}\n{text}"


def score_table(scores: dict[str, Any]) -> str:
    """Return scores in per cent as a table in Markdown, beside those on test data if it has any."""
    recalls = {key: f"recall at {key[10:]}" for key in scores if key.startswith("recall_at_")}
    titles = TITLES | {"nmi": "NMI", "ami": "AMI"} | recalls
    named = {key: title for key, title in titles.items() if key in scores}
    if not named:
        return "Nothing was measured: the data had no part that could be."
    columns = {scores["measured_on"]: scores}
    if scores.get("test"):
        columns["test, looked at once"] = scores["test"]
    rows = [("per cent", *columns)]
    for key, title in named.items():
        values = (column.get(key, math.nan) for column in columns.values())
        rows.append((title, *(f"{100 * value:.2f}" for value in values)))
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    queries = f"\n\n{scores['queries']:,} queries." if scores.get("queries") else ""
    return "\n".join([head, f"|---|{'---:|' * len(columns)}", *lines]) + queries


def _threshold_hint(loss: dict[str, Any]) -> str:
    own = (
        "How similar two pictures must be to count as the same depends on the collection. "
        "`weiss index` calibrates a threshold on classes that did not train, with its error rates."
    )
    if "neg_margin" not in loss or loss.get("distance", "cosine") != "cosine":
        return own
    return (
        f"{own} A first guess: training pushed different classes apart until their cosine fell "
        f"below {1 - loss['neg_margin']:g}. Classes it has not seen lie closer than that."
    )


def _loading(name: str, kind: str, shape: dict[str, Any]) -> str:
    how = f"{shape['channels']}"
    if shape.get("scaled_decoding"):
        how += f", {shape['short_side']}, scaled=True"
    text = f"""```python
from weiss._base.images import decode
from weiss.catalogue.networks import network_of_file

network = network_of_file({json.dumps(name)})
vectors = network.embed_pixels([decode("a.jpg", {how})])
```
"""
    if kind == ONNX:
        sizes = f"{shape['channels']}, {shape['size']}, {shape['size']}"
        text += f"""
Or with onnxruntime alone, on pictures that are prepared:

```python
import onnxruntime

session = onnxruntime.InferenceSession({json.dumps(name)})
(vectors,) = session.run(["{OUTPUT}"], {{"{INPUT}": images}})  # float32 (batch, {sizes})
```
"""
    return text
