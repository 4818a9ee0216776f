"""What the server tells, and in what form."""

import io
import json
import logging

import numpy as np
import pytest

from fedvi import errors
from fedvi.federation.messages import Begin, Failure, Goodbye, NextTask, Submit
from fedvi.federation.progress import Patience
from fedvi.server import logs
from fedvi.server.core import protocol, run_events
from fedvi.server.core.run_events import RunEvent, between
from fedvi.server.store.journal import MemoryJournal
from fedvi.server.watch.run_log import RunLog
from tests.servers import answer, encoded, greeting, make_spec


@pytest.fixture
def stream():
    logger, stream = logging.getLogger(logs.LOGGER), io.StringIO()
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before


def test_a_line_of_json_holds_kind_message_and_fields(stream):
    logs.set_up("json", stream)
    logs.log("folded", "version 3", version=3, missing=["north"], gap=None)
    line = json.loads(stream.getvalue())
    assert (line["kind"], line["message"], line["level"]) == ("folded", "version 3", "info")
    assert (line["version"], line["missing"], line["gap"]) == (3, ["north"], None)


def test_a_plain_line_stays_one_line_whatever_a_name_holds(stream):
    logs.set_up("plain", stream)
    logs.log("refused", "client 'a\nERROR: all is lost' is not in the study", logging.WARNING)
    assert stream.getvalue().count("\n") == 1
    assert "warning: client" in stream.getvalue()


def test_setting_up_again_writes_each_line_once(stream):
    logs.set_up("plain", stream)
    logs.set_up("plain", stream)
    logs.log("ready", "here")
    assert stream.getvalue().count("here") == 1


def steps(spec, *requests):
    """Plays requests from the start; returns what is told of each."""
    state, told = protocol.initial_state(spec), []
    for now, request in enumerate(requests):
        after, _ = protocol.step(spec, state, request, float(now))
        told.append(between(spec, state, after, request))
        state = after
    return state, told


def test_a_fold_tells_who_answered_and_the_step():
    spec = make_spec(rounds=1)
    state, _ = steps(spec, *(greeting(spec, name) for name in spec.clients))
    told = []
    for name in spec.clients:
        state, reply = protocol.step(spec, state, NextTask(name), 1.0)
        submit = Submit(name, reply.task.task_id, answer(reply.task))
        after, _ = protocol.step(spec, state, submit, 2.0)
        told += between(spec, state, after, submit)
        state = after
    assert [item.kind for item in told] == ["answered", "answered", "folded", "status"]
    text = told[2].text
    assert text.startswith("version 1  round 1/1  answered: south, north  damping ")
    assert told[2].update is state.history[-1]
    assert told[3].text == "the run is completed"


def test_a_missing_client_is_told_of_when_it_goes_at_the_fold_and_when_it_is_back():
    spec = make_spec(rounds=2, patience=Patience(5.0, 1))
    state, _ = steps(spec, greeting(spec, "south"))
    state, reply = protocol.step(spec, state, NextTask("south"), 1.0)
    submit = Submit("south", reply.task.task_id, answer(reply.task))
    state, _ = protocol.step(spec, state, submit, 1.0)
    after = protocol.tick(spec, state, 10.0)
    told = between(spec, state, after, None)
    assert [(item.kind, item.client) for item in told] == [("away", "north"), ("folded", "")]
    assert "MISSING: north" in told[1].text
    hello = greeting(spec, "north")
    back, _ = protocol.step(spec, after, hello, 11.0)
    told = between(spec, after, back, hello)
    assert [(item.kind, item.client) for item in told] == [("joined", "north"), ("back", "north")]


def test_a_failure_is_told_by_its_code():
    spec = make_spec()
    hello, ask = greeting(spec, "south"), NextTask("south")
    failure = Failure("south", "south/0", "data")
    _, told = steps(spec, hello, ask, failure)
    assert [item.text for item in told[2]] == [
        "south cannot answer south/0: data",
        "south is away: data",
    ]


def test_a_greeting_is_told_of_if_it_is_news():
    spec = make_spec()
    hello = greeting(spec, "south")._replace(session="1" * 32)
    other = hello._replace(session="2" * 32)
    asks = (hello, hello, other, Goodbye("south", other.session), other)
    _, told = steps(spec, *asks)
    kinds = [[item.kind for item in items] for items in told]
    assert kinds == [["joined"], [], ["joined"], ["left", "away"], ["joined", "back"]]


def test_other_bytes_are_told_of_and_the_same_at_a_higher_attempt_are_not():
    spec = make_spec()
    state, _ = steps(spec, greeting(spec, "south"), NextTask("south"))
    payload, other = (answer(state.tasks["south"], seed) for seed in (0, 1))
    first = Begin("south", "south/0", payload.sha256, payload.event)
    told = []
    for request in (
        first,
        first._replace(attempt=2),
        first._replace(sha256=other.sha256),
        first._replace(sha256=other.sha256),
        Submit("south", "south/0", payload),
    ):
        after, _ = protocol.step(spec, state, request, 3.0)
        told.append([(item.kind, item.at_will) for item in between(spec, state, after, request)])
        state = after
    assert told == [[], [], [("refused", False)], [], [("answered", False)]]


def test_what_a_client_does_at_will_fills_no_disk_and_hides_nothing_else():
    spec, journal = make_spec(), MemoryJournal()
    run_log = RunLog(spec, lambda: protocol.initial_state(spec), journal)
    try:
        for kind in ("joined", "left", "failed", "refused", "away", "back"):
            for _ in range(100):
                run_log.tell(RunEvent(kind, "south", "x", at_will=True))
        for client in ("south", "north", ""):
            run_log.tell(RunEvent("refused", client, "y"))
            run_log.tell(RunEvent("refused", client, "z", at_will=True))
    finally:
        run_log.close()
    texts = [event.text for event in journal.events()]
    assert texts.count("x") == 20
    assert texts[20:] == ["y", "y", "z", "y", "z"]


def test_only_what_a_client_does_at_will_is_held_back():
    spec = make_spec(patience=Patience(5.0, 1))
    south, failure = greeting(spec, "south"), Failure("south", "south/0", "data")
    asks = (south, NextTask("south"), failure, south, Goodbye("south"))
    state, told = steps(spec, *asks)
    found = {(item.kind, item.at_will) for items in told for item in items}
    at_will = {(kind, True) for kind in ("joined", "left", "failed", "away", "back")}
    assert found == {*at_will, ("offered", False)}
    told = between(spec, state, protocol.revoke(spec, state, {"south"}, 4.0), None)
    assert [(item.kind, item.at_will) for item in told] == [("away", False)]


def test_a_refusal_tells_no_number_of_the_answer():
    spec = make_spec(("south",))
    state, _ = steps(spec, greeting(spec, "south"))
    state, reply = protocol.step(spec, state, NextTask("south"), 1.0)
    for wrong in (np.array([0.31415926, np.nan]), np.array([0.31415926])):
        payload = encoded({"h": wrong, "J": np.eye(2) * 0.31415926})
        submit = Submit("south", reply.task.task_id, payload)
        with pytest.raises(errors.FedviError) as caught:
            protocol.step(spec, state, submit, 2.0)
        told = run_events.refused("Submit", "south", caught.value)
        assert told.text.startswith("south: Submit refused: ")
        assert "31415" not in told.text
        assert "31415" not in str(caught.value)


def test_a_refusal_is_told_without_its_hint():
    told = run_events.refused("Hello", "west", errors.ProtocolError("not in the study", "a hint"))
    assert told == ("refused", "west", "west: Hello refused: not in the study", None, True)


def test_a_refusal_is_told_in_one_line_of_some_length_whatever_it_quotes():
    error = errors.ProtocolError("k" * 60_000 + "\nmore", "a hint")
    assert len(run_events.refused("Submit", "south", error).text) < 400
    assert run_events.refused("Submit", "", errors.ProtocolError("")).text == "Submit refused: "


def test_a_line_of_the_log_steers_no_terminal(stream):
    logs.set_up("plain", stream)
    logs.log("refused", "a\x1b[2J\nb\x9bc\u2028d")
    assert stream.getvalue().endswith("  a\ufffd[2J b\ufffdc d\n")
