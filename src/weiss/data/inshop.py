"""In-Shop Clothes Retrieval, of DeepFashion: query and gallery of 3,985 items never trained on."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from weiss.data.official import Archive, Listing, OfficialSet, malformed, rows, whole_number

COLUMNS = ("image_name", "item_id", "evaluation_status")
LIST = "list_eval_partition.txt"
SPLITS = ("train", "query", "gallery")
PAGE = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
PLACES = ((f"Eval/{LIST}",), (f"Anno/{LIST}",), (LIST,))


def _listing(folder: Path) -> Listing:
    path = next(folder / place for (place,) in PLACES if (folder / place).is_file())
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        count, header = file.readline().strip(), file.readline().split()
    total = whole_number(count, path, 1, "number of images")
    if tuple(header) != COLUMNS:
        raise malformed(path, 2, " ".join(COLUMNS), " ".join(header))
    paths, items, splits = [], [], []
    for line, fields in rows(path, COLUMNS, skip=2):
        if fields[2] not in SPLITS:
            raise malformed(path, line, "train, query or gallery at its end", " ".join(fields))
        paths.append(fields[0])
        items.append(fields[1])
        splits.append(fields[2])
    if len(paths) != total:
        raise ValueError(
            f"{path} must list the {total:,} images that its first line says; got {len(paths):,}. "
            "Restore the official file."
        )
    names, labels = np.unique(np.array(items, dtype=str), return_inverse=True)
    # The official folder keeps img.zip in Img/; some unpack it there, some above.
    base = folder / "Img" if (folder / "Img" / "img").is_dir() else folder
    names_of = tuple(str(name) for name in names)
    return Listing(base, paths, labels.astype(np.int64), names_of, np.array(splits, dtype=str))


def _joined(folder: Path) -> Listing:
    listing = _listing(folder)
    return replace(listing, splits=np.where(listing.splits == "train", "train", "test"))


INSHOP = OfficialSet(
    name="inshop",
    title="In-Shop Clothes Retrieval",
    home=PAGE,
    terms="For research that is not commercial, after agreeing to the terms of MMLab, CUHK.",
    counts={"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},
    archives=(Archive("img.zip"),),
    by_hand=(
        f"Agree to the terms on {PAGE}, fetch Img/img.zip (256 x 256 pixels, not img_highres.zip) "
        f"and Eval/{LIST} of the In-shop Clothes Retrieval Benchmark, and put both into {{root}}."
    ),
    folders=("In-shop Clothes Retrieval Benchmark", "In-shop", "inshop"),
    lists=PLACES,
    listing=_listing,
)

INSHOP_JOINED = replace(
    INSHOP,
    name="inshop_joined",
    title="In-Shop Clothes Retrieval, query and gallery joined",
    counts={"train": (25_882, 3_997), "test": (26_830, 3_985)},
    listing=_joined,
)
