"""Miniature data: tables, folders of photos, and copies of the official data sets.

Each ``write_`` writes one into a folder and returns the official folder. Classes have images of
their own colour, so that even a small network can tell them apart.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from weiss.data import Table
from weiss.data.sources import Pixels


def toy_table(labels, num_classes: int, splits=None, source=None) -> Table:
    """Return a table of blank images, or of a source; a list of lists is a multi-label one."""
    if labels and isinstance(labels[0], list):
        hot = np.zeros((len(labels), num_classes), dtype=bool)
        for row, classes in enumerate(labels):
            hot[row, classes] = True
        labels = hot
    source = source or Pixels(np.zeros((len(labels), 2, 2), np.uint8))
    names = tuple(f"c{c}" for c in range(num_classes))
    splits = np.full(len(labels), "train") if splits is None else np.array(splits)
    return Table("toy", source, np.array(labels), names, splits)


def write_photos(root: Path, num_classes: int, per_class: int, size) -> Path:
    """Write a folder with one subfolder a class; ``size(c, i)`` is that of an image."""
    for c in range(num_classes):
        for i in range(per_class):
            write_image(root / f"class {c}" / f"{i}.jpg", c, i, size=size(c, i))
    return root


def assert_same_batches(first, second) -> None:
    """Assert that batches of two pipelines agree to the last bit."""
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.items, other.items)
        assert np.array_equal(one.images.numpy(), other.images.numpy())
        assert one.labels.tolist() == other.labels.tolist()


def write_image(path: Path, label: int, number: int = 0, size: tuple[int, int] = (24, 18)) -> None:
    """Write a JPEG in the colour of its class, with a little noise of its own."""
    colour = np.random.default_rng(label).integers(40, 216, 3)
    noise = np.random.default_rng((label, number)).integers(-30, 31, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((colour + noise).astype(np.uint8)).save(path, quality=90)


def write_lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def write_cub(root: Path, num_classes: int = 4, per_class: int = 3) -> Path:
    folder = root / "CUB_200_2011"
    names = [f"{c + 1:03d}.Bird_{c}" for c in range(num_classes)]
    images = [
        (c, f"{names[c]}/Bird_{c}_{i}.jpg") for c in range(num_classes) for i in range(per_class)
    ]
    for number, (c, path) in enumerate(images):
        write_image(folder / "images" / path, c, number)
    write_lines(folder / "classes.txt", *(f"{c + 1} {name}" for c, name in enumerate(names)))
    write_lines(folder / "images.txt", *(f"{n + 1} {path}" for n, (_, path) in enumerate(images)))
    labels = (f"{n + 1} {c + 1}" for n, (c, _) in enumerate(images))
    write_lines(folder / "image_class_labels.txt", *labels)
    return folder


def car_names(num_classes: int) -> list[str]:
    return [f"Maker Model {c} Sedan 2012" for c in range(num_classes)]


def write_mat(path: Path, **variables: object) -> None:
    """Write a MATLAB file; a list of dicts becomes an array of structs, of str a cell array."""
    from scipy.io import savemat

    saved = {}
    for name, value in variables.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            kinds = [(key, object) for key in value[0]]
            saved[name] = np.array([tuple(row.values()) for row in value], dtype=kinds)[None]
        else:
            saved[name] = np.array(value, dtype=object)[None]
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, saved)


def car_box() -> dict[str, object]:
    return {f"bbox_{corner}": np.uint8(1) for corner in ("x1", "y1", "x2", "y2")}


def write_cars_old(root: Path, num_classes: int = 4, per_class: int = 3) -> Path:
    annotations = []
    for number in range(num_classes * per_class):
        c, path = number // per_class, f"car_ims/{number + 1:06d}.jpg"
        write_image(root / path, c, number)
        row = {"relative_im_path": path, **car_box(), "class": np.uint8(c + 1)}
        annotations.append({**row, "test": np.uint8(number % 2)})
    names = car_names(num_classes)
    write_mat(root / "cars_annos.mat", annotations=annotations, class_names=names)
    return root


def write_cars_new(
    root: Path, num_classes: int = 4, per_class: int = 3, *, labels_in: str = "."
) -> Path:
    """Write the layout of the devkit; every second image is a test image of the classifier."""
    train, test = [], []
    for number in range(num_classes * per_class):
        c = number // per_class
        rows, part = (test, "cars_test") if number % 2 else (train, "cars_train")
        name = f"{len(rows) + 1:05d}.jpg"
        write_image(root / part / name, c, number)
        rows.append({**car_box(), "class": np.uint8(c + 1), "fname": name})
    write_mat(root / "devkit" / "cars_meta.mat", class_names=car_names(num_classes))
    write_mat(root / "devkit" / "cars_train_annos.mat", annotations=train)
    bare = [{key: value for key, value in row.items() if key != "class"} for row in test]
    write_mat(root / "devkit" / "cars_test_annos.mat", annotations=bare)
    write_mat(root / labels_in / "cars_test_annos_withlabels.mat", annotations=test)
    return root


def write_sop(root: Path, num_classes: int = 4, per_class: int = 3) -> Path:
    folder = root / "Stanford_Online_Products"
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for number in range(num_classes * per_class):
        c = number // per_class
        kind = ("bicycle", "chair")[c % 2]
        path = f"{kind}_final/{111_000_000 + c}_{number % per_class}.JPG"
        write_image(folder / path, c, number)
        split = "train" if c < num_classes // 2 else "test"
        lists[split].append(f"{number + 1} {c + 1} {c % 2 + 1} {path}")
    for split, lines in lists.items():
        write_lines(folder / f"Ebay_{split}.txt", "image_id class_id super_class_id path", *lines)
    return folder


def write_inshop(
    root: Path, num_classes: int = 4, per_class: int = 4, *, list_in: str = "Eval"
) -> Path:
    """Write half of the items to train on, of the others every second image as query."""
    lines = []
    for number in range(num_classes * per_class):
        c, i = divmod(number, per_class)
        item = f"id_{c + 1:08d}"
        path = f"img/WOMEN/Dresses/{item}/{i + 1:02d}_1_front.jpg"
        write_image(root / path, c, number)
        split = "train" if c < num_classes // 2 else ("query", "gallery")[i % 2]
        lines.append(f"{path:<70}{item} {split}")
    header = "image_name item_id evaluation_status"
    write_lines(root / list_in / "list_eval_partition.txt", str(len(lines)), header, *lines)
    return root
