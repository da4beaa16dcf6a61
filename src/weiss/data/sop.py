"""Stanford Online Products: 22,634 products from eBay, in 12 super classes."""

from pathlib import Path

import numpy as np

from weiss._base.downloads import Checksum
from weiss.data.official import Archive, Listing, OfficialSet, malformed, rows, whole_number

COLUMNS = ("image_id", "class_id", "super_class_id", "path")
PAGE = "https://cvgl.stanford.edu/projects/lifted_struct/"


def _listing(folder: Path) -> Listing:
    paths: list[str] = []
    numbers: list[int] = []
    splits: list[str] = []
    for split in ("train", "test"):
        file = folder / f"Ebay_{split}.txt"
        for line, fields in rows(file, COLUMNS):
            if line == 1:
                if tuple(fields) != COLUMNS:
                    raise malformed(file, line, " ".join(COLUMNS), " ".join(fields))
                continue
            _, number, _ = (
                whole_number(field, file, line, column)
                for field, column in zip(fields[:3], COLUMNS[:3], strict=True)
            )
            numbers.append(number)
            paths.append(fields[3])
            splits.append(split)
    # A product has no name; its number stands for it.
    classes, labels = np.unique(np.array(numbers, dtype=np.int64), return_inverse=True)
    names = tuple(str(number) for number in classes)
    return Listing(folder, paths, labels.astype(np.int64), names, np.array(splits, dtype=str))


SOP = OfficialSet(
    name="sop",
    title="Stanford Online Products",
    home=PAGE,
    terms="Cite Oh Song et al., CVPR 2016; its page states the terms.",
    counts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    archives=(
        Archive(
            "Stanford_Online_Products.zip",
            # The page gives ftp://cs.stanford.edu/cs/cvgl/; this is the same folder of the same
            # server over http (as chainercv does), where a download can be taken up again.
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
            Checksum(
                "md5",
                "7f73d41a2f44250d4779881525aea32e",
                "powerful-benchmarker (its datasets/stanford_online_products.py)",
            ),
        ),
    ),
    by_hand=(
        "Fetch Stanford_Online_Products.zip (2.9 GB) from "
        "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip or from the links on "
        f"{PAGE} and put it into {{root}}."
    ),
    folders=("Stanford_Online_Products",),
    lists=(("Ebay_train.txt", "Ebay_test.txt"),),
    listing=_listing,
)
