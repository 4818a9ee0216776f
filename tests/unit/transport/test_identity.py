"""Who is let in, and what the channels between them let through."""

import json
import os
import shutil
import ssl
from concurrent import futures

import grpc
import pytest
from cryptography import x509

from fedvi import errors
from fedvi.transport import authority, certificates, identity
from fedvi.transport import roster as rosters
from tests.pki import DAY, NOW, authority_in, party


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """The roster is looked at again at every call, however close calls follow one another."""
    monkeypatch.setattr(rosters, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def root(tmp_path):
    return authority_in(tmp_path / "ca", at=NOW - 300 * DAY)


def shown(folder):
    return (folder / "cert.pem").read_bytes()


def roster(root):
    return identity.Roster(root / "roster.json")


def test_the_roster_knows_who_a_certificate_is_of(root):
    north = party(root, "north")
    found = roster(root).check(shown(north), "client", "north")
    assert found[:2] == ("north", "client")
    assert found.fingerprint == certificates.fingerprint(certificates.read(north / "cert.pem"))
    assert 89 * DAY < found.not_after - NOW < 91 * DAY


def test_each_refusal_has_its_own_sentence(tmp_path, root):
    north = party(root, "north")
    old = party(root, "old", days=10, at=NOW - 50 * DAY)
    admin = party(root, "boss", "admin")
    gone = party(root, "gone")
    authority.revoke(root, "gone", at=NOW - DAY)
    # The same name under another authority, whose roster is not the server's.
    stranger = party(authority_in(tmp_path / "b" / "ca"), "north")
    book = roster(root)
    sentences = []
    for folder, role, name, at, said in (
        (stranger, "client", "north", None, r"is not on the server's roster"),
        (gone, "client", "gone", None, r"the certificate of 'gone' was revoked on 20"),
        (old, "client", "old", None, r"the certificate of 'old' expired on 20"),
        (north, "client", "north", NOW - DAY, r"the certificate of 'north' begins on 20"),
        (admin, "client", "boss", None, r"'boss' has the role admin, expected client"),
        (north, "admin", None, None, r"'north' has the role client, expected admin"),
        (north, "client", "south", None, r"used by a caller that claims to be 'south'"),
    ):
        with pytest.raises(errors.IdentityError, match=said) as caught:
            book.check(shown(folder), role, name, at)
        assert caught.value.hint
        sentences.append(caught.value.message)
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff" * 10])
def test_what_is_no_certificate_is_refused(root, content):
    with pytest.raises(errors.IdentityError, match="no certificate in PEM"):
        roster(root).check(content)


@pytest.mark.parametrize("subject", ["0c05fffefffeff", "03056e6f727468"], ids=["utf8", "bits"])
def test_a_certificate_with_a_damaged_subject_is_refused_in_words(root, subject):
    content = ssl.PEM_cert_to_DER_cert(shown(party(root, "north")).decode())
    assert content.count(b"\x0c\x05north") == 1
    damaged = content.replace(b"\x0c\x05north", bytes.fromhex(subject))
    with pytest.raises(errors.IdentityError, match="it is no certificate in PEM"):
        certificates.parse(ssl.DER_cert_to_PEM_cert(damaged).encode(), "it")


def test_a_certificate_without_a_party_or_beside_another_is_refused(root):
    book = roster(root)
    with pytest.raises(errors.IdentityError, match="names no party"):
        book.check((root / "ca.pem").read_bytes())
    two = shown(party(root, "north")) + shown(party(root, "south"))
    with pytest.raises(errors.IdentityError, match="holds 2 certificates, expected one"):
        book.check(two)


def test_a_revocation_counts_from_the_next_call_on(root):
    north = party(root, "north")
    book = roster(root)
    assert book.check(shown(north)).name == "north"
    authority.revoke(root, "north")
    with pytest.raises(errors.IdentityError, match="was revoked"):
        book.check(shown(north))


def test_a_revocation_within_one_tick_of_the_file_systems_clock_counts(root):
    """The same size, the same times and the same file: only its content tells."""
    north, path = party(root, "north"), root / "roster.json"
    revoked = json.loads(path.read_text())
    entry = revoked["members"]["north"]["certificates"][0]
    entry["revoked"] = entry["not_after"]
    later = json.dumps(revoked, indent=2)
    entry["revoked"] = None
    path.write_text(json.dumps(revoked, indent=2).ljust(len(later)))
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    book = roster(root)
    for _ in range(3):
        assert book.check(shown(north)).name == "north"
    path.write_text(later)
    os.utime(path, ns=times)
    # The time of the last change of its inode cannot be set: it is made to look the same.
    book._stamp = None if book._stamp is None else stamp_of(path)
    with pytest.raises(errors.IdentityError, match="was revoked"):
        book.check(shown(north))


def stamp_of(path):
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def test_a_roster_at_rest_is_read_once(root, monkeypatch):
    north, path = party(root, "north"), root / "roster.json"
    os.utime(path, (NOW.timestamp() - 60, NOW.timestamp() - 60))
    book = roster(root)
    opened = []
    monkeypatch.setattr("builtins.open", lambda *args: opened.append(args))
    for _ in range(5):
        assert book.check(shown(north)).name == "north"
    assert opened == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"format": "fedvi roster", "version": 2, "members": {}}'],
)
def test_a_roster_that_cannot_be_read_lets_nobody_in(root, content):
    north, path = party(root, "north"), root / "roster.json"
    book = roster(root)
    whole = path.read_bytes()
    path.write_text(content)
    for _ in range(2):
        with pytest.raises(errors.TransportError, match="the server's roster cannot be read"):
            book.check(shown(north))
    with pytest.raises(errors.ConfigError, match="the roster cannot be read"):
        roster(root)
    path.unlink()
    with pytest.raises(errors.TransportError, match="No such file"):
        book.check(shown(north))
    path.write_bytes(whole)
    assert book.check(shown(north)).name == "north"


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("revoked"),
        lambda entry: entry.update(revoked=False),
        lambda entry: entry.update(revoked=0),
        lambda entry: entry.update(fingerprint="AB"),
        lambda entry: entry.update(not_after="tomorrow"),
        lambda entry: entry.update(active=True),
    ],
)
def test_a_roster_with_a_field_that_is_not_understood_is_refused(root, change):
    party(root, "north")
    raw = json.loads((root / "roster.json").read_text())
    change(raw["members"]["north"]["certificates"][0])
    (root / "roster.json").write_text(json.dumps(raw))
    with pytest.raises(errors.ConfigError, match="the roster cannot be read"):
        roster(root)


# The channels.


class _Echo(grpc.GenericRpcHandler):
    """Answers each call with the caller's certificate."""

    def service(self, details):
        def answer(request, context):
            return context.auth_context()["x509_pem_cert"][0]

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def listening(root):
    folder = party(root, "server", "server", ("localhost", "127.0.0.1"))
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Echo()])
    port = server.add_secure_port("127.0.0.1:0", identity.server_credentials(folder))
    server.start()
    yield folder, port
    server.stop(None).wait()


def call(port, credentials, host="localhost"):
    with grpc.secure_channel(f"{host}:{port}", credentials) as channel:
        return channel.unary_unary("/fedvi.Test/Echo")(b"", timeout=5)


def test_a_server_sees_the_certificate_that_its_roster_lists(root, listening):
    _, port = listening
    north = party(root, "north")
    seen = call(port, identity.channel_credentials(north))
    assert roster(root).check(seen, "client", "north").name == "north"
    assert call(port, identity.channel_credentials(north), "127.0.0.1") == seen


def test_a_server_hangs_up_on_who_shows_no_certificate_or_one_of_another_authority(
    tmp_path, root, listening
):
    _, port = listening
    trusted = (root / "ca.pem").read_bytes()
    stranger = party(authority_in(tmp_path / "b" / "ca"), "north")
    old = party(root, "old", days=10, at=NOW - 50 * DAY)
    shown_by = [
        grpc.ssl_channel_credentials(trusted),
        *(
            grpc.ssl_channel_credentials(trusted, (folder / "key.pem").read_bytes(), shown(folder))
            for folder in (stranger, old)
        ),
    ]
    for credentials in shown_by:
        with pytest.raises(grpc.RpcError) as caught:
            call(port, credentials)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.RpcError), grpc.insecure_channel(f"localhost:{port}") as channel:
        channel.unary_unary("/fedvi.Test/Echo")(b"", timeout=5)


def test_a_client_hangs_up_on_a_server_of_another_authority_name_or_role(tmp_path, root):
    north = party(root, "north")
    for folder in (
        party(authority_in(tmp_path / "b" / "ca"), "server", "server", ("localhost",)),
        party(root, "elsewhere", "server", ("elsewhere.example.org",)),
    ):
        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Echo()])
        port = server.add_secure_port("127.0.0.1:0", identity.server_credentials(folder))
        server.start()
        with pytest.raises(grpc.RpcError) as caught:
            call(port, identity.channel_credentials(north))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        server.stop(None).wait()
    # A site that listens with its own certificate is no server.
    site = party(root, "site")
    pair = ((site / "key.pem").read_bytes(), shown(site))
    posing = grpc.ssl_server_credentials([pair], (root / "ca.pem").read_bytes(), True)
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Echo()])
    port = server.add_secure_port("127.0.0.1:0", posing)
    server.start()
    with pytest.raises(grpc.RpcError):
        call(port, identity.channel_credentials(north))
    server.stop(None).wait()


def test_a_renewed_certificate_is_used_from_the_next_handshake_on(root, listening):
    folder, port = listening
    north = party(root, "north")
    before = certificates.read(folder / "cert.pem").serial_number
    (folder / "cert.pem").write_bytes(authority.renew(root, "server").pem)
    assert certificates.read(folder / "cert.pem").serial_number != before
    assert server_serial(port) != before
    (folder / "cert.pem").write_bytes(b"half a file")
    assert server_serial(port) != before
    assert call(port, identity.channel_credentials(north))


def test_files_that_no_longer_fit_change_nothing_at_a_running_server(tmp_path, root, listening):
    folder, port = listening
    north = party(root, "north")
    other = authority_in(tmp_path / "b" / "ca")
    stranger = party(other, "stranger")
    # Its own certificate is of another authority than this: a copy gone wrong.
    shutil.copy(other / "ca.pem", folder / "ca.pem")
    files = ((stranger / "key.pem").read_bytes(), shown(stranger))
    with pytest.raises(grpc.RpcError):
        call(port, grpc.ssl_channel_credentials((root / "ca.pem").read_bytes(), *files))
    assert call(port, identity.channel_credentials(north))


def server_serial(port):
    from fedvi.transport import probe

    shown = probe._shown("localhost", port)
    return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.parametrize("role", ["client", "admin"])
def test_only_a_server_listens_and_only_others_dial(root, role):
    folder = party(root, "someone", role)
    with pytest.raises(errors.IdentityError, match=f"has the role {role}, expected server"):
        identity.server_credentials(folder)
    identity.channel_credentials(folder)
    server = party(root, "server", "server", ("localhost",))
    with pytest.raises(errors.IdentityError, match="has the role server, expected client or admin"):
        identity.channel_credentials(server)


def test_files_that_do_not_fit_are_refused_before_a_connection(tmp_path, root):
    north, south = party(root, "north"), party(root, "south")
    with pytest.raises(errors.IdentityError, match="expired on"):
        identity.channel_credentials(party(root, "old", days=10, at=NOW - 50 * DAY))
    expired = authority_in(tmp_path / "c" / "ca", days=20, at=NOW - 50 * DAY)
    late = party(expired, "late", days=90, at=NOW - 40 * DAY)
    with pytest.raises(errors.IdentityError, match="the authority's certificate expired on"):
        identity.channel_credentials(late)
    (north / "key.pem").unlink()
    with pytest.raises(errors.ConfigError, match=r"key.pem: the key cannot be read"):
        identity.channel_credentials(north)
    shutil.copy(south / "key.pem", north / "key.pem")
    with pytest.raises(errors.IdentityError, match=r"key.pem is not the key of"):
        identity.channel_credentials(north)
    other = authority_in(tmp_path / "b" / "ca")
    shutil.copy(other / "ca.pem", south / "ca.pem")
    with pytest.raises(errors.IdentityError, match="signed by another authority"):
        identity.channel_credentials(south)


@pytest.mark.parametrize(("days", "said"), [(90, None), (31, None), (29, "soon"), (6, "now")])
def test_an_end_within_thirty_and_seven_days_is_warned_of(root, days, said):
    own = identity.holding(party(root, "north", days=days)).identity
    warning = identity.expiry_warning(own)
    assert (warning is None) if said is None else (warning is not None and said in warning)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:1",
        "127.8.9.10:1",
        "localhost:1",
        "LOCALHOST",
        "[::1]:1",
        "::1",
        "unix:/x",
        "[::ffff:127.0.0.1]:1",
    ],
)
def test_what_stays_on_this_machine_is_known(address):
    assert identity.is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        *[":1", "0.0.0.0:1", "[::]:1", "::", "10.0.0.1:1", "127.0.0.1.example.org:1", "127.1:1"],
        *["localhost.example.org:1", "dns:localhost:1", "[::ffff:10.0.0.1]:1", "[localhost:1"],
        "[::1]example.org:1",
    ],
)
def test_all_else_counts_as_another_machine(address):
    assert not identity.is_loopback(address)


# Signed files.


def test_a_signature_names_its_signer(root):
    north = party(root, "north")
    signature = identity.sign(north, b"a result")
    trusted = (root / "ca.pem").read_bytes()
    found = identity.verify(trusted, b"a result", signature, roster(root), "client")
    assert found == identity.holding(north).identity
    assert b"PRIVATE" not in signature


def test_a_signature_holds_for_its_file_signer_and_authority_alone(tmp_path, root):
    north, south = party(root, "north"), party(root, "south")
    trusted = (root / "ca.pem").read_bytes()
    other = authority_in(tmp_path / "b" / "ca")
    signature = identity.sign(north, b"a result")
    with pytest.raises(errors.IdentityError, match="is not of this file"):
        identity.verify(trusted, b"another result", signature)
    swapped = json.loads(signature)
    swapped["certificate"] = shown(south).decode()
    with pytest.raises(errors.IdentityError, match="signature of 'south' is not of this file"):
        identity.verify(trusted, b"a result", json.dumps(swapped).encode())
    with pytest.raises(errors.IdentityError, match="signed by another authority"):
        identity.verify((other / "ca.pem").read_bytes(), b"a result", signature)
    with pytest.raises(errors.IdentityError, match="has the role client, expected server"):
        identity.verify(trusted, b"a result", signature, role="server")
    with pytest.raises(errors.IdentityError, match="expired on"):
        identity.verify(trusted, b"a result", signature, at=NOW + 100 * DAY)
    authority.revoke(root, "north")
    with pytest.raises(errors.IdentityError, match="was revoked"):
        identity.verify(trusted, b"a result", signature, roster(root))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"format": "fedvi signature 1"}',
        b'{"format": "fedvi signature 1", "signature": "!", "certificate": ""}',
    ],
)
def test_what_is_no_signature_is_refused(root, content):
    with pytest.raises(errors.IdentityError, match="no signature of fedvi"):
        identity.verify((root / "ca.pem").read_bytes(), b"", content)
