"""A client is removed from a run for good, or joins one that has begun; the schedule goes on."""

import contextlib
import functools
import itertools

import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation import damping, schedules
from fedvi.federation.fold import posterior_of
from fedvi.federation.messages import (
    Begin,
    Done,
    Failure,
    Goodbye,
    Hello,
    NextTask,
    Offer,
    Renew,
    Renewed,
    Submit,
    Wait,
)
from fedvi.federation.progress import Patience
from fedvi.federation.schedules import sequential, synchronous
from fedvi.federation.script import Stage, from_generator, scripted
from fedvi.privacy import events, ledger
from fedvi.privacy.release import disclose
from fedvi.server.core import membership, protocol
from fedvi.server.core.run_events import between
from fedvi.server.core.turns import brings_work
from fedvi.server.store import state_cells
from fedvi.server.store.durable import SqliteServerStore
from fedvi.transport import codec
from fedvi.typing import PRIOR
from fedvi.updates.base import Change, finish_natural
from fedvi.updates.noise_aware import of_changes, of_sites

FAMILY = expfam.full_gaussian(2)
COST = events.Unprotected("q")
THREE = ("a", "b", "c")


def header(client):
    return ledger.Header("s", "d", client, "record", "substitute", "message", False)


def make_spec(schedule, clients=THREE, quorum=1, **fields):
    return protocol.ServerSpec(
        **{
            "study_digest": "d",
            "clients": clients,
            "family": FAMILY,
            "prior": FAMILY.isotropic(2.0, mean=0.3),
            "schedule": schedule,
            "step_rule": damping.fixed(1.0),
            "finish": dict.fromkeys(clients, finish_natural),
            "costs": dict.fromkeys(clients, COST),
            "patience": Patience(None, quorum),
            "headers": {name: header(name) for name in clients if name != PRIOR},
            **fields,
        }
    )


def likelihood(name):
    """What a client's records say, which is Gaussian in θ: so its factor is that, beside whatever."""
    generator = np.random.default_rng(ord(name[0]))
    root = generator.normal(size=(4, 2))
    return GaussianEta(generator.normal(size=2), root.T @ root)


def exact(spec, names):
    return tree.total((likelihood(name) for name in sorted(names)), spec.prior)


def is_close(left, right, tolerance):
    pairs = zip(tree.leaves(left), tree.leaves(right), strict=True)
    return all(np.allclose(one, other, rtol=tolerance, atol=tolerance) for one, other in pairs)


def answer(task):
    found = tree.add(tree.subtract(task.posterior, task.factor), likelihood(task.client))
    return codec.encode(disclose(tree.to_numpy(found)._asdict(), "q"))


class Run:
    """A server, and clients with exact answers; after each request its books are compared."""

    def __init__(self, spec, state=None):
        self.spec = spec
        self.state = protocol.initial_state(spec) if state is None else state
        for name in spec.clients:
            self.greet(name)

    def greet(self, name):
        book = self.state.ledgers.get(name)
        return self.ask(Hello(name, "d", book and ledger.anchor(book), f"{name:0<32}"))

    def ask(self, request):
        if not isinstance(request, Hello):
            request = request._replace(session=f"{request.client:0<32}")
        self.state, reply = protocol.step(self.spec, self.state, request, 0.0)
        self.check()
        return reply

    def check(self):
        expected = posterior_of(self.spec.prior, self.state.factors)
        assert tree.equal(self.state.posterior, expected)

    def offer(self, name):
        offer = self.ask(NextTask(name))
        assert isinstance(offer, Offer), (name, offer)
        return offer.task

    def send(self, task):
        return self.ask(Submit(task.client, task.task_id, answer(task))).status

    def work(self, *names):
        for name in names:
            assert self.send(self.offer(name)) == "accepted"

    def finish(self):
        """Lets everybody work who may, until nobody may any more."""
        for _ in range(60):
            if self.state.status != "running":
                return
            for name in self.spec.clients:
                reply = self.ask(NextTask(name))
                if isinstance(reply, Offer):
                    assert self.send(reply.task) == "accepted"
        raise AssertionError("the run does not end")

    def remove(self, name):
        """Returns what was told of it."""
        before = self.state
        self.state = protocol.remove(self.spec, before, name, 0.0)
        self.check()
        return [event.text for event in between(self.spec, before, self.state, None)]

    def extended(self, *names):
        """The same run with more clients."""
        spec = make_spec(self.spec.schedule, (*self.spec.clients, *names), 1)
        return Run(spec, protocol.extend(spec, self.state))


def entries(run, name):
    return [(entry.release_id, entry.kind) for entry in run.state.ledgers[name].entries]


@pytest.mark.parametrize(("rounds", "answered"), [(1, 0), (1, 2), (3, 1), (3, 2), (3, 3), (3, 4)])
@pytest.mark.parametrize("client", THREE)
@pytest.mark.parametrize("kind", schedules.__all__)
def test_the_run_ends_at_the_posterior_of_the_study_without_it(kind, answered, client, rounds):
    """Whoever is removed, whenever: 1e-12, since only the order of float64 sums differs."""
    run = Run(make_spec(getattr(schedules, kind)(rounds)))
    order = itertools.cycle(THREE)
    while answered:  # by whose turn it is: a schedule may have another order
        reply = run.ask(NextTask(next(order)))
        if isinstance(reply, Offer):
            assert run.send(reply.task) == "accepted"
            answered -= 1
    run.remove(client)
    others = [name for name in THREE if name != client]
    folded = [n for n in others if run.state.visits[n]]
    assert is_close(run.state.posterior, exact(run.spec, folded), 1e-12)
    run.finish()
    assert run.state.status == "completed"
    assert [run.state.visits[name] for name in others] == [rounds, rounds]
    assert is_close(run.state.posterior, exact(run.spec, others), 1e-12)
    assert not any(update.missing for update in run.state.history)


def test_it_is_written_in_the_history_told_once_and_done_once():
    run = Run(make_spec(synchronous(2)))
    run.work(*THREE)
    assert run.remove("b") == ["b was removed: version 2 is without its factor"]
    last = run.state.history[-1]
    assert (last.version, last.clients, last.removed, last.damping) == (2, (), ("b",), 1.0)
    assert run.state.away == {"b": protocol.REMOVED}
    before = run.state
    assert run.remove("b") == []
    assert run.state is before


def test_the_task_that_it_holds_is_answered_into_its_ledger_and_not_folded():
    run = Run(make_spec(synchronous(2)))
    run.work("a", "b")
    task = run.offer("c")
    run.remove("c")
    assert run.ask(Renew("c", task.task_id)) == Renewed(False)
    before = run.state
    assert run.send(task) == "accepted"
    assert run.state.posterior is before.posterior
    assert run.state.history == before.history
    assert run.state.answers == ()
    assert entries(run, "c") == [("c/0#0", "reserved"), ("c/0#0", "sealed"), ("c/0#0", "sent")]
    assert run.send(task) == "duplicate"
    assert run.ask(NextTask("c")) == Done("client 'c' was removed from the run")
    assert len(entries(run, "c")) == 3


def test_the_attempts_of_a_late_answer_are_charged_each():
    run = Run(make_spec(synchronous(2)))
    task = run.offer("c")
    run.remove("c")
    request = Submit("c", task.task_id, answer(task), 2)
    assert run.ask(request).status == "accepted"
    assert ledger.reservations(run.state.ledgers["c"]) == 3
    other = codec.encode(disclose({"h": np.ones(2), "J": np.eye(2)}, "q"))
    assert run.ask(Begin("c", task.task_id, other.sha256, other.event)).status == "conflict"
    assert ledger.reservations(run.state.ledgers["c"]) == 4


def test_its_answer_that_waits_is_not_folded():
    run = Run(make_spec(synchronous(1)))
    run.work("a", "b")
    assert [waiting.task.client for waiting in run.state.answers] == ["a", "b"]
    run.remove("b")
    run.work("c")
    assert [update.clients for update in run.state.history] == [(), ("a", "c")]
    assert run.state.visits == {"a": 1, "b": 0, "c": 1}
    assert ledger.state(run.state.ledgers["b"], "b/0#0") == "sent"


def test_nothing_brings_it_back():
    run = Run(make_spec(synchronous(3)))
    task = run.offer("b")
    run.remove("b")
    for act in (
        lambda: run.greet("b"),
        lambda: run.ask(Failure("b", task.task_id, "data")),
        lambda: run.ask(Goodbye("b")),
        lambda: run.send(task),
        lambda: run.ask(NextTask("b")),
    ):
        act()
        assert run.state.away == {"b": protocol.REMOVED}
    run.state = protocol.revoke(run.spec, run.state, frozenset("b"), 0.0)
    run.state = protocol.tick(run.spec, run.state, 1e9)
    assert run.state.away == {"b": protocol.REMOVED}
    run.work("a", "c")
    assert run.state.history[-1].clients == ("a", "c")
    assert run.state.factors["b"].J.tolist() == np.zeros((2, 2)).tolist()


def test_a_run_that_failed_is_resumed_without_it():
    run = Run(make_spec(synchronous(1)))
    run.remove("b")
    for name in ("a", "c"):
        run.ask(Failure(name, run.offer(name).task_id, "data"))
    assert run.state.status == "failed"
    with pytest.raises(errors.RunFailed, match=r"the run is failed: no client can be removed"):
        run.remove("a")
    run.state = protocol.control(run.spec, run.state, "resume", 0.0)
    assert run.state.away == {"b": protocol.REMOVED}
    run.work("a", "c")
    assert run.state.status == "completed"


def test_a_paused_run_loses_a_client_and_goes_on_later():
    run = Run(make_spec(synchronous(1)))
    run.state = protocol.control(run.spec, run.state, "pause", 0.0)
    run.remove("a")
    assert run.state.status == "paused"
    run.state = protocol.control(run.spec, run.state, "resume", 0.0)
    run.finish()
    assert run.state.visits == {"a": 0, "b": 1, "c": 1}


def test_too_few_may_not_be_left_and_only_clients_can_be_removed():
    run = Run(make_spec(synchronous(2), (PRIOR, *THREE), quorum=2))
    with pytest.raises(errors.ConfigError, match=r"client 'd' is not in the study"):
        run.remove("d")
    with pytest.raises(errors.ConfigError, match=rf"client '{PRIOR}' is not in the study"):
        run.remove(PRIOR)
    run.remove("a")
    before = run.state
    with pytest.raises(
        errors.ConfigError, match=r"without client 'b' 1 are left, expected at least"
    ):
        run.remove("b")
    assert run.state is before
    run.state = protocol.control(run.spec, run.state, "stop", 0.0)
    assert run.remove("a") == []
    with pytest.raises(errors.RunFailed, match=r"the run is stopped"):
        run.remove("b")


def test_a_run_whose_only_answers_were_divided_out_is_no_success():
    run = Run(make_spec(synchronous(2), patience=Patience(5.0, 1)))
    run.ask(Goodbye("b"))
    run.ask(Goodbye("c"))
    run.work("a")
    assert run.state.version == 1
    run.remove("a")
    # The others only come and go: each is skipped while the other one is there.
    run.greet("b")
    run.ask(Goodbye("b"))
    run.greet("c")
    assert (run.state.turns["b"], run.state.turns["c"]) == (2, 2)
    assert run.state.status == "failed"


def test_a_round_into_which_a_removal_falls_counts_it_in_how_far_the_posterior_moved():
    run = Run(make_spec(sequential(4, tolerance=1e-3)))
    run.work(*THREE, *THREE[:2])
    assert run.state.history[2].gap is not None
    start = run.state.round_start
    run.remove("c")
    last = run.state.history[-1]
    # It completed the round, whose other answers moved nothing: they are exact.
    expected = abs(
        (FAMILY.moments(run.state.posterior)[0] - FAMILY.moments(start)[0])
        / FAMILY.moments(run.state.posterior)[1]
    ).max()
    assert last.gap is not None
    assert last.gap.mean_shift == pytest.approx(expected, rel=1e-12)
    assert expected > 1e-3
    assert (last.rounds, run.state.status) == (2, "running")
    run.work("a", "b")
    assert run.state.status == "completed"
    assert run.state.history[-1].rounds == 3


def test_who_waits_for_work_hears_of_it_at_once():
    spec = make_spec(synchronous(2))
    run = Run(spec)
    run.work("a")
    assert run.ask(NextTask("a")) == Wait()
    before = run.state
    run.remove("a")
    assert brings_work(spec, before, run.state)


def test_what_a_step_rule_remembers_of_it_goes_and_the_least_step_is_that_of_the_others():
    floors = []

    def choose(family, served, posterior, update, memory, floor):
        floors.append(floor)
        return 1.0

    run = Run(make_spec(synchronous(3), step_rule=damping.StepRule("watched", choose)))
    run.work(*THREE)
    assert set(run.state.memory) == {THREE}
    assert set(floors) == {1.0 / 3.0}
    floors.clear()
    run.remove("b")
    assert run.state.memory == {}
    run.work("a", "c")
    # Of the fold, and of each answer that was tried before.
    assert set(floors) == {1.0 / 2.0}


def test_what_cannot_be_computed_without_it_is_refused_and_changes_nothing(monkeypatch):
    run = Run(make_spec(synchronous(3)))
    run.work(*THREE)

    def overflow(*_):
        raise FloatingPointError

    monkeypatch.setattr(membership.folding, "posterior_of", overflow)
    before = run.state
    with pytest.raises(
        errors.ProtocolError, match=r"the run without client 'b' cannot be computed"
    ):
        protocol.remove(run.spec, before, "b", 0.0)
    assert run.state is before


def test_who_may_go_is_told_before_it_is_removed():
    run = Run(make_spec(synchronous(3), quorum=2))
    without = protocol.revoke(run.spec, run.state, ["b"], 0.0)
    assert membership.let_go(run.spec, without, tls=True) == ""
    assert membership.let_go(run.spec, run.state, tls=False) == "remove"
    run.state = protocol.remove(run.spec, run.state, "b", 0.0)
    assert membership.let_go(run.spec, run.state, tls=True) == ""
    with pytest.raises(errors.ConfigError, match="expected at least 2, the study's quorum"):
        protocol.remove(run.spec, run.state, "a", 0.0)


@pytest.mark.parametrize(
    "stand",
    [
        functools.partial(of_changes, noise_sd=0.0),
        functools.partial(of_sites, gradient_sd=0.0, curvature_sd=0.0, rate=1.0, floor=0.5),
    ],
    ids=["changes", "sites"],
)
def test_what_the_server_makes_of_factors_is_made_of_the_others_alone(stand):
    run = Run(make_spec(synchronous(3), stand=stand))
    run.work(*THREE)
    run.remove("b")
    for eta in (protocol.served(run.spec, run.state), protocol.reported(run.spec, run.state)):
        assert is_close(eta, exact(run.spec, "ac"), 1e-9)
    run.finish()
    reported = protocol.reported(run.spec, run.state)
    assert is_close(reported, exact(run.spec, "ac"), 1e-9)
    run = Run(make_spec(synchronous(3), ("a", "b"), stand=stand))
    run.work("a")
    task = run.offer("b")
    run.remove("a")
    assert run.state.standing is None
    assert tree.equal(protocol.reported(run.spec, run.state), run.spec.prior)
    assert run.send(task) == "accepted"


def finish_site(value, task):
    """An answer that takes the place of the factor, as those of site release do."""
    return Change(tree.subtract(GaussianEta(value["h"], value["J"]), task.factor))


def test_the_noise_that_is_left_is_that_of_the_others_answers():
    changes = functools.partial(of_changes, noise_sd=0.1)
    run = Run(make_spec(synchronous(3), stand=changes, step_rule=damping.fixed(0.5)))
    run.work(*THREE, *THREE)
    assert run.state.standing.squares == 6 * 0.25
    run.remove("b")
    assert run.state.standing.squares == 4 * 0.25
    sites = functools.partial(of_sites, gradient_sd=0.3, curvature_sd=0.2, rate=0.5, floor=0.5)
    run = Run(make_spec(synchronous(3), stand=sites, renews=True))
    run.work(*THREE, *THREE)
    run.remove("b")
    standing = run.state.standing
    assert set(standing.sites) == set(standing.weights) == {"a", "c"}
    # The mean over folds begins anew, with the sites that stand: nothing of b's is in it.
    assert standing.weights == {"a": (0.0, 1.0), "c": (0.0, 1.0)}
    left = tree.subtract(run.state.posterior, run.spec.prior)
    assert is_close(standing.curvature.J, left.J, 1e-12)
    run.work("a", "c")
    assert run.state.standing.folds == 2


def test_what_the_priors_own_factor_was_first_is_durable_and_outlives_a_removal(tmp_path):
    sites = functools.partial(of_sites, gradient_sd=0.3, curvature_sd=0.2, rate=1.0, floor=0.5)
    run = Run(make_spec(synchronous(3), (PRIOR, *THREE), stand=sites, renews=True))
    run.work(PRIOR, *THREE)
    first = tree.add(run.spec.prior, run.state.factors[PRIOR])
    run.work(PRIOR, *THREE)
    run.remove("b")
    assert tree.equal(run.state.standing.reference, first)
    with contextlib.closing(SqliteServerStore(tmp_path / "state", run.spec)) as store:
        store.save(run.state)
    with contextlib.closing(SqliteServerStore(tmp_path / "state", run.spec)) as store:
        assert tree.equal(store.load().standing.reference, first)


def finish_surveyed(value, task):
    """As those of site release that begin with a survey."""
    if task.coordinates is None:
        survey = GaussianEta(np.array([60.0, 20.0]), np.diag([60.0, 90.0]))
        return Change(tree.subtract(task.factor, task.factor), survey)
    return finish_site(value, task)


def test_surveys_and_the_coordinates_of_them_are_durable_and_outlive_a_removal(tmp_path):
    survey = {
        "constant": 0, "unit": 2.0, "emphasis": 1.0, "length": 1.5, "noise": 100.0, "curvature": 0.1,
        "outcome": None,
    }  # fmt: skip
    sites = functools.partial(
        of_sites, gradient_sd=0.3, curvature_sd=0.2, rate=1.0, floor=0.5, survey=survey
    )
    spec = make_spec(
        synchronous(4), stand=sites, renews=True, finish=dict.fromkeys(THREE, finish_surveyed)
    )
    run = Run(spec)

    def reloaded():
        with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
            store.save(run.state)
        with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
            return store.load()

    run.work("a", "b")
    assert run.state.standing is None
    kept = {answer.task.client: answer.change.survey for answer in reloaded().answers}
    np.testing.assert_array_equal(kept["a"].h, [60.0, 20.0])
    run.work("c")
    # It took a round, and moved nothing: no gap, by which a schedule might stop.
    assert run.state.history[-1].rounds == 1
    assert run.state.history[-1].gap is None
    assert tree.equal(protocol.reported(run.spec, run.state), spec.prior)
    at = run.state.standing.coordinates
    np.testing.assert_allclose(at.centre, [0.0, 1.0 / 3.0])
    task = run.offer("a")
    assert task.coordinates is at
    # Without b, whose survey is part of what is public now.
    run.remove("b")
    np.testing.assert_array_equal(reloaded().standing.coordinates.scale, at.scale)
    run.work("c")
    assert run.send(task) == "accepted"
    run.work("a", "c")
    standing = run.state.standing
    assert standing.folds == 2
    assert set(standing.sites) == {"a", "c"}
    again = reloaded().standing
    assert tree.equal(again.gradient, standing.gradient)
    assert again.surprise == standing.surprise
    assert run.state.history[-1].gap.surprise == standing.surprise


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e31])
def test_a_survey_that_nothing_can_be_computed_with_is_refused(number):
    """One client's would have made coordinates of no number, for everybody and for good."""

    def finish(value, task):
        change = finish_surveyed(value, task)
        survey = change.survey._replace(h=np.array([60.0, number]))
        return change._replace(survey=survey)

    run = Run(make_spec(synchronous(4), renews=True, finish=dict.fromkeys(THREE, finish)))
    with pytest.raises((errors.FamilyError, errors.ProtocolError), match="the answer to task"):
        run.work("a")
    assert not run.state.answers


def test_a_removal_is_durable_and_a_line_without_one_reads_as_before(tmp_path):
    spec = make_spec(synchronous(3), stand=functools.partial(of_changes, noise_sd=0.1))
    run = Run(spec)
    run.work(*THREE)
    task = run.offer("b")
    run.remove("b")
    with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
        store.save(run.state)
    with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
        found = store.load()
        assert found.history == run.state.history
        assert found.away == {"b": protocol.REMOVED}
        again = Run(spec, protocol.take_up(spec, found))
        assert again.send(task) == "accepted"
        again.work("a", "c")
        assert again.state.history[-1].clients == ("a", "c")
    plain = run.state.history[0]
    assert "removed" not in state_cells.line_of(plain)
    assert state_cells.update_of(state_cells.line_of(plain)) == plain


SCRIPT = scripted(
    [Stage(sequential(1), ("a",)), Stage(synchronous(2), ("b",)), Stage(sequential(1))]
)


@pytest.mark.parametrize("begun", [False, True])
def test_a_stage_of_none_but_who_was_removed_is_over(begun):
    run = Run(make_spec(SCRIPT))
    run.work("a")
    if begun:
        run.work("b")
    run.remove("b")
    assert len(run.state.stages) == 2
    run.finish()
    assert run.state.status == "completed"
    assert run.state.visits == {"a": 2, "b": int(begun), "c": 1}


def test_a_generator_is_replayed_as_if_nobody_had_been_removed():
    def script(progress):
        for name in progress.clients:
            yield Stage(sequential(1), (name,))

    run = Run(make_spec(from_generator(script, rounds=1)))
    run.work("a")
    run.remove("a")
    run.finish()
    assert run.state.visits == {"a": 1, "b": 1, "c": 1}
    assert run.state.stages[-1].away == ("a",)


@pytest.mark.parametrize("kind", ["sequential", "synchronous", "asynchronous"])
@pytest.mark.parametrize("answered", [0, 1, 2, 3, 4])
def test_who_joins_has_the_turns_of_the_rounds_that_are_left(kind, answered):
    run = Run(make_spec(getattr(schedules, kind)(3), ("a", "b")))
    order = iter("ab" * 3)
    for _ in range(answered):
        run.work(next(order))
    rounds = min(run.state.visits.values()) if kind != "synchronous" else answered // 2
    before = run.state
    longer = run.extended("c", "d")
    assert tree.equal(longer.state.posterior, before.posterior)
    assert longer.state.version == before.version
    assert {n: longer.state.ledgers[n] for n in "ab"} == dict(before.ledgers)
    assert longer.state.history[-1].added == ("c", "d")
    again = protocol.extend(longer.spec, longer.state)
    assert again is longer.state
    longer.finish()
    assert longer.state.visits == {"a": 3, "b": 3, "c": 3 - rounds, "d": 3 - rounds}
    assert is_close(longer.state.posterior, exact(longer.spec, "abcd"), 1e-12)


def test_who_joins_amid_a_script_takes_part_from_the_stage_on_that_is_over_all():
    script = scripted([Stage(sequential(1)), Stage(synchronous(2), ("a",)), Stage(sequential(2))])
    run = Run(make_spec(script, ("a", "b")))
    run.work("a", "b", "a")
    longer = run.extended("c")
    longer.finish()
    assert longer.state.visits == {"a": 5, "b": 3, "c": 2}


def test_who_joins_after_a_removal_has_the_turns_of_those_that_are_left():
    run = Run(make_spec(scripted([Stage(sequential(3)), Stage(sequential(2))])))
    run.work(*THREE)
    run.remove("c")
    run.work("a", "b", "a", "b", "a", "b")
    longer = run.extended("d")
    assert longer.state.turns == {"a": 4, "b": 4, "c": 1, "d": 4}
    longer.finish()
    assert longer.state.visits == {"a": 5, "b": 5, "c": 1, "d": 1}
    rounds = [update.rounds for update in longer.state.history]
    assert rounds == sorted(rounds)


def test_what_nobody_can_join_is_refused():
    def script(progress):
        for name in progress.clients:
            yield Stage(sequential(1), (name,))

    with pytest.raises(errors.ConfigError, match=r"c cannot be added: the schedule is a script"):
        Run(make_spec(from_generator(script, rounds=1), ("a", "b"))).extended("c")
    run = Run(make_spec(schedules.asynchronous(updates=4), ("a", "b")))
    run.work("a", "b", "a")
    with pytest.raises(
        errors.ConfigError, match=r"c cannot be added: the schedule has no turn left"
    ):
        run.extended("c")
    run.finish()
    with pytest.raises(errors.RunFailed, match=r"the run is completed: c cannot be added to it"):
        run.extended("c")


def test_who_joined_can_be_removed_and_who_was_removed_is_no_obstacle():
    run = Run(make_spec(synchronous(3)))
    run.work(*THREE)
    run.remove("b")
    longer = run.extended("d")
    longer.work("a", "c", "d")
    longer.remove("a")
    longer.finish()
    assert longer.state.visits == {"a": 2, "b": 1, "c": 3, "d": 2}
    assert is_close(longer.state.posterior, exact(longer.spec, "cd"), 1e-12)


def test_a_store_takes_a_run_up_with_more_clients_only_if_told_of_its_earlier_form(tmp_path):
    spec = make_spec(synchronous(3), ("a", "b"))
    run = Run(spec)
    run.work("a", "b", "a")
    with contextlib.closing(SqliteServerStore(tmp_path / "state", spec)) as store:
        store.save(run.state)
    longer = make_spec(synchronous(3), THREE, study_digest="longer")
    with pytest.raises(errors.LedgerError, match=r"another study(.|\n)*start with --extend"):
        SqliteServerStore(tmp_path / "state", longer)
    with pytest.raises(errors.LedgerError, match=r"another study"):
        SqliteServerStore(tmp_path / "state", longer, ["other"])
    with contextlib.closing(SqliteServerStore(tmp_path / "state", longer, ["d"])) as store:
        assert [(event.kind, event.client) for event in store.events()] == [("added", "c")]
    # From then on it is a run of the longer study, and of no other.
    with pytest.raises(errors.LedgerError, match=r"another study"):
        SqliteServerStore(tmp_path / "state", spec)
    with contextlib.closing(SqliteServerStore(tmp_path / "state", longer)) as store:
        found = protocol.take_up(longer, store.load())
        assert found.ledgers["a"] == run.state.ledgers["a"]
        assert found.history[-1].added == ("c",)
        assert len(store.events()) == 1


def test_a_store_that_holds_no_state_yet_becomes_one_of_the_longer_study(tmp_path):
    spec = make_spec(synchronous(3), ("a", "b"))
    SqliteServerStore(tmp_path / "state", spec).close()
    longer = make_spec(synchronous(3), THREE, study_digest="longer")
    SqliteServerStore(tmp_path / "state", longer, ["d"]).close()
    SqliteServerStore(tmp_path / "state", longer).close()
