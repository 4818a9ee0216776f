"""Claims about who counts as silent: by its own rhythm, and never while it merely computes."""

import pytest

from fedvi.server.core.protocol import initial_state
from fedvi.server.rpc.silence import Calls
from fedvi.server.watch.public_values import remarks, state_of
from tests.servers import make_spec


@pytest.fixture
def state():
    return initial_state(make_spec(["north", "south"]))


def test_who_is_quiet_for_three_times_its_longest_pause_is_silent(state):
    calls = Calls(0.0)
    for now in (0.0, 1.0, 61.0, 62.0):
        calls.hear("north", now)
    assert calls.usual("north") == 60.0
    assert calls.silent(state, 62.0 + 179.0) == frozenset()
    assert calls.silent(state, 62.0 + 181.0) == {"north"}
    calls.hear("north", 300.0)
    assert calls.silent(state, 301.0) == frozenset()


def test_a_first_answer_has_two_minutes(state):
    calls = Calls(0.0)
    for now in (0.0, 0.1, 0.2):
        calls.hear("north", now)
    assert calls.silent(state, 119.0) == frozenset()
    assert calls.silent(state, 121.0) == {"north"}


def test_who_never_came_who_is_away_and_who_is_done_are_not_silent(state):
    calls = Calls(0.0)
    calls.hear("north", 0.0)
    assert calls.silent(state, 1e6) == {"north"}
    assert calls.silent(state._replace(away={"north": "left"}), 1e6) == frozenset()
    assert calls.silent(state._replace(status="completed"), 1e6) == frozenset()


def test_a_long_pause_is_forgotten_after_twenty_calls(state):
    calls = Calls(0.0)
    for now in (0.0, 1000.0, *(1000.0 + n for n in range(1, 22))):
        calls.hear("north", now)
    assert calls.usual("north") == 1.0


WAITS = {"awaited": ["north"], "deadline_seconds": None}


def row(**fields):
    return {
        "name": "north",
        "state": "working",
        "reason": "",
        "visits": 2,
        "charged": 3,
        "seen_seconds": 400.0,
        "usual_seconds": 20.0,
        "silent": True,
        **fields,
    }


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"awaited": ["north"], "deadline_seconds": 90.0}, "the run goes on without it in 90 s"),
        ({"awaited": ["north"], "deadline_seconds": 90.0}, "if enough others have answered"),
        ({"awaited": ["north"], "deadline_seconds": 0.0}, "waits for enough others to answer"),
        (
            WAITS | {"let_go": "remove"},
            "`fedvi remove --client north` lets it go on without, for good",
        ),
        (WAITS | {"let_go": "remove_for_now"}, "lets it go on without, until `fedvi admit`"),
        (
            WAITS | {"let_go": "revoke"},
            "`fedvi ca revoke north --ca FOLDER` lets later rounds go on without",
        ),
        (WAITS | {"let_go": ""}, "the run waits for it: without it the run cannot go on"),
        (WAITS | {"let_go": None}, "`fedvi remove --client north` lets it go on without"),
        ({"awaited": [], "deadline_seconds": None}, "the run does not wait for it"),
    ],
)
def test_a_silent_client_is_told_with_its_rhythm_and_what_happens_next(run, said):
    (line,) = remarks({**run, "clients": [row()]})
    assert line.startswith("north is SILENT for 7 min, usually heard of every 20 s or more often; ")
    assert said in line
    assert state_of(row()) == "working, SILENT"


def test_who_has_never_called_is_told_of_once_there_was_time_to():
    run = WAITS | {"let_go": "remove"}
    never = row(state="unseen", silent=False, seen_seconds=None, visits=0, charged=0)
    assert remarks({**run, "uptime_seconds": 60.0, "clients": [never]}) == []
    (line,) = remarks({**run, "uptime_seconds": 130.0, "clients": [never]})
    assert line.startswith("north has not called yet; the run waits for it: `fedvi remove")


def test_who_calls_several_times_a_second_is_heard_of_every_second():
    run = {"awaited": [], "deadline_seconds": None}
    (line,) = remarks({**run, "clients": [row(usual_seconds=0.2)]})
    assert "every 1 s or more often" in line


def test_what_was_charged_and_not_folded_is_explained():
    run = {"awaited": [], "deadline_seconds": None}
    assert remarks({**run, "clients": [row(silent=False)]}) == []
    (line,) = remarks({**run, "clients": [row(silent=False, charged=5, state="idle")]})
    assert "charged for 5 releases, and 2 answers were folded: 3 did not arrive" in line


def test_the_answer_of_a_client_that_left_may_still_be_folded():
    run = {"awaited": ["south"], "deadline_seconds": None}
    left = row(silent=False, charged=1, visits=0, state="away", reason="left")
    (line,) = remarks({**run, "clients": [left]})
    assert line == (
        "north was charged for 1 release, and 0 answers were folded: 1 did not arrive, came too late, "
        "was made anew or waits for its round, and stays charged"
    )
