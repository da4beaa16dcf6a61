"""Unpack an archive completely or not at all, and nothing outside the folder.

Entries are written to a hidden folder first and moved into place when all of them could be read.
No entry is written through a link, and no link is made: nothing can point outside.
"""

import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Literal, NoReturn

from weiss._base.files import READ_BYTES
from weiss._base.progress import track

TarMode = Literal["r:", "r:gz", "r:bz2", "r:xz"]
# The mode for a tar by its first two bytes; if tarfile guesses, its errors fill five lines.
COMPRESSED: dict[bytes, TarMode] = {b"\x1f\x8b": "r:gz", b"BZ": "r:bz2", b"\xfd7": "r:xz"}
# Errors of the standard library for a file that is no archive, or an incomplete one.
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
    ValueError,
)


@dataclass(frozen=True)
class _Entry:
    """A folder, a file with its content, or a link to another entry."""

    name: str
    kind: Literal["folder", "file", "link", "other"]
    size: int = 0
    content: IO[bytes] | None = None
    link: str = ""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar (also gz, bz2, xz) or a zip into a folder.

    An archive that cannot be read, or with an entry outside the folder, leaves nothing behind; a
    process that is killed leaves only a hidden folder that the next call removes. Files of the same
    names are replaced, others stay. Permissions, owners and times are not restored; a link becomes
    a copy of the file it points to. Not for two processes at a time.

    Args:
        archive: the archive.
        folder: where its entries go; created if needed.

    Raises:
        ValueError: the archive is damaged, incomplete, or has a forbidden entry.
        OSError: the disk is too full.
    """
    archive, folder = Path(archive), Path(folder)
    if not archive.is_file():
        raise FileNotFoundError(f"an archive must be a file; got {archive}. Check the path.")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{archive.name}.unpacking"
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    temporary.mkdir()
    try:
        _extract(archive, temporary)
        _move(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    free, needed = shutil.disk_usage(folder).free, 0
    links: dict[Path, _Entry] = {}
    for entry in track(_entries(archive), archive.stat().st_size, f"unpacking {archive.name}"):
        place = _inside(folder, entry.name, entry, archive)
        if entry.kind == "folder":
            place.mkdir(parents=True, exist_ok=True)
        elif entry.kind == "link":
            links[place] = entry
        elif entry.kind == "other" or entry.content is None or place == folder:
            _refuse(archive, entry, "is neither a file nor a folder")
        else:
            needed += entry.size
            if needed > free:
                raise OSError(
                    f"unpacking {archive} needs more than the {free:,} bytes that are free in "
                    f"{folder.parent}. Make room or choose another folder."
                )
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                for block in _blocks(archive, entry.content):
                    file.write(block)
    # Links come last, when the files they point to are complete.
    for place, entry in links.items():
        origin = _inside(folder, entry.link, entry, archive)
        if not origin.is_file():
            _refuse(archive, entry, f"is a link to {entry.link!r}, no file of the archive")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin, place)


def _inside(folder: Path, name: str, entry: _Entry, archive: Path) -> Path:
    """Return the path of a name, which must be below the folder on every operating system."""
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or "\0" in name:
        _refuse(archive, entry, f"would land outside: {name!r} is absolute")
    if ".." in name.replace("\\", "/").split("/"):
        _refuse(archive, entry, f"would land outside: {name!r} leads upwards")
    return folder.joinpath(*(part for part in name.split("/") if part not in ("", ".")))


def _refuse(archive: Path, entry: _Entry, why: str) -> NoReturn:
    raise ValueError(
        f"an archive must hold nothing but files and folders below its own; in {archive} the entry "
        f"{entry.name!r} {why}. Nothing was unpacked; get the archive from its official address."
    )


def _entries(archive: Path) -> Iterator[tuple[int, _Entry]]:
    """Yield the entries in order, each with its number of bytes in the archive."""
    with archive.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if start == b"PK":
            yield from _of_zip(archive, file)
        else:
            yield from _of_tar(archive, file, COMPRESSED.get(start, "r:"))


def _of_tar(archive: Path, file: IO[bytes], mode: TarMode) -> Iterator[tuple[int, _Entry]]:
    with ExitStack() as stack:
        with _reading(archive):
            tar = stack.enter_context(tarfile.open(None, mode, file))
        read = 0
        while True:
            with _reading(archive):
                member = tar.next()
                if member is None:
                    _end_of_tar(tar)
                    return
                worth, read = file.tell() - read, file.tell()
            name = member.name
            if member.isdir():
                yield worth, _Entry(name, "folder")
            elif member.isfile():
                yield worth, _Entry(name, "file", member.size, tar.extractfile(member))
            elif member.islnk():
                yield worth, _Entry(name, "link", link=member.linkname)
            elif member.issym():
                yield worth, _Entry(name, "link", link=_beside(name, member.linkname))
            else:
                yield worth, _Entry(name, "other")


def _end_of_tar(tar: tarfile.TarFile) -> None:
    """Refuse a tar that stops between two entries, which tarfile accepts."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("the end is missing")
    while tar.fileobj.read(READ_BYTES):  # up to the checksum of the compressed data
        pass


def _of_zip(archive: Path, file: IO[bytes]) -> Iterator[tuple[int, _Entry]]:
    with ExitStack() as stack:
        with _reading(archive):
            zipped = stack.enter_context(zipfile.ZipFile(file))
        for info in zipped.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            name, worth = info.filename, info.compress_size
            if info.flag_bits & 1:
                raise ValueError(
                    f"an archive must be readable without a password; {archive} is encrypted. "
                    "Unpack it by hand with the password of its owners."
                )
            if info.is_dir():
                yield worth, _Entry(name, "folder")
            elif kind not in (0, stat.S_IFREG, stat.S_IFLNK):
                yield worth, _Entry(name, "other")
            else:
                with _reading(archive):
                    content = zipped.open(info)
                with content:
                    if kind == stat.S_IFLNK:
                        with _reading(archive):
                            link = os.fsdecode(content.read())
                        yield worth, _Entry(name, "link", link=_beside(name, link))
                    else:
                        yield worth, _Entry(name, "file", info.file_size, content)


def _beside(name: str, link: str) -> str:
    """Return the target of a symbolic link, relative to the top of the archive.

    No folder is a link, so ``a/../b`` is ``b``.
    """
    if PurePosixPath(link).is_absolute():
        return link
    return os.path.normpath(PurePosixPath(name).parent / link)


def _blocks(archive: Path, content: IO[bytes]) -> Iterator[bytes]:
    while True:
        with _reading(archive):
            block = content.read(READ_BYTES)
        if not block:
            return
        yield block


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    """Turn errors of the readers into one about the archive."""
    try:
        yield
    except DAMAGE as error:
        raise ValueError(
            f"an archive must be a whole tar or zip; {archive} cannot be read: {error}. It is "
            "damaged or not complete: remove it and fetch it again."
        ) from error


def _move(origin: Path, folder: Path) -> None:
    """Move the content of one folder into another; each step is atomic."""
    for entry in sorted(os.scandir(origin), key=lambda entry: entry.name):
        place = folder / entry.name
        if entry.is_dir() and place.is_dir():
            _move(Path(entry.path), place)
        elif place.is_dir() or (entry.is_dir() and place.exists()):
            raise FileExistsError(
                f"unpacking makes a {'folder' if entry.is_dir() else 'file'} {place}; something "
                "else of that name is there. Move it away."
            )
        else:
            os.replace(entry.path, place)
