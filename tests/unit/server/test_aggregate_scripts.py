"""Claims about scripts under the view "aggregate": what stages are let through, and what they publish."""

import json
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.audit import published_sums as audit
from fedvi.expfam import tree
from fedvi.federation.messages import Hello, NextTask, Offer, Submit, Wait
from fedvi.federation.progress import Patience
from fedvi.privacy import ledger
from fedvi.server.core import protocol, turns
from fedvi.server.store.durable import SqliteServerStore
from fedvi.study import build
from fedvi.study.config import Study, parse_study
from fedvi.study.spec import shared_parts
from tests.studies import raw_study, run_study, synthetic_logistic
from tests.unit.server.test_aggregate_rounds import NAMES, payload, sent

PROMISE = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "unit": "record",
    "relation": "substitute",
    "view": "aggregate",
    "least_reporting": 3,
}
ALL = {"kind": "synchronous", "rounds": 1}
PART = ALL | {"over": ["south", "west", "far"]}
CHANGES = {"kind": "perturbed_update", "clip_norm": 2.0, "clean_factor": True}
SITES = {"kind": "site_release", "clip_norm": 2.0}


def raw(*stages: dict[str, Any], names: Any = NAMES, solver: Any = CHANGES, **privacy: Any) -> Any:
    found = raw_study(
        list(names),
        2,
        kind="logistic",
        solver=solver,
        schedule={"kind": "scripted", "stages": list(stages), "deadline_seconds": 5.0},
        privacy={**PROMISE, **privacy},
    )
    found["data"]["max_records"] = 40
    return found


def study(*stages: dict[str, Any], **rest: Any) -> Study:
    return parse_study(raw(*stages, **rest))


def server(*stages: dict[str, Any], **rest: Any) -> protocol.ServerSpec:
    found = build.assemble(study(*stages, **rest)).spec
    # Answers here are numbers of any size.
    return found._replace(headers={}, budget=None, limits={})


def offered(spec: Any, state: Any, now: float = 0.0) -> Any:
    """Asks for all clients; returns the state, and who was given a task."""
    given = []
    for name in spec.clients:
        state, _ = protocol.step(spec, state, Hello(name, spec.study_digest), now)
        state, reply = protocol.step(spec, state, NextTask(name), now)
        assert isinstance(reply, Offer | Wait)
        given += [name] if isinstance(reply, Offer) else []
    return state, given


def played(spec: Any, state: Any, seed: int, now: float = 0.0) -> Any:
    """One round, of whoever is asked."""
    state, given = offered(spec, state, now)
    for index, name in enumerate(given):
        state, _ = sent(spec, state, name, seed + index, now)
    return state, given


# What is let through.


@pytest.mark.parametrize("kind", ["sequential", "asynchronous", "buffered_asynchronous"])
def test_a_stage_whose_answers_are_no_sum_is_refused_with_its_place(kind: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=rf"^schedule\.stages\[1\]\.kind is '{kind}' beside"
    ) as found:
        shared_parts.schedule(study(ALL, ALL | {"kind": kind}))
    assert "synchronous" in found.value.hint


def test_a_stage_over_fewer_clients_than_a_sum_must_hold_is_refused_with_their_names() -> None:
    with pytest.raises(
        errors.ConfigError,
        match=r"^schedule\.stages\[1\]\.over names 2 of the clients \(west, far\), expected at least "
        r"privacy\.least_reporting, 3",
    ):
        shared_parts.schedule(study(ALL, ALL | {"over": ["west", "far"]}))
    # Left out, all clients must answer: a part of them never suffices.
    with pytest.raises(errors.ConfigError, match=r"privacy\.least_reporting, 5"):
        shared_parts.schedule(study(PART, least_reporting=None))


def test_a_generator_whose_stages_nobody_can_see_beforehand_is_refused() -> None:
    given = raw(ALL) | {"schedule": {"kind": "mine"}}
    with pytest.raises(errors.ConfigError, match=r"schedule\.kind is 'mine'"):
        # No such plug-in is there: it is refused before anybody looks for it.
        build.assemble(parse_study(given))


def test_a_part_of_the_clients_is_refused_where_a_sum_takes_the_place_of_the_last() -> None:
    with pytest.raises(
        errors.ConfigError, match=r"^schedule\.stages\[1\]\.over leaves out north, east beside"
    ):
        build.assemble(study(ALL, PART, solver=SITES))
    # To name all of them is to leave nobody out.
    build.assemble(study(ALL, ALL | {"over": NAMES[::-1]}, solver=SITES))
    build.assemble(study(ALL, PART))


# What it does.


@pytest.mark.nightly
def test_stages_of_all_clients_are_the_rounds_of_one_schedule_bit_for_bit() -> None:
    """Against the synchronous schedule of as many rounds, with the same seeded noise."""
    sources = synthetic_logistic(4, 30, 2)
    stages = (ALL, ALL | {"rounds": 2, "until": "converged", "tolerance": 1e-9})
    for solver in (SITES, CHANGES):
        script = raw(*stages, names=sources, solver=solver)
        plain = script | {"schedule": {"kind": "synchronous", "rounds": 3}}
        # With most seeds noise leaves the prior as it is; with this one both move in each round.
        seeded = {"simulation": {"insecure_seed": 13}}
        one = run_study(script | seeded, sources)
        other = run_study(plain | seeded, sources)
        assert tree.equal(one.posterior, other.posterior)
        assert [update.damping for update in one.history] == [
            update.damping for update in other.history
        ]
        assert one.assembly.noise_multiplier == other.assembly.noise_multiplier
        assert one.consortium == other.consortium
        for name in sources:
            charged = [
                [entry.event for entry in result.ledgers[name].entries] for result in (one, other)
            ]
            assert charged[0] == charged[1]


def test_a_stage_that_converges_ends_by_what_is_published_and_costs_no_more() -> None:
    sources = synthetic_logistic(4, 30, 2)
    stages = (ALL | {"rounds": 9, "until": "converged", "tolerance": 1e9}, ALL)
    result = run_study(raw(*stages, names=sources), sources)
    assert len(result.history) == 2
    assert {len(book.entries) for book in result.ledgers.values()} == {2 * 3}
    # What is promised holds whenever it stops: it is planned for ten.
    assert result.assembly.schedule.rounds == 10


def test_clients_outside_a_stage_are_neither_asked_nor_charged() -> None:
    spec = build.assemble(study(PART, ALL, PART)).spec._replace(limits={})
    state = protocol.initial_state(spec)
    for seed, expected in enumerate([NAMES[2:], NAMES, NAMES[2:]]):
        for name in spec.clients:
            hello = Hello(name, spec.study_digest, ledger.anchor(state.ledgers[name]))
            state, _ = protocol.step(spec, state, hello, 0.0)
        given = []
        for name in spec.clients:
            state, reply = protocol.step(spec, state, NextTask(name), 0.0)
            given += [name] if isinstance(reply, Offer) else []
        assert given == expected
        for name in given:
            state, _ = sent(spec, state, name, 10 * seed)
        assert sorted(state.history[-1].clients) == sorted(expected)
    assert state.status == "completed"
    charged = {name: ledger.reservations(book) for name, book in state.ledgers.items()}
    assert charged == {"north": 1, "east": 1, "south": 3, "west": 3, "far": 3}
    # The plan of a ledger is that of the busiest client: an upper bound for the others.
    assert spec.schedule.rounds == 3


def test_an_answer_of_a_stage_that_is_over_is_dropped_once_a_sum_is_published() -> None:
    """Folded later, the difference of two sums would show it."""
    spec = server(ALL | {"rounds": 1}, PART | {"over": NAMES[:3], "rounds": 2})
    state, _ = offered(spec, protocol.initial_state(spec))
    for index, name in enumerate(NAMES[:4]):
        state, _ = sent(spec, state, name, index)
    state = protocol.tick(spec, state, 6.0)
    assert (state.version, len(state.stages)) == (1, 1)
    before = state
    state, receipt = sent(spec, state, "far", 9, now=6.0)
    assert receipt.status == "accepted"
    assert state.history[-1].dropped == ("far",)
    assert tree.equal(state.posterior, before.posterior)
    assert state.answers == ()


def test_an_answer_from_the_posterior_that_is_served_is_in_that_rounds_sum_once() -> None:
    """No sum was published since it was asked, so it hides among those of the next stage."""
    spec = server(ALL, PART | {"over": NAMES[:3]}, ALL)
    state, _ = offered(spec, protocol.initial_state(spec))
    # Nobody answered in time: the first stage is over, and nothing is published.
    state = protocol.tick(spec, state._replace(turns=dict.fromkeys(NAMES, 1)), 6.0)
    assert (state.version, len(state.stages)) == (0, 1)
    state, _ = sent(spec, state, "far", 9, now=6.0)
    assert [answer.task.client for answer in state.answers] == ["far"]
    state, given = offered(spec, state, 6.0)
    # Whoever still works on a task is offered that one again, and no other.
    assert given == NAMES[:4]
    assert {task.task_id for task in state.tasks.values()} == {f"{name}/0" for name in given}
    for index, name in enumerate(NAMES[:3]):
        state, _ = sent(spec, state, name, 20 + index, now=6.0)
    update = state.history[-1]
    assert sorted(update.clients) == sorted([*NAMES[:3], "far"])
    assert (state.version, state.answers) == (1, ())


def test_a_round_of_a_stage_with_too_few_answers_is_given_up() -> None:
    spec = server(ALL, PART, ALL)._replace(patience=Patience(5.0, 1))
    state, _ = played(spec, protocol.initial_state(spec), 0)
    before = state
    state, given = offered(spec, state, 1.0)
    assert given == NAMES[2:]
    for index, name in enumerate(given[:2]):
        state, _ = sent(spec, state, name, 30 + index, now=1.0)
    state = protocol.tick(spec, state, 10.0)
    update = state.history[-1]
    assert (update.given_up, update.missing, update.rounds) == (("south", "west"), ("far",), 2)
    assert tree.equal(state.posterior, before.posterior)
    assert len(state.stages) == 2


def test_a_stage_waits_for_as_many_of_its_own_clients_as_a_sum_must_hold() -> None:
    """Others that are there are no help: the round would be given up, and charged."""
    spec = server(PART, ALL)
    assert spec.patience.quorum == 3
    state, _ = offered(spec, protocol.initial_state(spec))
    for index, name in enumerate(["south", "west"]):
        state, _ = sent(spec, state, name, index)
    state = protocol.tick(spec, state, 6.0)
    assert state.away == {"far": protocol.OVERDUE}
    assert (state.version, state.history, len(state.answers)) == (0, (), 2)
    state, _ = sent(spec, state, "far", 3, now=7.0)
    assert state.version == 1


def test_a_server_that_was_killed_goes_on_at_its_stage(tmp_path: Any) -> None:
    stages = (ALL, PART, ALL)
    spec = build.assemble(study(*stages)).spec
    spec = spec._replace(headers={}, budget=None, limits={})
    straight = protocol.initial_state(spec)
    killed = straight
    for seed in range(3):
        straight, given = played(spec, straight, 20 * seed)
        killed, again = offered(spec, killed)
        assert given == again
        for index, name in enumerate(given):
            store = SqliteServerStore(tmp_path, spec)
            store.save(killed)
            store.close()
            store = SqliteServerStore(tmp_path, spec)
            killed = protocol.take_up(spec, store.load())
            store.close()
            for other in spec.clients:
                hello = Hello(other, spec.study_digest)
                killed, _ = protocol.step(spec, killed, hello, 0.0)
            killed, _ = sent(spec, killed, name, 20 * seed + index)
    assert straight.status == killed.status == "completed"
    assert killed.stages == straight.stages
    assert tree.equal(killed.posterior, straight.posterior)


def test_what_clients_remember_is_what_was_committed_over_all_stages() -> None:
    """A client is told the step of the last sum that held its answer, whichever stage that was."""
    spec = server(ALL, PART, PART, ALL)
    state, _ = played(spec, protocol.initial_state(spec), 0)
    first = state.history[-1].damping
    for seed in (20, 40):
        state, _ = played(spec, state, seed)
    state, _ = offered(spec, state)
    assert state.tasks["north"].damping == first
    assert state.tasks["north"].visit == 1
    assert state.tasks["far"].damping == state.history[-1].damping
    assert state.tasks["far"].visit == 3


# Planted faults, in a stage that is not the first.


@pytest.fixture(scope="module")
def spec() -> protocol.ServerSpec:
    return server(ALL, PART | {"over": NAMES[1:]})


def verdicts(spec: protocol.ServerSpec) -> dict[str, bool]:
    return {finding.check: finding.passed for finding in audit.check_sums(spec)}


def test_nothing_is_found_in_the_scripts_that_ship(spec: protocol.ServerSpec) -> None:
    assert list(verdicts(spec).values()) == [True] * 3


def in_later_stages(honest: Any, planted: Any) -> Any:
    def chosen(spec: Any, gather: Any, state: Any) -> Any:
        return (planted if state.stages else honest)(spec, gather, state)

    return chosen


def test_it_is_found_when_a_later_stage_publishes_a_sum_of_too_few(
    spec: protocol.ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = in_later_stages(turns._gathered, turns._sum_folded)
    monkeypatch.setattr(turns, "_gathered", planted)
    found = verdicts(spec)
    assert found["a sum of too few answers is not published"] is False


def test_it_is_found_when_a_later_stage_folds_what_came_late(
    spec: protocol.ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = protocol._gathered

    def take(spec: Any, state: Any, answer: Any, now: float) -> Any:
        if not state.stages:
            return honest(spec, state, answer, now)
        state = state._replace(answers=(*state.answers, answer))
        state = turns.settle(spec, state, now)
        return state, protocol.Receipt("accepted", state.version, None)

    monkeypatch.setattr(protocol, "_gathered", take)
    assert verdicts(spec)["an answer that is late is not published alone"] is False


def test_made_up_answers_are_those_that_a_server_takes(spec: protocol.ServerSpec) -> None:
    """`payload` is shared with the tests of single schedules: it must fit a script's server too."""
    state, _ = offered(spec, protocol.initial_state(spec))
    made = payload(spec, "north", 1)
    assert json.loads(made.event)
    state, receipt = protocol.step(spec, state, Submit("north", "north/0", made), 0.0)
    assert receipt.status == "accepted"
    assert all(np.isfinite(leaf).all() for leaf in tree.leaves(state.answers[0].change.delta))
