"""`fedvi init DIR`: a study of one's own, drafted from a few answers, with all that stands beside it."""

import dataclasses
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedvi import errors
from fedvi.study.drafts import drafting
from fedvi.study.drafts.drafting import KINDS, SOLVERS, Answers

if TYPE_CHECKING:
    from fedvi.data.names import Names
from fedvi.cli._asking import (
    Ask,
    as_address,
    choice,
    client_names,
    count_of,
    named,
    positive,
    slug,
    within,
)
from fedvi.cli._drafted import check_target, files_of, schemas_of, write_all

__all__ = ["init"]

_SOLVERS = tuple(dict.fromkeys((*SOLVERS[True], *SOLVERS[False])))


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--name", help="Of the study: letters, digits, `.`, `_` and `-`. [default: DIR's]")
@click.option(
    "--kind", type=click.Choice(tuple(KINDS)), help="What is inferred. [default: logistic]"
)
@click.option("--formula", help='Such as "disease ~ age + sex".')
@click.option(
    "--response",
    help="In place of --formula, with --from: the column to be explained, by all others. Two columns "
    "between commas for a survival time and its event.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path),
    help="Take the names of columns from this file: CSV, Parquet or NumPy's. Takes its first line, or what "
    "the file says of its columns, and nothing of a record.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME=TYPE[:…]",
    help="What a column may hold, from public knowledge: age=number:18..100, visits=count:0..20, "
    "sex=binary:m/f, stage=level:low,high. What is left out is left open in the study.",
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="KEY=NUMBER",
    help="A key of [model]: dispersion=0.5, noise_scale=0.3, cuts=30,90,365.",
)
@click.option("--clients", help="Names of the sites, between commas: north,south.")
@click.option(
    "--protection",
    type=click.Choice(("dp", "none")),
    help="Whether anything is promised. [default: dp]",
)
@click.option("--epsilon", type=float, help="Largest privacy loss over the study. [default: 1]")
@click.option("--delta", type=float, help="[default: far below 1 / --max-records]")
@click.option("--unit", type=click.Choice(("record", "patient")), help="[default: record]")
@click.option("--unit-column", help="With --unit patient: the column that says whose a row is.")
@click.option(
    "--relation", type=click.Choice(("substitute", "add_remove")), help="[default: substitute]"
)
@click.option(
    "--max-records",
    type=click.IntRange(min=1),
    help="Public upper bound on the records (or patients) of any site.",
)
@click.option(
    "--solver",
    type=click.Choice(_SOLVERS),
    help="[default: the one that `fedvi check` recommends for regressions]",
)
@click.option(
    "--server",
    "address",
    metavar="HOST:PORT",
    help="Where sites will reach the server. [default: fedvi.example.org:7443]",
)
@click.option("--yes", is_flag=True, help="Ask nothing: what no flag says has its default.")
@click.option(
    "--json-schema",
    type=click.Choice(("study", "policy")),
    help="Only print the JSON schema of study.toml or policy.toml, for editors; write nothing.",
)
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

    Asks on a terminal, each question with its default; every answer can be given by a flag. Bounds and
    levels that nobody states are left open, and `fedvi check` refuses the study until a person has
    stated them. No file is overwritten, and either all are written or none.

    \b
      fedvi init my-study
      fedvi init my-study --from north.csv --response died --clients north,south
      fedvi init my-study --yes --kind logistic --formula "died ~ age + sex" --clients north,south \\
        --max-records 5000 --column died=binary --column age=number:18..100 --column sex=binary:m/f
    """
    if json_schema is not None:
        click.echo(schemas_of()[json_schema], nl=False)
        return
    check_target(folder)
    ask = Ask(not yes and _on_terminal())
    answers = _answers(ask, folder, source, given)
    server = ask(
        "--server",
        address,
        "Where sites will reach the server",
        "fedvi.example.org:7443",
        as_address,
    )
    answers, drafted = _checked(answers)
    files = files_of(answers, drafted, server)
    write_all(folder, files)
    for name in files:
        click.echo(f"wrote {folder / name}")
    for key in drafted.open:
        click.echo(f"still to be stated in study.toml: {key}")
    click.echo(
        f"next: fedvi check {folder / 'study.toml'}; the steps are in {folder / 'README.md'}"
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty()


def _answers(ask: Ask, folder: Path, source: Path | None, given: Mapping[str, Any]) -> Answers:
    default = slug(folder.resolve().name)
    name = ask("--name", given["name"], "Name of the study", default, named("--name"))
    if ask.on:
        for kind, known in KINDS.items():
            click.echo(f"  {kind:<20} {known.words}")
    kind = ask("--kind", given["kind"], "What is inferred", "logistic", choice(tuple(KINDS)))
    clients = ask("--clients", given["clients"], "Sites, between commas", None, client_names)
    header = _header(source, given["columns"])
    formula, names = _formula(ask, kind, header, given)
    unit_column = given["unit_column"]
    promise = _promise(ask, given)
    if promise.get("unit") == "patient":
        unit_column = ask(
            "--unit-column",
            unit_column,
            "Column that says whose a row is",
            "patient_id",
            within(header),
        )
    elif unit_column is not None:
        raise errors.ConfigError(
            f"--unit-column is {unit_column!r} without --unit patient",
            "add --unit patient, to protect all rows of a patient together",
        )
    if given["response"] is not None and unit_column is not None:
        # Whose a row is explains nothing.
        formula = _without(formula, names, unit_column)
    settings = dict(drafting.parse_setting(text) for text in given["settings"])
    return Answers(
        name=name,
        kind=kind,
        formula=formula,
        clients=clients,
        columns=_columns(ask, kind, formula, names, given["columns"]),
        unit_column=unit_column,
        solver=given["solver"],
        settings=settings,
        separator="," if header is None else header.separator,
        files=_beside(source, folder),
        all_columns=given["response"] is not None,
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


def _promise(ask: Ask, given: Mapping[str, Any]) -> dict[str, Any]:
    protection = ask(
        "--protection",
        given["protection"],
        "Promise differential privacy (dp, or none)",
        "dp",
        choice(("dp", "none")),
    )
    most = given["max_records"]
    if protection == "none":
        for flag in ("epsilon", "delta", "unit", "relation"):
            if given[flag] is not None:
                raise errors.ConfigError(
                    f"--{flag} is given beside --protection none", "leave out one of the two"
                )
        return {"private": False, "max_records": most}
    if ask.on:
        click.echo("  ε bounds how much one unit can change what is seen; 1 is a common promise.")
    epsilon = ask(
        "--epsilon", given["epsilon"], "ε over the whole study", "1", positive("--epsilon")
    )
    if ask.on:
        click.echo("  A unit is a row (record), or all rows of a patient together (patient).")
    unit = ask("--unit", given["unit"], "Unit", "record", choice(("record", "patient")))
    if ask.on:
        click.echo("  substitute: one unit is another; add_remove: one unit is there or not.")
    relation = ask(
        "--relation",
        given["relation"],
        "Neighbouring relation",
        "substitute",
        choice(("substitute", "add_remove")),
    )
    if most is None and ask.on:
        most = ask(
            "--max-records",
            None,
            f"Public upper bound on the {unit}s of any site (0: state it later)",
            "0",
            count_of,
        )
    delta = ask(
        "--delta",
        given["delta"],
        "δ, far below 1 / that number",
        f"{drafting.default_delta(most or None):g}",
        positive("--delta"),
    )
    return {
        "epsilon": epsilon,
        "delta": delta,
        "unit": unit,
        "relation": relation,
        "max_records": most or None,
    }


def _header(source: Path | None, given: tuple[str, ...]) -> "Names | None":
    """Reads names of columns, and says which: the first line of a file without header is a record.

    Raises:
      DataError: there are none, or they are cells of a record.
    """
    if source is None:
        return None
    from fedvi.data.guess import check_names
    from fedvi.data.names import column_names, doubt, is_text

    unnamed = (
        "a file without header: leave --from out, give --formula, and name its columns, in their order, "
        "as `columns` under [data]"
    )
    found = column_names(source, unnamed=unnamed, flag="--from")
    shown = ", ".join(name if name.isprintable() else repr(name) for name in found.columns)
    if not is_text(source):
        click.echo(f"columns of {source}: {shown}")
        return found
    values, words = doubt(found.columns)
    cells = {cell for text in given for cell in drafting.cells_of(drafting.parse_column(text)[1])}
    declared, count = len(cells.intersection(found.columns)), len(found.columns)
    if values or declared:
        what = (
            f"{values} of {count} cells of its first line are dates, true or false, or the like"
            if values
            else f"{declared} of {count} cells of its first line are what --column says a "
            "record can hold"
        )
        raise errors.DataError(
            f"--from {source} does not begin with the names of its columns: {what}", unnamed
        )
    check_names(source, found.columns, found.separator, unnamed)
    click.echo(f"columns, from the first line of {source}: {shown}")
    if words:
        click.echo(
            f"warning: {words} of these {count} could be cells of a record. If they are, delete "
            f"what is written, for it holds a record; {unnamed}",
            err=True,
        )
    return found


def _formula(
    ask: Ask, kind: str, header: "Names | None", given: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """Returns the formula, and its names → what the file calls them (empty without a file)."""
    names = {} if header is None else drafting.named(header.columns)
    formula, response = given["formula"], given["response"]
    if formula is not None and response is not None:
        raise errors.ConfigError(
            "--response is given beside --formula, which names it", "leave out one of the two"
        )
    if header is not None and ask.on:
        click.echo("  columns: " + ", ".join(names))
    if response is None:
        what = "Formula, such as disease ~ age + sex"
        formula = ask("--formula", formula, what, None, _formula_text)
        for name in drafting.variables(formula) if names else ():
            if name not in names:
                raise errors.ConfigError(
                    f"--formula names {name!r}, which is no column of the file",
                    errors.did_you_mean(name, names),
                )
        return formula, names
    if header is None:
        raise errors.ConfigError(
            "--response is given without --from, and what it is explained by is not known",
            'give --formula "disease ~ age + sex", or --from FILE for all columns of a file',
        )
    spelt = {column: name for name, column in names.items()}
    left = []
    for text in (item.strip() for item in response.split(",")):
        if text not in names and text not in spelt:
            raise errors.ConfigError(
                f"--response is {text!r}, which is no column of the file",
                errors.did_you_mean(text, names),
            )
        left.append(text if text in names else spelt[text])
    right = [name for name in names if name not in left]
    return _written(kind, left, right), names


def _written(kind: str, left: list[str], right: list[str]) -> str:
    return f"{KINDS[kind].left.format(', '.join(left))} ~ {' + '.join(right) or '1'}"


def _without(formula: str, names: Mapping[str, str], column: str) -> str:
    """Takes a column out of a formula that was made of all columns of a file."""
    left, _, right = formula.partition(" ~ ")
    kept = [name for name in right.split(" + ") if column not in (name, names[name])]
    return f"{left} ~ {' + '.join(kept) or '1'}"


def _columns(
    ask: Ask, kind: str, formula: str, names: Mapping[str, str], given: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    wanted = drafting.variables(formula)
    stated = dict(map(drafting.parse_column, given))
    spelt = {column: name for name, column in names.items()}
    stated = {spelt.get(name, name): table for name, table in stated.items()}
    for name in stated:
        if name not in wanted:
            raise errors.ConfigError(
                f"--column {name}: no column of the formula {formula!r}",
                errors.did_you_mean(name, wanted),
            )
    if ask.on:
        click.echo(
            "  What each column may hold, known without looking at the data: number:18..100,"
        )
        click.echo(
            "  count:0..20, binary:1/0, level:low,high. Leave out what you will state later."
        )
    expected = drafting.response_types(kind, formula)
    tables = {}
    for name in wanted:
        table = stated.get(name, {"type": expected[name]} if name in expected else {})
        if ask.on and name not in stated:
            table = ask("--column", None, name, table.get("type", "number"), _column(name))
        called = names.get(name, name)
        tables[name] = table if called == name else {"column": called} | table
    return tables


def _formula_text(text: str) -> str:
    if not drafting.variables(text.partition("~")[0]) or "~" not in text:
        raise errors.ConfigError(
            f"--formula is {text!r}, expected a response, ~ and what explains it",
            'write, for example, "disease ~ age + sex"',
        )
    return text


def _column(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda text: drafting.parse_column(f"{name}={text}")[1]


def _checked(answers: Answers) -> tuple[Answers, drafting.Draft]:
    """Returns the answers with a clip norm that suits them, and their draft, which a study may be.

    Raises:
      ConfigError, ModelError: an answer is one that `fedvi check` would refuse.
    """
    from fedvi.data.schema import parse_schema
    from fedvi.study.config import parse_study

    drafted = drafting.draft(answers)
    raw = tomllib.loads(drafted.text)
    if "data.max_records" in drafted.open:
        raw["data"]["max_records"] = 1  # any: all else is looked at now
    study = parse_study(raw)
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
    from fedvi.planning.signals import PublicNumbers, suggested_clip_norm
    from fedvi.study.build import assemble

    if drafted.open:
        # About as many coefficients as the formula names columns.
        numbers = PublicNumbers(
            coefficients=len(answers.columns),
            records=answers.max_records or 1000,
            clients=len(answers.clients),
            rounds=answers.rounds,
            prior_sd=2.5,
        )
    elif (expected := outlook(assemble(study))) is not None:
        numbers = expected.numbers
    else:
        return answers, drafted
    if not answers.private:
        return answers, drafted
    norm = suggested_clip_norm(answers.chosen_solver, numbers)
    norm = norm if isinstance(norm, str) else float(f"{norm:.2g}")
    answers = dataclasses.replace(answers, clip_norm=norm)
    return answers, drafting.draft(answers)


def _check_formula(answers: Answers, stated: Mapping[str, Any]) -> None:
    """Refuses a formula that no statement about the open columns could mend.

    Raises:
      ConfigError: it cannot be read, asks for what would be fitted, or does not suit the kind of model.
    """
    from fedvi.data.formula import parse_formula
    from fedvi.data.schema import parse_schema
    from fedvi.study.regressions import check_response

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
    check_response(answers.kind, design)
