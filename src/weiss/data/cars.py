"""Cars-196: 196 models of cars, published in two forms.

The old one is ``cars_annos.mat`` with ``car_ims/``. The new one cuts the same images otherwise, as
a classifier needs it: ``cars_train/``, ``cars_test/``, ``devkit/`` and, apart from these,
``cars_test_annos_withlabels.mat``. Both give the same classes and splits here.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.downloads import Checksum
from weiss.data.official import Archive, Listing, OfficialSet, first_half

ALL, TRAIN, META = "cars_annos.mat", "cars_train_annos.mat", "cars_meta.mat"
TEST, BARE = "cars_test_annos_withlabels.mat", "cars_test_annos.mat"
# Where files of the devkit may lie: as published, as the copy on Kaggle has it, or loose.
PLACES = ("devkit", "car_devkit/devkit", ".")
HELP = "https://github.com/pytorch/vision/issues/7545"


def _listing(folder: Path) -> Listing:
    train = _find(folder, TRAIN)
    if train is None or ((folder / ALL).is_file() and (folder / "car_ims").is_dir()):
        return _old(folder)
    test, meta = _find(folder, TEST), _find(folder, META)
    if test is None:
        bare = f"; only {BARE} is there, which has none" if _find(folder, BARE) else ""
        raise FileNotFoundError(
            f"Cars-196 needs the classes of its test images, in {TEST}; it is neither in {folder} "
            f"nor in {folder / 'devkit'}{bare}. Fetch that file (see {HELP}) and put it into "
            f"{folder}."
        )
    if meta is None:
        raise FileNotFoundError(
            f"Cars-196 needs the names of its classes, in {META}; it is neither in {folder} nor in "
            f"{folder / 'devkit'}. It is part of car_devkit.tgz (see {HELP})."
        )
    names = _names(meta)
    paths, labels = [], []
    for annotations, images in ((train, "cars_train"), (test, "cars_test")):
        # The copy on Kaggle has each folder twice, one in the other.
        images = f"{images}/{images}" if (folder / images / images).is_dir() else images
        of_file, classes = _annotations(annotations, "fname", len(names))
        paths += [f"{images}/{path}" for path in of_file]
        labels += classes
    return _made(folder, paths, labels, names)


def _old(folder: Path) -> Listing:
    names = _names(folder / ALL)
    paths, labels = _annotations(folder / ALL, "relative_im_path", len(names))
    return _made(folder, paths, labels, names)


def _made(folder: Path, paths: list[str], labels: list[int], names: tuple[str, ...]) -> Listing:
    label_of = np.array(labels, dtype=np.int64)
    return Listing(folder, paths, label_of, names, first_half(label_of, len(names)))


def _find(folder: Path, name: str) -> Path | None:
    return next((p for place in PLACES if (p := folder / place / name).is_file()), None)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(str(name).strip() for name in _column(path, "class_names"))


def _annotations(path: Path, column: str, num_classes: int) -> tuple[list[str], list[int]]:
    """Return the paths and the class indices of a file of annotations; its classes count from 1."""
    annotations = _column(path, "annotations")
    for field in (column, "class"):
        if field not in (annotations.dtype.names or ()):
            raise _damaged(path, f"must have the field {field!r} in its annotations")
    paths, labels = [], []
    for number, (name, label) in enumerate(_pairs(annotations, column), start=1):
        if not np.issubdtype(np.asarray(label).dtype, np.integer) or np.ndim(label) != 0:
            raise _damaged(path, f"must have a class in annotation {number}, not {label!r}")
        if not 1 <= int(label) <= num_classes:
            raise _damaged(path, f"must have classes 1 to {num_classes}, not {label} ({name})")
        paths.append(str(name))
        labels.append(int(label) - 1)
    return paths, labels


def _pairs(annotations: Any, column: str) -> Iterable[tuple[Any, Any]]:
    return zip(annotations[column], annotations["class"], strict=True)


def _column(path: Path, name: str) -> Any:
    """Return a variable of a MATLAB file as one dimension."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, squeeze_me=True)
    except Exception as error:  # of many kinds, and what they say is about MATLAB's format
        raise _damaged(path, f"must be a MATLAB file of version 5 ({error})") from error
    if name not in found:
        raise _damaged(path, f"must hold the variable {name!r}")
    return np.atleast_1d(found[name])


def _damaged(path: Path, must: str) -> ValueError:
    return ValueError(f"{path} {must}. Restore the official file.")


def _archive(name: str, md5: str, source: str) -> Archive:
    unpacks = not name.endswith(".mat")
    return Archive(name, None, Checksum("md5", md5, source), unpacks)


_TORCHVISION = "torchvision (its StanfordCars, before pull request 8309)"
_BENCHMARKER = "powerful-benchmarker (its datasets/cars196.py)"

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
        _archive("car_ims.tgz", "d5c8f0aa497503f355e17dc7886c3f14", _BENCHMARKER),
        _archive(ALL, "b407c6086d669747186bd1d764ff9dbc", _BENCHMARKER),
    ),
    by_hand=(
        "Stanford no longer offers it. Get it from somebody who has it, or from the copies named "
        f"in {HELP}, and put into {{root}} either car_ims.tgz and cars_annos.mat, or "
        f"car_devkit.tgz, cars_train.tgz, cars_test.tgz and {TEST}; or the folders they unpack to "
        "(car_ims, or devkit, cars_train and cars_test)."
    ),
    folders=("stanford_cars", "cars196", "Cars196"),
    lists=((ALL,), *((f"{place}/{TRAIN}".removeprefix("./"),) for place in PLACES)),
    listing=_listing,
)
