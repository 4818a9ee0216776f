"""What `fedvi init` asks of one column: its type, bounds and levels, its unit, and its missing cells."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvi import errors
from fedvi.cli._asking import Question
from fedvi.cli._of_file import not_written
from fedvi.study.drafts import declarations
from fedvi.study.drafts.units import parse_unit
from fedvi.study.rare_references import FEW_LEVELS, RARE
from fedvi.study.round_numbers import unit_within

if TYPE_CHECKING:
    from fedvi.data.guess import Guess

__all__ = ["OUT", "Flagged", "column_questions", "table_of"]

_RULES = "drop, indicator, impute VALUE"
OUT = "out"
"""Says that a column is no covariate."""

_TYPES = """number:18..100, count:0..20, binary:1/0 (the cell for true first), level:low,high (the
reference first; a rare one makes all its contrasts wide), or level:1=low,2=high where the file has codes.
What it can be, from a protocol or a code book: no bound comes from the file. A record with another level
counts as zero. skip: state it later."""
_SUCH_AS = "such as number:18..100, count:0..20, binary:1/0 or level:low,high"
_BOUNDS = """What it can be, in the unit of the file, from a protocol or a code book: no bound comes from
the file. A number outside is taken as the nearest bound. skip: state it later."""
_LEVELS = """low,mid,high: from a protocol or a code book. All others are compared with the first; a rare
one makes all its contrasts wide. A record with another level counts as zero. 1=low,2=mid says what the
file's codes mean, for tables. skip: state it later."""
_WORDS = """low,mid,high for levels 1,2,3: tables and reports have the words, and the study says which code
means which. The same word twice makes one level of two. none: tables have the codes."""
# In tenths: whoever misses more cells of a column wants to know before anything else is asked of it.
_HALF = 5
_OUT_TOO = f"""
{OUT}: it is no covariate, and leaves the formula."""
_UNIT = """half: half the width of the bounds, from their middle; a prior sd of 2.5 suits it, and it
predicts best where records are few. Or a step that matters to a clinician, and where the intercept stands:
10 from 60, or 10 years from 60. Then take a prior sd of 0.5 to 1. See docs/guides/priors-and-bounds.md."""
_HALF_WIDTH = "half"
_CODE = re.compile(r"[^\W\d_]|-?\d{1,9}")
_MISSING = """drop: a record without it counts as zero. impute VALUE: a public constant in its place, as
the clinical normal. indicator: the middle of the bounds, the reference level or false in its place, and one
more coefficient. See docs/guides/missing-data.md."""
_STAND_INS = """Such a number often says that a value is missing. Taken as a value, it is clipped to the
bounds, and shifts what is found. yes: a record with it has a missing cell. no: it is a value. Or name
those that mean missing, between commas. Empty cells, ? and NA always mean missing."""


class Flagged(NamedTuple):
    """What flags say of a column; None where they say nothing.

    Attributes:
      declared: its type, and what goes with it.
      unit: of its coefficient.
      rule: for missing cells.
      cells: that mean missing.
    """

    declared: str | dict[str, Any] | None = None
    unit: str | None = None
    rule: str | None = None
    cells: str | None = None


def column_questions(
    said: Mapping[str, Any],
    name: str,
    flagged: Flagged,
    expected: str | None,
    guess: "Guess | None",
    free: bool,
) -> Iterator[Question]:
    """Asks for a column's type, for bounds, levels and a unit that it leaves open, and for missing cells.

    Args:
      said: answers so far; "gaps" says whether rules for missing cells are wanted of all columns.
      name: of the column, in the formula.
      flagged: what flags say of it.
      expected: the type that the model asks for.
      guess: what the column looks like.
      free: whether it may leave the formula, which has all columns of a file.
    """
    given, rule, listed = flagged.declared, flagged.rule, flagged.cells
    from fedvi.data.suggest import suggested

    default = (expected or "number") if guess is None else suggested(guess, expected)
    words = f"{name}: {_looks(guess, default, expected)}" + (f", or {OUT}" if free else "")
    read, why = _column_reader(name, free=free), _TYPES + (_OUT_TOO if free else "")
    remark = functools.partial(_remark, name, guess)
    of_file = None
    if guess is not None and default is not None:
        of_file = functools.partial(_of_suggestion, name, read, default, expected)
    yield Question(
        *(f"column {name}", words, why, read, default, given),
        may_skip=True,
        remark=remark,
        of_file=of_file,
    )
    table = said[f"column {name}"] or {}
    kind = table.get("type")
    after, words = "", ""
    if kind in ("number", "count") and "bounds" not in table:
        after, words = "bounds", f"{name}: lowest and highest that it can be, LOW..HIGH"
    listed_levels = None
    if kind == "level" and "levels" not in table:
        after = "levels"
        words = f"{name}: all levels that may occur, between commas, the reference first"
        seen = "" if guess is None else suggested(guess, "level") or ""
        listed_levels = seen.partition(":")[2] or None
    if given is None and after:
        words, read = words + (f", or {OUT}" if free else ""), _column_reader(name, kind, free)
        why = (_BOUNDS if after == "bounds" else _LEVELS) + (_OUT_TOO if free else "")
        of_levels = remark if after == "levels" else None  # of a number it was said with its type
        of_file = None
        if listed_levels is not None:
            of_file = functools.partial(_of_suggestion, name, read, listed_levels, "level")
        yield Question(
            *(f"{after} {name}", words, why, read, listed_levels),
            may_skip=True,
            remark=of_levels,
            of_file=of_file,
        )
        if OUT in (said[f"{after} {name}"] or {}):
            return
    for flag, text in (
        ("--per", flagged.unit),
        ("--missing", rule),
        ("--missing-values", listed),
    ):
        if text is not None and kind is None and OUT not in table:
            raise errors.ConfigError(
                f"{flag} {name}: the column has no type yet", f"give --column {name}=TYPE, too"
            )
    if kind is None:
        return
    if given is None:
        yield from _of_words(said, name)
    yield from _of_unit(said, name, flagged.unit, expected)
    # An outcome is never made up: a record without it counts as zero.
    asks = expected is None and bool(said.get("gaps"))
    yield from _of_codes(name, kind, guess, listed, asks)
    if expected is None:
        yield from _of_gaps(said, name, guess, flagged, asks)


def _of_suggestion(
    name: str,
    read: Callable[[str], dict[str, Any]],
    suggestion: str,
    expected: str | None,
    table: Mapping[str, Any],
) -> tuple[str, ...]:
    """Returns what an answer has of a file: all that was suggested, if it was taken as it was.

    Args:
      read: makes a table of a text.
      suggestion: what the file's records suggest.
      expected: the type, where it does not follow from them.
      table: the answer.
    """
    kind = table.get("type")
    try:
        if table != read(suggestion):
            return ()
    except errors.ConfigError:  # no study may have it
        return ()
    keys = ["type"] * (kind != expected) + ["levels"] * ("levels" in table)
    keys += ["true"] * (kind == "binary")
    return tuple(f"data.schema.{name}.{key}" for key in keys)


def _of_unit(
    said: Mapping[str, Any], name: str, given: str | None, expected: str | None
) -> Iterator[Question]:
    """Asks what one unit of a covariate's coefficient is; a count enters as it is."""
    table = table_of(said, name)
    if table["type"] != "number" or expected is not None:
        if given is not None:
            raise errors.ConfigError(
                f"--per {name}: the column is no covariate of type number", "leave the flag out"
            )
        return
    bounds, such_as = table.get("bounds"), ""
    if bounds:
        step, start = unit_within(*bounds)
        such_as = f", such as {step:.12g} from {start:.12g}"
    elif given is None:
        return
    words = (
        f"{name}: unit of its coefficient, {_HALF_WIDTH} the width of its bounds or STEP from START"
    )

    def read(text: str) -> dict[str, Any]:
        return {} if text == _HALF_WIDTH else parse_unit(text, bounds)

    yield Question(f"per {name}", words + such_as, _UNIT, read, _HALF_WIDTH, given)


def _of_words(said: Mapping[str, Any], name: str) -> Iterator[Question]:
    """Asks for words of levels that are numbers or single letters; tables would have these alone."""
    table = table_of(said, name)
    levels = [str(level) for level in table.get("levels", ())]
    if "codes" in table or not levels or not all(_CODE.fullmatch(level) for level in levels):
        return

    def read(text: str) -> dict[str, Any]:
        words = declarations.parse_type(f"level:{text}")["levels"]
        if text == "none":
            return {}
        if len(words) != len(levels):
            raise errors.ConfigError(
                f"{text!r} is no list of {len(levels)} words, expected one for each of "
                f"{', '.join(levels)}",
                "write them between commas, in this order; none: tables have the codes",
            )
        found = {"levels": [*dict.fromkeys(words)], "codes": dict(zip(levels, words, strict=True))}
        _check(name, table | found)
        return found

    words = f"{name}: words for its levels {', '.join(levels)}, in this order (none: as they are)"
    yield Question(f"words {name}", words, _WORDS, read, "none")


def _of_codes(
    name: str, kind: str, guess: "Guess | None", listed: str | None, asks: bool
) -> Iterator[Question]:
    """Asks which cells mean missing, beside empty ones."""
    seen = guess.stand_ins if guess is not None and kind in ("number", "count") else ()
    codes = [code for code, _ in seen]
    if codes:
        lie = "lie" if len(codes) > 1 else "lies"
        words, default = (
            f"{name}: {' and '.join(codes)} {lie} far beyond the other values. Missing (yes, no)",
            "yes",
        )
    elif listed is not None or (asks and kind in ("number", "count")):
        words, default = f"{name}: numbers that mean missing, such as 999,-9 (no: none do)", "no"
    else:
        return

    def of_file(table: dict[str, Any]) -> tuple[str, ...]:
        seen_too = {*codes}.intersection(map(str, table.get("missing_values", ())))
        return (f"data.schema.{name}.missing_values",) if seen_too else ()

    yield Question(
        f"missing-values {name}",
        words,
        _STAND_INS,
        _cells_reader(codes),
        default,
        listed,
        show=lambda table: ", ".join(map(str, table.get("missing_values", ["none"]))),
        of_file=of_file,
    )


def _of_gaps(
    said: Mapping[str, Any], name: str, guess: "Guess | None", flagged: Flagged, asks: bool
) -> Iterator[Question]:
    """Asks for the rule of missing cells, where there are any, or where it was wanted of all columns."""
    from fedvi.data.suggest import words_for_missing

    kind, rule = table_of(said, name)["type"], flagged.rule
    # Words of the file are written where a person has seen them in the question, which a flag answers;
    # and none beside levels or cells that a flag declares.
    is_declared = flagged.cells is not None or (
        flagged.declared is not None and kind in ("level", "binary")
    )
    words_of_file = [] if guess is None or rule is not None else words_for_missing(guess, kind)
    odd: list[Any] = [] if is_declared else list(words_of_file)
    of_file = [f"data.schema.{name}.missing_values"] * bool(odd)
    if not asks and not (flagged.cells is not None and said.get(f"missing-values {name}")):
        # Where nothing is missing in the file, nothing is asked, nor written.
        of_file.append(f"data.schema.{name}.missing")
    odd += (said.get(f"missing-values {name}") or {}).get("missing_values", [])
    if rule is None and not odd and not asks and (guess is None or not guess.missing):
        return
    beside = f" (also {', '.join(map(str, odd))})" if odd else ""
    words = f"{name}: what a missing cell is{beside}. {_RULES}"
    if guess is not None and (guess.missing or odd):
        stood = sum(count for code, count in guess.stand_ins if int(code) in odd)
        words = f"{name}: {_share(guess, stood)} of its cells are missing{beside}. {_RULES}"
    read = _missing_reader(name, table_of(said, name), odd)
    yield Question(
        f"missing {name}", words, _MISSING, read, "drop", rule, of_file=lambda _: of_file
    )


def _looks(guess: "Guess | None", default: str | None, expected: str | None) -> str:
    """Says what a column may hold, as it looks, and what is to be said of it."""
    from fedvi.data.suggest import may_be_codes, spellings_of, values_of

    if guess is None:
        return "what it may hold"
    if expected is None and may_be_codes(guess):
        ask = "confirm or correct" if default else "which of them"
        return (
            f"{guess.different} different whole numbers. Codes of a list (level), or amounts (number, "
            f"count){_often_missing(guess)}; {ask}"
        )
    if guess.commas:
        return (
            "its decimal commas are read by no study; save the file with points. What it may hold"
        )
    if guess.thousands:
        return (
            "its points may stand between thousands, as in 1.234, and are read as decimal points; if so, "
            "save the file without. What it may hold"
        )
    if default is not None:
        first = {"level": " (the reference first)", "binary": " (YES/NO)"}
        said = first.get(default.partition(":")[0], "")
        said += _often_missing(guess) if expected is None else _left_out(guess)
        twice = next((group for group in spellings_of(values_of(guess)) if len(group) > 1), None)
        if twice and default.startswith("level"):
            said += (
                f"; {' and '.join(twice)} are two levels (write one, and `codes` into the study)"
            )
        return f"what it may hold, as it looks{said}; confirm or correct"
    if expected == "binary":
        few = f", and looks like {', '.join(values_of(guess))}" if guess.kind == "level" else ""
        return f"it is to be a yes or no{few}. Which cells mean yes, which no, binary:YES,…/NO,…"
    if guess.kind == "text":
        return "it holds many texts, of which none is suggested. Its levels, level:A,B,…"
    return "what it may hold; nothing is suggested"


def _often_missing(guess: "Guess") -> str:
    return f"; {_share(guess)} of its cells are missing" if _tenths(guess) >= _HALF else ""


def _left_out(guess: "Guess") -> str:
    """Says how many records have no outcome, for which there is no rule to choose."""
    return (
        f"; {_share(guess)} of its cells are missing: these records are left out"
        if guess.missing
        else ""
    )


def _tenths(guess: "Guess") -> int:
    """Returns roughly how many cells are missing; words of a column of numbers are among them."""
    return round(
        10.0 * (guess.missing + sum(count for _, count in guess.odd)) / max(guess.cells, 1)
    )


def _share(guess: "Guess", more: int = 0) -> str:
    tenths = _tenths(guess._replace(missing=guess.missing + more))
    return f"about {10 * tenths} %" if 0 < tenths < 10 else ("few" if tenths == 0 else "nearly all")


def _column_reader(
    name: str, kind: str | None = None, free: bool = False
) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        if text == OUT:
            if free:
                return {OUT: True}
            raise errors.ConfigError(
                f"{name} stands in the formula as you gave it",
                "go back to the formula, and take the column out of it",
            )
        # The column's name may be said again, and so may a type that was confirmed.
        text = text.removeprefix(f"{name}=")
        if kind is not None:
            text = text.removeprefix(f"{kind}:")
        elif re.fullmatch(r"[-+.\de ]+\.\.[-+.\de ]+", text):
            text = f"number:{text}"  # bounds alone, where a type was asked for
        try:
            table = declarations.parse_type(text if kind is None else f"{kind}:{text}")
        except errors.ConfigError as error:
            if kind is not None:  # only bounds can be wrong: any text is a list of levels
                message = f"{text!r} is no range, expected LOW..HIGH, two numbers"
                raise errors.ConfigError(message, "such as 18..100") from None
            raise errors.ConfigError(error.message, _SUCH_AS) from None
        _check(name, table)
        return table

    return read


def _check(name: str, table: dict[str, Any]) -> None:
    """Refuses what no study may say of a column; what is left open is not looked at."""
    from fedvi.data.schema import parse_schema

    bounds = table.get("bounds")
    if bounds and bounds[0] >= bounds[1]:
        low, high = bounds
        raise errors.ConfigError(
            f"the lowest, {low}, is not below the highest, {high}",
            f"write {high}..{low}" if high < low else "write LOW..HIGH, such as 18..100",
        )
    if bounds or table.get("levels") or table["type"] == "binary":
        parse_schema({name: table}, private=True)


def _remark(name: str, guess: "Guess | None", table: dict[str, Any]) -> str:
    said = (
        _unseen(name, guess, table),
        not_written(name, guess, table) if declarations.cells_of(table) else "",
        _rare_reference(name, guess, table),
    )
    return "\n".join(filter(None, said))


def _rare_reference(name: str, guess: "Guess | None", table: dict[str, Any]) -> str:
    """Says that few records of the file have the level with which all others are compared."""
    from fedvi.data.guess import spelt
    from fedvi.data.schema import as_level

    levels = table.get("levels", ())
    if guess is None or len(levels) < FEW_LEVELS or guess.different > len(guess.values):
        return ""
    held, first = dict(guess.values), str(levels[0])
    cells = [cell for cell, level in table.get("codes", {first: first}).items() if level == first]
    have = sum(held.get(spelt(as_level(cell)), 0) for cell in cells)
    if have >= RARE * (guess.cells - guess.missing):
        return ""
    return (
        f"few records of this file have {first}, with which all others are compared: all intervals of "
        f"{name} would be wide. If another level is common everywhere, correct {name} with `back`, and put "
        "it first"
    )


def _unseen(name: str, guess: "Guess | None", table: dict[str, Any]) -> str:
    """Says which cells of a declaration no record has; a protocol may know more, so it is no error."""
    from fedvi.data.guess import spelt
    from fedvi.data.schema import as_level

    if table.get("type") in ("number", "count") and guess is not None and guess.kind != "empty":
        return (
            ""
            if guess.low is not None
            else f"this file has cells of {name} that are no numbers, and records with them would be left "
            f"out. If that is a slip, correct {name} with `back`"
        )
    if guess is None or guess.different > len(guess.values):
        return ""
    seen = {value for value, _ in guess.values}
    keys = ("true", "false", "codes" if "codes" in table else "levels")
    declared = [cell for key in keys for cell in table.get(key, ())]
    lacking = [str(cell) for cell in declared if spelt(as_level(str(cell))) not in seen]
    if not lacking:
        return ""
    return f"no cell of the file is {' or '.join(lacking)}. If that is a slip, correct {name} with `back`"


def _cells_reader(codes: list[str]) -> Callable[[str], dict[str, Any]]:
    """Reads which cells mean missing: yes or no of those that were seen, or a list."""

    def read(text: str) -> dict[str, Any]:
        if text == "yes" and not codes:
            raise errors.ConfigError(
                "'yes' does not say which, expected the cells that mean missing",
                "name them between commas, such as 999,-9; no: none do",
            )
        named = {"yes": codes, "no": []}.get(text, [cell.strip() for cell in text.split(",")])
        return {"missing_values": [declarations.cell_of(cell) for cell in named]} if named else {}

    return read


def _missing_reader(
    name: str, table: dict[str, Any], odd: list[Any]
) -> Callable[[str], dict[str, Any]]:
    kind, more = table["type"], {"missing_values": odd} if odd else {}

    def read(text: str) -> dict[str, Any]:
        if text in ("drop", "indicator"):
            return {"missing": text} | more
        word, _, constant = text.partition(" ")
        constant = constant.strip()
        cells: dict[str, Any] = {"true": True, "false": False}
        try:
            if word == "impute" and constant:
                if kind in ("number", "count"):
                    value: Any = float(constant)
                else:
                    codes = table.get("codes", {})
                    value = codes.get(constant, constant) if kind == "level" else cells[constant]
                told: dict[str, Any] = {"missing": {"impute": value}} | more
                _check(name, table | told)
                return told
        except (KeyError, ValueError):
            pass
        wanted = {"binary": "true or false", "level": "a level"}.get(kind, "a number")
        raise errors.ConfigError(
            f"{text!r} is no rule, expected drop, indicator, or impute and {wanted}",
            "docs/guides/missing-data.md says which suits what",
        )

    return read


def table_of(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns what was said of a column, in all its questions."""
    table: dict[str, Any] = {}
    for part in ("column", "bounds", "levels", "words", "per", "missing-values", "missing"):
        table |= said.get(f"{part} {name}") or {}
    return table
