"""The index folder: which files belong to the index, and how one state replaces another.

    index.json          the manifest: all files that belong to the index
    card.md             the same for people
    skipped.txt         which images could not be read, and why; a copy of the file below
    model-XXXXXXXX/     a copy of the model, itself a run folder: recipe, network, fields
    items-XXXXXXXX.json, vectors-XXXXXXXX.npy, digests-XXXXXXXX.npy, thumbnails-XXXXXXXX.bin,
    places-XXXXXXXX.npy
                        a segment: items that were added together, or in several small changes
    removed-XXXXXXXX.npy, skipped-XXXXXXXX.txt, map-XXXXXXXX.npz, store-XXXXXXXX.faiss
    .building/          finished embeddings of an index that is not finished
    .written            the note: names that Weiss has used here since the last change began, one a
                        line; for a collection of a database its name, its dimension and the address

Files never change once a manifest names them. A change writes new files, then replaces the
manifest, then deletes the files that it no longer names: items that were removed are in no file. A
reader that has opened them still reads them; one that was about to reads the manifest again. What
a killed change leaves is deleted by the next one.

Only files of Weiss are deleted: a name is noted before it is used, and a file is deleted only if
its name is in the note and has the form of ours. A folder with other contents is refused.

Opening an index compares the sizes of all files, and the checksums of all but large ones of
`MAY_BE_LARGE`. `weiss index --check` compares everything, as does `weiss serve` when it starts.
"""

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from weiss._base.checks import path_suggestion, some
from weiss._base.decoding import usable_cores
from weiss._base.files import alone, read_json, refuse_special_file, remove_leftovers, replacing
from weiss.catalogue.manifest import (
    FILE_NAME,
    MANIFEST,
    MODEL_FILES,
    MODEL_NAME,
    SUFFIXES,
    Manifest,
    collection_line,
)
from weiss.catalogue.records import REPAIR, DamagedIndexError, damaged
from weiss.runs.folder import CARD

T = TypeVar("T")
SKIPPED, BUILDING = "skipped.txt", ".building"
NOTE, PLAN = ".written", "plan.json"
SMALL = 4 * 2**20
MAY_BE_LARGE = ("vectors-", "thumbnails-", "store-", "model-")
"""Files that are compared with their checksum only up to `SMALL` bytes when the index is opened;
the network checks itself when it is loaded, as does the store if it is read into memory."""
RETRIES = 10
"""How often a reader starts again because the index has changed meanwhile."""
LOCK = f".{MANIFEST}.lock"
WORKSPACE_FILES = r"plan\.json|block-[0-9]{6}\.npz"


class IndexFolder:
    """The folder of an index, which may not exist yet."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def exists(self) -> bool:
        """Return whether there is an index here."""
        return (self.folder / MANIFEST).is_file()

    def readable_manifest(self) -> Manifest | None:
        """Return the manifest; None if there is no index, or if it is damaged."""
        try:
            return self.manifest() if self.exists() else None
        except DamagedIndexError:
            return None

    def path(self, name: str) -> Path:
        """Return the path of a file of the index."""
        return self.folder / name

    @property
    def building(self) -> Path:
        """The folder of finished embeddings of an index that is not finished."""
        return self.folder / BUILDING

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            FileNotFoundError: there is no index.
            DamagedIndexError: the manifest cannot be read.
        """
        refuse_special_file(self.path(MANIFEST), DamagedIndexError)
        try:
            content = self.path(MANIFEST).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(self._absent()) from None
        return Manifest.from_json(content)

    def reading(
        self, read: Callable[[Manifest], T], *, everything: bool = False
    ) -> tuple[Manifest, T]:
        """Return the manifest and ``read(manifest)``; start again if it was changed meanwhile.

        With ``everything`` the checksums of large files are compared too.
        """
        manifest = self.manifest()
        for _ in range(RETRIES):
            try:
                self.check(manifest, everything=everything)
                return manifest, read(manifest)
            except (FileNotFoundError, NotADirectoryError) as error:
                newer = self.manifest()
                if newer.files == manifest.files:
                    name = Path(str(error.filename or error)).name
                    raise DamagedIndexError(f"{name} of the index is missing. {REPAIR}") from None
                manifest = newer
        raise DamagedIndexError(
            f"{self.folder.name} changes faster than it can be read. Try again in a moment."
        )

    def check(self, manifest: Manifest, *, everything: bool = False) -> None:
        """Compare sizes and checksums, with ``everything`` of large files too; see `reading`.

        Raises:
            DamagedIndexError: a file is cut off or changed.
            OSError: it is missing.
        """
        compared = []
        for name, must in manifest.files.items():
            path = self.path(name)
            refuse_special_file(path, DamagedIndexError)
            size = path.stat().st_size
            if size != must["bytes"]:
                raise DamagedIndexError(
                    f"{name} of the index must have {must['bytes']:,} bytes; it has {size:,}. It "
                    f"was cut off or changed. {REPAIR}"
                )
            if everything or size <= SMALL or not name.startswith(MAY_BE_LARGE):
                compared.append(name)
        self.compare(manifest, compared)

    def compare(self, manifest: Manifest, names: Sequence[str]) -> None:
        """Compare the checksums of some files; raise DamagedIndexError if one has changed."""
        with ThreadPoolExecutor(usable_cores()) as pool:
            for name, found in zip(names, pool.map(self._sha256, names), strict=True):
                if found != manifest.files[name]["sha256"]:
                    raise damaged(name, "its content does not match its checksum")

    def verify(self) -> str:
        """Compare everything, and add the checksum of an index.json that has none.

        Return what was found, in words.
        """
        manifest, _ = self.reading(lambda _: None, everything=True)
        line = f"{len(manifest.files)} files are as they were written"
        if manifest.is_sealed:
            return f"{line}, and {MANIFEST}."
        line = f"{line}; {MANIFEST}, of an older version, had no checksum"
        try:
            with self.writing():  # nobody has changed what is compared now
                manifest, _ = self.reading(lambda _: None, everything=True)
                self._write(MANIFEST, manifest.to_json().encode())
        except OSError as error:
            return f"{line}, and none could be added ({error.strerror})."
        return f"{line}, and has one now."

    def new_name(self, kind: str, suffix: str = "") -> str:
        """Return a new name, for example ``vectors-1b7f09d2.npy``, and note it."""
        name = f"{kind}-{uuid.uuid4().hex[:8]}{suffix or SUFFIXES.get(kind, '')}"
        self.note(name)
        return name

    def note(self, name: str) -> None:
        """Add a name to the note, before it is used."""
        with (self.folder / NOTE).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave a file that the note has not

    def noted(self) -> set[str]:
        """Return the names in the note."""
        try:
            text = (self.folder / NOTE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return set()
        return set(text.splitlines())

    def file_facts(self, name: str) -> dict[str, Any]:
        """Return size and checksum of a file, for the manifest."""
        return {"bytes": self.path(name).stat().st_size, "sha256": self._sha256(name)}

    def switch(self, manifest: Manifest, card: str, skipped: str) -> None:
        """Replace the manifest, then the card and the list of skipped images."""
        # Encoded before the first file is replaced: text that cannot be encoded must fail here.
        texts = {MANIFEST: manifest.to_json(), CARD: card, SKIPPED: skipped}
        contents = {name: text.encode("utf-8") for name, text in texts.items()}
        Manifest.from_json(contents[MANIFEST])  # what nobody could open must fail here too
        for name, content in contents.items():
            self._write(name, content)

    def sweep(self, manifest: Manifest | None) -> None:
        """Delete files that the manifest no longer names; the caller must hold the lock."""
        own = "|".join((MANIFEST, CARD, SKIPPED, NOTE)).replace(".", r"\.")
        remove_leftovers(self.folder, f"{own}|{FILE_NAME.pattern}")
        kept = set[str]()
        if manifest is not None:
            kept = {name.partition("/")[0] for name in manifest.files}
            kept |= {collection_line(manifest.store, manifest.embedding_size)} - {""}
        noted = self.noted()
        if self._has_note() and noted == kept:
            return
        for name in sorted(noted - kept):
            path = self.folder / name
            if path.is_symlink():
                continue
            if FILE_NAME.fullmatch(name) and path.is_file():
                path.unlink(missing_ok=True)
            elif MODEL_NAME.fullmatch(name) and path.is_dir():
                _remove(path, "|".join(map(re.escape, MODEL_FILES)))
        with replacing(self.folder / NOTE) as temporary:
            temporary.write_text("".join(f"{name}\n" for name in sorted(kept)), encoding="utf-8")

    def refuse_foreign(self) -> None:
        """Refuse a folder with files that are not of an index."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(
                f"--out must be a folder; {self.folder} is a file. Choose another name."
            )
        self._refuse_special_files()
        there = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        if not there - {LOCK} or self._has_note():
            return
        if (self.building / PLAN).is_file():
            return
        try:  # of any version
            is_ours = {"format", "segments", "files"} <= read_json(self.path(MANIFEST)).keys()
        except (OSError, ValueError):
            is_ours = False
        if not is_ours:
            raise ValueError(
                f"--out must be new, empty or an index; {self.folder} holds something else "
                f"({some(sorted(there))}). Choose another name."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the index; refuse a second process."""
        self._refuse_special_files()
        is_new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with alone(self.folder / MANIFEST, wait=False):
                yield
        except BlockingIOError:
            raise ValueError(
                f"one program at a time may change {self.folder}; another one changes it now. Wait "
                "until it has ended."
            ) from None
        finally:
            with suppress(OSError):
                if os.listdir(self.folder) == [NOTE] and not self.noted():
                    (self.folder / NOTE).unlink()
                if is_new:
                    self.folder.rmdir()  # fails unless it is empty

    def _write(self, name: str, content: bytes) -> None:
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(content)

    def _sha256(self, name: str) -> str:
        with self.path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _refuse_special_files(self) -> None:
        """Refuse what waits for ever when it is opened, and what leads out of the folder."""
        for name in (MANIFEST, NOTE, LOCK, f"{BUILDING}/{PLAN}"):
            refuse_special_file(self.path(name), DamagedIndexError)
        for name in (NOTE, LOCK, BUILDING):  # these are written to, the others are replaced
            if self.path(name).is_symlink():
                raise DamagedIndexError(
                    f"{name} of the index must not be a link; it is one. Copy the index without "
                    "links, or delete it."
                )

    def _has_note(self) -> bool:
        path = self.folder / NOTE
        return path.is_file() and not path.is_symlink()

    def _absent(self) -> str:
        beside = [path.parent.name for path in self.folder.parent.glob(f"*/{MANIFEST}")]
        hint = path_suggestion(self.folder.name, beside)
        if not hint and (self.folder / BUILDING).is_dir():
            hint = " One was started there: run the same `weiss index` again."
        # A folder of photos or a run cannot become one.
        is_taken = self.folder.is_dir() and any(self.folder.iterdir())
        out = f"{self.folder}.index" if is_taken else self.folder
        return (
            f"INDEX must be the folder of an index, with {MANIFEST} in it; {self.folder} is "
            f"not.{hint} Make one: weiss index [RUN] IMAGES --out {out}"
        )


def clear_workspace(workspace: Path) -> None:
    """Delete the finished embeddings of an index, and nothing else that lies there."""
    if workspace.is_dir() and not workspace.is_symlink():
        _remove(workspace, WORKSPACE_FILES)


def _remove(folder: Path, names: str) -> None:
    """Delete the files of a folder whose names match, and the folder if it is empty then."""
    remove_leftovers(folder, names)
    for path in folder.iterdir():
        if re.fullmatch(names, path.name) and (path.is_file() or path.is_symlink()):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
