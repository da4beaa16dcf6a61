"""index.json, the manifest of an index: what it holds, how it is checked, read and written.

Whatever a manifest names lies in the index folder: names of other forms are refused. The last line
is a checksum of all that stands before it, so that one file stays whole or is refused. Format 2 had
none: it is read, with a warning, and `weiss index --check` adds it.

    {"format": 3, ..., "checksum": "SHA-256 of the bytes up to here"}
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weiss.catalogue.records import REPAIR, DamagedIndexError, damaged
from weiss.catalogue.store_table import store_at
from weiss.catalogue.stores import MOST
from weiss.runs import folder as run_folder

MANIFEST = "index.json"
FORMAT, UNSEALED = 3, 2
"""The version of the layout of the folder, and the one before, whose index.json has no checksum."""
SEALED = re.compile(rb'(.+),\n "checksum": "([0-9a-f]{64})"\n\}\n', re.DOTALL)
SUFFIXES = {
    "items": ".json",
    "vectors": ".npy",
    "digests": ".npy",
    "thumbnails": ".bin",
    "places": ".npy",
    "removed": ".npy",
    "skipped": ".txt",
    "map": ".npz",
}
"""The kinds of files of an index, and the suffixes of their names; a store has one of its own."""
NAMES = {kind: rf"{kind}-[0-9a-f]{{8}}{re.escape(suffix)}" for kind, suffix in SUFFIXES.items()}
NAMES["store"] = r"store-[0-9a-f]{8}\.[a-z0-9]{1,12}"
MODEL_FILES = (run_folder.RECIPE, run_folder.MODEL, run_folder.CARD, run_folder.RESULT)
"""The files of a model; the last two may be absent."""
MODEL_NAME = re.compile(r"model-[0-9a-f]{8}")
FILE_NAME = re.compile("|".join(NAMES.values()))
NAMED = re.compile(
    rf"{FILE_NAME.pattern}|{MODEL_NAME.pattern}/(?:{'|'.join(map(re.escape, MODEL_FILES))})"
)
"""What a manifest may name: nothing outside of the folder."""


@dataclass(frozen=True)
class Segment:
    """Items of ascending ids: the first id, how many items, and the names of their files.

    Ids of removed items are missing. `weiss.catalogue.segments` reads and writes the files.
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
        segments: all items.
        removed: the file of removed ids; None from 0.2 on, when their items leave the segments.
        skipped: the file of images that could not be read, a line each; None if there are none.
        model: the folder of the model (``folder``) and facts about it.
        data: facts about the collection.
        scores: the scores of the model; ``test`` are those on test data that chose nothing.
        settings: options that later changes use too; ``threshold`` is one that the user gave.
        store: ``address`` and ``says``; for faiss ``file``, for Milvus ``collection``.
        map: the file of the items in two dimensions.
        threshold: as `weiss.catalogue.Threshold`; None if none could be set.
        threshold_why: what the threshold was measured on, or why there is none.
        made: when the index was made.
        updated: when it was last changed.
        files: size and SHA-256 of every file.
        is_sealed: whether index.json had a checksum when it was read.
    """

    name: str
    next_id: int
    segments: tuple[Segment, ...]
    model: dict[str, Any]
    data: dict[str, Any]
    scores: dict[str, Any]
    settings: dict[str, Any]
    store: dict[str, Any]
    made: str
    files: dict[str, dict[str, Any]]
    is_sealed: bool = True
    num_items: int = 0
    removed: str | None = None
    skipped: str | None = None
    map: str | None = None
    threshold: dict[str, Any] | None = None
    threshold_why: str = ""
    updated: str = ""

    def named(self) -> list[str]:
        """Return the names of all its files."""
        one_each = (self.removed, self.skipped, self.map, self.store.get("file"))
        own = [name for segment in self.segments for name in segment.files()]
        inside = f"{self.model['folder']}/"
        own += [f"{inside}{name}" for name in MODEL_FILES[:2]]
        own += [name for name in self.files if name.startswith(inside) and name not in own]
        return own + [name for name in one_each if name is not None]

    @property
    def embedding_size(self) -> int:
        """D."""
        return int(self.model["embedding_size"])

    def to_json(self) -> str:
        """Return the content of index.json."""
        content = {"format": FORMAT, **asdict(self)}
        del content["is_sealed"]
        return sealed(content)

    @classmethod
    def from_json(cls, content: bytes) -> "Manifest":
        """Read the content of index.json; raise DamagedIndexError unless it is a manifest."""
        try:
            found = json.loads(content.decode("utf-8"))
            written = found.pop("format")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise damaged(MANIFEST, f"{type(error).__name__} {error}") from None
        if written not in (FORMAT, UNSEALED):
            raise DamagedIndexError(
                f"{MANIFEST} must have format {FORMAT}; it is of another version of Weiss. {REPAIR}"
            )
        if written == FORMAT:
            _refuse_changed(content)
            del found["checksum"]
        try:
            _Content.model_validate(found)
        except ValidationError as error:
            raise damaged(MANIFEST, first_error(error)) from None
        segments = tuple(Segment(**each) for each in found.pop("segments"))
        manifest = cls(segments=segments, is_sealed=written == FORMAT, **found)
        manifest._refuse_contradictions()
        return manifest

    def _refuse_contradictions(self) -> None:
        """Raise DamagedIndexError unless the entries fit each other."""
        try:
            store = store_at(self.store["address"])
            store.refuse(self.store["address"])
            if ("file" if store.suffix else "collection") not in self.store:
                raise ValueError("it names no store")
        except ValueError as error:
            raise damaged(MANIFEST, error) from None
        named = self.named()
        wrong = [name for name in self.files if not NAMED.fullmatch(name)]
        wrong = wrong or sorted({*named} ^ {*self.files})
        if wrong:
            raise damaged(MANIFEST, f"it names {wrong[0]!r}, which is no file of an index")
        if len(set(named)) < len(named):
            raise damaged(MANIFEST, "it names a file twice")
        ends = [segment.first + segment.count for segment in self.segments]
        starts = [*(segment.first for segment in self.segments[1:]), self.next_id]
        gaps = [start - end for start, end in zip(starts, ends, strict=True)]
        # Ids may be missing where items were removed; before format 3 none were.
        if min(gaps) < 0 or (any(gaps) and not self.is_sealed):
            raise damaged(MANIFEST, f"segments end before ids {ends}, but {starts} come next")
        most = sum(segment.count for segment in self.segments)
        if not (self.num_items < most if self.removed else self.num_items == most):
            raise damaged(MANIFEST, f"num_items is {self.num_items}, of {most} in its segments")


def refuse_facts(model: dict[str, Any], scores: dict[str, Any]) -> None:
    """Raise ValueError for facts of a run that no manifest can hold, before its items are made."""
    try:
        _Facts.model_validate_json(json.dumps({"model": model, "scores": scores}))
    except ValidationError as error:
        raise ValueError(
            f"a run must have facts and scores an index can keep; {first_error(error)}. Train it "
            "again."
        ) from None


def sealed(content: dict[str, Any]) -> str:
    """Return the text of index.json, with its checksum, for all other entries."""
    body = json.dumps(content, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{body},\n "checksum": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


def _refuse_changed(content: bytes) -> None:
    found = SEALED.fullmatch(content)
    if found is None or hashlib.sha256(found[1]).hexdigest() != found[2].decode():
        raise damaged(MANIFEST, "its content does not match its checksum")


def first_error(error: ValidationError) -> str:
    """Return where the first wrong entry is, and what is wrong."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


class _Strict(BaseModel):
    """Entries of index.json: exactly these, of these types, and finite."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _file(kind: str, default: Any = ...) -> Any:
    """Return the field of the name of a file."""
    return Field(default, pattern=rf"^{NAMES[kind]}$")


_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[int, Field(ge=1, lt=2**63)]
_Share = Annotated[float, Field(ge=0, le=1)]
_TWO = Field(min_length=2, max_length=2)
_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]


class _Segment(_Strict):
    first: _Count
    count: _Number
    items: str = _file("items")
    vectors: str = _file("vectors")
    digests: str = _file("digests")
    thumbnails: str = _file("thumbnails")
    places: str = _file("places")


class _Model(_Strict):
    folder: Annotated[str, Field(pattern=f"^{MODEL_NAME.pattern}$")]
    fingerprint: _Hash
    embedding_size: _Number
    backbone: str
    section: dict[str, Any]
    loss: str
    trained_on: str
    num_classes: _Count
    protocol: str
    preprocessing: dict[str, Any]


class _Scores(_Strict, extra="allow"):
    __pydantic_extra__: dict[str, float]
    measured_on: str
    test: dict[str, float] = {}


class _Facts(_Strict):
    model: _Model
    scores: _Scores


class _Data(_Strict):
    name: str
    split: str


_Cosine = Annotated[float, Field(ge=-MOST, le=MOST)]


class _Settings(_Strict):
    kind: str
    false_match_rate: Annotated[float, Field(gt=0, lt=1)]
    threshold: _Cosine | None = None


class _Store(_Strict):
    address: str
    says: str
    file: str = _file("store", default="")
    collection: Annotated[str, Field(pattern="^weiss_[0-9a-f]{8}$")] = ""


class _Intervals(_Strict):
    similarity: Annotated[list[_Cosine], _TWO] = []
    false_match_rate: Annotated[list[_Share], _TWO] = []
    true_match_rate: Annotated[list[_Share], _TWO] = []


class _Threshold(_Strict):
    similarity: _Cosine
    false_match_rate: _Share | None
    true_match_rate: _Share | None
    basis: str
    intervals: _Intervals = _Intervals()
    wanted: _Share
    source: str


class _File(_Strict):
    bytes: _Count
    sha256: _Hash


class _Content(_Facts):
    """index.json without format and checksum, before a `Manifest` is made of it."""

    name: str
    next_id: _Count
    segments: Annotated[list[_Segment], Field(min_length=1)]
    data: _Data
    settings: _Settings
    store: _Store
    made: _Time
    files: dict[str, _File]
    num_items: _Number
    removed: str | None = _file("removed")
    skipped: str | None = _file("skipped")
    map: str = _file("map")
    threshold: _Threshold | None
    threshold_why: str
    updated: _Time


def collection_line(store: dict[str, Any], dimension: int) -> str:
    """Return the line of a collection in the note of the index folder; empty for a file."""
    if "collection" not in store:
        return ""
    return f"{store['collection']} {dimension} {store['address']}"
