"""Times rounds of a federation over gRPC and mTLS beside the same rounds within one process.

A server in a process of its own keeps its state durable; the clients run in another process, a thread
each, and compute nothing: an answer is the posterior that was sent, a little sharper in every
coordinate, so that every round moves and stores other bytes. The same rounds are run within one
process, with the same stores, in the same run.

    python benchmarks/federation.py              rounds: 10 clients of 1 KB and 1 MB
    python benchmarks/federation.py --large 100  one factor of 100 MB: speed and the server's memory
    python benchmarks/federation.py --idle 200   what idle clients cost a server, and waking them
    python benchmarks/federation.py --start      `fedvi server`, `client` and `--help` from cold
    python benchmarks/federation.py --soak 500   whether the server's memory grows with the rounds
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedvi import expfam
from fedvi.federation import damping, schedules
from fedvi.federation.messages import Done, Hello, NextTask, Offer, Submit
from fedvi.privacy import events, ledger
from fedvi.server import app as apps
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.state import ServerSpec
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store.memory import MemoryServerStore
from fedvi.transport import authority, bundle, enrolment, identity, wire
from fedvi.transport.grpc import GrpcLink
from fedvi.transport.memory import Link, MemoryLink
from fedvi.updates.base import Task, finish_natural

CLIENTS, KILOBYTE_ROUNDS, MEGABYTE_ROUNDS = 10, 40, 8
SERVER = "server"
SESSION = "5e" * 16
_COST = events.Unprotected("q")
# A process of its own for each side, that starts from nothing: it inherits no memory.
_spawn = multiprocessing.get_context("spawn")


class Case(NamedTuple):
    """A run: how many clients, coordinates (16 bytes each, or a matrix if ``full``) and rounds.

    With ``bare`` clients ask for tasks without a factor, as those of `site_release` do.
    """

    clients: int
    size: int
    rounds: int
    full: bool = False
    bare: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        return tuple(f"c{index}" for index in range(self.clients))

    def spec(self) -> ServerSpec:
        """What all agree on; a synchronous schedule, without protection."""
        family = (expfam.full_gaussian if self.full else expfam.diagonal_gaussian)(self.size)
        names = self.names
        return ServerSpec(
            study_digest="ab" * 32,
            clients=names,
            family=family,
            prior=family.isotropic(2.0),
            schedule=schedules.synchronous(self.rounds),
            step_rule=damping.adaptive(),
            finish=dict.fromkeys(names, finish_natural),
            costs=dict.fromkeys(names, _COST),
            headers={name: self.header(name) for name in names},
        )

    def header(self, name: str) -> ledger.Header:
        """Of a client's ledger."""
        return ledger.Header("benchmark", "ab" * 32, name, "record", "substitute", "message", False)


class Stopwatch:
    """A store that is an operational log too, and notes when each fold was told of."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.stamps: list[float] = []

    def record_event(self, kind: str, client: str, text: str) -> None:
        """Adds a line, on the disk."""
        if kind == "folded":
            self.stamps.append(time.perf_counter())
        self._store.record_event(kind, client, text)

    def events(self, after: int = 0) -> Any:
        """Returns the lines after a number."""
        return self._store.events(after)


def serve(case: Case, folder: Path, tls: Path, pipe: Any) -> None:
    """Runs a server to the end of its run, in a process of its own; tells address and stamps."""
    store = SqliteServerStore(folder / "state", case.spec())
    stopwatch = Stopwatch(store)
    settings = apps.Settings(folder / "state", "benchmark", "127.0.0.1:0", tls)
    app = apps.App(
        store.spec,
        store,
        settings,
        journal=stopwatch,
        on_ready=lambda addresses: pipe.send(addresses.listen),
    )
    threading.Thread(target=lambda: (pipe.recv(), app.stop()), daemon=True).start()
    asyncio.run(app.run())
    store.close()
    pipe.send(stopwatch.stamps)


def answer(index: int, task: Task) -> Any:
    """Returns what a client sends that computes nothing: other bytes for every client and visit."""
    from fedvi.privacy.release import disclose
    from fedvi.transport import codec

    sharper = task.posterior.J * (1.0 + 0.01 / (index + 1.0))
    return codec.encode(disclose({"h": task.posterior.h, "J": sharper}, "q"))


class Meter:
    """Notes when the first and the last piece of each payload passed through this process."""

    def __init__(self) -> None:
        self.downloads: list[float] = []
        self.uploads: list[float] = []
        send, read = bundle.pieces, wire.chunk_from
        started = 0.0

        def pieces(tensors: Any, offset: int = 0) -> Iterator[tuple[int, bytes]]:
            began, size = time.perf_counter(), 0
            for at, data in send(tensors, offset):
                yield at, data
                size = at + len(data)
            self.uploads.append(size / (time.perf_counter() - began) / 1e6)

        def chunk_from(chunk: Any) -> tuple[int, bytes]:
            nonlocal started
            at, data = read(chunk)
            if at == 0:
                started = time.perf_counter()
                self.downloads.append(0.0)
            else:
                self.downloads[-1] = at / (time.perf_counter() - started) / 1e6
            return at, data

        bundle.pieces, wire.chunk_from = pieces, chunk_from


class Client:
    """Asks, answers and sends; keeps nothing."""

    def __init__(self, case: Case, index: int, link: Link) -> None:
        self._index, self._link, self.name = index, link, case.names[index]
        self._bare = case.bare
        self.waits: list[tuple[float, float]] = []
        chain = ledger.open_ledger(case.header(self.name))
        link.handle(Hello(self.name, "ab" * 32, ledger.anchor(chain)))

    def tick(self) -> str:
        """Does one visit, if there is one to do."""
        began = time.perf_counter()
        reply = self._link.handle(NextTask(self.name, without_factor=self._bare))
        if isinstance(reply, Done):
            return "done"
        if not isinstance(reply, Offer):
            return "idle"
        fetched = time.perf_counter()
        payload = answer(self._index, reply.task)
        made = time.perf_counter()
        self._link.handle(Submit(self.name, reply.task.task_id, payload))
        self.waits.append((fetched - began, time.perf_counter() - made))
        return "sent"


def durable_worker(case: Case, index: int, link: Link, folder: Path) -> Any:
    """Returns a real client, with its ledger and outbox on the disk, whose solver computes nothing."""
    import numpy as np

    from fedvi.client.worker import Worker
    from fedvi.privacy import random
    from fedvi.privacy.release import disclose
    from fedvi.store.sqlite import SqliteClientStore
    from fedvi.updates.base import LocalSolver, Shard

    def update(key_of: Any, state: Any, task: Task, shard: Shard) -> Any:
        sharper = task.posterior.J * (1.0 + 0.01 / (index + 1.0))
        return state, disclose({"h": task.posterior.h, "J": sharper}, "q"), {}

    name = case.names[index]
    shard = Shard({"x": np.zeros((1, 1), np.float32)}, np.ones(1, bool))
    for column in (shard.records["x"], shard.mask):
        column.flags.writeable = False
    solver = LocalSolver("nothing", lambda eta: (), update, finish_natural, _COST, 2 * case.size)
    return Worker(
        client=name,
        study_digest="ab" * 32,
        link=link,
        solver=solver,
        shard=lambda: shard,
        root=random.insecure_root(0),
        store=SqliteClientStore(folder / name, case.header(name)),
        budget=None,
    )


def make_client(case: Case, index: int, link: Link, folder: Path | None) -> Any:
    """Returns something that ticks: with a folder, a worker that keeps its state there."""
    if folder is None:
        return Client(case, index, link)
    return durable_worker(case, index, link, folder)


def work(case: Case, address: str, tls: Path, folder: Path | None, pipe: Any) -> None:
    """Runs all clients to the end, in a process of their own, a thread each; tells their times."""
    import fedvi.privacy.release  # noqa: F401  # brings JAX, before anything is timed

    meter = Meter() if case.clients == 1 else None
    clients: list[Any] = [None] * case.clients

    def run(index: int) -> None:
        name = case.names[index]
        credentials = identity.channel_credentials(tls / name)
        link = GrpcLink(address, name, case.spec().prior, credentials, give_up_after=60.0)
        with contextlib.closing(link):
            clients[index] = make_client(case, index, link, folder)
            while clients[index].tick() != "done":
                pass

    threads = [threading.Thread(target=run, args=(index,)) for index in range(case.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if meter is None:
        pipe.send(None)
    else:
        pipe.send((meter.downloads, meter.uploads, clients[0].waits))


def certificates(folder: Path, names: tuple[str, ...]) -> Path:
    """Makes an authority and a certificate for each party; returns the folder of them all."""
    root = folder / "ca"
    authority.create(root, "benchmark", 365)
    for name in (SERVER, *names):
        role = "server" if name == SERVER else "client"
        asked = enrolment.request(
            folder / name, name, role, ("127.0.0.1",) if role == SERVER else ()
        )
        issued = authority.sign(root, asked.path.read_bytes(), role=role, days=30)
        (folder / name / "cert.pem").write_bytes(issued.pem)
        (folder / name / "ca.pem").write_bytes((root / "ca.pem").read_bytes())
    (folder / SERVER / "roster.json").write_bytes((root / "roster.json").read_bytes())
    return folder


class Memory:
    """The memory of a process while it runs, in MB: as it was before, and its peaks from then on.

    The kernel itself notes the peak of the whole (VmHWM); its parts are sampled every 2 ms.
    """

    _FIELDS = ("VmHWM", "VmRSS", "RssAnon", "RssFile")

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        # Forgets the peak until now, which is that of starting.
        Path(f"/proc/{pid}/clear_refs").write_text("5")
        self.before = self.now()
        self.peaks: dict[str, float] = dict.fromkeys(self._FIELDS, 0.0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def now(self) -> dict[str, float]:
        """Returns the figures of this moment; none once the process is gone."""
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return {}
        parts = (line.split() for line in lines)
        found = {name.rstrip(":"): words for name, *words in parts}
        return {f: int(found[f][0]) * 1024 / 1e6 for f in self._FIELDS if f in found}

    def _watch(self) -> None:
        while not self._stopped.wait(0.002):
            for name, value in self.now().items():
                self.peaks[name] = max(self.peaks[name], value)


class Outcome(NamedTuple):
    """What a run over gRPC gave: when each fold was done, a single client's figures (MB/s down, MB/s
    up, and the seconds until each task was there and each answer was receipted), the server's memory.
    """

    stamps: list[float]
    times: tuple[list[float], list[float], list[tuple[float, float]]] | None
    peaks: dict[str, float]
    before: dict[str, float]


@contextlib.contextmanager
def serving(case: Case, folder: Path, tls: Path) -> Iterator[tuple[Any, str, Any]]:
    """Starts a server process; yields it, its address and the pipe that its stamps come from."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
    ours, theirs = _spawn.Pipe()
    server = _spawn.Process(target=serve, args=(case, folder, tls / SERVER, theirs))
    server.start()
    try:
        yield server, ours.recv(), ours
    finally:
        with contextlib.suppress(OSError):
            ours.send("stop")
        server.join()


def over_grpc(case: Case, folder: Path, tls: Path, durable_clients: bool) -> Outcome:
    """Runs a case with both sides in processes of their own."""
    folder.mkdir()
    with serving(case, folder, tls) as (server, address, stamps), Memory(server.pid) as memory:
        ours, theirs = _spawn.Pipe()
        kept = folder / "clients" if durable_clients else None
        clients = _spawn.Process(target=work, args=(case, address, tls, kept, theirs))
        clients.start()
        times = ours.recv()
        clients.join()
        return Outcome(stamps.recv(), times, memory.peaks, memory.before)


def in_process(case: Case, folder: Path, durable: bool, durable_clients: bool) -> list[float]:
    """Runs a case over the memory link, the clients one after the other; returns the folds' times."""
    folder.mkdir()
    spec, stamps = case.spec(), []
    with contextlib.ExitStack() as closing:
        store: Any = MemoryServerStore()
        if durable:
            store = closing.enter_context(
                contextlib.closing(SqliteServerStore(folder / "state", spec))
            )
            spec = store.spec
        coordinator = Coordinator(spec, store, lambda _: stamps.append(time.perf_counter()))
        link = MemoryLink(coordinator.handle)
        kept = folder / "clients" if durable_clients else None
        clients = [make_client(case, index, link, kept) for index in range(case.clients)]
        while [client.tick() for client in clients] != ["done"] * case.clients:
            pass
    return stamps


def rounds_of(stamps: list[float]) -> list[float]:
    """Returns the seconds of each round but the first, in which connections are made."""
    return [later - earlier for earlier, later in itertools.pairwise(stamps)]


def sync_seconds(folder: Path) -> float:
    """Returns the median time that the disk takes for one small write: what a commit waits for."""
    times = []
    with (folder / "probe").open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def line(label: str, seconds: list[float], base: float | None = None) -> float:
    """Prints the median, the best and the worst round; returns the median."""
    middle = statistics.median(seconds)
    ratio = "" if base is None else f"   {middle / base:5.2f} x in process"
    print(
        f"  {label:42} {1e3 * middle:8.1f} ms   {1e3 * min(seconds):7.1f} to "
        f"{1e3 * max(seconds):7.1f}{ratio}"
    )
    return middle


def state_of_machine(folder: Path) -> str:
    """Says what else may explain a figure."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, load {load}; fsync {1e3 * sync_seconds(folder):.1f} ms"


def show_rounds(folder: Path, tls: Path) -> None:
    """Times rounds of 1 KB and of 1 MB."""
    for size, count, what in (
        (64, KILOBYTE_ROUNDS, "1 KB"),
        (1 << 16, MEGABYTE_ROUNDS, "1 MB"),
    ):
        case = Case(CLIENTS, size, count)
        here = folder / what.replace(" ", "")
        here.mkdir()
        print(f"{CLIENTS} clients x {what}, {count - 1} rounds; {state_of_machine(folder)}")
        line("in process, nothing on disk", rounds_of(in_process(case, here / "m", False, False)))
        base = line("in process, durable", rounds_of(in_process(case, here / "d", True, False)))
        line("mTLS, durable", rounds_of(over_grpc(case, here / "g", tls, False).stamps), base)
        base = line(
            "in process, durable, clients too", rounds_of(in_process(case, here / "w", True, True))
        )
        line(
            "mTLS, durable, clients too",
            rounds_of(over_grpc(case, here / "v", tls, True).stamps),
            base,
        )


def show_large(folder: Path, tls: Path, megabytes: int) -> None:
    """Moves one factor back and forth, and watches the server's memory."""
    case = Case(1, megabytes * 1_000_000 // 16, 3)
    payload = 16 * case.size / 1e6
    outcome = over_grpc(case, folder / "large", tls, False)
    print(f"one factor of {payload:.0f} MB, 3 rounds; {state_of_machine(folder)}")
    assert outcome.times is not None
    downloads, uploads, waits = outcome.times
    for what, speeds in (("server to client", downloads), ("client to server", uploads)):
        shown = ", ".join(f"{speed:.0f}" for speed in speeds)
        print(f"  {what:20} {statistics.median(speeds):8.0f} MB/s   {shown}")
    for what, seconds in zip(
        ("to have a task", "to have a receipt"), zip(*waits, strict=True), strict=True
    ):
        shown = ", ".join(f"{value:.2f}" for value in seconds)
        print(f"  {what:20} {statistics.median(seconds):8.2f} s      {shown}")
    for name, value in outcome.peaks.items():
        grown = value - outcome.before[name]
        print(
            f"  peak {name:15} {value:8.0f} MB   {value / payload:5.2f} x payload, "
            f"{grown / payload:5.2f} x of it since nobody was there"
        )


async def idle_clients(case: Case, address: str, tls: Path, folder: Path, pipe: Any) -> None:
    """Lets all clients wait for work at a paused server; then resumes it, and times the tasks."""
    import grpc

    from fedvi.transport._wire import admin_pb2, admin_pb2_grpc
    from fedvi.transport._wire import federation_pb2_grpc as stubs

    async with contextlib.AsyncExitStack() as closing:

        async def join(name: str) -> Any:
            credentials = identity.channel_credentials(tls / name)
            channel = grpc.aio.secure_channel(
                address, credentials, [("grpc.use_local_subchannel_pool", 1)]
            )
            stub = stubs.FederationServiceStub(await closing.enter_async_context(channel))
            anchor = ledger.anchor(ledger.open_ledger(case.header(name)))
            await stub.Hello(wire.hello_to(Hello(name, "ab" * 32, anchor, session=SESSION)))
            return stub

        async def wait(name: str, stub: Any) -> float:
            request = wire.next_task_to(NextTask(name, session=SESSION), 25.0)
            while (await stub.NextTask(request)).WhichOneof("reply") != "task":
                pass
            return time.perf_counter()

        channel = grpc.aio.insecure_channel(f"unix:{folder / 'admin.sock'}")
        admin = admin_pb2_grpc.AdminServiceStub(await closing.enter_async_context(channel))
        await admin.PauseRun(admin_pb2.PauseRunRequest())
        joined = [(name, await join(name)) for name in case.names]
        waits = [asyncio.create_task(wait(name, stub)) for name, stub in joined]
        pipe.send("waiting")
        await asyncio.to_thread(pipe.recv)
        began = time.perf_counter()
        await admin.ResumeRun(admin_pb2.ResumeRunRequest())
        pipe.send([at - began for at in await asyncio.gather(*waits)])


def be_idle(case: Case, address: str, tls: Path, folder: Path, pipe: Any) -> None:
    """Runs ``idle_clients`` in a process of its own."""
    asyncio.run(idle_clients(case, address, tls, folder, pipe))


def cpu_seconds(pid: int) -> float:
    """Returns the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show_idle(folder: Path, tls: Path, clients: int) -> None:
    """Lets clients wait for half a minute, and wakes them all."""
    case, here = Case(clients, 64, 2), folder / "idle"
    here.mkdir()
    with serving(case, here, tls) as (server, address, _), Memory(server.pid) as memory:
        time.sleep(1.0)
        before = memory.now()["VmRSS"]
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=be_idle, args=(case, address, tls, here / "state", theirs))
        process.start()
        ours.recv()
        time.sleep(2.0)
        connected, used, began = memory.now()["VmRSS"], cpu_seconds(server.pid), time.monotonic()
        time.sleep(30.0)
        share = (cpu_seconds(server.pid) - used) / (time.monotonic() - began)
        ours.send("wake them")
        woken = sorted(ours.recv())
        process.join()
    print(f"{clients} idle clients, mTLS; {state_of_machine(folder)}")
    print(f"  server, nobody there {before:8.0f} MB")
    print(f"  with all of them     {connected - before:+8.0f} MB")
    print(f"  processor time       {100 * share:8.2f} % of one core")
    print(
        f"  task after           {1e3 * statistics.median(woken):8.0f} ms median, "
        f"{1e3 * woken[-1]:.0f} ms the last"
    )


def seconds_until(kind: str, command: list[str], folder: Path) -> tuple[float, Any, dict[str, Any]]:
    """Starts a process and waits for a line of its log; returns the seconds, it and the line."""
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for text in process.stderr:
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if found["kind"] == kind:
                return time.perf_counter() - began, process, found
    raise RuntimeError(f"{' '.join(command)} ended before it said {kind!r}")


def show_start(folder: Path) -> None:
    """Starts the processes of the heart-disease example."""
    fedvi = str(Path(sys.executable).with_name("fedvi"))
    example = Path(__file__).parent.parent / "examples" / "heart-disease"
    study = str(example / "study-nonprivate.toml")
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([fedvi, "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    print(f"from cold, heart disease; {state_of_machine(folder)}")
    print(f"  fedvi --help              {statistics.median(times):6.2f} s   best {min(times):.2f}")
    common = ["--log-format", "json"]
    server = [fedvi, "server", study, "--state", str(folder / "server"), *common]
    server += ["--listen", "127.0.0.1:0"]
    seconds, process, _ = seconds_until("ready", server, folder)
    print(f"  server ready, first start {seconds:6.2f} s")
    process.kill()
    process.wait()
    seconds, process, found = seconds_until("ready", server, folder)
    print(f"  server ready, after kill  {seconds:6.2f} s")
    name = "cleveland"
    records = str(example / "data" / f"processed.{name}.data")
    client = [fedvi, "client", study, "--as", name, "--data", records]
    client += ["--server", found["listen"], "--state", str(folder / name), *common]
    client.append("--allow-unprotected")
    for label in ("client joined, first start", "client joined, again"):
        seconds, joined, _ = seconds_until("joined", client, folder)
        print(f"  {label:25} {seconds:6.2f} s")
        joined.kill()
        joined.wait()
    process.kill()
    process.wait()


def show_soak(folder: Path, tls: Path, rounds: int) -> None:
    """Watches the server's memory over many rounds of a small study."""
    case, here = Case(3, 64, rounds), folder / "soak"
    here.mkdir()
    found: list[tuple[int, float]] = []
    with serving(case, here, tls) as (server, address, stamps), Memory(server.pid) as memory:
        _, theirs = _spawn.Pipe()
        process = _spawn.Process(target=work, args=(case, address, tls, None, theirs))
        process.start()
        path = here / "state" / "state.sqlite"
        while process.is_alive():
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                (done,) = database.execute("SELECT count(*) FROM history").fetchone()
            found.append((done, memory.now().get("RssAnon", found[-1][1] if found else 0.0)))
            process.join(0.5)
        times = rounds_of(stamps.recv())
    late = [(done, size) for done, size in found if rounds // 5 < done < rounds]
    slope = statistics.linear_regression(*zip(*late, strict=True)).slope
    print(f"{rounds} rounds of 3 clients x 1 KB, mTLS; {state_of_machine(folder)}")
    line("a round", times)
    line("the last tenth", times[-max(1, rounds // 10) :])
    print(f"  memory {late[0][1]:.1f} to {late[-1][1]:.1f} MB: {100 * slope:+.2f} MB in 100 rounds")


def main() -> int:
    """Prints the figures that were asked for; rounds, if nothing was."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", type=int, metavar="MB", help="one factor of so many MB")
    parser.add_argument("--idle", type=int, metavar="CLIENTS", help="so many idle clients")
    parser.add_argument("--soak", type=int, metavar="ROUNDS", help="so many rounds")
    parser.add_argument("--start", action="store_true", help="how long processes take to start")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = certificates(folder / "tls", Case(arguments.idle or CLIENTS, 1, 1).names)
        if arguments.large:
            show_large(folder, tls, arguments.large)
        elif arguments.idle:
            show_idle(folder, tls, arguments.idle)
        elif arguments.soak:
            show_soak(folder, tls, arguments.soak)
        elif arguments.start:
            show_start(folder)
        else:
            show_rounds(folder, tls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
