"""A collection of pictures that can be searched by a picture: make an index, change it, search."""

from weiss.catalogue.building import Change, add_items, build_index, compact_index, remove_items
from weiss.catalogue.class_fields import ClassFields, Guess
from weiss.catalogue.embed import Embedded, embed_images
from weiss.catalogue.embed_column import EmbedColumn
from weiss.catalogue.filtering import ConditionError
from weiss.catalogue.item_map import Map
from weiss.catalogue.records import (
    DamagedIndexError,
    Hit,
    Item,
    OtherModelError,
    Threshold,
    UnknownItemError,
    search_answer,
)
from weiss.catalogue.search import Catalogue

__all__ = [
    "Catalogue",
    "Change",
    "ClassFields",
    "ConditionError",
    "DamagedIndexError",
    "EmbedColumn",
    "Embedded",
    "Guess",
    "Hit",
    "Item",
    "Map",
    "OtherModelError",
    "Threshold",
    "UnknownItemError",
    "add_items",
    "build_index",
    "compact_index",
    "embed_images",
    "remove_items",
    "search_answer",
]
