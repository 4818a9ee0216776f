"""Answers that no declared records could give: refused by name, and left out of the fold."""

import json
import math

import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam.matrices import triangle
from fedvi.federation.messages import Hello, NextTask, Payload, Submit, Tensor
from fedvi.privacy import events, ledger
from fedvi.privacy.mechanisms import rounded_gaussian
from fedvi.run import server_plan
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol
from fedvi.server.core.run_events import refused
from fedvi.store.memory import MemoryServerStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.updates import limits
from fedvi.updates.base import Task
from tests.studies import CONJUGATE, raw_study

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
KINDS = [*SOLVERS, *CONJUGATE, "site effects", "diagonal"]
SIGNED = ["site_release", "vips", *CONJUGATE]


def study(kind="site_release", noise=26.0, schedule=None, **privacy):
    solver = {"site effects": "dp_optimisation", "diagonal": "dp_optimisation"}.get(kind, kind)
    solver = "vips" if kind in CONJUGATE else solver
    raw = raw_study(
        NAMES,
        2,
        kind="logistic",
        family="diagonal_gaussian" if kind == "diagonal" else "full_gaussian",
        solver={"kind": solver, "noise_multiplier": noise, **SOLVERS[solver]},
        schedule=schedule or {"kind": "synchronous", "rounds": 2, "deadline_seconds": 5.0},
        privacy={
            "epsilon": 100.0,
            "delta": 1e-5,
            "unit": "record",
            "relation": "substitute",
            **privacy,
        },
    )
    if kind == "site effects":
        raw["model"] = {
            "kind": "logistic",
            "formula": "y ~ x0",
            "site_effect": "intercept",
            "site_scale": 0.8,
        }
    if kind in CONJUGATE:
        raw["model"] = {"kind": kind, **CONJUGATE[kind]}
        del raw["family"], raw["prior"], raw["data"]["schema"]
    raw["data"]["max_records"] = RECORDS
    raw["privacy"]["records_public"] = "by_place" in SOLVERS[solver]
    return raw


def shapes(run):
    """The arrays of the solver's answers."""
    solver = run.assembly.solvers["north"]
    size = run.assembly.family.size if hasattr(run.assembly.family, "size") else 0
    if solver.adds_up is not None:
        return dict(solver.adds_up)
    if solver.name == "dp_optimisation":
        return {"location": (size,), "scale": (size,) if run.kind == "diagonal" else (size, size)}
    return {"change": (size + size * (size + 1) // 2,)}


def one(limit):
    """The largest size of one number of an honest answer."""
    each = limit.contributions if limit.each is None else limit.each
    return each + limit.sd * limits._tail(limit.numbers)


def arrays(run, size):
    """An answer of the solver's form whose first number is ``size`` times the largest, about."""
    found = {name: np.zeros(shape) for name, shape in shapes(run).items()}
    first = next(iter(found.values()))
    first.reshape(-1)[0] = size * one(run.spec.limits["north"])
    return found


def contributed(run, part):
    """What all declared records may add up to, as far as their arrays are bounded: at the corner."""
    limit, generator = run.spec.limits["north"], np.random.default_rng(0)
    signs, found = {sign.name: sign for sign in limit.signs}, {}
    for name, shape in shapes(run).items():
        count = math.prod(shape)
        if (sign := signs.get(name)) and sign.side:
            rows, columns, _ = triangle(sign.side)
            array = np.tile((rows == columns).astype(float), count // len(rows))
        else:
            array = generator.normal(size=count)
            array = np.abs(array) if sign else array
        room = limit.contributions / math.sqrt(len(shapes(run)))
        array *= room / np.linalg.norm(array)
        if limit.each is not None:
            array = np.sign(array) * limit.each
        if sign and sign.total is not None:
            array *= min(1.0, sign.total / array.sum())
        found[name] = part * array.reshape(shape)
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

    def send(self, name, value, spec=None):
        sent = payload(self.spec, name, value)
        return self.ask(Submit(name, self.state.tasks[name].task_id, sent), spec=spec)

    def answer(self, name, size, spec=None):
        return self.send(name, arrays(self, size), spec)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_beyond_what_the_study_bounds_is_refused_and_the_others_are_folded(kind):
    run = Run(kind)
    for size in (1e6, 1.01):
        before = run.state
        with pytest.raises(
            errors.ImpossibleAnswer, match=r"answer to task 'west/0' is larger than"
        ):
            run.answer("west", size)
        assert run.state is before
    run.answer("north", 0.1)
    run.answer("south", 0.05)
    # The site is named, as one is whose numbers are not finite; and its turn passes.
    run.state = protocol.tick(run.spec, run.state, 6.0)
    assert run.state.history[-1].clients == ("north", "south")
    assert run.state.history[-1].missing == ("west",)


@pytest.mark.parametrize("noise", [2.5, 26.0])
@pytest.mark.parametrize("kind", KINDS)
def test_honest_answers_at_the_corner_are_taken(kind, noise):
    run = Run(kind, noise=noise)
    limit, generator = run.spec.limits["north"], np.random.default_rng(1)
    names = iter(NAMES)
    for part in (0.0, 1.0):
        value = contributed(run, part)
        for trial in range(200):
            noised = {
                name: array + limit.sd * generator.normal(size=array.shape)
                for name, array in value.items()
            }
            if limit.sd:
                # A norm of √n + 5 sds: noise of one answer in a million or fewer.
                lengths = math.hypot(*(np.linalg.norm(noised[n] - value[n]) for n in value))
                if trial % 2:
                    louder = limit.sd * (math.sqrt(limit.numbers) + 5.0) / lengths
                    noised = {n: value[n] + louder * (noised[n] - value[n]) for n in value}
            limits.check(limit, noised, "an honest answer")
        run.send(next(names), noised)


@pytest.mark.parametrize("kind", SIGNED)
def test_what_is_bent_or_counted_the_wrong_way_is_refused_and_left_out(kind):
    run = Run(kind, noise=1.0)
    limit = run.spec.limits["west"]
    honest = contributed(run, 0.1)
    assert limit.signs
    for sign in limit.signs:
        value = {name: np.array(array) for name, array in honest.items()}
        value[sign.name].reshape(-1)[0] = -0.9 * limit.contributions
        with pytest.raises(errors.ImpossibleAnswer, match=rf"'west/0' (is|has) .*'{sign.name}'"):
            run.send("west", value)
        # More records than are declared.
        if sign.total is not None and 1.5 * sign.total < limit.contributions:
            value[sign.name][...] = 1.5 * sign.total / value[sign.name].size
            with pytest.raises(errors.ImpossibleAnswer, match=r"'west/0' counts more than"):
                run.send("west", value)
    for name in ("north", "south"):
        run.send(name, honest)
    run.state = protocol.tick(run.spec, run.state, 6.0)
    assert run.state.history[-1].clients == ("north", "south")
    assert run.state.history[-1].missing == ("west",)


def test_the_turn_of_a_refused_site_passes_at_once_also_without_a_deadline():
    schedule = {"kind": "sequential", "rounds": 2}
    run = Run("site_release", schedule=schedule)
    server = Coordinator(run.spec, MemoryServerStore())
    for name in NAMES:
        book = ledger.open_ledger(run.spec.headers[name])
        server.handle(Hello(name, run.spec.study_digest, ledger.anchor(book)))
    task = server.handle(NextTask("north")).task
    with pytest.raises(errors.ImpossibleAnswer):
        server.handle(Submit("north", task.task_id, payload(run.spec, "north", arrays(run, 9.0))))
    assert dict(server.state.away) == {"north": protocol.IMPOSSIBLE}
    # It is charged for what it sent, and the next site works.
    assert ledger.reservations(server.state.ledgers["north"]) == 1
    task = server.handle(NextTask("south")).task
    server.handle(Submit("south", task.task_id, payload(run.spec, "south", arrays(run, 0.1))))
    assert server.state.history[-1].clients == ("south",)
    assert server.state.history[-1].missing == ("north",)
    # With its next call the site is back.
    server.handle(NextTask("north"))
    assert not server.state.away


def test_a_low_rank_answer_keeps_to_the_precisions_that_its_steps_reach():
    raw = study("dp_optimisation")
    raw["family"] = {"kind": "low_rank_gaussian", "rank": 1}
    solver = build.assemble(parse_study(raw)).solvers["north"]
    family = build.assemble(parse_study(raw)).family
    at = family.isotropic(1.0)
    task = Task("west/0", "west", 0, 0, at, family.zeros(), 1.0)
    # 1.2 · 0.1 · 11 / 2 = 0.66: d within exp(±1.32), a factor of 3.7.
    for factor, is_far in ((3.6, False), (1 / 3.6, False), (3.9, True), (0.2, True), (-1.0, True)):
        value = {**at._asdict(), "d": at.d * np.array([1.0, factor])}
        if is_far:
            with pytest.raises(errors.ImpossibleAnswer, match=r"'west/0' has a number of 'd'"):
                solver.finish(value, task)
        else:
            solver.finish(value, task)


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
    assert "west: Submit refused: the answer to task 'west/0' is larger than" in event.text


def test_the_limit_of_a_site_is_what_its_records_and_the_noise_give():
    run = Run("site_release")
    signs = (limits.Sign("curvature", 2),)
    assert run.spec.limits["north"] == limits.Limit(RECORDS * 1.0, 26.0, 5, signs=signs)


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
    assert isinstance(found.limits["north"].signs[0], limits.Sign)


def aggregated(least=2):
    return Run("site_release", view="aggregate", least_reporting=least, colluding=0)


def whole(run, size):
    """Answers of an aggregated study are whole steps."""
    step = run.spec.gather.step
    value = np.zeros(5)
    value[0] = np.round(size * one(run.spec.limits["north"]) / step)
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
    with pytest.raises(errors.ProtocolError, match=r"answer to task 'west/0' is larger than"):
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


def test_a_refusal_that_cannot_be_noted_concerns_its_own_request_alone(monkeypatch):
    run = Run("site_release")
    server = Coordinator(run.spec, MemoryServerStore())
    sent = []
    for name, size in (("west", 9.0), ("north", 0.1)):
        book = ledger.open_ledger(run.spec.headers[name])
        server.handle(Hello(name, run.spec.study_digest, ledger.anchor(book)))
        task = server.handle(NextTask(name)).task
        sent.append(Submit(name, task.task_id, payload(run.spec, name, arrays(run, size))))

    def full(*_):
        raise errors.TransportError("no room")

    monkeypatch.setattr(protocol, "leave_out", full)
    bad, good = server.handle_all(sent)
    assert isinstance(bad.reply, errors.TransportError)
    assert bad.after is bad.before
    assert good.reply.status == "accepted"
