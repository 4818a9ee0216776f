"""What `fedvi init` asks, in order; what a local look at a file suggests is for a person to confirm."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    name_of,
    positive,
    within,
)
from fedvi.cli._column_questions import OUT, Flagged, column_questions, table_of
from fedvi.data.written import named as columns_named
from fedvi.models.outcomes.accepted import ACCEPTED
from fedvi.study.drafts import declarations, drafting
from fedvi.study.implausible import few_records
from fedvi.study.sections import MOST_ROWS_PER_UNIT, ROWS_PER_UNIT
from fedvi.study.spec.regressions import OF_PATIENTS

if TYPE_CHECKING:
    from fedvi.data.guess import Guess
    from fedvi.data.names import Names

__all__ = ["Asked", "Opened", "formula_of"]

_FEW_RECORDS = 20
_IDENTIFIER = """An identifier tells records or people apart. It explains nothing, and is no covariate. If a
patient has several rows, it says which rows are protected together."""
_FORMULA = """What is explained, ~ and what explains it: died ~ age + sex. With a file, the response alone
stands for all other columns; without identifiers, free text and what is the same in all records, if the
file was looked at."""
_GAPS = """yes: each covariate is asked about: which numbers mean missing, and what a missing cell is. no:
only where the file has shown gaps; elsewhere a record with a missing cell counts as zero."""
_PRIOR = """How far from 0 a coefficient may be before a record is seen. 2.5 leaves nearly all to the
records, and suits units of half the width of bounds, too. Where a unit is a step that matters to a
clinician, 0.5 to 1 are enough, and noise widens intervals less. See docs/guides/priors-and-bounds.md."""
_MOST = """The most that any site may hold; of a site with more, only the first are used. Take it from the
protocol or a register, not from a count of a file, and rather too large than too small: a larger number
costs time alone."""
_ROWS = """From the protocol, as how often a patient can come; not counted in a file. Of a patient with more
rows, the first in the file are used. All rows of a patient are clipped together: one with many counts about
as much as one with a single row. 1: one row each; sort the file so that the one you want comes first."""
_EPSILON = """How much somebody who sees all that leaves the sites can learn of one record or patient. At
ε = 1 at most 73 of 100 guesses between two equally likely cases are right; without the study it would be
50. A smaller ε promises more, and makes intervals wider. See docs/guides/choose-epsilon.md."""
_RELATION = """What nobody may tell from what leaves the sites. substitute: which of two records, or
patients, a site holds. add_remove: whether it holds one at all. substitute promises more at the same ε, and
needs about twice the noise. See docs/concepts/views-and-relations.md."""
_NAMED = 6


class _Formula(NamedTuple):
    text: str
    all_columns: bool = False
    left_out: tuple[str, ...] = ()


class Opened(NamedTuple):
    """A file, and the names of its columns; None: there is none."""

    source: Path | None = None
    header: "Names | None" = None


class Asked(NamedTuple):
    """What the questions of one study follow from.

    Attributes:
      on: whether there is somebody to ask.
      opened: the file of ``--from``, or what ``--columns`` names.
      given: flag → what it gave, or None.
      open_file: opens another file, where no flag names one.
    """

    on: bool
    opened: Opened
    given: Mapping[str, Any]
    open_file: Callable[[Path], Opened]

    @property
    def source(self) -> Path | None:
        return self.opened.source

    @property
    def header(self) -> "Names | None":
        return self.opened.header

    def questions(self, said: Mapping[str, Any]) -> Iterator[Question]:
        """Yields the questions, in order; each reads the answers before it in ``said``.

        Raises:
          ConfigError: flags contradict one another.
        """
        given = self.given
        name = "part of the names of files: letters, digits, `.`, `_` and `-`"
        words, default = "Name of the study", given["name_default"]
        yield Question("name", words, name, name_of, default, given["name"])
        kinds = "\n".join(f"{kind:<20} {of.words or of.needed}" for kind, of in ACCEPTED.items())
        words = "What is inferred (? lists what there is)"
        yield Question("kind", words, kinds, _kind, next(iter(ACCEPTED)), given["kind"])
        who = "short names, such as north,south"
        yield Question(
            "clients", "Sites, between commas", who, client_names, None, given["clients"]
        )
        if self.on and self.header is None:
            words = "A site's file on this machine, which names the columns (none: you type them)"
            why = (
                "CSV, Parquet or NumPy's. Its first line is read; you are asked before a record is."
            )
            yield Question("from", words, why, self._file, "none", show=None)
            self = self._replace(opened=said["from"])
        names = self.names
        if self.on and self.source is not None:
            yield Question(
                "look",
                f"Look at {self.source}, to suggest types and levels? It reads your file on this machine; "
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
            flag="--formula" if given["response"] is None else "--response",
            show=lambda _: _formula_shown(said),
            remark=lambda formula: self._why_left_out(said, formula),
        )
        yield from self._promise(said, guesses)
        if self.on:
            words = "Are cells of covariates missing" + (
                " at other sites" if guesses else " at any site"
            )
            words += ", so that each column needs a rule (yes, no)"
            yield Question("gaps", words, _GAPS, _yes, "no")
        yield from self._columns(said, guesses)
        yield self._prior(said)
        server = "HOST:PORT, which sites dial"
        default = "fedvi.example.org:7443"
        words = "Where sites will reach the server"
        yield Question("server", words, server, as_address, default, given["address"])

    @property
    def names(self) -> dict[str, str]:
        """Name in a formula → what the file calls the column; empty without a file."""
        return {} if self.header is None else columns_named(self.header.columns)

    def _file(self, text: str) -> Opened:
        if text == "none":
            return Opened()
        try:
            path = Path(text).expanduser()
        except RuntimeError:
            raise errors.ConfigError(
                f"the file is {text!r}, and this machine knows no such user",
                "write the whole path, such as /data/north.csv",
            ) from None
        try:
            return self.open_file(path)
        except errors.DataError as error:
            if "--columns" not in error.hint:
                raise
            hint = "if it has none, begin again with `fedvi init --columns age,sex,…`; or none: no file"
            raise errors.DataError(error.message, hint) from None

    def _prior(self, said: Mapping[str, Any]) -> Question:
        """Asks for the prior's sd, and says what it means for one unit of each column."""
        ratio = drafting.model_of(said["kind"]).ratio
        formula = formula_of(said)
        responses = drafting.response_types(said["kind"], formula)
        units = [
            f"{name} per {unit}"
            for name in drafting.variables(formula)
            if name not in responses and (unit := _unit_shown(table_of(said, name)))
        ]
        of = (
            f" ({', '.join(units[:_NAMED])}{', …' if len(units) > _NAMED else ''})" if units else ""
        )
        tables = {name: table_of(said, name) for name in responses}
        outcomes = drafting.outcomes(said["kind"], formula, tables)
        likely = "" if outcomes else " (95 %)"  # of linear outcomes it is the sd that is told
        words = (
            f"Prior sd of a coefficient, for one unit of its column{of}: {drafting.PRIOR_SCALE:g} says "
            f"{drafting.prior_in_words(drafting.PRIOR_SCALE, ratio, outcomes)}{likely}"
        )

        def remark(scale: float) -> str:
            same = scale == drafting.PRIOR_SCALE
            said = drafting.prior_in_words(scale, ratio, outcomes)
            return "" if same else f"that says {said}{likely} for one unit"

        default, given = f"{drafting.PRIOR_SCALE:g}", self.given["prior_scale"]
        given = None if given is None else str(given)  # read as what is typed
        return Question("prior-scale", words, _PRIOR, _prior_scale, default, given, remark=remark)

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
                    f"{text!r} is no formula, expected a response, ~ and what explains it",
                    'write, for example, "disease ~ age + sex"',
                )
            for name in drafting.variables(text) if names else ():
                if name not in names:
                    raise errors.ConfigError(
                        f"{name!r} is no column of the file",
                        errors.did_you_mean(name, names),
                    )
                if said.get(f"identifier {name}"):
                    raise errors.ConfigError(
                        f"{name!r} is an identifier and explains nothing",
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
                    f"{text!r} is no column of the file",
                    errors.did_you_mean(text, names),
                )
            left.append(text if text in names else spelt[text])
        others = [name for name in names if name not in left]
        left_out = tuple(
            name
            for name in others
            if said.get(f"identifier {name}")
            or (name in guesses and _why_nothing(guesses[name]))
            or not all(map(is_printable, names[name]))
        )
        right = " + ".join(name for name in others if name not in left_out) or "1"
        of = drafting.model_of(said["kind"])
        return _Formula(f"{of.left.format(', '.join(left))} ~ {right}", True, left_out)

    def _why_left_out(self, said: Mapping[str, Any], formula: _Formula) -> str:
        """Says which columns of the file are no covariates, and why; identifiers were asked about."""
        guesses = said.get("look") or {}
        found = [
            f"{name} ({why})"
            for name in formula.left_out
            if name in guesses
            and not said.get(f"identifier {name}")
            and (why := _why_nothing(guesses[name]))
        ]
        return f"left out as covariates: {', '.join(found)}" if found else ""

    def _promise(
        self, said: Mapping[str, Any], guesses: "Mapping[str, Guess]"
    ) -> Iterator[Question]:
        from fedvi.data.guess import is_of_people

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
            words, read = "ε over the whole study", positive()
            yield Question("epsilon", words, _EPSILON, read, "1", given["epsilon"])
            words, unit = "Unit (record, patient)", "patient" if people else "record"
            if repeated:
                words = f"{repeated} repeats, so that a patient may have several rows. {words}"
            why = f"record: a row is protected. patient: all of a patient's together; then {OF_PATIENTS}."
            # A column of this name may repeat or not: so does the default.
            follows = any(is_of_people(guess.name) for guess in guesses.values())
            yield Question(
                *("unit", words, why, choice(("record", "patient")), unit, given["unit"]),
                of_file=lambda answer: ["privacy.unit"] * (follows and answer == unit),
            )
            if said["unit"] == "patient":
                words = "Column that says whose a row is"
                why = "It is read as text, is no covariate, and never leaves the site."
                read_column = within(self.header, self.names)
                called = "patient_id" if repeated is None or not people else self.names[repeated]
                known = self.header is None or called in self.header.columns
                default = called if known else None
                yield Question(
                    *("unit-column", words, why, read_column, default, column),
                    of_file=lambda answer: ["data.unit_column"] * (people and answer == default),
                )
                yield from self._rows(said, guesses)
            words = "Neighbouring relation (substitute, add_remove)"
            read_relation = choice(("substitute", "add_remove"))
            yield Question(
                *("relation", words, _RELATION, read_relation, "substitute", given["relation"])
            )
            words = f"Declare that no {said['unit']} is at two sites (yes, no)"
            why = "no: the ε of all sites together counts a person at each of them. yes: it is one site's."
            sure = None if given["disjoint"] is None else ("yes" if given["disjoint"] else "no")
            yield Question("disjoint", words, why, choice(("yes", "no")), "no", sure)
            if self.on or given["max_records"] is not None:
                unit = said["unit"]
                words = f"Public upper bound on the {unit}s of any site (skip: state it later)"
                remark = functools.partial(few_records, unit=unit)
                most = given["max_records"]
                yield Question(
                    "max-records", words, _MOST, count_of, None, most, may_skip=True, remark=remark
                )
            delta = f"{drafting.default_delta(said.get('max-records')):g}"
            why = "The part of probability that the promise leaves out."
            words = "δ, far below 1 / that number"
            read = positive(below=0.5)
            yield Question("delta", words, why, read, delta, given["delta"])
        for flag in ("unit-column", "max-rows-per-unit"):
            value = given[flag.replace("-", "_")]
            if value is not None and said.get("unit") != "patient":
                raise errors.ConfigError(
                    f"--{flag} is {value!r} without --unit patient",
                    "add --unit patient, to protect all rows of a patient together",
                )

    def _rows(self, said: Mapping[str, Any], guesses: "Mapping[str, Guess]") -> Iterator[Question]:
        """Asks how many rows of a patient are used, unless the file has shown one row of each."""
        from fedvi.data.guess import repeats

        given, whose = self.given["max_rows_per_unit"], said["unit-column"]
        guess = next((guess for guess in guesses.values() if guess.name == whose), None)
        if given is None and (not self.on or (guess is not None and not repeats(guess))):
            return
        most = 0 if guess is None or not guess.values else guess.values[0][1]

        def read(text: str) -> int:
            count = count_of(text)
            if count > MOST_ROWS_PER_UNIT:
                raise errors.ConfigError(
                    f"{text} rows of one patient, expected at most {MOST_ROWS_PER_UNIT:,}",
                    "state how often a patient can come, from the protocol",
                )
            return count

        def remark(count: int) -> str:
            return (
                "some patients of the file have more rows: of these, the first in the file are used"
                if most > count
                else ""
            )

        words = "Rows of one patient that are used, at most"
        yield Question(
            *("max-rows-per-unit", words, _ROWS, read, str(ROWS_PER_UNIT), given), remark=remark
        )

    def _columns(
        self, said: Mapping[str, Any], guesses: "Mapping[str, Guess]"
    ) -> Iterator[Question]:
        formula, given = formula_of(said), self.given
        wanted = drafting.variables(formula)
        spelt = {column: name for name, column in self.names.items()}
        stated: dict[str, str] = {}
        for text in given["stated"]:
            name, _ = declarations.parse_column(text)
            name, declared = spelt.get(name, name), text.partition("=")[2].strip()
            if name in stated:
                raise _given_twice("--column", name, stated[name], declared)
            stated[name] = declared
            if name not in wanted:
                raise errors.ConfigError(
                    f"--column {name}: no column of the formula {formula!r}",
                    errors.did_you_mean(name, wanted),
                )
        expected = drafting.response_types(said["kind"], formula)
        covariates = [name for name in wanted if name not in expected]
        units = self._by_column("--per", "covariate", given["per"], covariates)
        rules = self._by_column("--missing", "covariate", given["missing"], covariates)
        cells = self._by_column("--missing-values", "column", given["missing_values"], wanted)
        for name in wanted:
            kind = expected.get(name)
            # What nobody states, and nobody can be asked, is left open.
            declared = stated.get(name, None if self.on else kind or {})
            free = said["formula"].all_columns and kind is None
            flagged = Flagged(declared, units.get(name), rules.get(name), cells.get(name))
            yield from column_questions(said, name, flagged, kind, guesses.get(name), free)

    def _by_column(
        self, flag: str, of: str, texts: Iterable[str], known: Sequence[str]
    ) -> dict[str, str]:
        """Reads NAME=…, by a column's name in the formula or in the file."""
        spelt = {column: name for name, column in self.names.items()}
        found: dict[str, str] = {}
        for text in texts:
            name, _, rest = text.partition("=")
            name = spelt.get(name, name)
            if name not in known or not rest.strip():
                raise errors.ConfigError(
                    f"{flag} is {text!r}, expected NAME=… of a {of} of the formula",
                    errors.did_you_mean(name, known),
                )
            if name in found:
                raise _given_twice(flag, name, found[name], rest.strip())
            found[name] = rest.strip()
        return found


def _given_twice(flag: str, name: str, first: str, second: str) -> errors.ConfigError:
    return errors.ConfigError(
        f"{flag} {name} is given twice, as {first!r} and as {second!r}", "leave out one of the two"
    )


@functools.lru_cache(maxsize=1)
def _looked_at(source: Path, header: "Names", unnamed: bool) -> "tuple[Guess, ...]":
    from fedvi.data.guess import guess_columns

    click.echo(f"  reads {source}")  # a minute, of a million records
    columns = header.columns if unnamed else None
    return guess_columns(source, header.columns, columns=columns, separator=header.separator)


def _kind(text: str) -> str:
    drafting.model_of(text)
    return text


def _prior_scale(text: str) -> float:
    """Reads a prior's sd, within the limits that a study has for it."""
    from fedvi.study.sections import PriorSection

    limits = {
        key: getattr(each, key)
        for each in PriorSection.model_fields["scale"].metadata
        for key in ("ge", "le")
        if hasattr(each, key)
    }
    try:
        return PriorSection(scale=float(text)).scale
    except ValueError:  # which pydantic's error is, too
        raise errors.ConfigError(
            f"{text!r} is no number from {limits['ge']:g} to {limits['le']:g}",
            f"such as 1, or {drafting.PRIOR_SCALE:g}",
        ) from None


def _unit_shown(table: Mapping[str, Any]) -> str:
    """Says what one unit of a number is, "10 years"; by default half the width of its bounds."""
    if table.get("type") != "number" or not ("scale" in table or table.get("bounds")):
        return ""
    if "scale" not in table:
        low, high = table["bounds"]
        return f"{(high - low) / 2.0:,.12g}"
    return f"{table['scale']:,.12g}" + (f" {table['unit']}" if "unit" in table else "")


def _yes(text: str) -> bool:
    return choice(("yes", "no"))(text) == "yes"


def _identifiers(guesses: "Mapping[str, Guess]") -> Iterator[Question]:
    from fedvi.data.guess import is_identifier

    for name, guess in guesses.items():
        if is_identifier(guess):
            words = f"{name} looks like an identifier, which is no covariate. Is it (yes, no)"
            yield Question(f"identifier {name}", words, _IDENTIFIER, _yes, "yes")


def _why_nothing(guess: "Guess") -> str:
    """Says why a column is no covariate by its looks: free text, or the same in all records; "" if it is.

    Of few records nothing is known: a file may be a form with the names of columns alone.
    """
    if guess.kind == "text":
        commas = "decimal commas; save the file with points"
        return commas if guess.commas else "texts or dates, or numbers with many words among them"
    same = guess.kind == "empty" or guess.different == 1
    return "the same in all records" if same and guess.cells >= _FEW_RECORDS else ""


def _repeated(said: Mapping[str, Any], guesses: "Mapping[str, Guess]") -> tuple[str | None, bool]:
    """Returns an identifier that several rows share, if any, and whether its name means people."""
    from fedvi.data.guess import is_of_people, repeats

    found = [
        name for name, guess in guesses.items() if said.get(f"identifier {name}") and repeats(guess)
    ]
    people = [name for name in found if is_of_people(guesses[name].name)]
    return next(iter(people + found), None), bool(people)


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
    return [name for name in names if name in whose or OUT in table_of(said, name)]


def _formula_shown(said: Mapping[str, Any]) -> str:
    formula: _Formula = said["formula"]
    without = [*formula.left_out, *(_gone(said) if formula.all_columns else ())]
    return formula_of(said) + (f"  (without {', '.join(without)})" if without else "")
