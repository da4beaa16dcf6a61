"""The index folder: which files are the index, and the switch from one state to the next.

    index.json          the manifest; whoever reads it knows which files belong together
    card.md             the same for people
    skipped.txt         which files could not be read, and why
    model-XXXXXXXX/     a copy of the model, a run folder of its own: recipe, network, fields
    items-XXXXXXXX.json, vectors-XXXXXXXX.npy, thumbnails-XXXXXXXX.bin, places-XXXXXXXX.npy
                        a segment: the items that were added together
    removed-XXXXXXXX.npy, map-XXXXXXXX.npz, store-XXXXXXXX.faiss
    .building/          embeddings that are finished, of an index that is not

Files never change once a manifest names them. A change writes new ones, then replaces the manifest:
before that there is the old index, after it the new one. What is no longer named goes with the next
change, not with this one, so that whoever has just read the old manifest still finds its files; one
who comes even later reads the manifest again.

Sizes are compared whenever an index is opened, checksums of small files too. Those of files larger
than `SMALL` would make every search wait for gigabytes; they are compared when asked for. What is
large and would do harm is noticed anyway: the network and the faiss file check themselves.
"""

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from weiss._check import suggestion
from weiss.catalogue.items import DamagedIndexError
from weiss.files import alone, remove_leftovers, replacing

T = TypeVar("T")
MANIFEST, CARD, SKIPPED, BUILDING = "index.json", "card.md", "skipped.txt", ".building"
FORMAT = 1
"""Changes when folders are laid out otherwise."""
SMALL = 4 * 2**20
"""Bytes up to which a file is compared with its checksum whenever the index is opened."""
PATIENCE = 10
"""How often a reader begins again because the index was changed under its hands."""
PART = r"[a-z]+-[0-9a-f]{8}"
NAME = re.compile(rf"{PART}\.[a-z]+|{PART}/[a-z]+\.[a-z]+")
"""What a manifest may name: nothing that leads out of the folder."""
MEND = "Copy the index anew, or make it again: weiss index RUN IMAGES --out INDEX --replace"


@dataclass(frozen=True)
class Segment:
    """Items that were added together; the names of their files.

    Attributes:
        first: the id of the first; the others follow without a gap.
        count: n, how many.
        items: names, classes and digests.
        vectors: float32 ``(n, D)``.
        thumbnails: small pictures, one after the other.
        places: int64 ``(n, 4)``, where each lies there.
    """

    first: int
    count: int
    items: str
    vectors: str
    thumbnails: str
    places: str

    def files(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return self.items, self.vectors, self.thumbnails, self.places


@dataclass(frozen=True)
class Manifest:
    """What an index is.

    Attributes:
        name: what the collection is called.
        next_id: the id that the next item gets.
        num_items: how many there are, the removed ones not counted.
        segments: all items, the removed ones among them.
        removed: the file of ids that are gone; None if none are.
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
        one_each = (self.removed, self.map, self.store.get("file"))
        own = [name for segment in self.segments for name in segment.files()]
        inside = f"{self.model['folder']}/"
        own += [name for name in self.files if name.startswith(inside)]
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
        strange = [name for name in named if not NAME.fullmatch(str(name))]
        if strange or not set(named) <= set(manifest.files):
            what = strange or sorted(set(named) - set(manifest.files))
            raise DamagedIndexError(
                f"{MANIFEST} of the index is damaged: it names {what[0]!r}, which is no file of an "
                f"index. {MEND}"
            )
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

    def new_name(self, kind: str, suffix: str = "") -> str:
        """Return a name that no file has yet: ``vectors-1b7f09d2.npy``."""
        return f"{kind}-{uuid.uuid4().hex[:8]}{suffix}"

    def described(self, names: "list[str]") -> dict[str, dict[str, Any]]:
        """Return sizes and checksums of new files, for the manifest."""
        return {
            name: {"bytes": self.path(name).stat().st_size, "sha256": _sha256(self.path(name))}
            for name in names
        }

    def switch(self, manifest: Manifest, card: str) -> None:
        """Make a manifest the index, which it is from one moment to the next."""
        words = {"format": FORMAT} | {
            each.name: getattr(manifest, each.name) for each in fields(manifest)
        }
        words["segments"] = [asdict(segment) for segment in manifest.segments]
        with replacing(self.folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
        # Behind the switch: a card that is too old for a moment harms nobody.
        with replacing(self.folder / CARD) as temporary:
            temporary.write_text(card, encoding="utf-8")

    def sweep(self) -> None:
        """Remove what no manifest names any more; only for the one who may write.

        Called before a change, so it takes what the change before has left.
        """
        remove_leftovers(self.folder)
        try:
            named = set(self.manifest().files) if self.exists() else set()
        except DamagedIndexError:
            return  # which of them belong to it, nobody knows
        kept = {name.partition("/")[0] for name in named}
        for path in self.folder.iterdir():
            if path.name in kept or not re.fullmatch(rf"{PART}(\.[a-z]+)?", path.name):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let one process at a time change the index; refuse a second one."""
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
            with suppress(OSError):
                self.folder.rmdir()  # which works only if nothing came of it

    def _absent(self) -> str:
        beside = [path.parent.name for path in self.folder.parent.glob(f"*/{MANIFEST}")]
        hint = suggestion(self.folder.name, beside)
        if not hint and (self.folder / BUILDING).is_dir():
            hint = " One has been begun there: start the same `weiss index` again."
        return (
            f"INDEX must be the folder of an index, which holds {MANIFEST}; {self.folder} is "
            f"none.{hint} Make one: weiss index RUN IMAGES --out {self.folder}"
        )


def _missing(name: str) -> str:
    return f"{name} of the index is missing. {MEND}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
