"""`fedvi export STUDY.toml`: tasks as signed files, for sites without a network to the server."""

from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli import _file_run, _results
from fedvi.cli._flags import FILE, FOLDER, code_flags, run_state_flag
from fedvi.report import tables
from fedvi.server.file_exchange import Exported, standing
from fedvi.transport import files

__all__ = ["export"]


@click.command()
@click.argument("study", type=FILE)
@click.option(
    "--to",
    "folder",
    required=True,
    type=FOLDER,
    help="Folder for the files, NAME-VISIT.task for each client that has work.",
)
@click.option(
    "--tls",
    required=True,
    type=FOLDER,
    help="The folder that `fedvi enroll --role server` made; the files are signed with its key.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Only this client, even if it is away. May be repeated. [default: all that are not away; at the "
    "end, all]",
)
@click.option(
    "--roster",
    type=FILE,
    help="List of who is let in; nobody else gets a task. [default: roster.json in --tls]",
)
@run_state_flag
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
@code_flags
def export(
    study: Path,
    folder: Path,
    tls: Path,
    clients: tuple[str, ...],
    roster: Path | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Write the tasks of sites that have no network to the server into signed files.

    A round by hand has these steps, and each may be repeated without harm:

    \b
      1. At the server; then carry out/north-0.task to the hospital north:
           fedvi export study.toml --to out --tls tls/server \\
             --roster authority/roster.json
      2. At the hospital; then carry north-0.result back:
           fedvi client study.toml --as north --data north.csv --tls tls \\
             --task north-0.task
      3. At the server; once all results are in, export again for the next round:
           fedvi import study.toml north-0.result --tls tls/server \\
             --roster authority/roster.json
      4. At the end, export once more. Given to the client in the same way,
         out/north-end.task tells the hospital that its last answer arrived.

    The protocol is that of the network: a task is charged to the client's ledger before it is written,
    is the same until it is answered, and an answer counts once. A file that was lost is written again:
    a task by this command, a result by `fedvi client` with the same task.

    Sites with a network may take part in the same run, by `fedvi server` on the same state, and any site
    may change over between two tasks. Stop the server while you export or import. No deadline runs by
    hand: to go on without a site, start the server until the study's `deadline_seconds` have passed and
    the round is folded.

    The files are signed, not encrypted. Whoever reads a result learns what the server learns: what the
    study's promise allows, and un-noised statistics where it promises nothing. Both ends need the same
    version of fedvi, since nothing is negotiated by file.

    Exit codes: 0 written; 2 the study or the command line is wrong; 4 the certificate cannot be used,
    or --client names one that the roster does not let in; 5 a server runs on this state, or the state
    is damaged.
    """
    with _file_run.opened(study, state, tls, roster, begins=True) as run:
        unknown = [name for name in clients if name not in run.plan.clients]
        if unknown:
            raise errors.ConfigError(
                f"--client is {unknown[0]!r}, which the study does not have",
                errors.did_you_mean(unknown[0], run.plan.clients),
            )
        barred = _barred(run)
        for name in clients:
            if name in barred:
                raise errors.IdentityError(
                    f"--client is {name!r}, which is {barred[name]}",
                    "ask the authority to sign it, and give its roster.json with --roster",
                )
        files.folder(folder)
        run.settle()
        asked = clients or [
            name
            for name in run.plan.clients
            if name not in barred and (name not in run.state.away or run.is_over)
        ]
        made = {name: run.hand.export(name, folder, tls) for name in asked}
        if run.is_over:
            # An import that was killed may have left none.
            _results.write(run.plan, run.hand.spec, run.state, run.folder)
        rows = [
            _row(run, name, made.get(name), barred.get(name, ""))
            for name in clients or run.plan.clients
        ]
        content = {
            "study": run.plan.study.study.name,
            "status": run.state.status,
            "version": run.state.version,
            "clients": rows,
        }
    if as_json:
        tables.print_json(content)
        return
    names = ("client", "file", "stands")
    lines = [(row["client"], row["file"] or "–", row["stands"]) for row in rows]
    tables.console().print(tables.grid(names, lines, "", names), crop=False)
    if any(row["status"] == "away" for row in rows):
        click.echo("who is away was given nothing, and is asked again with --client NAME")


def _barred(run: _file_run.Run) -> dict[str, str]:
    """Returns the clients that would be given no task over a network, and why."""
    members, revoked = run.roster.members(), run.roster.revoked()
    return {
        name: "revoked" if name in revoked else "not on the roster"
        for name in run.plan.clients
        if name in revoked or name not in members or members[name].role != "client"
    }


def _row(run: _file_run.Run, name: str, made: Exported | None, barred: str) -> dict[str, Any]:
    status = made.status if made else "barred" if barred else "away"
    return {
        "client": name,
        "status": status,
        "task": made.task_id if made else "",
        "file": str(made.path or "") if made else "",
        "stands": barred or standing(run.hand.spec, run.state, name),
    }
