"""`fedvi status`: a server's run at a glance, also while the server is stopped."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli import _remote
from fedvi.cli._flags import code_flags
from fedvi.server.watch.public_values import remarks, span, state_of, where

__all__ = ["show", "status"]


@click.command()
@_remote.addressed
@code_flags
def status(state: Path | None, server: str | None, tls: Path | None, as_json: bool) -> None:
    """Show the run of a server: where it stands, who is there, whom it awaits, what was charged.

    STATE is the --state folder of a server on this machine. It may be left out where .fedvi holds
    one; where it holds several, each gets a line. If the server is stopped, you see what it saved,
    with ε recomputed. From another machine, give --server, the server's --admin address. All that
    is shown of a running server is what it says.

    \b
      fedvi status
      fedvi status .fedvi/heart-disease/server
      fedvi status --server fedvi.example.org:7444 --tls tls/admin --json

    Exit codes: 0 shown; 3 no server answers; 4 not authorised; 5 the saved state is damaged.
    """
    if state is None and server is None and len(found := _remote.states()) > 1:
        _show_all({folder: _asked_or_why(folder) for folder in found}, as_json)
        return
    show(_asked(state, server, tls), as_json)


def _asked(state: Path | None, server: str | None, tls: Path | None) -> dict[str, Any]:
    """Returns a run as its server tells it or, where that is stopped, as it was saved."""
    from fedvi.transport._wire import admin_pb2 as pb

    try:
        with _remote.admin(state, server, tls) as stub:
            run = stub.GetRun(pb.GetRunRequest(), timeout=_remote.CALL_SECONDS)
    except errors.TransportError:
        if server is not None:
            raise
        folder = state if state is not None else _remote.only_state()
        if not (folder / "state.sqlite").is_file() or _remote.runs(folder):
            raise
        return _saved(folder) | {"verdict": _verdict(folder)}
    return _remote.run_as_dict(run)


def _asked_or_why(folder: Path) -> dict[str, Any]:
    """Returns a run, or {"error": why it is not known}: one that is damaged hides no other."""
    try:
        return _asked(folder, None, None)
    except errors.FedviError as error:
        return {"error": error.sentence}


def _show_all(runs: Mapping[Path, dict[str, Any]], as_json: bool) -> None:
    """Prints a line a run."""
    if as_json:
        told = {str(folder): run for folder, run in runs.items()}
        click.echo(json.dumps(told, indent=2, allow_nan=False))
        return
    from fedvi.report import tables

    rows = [
        (
            run["study"],
            run["status"].replace("_", " "),
            str(run["rounds"]) if run["server"] == "stopped" else where(run),
            ", ".join(row["name"] for row in run["clients"] if row["silent"]) or "–",
            run["server"],
        )
        for folder, run in runs.items()
        if "error" not in run
    ]
    names = ("study", "status", "round", "silent", "server")
    tables.console().print(tables.grid(names, rows, "", names), crop=False)
    for folder, run in runs.items():
        if "error" in run:
            click.echo(f"{folder}: {run['error']}", err=True)
    # Below the table, where no terminal is too narrow for a path that is to be copied.
    click.echo("one of them:")
    for folder in runs:
        click.echo(f"  fedvi status {shlex.quote(str(folder))}")


def show(run: dict[str, Any], as_json: bool) -> None:
    """Prints a run."""
    if as_json:
        click.echo(json.dumps(run, indent=2, allow_nan=False))
        return
    from fedvi.report import tables

    console = tables.console()
    # A running server's text may be anybody's; a saved one was read here.
    why = (
        errors.quoted(run["reason"])
        if run["reason"] and run["server"] == "running"
        else run["reason"]
    )
    lines = [f"{run['study']}: {run['status'].replace('_', ' ')}" + (f"; {why}" if why else "")]
    if run["server"] == "stopped":
        # Nobody knows how many rounds are planned, but of a script's stage.
        saved = f"round {run['rounds']}" if run["stage"] is None else where(run)
        over = run["status"] not in ("running", "paused")
        server = "the server has ended" if over else "THE SERVER IS STOPPED"
        lines.append(f"{server}; it saved {saved}, version {run['version']}")
    else:
        secured = "mutual TLS" if run["tls"] == "mtls" else "clear text"
        lines.append(
            f"{run['schedule']}, {where(run)}, version "
            f"{run['version']}, {secured}, up {span(run['uptime_seconds'])}, fedvi {run['fedvi']}"
        )
    if run["gap"] is not None:
        lines.append(tables.gap_in_words(run["gap"]))
    if run["awaited"]:
        lines.append(
            "awaits "
            + ", ".join(run["awaited"])
            + ("" if run["deadline_seconds"] is None else f" for {span(run['deadline_seconds'])}")
        )
    if run["unpriced"] is not None:
        lines.append(f"ε charged is not known: {run['unpriced']}")
    tables.say([*lines, *run.get("verdict", ())])
    names = ("client", "state", "folded", "charged", "ε charged", "last heard")
    rows = [
        (
            row["name"],
            state_of(row),
            str(row["visits"])
            + ("" if run["rounds_planned"] is None else f" of {run['rounds_planned']}"),
            str(row["charged"]),
            tables.bound(row["epsilon"]),
            "–" if row["seen_seconds"] is None else f"{span(row['seen_seconds'])} ago",
        )
        for row in run["clients"]
    ]
    console.print(tables.grid(names, rows, "", ("client", "state")), crop=False)
    tables.say(remarks(run))


def _saved(folder: Path) -> dict[str, Any]:
    """Returns what a stopped server saved, like a run; what only a server knows is null."""
    from fedvi.privacy import ledger as ledgers
    from fedvi.server.core import protocol
    from fedvi.server.store import schema

    state = schema.read_state(folder)
    books = schema.read_ledgers(folder) if state is None else state.ledgers
    header = next((book.header for book in books.values()), None)
    run: dict[str, Any] = {
        "server": "stopped",
        "study": folder.absolute().parent.name if header is None else header.study,
        "digest": _digest(folder, "" if header is None else header.study_digest),
        "fedvi": None,
        "status": "running" if state is None else state.status,
        "reason": "",
        "tls": None,
        "schedule": None,
        "version": 0,
        "rounds": 0,
        "rounds_planned": None,
        "stage": None,
        "gap": None,
        "damping": None,
        "uptime_seconds": None,
        "awaited": [],
        "deadline_seconds": None,
        "let_go": None,
        "epsilon_budget": None,
        "unpriced": None,
        "clients": [],
    }
    if state is None:
        return run
    if state.status in protocol.OVER:
        run["reason"] = protocol.ending(state)
    if state.history:
        gaps = [update.gap.largest for update in state.history if update.gap is not None]
        damping = [update.damping for update in state.history if update.clients]
        run["rounds"], stage = state.history[-1].rounds, state.history[-1].stage
        run["stage"] = None if stage is None else stage._asdict()
        run["gap"], run["damping"] = gaps[-1] if gaps else None, damping[-1] if damping else None
    run["version"] = state.version
    epsilons, delta, run["unpriced"] = _priced(folder, books)
    answered = {answer.task.client for answer in state.answers}
    counts = protocol.folded(state)
    for name in state.visits:
        task, reason, book = state.tasks.get(name), state.away.get(name, ""), books.get(name)
        if protocol.is_removed(state, name):
            doing, reason = "removed", ""
        else:
            at_work = "working" if task else "answered" if name in answered else "idle"
            doing = "away" if reason else at_work
        reached = None if book is None else ledgers.anchor(book)
        run["clients"].append(
            {
                "name": name,
                "state": doing,
                "visits": counts[name],
                "turns": state.turns[name],
                "charged": 0 if book is None else ledgers.reservations(book),
                "task": task.task_id if task else "",
                "reason": reason,
                "seen_seconds": None,
                "usual_seconds": None,
                "silent": False,
                "epsilon": epsilons.get(name),
                "delta": delta if name in epsilons else None,
                "ledger": f"{reached.entries}:{reached.hash}" if reached else "",
            }
        )
    return run


def _verdict(folder: Path) -> list[str]:
    """Returns the verdict on a run that ended, in sentences; none of one that did not."""
    from fedvi.results.run_folder import RESULT

    try:
        found = json.loads((folder / RESULT / "result.json").read_text(encoding="utf-8"))
        return [str(line) for line in found["verdict"]["lines"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _digest(folder: Path, origin: str) -> str:
    """Returns what sites compare: the plan's digest, where it can be read; ledgers carry the first."""
    from fedvi.run import server_plan

    try:
        plan = server_plan.read(folder / server_plan.FILE)
    except errors.FedviError:
        return origin
    return plan.digest if plan.study.origin_digest == origin else origin


def _priced(
    folder: Path, books: Mapping[str, Any]
) -> tuple[dict[str, float], float | None, str | None]:
    """Prices ledgers as the server did, by the study in its plan.

    Returns:
      Client → ε, the δ of all of them, and why they are not known if they are not.
    """
    from fedvi.run import server_plan
    from fedvi.server.core.prices import price
    from fedvi.study.spec import shared_parts

    try:
        plan = server_plan.read(folder / server_plan.FILE)
        origin = plan.study.origin_digest
        other = [name for name, book in books.items() if book.header.study_digest != origin]
        if other:
            return {}, None, f"{folder / server_plan.FILE} is of another study than the ledgers"
        budget = shared_parts.budget(plan.study, plan.table_distance)
        if budget is None:
            return {}, None, "the study protects nothing, and nothing is priced"
        return price(budget, books, {}), budget.delta, None
    except errors.FedviError as error:
        return {}, None, error.message
