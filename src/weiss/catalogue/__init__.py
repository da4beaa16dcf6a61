"""A collection of pictures that can be searched by a picture: make it, change it, look in it."""

from weiss.catalogue.building import add_items, build_index, remove_items
from weiss.catalogue.changes import Change
from weiss.catalogue.items import (
    DamagedIndexError,
    Hit,
    Item,
    Map,
    OtherModelError,
    Threshold,
    UnknownItemError,
)
from weiss.catalogue.searching import Catalogue

__all__ = [
    "Catalogue",
    "Change",
    "DamagedIndexError",
    "Hit",
    "Item",
    "Map",
    "OtherModelError",
    "Threshold",
    "UnknownItemError",
    "add_items",
    "build_index",
    "remove_items",
]
