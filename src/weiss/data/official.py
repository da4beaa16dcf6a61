"""Published data sets: a description of each, and how its lists and files become a table.

`weiss.data.official_sets` knows the layout of each data set and reads its lists; here they are
compared with the files on disk.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.downloads import Checksum
from weiss.data.sources import Files
from weiss.data.table import Table


@dataclass(frozen=True)
class Archive:
    """A file that a data set is made of; one of MATLAB is used as it is, others are unpacked."""

    name: str  # its file name, in the folder that `prepare` is given
    url: str | None = None  # where to download it; None if it must be fetched by hand
    checksum: Checksum | None = None  # the published one, if there is one


@dataclass(frozen=True)
class OfficialSet:
    """A published data set: where it comes from, what it must hold and how it is read."""

    name: str  # its short name, as on the command line
    title: str  # the name people use
    home: str  # its page
    terms: str  # of use, in a sentence
    counts: dict[str, tuple[int, int]]  # images and classes of each split
    archives: tuple[Archive, ...]  # if it was published in two forms, those of both
    by_hand: str  # what to fetch and where to put it; ``{root}`` is the folder
    folders: tuple[str, ...]  # possible names of the official folder; it may be given itself
    lists: tuple[tuple[str, ...], ...]  # the files that identify it, any one row of them
    read_lists: Callable[[Path], Table]  # all listed images of the official folder, as `Files`

    @property
    def num_images(self) -> int:
        """The number of images of all splits."""
        return sum(images for images, _ in self.counts.values())

    def locate(self, root: str | Path) -> Path:
        """Return the official folder: the root, or a folder in it; refuse if none has the lists."""
        root = Path(root)
        places = [root, *(root / folder for folder in self.folders)]
        for place in places:
            if any(all((place / name).is_file() for name in names) for names in self.lists):
                return place
        lists = ", or ".join(" with ".join(names) for names in self.lists)
        raise FileNotFoundError(
            f"{self.title} must be in the folder given, with its official lists ({lists}); found "
            f"none in {', '.join(str(place) for place in places)}. Give the folder that holds "
            f"them, or get the data with: weiss data prepare {self.name} --root {root}"
        )

    def read(self, root: str | Path, allow_missing: bool = False) -> Table:
        """Read the data set, in the order of its lists; classes in the official order.

        Args:
            root: the official folder, or the folder it is in.
            allow_missing: leave out images that are listed and not there, instead of refusing.

        Raises:
            FileNotFoundError: the lists, or images that they name, are not there.
            ValueError: the lists are damaged.
        """
        table = replace(self.read_lists(self.locate(root)), name=self.name)
        assert isinstance(table.source, Files)
        folder, paths = table.source.root, table.source.paths.tolist()
        self._check(folder, paths)
        missing = missing_files(folder, paths)
        if not len(missing):
            return table
        get_them = f"Get them with: weiss data prepare {self.name} --root {root}"
        if not allow_missing:
            raise FileNotFoundError(
                f"all {len(table):,} images that {self.title} lists must be in {folder}; "
                f"{len(missing):,} are not there: {some([paths[m] for m in missing])}. {get_them}, "
                "or leave them out with --allow-missing (allow_missing=True)."
            )
        if len(missing) == len(table):
            raise FileNotFoundError(
                f"some images that {self.title} lists must be in {folder}; none of the "
                f"{len(table):,} is there. {get_them}"
            )
        return table.take(np.setdiff1d(np.arange(len(table)), missing))

    def differences(self, table: Table) -> list[str]:
        """Return how a table differs from the official counts; empty if it does not."""
        found, differences = table.sizes(), []
        for split in sorted(set(self.counts) | set(found)):
            images, classes = found.get(split, (0, 0))
            if (images, classes) != self.counts.get(split, (0, 0)):
                must = "{:,} images of {:,} classes".format(*self.counts.get(split, (0, 0)))
                differences.append(f"{split} must hold {must}; got {images:,} of {classes:,}")
        return differences

    def _check(self, folder: Path, paths: Sequence[str]) -> None:
        """Refuse lists that name no image, or one twice, or one outside the folder."""
        twice = [path for path, times in Counter(paths).items() if times > 1]
        # A list is untrusted data; it must not name other files of this machine.
        outside = [p for p in paths if p.startswith("/") or ".." in p.split("/")]
        wrong = ""
        if not paths:
            wrong = f"images; those for {folder} name none"
        elif twice:
            wrong = f"each image once; {len(twice):,} are named again: {some(twice)}"
        elif outside:
            wrong = f"images below {folder}; got {some(outside)}"
        if wrong:
            raise ValueError(
                f"the lists of {self.title} must name {wrong}. Restore the official lists."
            )


def missing_files(folder: Path, paths: Sequence[str]) -> Array:
    """Return which of the paths are not there; each folder is listed once.

    To ask for each of 120,000 files takes minutes on a network drive.
    """
    there: dict[str, set[str]] = {}
    missing = []
    for index, path in enumerate(paths):
        parent, _, name = path.rpartition("/")
        if parent not in there:
            try:
                there[parent] = set(os.listdir(folder / parent))
            except (FileNotFoundError, NotADirectoryError):
                there[parent] = set()
        if name not in there[parent]:
            missing.append(index)
    return np.asarray(missing, dtype=np.int64)


def rows(path: Path, columns: Sequence[str], header: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a list, split at spaces, with their numbers counted from 1.

    Each line must have a field for each column. The list begins after the line `header`, which must
    name the columns; 0 for a list without one.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be text; it is damaged ({error}). Restore the official file."
        ) from error
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        is_list = number > header
        if is_list and fields and len(fields) != len(columns):
            raise malformed(path, number, " ".join(columns), line)
        if number == header and tuple(fields) != tuple(columns):
            raise malformed(path, number, " ".join(columns), " ".join(fields))
        if is_list and fields:
            yield number, fields


def malformed(path: Path, line: int, must: str, got: str) -> ValueError:
    """Return the error for a line with wrong content."""
    return ValueError(
        f"{path} line {line} must read '{must}'; got {got[:200]!r}. Restore the official file."
    )


def whole_number(text: str, path: Path, line: int, column: str) -> int:
    """Return a field as a number of at least one."""
    if not text.isdecimal() or not text.isascii() or int(text) < 1:
        raise malformed(path, line, f"a whole number above 0 as {column}", text)
    return int(text)


def first_half(labels: Array, num_classes: int) -> Array:
    """Return the split of the literature: the first half of the classes trains, the rest tests."""
    return np.where(labels < num_classes // 2, "train", "test")
