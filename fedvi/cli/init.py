"""`fedvi init DIR`: a study of one's own, drafted from a few answers, with all that stands beside it."""

import dataclasses
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedvi import errors
from fedvi.experiment.drafts import drafting
from fedvi.experiment.drafts.drafting import KINDS, SOLVERS, Answers

if TYPE_CHECKING:
    from fedvi.data.names import Names

__all__ = ["init"]

_SOLVERS = tuple(dict.fromkeys((*SOLVERS[True], *SOLVERS[False])))


class _Ask(NamedTuple):
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
        click.echo(_schemas()[json_schema], nl=False)
        return
    _check_target(folder)
    ask = _Ask(not yes and _on_terminal())
    answers = _answers(ask, folder, source, given)
    server = ask(
        "--server",
        address,
        "Where sites will reach the server",
        "fedvi.example.org:7443",
        _address,
    )
    answers, drafted = _checked(answers)
    files = _files(answers, drafted, server)
    _write(folder, files)
    for name in files:
        click.echo(f"wrote {folder / name}")
    for key in drafted.open:
        click.echo(f"still to be stated in study.toml: {key}")
    click.echo(
        f"next: fedvi check {folder / 'study.toml'}; the steps are in {folder / 'README.md'}"
    )


def _on_terminal() -> bool:
    return sys.stdin.isatty()


# What is answered


def _answers(ask: _Ask, folder: Path, source: Path | None, given: Mapping[str, Any]) -> Answers:
    default = _slug(folder.resolve().name)
    name = ask("--name", given["name"], "Name of the study", default, _named("--name"))
    if ask.on:
        for kind, known in KINDS.items():
            click.echo(f"  {kind:<20} {known.words}")
    kind = ask("--kind", given["kind"], "What is inferred", "logistic", _choice(tuple(KINDS)))
    clients = ask("--clients", given["clients"], "Sites, between commas", None, _clients)
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
            _within(header),
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


def _promise(ask: _Ask, given: Mapping[str, Any]) -> dict[str, Any]:
    protection = ask(
        "--protection",
        given["protection"],
        "Promise differential privacy (dp, or none)",
        "dp",
        _choice(("dp", "none")),
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
        "--epsilon", given["epsilon"], "ε over the whole study", "1", _positive("--epsilon")
    )
    if ask.on:
        click.echo("  A unit is a row (record), or all rows of a patient together (patient).")
    unit = ask("--unit", given["unit"], "Unit", "record", _choice(("record", "patient")))
    if ask.on:
        click.echo("  substitute: one unit is another; add_remove: one unit is there or not.")
    relation = ask(
        "--relation",
        given["relation"],
        "Neighbouring relation",
        "substitute",
        _choice(("substitute", "add_remove")),
    )
    if most is None and ask.on:
        most = ask(
            "--max-records",
            None,
            f"Public upper bound on the {unit}s of any site (0: state it later)",
            "0",
            _count,
        )
    delta = ask(
        "--delta",
        given["delta"],
        "δ, far below 1 / that number",
        f"{drafting.default_delta(most or None):g}",
        _positive("--delta"),
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
    ask: _Ask, kind: str, header: "Names | None", given: Mapping[str, Any]
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
    ask: _Ask, kind: str, formula: str, names: Mapping[str, str], given: tuple[str, ...]
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


# How an answer is read


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:64] or "study"


def _choice(known: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise errors.ConfigError(
                f"{text!r} is none of {', '.join(known)}", errors.did_you_mean(text, known)
            )
        return text

    return read


def _clients(text: str) -> tuple[str, ...]:
    names = tuple(item.strip() for item in text.split(",") if item.strip())
    if not names:
        raise errors.ConfigError(
            f"--clients is {text!r}, expected at least one name", "write --clients north,south"
        )
    first: dict[str, str] = {}
    for name in map(_named("--clients"), names):
        if name.casefold() in first:
            raise errors.ConfigError(
                f"clients: the name {first[name.casefold()]!r} stands twice",
                "give every client its own name; upper and lower case count as the same",
            )
        first[name.casefold()] = name
    return names


def _named(flag: str) -> Callable[[str], str]:
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


def _formula_text(text: str) -> str:
    if not drafting.variables(text.partition("~")[0]) or "~" not in text:
        raise errors.ConfigError(
            f"--formula is {text!r}, expected a response, ~ and what explains it",
            'write, for example, "disease ~ age + sex"',
        )
    return text


def _column(name: str) -> Callable[[str], dict[str, Any]]:
    return lambda text: drafting.parse_column(f"{name}={text}")[1]


def _within(header: "Names | None") -> Callable[[str], str]:
    def read(text: str) -> str:
        if header is not None and text not in header.columns:
            raise errors.ConfigError(
                f"--unit-column is {text!r}, which is no column of the file",
                errors.did_you_mean(text, header.columns),
            )
        return text

    return read


def _positive(flag: str) -> Callable[[str], float]:
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


def _count(text: str) -> int:
    if not text.isdecimal():
        raise errors.ConfigError(f"{text!r} is no whole number", "write digits alone, such as 5000")
    return int(text)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    # What goes into files of other languages: letters, digits and what stands in an address.
    plain = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host) is not None
    if not plain or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536:
        raise errors.ConfigError(
            f"--server is {text!r}, expected HOST:PORT", "such as fedvi.example.org:7443"
        )
    return text


# What is written


def _checked(answers: Answers) -> tuple[Answers, drafting.Draft]:
    """Returns the answers with a clip norm that suits them, and their draft, which a study may be.

    Raises:
      ConfigError, ModelError: an answer is one that `fedvi check` would refuse.
    """
    from fedvi.data.schema import parse_schema
    from fedvi.experiment.config import parse_study

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
    from fedvi.experiment.build import assemble
    from fedvi.experiment.plans.planning import outlook
    from fedvi.experiment.plans.signals import PublicNumbers, suggested_clip_norm

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
    from fedvi.experiment.regressions import check_response

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


def _files(answers: Answers, drafted: drafting.Draft, server: str) -> dict[str, str]:
    from fedvi.experiment.drafts import starting

    schemas = _schemas()
    files = {
        "study.toml": drafted.text,
        "study.schema.json": schemas["study"],
        "compose.coordinator.yaml": starting.coordinator_text(answers),
        "compose.site.yaml": starting.site_text(answers, server),
        "README.md": starting.steps_text(answers, server, drafted.open),
    }
    if answers.private:  # a policy admits no study that promises nothing
        files |= {
            "policy.toml": starting.policy_text(answers),
            "policy.schema.json": schemas["policy"],
        }
    return files


def _schemas() -> dict[str, str]:
    from fedvi.experiment.drafts import json_schema

    return {
        "study": _json(json_schema.study_schema()),
        "policy": _json(json_schema.policy_schema()),
    }


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


_NAMES = (
    "study.toml",
    "study.schema.json",
    "policy.toml",
    "policy.schema.json",
    "compose.coordinator.yaml",
    "compose.site.yaml",
    "README.md",
)


def _check_target(folder: Path) -> None:
    """Refuses, before anything is asked, a folder that holds one of the files or cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise errors.ConfigError(f"{folder} is no folder", "name a new folder")
    there = [name for name in _NAMES if os.path.lexists(folder / name)]
    if there:
        raise errors.ConfigError(
            f"{folder} holds {', '.join(there)} already, and nothing is overwritten",
            "name a new folder, or move what is there",
        )
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise errors.ConfigError(
            f"{folder}: the folder {folder.absolute().parent} does not exist", "make it first"
        )


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes all files or none, and none over another.

    Raises:
      ConfigError: one is there meanwhile, or the folder cannot be written.
    """
    done: list[Path] = []
    fresh = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".init-", dir=folder) as beside:
            for name, text in files.items():
                (Path(beside) / name).write_text(text, encoding="utf-8")
            for name in files:
                # Fails where a file is there, which `replace` would take the place of.
                os.link(Path(beside) / name, folder / name)
                done.append(folder / name)
    except OSError as error:
        for path in done:
            path.unlink(missing_ok=True)
        if fresh and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise errors.ConfigError(
            f"{folder} cannot be written: {error.strerror}; nothing was", "name another folder"
        ) from None
