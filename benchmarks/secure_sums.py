"""Times what masks add to a round: keys, masks, the sum, and the bytes of a message.

Sites compute nothing: an answer is made-up whole numbers. `set-up` is all of one site's work, from keys to
secrets. `round` is the work of all sites, one after the other, and of the server, in one process. Both are
seconds of the processor, so that other work on the machine counts little. With --grpc the same round over
the loopback, each site a thread, by the clock, from one fold to the next.

    python benchmarks/secure_sums.py            10 × 10⁴, 200 × 10⁴ and 10 × 10⁶, within one process
    python benchmarks/secure_sums.py --grpc     also 10 × 10⁴ over gRPC
"""

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import expfam
from fedvi.client.masking import Form, MaskedLink, Masking
from fedvi.federation import damping, schedules
from fedvi.federation.messages import (
    Done,
    Hello,
    NextTask,
    Offer,
    Payload,
    Reply,
    Request,
    Submit,
    Tensor,
)
from fedvi.privacy import events, ledger, top_up
from fedvi.privacy.sums import Sums
from fedvi.server import app as apps
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import openings
from fedvi.server.core.state import ServerSpec
from fedvi.server.core.sum_rounds import Gather
from fedvi.store.base import SECRET_BYTES
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.transport import bundle, codec, wire
from fedvi.transport.grpc import GrpcLink
from fedvi.transport.memory import Link, MemoryLink
from fedvi.transport.signers import within_one_process
from fedvi.updates.base import finish_natural

ROUNDS, STEP = 7, 2.0**-10
_COST = events.Unprotected("q")


class Case(NamedTuple):
    """How many sites, and how many numbers each sends; without masks if ``bits`` is None.

    With ``missing`` above 0 so many may be away, and one is: masks are opened without it.
    """

    sites: int
    size: int
    bits: int | None
    missing: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The sites' names."""
        return tuple(f"s{index}" for index in range(self.sites))

    @property
    def spec(self) -> ServerSpec:
        """What all agree on."""
        half = self.size // 2
        family, names = expfam.diagonal_gaussian(half), self.names
        shapes = {"h": (half,), "J": (half,)}
        least, layers = self.sites - self.missing, top_up.NONE
        if self.missing and self.bits:
            layers = top_up.planned(self.sites, 1, least, 1)
        return ServerSpec(
            study_digest="ab" * 32,
            clients=names,
            family=family,
            prior=family.isotropic(2.0),
            schedule=schedules.synchronous(ROUNDS),
            step_rule=damping.adaptive(),
            finish=dict.fromkeys(names, finish_natural),
            costs=dict.fromkeys(names, _COST),
            gather=Gather(Sums(least, 1), STEP, shapes, self.bits, layers),
        )


def site(case: Case, name: str, link: Link, signers: Any) -> tuple[Link, Masking | None]:
    """Returns a site's link, and what masks its answers."""
    spec = case.spec
    gather = spec.gather
    if gather is None or gather.bits is None:
        return link, None
    header = ledger.Header("benchmark", "ab" * 32, name, "record", "substitute", "message", False)
    form = Form(spec.study_digest, spec.clients, **gather._asdict())
    store = MemoryClientStore(ledger.open_ledger(header))
    masking = Masking(name, form, signers[name], store)
    return Sealing(MaskedLink(link, masking), store), masking


class Sealing:
    """A link that writes an answer into the site's ledger before it sends it, as its worker does."""

    def __init__(self, link: MaskedLink, store: MemoryClientStore) -> None:
        self.link, self._store = link, store

    def handle(self, request: Request) -> Reply:
        """Passes a request on."""
        if isinstance(request, Submit):
            release = f"{request.task_id}#0"
            book = ledger.charge(self._store.ledger, release, _COST)
            self._store.reserve(book, release, bytes(SECRET_BYTES), b"")
            self._store.note_inputs(release, b"", b"", b"")
            payload = request.payload
            book = ledger.seal(book, release, payload.sha256)
            self._store.seal(book, release, payload, None)
        return self.link.handle(request)


def answer(case: Case, index: int) -> Payload:
    """Returns made-up whole numbers, as a site would release them."""
    generator, half = np.random.default_rng(index), case.size // 2
    arrays = {
        "J": generator.integers(2**12, 2**13, half),
        "h": generator.integers(-(2**12), 2**12, half),
    }
    tensors = tuple(
        Tensor(name, "<i4", part.shape, part.astype("<i4").tobytes(), STEP)
        for name, part in arrays.items()
    )
    event = json.dumps(events.to_json(_COST), sort_keys=True, separators=(",", ":"))
    return Payload(tensors, event, codec.digest(event, tensors))


def within(case: Case) -> dict[str, float]:
    """Runs all rounds within one process."""
    coordinator = Coordinator(case.spec, MemoryServerStore())
    signers = within_one_process(case.names)
    parties = {
        name: site(case, name, MemoryLink(coordinator.handle), signers) for name in case.names
    }
    answers = {name: answer(case, index) for index, name in enumerate(case.names)}
    for name, (link, _) in parties.items():
        link.handle(Hello(name, "ab" * 32))
    started = time.process_time()
    if case.bits is not None:
        for _ in range(3):
            for link, masking in parties.values():
                assert masking is not None
                masking.set_up(link.link._link)  # type: ignore[attr-defined]
    set_up = (time.process_time() - started) / case.sites
    rounds, size = [], 0
    for _ in range(ROUNDS):
        started = time.process_time()
        for name, (link, masking) in parties.items():
            if case.missing and name == case.names[-1]:
                continue
            reply = link.handle(NextTask(name))
            assert isinstance(reply, Offer)
            payload = answers[name]
            if masking is not None:
                payload = masking.mask(reply.task, payload)
            link.handle(Submit(name, reply.task.task_id, payload))
        if case.missing:
            # Who is away is skipped; the others sign, and open.
            coordinator.revoke([case.names[-1]])
            for name in case.names[:-1] * 2:
                if openings.phase(coordinator.state):
                    parties[name][0].handle(NextTask(name))
        rounds.append(time.process_time() - started)
        size = bytes_of(name, reply.task.task_id, payload)
    assert coordinator.state.version == ROUNDS
    return {"set_up": set_up, "round": statistics.median(rounds), "bytes": size}


def bytes_of(name: str, task_id: str, payload: Payload) -> int:
    """Returns how many bytes an answer takes on the way, its header included."""
    bundled = bundle.of_payload(payload)
    header = wire.header_to(name, task_id, 0, bundled, bare=True).ByteSize()
    return header + bundled.manifest.size


def over_grpc(case: Case) -> dict[str, float]:
    """Runs all rounds over the loopback, a thread for each site."""
    folds: list[float] = []
    ready = threading.Event()
    listen: list[str] = []

    class Stamps(MemoryServerStore):
        def save(self, state: Any) -> Any:
            if len(state.history) > len(folds):
                folds.append(time.perf_counter())
            return super().save(state)

    def on_ready(addresses: apps.Addresses) -> None:
        listen.append(addresses.listen)
        ready.set()

    with tempfile.TemporaryDirectory() as folder:
        settings = apps.Settings(Path(folder), "benchmark", "127.0.0.1:0")
        app = apps.App(case.spec, Stamps(), settings, on_ready=on_ready)
        server = threading.Thread(target=lambda: asyncio.run(app.run()))
        server.start()
        ready.wait()
        signers, answers = within_one_process(case.names), {}
        for index, name in enumerate(case.names):
            answers[name] = answer(case, index)

        def work(name: str) -> None:
            link = GrpcLink(listen[0], name, case.spec.family.zeros())
            through, masking = site(case, name, link, signers)
            through.handle(Hello(name, "ab" * 32))
            while not isinstance(reply := through.handle(NextTask(name)), Done):
                if isinstance(reply, Offer):
                    payload = answers[name]
                    if masking is not None:
                        payload = masking.mask(reply.task, payload)
                    through.handle(Submit(name, reply.task.task_id, payload))
            link.close()

        threads = [threading.Thread(target=work, args=(name,)) for name in case.names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.join()
    # From the first fold on: the one before it waited for channels to open.
    gaps = [after - before for before, after in itertools.pairwise(folds)]
    return {"round": statistics.median(gaps)}


def main() -> None:
    """Prints a line for each size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--grpc", action="store_true")
    given = parser.parse_args()
    print(
        "sites × numbers   bits  missing   set-up a site   round: plain  masked   bytes: plain  masked"
    )
    for sites, size, bits, missing in (
        (10, 10**4, 32, 0),
        (10, 10**4, 64, 0),
        (200, 10**4, 32, 0),
        (10, 10**6, 32, 0),
        (10, 10**4, 32, 4),
        (50, 10**4, 32, 24),
    ):
        masked = within(Case(sites, size, bits, missing))
        plain = within(Case(sites, size, None, missing))
        ratio = masked["bytes"] / plain["bytes"]
        print(
            f"{sites:5d} × {size:<9d} {bits:4d} {missing:8d} {1e3 * masked['set_up']:11.1f} ms"
            f" {plain['round']:11.3f} s {masked['round']:7.3f} s"
            f" {plain['bytes']:11.0f} {masked['bytes']:8.0f} {ratio:6.3f}"
        )
    if given.grpc:
        plain, masked = (over_grpc(Case(10, 10**4, bits)) for bits in (None, 32))
        print(f"gRPC, 10 × 10⁴: plain {plain['round']:.3f} s, masked {masked['round']:.3f} s")


if __name__ == "__main__":
    main()
