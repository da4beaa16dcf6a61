"""What the JSON files of a run and of a comparison hold, checked when they are read.

A file may be damaged, or come from somebody else. What it holds beyond these entries is not looked
at, and an entry may be absent: other versions write more and fewer of them.
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from weiss.evaluation.metrics import TITLES

Number = Annotated[float, Field(allow_inf_nan=False)] | None
Whole = Annotated[int, Field(ge=0, lt=2**63)] | None
Text = str | None
Numbers = dict[str, Number] | None
Prefixes = dict[str, Numbers] | None
"""Metrics of prefixes of the embedding, by their size."""
Values = dict[str, Any] | None
Real = float | None
"""May be infinite or NaN: an interval, the result of a test."""


def _below(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("must name a folder below that of the comparison")
    return name


class Recorded(BaseModel):
    """A part of a file."""

    model_config = ConfigDict(strict=True, extra="allow")


class _OfARun(Recorded):
    epoch: Whole = None
    epochs: Whole = None
    steps: Whole = None
    seed: Whole = None
    num_classes: Whole = None
    embedding_size: Whole = None
    seconds: Number = None
    seconds_to_best: Number = None
    images_per_second: Number = None
    peak_gpu_memory_gb: Number = None
    loss: Text = None
    data: Text = None
    backbone: Text = None
    head: Text = None
    measured_on: Text = None
    test: Numbers = None
    start: Text = None
    before: Numbers = None
    gain: Numbers = None
    dimensions: Prefixes = None
    test_dimensions: Prefixes = None


Result: type[Recorded] = create_model(
    "Result", __base__=_OfARun, **cast(Any, dict.fromkeys(TITLES, (Number, None)))
)
"""result.json."""


class Epoch(Recorded):
    """A line of metrics.jsonl."""

    epoch: Whole = None
    steps: Whole = None
    loss: Number = None
    images_per_second: Number = None
    seconds: Number = None
    skipped: Number = None
    phase: Text = None
    lr: Numbers = None
    order: dict[str, Number | list[Number]] | None = None
    evaluation: Numbers = None
    before: Numbers = None
    gain: Numbers = None
    dimensions: Prefixes = None


class ModelFacts(Recorded):
    """The facts in the file of a network."""

    epoch: Whole = None
    metrics: Numbers = None
    seconds: Number = None
    class_names: list[str]


class Plan(Recorded):
    """plan.json."""

    id: Text = None
    kind: Text = None
    options: Values = None
    recipe: Values = None
    command: Text = None


class _Score(Recorded):
    values: list[Real] | None = None
    mean: Real = None
    low: Real = None
    high: Real = None


class _Row(Recorded):
    name: Text = None
    loss: Text = None
    title: Text = None
    at: Values = None
    settings: Values = None
    changes: Values = None
    runs: list[Annotated[str, AfterValidator(_below)]] | None = None
    repetitions: list[Whole] | None = None
    failed: dict[str, str] | None = None
    scores: dict[str, _Score | None] | None = None


class _Axis(Recorded):
    key: Text = None
    label: Text = None
    short: Text = None


class _Test(Recorded):
    metric: Text = None
    first: Text = None
    second: Text = None
    difference: Real = None
    low: Real = None
    high: Real = None
    p_value: Real = None
    wilcoxon: Real = None
    corrected: Real = None
    num_pairs: Whole = None


class Summary(Recorded):
    """summary.json of a comparison; see `weiss.runs.summaries`."""

    kind: Text = None
    title: Text = None
    question: Text = None
    data: Text = None
    backbone: Text = None
    measured_on: Text = None
    selected_on: Text = None
    command: Text = None
    protocol: Values = None
    recipe: Values = None
    made_with: Values = None
    num_units: Whole = None
    num_done: Whole = None
    is_complete: bool | None = None
    axes: list[_Axis] | None = None
    rows: list[_Row] | None = None
    tests: list[_Test] | None = None


def checked(kind: type[Recorded], values: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Return the values of a file, or of a part of it; ``name`` is where they are from.

    Raises:
        ValueError: an entry is of another kind, for example a number written as text.
    """
    try:
        kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        law = str(first["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
        given = repr(first["input"])
        given = given if len(given) <= 80 else f"{given[:80]}..."
        raise ValueError(
            f"{name} must hold what Weiss wrote; {place} is no such value: {law}; got {given}."
        ) from None
    return dict(values)
