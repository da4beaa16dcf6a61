"""The card of a run: what people should know of its network, in Markdown."""

from typing import Any

from weiss.evaluation.metrics import TITLES
from weiss.losses import LOSSES
from weiss.runs.recipe import Recipe

MEASURED_ON = {
    "test": "the test set, as the paper does: the score of the best epoch is a little too good",
    "held-out training classes": "training classes that were held out, which chose the epoch",
}


def _on_what(found: dict[str, Any]) -> str:
    if found["measured_on"] not in MEASURED_ON:
        return ""
    once = "; the test set was looked at once, at the end" if "test" in found else ""
    return f"\nMeasured on {MEASURED_ON[found['measured_on']]}{once}.\n"


def card(recipe: Recipe, found: dict[str, Any]) -> str:
    """Return the model card, in Markdown."""
    settings = ", ".join(f"{key} {value}" for key, value in recipe.loss.arguments.items())
    rows = [
        f"| {title} | {100 * found[name]:.2f} |"
        + (f" {100 * found['test'][name]:.2f} |" if "test" in found else "")
        for name, title in TITLES.items()
        if name in found
    ]
    more = " test set |" if "test" in found else ""
    rule = "|---|---:|" + ("---:|" if "test" in found else "")
    table = "\n".join([f"| per cent | {found['measured_on']} |{more}", rule, *rows])
    kind = "mean fields" if recipe.loss.has_fields else "class vectors of the loss, if it has any"
    return f"""# {recipe.backbone.name} for {recipe.data.name}

An embedding for image retrieval, trained with {LOSSES[recipe.loss.name].title}\
{f" ({settings})" if settings else ""} by Weiss.

- Input: RGB images in 0..255, {recipe.evaluate.size} x {recipe.evaluate.size} pixels \
(shorter side to {recipe.evaluate.resize}, then the centre). Normalisation is inside.
- Output: vectors of unit length, {recipe.backbone.embedding_size} dimensions; compare by cosine.
- `model.safetensors` holds the network and the {kind} ({found["num_classes"]} training classes).
- Epoch {found["epoch"]} of {found["epochs"]}, seed {recipe.seed}; all settings: `recipe.toml`.

{table if rows else "Nothing was measured: the data have no part that could be."}
{_on_what(found)}

```python
from weiss.runs import Run

model = Run("path/to/this/folder").model()
embeddings = model(images)  # (B, 3, {recipe.evaluate.size}, {recipe.evaluate.size}) in 0..255
```
"""
