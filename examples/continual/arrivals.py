"""A posterior that grows with its hospitals: three join one after another, and one leaves.

    python examples/continual/arrivals.py
    python examples/continual/arrivals.py --rounds 3

Printed is the posterior after each change, mean and sd, and its distance to the fit of the records of just
those who take part, pooled. Whoever was there already is never asked to start again.
"""

import argparse
from pathlib import Path

import fedvi
from fedvi.report import tables
from fedvi.study import build

HERE = Path(__file__).resolve().parent
LEAVES = "switzerland"


def of(study, names, rounds):
    """Returns the study of some of its clients, for so many rounds."""
    schedule = study.schedule.model_copy(update={"rounds": rounds})
    clients = [client for client in study.clients if client.name in names]
    return study.model_copy(update={"schedule": schedule, "clients": clients})


def main():
    """Runs and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="between two changes (default %(default)d)"
    )
    args = parser.parse_args()
    study = fedvi.load_study(HERE / "study.toml")
    names = [client.name for client in study.clients]
    family = build.assemble(study).family

    rows = []
    for stage in range(1, len(names) + 2):
        present = names[:stage]
        joined = {name: args.rounds * place for place, name in enumerate(present) if place}
        left, change = {}, f"{present[-1]} joins" if joined else f"{present[-1]} begins"
        if stage > len(names):
            left, change = {LEAVES: args.rounds * (stage - 1)}, f"{LEAVES} leaves"
        here = of(study, present, args.rounds * stage)
        run = fedvi.simulate(here, HERE, add=joined, remove=left, pooled=not left)
        pooled = run.pooled
        if left:
            together = of(study, [name for name in present if name not in left], 1)
            pooled = fedvi.simulate(together, HERE, pooled=True).pooled
        moments = zip(*family.moments(run.posterior), strict=True)
        distance = max(float(family.kl(run.posterior, pooled)), 0.0)
        rows.append([change, *(f"{m:.2f} ({s:.2f})" for m, s in moments), f"{distance:.1g}"])
    heads = ["", *run.assembly.model.names, "KL, nats"]
    title = (
        "Posterior after each change, mean (sd), and the distance to pooling those who are there"
    )
    tables.console().print(tables.grid(heads, rows, title, ("",)), crop=False)


if __name__ == "__main__":
    main()
