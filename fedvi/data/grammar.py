"""Parses a formula's text into response, terms and offset, by the grammar of formulaic (and R)."""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from fedvi.data.calls import parse_call, refuse
from fedvi.data.response import CALLS, Offset, parse_offset, schema_column
from fedvi.data.schema import Schema
from fedvi.data.transforms import Transform, parse_transform

__all__ = ["Sides", "parse_terms"]


class Sides(NamedTuple):
    """The two sides of ``~``.

    Attributes:
      response: the text on the left: a name, or a call of Surv or cbind.
      terms: each with its factors, which are names or functions of a column; () is the intercept.
        Terms with fewer factors come first.
      offset: or None.
    """

    response: str
    terms: tuple[tuple[str | Transform, ...], ...]
    offset: Offset | None


def parse_terms(text: str, schema: Schema) -> Sides:
    """Parses a formula.

    Raises:
      ConfigError: the formula is not supported.
    """
    left, tilde, right = text.partition("~")
    response = _response(left, text, bool(tilde))
    words = _words(right, text)
    _check_words(words, text)
    summands = _summands(words)
    summands, offset = _take_offset(summands, text, schema)
    summands, has_intercept = _take_intercept(summands, text)
    calls: dict[str, Transform] = {}
    for summand in summands:
        for place, word in enumerate(summand.words):
            if word.kind == "python":
                found = _transform(word.text, text, schema)
                calls[found.text] = found
                # Calls that differ only in spelling are one factor.
                summand.words[place] = word._replace(text=found.text)
    terms = _expanded(summands, text)
    for name in dict.fromkeys(factor for term in terms for factor in term):
        if name not in calls:
            schema_column(name, schema)
    ordered = sorted(terms, key=len)
    factors = [tuple(calls.get(factor, factor) for factor in term) for term in ordered]
    return Sides(response, (*([()] if has_intercept else []), *factors), offset)


class _Word(NamedTuple):
    """A token; ``kind`` is "name", "python", "value", "operator" or "context"."""

    text: str
    kind: str


_GRAMMAR = (
    "a formula reads `response ~ term + term`, where a term is a, a:b, a*b, a/b or (a + b)**2"
)
_ONE_RESPONSE = "expected one response, then `~`"
_CONDITION = 'declare a column with type = "binary", and list the cells that are `true` and `false`'
_HINTS = {
    ".": "name the columns one by one; what `.` stands for would change with the file",
    "in": "write a:b for b within a, or a/b for a and b within a",
    "|": "a formula has one part; effects that differ by site are asked for by `model.site_effect`",
    **dict.fromkeys("<>=!", _CONDITION),
}
_POWERS = ("**", "^")
_OPERATORS = ("+", "-", ":", "*", "/", "**", "^")
_LARGEST_POWER = 9
_DEEPEST = 50
_LARGEST_EXPANSION = 10_000
_GAP = re.compile(r"(?<=\w)\s+(?=\()")
_OFFSET = "write `+ offset(log(years))` or `+ offset(shift)`"


# A run of characters other than words, brackets and quotes; blanks do not end it.
_OPERATOR_RUN = re.compile(r"""[^\w.()\[\]`{%'"]+""")
_WORD = re.compile(r"[\w.]+")
_QUOTED = {"`": "name", "{": "python", "%": "operator", "'": "value", '"': "value"}
_CLOSES = {"(": ")", "[": "]", "{": "}"}


def _words(part: str, text: str) -> list[_Word]:
    """Returns the tokens of one side. A blank before a bracket is allowed, as in `Surv (days, died)`."""
    part = _GAP.sub("", part)
    words: list[_Word] = []
    place = 0
    while place < len(part):
        char, start = part[place], place
        if char.isspace():
            place += 1
        elif char in "()[]":
            place += 1
            words.append(_Word(char, "context"))
        elif char in _QUOTED:
            place = _end(part, place, text)
            whole = part[start:place]
            inner = whole if _QUOTED[char] == "value" else whole[1:-1]
            words.append(_Word(inner or whole, _QUOTED[char]))
        elif match := _WORD.match(part, place):
            place = match.end()
            kind = "value" if re.fullmatch(r"[0-9.]+", match.group()) else "name"
            while kind != "value" and part[place : place + 1] in ("(", "["):
                place, kind = _end(part, place, text), "python"
            words.append(_Word(part[start:place], kind))
        elif match := _OPERATOR_RUN.match(part, place):
            place = match.end()
            words.append(_Word("".join(match.group().split()), "operator"))
    return words


def _end(part: str, start: int, text: str) -> int:
    """Returns the position after the bracket or quote that opens at ``start``; ``\\`` escapes."""
    awaited: list[str] = []
    escaped = False
    for place in range(start, len(part)):
        char = part[place]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif awaited and char == awaited[-1]:
            awaited.pop()
            if not awaited:
                return place + 1
        elif not awaited or (awaited[-1] in _CLOSES.values() and char in "`(["):
            awaited.append(_CLOSES.get(char, char))
    if re.search(r"\boffset\s*\(", part):
        refuse(f"the offset in {text!r}", _OFFSET)
    refuse(f"a bracket or a quote in {text!r} is not closed", _GRAMMAR)


def _response(left: str, text: str, tilde: bool) -> str:
    called = left.strip().partition("(")[0].strip()
    if called in CALLS and "(" in left and tilde:
        return left.strip()
    words = _words(left, text)
    _check_calls([word for word in words if word.kind == "python"], text)
    for word in words:
        if word.text[:1] in _HINTS:
            refuse(f"{word.text[:1]!r} in {text!r}", _HINTS[word.text[:1]])
    if not tilde or len(words) != 1 or words[0].kind != "name":
        refuse(f"{text!r}, {_ONE_RESPONSE}", _GRAMMAR)
    return words[0].text


def _check_calls(words: Sequence[_Word], text: str) -> None:
    """Refuses functions of a response."""
    for word in words:
        refuse(
            f"the call `{word.text.partition('(')[0]}(...)` left of `~` in {text!r}",
            "left of `~` a formula has no functions but Surv and cbind; write the transformed outcome "
            "into the file",
        )


def _check_words(words: Sequence[_Word], text: str) -> None:
    """Refuses an operator without operands, and anything that fedvi does not support."""
    if not words:
        refuse(f"nothing after `~` in {text!r}, expected a term", _GRAMMAR)
    depth = 0
    for before, word in zip((None, *words[:-1]), words, strict=True):
        depth += {"(": 1, ")": -1}.get(word.text, 0)
        if depth < 0:
            break
        if depth > _DEEPEST:
            refuse(f"{depth} brackets in one another in {text!r}", "write out what they hold")
        _check_word(word, text)
        starts = before is None or before.text == "(" or before.kind == "operator"
        if word.kind == "operator" or word.text == ")":
            if starts and not (word.text in ("+", "-") and (before is None or before.text == "(")):
                shown = "~" if before is None else before.text
                refuse(f"nothing after `{shown}` in {text!r}, expected a term", _GRAMMAR)
        elif before is not None and not starts:
            refuse(
                f"`{before.text}` and `{word.text}` stand side by side in {text!r}, expected an "
                "operator between them",
                _GRAMMAR,
            )
    if depth != 0:
        refuse(f"a bracket in {text!r} is not closed, or not opened", _GRAMMAR)
    if words[-1].kind == "operator":
        refuse(f"nothing after `{words[-1].text}` in {text!r}, expected a term", _GRAMMAR)
    for base, operator, power in zip(words, words[1:], words[2:], strict=False):
        if operator.text in _POWERS:
            _check_power(base, operator.text, power, text)


def _check_word(word: _Word, text: str) -> None:
    if word.kind == "operator" and set(word.text) <= {"+", "-"} and len(word.text) > 1:
        refuse(f"nothing after `{word.text[0]}` in {text!r}, expected a term", _GRAMMAR)
    if word.text == "~":
        refuse(f"{text!r}, {_ONE_RESPONSE}", _GRAMMAR)
    known = {"operator": word.text in _OPERATORS, "context": word.text in "()"}
    if not known.get(word.kind, word.kind != "value" or word.text.isdecimal()):
        hint = _HINTS.get(word.text, _HINTS.get(word.text[0], _GRAMMAR))
        refuse(f"{word.text!r} in {text!r}", hint)


def _check_power(base: _Word, operator: str, power: _Word, text: str) -> None:
    if power.kind != "value" or not 2 <= int(power.text) <= _LARGEST_POWER:
        refuse(
            f"the power `{power.text}` in {text!r}, expected 2 to {_LARGEST_POWER}",
            "(a + b + c)**2 is all three, and their interactions of two",
        )
    if base.text != ")":
        refuse(
            f"`{base.text}{operator}{power.text}` in {text!r}, which would be `{base.text}` alone",
            f"write I({base.text}**{power.text}) for the power of a column",
        )


class _Summand(NamedTuple):
    """The words between two signs, outside of brackets."""

    sign: str
    words: list[_Word]


def _summands(words: Sequence[_Word]) -> list[_Summand]:
    found: list[_Summand] = []
    depth = 0
    for word in words:
        depth += {"(": 1, ")": -1}.get(word.text, 0)
        if depth == 0 and word.text in ("+", "-"):
            found.append(_Summand(word.text, []))
        else:
            if not found:
                found.append(_Summand("+", []))
            found[-1].words.append(word)
    return found


def _take_offset(
    summands: list[_Summand], text: str, schema: Schema
) -> tuple[list[_Summand], Offset | None]:
    """Takes ``+ offset(...)`` out of a right-hand side."""
    having = [
        summand
        for summand in summands
        for word in summand.words
        if word.kind == "python" and word.text.startswith("offset(")
    ]
    if not having:
        return summands, None
    if len(having) > 1:
        refuse(f"{text!r} has {len(having)} offsets, expected one", "write their sum as a column")
    (only,) = having
    call = parse_call(only.words[0].text)
    if call is None or only.sign == "-" or len(only.words) > 1:
        refuse(f"the offset in {text!r}", _OFFSET)
    rest = [summand for summand in summands if summand is not only]
    return rest, parse_offset(call, text, schema)


def _take_intercept(summands: list[_Summand], text: str) -> tuple[list[_Summand], bool]:
    """Takes `0 +`, `+ 1`, `- 1` and the like out of a right-hand side."""
    asked: set[bool] = set()
    rest = []
    for summand in summands:
        if len(summand.words) == 1 and summand.words[0].text in ("0", "1"):
            asked.add((summand.words[0].text == "1") == (summand.sign == "+"))
        else:
            rest.append(summand)
    if len(asked) == 2:
        refuse(f"{text!r} asks for an intercept and for none", "write `1 +` or `0 +`, not both")
    return rest, asked != {False}


def _transform(word: str, text: str, schema: Schema) -> Transform:
    call = parse_call(word)
    if call is None:
        refuse(
            f"`{word}` in {text!r} cannot be read",
            "a function is of one column, such as bs(age, knots=[40, 60], lower_bound=18, "
            "upper_bound=100); a column whose name is a word of Python, such as `class`, needs "
            "another name: see `column` under [data.schema.NAME]",
        )
    if call.function in CALLS:
        refuse(
            f"the call `{call.function}(...)` right of `~` in {text!r}",
            "a response stands left of `~`",
        )
    return parse_transform(call, text, schema)


# A term is its factors without repetition; terms with the same factors in another order are equal.
_Terms: TypeAlias = dict[frozenset[str], tuple[str, ...]]
_TIGHTNESS = {"+": 1, "-": 1, "*": 2, "/": 2, ":": 3, "**": 4, "^": 4}


def _expanded(summands: Sequence[_Summand], text: str) -> list[tuple[str, ...]]:
    """Returns the terms of a right-hand side without repetition, each with its factors."""
    words: list[_Word] = []
    for summand in summands:
        words.append(_Word(summand.sign, "operator"))
        for word in summand.words:
            if word.kind == "value" and words[-1].text not in _POWERS:
                refuse(
                    f"{word.text!r} in {text!r}",
                    f"{_GRAMMAR}; `0 +` or `- 1` leaves out the intercept",
                )
            words.append(word)
    return list(_sum(words[::-1], text).values())


def _sum(words: list[_Word], text: str) -> _Terms:
    """Pops terms with their signs from the end of ``words``, in reverse order, up to a bracket."""
    found: _Terms = {}
    while words and words[-1].text != ")":
        sign = words.pop().text if words[-1].kind == "operator" else "+"
        found = _joined(found, sign, _product(words, 2, text), text)
    return found


def _product(words: list[_Word], tightness: int, text: str) -> _Terms:
    """Pops a product of operators with at least this tightness, from left to right."""
    if tightness > _TIGHTNESS["**"]:
        word = words.pop()
        if word.text != "(":
            return {frozenset([word.text]): (word.text,)}
        found = _sum(words, text)
        words.pop()
        return found
    found = _product(words, tightness + 1, text)
    while words and _TIGHTNESS.get(words[-1].text) == tightness:
        operator = words.pop().text
        if operator in _POWERS:
            power = int(words.pop().text)
            _check_size(len(found) ** power, text)
            found = _crossed([found] * power)
        else:
            found = _joined(found, operator, _product(words, tightness + 1, text), text)
    return found


def _joined(left: _Terms, operator: str, right: _Terms, text: str) -> _Terms:
    if operator == "+":
        return left | {key: term for key, term in right.items() if key not in left}
    if operator == "-":
        absent = [term for key, term in right.items() if key not in left]
        if absent:
            # Probably a mistake: the term left out comes later, or is missing.
            refuse(
                f"`- {':'.join(absent[0])}` in {text!r}, where that is no term",
                "leave the term out: only what stands before it can be taken away",
            )
        return {key: term for key, term in left.items() if key not in right}
    _check_size(len(left) * len(right), text)
    if operator == "/":
        return _joined(left, "+", _crossed([_once(itertools.chain(*left.values())), right]), text)
    crossed = _crossed([left, right])
    return (
        crossed if operator == ":" else _joined(_joined(left, "+", right, text), "+", crossed, text)
    )


def _crossed(sides: Sequence[_Terms]) -> _Terms:
    """Returns all products of one term from each side."""
    found: _Terms = {}
    for terms in itertools.product(*(side.values() for side in sides)):
        for key, term in _once(itertools.chain(*terms)).items():
            found.setdefault(key, term)
    return found


def _once(factors: Iterable[str]) -> _Terms:
    """Returns the product of factors without repetition."""
    term = tuple(dict.fromkeys(factors))
    return {frozenset(term): term}


def _check_size(products: int, text: str) -> None:
    if products > _LARGEST_EXPANSION:
        refuse(
            f"{text!r} has more than {_LARGEST_EXPANSION} products of terms",
            "write out the interactions that you mean",
        )
