"""The photos that an index was made of, from folders that the owner has named.

The index has no paths. The name of an item is looked up below these folders, and a file is served
only if its content has the checksum that the index keeps for the item: no other file can be read,
whatever names an index has, and a photo that was changed or replaced is not shown as the item.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from weiss._base.files import special_file
from weiss.catalogue import Catalogue

KINDS = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "image/jpeg"),
    **{f".{name}": f"image/{name}" for name in ("png", "bmp", "gif", "webp", "avif")},
}
"""Media types of pictures that a browser shows; any other file is offered as a download."""
OTHER = "application/octet-stream"


def checked_folders(folders: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the folders of photos; raise ValueError if one is none."""
    found = tuple(Path(folder) for folder in folders)
    for folder in found:
        if not folder.is_dir():
            raise ValueError(
                f"--originals must name a folder of photos; {folder} is not one. Name the folder "
                "that was indexed."
            )
    return found


def original(
    catalogue: Catalogue, id: int, folders: Sequence[Path], max_bytes: int
) -> tuple[bytes, str] | None:
    """Return content and media type of an item's photo; None if no folder has it.

    Raises:
        UnknownItemError: there is no such item.
    """
    parts = PurePosixPath(catalogue.item(id).name)
    if parts.is_absolute() or ".." in parts.parts:
        return None
    for folder in folders:
        path = folder / parts
        try:
            if special_file(path) or not path.is_file() or path.stat().st_size > max_bytes:
                continue
            with path.open("rb") as file:
                content = file.read(max_bytes + 1)
        except (OSError, ValueError):
            continue
        if hashlib.blake2b(content, digest_size=16).digest() == catalogue.digest(id):
            return content, KINDS.get(path.suffix.lower(), OTHER)
    return None
