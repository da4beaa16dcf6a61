"""TOML: read a file with a clear error, and write, which the standard library cannot."""

import datetime
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weiss._base.files import refuse_special_file

LARGEST = 2**20
"""Bytes of a file; the largest recipe of Weiss has a few thousand."""
DEEPEST, LONGEST = 20, 200
"""Levels of sections and lists inside each other, and points in a line, which make such levels."""
LARGEST_BITS = 1024
"""Bits of a whole number: a larger one is no float. In hexadecimal digits Python reads any."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file: small, in UTF-8, not nested deeply.

    Raises:
        ValueError: it is no such file.
    """
    refuse_special_file(path)
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} must have at most {LARGEST:,} bytes; it has more. Shorten it.")
    try:
        text = content.decode("utf-8-sig")  # some editors of Windows begin a file with a mark
        # Before it is parsed, since long dotted keys take minutes.
        lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
        if any(line.count(".") > LONGEST for line in lines):
            raise RecursionError
        found = tomllib.loads(text)
        _refuse_odd(found)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path} must be TOML; {str(error)[0].lower()}{str(error)[1:]}. Words need quotes, and "
            "true and false small letters."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8; {error}. Save it as such.") from None
    except RecursionError:
        raise ValueError(
            f"{path} must not hold more than {DEEPEST} sections or lists inside each other; it "
            "does. It is no recipe."
        ) from None
    except ValueError as error:  # also of Python, for a number of thousands of digits
        raise ValueError(f"{path} must hold ordinary numbers; {error}.") from None
    return found


def _refuse_odd(values: dict[str, Any]) -> None:
    """Refuse what is nested too deeply, and whole numbers that are too large."""
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        items = [each.values() if isinstance(each, dict) else each for each in level]
        held = [one for inner in items for one in inner]
        if any(isinstance(one, int) and one.bit_length() > LARGEST_BITS for one in held):
            raise ValueError(f"one has more than {LARGEST_BITS:,} bits")
        level = [one for one in held if isinstance(one, (dict, list))]
    if level:
        raise RecursionError


def to_toml(values: Mapping[str, Any]) -> str:
    """Return nested dicts as TOML, which `tomllib.loads` reads back as the same values.

    Single values come first, then a section for each dict, in order.

    Example:
        >>> from weiss.runs import to_toml
        >>> print(to_toml({"seed": 0, "train": {"epochs": 60, "device": "auto"}}), end="")
        seed = 0
        <BLANKLINE>
        [train]
        epochs = 60
        device = "auto"
    """
    return "\n".join(_tables(values, ()))


def _tables(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    own = [f"{_word(key)} = {to_toml_value(values[key])}\n" for key in values if key not in inner]
    header = [f"[{'.'.join(map(_word, path))}]\n"] if path and (own or not inner) else []
    if header or own:
        yield "".join(header + own)
    for key, value in inner.items():
        yield from _tables(value, (*path, key))


def _word(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else to_toml_value(key)


def to_toml_value(value: Any) -> str:
    """Return one value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # A JSON string is a TOML string, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml_value, value))}]"
    if isinstance(value, Mapping):
        pairs = [f"{_word(key)} = {to_toml_value(inner)}" for key, inner in value.items()]
        return f"{{{', '.join(pairs)}}}"
    raise TypeError(
        f"a recipe holds texts, numbers, booleans, lists and sections; got {value!r}. Convert it, "
        "or leave it out."
    )
