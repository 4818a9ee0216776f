"""`fedvi client STUDY.toml --as NAME --data FILE`: one site of a federation, beside its records."""

import contextlib
import json
import math
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fedvi import errors
from fedvi.cli._flags import (
    FILE,
    FOLDER,
    allow_code_flag,
    check_life_charged,
    life_flags,
    log_format_flag,
    policy_of_site,
)
from fedvi.client import app
from fedvi.client.file_link import FileLink, Written
from fedvi.client.guard import Guard
from fedvi.client.worker import Worker
from fedvi.federation.messages import Failure, Goodbye, Submit
from fedvi.privacy import ledger
from fedvi.run.site import client_worker, file_shard
from fedvi.store.sqlite import SqliteClientStore
from fedvi.study import policies as site_policies
from fedvi.study.build import Assembly, assemble
from fedvi.study.config import Study, load_study
from fedvi.transport import certificates, files, identity, parcels, probe, status
from fedvi.transport.grpc import GrpcLink
from fedvi.transport.memory import Link
from fedvi.transport.parcels import ResultFile
from fedvi.transport.signers import Certified

__all__ = ["client"]

_WAITING_SECONDS = 30.0
# So often may a server hang up at the sight of a certificate, without saying why, before it is believed.
_HANG_UPS = 3

_Connect = Callable[[Assembly, Callable[[], ledger.Ledger], contextlib.ExitStack], Link]


@click.command()
@click.argument("study", type=FILE)
@click.option("--as", "name", required=True, help="Name of this client in the study.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The file of records: .csv, .tsv, .csv.gz, .parquet (or a folder), .npz, .npy. [default: the "
    "one that the study names for this client]",
)
@click.option(
    "--cache",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Keep prepared records in hidden temporary files in this folder, and delete them when the client "
    "ends. [default: in memory; from 512 MiB, in the system's temporary folder]",
)
@click.option(
    "--server",
    envvar="FEDVI_SERVER",
    metavar="HOST:PORT",
    help="Address of the server. [env: FEDVI_SERVER]",
)
@click.option(
    "--task",
    type=FILE,
    help="Without a network, in place of --server: the task file that `fedvi export` made for this site. "
    "The answer is written to a file.",
)
@click.option(
    "--result",
    type=FILE,
    help="With --task: file for the answer. [default: beside the task, ending in .result]",
)
@click.option(
    "--state",
    type=FOLDER,
    help="Folder of the ledger and of answers that are not yet confirmed. Never restore it from a backup. "
    "[default: .fedvi/STUDY/NAME]",
)
@click.option(
    "--tls",
    type=FOLDER,
    help="The folder that `fedvi enroll` made, with this site's key and certificate.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Send in clear text to another machine. Everybody in between can read and change it.",
)
@policy_of_site(
    "This site's own policy (TOML), which limits what it will answer. It replaces the --allow-… options."
)
@click.option(
    "--allow-unprotected",
    is_flag=True,
    help='Without --policy: answer a study with protection = "none", whose statistics leave without noise.',
)
@click.option(
    "--allow-simulated-noise",
    is_flag=True,
    help="Without --policy: answer a study whose noise guarantees nothing, since it follows from "
    "`insecure_seed` or is drawn in floating point.",
)
@life_flags
@click.option(
    "--private-metrics",
    type=FOLDER,
    help="Write what the solver measures on the records to this folder. These numbers are not protected: "
    "only this site may see them.",
)
@log_format_flag
@click.option(
    "--give-up-after",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="End with code 3 if the server cannot be reached for this long. [default: never]",
)
@allow_code_flag
def client(
    study: Path,
    name: str,
    data: Path | None,
    cache: Path | None,
    server: str | None,
    task: Path | None,
    result: Path | None,
    state: Path | None,
    tls: Path | None,
    insecure: bool,
    policy: Path | None,
    allow_unprotected: bool,
    allow_simulated_noise: bool,
    life: Path | None,
    begin_life: bool,
    private_metrics: Path | None,
    log_format: str,
    give_up_after: float | None,
) -> None:
    """Take part in a federation, as one of its sites, beside its records.

    \b
      fedvi client study.toml --as north --data north.csv --tls tls \\
        --server fedvi.example.org:7443

    It dials the server and opens no port. It asks for tasks, checks each against the budget and the
    site's policy, charges the ledger, and only then reads the records and sends a noised answer. If it
    is stopped, killed or cut off, start it again with the same --state: it goes on where it was. The
    text after `the server says:` comes from the server, and is no advice of fedvi's.

    Without a network to the server, answer a task that was carried here, and carry the result back. It
    counts as sent once a later task file says that it arrived; until then, the same command writes the
    same answer again. `fedvi export --help` shows a whole round.

    \b
      fedvi client study.toml --as north --data north.csv --tls tls \\
        --task north-0.task

    Exit codes: 0 the run is over, the result is written, or SIGTERM or Ctrl-C came; 1 the task file is
    not for this site, of another study, or an old one; 2 the study, the data or the command line is
    wrong; 3 no connection; 4 not authorised; 5 the budget or the policy does not allow it.
    """
    report = _reporter(log_format)
    described = load_study(study)
    _check_name(name, described)
    path = data if data is not None else _declared_data(described, name, study.parent)
    if not path.exists():
        raise errors.DataError(f"no file of records at {path}", "give it with --data FILE")
    folder = state if state is not None else Path(".fedvi") / described.study.name / name
    # Before anything is imported or computed, whatever refuses without it.
    if task is None:
        heard = folder / app.HEARD
        connect = _by_network(server, result, tls, insecure, name, give_up_after, heard, report)
    else:
        connect = _by_file(task, result, tls, insecure, name, report)
    if policy is not None and (allow_unprotected or allow_simulated_noise):
        key = "unprotected" if allow_unprotected else "simulated_noise"
        raise errors.ConfigError(
            f"--allow-{key.replace('_', '-')} is given beside --policy, which decides alone",
            f"leave it out, or write {key} = true under [allow] of {policy}",
        )
    judged = site_policies.load({} if policy is None else {name: policy}, described)
    site_policies.check_code(judged, described)
    check_life_charged(any(found.life is not None for found in judged.values()))
    try:
        with app.stop_on_signals(), contextlib.ExitStack() as closing:
            assembly = assemble(described)
            for line in (*assembly.warnings, *_unprotected(assembly)):
                report("warning", line)
            if policy is None:
                site_policies.check_without_policy(
                    assembly,
                    study,
                    unprotected=allow_unprotected,
                    simulated_noise=allow_simulated_noise,
                )
            # A task file that is not for this site is refused before anything is opened.
            link = connect(assembly, lambda: store.ledger, closing)
            guard = None
            if policy is not None:
                guard = site_policies.guards(
                    judged,
                    {name: policy},
                    assembly,
                    life=life,
                    begin_life=begin_life,
                    tell=lambda line: report("warning", line),
                )[name]
                if guard.life_place is not None:
                    report("lifetime", f"charges for life: {guard.life_place}")
            store = SqliteClientStore(folder, assembly.header(name))
            closing.callback(store.close)
            where = f"server {server}" if task is None else f"task file {task}"
            report("started", f"{name} of {described.study.name}, {where}", client=name)
            # A file is read, and nobody joins.
            told = report if task is None else _without("joined", report)
            watched = app.Watched(
                link, assembly.schedule.rounds, told, lambda: _epsilon(assembly, store)
            )
            roster = None if policy is None else judged[name].allow.roster
            worker = client_worker(
                assembly,
                name,
                watched,
                store,
                file_shard(assembly, name, path, cache=cache, tell=_on_screen(log_format)),
                admit=None if guard is None else guard.admit,
                metrics_folder=private_metrics,
                signer=None if tls is None else Certified(tls),
                roster=roster,
                tell=_pinning(report, named=roster is not None),
            )
            # The answer is in its file, as was reported; what it cost is told all the same.
            with contextlib.suppress(Written):
                report("done", "the run is over", server_says=_work(worker, link))
            _account(assembly, store, folder, guard, report)
    except app.Stopped as stopped:
        report("stopped", f"{stopped}: ended; start again with the same --state to go on")
    except status.Misnamed as error:
        raise _misnamed(server, tls) or error from None


def _work(worker: Worker, link: Link) -> str:
    """Works until the run is over; says goodbye if it is stopped before.

    Raises:
      FedviError: whatever the worker raises. Of any other error it says where, and not what: such a
        text may hold values of records, and this one ends in a log.
    """
    try:
        return app.run(worker)
    except app.Stopped:
        with contextlib.suppress(errors.FedviError):
            link.handle(Goodbye(worker.client))
        raise
    except errors.FedviError:
        raise
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        raise errors.FedviError(
            f"the client failed with {type(error).__name__}; its message is not shown, since it may "
            f"contain values of records\n{where}",
            "the ledger is safe; start it again with the same --state to go on",
        ) from None


def _by_network(
    server: str | None,
    result: Path | None,
    tls: Path | None,
    insecure: bool,
    name: str,
    give_up_after: float | None,
    heard: Path,
    report: app.Report,
) -> _Connect:
    """Returns what dials out to the server.

    Raises:
      ConfigError, IdentityError: it could not, or may not.
    """
    if server is None or result is not None:
        raise errors.ConfigError(
            "--server and --task are missing" if server is None else "--result is without --task",
            "give --server HOST:PORT, or the file that was carried here with --task FILE",
        )
    probe.parse_address(server)  # gRPC reads a port that is none as another one
    credentials = _credentials(server, tls, insecure, name, report)
    waiting = _Waiting(server, tls, report)

    def connect(
        assembly: Assembly, _: Callable[[], ledger.Ledger], closing: contextlib.ExitStack
    ) -> Link:
        link = GrpcLink(
            server,
            name,
            assembly.family.zeros(),
            credentials=credentials,
            give_up_after=give_up_after,
            on_wait=waiting.say,
            on_heard=_touching(heard, waiting.begin),
        )
        closing.callback(link.close)
        return link

    return connect


def _misnamed(server: str | None, tls: Path | None) -> errors.IdentityError | None:
    """Returns what names the hosts that the server's certificate is for, if it can still be seen."""
    if server is None or tls is None:
        return None
    finding = probe.server_certificate(*probe.parse_address(server), tls, certificates.now())
    if finding.status != "fail" or finding.check == "tls":
        return None
    return errors.IdentityError(finding.said, finding.advice, finding.server_says)


def _by_file(
    task: Path,
    result: Path | None,
    tls: Path | None,
    insecure: bool,
    name: str,
    report: app.Report,
) -> _Connect:
    """Returns what reads the task file, and writes the result file in place of sending.

    Raises:
      ConfigError, IdentityError: there is nothing to sign with, or no place for the result.
    """
    given = click.get_current_context().get_parameter_source("server")
    if given is ParameterSource.COMMANDLINE:
        raise errors.ConfigError("--server is given beside --task", "leave out one of the two")
    if tls is None or insecure:
        raise errors.ConfigError(
            "--tls is missing" if tls is None else "--insecure is given beside --task",
            "files are signed: name the folder that `fedvi enroll` made with --tls",
        )
    _check_own(tls, name, report)
    target = result or task.with_suffix(parcels.RESULT_SUFFIX)
    parcels.check_target(target)

    def write(parcel: ResultFile) -> None:
        parcels.write_result(target, tls, parcel)
        match parcel.answer:
            case Submit(task_id=task_id):
                said = f"{target} holds the answer to task {task_id}: carry it to the server"
            case Failure(task_id=task_id, code=code):
                said = (
                    f"{target} tells the server, once it is carried there, that task {task_id} cannot be "
                    f"answered, with one word: {code}"
                )
            case _:
                said = f"{target} holds this site's part of the keys: carry it to the server"
        report("written", said, task=parcel.task_id, file=str(target))

    def connect(
        assembly: Assembly, own: Callable[[], ledger.Ledger], _: contextlib.ExitStack
    ) -> Link:
        authority = files.read(tls / identity.AUTHORITY, "the authority's certificate")
        parcel = parcels.read_task(
            task, authority, name, assembly.study.digest, assembly.family.zeros()
        )
        return FileLink(parcel, own, write)

    return connect


class _Waiting:
    """Says that the server is waited for, now and then: it may be away for a night.

    It also looks whether waiting can help at all.
    """

    def __init__(self, server: str, tls: Path | None, report: app.Report) -> None:
        self._server, self._tls, self._report = server, tls, report
        self._last = -math.inf
        self._hang_ups = 0

    def begin(self) -> None:
        """Forgets what was: the server answered."""
        self._hang_ups = 0

    def say(self, failure: errors.FedviError) -> None:
        """Says it.

        Raises:
          IdentityError: the two do not believe each other, and only this site can change that.
          ConfigError: the server asks for TLS, and this site was started without.
        """
        if time.monotonic() - self._last < _WAITING_SECONDS:
            return
        self._last = time.monotonic()
        reason, says = failure.message, failure.server_says
        finding, mismatch = None, probe.mismatch(self._server, self._tls)
        if isinstance(mismatch, errors.ConfigError):
            raise mismatch
        if mismatch is not None:
            reason, says = f"{mismatch.message}: {mismatch.hint}", mismatch.server_says
        elif self._tls is not None:
            address = probe.parse_address(self._server)
            finding = probe.believed(*address, self._tls, certificates.now())
        if finding is None or finding.status != "fail":
            # Only those count that nothing came between, not a handshake either that went well.
            self._hang_ups = 0
        else:
            hung_up = finding.passes and finding.exit_code == errors.IdentityError.exit_code
            self._hang_ups = self._hang_ups + 1 if hung_up else 0
            if not finding.passes or self._hang_ups == _HANG_UPS:
                raise errors.IdentityError(finding.said, finding.advice, finding.server_says)
            if finding.check == "server's certificate":
                reason, says = finding.said, finding.server_says
        self._report("waiting", f"waiting for {self._server}: {reason}", server_says=says)


def _pinning(report: app.Report, named: bool) -> Callable[[str, Sequence[str]], None]:
    """Returns what says with whom this site masks its answers from now on.

    Args:
      report: takes an event and its sentence.
      named: whether the policy names the roster, and would have refused any other.
    """

    def say(roster: str, absent: Sequence[str]) -> None:
        without = f", without {', '.join(absent)}" if absent else ""
        advice = (
            "compare it with the other sites, over the telephone, and write it into the policy as "
            "allow.roster"
        )
        report(
            "roster",
            f"masks its answers with the sites of the roster {roster}{without}: "
            f"{'the policy names it' if named else advice}",
            roster=roster,
        )

    return say


def _touching(file: Path, then: Callable[[], None]) -> Callable[[], None]:
    """Returns what notes that the server answered, for `fedvi health`."""

    def touch() -> None:
        then()
        with contextlib.suppress(OSError):  # of a full disk, the ledger tells
            file.touch(mode=0o600)

    return touch


def _unprotected(assembly: Assembly) -> list[str]:
    """Says loudly, before anything is sent, what this site is not protected from."""
    study = assembly.study
    if not study.privacy.private:
        return [
            "NOTHING IS PROTECTED in this study: un-noised statistics of the records leave here"
        ]
    if study.simulation.insecure_seed is not None:
        return [
            "NOTHING IS PROTECTED: the noise follows from `simulation.insecure_seed`, and whoever has "
            "the study file can take it off what is sent. Stop, unless the records are made up"
        ]
    return [f"NO GUARANTEE HOLDS in this study: {assembly.mark}"] if assembly.mark else []


def _on_screen(form: str) -> Callable[[str], None] | None:
    """Returns what says what follows from the records, for whoever holds them: nothing of it is sent.

    None where no terminal is: what is written there is a log, which may be collected where nobody may know.
    """

    def say(text: str) -> None:
        click.echo(
            f"warning: {text}. For this site's eyes alone: look with `fedvi data inspect`, and mend the "
            "file before another study",
            err=True,
        )

    return say if form == "plain" and sys.stderr.isatty() else None


def _check_name(name: str, study: Study) -> None:
    names = [entry.name for entry in study.clients]
    if name not in names:
        raise errors.ConfigError(
            f"--as is {name!r}, which the study does not have", errors.did_you_mean(name, names)
        )


def _declared_data(study: Study, name: str, base: Path) -> Path:
    declared = next(entry.data for entry in study.clients if entry.name == name)
    if declared is None:
        raise errors.ConfigError(
            f"--data is missing, and the study names no file for {name!r}",
            "give --data FILE: it is read here and nowhere else",
        )
    return base / declared


def _credentials(
    server: str, tls: Path | None, insecure: bool, name: str, report: app.Report
) -> Any:
    """Returns what the channel is secured with; None for plaintext.

    Raises:
      ConfigError: plaintext beyond this machine was not asked for, or both were.
      IdentityError: the certificate is of somebody else.
    """
    if tls is None:
        if not (insecure or identity.is_loopback(server)):
            raise errors.ConfigError(
                f"--server is {server}, another machine, and --tls is not given",
                "name the folder that `fedvi enroll` made with --tls; --insecure sends in clear text",
            )
        if not identity.is_loopback(server):
            report("warning", "everything is sent in clear text (--insecure)")
        return None
    if insecure:
        raise errors.ConfigError("--insecure is given beside --tls", "leave out one of the two")
    _check_own(tls, name, report)
    return identity.channel_credentials(tls)


def _check_own(tls: Path, name: str, report: app.Report) -> None:
    """Checks that a folder holds this client's certificate, and says if that ends soon.

    Raises:
      IdentityError: the certificate is of somebody else.
    """
    own = identity.holding(tls, role="client").identity
    if own.name != name:
        raise errors.IdentityError(
            f"the certificate in {tls} is of {own.name!r}, expected {name!r} as --as says",
            "give --tls the folder of this client",
        )
    warning = identity.expiry_warning(own)
    if warning is not None:
        report("warning", warning)


def _epsilon(assembly: Assembly, store: SqliteClientStore) -> float | None:
    """Returns what was charged so far, in the study's relation; None without protection."""
    if assembly.budget is None:
        return None
    return assembly.budget.accountant.epsilon(ledger.spent(store.ledger), assembly.budget.delta)


def _account(
    assembly: Assembly,
    store: SqliteClientStore,
    folder: Path,
    guard: Guard | None,
    report: app.Report,
) -> None:
    """Says what the run cost this site's records."""
    budget, spent = assembly.budget, _epsilon(assembly, store)
    if budget is None or spent is None:
        report("privacy", "no protection was promised: un-noised statistics left this site")
        return
    report(
        "privacy",
        f"ε {spent:.4g} of {budget.epsilon:g} spent at δ {budget.delta:g} under "
        f"{budget.accountant.relation}"
        + (f" — {assembly.mark}" if assembly.mark else "")
        + f"; `fedvi ledger show {folder}` prints the ledger",
        epsilon=spent,
        delta=budget.delta,
        relation=budget.accountant.relation,
    )
    life = None if guard is None else guard.lifetime_spend()
    if guard is not None and life is not None:
        report(
            "lifetime",
            f"ε {life.epsilon:.4g} of {life.cap:g} spent for life at δ {life.delta:g}: it holds whatever "
            "studies follow, and so may be larger than the ε of the studies so far; "
            f"`fedvi ledger show {shlex.quote(guard.life_place or '')}` prints the ledger",
            epsilon=life.epsilon,
            cap=life.cap,
        )


def _without(silent: str, report: app.Report) -> app.Report:
    """Returns what reports everything but one kind."""

    def say(kind: str, text: str, **fields: Any) -> None:
        if kind != silent:
            report(kind, text, **fields)

    return say


def _reporter(form: str) -> Callable[..., None]:
    """Returns what writes one line on standard error, as text or as a JSON object."""

    def plain(kind: str, text: str, server_says: str = "", **fields: Any) -> None:
        label = "warning: " if kind == "warning" else ""
        said = f"{text}; {errors.quoted(server_says)}" if server_says else text
        click.echo(f"{time.strftime('%H:%M:%S')}  {label}{' '.join(said.splitlines())}", err=True)

    def structured(kind: str, text: str, server_says: str = "", **fields: Any) -> None:
        line = {"time": round(time.time(), 3), "kind": kind, "message": text, **fields}
        if server_says:
            line["server_says"] = errors.in_one_line(server_says)
        click.echo(json.dumps(line, ensure_ascii=False), err=True)

    return plain if form == "plain" else structured
