"""The card of a run: what people should know about its network, in Markdown."""

from collections.abc import Mapping
from typing import Any

from weiss.evaluation.metrics import TITLES
from weiss.losses import LOSSES
from weiss.runs.folder import MODEL, RECIPE
from weiss.runs.recipe import Recipe

MEASURED_ON = {
    "test": "the test set, as the paper does: the score of the best epoch is a little too good",
    "held-out training classes": "training classes that were held out, which chose the epoch",
}


def score_table(
    scores: Mapping[str, Any],
    titles: Mapping[str, str] = TITLES,
    *,
    test_title: str = "test set",
) -> str:
    """Return scores in per cent as a table in Markdown; empty without any.

    Args:
        scores: fractions by name; ``measured_on``; the scores on the test set under ``test``, if
            they were measured apart.
        titles: of the scores to show, by name.
        test_title: of the column of ``test``.
    """
    named = {name: title for name, title in titles.items() if name in scores}
    if not named:
        return ""
    columns = {str(scores.get("measured_on", "nothing")): scores}
    if scores.get("test"):
        columns[test_title] = scores["test"]
    rows = [("per cent", *columns)]
    for name, title in named.items():
        rows.append((title, *(f"{100 * column[name]:.2f}" for column in columns.values())))
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|---|{'---:|' * len(columns)}", *lines])


def card(recipe: Recipe, found: dict[str, Any]) -> str:
    """Return the card of a run.

    Args:
        recipe: complete.
        found: the result of the run, as result.json holds it.
    """
    settings = ", ".join(f"{key} {value}" for key, value in recipe.loss.arguments.items())
    kind = "mean fields" if recipe.loss.has_fields else "class vectors of the loss, if it has any"
    table = score_table(found) or "Nothing was measured: the data have no part that could be."
    return f"""# {recipe.backbone.name} for {recipe.data.name}

An embedding for image retrieval, trained with {LOSSES[recipe.loss.name].title}\
{f" ({settings})" if settings else ""} by Weiss.

- Input: RGB images in 0..255, {recipe.evaluate.size} x {recipe.evaluate.size} pixels \
(shorter side to {recipe.evaluate.resize}, then the centre). Normalisation is inside.
- Output: vectors of unit length, {recipe.backbone.embedding_size} dimensions; compare by cosine.
- `{MODEL}` holds the network and the {kind} ({found["num_classes"]} training classes).
- Epoch {found["epoch"]} of {found["epochs"]}, seed {recipe.seed}; all settings: `{RECIPE}`.

{table}
{_measured_on(found)}

```python
from weiss.runs import Run

model = Run("path/to/this/folder").model()
embeddings = model(images)  # (B, 3, {recipe.evaluate.size}, {recipe.evaluate.size}) in 0..255
```
"""


def _measured_on(found: dict[str, Any]) -> str:
    if found["measured_on"] not in MEASURED_ON:
        return ""
    once = "; the test set was looked at once, at the end" if "test" in found else ""
    return f"\nMeasured on {MEASURED_ON[found['measured_on']]}{once}.\n"
