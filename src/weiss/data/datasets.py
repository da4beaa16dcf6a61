"""Any data set by one argument: a name, a folder, a list of files, arrays, a Hugging Face one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base import checks
from weiss.data.glyphs import glyphs
from weiss.data.object_storage import Objects, is_address, kept_copy
from weiss.data.official_sets import OFFICIAL
from weiss.data.own_data import Assembly, from_arrays, from_folder, from_hub, from_list
from weiss.data.store import BadImagesError
from weiss.data.table import Table

LISTS = (".csv", ".tsv", ".parquet")


DATASETS: dict[str, str] = {
    "glyphs": "characters drawn by many fonts, moved a little",
    "glyphs_still": "the same characters, not moved",
    "glyphs_many": "more than 2,000 characters, six images of each",
    **{name: official.title for name, official in OFFICIAL.items()},
}
"""The title of every data set that has a name."""


def open_table(
    data: Any,
    *,
    root: str | Path | None = None,
    how: Assembly | None = None,
    allow_missing: bool = False,
    copy: bool = True,
) -> Table:
    """Return the table of a data set, given in any of these forms.

    Args:
        data: a name of `DATASETS`; a folder with one subfolder a class; a CSV, TSV or Parquet file
            with the columns path, label (or labels) and perhaps split; a pair of (images or
            vectors, labels); a Hugging Face ``Dataset`` or ``DatasetDict``. Folder and file may
            be an address in object storage, ``s3://`` or ``gs://``.
        root: the folder of a named data set, or what the paths of a list are relative to.
        how: how to split data that come without a split, and what to refuse.
        allow_missing: accept a named data set of which images are missing.
        copy: images in object storage are copied, once, to the user's cache folder; otherwise the
            source of the table is `weiss.data.object_storage.Objects`.

    Example:
        >>> from weiss.data import open_table
        >>> table = open_table("glyphs")
        >>> table.source.pixels.shape[1:]
        (32, 32, 1)
    """
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(data[0], data[1], how)
    if type(data).__module__.partition(".")[0] == "datasets":
        return from_hub(data, how)
    if not isinstance(data, (str, Path)):
        raise TypeError(
            "data must be a name, a path, a pair (images, labels) or a Hugging Face data set; got "
            f"{type(data).__name__}. Wrap arrays as (images, labels)."
        )
    if str(data) in DATASETS:
        return _named(str(data), root, how, allow_missing)
    if is_address(data):
        is_list = str(data).lower().endswith(LISTS)
        if root is not None and not is_list:
            raise ValueError(
                f"root must be left out for a folder, which is its own; got {root} with {data}."
            )
        found = from_list(data, how, root=root) if is_list else from_folder(data, how)
        return _copied(found, how or Assembly()) if copy else found
    path = Path(data)
    if allow_missing:
        raise ValueError(
            f"allow_missing is for data sets that have a name; got {str(data)!r}. For your own "
            "data use skip_bad (on the command line: --skip-bad)."
        )
    if path.is_dir():
        if root is not None:
            raise ValueError(
                f"root must be left out for a folder, which is its own; got {root} with {path}."
            )
        return from_folder(path, how)
    if path.suffix.lower() in LISTS:
        found = from_list(path, how, root=root)
        return _copied(found, how or Assembly()) if copy else found
    hint = checks.path_suggestion(data, sorted(path.parent.glob("*")), DATASETS)
    raise ValueError(
        f"data must be one of {', '.join(DATASETS)}, a folder, or a {', '.join(LISTS)} file; got "
        f"{str(data)!r}, which is none of these.{hint}"
    )


def _copied(table: Table, how: Assembly) -> Table:
    """Return a table whose images are files of this machine."""
    if not isinstance(table.source, Objects):
        return table
    source, errors = kept_copy(table.source)
    table = replace(table, source=source)
    if not errors:
        return table
    if not how.skip_bad or len(errors) == len(table):
        raise BadImagesError(errors, len(table))
    names, law = [source.name(row) for row in errors], "every image must be there to be copied"
    how.leave_out(names, len(table), "cannot be copied", law, "")
    return table.take(np.setdiff1d(np.arange(len(table)), [*errors]))


def _named(name: str, root: str | Path | None, how: Assembly | None, allow_missing: bool) -> Table:
    if how is not None and how.split not in ("auto", "given"):
        raise ValueError(
            f"split must not be given for {name}, which has its own; got {how.split!r}. "
            f"To split it otherwise, pass its image folder instead of its name."
        )
    if name not in OFFICIAL:
        return glyphs(jitter=name != "glyphs_still", many=name == "glyphs_many")
    if root is None:
        raise ValueError(
            f"root must be the folder of {name}; it was not given. Pass root=DIR (on the command "
            f"line: --root DIR), or get the data first: weiss data prepare {name} --root DIR"
            + (f". To read your own folder of this name: {name}/" if Path(name).is_dir() else "")
        )
    return OFFICIAL[name].read(root, allow_missing)
