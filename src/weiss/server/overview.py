"""Views of a whole catalogue: its classes, its map. Made when first asked for, and kept.

An opened catalogue does not change, so that these never have to be made again.
"""

import gzip
import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np

from weiss.catalogue import Catalogue
from weiss.server.schemas import ClassAnswer, ClassesAnswer, FieldsAnswer, MapAnswer

MOST_POINTS = 100_000
"""A map of more is thinned evenly: a screen has not many more pixels to show them."""
DIGITS = 4
"""Of a coordinate: the cloud is of the order of 1 across, a screen some thousand pixels."""


class Overview:
    """What is told of all items at once.

    Args:
        catalogue: of which.
        thumbnail: item id -> where its small picture is.
    """

    def __init__(self, catalogue: Catalogue, thumbnail: Callable[[int], str]) -> None:
        self._catalogue, self._thumbnail = catalogue, thumbnail
        self._lock = threading.Lock()
        self.counts = dict(catalogue.classes())

    def classes(self) -> ClassesAnswer:
        """Return every class with how many items it has and a picture."""
        with self._lock:
            return self._classes

    def map(self) -> tuple[bytes, bytes]:
        """Return the map as JSON, plain and compressed."""
        with self._lock:
            return self._map

    @cached_property
    def _classes(self) -> ClassesAnswer:
        found = []
        for name, count in self.counts.items():
            (first,) = self._catalogue.items_of(name, 0, 1)
            picture = self._thumbnail(first.id)
            found.append(ClassAnswer(name=name, count=count, first=first.id, thumbnail=picture))
        return ClassesAnswer(items=len(self._catalogue), classes=found)

    @cached_property
    def _map(self) -> tuple[bytes, bytes]:
        whole = self._catalogue.map()
        step = -(-len(whole.ids) // MOST_POINTS) or 1
        ids, points = whole.ids[::step].tolist(), whole.points[::step]
        places = {name: place for place, name in enumerate(self.counts)}
        names = (self._catalogue.item(id).class_names for id in ids)
        answer = MapAnswer(
            method=whole.method,
            explained=whole.explained,
            total=len(whole.ids),
            ids=ids,
            x=_rounded(points[:, 0]),
            y=_rounded(points[:, 1]),
            classes=[places[own[0]] if own else -1 for own in names],
            class_names=list(places),
            fields=FieldsAnswer(
                names=list(whole.field_names),
                x=_rounded(whole.field_points[:, 0]),
                y=_rounded(whole.field_points[:, 1]),
            ),
        )
        plain = answer.model_dump_json().encode()
        return plain, gzip.compress(plain, 6)


def _rounded(values: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> list[float]:
    """Return few digits of each: float32 printed in full is twice as long."""
    rounded: list[float] = np.round(values.astype(np.float64), DIGITS).tolist()
    return rounded
