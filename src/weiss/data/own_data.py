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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from weiss._base import checks, images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.files import refuse_special_file
from weiss.data.object_storage import Objects, is_address, local_list, names_below
from weiss.data.sources import Files, HubImages, Pixels, Source, Vectors
from weiss.data.splits import hold_out_classes, stratify, train_on_all
from weiss.data.table import SPLITS, Table, one_entry_each

HOW_TO_SPLIT = ("auto", "given", "classes", "stratified", "all")
ALIASES = {"val": "valid", "validation": "valid", "training": "train", "testing": "test"}
SEPARATOR = "|"
"""Between the labels of one image in a list of files."""
COLUMNS = ("path", "label", "labels", "split")
MOST_ROWS = 10**8
"""Rows of a Parquet list; a small file can claim any number."""
EMPTY = "holds no images"
"""Why a subfolder is left out."""
SEVERAL = (list, tuple, set, np.ndarray)
"""Types of a label that is several labels."""


class NoSplitError(ValueError):
    """The splits of data are asked for that name none."""


@dataclass(frozen=True)
class Assembly:
    """How a table is made of raw items.

    Args:
        split: ``"classes"`` holds out a share of the classes; ``"stratified"`` a share of every
            class's items; ``"all"`` trains on everything, for the final model; ``"given"`` uses
            the splits that came with the data; ``"auto"`` is given where there are any, else
            classes.
        held_out: the share to hold out.
        seed: of the classes or items that are held out.
        shared_classes: accept given splits whose train and test share classes.
        min_images: a class with fewer items is refused. Retrieval needs two: a query and a match.
        skip_bad: leave out what would be refused, with a warning that lists it.
        nested: in a folder of photos every folder that holds images is a class, named by its path
            (``fruit/kiwi``); otherwise the uppermost folders are the classes.
        on_left_out: called with the names of what is left out and why, instead of a warning.
    """

    split: str = "auto"
    held_out: float = 0.2
    seed: int = 0
    shared_classes: bool = False
    min_images: int = 2
    skip_bad: bool = False
    nested: bool = False
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
        rows: list[int] | None = None,
    ) -> Table:
        """Make the table and split it.

        Args:
            name: of the table.
            source: N items.
            labels: N labels, each a string or a number, or a list of them (multi-label).
            splits: N names of splits, if the data have them.
            class_names: names of classes that integer labels count; from the labels by default.
            rows: the items to use; all by default.
        """
        kept = list(range(len(source))) if rows is None else rows
        if not kept:
            raise ValueError(f"{name} must hold images; found none. Check the path.")
        one_entry_each(name, source, labels=labels, splits=splits)
        sets = [list(label) if isinstance(label, SEVERAL) else [label] for label in labels]
        bad = [row for row in kept if not _is_known(sets[row], class_names)]
        law = f"every row of {name} must have a label, not a missing one or NaN"
        kept = self._without(bad, kept, law, "has no label", source)
        bad, law = _repeated(source, kept), f"every row of {name} must have a path of its own"
        kept = self._without(bad, kept, law, "is listed more than once", source)
        several = any(isinstance(labels[row], SEVERAL) for row in kept)
        indices, names = _classes([sets[row] for row in kept], several, class_names)
        given = np.full(len(kept), "train")
        if splits is not None:
            words = [str(splits[row]).strip().lower() for row in kept]
            words = [ALIASES.get(split, split) for split in words]
            given = np.array([checks.one_of("split", split, SPLITS, name) for split in words])
        table = Table(name, source.take(np.array(kept, dtype=int)), indices, names, given)
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
            raise NoSplitError(
                f"split must not be 'given' for {table.name}, which names none. Add a column "
                "'split', or choose 'classes', 'stratified' or 'all'."
            )
        if table.has("query") != table.has("gallery"):
            there, lacks = ("query", "gallery") if table.has("query") else ("gallery", "query")
            raise ValueError(
                f"splits 'query' and 'gallery' must both be present or both absent; {table.name} "
                f"has {there} but no {lacks}. Mark both, or use 'test' to search a set in itself."
            )
        shared = [] if self.shared_classes else table.shared_classes()
        if shared:
            raise ValueError(
                f"train and test must not share classes in {table.name}, or the score measures "
                f"memory; {len(shared):,} are shared: {some(shared)}. Split by class, or allow it "
                "with shared_classes=True (on the command line: --shared-classes)."
            )
        return table

    def leave_out(
        self,
        names: Sequence[str],
        of: int,
        why: str,
        law: str,
        remedy: str,
        error: type[Exception] = ValueError,
    ) -> None:
        """Refuse what breaks a law, some of so many; with `skip_bad` report it, or warn."""
        if not self.skip_bad:
            do = "does" if len(names) == 1 else "do"
            raise error(f"{law}; {len(names):,} of {of:,} {do} not: {some(names)}. {remedy}")
        if self.on_left_out is not None:
            self.on_left_out(names, why)
        else:
            do = "does not and is" if len(names) == 1 else "do not and are"
            said = f"{law}; {len(names):,} of {of:,} {do} left out: {some(names)}"
            warnings.warn(said, stacklevel=5)

    def _without(
        self, bad: list[int], kept: list[int], law: str, why: str, source: Source
    ) -> list[int]:
        """Return the kept rows less the bad ones, or refuse the bad ones."""
        if bad:
            names = [source.name(row) for row in bad]
            remedy = (
                "Fix them, or leave them out with skip_bad=True (on the command line: --skip-bad)."
            )
            self.leave_out(names, len(kept), why, law, remedy)
        return sorted(set(kept) - set(bad))

    def _without_small_classes(self, table: Table) -> Table:
        law = f"every class of {table.name} must have at least {self.min_images} images"
        classes = table.classes()
        small = classes[table.class_sizes()[classes] < self.min_images]
        if len(small):
            left_out = []
            for c in small:
                of_class = table.labels[:, c] if table.is_multi_label else table.labels == c
                an_item = table.source.name(int(of_class.argmax()))
                left_out.append(f"{table.class_names[c]} ({an_item})")
            remedy = (
                "One image must find another: add images, remove the class, accept it with "
                "min_images=1 (--min-images 1), or leave it out with skip_bad=True (--skip-bad)."
            )
            self.leave_out(left_out, len(classes), "has too few images", law, remedy)
            if table.is_multi_label:
                labels = table.labels & ~np.isin(np.arange(table.num_classes), small)
                table = replace(table, labels=labels).take(np.flatnonzero(labels.any(axis=1)))
            else:
                table = table.take(np.flatnonzero(~np.isin(table.labels, small)))
        if not len(table):
            raise ValueError(f"{law}; none has. Add images.")
        return table.compact()


def _is_known(labels: list[Any], names: Sequence[str] | None) -> bool:
    """Return whether an item has labels and none of them is missing."""
    for label in labels:
        if isinstance(label, numbers.Real):
            # An index into the names; -1 means no label for Hugging Face.
            named = names is None or 0 <= float(label) < len(names)
            if not math.isfinite(label) or not named:
                return False
        elif label is None or not str(label).strip():
            return False
    return len(labels) > 0


def _repeated(source: Source, kept: list[int]) -> list[int]:
    """Return the rows whose file is already in an earlier row, also as ``a/../b.jpg``."""
    if isinstance(source, Objects):
        files = [(row, source.name(row)) for row in kept]
    elif isinstance(source, Files):
        files = [(row, os.path.normpath(source.file(row))) for row in kept]
    else:
        return []
    first: dict[str, int] = {}
    return [row for row, file in files if first.setdefault(file, row) != row]


def _classes(
    sets: list[list[Any]], several: bool, names: Sequence[str] | None
) -> tuple[Array, tuple[str, ...]]:
    """Return class indices ``(N,)`` or multi-hot ``(N, C)``, and the sorted class names."""
    keys = [[_key(one) for one in labels] for labels in sets]
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
    hot = np.zeros((len(sets), len(named)), dtype=bool)
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


def from_folder(folder: str | Path, how: Assembly | None = None) -> Table:
    """Read a folder with one subfolder a class; or with train, test, ... and classes below those.

    The folder may be the address of one in object storage.

    Class names are the names of the subfolders; `how` says how to split, what to refuse and whether
    folders in folders are classes. Hidden files and files without the suffix of an image are not
    taken: `folder_remarks` counts them.
    """
    if is_address(folder):
        return _from_storage(str(folder), how or Assembly())
    folder, how = Path(folder), how or Assembly()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"a folder of photos must exist; {folder} does not. Check the path."
        )
    below = _subfolders(folder)
    loose = [path.name for path in sorted(folder.iterdir()) if is_image(path)]
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
    classes, is_split = _class_folders(folder, below)
    paths: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    empty = []
    for one, split in classes:
        found = sorted(images_below(one))
        if not found:
            empty.append(str(one.relative_to(folder)))
        holders = [path.parent if how.nested else one for path in found]
        paths += [os.path.relpath(path, folder) for path in found]
        labels += [holder.relative_to(one.parent).as_posix() for holder in holders]
        splits += [split] * len(found)
    if empty:
        law = f"every class of {folder} must have images"
        remedy = (
            f"Remove them, add images ({', '.join(images.SUFFIXES)}), or leave them out with "
            "skip_bad=True (on the command line: --skip-bad)."
        )
        how.leave_out(empty, len(classes), EMPTY, law, remedy)
    name = os.path.basename(os.path.abspath(folder))  # also of "."
    return how.table(name, Files(folder, paths), labels, splits if is_split else None)


def _from_storage(address: str, how: Assembly) -> Table:
    """Do what `from_folder` does for names below an address, which have no empty folders."""
    names, states = names_below(address)
    kept = [at for at, name in enumerate(names) if is_image(Path(name))]
    found = [(PurePosixPath(names[at]).parts, states[at]) for at in kept]
    tops = sorted({parts[0] for parts, _ in found if len(parts) > 1})
    words = {top: ALIASES.get(top.lower(), top.lower()) for top in tops}
    is_split = any(words[parts[0]] in SPLITS for parts, _ in found if len(parts) > 2)
    depth = 2 if is_split else 1
    wrong = [top for top in tops if is_split and words[top] not in SPLITS]
    loose = ["/".join(parts) for parts, _ in found if len(parts) <= depth]
    if wrong or loose or not found:
        law = f"splits ({', '.join(SPLITS)}) with one subfolder a class" if is_split else ""
        raise ValueError(
            f"images must lie in {law or 'one subfolder a class'} below {address}; "
            f"{'others are' if wrong else 'these are not' if loose else 'there are no images'}: "
            f"{some(wrong or loose or ['none'])}. Move them."
        )
    labels = [
        "/".join(parts[depth - 1 : -1]) if how.nested else parts[depth - 1] for parts, _ in found
    ]
    source = Objects(address, [names[at] for at in kept], states=[state for _, state in found])
    splits = [words[parts[0]] for parts, _ in found]
    return how.table(PurePosixPath(address).name, source, labels, splits if is_split else None)


def folder_remarks(folder: str | Path, *, nested: bool = False) -> list[str]:
    """Return a sentence on the files of a folder of photos that are not taken, and on its depth.

    Args:
        folder: what `from_folder` reads.
        nested: whether folders in folders are classes already.
    """
    if is_address(folder):
        return _remarks_on_others(map(Path, names_below(str(folder))[0]))
    root = Path(folder)
    remarks = _remarks_on_others(_files_below(root))
    classes = [one for one, _ in _class_folders(root, _subfolders(root))[0]]
    holders = {path.parent for one in classes for path in images_below(one)}
    if not nested and not holders <= set(classes):
        remarks.append(
            f"classes are the {len(classes):,} uppermost folders; the images lie in "
            f"{len(holders):,} folders. To make each of these a class: --nested (in Python: "
            "nested=True)"
        )
    return remarks


def _remarks_on_others(paths: Iterable[Path]) -> list[str]:
    """Return a sentence on files that are no images, if there are any."""
    others: Counter[str] = Counter()
    for path in paths:
        if path.name.startswith("."):
            others["hidden"] += 1
        elif not is_image(path):
            others[path.suffix.lower() or "without a suffix"] += 1
    if not others:
        return []
    listed = [f"{count:,} {kind}" for kind, count in others.most_common()]
    return [f"files that are not taken, since they are no images: {some(listed, 8)}"]


def _class_folders(folder: Path, below: list[Path]) -> tuple[list[tuple[Path, str]], bool]:
    """Return each class folder with the name above its images, and whether those are splits."""
    names = [ALIASES.get(path.name.lower(), path.name.lower()) for path in below]
    # A folder called train with folders in it is a split, and then everything beside it must be.
    is_split = any(
        name in SPLITS and _subfolders(path) for name, path in zip(names, below, strict=True)
    )
    if is_split:
        _refuse_half_split(folder, below, names)
    classes = [
        (one, split)
        for part, split in zip(below, names, strict=True)
        for one in (_subfolders(part) if is_split else [part])
    ]
    return classes, is_split


def from_list(
    path: str | Path, how: Assembly | None = None, *, root: str | Path | None = None
) -> Table:
    """Read a CSV, TSV or Parquet file that lists images.

    Columns: ``path``; ``label``, or ``labels`` for several, with ``|`` between them (in Parquet
    also a list); and if you like ``split``: train, valid, test, query, gallery.

    Args:
        path: the list; or its address in object storage.
        how: how to split and what to refuse.
        root: what the paths are relative to; the list's own folder by default. Below an address
            the paths may be addresses, too. Whether these objects are there is found when they
            are read.
    """
    with local_list(path, root) as (local, root):
        return _from_list(local, how or Assembly(), root)


def _from_list(path: Path, how: Assembly, root: str) -> Table:
    refuse_special_file(path)
    if not path.is_file():
        raise FileNotFoundError(f"a list of images must exist; {path} does not. Check the path.")
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    if "path" not in columns or not {"label", "labels"} & set(columns):
        missing = "path" if "path" not in columns else "label"
        others = [name for name in columns if name not in COLUMNS]
        like = [name for name in others if checks.suggestion(name, COLUMNS)]
        hint = f" Rename {like[0]!r}?" if like else ""
        raise ValueError(
            f"{path} must have the columns path and label (or labels); it has "
            f"{', '.join(columns) or 'none'}, so {missing} is missing.{hint}"
        )
    if "label" in columns:
        labels = _as_numbers(columns["label"])
    else:
        labels = [_several(value) for value in columns["labels"]]
    splits = columns.get("split")
    paths = [str(value) for value in columns["path"]]
    if is_address(root):
        return how.table(path.stem, Objects(root, paths), labels, splits)
    source = Files(root, paths)
    there = np.array([os.path.isfile(source.file(row)) for row in range(len(source))], dtype=bool)
    if not there.all():
        names = [source.name(int(row)) for row in np.flatnonzero(~there)]
        law = f"every listed image must exist below {source.root}"
        remedy = (
            "Give the folder they are relative to with root=DIR (on the command line: --root DIR), "
            "or fix the list."
        )
        if any(map(is_address, names)):
            remedy = "Give the address that they share with --root, for example --root s3://bucket"
        why, error = "does not exist", FileNotFoundError
        how.leave_out(names, len(there), why, law, remedy, error)
    return how.table(path.stem, source, labels, splits, rows=np.flatnonzero(there).tolist())


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
    """
    items = pixels_of_arrays(items)
    source: Source = Vectors(items) if items.ndim == 2 else Pixels(items)
    return (how or Assembly()).table(name, source, labels_of_arrays(labels, name), splits)


def pixels_of_arrays(items: Any) -> Array:
    """Return images or vectors as an array; of a tensor of images the channels become last."""
    if isinstance(items, torch.Tensor):
        if items.ndim == 4 and items.shape[1] in (1, 3):
            items = items.permute(0, 2, 3, 1)
        items = items.detach().cpu().numpy()
    return np.asarray(items)


def labels_of_arrays(labels: Any, name: str) -> list[Any]:
    """Return N labels ``(N,)``, or the classes of each row of multi-hot ``(N, C)``, as a list."""
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    labels = np.asarray(labels)
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
    return listed


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
    dataset = dataset.with_format(None)  # not tensors, if the caller has chosen those
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
    loose = [path.name for path in below if any(map(is_image, path.iterdir()))]
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


def read_csv(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a CSV or TSV file, by their names in small letters, as text."""
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
    _refuse_repeated(path, header)
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
        num_rows = pyarrow.parquet.read_metadata(path).num_rows
        if num_rows > MOST_ROWS:
            raise ValueError(
                f"{path} must list at most {MOST_ROWS:,} images; it has {num_rows:,} rows. "
                "Split it."
            )
        texts = [f.name for f in pyarrow.parquet.read_schema(path) if f.type == pyarrow.string()]
        table = pyarrow.parquet.read_table(path, read_dictionary=texts)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} must be a Parquet file; it cannot be read ({error}). Write it again."
        ) from error
    header = [name.lower() for name in table.column_names]
    _refuse_repeated(path, header)
    return {key: _values(column) for key, column in zip(header, table.columns, strict=True)}


def _values(column: Any) -> list[Any]:
    """Return a column of pyarrow; a repeated text is in memory once, as it is in the file."""
    found: list[Any] = []
    for chunk in column.chunks:
        if not hasattr(chunk, "dictionary"):
            found += chunk.to_pylist()
            continue
        words = [*chunk.dictionary.to_pylist(), None]  # the last for a missing value
        found += [words[-1 if i is None else i] for i in chunk.indices.to_pylist()]
    return found


def _refuse_repeated(path: Path, header: list[str]) -> None:
    """Refuse a list in which the name of a column has two meanings."""
    for name, number in Counter(header).items():
        if number > 1 and name:
            raise ValueError(
                f"{path} must have one column {name!r}; it has {number}. Rename or remove the "
                "others."
            )


def _as_numbers(labels: list[Any]) -> list[Any]:
    """Return labels as numbers if all are, so that they sort as numbers."""
    words = [label for label in labels if isinstance(label, str)]
    is_number = all(re.fullmatch(r"0|-?[1-9]\d{0,99}", word.strip()) for word in words)
    return [int(v) if is_number and isinstance(v, str) else v for v in labels]


def _several(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in map(str.strip, value.split(SEPARATOR)) if part]
    return value


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def is_image(path: Path) -> bool:
    """Return whether a path is to be read as an image, by its name, without hidden ones.

    Also special files and links to nothing: they are refused, or skipped and listed, when read.
    """
    is_named = path.suffix.lower() in images.SUFFIXES and not path.name.startswith(".")
    return is_named and not os.path.isdir(path)


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the image files of a folder and of all below it, without hidden ones."""
    return filter(is_image, _files_below(folder))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of all below it that is not hidden."""
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        # Links may form a cycle.
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        # Sorted: of two links to one folder always the same is followed.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place) / name for name in files)
