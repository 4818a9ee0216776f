"""Answers that no declared records could give: refused by name, and left out of the fold."""

import json

import numpy as np
import pytest

from fedvi import errors
from fedvi.federation.messages import Hello, NextTask, Payload, Submit, Tensor
from fedvi.privacy import events, ledger
from fedvi.privacy.mechanisms import rounded_gaussian
from fedvi.run import server_plan
from fedvi.server.core import protocol
from fedvi.server.core.run_events import refused
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.updates.limits import Limit
from tests.studies import raw_study

NAMES = ["north", "south", "west"]
RECORDS = 300
SOLVERS = {
    "site_release": {"clip_norm": 1.0},
    "vips": {},
    "perturbed_update": {},
    "local_averaging": {"parts": 3, "by_place": True},
    "virtual_clients": {"parts": 3, "by_place": True},
    "dp_optimisation": {"steps": 10},
}


def study(solver="site_release", **privacy):
    raw = raw_study(
        NAMES,
        2,
        kind="logistic",
        solver={"kind": solver, "noise_multiplier": 26.0, **SOLVERS[solver]},
        schedule={"kind": "synchronous", "rounds": 2, "deadline_seconds": 5.0},
        privacy={
            "epsilon": 10.0,
            "delta": 1e-5,
            "unit": "record",
            "relation": "substitute",
            **privacy,
        },
    )
    raw["data"]["max_records"] = RECORDS
    raw["privacy"]["records_public"] = "by_place" in SOLVERS[solver]
    return raw


def arrays(spec, kind, task, size):
    """An answer of the solver's form whose first number is ``size`` times its limit, about."""
    if kind == "vips":
        names = build.assemble(parse_study(study(kind))).solvers["north"].adds_up
    elif kind == "site_release":
        names = {"gradient": (2,), "curvature": (3,)}
    elif kind == "dp_optimisation":
        names = {"location": (2,), "scale": (2, 2)}
    else:
        names = {"change": (5,)}
    found = {name: np.zeros(shape) for name, shape in names.items()}
    first = next(iter(found.values()))
    first.reshape(-1)[0] = size * spec.limits[task.client].of_sum(1)
    return found


def payload(spec, client, value):
    event = json.dumps(events.to_json(spec.costs[client]), sort_keys=True, separators=(",", ":"))
    tensors = tuple(
        Tensor(name, "<f8", array.shape, array.astype("<f8").tobytes())
        for name, array in sorted(value.items())
    )
    return Payload(tensors, event, codec.digest(event, tensors))


class Run:
    def __init__(self, kind, **privacy):
        self.kind = kind
        self.assembly = build.assemble(parse_study(study(kind, **privacy)))
        self.spec = self.assembly.spec
        self.state = protocol.initial_state(self.spec)
        for name in NAMES:
            book = ledger.open_ledger(self.spec.headers[name])
            self.ask(Hello(name, self.spec.study_digest, ledger.anchor(book)))
            self.ask(NextTask(name))

    def ask(self, request, now=0.0, spec=None):
        self.state, reply = protocol.step(spec or self.spec, self.state, request, now)
        return reply

    def answer(self, name, size, spec=None):
        task = self.state.tasks[name]
        sent = payload(self.spec, name, arrays(self.spec, self.kind, task, size))
        return self.ask(Submit(name, task.task_id, sent), spec=spec)


@pytest.mark.parametrize("kind", SOLVERS)
def test_an_answer_beyond_what_the_study_bounds_is_refused_and_the_others_are_folded(kind):
    run = Run(kind)
    for size in (1e6, 1.01):
        before = run.state
        with pytest.raises(errors.ProtocolError, match=r"answer to task 'west/0' is longer than"):
            run.answer("west", size)
        assert run.state is before
    run.answer("north", 0.1)
    run.answer("south", -0.1)
    # The site is named, as one is whose numbers are not finite; and its turn passes.
    run.state = protocol.tick(run.spec, run.state, 6.0)
    assert run.state.history[-1].clients == ("north", "south")
    assert run.state.history[-1].missing == ("west",)


def test_an_answer_without_arrays_is_refused_in_words():
    run = Run("site_release")
    task = run.state.tasks["west"]
    with pytest.raises(errors.ProtocolError, match=r"an answer holds arrays"):
        run.ask(Submit("west", task.task_id, payload(run.spec, "west", {})))


def test_the_event_of_a_refusal_names_the_site():
    run = Run("site_release")
    with pytest.raises(errors.ProtocolError) as caught:
        run.answer("west", 10.0)
    event = refused("Submit", "west", caught.value)
    assert event.client == "west"
    assert "west: Submit refused: the answer to task 'west/0' is longer than" in event.text


def test_the_limit_of_a_site_is_what_its_records_and_the_noise_give():
    run = Run("site_release")
    limit = run.spec.limits["north"]
    assert limit.contributions == RECORDS * 1.0
    assert 26.0 * np.sqrt(5) < limit.noise < 26.0 * (np.sqrt(5) + 7.0)


def test_the_largest_answer_of_honest_records_is_taken():
    run = Run("site_release")
    assert run.answer("west", 0.99).status == "accepted"


def test_without_noise_and_clipping_there_is_no_limit():
    raw = raw_study(NAMES, 2)
    assert build.assemble(parse_study(raw)).spec.limits == {}


def test_noise_of_a_plug_in_may_have_longer_tails_so_that_there_is_no_limit():
    def heavy(noise_multiplier):
        return rounded_gaussian(noise_multiplier)

    raw = study(mechanism="my_lab.heavy")
    assembly = build.assemble(parse_study(raw, {"my_lab.heavy": heavy}))
    assert assembly.solvers["north"].limit is not None
    assert assembly.spec.limits == {}


def test_a_plan_keeps_the_limits_to_the_last_bit(tmp_path):
    assembly = Run("site_release").assembly
    plan = server_plan.make(assembly)
    server_plan.keep(plan, tmp_path)
    found = server_plan.to_spec(server_plan.read(tmp_path / server_plan.FILE))
    assert found.limits == assembly.spec.limits
    assert isinstance(found.limits["north"], Limit)


def aggregated(least=2):
    return Run("site_release", view="aggregate", least_reporting=least, colluding=0)


def whole(run, size):
    """Answers of an aggregated study are whole steps."""
    step = run.spec.gather.step
    value = np.zeros(5)
    value[0] = np.round(size * run.spec.limits["north"].of_sum(1) / step)
    parts = {"gradient": value[:2], "curvature": value[2:]}
    return {name: (array.astype("<i4"), step) for name, array in parts.items()}


def submit(run, name, size, spec=None):
    event = json.dumps(events.to_json(run.spec.costs[name]), sort_keys=True, separators=(",", ":"))
    tensors = tuple(
        Tensor(key, "<i4", array.shape, array.tobytes(), step)
        for key, (array, step) in sorted(whole(run, size).items())
    )
    sent = Payload(tensors, event, codec.digest(event, tensors))
    return run.ask(Submit(name, run.state.tasks[name].task_id, sent), spec=spec)


def test_where_the_server_sees_answers_and_publishes_sums_each_answer_is_checked():
    run = aggregated()
    with pytest.raises(errors.ProtocolError, match=r"answer to task 'west/0' is longer than"):
        submit(run, "west", 1.5)
    for name in ("north", "south"):
        submit(run, name, 0.4)
    run.state = protocol.tick(run.spec, run.state, 6.0)
    assert run.state.history[-1].clients == ("north", "south")


def test_of_sums_alone_the_sum_is_checked_and_an_impossible_one_is_given_up():
    run = aggregated(3)
    # As masked answers do, they pass one by one.
    unseen = run.spec._replace(limits={})
    for name in ("north", "south"):
        submit(run, name, 5.0, unseen)
    submit(run, "west", 0.9)
    assert run.state.version == 0
    assert run.state.history[-1].given_up == ("north", "south", "west")
    for name in NAMES:
        run.ask(NextTask(name))
    for name in NAMES:
        submit(run, name, 0.7)
    assert run.state.version == 1
    assert run.state.history[-1].clients == tuple(NAMES)
