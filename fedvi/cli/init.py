"""`fedvi init DIR`: a study of one's own, drafted from a few answers, with all that stands beside it."""

import dataclasses
import functools
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvi import errors, plugins
from fedvi.cli._flags import allow_code_flag
from fedvi.data.written import named as columns_named
from fedvi.models.outcomes.accepted import ACCEPTED
from fedvi.study.drafts import declarations, drafting
from fedvi.study.drafts.drafting import Answers
from fedvi.study.sections import MOST_ROWS_PER_UNIT, ROWS_PER_UNIT

if TYPE_CHECKING:
    from fedvi.data.names import Names
from fedvi.cli._asking import OF_FILE, converse, slug, wrapped
from fedvi.cli._column_questions import table_of
from fedvi.cli._drafted import check_target, files_of, schemas_of, write_all
from fedvi.cli._of_file import name_shown, not_written, what_was_read
from fedvi.cli._questions import Asked, Opened, formula_of
from fedvi.cli._table_flags import columns_flag, names_of, separator_flag

__all__ = ["init"]

_SOLVERS = drafting.offered(private=True) + drafting.offered(private=False)


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--name", help="Name of the study: letters, digits, `.`, `_` and `-`. [default: DIR's name]"
)
@click.option(
    "--kind",
    metavar="KIND",
    help=f"Kind of model: {', '.join(ACCEPTED)}, or an outcome of your own: "
    "the name of a plug-in (docs/add/plug-in.md). [default: logistic]",
)
@click.option("--formula", help='Response and covariates, such as "disease ~ age + sex".')
@click.option(
    "--response",
    help="With --from, in place of --formula: the response; all other columns are covariates. For "
    "survival, the time and the event: days,died.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    help="Take the names of columns from this file (CSV, Parquet or NumPy's), and nothing of a record. A "
    "terminal also asks whether to look at the records, on this machine, to suggest types and levels that "
    "you confirm, and that the study then marks as read from the file. What flags declare stands whatever "
    "the file holds.",
)
@columns_flag
@separator_flag
@click.option(
    "--column",
    "stated",
    multiple=True,
    metavar="NAME=TYPE[:…]",
    help="What a column may hold, from public knowledge: age=number:18..100, visits=count:0..20, "
    "sex=binary:m/f, stage=level:low,high, or stage=level:1=low,2=high where the files have codes. One for "
    "each column. What you leave out, the study leaves open.",
)
@click.option(
    "--per",
    "per",
    multiple=True,
    metavar="NAME=STEP from START",
    help='Unit of a number\'s coefficient, and its reference: age="10 years from 60". '
    "[default: half the width of the bounds, from their middle]",
)
@click.option(
    "--prior-scale",
    type=float,
    help="Prior sd of a coefficient, for one unit of its column. [default: 2.5]",
)
@click.option(
    "--missing",
    "missing",
    multiple=True,
    metavar="NAME=RULE",
    help='What to do with missing cells of a covariate: age="impute 50", stage=indicator, sex=drop. '
    "[default: drop; with --protection none, refuse the file]",
)
@click.option(
    "--missing-values",
    "missing_values",
    multiple=True,
    metavar="NAME=CELL,…",
    help="Cells of a column that mean missing, besides empty ones, ? and NA: age=999,-9.",
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="KEY=NUMBER",
    help="A key of [model]: dispersion=0.5, noise_scale=0.3, cuts=30,90,365.",
)
@click.option("--clients", help="Names of the sites, separated by commas: north,south.")
@click.option(
    "--protection",
    type=click.Choice(("dp", "none")),
    help="What is promised: differential privacy (dp), or nothing (none). [default: dp]",
)
@click.option("--epsilon", type=float, help="ε of the whole study. [default: 1]")
@click.option(
    "--delta",
    type=float,
    help="δ of the whole study. [default: the largest power of ten up to 1e-05 and "
    "0.01 / --max-records]",
)
@click.option(
    "--unit",
    type=click.Choice(("record", "patient")),
    help="What is protected: a record (one row), or a patient with all rows. [default: record]",
)
@click.option(
    "--unit-column",
    help="With --unit patient: the column that identifies the patient. [default: patient_id, if there is "
    "such a column]",
)
@click.option(
    "--max-rows-per-unit",
    type=click.IntRange(min=1, max=MOST_ROWS_PER_UNIT),
    help="With --unit patient: use at most this many rows of a patient, the first in the file. "
    "[default: 20]",
)
@click.option(
    "--relation",
    type=click.Choice(("substitute", "add_remove")),
    help="Which two data sets must be hard to tell apart: with one unit replaced (substitute), or with and "
    "without it (add_remove). [default: substitute]",
)
@click.option(
    "--disjoint/--not-disjoint",
    default=None,
    help="Declare that no unit is at two sites. Otherwise the ε of all sites together counts a unit at "
    "each of them. [default: --not-disjoint]",
)
@click.option(
    "--max-records",
    type=click.IntRange(min=1),
    help="The most records (or patients) that any site may hold; of a site with more, only the first are "
    "used (without a promise, its file is refused). Take it from the protocol or a register, not from a "
    "count of a file, and rather too large than too small: a larger number costs time alone. "
    "[default: left open in the study]",
)
@click.option(
    "--solver",
    type=click.Choice(_SOLVERS),
    help="How sites make their answers. [default: what `fedvi check` recommends for regressions]",
)
@click.option(
    "--server",
    "address",
    metavar="HOST:PORT",
    help="Where sites will reach the server. [default: fedvi.example.org:7443]",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Ask nothing and look at no record: take the default of each flag that is not given.",
)
@click.option(
    "--json-schema",
    type=click.Choice(("study", "policy")),
    help="Only print the JSON schema of study.toml or policy.toml, for editors; write nothing.",
)
@allow_code_flag
def init(
    folder: Path,
    json_schema: str | None,
    yes: bool,
    source: Path | None,
    address: str | None,
    **given: Any,
) -> None:
    """Draft a study of your own in DIR: study.toml with a reason in every line, a site's policy,
    containers for the coordinator and the sites, and the steps from here to a posterior.

    On a terminal, it asks for what no flag gives, and shows all answers before it writes anything.
    Bounds and levels that nobody states are left open, and `fedvi check` refuses the study until a
    person has stated them. No file is overwritten, and either all are written or none.

    \b
      fedvi init my-study
      fedvi init my-study --from north.csv --response died --clients north,south
      fedvi init my-study --yes --kind logistic --formula "died ~ age + sex" \\
        --clients north,south --max-records 5000 --column died=binary \\
        --column age=number:18..100 --column sex=binary:m/f
    """
    if json_schema is not None:
        click.echo(schemas_of()[json_schema], nl=False)
        return
    check_target(folder)
    on = not yes and _on_terminal()
    opened = Opened(source, _header(source, given, "--from"))
    if on:
        told = (
            "Enter takes what stands in brackets. back: the question before; skip: leave it open; "
            "?: what is meant. Nothing is written before you have seen all answers."
        )
        click.echo(wrapped(told))
    given |= {"address": address, "name_default": slug(folder.resolve().name)}

    def finish(said: Mapping[str, Any]) -> tuple[Answers, drafting.Draft, Mapping[str, Any]]:
        answers, drafted = _checked(_answers(said, folder, said.get("from", opened), given))
        return answers, drafted, said

    # Once a file, since questions are asked anew where an earlier answer is changed.
    open_file = functools.cache(lambda path: Opened(path, _header(path, given)))
    asked = Asked(on, opened, given, open_file)
    answers, drafted, said = converse(asked.questions, finish, on)
    files = files_of(answers, drafted, said["server"])
    write_all(folder, files)
    for name in files:
        click.echo(f"wrote {folder / name}")
    if read := what_was_read(answers, drafted.read):
        click.echo(wrapped(read))
    for line in _left_out(said, answers, given["stated"]):
        click.echo(wrapped(line))
    for key in drafted.open:
        click.echo(f"still to be stated in study.toml: {key}")
    for line in _warnings(drafted):
        click.echo(f"warning: {line}", err=True)
    click.echo(
        f"next: fedvi check {folder / 'study.toml'}; the steps are in {folder / 'README.md'}"
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty()


def _left_out(said: Mapping[str, Any], answers: Answers, stated: tuple[str, ...]) -> Iterator[str]:
    """Yields what a file has in columns that flags declare, and the study has not; all else was told."""
    flagged = {declarations.parse_column(text)[0] for text in stated}
    for name, table in answers.columns.items():
        if {name, table.get("column", name)} & flagged:
            told = not_written(name, (said.get("look") or {}).get(name), table)
            if told:
                yield told


def _answers(
    said: Mapping[str, Any],
    folder: Path,
    opened: Opened,
    given: Mapping[str, Any],
) -> Answers:
    source, header = opened
    formula = formula_of(said)
    names = {} if header is None else columns_named(header.columns)
    promise = {key: said[key] for key in ("epsilon", "delta", "unit", "relation") if key in said}
    private = said["protection"] == "dp"
    most = said.get("max-records") if private else given["max_records"]
    # Columns of identifiers, of texts and of one value are no covariates of a formula of all columns.
    is_read = said["formula"].all_columns and bool(said.get("look"))
    of_file = said[OF_FILE] | ({"model.formula"} if is_read else set())
    tables = {}
    for name in drafting.variables(formula):
        table = table_of(said, name)
        called = names.get(name, name)
        tables[name] = table if called == name else {"column": called} | table
    return Answers(
        name=said["name"],
        kind=said["kind"],
        formula=formula,
        clients=said["clients"],
        columns=tables,
        private=private,
        disjoint=said.get("disjoint") == "yes",
        max_records=most,
        unit_column=said.get("unit-column"),
        max_rows_per_unit=said.get("max-rows-per-unit") or ROWS_PER_UNIT,
        prior_scale=said["prior-scale"],
        solver=given["solver"],
        settings=dict(declarations.parse_setting(text) for text in given["settings"]),
        separator=given["separator"] or ("," if header is None else header.separator),
        file_columns=() if header is None or given["columns"] is None else header.columns,
        files=_beside(source, folder),
        all_columns=said["formula"].all_columns and not said.get("look"),
        of_file=of_file,
        source="the file" if source is None else name_shown(source),
        **promise,
    )


def _beside(source: Path | None, folder: Path) -> str:
    """Returns where the sites' files would be if they lie beside the one whose header was read."""
    if source is None:
        return "{}.csv"
    place = Path(os.path.relpath(source.absolute().parent, folder.absolute())).as_posix()
    plain = place.replace("{", "{{").replace("}", "}}")
    suffix = "".join(source.suffixes[-2:]) if source.suffix == ".gz" else source.suffix
    # A folder of Parquet files has a site's name alone.
    return (
        f"{'' if place == '.' else plain + '/'}{{}}{suffix or ('' if source.is_dir() else '.csv')}"
    )


def _header(source: Path | None, given: Mapping[str, Any], flag: str = "") -> "Names | None":
    """Returns names of columns that were given, or reads and shows them: a first line may be a record.

    Args:
      flag: the one that named the file, for errors.

    Raises:
      DataError: there are none, or they are cells of a record.
    """
    from fedvi.data.guess import check_names
    from fedvi.data.names import BY_FLAG, doubt, is_text
    from fedvi.data.schema import is_printable

    if source is None and given["columns"] is None:
        return None
    found = names_of(source, given["columns"], given["separator"], flag=flag)
    if source is None or given["columns"] is not None:
        return found
    shown = ", ".join(
        name if all(map(is_printable, name)) else f"{name!a} (no study may hold it: rename it)"
        for name in found.columns
    )
    if not is_text(source):
        click.echo(wrapped(f"columns of {source}: {shown}"))
        return found
    values, words = doubt(found.columns)
    cells = {
        cell
        for text in given["stated"]
        for cell in declarations.cells_of(declarations.parse_column(text)[1])
    }
    declared, count = len(cells.intersection(found.columns)), len(found.columns)
    if values or declared:
        what = (
            f"{values} of {count} cells of its first line are dates, true or false, or the like"
            if values
            else f"{declared} of {count} cells of its first line are what --column says a "
            "record can hold"
        )
        raise errors.DataError(
            f"{flag} {source} does not begin with the names of its columns: {what}".strip(), BY_FLAG
        )
    check_names(source, found.columns, found.separator)
    click.echo(wrapped(f"columns, from the first line of {source}: {shown}"))
    if words:
        click.echo(
            f"warning: {words} of these {count} could be cells of a record. If they are, delete "
            "what is written, for it holds a record, and give --columns",
            err=True,
        )
    return found


def _checked(answers: Answers) -> tuple[Answers, drafting.Draft]:
    """Returns the answers with a clip norm and rounds that suit them, and their draft.

    Raises:
      ConfigError, ModelError: an answer is one that `fedvi check` would refuse.
    """
    from fedvi.data.schema import parse_schema
    from fedvi.study.config import parse_study

    drafted = drafting.draft(answers)
    study = parse_study(_parsed(drafted))
    stated = {
        name: table
        for name, table in study.data.columns_schema.items()
        if not any(key.startswith(f"data.schema.{name}.") for key in drafted.open)
    }
    if stated:
        parse_schema(stated, private=answers.private)
    if drafted.open:
        _check_formula(answers, stated)
    # Heavy, and only needed now: models are built, as `fedvi check` builds them.
    from fedvi.planning.advice import outlook
    from fedvi.planning.signals import PublicNumbers, suggested_clip_norm, suggested_rounds
    from fedvi.study.build import assemble

    noise = 0.0
    if drafted.open:
        # About as many coefficients as the formula names columns.
        numbers = PublicNumbers(
            coefficients=len(answers.columns),
            records=answers.max_records or 1000,
            clients=len(answers.clients),
            rounds=answers.rounds,
            prior_sd=answers.prior_scale,
        )
    elif (expected := outlook(assembly := assemble(study))) is not None:
        numbers, noise = expected.numbers, assembly.noise_multiplier or 0.0
    else:
        return answers, drafted
    if not answers.private:
        return answers, drafted
    norm = suggested_clip_norm(answers.chosen_solver, numbers)
    norm = norm if isinstance(norm, str) else float(f"{norm:.2g}")
    rounds = suggested_rounds(answers.chosen_solver, numbers, noise)
    answers = dataclasses.replace(answers, clip_norm=norm, few_rounds=rounds < answers.rounds)
    return answers, drafting.draft(answers)


def _warnings(drafted: drafting.Draft) -> tuple[str, ...]:
    """Returns what `fedvi check` will warn of, as far as it is known while something is left open."""
    from fedvi.planning.advice import doubts
    from fedvi.study.build import assemble
    from fedvi.study.config import parse_study
    from fedvi.study.implausible import implausible

    raw = _parsed(drafted)
    return tuple(
        implausible(parse_study(raw), None) if drafted.open else doubts(assemble(parse_study(raw)))
    )


def _parsed(drafted: drafting.Draft) -> dict[str, Any]:
    """Returns the tables of a draft, which a study may be but for its columns."""
    raw = tomllib.loads(drafted.text)
    if "data.max_records" in drafted.open:
        raw["data"]["max_records"] = 1000  # any that is plausible: all else is looked at
    return raw


def _check_formula(answers: Answers, stated: Mapping[str, Any]) -> None:
    """Refuses a formula that no statement about the open columns could mend.

    Raises:
      ConfigError: it cannot be read, asks for what would be fitted, or does not suit the kind of model.
    """
    from fedvi.data.formula import parse_formula
    from fedvi.data.schema import parse_schema
    from fedvi.study.spec.regressions import check_response

    stand_ins: dict[str, dict[str, Any]] = {
        "binary": {},
        "count": {"bounds": [1, 2]},
        "level": {"levels": ["a", "b"]},
        "number": {"bounds": [1, 2], "center": 0, "scale": 1},
    }
    columns = {}
    for name in drafting.variables(answers.formula):
        kind = answers.columns.get(name, {}).get("type", "number")
        columns[name] = stated.get(name, {"type": kind} | stand_ins[kind])
    try:
        design = parse_formula(answers.formula, parse_schema(columns, private=answers.private))
    except errors.ConfigError as error:
        # What is said of a stand-in's bounds is of no consequence.
        if any(f"data.schema.{name}" in error.message for name in columns.keys() - stated.keys()):
            return
        raise
    check_response(answers.kind, design, plugins.allowed() or plugins.NOTHING)
