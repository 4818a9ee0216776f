"""Whom the roster shuts out, so that nobody waits for them."""

import pytest

from fedvi import errors
from fedvi.transport import authority, enrolment
from fedvi.transport import roster as rosters
from fedvi.transport.roster import Roster
from tests.pki import DAY, NOW, authority_in, party


@pytest.fixture
def root(tmp_path):
    root = authority_in(tmp_path / "ca", at=NOW - 300 * DAY)
    for name in ("south", "north"):
        party(root, name)
    return root


@pytest.fixture
def roster(root, monkeypatch):
    monkeypatch.setattr(rosters, "_LOOK_SECONDS", 0.0)
    return Roster(root / "roster.json")


def test_a_burst_of_calls_looks_at_the_file_once_and_the_next_one_looks_again(
    root, roster, monkeypatch
):
    clock = 100.0
    monkeypatch.setattr(rosters.time, "monotonic", lambda: clock)
    monkeypatch.setattr(rosters, "_LOOK_SECONDS", 0.02)
    assert roster.revoked() == frozenset()
    authority.revoke(root, "south")
    clock += 0.019
    assert roster.revoked() == frozenset()
    clock += 0.002
    assert roster.revoked() == {"south"}


def test_who_is_revoked_is_known_and_until_a_new_certificate_is_signed(root, roster):
    assert roster.revoked() == frozenset()
    authority.revoke(root, "south")
    assert roster.revoked() == {"south"}
    asked = enrolment.request(root.parent / "again", "south", "client", ())
    authority.sign(root, asked.path.read_bytes(), name="south", new_key=True)
    assert roster.revoked() == frozenset()


def test_one_of_several_certificates_may_be_revoked(root, roster):
    newer = authority.renew(root, "south")
    older = roster.members()["south"].certificates[0]
    authority.revoke(root, "south", older.fingerprint)
    assert roster.revoked() == frozenset()
    authority.revoke(root, "south", newer.fingerprint)
    assert roster.revoked() == {"south"}


def test_a_certificate_that_expired_earlier_lets_nobody_in(root, roster):
    party(root, "east", days=10, at=NOW - 50 * DAY)
    assert roster.revoked() == frozenset()
    newer = authority.renew(root, "east")
    authority.revoke(root, "east", newer.fingerprint)
    assert roster.revoked() == {"east"}


def test_a_roster_that_cannot_be_read_says_so(root, roster):
    (root / "roster.json").write_text("{}")
    with pytest.raises(errors.TransportError, match=r"roster cannot be read"):
        roster.revoked()
