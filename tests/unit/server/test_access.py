"""Who may call, and how often: the rule apart from any network."""

import datetime

import pytest

from fedvi import errors
from fedvi.server.rpc.access import Access, Bucket, RateExceeded
from fedvi.transport.certificates import Identity


def test_a_bucket_gives_its_burst_at_once_and_its_rate_for_ever():
    now = [0.0]
    bucket = Bucket(rate=10.0, burst=3.0, clock=lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 0.1
    assert [bucket.take() for _ in range(2)] == [True, False]
    taken = 0
    for tick in range(1, 10_001):
        now[0] = 0.1 + tick / 1000
        taken += bucket.take()
    assert abs(taken - 100) <= 1  # ten seconds at ten a second, but for rounding
    now[0] = 1e6
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_one_client_cannot_use_up_what_another_may_call():
    access = Access(("south", "north"), None, rate=1e-9, burst=2.0)
    access.admit(None, "south")
    access.admit(None, "south")
    with pytest.raises(RateExceeded, match=r"'south' calls too often"):
        access.admit(None, "south")
    access.admit(None, "north")


def test_names_that_are_not_in_the_study_share_what_they_may_call():
    access = Access(("south",), None, rate=1e-9, burst=2.0)
    access.admit(None, "a")
    access.admit(None, "b")
    with pytest.raises(RateExceeded):
        access.admit(None, "c")
    access.admit(None, "south")


def test_nobody_dials_in_as_the_worker_of_the_prior():
    # Its answers are folded unprotected and in the server's trust; a plaintext caller says any name.
    access = Access(("south", "prior"), None)
    with pytest.raises(errors.IdentityError, match=r"'prior', a reserved name"):
        access.admit(None, "prior")


class Refusing:
    """A roster that knows nobody."""

    def check(self, certificate, role, name):
        raise errors.IdentityError("unknown")


class Knowing:
    """A roster that knows one client."""

    def check(self, certificate, role, name):
        if name not in (None, "north"):
            raise errors.IdentityError("another's")
        return Identity("north", role, "", datetime.datetime.now(datetime.UTC))


class Call:
    def auth_context(self):
        return {"x509_pem_cert": [b"pem"]}


def test_who_is_refused_takes_nothing_from_any_client():
    access = Access(("south",), None, rate=1e-9, burst=2.0)
    access._roster = Refusing()
    for expected in (errors.IdentityError, errors.IdentityError, RateExceeded, RateExceeded):
        with pytest.raises(expected):
            access.enter(Call(), "client")
    access._roster = None
    access.admit(None, "south")
    access.admit(None, "south")


def test_who_passes_for_another_takes_nothing_of_what_that_may_call():
    access = Access(("south", "north"), None, rate=1e-9, burst=2.0)
    access._roster = Knowing()
    for _ in range(2):
        access.enter(Call(), "client")
        with pytest.raises(errors.IdentityError, match=r"another's"):
            access.admit(Call(), "south")
    with pytest.raises(RateExceeded, match=r"'north' calls too often"):
        access.enter(Call(), "client")
    access._roster = None
    access.admit(None, "south")


def test_strangers_cannot_use_up_what_operators_may_call():
    access = Access(("south",), None, rate=1e-9, burst=1.0)
    access._roster = Refusing()
    for expected in (errors.IdentityError, RateExceeded):
        with pytest.raises(expected):
            access.enter(Call(), "client")
    access._roster = Knowing()
    for _ in range(5):
        access.enter(Call(), "admin")


def test_a_call_without_a_certificate_is_refused_where_there_is_a_roster():
    access = Access(("south",), None)
    access._roster = Refusing()

    class Plain:
        def auth_context(self):
            return {}

    with pytest.raises(errors.IdentityError, match=r"without a certificate"):
        access.enter(Plain(), "client")
    with pytest.raises(errors.IdentityError, match=r"without a certificate"):
        access.admit_operator(Plain())
