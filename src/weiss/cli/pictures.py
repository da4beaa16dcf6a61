"""The pictures that a command is given: refused, or decoded, or named because they cannot be read.

As in `cli`, everything heavy is imported inside.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from weiss.cli import printing

if TYPE_CHECKING:
    from weiss._base.arrays import Array
    from weiss.catalogue import Catalogue


def refuse_arguments(images: Sequence[Path], k: int, html: Path | None) -> None:
    """Refuse what a search cannot use, before anything large is opened."""
    from weiss._base.images import decode

    if k < 1:
        raise ValueError(f"-k must be at least 1; got {k}.")
    for path in images:
        if path.is_dir():
            raise ValueError(
                f"IMAGE must be a picture; {path} is a folder. Name the pictures in it, for "
                f"example {path}/*.jpg"
            )
    if html is not None and html.is_dir():
        raise ValueError(f"--html must name a file; {html} is a folder. Add a name: page.html")
    if images and not any(path.is_file() for path in images):
        decode(images[0])  # which says why not


class Unreadable:
    """The pictures of a command that cannot be read, and why."""

    def __init__(self) -> None:
        self.errors: dict[Path, ValueError] = {}

    def as_dicts(self) -> list[dict[str, str]]:
        """Return them for JSON."""
        errors = self.errors.items()
        return [
            {"image": str(path), "error": str(error).removeprefix(f"{path}: ")}
            for path, error in errors
        ]

    def end(self) -> None:
        """Name them on standard error and end with 1; do nothing if there are none."""
        for error in self.errors.values():
            printing.print_error(str(error))
        if self.errors:
            raise typer.Exit(1)


def decoded(
    images: Sequence[Path], catalogue: "Catalogue", unreadable: Unreadable
) -> "Iterator[tuple[list[Path], list[Array]]]":
    """Yield the paths and the pixels of pictures, so many at a time as are embedded together.

    Those that cannot be read are added to ``unreadable``. If all of them are, the first error is
    raised.
    """
    from weiss._base.images import BadImageError, decode
    from weiss.catalogue.networks import AT_ONCE

    for start in range(0, len(images), AT_ONCE):
        paths, pixels = [], []
        for path in images[start:][:AT_ONCE]:
            try:
                # As small as the network looks at: photos of a whole folder are gigabytes.
                pixels.append(
                    decode(path, short_side=catalogue.short_side, scaled=catalogue.scaled_decoding)
                )
                paths.append(path)
            except BadImageError as error:
                unreadable.errors[path] = error
        if paths:
            yield paths, pixels
    if len(unreadable.errors) == len({*images}):
        raise next(iter(unreadable.errors.values()))
