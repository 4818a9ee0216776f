"""`fedvi status`: a server's run at a glance, also while the server is stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedvi import errors
from fedvi.cli import _remote
from fedvi.server.watch.public_values import span, where

__all__ = ["show", "status"]


@click.command()
@_remote.addressed
def status(state: Path | None, server: str | None, tls: Path | None, as_json: bool) -> None:
    """Show the run of a server: where it stands, who is there, whom it awaits, what was charged.

    STATE is the --state folder of a server on this machine; it may be left out where .fedvi holds
    one. Of a server that is stopped, what it saved is shown, priced anew. From elsewhere, give
    --server, the server's --admin address.

    \b
      fedvi status .fedvi/heart-disease/server
      fedvi status --server fedvi.example.org:7444 --tls tls/admin --json

    Exit codes: 0 there it is; 3 no server answers; 4 not authorised; 5 the saved state is damaged.
    """
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
        show(_saved(folder), as_json)
        return
    show(_remote.run_as_dict(run), as_json)


def show(run: dict[str, Any], as_json: bool) -> None:
    """Prints a run."""
    if as_json:
        click.echo(json.dumps(run, indent=2, allow_nan=False))
        return
    from fedvi.report import tables

    console = tables.console()
    lines = [
        f"{run['study']}: {run['status'].replace('_', ' ')}"
        + (f" ({run['reason']})" if run["reason"] else "")
    ]
    if run["server"] == "stopped":
        # Nobody knows how many rounds are planned, but of a script's stage.
        saved = f"round {run['rounds']}" if run["stage"] is None else where(run)
        lines.append(f"THE SERVER IS STOPPED; it saved {saved}, version {run['version']}")
    else:
        secured = "mutual TLS" if run["tls"] == "mtls" else "clear text"
        lines.append(
            f"{run['schedule']}, {where(run)}, version "
            f"{run['version']}, {secured}, up {span(run['uptime_seconds'])}, fedvi {run['fedvi']}"
        )
    if run["gap"] is not None:
        lines.append(
            f"over the last round no mean moved, or missed its aim, by more than {run['gap']:.2g} "
            "posterior sd"
        )
    if run["awaited"]:
        lines.append(
            "awaits "
            + ", ".join(run["awaited"])
            + ("" if run["deadline_seconds"] is None else f" for {span(run['deadline_seconds'])}")
        )
    if run["unpriced"] is not None:
        lines.append(f"ε so far is not known: {run['unpriced']}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    names = ("client", "state", "answers", "charged", "ε so far", "last heard")
    rows = [
        (
            row["name"],
            row["state"] + (f": {row['reason']}" if row["reason"] else ""),
            str(row["visits"])
            + ("" if run["rounds_planned"] is None else f" of {run['rounds_planned']}"),
            str(row["charged"]),
            tables.bound(row["epsilon"]),
            "–" if row["seen_seconds"] is None else f"{span(row['seen_seconds'])} ago",
        )
        for row in run["clients"]
    ]
    console.print(tables.grid(names, rows, "", ("client", "state")), crop=False)


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
    for name, visits in state.visits.items():
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
                "visits": visits,
                "turns": state.turns[name],
                "charged": 0 if book is None else ledgers.reservations(book),
                "task": task.task_id if task else "",
                "reason": reason,
                "seen_seconds": None,
                "epsilon": epsilons.get(name),
                "delta": delta if name in epsilons else None,
                "ledger": f"{reached.entries}:{reached.hash}" if reached else "",
            }
        )
    return run


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
    from fedvi.study import shared_parts

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
