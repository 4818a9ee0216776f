"""`fedvi simulate STUDY.toml`: a whole federation in this process, with progress and two tables."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fedvi import errors
from fedvi.cli import _results
from fedvi.cli._flags import (
    FILE,
    FOLDER,
    allow_code_flag,
    check_life_charged,
    life_flags,
    narrow,
)
from fedvi.report import tables
from fedvi.results import baselines as committee
from fedvi.results import outcome, run_record
from fedvi.results import verdict as verdicts
from fedvi.run.simulate import Moment
from fedvi.run.simulate import simulate as run
from fedvi.store.life import place_of
from fedvi.study import remarks
from fedvi.study.build import PRIOR
from fedvi.study.config import load_study
from fedvi.study.spec import regressions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from fedvi.results.baselines import Baseline
    from fedvi.run.simulate import Result
    from fedvi.server.core.protocol import Update

__all__ = ["simulate"]

_POOLED = "pooled fit"


@click.command()
@click.argument("study", type=FILE)
@click.option(
    "--out",
    type=FOLDER,
    help="Keep the posterior (npz, JSON), the ledgers and the resolved study in this new folder.",
)
@click.option(
    "--state",
    type=FOLDER,
    help="Keep each client's ledger on disk (SQLite) during the run, in this new folder. "
    "[default: in memory]",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="CLIENT=FILE",
    help="A client's own policy (TOML), which limits what it will answer. One for each client.",
)
@life_flags
@click.option(
    "--private-metrics",
    type=FOLDER,
    help="Write what each client's solver measures on its records, such as how many could be used, to this "
    "folder. These numbers are not protected: only that client may see them.",
)
@click.option(
    "--cache",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Keep clients' prepared records in hidden temporary files in this folder, and delete them at the "
    "end. [default: in memory; from 512 MiB per client, in the system's temporary folder]",
)
@click.option(
    "--pooled",
    is_flag=True,
    help="Also fit all clients' records pooled, WITHOUT privacy, and print that beside the posterior. "
    "Only for data that may be pooled.",
)
@click.option(
    "--influence",
    is_flag=True,
    help="Also print what each client contributed, and how far the posterior moves without it.",
)
@click.option(
    "--baselines",
    is_flag=True,
    help="Also print two simple baselines, for which each client answers only once: the Bayesian committee "
    "machines “same” and “split”. Refused where privacy is promised, since they would cost more.",
)
@click.option(
    "--remove",
    multiple=True,
    metavar="CLIENT=ROUNDS",
    help="Take what a client contributed out of the posterior after this many rounds, as `fedvi remove` "
    "does. May be repeated.",
)
@click.option(
    "--add",
    multiple=True,
    metavar="CLIENT=ROUNDS",
    help="Let a client, one of the study's last, join after this many rounds, as with `fedvi server "
    "--extend`. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@allow_code_flag
def simulate(
    study: Path,
    out: Path | None,
    state: Path | None,
    policies: tuple[str, ...],
    life: Path | None,
    begin_life: bool,
    private_metrics: Path | None,
    cache: Path | None,
    pooled: bool,
    influence: bool,
    baselines: bool,
    remove: tuple[str, ...],
    add: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the federation of a study file in this process, and print a verdict, the posterior, and what
    it cost each client's records.

    \b
      fedvi simulate examples/heart-disease/study.toml
      fedvi simulate study.toml --pooled --out run

    The clients, the server, the messages and the ledgers are those of a deployment; only the network
    is simulated, from each client's declared latency. Data paths are relative to the study file.

    STUDY may also be the study.json that --out kept, with the noise that was calibrated. It keeps
    the data paths as they were written: put it beside the original study file to run it again.
    """
    for flag, given in (("--pooled", pooled), ("--baselines", baselines)):
        if given and policies:
            raise errors.ConfigError(
                f"{flag} is given beside --policy, but its fit is not private, and keeps to no policy",
                "leave out one of the two",
            )
    if out is not None:
        outcome.check_target(out)
    judged, place = _policies(policies), None
    for path in judged.values():
        # One that is not there is told of with the client's name, before anything is built.
        if path.is_file() and narrow(path).life is not None:
            place = place_of(life)
    if all(path.is_file() for path in judged.values()):
        check_life_charged(place is not None)
    if place is not None:
        click.echo(f"ledgers for life: {place}", err=True)
    description = load_study(study)
    rivals = committee.baselines(description, study.parent) if baselines else ()
    with _progress(quiet) as (on_moment, on_pooled):
        result = run(
            description,
            study.parent,
            pooled=pooled,
            on_moment=on_moment,
            on_pooled=on_pooled,
            state=state,
            policies=judged,
            life=life,
            begin_life=begin_life,
            private_metrics=private_metrics,
            cache=cache,
            remove=_after("--remove", remove),
            add=_after("--add", add),
            on_warning=lambda line: click.echo(f"warning: {line}", err=True),
        )
    verdict = outcome.verdict_of(result, advise=True)
    if out is not None:
        outcome.write(result, out, rivals, verdict)
    if as_json:
        tables.print_json(outcome.as_dict(result, rivals, verdict))
        return
    tables.say(verdicts.lines(verdict))
    _show(result, pooled, influence, rivals, out)


def _policies(given: Iterable[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for item in given:
        name, equals, path = item.partition("=")
        if not (name and equals and path):
            raise errors.ConfigError(
                f"--policy is {item!r}, expected CLIENT=FILE", "e.g. --policy north=north.toml"
            )
        if name in found:
            raise errors.ConfigError(
                f"--policy is given twice for client {name!r}", "one client has one policy"
            )
        found[name] = Path(path)
    return found


def _after(flag: str, given: Iterable[str]) -> dict[str, int]:
    """Reads client → after how many rounds."""
    found: dict[str, int] = {}
    for item in given:
        name, _, rounds = item.partition("=")
        if not name or name in found or not (rounds.isascii() and rounds.isdigit()):
            raise errors.ConfigError(
                f"{flag} is {item!r}, expected CLIENT=ROUNDS, once for a client",
                f"e.g. {flag} north=2, for after two rounds",
            )
        found[name] = int(rounds)
    return found


@contextmanager
def _progress(
    quiet: bool,
) -> "Iterator[tuple[Callable[[Moment], None], Callable[[], None]] | tuple[None, None]]":
    """Shows rounds, clients, elapsed time and the ε charged, on standard error.

    Yields what to call after each fold, and before the pooled fit.
    """
    if quiet:
        yield None, None
        return
    console = tables.console(stderr=True)
    if not console.is_terminal:
        yield _logger(console), lambda: console.print(_POOLED, highlight=False)
        return
    columns = (
        TextColumn("{task.fields[round]}"),
        BarColumn(),
        TextColumn("{task.fields[clients]}"),
        TimeElapsedColumn(),
        TextColumn("ε charged {task.fields[epsilon]}, gap {task.fields[gap]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(
            "", total=None, round="round 0", clients="compiling", epsilon="0", gap="–"
        )

        def show(moment: Moment) -> None:
            gap, stage = moment.update.gap, moment.update.stage
            if gap is not None:
                bar.update(task, gap=f"{tables.number(gap.largest, 2)} sd")
            bar.update(
                task,
                total=moment.rounds if stage is None else stage.rounds,
                completed=moment.update.rounds if stage is None else stage.round,
                round=_round(moment),
                clients=_done(moment.update),
                epsilon=tables.bound(moment.epsilon, 3),
            )

        def fit_pooled() -> None:
            # Rounds may have ended before the last that was planned, and nobody counts steps here.
            bar.update(task, visible=False)
            fields = {**bar.tasks[task].fields, "round": _POOLED, "clients": "all records"}
            bar.add_task("", total=None, **fields)

        yield show, fit_pooled


def _logger(console: Any) -> Callable[[Moment], None]:
    """Prints one line a completed round, for logs and pipes, with who answered since the last."""
    answered: list[str] = []
    missing: list[str] = []
    rounds = [0]

    def log(moment: Moment) -> None:
        answered.extend(moment.update.clients)
        missing.extend(moment.update.missing)
        if not moment.update.clients:
            console.print(_done(moment.update), highlight=False, soft_wrap=True, markup=False)
        gap = moment.update.gap
        # Of all complete rounds, a survey of columns alone has none.
        if gap is None and moment.update.rounds == rounds[-1]:
            return
        rounds.append(moment.update.rounds)
        moved = "surveyed" if gap is None else f"gap {tables.number(gap.largest, 3)} sd"
        console.print(
            f"{_round(moment)}  {_answered(answered)}{_missing(missing)}  "
            f"{moment.elapsed_seconds:.1f} s  version {moment.update.version}  "
            f"damping {moment.update.damping:g}  {moved}  "
            f"ε charged {tables.bound(moment.epsilon, 3)}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
        answered.clear()
        missing.clear()

    return log


def _round(moment: Moment) -> str:
    """Says how many rounds are complete: of the stage, where a script runs."""
    if moment.update.stage is not None:
        return moment.update.stage.words
    return f"round {moment.update.rounds}/{moment.rounds}"


def _done(update: "Update") -> str:
    """Says who answered, or who left or joined."""
    if update.clients:
        absent = [name for name in update.missing if name not in update.clients]
        return _answered(update.clients) + _missing(absent)
    changes = (
        ("removed", update.removed),
        ("added", update.added),
        ("too few answered, given up", update.given_up),
        ("too late", update.dropped),
    )
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in changes if names)


def _answered(names: Iterable[str]) -> str:
    """Says how many clients answered, and which if it was one; the prior's worker is no client."""
    clients = {name for name in names if name != PRIOR}
    if len(clients) == 1:
        return f"1 client: {clients.pop()}"
    return f"{len(clients)} clients" if clients else "the prior"


def _missing(names: Sequence[str]) -> str:
    """Says whose turns were skipped."""
    return f", MISSING: {', '.join(dict.fromkeys(names))}" if names else ""


def _show(
    result: "Result",
    pooled: bool,
    influence: bool,
    rivals: "Sequence[Baseline]",
    out: Path | None,
) -> None:
    console = tables.console()
    assembly = result.assembly
    mark = f" — {assembly.mark}" if assembly.mark else ""
    title = f"Posterior of {assembly.study.study.name}{mark}"
    if pooled:
        title += " (pooled columns: not private)"
    rows = outcome.record(result).rows(result.pooled)
    ratio, width = regressions.ratio(assembly.study), console.width
    console.print(tables.coefficient_table(rows, title, ratio, pooled, width), crop=False)
    title = f"Privacy per client, unit {assembly.study.privacy.unit or 'record'}{mark}"
    if not assembly.study.privacy.private:
        title = "Privacy per client — none: un-noised statistics left every client"
    said = remarks.remarks(assembly.study, assembly.family, rows)
    run = outcome.record(result)
    said += remarks.of_surveys(assembly.study, run.noise_scale, run.wider_priors)
    tables.say(filter(None, (*tables.ratio_notes(rows, ratio), *said)))
    console.print(tables.privacy_table(outcome.privacy_rows(result), title), crop=False)
    lines = _remarks(result)
    if influence:
        lines += _show_influence(result, console)
    if rivals:
        lines += _show_baselines(result, rivals, console)
    tables.say(filter(None, lines if out is None else [*lines, f"kept in {out}"]))


def _show_influence(result: "Result", console: "Console") -> "list[str]":
    """Prints what each client contributed; returns what must be said of it."""
    rows = run_record.influence_rows(outcome.record(result))
    if rows is None:
        if result.assembly.gather is not None:
            return ["influence: none, since sums over clients alone are published (view aggregate)"]
        return ["influence: none for this family, or for so many clients and coefficients"]
    console.print(tables.influence_table(rows, "Influence of each client"), crop=False)
    lines = [
        "influence: share of the likelihood's precision, in the prior's own coordinates; shifts are those "
        "of leaving the client's factor out, to first order: the others' answers were made beside it"
    ]
    if result.assembly.noise_multiplier is not None:
        lines.append("influence: factors carry noise, which can make a share negative, or above 1")
    reasons = dict.fromkeys(row["reason"] for row in rows if row["reason"])
    return [*lines, *(f"no shifts: {reason}" for reason in reasons)]


def _show_baselines(
    result: "Result", rivals: "Sequence[Baseline]", console: "Console"
) -> "list[str]":
    """Prints the baselines beside the posterior; returns how far they are from it."""
    coefficients, rows = outcome.record(result).rows(), outcome.baseline_rows(result, rivals)
    cells = [
        [
            coefficient["name"],
            *(
                "{} ({})".format(*tables.moments(mean, sd))
                for mean, sd in (
                    (coefficient["mean"], coefficient["sd"]),
                    *((row["mean"][index], row["sd"][index]) for row in rows),
                )
            ),
        ]
        for index, coefficient in enumerate(coefficients)
    ]
    names = ["coefficient", "this study", *(row["name"] for row in rows)]
    title = "Baselines of one visit a client, mean (sd)"
    console.print(tables.grid(names, cells, title, ("coefficient",)), crop=False)
    return [
        f"{row['name']}: off by up to {tables.number(row['mean_shift'], 2)} posterior sd; {row['note']}"
        for row in rows
    ]


def _remarks(result: "Result") -> "list[str]":
    """The sentences under the tables: the consortium's claim, exclusions, convergence."""
    lines = [
        f"consortium: ε {tables.bound(claim.epsilon)} at δ {tables.number(claim.delta)} under "
        f"{claim.relation}, view {claim.view}, accountant {claim.accountant}"
        + (f" — {claim.mark}" if claim.mark else "")
        for claim in result.consortium
    ]
    for site in result.sites:
        spent = site.claims[0].lifetime if site.claims else None
        if spent is not None:
            lines.append(
                f"{site.name}: ε {tables.bound(spent.epsilon)} of {spent.cap:g} spent for life at "
                f"δ {tables.number(spent.delta)} under {spent.relation}"
            )
    if result.consortium:
        claim = result.consortium[0]
        excluded = dict.fromkeys(line for c in result.consortium for line in c.exclusions)
        lists = (
            ("excluded", excluded),
            ("declared, and checked by nobody", claim.declarations),
            ("assumed", claim.assumptions),
        )
        for what, items in lists:
            lines += [f"{what}:", *(f"- {item}" for item in items)]
    for update in result.history:
        if not update.clients:
            lines.append(
                f"{_done(update)} after "
                + (f"round {update.rounds}" if update.stage is None else update.stage.words)
                + f", at version {update.version}"
            )
        if update.removed and result.assembly.gather is None:
            lines.append(
                f"the posterior is without the factor of {', '.join(update.removed)}; what it was charged "
                "stays charged, for it was seen"
            )
    lines += tables.missed_turns(update.missing for update in result.history)
    lines += _results.moves(outcome.record(result))
    poor = {name: value for name, value in result.residuals.items() if not value < 1e-3}
    if poor:
        worst = max(poor, key=lambda name: poor[name])
        lines.append(
            f"not converged: {worst} stopped {tables.number(poor[worst], 2)} posterior sd from its "
            "optimum; few records or separable outcomes under a wide prior do that: narrow the prior, "
            "or raise solver `nodes` and `evaluations`"
        )
    if result.improper:
        lines.append(run_record.IMPROPER)
    return lines
