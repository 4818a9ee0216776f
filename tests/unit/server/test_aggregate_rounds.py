"""Claims about a server that publishes sums alone, and each planted fault that an audit must find."""

import json

import numpy as np
import pytest

from fedvi import errors
from fedvi.audit import published_sums as audit
from fedvi.expfam import tree
from fedvi.federation.messages import Hello, NextTask, Offer, Payload, Receipt, Submit, Tensor
from fedvi.federation.progress import Patience
from fedvi.privacy import events
from fedvi.server.core import protocol, run_events, sum_rounds, turns
from fedvi.server.core.membership import let_go
from fedvi.server.store.journal import MemoryJournal
from fedvi.server.watch import page_content
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.transport._wire import admin_pb2 as pb
from fedvi.updates.base import Change
from tests.studies import raw_study

NAMES = ["north", "east", "south", "west", "far"]
PROMISE = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}


OPTIONS = {
    "virtual_clients": {"parts": 2, "by_place": True},
    "perturbed_update": {"clean_factor": True},
}
TOPICS = {
    "kind": "latent_dirichlet",
    "topics": 2,
    "vocabulary": 7,
    "length": 20.0,
    "distinct": 4,
}


def study(least=3, colluding=1, solver="site_release", rounds=4, model=None, **privacy):
    raw = raw_study(
        NAMES,
        2,
        kind="logistic",
        solver={"kind": solver, "clip_norm": 2.0, **OPTIONS.get(solver, {})},
        schedule={"kind": "synchronous", "rounds": rounds, "deadline_seconds": 5.0},
        privacy={
            **PROMISE,
            "view": "aggregate",
            "least_reporting": least,
            "colluding": colluding,
            **privacy,
        },
    )
    raw["data"]["max_records"] = 40
    # Parts by place want it.
    raw["privacy"]["records_public"] = solver == "virtual_clients"
    if model is not None:
        # Which brings its own family, prior and columns.
        raw = {name: raw[name] for name in raw.keys() - {"family", "prior"}}
        raw |= {"model": model, "data": {"max_records": 40}}
    return raw


@pytest.fixture(scope="module", params=["site_release", "vips", "topics", *OPTIONS])
def spec(request):
    topics = request.param == "topics"
    given = {"solver": "vips", "model": TOPICS} if topics else {"solver": request.param}
    found = build.assemble(parse_study(study(**given))).spec
    # Answers here are numbers of any size.
    return found._replace(headers={}, budget=None, limits={})


@pytest.fixture(scope="module")
def site_spec():
    found = build.assemble(parse_study(study())).spec
    return found._replace(headers={}, budget=None, limits={})


def payload(spec, client, seed, step=None, shift=0):
    generator = np.random.default_rng(seed)
    gather = spec.gather
    tensors = tuple(
        Tensor(
            name,
            "<i4",
            shape,
            (generator.integers(-(2**20), 2**20, shape) + shift).astype("<i4").tobytes(),
            gather.step if step is None else step,
        )
        for name, shape in sorted(gather.shapes.items())
    )
    event = json.dumps(events.to_json(spec.costs[client]), sort_keys=True, separators=(",", ":"))
    return Payload(tensors, event, codec.digest(event, tensors))


def asked(spec, state, clients, now=0.0):
    for client in clients:
        state, _ = protocol.step(spec, state, Hello(client, spec.study_digest), now)
        state, reply = protocol.step(spec, state, NextTask(client), now)
        assert isinstance(reply, Offer), (client, reply)
    return state


def sent(spec, state, client, seed, now=0.0):
    task_id = state.tasks[client].task_id
    return protocol.step(spec, state, Submit(client, task_id, payload(spec, client, seed)), now)


def played(spec, clients, seed=0):
    state = asked(spec, protocol.initial_state(spec), NAMES)
    for index, client in enumerate(clients):
        state, _ = sent(spec, state, client, seed + index)
    return state


def unaudited(spec, name):
    """What the audit says of one check."""
    (finding,) = [found for found in audit.check_sums(spec) if name in found.check]
    return finding.passed


def test_nothing_is_found_in_the_server_that_ships(spec):
    found = audit.check_sums(spec)
    assert [finding.passed for finding in found] == [True] * 3
    assert [finding.figure for finding in found] == ["the same in every bit"] * 3


def test_a_round_is_folded_once_all_have_answered_and_not_before(spec):
    before = protocol.initial_state(spec)
    state = played(spec, NAMES[:-1])
    assert (state.version, len(state.answers)) == (0, 4)
    assert tree.equal(protocol.served(spec, state), protocol.served(spec, before))
    state, receipt = sent(spec, state, NAMES[-1], 99)
    assert receipt == Receipt("accepted", 1)
    assert (state.version, state.answers) == (1, ())
    # What is served may still be the prior: made-up changes look like noise.
    assert not tree.equal(state.posterior, before.posterior)
    assert spec.family.is_proper(protocol.served(spec, state))


def test_the_posterior_is_the_prior_times_equal_parts_of_the_sum(spec):
    state = played(spec, NAMES)
    first = state.factors["north"]
    assert all(tree.equal(part, first) for part in state.factors.values())
    total = tree.total((state.factors[name] for name in sorted(NAMES)), spec.prior)
    assert tree.equal(state.posterior, tree.to_numpy(total))


def test_the_sum_is_what_one_site_with_all_answers_would_have_sent(site_spec):
    """Against `finish` of the added arrays, and against the sum of what `finish` makes of each."""
    spec = site_spec
    state = played(spec, NAMES)
    task = protocol.initial_state(spec)
    task = asked(spec, task, ["north"]).tasks["north"]
    values = [codec.decode(payload(spec, name, seed))[0] for seed, name in enumerate(NAMES)]
    added = tree.total(
        [spec.finish["north"](value, task).delta for value in values], spec.family.zeros()
    )
    whole = tree.subtract(state.posterior, spec.prior)
    for found, expected in zip(tree.leaves(whole), tree.leaves(added), strict=True):
        # float64 sums of five numbers of size 1e6.
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-6)


def test_a_round_with_too_few_answers_is_given_up_and_stays_charged():
    assembly = build.assemble(parse_study(study()))
    spec = assembly.spec._replace(patience=Patience(5.0, 1), limits={})
    state = protocol.initial_state(spec)
    for name in NAMES:
        anchor = protocol.step(
            spec,
            state,
            Hello(name, spec.study_digest, protocol.ledgers.anchor(state.ledgers[name])),
            0.0,
        )
        state = anchor[0]
        state, _ = protocol.step(spec, state, NextTask(name), 0.0)
    for index, name in enumerate(NAMES[:2]):
        state, _ = sent(spec, state, name, index)
    before = state
    state = protocol.tick(spec, state, 6.0)
    update = state.history[-1]
    assert (update.clients, update.given_up, update.missing) == (
        (),
        ("north", "east"),
        tuple(NAMES[2:]),
    )
    assert (state.version, state.answers, state.status) == (0, (), "running")
    assert (update.rounds, update.gap) == (1, None)
    assert tree.equal(protocol.served(spec, state), protocol.served(spec, before))
    assert state.standing is None
    assert len(state.ledgers["north"].entries) == 3  # reserved, sealed, sent
    assert "expected 3 or more" in run_events.given_up(spec, update)
    assert "no posterior" in run_events.given_up(spec, update._replace(given_up=tuple(NAMES)))
    # Both answered, and nothing of theirs is in the posterior.
    assert state.visits["north"] == 1
    assert protocol.folded(state)["north"] == 0
    # The next round goes on: with tasks of its own for those who answered.
    state, reply = protocol.step(spec, state, NextTask("north"), 6.0)
    assert isinstance(reply, Offer)
    assert reply.task.task_id == "north/1"
    assert reply.task.damping == 0.0


def test_a_run_of_which_no_round_was_published_has_failed():
    spec = build.assemble(parse_study(study(rounds=1))).spec
    spec = spec._replace(headers={}, budget=None, limits={}, patience=Patience(5.0, 1))
    state = protocol.tick(spec, played(spec, NAMES[:2]), 6.0)
    assert state.status == "failed"


def test_a_client_that_is_late_is_left_out_and_asked_again(spec):
    state = played(spec, NAMES[:-1])
    state = protocol.tick(spec, state, 6.0)
    assert state.version == 1
    assert state.history[-1].missing == ("far",)
    before, folded = state, protocol.served(spec, state)
    state, receipt = sent(spec, state, "far", 77, now=6.0)
    told = [found.text for found in run_events.between(spec, before, state, None)]
    assert any("far answered after the sum" in text for text in told)
    assert receipt == Receipt("accepted", 1)
    assert state.answers == ()
    assert tree.equal(protocol.served(spec, state), folded)
    # It was away when the next round began, so that its turn is skipped there as well.
    state = asked(spec, state, NAMES[:-1], now=6.0)
    for index, client in enumerate(NAMES[:-1]):
        state, _ = sent(spec, state, client, 30 + index, now=6.0)
    state, reply = protocol.step(spec, state, NextTask("far"), 6.0)
    assert isinstance(reply, Offer)
    assert (reply.task.task_id, reply.task.version) == ("far/1", 2)
    # Nothing of its answer was folded, and what it proposed there is no part of its factor.
    assert reply.task.damping == 0.0
    (dropped,) = [update for update in state.history if update.dropped]
    assert (dropped.dropped, dropped.version, dropped.gap) == (("far",), 1, None)
    state, _ = protocol.step(spec, state, NextTask("north"), 6.0)
    assert state.tasks["north"].damping == state.history[-1].damping > 0.0


def test_an_answer_after_its_turn_is_in_its_own_round_while_that_is_open(spec):
    """Skipped, and back before the sum is made: it is one of those that the sum hides."""
    state = asked(spec, protocol.initial_state(spec), NAMES)
    for index, client in enumerate(NAMES[:2]):
        state, _ = sent(spec, state, client, index, now=4.0)
    state = state._replace(away={"far": protocol.OVERDUE}, turns={**state.turns, "far": 1})
    state, _ = sent(spec, state, "far", 7, now=4.0)
    assert [answer.task.client for answer in state.answers] == ["north", "east", "far"]
    for index, client in enumerate(NAMES[2:4]):
        state, _ = sent(spec, state, client, 20 + index, now=4.0)
    assert state.version == 1
    assert sorted(state.history[-1].clients) == sorted(NAMES)
    assert set(state.turns.values()) == {1}


def test_no_client_has_more_tasks_than_were_planned(spec):
    generator = np.random.default_rng(4)
    state, now = protocol.initial_state(spec), 0.0
    given: dict[str, set[str]] = {name: set() for name in NAMES}
    for index in range(300):
        now += float(generator.uniform(0.0, 2.0))
        name = NAMES[generator.integers(5)]
        if name in state.tasks and generator.uniform() < 0.5:
            state, _ = sent(spec, state, name, index, now)
            continue
        state, _ = protocol.step(spec, state, Hello(name, spec.study_digest), now)
        state, reply = protocol.step(spec, state, NextTask(name), now)
        if isinstance(reply, Offer):
            given[name].add(reply.task.task_id)
    assert state.status in ("completed", "failed")
    assert max(map(len, given.values())) <= spec.schedule.rounds
    least = spec.gather.sums.least_reporting
    assert all(len(update.clients) >= least for update in state.history if update.clients)


def test_numbers_off_the_grid_are_refused(spec):
    state = asked(spec, protocol.initial_state(spec), ["north"])
    other = payload(spec, "north", 1, step=spec.gather.step * 1.5)
    with pytest.raises(errors.ProtocolError, match="not on the grid"):
        protocol.step(spec, state, Submit("north", "north/0", other), 0.0)


def test_numbers_whose_sum_is_not_exact_are_refused(spec):
    like, names = spec.prior, sorted(spec.gather.shapes)
    value = {name: np.zeros(spec.gather.shapes[name]) for name in names}
    value[names[0]][0] = 2.0**52 * spec.gather.step
    with pytest.raises(errors.ProtocolError, match="beyond 2\\*\\*53 steps"):
        sum_rounds.exact(spec.gather, value, like, 5)


def test_a_client_cannot_be_divided_out(spec):
    state = played(spec, NAMES)
    with pytest.raises(errors.ConfigError, match=r"(?s)sums over clients alone.*fedvi ca revoke"):
        protocol.remove(spec, state, "north", 0.0)
    # So nobody is told to try; where there are no certificates, none can be revoked.
    assert let_go(spec, state, tls=True) == "revoke"
    assert let_go(spec, state, tls=False) == ""
    # With three left, the least that a sum needs, every later round would wait for the fourth.
    state = protocol.revoke(spec, asked(spec, protocol.initial_state(spec), NAMES), NAMES[:2], 0.0)
    assert (state.status, let_go(spec, state, tls=True)) == ("running", "")


def test_the_page_shows_no_head_of_a_ledger_which_rests_on_single_messages(site_spec):
    state = played(site_spec, NAMES)
    row = pb.ClientRow(name="north", ledger_count=3, ledger_hash="ab12")

    def shown(spec):
        contents = page_content.Contents(
            spec, lambda: state, lambda: pb.Run(clients=[row]), MemoryJournal()
        )
        try:
            return contents()["clients"][0]["ledger"]
        finally:
            contents.close()

    assert shown(site_spec) == ""
    assert shown(site_spec._replace(gather=None)) == "3:ab12"


def test_the_state_of_a_server_that_waits_is_stored_and_read(spec, tmp_path):
    from fedvi.server.store.durable import SqliteServerStore

    state = played(spec, NAMES[:3])
    store = SqliteServerStore(tmp_path, spec)
    store.save(state)
    store.close()
    again = SqliteServerStore(tmp_path, spec)
    found = again.load()
    again.close()
    assert [a.task.client for a in found.answers] == NAMES[:3]
    for stored, kept in zip(found.answers, state.answers, strict=True):
        assert tree.equal(stored.change.delta, kept.change.delta)


# Planted faults. Each must be found by the audit that a study's own server is given.


def test_it_is_found_when_a_sum_of_too_few_answers_is_published(spec, monkeypatch):
    monkeypatch.setattr(
        turns, "_gathered", lambda spec, gather, state: turns._sum_folded(spec, gather, state)
    )
    assert unaudited(spec, "too few") is False


def test_it_is_found_when_the_count_is_one_short(spec, monkeypatch):
    def gathered(spec, gather, state):
        lower = gather._replace(
            sums=gather.sums._replace(least_reporting=gather.sums.least_reporting - 1)
        )
        return original(spec, lower, state)

    original = turns._gathered
    monkeypatch.setattr(turns, "_gathered", gathered)
    assert unaudited(spec, "too few") is False


def test_it_is_found_when_a_late_answer_is_folded_later(spec, monkeypatch):
    def take(spec, state, answer, now):
        state = state._replace(answers=(*state.answers, answer))
        state = turns.settle(spec, state, now)
        return state, Receipt("accepted", state.version, None)

    monkeypatch.setattr(protocol, "_gathered", take)
    assert unaudited(spec, "late") is False


def test_it_is_found_when_each_site_is_projected_before_the_sum(site_spec, monkeypatch):
    def projected(gather, answers):
        parts = [totals(gather, [answer]) for answer in answers]
        size = gather.shapes["gradient"][0]
        rows, columns = np.tril_indices(size)
        scale = np.where(rows == columns, 1.0, np.sqrt(2.0))
        for part in parts:
            matrix = np.zeros((size, size))
            matrix[rows, columns] = matrix[columns, rows] = part["curvature"] / scale
            values, vectors = np.linalg.eigh(matrix)
            kept = (vectors * np.maximum(values, 0.0)) @ vectors.T
            part["curvature"] = kept[rows, columns] * scale
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    totals = sum_rounds.totals
    monkeypatch.setattr(turns.sum_rounds, "totals", projected)
    assert unaudited(site_spec, "told by the sum") is False


def test_it_is_found_when_floats_are_added_in_place_of_whole_numbers(spec, monkeypatch):
    """The last bits of a sum of floats tell what was added."""

    def floats(gather, answers):
        parts = [totals(gather, [answer]) for answer in answers]
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    totals = sum_rounds.totals
    monkeypatch.setattr(turns.sum_rounds, "totals", floats)
    assert unaudited(spec, "told by the sum") is False


def test_it_is_found_when_a_client_keeps_a_factor_with_its_own_noise(spec, monkeypatch):
    def own(spec, gather, state):
        after = folded(spec, gather, state)
        like = spec.family.zeros()
        noised = {
            answer.task.client: tree.add_scaled(like, answer.change.delta, gather.step)
            for answer in state.answers
        }
        return after._replace(factors={**after.factors, **noised})

    folded = turns._sum_folded
    monkeypatch.setattr(turns, "_sum_folded", own)
    assert unaudited(spec, "told by the sum") is False


def test_it_is_found_when_a_sum_leaves_somebody_out(spec, monkeypatch):
    """The difference to the whole would show who was left out: two splits of one sum differ."""
    totals = sum_rounds.totals
    monkeypatch.setattr(
        turns.sum_rounds, "totals", lambda gather, answers: totals(gather, answers[:-1])
    )
    assert unaudited(spec, "told by the sum") is False


def test_an_exact_sum_does_not_depend_on_order(spec):
    values = [codec.decode(payload(spec, "north", seed))[0] for seed in range(5)]
    parts = [sum_rounds.exact(spec.gather, value, spec.prior, 5) for value in values]
    one, other = (sum_rounds.totals(spec.gather, order) for order in (parts, parts[::-1]))
    for name in one:
        assert one[name].tobytes() == other[name].tobytes()
        # rtol 1e-12: five products and sums of float64.
        np.testing.assert_allclose(
            one[name], sum(value[name] for value in values), rtol=1e-12, atol=1e-9
        )
    assert isinstance(parts[0], Change)
