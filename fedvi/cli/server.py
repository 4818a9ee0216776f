"""`fedvi server STUDY.toml`: the server of a federation, which holds no record and needs no JAX."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

import click

from fedvi import errors, plugins
from fedvi.cli import _results
from fedvi.cli._flags import FILE, FOLDER, code_flags, log_format_flag
from fedvi.federation.messages import Reply, Request
from fedvi.report import tables
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan
from fedvi.server import logs
from fedvi.server.app import Addresses, App, Outcome, Settings, payload_limit, serve
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.server.rpc.door import PER_ADDRESS
from fedvi.server.store.durable import SqliteServerStore
from fedvi.server.store.transcript import TRANSCRIPT, Recorder
from fedvi.study.config import Study, load_study
from fedvi.transport import identity

__all__ = ["server"]


@click.command()
@click.argument("study", type=FILE)
@click.option(
    "--state",
    type=FOLDER,
    help="Folder of the run; a run that it holds goes on. [default: .fedvi/STUDY/server]",
)
@click.option(
    "--listen",
    default="127.0.0.1:7443",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for clients; port 0 takes a free one.",
)
@click.option("--tls", type=FOLDER, help="The folder that `fedvi enroll --role server` made.")
@click.option(
    "--roster",
    type=FILE,
    help="List of who is let in, as `fedvi ca` keeps it; read again whenever it changes. [default: "
    "roster.json in --tls]",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen in clear text to other machines. Everybody can then pass for any client.",
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    help="Address for operators on other machines, such as for `fedvi status --server`. They need a "
    "certificate of the role admin. Without --tls, only an address of this machine is allowed, and "
    "every account on it can then stop the run. On this machine, `fedvi status STATE` needs no --admin.",
)
@click.option(
    "--metrics", metavar="HOST:PORT", help="Address for metrics in the format of Prometheus."
)
@click.option(
    "--page",
    metavar="HOST:PORT",
    help="Address of a read-only page for browsers. Only an address of this machine is allowed, such as "
    "127.0.0.1:7480, and every user of it can read the page; from another machine, use `ssh -L`. Needs "
    "fedvi[report].",
)
@log_format_flag
@click.option(
    "--linger",
    type=click.FloatRange(min=0.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="After the run has ended, how long to wait for clients that have not heard of it.",
)
@click.option(
    "--extend",
    is_flag=True,
    help="Go on with a run after sites were added at the end of its study: [[clients]], each with "
    "`added = true`. Start every site with the longer file, too.",
)
@click.option(
    "--transcript",
    is_flag=True,
    help="Of a study with masked sums, keep all that each sum is computed from in the folder `transcript` "
    "of --state. With it, sites can recompute the run: `fedvi ledger verify --transcript`.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=8),
    metavar="NUMBER",
    help="Connections at once, of all addresses together. Each takes four open files. [default: 4096, or "
    "as many as the limit of open files allows]",
)
@click.option(
    "--connections-per-address",
    type=click.IntRange(min=1),
    default=PER_ADDRESS,
    show_default=True,
    metavar="NUMBER",
    help="Connections of one address over which no call was admitted yet; a newer one closes the oldest. "
    "Those of sites at work are not counted, so that many may share an address.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@code_flags
def server(
    study: Path,
    state: Path | None,
    listen: str,
    tls: Path | None,
    roster: Path | None,
    insecure: bool,
    admin: str | None,
    metrics: str | None,
    page: str | None,
    log_format: str,
    linger: float,
    extend: bool,
    transcript: bool,
    connections: int | None,
    connections_per_address: int,
    as_json: bool,
) -> None:
    """Run the server of a federation until its schedule is done.

    \b
      fedvi server study.toml --listen 0.0.0.0:7443 --tls tls/server \\
        --page 127.0.0.1:7480
      fedvi status .fedvi/heart-disease/server

    It gives tasks to clients that dial in, folds their answers into the posterior, and saves everything
    in --state before it replies: killed at any point and started again, it goes on where it was. Standard
    error says who answered each round and who did not. At the end it prints the posterior, leaves it in
    the folder `result` of --state, and tells the clients.

    Exit codes: 0 the schedule is done, or SIGTERM or Ctrl-C came; 2 the study or the command line is wrong;
    3 a port cannot be bound; 4 its certificate cannot be used; 5 the budget is spent, or the state is
    damaged or in use; 6 the run failed or was stopped.
    """
    if insecure and tls is not None:
        raise errors.ConfigError("--insecure is given beside --tls", "leave out one of the two")
    logs.set_up(log_format)
    name = load_study(study).study.name
    folder = state if state is not None else Path(".fedvi") / name / "server"
    settings = Settings(
        folder=folder,
        study=name,
        listen=listen,
        tls=tls,
        roster=roster,
        insecure=insecure,
        admin=admin,
        metrics=metrics,
        page=page,
        linger_seconds=linger,
        connections=connections,
        connections_per_address=connections_per_address,
    )
    settings.check()
    for line in (*_expiry(tls), *_exposed(settings)):
        logs.log("warning", line, logging.WARNING)
    plan = server_plan.prepare(study, folder)
    for line in (*plan.warnings, *_unprotected(plan.study)):
        logs.log("warning", line, logging.WARNING)
    spec = server_plan.to_spec(plan)
    earlier = server_plan.earlier_digests(plan, folder) if extend else ()
    with contextlib.closing(SqliteServerStore(folder, spec, earlier)) as store:
        server_plan.keep(plan, folder)
        spec = store.spec
        if transcript:
            spec = spec._replace(record=Recorder(folder / TRANSCRIPT, spec, store.load()))
        app = App(
            spec,
            store,
            dataclasses.replace(settings, payload_limit=payload_limit(spec)),
            journal=store,
            on_ready=lambda addresses: _greet(plan, store.load(), settings, addresses),
            on_end=lambda found: _results.write(plan, spec, found, folder),
            beside=_prior(study, plan.study.parts) if plan.has_prior_worker else None,
        )
        outcome = serve(app)
    _conclude(plan, spec, outcome, folder, as_json)


def _expiry(tls: Path | None) -> list[str]:
    """Returns a sentence if the server's certificate ends soon."""
    if tls is None:
        return []
    warning = identity.expiry_warning(identity.holding(tls, "server").identity)
    return [] if warning is None else [warning]


def _exposed(settings: Settings) -> list[str]:
    """Returns a sentence if the operators' port has no lock."""
    if settings.admin is None or settings.tls is not None:
        return []
    return [
        f"--admin {settings.admin} is in clear text: every user of this machine can pause and stop the "
        "run there. Leave it out, and use the socket in the state folder; or give --tls"
    ]


def _unprotected(study: Study) -> list[str]:
    """Returns a sentence if whoever has the study file can take the noise off the answers."""
    if study.simulation.insecure_seed is None:
        return []
    return [
        "NOTHING IS PROTECTED: the noise follows from `simulation.insecure_seed`, and whoever has the "
        "study file can take it off what clients send. Stop, unless their records are made up"
    ]


def _greet(
    plan: ServerPlan, found: ServerState | None, settings: Settings, addresses: Addresses
) -> None:
    secured = "mutual TLS" if settings.tls is not None else "CLEAR TEXT, no certificates"
    begun = found is not None and (found.version or found.tasks)
    logs.log(
        "ready",
        f"{plan.study.study.name}: "
        + (f"taken up at version {found.version}" if found is not None and begun else "new run")
        + f"; {len(plan.clients)} clients may dial in at {addresses.listen} ({secured})"
        + ("" if addresses.page is None else f"; to be watched at http://{addresses.page}"),
        **addresses._asdict(),
    )


def _prior(study: Path, parts: plugins.OutsideCode) -> Callable[[Callable[[Request], Reply]], None]:
    """Returns what refines the prior's factor beside the clients: the one part that needs JAX."""

    def work(handle: Callable[[Request], Reply]) -> None:
        from fedvi.run.site import run_prior

        # In a thread of its own, which has nothing of the command's context.
        run_prior(load_study(study, parts), handle)

    return work


def _conclude(
    plan: ServerPlan, spec: ServerSpec, outcome: Outcome, folder: Path, as_json: bool
) -> None:
    """Prints what came of it.

    Raises:
      BudgetExceeded, RunFailed: the run ended before its schedule did.
    """
    state = outcome.state
    if state.status not in protocol.OVER:
        logs.log("stopped", "the server was stopped; start it again with the same state to go on")
        return
    if outcome.unheard:
        logs.log("ended", f"not told of the end: {', '.join(outcome.unheard)}")
    if as_json:
        tables.print_json(_results.content(plan, spec, state))
    else:
        _results.show(plan, spec, state, folder)
    _results.check_completed(state)
