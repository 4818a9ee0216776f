"""A small private study of three clients, whose workers are threads of the test, over real gRPC."""

import collections
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi.client import app
from fedvi.expfam import tree
from fedvi.federation.messages import Reply, Request, Submit
from fedvi.privacy import ledger, random
from fedvi.run import loading, simulate, site
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerState
from fedvi.store.sqlite import SqliteClientStore
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import load_study
from fedvi.transport.grpc import GrpcLink
from fedvi.transport.signers import within_one_process
from fedvi.typing import Eta
from tests.servers import Running
from tests.studies import raw_study

NAMES = ("north", "east", "south")
SEED = 5
# Threads share two cores with other tests.
PATIENCE_SECONDS = 120.0


def study_file(
    folder: Path,
    kind: str = "synchronous",
    rounds: int = 3,
    names: tuple[str, ...] = NAMES,
    **sections: Any,
) -> Path:
    """Writes a study, and its clients' records beside it; noise follows from a seed."""
    raw = raw_study(
        list(names),
        2,
        **{
            "solver": {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
            "schedule": {"kind": kind, "rounds": rounds},
            "privacy": {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
            "simulation": {"insecure_seed": SEED},
            **sections,
        },
    )
    raw["data"]["max_records"] = 30
    if "data" not in sections:
        for name in ("x0", "x1"):
            raw["data"]["schema"][name]["bounds"] = [-20, 20]
    for index, client in enumerate(raw["clients"]):
        rows = np.random.default_rng(index).normal(size=(20, 3)).tolist()
        lines = ["y,x0,x1", *(",".join(map(repr, row)) for row in rows)]
        client["data"] = f"{client['name']}.csv"
        (folder / client["data"]).write_text("\n".join(lines) + "\n")
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return path


def assembled(study: Path) -> Assembly:
    return build.assemble(load_study(study))


class Expected(NamedTuple):
    """What a run must come to, to the bit."""

    posterior: Eta
    factors: Mapping[str, Eta]
    ledgers: Mapping[str, ledger.Ledger]


def undisturbed(assembly: Assembly, base: Path) -> Expected:
    """What a simulation in this process comes to."""
    result = simulate.run(assembly, loading.load_shards(assembly, base))
    return Expected(result.posterior, result.factors, result.ledgers)


@dataclasses.dataclass(frozen=True, repr=False)
class Once(random.Root):
    """The simulation's secrets, each once: who draws again gets others, as from the real source."""

    draws: collections.Counter[tuple[str | int, ...]] = dataclasses.field(
        default_factory=collections.Counter
    )

    def secret(self, *label: str | int) -> bytes:
        again = self.draws[label]
        self.draws[label] += 1
        return super().secret(*label, *([again] if again else []))


class Noting:
    """A link that notes which bytes were sent for each task, and when a reply came."""

    def __init__(self, link: GrpcLink, sites: "Sites") -> None:
        self._link, self._sites = link, sites

    def handle(self, request: Request) -> Reply:
        if isinstance(request, Submit):
            self._sites.sent[request.task_id].add(request.payload.sha256)
        reply = self._link.handle(request)
        self._sites.replies.append(time.monotonic())
        return reply


class Sites:
    """All clients of a study but those that were left out; ledgers are in ``folder``."""

    def __init__(self, assembly: Assembly, base: Path, folder: Path) -> None:
        self.assembly, self.base, self.folder = assembly, base, folder
        self.root = Once(random.insecure_root(SEED)._secret, secure=False)
        self.sent: dict[str, set[str]] = collections.defaultdict(set)
        self.replies: list[float] = []
        self.failures: list[BaseException] = []
        self._signers = within_one_process(assembly.clients)
        self._threads: list[threading.Thread] = []
        self._began = time.monotonic()
        self._links: list[GrpcLink] = []

    def start(self, address: str, *names: str) -> None:
        """Lets clients dial in; all of them if none is named."""
        for name in names or self.assembly.clients:
            thread = threading.Thread(target=self._work, args=(name, address), daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def ended(self) -> bool:
        """Whether all that were started have heard of the end; fails where that takes too long."""
        assert not self._threads or time.monotonic() < self._began + PATIENCE_SECONDS
        return bool(self._threads) and not self.working

    @property
    def working(self) -> bool:
        """Whether somebody has not heard of the end; raises what went wrong."""
        if self.failures:
            raise self.failures[0]
        return any(thread.is_alive() for thread in self._threads)

    def join(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for the end of all."""
        end = time.monotonic() + seconds
        while self.working:
            assert time.monotonic() < end, "the clients did not come to an end"
            time.sleep(0.01)

    def close(self) -> None:
        for link in self._links:
            link.close()
        for thread in self._threads:
            thread.join(20.0)

    def _work(self, name: str, address: str) -> None:
        link = GrpcLink(address, name, self.assembly.family.zeros(), delays=(0.02, 0.5))
        self._links.append(link)
        store = SqliteClientStore(self.folder / name, self.assembly.header(name))
        try:
            with contextlib.closing(store):
                shard = site.file_shard(self.assembly, name, self.base / f"{name}.csv")
                worker = site.client_worker(
                    self.assembly,
                    name,
                    Noting(link, self),
                    store,
                    shard,
                    signer=self._signers[name],
                )
                worker._root = self.root
                app.run(worker)
        except BaseException as error:
            self.failures.append(error)
        finally:
            link.close()

    def ledger(self, name: str) -> ledger.Ledger:
        """A client's own ledger, as it is on the disk."""
        with contextlib.closing(
            SqliteClientStore(self.folder / name, self.assembly.header(name))
        ) as store:
            return store.ledger


def until(server: Running, wanted: Callable[[ServerState], bool]) -> ServerState:
    """Waits until a server's state is as wanted, and returns it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not wanted(state := server.app._coordinator.state):
        assert time.monotonic() < end, state.history[-1:]
        time.sleep(0.01)
    return state


@contextlib.contextmanager
def sites_of(assembly: Assembly, base: Path, folder: Path) -> Iterator[Sites]:
    with contextlib.closing(Sites(assembly, base, folder)) as sites:
        yield sites


def check_undisturbed(sites: Sites, state: ServerState, expected: Expected) -> None:
    """Posterior and both ledgers are those of the undisturbed run; nothing was done twice."""
    assembly, rounds = sites.assembly, sites.assembly.schedule.rounds
    assert state.status == "completed"
    assert tree.equal(protocol.served(assembly.spec, state), expected.posterior)
    folds = collections.Counter(name for update in state.history for name in update.clients)
    for name in assembly.clients:
        assert tree.equal(state.factors[name], expected.factors[name])
        assert folds[name] == state.visits[name] == rounds
        assert sites.ledger(name) == expected.ledgers[name]
        assert state.ledgers[name] == expected.ledgers[name]
        assert ledger.reservations(expected.ledgers[name]) == rounds
    # The ledgers hold the digest of each answer; here is what was really drawn and sent.
    tasks = {f"{name}/{visit}" for name in assembly.clients for visit in range(rounds)}
    assert sites.root.draws == {(task.split("/")[0], f"{task}#0"): 1 for task in tasks}
    assert sites.sent == {task: {state.accepted[task]} for task in tasks}
