"""CUB-200-2011: 200 species of birds."""

from pathlib import Path

import numpy as np

from weiss._base.downloads import Checksum
from weiss.data.official import (
    Archive,
    Listing,
    OfficialSet,
    first_half,
    malformed,
    rows,
    whole_number,
)

PAGE = "https://data.caltech.edu/records/65de6-vp158"


def _listing(folder: Path) -> Listing:
    names = _by_number(folder / "classes.txt", "class_id", "class_name")
    images = _by_number(folder / "images.txt", "image_id", "image_name")
    numbers = sorted(names)
    index = {number: place for place, number in enumerate(numbers)}

    path = folder / "image_class_labels.txt"
    labels: dict[int, int] = {}
    for line, fields in rows(path, ("image_id", "class_id")):
        image = whole_number(fields[0], path, line, "image_id")
        label = whole_number(fields[1], path, line, "class_id")
        if image not in images or image in labels:
            raise malformed(path, line, "an image_id of images.txt, once", fields[0])
        if label not in index:
            raise malformed(path, line, "a class_id of classes.txt", fields[1])
        labels[image] = index[label]
    if len(labels) != len(images):
        first = next(image for image in images if image not in labels)
        raise ValueError(
            f"{path} must give the class of each of the {len(images):,} images of images.txt; "
            f"{len(images) - len(labels):,} have none, the first is {first}. "
            "Restore the official file."
        )
    label_of = np.array([labels[image] for image in images], dtype=np.int64)
    return Listing(
        folder / "images",
        list(images.values()),
        label_of,
        tuple(names[number] for number in numbers),
        first_half(label_of, len(names)),
    )


def _by_number(path: Path, number: str, name: str) -> dict[int, str]:
    """Read a list of numbers and names."""
    found: dict[int, str] = {}
    for line, fields in rows(path, (number, name)):
        key = whole_number(fields[0], path, line, number)
        if key in found:
            raise malformed(path, line, f"a new {number}", fields[0])
        found[key] = fields[1]
    return found


CUB = OfficialSet(
    name="cub",
    title="CUB-200-2011",
    home=PAGE,
    terms="Cite Wah et al. 2011, CNS-TR-2011-001; its page states the terms.",
    counts={"train": (5_864, 100), "test": (5_924, 100)},
    archives=(
        Archive(
            "CUB_200_2011.tgz",
            f"{PAGE}/files/CUB_200_2011.tgz",
            Checksum(
                "md5",
                "97eceeb196236b17998738112f37df78",
                "powerful-benchmarker (its datasets/cub200.py)",
            ),
        ),
    ),
    by_hand=f"Fetch CUB_200_2011.tgz (1.1 GB) from {PAGE} and put it into {{root}}.",
    folders=("CUB_200_2011",),
    lists=(("images.txt", "image_class_labels.txt", "classes.txt"),),
    listing=_listing,
)
