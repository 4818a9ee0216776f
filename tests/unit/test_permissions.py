"""Keys and states: what other users of the machine can reach is refused, and nothing else."""

import os
import stat
import subprocess

import pytest

from fedvi import errors, permissions
from fedvi.privacy import ledger as ledgers
from fedvi.store import files
from fedvi.store.sqlite import SqliteClientStore
from fedvi.transport import authority, certificates, enrolment, identity
from tests.pki import authority_in, party

HEADER = ledgers.lifetime_header("north", "record", "substitute")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "key.pem"
    path.write_text("secret")
    return path


@pytest.mark.parametrize(("whose", "forbidden", "who"), [(0, 0o077, "go"), (1, 0o007, "o")])
def test_every_mode_is_judged_by_whom_it_lets_in(file, monkeypatch, whose, forbidden, who):
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + whose)
    for mode in range(0o1000):
        file.chmod(mode)
        if not mode & forbidden:
            permissions.check(file)
            continue
        with pytest.raises(errors.IdentityError) as caught:
            permissions.check(file)
        said = f"belongs to {f'uid {owner}' if whose else 'this user'} and has mode {mode:04o}"
        assert f"{file} {said}, so that others" in caught.value.message
        assert caught.value.message.endswith(f"expected {mode & ~forbidden:04o}")
        assert caught.value.hint == f"chmod {who}= {file}"


def test_bits_that_let_nobody_in_do_not_count_and_a_link_is_followed(file, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o2700)  # as below a folder that hands its group down
    permissions.check(folder)
    link = tmp_path / "link"
    link.symlink_to(file)
    file.chmod(0o400)
    permissions.check(link)
    file.chmod(0o440)
    with pytest.raises(errors.IdentityError):
        permissions.check(link)


def test_the_hint_can_be_typed_and_closes_no_folder_of_everybody(tmp_path):
    folder = tmp_path / "of the site"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(errors.IdentityError) as caught:
        permissions.check(folder)
    subprocess.run(["sh", "-c", caught.value.hint.partition(";")[0]], check=True)
    permissions.check(folder)
    folder.chmod(0o1777)
    with pytest.raises(errors.IdentityError) as caught:
        permissions.check(folder)
    assert caught.value.hint.startswith("name a new folder inside it")


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o770])
def test_no_store_is_opened_in_a_folder_that_others_can_reach(tmp_path, mode):
    folder = tmp_path / "state"
    SqliteClientStore(folder, HEADER).close()
    folder.chmod(mode)
    with pytest.raises(errors.LedgerError, match=f"has mode {mode:04o}.*expected 0700") as caught:
        SqliteClientStore(folder, HEADER)
    assert caught.value.hint.startswith(f"chmod go= {folder}; or name a new folder inside it")
    # The server's store takes its lock by the same function.
    with pytest.raises(errors.LedgerError, match=f"has mode {mode:04o}"):
        files.lock_folder(folder, "")
    folder.chmod(0o700)
    SqliteClientStore(folder, HEADER).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_no_key_is_used_that_others_can_read(tmp_path):
    root = authority_in(tmp_path / "ca")
    north = party(root, "north")
    server = party(root, "server", "server", ("localhost",))
    uses = [
        (north / "key.pem", lambda: identity.channel_credentials(north)),
        (north / "key.pem", lambda: identity.sign(north, b"a file")),
        (north / "key.pem", lambda: enrolment.request(north, "north", "client", (), keep_key=True)),
        (
            north / "key.pem",
            lambda: enrolment.install(north, "north", north / "cert.pem", root / "ca.pem"),
        ),
        (server / "key.pem", lambda: identity.server_credentials(server)),
        (root / "ca.key", lambda: authority.renew(root, "north")),
        (root / "ca.key", lambda: authority.members(root)),
    ]
    for key, use in uses:
        use()
        key.chmod(0o640)
        with pytest.raises(errors.IdentityError, match=r"has mode 0640.*expected 0600"):
            use()
        key.chmod(0o600)
    assert certificates.read_key(north / "key.pem")
