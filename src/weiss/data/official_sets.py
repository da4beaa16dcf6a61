"""The published data sets: how each one is laid out, and what it must contain."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.downloads import Checksum
from weiss.data.official import Archive, OfficialSet, first_half, malformed, rows, whole_number
from weiss.data.sources import Files
from weiss.data.table import Table

BENCHMARKER = "powerful-benchmarker (its datasets/{}.py)"


def _archive(name: str, md5: str, source: str, url: str | None = None) -> Archive:
    return Archive(name, url, Checksum("md5", md5, source))


def _table(name: str, folder: Path, paths: list[str], classes: Array, splits: list[str]) -> Table:
    """Return the table of images with their class names or numbers, which sort the classes."""
    named, labels = np.unique(classes, return_inverse=True)
    names, split_of = tuple(str(name) for name in named), np.array(splits, dtype=str)
    return Table(name, Files(folder, paths), labels.astype(np.int64), names, split_of)


# CUB-200-2011: 200 species of birds.

CUB_PAGE = "https://data.caltech.edu/records/65de6-vp158"


def _read_cub(folder: Path) -> Table:
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
    class_names = tuple(names[number] for number in numbers)
    files = Files(folder / "images", list(images.values()))
    return Table("cub", files, label_of, class_names, first_half(label_of, len(names)))


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
    home=CUB_PAGE,
    terms="Cite Wah et al. 2011, CNS-TR-2011-001; its page states the terms.",
    counts={"train": (5_864, 100), "test": (5_924, 100)},
    archives=(
        _archive(
            "CUB_200_2011.tgz",
            "97eceeb196236b17998738112f37df78",
            BENCHMARKER.format("cub200"),
            f"{CUB_PAGE}/files/CUB_200_2011.tgz",
        ),
    ),
    by_hand=f"Fetch CUB_200_2011.tgz (1.1 GB) from {CUB_PAGE} and put it into {{root}}.",
    folders=("CUB_200_2011",),
    lists=(("images.txt", "image_class_labels.txt", "classes.txt"),),
    read_lists=_read_cub,
)

# Cars-196: 196 models of cars, published in two forms. The old one is ``cars_annos.mat`` with
# ``car_ims/``. The new one splits the same images for a classifier: ``cars_train/``,
# ``cars_test/``, ``devkit/`` and, separate from these, ``cars_test_annos_withlabels.mat``. Both
# give the same classes and splits here.

ALL, TRAIN, META = "cars_annos.mat", "cars_train_annos.mat", "cars_meta.mat"
TEST, BARE = "cars_test_annos_withlabels.mat", "cars_test_annos.mat"
# Where files of the devkit may be: as published, as in the copy on Kaggle, or loose.
CARS_PLACES = ("devkit", "car_devkit/devkit", ".")
CARS_HELP = "https://github.com/pytorch/vision/issues/7545"


def _read_cars(folder: Path) -> Table:
    train = _find(folder, TRAIN)
    paths: list[str] = []
    labels: list[int] = []
    if train is None or ((folder / ALL).is_file() and (folder / "car_ims").is_dir()):
        names = _names(folder / ALL)
        paths, labels = _annotations(folder / ALL, "relative_im_path", len(names))
    else:
        test, meta = _find(folder, TEST), _find(folder, META)
        if test is None:
            bare = f"; only {BARE} is there, which has none" if _find(folder, BARE) else ""
            raise FileNotFoundError(
                f"Cars-196 needs the classes of its test images, in {TEST}; it is neither in "
                f"{folder} nor in {folder / 'devkit'}{bare}. Fetch that file (see {CARS_HELP}) and "
                f"put it into {folder}."
            )
        if meta is None:
            raise FileNotFoundError(
                f"Cars-196 needs the names of its classes, in {META}; it is neither in {folder} "
                f"nor in {folder / 'devkit'}. It is part of car_devkit.tgz (see {CARS_HELP})."
            )
        names = _names(meta)
        for annotations, images in ((train, "cars_train"), (test, "cars_test")):
            # The copy on Kaggle has each folder twice, one in the other.
            images = f"{images}/{images}" if (folder / images / images).is_dir() else images
            files, classes = _annotations(annotations, "fname", len(names))
            paths += [f"{images}/{path}" for path in files]
            labels += classes
    label_of = np.array(labels, dtype=np.int64)
    splits = first_half(label_of, len(names))
    return Table("cars", Files(folder, paths), label_of, names, splits)


def _find(folder: Path, name: str) -> Path | None:
    return next((p for place in CARS_PLACES if (p := folder / place / name).is_file()), None)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(str(name).strip() for name in _column(path, "class_names"))


def _annotations(path: Path, column: str, num_classes: int) -> tuple[list[str], list[int]]:
    """Return the paths and the class indices of a file of annotations; its classes count from 1."""
    annotations = _column(path, "annotations")
    for field in (column, "class"):
        if field not in (annotations.dtype.names or ()):
            raise _damaged(path, f"must have the field {field!r} in its annotations")
    pairs: Iterable[tuple[Any, Any]] = zip(annotations[column], annotations["class"], strict=True)
    paths, labels = [], []
    for number, (name, label) in enumerate(pairs, start=1):
        if not np.issubdtype(np.asarray(label).dtype, np.integer) or np.ndim(label) != 0:
            raise _damaged(path, f"must have a class in annotation {number}, not {label!r}")
        if not 1 <= int(label) <= num_classes:
            raise _damaged(path, f"must have classes 1 to {num_classes}, not {label} ({name})")
        paths.append(str(name))
        labels.append(int(label) - 1)
    return paths, labels


def _column(path: Path, name: str) -> Any:
    """Return a variable of a MATLAB file as one dimension."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, squeeze_me=True)
    except Exception as error:  # of many kinds
        raise _damaged(path, f"must be a MATLAB file of version 5 ({error})") from error
    if name not in found:
        raise _damaged(path, f"must hold the variable {name!r}")
    return np.atleast_1d(found[name])


def _damaged(path: Path, must: str) -> ValueError:
    return ValueError(f"{path} {must}. Restore the official file.")


_TORCHVISION = "torchvision (its StanfordCars, before pull request 8309)"

CARS = OfficialSet(
    name="cars",
    title="Cars-196",
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    terms="Cite Krause et al., 3dRR-13; the page that stated the terms no longer answers.",
    counts={"train": (8_054, 98), "test": (8_131, 98)},
    # Stanford's addresses no longer answer, so there is nothing to download from.
    archives=(
        _archive("car_devkit.tgz", "c3b158d763b6e2245038c8ad08e45376", _TORCHVISION),
        _archive("cars_train.tgz", "065e5b463ae28d29e77c1b4b166cfe61", _TORCHVISION),
        _archive("cars_test.tgz", "4ce7ebf6a94d07f1952d94dd34c4d501", _TORCHVISION),
        _archive(TEST, "b0a2b23655a3edd16d84508592a98d10", _TORCHVISION),
        _archive("car_ims.tgz", "d5c8f0aa497503f355e17dc7886c3f14", BENCHMARKER.format("cars196")),
        _archive(ALL, "b407c6086d669747186bd1d764ff9dbc", BENCHMARKER.format("cars196")),
    ),
    by_hand=(
        "Stanford no longer offers it. Get it from somebody who has it, or from the copies named "
        f"in {CARS_HELP}, and put into {{root}} either car_ims.tgz and cars_annos.mat, or "
        f"car_devkit.tgz, cars_train.tgz, cars_test.tgz and {TEST}; or the folders they unpack to "
        "(car_ims, or devkit, cars_train and cars_test)."
    ),
    folders=("stanford_cars", "cars196", "Cars196"),
    lists=((ALL,), *((f"{place}/{TRAIN}".removeprefix("./"),) for place in CARS_PLACES)),
    read_lists=_read_cars,
)

# Stanford Online Products: 22,634 products from eBay, in 12 super classes.

SOP_COLUMNS = ("image_id", "class_id", "super_class_id", "path")
SOP_PAGE = "https://cvgl.stanford.edu/projects/lifted_struct/"


def _read_sop(folder: Path) -> Table:
    paths: list[str] = []
    numbers: list[int] = []
    splits: list[str] = []
    for split in ("train", "test"):
        file = folder / f"Ebay_{split}.txt"
        for line, fields in rows(file, SOP_COLUMNS, header=1):
            _, number, _ = (
                whole_number(field, file, line, column)
                for field, column in zip(fields[:3], SOP_COLUMNS[:3], strict=True)
            )
            numbers.append(number)
            paths.append(fields[3])
            splits.append(split)
    # A product has no name; its number is used instead.
    return _table("sop", folder, paths, np.array(numbers, dtype=np.int64), splits)


SOP = OfficialSet(
    name="sop",
    title="Stanford Online Products",
    home=SOP_PAGE,
    terms="Cite Oh Song et al., CVPR 2016; its page states the terms.",
    counts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
    archives=(
        _archive(
            "Stanford_Online_Products.zip",
            "7f73d41a2f44250d4779881525aea32e",
            BENCHMARKER.format("stanford_online_products"),
            # The page gives ftp://cs.stanford.edu/cs/cvgl/; this is the same folder of the same
            # server over http (as chainercv does), where a download can be resumed.
            "http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",
        ),
    ),
    by_hand=(
        "Fetch Stanford_Online_Products.zip (2.9 GB) from "
        "ftp://cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip or from the links on "
        f"{SOP_PAGE} and put it into {{root}}."
    ),
    folders=("Stanford_Online_Products",),
    lists=(("Ebay_train.txt", "Ebay_test.txt"),),
    read_lists=_read_sop,
)

# In-Shop Clothes Retrieval, of DeepFashion: query and gallery of 3,985 items never trained on.

INSHOP_COLUMNS = ("image_name", "item_id", "evaluation_status")
INSHOP_LIST = "list_eval_partition.txt"
INSHOP_SPLITS = ("train", "query", "gallery")
INSHOP_PAGE = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
INSHOP_PLACES = ((f"Eval/{INSHOP_LIST}",), (f"Anno/{INSHOP_LIST}",), (INSHOP_LIST,))


def _read_inshop(folder: Path) -> Table:
    path = next(folder / place for (place,) in INSHOP_PLACES if (folder / place).is_file())
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        total = whole_number(file.readline().strip(), path, 1, "number of images")
    paths, items, splits = [], [], []
    for line, fields in rows(path, INSHOP_COLUMNS, header=2):
        if fields[2] not in INSHOP_SPLITS:
            raise malformed(path, line, "train, query or gallery at its end", " ".join(fields))
        paths.append(fields[0])
        items.append(fields[1])
        splits.append(fields[2])
    if len(paths) != total:
        raise ValueError(
            f"{path} must list as many images as its first line states, {total:,}; got "
            f"{len(paths):,}. Restore the official file."
        )
    # The official folder keeps img.zip in Img/; it may be unpacked there or above.
    base = folder / "Img" if (folder / "Img" / "img").is_dir() else folder
    return _table("inshop", base, paths, np.array(items, dtype=str), splits)


INSHOP = OfficialSet(
    name="inshop",
    title="In-Shop Clothes Retrieval",
    home=INSHOP_PAGE,
    terms="For research that is not commercial, after agreeing to the terms of MMLab, CUHK.",
    counts={"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},
    archives=(Archive("img.zip"),),
    by_hand=(
        f"Agree to the terms on {INSHOP_PAGE}, fetch Img/img.zip (256 x 256 pixels, not "
        f"img_highres.zip) and Eval/{INSHOP_LIST} of the In-shop Clothes Retrieval Benchmark, and "
        "put both into {root}."
    ),
    folders=("In-shop Clothes Retrieval Benchmark", "In-shop", "inshop"),
    lists=INSHOP_PLACES,
    read_lists=_read_inshop,
)

INSHOP_JOINED = replace(
    INSHOP,
    name="inshop_joined",
    title="In-Shop Clothes Retrieval, query and gallery joined",
    counts={"train": (25_882, 3_997), "test": (26_830, 3_985)},
    read_lists=lambda folder: _read_inshop(folder).joined(),
)

OFFICIAL: dict[str, OfficialSet] = {
    official.name: official for official in (CUB, CARS, SOP, INSHOP, INSHOP_JOINED)
}
"""The published data sets by their short names."""
