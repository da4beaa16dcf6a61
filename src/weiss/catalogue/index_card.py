"""The card of an index: what people should know of it, in Markdown."""

from weiss.catalogue.folder import SKIPPED, Manifest
from weiss.evaluation.metrics import TITLES


def index_card(manifest: Manifest, num_classes: int, num_skipped: int) -> str:
    """Return the card.

    Args:
        manifest: what the index is.
        num_classes: how many classes its items have.
        num_skipped: how many files could not be read.
    """
    model, shape = manifest.model, manifest.model["preprocessing"]
    measured = manifest.scores.get("measured_on", "nothing")
    rows = [
        f"| {title} | {100 * manifest.scores[name]:.2f} |"
        for name, title in TITLES.items()
        if name in manifest.scores
    ]
    table = "\n".join([f"| per cent | {measured} |", "|---|---:|", *rows])
    scores = table if rows else "Nothing was measured."
    classes = f" of {num_classes:,} classes" if num_classes else ", without classes"
    skipped = f"- {num_skipped:,} files could not be read: `{SKIPPED}`.\n" if num_skipped else ""
    return f"""# Index of {manifest.name}

{manifest.num_items:,} images{classes}, to be searched by a picture: `weiss search INDEX IMAGE`, \
`weiss serve INDEX`.

- Made {manifest.made}, changed {manifest.updated}.
- Store: {manifest.store["says"]}.
{skipped}
## Model

- {model["backbone"]}, trained with {model["loss"]} on {model["num_classes"]:,} classes of \
{model["trained_on"]}; {model["protocol"]}.
- Looks at {shape["size"]} x {shape["size"]} pixels; gives {model["embedding_size"]} dimensions, \
compared by cosine.
- Fingerprint `{model["fingerprint"]}`; an export with the same one may take its place.

{scores}

## When something counts as found

{_threshold_words(manifest)}
"""


def _threshold_words(manifest: Manifest) -> str:
    found = manifest.threshold
    if found is None:
        return f"There is no threshold: {manifest.threshold_why}."
    return (
        f"A hit with a similarity of {found['similarity']:.3f} or more is a match. "
        f"{100 * found['false_match_rate']:.1f} % of pictures whose class is not there find one "
        f"all the same; {100 * found['true_match_rate']:.1f} % of those whose class is there find "
        f"one of it. Measured on {found['basis']}. In a much larger collection more strangers "
        "find a match."
    )
