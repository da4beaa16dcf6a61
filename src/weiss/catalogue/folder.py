"""The index folder: which files are the index, and the switch from one state to the next.

    index.json          the manifest; whoever reads it knows which files belong together
    card.md             the same for people
    skipped.txt         which files could not be read, and why; a copy of the file below
    model-XXXXXXXX/     a copy of the model, a run folder of its own: recipe, network, fields
    items-XXXXXXXX.json, vectors-XXXXXXXX.npy, digests-XXXXXXXX.npy, thumbnails-XXXXXXXX.bin,
    places-XXXXXXXX.npy
                        a segment: the items that were added together
    removed-XXXXXXXX.npy, skipped-XXXXXXXX.txt, map-XXXXXXXX.npz, store-XXXXXXXX.faiss
    .building/          embeddings that are finished, of an index that is not
    .written            which names are ours; see `tidying`

Files never change once a manifest names them. A change writes new ones, then replaces the manifest:
before that there is the old index, after it the new one. What is no longer named goes with the next
change, not with this one, so that whoever has just read the old manifest still finds its files; one
who comes even later reads the manifest again.

Sizes are compared whenever an index is opened, checksums of small files too. Those of files larger
than `SMALL` would make every search wait for gigabytes; they are compared when asked for. What is
large and would do harm is noticed anyway: the network checks itself, the faiss file its ids and
settings.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from weiss._base.checks import some, suggestion
from weiss._base.files import alone, remove_leftovers, replacing
from weiss.catalogue import tidying
from weiss.catalogue.items import DamagedIndexError
from weiss.catalogue.stores import MILVUS, refuse_address

T = TypeVar("T")
MANIFEST, CARD, SKIPPED, BUILDING = "index.json", "card.md", "skipped.txt", ".building"
FORMAT = 2
"""Changes when folders are laid out otherwise."""
SMALL = 4 * 2**20
"""Bytes up to which a file is compared with its checksum whenever the index is opened."""
PATIENCE = 10
"""How often a reader begins again because the index was changed under its hands."""
LOCK = f".{MANIFEST}.lock"
MEND = "Copy the index anew, or make it again: weiss index RUN IMAGES --out INDEX --replace"


@dataclass(frozen=True)
class Segment:
    """Items that were added together; the names of their files.

    Attributes:
        first: the id of the first; the others follow without a gap.
        count: n, how many.
        items: names and classes.
        vectors: float32 ``(n, D)``.
        digests: uint8 ``(n, 16)`` of the files' content; read when something is added.
        thumbnails: small pictures, one after the other.
        places: int64 ``(n, 4)``, where each lies there.
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
        name: what the collection is called.
        next_id: the id that the next item gets.
        num_items: how many there are, the removed ones not counted.
        segments: all items, the removed ones among them.
        removed: the file of ids that are gone; None if none are.
        skipped: the file of what could not be read, a line each; None if everything could.
        model: the folder of the model (``folder``) and what is to be known of it.
        data: what is to be known of the collection.
        scores: what the model reached where it was measured.
        settings: what was asked for, and holds for later changes too.
        store: ``address`` and ``says``; for faiss ``file``, for Milvus ``collection``.
        map: the file of the items in two dimensions; None if there are too few.
        threshold: as `items.Threshold`; None if none could be set.
        threshold_why: what the threshold rests on, or why there is none.
        made: when the index was made; ``updated``: when it was last changed.
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
        """Return the names of the files it speaks of."""
        one_each = (self.removed, self.skipped, self.map, self.store.get("file"))
        own = [name for segment in self.segments for name in segment.files()]
        inside = f"{self.model['folder']}/"
        own += [f"{inside}{name}" for name in tidying.MODEL_FILES[:2]]  # the others may be absent
        own += [name for name in self.files if name.startswith(inside) and name not in own]
        return own + [name for name in one_each if name is not None]


class IndexFolder:
    """The folder of an index.

    Args:
        folder: where it is, or is to be.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def exists(self) -> bool:
        """Say whether there is an index here."""
        return (self.folder / MANIFEST).is_file()

    def path(self, name: str) -> Path:
        """Return where a file of the index lies."""
        return self.folder / name

    @property
    def building(self) -> Path:
        """The folder of what is finished of an index that is not."""
        return self.folder / BUILDING

    def manifest(self) -> Manifest:
        """Read which files are the index.

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
            raise DamagedIndexError(
                f"{MANIFEST} of the index is damaged: {error}. {MEND}"
            ) from None
        try:
            if found.pop("format") != FORMAT:
                raise DamagedIndexError(
                    f"{MANIFEST} must have format {FORMAT}; it is of another version of Weiss. "
                    f"{MEND}"
                )
            segments = tuple(Segment(**each) for each in found.pop("segments"))
            manifest = Manifest(segments=segments, **found)
            named = [*manifest.named(), *manifest.files]
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedIndexError(
                f"{MANIFEST} of the index is damaged: {type(error).__name__} {error}. {MEND}"
            ) from None
        strange = [name for name in named if not tidying.NAME.fullmatch(str(name))]
        strange += [] if tidying.MODEL.fullmatch(str(manifest.model["folder"])) else ["its model"]
        if strange or not set(named) <= set(manifest.files):
            what = strange or sorted(set(named) - set(manifest.files))
            raise DamagedIndexError(
                f"{MANIFEST} of the index is damaged: it names {what[0]!r}, which is no file of an "
                f"index. {MEND}"
            )
        _refuse_store(manifest.store)
        return manifest

    def reading(self, read: Callable[[Manifest], T]) -> tuple[Manifest, T]:
        """Read the files of an index, and again if it was changed in between.

        Args:
            read: opens whatever it needs of the files that the manifest names.

        Returns:
            The manifest that was read by, and what came of it.
        """
        manifest = self.manifest()
        for _ in range(PATIENCE):
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
            FileNotFoundError: a file is missing, and the manifest is no longer the newest.
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
                    f"was cut off or changed. {MEND}"
                )
            if (everything or size <= SMALL) and _sha256(path) != must["sha256"]:
                raise DamagedIndexError(
                    f"{name} of the index is damaged: its content does not match its checksum. "
                    f"{MEND}"
                )

    def new_name(self, kind: str) -> str:
        """Return a name that nothing has yet, and note it as ours: ``vectors-1b7f09d2.npy``."""
        name = f"{kind}-{uuid.uuid4().hex[:8]}{tidying.SUFFIXES.get(kind, '')}"
        tidying.note(self.folder, name)
        return name

    def described(self, names: "list[str]") -> dict[str, dict[str, Any]]:
        """Return sizes and checksums of new files, for the manifest."""
        return {
            name: {"bytes": self.path(name).stat().st_size, "sha256": _sha256(self.path(name))}
            for name in names
        }

    def switch(self, manifest: Manifest, card: str, skipped: str) -> None:
        """Make a manifest the index, which it is from one moment to the next.

        Args:
            manifest: what the index is to be.
            card: the same for people.
            skipped: what could not be read, a line each.
        """
        words = {"format": FORMAT} | {
            each.name: getattr(manifest, each.name) for each in fields(manifest)
        }
        words["segments"] = [asdict(segment) for segment in manifest.segments]
        # Bytes before the switch: what cannot be written as text must not be found out after it.
        texts = {MANIFEST: json.dumps(words, indent=1) + "\n", CARD: card, SKIPPED: skipped}
        contents = {name: text.encode("utf-8") for name, text in texts.items()}
        # Card and list behind the manifest: if they are too old for a moment it harms nobody.
        for name, content in contents.items():
            with replacing(self.folder / name) as temporary:
                temporary.write_bytes(content)

    def sweep(self) -> None:
        """Delete what no manifest names any more; only for the one who may write.

        Called before a change, so it takes what the change before has left.
        """
        own = "|".join((MANIFEST, CARD, SKIPPED, tidying.NOTE)).replace(".", r"\.")
        remove_leftovers(self.folder, f"{own}|{tidying.FILE.pattern}")
        try:
            manifest = self.manifest() if self.exists() else None
        except DamagedIndexError:
            return  # which of them belong to it, nobody knows
        kept = set() if manifest is None else {name.partition("/")[0] for name in manifest.files}
        if manifest is not None:
            size = int(manifest.model["embedding_size"])
            kept |= {tidying.collection_line(manifest.store, size)} - {""}
        tidying.sweep(self.folder, kept)

    def refuse_foreign(self) -> None:
        """Refuse a folder that somebody else has filled: what lies there is not ours to touch."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(
                f"--out must be a folder; {self.folder} is a file. Choose another name."
            )
        there = set(os.listdir(self.folder)) if self.folder.is_dir() else set()
        if not there - {LOCK} or tidying.is_noted(self.folder):
            return
        if (self.building / tidying.PLAN).is_file():
            return
        try:
            found = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
            is_ours = {"format", "segments", "files"} <= set(found)  # of whichever version
        except (OSError, ValueError, TypeError):
            is_ours = False
        if not is_ours:
            raise ValueError(
                f"--out must be new, empty or an index; {self.folder} holds something else "
                f"({some(sorted(there))}). Choose another name."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let one process at a time change the index; refuse a second one."""
        is_new = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with alone(self.folder / MANIFEST, wait=False):
                yield
        except BlockingIOError:
            raise ValueError(
                f"one program at a time may change {self.folder}; another is at it. Wait until it "
                "has ended."
            ) from None
        finally:
            self._leave_nothing(is_new)

    def _leave_nothing(self, is_new: bool) -> None:
        """Take back the folder, if nothing came of it."""
        with suppress(OSError):
            if os.listdir(self.folder) == [tidying.NOTE] and not tidying.noted(self.folder):
                (self.folder / tidying.NOTE).unlink()
            if is_new:
                self.folder.rmdir()  # which works only if it is empty

    def _absent(self) -> str:
        beside = [path.parent.name for path in self.folder.parent.glob(f"*/{MANIFEST}")]
        hint = suggestion(self.folder.name, beside)
        if not hint and (self.folder / BUILDING).is_dir():
            hint = " One has been begun there: start the same `weiss index` again."
        return (
            f"INDEX must be the folder of an index, which holds {MANIFEST}; {self.folder} is "
            f"none.{hint} Make one: weiss index RUN IMAGES --out {self.folder}"
        )


def _refuse_store(store: dict[str, Any]) -> None:
    """Refuse what a manifest says of its store if it leads out of the folder in secret."""
    address = store.get("address")
    if address == "faiss" and "file" in store:
        return
    if isinstance(address, str) and address.startswith(MILVUS):
        try:
            refuse_address(address)
        except ValueError as error:
            raise DamagedIndexError(f"{MANIFEST} of the index is damaged: {error} {MEND}") from None
        return
    raise DamagedIndexError(f"{MANIFEST} of the index is damaged: it names no store. {MEND}")


def _missing(name: str) -> str:
    return f"{name} of the index is missing. {MEND}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
