"""The kinds of values a recipe holds, each with the sentence that says what it must be."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from weiss._base import checks


def refusal(message: str) -> PydanticCustomError:
    """Return the error that says a law of ours, without pydantic's words."""
    return PydanticCustomError("law", "{message}", {"message": message})


def is_a(law: str) -> WrapValidator:
    """Whatever pydantic has against a value, say what it must be."""

    def check(given: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(given)
        except ValidationError:
            raise refusal(f"must be {law}; got {given!r}.") from None

    return WrapValidator(check)


def among(options: Iterable[str], *, or_none: bool = False) -> BeforeValidator:
    """Accept some words, and say which there are."""
    known = list(options)

    def check(given: Any) -> Any:
        if (isinstance(given, str) and given in known) or (or_none and given is None):
            return given
        hint = checks.suggestion(given, known) if isinstance(given, str) else ""
        listed = ", ".join(map(repr, known))
        raise refusal(f"must be one of {listed}; got {given!r}.{hint}")

    return BeforeValidator(check)


AS_TUPLE = BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
WORD_OR_LIST = BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)
Count = Annotated[int, Field(ge=1), is_a("a whole number of at least 1")]
Index = Annotated[int, Field(ge=0), is_a("a whole number of at least 0")]
MaybeCount = Annotated[Count | None, is_a("a whole number of at least 1, or left out")]
Positive = Annotated[float, Field(gt=0), is_a("a number greater than 0")]
MaybePositive = Annotated[Positive | None, is_a("a number greater than 0, or left out")]
NotNegative = Annotated[float, Field(ge=0), is_a("a number of at least 0")]
Share = Annotated[float, Field(ge=0, lt=1), is_a("a number of at least 0 and below 1")]
Flag = Annotated[bool, is_a("true or false")]
Text = Annotated[str, Field(min_length=1), is_a("text in quotes, and not empty")]
MaybeText = Annotated[Text | None, is_a("text in quotes, and not empty, or left out")]
Range = Annotated[tuple[float, float], AS_TUPLE, is_a("two numbers, [least, greatest]")]
Counts = Annotated[tuple[Count, ...], AS_TUPLE, is_a("a list of whole numbers of at least 1")]
BatchSize = Annotated[
    Count | Literal["auto"], is_a("a whole number of at least 1, or 'auto' in quotes")
]
DEVICES = r"^(auto|cpu|mps|cuda(:\d+)?)$"


class Section(BaseModel):
    """A part of a recipe: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def entry(default: Any, says: str, **more: Any) -> Any:
    """Declare a key of a section: its default, and what it means."""
    return Field(default, description=says, **more)


def plain(value: Any) -> Any:
    """Return a value without tuples and without what is None."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items() if inner is not None}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


OLD_KEYS = {"loss.products": "loss.matmul_dtype", "optim.touched_rows": None}
"""Keys of recipes that older versions wrote, and today's; None for what was removed."""
REMOVED = {
    "optim.touched_rows": "optim.touched_rows was removed, since a whole step gained less than 1 % "
    "by it. Leave it out: plain AdamW does the same, but for rows without a gradient, which it "
    "moves on by their moments."
}


def with_new_keys(values: Mapping[str, Any], *, of_a_run: bool = False) -> dict[str, Any]:
    """Return a recipe's sections under today's keys.

    Args:
        values: sections by their names.
        of_a_run: drop removed keys whatever they ask for: the run has been made. Otherwise only
            those that ask for nothing.
    """
    found = dict(values)
    for old, new in OLD_KEYS.items():
        section, _, key = old.partition(".")
        given = found.get(section)
        if not isinstance(given, Mapping) or key not in given:
            continue
        found[section] = inner = dict(given)
        if new is not None:
            inner.setdefault(new.partition(".")[2], inner.pop(key))
        elif of_a_run or inner[key] is False:
            del inner[key]
    return found
