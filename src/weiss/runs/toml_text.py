"""TOML: read a file with a clear error, and write, which the standard library cannot."""

import datetime
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{path} must be TOML; {str(error)[0].lower()}{str(error)[1:]}. Words need quotes, and "
            "true and false small letters."
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8; {error}. Save it as such.") from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Return nested dicts as TOML: single values first, then a section for each dict, in order.

    Args:
        values: dicts of texts, numbers, booleans, dates, lists, and dicts of these.

    Returns:
        What `tomllib.loads` reads back as the same values.

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
