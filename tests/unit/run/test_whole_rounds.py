"""Claims about rounds that all clients go through together: they are those of one worker a site."""

import dataclasses

import numpy as np
import pytest

from fedvi import errors, expfam
from fedvi.client import inputs
from fedvi.client.fleet import Fleet
from fedvi.client.worker import Visit, Worker
from fedvi.data.source import ArraySource
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.inference import parallel_parts
from fedvi.privacy import ledger as ledgers
from fedvi.privacy import random
from fedvi.privacy.many_ledgers import Together
from fedvi.run import simulate
from fedvi.run.whole_rounds import WholeRounds
from fedvi.server.core import fold_sizes, whole_rounds
from fedvi.study import build
from fedvi.study.config import parse_study

SITES, RECORDS, ROUNDS = 21, 30, 4
# In another order than that of the study.
NAMES = [f"c{(8 * index) % SITES}" for index in range(SITES)]


def study(seconds=0.0, columns=("a", "b"), first="0", most=RECORDS, **changes):
    number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
    raw = {
        "study": {"name": "many", "seed": 3},
        "model": {"kind": "logistic", "formula": f"y ~ {first} + " + " + ".join(columns)},
        "solver": {"kind": "site_release"},
        "schedule": {"kind": "synchronous", "rounds": ROUNDS},
        "privacy": {"unit": "record", "relation": "add_remove", "epsilon": 1.0, "delta": 1e-5},
        "simulation": {"insecure_seed": 3, "latency_jitter": 0.5 if seconds else 0.0},
        "data": {
            "max_records": most,
            "schema": {"y": {"type": "binary"}, **dict.fromkeys(columns, number)},
        },
        "clients": [
            {"name": name, "latency_seconds": seconds * (index % 3)}
            for index, name in enumerate(NAMES)
        ],
    }
    return build.assemble(parse_study({**raw, **changes}))


def records(size=2):
    generator = np.random.default_rng(0)
    return {
        name: ArraySource(
            {
                "x": generator.normal(size=(RECORDS - index, size)),
                "y": (generator.uniform(size=RECORDS - index) < 0.5).astype(float),
            },
            np.ones(RECORDS - index, bool),
        )
        for index, name in enumerate(NAMES)
    }


@pytest.fixture
def charged(monkeypatch):
    """Counts the rounds that were run together."""
    found, begun = [], whole_rounds.begun

    def counted(spec, state):
        after = begun(spec, state)
        found.append(state.version)
        return after

    monkeypatch.setattr(whole_rounds, "begun", counted)
    return found


@pytest.mark.parametrize("fewer", [0, 5], ids=["full", "padded"])
def test_each_client_s_records_are_hashed_once_and_no_key_is_made_that_nobody_uses(
    monkeypatch, fewer
):
    hashed, fingerprint = [], inputs.fingerprint

    def counted(secret, purpose, *values):
        hashed.append(purpose)
        return fingerprint(secret, purpose, *values)

    monkeypatch.setattr(inputs, "fingerprint", counted)
    monkeypatch.setattr(simulate, "within_one_process", None)
    held = {name: source.first(RECORDS - SITES - fewer) for name, source in records().items()}
    simulate.run(study(most=RECORDS - SITES), held)
    assert hashed == ["records"] * SITES


def one_by_one(monkeypatch, *arguments, **named):
    with monkeypatch.context() as patched:
        patched.setattr(WholeRounds, "go", lambda *_: None)
        return simulate.run(*arguments, **named)


def check_equal(together, apart):
    assert tree.equal(together.posterior, apart.posterior)
    assert together.history == apart.history
    # Each entry holds the digest of what was sent.
    assert dict(together.ledgers) == dict(apart.ledgers)
    assert (together.sites, together.consortium) == (apart.sites, apart.consortium)
    for found, expected in (
        (together.factors, apart.factors),
        (together.standing.sites, apart.standing.sites),
    ):
        assert found.keys() == expected.keys()
        assert all(tree.equal(found[name], expected[name]) for name in expected)
    assert together.standing.weights == apart.standing.weights
    for field in ("handed_out", "reported", "curvature", "gradient"):
        assert tree.equal(getattr(together.standing, field), getattr(apart.standing, field))
    for field in ("folds", "squares", "surprise", "jitter"):
        assert getattr(together.standing, field) == getattr(apart.standing, field)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("columns", [("a", "b"), ("a",)], ids=["two", "one"])
def test_rounds_together_are_those_of_one_worker_a_site(seconds, columns, charged, monkeypatch):
    assembly, sources = study(seconds, columns), records(len(columns))
    moments = []
    together = simulate.run(assembly, sources, on_moment=moments.append)
    assert charged == list(range(ROUNDS))
    others = []
    apart = one_by_one(monkeypatch, assembly, sources, on_moment=others.append)
    assert len(charged) == ROUNDS
    check_equal(together, apart)
    for mine, theirs in zip(moments, others, strict=True):
        assert mine.update == theirs.update
        assert (mine.epsilon, mine.simulated_seconds) == (theirs.epsilon, theirs.simulated_seconds)


def test_published_counts_of_records_are_those_of_one_worker_a_site(charged, monkeypatch):
    privacy = {"relation": "substitute", "epsilon": 1.0, "delta": 1e-5, "records_public": True}
    assembly, sources = study(privacy={"unit": "record", **privacy}), records()
    together = simulate.run(assembly, sources)
    assert isinstance(together.ledgers, Together)
    assert charged == list(range(ROUNDS))
    apart = one_by_one(monkeypatch, assembly, sources)
    assert not isinstance(apart.ledgers, Together)
    assert together.sites == apart.sites
    # No two sites have equally many, and some have less than the study declares.
    assert {site.name: site.records for site in together.sites} == {
        name: RECORDS - index for index, name in enumerate(NAMES)
    }
    for site in together.sites:
        assert {claim.client for claim in site.claims} == {site.name}
        assert {claim.relation for claim in site.claims} == {"substitute"}


def test_the_server_counts_and_keeps_what_it_does_of_one_worker_a_site(monkeypatch):
    made, states = simulate.Coordinator, []

    def watched(*arguments):
        states.append(made(*arguments))
        return states[-1]

    monkeypatch.setattr(simulate, "Coordinator", watched)
    simulate.run(study(seconds=1.0), records())
    one_by_one(monkeypatch, study(seconds=1.0), records())
    together, apart = (coordinator.state for coordinator in states)
    assert list(together.accepted.items()) == list(apart.accepted.items())
    assert len(together.accepted) == SITES * ROUNDS
    for field in ("visits", "turns", "ledgers"):
        assert dict(getattr(together, field)) == dict(getattr(apart, field))


def with_intercept(sources):
    return {
        name: dataclasses.replace(
            source, records={**source.records, "x": np.insert(source.records["x"], 0, 1.0, axis=1)}
        )
        for name, source in sources.items()
    }


def test_rounds_after_a_survey_are_those_of_one_worker_a_site(charged, monkeypatch):
    rounds = 6
    assembly = study(first="1", schedule={"kind": "synchronous", "rounds": rounds})
    assert assembly.solvers[NAMES[0]].survey is not None
    sources = with_intercept(records())
    together = simulate.run(assembly, sources)
    # The first is the survey.
    assert charged == list(range(1, rounds))
    check_equal(together, one_by_one(monkeypatch, assembly, sources))


@pytest.mark.parametrize("sites", [17, 21])
def test_no_visit_of_a_round_together_is_computed_alone(sites, monkeypatch):
    alone = []
    monkeypatch.setattr(Visit, "computed", lambda *_: alone.append(1))
    clients = [{"name": name} for name in NAMES[:sites]]
    result = simulate.run(study(clients=clients), records())
    assert (len(result.history), alone) == (ROUNDS, [])


def test_records_of_several_layouts_are_not_laid_side_by_side(monkeypatch):
    sources, begun = records(), []
    other = sources[NAMES[2]]
    column = {**other.records, "y": other.records["y"].astype(np.int64)}
    sources[NAMES[2]] = dataclasses.replace(other, records=column)
    together = Fleet.together

    def watched(self, *arguments):
        begun.append(list(together(self, *arguments)))
        return iter(begun[-1])

    monkeypatch.setattr(Fleet, "together", watched)
    result = simulate.run(study(), sources)
    assert [blocks[-1] for blocks in begun] == [None] * ROUNDS
    check_equal(result, one_by_one(monkeypatch, study(), sources))


def test_clients_of_another_budget_than_the_server_ask_for_it_themselves(charged, monkeypatch):
    assembly = study()
    worker, once = (
        simulate.client_worker,
        assembly.budget.accountant.epsilon(assembly.spec.costs[NAMES[0]], assembly.budget.delta),
    )
    short = dataclasses.replace(
        assembly, budget=dataclasses.replace(assembly.budget, epsilon=once / 2)
    )
    monkeypatch.setattr(
        simulate, "client_worker", lambda _, *rest, **named: worker(short, *rest, **named)
    )
    with pytest.raises(errors.BudgetExceeded):
        simulate.run(assembly, records())
    assert charged == []


def test_a_ledger_that_the_server_does_not_know_is_found_by_a_greeting(charged, monkeypatch):
    assembly, opened = study(), simulate._stores

    def ahead(*arguments):
        found, name = opened(*arguments), NAMES[4]
        book, cost = found[name].ledger, assembly.spec.costs[name]
        book = ledgers.spend(book, f"{name}/0#0", cost, assembly.budget)
        found[name].charge(book, f"{name}/0#0")
        return found

    monkeypatch.setattr(simulate, "_stores", ahead)
    with pytest.raises(errors.LedgerError):
        simulate.run(assembly, records())
    assert charged == []


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("failing", [1, 0], ids=["first", "later"])
def test_a_round_of_which_a_block_fails_is_that_of_one_worker_a_site(
    threads, failing, charged, monkeypatch
):
    monkeypatch.setattr(parallel_parts, "processors", lambda: threads)
    made, drawn, call, secrets = [], [], Fleet._call, random.Root.secrets

    def broken(self, *block):
        made.append(block)
        return None if len(made) % 2 == failing else call(self, *block)

    def watched(self, labels):
        drawn.extend(labels)
        return secrets(self, labels)

    assembly, sources = study(), records()
    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "_call", broken)
        patched.setattr(random.Root, "secrets", watched)
        together = simulate.run(assembly, sources)
    assert charged == list(range(ROUNDS))
    # With the secrets that the blocks had.
    assert sorted(drawn) == sorted(
        (name, f"{name}/{visit}#0") for name in NAMES for visit in range(ROUNDS)
    )
    check_equal(together, one_by_one(monkeypatch, assembly, sources))


def test_records_that_change_before_a_block_is_computed_anew_are_refused(stores, monkeypatch):
    made, call, read = [], Fleet._call, Worker.records

    def changed(self):
        shard, _ = read(self)
        shard = shard._replace(records={**shard.records, "x": shard.records["x"] + 1.0})
        return shard, self._digest(shard)

    def broken(self, *block):
        made.append(block)
        if len(made) == 1:
            return call(self, *block)
        monkeypatch.setattr(Worker, "records", changed)
        return None

    monkeypatch.setattr(Fleet, "_call", broken)
    with pytest.raises(errors.PrivacyError, match="the records are not those"):
        simulate.run(study(), records())
    # Charged, and nothing was sent.
    assert {len(store.ledger.entries) for store in stores.values()} == {1}


@pytest.fixture
def stores(monkeypatch):
    found, opened = {}, simulate._stores

    def kept(*arguments):
        found.update(opened(*arguments))
        return found

    monkeypatch.setattr(simulate, "_stores", kept)
    return found


class Interrupted(BaseException):
    """What Ctrl-C raises, as it were."""


def test_clients_hold_their_ledgers_after_the_end(stores):
    result = simulate.run(study(), records())
    assert {name: store.ledger for name, store in stores.items()} == dict(result.ledgers)
    assert {ledgers.reservations(store.ledger) for store in stores.values()} == {ROUNDS}


def test_a_client_takes_over_no_ledger_that_does_not_extend_its_own(stores):
    assembly = study()
    simulate.run(assembly, records())
    store = stores[NAMES[2]]
    store.take_over({NAMES[2]: ledgers.open_ledger(assembly.header(NAMES[2]))})
    with pytest.raises(errors.LedgerError, match="does not extend"):
        store.ledger  # noqa: B018


def test_what_was_charged_stays_charged_at_the_clients_if_a_round_is_interrupted(
    stores, monkeypatch
):
    # In the second round, when one of two blocks was computed.
    call, calls = Fleet._call, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            raise Interrupted
        return call(self, *arguments)

    monkeypatch.setattr(Fleet, "_call", interrupted)
    with pytest.raises(Interrupted):
        simulate.run(study(), records())
    for store in stores.values():
        kinds = [entry.kind for entry in store.ledger.entries]
        assert kinds == ["reserved", "sealed", "sent", "reserved"]
        ledgers.verify(store.ledger)


def test_ledgers_written_when_asked_for_verify(charged):
    result = simulate.run(study(), records())
    assert charged == list(range(ROUNDS))
    for name, book in result.ledgers.items():
        ledgers.verify(book)
        assert [entry.kind for entry in book.entries] == ["reserved", "sealed", "sent"] * ROUNDS
        assert book.header.client == name


def test_what_leaves_and_joins_does_so_as_one_by_one(charged, monkeypatch):
    changes = {"remove": {NAMES[3]: 1}, "add": {NAMES[-1]: 2}}
    together = simulate.run(study(), records(), **changes)
    apart = one_by_one(monkeypatch, study(), records(), **changes)
    assert tree.equal(together.posterior, apart.posterior)
    assert (together.history, together.ledgers) == (apart.history, apart.ledgers)


def test_a_policy_is_asked_one_by_one(charged):
    asked = []
    admit = dict.fromkeys(NAMES[:1], lambda *told: asked.append(told))
    simulate.run(study(), records(), admit=admit)
    assert (len(asked), charged) == (ROUNDS, [])


def test_a_charge_that_does_not_fit_is_told_to_each_client(charged, monkeypatch):
    assembly = study()
    cost, budget = assembly.spec.costs[NAMES[0]], assembly.budget
    once = budget.accountant.epsilon(cost, budget.delta) * 1.01
    short = dataclasses.replace(assembly, budget=dataclasses.replace(budget, epsilon=once))
    together = simulate.run(short, records())
    apart = one_by_one(monkeypatch, short, records())
    assert charged == [0]
    assert len(together.history) == 1
    assert tree.equal(together.posterior, apart.posterior)
    assert (together.history, together.ledgers) == (apart.history, apart.ledgers)


def test_a_budget_beyond_the_promise_is_refused_as_one_by_one(charged, monkeypatch):
    assembly = study(seconds=1.0)
    wide = dataclasses.replace(assembly, budget=dataclasses.replace(assembly.budget, epsilon=2.0))
    with pytest.raises(errors.PrivacyError) as together:
        simulate.run(wide, records())
    assert charged == []
    with pytest.raises(errors.PrivacyError) as apart:
        one_by_one(monkeypatch, wide, records())
    assert str(together.value) == str(apart.value)


def test_a_site_whose_numbers_are_out_of_range_is_refused(charged, monkeypatch):
    def broken(value, task, factors, **told):
        return GaussianEta(np.full_like(factors.h, 1e31), np.zeros_like(factors.J))

    assembly = study()
    solvers = {
        name: solver._replace(finish_many=broken) for name, solver in assembly.solvers.items()
    }
    # One for all, as in a study.
    solvers = dict.fromkeys(solvers, solvers[NAMES[0]])
    with pytest.raises(errors.ProtocolError, match="beyond 1e"):
        simulate.run(dataclasses.replace(assembly, solvers=solvers), records())
    assert charged == [0]


def test_a_round_that_might_not_fold_is_checked_with_the_same_result(charged, monkeypatch):
    tried, check = [], whole_rounds.check_folded

    def counted(spec, before, after):
        tried.append(before.version)
        check(spec, before, after)

    monkeypatch.setattr(whole_rounds, "check_folded", counted)
    assembly, sources = study(), records()
    sure = simulate.run(assembly, sources)
    assert tried == []
    monkeypatch.setattr(fold_sizes, "cannot_fail", lambda *_: False)
    together = simulate.run(assembly, sources)
    assert tried == list(range(ROUNDS))
    check_equal(together, sure)
    check_equal(together, one_by_one(monkeypatch, assembly, sources))
    # As one by one, independent coordinates are not checked.
    blocks = expfam.diagonal_gaussian(2).blocks
    monkeypatch.setattr(type(assembly.family), "blocks", blocks, raising=False)
    check_equal(simulate.run(assembly, sources), sure)
    assert tried == list(range(ROUNDS))


def test_a_round_that_does_not_fold_changes_nothing(monkeypatch):
    def broken(*_):
        raise np.linalg.LinAlgError("singular")

    assembly, moments = study(), []
    solver = assembly.solvers[NAMES[0]]._replace(stand=broken)
    assembly = dataclasses.replace(assembly, solvers=dict.fromkeys(assembly.solvers, solver))
    monkeypatch.setattr(fold_sizes, "cannot_fail", lambda *_: False)
    with pytest.raises(errors.ProtocolError, match="an answer of a round cannot be folded"):
        simulate.run(assembly, records(), on_moment=moments.append)
    assert moments == []
