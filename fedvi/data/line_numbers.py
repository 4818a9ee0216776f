"""Finds the lines of a study or policy file that an error is about."""

import bisect
import re
import tomllib
from typing import Any

from fedvi import errors

__all__ = ["line_of", "line_with", "with_lines"]

# Messages begin with the place in the file: "data.schema.age.bounds is …", "[solver]: …".
_PLACE = re.compile(r"\[?(\w[\w-]*(?:\.[\w-]+|\[\d+\])*)")


def with_lines(error: errors.ConfigError, text: str, root: str = "") -> errors.ConfigError:
    """Adds to each message the line that it is about, where the file has it.

    Args:
      error: one of a file, or several.
      text: of the file; if it is no TOML, nothing is added.
      root: what stands before each place in a message, such as "policy.".

    >>> print(with_lines(errors.ConfigError("study.seed is 'x'"), "[study]\\nseed = 'x'"))
    study.seed is 'x' (line 2)
    """
    return errors.as_one([_with_line(one, text, root) for one in error.each or (error,)])


def _with_line(error: errors.ConfigError, text: str, root: str) -> errors.ConfigError:
    found = _PLACE.match(error.message.removeprefix(root))
    line = None if found is None else _line(re.findall(r"[\w-]+", found[1]), text)
    if line is None:
        return error
    return type(error)(f"{error.message} (line {line})", error.hint)


def line_of(message: str, text: str) -> int | None:
    """Returns the line of a TOML or JSON file that a message is about; None where it cannot be told.

    >>> line_of("model.kind is 'a:b'", '{"model":\\n {"kind": "a:b"}}')
    2
    """
    found = _PLACE.match(message)
    if found is None:
        return None
    place = re.findall(r"[\w-]+", found[1])
    if not text.lstrip().startswith("{"):
        return _line(place, text)
    at = 0
    for part in place:
        # A key stands after that of its table; of a list, the first table is meant.
        at = text.find(f'"{part}"', at) if not part.isdecimal() else at
        if at < 0:
            return None
    return text.count("\n", 0, at) + 1


def line_with(words: str, text: str) -> int | None:
    """Returns the first line of a text that has these words; None without one.

    >>> line_with("b", "a\\nb\\nb")
    2
    """
    at = text.find(words)
    return None if at < 0 else text.count("\n", 0, at) + 1


def _line(place: list[str], text: str) -> int | None:
    """Returns the line at which a key begins; of a key that is missing, its section's."""
    lines = text.splitlines(keepends=True)
    while place and not _holds(place, lines, len(lines)):
        place = place[:-1]
    if not place:
        return None
    return bisect.bisect_left(
        range(len(lines)), True, key=lambda count: _holds(place, lines, count)
    )


def _holds(place: list[str], lines: list[str], count: int) -> bool:
    """Whether the first lines have a place; as many more are read as the last value takes."""
    for end in range(count, len(lines) + 1):
        try:
            found: Any = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for part in place:
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return False
        # Of a list of tables, nobody knows which one is meant.
        return not (isinstance(found, list) and found and isinstance(found[0], dict))
    return False
