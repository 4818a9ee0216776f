"""`fedvi doctor`: each way in which a client may fail to reach its server is explained in its own words."""

import contextlib
import json
import shutil
import socket
import ssl
import threading
from concurrent import futures

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID

import fedvi
from fedvi.cli import doctor
from fedvi.cli.main import main
from fedvi.privacy import ledger as ledgers
from fedvi.store.sqlite import SqliteClientStore
from fedvi.study.config import load_study
from fedvi.transport import authority, certificates, identity, probe, roster
from fedvi.transport._wire import health_pb2, health_pb2_grpc
from tests.pki import DAY, NOW, authority_in, party
from tests.servers import COST, encoded, make_spec, running


@pytest.fixture(autouse=True)
def at_every_call(monkeypatch):
    """The server looks at its roster at every call: certificates are signed a moment before."""
    monkeypatch.setattr(roster, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def root(tmp_path):
    return authority_in(tmp_path / "ca", at=NOW - 300 * DAY)


@pytest.fixture
def spec(examples):
    """A run of the heart-disease study by its digest, with clients of other names."""
    digest = load_study(examples / "heart-disease" / "study-descent.toml").digest
    spec = make_spec(("north", "south"))
    headers = {name: each._replace(study_digest=digest) for name, each in spec.headers.items()}
    return spec._replace(study_digest=digest, headers=headers)


@pytest.fixture
def serve(root, spec, tmp_path):
    """Starts real servers with the certificate of a folder; without one, in plaintext."""
    with contextlib.ExitStack() as closing:

        def start(folder=None):
            state = tmp_path / f"state{len(list(tmp_path.glob('state*')))}"
            state.mkdir()
            settings = {} if folder is None else {"tls": folder, "roster": root / "roster.json"}
            server = closing.enter_context(running(spec, state, **settings))
            return server.addresses.listen.replace("127.0.0.1", "localhost")

        yield start


@pytest.fixture
def server(root, serve):
    return serve(party(root, "server", "server", ("localhost",)))


def run(*arguments, code):
    result = CliRunner().invoke(main, ["doctor", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def found(*arguments, code):
    """Returns check → (status, what was said)."""
    checks = json.loads(run(*arguments, "--json", code=code).stdout)["checks"]
    assert all(item["advice"] for item in checks if item["status"] == "fail")
    # What the server says has a field of its own.
    return {
        item["check"]: (item["status"], item["said"] + item.get("server_says", ""))
        for item in checks
    }


def failures(checks):
    return {name: said for name, (status, said) in checks.items() if status == "fail"}


def test_nothing_is_wrong_with_a_site_that_is_let_in(root, server, tmp_path, examples):
    study = examples / "heart-disease" / "study-descent.toml"
    arguments = (
        study,
        "--server",
        server,
        "--tls",
        party(root, "north"),
        "--state",
        tmp_path / "s",
    )
    checks = found(*arguments, code=0)
    assert {status for status, _ in checks.values()} == {"ok"}
    assert checks["roster"][1] == "the server lets north in"
    assert checks["tls"][1] == "TLSv1.3, both sides showed certificates"
    assert load_study(study).digest in checks["study"][1]
    assert checks["study and protocol"][0] == "ok"
    assert f"fedvi {fedvi.__version__}" in checks["version"][1]
    table = run(*arguments, code=0).stdout
    for name in checks:
        assert name in table
    # It looks and makes nothing.
    assert not (tmp_path / "s").exists()


def test_without_a_study_it_says_whether_the_roster_lets_the_site_in(root, server):
    checks = found("--server", server, "--tls", party(root, "north"), code=0)
    assert checks["roster"] == ("ok", "the server lets north in")


@pytest.mark.parametrize("case", ["revoked", "unrostered", "admin"])
def test_a_certificate_that_the_roster_does_not_let_in_is_named(
    tmp_path, root, server, examples, case
):
    north = party(root, "north")
    if case == "revoked":
        authority.revoke(root, "north")
        said = "the certificate of 'north' was revoked on"
    elif case == "unrostered":
        # The authority's own key signed it, behind its roster.
        shutil.copytree(root, tmp_path / "copy")
        north = party(tmp_path / "copy", "south", folder=tmp_path / "south")
        said = "is not on the server's roster"
    else:
        checks = found("--server", server, "--tls", party(root, "boss", "admin"), code=0)
        assert checks["ready"][0] == "ok"
        return
    study = examples / "heart-disease" / "study-descent.toml"
    for given in ((), (study,)):
        checks = found(*given, "--server", server, "--tls", north, code=4)
        assert said in failures(checks)["roster"]


def test_an_expired_certificate_is_named_and_the_server_hangs_up_on_it(root, server):
    old = party(root, "old", days=10, at=NOW - 50 * DAY)
    failed = failures(found("--server", server, "--tls", old, code=4))
    assert "the certificate of 'old' expired on" in failed["certificate"]
    assert failed["tls"] == "the server hung up when it saw your certificate"


def test_a_certificate_that_has_not_begun_points_at_the_clock(root, server):
    early = party(root, "early", at=NOW + 10 * DAY)
    result = run("--server", server, "--tls", early, code=4)
    assert "the certificate of 'early' begins on" in " ".join(result.stdout.split())
    assert "set the clock" in result.stdout


def test_an_expired_authority_is_named(tmp_path, root, server):
    expired = authority_in(tmp_path / "b" / "ca", days=20, at=NOW - 50 * DAY)
    late = party(expired, "late", days=90, at=NOW - 40 * DAY)
    failed = failures(found("--server", server, "--tls", late, code=4))
    assert "the authority's certificate in ca.pem expired on" in failed["authority"]


def test_no_certificate_is_named(root, server, tmp_path):
    failed = failures(found("--server", server, code=4))
    assert "wants a certificate, and none was given" in failed["tls"]
    (tmp_path / "empty").mkdir()
    failed = failures(found("--server", server, "--tls", tmp_path / "empty", code=4))
    assert "cert.pem: the certificate cannot be read" in failed["certificate"]
    # Only the authority is known: the handshake itself shows that a certificate is wanted.
    shutil.copy(root / "ca.pem", tmp_path / "empty" / "ca.pem")
    failed = failures(found("--server", server, "--tls", tmp_path / "empty", code=4))
    assert "it wants a certificate, and none was shown" in failed["tls"]


def test_another_authority_at_the_server_is_named_with_both_keys(tmp_path, root, serve):
    other = authority_in(tmp_path / "b" / "ca")
    address = serve(party(other, "server", "server", ("localhost",)))
    failed = failures(found("--server", address, "--tls", party(root, "north"), code=3))
    said = failed["server's certificate"]
    assert "was signed by another authority" in said
    for folder in (other, root):
        key = certificates.read(folder / "ca.pem").extensions.get_extension_for_class(
            certificates.x509.SubjectKeyIdentifier
        )
        assert key.value.digest.hex()[:16] in said


def test_a_server_that_trusts_another_authority_is_suspected(tmp_path, root, serve):
    folder = party(root, "server", "server", ("localhost",))
    other = authority_in(tmp_path / "b" / "ca")
    # It shows a certificate of ours and asks callers for one of the other authority.
    pair = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    credentials = grpc.ssl_server_credentials([pair], (other / "ca.pem").read_bytes(), True)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    arguments = ("--server", f"localhost:{port}", "--tls", party(root, "north"))
    result = run(*arguments, code=4)
    server.stop(None).wait()
    assert "its ca.pem is of another authority, or its clock is wrong" in result.stdout


def test_a_name_that_is_not_the_servers_is_named_with_those_that_are(root, server):
    address = server.replace("localhost", "127.0.0.1")
    failed = failures(found("--server", address, "--tls", party(root, "north"), code=3))
    assert failed["server's certificate"] == (
        "the server's certificate is for localhost, and 127.0.0.1 was dialled"
    )


def tls_server(folder):
    """A server of the standard library: it does not refuse to start as ours does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                context.wrap_socket(raw, server_side=True).close()
            except OSError:
                raw.close()

    threading.Thread(target=accept, daemon=True).start()
    return listener


@pytest.mark.parametrize(
    ("role", "days", "at", "said"),
    [
        ("server", 10, NOW - 50 * DAY, "the server's certificate expired on"),
        ("server", 90, NOW + 10 * DAY, "the server's certificate begins on"),
        ("client", 90, None, "is that of the client 'other', expected a server's"),
    ],
    ids=["expired", "clock", "role"],
)
def test_a_servers_certificate_that_cannot_be_believed_is_named(root, role, days, at, said):
    hosts = ("localhost",) if role == "server" else ()
    listener = tls_server(party(root, "other", role, hosts, days, at))
    address = f"localhost:{listener.getsockname()[1]}"
    failed = failures(found("--server", address, "--tls", party(root, "north"), code=3))
    listener.close()
    assert said in failed["server's certificate"]


def test_a_certificate_that_cannot_be_read_is_named_to_who_waits_too(root, tmp_path):
    # Anybody may answer at the server's address, with a certificate of any bytes.
    folder = tmp_path / "stranger"
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name, _ = certificates.subject("localhost", "server", ())
    garbage = x509.UnrecognizedExtension(ExtensionOID.TLS_FEATURE, b"\xff\x01")
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + DAY)
        .add_extension(garbage, critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificates.pem(made))
    (folder / "key.pem").write_bytes(certificates.key_pem(key))
    north = party(root, "north")
    listener = tls_server(folder)
    finding = probe.believed("localhost", listener.getsockname()[1], north, NOW)
    listener.close()
    assert finding.status == "fail"
    assert finding.said == "what the server showed is no certificate in PEM"


def test_a_server_without_tls_is_named(root, serve):
    failed = failures(found("--server", serve(), "--tls", party(root, "north"), code=3))
    assert failed["tls"] == "the server speaks no TLS on this port"


def test_plaintext_is_looked_at_on_this_machine_or_if_asked_for(root, serve, monkeypatch):
    address = serve()
    checks = found("--server", address, code=0)
    assert checks["ready"] == ("ok", "the server takes clients")
    monkeypatch.setattr(identity, "is_loopback", lambda _: False)
    failed = failures(found("--server", address, code=3))
    assert failed["tls"] == "the server speaks no TLS, and is on another machine"
    assert found("--server", address, "--insecure", code=0)["ready"][0] == "ok"


def test_a_port_where_nobody_listens_and_a_name_that_nobody_has_are_told_apart(root):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    north = party(root, "north")
    failed = failures(found("--server", f"localhost:{port}", "--tls", north, code=3))
    assert failed["tcp"] == f"localhost refuses connections on port {port}"
    failed = failures(found("--server", "nowhere.invalid:7443", "--tls", north, code=3))
    assert "the name 'nowhere.invalid' cannot be looked up" in failed["dns"]


def test_a_port_that_says_nothing_is_named(root, monkeypatch):
    monkeypatch.setattr(probe, "_TIMEOUT_SECONDS", 0.2)
    north = party(root, "north")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        finding = probe.server_certificate("localhost", port, north, NOW)
    assert finding.said == "the server took the connection and then said nothing"


def test_a_server_that_is_not_ready_is_warned_of():
    class Waiting(health_pb2_grpc.HealthServicer):
        def Check(self, request, context):
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    server = grpc.server(futures.ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(Waiting(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert found("--server", f"localhost:{port}", code=0)["ready"][0] == "warn"
    server.stop(None).wait()


def test_another_study_is_named(root, server, examples):
    study = examples / "trauma" / "study.toml"
    failed = failures(found(study, "--server", server, "--tls", party(root, "north"), code=1))
    assert set(failed) == {"study and protocol"}
    assert "client 'north' read another study" in failed["study and protocol"]


def test_a_study_that_cannot_be_read_is_named(root, server, tmp_path):
    checks = found(tmp_path / "no.toml", "--server", server, "--tls", party(root, "north"), code=2)
    assert set(failures(checks)) == {"study"}
    assert checks["roster"][0] == "ok"


def test_the_ledger_is_compared_with_the_servers(root, spec, server, tmp_path, examples):
    study = examples / "heart-disease" / "study-descent.toml"
    folder = tmp_path / "client"
    store = SqliteClientStore(folder, spec.headers["north"])
    arguments = (study, "--server", server, "--tls", party(root, "north"), "--state", folder)
    checks = found(*arguments, code=0)
    assert checks["ledger"] == ("ok", "0 entries, and the server's ledger of north agrees")
    assert f"fedvi {fedvi.__version__}" in checks["server's version"][1]
    # A release that the server never heard of was sealed and sent: it was rolled back.
    payload = encoded({"x": np.zeros(1)})
    book = ledgers.spend(store.ledger, "north/0#0", COST, None)
    store.reserve(book, "north/0#0", bytes(32), bytes(32))
    store.note_inputs("north/0#0", bytes(32), bytes(32), bytes(32))
    book = ledgers.seal(book, "north/0#0", payload.sha256)
    store.seal(book, "north/0#0", payload, None)
    store.acknowledge(ledgers.mark_sent(book, "north/0#0"), "north/0#0")
    store.close()
    assert set(failures(found(*arguments, code=5))) == {"ledger"}


def test_a_client_that_the_study_does_not_know_is_named(root, server, examples):
    study = examples / "heart-disease" / "study-descent.toml"
    failed = failures(found(study, "--server", server, "--tls", party(root, "west"), code=1))
    assert set(failed) == {"study and protocol"}
    assert "client 'west' is not in the study" in failed["study and protocol"]


def test_a_key_or_a_state_that_others_may_read_fails(root, server, tmp_path):
    north = party(root, "north")
    (north / "key.pem").chmod(0o644)
    failed = failures(found("--server", server, "--tls", north, code=4))
    assert failed.keys() == {"key"}
    assert "has mode 0644, so that others can read or change it, expected 0600" in failed["key"]
    (north / "key.pem").chmod(0o600)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o750)
    failed = failures(found("--server", server, "--tls", north, "--state", state, code=5))
    assert "has mode 0750" in failed["state"]


def test_an_end_that_is_near_is_warned_of(root, server):
    checks = found("--server", server, "--tls", party(root, "north", days=5), code=0)
    assert checks["certificate"][0] == "warn"
    assert "in less than 7 days" in checks["certificate"][1]


def test_a_full_or_slow_disk_is_seen(root, server, tmp_path, monkeypatch):
    arguments = ("--server", server, "--tls", party(root, "north"), "--state", tmp_path)
    sizes = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: sizes._replace(free=50 << 20))
    assert "0.0 GiB free" in failures(found(*arguments, code=1))["disk"]
    # Not to be let in comes first, whatever else failed.
    assert set(failures(found("--server", server, "--state", tmp_path, code=4))) == {"disk", "tls"}
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: sizes._replace(free=500 << 20))
    monkeypatch.setattr(doctor, "_SLOW_SECONDS", 0.0)
    checks = found(*arguments, code=0)
    assert (checks["disk"][0], checks["fsync"][0]) == ("warn", "warn")
    assert list(tmp_path.glob(".doctor-*")) == []


def test_the_server_itself_can_be_looked_at_from_its_own_folder(root, server):
    folder = root.parent / "server"
    failed = failures(found("--server", server, "--tls", folder, code=2))
    assert "the roster cannot be read: No such file" in failed["roster"]
    shutil.copy(root / "roster.json", folder)
    checks = found("--server", server, "--tls", folder, code=0)
    assert checks["roster"] == ("ok", "lets in server")


@pytest.mark.parametrize("address", ["", "host", ":7443", "host:", "host:x", "a:b:1", "host:99999"])
def test_an_address_that_is_none_is_refused(address):
    result = CliRunner().invoke(main, ["doctor", "--server", address])
    assert result.exit_code == 2
    assert "expected HOST:PORT" in result.stderr
