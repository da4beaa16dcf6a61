"""The classes and the map of a catalogue for the page; made at the first request, and cached."""

import gzip
import threading
from collections.abc import Callable
from functools import cached_property

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue import Catalogue
from weiss.server.schemas import ClassAnswer, ClassesAnswer, FieldsAnswer, MapAnswer

MOST_POINTS = 100_000
"""A map of more items is thinned evenly."""
DIGITS = 4
"""Digits of a coordinate: the map is about 1 wide, a screen some thousand pixels."""


class Overview:
    """Classes and map of a catalogue; ``thumbnail`` gives the address of an item's thumbnail."""

    def __init__(self, catalogue: Catalogue, thumbnail: Callable[[int], str]) -> None:
        self._catalogue, self._thumbnail = catalogue, thumbnail
        self._lock = threading.Lock()
        self.counts = dict(catalogue.classes())

    def map(self) -> tuple[bytes, bytes]:
        """Return the map as JSON, plain and compressed."""
        with self._lock:
            return self._map

    @cached_property
    def classes(self) -> bytes:
        """Every class, the number of its items, and a thumbnail, as JSON."""
        found = []
        for name, count in self.counts.items():
            (first,) = self._catalogue.items_of(name, 0, 1)
            picture = self._thumbnail(first.id)
            found.append(ClassAnswer(name=name, count=count, first=first.id, thumbnail=picture))
        return ClassesAnswer(items=len(self._catalogue), classes=found).model_dump_json().encode()

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


def _rounded(values: Array) -> list[float]:
    """Return values with few digits: the JSON is half as long."""
    rounded: list[float] = np.round(values.astype(np.float64), DIGITS).tolist()
    return rounded
