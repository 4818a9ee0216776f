"""A server that asks for more than was planned, or about a q that no run has: noise, and nothing more."""

import itertools

import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation.messages import Done, Hello, NextTask, Noted, Offer, Receipt, Submit, Welcome
from fedvi.privacy import ledger
from fedvi.run.site import client_worker
from fedvi.store.memory import MemoryClientStore
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.updates.base import Shard, Task
from tests.studies import raw_study

PLANNED = 12
FLAT = GaussianEta(np.zeros(2), np.eye(2))


def asked(visit, q=FLAT):
    nothing = GaussianEta(np.zeros(2), np.zeros((2, 2)))
    return Task(f"north/{visit}", "north", visit, visit, q, nothing, 1.0)


def always(h, precision):
    return [asked(visit, GaussianEta(h, precision)) for visit in range(13)]


# More than the 12 tasks that the study plans.
SERVERS = {
    "a 13th round": [asked(visit) for visit in range(13)],
    "13 times the same task": [asked(0)] * 13,
    "a q of 1e200": always(np.full(2, 1e200), 1e200 * np.eye(2)),
    "a mean of 1e200": always(np.full(2, 1e200), np.eye(2)),
}
# No run hands these out.
IMPROPER = {
    "a singular J": always(np.ones(2), np.ones((2, 2))),
    "a J of zeros": always(np.ones(2), np.zeros((2, 2))),
    "a J that bends down": always(np.ones(2), -np.eye(2)),
}


class Server:
    def __init__(self, tasks):
        self.tasks, self.received, self.failures = list(tasks), [], []

    def handle(self, request):
        match request:
            case Hello():
                return Welcome(0)
            case NextTask():
                return Offer(self.tasks[0]) if self.tasks else Done("finished")
            case Submit():
                self.received.append(request)
                self.tasks.pop(0)
                return Receipt("accepted", 1)
        self.failures.append(request)
        self.tasks.pop(0)
        return Noted()


@pytest.fixture(scope="module")
def assembly():
    raw = raw_study(
        ["north", "south"],
        2,
        kind="logistic",
        solver={"kind": "site_release", "clip_norm": 1.0},
        schedule={"kind": "sequential", "rounds": PLANNED},
        privacy={"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
    )
    raw["data"]["max_records"] = 40
    return build.assemble(parse_study(raw))


def worked(assembly, server):
    """A client that goes on until it refuses for good, and what its calls came to."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 2)).astype(np.float32)
    y = generator.integers(2, size=40).astype(np.float32)
    store = MemoryClientStore(ledger.open_ledger(assembly.spec.headers["north"]))
    worker = client_worker(
        assembly, "north", server, store, lambda: Shard({"x": x, "y": y}, np.ones(40, bool))
    )
    seen = []
    for _ in range(100):
        try:
            seen.append(worker.tick())
        except errors.FedviError as error:
            seen.append(type(error).__name__)
            if isinstance(error, errors.BudgetExceeded):
                break
        if seen[-1] == "done":
            break
    return worker, seen


@pytest.mark.parametrize("kind", SERVERS)
def test_whatever_a_server_asks_it_gets_noise_and_no_more_of_it_than_was_planned(assembly, kind):
    server = Server(SERVERS[kind])
    worker, seen = worked(assembly, server)
    assert ledger.reservations(worker.ledger) == PLANNED
    assert seen[-1] == "BudgetExceeded"
    values = [codec.decode(sent.payload)[0] for sent in server.received]
    assert len(values) == PLANNED
    assert all(np.isfinite(array).all() for value in values for array in value.values())
    # Each has noise of its own.
    spread = np.std([value["gradient"] for value in values], axis=0)
    assert (spread > 0.3 * assembly.spec.limits["north"].sd).all()
    for one, other in itertools.combinations(values, 2):
        assert not np.array_equal(one["gradient"], other["gradient"])


@pytest.mark.parametrize("kind", IMPROPER)
def test_a_task_about_an_improper_q_is_refused_before_anything_is_charged(assembly, kind):
    server = Server(IMPROPER[kind])
    worker, seen = worked(assembly, server)
    assert set(seen[:-1]) == {"ProtocolError"}
    assert ledger.reservations(worker.ledger) == 0
    assert not server.received
    assert {failure.code for failure in server.failures} == {"other"}
