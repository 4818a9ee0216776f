"""`fedvi ca` and `fedvi enroll`: from no key at all to a certificate at each party, and out again."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedvi.transport import identity
from fedvi.transport.roster import Roster
from tests.commands import succeeded as run


@pytest.fixture
def root(tmp_path):
    run("ca", "init", tmp_path / "ca", "--name", "Trauma consortium")
    return tmp_path / "ca"


def fingerprint_of(root):
    listed = json.loads(run("ca", "list", "--ca", root, "--json").output)
    return listed["authority"]["fingerprint"]


def enrolled(root, name, *options, sign=()):
    folder, signed = root.parent / name, root.parent / f"{name}.pem"
    run("enroll", name, "--dir", folder, *options)
    run("ca", "sign", folder / "request.pem", "--ca", root, "--out", signed, *sign)
    compared = ("--ca", root / "ca.pem", "--fingerprint", fingerprint_of(root))
    run("enroll", name, "--dir", folder, "--certificate", signed, *compared)
    return folder


def test_a_site_and_a_server_enrol_and_can_open_channels(root):
    north = enrolled(root, "north")
    hosts = ("--role", "server", "--host", "localhost")
    server = enrolled(root, "server", *hosts, sign=("--role", "server"))
    identity.channel_credentials(north)
    identity.server_credentials(server)
    assert {path.name for path in north.iterdir()} == {
        "ca.pem",
        "cert.pem",
        "key.pem",
        "request.pem",
    }


def test_both_sides_print_the_same_fingerprint_of_the_key(root, tmp_path):
    asked = run("enroll", "north", "--dir", tmp_path / "n").output
    signed = run(
        "ca", "sign", tmp_path / "n" / "request.pem", "--ca", root, "--out", tmp_path / "n.pem"
    ).output
    key = re.search(r"key +([0-9a-f]{64})", asked)
    assert key is not None
    assert f"key          {key[1]}" in signed
    for said in ("name         north", "role         client"):
        assert said in signed


def test_an_authority_is_not_trusted_before_its_fingerprint_was_compared(root, tmp_path):
    fingerprint = fingerprint_of(root)
    folder, signed = tmp_path / "n", tmp_path / "n.pem"
    run("enroll", "north", "--dir", folder)
    run("ca", "sign", folder / "request.pem", "--ca", root, "--out", signed)
    install = ("enroll", "north", "--dir", folder, "--certificate", signed, "--ca", root / "ca.pem")
    refused = run(*install, "--fingerprint", "ab" * 32, code=4)
    assert "the authority's fingerprint is" in refused.stderr
    assert not (folder / "cert.pem").exists()
    missing = run(*install, code=4).stderr
    assert "--fingerprint is missing" in missing
    assert "over the telephone" in missing
    # What would be copied is not said.
    assert fingerprint not in missing
    assert not (folder / "ca.pem").exists()
    colons = ":".join(re.findall("..", fingerprint.upper()))
    assert run(*install, "--fingerprint", colons).stderr == ""
    # A renewal under the authority that the folder trusts asks for nothing.
    assert run(*install).stderr == ""


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
def test_on_a_terminal_the_fingerprint_is_shown_and_asked_for(root, tmp_path, answer, code):
    folder, signed = tmp_path / "n", tmp_path / "n.pem"
    run("enroll", "north", "--dir", folder)
    run("ca", "sign", folder / "request.pem", "--ca", root, "--out", signed)
    near, far = pty.openpty()
    install = ["enroll", "north", "--dir", folder, "--certificate", signed, "--ca", root / "ca.pem"]
    with subprocess.Popen(
        [sys.executable, "-c", "from fedvi.cli.main import main; main()", *map(str, install)],
        stdin=far,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(near, answer)
        _, shown = process.communicate(timeout=60)
    os.close(near)
    os.close(far)
    assert process.returncode == code, shown
    assert fingerprint_of(root).encode() in shown
    assert b"Call the coordinator" in shown
    assert (folder / "cert.pem").exists() is (code == 0)


def test_revoking_and_renewing_show_in_the_list_and_on_the_roster(root, tmp_path):
    north = enrolled(root, "north")
    enrolled(root, "south")
    run("ca", "renew", "south", "--ca", root, "--out", tmp_path / "south2.pem")
    run("ca", "revoke", "north", "--ca", root)
    listed = json.loads(run("ca", "list", "--ca", root, "--json").output)["certificates"]
    assert [(row["name"], row["state"]) for row in listed] == [
        ("north", "revoked"),
        ("south", "active"),
        ("south", "active"),
    ]
    assert "revoked" in run("ca", "list", "--ca", root).output
    again = run("ca", "renew", "north", "--ca", root, "--out", tmp_path / "x.pem", code=4)
    assert "'north' is revoked" in again.stderr
    assert not (tmp_path / "x.pem").exists()
    roster = Roster(root / "roster.json")
    assert roster.check((tmp_path / "south2.pem").read_bytes()).name == "south"
    with pytest.raises(identity.errors.IdentityError, match="was revoked"):
        roster.check((north / "cert.pem").read_bytes())


def test_renewing_the_authority_keeps_its_key(root):
    key = (root / "ca.key").read_bytes()
    before = (root / "ca.pem").read_bytes()
    run("ca", "renew", "--ca", root, "--days", 100)
    assert (root / "ca.key").read_bytes() == key
    assert (root / "ca.pem").read_bytes() != before
    run("ca", "renew", "--ca", root, "--out", "x.pem", code=2)


def test_nothing_is_signed_that_could_not_be_kept(root, tmp_path):
    run("enroll", "north", "--dir", tmp_path / "n")
    there = tmp_path / "there.pem"
    there.write_text("mine")
    arguments = ("ca", "sign", tmp_path / "n" / "request.pem", "--ca", root, "--out", there)
    assert "is not overwritten" in run(*arguments, code=2).stderr
    assert there.read_text() == "mine"
    assert json.loads(run("ca", "list", "--ca", root, "--json").output)["certificates"] == []


def test_a_certificate_that_cannot_be_written_says_how_to_have_it_again(root, tmp_path):
    run("enroll", "north", "--dir", tmp_path / "n")
    nowhere = tmp_path / "no" / "n.pem"
    run("ca", "sign", tmp_path / "n" / "request.pem", "--ca", root, "--out", nowhere, code=2)
    signed = tmp_path / "n.pem"
    run("ca", "renew", "north", "--ca", root, "--out", signed)
    run(
        *("enroll", "north", "--dir", tmp_path / "n", "--certificate", signed),
        *("--ca", root / "ca.pem", "--fingerprint", fingerprint_of(root)),
    )


def test_options_that_do_not_go_together_are_refused(root, tmp_path):
    run("enroll", "north", "--dir", tmp_path / "n", "--fingerprint", "ab" * 32, code=2)
    folder = enrolled(root, "south")
    signed = tmp_path / "south.pem"
    run("enroll", "south", "--dir", folder, "--certificate", signed, "--keep-key", code=2)


def test_an_end_that_is_near_is_warned_of(root, tmp_path):
    folder, signed = tmp_path / "n", tmp_path / "n.pem"
    run("enroll", "north", "--dir", folder)
    run("ca", "sign", folder / "request.pem", "--ca", root, "--out", signed, "--days", 5)
    said = run(
        *("enroll", "north", "--dir", folder, "--certificate", signed),
        *("--ca", root / "ca.pem", "--fingerprint", fingerprint_of(root)),
    ).stderr
    assert "in less than 7 days: renew it now" in said


def test_what_is_printed_as_json_can_be_read(root, tmp_path):
    asked = json.loads(run("enroll", "north", "--dir", tmp_path / "n", "--json").output)
    signed = json.loads(
        run(
            *("ca", "sign", asked["path"], "--ca", root, "--name", "north"),
            *("--out", tmp_path / "n.pem", "--json"),
        ).output
    )
    assert signed["key"] == asked["key"]
    done = json.loads(
        run(
            *("enroll", "north", "--dir", tmp_path / "n", "--certificate", tmp_path / "n.pem"),
            *("--ca", root / "ca.pem", "--fingerprint", fingerprint_of(root), "--json"),
        ).stdout
    )
    assert done["fingerprint"] == signed["fingerprint"]
    assert done["authority"] == fingerprint_of(root)
    assert json.loads(run("ca", "revoke", "north", "--ca", root, "--json").output)["revoked"] == 1


def test_no_command_about_identity_loads_jax():
    script = (
        "import sys; from fedvi.cli import ca, enroll, doctor; "
        "sys.exit('jax' in sys.modules or 'numpyro' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_certificates_of_a_demonstration_are_made_once_each_and_without_a_warning(tmp_path):
    script = Path(__file__).parents[2] / "docker" / "certificates.sh"
    folder = tmp_path / "bin"
    folder.mkdir()
    command = f'exec "{sys.executable}" -c "from fedvi.cli.main import main; main()" "$@"'
    for name, content in (("fedvi", command), ("chown", ":")):  # chown: a test may run as root
        (folder / name).write_text(f"#!/bin/sh\n{content}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def made():
        return subprocess.run(
            ["sh", str(script), "ca", "tls", "server"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    (tmp_path / "tls").mkdir()
    assert made().stderr == ""
    key = (tmp_path / "tls" / "server" / "key.pem").read_bytes()
    assert made().stderr == ""
    assert (tmp_path / "tls" / "server" / "key.pem").read_bytes() == key
    identity.server_credentials(tmp_path / "tls" / "server")
    roster = Roster(tmp_path / "tls" / "server" / "roster.json")
    assert len(roster.members()["server"].certificates) == 1
