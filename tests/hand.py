"""A run whose clients come by hand: certificates, a server without a process, and sites with files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedvi.client.file_link import FileLink, Written
from fedvi.client.worker import Worker
from fedvi.data.source import ArraySource
from fedvi.privacy import ledger as ledgers
from fedvi.run import site
from fedvi.server.coordinator import Coordinator
from fedvi.server.file_exchange import Exported, Hand
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import parse_study
from fedvi.transport import parcels
from fedvi.transport.parcels import TaskFile
from fedvi.transport.roster import Roster
from fedvi.transport.signers import Certified
from tests.pki import authority_in, party
from tests.studies import raw_study

CLIENTS = ("c0", "c1", "c2")
PRIVATE = {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}


def raw(rounds: int = 2, private: bool = False, kind: str = "synchronous") -> dict[str, Any]:
    """A small study of three clients; a private one draws its noise from the operating system."""
    made = raw_study(list(CLIENTS), 2, schedule={"kind": kind, "rounds": rounds})
    if private:
        made["solver"] = {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0}
        made["privacy"] = PRIVATE
        made["data"]["max_records"] = 30
    return made


def records() -> dict[str, ArraySource]:
    generator = np.random.default_rng(5)
    return {
        name: ArraySource(
            {"x": generator.normal(size=(20, 2)), "y": generator.normal(size=20)},
            np.ones(20, bool),
        )
        for name in CLIENTS
    }


class Consortium:
    """An authority, a server's state in memory, and who carries its files."""

    def __init__(self, folder: Path, study: dict[str, Any]) -> None:
        self.folder, self.assembly = folder, build.assemble(parse_study(study))
        self.root = authority_in(folder / "ca")
        self.tls = {"server": party(self.root, "server", "server", ("localhost",))}
        self.tls |= {name: party(self.root, name) for name in CLIENTS}
        self.roster = Roster(self.root / "roster.json")
        self.authority = (self.root / "ca.pem").read_bytes()
        self.spec = self.assembly.spec
        self.store = MemoryServerStore()
        self.hand = self.opened()
        self.out = folder / "out"
        self.out.mkdir()

    def opened(self) -> Hand:
        """A process that exports or imports, and knows what was saved."""
        return Hand(self.spec, Coordinator(self.spec, self.store, clock=lambda: 0.0))

    def export(self, name: str) -> Exported:
        return self.hand.export(name, self.out, self.tls["server"])

    def task(self, name: str) -> Path:
        path = self.export(name).path
        assert path is not None
        return path

    def take(self, path: Path) -> str:
        return self.hand.take(parcels.read_result(path, self.authority, self.roster))

    def site(self, name: str) -> "Site":
        return Site(self, name)


class Site:
    """A client whose store outlives its runs, as a folder would."""

    def __init__(self, consortium: Consortium, name: str) -> None:
        self.name, self.consortium = name, consortium
        assembly = consortium.assembly
        self.store = MemoryClientStore(ledgers.open_ledger(assembly.header(name)))
        self._shard = site.shard_of(assembly, name, records()[name])

    @property
    def ledger(self) -> ledgers.Ledger:
        return self.store.ledger

    def worker(self, parcel: TaskFile, target: Path) -> Worker:
        consortium = self.consortium
        link = FileLink(
            parcel,
            lambda: self.store.ledger,
            lambda made: parcels.write_result(target, consortium.tls[self.name], made),
        )
        return site.client_worker(
            consortium.assembly,
            self.name,
            link,
            self.store,
            self._shard,
            signer=Certified(consortium.tls[self.name]),
        )

    def read(self, task: Path) -> TaskFile:
        assembly = self.consortium.assembly
        return parcels.read_task(
            task,
            self.consortium.authority,
            self.name,
            assembly.study.digest,
            assembly.family.zeros(),
        )

    def answer(self, task: Path) -> Path:
        """Runs until the answer is in its file, and returns the file."""
        target = task.with_suffix(parcels.RESULT_SUFFIX)
        worker = self.worker(self.read(task), target)
        try:
            while worker.tick() != "done":
                pass
        except Written:
            return target
        raise AssertionError(f"the run is over: {worker.ended}")

    def end(self, task: Path) -> str:
        """Runs until the run is over, and returns why it is."""
        worker = self.worker(self.read(task), task.with_suffix(".none"))
        while worker.tick() != "done":
            pass
        return worker.ended


def play(consortium: Consortium, sites: dict[str, Site], between: Callable[[], None]) -> None:
    """Carries files to and fro until nobody has a task; ``between`` runs after each answer."""
    while True:
        exported = [consortium.export(name) for name in sites]
        tasks = [made for made in exported if made.status == "task"]
        if not tasks:
            return
        for made in tasks:
            assert made.path is not None
            assert consortium.take(sites[made.client].answer(made.path)) == "accepted"
            between()


def nothing() -> None:
    """What is done between two answers where nothing is."""


def rerun(assembly: Assembly) -> Any:
    """The same study, simulated."""
    from fedvi.run import simulate

    return simulate.run(assembly, records())
