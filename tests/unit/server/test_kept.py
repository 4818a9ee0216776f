"""Claims about mappings that share, and about counts that take the place of a schedule's answers."""

import random

import numpy as np
import pytest

from fedvi import expfam
from fedvi.federation import damping
from fedvi.federation.messages import Hello, NextTask, Offer, Submit
from fedvi.federation.schedules import synchronous
from fedvi.privacy import events
from fedvi.privacy.release import disclose
from fedvi.server.core import barrier, kept, protocol, turns
from fedvi.transport import codec
from fedvi.updates.base import finish_natural

FAMILY = expfam.full_gaussian(2)
CLIENTS = tuple(f"c{index:03}" for index in range(150))


def test_a_shared_mapping_does_what_a_dictionary_does():
    generator = random.Random(0)
    plain, shared = {}, kept.ByClient.of({}, CLIENTS)
    for _ in range(600):
        name, before = generator.choice(CLIENTS), shared
        if generator.random() < 0.3:
            shared, after = (
                kept.without(shared, name),
                {k: v for k, v in plain.items() if k != name},
            )
        else:
            value = object()
            shared, after = kept.put(shared, name, value), {**plain, name: value}
        assert dict(before.items()) == plain  # what was there stays as it was
        assert (dict(shared.items()), len(shared)) == (after, len(after))
        found = list(kept.differences(before, shared))
        assert {n for n, _, _ in found} == {
            n for n in {*plain, *after} if plain.get(n) is not after.get(n)
        }
        assert [name in shared for name in CLIENTS] == [name in after for name in CLIENTS]
        plain = after
    assert list(shared) == [name for name in CLIENTS if name in plain]
    with pytest.raises(KeyError):
        kept.ByClient.of({}, CLIENTS)["c000"]


def test_what_grows_is_seen_by_nobody_who_held_it_before():
    first = kept.Appended({"a": "1"})
    second = first.plus({"b": "2"})
    other = first.plus({"c": "3"})
    assert (dict(first), dict(second), dict(other)) == (
        {"a": "1"},
        {"a": "1", "b": "2"},
        {"a": "1", "c": "3"},
    )
    assert "b" not in first
    assert other.since(1) == [("c", "3")]


def test_counts_say_at_every_request_what_the_schedule_says():
    names = CLIENTS[:7]
    spec = protocol.ServerSpec(
        study_digest="d",
        clients=names,
        family=FAMILY,
        prior=FAMILY.isotropic(2.0),
        schedule=synchronous(3),
        step_rule=damping.fixed(1.0),
        finish=dict.fromkeys(names, finish_natural),
        costs=dict.fromkeys(names, events.Unprotected("q")),
    )
    generator, state, held = random.Random(1), protocol.initial_state(spec), {}
    for name in names:
        state, _ = protocol.step(spec, state, Hello(name, "d", None), 0.0)
    seen = [state]
    while state.status == "running":
        name = generator.choice(names)
        before = state
        if name in held:
            task = held.pop(name)
            value = {"h": task.posterior.h + 0.1, "J": task.posterior.J + np.eye(2)}
            payload = codec.encode(disclose(value, "q"))
            state, _ = protocol.step(spec, state, Submit(name, task.task_id, payload), 0.0)
        else:
            state, reply = protocol.step(spec, state, NextTask(name), 0.0)
            if isinstance(reply, Offer):
                held[name] = reply.task
        if state.status != "running":
            break
        progress = protocol.progress_of(spec, state)
        selected = tuple(n for n in names if turns.is_selected(spec, state, n))
        assert selected == spec.schedule.select(progress)
        found = barrier.counted(spec, state)
        assert found.missing == len(spec.schedule.awaited(progress))
        asked = spec._replace(schedule=spec.schedule._replace(barrier=False))
        seen.append(state)
        group = seen[-generator.randint(2, 12) :]
        assert turns.brings_work(spec, before, state) == turns.brings_work(asked, before, state)
        assert turns.brings_work(spec, *group) == turns.brings_work(asked, *group)
    assert state.version == 3
