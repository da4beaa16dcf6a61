"""Download a file so that it is either complete or absent.

A download is written to ``NAME.part``, with a note beside it about the version of the file. It
resumes where it stopped, is verified, and only then renamed. Several processes may ask for the same
file: one downloads, the others wait.
"""

import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, Literal

from weiss._base import checks
from weiss._base.files import READ_BYTES, alone, replacing
from weiss._base.progress import track

SCHEMES = ("http", "https", "ftp", "file")
TIMEOUT = 30.0  # seconds without a byte
PAUSES = (1.0, 2.0, 4.0, 8.0)  # seconds before each further try
BUSY = (408, 429, 500, 502, 503, 504)  # HTTP errors that may be temporary


class DownloadError(OSError):
    """A file could not be downloaded; the message says how to get it by hand."""


class _LostError(Exception):
    """The connection broke or could not be made; what has been received is kept."""

    def __init__(self, why: object, *, answered: bool = True) -> None:
        super().__init__(why)
        self.answered = answered


@dataclass(frozen=True)
class Checksum:
    """A published checksum.

    Args:
        algorithm: ``"md5"`` or ``"sha256"``.
        value: its hexadecimal digits, or the first 8 or more of them.
        source: who published it, for the error message.
    """

    algorithm: Literal["md5", "sha256"]
    value: str
    source: str

    def __post_init__(self) -> None:
        """Refuse an unknown algorithm and wrong digits."""
        checks.one_of("algorithm", self.algorithm, ("md5", "sha256"), "Checksum")
        digits = {"md5": 32, "sha256": 64}[self.algorithm]
        if not re.fullmatch(rf"[0-9a-f]{{8,{digits}}}", self.value):
            raise ValueError(
                f"value must be 8 to {digits} hexadecimal digits in lower case for Checksum; "
                f"got {self.value!r}. Copy it from its source."
            )

    def found_in(self, path: Path) -> str:
        """Return the digits of a file, as many as `value` has."""
        digest = hashlib.new(self.algorithm, usedforsecurity=False)
        with path.open("rb") as file:
            blocks = ((len(block), block) for block in iter(lambda: file.read(READ_BYTES), b""))
            for block in track(blocks, path.stat().st_size, f"checking {path.name}"):
                digest.update(block)
        return digest.hexdigest()[: len(self.value)]

    def fits(self, path: Path) -> bool:
        """Return whether a file has this checksum."""
        return self.found_in(path) == self.value

    def verify(self, path: Path, what_to_do: str) -> None:
        """Refuse a file that has another checksum."""
        found = self.found_in(path)
        if found != self.value:
            raise ValueError(
                f"{path} must have the {self.algorithm} {self.value}, published by {self.source}; "
                f"got {found}. {what_to_do}"
            )


def fetch(url: str, target: Path, *, checksum: Checksum | None = None, what: str = "") -> Path:
    """Download a file, or resume a download that stopped.

    Args:
        url: an http, https, ftp or file address; only http and https can resume.
        target: the path of the file. If it exists with the right checksum, or none is given,
            nothing is downloaded; with a wrong one it is renamed to ``NAME.wrong``.
        checksum: the checksum the file must have.
        what: its name on the progress bar and in messages; the file's name by default.

    Raises:
        DownloadError: there is no network, or the server does not have the file.
        ValueError: the downloaded file has another checksum; it is deleted.
        OSError: the disk is too full.
    """
    target, what = Path(target), what or Path(target).name
    scheme = urllib.parse.urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ValueError(
            f"url must start with one of {', '.join(SCHEMES)} for fetch; got {url!r}. "
            "Pass a path on this machine as file:///..."
        )
    if _is_there(target, checksum):  # before the lock, which needs the right to write
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target):
        if _is_there(target, checksum):
            return target
        if target.exists():
            target.replace(target.with_name(target.name + ".wrong"))
        part = target.with_name(target.name + ".part")
        note = target.with_name(target.name + ".part.json")
        _download(url, part, note, what, target, resumable=checksum is not None)
        if checksum is not None:
            try:
                checksum.verify(part, f"It came from {url} and was deleted; try again later.")
            except ValueError:
                _forget(part, note)
                raise
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
        _forget(note)
    return target


def _is_there(target: Path, checksum: Checksum | None) -> bool:
    return target.is_file() and (checksum is None or checksum.fits(target))


def _download(
    url: str, part: Path, note: Path, what: str, target: Path, *, resumable: bool
) -> None:
    """Complete `part`, with as many tries as needed while each one receives something new."""
    best, failures, answered = _size(part), 0, False
    while True:
        try:
            with _open(url, part, note, resumable) as (response, have):
                if response is not None:
                    _receive(response, have, url, part, note, what)
                return
        except _LostError as lost:
            answered = answered or lost.answered
            failures = 1 if _size(part) > best else failures + 1
            best = max(best, _size(part))
            # Without any answer there is no network or no such server: waiting does not help.
            if not answered or failures > len(PAUSES):
                raise DownloadError(
                    f"{what} must be fetched from {url}; that failed: {lost}. "
                    f"Try again, or fetch it by hand and put it at {target}."
                ) from lost
        except urllib.error.HTTPError as error:
            error.close()
            answered = True
            failures += 1
            if error.code not in BUSY or failures > len(PAUSES):
                raise DownloadError(
                    f"{what} must be fetched from {url}; the server answers {error.code} "
                    f"{error.reason}. Fetch it by hand and put it at {target}."
                ) from error
        time.sleep(PAUSES[failures - 1])


@contextmanager
def _open(url: str, part: Path, note: Path, resumable: bool) -> Iterator[tuple[Any, int]]:
    """Yield the server's response and how many bytes of the file are there already.

    The response is None if all of it is there. Bytes of different versions of a file are never
    mixed: the server is asked to continue only the version in the note, and its response is
    compared with the note, because not every server supports that condition.
    """
    known = _known(part, note)
    version = known.get("etag") or known.get("modified")
    have = _size(part) if known.get("url") == url and (version or resumable) else 0
    if have and have == known.get("total"):
        yield None, have
        return
    headers = {"User-Agent": "weiss", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if version:
            headers["If-Range"] = version
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if _whole(error.headers) == have:
            yield None, have
            return
        _forget(part, note)
        raise _LostError("the server's file is shorter than the part received before") from error
    except (OSError, http.client.HTTPException) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise _LostError(why, answered=False) from error
    with response:
        if response.status != 206:
            have = 0
        else:
            now = _version(response.headers, have)
            if _start(response.headers) != have or any(
                known.get(key) not in (None, now[key]) for key in now
            ):
                _forget(part, note)
                raise _LostError("the file on the server has changed")
        yield response, have


def _receive(response: Any, have: int, url: str, part: Path, note: Path, what: str) -> None:
    """Append the response to the bytes that are there, and check its length."""
    version = _version(response.headers, have)
    total = version["total"]
    if total is not None:
        free = shutil.disk_usage(part.parent).free
        if have == 0:
            free += _size(part)  # it is overwritten
        if total - have > free:
            raise OSError(
                f"{what} needs {total - have:,} bytes in {part.parent}; there are {free:,} free. "
                "Make room or choose another folder."
            )
    with part.open("ab" if have else "wb") as file:
        with replacing(note) as temporary:
            temporary.write_text(json.dumps({"url": url, **version}))
        for block in track(_blocks(response, have), total or 0, f"fetching {what}"):
            file.write(block)
    if total is not None and _size(part) != total:
        raise _LostError(f"the connection closed after {_size(part):,} of {total:,} bytes")


def _blocks(response: Any, have: int) -> Iterator[tuple[int, bytes]]:
    """Read the response; an error here is an error of the connection, not of the disk."""
    yield have, b""
    while True:
        try:
            # read1 returns what has arrived, so a connection that breaks loses nothing.
            read = getattr(response, "read1", response.read)
            block = read(READ_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _LostError(str(error)) from error
        if not block:
            return
        yield len(block), block


def _known(part: Path, note: Path) -> dict[str, Any]:
    """Return the content of the note; empty if the note or the part is missing."""
    try:
        known = json.loads(note.read_text()) if part.exists() else {}
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _version(headers: Message, have: int) -> dict[str, Any]:
    """Return the headers that identify a version of a file."""
    etag, length = headers.get("ETag"), headers.get("Content-Length", "")
    return {
        # A weak tag does not promise the same bytes.
        "etag": None if etag is None or etag.startswith("W/") else etag,
        "modified": headers.get("Last-Modified"),
        "total": _whole(headers) or (have + int(length) if length.isdecimal() else None),
    }


def _whole(headers: Message) -> int | None:
    """Return the length of the whole file from the headers of a partial response."""
    found = re.search(r"/(\d+)$", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _start(headers: Message) -> int | None:
    """Return the position of the first byte of a partial response."""
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _forget(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
