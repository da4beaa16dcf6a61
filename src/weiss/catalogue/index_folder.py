"""The index folder: which files belong to the index, and how one state replaces another.

    index.json          the manifest: all files that belong to the index
    card.md             the same for people
    skipped.txt         which images could not be read, and why; a copy of the file below
    model-XXXXXXXX/     a copy of the model, itself a run folder: recipe, network, fields
    items-XXXXXXXX.json, vectors-XXXXXXXX.npy, digests-XXXXXXXX.npy, thumbnails-XXXXXXXX.bin,
    places-XXXXXXXX.npy
                        a segment: the items that were added together
    removed-XXXXXXXX.npy, skipped-XXXXXXXX.txt, map-XXXXXXXX.npz, store-XXXXXXXX.faiss
    .building/          finished embeddings of an index that is not finished
    .written            the note: names that Weiss has used here since the last change began, one a
                        line; for a Milvus collection its name, its dimension and the address

Files never change once a manifest names them. A change writes new files, then replaces the
manifest. Files that are no longer named are deleted by the next change, so that a reader of the old
manifest still finds them; a reader that comes later reads the manifest again.

Only files of Weiss are deleted: a name is noted before it is used, and a file is deleted only if
its name is in the note and has the form of ours. A folder with other contents is refused.

Opening an index compares the sizes of all files and the checksums of small ones. Checksums of files
larger than `SMALL` are compared only by a full check; the network and the faiss file also check
themselves when they are loaded.
"""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from weiss._base.checks import some, suggestion
from weiss._base.files import alone, remove_leftovers, replacing
from weiss.catalogue.milvus_store import MILVUS, refuse_address
from weiss.catalogue.records import REPAIR, DamagedIndexError, damaged
from weiss.runs import folder as run_folder

T = TypeVar("T")
MANIFEST, CARD, SKIPPED, BUILDING = "index.json", "card.md", "skipped.txt", ".building"
NOTE, PLAN = ".written", "plan.json"
FORMAT = 2
"""The version of the layout of the folder."""
SMALL = 4 * 2**20
"""Bytes up to which a file is compared with its checksum whenever the index is opened."""
RETRIES = 10
"""How often a reader starts again because the index has changed meanwhile."""
LOCK = f".{MANIFEST}.lock"
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
"""The kinds of files of an index, and the suffixes of their names."""
MODEL_FILES = (run_folder.RECIPE, run_folder.MODEL, run_folder.CARD, run_folder.RESULT)
"""The files of a model; the last two may be absent."""
MODEL_NAME = re.compile(r"model-[0-9a-f]{8}")
FILE_NAME = re.compile(
    "|".join(rf"{kind}-[0-9a-f]{{8}}{re.escape(suffix)}" for kind, suffix in SUFFIXES.items())
)
NAMED = re.compile(
    rf"{FILE_NAME.pattern}|{MODEL_NAME.pattern}/(?:{'|'.join(map(re.escape, MODEL_FILES))})"
)
"""What a manifest may name: nothing outside of the folder."""
WORKSPACE_FILE = re.compile(r"plan\.json|block-[0-9]{6}\.npz|\..+\.[0-9a-f]{8}\.tmp")
"""A plan, finished blocks, and temporary files of a killed process."""


@dataclass(frozen=True)
class Segment:
    """Items that were added together; the names of their files.

    Attributes:
        first: the id of the first item; the others follow without a gap.
        count: n.
        items: names and classes.
        vectors: float32 ``(n, D)``.
        digests: uint8 ``(n, 16)``, checksums of the images' content.
        thumbnails: thumbnails, one after the other.
        places: int64 ``(n, 4)``, the place of each thumbnail.
    """

    first: int
    count: int
    items: str
    vectors: str
    digests: str
    thumbnails: str
    places: str

    def files(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return self.items, self.vectors, self.digests, self.thumbnails, self.places


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Attributes:
        name: of the collection.
        next_id: the id of the next item.
        num_items: without removed ones.
        segments: all items, with removed ones.
        removed: the file of removed ids; None if there are none.
        skipped: the file of images that could not be read, a line each; None if there are none.
        model: the folder of the model (``folder``) and facts about it.
        data: facts about the collection.
        scores: the scores of the model.
        settings: options that later changes use too.
        store: ``address`` and ``says``; for faiss ``file``, for Milvus ``collection``.
        map: the file of the items in two dimensions.
        threshold: as `weiss.catalogue.Threshold`; None if none could be set.
        threshold_why: what the threshold was measured on, or why there is none.
        made: when the index was made.
        updated: when it was last changed.
        files: size and SHA-256 of every file.
    """

    name: str
    next_id: int
    num_items: int
    segments: tuple[Segment, ...]
    removed: str | None
    skipped: str | None
    model: dict[str, Any]
    data: dict[str, Any]
    scores: dict[str, Any]
    settings: dict[str, Any]
    store: dict[str, Any]
    map: str | None
    threshold: dict[str, Any] | None
    threshold_why: str
    made: str
    updated: str
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def named(self) -> list[str]:
        """Return the names of all its files."""
        one_each = (self.removed, self.skipped, self.map, self.store.get("file"))
        own = [name for segment in self.segments for name in segment.files()]
        inside = f"{self.model['folder']}/"
        own += [f"{inside}{name}" for name in MODEL_FILES[:2]]
        own += [name for name in self.files if name.startswith(inside) and name not in own]
        return own + [name for name in one_each if name is not None]


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
        path = self.folder / MANIFEST
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(self._absent()) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise damaged(MANIFEST, error) from None
        try:
            if found.pop("format") != FORMAT:
                raise DamagedIndexError(
                    f"{MANIFEST} must have format {FORMAT}; it is of another version of Weiss. "
                    f"{REPAIR}"
                )
            segments = tuple(Segment(**each) for each in found.pop("segments"))
            manifest = Manifest(segments=segments, **found)
            named = [*manifest.named(), *manifest.files]
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(MANIFEST, f"{type(error).__name__} {error}") from None
        wrong = [name for name in named if not NAMED.fullmatch(str(name))]
        wrong += [] if MODEL_NAME.fullmatch(str(manifest.model["folder"])) else ["its model"]
        wrong = wrong or sorted(set(named) - set(manifest.files))
        if wrong:
            raise damaged(MANIFEST, f"it names {wrong[0]!r}, which is no file of an index")
        _refuse_store(manifest.store)
        return manifest

    def reading(self, read: Callable[[Manifest], T]) -> tuple[Manifest, T]:
        """Return the manifest and ``read(manifest)``; start again if it was changed meanwhile."""
        manifest = self.manifest()
        for _ in range(RETRIES):
            try:
                self.check(manifest)
                return manifest, read(manifest)
            except FileNotFoundError as error:
                newer = self.manifest()
                if newer.files == manifest.files:
                    name = Path(str(error.filename or error)).name
                    raise DamagedIndexError(_missing(name)) from None
                manifest = newer
        raise DamagedIndexError(
            f"{self.folder.name} changes faster than it can be read. Try again in a moment."
        )

    def check(self, manifest: Manifest, *, everything: bool = False) -> None:
        """Compare sizes and the checksums of small files, or of all.

        Raises:
            FileNotFoundError: a file is missing, because the index was changed meanwhile.
            DamagedIndexError: a file is missing, cut off or changed.
        """
        for name, must in manifest.files.items():
            path = self.path(name)
            try:
                size = path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                if self.manifest().files != manifest.files:
                    raise FileNotFoundError(_missing(name)) from None
                raise DamagedIndexError(_missing(name)) from None
            if size != must["bytes"]:
                raise DamagedIndexError(
                    f"{name} of the index must have {must['bytes']:,} bytes; it has {size:,}. It "
                    f"was cut off or changed. {REPAIR}"
                )
            if (everything or size <= SMALL) and _sha256(path) != must["sha256"]:
                raise damaged(name, "its content does not match its checksum")

    def new_name(self, kind: str) -> str:
        """Return a new name, for example ``vectors-1b7f09d2.npy``, and note it."""
        name = f"{kind}-{uuid.uuid4().hex[:8]}{SUFFIXES.get(kind, '')}"
        self.note(name)
        return name

    def note(self, name: str) -> None:
        """Add a name to the note, before it is used."""
        with (self.folder / NOTE).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    def noted(self) -> set[str]:
        """Return the names in the note."""
        try:
            text = (self.folder / NOTE).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return set()
        return set(text.splitlines())

    def file_facts(self, name: str) -> dict[str, Any]:
        """Return size and checksum of a file, for the manifest."""
        path = self.path(name)
        return {"bytes": path.stat().st_size, "sha256": _sha256(path)}

    def switch(self, manifest: Manifest, card: str, skipped: str) -> None:
        """Replace the manifest, then the card and the list of skipped images."""
        words = {"format": FORMAT, **asdict(manifest)}
        # Encoded before the first file is replaced: text that cannot be encoded must fail here.
        texts = {MANIFEST: json.dumps(words, indent=1) + "\n", CARD: card, SKIPPED: skipped}
        contents = {name: text.encode("utf-8") for name, text in texts.items()}
        for name, content in contents.items():
            with replacing(self.folder / name) as temporary:
                temporary.write_bytes(content)

    def sweep(self) -> None:
        """Delete files that the manifest no longer names; the caller must hold the lock.

        Called before a change, so it deletes what the change before has left.
        """
        own = "|".join((MANIFEST, CARD, SKIPPED, NOTE)).replace(".", r"\.")
        remove_leftovers(self.folder, f"{own}|{FILE_NAME.pattern}")
        manifest, kept = self.readable_manifest(), set[str]()
        if manifest is None and self.exists():
            return  # damaged: it is unknown which files belong to it
        if manifest is not None:
            size = int(manifest.model["embedding_size"])
            kept = {name.partition("/")[0] for name in manifest.files}
            kept |= {collection_line(manifest.store, size)} - {""}
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
                _remove(path, re.compile("|".join(map(re.escape, MODEL_FILES))))
        with replacing(self.folder / NOTE) as temporary:
            temporary.write_text("".join(f"{name}\n" for name in sorted(kept)), encoding="utf-8")

    def refuse_foreign(self) -> None:
        """Refuse a folder with files that are not of an index."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(
                f"--out must be a folder; {self.folder} is a file. Choose another name."
            )
        there = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        if not there - {LOCK} or self._has_note():
            return
        if (self.building / PLAN).is_file():
            return
        try:
            found = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            is_ours = {"format", "segments", "files"} <= set(found)  # of any version
        except (OSError, ValueError, TypeError):
            is_ours = False
        if not is_ours:
            raise ValueError(
                f"--out must be new, empty or an index; {self.folder} holds something else "
                f"({some(sorted(there))}). Choose another name."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the index; refuse a second process."""
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

    def _has_note(self) -> bool:
        path = self.folder / NOTE
        return path.is_file() and not path.is_symlink()

    def _absent(self) -> str:
        beside = [path.parent.name for path in self.folder.parent.glob(f"*/{MANIFEST}")]
        hint = suggestion(self.folder.name, beside)
        if not hint and (self.folder / BUILDING).is_dir():
            hint = " One was started there: run the same `weiss index` again."
        return (
            f"INDEX must be the folder of an index, with {MANIFEST} in it; {self.folder} is "
            f"not.{hint} Make one: weiss index RUN IMAGES --out {self.folder}"
        )


def _refuse_store(store: dict[str, Any]) -> None:
    """Refuse a store of a manifest that is unknown or lies outside of the folder."""
    address = store.get("address")
    if address == "faiss" and "file" in store:
        return
    if isinstance(address, str) and address.startswith(MILVUS):
        try:
            refuse_address(address)
        except ValueError as error:
            raise damaged(MANIFEST, error) from None
        return
    raise damaged(MANIFEST, "it names no store")


def collection_line(store: dict[str, Any], dimension: int) -> str:
    """Return the line of a Milvus collection in the note; empty for another store."""
    if "collection" not in store:
        return ""
    return f"{store['collection']} {dimension} {store['address']}"


def clear_workspace(workspace: Path) -> None:
    """Delete the finished embeddings of an index, and nothing else that lies there."""
    if workspace.is_dir() and not workspace.is_symlink():
        _remove(workspace, WORKSPACE_FILE)


def _remove(folder: Path, pattern: re.Pattern[str]) -> None:
    """Delete the files of a folder whose names match, and the folder if it is empty then."""
    for path in folder.iterdir():
        if pattern.fullmatch(path.name) and (path.is_file() or path.is_symlink()):
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _missing(name: str) -> str:
    return f"{name} of the index is missing. {REPAIR}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
