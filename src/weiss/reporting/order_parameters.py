"""The part of a report about order: how far classes gather, and whether fields agree with them."""

from collections.abc import Mapping
from pathlib import Path

from weiss import figures
from weiss.reporting.markdown import Document
from weiss.reporting.reading import Comparison
from weiss.reporting.sections import MOST_CURVES

MEANINGS = {
    "class_mean_length": (
        "The length of a class mean is 1 for a class in one point and near 0 for one scattered "
        "over the sphere."
    ),
    "residual": (
        "The residual is the distance of the class vector from the class mean, in the loss's own "
        "distance: 0 is self-consistent, as mean-field theory asks."
    ),
    "violating_share": (
        "Pairs of fields violate where they are closer than their own loss's repulsion reaches."
    ),
}
"""What each order parameter says, for people who see it for the first time."""


def add_order(document: Document, comparison: Comparison, name: str) -> None:
    """Add the order parameters along training, a line a loss; nothing where there are none.

    Curves look as the learning curves of the same comparison do.
    """
    runs = comparison.metrics()
    found = figures.order_averages(runs)
    if not 0 < len({label for curves in found.values() for label in curves}) <= MOST_CURVES:
        return
    # Runs of a reality check differ in their data too, not in the seed alone.
    caption = _caption(found, "run" if comparison.kind == "reality-check" else "seed")

    def draw(path: Path) -> str:
        figures.averaged_order(runs, path)
        return caption

    document.heading("Order along training", 3)
    document.figure(f"{name}-order", draw)


def _caption(found: Mapping[str, Mapping[str, figures.Averaged]], one: str) -> str:
    """Return what the panels show, what that means and how it was measured.

    Args:
        found: for each order parameter the curves.
        one: what each of the runs behind a line is called.
    """
    words = ["Order along training, the median over classes."]
    labels = {label for curves in found.values() for label in curves}
    for key, curves in found.items():
        words.append(MEANINGS[key])
        if key == "residual" and len(curves) < len(labels):
            words.append("A loss without class vectors, such as one over pairs, has none.")
    counts = [curve.num_runs for curves in found.values() for curve in curves.values()]
    fewest, most = min(counts), max(counts)
    if most == 1:
        words.append(f"Each line is of 1 {one}.")
    else:
        number = f"{most}" if fewest == most else f"{fewest} to {most}"
        words.append(
            f"Each line is the mean over those of {number} {one}s that reached the epoch, shaded "
            "from the lowest to the highest."
        )
    words.append(
        "Measured on the augmented training batches of the epoch as they passed, of a network that "
        "moved meanwhile, against the class vectors at its end."
    )
    return " ".join(words)
