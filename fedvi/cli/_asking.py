"""How `fedvi init` asks: one loop over questions, with a way back and a review; and checked answers."""

import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from fedvi import errors

if TYPE_CHECKING:
    from fedvi.data.names import Names


__all__ = [
    "OF_FILE",
    "Question",
    "as_address",
    "choice",
    "client_names",
    "converse",
    "count_of",
    "name_of",
    "positive",
    "slug",
    "within",
    "wrapped",
]

_Result = TypeVar("_Result")
_BACK, _SKIP = "back", "skip"
OF_FILE = "of the file"
"""Among the answers: the paths of keys that follow from a file's records."""


class Question(NamedTuple):
    """One question of a dialogue.

    Attributes:
      key: of the answer; a flag's name where there is one. Shown in the review.
      words: the question.
      why: what `?` shows.
      read: makes a value of a text; raises FedviError where it is no answer.
      default: the text that Enter stands for; None: there is none.
      given: the answer that a flag gave; None: none did.
      may_skip: whether it may be left open, which gives None.
      flag: the flag that gave it, where it is not the key.
      show: writes a value for the review; None shows the text.
      remark: what to say of an answer that was just typed, though it is taken; "" says nothing.
      of_file: the paths of the study's keys that follow from a file's records, with an answer that was
        typed or confirmed; what a flag gave does not.
    """

    key: str
    words: str
    why: str
    read: Callable[[str], Any] = str
    default: str | None = None
    given: Any = None
    may_skip: bool = False
    flag: str = ""
    show: Callable[[Any], str] | None = None
    remark: Callable[[Any], str] | None = None
    of_file: Callable[[Any], Iterable[str]] | None = None

    def value(self, text: str) -> Any:
        """Returns what an answer means.

        Raises:
          ConfigError: it is left open or empty, and must not be; or it cannot be read.
        """
        if text == _SKIP and self.may_skip:
            return None
        if text == _SKIP:
            raise errors.ConfigError(
                "this cannot be left open",
                "answer it; Enter alone takes the value in brackets, if there is one",
            )
        text = text or self.default or ""
        if not text:
            hint = ", or skip" if self.may_skip else ""
            raise errors.ConfigError("there is no default", f"type an answer, ? or back{hint}")
        return self.read(text)

    def unasked(self, on: bool) -> Any:
        """Returns what a flag gave; else, where nobody can be asked, the default.

        Raises:
          ConfigError: there is neither, and nobody to ask; or it cannot be read.
        """
        if isinstance(self.given, str):
            with errors.given_by(self.flag or f"--{self.key}"):
                return self.read(self.given)
        if self.given is not None:
            return self.given
        if on:
            return None
        if self.default is None:
            raise errors.ConfigError(
                f"--{self.key} is missing, and there is nobody to ask",
                f"give --{self.key}, or run `fedvi init` on a terminal without --yes",
            )
        return self.read(self.default)


def converse(
    questions: Callable[[Mapping[str, Any]], Iterable[Question]],
    finish: Callable[[Mapping[str, Any]], _Result],
    on: bool,
) -> _Result:
    """Asks one question after the other, has all answers reviewed, and returns what they make.

    What was typed is read anew in each pass: an answer that does not suit one that was changed is asked
    for again, and a default follows from what it depends on.

    Args:
      questions: of the answers so far, which it may read once they are there: the questions, in order.
      finish: of all answers; what it refuses is told, and the answers are reviewed again.
      on: whether there is somebody to ask; else flags and defaults are taken.

    Raises:
      FedviError: flags contradict one another; or nobody can be asked, and an answer is missing, cannot
        be read, or is refused by ``finish``.
    """
    typed: dict[str, str] = {}
    earlier: dict[str, str] = {}  # answers that are to be given again
    while True:
        said: dict[str, Any] = {OF_FILE: frozenset()}
        asked: dict[str, tuple[Question, str]] = {}
        back = False
        for each in questions(said):
            value = None
            if each.key not in typed and each.key not in earlier:
                try:
                    value = each.unasked(on)
                except errors.FedviError as error:
                    if not on:
                        raise
                    click.echo(wrapped(f"Error: {_told(error)}"))
            if value is None and on:
                text, value = _asked(each, typed.get(each.key), earlier.get(each.key))
                if text == _BACK:
                    back = True
                    break
                typed[each.key] = text
                earlier.pop(each.key, None)
            else:
                text = str(each.given)
            said[each.key] = value
            if each.of_file is not None and each.key in typed and value is not None:
                said[OF_FILE] |= {*each.of_file(value)}
            asked[each.key] = each, text or str(each.default)
        if not back:
            if not typed:
                return finish(said)
            # Written here, since what is shown of a formula follows from the answers after it.
            rows = {
                key: each.show(said[key]) if each.show and said[key] is not None else text
                for key, (each, text) in asked.items()
            }
            change = _reviewed(rows)
            if change is None:
                try:
                    return finish(said)
                except errors.FedviError as error:
                    click.echo(wrapped(f"Error: {_told(error)}"))
                    continue
            if change != _BACK:
                earlier[change] = typed.pop(change, asked[change][1])
                continue
        before = [key for key in asked if key in typed]
        if before:
            earlier[before[-1]] = typed.pop(before[-1])
        else:
            click.echo("  this is the first question")


def _asked(question: Question, text: str | None, earlier: str | None) -> tuple[str, Any]:
    """Returns an answer, as text and as what it means; asks until there is one, or `back`."""
    while True:
        is_new = text is None
        if text is None:
            shown = earlier or question.default
            words = wrapped(f"{question.words} [{shown}]" if shown else question.words)
            text = str(click.prompt(words, default=shown or "", show_default=False)).strip()
            # Enter stays Enter: the default may become another.
            text = "" if text == question.default else text
        if text == _BACK:
            return _BACK, None
        if text == "?":
            click.echo(_explained(question.why))
        else:
            try:
                value = question.value(text)
            except errors.FedviError as error:
                click.echo(wrapped(f"Error: {_told(error)}"))
            else:
                remark = question.remark(value) if is_new and question.remark and value else ""
                for line in remark.splitlines():
                    click.echo(wrapped(line, "  "))
                return text, value
        text = None


def _reviewed(rows: Mapping[str, str]) -> str | None:
    """Shows all answers; returns None to write them, the key of one to change, or `back`."""
    keys = list(rows)
    width = max(map(len, keys))
    click.echo("\nYour answers, of which nothing is written yet:")
    for number, (key, text) in enumerate(rows.items(), 1):
        click.echo(f"  {number:>2}  {key:<{width}}  {'STATE ME' if text == _SKIP else text}")
    while True:
        words = "Enter writes the study; a number changes that answer"
        text = click.prompt(words, default="", show_default=False).strip()
        if not text or text == _BACK:
            return text or None
        if text.isdecimal() and 1 <= int(text) <= len(keys):
            return keys[int(text) - 1]
        click.echo(f"Error: expected Enter, back, or a number from 1 to {len(keys)}")


def wrapped(text: str, indent: str = "") -> str:
    """Breaks lines between words, where a terminal would within one; a file or a pipe gets whole lines."""
    if not sys.stdout.isatty():
        return indent + text
    return textwrap.fill(
        text,
        max(shutil.get_terminal_size().columns, 20),
        initial_indent=indent,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _explained(why: str) -> str:
    """Fits an explanation to the terminal; a list, whose parts are aligned, keeps its lines."""
    return textwrap.indent(why, "  ") if "   " in why else wrapped(why.replace("\n", " "), "  ")


def _told(error: errors.FedviError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:64] or "study"


def choice(known: tuple[str, ...]) -> Callable[[str], str]:
    short = {"y": "yes", "n": "no"} if known == ("yes", "no") else {}

    def read(text: str) -> str:
        text = short.get(text.lower(), text)
        if text not in known:
            raise errors.ConfigError(f"{text!r} is none of {', '.join(known)}")
        return text

    return read


def client_names(text: str) -> tuple[str, ...]:
    names = tuple(item.strip() for item in text.split(",") if item.strip())
    if not names:
        raise errors.ConfigError(
            f"{text!r} names no site, expected at least one", "such as north,south"
        )
    first: dict[str, str] = {}
    for name in map(name_of, names):
        if name.casefold() in first:
            raise errors.ConfigError(
                f"the name {first[name.casefold()]!r} stands twice",
                "give every client its own name; upper and lower case count as the same",
            )
        first[name.casefold()] = name
    return names


def name_of(text: str) -> str:
    """Reads a name as the study will, so that a wrong one is asked for again and not at the end."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise errors.ConfigError(
            f"{text!r} is no name, expected a letter or digit, then at most 63 letters, digits, `.`, `_` "
            "or `-`",
            "the name becomes part of file names",
        )
    return text


def within(header: "Names | None", names: Mapping[str, str]) -> Callable[[str], str]:
    """Reads a column of the file, by its own name or by that in a formula (``names``: formula → file)."""

    def read(text: str) -> str:
        if header is None or text in header.columns:
            return text
        if text not in names:
            raise errors.ConfigError(
                f"{text!r} is no column of the file",
                errors.did_you_mean(text, header.columns),
            )
        return names[text]

    return read


def positive(below: float = math.inf) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < below:
            more = ("", "such as 1")
            if below < math.inf:
                more = (f" and below {below:g}", "such as 1e-5")
            raise errors.ConfigError(f"{text!r} is no number above 0{more[0]}", more[1])
        return value

    return read


def count_of(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise errors.ConfigError(
            f"{text!r} is no whole number above 0", "write digits alone, such as 5000"
        )
    return int(text)


def as_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    # What goes into files of other languages: letters, digits and what stands in an address.
    plain = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) is not None
    if not plain or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise errors.ConfigError(f"{text!r} is no HOST:PORT", "such as fedvi.example.org:7443")
    return text
