"""What the server answers, as models: the OpenAPI description is made of them.

Dimensions: n points of the map, m fields on it.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field


def _digits(value: Any) -> Any:
    """Refuse what Python would read as a number and nobody writes: +1, 1_0, 1.0."""
    if isinstance(value, str) and not (value.isascii() and value.isdecimal()):
        raise ValueError("must be digits")
    return value


Number = Annotated[int, BeforeValidator(_digits)]
"""A number in an address: digits, so that every item has one address."""


class ItemAnswer(BaseModel):
    """An item of the catalogue."""

    id: int = Field(description="Its number; never given to another item.")
    name: str = Field(description="Its name in the collection, not a place on a disk.")
    classes: list[str] = Field(description="The classes it belongs to; empty if nobody said.")
    thumbnail: str = Field(description="Where its small picture is, on this server.")


class HitAnswer(ItemAnswer):
    """An item that was found."""

    similarity: float = Field(description="The cosine between it and the query, -1 to 1.")
    distance: float = Field(description="1 - similarity.")
    match: bool | None = Field(
        description="Whether the similarity reaches the threshold; null without a threshold."
    )


class ThresholdAnswer(BaseModel):
    """From which similarity on two pictures count as showing the same class."""

    similarity: float
    false_match_rate: float = Field(
        description="How many pictures of classes that are not here find a match all the same."
    )
    true_match_rate: float = Field(
        description="How many pictures of classes that are here find a match that is right."
    )
    basis: str = Field(description="On what these rates were measured.")


class QueryAnswer(BaseModel):
    """What was searched with: an uploaded picture, or an item."""

    width: int | None = Field(default=None, description="Of an uploaded picture.")
    height: int | None = Field(default=None, description="Of an uploaded picture.")
    item: ItemAnswer | None = Field(default=None, description="The item, if it was one.")


class SearchAnswer(BaseModel):
    """What was found, nearest first."""

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
    thumbnail: str = Field(description="The small picture of that item.")


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


class FieldsAnswer(BaseModel):
    """Where the mean fields of the model's classes lie on the map; m each."""

    names: list[str]
    x: list[float]
    y: list[float]


class MapAnswer(BaseModel):
    """All items in two dimensions, as lists of n, one entry a point."""

    method: str = Field(description="PCA or UMAP.")
    explained: float | None = Field(
        description="The share of the variance that two dimensions hold; null for UMAP."
    )
    total: int = Field(description="Items of the catalogue; of very many some are left out.")
    ids: list[int]
    x: list[float]
    y: list[float]
    classes: list[int] = Field(description="Places in class_names; -1 without a class.")
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
    """What is known of the catalogue and of its model."""

    name: str
    items: int
    classes: int
    embedding_size: int
    threshold: ThresholdAnswer | None
    outdated: bool = Field(description="Whether the index has changed since it was opened.")
    limits: LimitsAnswer
    facts: dict[str, Any] = Field(description="The model card: model, data, scores, store.")


class HealthAnswer(BaseModel):
    """That the server is well."""

    status: str
    items: int


class ErrorAnswer(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="What must hold, what was given, what to do.")
