"""Unpack an archive completely or not at all, and nothing outside the folder.

Entries are written to a hidden folder first and moved into place when all of them could be read.
No entry is written through a link, and no link is made: nothing can point outside. An archive that
grows out of all proportion, that has a name twice, or names of many folders, is refused.
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
from typing import IO, Literal, NoReturn, Self

from weiss._base.files import READ_BYTES
from weiss._base.progress import track

TarMode = Literal["r:", "r:gz", "r:bz2", "r:xz"]
DESCRIBING = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
"""Types of headers of a tar that describe the next entry."""
# The mode for a tar by its first two bytes; if tarfile guesses, its errors fill five lines.
COMPRESSED: dict[bytes, TarMode] = {b"\x1f\x8b": "r:gz", b"BZ": "r:bz2", b"\xfd7": "r:xz"}
GROWTH, ALWAYS_ALLOWED = 100, 2**28
"""An archive may grow to this many times its size, or to this many bytes if that is more."""
PER_ENTRY = 4096
"""Bytes that an entry takes beside its content, for the sums here."""
DEEPEST, LONGEST = 64, 255
"""Folders inside each other, and bytes of a name, that an entry may have."""
LONGEST_HEADER = 2**20
"""Bytes of a long name, or of attributes, in a tar; tarfile reads them into memory."""
SPECIAL = "is neither a file nor a folder"
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
    """A file with its content, a link to another entry, or else a folder."""

    name: str
    size: int = 0
    content: IO[bytes] | None = None
    link: str | None = None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar (also gz, bz2, xz) or a zip into a folder.

    An error leaves nothing behind; a process that is killed leaves only a hidden folder that the
    next call removes. Files of the same names are replaced, others stay. Permissions, owners and
    times are not restored; a link becomes a copy of its file. Not for two processes at a time.

    Raises:
        ValueError: the archive is damaged, incomplete, or has a forbidden entry; or it grows out
            of proportion (a decompression bomb).
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
    room = _Room(archive, folder)
    links: dict[Path, tuple[str, str]] = {}
    files: set[Path] = set()
    for entry in track(_entries(archive), archive.stat().st_size, f"unpacking {archive.name}"):
        place = _inside(folder, entry.name, entry.name, archive)
        room.take(entry.size)
        is_folder = entry.content is None and entry.link is None
        if place in files or place in links or (place.is_dir() and not is_folder):
            _refuse(archive, entry.name, "is there twice")
        if not files.isdisjoint(place.parents):
            _refuse(archive, entry.name, "is below a file")
        if entry.link is not None:
            links[place] = entry.name, entry.link
        elif entry.content is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            files.add(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as file:
                for block in _blocks(archive, entry.content):
                    file.write(block)
    # Links come last, when the files they point to are complete.
    for place, (name, link) in links.items():
        origin = _inside(folder, link, name, archive)
        if not origin.is_file():
            _refuse(archive, name, f"is a link to {link!r}, no file of the archive")
        if place.is_dir() or not files.isdisjoint(place.parents):
            _refuse(archive, name, "is a link in the place of a folder, or below a file")
        room.take(origin.stat().st_size)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin, place)
        files.add(place)


class _Room:
    """Counts the bytes that unpacking takes, and refuses too many before they are written."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder, self.taken = archive, folder, 0
        self.free = shutil.disk_usage(folder).free
        self.proportion = max(ALWAYS_ALLOWED, GROWTH * archive.stat().st_size)

    def take(self, size: int) -> None:
        self.taken += size + PER_ENTRY
        if self.taken > self.proportion:
            raise ValueError(
                f"an archive must not grow to more than {GROWTH} times its size, or "
                f"{ALWAYS_ALLOWED:,} bytes; {self.archive} does (a decompression bomb?). Nothing "
                "was unpacked; get the archive from its official address, or unpack it by hand."
            )
        if self.taken > self.free:
            raise OSError(
                f"unpacking {self.archive} needs more than the {self.free:,} bytes that are free "
                f"in {self.folder.parent}. Make room or choose another folder."
            )


def _inside(folder: Path, name: str, entry: str, archive: Path) -> Path:
    """Return the path of a name, of an entry or its link: below the folder on every system."""
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or "\0" in name:
        _refuse(archive, entry, f"would land outside: {name!r} is absolute")
    if ".." in name.replace("\\", "/").split("/"):
        _refuse(archive, entry, f"would land outside: {name!r} leads upwards")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if len(parts) > DEEPEST or any(len(os.fsencode(part)) > LONGEST for part in parts):
        _refuse(archive, entry, f"has a name of more than {DEEPEST} folders or {LONGEST} bytes")
    return folder.joinpath(*parts)


def _refuse(archive: Path, entry: str, why: str) -> NoReturn:
    raise ValueError(
        f"an archive must hold nothing but files and folders below its own; in {archive} the entry "
        f"{entry[:LONGEST]!r} {why}. Nothing was unpacked; get the archive from its official "
        "address, or unpack it by hand."
    )


def _entries(archive: Path) -> Iterator[tuple[int, _Entry]]:
    """Yield the entries in order, each with its number of bytes in the archive."""
    with archive.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        yield from _of_zip(archive, file) if start == b"PK" else _of_tar(archive, file, start)


class _Header(tarfile.TarInfo):
    """A header of a tar; one that only describes the next is short."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.type in DESCRIBING and found.size > LONGEST_HEADER:
            raise tarfile.ReadError(f"the description of an entry has {found.size:,} bytes")
        return found


def _of_tar(archive: Path, file: IO[bytes], start: bytes) -> Iterator[tuple[int, _Entry]]:
    with ExitStack() as stack:
        with _reading(archive):
            mode = COMPRESSED.get(start, "r:")
            tar = stack.enter_context(tarfile.open(None, mode, file, tarinfo=_Header))
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
                yield worth, _Entry(name)
            elif member.isfile():
                yield worth, _Entry(name, member.size, tar.extractfile(member))
            elif member.islnk():
                yield worth, _Entry(name, link=member.linkname)
            elif member.issym():
                yield worth, _Entry(name, link=_beside(name, member.linkname))
            else:
                _refuse(archive, name, SPECIAL)


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
                yield worth, _Entry(name)
            elif kind == stat.S_IFLNK:
                with _reading(archive), zipped.open(info) as content:
                    link = os.fsdecode(content.read(LONGEST_HEADER))
                yield worth, _Entry(name, link=_beside(name, link))
            elif kind in (0, stat.S_IFREG):
                with _reading(archive):
                    content = zipped.open(info)
                with content:
                    yield worth, _Entry(name, info.file_size, content)
            else:
                _refuse(archive, name, SPECIAL)


def _beside(name: str, link: str) -> str:
    """Return the target of a symbolic link from the top of the archive; no folder is a link."""
    is_absolute = PurePosixPath(link).is_absolute()
    return link if is_absolute else os.path.normpath(PurePosixPath(name).parent / link)


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
