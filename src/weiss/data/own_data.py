"""Tables from your own data: a folder of photos, a list of files, arrays, a Hugging Face data set.

`Assembly` makes the table: classes from labels, the splits, and what is refused. Whatever is wrong
is found here, before anything is trained, and named; ``skip_bad`` leaves it out instead and lists
what it left out. The file is one piece: readers give raw columns, `Assembly` interprets them.
"""

import csv
import math
import numbers
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weiss._base import checks, images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss.data.sources import Files, HubImages, Pixels, Source, Vectors
from weiss.data.splits import hold_out_classes, refuse_shared_classes, stratify, train_on_all
from weiss.data.table import SPLITS, Table

HOW_TO_SPLIT = ("auto", "given", "classes", "stratified", "all")
ALIASES = {"val": "valid", "validation": "valid", "training": "train", "testing": "test"}
SEPARATOR = "|"
"""Between the labels of one image in a list of files."""
COLUMNS = ("path", "label", "labels", "split")
EMPTY = "holds no images"
"""Why a subfolder is left out."""


@dataclass(frozen=True)
class Assembly:
    """How a table is made of raw items.

    Args:
        split: ``"classes"`` holds out a share of the classes; ``"stratified"`` a share of every
            class's items; ``"all"`` trains on everything, for the model to ship; ``"given"`` uses
            the splits that came with the data; ``"auto"`` is given where there are any, else
            classes.
        held_out: the share to hold out.
        seed: of the classes or items that are held out.
        shared_classes: accept given splits whose train and test share classes.
        min_images: a class with fewer items is refused. Retrieval needs two: a query and a match.
        skip_bad: leave out what would be refused, with a warning that lists it.
        on_left_out: called with the names of what is left out and why, instead of a warning.
    """

    split: str = "auto"
    held_out: float = 0.2
    seed: int = 0
    shared_classes: bool = False
    min_images: int = 2
    skip_bad: bool = False
    on_left_out: Callable[[Sequence[str], str], None] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Refuse unknown choices."""
        checks.one_of("split", self.split, HOW_TO_SPLIT, "data")
        checks.count("min_images", self.min_images, "data")

    def table(
        self,
        name: str,
        source: Source,
        labels: Sequence[Any],
        splits: Sequence[Any] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Table:
        """Make the table.

        Args:
            name: of the table.
            source: N items.
            labels: N labels, each a string or a number, or a list of them (multi-label).
            splits: N names of splits, if the data have them.
            class_names: names of classes that integer labels count; from the labels by default.

        Returns:
            The table, split.
        """
        if len(source) == 0:
            raise ValueError(f"{name} must hold images; found none. Check the path.")
        for what, column in (("labels", labels), ("splits", splits)):
            if column is not None and len(column) != len(source):
                raise ValueError(
                    f"{what} must have one entry for each of the {len(source):,} items of {name}; "
                    f"got {len(column):,}. Pass them in the order of the items."
                )
        kept = np.arange(len(source))
        labels = list(labels)
        bad = _bad_labels(labels, class_names)
        law = "labels must not be missing or NaN"
        kept = self._without(bad, kept, law, "has no label", name, source)
        law, bad = "each path must be listed once", _repeated(source, kept)
        kept = self._without(bad, kept, law, "is listed more than once", name, source)
        indices, names = _classes([labels[row] for row in kept], class_names)
        if splits is None:
            given = np.full(len(kept), "train")
        else:
            given = np.array([_split_name(splits[int(row)], name) for row in kept])
        table = Table(name, source.take(kept), indices, names, given)
        return self._split(self._without_small_classes(table), splits is not None)

    def _split(self, table: Table, has_splits: bool) -> Table:
        how = self.split
        if how == "auto":
            how = "given" if has_splits else "classes"
        if how == "classes":
            return hold_out_classes(table, self.held_out, self.seed)
        if how == "stratified":
            return stratify(table, self.held_out, self.seed)
        if how == "all":
            return train_on_all(table)
        if not has_splits:
            raise ValueError(
                f"split must not be 'given' for {table.name}, which names none. Add a column "
                "'split', or choose 'classes', 'stratified' or 'all'."
            )
        if table.has("query") != table.has("gallery"):
            there, lacks = ("query", "gallery") if table.has("query") else ("gallery", "query")
            raise ValueError(
                f"a query split needs a gallery and the other way round; {table.name} has {there} "
                f"but no {lacks}. Mark both, or use 'test' to search a set in itself."
            )
        if not self.shared_classes:
            refuse_shared_classes(table)
        return table

    def left_out(self, names: Sequence[str], why: str, words: str) -> None:
        """Report what is left out: names and why to `on_left_out`, or words as a warning."""
        if self.on_left_out is not None:
            self.on_left_out(names, why)
        else:
            warnings.warn(words, stacklevel=5)

    def _without(
        self, bad: Array, kept: Array, law: str, why: str, name: str, source: Source
    ) -> Array:
        """Return the kept rows less the bad ones, or refuse the bad ones."""
        bad = np.intersect1d(bad, kept)
        if not len(bad):
            return kept
        names = [source.name(row) for row in bad]
        listed = some(names)
        if not self.skip_bad:
            raise ValueError(
                f"{law} in {name}; {len(bad):,} rows break this: {listed}. Fix them, or leave "
                "them out with skip_bad=True (on the command line: --skip-bad)."
            )
        self.left_out(names, why, f"{law}: {len(bad):,} rows of {name} are left out: {listed}")
        return np.setdiff1d(kept, bad)

    def _without_small_classes(self, table: Table) -> Table:
        law = f"every class must have at least {self.min_images} images"
        left_out: list[str] = []
        # Repeated: an item that is left out with one class may make another class too small.
        while len(small := table.classes()[table.class_sizes()[table.classes()] < self.min_images]):
            left_out += [f"{table.class_names[c]} ({_an_item_of(table, int(c))})" for c in small]
            if not self.skip_bad:
                raise ValueError(
                    f"{law} in {table.name}, so that one can find another; {len(small):,} have "
                    f"fewer: {some(left_out)}. Add images, remove the class, accept it with "
                    "min_images=1 (--min-images 1), or leave it out with skip_bad=True "
                    "(--skip-bad)."
                )
            if table.is_multi_label:
                labels = table.labels.copy()
                labels[:, small] = False
                table = replace(table, labels=labels).take(np.flatnonzero(labels.any(axis=1)))
            else:
                table = table.take(np.flatnonzero(~np.isin(table.labels, small)))
        if left_out:
            words = f"{len(left_out):,} classes of {table.name} are left out: {some(left_out)}"
            self.left_out(left_out, "has too few images", f"{law}: {words}")
        if not len(table):
            raise ValueError(f"{law} in {table.name}; none has. Add images.")
        return table.compact()


def _an_item_of(table: Table, c: int) -> str:
    of_class = table.labels[:, c] if table.is_multi_label else table.labels == c
    return table.source.name(int(of_class.argmax()))


def _bad_labels(labels: list[Any], names: Sequence[str] | None) -> Array:
    def bad(label: Any) -> bool:
        if isinstance(label, (list, tuple, set, np.ndarray)):
            return len(label) == 0 or any(bad(one) for one in label)
        if isinstance(label, numbers.Real):
            # An index into the names; -1 means no label for Hugging Face.
            known = names is None or 0 <= float(label) < len(names)
            return not math.isfinite(label) or not known
        return label is None or not str(label).strip()

    return np.flatnonzero([bad(label) for label in labels])


def _repeated(source: Source, kept: Array) -> Array:
    """Return the rows whose file is already in an earlier row."""
    if not isinstance(source, Files):
        return np.zeros(0, dtype=int)
    seen: set[str] = set()
    repeated = []
    for row in kept:
        path = str(source.file(row))
        if path in seen:
            repeated.append(row)
        seen.add(path)
    return np.array(repeated, dtype=int)


def _classes(labels: list[Any], names: Sequence[str] | None) -> tuple[Array, tuple[str, ...]]:
    """Return class indices ``(N,)`` or multi-hot ``(N, C)``, and the sorted class names."""
    several = any(isinstance(label, (list, tuple, set, np.ndarray)) for label in labels)
    sets = [
        label if isinstance(label, (list, tuple, set, np.ndarray)) else [label] for label in labels
    ]
    keys = [[_key(one) for one in some_labels] for some_labels in sets]
    if names is not None:
        index = {_key(number): number for number in range(len(names))}
        named = tuple(names)
    else:
        # Numbers first, in their order, then text in its order.
        ordered = sorted(set().union(*keys), key=lambda key: (isinstance(key, str), key))
        index = {key: number for number, key in enumerate(ordered)}
        named = tuple(str(key) for key in ordered)
    if not several:
        return np.array([index[key] for (key,) in keys], dtype=np.int64), named
    hot = np.zeros((len(labels), len(named)), dtype=bool)
    for row, some_keys in enumerate(keys):
        hot[row, [index[key] for key in some_keys]] = True
    return hot, named


def _key(label: Any) -> int | str:
    """Return a label as a whole number if it is one, else as text."""
    if isinstance(label, numbers.Integral):
        return int(label)  # not through a float, which rounds long numbers
    if isinstance(label, numbers.Real) and float(label).is_integer():
        return int(float(label))
    return str(label).strip()


def _split_name(given: Any, name: str) -> str:
    split = str(given).strip().lower()
    return checks.one_of("split", ALIASES.get(split, split), SPLITS, name)


def from_folder(folder: str | Path, how: Assembly | None = None) -> Table:
    """Read a folder with one subfolder a class; or with train, test, ... and classes below those.

    Files without the suffix of an image are ignored, and so are hidden ones.

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
        others = [name for name in columns if name not in COLUMNS]
        like = [name for name in others if checks.suggestion(name, COLUMNS)]
        hint = f" Rename {like[0]!r}?" if like else ""
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
                "with root=DIR (on the command line: --root DIR), or fix the list."
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
    """Make a table of images or vectors in memory.

    Args:
        items: uint8 images ``(N, H, W)``, ``(N, H, W, 3)`` or, as a tensor, ``(N, 3, H, W)``; or
            floating-point vectors ``(N, F)``. An array or a tensor.
        labels: ``(N,)`` numbers or strings, or multi-hot ``(N, C)`` of 0 and 1.
        how: how to split and what to refuse.
        splits: ``(N,)`` names of splits.
        name: of the table.

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
    """Make a table of a Hugging Face ``Dataset``, or a ``DatasetDict`` whose keys are splits.

    Args:
        dataset: the data set.
        how: how to split and what to refuse.
        image_column: the column of images; by default the only one of that type.
        label_column: the column of labels; by default ``label`` or ``labels``.
        name: of the table.

    Returns:
        The table.
    """
    splits: list[str] | None = None
    if "Iterable" in type(dataset).__name__:
        raise TypeError(
            "a Hugging Face data set must have numbered rows; got one that is streamed. Load it "
            "with streaming=False."
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
    """Refuse a folder that is neither one of classes nor one of splits with classes."""
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
        # Spreadsheets and pandas write these for a missing value.
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
    """Return labels as numbers if all are, so that they sort as numbers."""
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
    """Yield the image files of a folder and of all below it, without hidden ones."""
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        # Links may form a cycle.
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in files if _is_image(path := Path(place) / name))
