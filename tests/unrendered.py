"""Figures that nobody looks at, and what they say."""

from pathlib import Path


def leave_unrendered(patch):
    """Write of a figure only its texts, as comments: to render it takes most of the time."""
    from matplotlib.figure import Figure

    def save(figure, path, **_):
        Path(path).write_text("<svg/>" + "".join(f"<!--{text}-->" for text in texts(figure)))

    patch.setattr(Figure, "savefig", save)


def texts(figure):
    """All texts of a figure, line by line; ticks where they are in view."""
    found = [figure.get_suptitle()]
    for axis in figure.axes:
        found += [text.get_text() for text in axis.texts]
        found += [axis.get_title(loc) for loc in ("left", "center")]
        for along in (axis.xaxis, axis.yaxis) if axis.axison else ():
            found.append(along.get_label().get_text())
            low, high = sorted(along.get_view_interval())
            ticks = zip(along.get_majorticklocs(), along.get_majorticklabels(), strict=False)
            found += [
                label.get_text() for at, label in ticks if low <= at <= high and label.get_visible()
            ]
    found += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return [line for text in found for line in text.split("\n") if line]
