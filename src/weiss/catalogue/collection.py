"""What is to be indexed: anything that is data, and folders without classes; names for its items.

Dimensions: n items.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weiss._base import images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss.catalogue.items import shown
from weiss.data import DATASETS, Assembly, Table, open_table
from weiss.data.own_data import EMPTY, images_below
from weiss.data.sources import Files, Vectors

NO_CLASS = ""
"""The one class of a table whose items have none; it is never shown."""


@dataclass(frozen=True)
class Collection:
    """Pictures, their names and classes.

    Attributes:
        name: what to call it.
        table: the n items.
        names: n names, no two the same; none leads out of a folder or begins at a root.
        classes: n tuples of class names; empty where nobody said.
        left_out: what the list has and the table has not: its name, and why.
        remarks: what else is to be said, in words.
    """

    name: str
    table: Table
    names: tuple[str, ...]
    classes: tuple[tuple[str, ...], ...]
    left_out: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()

    def take(self, rows: Array) -> "Collection":
        """Return some of the items."""
        return Collection(
            self.name,
            self.table.take(rows),
            tuple(self.names[row] for row in rows),
            tuple(self.classes[row] for row in rows),
            self.left_out,
            self.remarks,
        )


def open_collection(
    data: str | Path | Table, *, root: str | Path | None = None, split: str = "all"
) -> Collection:
    """Open pictures that are to be searched.

    Args:
        data: a folder of images, or with one subfolder a class; a CSV, TSV or Parquet list; the
            name of a data set; or a table.
        root: the folder of a named data set, or what the paths of a list start from.
        split: ``"all"``, or the part of the data to take: test, train and so on.

    Returns:
        The collection. What cannot be read is found later, when it is embedded.
    """
    if isinstance(data, Table):
        return _named(data.name, data if split == "all" else data.part(split))
    path = Path(data)
    is_folder = str(data) not in DATASETS and path.is_dir()
    if is_folder and next(images_below(path), None) is None:
        raise ValueError(
            f"{path} must hold images ({', '.join(images.SUFFIXES)}), there or in subfolders; it "
            "holds none. Check the path."
        )
    if is_folder and _has_loose_images(path):
        if split != "all":
            raise ValueError(
                f"--split must be left out for {path}, a folder of images without classes; got "
                f"{split!r}."
            )
        return _named(path.resolve().name, _without_classes(path))
    table, left_out = _with_classes(str(data), root, split)
    empty = [shown(name) for name, why in left_out if why == EMPTY]
    remarks = (f"{len(empty):,} subfolders hold no images: {some(empty)}",) if empty else ()
    rows = tuple((name, why) for name, why in left_out if why != EMPTY)
    return _named(table.name or path.resolve().name, table, rows, remarks)


def _named(
    name: str,
    table: Table,
    left_out: Sequence[tuple[str, str]] = (),
    remarks: tuple[str, ...] = (),
) -> Collection:
    if isinstance(table.source, Vectors):
        raise ValueError(f"a catalogue must be of images; {name} holds vectors.")
    source = table.source
    if isinstance(source, Files):
        left_out = [(_inside(each, source.root), why) for each, why in left_out]
    rows = tuple((shown(each), why) for each, why in left_out)
    return Collection(shown(name), table, item_names(table), _classes(table), rows, remarks)


def item_names(table: Table) -> tuple[str, ...]:
    """Return a name for each item that can be shown: no folders of the machine, none twice.

    A file below the collection's folder is called by its path from there. Of one that lies
    elsewhere the parts that lead out are left away.
    """
    source = table.source
    said = (source.name(row) for row in range(len(source)))
    if isinstance(source, Files):
        said = (_inside(name, source.root) for name in said)
    return _each_once(map(shown, said))


def _each_once(given: Iterable[str]) -> tuple[str, ...]:
    """Return names of which no two are the same: the second of two is called ``name (2)``."""
    taken: dict[str, int] = {}
    names = []
    for name in given:
        count = taken[name] = taken.get(name, 0) + 1
        while count > 1 and f"{name} ({count})" in taken:
            count += 1
        if count > 1:
            name = f"{name} ({count})"
            taken[name] = 1
        names.append(name)
    return tuple(names)


def _inside(path: str, root: Path) -> str:
    relative = Path(path)
    if relative.is_absolute():
        try:
            relative = relative.relative_to(root.absolute())
        except ValueError:
            relative = Path(relative.name)
    parts = [part for part in Path(os.path.normpath(relative)).parts if part != os.pardir]
    return "/".join(parts)


def _classes(table: Table) -> tuple[tuple[str, ...], ...]:
    if table.class_names == (NO_CLASS,):
        return ((),) * len(table)
    names = _each_once(map(shown, table.class_names))
    if table.is_multi_label:
        return tuple(tuple(names[c] for c in np.flatnonzero(row)) for row in table.labels)
    return tuple((names[label],) for label in table.labels)


def _has_loose_images(folder: Path) -> bool:
    return any(_is_image(path) for path in folder.iterdir())


def _is_image(path: Path) -> bool:
    hidden = path.name.startswith(".")
    return not hidden and path.suffix.lower() in images.SUFFIXES and path.is_file()


def _without_classes(folder: Path) -> Table:
    """Return the table of a folder whose images lie in it, and not in subfolders."""
    names = sorted(path.name for path in folder.iterdir() if _is_image(path))
    deeper = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".") and any(images_below(path))
    )
    if deeper:
        raise ValueError(
            f"{folder} must hold images, or one subfolder a class, not both; it holds "
            f"{len(names):,} images beside the subfolders {some(deeper)}. Move the images into a "
            "subfolder, or index them as a folder of their own."
        )
    labels = np.zeros(len(names), dtype=np.int64)
    splits = np.full(len(names), "test")
    return Table(folder.resolve().name, Files(folder, names), labels, (NO_CLASS,), splits)


def _with_classes(
    data: str, root: str | Path | None, split: str
) -> tuple[Table, list[tuple[str, str]]]:
    how = None
    left_out: list[tuple[str, str]] = []
    if data not in DATASETS:
        # Nothing trains here: whatever there is may be found.
        how = Assembly(
            split="all" if split == "all" else "given",
            shared_classes=True,
            min_images=1,
            skip_bad=True,
            on_left_out=lambda names, why: left_out.extend((name, why) for name in names),
        )
    table = open_table(data, root=root, how=how)
    if split != "all":
        rows = table.rows(split)
        if not len(rows):
            parts = ", ".join(table.sizes())
            raise ValueError(
                f"--split must be all or a part that {table.name} has; {split!r} is none: it has "
                f"{parts}."
            )
        table = table.take(rows)
    return table.compact(), left_out
