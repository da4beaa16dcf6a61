"""The answers of the server as models, for the OpenAPI schema.

Items, hits and searches have the keys of `weiss.catalogue.search_answer`, and thumbnails.

Dimensions: n points of the map, m fields on it.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field


def _digits(value: Any) -> Any:
    """Refuse what Python also accepts as a number: +1, 1_0, 1.0."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("must be digits")
    return value


Number = Annotated[int, BeforeValidator(_digits)]
"""A number in an address: digits only, so that every item has one address."""


class ItemAnswer(BaseModel):
    """An item of the catalogue."""

    id: int = Field(description="Its number; never used for another item.")
    name: str = Field(description="Its name in the collection, not a path on a disk.")
    classes: list[str] = Field(description="The classes it belongs to; empty if they are unknown.")
    columns: dict[str, str | bool | int | float] = Field(
        description="What a list said about it beyond its class, without missing values."
    )
    thumbnail: str = Field(description="The address of its thumbnail on this server.")


class HitAnswer(ItemAnswer):
    """An item that a search has found."""

    similarity: float = Field(description="The cosine between it and the query, -1 to 1.")
    distance: float = Field(description="1 - similarity.")
    match: bool | None = Field(
        description="Whether the similarity reaches the threshold; null without a threshold."
    )


class ThresholdAnswer(BaseModel):
    """The similarity from which on two pictures count as showing the same class."""

    similarity: float
    false_match_rate: float | None = Field(
        description="The share of pictures of classes that are not here that find a match; null "
        "if it could not be measured."
    )
    true_match_rate: float | None = Field(
        description="The share of pictures of classes that are here that find one of their class; "
        "null if it could not be measured."
    )
    basis: str = Field(description="What these rates were measured on.")
    intervals: dict[str, list[float]] = Field(
        description="Both ends of the 95 % interval of each number above, by its name; none for a "
        "similarity that was given, nor in an index of an older version."
    )


class QueryAnswer(BaseModel):
    """The query: an uploaded picture, or an item."""

    width: int | None = Field(default=None, description="Of an uploaded picture.")
    height: int | None = Field(default=None, description="Of an uploaded picture.")
    item: ItemAnswer | None = Field(default=None, description="The item, if it was one.")


class SearchAnswer(BaseModel):
    """The result of a search, nearest first."""

    query: QueryAnswer
    threshold: ThresholdAnswer | None
    match: bool | None = Field(
        description="Whether the nearest item is a match; null without a threshold."
    )
    results: list[HitAnswer]


class ClassAnswer(BaseModel):
    """A class of the catalogue."""

    name: str
    count: int = Field(description="How many items it has.")
    first: int = Field(description="Its first item.")
    thumbnail: str = Field(description="The thumbnail of that item.")


class ClassesAnswer(BaseModel):
    """All classes, by name."""

    items: int = Field(description="How many items the catalogue has, with or without a class.")
    classes: list[ClassAnswer]


class PageAnswer(BaseModel):
    """Some of the items of a class, or of all."""

    name: str | None = Field(description="The class; null for all items.")
    total: int
    start: int
    items: list[ItemAnswer]


class GroupAnswer(BaseModel):
    """Items that are alike, without a class, and that fit none."""

    count: int
    items: list[ItemAnswer] = Field(description="The first of them.")


class UnknownAnswer(BaseModel):
    """Groups of unknown items, the largest first."""

    total: int = Field(description="How many groups there are.")
    is_cut: bool = Field(description="Whether there are more such items than are grouped.")
    groups: list[GroupAnswer] = Field(description="The first of them.")


class FieldsAnswer(BaseModel):
    """The positions of the mean fields of the model's classes on the map; m each."""

    names: list[str]
    x: list[float]
    y: list[float]


class MapAnswer(BaseModel):
    """All items in two dimensions; lists of n."""

    method: str = Field(description="PCA, PCA of class means, UMAP or t-SNE.")
    explained: float | None = Field(
        description="The share of the variance that two dimensions hold; null for UMAP and t-SNE."
    )
    total: int = Field(description="Items of the catalogue; the lists may have fewer.")
    ids: list[int]
    x: list[float]
    y: list[float]
    classes: list[int] = Field(description="Positions in class_names; -1 without a class.")
    class_names: list[str]
    fields: FieldsAnswer


class LimitsAnswer(BaseModel):
    """What the server accepts."""

    bytes: int
    pixels: int
    side: int
    seconds: float
    k: int


class AboutAnswer(BaseModel):
    """Facts about the catalogue and its model."""

    name: str
    version: str = Field(description="Another one after every change of what is served.")
    items: int
    classes: int
    columns: list[str] = Field(description="By which searches can be filtered, beside class.")
    embedding_size: int
    threshold: ThresholdAnswer | None
    outdated: bool = Field(description="Whether the index has changed since it was opened.")
    originals: bool = Field(description="Whether /items/{id}/original shows photos.")
    limits: LimitsAnswer
    facts: dict[str, Any] = Field(description="The model card: model, data, scores, store.")


class HealthAnswer(BaseModel):
    """The server answers searches."""

    status: str
    items: int


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="What must hold, what was given, what to do.")
