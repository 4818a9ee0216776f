"""`fedvi import STUDY.toml RESULT…`: the signed results of sites without a network to the server."""

import sys
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli import _file_run, _results
from fedvi.cli._flags import FILE, FOLDER, code_flags, run_state_flag
from fedvi.report import tables
from fedvi.server.core import protocol, run_events
from fedvi.transport import files, identity, parcels

__all__ = ["import_"]


@click.command("import")
@click.argument("study", type=FILE)
@click.argument("results", nargs=-1, required=True, type=FILE)
@click.option(
    "--tls", required=True, type=FOLDER, help="The folder that `fedvi enroll --role server` made."
)
@click.option("--roster", type=FILE, help="List of who is let in. [default: roster.json in --tls]")
@run_state_flag
@click.option("--json", "as_json", is_flag=True, help="Print what became of each file as JSON.")
@code_flags
def import_(
    study: Path,
    results: tuple[Path, ...],
    tls: Path,
    roster: Path | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Take the signed results of sites that have no network to the server, and fold them in.

    Each RESULT is what `fedvi client --task` wrote at a site; `fedvi export --help` shows a whole round.

    \b
      fedvi import study.toml north-0.result south-0.result --tls tls/server \\
        --roster authority/roster.json

    \b
    Each result is one of these:
      accepted
      duplicate  the same bytes came before; no further effect
      noted      it says that the site cannot answer
      conflict   other bytes came before; charged to the site's ledger, not folded
      refused    with the reason; the other files are still taken

    Results may come in any order, late ones too: a site whose turn was skipped is back with its answer.
    When the schedule is done, the posterior is in the folder `result` of the state, as after `fedvi
    server`; the next export tells the sites.

    Exit codes: 0 all taken; 1 a conflict, or a file that is damaged, of another study or of no task;
    2 the study or the command line is wrong; 4 a signer that is not let in; 5 a ledger does not fit,
    a server runs on this state, or the budget is spent; 6 the run failed or was stopped.
    """
    with _file_run.opened(study, state, tls, roster, begins=False) as run:
        authority = files.read(tls / identity.AUTHORITY, "the authority's certificate")
        rows, refusals = [], []
        for path in results:
            row, error = _taken(run, path, authority)
            rows.append(row)
            if error is not None:
                refusals.append((path, error))
        run.settle()
        if run.is_over:
            _results.write(run.plan, run.hand.spec, run.state, run.folder)
        _show(run, rows, run.is_over, as_json)
        for path, error in refusals:
            click.echo(f"error: {path}: {error}", err=True)
        if refusals:
            sys.exit(refusals[0][1].exit_code)
        if run.is_over:
            _results.check_completed(run.state)


def _taken(
    run: _file_run.Run, path: Path, authority: bytes
) -> tuple[dict[str, Any], errors.FedviError | None]:
    """Takes one result; returns what became of it, and what was wrong with it."""
    row = {"file": str(path), "client": "", "task": "", "status": "refused", "error": ""}
    try:
        parcel = parcels.read_result(path, authority, run.roster, run.hand.payload_limit)
        row |= {"client": parcel.hello.client, "task": parcel.task_id}
        row["status"] = run.hand.take(parcel)
        if row["status"] == "conflict":
            raise errors.ProtocolError(
                f"the server holds another answer to task {row['task']!r}",
                "was the site's state restored from a backup, or is it running twice?",
            )
    except errors.FedviError as error:
        run.hand.tell(run_events.refused(f"import of {path.name}", row["client"], error))
        return row | {"error": error.message}, error
    return row, None


def _show(run: _file_run.Run, rows: list[dict[str, Any]], is_over: bool, as_json: bool) -> None:
    state, spec, standing = run.state, run.hand.spec, _file_run.rows(run)
    rounds = protocol.progress_of(spec, state).rounds
    if as_json:
        content = {
            "results": rows,
            "status": state.status,
            "version": state.version,
            "rounds": rounds,
            "rounds_planned": spec.schedule.rounds,
            "clients": standing,
            "run": _results.content(run.plan, spec, state) if is_over else None,
        }
        tables.print_json(content)
        return
    console = tables.console()
    names = ("file", "client", "task", "outcome")
    lines = [(row["file"], row["client"], row["task"], row["status"]) for row in rows]
    console.print(tables.grid(names, lines, "", names), crop=False)
    place = spec.schedule.place(protocol.progress_of(spec, state))
    done = f"{rounds} of {spec.schedule.rounds} rounds complete" if place is None else place.words
    title = f"{done}; version {state.version}"
    names = ("client", "answers", "missed", "stands")
    counts = [[str(value) for value in row.values()] for row in standing]
    console.print(tables.grid(names, counts, title, ("client", "stands")), crop=False)
    if is_over:
        _results.show(run.plan, spec, state, run.folder)
