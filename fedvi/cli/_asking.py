"""How `fedvi init` asks: questions on a terminal, and answers that are checked."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedvi import errors

if TYPE_CHECKING:
    from fedvi.data.names import Names


__all__ = [
    "Ask",
    "as_address",
    "choice",
    "client_names",
    "count_of",
    "named",
    "positive",
    "slug",
    "within",
]


class Ask(NamedTuple):
    """How an answer is come by: a flag, else a question on a terminal, else a default.

    Attributes:
      on: whether there is somebody to ask.
    """

    on: bool

    def __call__(
        self,
        flag: str,
        given: Any,
        question: str,
        default: Any = None,
        read: Callable[[str], Any] = str,
    ) -> Any:
        """Returns the answer; what it is read with says what is wrong with it.

        Raises:
          ConfigError: there is no answer, nobody to ask and no default; or it cannot be read.
        """
        if given is not None:
            return read(given) if isinstance(given, str) else given
        if not self.on:
            if default is None:
                raise errors.ConfigError(
                    f"{flag} is missing, and there is nobody to ask",
                    f"give {flag}, or run `fedvi init` on a terminal without --yes",
                )
            return read(default) if isinstance(default, str) else default
        shown = None if default is None else str(default)
        return click.prompt(question, default=shown, value_proc=_asked_again(read))


def _asked_again(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wraps a reader, so that a wrong answer is told and the question put again."""

    def again(text: str) -> Any:
        try:
            return read(text.strip())
        except errors.FedviError as error:
            said = f"{error.message} ({error.hint})" if error.hint else error.message
            raise click.UsageError(said) from None

    return again


def slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:64] or "study"


def choice(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise errors.ConfigError(
                f"{text!r} is none of {', '.join(known)}", errors.did_you_mean(text, known)
            )
        return text

    return read


def client_names(text: str) -> tuple[str, ...]:
    names = tuple(item.strip() for item in text.split(",") if item.strip())
    if not names:
        raise errors.ConfigError(
            f"--clients is {text!r}, expected at least one name", "write --clients north,south"
        )
    first: dict[str, str] = {}
    for name in map(named("--clients"), names):
        if name.casefold() in first:
            raise errors.ConfigError(
                f"clients: the name {first[name.casefold()]!r} stands twice",
                "give every client its own name; upper and lower case count as the same",
            )
        first[name.casefold()] = name
    return names


def named(flag: str) -> Callable[[str], str]:
    """Reads a name as the study will, so that a wrong one is asked for again and not at the end."""

    def read(text: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
            raise errors.ConfigError(
                f"{flag}: {text!r} is no name, expected a letter or digit, then at most 63 letters, "
                "digits, `.`, `_` or `-`",
                "the name becomes part of file names",
            )
        return text

    return read


def within(header: "Names | None") -> Callable[[str], str]:
    def read(text: str) -> str:
        if header is not None and text not in header.columns:
            raise errors.ConfigError(
                f"--unit-column is {text!r}, which is no column of the file",
                errors.did_you_mean(text, header.columns),
            )
        return text

    return read


def positive(flag: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not value > 0:
            raise errors.ConfigError(
                f"{flag} is {text!r}, expected a number above 0", "such as 1e-5"
            )
        return value

    return read


def count_of(text: str) -> int:
    if not text.isdecimal():
        raise errors.ConfigError(f"{text!r} is no whole number", "write digits alone, such as 5000")
    return int(text)


def as_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    # What goes into files of other languages: letters, digits and what stands in an address.
    plain = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) is not None
    if not plain or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise errors.ConfigError(
            f"--server is {text!r}, expected HOST:PORT", "such as fedvi.example.org:7443"
        )
    return text
