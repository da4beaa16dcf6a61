"""The card of a run: what people should know about its network, in Markdown."""

from pathlib import PurePosixPath
from typing import Any

from weiss.backbones import BACKBONES
from weiss.backbones.by_name import IMAGENET, SCRATCH
from weiss.evaluation.metrics import TITLES
from weiss.losses import LOSSES
from weiss.runs.folder import MODEL, RECIPE
from weiss.runs.gain import gain_in_words, what_to_try
from weiss.runs.recipe import Recipe
from weiss.runs.summaries import UNTRAINED

MEASURED_ON = {
    "test": "the test set, as the paper does: the score of the best epoch is a little too good",
    "held-out training classes": "training classes that were held out, which chose the epoch",
}


def not_trained(recipe: Recipe) -> str:
    """Return the words for the network that a recipe starts from.

    Example:
        >>> from weiss.runs import recipe_from
        >>> not_trained(recipe_from("cub_resnet50"))
        'ImageNet ResNet-50 v1.5, not trained'
    """
    name, weights = recipe.backbone.name, recipe.backbone.weights or SCRATCH
    title = BACKBONES[name].title if name in BACKBONES else name
    if weights == IMAGENET:
        start = f"ImageNet {title}" if name in BACKBONES else f"pretrained {title}"
    elif weights == SCRATCH:
        start = f"{title} with random weights"
    else:
        start = f"{title} from {PurePosixPath(weights.replace(chr(92), '/')).name}"
    return f"{start}, not trained"


def _score_table(found: dict[str, Any]) -> str:
    """Return the scores of a result in per cent as a table in Markdown."""
    named = {name: title for name, title in TITLES.items() if name in found}
    if not named:
        return "Nothing was measured: the data have no part that could be."
    columns = {found["measured_on"]: found}
    if "test" in found:
        columns["test set"] = found["test"]
    rows = [("per cent", *columns)]
    for name, title in named.items():
        rows.append((title, *(f"{100 * column[name]:.2f}" for column in columns.values())))
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|---|{'---:|' * len(columns)}", *lines])


def _prefix_table(found: dict[str, Any]) -> str:
    """Return the scores of prefixes of the embedding in per cent, as a table; empty for none."""
    tested = found.get("test_dimensions")
    by_size = tested or found.get("dimensions") or {}
    if not by_size:
        return ""
    where = "test set" if tested else found["measured_on"]
    named = {name: title for name, title in TITLES.items() if name in next(iter(by_size.values()))}
    rows = [("dimensions", *named.values())]
    for size, scores in by_size.items():
        rows.append((size, *(f"{100 * scores[name]:.2f}" for name in named)))
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    table = "\n".join([head, f"|---:|{'---:|' * len(named)}", *lines])
    return (
        "\nThe first numbers of an embedding, at unit length again, can be used alone "
        f"(`--dimension` of `weiss index` and `weiss export`). Per cent on {where}:\n\n{table}\n"
    )


def card(recipe: Recipe, found: dict[str, Any]) -> str:
    """Return the card of a run from its complete recipe and its result."""
    settings = ", ".join(f"{key} {value}" for key, value in recipe.loss.arguments.items())
    kind = "mean fields" if recipe.loss.has_fields else "class vectors of the loss, if it has any"
    note = ""
    made = f"trained with {LOSSES[recipe.loss.name].title}{f' ({settings})' if settings else ''}"
    holds = f"the network and the {kind} ({found['num_classes']} training classes)"
    title = f"{recipe.backbone.name} for {recipe.data.name}"
    when = f"Epoch {found['epoch']} of {found['epochs']}, seed {recipe.seed}; all settings"
    if found["loss"] == UNTRAINED:
        made = f"{not_trained(recipe)}: every class is one that it never saw. Written"
        title, holds, when = recipe.backbone.name, "the network", "All settings"
    if found["loss"] != UNTRAINED and found["measured_on"] in MEASURED_ON:
        once = "; the test set was looked at once, at the end" if "test" in found else ""
        note = f"\nMeasured on {MEASURED_ON[found['measured_on']]}{once}.\n"
    brought = " ".join(filter(None, (gain_in_words(found), what_to_try(found, recipe))))
    brought = f"\n{brought}\n" if brought else ""
    return f"""# {title}

An embedding for image retrieval, {made} by Weiss.

- Input: RGB images in 0..255, {recipe.evaluate.size} x {recipe.evaluate.size} pixels \
(shorter side to {recipe.evaluate.resize}, then the centre). Normalisation is inside.
- Output: vectors of unit length, {recipe.backbone.embedding_size} dimensions; compare by cosine.
- `{MODEL}` holds {holds}.
- {when}: `{RECIPE}`.
{brought}
{_score_table(found)}
{note}{_prefix_table(found)}

```python
from weiss.runs import Run

model = Run("path/to/this/folder").model()
embeddings = model(images)  # (B, 3, {recipe.evaluate.size}, {recipe.evaluate.size}) in 0..255
```
"""
