"""The classes and the map of a catalogue for the page, as JSON; made when the server starts."""

from collections.abc import Callable

import numpy as np

from weiss._base.arrays import Array
from weiss.catalogue import Catalogue
from weiss.server.schemas import ClassAnswer, ClassesAnswer, FieldsAnswer, MapAnswer

MOST_POINTS = 100_000
"""A map of more items is thinned evenly."""
DIGITS = 4
"""Digits of a coordinate: the map is about 1 wide, a screen some thousand pixels."""


def classes_json(catalogue: Catalogue, thumbnail_of: Callable[[int], str]) -> bytes:
    """Return every class, the number of its items, and a thumbnail."""
    found = []
    for name, count in catalogue.classes():
        (first,) = catalogue.items_of(name, 0, 1)
        picture = thumbnail_of(first.id)
        found.append(ClassAnswer(name=name, count=count, first=first.id, thumbnail=picture))
    return ClassesAnswer(items=len(catalogue), classes=found).model_dump_json().encode()


def map_json(catalogue: Catalogue) -> bytes:
    """Return a point for every item, and the mean fields of the model's classes."""
    whole = catalogue.map()
    step = -(-len(whole.ids) // MOST_POINTS) or 1
    ids, points = whole.ids[::step].tolist(), whole.points[::step]
    places = {name: place for place, (name, _) in enumerate(catalogue.classes())}
    names = (catalogue.item(id).class_names for id in ids)
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
    return answer.model_dump_json().encode()


def _rounded(values: Array) -> list[float]:
    """Return values with few digits: the JSON is half as long."""
    rounded: list[float] = np.round(values.astype(np.float64), DIGITS).tolist()
    return rounded
