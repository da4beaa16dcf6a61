"""The images to be indexed: any data set, or a folder without classes; and names for its items.

Dimensions: n items.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from weiss._base import images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss.catalogue.records import CLASS, SIGNS, printable, shown
from weiss.data import DATASETS, Assembly, Table, open_table
from weiss.data.datasets import LISTS
from weiss.data.list_columns import Columns, Value, list_columns
from weiss.data.object_storage import Objects, is_address, local_list, names_below
from weiss.data.own_data import EMPTY, NoSplitError, folder_remarks, images_below, is_image
from weiss.data.sources import Files, Vectors

NO_CLASS = ""
"""The class of a table whose items have none; users never see it."""


@dataclass(frozen=True)
class Collection:
    """Pictures, their names and classes.

    Attributes:
        name: of the collection.
        table: the n items.
        names: n different names; none is an absolute path or leads out of the folder.
        classes: n tuples of class names; empty where they are unknown.
        left_out: entries of a list that the table does not have: name and reason.
        remarks: more lines for the summary.
        columns: of a list, beyond path and label: n values by name, None where one is missing.
    """

    name: str
    table: Table
    names: tuple[str, ...]
    classes: tuple[tuple[str, ...], ...]
    left_out: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    columns: Columns = field(default_factory=dict)

    def take(self, rows: Array) -> "Collection":
        """Return some of the items."""
        return replace(
            self,
            table=self.table.take(rows),
            names=tuple(self.names[row] for row in rows),
            classes=tuple(self.classes[row] for row in rows),
            columns={name: [column[row] for row in rows] for name, column in self.columns.items()},
        )


def open_collection(
    data: str | Path | Table,
    *,
    root: str | Path | None = None,
    split: str = "all",
    nested: bool = False,
    class_name: str | None = None,
) -> Collection:
    """Open the images of an index; the arguments are those of `weiss.catalogue.build_index`.

    Images that cannot be read are found later, when they are embedded.
    """
    options: dict[str, Any] = {"split": split, "nested": nested, "class_name": class_name}
    if isinstance(data, Table) or not is_list(data):
        return open_items(data, root=root, **options)
    with local_list(data, root) as (local, root):
        found = open_items(local, root=root, **options)
        kept, remarks = kept_columns(*list_columns(local, found.table), found.name)
    return replace(found, columns=kept, remarks=(*found.remarks, *remarks))


def open_items(
    data: str | Path | Table,
    *,
    root: str | Path | None,
    split: str,
    nested: bool,
    class_name: str | None,
) -> Collection:
    """Do what `open_collection` does, without the further columns of a list."""
    if isinstance(data, Table):
        _refuse_class(class_name, data.name)
        return _named(data.name, data if split == "all" else data.part(split))
    if is_address(data) and not is_list(data):
        loose = _loose_objects(str(data))
        if loose is not None:
            if split != "all":
                raise ValueError(f"--split must be left out for {data}, which has no classes.")
            found = _named(loose.name, loose, remarks=tuple(folder_remarks(data)))
            return found if class_name is None else _of_class(found, class_name)
    path = Path(data)
    is_folder = str(data) not in DATASETS and path.is_dir()
    if is_folder:
        refuse_no_images(path)
    if is_folder and any(map(is_image, path.iterdir())):
        if split != "all":
            raise ValueError(
                f"--split must be left out for {path}, a folder of images without classes; got "
                f"{split!r}."
            )
        found = _named(
            path.resolve().name, _without_classes(path), remarks=tuple(folder_remarks(path))
        )
        return found if class_name is None else _of_class(found, class_name)
    _refuse_class(class_name, path.name)
    table, left_out = _with_classes(str(data), root, split, nested)
    empty = [printable(name) for name, why in left_out if why == EMPTY]
    remarks = [f"{len(empty):,} subfolders hold no images: {some(empty)}"] if empty else []
    is_folder = is_folder or (is_address(data) and not is_list(data))
    remarks += folder_remarks(data, nested=nested) if is_folder else []
    rows = tuple((name, why) for name, why in left_out if why != EMPTY)
    return _named(table.name or path.resolve().name, table, rows, tuple(remarks))


def refuse_no_images(folder: Path) -> None:
    """Refuse a folder without images, there or below."""
    if next(images_below(folder), None) is None:
        raise ValueError(
            f"{folder} must hold images ({', '.join(images.SUFFIXES)}), there or in subfolders; it "
            "holds none. Check the path."
        )


def is_list(data: str | Path) -> bool:
    """Return whether a collection is a file that lists images."""
    named = str(data)
    if named in DATASETS or not named.lower().endswith(LISTS):
        return False
    return is_address(data) or Path(data).is_file()


def kept_columns(
    columns: Columns, left_out: Sequence[str], owner: str
) -> tuple[dict[str, list[Value | None]], tuple[str, ...]]:
    """Return columns as an index keeps them, and remarks on these and on those that it does not.

    A name that has another meaning is refused. One that no condition could name is left out.
    """
    names = [printable(name.strip()).lower() for name in columns]
    if CLASS in names:
        raise ValueError(
            f"a column of {owner} must not be called {CLASS!r}, which stands for the label where "
            "items are filtered. Rename it."
        )
    kept: dict[str, list[Value | None]] = {}
    refused, why = [], f"a name must have none of {' '.join(sorted(SIGNS))}: rename it"
    for name, column in zip(_different(names), columns.values(), strict=True):
        if SIGNS.isdisjoint(name):
            kept[name] = [shown(value) for value in column]
        else:
            refused.append(f"{name} ({why})")
    told = {"columns": [*kept], "columns that are left out": [*left_out, *refused]}
    return kept, tuple(f"{what}: {some(names, 12)}" for what, names in told.items() if names)


def _of_class(found: Collection, class_name: str) -> Collection:
    """Give all items a class, and the names that a folder with this subfolder would give them."""
    name = printable(class_name.strip())
    if not name:
        raise ValueError("--class must name a class; got an empty name. Leave it out for none.")
    names = tuple(f"{name}/{each}" for each in found.names)
    return replace(found, names=names, classes=((name,),) * len(names))


def _refuse_class(class_name: str | None, data: str) -> None:
    if class_name is not None:
        raise ValueError(
            f"--class is for a folder of images without classes; {data} has its own. Leave it out."
        )


def _named(
    name: str,
    table: Table,
    left_out: Sequence[tuple[str, str]] = (),
    remarks: tuple[str, ...] = (),
) -> Collection:
    if isinstance(table.source, Vectors):
        raise ValueError(f"a catalogue must be of images; {name} holds vectors.")
    source = table.source
    if isinstance(source, (Files, Objects)):
        left_out = [(_inside(each, source.root), why) for each, why in left_out]
    rows = tuple((printable(each), why) for each, why in left_out)
    return Collection(printable(name), table, item_names(table), _classes(table), rows, remarks)


def item_names(table: Table) -> tuple[str, ...]:
    """Return a printable name for each item: no folders of the machine, all different.

    A file is named by its path below the folder of the collection; ``..`` and the folders of an
    absolute path elsewhere are dropped.
    """
    source = table.source
    names = (source.name(row) for row in range(len(source)))
    if isinstance(source, (Files, Objects)):
        names = (_inside(name, source.root) for name in names)
    return _different(map(printable, names))


def _different(given: Iterable[str]) -> tuple[str, ...]:
    """Make names different: the second ``name`` becomes ``name (2)``."""
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


def _inside(path: str, root: str | Path) -> str:
    if not isinstance(root, Path):
        return path.removeprefix(f"{root}/")
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
    names = _different(map(printable, table.class_names))
    if table.is_multi_label:
        return tuple(tuple(names[c] for c in np.flatnonzero(row)) for row in table.labels)
    return tuple((names[label],) for label in table.labels)


def _without_classes(folder: Path) -> Table:
    """Return the table of a folder with images and without subfolders of images."""
    names = sorted(path.name for path in folder.iterdir() if is_image(path))
    deeper = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".") and any(images_below(path))
    )
    if deeper:
        raise ValueError(
            f"{folder} must hold images, or one subfolder for each class, not both; it holds "
            f"{len(names):,} images beside the subfolders {some(deeper)}. Move the images into a "
            "subfolder, or index them as a folder of their own."
        )
    labels = np.zeros(len(names), dtype=np.int64)
    splits = np.full(len(names), "test")
    return Table(folder.resolve().name, Files(folder, names), labels, (NO_CLASS,), splits)


def _loose_objects(address: str) -> Table | None:
    """Return the table of objects that lie directly below an address; None if none does."""
    names, states = names_below(address)
    kept = [
        (name, state) for name, state in zip(names, states, strict=True) if is_image(Path(name))
    ]
    loose = [pair for pair in kept if "/" not in pair[0]]
    if not loose:
        return None
    if deeper := sorted({name.split("/")[0] for name, _ in kept if "/" in name}):
        raise ValueError(
            f"{address} must hold images, or one subfolder for each class, not both; it holds "
            f"{len(loose):,} images beside the subfolders {some(deeper)}. Index them one after the "
            "other."
        )
    source = Objects(address, [name for name, _ in loose], states=[state for _, state in loose])
    labels, splits = np.zeros(len(loose), dtype=np.int64), np.full(len(loose), "test")
    return Table(PurePosixPath(address).name, source, labels, (NO_CLASS,), splits)


def _with_classes(
    data: str, root: str | Path | None, split: str, nested: bool
) -> tuple[Table, list[tuple[str, str]]]:
    how = None
    left_out: list[tuple[str, str]] = []
    if data not in DATASETS:
        # Nothing is trained: classes may be small and shared.
        how = Assembly(
            split="all" if split == "all" else "given",
            shared_classes=True,
            min_images=1,
            skip_bad=True,
            nested=nested,
            on_left_out=lambda names, why: left_out.extend((name, why) for name in names),
        )
    try:
        table = open_table(data, root=root, how=how, copy=False)
    except NoSplitError:
        raise ValueError(
            f"--split must be all for {printable(Path(data).name)}, which names no parts; got "
            f"{split!r}. Leave it out. A list names parts in a column 'split'."
        ) from None
    if split != "all":
        rows = table.rows(split)
        if not len(rows):
            parts = ", ".join(table.sizes())
            raise ValueError(
                f"--split must be all or a part of {table.name} ({parts}); got {split!r}."
            )
        table = table.take(rows)
    return table.compact(), left_out
