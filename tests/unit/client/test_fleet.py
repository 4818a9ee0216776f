"""Claims about visits that are computed together: the bits are those of one worker a site."""

import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from fedvi import errors
from fedvi.client import fleet
from fedvi.client.fleet import Fleet
from fedvi.client.worker import Visit
from fedvi.data.source import ArraySource
from fedvi.inference import parallel_parts, solvers
from fedvi.models.outcomes.bernoulli import Bernoulli
from fedvi.privacy import mechanisms, sampling
from fedvi.run import simulate, site
from fedvi.run.whole_rounds import WholeRounds
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.updates.base import Shard, Task

SITES, RECORDS = 5, 30


@pytest.fixture(scope="module")
def study():
    number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
    raw = {
        "study": {"name": "fleet", "seed": 3},
        "model": {"kind": "logistic", "formula": "y ~ 0 + a + b"},
        "solver": {"kind": "site_release"},
        "schedule": {"kind": "synchronous", "rounds": 2},
        "privacy": {"unit": "record", "relation": "add_remove", "epsilon": 1.0, "delta": 1e-5},
        "simulation": {"insecure_seed": 3},
        "data": {
            "max_records": RECORDS,
            "schema": {"y": {"type": "binary"}, "a": number, "b": number},
        },
        "clients": [{"name": f"c{index}"} for index in range(SITES)],
    }
    return build.assemble(parse_study(raw))


@pytest.fixture(scope="module")
def sources():
    generator = np.random.default_rng(0)
    return {
        f"c{index}": ArraySource(
            {
                "x": generator.normal(size=(RECORDS - index, 2)),
                "y": (generator.uniform(size=RECORDS - index) < 0.5).astype(float),
            },
            np.ones(RECORDS - index, bool),
        )
        for index in range(SITES)
    }


@pytest.fixture(autouse=True)
def workers_alone(monkeypatch):
    """Workers begin and end by themselves; only what they compute is done together."""
    monkeypatch.setattr(WholeRounds, "go", lambda *_: None)


def one_by_one(self, visits):
    return [visit.computed() for visit in visits]


def test_a_simulation_has_the_bits_and_the_ledgers_of_one_visit_at_a_time(
    study, sources, monkeypatch
):
    together = simulate.run(study, sources)
    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "computed", one_by_one)
        apart = simulate.run(study, sources)
    assert together.posterior.h.tobytes() == apart.posterior.h.tobytes()
    assert together.posterior.J.tobytes() == apart.posterior.J.tobytes()
    # Each entry holds the digest of what was sent.
    assert together.ledgers == apart.ledgers
    assert together.history == apart.history


def test_each_visit_is_released_as_it_is_alone(study, sources, monkeypatch):
    seen = []
    computed = Fleet.computed

    def watched(self, visits):
        outcomes = computed(self, visits)
        seen.extend(zip(visits, outcomes, strict=True))
        return outcomes

    monkeypatch.setattr(Fleet, "computed", watched)
    simulate.run(study, sources)
    assert len(seen) == 2 * SITES
    for visit, (_, released, info) in seen:
        _, alone, told = visit.computed()
        assert codec.encode(released) == codec.encode(alone)
        assert {name: int(value) for name, value in info.items()} == told


def test_a_visit_that_fails_fails_alone(study, sources, monkeypatch):
    found = []
    computed = Fleet.computed

    def broken(self, visits):
        first, *rest = visits
        at = first.task.posterior._replace(J=np.full((3, 3), np.nan))
        bad = first._replace(task=first.task._replace(posterior=at))
        outcomes = computed(self, [bad, *rest])
        found.extend(outcomes)
        return outcomes

    monkeypatch.setattr(Fleet, "computed", broken)
    with pytest.raises((errors.FedviError, ValueError, TypeError)):
        simulate.run(study, sources)
    assert isinstance(found[0], Exception)
    assert not any(isinstance(outcome, Exception) for outcome in found[1:])


class Interrupted(BaseException):
    """What Ctrl-C raises, as it were."""


def test_an_interrupt_leaves_no_thread_behind(study, sources, monkeypatch):
    def interrupted(*_):
        raise Interrupted

    monkeypatch.setattr(parallel_parts, "processors", lambda: 2)
    monkeypatch.setattr(fleet, "_FEW", 2)
    monkeypatch.setattr(fleet, "_ended", interrupted)
    others = set(threading.enumerate())
    # The exception is kept, as a notebook does, and with it all that its frames hold.
    with pytest.raises(Interrupted) as kept:
        simulate.run(study, sources)
    assert set(threading.enumerate()) <= others
    assert kept.type is Interrupted


@pytest.mark.parametrize("kept_bytes", [0, 1000, 1 << 20])
def test_blocks_that_are_not_kept_are_stacked_in_each_round_with_the_same_bits(
    study, sources, monkeypatch, kept_bytes
):
    task = Task("c0/0", "c0", 0, 0, study.prior, study.family.zeros(), 1.0)
    shards = [site.shard_of(study, name, source)() for name, source in sources.items()]
    secrets = [name.encode() * 16 for name in sources]
    narrowed = fleet.single_precision

    def visits_at(places):
        solver = study.solvers["c0"]
        return [Visit(solver, "", secrets[at], (), task, shards[at]) for at in places]

    def rounds(kept_bytes, threads):
        monkeypatch.setattr(fleet, "_KEPT_BYTES", kept_bytes)
        monkeypatch.setattr(parallel_parts, "processors", lambda: threads)
        monkeypatch.setattr(fleet, "_FEW", 2)
        made, held = [], Fleet()
        monkeypatch.setattr(
            fleet, "single_precision", lambda records: made.append(1) or narrowed(records)
        )
        found = [held.together(shards[0], len(shards), visits_at) for _ in range(3)]
        return [[codec.encode_many(each, n) for n, each in blocks] for blocks in found], len(made)

    (wanted, *others), _ = rounds(1 << 30, 3)
    (*found,), stacked = rounds(kept_bytes, 1)
    for blocks in (*others, *found):
        assert [block.digests for block in blocks] == [block.digests for block in wanted]
    # Three blocks of two sites, of some 750 bytes each.
    assert stacked == {0: 9, 1000: 7, 1 << 20: 3}[kept_bytes]


@pytest.mark.parametrize(("kind", "threads"), [("cpu", 64), ("gpu", 2)])
def test_blocks_at_a_time_are_the_processors_or_two_for_an_accelerator(kind, threads, monkeypatch):
    """On an accelerator all of them are in its memory."""
    asked, shard = [], Shard({"x": np.zeros((1, 1))}, np.ones(1, bool))

    def noted(prepared, blocks, threads):
        asked.append(threads)
        yield None

    monkeypatch.setattr(parallel_parts, "devices", lambda: [SimpleNamespace(platform=kind)])
    monkeypatch.setattr(parallel_parts, "processors", lambda: 64)
    monkeypatch.setattr(fleet, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(fleet, "on_devices", noted)
    assert list(Fleet().together(shard, 1000, lambda places: [])) == [None]
    assert asked == [threads]


def test_a_visit_shows_no_secret(study):
    visit = Visit(study.solvers["c0"], "c0/0#0", b"s" * 32, (), None, None)
    assert "sss" not in repr(visit)


def test_a_model_is_traced_by_one_thread(study, sources, monkeypatch):
    """NumPyro has one stack of handlers for all threads."""
    threads, task = [], Task("c0/0", "c0", 0, 0, study.prior, study.family.zeros(), 1.0)
    shards = [site.shard_of(study, name, source)() for name, source in sources.items()]

    class Watched(Bernoulli):
        def derivatives(self, linear_predictor, y):
            threads.append(threading.get_ident())
            return super().derivatives(linear_predictor, y)

    model = dataclasses.replace(study.model, response=Watched())
    whole = sampling.full(RECORDS)
    solver = solvers.site_release(study.family, model, whole, mechanisms.rounded_gaussian(2.0))
    visits = [Visit(solver, "", b"s" * 32, (), task, shard) for shard in shards[:4]]
    monkeypatch.setattr(fleet, "_FEW", 2)
    monkeypatch.setattr(parallel_parts, "processors", lambda: 2)
    for _ in range(2):
        found = Fleet().together(shards[0], 4, lambda places: [visits[at] for at in places])
        assert [count for count, _ in found] == [2, 2]
    assert set(threads) == {threading.get_ident()}
