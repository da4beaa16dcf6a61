"""Images in object storage, ``s3://``, ``gs://`` and ``memory://``: listed and copied by fsspec.

Nothing here decodes: whoever needs images copies some to a folder of this machine, and reads those.
Embedding copies a piece at a time and deletes it; training copies all of them once. fsspec and the
library of each storage are an extra; credentials and endpoints are what they find in the
environment.
"""

import errno
import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from weiss._base import images
from weiss._base.arrays import Array
from weiss._base.checks import some
from weiss._base.files import cache_folder, replacing
from weiss._base.progress import track
from weiss.data.sources import Files

SCHEMES = ("s3", "gs", "memory")
AT_ONCE = 32
"""Objects that are asked for at a time: their answers take long, and little of a processor."""
FACTS = ("size", "ETag", "etag", "LastModified", "updated", "created")
"""What storages tell of an object that changes with it."""
OF_NAMES = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL)
"""What the system says of a name that no file can have, or not beside those that are there."""


def is_address(given: object) -> bool:
    """Return whether data are named by an address, not by a path of this machine.

    Example:
        >>> is_address("s3://bucket/photos"), is_address("photos/s3"), is_address("C:/photos")
        (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(given)) is not None


def open_storage(address: str) -> tuple[Any, str]:
    """Return the file system of fsspec for an address, and the path in it.

    Raises:
        ImportError: fsspec, or the library of this storage, is not installed.
        ValueError: it is no address of `SCHEMES`.
    """
    scheme, _, path = address.partition("://")
    if scheme not in SCHEMES or not path.strip("/") or "::" in address:
        raise ValueError(
            f"an address must be one of {', '.join(f'{each}://NAME/...' for each in SCHEMES)}; got "
            f"{address!r}. Copy or mount data that are elsewhere."
        )
    try:
        import fsspec

        fs = fsspec.filesystem(scheme)
    except ImportError as error:
        raise ImportError(
            f"{address} needs fsspec and its library for {scheme}://: {error}. Install them: "
            f"pip install 'weiss[storage]'{' gcsfs' if scheme == 'gs' else ''}"
        ) from error
    return fs, fs._strip_protocol(address).rstrip("/")


class Objects:
    """Images in object storage below an address.

    Args:
        root: the address.
        paths: names below it, one an item; or addresses below it.
        channels: 3 reads everything as RGB, 1 as grey.
        states: of each, what changes with its content, if that is known already.

    Raises:
        ValueError: a name leads out of the root, or could not be a file of this machine.
    """

    def __init__(
        self,
        root: str,
        paths: Sequence[str] | Array,
        channels: int = 3,
        states: Sequence[str] | Array | None = None,
    ) -> None:
        self.root = root.rstrip("/")
        below, given = f"{self.root}/", [str(path) for path in paths]
        self.paths = np.asarray([path.removeprefix(below) for path in given], dtype=object)
        if wrong := [path for path in given if not is_below(path, self.root)]:
            raise ValueError(
                f"every image must lie below {self.root}, by a plain name; {len(wrong):,} do not: "
                f"{some(wrong)}. Name the address they share: --root s3://BUCKET/..."
            )
        self.channels = channels
        self._states = None if states is None else np.asarray(states, dtype=object)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.paths)

    def name(self, item: int) -> str:
        """Return the name of an item below the root."""
        return str(self.paths[item])

    def read(self, item: int) -> Array:
        """Return an item as uint8 ``(height, width, channels)``, upright."""
        return images.decode(self.content(item), self.channels)

    def take(self, items: Array) -> "Objects":
        """Return the source of these items only, in this order."""
        states = None if self._states is None else self._states[items]
        return Objects(self.root, self.paths[items], self.channels, states)

    def known_states(self) -> list[str]:
        """Return a line for each item: its name, and what is known of its content."""
        states = [""] * len(self) if self._states is None else self._states
        return [f"{name} {state}\n" for name, state in zip(self.paths, states, strict=True)]

    def states(self) -> list[str]:
        """Return a line for each item that changes with its content; the storage is asked."""
        if self._states is None:
            fs, path = self._place

            def ask(name: str) -> str:
                try:
                    with _answers(self.root):
                        return _state(fs.info(f"{path}/{name}"))
                except FileNotFoundError as error:
                    return _why(error)

            with ThreadPoolExecutor(AT_ONCE, "weiss-storage") as threads:
                self._states = np.asarray([*threads.map(ask, self.paths)], dtype=object)
        return self.known_states()

    def copy(self, folder: Path, what: str | None = None) -> dict[int, str]:
        """Copy all objects that the folder does not have; return which cannot be, and why.

        ``what`` is the title of a progress bar.

        Raises:
            ConnectionError: the storage does not answer, or refuses: no image is left out for that.
            OSError: this machine cannot keep the copies, as its disk is full.
        """

        def fetch(item: int) -> str:
            place = folder / self.name(item)
            try:
                if not place.is_file():
                    content = self.content(item)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with replacing(place) as temporary:
                        temporary.write_bytes(content)
            except images.BadImageError as error:
                return str(error)
            except OSError as error:
                if error.errno not in OF_NAMES:
                    raise
                return f"{self.name(item)}: {_why(error)}"
            return ""

        items = range(len(self))
        with ThreadPoolExecutor(AT_ONCE, "weiss-storage") as threads:
            done: Iterator[str] = threads.map(fetch, items)
            if what is not None:
                done = track(((1, each) for each in done), len(self), what)
            return {item: why for item, why in enumerate(done) if why}

    def content(self, item: int) -> bytes:
        """Return the bytes of an item.

        Raises:
            BadImageError: it does not exist.
            ConnectionError: the storage does not answer, or refuses.
        """
        fs, path = self._place
        try:
            with _answers(self.root):
                return bytes(fs.cat_file(f"{path}/{self.name(item)}"))
        except FileNotFoundError as error:
            raise images.BadImageError(f"{self.name(item)}: {_why(error)}") from error

    @cached_property
    def _place(self) -> tuple[Any, str]:
        return open_storage(self.root)


@contextmanager
def copied(source: Objects) -> Iterator[tuple[Files, dict[int, str]]]:
    """Give the images as files of a temporary folder; also which could not be copied, and why."""
    with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
        errors = source.copy(Path(folder))
        yield Files(folder, source.paths, source.channels), errors


def kept_copy(source: Objects) -> tuple[Files, dict[int, str]]:
    """Copy images to the cache folder, or find them there; also which could not be copied, and why.

    Objects that have changed, or are others, are copied to another folder.
    """
    key = hashlib.sha256("".join([f"{source.root}\n", *source.states()]).encode()).hexdigest()[:24]
    folder = cache_folder() / "objects" / key
    errors = source.copy(folder, f"copying {source.root}")
    return Files(folder, source.paths, source.channels), errors


@contextmanager
def local_list(path: str | Path, root: str | Path | None) -> Iterator[tuple[Path, str]]:
    """Give a list of images as a file of this machine: itself, or a copy of an object.

    Also what its paths start from: ``root``, or the folder of the list, there or here.
    """
    if not is_address(path):
        yield Path(path), str(root or Path(path).parent)
        return
    fs, place = open_storage(str(path))
    with tempfile.TemporaryDirectory(prefix="weiss-") as folder:
        local = Path(folder) / PurePosixPath(place).name
        try:
            with _answers(str(path)), fs.open(place, "rb") as there, local.open("wb") as here:
                shutil.copyfileobj(there, here)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"a list of images must exist; {path} does not. Check the address."
            ) from error
        yield local, str(root or str(path).rpartition("/")[0])


def names_below(address: str) -> tuple[list[str], list[str]]:
    """Return the names of all objects below an address, outside of hidden folders; and states.

    Raises:
        FileNotFoundError: there are none.
        ConnectionError: the storage does not answer, or refuses.
    """
    fs, path = open_storage(address)
    try:
        with _answers(address):
            found = fs.find(path, detail=True)
    except FileNotFoundError:
        found = {}
    kept = {}
    for place, info in sorted(found.items()):
        name = str(place).removeprefix(path).lstrip("/")
        if name and not any(part.startswith(".") for part in name.split("/")[:-1]):
            kept[name] = _state(info)
    if not kept:
        raise FileNotFoundError(f"{address} must hold images; it holds nothing. Check the address.")
    return list(kept), list(kept.values())


@contextmanager
def _answers(address: str) -> Iterator[None]:
    """Raise what keeps a storage from answering as ConnectionError, as credentials that ended do.

    That there is no such object is an answer, and passes.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    # The libraries of storages raise errors of many types.
    except Exception as error:
        raise ConnectionError(
            f"the storage of {address} must answer; it did not: {_why(error)}. Check the address, "
            "the network, and the credentials in the environment. Then start the same command "
            "again."
        ) from error


def _state(info: dict[str, Any]) -> str:
    return " ".join(str(info[name]) for name in FACTS if name in info)


def is_below(path: str, root: str) -> bool:
    """Return whether a name, or an address, stays below an address, and a copy below its folder.

    Example:
        >>> root = "s3://bucket/photos"
        >>> [is_below(path, root) for path in ("a/b.jpg", f"{root}/b.jpg", "../b.jpg", "a//b.jpg")]
        [True, True, False, False]
    """
    name = path.removeprefix(f"{root.rstrip('/')}/")
    is_plain = bool(name) and "\0" not in name and not is_address(name)
    return is_plain and not set(name.split("/")) & {"", ".", ".."}


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    said = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
