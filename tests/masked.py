"""Studies of secure sums in one process: sites, an honest server, and one that lies on the way."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedvi.client.worker import Worker
from fedvi.data.source import ArraySource
from fedvi.federation.messages import CLOSING, NextTask, Reply, Request, Submit
from fedvi.privacy import ledger as ledgers
from fedvi.run import site
from fedvi.server.coordinator import Coordinator
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import parse_study
from fedvi.transport.memory import Link, MemoryLink
from fedvi.transport.signers import Signer, within_one_process
from tests.studies import raw_study

__all__ = ["NAMES", "SOLVERS", "Consortium", "Lying", "assembled", "raw", "records", "step_of"]

NAMES = ("north", "east", "south")
SOLVERS: dict[str, dict[str, Any]] = {
    "site_release": {"kind": "site_release", "clip_norm": 2.0},
    "vips": {"kind": "vips", "clip_norm": 2.0},
    "virtual_clients": {"kind": "virtual_clients", "clip_norm": 2.0, "parts": 2, "by_place": True},
    "perturbed_update": {"kind": "perturbed_update", "clip_norm": 2.0, "clean_factor": True},
}


def raw(
    solver: str = "site_release",
    *,
    secure: bool = True,
    rounds: int = 2,
    least: int | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """A small study of three sites, whose noise follows from a seed, so that runs can be compared.

    With ``least``, so many must answer, and a site is waited for ten seconds.
    """
    made = raw_study(
        list(sections.pop("names", NAMES)),
        2,
        kind="logistic",
        solver=SOLVERS[solver],
        schedule={"kind": "synchronous", "rounds": rounds},
        privacy={
            "epsilon": 2.0,
            "delta": 1e-5,
            "unit": "record",
            "relation": "substitute",
            "view": "aggregate",
            "records_public": solver == "virtual_clients",  # parts by place want it
            **sections.pop("privacy", {}),
        },
        **{"simulation": {"insecure_seed": 7}, **sections},
    )
    made["data"]["max_records"] = 30
    if least is not None:
        made["privacy"]["least_reporting"] = least
        made["schedule"]["deadline_seconds"] = 10.0
    if secure:
        made["aggregation"] = {"secure": True}
    return made


@functools.cache
def assembled(solver: str = "site_release", *, secure: bool = True) -> Assembly:
    return build.assemble(parse_study(raw(solver, secure=secure)))


def records(names: tuple[str, ...] = NAMES) -> dict[str, ArraySource]:
    generator = np.random.default_rng(5)
    return {
        name: ArraySource(
            {
                "x": generator.normal(size=(20, 2)),
                "y": generator.integers(0, 2, 20).astype(float),
            },
            np.ones(20, bool),
        )
        for name in names
    }


class Consortium:
    """A server in memory and the stores of its sites, which outlive their workers."""

    def __init__(
        self,
        assembly: Assembly,
        signers: dict[str, Signer] | None = None,
        rosters: dict[str, str] | None = None,
        record: Callable[[Any, bool], None] = lambda state, is_folded: None,
    ) -> None:
        self.assembly, self.rosters, self._record = assembly, rosters or {}, record
        self.now = 0.0
        self.coordinator = self.server()
        self.signers = signers or within_one_process(assembly.clients)
        self.stores = {
            name: MemoryClientStore(ledgers.open_ledger(assembly.header(name)))
            for name in assembly.clients
        }
        self.told: dict[str, str] = {}
        self.absent: set[str] = set()
        self._shards = {
            name: site.shard_of(assembly, name, source)
            for name, source in records(assembly.clients).items()
        }

    def server(self, store: Any = None) -> Coordinator:
        """A server whose time is ``now``."""
        store = store or MemoryServerStore()
        spec = self.assembly.spec._replace(record=self._record)
        return Coordinator(spec, store, clock=lambda: self.now)

    def worker(self, name: str, wrap: Callable[[Link], Link] = lambda link: link) -> Worker:
        """A new process of a site, on the store of those before."""

        def tell(roster: str, absent: Sequence[str]) -> None:
            self.told[name] = roster
            self.absent |= set(absent)

        return site.client_worker(
            self.assembly,
            name,
            wrap(MemoryLink(lambda request: self.coordinator.handle(request))),
            self.stores[name],
            self._shards[name],
            signer=self.signers[name],
            roster=self.rosters.get(name),
            tell=tell,
        )

    def run(self, workers: dict[str, Worker], until: Callable[[], bool] = lambda: False) -> None:
        """Lets sites tick in turns until all are done, or ``until`` says so."""
        done: set[str] = set()
        while len(done) < len(workers) and not until():
            for name, worker in workers.items():
                if name not in done and worker.tick() == "done":
                    done.add(name)

    def set_up(self) -> dict[str, Worker]:
        """Returns workers that agreed on keys, and hold no task."""
        workers = {name: self.worker(name) for name in self.assembly.clients}
        # One turn for keys, one for offers, and in the third all are there.
        for _ in range(2):
            for worker in workers.values():
                worker.tick()
        return workers


class Lying:
    """A link on whose way replies, or requests, are changed."""

    def __init__(
        self,
        link: Link,
        reply: Callable[[Request, Reply], Reply] = lambda request, reply: reply,
        request: Callable[[Request], Request] = lambda request: request,
    ) -> None:
        self._link, self._reply, self._request = link, reply, request

    def handle(self, request: Request) -> Reply:
        return self._reply(request, self._link.handle(self._request(request)))


def step_of(request: Request) -> str:
    """What a request is for: "submit", "sign" or "open" with content, "ask" without."""
    if isinstance(request, Submit):
        return "submit"
    if isinstance(request, NextTask) and request.part and request.part.content:
        return {CLOSING[0]: "sign", CLOSING[1]: "open"}.get(request.part.stage, "keys")
    return "ask"
