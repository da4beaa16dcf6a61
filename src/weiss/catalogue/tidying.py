"""What in an index folder is ours: names are noted before a file has them; no other is deleted.

    .written     the names that were given out since the last change began, one a line; for a
                 collection of Milvus its name, its dimension and the address

A folder that somebody else has filled is refused before anything is written. A name is deleted only
if it is in the note, has the form of ours, and is a plain file; of a folder the files that we put
there, and the folder itself if it is empty then.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from weiss._base.files import replacing
from weiss.runs import folder as run_folder

NOTE, PLAN = ".written", "plan.json"
SUFFIXES = {
    "items": ".json",
    "vectors": ".npy",
    "digests": ".npy",
    "thumbnails": ".bin",
    "places": ".npy",
    "removed": ".npy",
    "skipped": ".txt",
    "map": ".npz",
    "store": ".faiss",
}
"""The kinds of files of an index, and how their names end."""
MODEL_FILES = (run_folder.RECIPE, run_folder.MODEL, run_folder.CARD, run_folder.RESULT)
"""What the folder of a model holds."""
MODEL = re.compile(r"model-[0-9a-f]{8}")
FILE = re.compile(
    "|".join(rf"{kind}-[0-9a-f]{{8}}{re.escape(suffix)}" for kind, suffix in SUFFIXES.items())
)
NAME = re.compile(rf"{FILE.pattern}|{MODEL.pattern}/(?:{'|'.join(map(re.escape, MODEL_FILES))})")
"""What a manifest may name: nothing that leads out of the folder."""
BLOCKS = re.compile(r"plan\.json|block-[0-9]{6}\.npz|\..+\.[0-9a-f]{8}\.tmp")
"""What a workspace holds: a plan, finished blocks, and what a killed process was writing."""


def note(folder: Path, name: str) -> None:
    """Note that a name is about to be given to something of ours."""
    with (folder / NOTE).open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")


def noted(folder: Path) -> set[str]:
    """Return the names that were noted."""
    try:
        return set((folder / NOTE).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return set()


def collection_line(store: dict[str, Any], dimension: int) -> str:
    """Return how a collection of Milvus is noted; nothing for a store that has none."""
    if "collection" not in store:
        return ""
    return f"{store['collection']} {dimension} {store['address']}"


def is_noted(folder: Path) -> bool:
    """Say whether a folder has such a note: whether we have written to it."""
    path = folder / NOTE
    return path.is_file() and not path.is_symlink()


def sweep(folder: Path, kept: set[str]) -> None:
    """Delete what was noted and is no longer named; note what is named, for the next time.

    Args:
        folder: an index folder, which nobody else writes to.
        kept: names, of files and of the model's folder, that belong to the index.
    """
    if is_noted(folder) and noted(folder) == kept:
        return
    for name in sorted(noted(folder) - kept):
        path = folder / name
        if path.is_symlink():
            continue
        if FILE.fullmatch(name) and path.is_file():
            path.unlink(missing_ok=True)
        elif MODEL.fullmatch(name) and path.is_dir():
            _remove(path, re.compile("|".join(map(re.escape, MODEL_FILES))))
    with replacing(folder / NOTE) as temporary:
        temporary.write_text("".join(f"{name}\n" for name in sorted(kept)), encoding="utf-8")


def clear_workspace(workspace: Path) -> None:
    """Delete what is finished of an index that is not; nothing that is not ours."""
    if workspace.is_dir() and not workspace.is_symlink():
        _remove(workspace, BLOCKS)


def _remove(folder: Path, pattern: re.Pattern[str]) -> None:
    """Delete the files of a folder whose names match, and the folder if that was all."""
    for path in folder.iterdir():
        if pattern.fullmatch(path.name) and (path.is_file() or path.is_symlink()):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def overlap(one: Path, other: Path) -> str:
    """Return ``"be"``, ``"lie in"`` or ``"hold"`` if one path is, lies in or holds another.

    Links are followed; an empty string says that they have nothing to do with each other.
    """
    one, other = one.resolve(), other.resolve()
    if one == other:
        return "be"
    if other in one.parents:
        return "lie in"
    return "hold" if one in other.parents else ""
