"""The authority: what it signs, what it refuses, and that OpenSSL reads its certificates the same way."""

import json
import shutil
import ssl
import stat
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtensionOID

from fedvi import errors
from fedvi.transport import authority, certificates, enrolment
from fedvi.transport.roster import Roster
from tests.pki import DAY, NOW, authority_in, party


@pytest.fixture
def root(tmp_path):
    return authority_in(tmp_path / "ca")


def openssl(*arguments):
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    return subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def holds(root, folder, purpose):
    """Whether OpenSSL, at its strictest, believes a certificate for a purpose."""
    chain = ("-CAfile", root / "ca.pem", folder / "cert.pem")
    return openssl("verify", "-x509_strict", "-purpose", purpose, *chain).returncode == 0


def asked(folder, name="north", role="client", hosts=()):
    return enrolment.request(folder, name, role, hosts).path.read_bytes()


def test_openssl_believes_each_role_for_its_own_purpose_alone(tmp_path, root):
    north = party(root, "north")
    server = party(root, "server", "server", ("localhost", "127.0.0.1"))
    assert holds(root, north, "sslclient")
    assert not holds(root, north, "sslserver")
    assert holds(root, server, "sslserver")
    assert not holds(root, server, "sslclient")
    assert not holds(authority_in(tmp_path / "other"), north, "sslclient")


def test_openssl_finds_the_names_and_hosts_that_were_signed(root):
    server = party(root, "server", "server", ("fedvi.example.org", "10.1.2.3", "::1"))
    said = openssl(
        "x509", "-in", server / "cert.pem", "-noout", "-subject", "-ext", "subjectAltName"
    ).stdout
    assert "CN = server" in said
    for name in ("URI:fedvi:server:server", "DNS:fedvi.example.org", "IP Address:10.1.2.3"):
        assert name in said
    for host, is_known in (("fedvi.example.org", True), ("example.org", False)):
        found = openssl("x509", "-in", server / "cert.pem", "-noout", "-checkhost", host).stdout
        assert ("does match" in found) == is_known


def test_a_fingerprint_is_the_one_that_openssl_prints(root):
    own, _ = authority.members(root)
    said = openssl("x509", "-in", root / "ca.pem", "-noout", "-fingerprint", "-sha256").stdout
    assert certificates.parse_fingerprint(said.partition("=")[2]) == own.fingerprint


def test_an_authority_signs_no_further_authority(tmp_path, root):
    north = party(root, "north")
    key = certificates.read_key(north / "key.pem")
    own = certificates.read(north / "cert.pem")
    forged = (
        x509.CertificateBuilder()
        .subject_name(certificates.subject("south", "client", ())[0])
        .add_extension(certificates.subject("south", "client", ())[1], critical=False)
        .issuer_name(own.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(errors.IdentityError, match="not that of an authority"):
        certificates.check_issued(forged, own, "the certificate")
    text = openssl("x509", "-in", root / "ca.pem", "-noout", "-text").stdout
    assert "CA:TRUE, pathlen:0" in text
    assert "Certificate Sign, CRL Sign" in text


def test_keys_can_be_read_by_their_owner_alone(root):
    north = party(root, "north")
    for path in (root / "ca.key", north / "key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (root, north):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_key_is_written_over_another(root):
    north = party(root, "north")
    before = [(root / "ca.key").read_bytes(), (north / "key.pem").read_bytes()]
    with pytest.raises(errors.ConfigError, match="is there already, and is not overwritten"):
        authority.create(root, "another")
    with pytest.raises(errors.ConfigError, match="is there already, and is not overwritten"):
        enrolment.request(north, "north")
    assert before == [(root / "ca.key").read_bytes(), (north / "key.pem").read_bytes()]


def test_an_authority_that_was_cut_short_says_so(tmp_path):
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "ca.key").write_text("")
    with pytest.raises(errors.ConfigError) as caught:
        authority.create(tmp_path / "ca", "Trauma consortium")
    assert "was cut short" in caught.value.hint


@pytest.mark.parametrize("role", ["server", "admin"])
def test_a_request_for_more_than_a_clients_role_is_signed_only_if_asked_for(tmp_path, root, role):
    hosts = ("localhost",) if role == "server" else ()
    request = asked(tmp_path / "x", "x", role, hosts)
    with pytest.raises(errors.IdentityError, match=f"asks for the role {role}, expected client"):
        authority.sign(root, request)
    assert authority.members(root)[1] == {}
    assert authority.sign(root, request, role=role).role == role


def test_a_request_of_another_name_than_expected_is_refused(tmp_path, root):
    with pytest.raises(errors.IdentityError, match=r"the request is of 'north', expected 'south'"):
        authority.sign(root, asked(tmp_path / "n"), name="south")


def test_a_request_that_was_changed_is_refused(tmp_path, root):
    request = x509.load_pem_x509_csr(asked(tmp_path / "n"))
    der = request.public_bytes(certificates.serialization.Encoding.DER).replace(b"north", b"south")
    changed = x509.load_der_x509_csr(der)
    with pytest.raises(errors.IdentityError, match="does not hold its own key, or was changed"):
        authority.sign(root, certificates.pem(changed))


def test_a_request_with_a_weak_key_or_without_a_party_is_refused(root):
    weak = rsa.generate_private_key(65537, 1024)
    subject, others = certificates.subject("north", "client", ())
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = builder.add_extension(others, critical=False).sign(weak, hashes.SHA256())
    with pytest.raises(errors.IdentityError, match="holds a key of another kind"):
        authority.sign(root, certificates.pem(request))
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(errors.IdentityError, match="names no party of a federation"):
        authority.sign(root, certificates.pem(builder.sign(key, hashes.SHA256())))
    with pytest.raises(errors.IdentityError, match="no request in PEM"):
        authority.sign(root, b"-----BEGIN NOTHING-----")


def test_a_common_name_may_not_differ_from_the_name_in_the_uri(root):
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder()
    builder = builder.subject_name(certificates.subject("south", "client", ())[0])
    builder = builder.add_extension(certificates.subject("north", "client", ())[1], critical=False)
    with pytest.raises(errors.IdentityError, match=r"says 'north' in its URI and 'south'"):
        authority.sign(root, certificates.pem(builder.sign(key, hashes.SHA256())))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("300a82081b5b324a6e6f7274", r"names the host '\\x1b\[2Jnort', which is no DNS name"),
        ("3006a304040212aa", "has extensions that cannot be read"),
    ],
    ids=["terminal", "unsupported"],
)
def test_a_request_is_refused_in_words_whatever_names_it_holds(root, names, said):
    # A site makes its request by whatever means, and the coordinator reads the answer on a terminal.
    subject, _ = certificates.subject("north", "client", ())
    hosts = x509.UnrecognizedExtension(
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        _with_uri(bytes.fromhex(names)) if said.startswith("names") else bytes.fromhex(names),
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    key = ec.generate_private_key(ec.SECP256R1())
    request = builder.add_extension(hosts, critical=False).sign(key, hashes.SHA256())
    with pytest.raises(errors.IdentityError, match=said):
        authority.sign(root, certificates.pem(request))


@pytest.mark.parametrize("subject", ["0c05fffefffeff", "03056e6f727468"], ids=["utf8", "bits"])
def test_a_request_with_a_damaged_subject_is_refused_in_words(root, subject):
    name, others = certificates.subject("north", "client", ())
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    made = builder.add_extension(others, critical=False).sign(key, hashes.SHA256())
    content = made.tbs_certrequest_bytes.replace(b"\x0c\x05north", bytes.fromhex(subject))
    signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ECDSA with SHA-256
    whole = _der(0x30, content + algorithm + _der(3, b"\x00" + signature))
    assert x509.load_der_x509_csr(whole).is_signature_valid
    pem = ssl.DER_cert_to_PEM_cert(whole)
    with pytest.raises(errors.IdentityError, match="this is no request in PEM"):
        authority.sign(root, pem.replace("CERTIFICATE", "CERTIFICATE REQUEST").encode())


def _with_uri(names):
    """Adds a party's URI to names in DER."""
    return _der(0x30, names[2:] + _der(0x86, b"fedvi:client:north"))


def _der(tag, content):
    size = len(content)
    more = b"" if size < 128 else size.to_bytes(1 if size < 256 else 2, "big")
    return bytes([tag, 0x80 + len(more) if more else size]) + more + content


def test_a_client_with_host_names_is_refused(root):
    key = ec.generate_private_key(ec.SECP256R1())
    subject, others = certificates.subject("north", "client", ("fedvi.example.org",))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = builder.add_extension(others, critical=False).sign(key, hashes.SHA256())
    with pytest.raises(
        errors.IdentityError, match=r"for the role client names fedvi\.example\.org"
    ):
        authority.sign(root, certificates.pem(request))


def test_a_name_on_the_roster_with_another_key_is_signed_only_if_asked_for(tmp_path, root):
    party(root, "north")
    intruder = asked(tmp_path / "intruder")
    with pytest.raises(errors.IdentityError, match="on the roster with another key"):
        authority.sign(root, intruder)
    authority.sign(root, intruder, new_key=True)
    assert len(authority.members(root)[1]["north"].certificates) == 2


def test_a_revoked_key_stays_out_even_if_a_new_key_is_allowed(tmp_path, root):
    north = party(root, "north")
    assert authority.revoke(root, "north") == 1
    assert authority.revoke(root, "north") == 0
    again = enrolment.request(north, "north", keep_key=True).path.read_bytes()
    for new_key in (False, True):
        with pytest.raises(errors.IdentityError, match="was revoked"):
            authority.sign(root, again, new_key=new_key)
    with pytest.raises(errors.IdentityError, match="is revoked, and is not renewed"):
        authority.renew(root, "north")
    issued = authority.sign(root, asked(tmp_path / "fresh"), new_key=True)
    assert Roster(root / "roster.json").check(issued.pem).name == "north"


def test_a_name_keeps_its_role_and_its_case(tmp_path, root):
    party(root, "north")
    with pytest.raises(errors.IdentityError, match="'north' is a client on the roster"):
        authority.sign(root, asked(tmp_path / "a", "north", "admin"), role="admin")
    with pytest.raises(errors.IdentityError, match="differs from 'north' in its case alone"):
        authority.sign(root, asked(tmp_path / "b", "North"))


def test_a_request_for_the_same_key_renews(root):
    north = party(root, "north", days=5)
    again = enrolment.request(north, "north", keep_key=True).path.read_bytes()
    issued = authority.sign(root, again, days=90)
    old = certificates.read(north / "cert.pem")
    assert issued.not_after > old.not_valid_after_utc
    roster = Roster(root / "roster.json")
    # Both are let in until the old one ends: the new one may take days to be installed.
    assert roster.check(issued.pem).fingerprint == issued.fingerprint
    assert roster.check(certificates.pem(old)).name == "north"


def test_renewing_keeps_key_role_and_hosts(root):
    server = party(root, "server", "server", ("localhost", "::1"), days=5)
    issued = authority.renew(root, "server", days=60)
    found = certificates.parse(issued.pem, "it")
    old = certificates.read(server / "cert.pem")
    assert found.public_key() == old.public_key()
    assert issued.hosts == ("localhost", "::1")
    assert certificates.identity_of(found).role == "server"
    assert found.not_valid_after_utc - NOW > 59 * DAY


def test_revoking_one_certificate_leaves_the_others(tmp_path, root):
    north = party(root, "north")
    issued = authority.renew(root, "north")
    old = certificates.identity_of(certificates.read(north / "cert.pem"))
    assert authority.revoke(root, "north", old.fingerprint) == 1
    roster = Roster(root / "roster.json")
    assert roster.check(issued.pem).name == "north"
    with pytest.raises(errors.IdentityError, match="was revoked on"):
        roster.check((north / "cert.pem").read_bytes())
    with pytest.raises(errors.ConfigError, match="has no certificate of fingerprint"):
        authority.revoke(root, "north", "ab" * 32)


def test_a_renewed_authority_vouches_for_what_it_signed_before_and_the_old_one_for_what_follows(
    tmp_path,
):
    root = authority_in(tmp_path / "ca", days=400, at=NOW - 399 * DAY)
    before = party(root, "before", days=1)
    shutil.copytree(root, tmp_path / "old")
    renewed = authority.renew_itself(root)
    after = party(root, "after")
    assert renewed.not_after > NOW + 3000 * DAY
    for trusted in (root, tmp_path / "old"):
        for folder in (before, after):
            certificates.check_issued(
                certificates.read(folder / "cert.pem"),
                certificates.read(trusted / "ca.pem"),
                "it",
            )
            assert holds(trusted, folder, "sslclient")


def test_no_certificate_outlives_the_authority_and_an_expired_one_signs_nothing(tmp_path):
    root = authority_in(tmp_path / "ca", days=10)
    north = party(root, "north", days=90)
    ends = certificates.read(root / "ca.pem").not_valid_after_utc
    assert certificates.read(north / "cert.pem").not_valid_after_utc == ends
    with pytest.raises(errors.IdentityError, match="the authority's certificate expired on"):
        authority.sign(root, asked(tmp_path / "s", "south"), at=NOW + 11 * DAY)
    assert "south" not in authority.members(root)[1]


@pytest.mark.parametrize("days", [0, -1, 10**6])
def test_a_length_that_is_none_is_refused(tmp_path, root, days):
    with pytest.raises(errors.ConfigError, match="--days is"):
        authority.sign(root, asked(tmp_path / "n"), days=days)


@pytest.mark.parametrize("name", ["", "a b", "../x", "n:x", "é", "x" * 65, "-x"])
def test_a_name_that_is_none_is_refused(tmp_path, name):
    with pytest.raises(errors.ConfigError, match="is none, expected"):
        enrolment.request(tmp_path / "n", name)


@pytest.mark.parametrize("host", ["a b", "10.1.2", "x:7443", "*.example.org", "", "-x.org"])
def test_a_host_that_is_none_is_refused(tmp_path, host):
    with pytest.raises(errors.ConfigError, match="neither a DNS name nor an IP address"):
        enrolment.request(tmp_path / "s", "server", "server", [host])
    assert not (tmp_path / "s").exists()


def test_a_server_has_hosts_and_nobody_else(tmp_path):
    with pytest.raises(errors.ConfigError, match="--host was not given"):
        enrolment.request(tmp_path / "s", "server", "server")
    with pytest.raises(errors.ConfigError, match="only servers have hosts"):
        enrolment.request(tmp_path / "n", "north", "client", ["localhost"])


def test_a_damaged_roster_is_not_written_over(tmp_path, root):
    party(root, "north")
    (root / "roster.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match="the roster cannot be read: it is no roster"):
        authority.sign(root, asked(tmp_path / "s", "south"))
    assert (root / "roster.json").read_text() == "{}"


def test_an_authority_with_the_key_of_another_signs_nothing(tmp_path, root):
    other = authority_in(tmp_path / "other")
    shutil.copy(other / "ca.key", root / "ca.key")
    with pytest.raises(errors.IdentityError, match=r"is not the key of"):
        authority.sign(root, asked(tmp_path / "n"))


def test_installing_checks_name_key_authority_and_fingerprint(tmp_path, root):
    north = party(root, "north")
    south = party(root, "south")
    other = authority_in(tmp_path / "other")
    own, _ = authority.members(root)
    signed, trusted = north / "cert.pem", root / "ca.pem"

    def refused(match, folder, name, *rest):
        before = {path: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(errors.IdentityError, match=match):
            enrolment.install(folder, name, *rest)
        assert before == {path: path.read_bytes() for path in folder.iterdir()}

    refused("is of 'north', expected 'south'", south, "south", signed, trusted)
    refused("was signed for another key", south, "north", signed, trusted)
    refused("the authority's fingerprint is", north, "north", signed, trusted, "ab" * 32)
    refused("the authority's key is another", north, "north", signed, other / "ca.pem")
    (north / "ca.pem").unlink()
    refused("--fingerprint is missing", north, "north", signed, trusted)
    theirs = authority.members(other)[0].fingerprint
    refused("signed by another authority", north, "north", signed, other / "ca.pem", theirs)
    done = enrolment.install(north, "north", signed, trusted, own.fingerprint.upper())
    assert (done.identity.name, done.authority) == ("north", own.fingerprint)


def test_a_renewed_certificate_is_installed_without_naming_the_authority_again(tmp_path, root):
    north = party(root, "north", days=5)
    path = tmp_path / "north.pem"
    path.write_bytes(authority.renew(root, "north").pem)
    done = enrolment.install(north, "north", path)
    assert done.identity.not_after > NOW + 80 * DAY
    assert (north / "cert.pem").read_bytes() == path.read_bytes()


def test_the_roster_says_which_key_signed(root):
    content = json.loads((root / "roster.json").read_text())
    key = certificates.read_key(root / "ca.key").public_key()
    assert content["authority_key"] == certificates.key_fingerprint(key)


@pytest.mark.parametrize("name", ["prior", "Prior"])
def test_a_party_cannot_be_called_as_the_worker_of_the_prior(tmp_path, root, monkeypatch, name):
    with pytest.raises(errors.ConfigError, match=r"is reserved"):
        asked(tmp_path / "asked", name)
    # Nor by a request, or a certificate, that was made otherwise.
    with monkeypatch.context() as planted:
        planted.setattr(certificates, "PRIOR", "none")
        folder = party(root, name)
    with pytest.raises(errors.IdentityError, match=r"which is no party's name"):
        certificates.identity_of(x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()))
