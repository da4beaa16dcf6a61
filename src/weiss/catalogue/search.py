"""An opened index: embed pictures, search, and read its items.

Dimensions: n items, q queries, D embedding size.
"""

import math
import threading
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from weiss._base.arrays import Array
from weiss._base.checks import UntrustedError
from weiss._base.checks import count as a_count
from weiss._base.devices import refuse_absent_device
from weiss.catalogue.calibration import trained_classes
from weiss.catalogue.class_fields import ClassFields, Guess, class_fields, grouped
from weiss.catalogue.embedding import file_digest
from weiss.catalogue.filtering import Filter, nearest_of
from weiss.catalogue.index_folder import IndexFolder
from weiss.catalogue.index_store import open_store
from weiss.catalogue.item_map import Map, read_map
from weiss.catalogue.manifest import MANIFEST, Manifest
from weiss.catalogue.networks import Network, network_of_file, network_of_run
from weiss.catalogue.records import (
    REPAIR,
    DamagedIndexError,
    Hit,
    Item,
    OtherModelError,
    damaged,
    kept_threshold,
)
from weiss.catalogue.segments import Items, has
from weiss.catalogue.stores import TOLERANCE
from weiss.runs.folder import Run
from weiss.runs.summaries import UNTRAINED

COMPARED = 100_000
"""At most so many items that satisfy the conditions of a search are compared one by one."""
MOST_ASKED = 10_000
"""So many items at most are asked of the store to find some that satisfy the conditions."""


class Catalogue:
    """An index in the state in which it was opened; later changes of the folder do not affect it.

    Made by `open`. Every method may be called from any thread; `embed` and `search` use locks.

    Attributes:
        name: of the collection.
        embedding_size: D.
        channels: 3: pictures for `embed` are decoded as RGB. A network for grey converts them.
        short_side: `embed` first reduces larger pictures to this shorter side; decoding them to it
            gives the same result with less memory.
        scaled_decoding: whether the network was trained on JPEG files that are decoded at a
            fraction of their size: decode those for `embed` so too, by the `scaled` of
            `weiss._base.images.decode`.
        threshold: the similarity from which on a hit is a match; None if none could be set.
        columns: the names of what lists said about items beyond their class.
        facts: for JSON: ``name``, ``num_items``, ``num_classes``, ``columns``, ``made``,
            ``updated``, ``model``, ``data`` and ``scores`` (dicts), ``store`` (one line),
            ``threshold`` (dict or None), ``threshold_why`` (text). No paths of the machine.

    Example:
        >>> catalogue = Catalogue.open("characters")  # doctest: +SKIP
        >>> vectors = catalogue.embed([weiss._base.images.decode("photo.jpg")])  # doctest: +SKIP
        >>> catalogue.search(vectors, k=3)[0][0].item.name  # doctest: +SKIP
        'U+0041/3.png'
    """

    channels = 3

    def __init__(self, folder: IndexFolder, manifest: Manifest, network: Network) -> None:
        self._folder, self._manifest, self._network = folder, manifest, network
        self._items = Items(folder, manifest)
        if len(self) != manifest.num_items:
            raise damaged(MANIFEST, f"{manifest.num_items} items must be left; {len(self)} are")
        self._by_class = self._items.by_class()
        self._map = read_map(folder.path(str(manifest.map)))
        if not np.array_equal(self._map.ids, self._items.ids):
            raise damaged(str(manifest.map), "it does not have the items of the index")
        self._store = open_store(folder, manifest)
        self._embedding, self._searching = threading.Lock(), threading.Lock()
        self._measuring, self._filtering = threading.Lock(), threading.Lock()
        self._filter = Filter(self._items, self._by_class)
        self.columns = self._filter.names
        self._class_fields: ClassFields | None = None
        self._by_digest: dict[bytes, int] | None = None
        self.name = manifest.name
        self.embedding_size = manifest.embedding_size
        self.short_side = network.preprocessing.short_side
        self.scaled_decoding = network.preprocessing.scaled_decoding
        known = manifest.threshold
        self.threshold = None if known is None else kept_threshold(known)
        shown = None if self.threshold is None else asdict(self.threshold)
        self.facts: dict[str, Any] = {
            "name": manifest.name,
            "num_items": len(self),
            "num_classes": len(self._by_class),
            "columns": list(self.columns),
            "made": manifest.made,
            "updated": manifest.updated,
            "model": {
                key: manifest.model[key]
                for key in manifest.model
                if key not in ("folder", "section")
            },
            "data": manifest.data,
            "scores": manifest.scores,
            "store": manifest.store["says"],
            "threshold": shown,
            "threshold_why": manifest.threshold_why,
        }

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        device: str = "auto",
        onnx: str | Path | None = None,
        trust: bool = False,
        verify: bool = False,
    ) -> "Catalogue":
        """Open an index, to embed on a device, or by an ONNX export of the index's model.

        With ``trust`` its network and the ONNX file may name other files and addresses, see
        `weiss.runs.Run` and `weiss.catalogue.networks.network_of_file`. With ``verify`` the
        checksums of large files are compared too, at about 1 GB/s.

        Raises:
            FileNotFoundError: there is no index.
            DamagedIndexError: a file is missing or damaged.
            OtherModelError: the ONNX file is of another model.
        """
        refuse_absent_device(device, "device")
        index = IndexFolder(folder)
        # Loaded first: a file of another model is the most likely mistake.
        network = None if onnx is None else network_of_file(onnx, device, trust=trust)

        def read(manifest: Manifest) -> "Catalogue":
            own = network
            try:
                if own is None:
                    model = index.path(manifest.model["folder"])
                    own = network_of_run(model, device, trust=trust)
                _refuse_other_model(own, manifest, onnx)
                opened = cls(index, manifest, own)
            except (
                DamagedIndexError,
                OtherModelError,
                FileNotFoundError,
                ImportError,
                UntrustedError,
            ):
                raise
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedIndexError(f"the index cannot be used: {error}") from error
            if not manifest.is_sealed:
                warnings.warn(
                    f"{MANIFEST} of {index.folder.name} is of an older version and has no "
                    f"checksum. Add one: weiss index --check --out {index.folder}",
                    stacklevel=4,
                )
            return opened

        return index.reading(read, everything=verify)[1]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items.ids)

    def embed(self, pixels: Sequence[Array]) -> Array:
        """Return the embeddings ``(n, D)`` of pictures, uint8 ``(height, width, 1 or 3)`` each."""
        with self._embedding:
            return self._network.embed_pixels(pixels)

    def search(
        self,
        vectors: Array,
        k: int,
        *,
        leave_out: Sequence[int | None] | None = None,
        where: str | Sequence[str] = (),
    ) -> list[list[Hit]]:
        """Return the k nearest items of each vector, best first; fewer if there are fewer.

        Args:
            vectors: float32 ``(q, D)`` of unit length.
            k: how many.
            leave_out: for each query the id of an item that it must not find (itself), or None.
            where: conditions that all of them must satisfy: ``["class=kiwi", "price<5"]``.

        Raises:
            ConditionError: a condition cannot be understood, or does not fit the index.
        """
        a_count("k", k, "search")
        vectors = self._checked(vectors)
        if leave_out is not None and len(leave_out) != len(vectors):
            raise ValueError(
                f"leave_out must have one id, or None, for each of the {len(vectors)} vectors; got "
                f"{len(leave_out)}."
            )
        if not len(vectors):
            return []
        left_out = list(leave_out) if leave_out is not None else [None] * len(vectors)
        among = self.matching(where) if where else self._items.ids
        wanted = [min(k, len(among) - (id is not None and has(among, id))) for id in left_out]
        most = asked = min(k, len(among)) + (leave_out is not None)
        if where:  # of so many in the store, as many as are needed satisfy the conditions
            asked = math.ceil(most * len(self) / max(1, len(among)))
        while True:
            is_exact = bool(where) and (len(among) <= COMPARED or asked > MOST_ASKED)
            if is_exact:
                ids_qk, similarity_qk = nearest_of(self._items, among, vectors, most)
            else:
                with self._searching:
                    ids_qk, similarity_qk = self._store.search(vectors, asked)
            every = zip(ids_qk, similarity_qk, left_out, wanted, strict=True)
            found = [self._hits(*each, among) for each in every]
            if is_exact or all(len(hits) == n for hits, n in zip(found, wanted, strict=True)):
                return found
            # Others do not satisfy the conditions, or a database that others change returns items
            # that are not, or no longer, of this index: ask for more.
            with self._searching:
                size = len(self._store)
            if asked >= size:
                return found
            asked = min(2 * asked, size)

    def matching(self, where: str | Sequence[str]) -> Array:
        """Return the sorted ids of all items that satisfy conditions, as `search` takes them."""
        with self._filtering:
            return self._filter.ids([where] if isinstance(where, str) else where)

    def _checked(self, vectors: Array) -> Array:
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.embedding_size:
            raise ValueError(
                f"vectors must have shape (q, {self.embedding_size}); got {vectors.shape}. Embed "
                "pictures with this catalogue."
            )
        return vectors

    def class_fields(self) -> ClassFields:
        """Return the field of each class, and how well they tell the items apart.

        Computed from the vectors of the index at the first call: its rows are the items by id.
        """
        with self._measuring:
            if self._class_fields is None:
                names = tuple(self._by_class)
                labels = self._items.labels(names)
                self._class_fields = class_fields(self._items.vectors(), labels, names)
            return self._class_fields

    def classify(
        self, vectors: Array, k: int = 3, *, leave_out: Sequence[int | None] | None = None
    ) -> list[list[Guess]]:
        """Return the k classes whose fields are nearest to each vector ``(q, D)``, best first.

        Classes that never trained count like any other. Fewer if the index has fewer classes.
        ``leave_out`` has for each vector the id of the item that it is, or None: the field of its
        class is then that of the other items.
        """
        a_count("k", k, "classify")
        ids = leave_out or [None] * len(vectors)
        rows = [None if id is None else int(np.searchsorted(self._items.ids, id)) for id in ids]
        return self.class_fields().classify(self._checked(vectors), k, rows=rows)

    def same_file(self, path: str | Path) -> Item | None:
        """Return an item that was made from a file of the same content; None without one."""
        with self._measuring:
            if self._by_digest is None:
                self._by_digest = {
                    segment.digests[row].tobytes(): id for id, segment, row in self._items
                }
        id = self._by_digest.get(file_digest(Path(path)))
        return None if id is None else self.item(id)

    def seen_classes(self) -> Array:
        """Return whether the network was trained on each class, bool ``(C,)``, in their order.

        A class is known by its name. How well these are told apart says little of other classes.
        """
        names = list(self._by_class)
        if self._manifest.model["loss"] == UNTRAINED:
            return np.zeros(len(names), dtype=bool)
        folder = self._folder.path(self._manifest.model["folder"])
        return np.isin(names, list(trained_classes(Run(folder))))

    def doubtful(self) -> list[tuple[Item, str, float, float]]:
        """Return items that are nearer to another class than to their own, the clearest first.

        Each with that class, and its similarities to the fields of its own class and of that one.
        """
        fields = self.class_fields()
        return [
            (
                self.item(int(self._items.ids[row])),
                fields.names[fields.nearest_other[row]],
                float(fields.own[row]),
                float(fields.other[row]),
            )
            for row in fields.doubtful().tolist()
        ]

    def unknown(self, most: int | None = None) -> list[list[Item]]:
        """Return the items without a class that fit none, in groups of what is alike.

        Empty where nothing says what fits: see `ClassFields.level`. Of more than ``most`` such
        items only the first are grouped, since the time grows with the square of their number.
        """
        without = [
            at for at, (_, segment, row) in enumerate(self._items) if not segment.labels[row]
        ]
        if not without or not self._by_class:
            return []  # without reading any vector
        fields = self.class_fields()
        if fields.level is None:
            return []
        vectors = np.asarray(self._items.vectors()[np.array(without, dtype=np.int64)])
        guesses = fields.classify(vectors, 1)
        strange = [at for at, (best,) in enumerate(guesses) if not best.fits][:most]
        ids = self._items.ids[without][strange].tolist()
        groups = grouped(vectors[strange], fields.level)
        return [[self.item(ids[row]) for row in rows] for rows in groups]

    def item(self, id: int) -> Item:
        """Return an item; UnknownItemError if there is none of that id."""
        segment, row = self._items.find(id)
        return segment.item(row)

    def vector(self, id: int) -> Array:
        """Return an item's embedding, float32 ``(D,)``."""
        segment, row = self._items.find(id)
        vector = segment.vector(row)
        length = float(np.linalg.norm(vector.astype(np.float64)))
        if not abs(length - 1) <= TOLERANCE:
            raise damaged(f"the vector of item {id}", f"it has length {length:g} instead of 1")
        return vector

    def thumbnail(self, id: int) -> bytes:
        """Return a small picture of an item, as the bytes of a PNG or JPEG file."""
        segment, row = self._items.find(id)
        return segment.thumbnail(row)

    def digest(self, id: int) -> bytes:
        """Return the checksum of an item's content: of a file BLAKE2b with 16 bytes."""
        segment, row = self._items.find(id)
        return bytes(segment.digests[row].tobytes())

    def thumbnail_type(self, id: int) -> str:
        """Return the media type of an item's small picture: image/png or image/jpeg."""
        segment, row = self._items.find(id)
        return segment.thumbnail_type(row)

    def classes(self) -> list[tuple[str, int]]:
        """Return the classes that have items, by name, each with how many."""
        return [(name, len(ids)) for name, ids in self._by_class.items()]

    def items_of(self, class_name: str | None, start: int, count: int) -> list[Item]:
        """Return at most ``count`` items of a class, or of all, by their ids, from ``start`` on.

        None means all classes. An unknown class has no items.
        """
        ids = self._items.ids
        if class_name is not None:
            ids = self._by_class.get(class_name, ids[:0])
        first = max(start, 0)
        return [self.item(int(id)) for id in ids[first : first + max(count, 0)]]

    def map(self) -> Map:
        """Return all items, and the mean fields of the model's classes, in two dimensions."""
        return self._map

    def is_outdated(self) -> bool:
        """Return whether the folder was changed or removed since this index was opened."""
        try:
            return self._folder.manifest().files != self._manifest.files
        except (FileNotFoundError, DamagedIndexError):
            return True

    def close(self) -> None:
        """Close the connection to a database; after that nothing can be searched."""
        self._store.close()

    def __enter__(self) -> "Catalogue":
        """Return itself; the end of the ``with`` closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _hits(
        self, ids: Array, similarities: Array, left_out: int | None, k: int, among: Array
    ) -> list[Hit]:
        hits: list[Hit] = []
        for id, similarity in zip(ids.tolist(), similarities.tolist(), strict=True):
            if len(hits) == k or id < 0:
                break
            if id == left_out or not has(among, id):
                continue
            is_match = None if self.threshold is None else similarity >= self.threshold.similarity
            hits.append(Hit(self.item(id), similarity, 1.0 - similarity, is_match))
        return hits


def _refuse_other_model(network: Network, manifest: Manifest, onnx: str | Path | None) -> None:
    must = manifest.model["fingerprint"]
    if network.is_model_of(manifest.model):
        return
    if onnx is None:
        raise DamagedIndexError(f"the model of the index is not the one it was made with. {REPAIR}")
    if network.fingerprint == must:
        raise OtherModelError(
            "an index must be searched with the model it was made with; "
            f"{Path(onnx).name} has the same tensors, but another backbone or another "
            "preprocessing. Export the model of the index: weiss export RUN --out FILE.onnx"
        )
    raise OtherModelError(
        f"an index must be searched with the model it was made with; {Path(onnx).name} is of "
        f"another (fingerprint {network.fingerprint[:12]}, not {must[:12]}). Export the model of "
        "the index: weiss export RUN --out FILE.onnx"
    )
