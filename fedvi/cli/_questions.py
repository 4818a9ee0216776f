"""What `fedvi init` asks, in order; what a local look at a file suggests is for a person to confirm."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedvi import errors
from fedvi.cli._asking import (
    Question,
    as_address,
    choice,
    client_names,
    count_of,
    named,
    positive,
    within,
)
from fedvi.data.written import named as columns_named
from fedvi.models.outcomes.accepted import ACCEPTED
from fedvi.study.drafts import drafting

if TYPE_CHECKING:
    from fedvi.data.guess import Guess
    from fedvi.data.names import Names

__all__ = ["Asked", "formula_of", "table_of"]

_TYPES = """number:18..100, count:0..20, binary:1/0 (the cell for true first), level:low,high (the
reference first; a rare one makes all its contrasts wide). What it can be, from a protocol or a code book:
no bound comes from the file. A record with another level counts as zero. skip: state it later."""
# In tenths: whoever misses more cells of a column wants to know before anything else is asked of it.
_HALF = 5
_FEW_RECORDS = 20
_OUT = "out"
_OUT_TOO = f"""
{_OUT}: it is no covariate, and leaves the formula."""
_IDENTIFIER = """An identifier tells records or people apart. It explains nothing, and is no covariate. If a
patient has several rows, it says which rows are protected together."""
_FORMULA = """What is explained, ~ and what explains it: died ~ age + sex. With --from, the response alone
stands for all other columns; without identifiers, free text and what is the same in all records, if the
file was looked at."""
_MISSING = """drop: a record without it counts as zero. impute VALUE: a public constant in its place, as
the clinical normal. indicator: the middle of the bounds, the reference level or false in its place, and one
more coefficient. See docs/guides/missing-data.md."""
_STAND_INS = """Such a number often says that a value is missing. Taken as a value, it is clipped to the
bounds, and shifts what is found. yes: a record with it has a missing cell. no: it is a value. Or name
those that mean missing, between commas."""


class _Formula(NamedTuple):
    text: str
    all_columns: bool = False
    left_out: tuple[str, ...] = ()


class Asked(NamedTuple):
    """What the questions of one study follow from.

    Attributes:
      on: whether there is somebody to ask.
      source, header: the file of ``--from``, and the names of its columns; None: there is none.
      given: flag → what it gave, or None.
    """

    on: bool
    source: Path | None
    header: "Names | None"
    given: Mapping[str, Any]

    def questions(self, said: Mapping[str, Any]) -> Iterator[Question]:
        """Yields the questions, in order; each reads the answers before it in ``said``.

        Raises:
          ConfigError: flags contradict one another.
        """
        given, names = self.given, self.names
        name = "part of the names of files: letters, digits, `.`, `_` and `-`"
        read = named("--name")
        yield Question(
            "name", "Name of the study", name, read, given["name_default"], given["name"]
        )
        kinds = "\n".join(f"{kind:<20} {of.words or of.needed}" for kind, of in ACCEPTED.items())
        words = "What is inferred (? lists what there is)"
        yield Question("kind", words, kinds, _kind, next(iter(ACCEPTED)), given["kind"])
        who = "short names, such as north,south"
        yield Question(
            "clients", "Sites, between commas", who, client_names, None, given["clients"]
        )
        if self.on and self.source is not None:
            yield Question(
                "look",
                f"Look at {self.source}, to suggest types and levels? It reads your file on this machine;\n"
                "nothing of it leaves, and no range of it is written (yes, no)",
                "What is suggested is written only if you confirm it. no: you say it column by column.",
                self._look,
                "yes",
            )
        guesses = said.get("look") or {}
        yield from _identifiers(guesses)
        yield Question(
            "formula",
            "Formula, such as disease ~ age + sex" + (" (? lists the columns)" if names else ""),
            _FORMULA + (f"\nColumns: {', '.join(names)}" if names else ""),
            self._formula(said),
            None,
            self._given_formula(),
            show=lambda _: _formula_shown(said),
        )
        yield from self._promise(said, guesses)
        yield from self._columns(said, guesses)
        server = "HOST:PORT, which sites dial"
        default = "fedvi.example.org:7443"
        words = "Where sites will reach the server"
        yield Question("server", words, server, as_address, default, given["address"])

    @property
    def names(self) -> dict[str, str]:
        """Name in a formula → what the file calls the column; empty without a file."""
        return {} if self.header is None else columns_named(self.header.columns)

    def _look(self, text: str) -> "dict[str, Guess]":
        if choice(("yes", "no"))(text) == "no":
            return {}
        assert self.source is not None
        assert self.header is not None
        spelt = {column: name for name, column in self.names.items()}
        found = _looked_at(self.source, self.header, self.given["columns"] is not None)
        return {spelt[guess.name]: guess for guess in found}

    def _given_formula(self) -> str | None:
        formula, response = self.given["formula"], self.given["response"]
        if formula is not None and response is not None:
            raise errors.ConfigError(
                "--response is given beside --formula, which names it", "leave out one of the two"
            )
        if response is not None and self.header is None:
            raise errors.ConfigError(
                "--response is given without --from, and what it is explained by is not known",
                'give --formula "disease ~ age + sex", or --from FILE for all columns of a file',
            )
        return formula if response is None else response

    def _formula(self, said: Mapping[str, Any]) -> Callable[[str], _Formula]:
        """Returns a reader of a formula, or of a response that all other columns explain."""

        def read(text: str) -> _Formula:
            names = self.names
            if names and self.given["formula"] is None and "~" not in text:
                return self._of_response(said, text)
            if not drafting.variables(text.partition("~")[0]) or "~" not in text:
                raise errors.ConfigError(
                    f"--formula is {text!r}, expected a response, ~ and what explains it",
                    'write, for example, "disease ~ age + sex"',
                )
            for name in drafting.variables(text) if names else ():
                if name not in names:
                    raise errors.ConfigError(
                        f"--formula names {name!r}, which is no column of the file",
                        errors.did_you_mean(name, names),
                    )
                if said.get(f"identifier {name}"):
                    raise errors.ConfigError(
                        f"--formula names {name!r}, which is an identifier and explains nothing",
                        "leave it out, or go back and say that it is none",
                    )
            return _Formula(text)

        return read

    def _of_response(self, said: Mapping[str, Any], response: str) -> _Formula:
        from fedvi.data.schema import is_printable

        names, guesses = self.names, said.get("look") or {}
        spelt = {column: name for name, column in names.items()}
        left = []
        for text in (item.strip() for item in response.split(",")):
            if text not in names and text not in spelt:
                raise errors.ConfigError(
                    f"--response is {text!r}, which is no column of the file",
                    errors.did_you_mean(text, names),
                )
            left.append(text if text in names else spelt[text])
        others = [name for name in names if name not in left]
        left_out = tuple(
            name
            for name in others
            if said.get(f"identifier {name}")
            or (name in guesses and _tells_nothing(guesses[name]))
            or not all(map(is_printable, names[name]))
        )
        right = " + ".join(name for name in others if name not in left_out) or "1"
        of = drafting.model_of(said["kind"])
        return _Formula(f"{of.left.format(', '.join(left))} ~ {right}", True, left_out)

    def _promise(
        self, said: Mapping[str, Any], guesses: "Mapping[str, Guess]"
    ) -> Iterator[Question]:
        given, column = self.given, self.given["unit_column"]
        words = "Promise differential privacy (dp, or none)"
        why = "dp: what leaves a site is noised. none: it is not, and nothing is promised."
        kinds = choice(("dp", "none"))
        yield Question("protection", words, why, kinds, "dp", given["protection"])
        if said["protection"] == "none":
            for flag in ("epsilon", "delta", "unit", "relation", "disjoint"):
                if given[flag] is not None:
                    raise errors.ConfigError(
                        f"--{flag} is given beside --protection none", "leave out one of the two"
                    )
        else:
            repeated, people = _repeated(said, guesses)
            why = "ε bounds how much one unit can change what is seen; 1 is a common promise."
            read = positive("--epsilon")
            yield Question("epsilon", "ε over the whole study", why, read, "1", given["epsilon"])
            words, unit = "Unit (record, patient)", "patient" if people else "record"
            if repeated:
                words = f"{repeated} repeats, so that a patient may have several rows. {words}"
            why = "record: a row is protected. patient: all rows of a patient together."
            yield Question("unit", words, why, choice(("record", "patient")), unit, given["unit"])
            if said["unit"] == "patient":
                words = "Column that says whose a row is"
                why = "It is read as text, is no covariate, and never leaves the site."
                read_column = within(self.header, self.names)
                called = "patient_id" if repeated is None or not people else self.names[repeated]
                known = self.header is None or called in self.header.columns
                default = called if known else None
                yield Question("unit-column", words, why, read_column, default, column)
            words = "Neighbouring relation (substitute, add_remove)"
            why = "substitute: one unit is another; add_remove: one unit is there or not."
            read_relation = choice(("substitute", "add_remove"))
            yield Question("relation", words, why, read_relation, "substitute", given["relation"])
            words = f"Declare that no {said['unit']} is at two sites (yes, no)"
            why = "no: the ε of all sites together counts a person at each of them. yes: it is one site's."
            sure = None if given["disjoint"] is None else ("yes" if given["disjoint"] else "no")
            yield Question("disjoint", words, why, choice(("yes", "no")), "no", sure)
            words = (
                f"Public upper bound on the {said['unit']}s of any site (0 or skip: state it later)"
            )
            why = "From the protocol or the register's size, not counted in a file."
            most = given["max_records"]
            yield Question("max-records", words, why, count_of, "0", most, may_skip=True)
            delta = f"{drafting.default_delta(said['max-records'] or None):g}"
            why = "The part of probability that the promise leaves out."
            words = "δ, far below 1 / that number"
            read = positive("--delta", below=0.5)
            yield Question("delta", words, why, read, delta, given["delta"])
        if column is not None and "unit-column" not in said:
            raise errors.ConfigError(
                f"--unit-column is {column!r} without --unit patient",
                "add --unit patient, to protect all rows of a patient together",
            )

    def _columns(
        self, said: Mapping[str, Any], guesses: "Mapping[str, Guess]"
    ) -> Iterator[Question]:
        formula = formula_of(said)
        wanted = drafting.variables(formula)
        spelt = {column: name for name, column in self.names.items()}
        stated = {}
        for text in self.given["stated"]:
            name, _ = drafting.parse_column(text)
            stated[spelt.get(name, name)] = text.partition("=")[2].strip()
        for name in stated:
            if name not in wanted:
                raise errors.ConfigError(
                    f"--column {name}: no column of the formula {formula!r}",
                    errors.did_you_mean(name, wanted),
                )
        expected = drafting.response_types(said["kind"], formula)
        rules = {}
        for text in self.given["missing"]:
            name, _, rule = text.partition("=")
            name = spelt.get(name, name)
            if name not in wanted or name in expected:
                raise errors.ConfigError(
                    f"--missing {name}: no covariate of the formula {formula!r}",
                    errors.did_you_mean(name, [each for each in wanted if each not in expected]),
                )
            rules[name] = rule.strip()
        cells = {}
        for text in self.given["missing_values"]:
            name, _, listed = text.partition("=")
            name = spelt.get(name, name)
            if name not in wanted or not listed.strip():
                raise errors.ConfigError(
                    f"--missing-values is {text!r}, expected NAME=CELL,CELL… of a column of the formula",
                    errors.did_you_mean(name, wanted),
                )
            cells[name] = listed.strip()
        for name in wanted:
            kind = expected.get(name)
            # What nobody states, and nobody can be asked, is left open.
            given = stated.get(name, None if self.on else kind or {})
            free = said["formula"].all_columns and kind is None
            looks, rule, listed = guesses.get(name), rules.get(name), cells.get(name)
            yield from _column(said, name, given, kind, looks, rule, listed, free)


@functools.lru_cache(maxsize=1)
def _looked_at(source: Path, header: "Names", unnamed: bool) -> "tuple[Guess, ...]":
    from fedvi.data.guess import guess_columns

    click.echo(f"  reads {source}")  # a minute, of a million records
    columns = header.columns if unnamed else None
    return guess_columns(source, header.columns, columns=columns, separator=header.separator)


def _kind(text: str) -> str:
    drafting.model_of(text)
    return text


def _yes(text: str) -> bool:
    return choice(("yes", "no"))(text) == "yes"


def _identifiers(guesses: "Mapping[str, Guess]") -> Iterator[Question]:
    from fedvi.data.guess import is_identifier

    for name, guess in guesses.items():
        if is_identifier(guess):
            words = f"{name} looks like an identifier, which is no covariate. Is it (yes, no)"
            yield Question(f"identifier {name}", words, _IDENTIFIER, _yes, "yes")


def _tells_nothing(guess: "Guess") -> bool:
    """Whether a column is no covariate by its looks: free text, or the same in all records.

    Of few records nothing is known: a file may be a form with the names of columns alone.
    """
    same = guess.kind == "empty" or guess.different == 1
    return guess.kind == "text" or (same and guess.cells >= _FEW_RECORDS)


def _repeated(said: Mapping[str, Any], guesses: "Mapping[str, Guess]") -> tuple[str | None, bool]:
    """Returns an identifier that several rows share, if any, and whether its name means people."""
    from fedvi.data.guess import is_of_people, repeats

    found = [
        name for name, guess in guesses.items() if said.get(f"identifier {name}") and repeats(guess)
    ]
    people = [name for name in found if is_of_people(guesses[name].name)]
    return next(iter(people + found), None), bool(people)


def _column(
    said: Mapping[str, Any],
    name: str,
    given: str | dict[str, Any] | None,
    expected: str | None,
    guess: "Guess | None",
    rule: str | None,
    listed: str | None,
    free: bool,
) -> Iterator[Question]:
    """Asks for a column's type, for bounds and levels that it leaves open, and for its missing cells.

    Args:
      said: answers so far.
      name: of the column, in the formula.
      given: what a flag states of it.
      expected: the type that the model asks for.
      guess: what the column looks like.
      rule: what a flag says of missing cells.
      listed: cells that mean missing, as a flag says.
      free: whether it may leave the formula, which has all columns of a file.
    """
    from fedvi.data.suggest import suggested, words_for_missing

    default = (expected or "number") if guess is None else suggested(guess, expected)
    words = f"{name}: {_looks(guess, default, expected)}" + (f", or {_OUT}" if free else "")
    read, why = _column_reader(name, free=free), _TYPES + (_OUT_TOO if free else "")
    remark = functools.partial(_unseen, name, guess)
    yield Question(f"column {name}", words, why, read, default, given, may_skip=True, remark=remark)
    table = said[f"column {name}"] or {}
    kind = table.get("type")
    after, words = "", ""
    if kind in ("number", "count") and "bounds" not in table:
        after, words = "bounds", f"{name}: lowest and highest that it can be, LOW..HIGH"
    if kind == "level" and "levels" not in table:
        after = "levels"
        words = f"{name}: all levels that may occur, between commas, the reference first"
    if given is None and after:
        words, read = words + (f", or {_OUT}" if free else ""), _column_reader(name, kind, free)
        yield Question(f"{after} {name}", words, why, read, may_skip=True, remark=remark)
        if _OUT in (said[f"{after} {name}"] or {}):
            return
    for flag, text in (("--missing", rule), ("--missing-values", listed)):
        if text is not None and kind is None and _OUT not in table:
            raise errors.ConfigError(
                f"{flag} {name}: the column has no type yet", f"give --column {name}=TYPE, too"
            )
    seen = guess.stand_ins if guess is not None and kind in ("number", "count") else ()
    if kind is not None and (seen or listed is not None):
        codes = [code for code, _ in seen]
        lie = "lie" if len(codes) > 1 else "lies"
        words = (
            f"{name}: {' and '.join(codes)} {lie} far beyond the other values. Missing (yes, no)"
        )
        yield Question(
            f"missing-values {name}",
            words,
            _STAND_INS,
            _cells_reader(codes),
            "yes",
            listed,
            show=lambda table: ", ".join(map(str, table.get("missing_values", ["none"]))),
        )
    # An outcome is never made up: a record without it counts as zero.
    if kind is None or expected is not None or (guess is None and rule is None):
        return
    # Words of the file are written where a person has seen them in the question, which a flag answers.
    odd: list[Any] = (
        [] if guess is None or rule is not None else list(words_for_missing(guess, kind))
    )
    odd += (said.get(f"missing-values {name}") or {}).get("missing_values", [])
    if rule is not None or odd or (guess is not None and guess.missing):
        beside = f" (also {', '.join(map(str, odd))})" if odd else ""
        share = (
            "some"
            if guess is None
            else _share(guess, sum(n for code, n in seen if int(code) in odd))
        )
        words = f"{name}: {share} of its cells are missing{beside}. drop, indicator, impute VALUE"
        read = _missing_reader(name, table_of(said, name), odd)
        yield Question(f"missing {name}", words, _MISSING, read, "drop", rule)


def _looks(guess: "Guess | None", default: str | None, expected: str | None) -> str:
    """Says what a column may hold, as it looks, and what is to be said of it."""
    from fedvi.data.suggest import values_of

    if guess is None:
        return "what it may hold"
    if guess.commas:
        return (
            "its decimal commas are read by no study; save the file with points. What it may hold"
        )
    if default is not None:
        first = {"level": " (the reference first)", "binary": " (YES/NO)"}
        said = first.get(default.partition(":")[0], "") + _often_missing(guess)
        return f"what it may hold, as it looks{said}; confirm or correct"
    if expected == "binary":
        few = f", and looks like {', '.join(values_of(guess))}" if guess.kind == "level" else ""
        return f"it is to be a yes or no{few}. Which cells mean yes, which no, binary:YES,…/NO,…"
    if guess.kind == "text":
        return "it holds many texts, of which none is suggested. Its levels, level:A,B,…"
    return "what it may hold; nothing is suggested"


def _often_missing(guess: "Guess") -> str:
    return f"; {_share(guess)} of its cells are missing" if _tenths(guess) >= _HALF else ""


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
    before = f"{name}=" if kind is None else f"{name}={kind}:"

    def read(text: str) -> dict[str, Any]:
        if text == _OUT:
            if free:
                return {_OUT: True}
            raise errors.ConfigError(
                f"{name} stands in the formula as you gave it",
                "go back to the formula, and take the column out of it",
            )
        # Bounds alone, where a type was asked for, are those of a number.
        more = "number:" if kind is None and re.fullmatch(r"[-+.\de ]+\.\.[-+.\de ]+", text) else ""
        table = drafting.parse_column(before + more + text)[1]
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
            f"{name}: the lowest, {low}, is not below the highest, {high}",
            f"write {high}..{low}" if high < low else "write LOW..HIGH, such as 18..100",
        )
    if bounds or table.get("levels") or table["type"] == "binary":
        parse_schema({name: table}, private=True)


def _unseen(name: str, guess: "Guess | None", table: dict[str, Any]) -> str:
    """Says which cells of a declaration no record has; a protocol may know more, so it is no error."""
    from fedvi.data.guess import spelt
    from fedvi.data.schema import as_code

    if guess is None or guess.different > len(guess.values):
        return ""
    seen = {value for value, _ in guess.values}
    declared = [cell for key in ("true", "false", "levels") for cell in table.get(key, ())]
    lacking = [str(cell) for cell in declared if spelt(as_code(str(cell))) not in seen]
    if not lacking:
        return ""
    return f"no cell of the file is {' or '.join(lacking)}. If that is a slip, correct {name} with `back`"


def _cells_reader(codes: list[str]) -> Callable[[str], dict[str, Any]]:
    """Reads which cells mean missing: yes or no of those that were seen, or a list."""

    def read(text: str) -> dict[str, Any]:
        named = {"yes": codes, "no": []}.get(text, [cell.strip() for cell in text.split(",")])
        return {"missing_values": [drafting.cell_of(cell) for cell in named]} if named else {}

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
                    value = constant if kind == "level" else cells[constant]
                told: dict[str, Any] = {"missing": {"impute": value}} | more
                _check(name, table | told)
                return told
        except (KeyError, ValueError):
            pass
        wanted = {"binary": "true or false", "level": "a level"}.get(kind, "a number")
        raise errors.ConfigError(
            f"{name}: {text!r} is no rule, expected drop, indicator, or impute and {wanted}",
            "docs/guides/missing-data.md says which suits what",
        )

    return read


def formula_of(said: Mapping[str, Any]) -> str:
    """Returns the formula; one of all columns is without whose a row is, and what was said to be out."""
    formula: _Formula = said["formula"]
    if not formula.all_columns:
        return formula.text
    left, _, right = formula.text.partition(" ~ ")
    gone = _gone(said)
    kept = [name for name in right.split(" + ") if name not in gone]
    return f"{left} ~ {' + '.join(kept) or '1'}"


def _gone(said: Mapping[str, Any]) -> list[str]:
    """Returns the columns of a file that left the formula of all of them, since they were asked about."""
    column = said.get("unit-column")
    whose = columns_named([] if column is None else [column])
    names = said["formula"].text.partition(" ~ ")[2].split(" + ")
    return [name for name in names if name in whose or _OUT in table_of(said, name)]


def _formula_shown(said: Mapping[str, Any]) -> str:
    formula: _Formula = said["formula"]
    without = [*formula.left_out, *(_gone(said) if formula.all_columns else ())]
    return formula_of(said) + (f"  (without {', '.join(without)})" if without else "")


def table_of(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns what was said of a column, in all its questions."""
    table: dict[str, Any] = {}
    for part in ("column", "bounds", "levels", "missing-values", "missing"):
        table |= said.get(f"{part} {name}") or {}
    return table
