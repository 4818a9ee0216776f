"""Times rounds of many sites over gRPC and mTLS, with the processor time of both sides told apart.

    python benchmarks/sites_over_grpc.py 200 --size 108

Server and clients are those of `federation.py`: the server's state is durable, the clients are threads of
one process that compute nothing. An answer is a full matrix, 94 KB at D = 108.
"""

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

from federation import (
    Case,
    certificates,
    cpu_seconds,
    line,
    rounds_of,
    serving,
    state_of_machine,
    work,
)


def main() -> None:
    """Prints the seconds of a round, and the processor time of a round on each side."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sites", type=int, nargs="?", default=200)
    parser.add_argument("--size", type=int, default=108)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--without-factor", action="store_true", help="tasks as clients of `site_release` get them"
    )
    arguments = parser.parse_args()
    case = Case(
        arguments.sites, arguments.size, arguments.rounds, full=True, bare=arguments.without_factor
    )
    spawn, used = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tls = certificates(folder / "tls", case.names)
        with serving(case, folder, tls) as (server, address, stamps):
            ours, theirs = spawn.Pipe()
            clients = spawn.Process(target=work, args=(case, address, tls, None, theirs))
            clients.start()
            while not ours.poll(0.05):
                now = time.perf_counter()
                used.append((now, cpu_seconds(server.pid), cpu_seconds(clients.pid)))
            ours.recv()
            clients.join()
            times = stamps.recv()
        print(f"{arguments.sites} sites, D = {arguments.size}; {state_of_machine(folder)}")
    line("a round", rounds_of(times))
    inside = [found for found in used if times[0] <= found[0] <= times[-1]]
    rounds = len(rounds_of(times)) * (inside[-1][0] - inside[0][0]) / (times[-1] - times[0])
    for side, whose in ((1, "server"), (2, "clients")):
        spent = (inside[-1][side] - inside[0][side]) / rounds
        print(f"  processor time a round, {whose:18} {1e3 * spent:8.0f} ms")


if __name__ == "__main__":
    main()
