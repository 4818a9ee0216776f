"""`fedvi doctor`: why a client cannot reach its server, or what may soon go wrong, check by check."""

import contextlib
import os
import platform
import secrets
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import grpc

from fedvi import errors, permissions
from fedvi.cli._flags import FILE, FOLDER, code_flags
from fedvi.federation.messages import Hello
from fedvi.privacy import ledger as ledgers
from fedvi.report import tables
from fedvi.store.sqlite import DATABASE, read_ledger
from fedvi.transport import certificates, identity, probe, status, wire
from fedvi.transport._wire import federation_pb2_grpc, health_pb2, health_pb2_grpc
from fedvi.transport.probe import Finding

__all__ = ["doctor"]

_TIMEOUT_SECONDS = 5.0

# A client writes megabytes; below the first it may stop in the middle of a round.
_TOO_LITTLE_BYTES = 100 << 20
_LITTLE_BYTES = 1 << 30
# A release waits for four of these. Network file systems and broken disks take longer.
_SLOW_SECONDS = 0.25

_AGREED = Finding("study and protocol", "ok", "the server runs this study, and speaks as we do")
_WITHOUT_CERTIFICATE = Finding(
    "tls",
    "fail",
    "the server speaks TLS and wants a certificate, and none was given",
    "enrol with `fedvi enroll`, and name the folder with --tls",
    errors.IdentityError.exit_code,
)
_IN_THE_OPEN = Finding(
    "tls",
    "fail",
    "the server speaks no TLS, and is on another machine",
    "have it started with --tls; --insecure sends everything in the open",
    errors.TransportError.exit_code,
)


@click.command()
@click.argument("study", required=False, type=FILE)
@click.option(
    "--server",
    required=True,
    envvar="FEDVI_SERVER",
    metavar="HOST:PORT",
    help="The server's address, as the client dials it. [env: FEDVI_SERVER]",
)
@click.option("--tls", type=FOLDER, help="The folder of this party's key and certificates.")
@click.option(
    "--insecure", is_flag=True, help="The server is on another machine and speaks clear text."
)
@click.option(
    "--state",
    type=FOLDER,
    help="The client's state folder: check its disk, and its ledger against the server's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@code_flags
def doctor(
    study: Path | None,
    server: str,
    tls: Path | None,
    insecure: bool,
    state: Path | None,
    as_json: bool,
) -> None:
    """Look at everything between a client and its server, and explain what is wrong.

    \b
      fedvi doctor --server fedvi.example.org:7443 --tls tls
      fedvi doctor study.toml --server fedvi.example.org:7443 --tls tls \\
        --state .fedvi/trauma/north

    It checks this party's certificates, DNS, the port, the TLS handshake, both certificates' names and
    dates, the roster, and the versions of both sides; with STUDY, that the server runs the same study;
    with --state, the disk; with both, the ledger against the server's. It reads no data and charges no
    ledger. Where it compares ledgers, the server then shows this client as just heard from.

    Exit codes: 0 nothing failed; 1 something else failed; 3 no connection or no TLS; 4 the certificate
    does not allow it; 5 a ledger was rolled back.
    """
    host, port = probe.parse_address(server)
    found = [_versions(), *([] if state is None else _disk(state))]
    digest, findings = _study(study)
    found += findings
    found += _way(server, host, port, tls, insecure, state, digest)
    if as_json:
        content = {
            "server": server,
            "checks": [
                {key: getattr(item, key) for key in ("check", "status", "said", "advice")}
                | (
                    {"server_says": errors.in_one_line(item.server_says)}
                    if item.server_says
                    else {}
                )
                for item in found
            ],
        }
        tables.print_json(content)
    else:
        _show(found)
    failures = [item.exit_code for item in found if item.status == "fail"]
    if failures:
        # Who may not come in is told so, even if a failed handshake was how it showed.
        refused = errors.IdentityError.exit_code
        sys.exit(refused if refused in failures else failures[0])


def _show(found: list[Finding]) -> None:
    names = ["check", "", "what was found"]
    cells = [
        [item.check, item.status, item.said + (f"\n→ {item.advice}" if item.advice else "")]
        for item in found
    ]
    tables.console().print(tables.grid(names, cells, "", names), crop=False)
    for item in found:
        if item.server_says:  # outside the table, whose cells are broken into lines
            click.echo(f"{item.check}: {errors.quoted(item.server_says)}")


def _way(
    server: str,
    host: str,
    port: int,
    tls: Path | None,
    insecure: bool,
    state: Path | None,
    digest: str | None,
) -> list[Finding]:
    """Follows the way to the server until something fails; what lies beyond cannot be seen."""
    at = certificates.now()
    own, found = (None, []) if tls is None else probe.own_files(tls, at)
    if tls is not None:
        found.append(Finding("clock", "ok", f"it is {certificates.day(at)} here"))
    found += probe.reach(host, port)
    if found[-1].status == "fail":
        return found
    if tls is None:
        if probe.speaks_tls(host, port):
            return [*found, _WITHOUT_CERTIFICATE]
        if not insecure and not identity.is_loopback(server):
            return [*found, _IN_THE_OPEN]
        return [*found, *_calls(grpc.insecure_channel(server), "", state, digest)]
    found.append(probe.server_certificate(host, port, tls, at))
    if found[-1].status == "fail" or ("key", "fail") in [item[:2] for item in found]:
        return found
    if own is not None and own.role == "server":
        # A server's certificate opens no connection; what it needs more is its roster.
        return [*found, _roster(tls / identity.ROSTER)]
    found.append(probe.handshake(host, port, tls))
    if own is None or any(item.status == "fail" for item in found):
        return found
    channel = grpc.secure_channel(server, identity.channel_credentials(tls))
    return [*found, *_calls(channel, own.name if own.role == "client" else "", state, digest)]


def _calls(
    channel: grpc.Channel, name: str, state: Path | None, digest: str | None
) -> list[Finding]:
    """Asks the server whether it is ready and, as a client, whether it lets this one in."""
    with channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS
            )
        except grpc.RpcError as error:
            return [_failed("ready", status.from_status(error))]
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            ready = Finding(
                "ready",
                "warn",
                "the server is up and takes no clients yet",
                "wait until it has read its study, or look at its log",
            )
        else:
            ready = Finding("ready", "ok", "the server takes clients")
        if not name:
            return [ready]
        return [
            ready,
            *_hello(federation_pb2_grpc.FederationServiceStub(channel), name, state, digest),
        ]


def _hello(stub: Any, name: str, state: Path | None, digest: str | None) -> list[Finding]:
    """Greets the server, or as much of it as can be said without a study or a ledger."""
    try:
        ledger = _ledger(state)
    except errors.LedgerError as error:
        return [_failed("ledger", error)]
    try:
        if digest is None:
            # Of a task that was never given: who asks is checked, and that is the question.
            _called(stub.QueryTask, wire.query_to(wire.Query(name, "doctor", "0" * 64)))
            return [_let_in(name)]
        anchor = None if ledger is None else ledgers.anchor(ledger)
        reply = _called(stub.Hello, wire.hello_to(Hello(name, digest, anchor)))
        welcome, _ = wire.welcome_from(reply)
        if ledger is not None:
            # Whoever has the longer chain can tell; the server has looked at its own.
            ledgers.check_counterpart(ledger, welcome.anchor, "client")
    except errors.HelloNeeded:
        # Only the ledger was missing, which is asked for last; nothing was changed by asking.
        return [_let_in(name), *([] if digest is None else [_AGREED])]
    except errors.IdentityError as error:
        return [_failed("roster", error)]
    except errors.LedgerError as error:
        return [_let_in(name), _failed("ledger", error)]
    except errors.ProtocolError as error:
        return [_let_in(name), _failed("study and protocol", error)]
    except errors.FedviError as error:
        return [_failed("hello", error)]
    found = [_let_in(name), _server_version(reply), _AGREED]
    if ledger is not None:
        said = f"{len(ledger.entries)} entries, and the server's ledger of {name} agrees"
        found.append(Finding("ledger", "ok", said))
    return found


def _called(method: Any, message: Any) -> Any:
    """Makes a call; raises what the server raised."""
    try:
        return method(message, timeout=_TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise status.from_status(error) from None


def _ledger(state: Path | None) -> ledgers.Ledger | None:
    if state is None or not (state / DATABASE).is_file():
        return None
    return read_ledger(state)


def _versions() -> Finding:
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("grpcio", "protobuf"))
    oldest, newest = wire.PROTOCOLS
    speaks = f"protocol {oldest}" if oldest == newest else f"protocols {oldest} to {newest}"
    return Finding(
        "version",
        "ok",
        f"{wire.software()}, {speaks}, Python {platform.python_version()}, {packages}",
    )


def _study(path: Path | None) -> tuple[str | None, list[Finding]]:
    if path is None:
        return None, []
    # Only here: a doctor without a study starts at once.
    from fedvi.study.config import load_study

    try:
        study = load_study(path)
    except errors.FedviError as error:
        return None, [_failed("study", error)]
    return study.digest, [Finding("study", "ok", f"{study.study.name}, digest {study.digest}")]


def _disk(folder: Path) -> list[Finding]:
    """Looks at the disk of a state folder, or of the folder in which it would be made."""
    place = next(
        level for level in (folder.absolute(), *folder.absolute().parents) if level.exists()
    )
    try:
        if place == folder.absolute():
            permissions.check(place, errors.LedgerError)
    except errors.LedgerError as error:
        return [_failed("state", error)]
    free = shutil.disk_usage(place).free
    size = f"{free / 2**30:.1f} GiB free for {folder}"
    if free < _TOO_LITTLE_BYTES:
        found = [Finding("disk", "fail", size, "a round may stop midway: make room", 1)]
    elif free < _LITTLE_BYTES:
        found = [Finding("disk", "warn", size, "make room before a long run")]
    else:
        found = [Finding("disk", "ok", size)]
    trial = place / f".doctor-{secrets.token_hex(4)}"
    try:
        began = time.perf_counter()
        descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, bytes(4096))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        seconds = time.perf_counter() - began
    except OSError as error:
        said = f"{place} cannot be written: {error.strerror}"
        return [*found, Finding("fsync", "fail", said, "check its owner and its mode", 1)]
    finally:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
    took = f"4 KiB are on the disk after {seconds * 1000:.0f} ms"
    if seconds > _SLOW_SECONDS:
        advice = "each release waits for several of these: keep the state on a local disk"
        return [*found, Finding("fsync", "warn", took, advice)]
    return [*found, Finding("fsync", "ok", took)]


def _roster(path: Path) -> Finding:
    try:
        members = identity.Roster(path).members()
    except errors.FedviError as error:
        return _failed("roster", error)
    active = [
        name
        for name, member in members.items()
        if any(item.revoked is None for item in member.certificates)
    ]
    return Finding("roster", "ok", f"lets in {', '.join(active) or 'nobody'}")


def _let_in(name: str) -> Finding:
    return Finding("roster", "ok", f"the server lets {name} in")


def _server_version(reply: Any) -> Finding:
    check, ours = "server's version", wire.software()
    if reply.software == ours:
        return Finding(check, "ok", f"{reply.software}, protocol {reply.protocol}")
    return Finding(
        check,
        "warn",
        f"the server runs another version of fedvi, and this is {ours}",
        f"both speak protocol {reply.protocol}; still, use one version of fedvi at all sites",
        server_says=reply.software,
    )


def _failed(check: str, error: errors.FedviError) -> Finding:
    return Finding(
        check, "fail", error.message, error.hint, error.exit_code, server_says=error.server_says
    )
