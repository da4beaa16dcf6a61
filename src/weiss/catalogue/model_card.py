"""The card beside an export: what people should know of a network, in Markdown.

Its first line holds a checksum of the rest, so that a card that somebody has changed, to fill in
the license, is told from one that nobody has.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from weiss.backbones import BACKBONES
from weiss.catalogue.networks import INPUT, ONNX, OUTPUT
from weiss.losses import LOSSES

HEAD = "<!-- model card, written by weiss export; {} -->"
FIRST_LINE = re.compile(HEAD.format("([0-9a-f]{16})"))
NEW = ".new"
"""What the name of a card gets where somebody has changed the one that is there."""
SCORES = {
    "map_at_r": "MAP@R",
    "r_precision": "R-precision",
    "precision_at_1": "precision at 1",
    "nmi": "NMI",
    "ami": "AMI",
}


def card_beside(out: Path) -> tuple[Path, bool]:
    """Return where the card of an export is to lie: ``model.onnx.md``.

    Args:
        out: the file of the export.

    Returns:
        The path; and whether it is another because somebody has changed the card that is there.

    Raises:
        ValueError: something else lies there.
    """
    card = out.with_name(f"{out.name}.md")
    if not card.exists():
        return card, False
    first, _, rest = card.read_bytes().partition(b"\n") if card.is_file() else (b"", b"", b"")
    found = FIRST_LINE.fullmatch(first.decode("utf-8", "replace").strip())
    if found is None:
        raise ValueError(
            f"the model card is to be {card}, which is something else. Move that, or choose "
            "another name for the export."
        )
    is_changed = found[1] != _checksum(rest)
    return (card.with_name(f"{card.name}{NEW}") if is_changed else card), is_changed


def _checksum(text: bytes) -> str:
    # Editors and git change the ends of lines, which changes no word.
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()[:16]


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
    text = f"""# {name}: pictures to {facts["embedding_size"]} numbers

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
    return f"{HEAD.format(_checksum(text.encode()))}\n{text}"


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
        "from weiss._base.images import decode",
        "from weiss.catalogue.networks import network_of_file",
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
