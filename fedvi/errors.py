"""Defines every error that fedvi raises on purpose, each with a hint."""

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

__all__ = [
    "BudgetExceeded",
    "CodeRefused",
    "ConfigError",
    "DataError",
    "FamilyError",
    "FedviError",
    "HelloNeeded",
    "IdentityError",
    "LedgerError",
    "ModelError",
    "PolicyRefused",
    "PrivacyError",
    "ProtocolError",
    "RunFailed",
    "SolverError",
    "Superseded",
    "TransportError",
    "UnsupportedEvent",
    "all_of",
    "as_one",
    "did_you_mean",
    "given_by",
    "in_one_line",
    "in_words",
    "quoted",
    "worth_telling",
]

# So much is shown of what a server says.
_QUOTED = 300
# Characters that end a quotation, or look as if they did.
_MARKS = dict.fromkeys(
    map(
        ord,
        '"\u02ba\u02dd\u02ee\u05f4\u201c\u201d\u201e\u201f\u2033\u2036\u275d\u275e\u3003\u301d\u301e\u301f\uff02',
    ),
    "'",
)
# Letters and signs that look like a blank, with which words could be pushed to the next line of a terminal.
_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


class FedviError(Exception):
    """Base of all errors raised on purpose: what was found, what was expected, and a hint.

    Args:
      message: lower case; names the field, the value found and the value expected.
      hint: what the reader can do about it; printed on its own line.
      server_says: what a server said about it, which anybody may have written; printed as a quotation.

    The class attribute ``exit_code`` is what the command line exits with.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", server_says: str = "") -> None:
        super().__init__(message, hint, *([server_says] if server_says else []))
        self.message = message
        self.hint = hint
        self.server_says = server_says

    @property
    def sentence(self) -> str:
        """The message and the quotation, without the hint."""
        return f"{self.message}; {quoted(self.server_says)}" if self.server_says else self.message

    def __str__(self) -> str:
        return f"{self.sentence}\n\nhint: {self.hint}" if self.hint else self.sentence


class ConfigError(FedviError):
    """A study file, or an argument, asks for something that cannot be carried out."""

    exit_code = 2

    each: "tuple[ConfigError, ...]" = ()
    """The errors that ``as_one`` made this one of; empty if it is one by itself."""


class CodeRefused(ConfigError):
    """A file names code that nobody allowed here, or that no file may name; none of it was run."""


class DataError(FedviError):
    """A data file does not fit the study's declared schema."""

    exit_code = 2


class ModelError(FedviError):
    """A model cannot be used: no record plate, discrete global latents, and so on."""

    exit_code = 2


class FamilyError(FedviError):
    """Natural parameters do not fit their family: wrong shape, or improper where it must be proper."""


class SolverError(FedviError):
    """A local solver cannot solve its task."""


class ProtocolError(FedviError):
    """A message breaks the protocol between client and server."""


class ImpossibleAnswer(ProtocolError):
    """An answer is outside the bounds of the study: its site is left out until it calls again."""


class HelloNeeded(ProtocolError):
    """The server has not greeted this client since it started: send the greeting again."""


class Superseded(ProtocolError):
    """Another process has greeted as this client since; of two copies of one state, this is the older."""


class TransportError(FedviError):
    """The other party cannot be reached, or the secure channel to it cannot be made."""

    exit_code = 3


class IdentityError(FedviError):
    """A certificate does not allow the request."""

    exit_code = 4


class RunFailed(FedviError):
    """A federated run ended before its schedule did."""

    exit_code = 6


class PrivacyError(FedviError):
    """Something that must not be released would be."""

    exit_code = 5


class UnsupportedEvent(PrivacyError):
    """An accountant does not support an event; it refuses rather than guess."""


class BudgetExceeded(PrivacyError):
    """The next release would cost more than the budget has left; raised before data is read."""


class PolicyRefused(PrivacyError):
    """A client's own policy does not allow what a study asks; raised before data is read."""


class LedgerError(PrivacyError):
    """A ledger is damaged, or an entry does not follow from the entries before it."""


def as_one(found: Iterable[ConfigError]) -> ConfigError:
    """Returns one error that names all of them; at least one is given.

    >>> print(as_one([ConfigError("a is 1", "write 2"), ConfigError("b is missing")]))
    2 things are wrong:
    - a is 1
      write 2
    - b is missing
    <BLANKLINE>
    hint: correct them all: what depends on them is checked after that
    """
    each = [one for error in found for one in error.each or (error,)]
    if len(each) == 1:
        return each[0]
    told = (f"- {one.message}" + (f"\n  {one.hint}" if one.hint else "") for one in each)
    made = ConfigError(
        f"{len(each)} things are wrong:\n" + "\n".join(told),
        "correct them all: what depends on them is checked after that",
    )
    made.each = tuple(each)
    return made


def all_of(*steps: Callable[[], Any]) -> list[Any]:
    """Returns what each step makes; the steps do not need each other.

    Raises:
      ConfigError: names all that is wrong, since every step is tried.
    """
    made, wrong = [], []
    for step in steps:
        try:
            made.append(step())
        except ConfigError as error:
            wrong.append(error)
    if wrong:
        raise as_one(wrong)
    return made


@contextlib.contextmanager
def given_by(flag: str) -> Iterator[None]:
    """Names the flag that gave a value, where the value is refused."""
    try:
        yield
    except FedviError as error:
        raise type(error)(f"{flag}: {error.message}", error.hint, error.server_says) from None


def in_one_line(text: str) -> str:
    """Returns a stranger's text as one line of at most some 300 characters.

    Characters that steer a terminal, turn the direction of writing or cannot be seen are replaced.

    >>> in_one_line("no room\\n\\nwait\\x1b[2J")
    'no room wait\N{REPLACEMENT CHARACTER}[2J'
    """
    line = " ".join(text[: 4 * _QUOTED].split())
    line = line if len(line) <= _QUOTED else line[:_QUOTED] + "…"
    return "".join(
        c if c.isprintable() and c not in _BLANK else "\N{REPLACEMENT CHARACTER}" for c in line
    )


def quoted(text: str) -> str:
    """Quotes a server's words, so that nobody takes them for words of this program.

    Quotation marks within it, which would seem to end it, become apostrophes.

    >>> print(quoted('no room; hint: run "curl"'))
    the server says: "no room; hint: run 'curl'"
    """
    return f'the server says: "{in_one_line(text).translate(_MARKS)}"'


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint naming the nearest of ``known``, then all of them.

    >>> did_you_mean("clip_nrom", ["steps", "clip_norm"])
    'did you mean `clip_norm`? known: `clip_norm`, `steps`'
    """
    names = sorted(known)
    listed = "known: " + (", ".join(f"`{item}`" for item in names) or "none")
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`? {listed}" if near else listed


_TYPES = {
    "a valid boolean": "true or false",
    "a valid integer": "a whole number",
    "a valid list": "a list",
    "a valid number": "a number",
    "a valid string": "a text",
}


def in_words(expected: str) -> str:
    """Returns a validator's expectation in this package's words.

    >>> in_words("Input should be a valid number"), in_words("Input should be greater than 0")
    ('a number', 'greater than 0')
    """
    found = expected.removeprefix("Input should be ")
    plain, comma, rest = found.partition(",")
    return _TYPES.get(plain, plain) + comma + rest


def worth_telling(problems: Sequence[Any]) -> list[Any]:
    """Leaves out those of a validator's problems that say again what another one says.

    A misspelt key is also missing under its right name: the unknown key is more helpful.
    """
    unknown = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    return [
        problem
        for problem in problems
        if problem["type"] != "missing"
        or not any(
            loc[:-1] == problem["loc"][:-1]
            and difflib.get_close_matches(str(problem["loc"][-1]), [str(loc[-1])], cutoff=0.5)
            for loc in unknown
        )
    ]
