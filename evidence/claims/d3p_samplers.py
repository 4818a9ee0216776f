"""What drawing a batch takes, by the number of records."""

from evidence.base import Claim, number, of, said
from evidence.figures import Chart, Line

NAMES = {
    "poisson": "fedvi, Poisson",
    "feistel": "fedvi, fixed size",
    "d3p": "d3p, fixed size",
    "opacus": "Opacus, Poisson",
    "numpy": "NumPy, permutation",
}
SETTING = {
    "records": [10_000, 100_000, 1_000_000, 10_000_000],
    "batch": 128,
    "turns": 5,
    # Draws a turn, by sampler; those that go through all records draw fewer of larger tables.
    "draws": {"poisson": 2_000, "feistel": 2_000, "d3p": 2_000},
    "record_draws": 20_000_000,
}


def run(setting, seed):
    from evidence import turns

    for records in setting["records"]:
        candidates = [
            turns.rivals().Candidate(
                name,
                name if name in ("d3p", "opacus") else "",
                (name, f"{records}"),
                setting["draws"].get(name) or max(1, setting["record_draws"] // records),
                "samplers",
            )
            for name in NAMES
        ]
        found = turns.timed(f"{records}", f"{setting['batch']}", candidates, setting["turns"])
        for candidate, (microseconds, clock) in found.items():
            yield {
                "records": records, "sampler": candidate.label, "draws": candidate.steps,
                "microseconds": microseconds, "clock": clock,
            }  # fmt: skip


def told(values):
    """Writes µs, or ms where there are many."""
    is_long = min(values) >= 1_000.0
    return f"{said([v / 1_000.0 for v in values], 2)} ms" if is_long else f"{said(values, 2)} µs"


def ran(rows):
    return [name for name in NAMES if any(row["sampler"] == name for row in rows)]


def numbers(rows, setting):
    found = {}
    ends = setting["records"][0], setting["records"][-1]
    found["fewest"], found["most"] = (f"{records:,}" for records in ends)
    for name in NAMES:
        if name in ran(rows):
            first, last = (of(rows, "microseconds", sampler=name, records=end) for end in ends)
            found[f"{name}_growth"] = number(sum(last) / sum(first), 2)
        else:
            found[f"{name}_growth"] = "(left out)"
        for where, records in zip(("fewest", "most"), ends, strict=True):
            found[f"{name}_{where}"] = (
                told(of(rows, "microseconds", sampler=name, records=records))
                if name in ran(rows)
                else "(left out)"
            )
    return found


def table(rows):
    sizes = dict.fromkeys(row["records"] for row in rows)
    return ["time of a draw, by records", *(f"{size:,}" for size in sizes)], [
        [
            NAMES[name],
            *(told(of(rows, "microseconds", sampler=name, records=size)) for size in sizes),
        ]
        for name in ran(rows)
    ]


def figure(rows):
    sizes = dict.fromkeys(row["records"] for row in rows)
    lines = [
        Line(
            NAMES[name],
            [(size, of(rows, "microseconds", sampler=name, records=size)) for size in sizes],
        )
        for name in ran(rows)
    ]
    return Chart(
        f"time of one core; batches of {SETTING['batch']}",
        "records",
        "µs a batch",
        lines,
        log_x=True,
        log_y=True,
    )


CLAIM = Claim(
    paper="d3p",
    title="Drawing a batch does not take longer in a larger table",
    source="Prediger et al. (2022), arXiv:2103.11648, and d3p 0.2.0",
    says="Batches are drawn by a Feistel network: a keyed permutation of all records, of which "
    "only the batch is computed, on the device, within the compiled step.",
    price="Time alone is measured, on a CPU, with each process held to one core, since other work "
    "shared them; each draw has a key of its own. What the two kinds of batches cost in ε "
    "differs: see the next claim.",
    finds="To draw a batch of {batch} from {fewest} and from {most} records takes "
    "{poisson_fewest} and {poisson_most} with fedvi's Poisson batches, {feistel_fewest} and "
    "{feistel_most} with its batches of a fixed size, and {d3p_fewest} and {d3p_most} with d3p's. "
    "Opacus' Poisson batches take {opacus_fewest} and {opacus_most}, a permutation by NumPy "
    "{numpy_fewest} and {numpy_most}.",
    verdict="reproduced",
    why="From the large table a draw takes {d3p_growth} times as long as from the small one with "
    "d3p, {feistel_growth} and {poisson_growth} times with fedvi's samplers, and {numpy_growth} "
    "times with a permutation. d3p's is the quickest. Poisson batches need not go through the "
    "table either: fedvi draws the gaps between the records of a batch. They have a price under "
    "both relations, and under substitute a lower one than batches of a fixed size.",
    alt="Line chart on log scales: µs a batch by records; fedvi's two samplers and d3p's are level, "
    "Opacus' Poisson batches and NumPy's permutation grow with the table.",
    setting=SETTING,
    quick={"records": [10_000, 1_000_000], "turns": 2},
    run=run,
    numbers=numbers,
    table=table,
    figure=figure,
    by="records",
    peers=("d3p", "opacus"),
    chosen="d3p's batch; each seed is a measurement",
)
