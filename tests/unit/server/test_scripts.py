"""A script's stages follow each other at the server, and a killed server goes on at its cursor."""

import contextlib
import functools

import pytest

from fedvi import errors
from fedvi.federation import fold as folding
from fedvi.federation.messages import Hello, NextTask, Offer, Submit
from fedvi.federation.progress import Progress, StageEnd
from fedvi.federation.schedules import (
    asynchronous,
    buffered_asynchronous,
    sequential,
    synchronous,
)
from fedvi.federation.script import Stage, from_generator, scripted
from fedvi.privacy import ledger
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.protocol import served
from fedvi.server.store import state_cells
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store.memory import MemoryServerStore
from fedvi.typing import PRIOR
from fedvi.updates.noise_aware import of_changes, of_sites
from tests.states import CLIENTS, answer, frozen, header, make_spec

LISTED = scripted(
    [
        Stage(sequential(1), ("south", "north")),
        Stage(synchronous(4, tolerance=1e9), ("north", "east")),
        Stage(asynchronous(updates=3)),
        Stage(buffered_asynchronous(1, buffer=3)),
    ]
)


def generated():
    one_by_one, together = sequential(1), synchronous(1)

    def script(progress):
        progress = yield Stage(one_by_one, ("east",))
        while progress.gap > 1e-9 and progress.version < 4:
            progress = yield Stage(together, progress.clients[:2])
        yield Stage(one_by_one)

    return from_generator(script, rounds=9)


GENERATED = generated()


def run(spec, server_of) -> list:
    """Plays a run to its end, each request by the server that is there then; returns all states."""
    states, books = [], None
    while not states or states[-1].status == "running":
        if len(states) > 60:
            raise AssertionError("the run does not end")
        for name in spec.clients:
            for _ in range(2):
                with server_of() as server:
                    books = server.state.ledgers
                    if name in books:
                        anchor = ledger.anchor(books[name])
                        server.handle(Hello(name, spec.study_digest, anchor))
                    offer = server.handle(NextTask(name))
                    states.append(server.state)
                    if not isinstance(offer, Offer):
                        break
                # Another server takes the answer.
                with server_of() as server:
                    if name in books:
                        anchor = ledger.anchor(server.state.ledgers[name])
                        server.handle(Hello(name, spec.study_digest, anchor))
                    server.handle(Submit(name, offer.task.task_id, answer(offer.task)))
                    states.append(server.state)
    return states


def undisturbed(spec) -> list:
    server = Coordinator(spec, MemoryServerStore())
    return run(spec, lambda: contextlib.nullcontext(server))


def folded(states) -> list[tuple[str, ...]]:
    return [update.clients for update in states[-1].history]


def spec_of(schedule, clients=CLIENTS):
    spec = make_spec()
    return spec._replace(
        schedule=schedule,
        clients=clients,
        finish=dict.fromkeys(clients, spec.finish["south"]),
        costs=dict.fromkeys(clients, spec.costs["south"]),
    )


@pytest.mark.parametrize("schedule", [LISTED, GENERATED], ids=["list", "generator"])
def test_a_server_that_is_killed_after_each_request_goes_on_at_its_cursor(schedule, tmp_path):
    """Every state that it saved is, bit for bit, the one of the run that nothing happened to.

    So a server that is killed at any of these points, once or often, goes on as it would have.
    """
    spec = spec_of(schedule)

    @contextlib.contextmanager
    def started_anew():
        with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
            yield Coordinator(spec, store)

    expected = undisturbed(spec)
    found = run(spec, started_anew)
    assert [frozen(state) for state in found] == [frozen(state) for state in expected]
    assert found[-1].status == "completed"
    assert len(found[-1].stages) >= 4
    assert any(state.stages and state.tasks for state in found)


@pytest.mark.parametrize(
    "stand",
    [
        functools.partial(of_sites, gradient_sd=0.3, curvature_sd=0.2, rate=0.5, floor=1.0),
        functools.partial(of_changes, noise_sd=0.1),
    ],
    ids=["sites", "changes"],
)
def test_what_a_server_makes_of_noise_survives_it(stand, tmp_path):
    spec = spec_of(sequential(3))._replace(stand=stand, renews=stand.func is of_sites)

    @contextlib.contextmanager
    def started_anew():
        with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
            yield Coordinator(spec, store)

    expected = undisturbed(spec)
    found = run(spec, started_anew)
    assert [frozen(state) for state in found] == [frozen(state) for state in expected]
    assert found[-1].standing.folds == 9


def test_stages_follow_each_other_and_count_from_their_own_beginning():
    states = undisturbed(spec_of(LISTED))
    south, north, east = CLIENTS
    assert folded(states)[:2] == [(south,), (north,)]
    # Its tolerance ends the second stage, after its own first round and not before.
    assert folded(states)[2] == (north, east)
    assert [len(clients) for clients in folded(states)[3:]] == [1, 1, 1, 3]
    assert [end.version for end in states[-1].stages] == [2, 3, 6, 7]
    assert [end.turns for end in states[-1].stages][:2] == [(1, 1, 0), (1, 2, 1)]
    assert LISTED.rounds == 1 + 4 + 3 + 1


def test_a_round_s_gap_is_measured_from_the_stage_s_beginning():
    states = undisturbed(spec_of(LISTED))
    history = states[-1].history
    # Stages of one round over two clients end with a gap, though the third had no turn yet.
    assert history[0].gap is None
    assert history[1].gap is not None
    assert [update.rounds for update in history[:3]] == [0, 1, 1]
    assert states[-1].stages[1].gap == history[2].gap.mean_shift


def test_a_stage_that_completed_no_round_does_not_count_in_the_next_one_s_gap():
    spec = spec_of(scripted([Stage(asynchronous(updates=1)), Stage(sequential(1), ("east",))]))
    states = undisturbed(spec)
    first = next(state for state in states if state.version == 1)
    assert [update.gap is None for update in states[-1].history] == [True, False]
    expected = folding.gap(spec.family, served(spec, first), served(spec, states[-1]))
    assert states[-1].history[1].gap == expected


def test_what_is_held_when_a_stage_converges_is_answered_in_the_next_one():
    """South's task is open when the others make the stage converge; its turn was over then."""
    spec = spec_of(
        scripted([Stage(asynchronous(3, tolerance=1e9)), Stage(sequential(1), ("north",))])
    )
    server = Coordinator(spec, MemoryServerStore())
    for name in CLIENTS:
        server.handle(Hello(name, "d", ledger.anchor(server.state.ledgers[name])))

    def task_of(name):
        return server.handle(NextTask(name)).task

    def submit(task):
        server.handle(Submit(task.client, task.task_id, answer(task)))

    submit(task_of("south"))
    held = task_of("south")
    submit(task_of("east"))
    submit(task_of("north"))
    assert len(server.state.stages) == 1
    assert server.state.turns == {"south": 2, "north": 1, "east": 1}
    submit(held)
    assert server.state.answers[0].late
    submit(task_of("north"))
    assert server.state.status == "completed"
    assert server.state.history[-1].clients == ("south", "north")
    assert server.state.visits == server.state.turns == {"south": 2, "north": 2, "east": 1}


def test_the_prior_s_worker_takes_part_in_every_stage_and_is_no_update():
    clients = (PRIOR, *CLIENTS)
    schedule = scripted([Stage(sequential(2), ("east",)), Stage(asynchronous(updates=6))])
    spec = spec_of(schedule, clients)._replace(headers={name: header(name) for name in CLIENTS})
    states = undisturbed(spec)
    assert folded(states)[:4] == [(PRIOR,), ("east",)] * 2
    visits = dict(states[-1].visits)
    # Two turns in the first stage. In the second it asks twice before the others, has one turn, and
    # the next only after three updates of theirs, when they have done all six before it asks.
    assert visits.pop(PRIOR) == 2 + 1
    assert sum(visits.values()) == 2 + 6
    assert schedule.rounds == 2 + 6


START = Progress(CLIENTS, (0, 0, 0), (0, 0, 0), (), (), 0, float("inf"))


def ended(version, *turns):
    return StageEnd(turns, turns, version, 0.5, ())


def test_a_generator_is_sent_what_was_recorded_and_nothing_of_now():
    seen, once = [], sequential(1)

    def script(progress):
        seen.append(progress)
        while True:
            seen.append((yield Stage(once)))

    schedule = from_generator(script, rounds=3)
    now = START._replace(stages=(ended(3, 1, 1, 1), ended(6, 2, 2, 2)), open=("east",), version=7)
    assert not schedule.finished(now)
    assert [(progress.version, progress.turns) for progress in seen] == [
        (0, (0, 0, 0)),
        (3, (1, 1, 1)),
        (6, (2, 2, 2)),
    ]
    assert not any(progress.open for progress in seen)
    # The declared number of turns is kept, whatever the generator yields.
    last = now._replace(stages=(*now.stages, ended(9, 3, 3, 3)))
    assert schedule.finished(last)


def test_a_generator_that_yields_stages_without_turns_comes_to_an_end():
    never = sequential(1)._replace(finished=lambda progress: True)

    def script(progress):
        while True:
            yield Stage(never)

    schedule = from_generator(script, rounds=3)
    assert schedule.finished(START._replace(stages=(ended(0, 0, 0, 0),)))


def fails(progress):
    yield Stage(synchronous(1))
    raise ZeroDivisionError("by nothing")


def stranger(progress):
    yield Stage(synchronous(1), ("nroth",))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scripted([]), "schedule.stages is empty"),
        (lambda: scripted([Stage(LISTED)]), "a stage's schedule is 'scripted', a script"),
        (lambda: scripted([Stage(synchronous(1), ())]), "a stage is over no clients"),
        (lambda: from_generator(fails, 0), "rounds is 0, expected at least 1"),
    ],
)
def test_a_script_that_cannot_be_is_refused(make, message):
    with pytest.raises(errors.ConfigError) as found:
        make()
    assert found.value.message.startswith(message)
    assert found.value.hint


def text(progress):
    yield "sequential"


def nested(progress):
    yield Stage(LISTED)


@pytest.mark.parametrize(
    ("generate", "ends", "message"),
    [
        (fails, 1, "the script's generator failed at stage 1 with ZeroDivisionError: by nothing"),
        (text, 0, "the script's generator yielded str, expected a Stage"),
        (nested, 0, "a stage's schedule is 'scripted', a script"),
        (stranger, 0, "a stage is over 'nroth', which is no client"),
    ],
)
def test_a_generator_s_mistake_is_told_when_its_stage_is_asked_for(generate, ends, message):
    schedule = from_generator(generate, 5)
    with pytest.raises(errors.ConfigError) as found:
        schedule.select(START._replace(stages=(ended(3, 1, 1, 1),) * ends))
    assert found.value.message.startswith(message)


def test_a_fold_is_noted_with_the_stage_that_it_was_of_and_survives_the_disk(tmp_path):
    spec = spec_of(LISTED)
    final = undisturbed(spec)[-1]
    places = [update.stage for update in final.history]
    assert [place.number for place in places] == sorted(place.number for place in places)
    assert {place.number for place in places} == {1, 2, 3, 4}
    assert {place.stages for place in places} == {4}
    assert places[0].words == "stage 1 of 4, sequential, round 0 of 1"
    # Of its own clients, since it began, whatever they had done before.
    second = [place for place in places if place.number == 2]
    assert [(place.round, place.rounds) for place in second] == [(1, 4)]
    with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
        store.save(final)
    with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
        assert store.load().history == final.history
    # A run without a script is noted as it always was.
    plain = undisturbed(spec_of(sequential(1)))[-1].history[0]
    assert plain.stage is None
    assert "stage" not in state_cells.line_of(plain)
