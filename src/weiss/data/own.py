"""Your own data: a folder of photos, a list of files, arrays, a Hugging Face data set."""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weiss._base import checks, images
from weiss._base.checks import some
from weiss.data.assembly import ALIASES, Assembly
from weiss.data.sources import Files, HubImages, Pixels, Source, Vectors
from weiss.data.table import SPLITS, Table

SEPARATOR = "|"
"""Between the labels of one image in a list of files."""
COLUMNS = ("path", "label", "labels", "split")
EMPTY = "holds no images"
"""Why a subfolder is left out."""


def from_folder(folder: str | Path, how: Assembly | None = None) -> Table:
    """Read a folder with one subfolder a class; or with train, test, ... and classes below those.

    Files that are no images by their suffix are left alone, hidden ones too.

    Args:
        folder: the folder.
        how: how to split and what to refuse.

    Returns:
        The table; class names are the names of the subfolders.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"a folder of photos must exist; {folder} does not. Check the path."
        )
    below = _subfolders(folder)
    loose = [path.name for path in sorted(folder.iterdir()) if _is_image(path)]
    if loose:
        raise ValueError(
            f"images must lie in one subfolder a class; {len(loose):,} lie in {folder} itself: "
            f"{some(loose)}. Make a subfolder for each class and move them."
        )
    if not below:
        raise ValueError(
            f"{folder} must have one subfolder a class; it has none. Make a subfolder for each "
            "class and put its images there."
        )
    names = [ALIASES.get(path.name.lower(), path.name.lower()) for path in below]
    # A folder called train with folders in it is a split, and then everything beside it must be.
    is_split = any(
        name in SPLITS and _subfolders(path) for name, path in zip(names, below, strict=True)
    )
    if is_split:
        _refuse_half_split(folder, below, names)
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    empty = []
    for part, split in zip(below, names, strict=True):
        for one in _subfolders(part) if is_split else [part]:
            found = sorted(images_below(one))
            if not found:
                empty.append(str(one.relative_to(folder)))
            paths += [os.path.relpath(path, folder) for path in found]
            labels += [one.name] * len(found)
            splits += [split] * len(found)
    how = how or Assembly()
    if empty and not how.skip_bad:
        raise ValueError(
            f"every class must have images; {len(empty):,} subfolders of {folder} have none: "
            f"{some(empty)}. Remove them, or add images ({', '.join(images.SUFFIXES)})."
        )
    if empty:
        words = f"{len(empty):,} subfolders hold no images and are left out: {some(empty)}"
        how.left_out(empty, EMPTY, words)
    return how.table(folder.name, Files(folder, paths), labels, splits if is_split else None)


def from_list(
    path: str | Path, how: Assembly | None = None, *, root: str | Path | None = None
) -> Table:
    """Read a CSV, TSV or Parquet file that lists images.

    Columns: ``path``; ``label``, or ``labels`` for several, with ``|`` between them (in Parquet
    also a list); and if you like ``split``: train, valid, test, query, gallery.

    Args:
        path: the list.
        how: how to split and what to refuse.
        root: what the paths are relative to; the list's own folder by default.

    Returns:
        The table.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"a list of images must exist; {path} does not. Check the path.")
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    if "path" not in columns or not {"label", "labels"} & set(columns):
        missing = "path" if "path" not in columns else "label"
        hint = next(
            (
                f" Rename {name!r}?"
                for name in columns
                if name not in COLUMNS and checks.suggestion(name, COLUMNS)
            ),
            "",
        )
        raise ValueError(
            f"{path} must have the columns path and label (or labels); it has "
            f"{', '.join(columns) or 'none'}, so {missing} is missing.{hint}"
        )
    labels = columns["label"] if "label" in columns else [_several(v) for v in columns["labels"]]
    labels = _as_numbers(labels)
    source = Files(root or path.parent, [str(value) for value in columns["path"]])
    how = how or Assembly()
    there = np.array([source.file(row).is_file() for row in range(len(source))], dtype=bool)
    splits = columns.get("split")
    if not there.all():
        names = [source.name(int(row)) for row in np.flatnonzero(~there)]
        absent = some(names)
        law = f"every listed image must exist below {source.root}; {(~there).sum():,} of"
        if not how.skip_bad:
            raise FileNotFoundError(
                f"{law} {len(source):,} do not: {absent}. Give the folder they are relative to "
                "with root=DIR (on the command line: --root DIR), or mend the list."
            )
        how.left_out(names, "does not exist", f"{law} {len(source):,} are left out: {absent}")
        rows = np.flatnonzero(there)
        source = source.take(rows)
        labels = [labels[row] for row in rows]
        splits = None if splits is None else [splits[row] for row in rows]
    return how.table(path.stem, source, labels, splits)


def from_arrays(
    items: Any,
    labels: Any,
    how: Assembly | None = None,
    *,
    splits: Sequence[str] | None = None,
    name: str = "arrays",
) -> Table:
    """Take images or vectors that are in memory.

    Args:
        items: uint8 images ``(N, H, W)``, ``(N, H, W, 3)`` or, as a tensor, ``(N, 3, H, W)``; or
            floating-point vectors ``(N, F)``. An array or a tensor.
        labels: ``(N,)`` numbers or strings, or multi-hot ``(N, C)`` of 0 and 1.
        how: how to split and what to refuse.
        splits: ``(N,)`` names of splits.
        name: what to call it.

    Returns:
        The table.
    """
    if isinstance(items, torch.Tensor):
        if items.ndim == 4 and items.shape[1] in (1, 3):
            items = items.permute(0, 2, 3, 1)
        items = items.detach().cpu().numpy()
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    items, labels = np.asarray(items), np.asarray(labels)
    if len(labels) != len(items):
        raise ValueError(
            f"labels must have one entry for each of the {len(items):,} items of {name}; got "
            f"{len(labels):,}. Pass them in the order of the items."
        )
    source: Source = Vectors(items) if items.ndim == 2 else Pixels(items)
    listed: list[Any] = list(labels)
    if labels.ndim == 2:
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(
                f"multi-hot labels must be 0 or 1 in {name}; some are not. Pass class numbers "
                "(N,), or one 0/1 entry a class (N, C)."
            )
        listed = [np.flatnonzero(row) for row in labels]
    elif labels.ndim != 1:
        raise ValueError(
            f"labels must have shape (N,) or (N, C) for {name}; got {labels.shape}. Flatten them."
        )
    return (how or Assembly()).table(name, source, listed, splits)


def from_hub(
    dataset: Any,
    how: Assembly | None = None,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    name: str = "hub",
) -> Table:
    """Take a Hugging Face ``Dataset``, or a ``DatasetDict`` whose keys are splits.

    Args:
        dataset: the data set.
        how: how to split and what to refuse.
        image_column: the column of images; by default the only one of that type.
        label_column: the column of labels; by default ``label`` or ``labels``.
        name: what to call it.

    Returns:
        The table.
    """
    splits: list[str] | None = None
    if "Iterable" in type(dataset).__name__:
        raise TypeError(
            "a Hugging Face data set must know its rows; got one that is streamed. Load it with "
            "streaming=False."
        )
    if isinstance(dataset, dict):
        from datasets import concatenate_datasets

        splits = [split for split, part in dataset.items() for _ in range(len(part))]
        dataset = concatenate_datasets(list(dataset.values()))
    features = dataset.features
    of_images = [key for key, kind in features.items() if type(kind).__name__ == "Image"]
    image_column = _column("image_column", image_column, of_images, features)
    of_labels = [key for key in ("label", "labels") if key in features]
    label_column = _column("label_column", label_column, of_labels, features)
    kind = features[label_column]
    names = getattr(kind, "names", None) or getattr(getattr(kind, "feature", None), "names", None)
    source = HubImages(dataset, image_column)
    return (how or Assembly()).table(name, source, dataset[label_column][:], splits, names)


def _refuse_half_split(folder: Path, below: list[Path], names: list[str]) -> None:
    """Refuse what is neither a folder of classes nor folders of splits with classes."""
    others = [path.name for path, name in zip(below, names, strict=True) if name not in SPLITS]
    loose = [path.name for path in below if any(map(_is_image, path.iterdir()))]
    if others or loose:
        wrong = f"these are no splits: {some(others)}" if others else ""
        wrong += " and " if others and loose else ""
        wrong += f"images lie outside of class folders in: {some(loose)}" if loose else ""
        raise ValueError(
            f"{folder} must hold either classes, or only splits ({', '.join(SPLITS)}) that hold "
            f"one subfolder a class; {wrong}. Move them."
        )


def _column(argument: str, given: str | None, found: list[str], features: Any) -> str:
    if given is not None:
        return checks.one_of(argument, given, list(features), "from_hub")
    if len(found) != 1:
        raise ValueError(
            f"{argument} must be named for from_hub, since {len(found)} columns qualify; there "
            f"are {', '.join(features)}. Pass {argument}=..."
        )
    return found[0]


def _csv(path: Path) -> dict[str, list[Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path} must be a CSV file in UTF-8; it cannot be read ({error}). Save it again."
        ) from error
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: every row must have the {len(header)} columns of the "
                f"header; got {len(row)}. Quote values that contain the separator."
            )
    columns: dict[str, list[Any]] = {
        key: [row[at] for _, row in rows] for at, key in enumerate(header)
    }
    for key in {"label", "labels"} & set(columns):
        # What spreadsheets and pandas write where there is nothing.
        columns[key] = [None if v.strip().lower() in ("", "nan") else v for v in columns[key]]
    return columns


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"pyarrow is needed to read {path}. Install it with: pip install 'weiss[parquet]'"
        ) from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} must be a Parquet file; it cannot be read ({error}). Write it again."
        ) from error
    return {name.lower(): table.column(name).to_pylist() for name in table.column_names}


def _as_numbers(labels: list[Any]) -> list[Any]:
    """Read labels as numbers if all are: text then sorts as in a file that knows numbers."""
    words = [label for label in labels if isinstance(label, str)]
    is_number = all(re.fullmatch(r"0|-?[1-9]\d*", word.strip()) for word in words)
    return [int(v) if is_number and isinstance(v, str) else v for v in labels]


def _several(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in (one.strip() for one in value.split(SEPARATOR)) if part]
    return value


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_image(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and path.suffix.lower() in images.SUFFIXES and path.is_file()


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the image files of a folder and of all below it, hidden ones left alone."""
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        # Links may go in circles.
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in files if _is_image(path := Path(place) / name))
