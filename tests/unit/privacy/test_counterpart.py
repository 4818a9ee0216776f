"""Two ledgers of one client: what may be on its way between them, and what tells of a rollback."""

import itertools

import pytest

from fedvi.errors import LedgerError
from fedvi.privacy.events import Unprotected
from fedvi.privacy.ledger import (
    Anchor,
    Header,
    Ledger,
    anchor,
    check_counterpart,
    mark_sent,
    open_ledger,
    seal,
    spend,
)

HEADER = Header("s", "d", "north", "record", "substitute", "message", False)
COST = Unprotected("q")


def chain(*steps: str) -> Ledger:
    """Builds a ledger: "r0" reserves attempt 0 of the current task, "s0" seals it, "t0" is sent."""
    ledger, task = open_ledger(HEADER), 0
    for step in steps:
        release = f"north/{task}#{step[1:]}"
        if step[0] == "r":
            ledger = spend(ledger, release, COST, None)
        elif step[0] == "s":
            ledger = seal(ledger, release, "ab")
        else:
            ledger, task = mark_sent(ledger, release), task + 1
    return ledger


WHOLE = ["r0", "s0", "t0", "r0", "r1", "s1", "t1", "r0", "s0", "t0"]
STEPS = [chain(*WHOLE[:count]) for count in range(len(WHOLE) + 1)]
"""The chain after each of its steps; its second task took two attempts."""

SERVER_AHEAD = {(0, 1), (2, 3), (2, 4), (3, 4), (6, 7), (6, 8), (7, 8), (9, 10)}
"""(client's entries, server's): a charged task, the arrival of an answer, or one after the other."""

CLIENT_AHEAD = {(2, 1), (5, 4), (6, 4), (6, 5), (9, 8)}
"""(client's entries, server's): further attempts, and an answer that did not arrive."""


@pytest.mark.parametrize(("client", "server"), [*itertools.product(range(11), repeat=2)])
def test_the_longer_ledger_tells_exactly_what_may_be_on_its_way(client, server):
    checks = {
        "server": lambda: check_counterpart(STEPS[server], anchor(STEPS[client]), "server"),
        "client": lambda: check_counterpart(STEPS[client], anchor(STEPS[server]), "client"),
    }
    if client == server or (client, server) in SERVER_AHEAD | CLIENT_AHEAD:
        for check in checks.values():
            check()
        return
    ahead, behind = ("server", "client") if server > client else ("client", "server")
    with pytest.raises(LedgerError, match=f"the {behind}'s ledger of 'north' was rolled back"):
        checks[ahead]()
    # Who is behind cannot know.
    checks[behind]()


@pytest.mark.parametrize("holder", ["client", "server"])
def test_two_chains_that_differ_are_no_counterparts(holder):
    other = seal(chain("r0"), "north/0#0", "cd")
    with pytest.raises(LedgerError, match=r"are not the same: .* after 2 entries"):
        check_counterpart(STEPS[2], anchor(other), holder)
    with pytest.raises(LedgerError, match="are not the same"):
        check_counterpart(STEPS[3], anchor(other), holder)


@pytest.mark.parametrize("holder", ["client", "server"])
def test_another_header_is_another_ledger(holder):
    other = open_ledger(HEADER._replace(client="south"))
    with pytest.raises(LedgerError, match="are not the same"):
        check_counterpart(STEPS[0], anchor(other), holder)


def test_an_anchor_before_the_beginning_is_refused():
    with pytest.raises(LedgerError, match="-1 entries"):
        check_counterpart(STEPS[1], Anchor(-1, "ab"), "server")


def test_two_headers_that_differ_are_told_as_such():
    other = open_ledger(HEADER._replace(note="simulation: no guarantee"))
    for holder in ("client", "server"):
        with pytest.raises(LedgerError, match="are not the same from their headers on"):
            check_counterpart(chain("r0"), anchor(other), holder)
