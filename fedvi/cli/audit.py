"""`fedvi audit STUDY.toml`: does the code keep the promise? Tests what runs, not a model of it."""

import csv
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np

from fedvi import errors
from fedvi.audit import canaries as one_run
from fedvi.audit import draws, findings, replay, runs
from fedvi.audit import profile as profiles
from fedvi.audit import trials as worst
from fedvi.audit.findings import Finding
from fedvi.audit.recording import Recorder, SamplerRecorder
from fedvi.audit.sums import check_sums
from fedvi.data.schema import Binary, Level, Number
from fedvi.experiment import build, loading, noising
from fedvi.experiment.build import Assembly
from fedvi.experiment.config import load_study
from fedvi.federation.damping import Memory
from fedvi.federation.fold import fold, posterior_of
from fedvi.inference.base import Change, Fold, LocalSolver, Shard, Task
from fedvi.inference.coordinates import Coordinates
from fedvi.models.conjugate import FromFile
from fedvi.privacy import events, random, sampling
from fedvi.privacy.release import Mechanism, Sampler
from fedvi.privacy.sums import in_sum, of_messages
from fedvi.report import tables
from fedvi.typing import Key

__all__ = ["audit"]

_RECORDS = 32
"""Synthetic records of the replay."""

_ROWS = 1e8
"""Rows that the trials of one worst-case pair may clip: some ten seconds on two cores."""

_MOST_STEPS = 100

# Slots that the profile's trials of a Poisson sampler have at most.
_SLOTS = 64

# A profile that would not refute so much more noise says nothing about the noise that is claimed.
_TELLING = 1.3

_GENERATOR = "the sampler, clip and noise code that ships, driven by another generator, Threefry"

_CLEAR = 0.05
"""A gap of which no second look is needed."""


@click.command()
@click.argument("study", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--trials",
    type=click.IntRange(min=400),
    default=40_000,
    show_default=True,
    help="Runs on either side of a worst-case pair. More find smaller faults.",
)
@click.option("--canaries", is_flag=True, help="Also report a one-run audit with 1,000 canaries.")
@click.option(
    "--data",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Replay on the records of this file instead of synthetic ones. Figures then depend on "
    "them: keep the report with the data.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the audit's draws."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def audit(
    study: Path, trials: int, canaries: bool, data: Path | None, seed: int, as_json: bool
) -> None:
    """Test whether the code that a study runs keeps its privacy promise. Reads no data unless --data
    names a file: records are made up within the bounds of the study's schema.

    \b
    replay   runs each solver of the study, for every client and every planned visit,
             on shards that differ in one record, with the same randomness: how far
             do totals move, is anything but noised totals in a message or a public
             metric, is the noise as charged and the same whatever the records, and
             are noise and batches fresh?
    price    do all visits together cost no more than the ε that is promised?
    sums     where sums over clients alone are to be seen (view = "aggregate"): does
             the server show anything else, when answers come late or too few come?
    sampler  draws batches: are they what the price assumes?
    profile  runs sampler, clip and noise on the worst pair of shards, thousands of
             times: do the outputs tell them apart better than the claimed δ(ε) lets
             them? One gap above 0 refutes the claim, with 99 % confidence.
    canaries (on request) bounds ε from below in a single run. A report.

    An audit finds faults and proves nothing: what it cannot see is in docs/audit.md.

    \b
      fedvi audit examples/heart-disease/study.toml
      fedvi audit study.toml --trials 160000 --canaries --json

    Exit codes: 0 nothing found, or nothing to audit; 1 a check failed; 2 the study is wrong. What
    is NOT CHECKED is no pass: then `passed` is null in the JSON, and the exit code is 0.
    """
    description = load_study(study)
    if not description.privacy.private:
        if as_json:
            click.echo(json.dumps({"study": description.study.name, "findings": []}))
        else:
            click.echo(
                'nothing to audit: the study says protection = "none", so that every client sends '
                "statistics of its records without noise (ε = ∞)"
            )
        return
    assembly = build.assemble(description)
    found = _findings(assembly, trials, canaries, data, seed)
    failed = findings.has_failed(found)
    if as_json:
        report = {
            "study": description.study.name,
            "digest": description.digest,
            "trials": trials,
            "seed": seed,
            # Null where something could not be judged: that is no pass.
            "passed": False if failed else None if findings.unchecked(found) else True,
            "findings": [findings.as_dict(finding) for finding in found],
        }
        # A gap of no finite number is a finding too.
        click.echo(json.dumps(_finite(report), indent=2, allow_nan=False))
    else:
        _show(assembly, found, failed)
    if failed:
        sys.exit(1)


def _findings(
    assembly: Assembly, trials: int, canaries: bool, data: Path | None, seed: int
) -> list[Finding]:
    root = random.insecure_root(seed)

    def keys(client: str, release: str) -> Callable[[str], Key]:
        secret = root.secret("audit", client, release)
        return lambda purpose: random.key(secret, purpose)

    shard = _shard(assembly, data, seed)
    inside: list[Mechanism] = []
    found: list[Finding] = []
    for name, (shipped, clients) in _distinct(assembly).items():
        task = Task("audit", clients[0], 0, 0, assembly.prior, assembly.family.zeros(), 1.0)
        part = _replayed(assembly, shipped, clients, keys, task, shard, inside)
        found += [finding._replace(check=f"{finding.check}{name}") for finding in part]
    found.append(_promised(assembly))
    if assembly.gather is not None:
        found += check_sums(assembly.spec, seed)
    if not inside:
        return found
    solver = assembly.solvers[assembly.clients[0]]
    # Threefry: in draws as small as a trial's it is far faster than ChaCha20, whose bits the replay
    # uses. Every function of the product takes either.
    key = jax.random.key(seed)
    atoms = events.counts(assembly.planned)
    if len(atoms) != 1 or assembly.sampler is None or solver.clip_norm is None:
        return [
            *found,
            Finding(
                "profile",
                "profile",
                None,
                "not checked",
                "this solver's releases are not equal steps of one sampler and one clip norm; the "
                "replay above still looked at each",
            ),
        ]
    ((step, planned),) = atoms.items()
    return found + _trials(
        assembly, inside[-1], solver.clip_norm, step, planned, trials, canaries, key
    )


def _promised(assembly: Assembly) -> Finding:
    """Whether all that a client may release over the study costs no more than was promised."""
    budget = assembly.budget
    assert budget is not None  # of a private study

    def price(solver: LocalSolver) -> float:
        try:
            planned = events.repeat(solver.cost, assembly.schedule.rounds)
            return budget.accountant.epsilon(planned, budget.delta)
        except errors.PrivacyError:
            return math.inf  # an accountant that refuses to price it promises nothing

    spent = max(price(solver) for solver, _ in _distinct(assembly).values())
    passed = spent <= budget.epsilon
    return Finding(
        "price",
        "the plan is within its promise",
        passed,
        f"{assembly.schedule.rounds} visits cost ε {spent:.4g} of {budget.epsilon:g}, by "
        f"{budget.accountant.name}",
        "what a client is charged over the whole study is no more than the ε that was promised"
        if passed
        else "the study spends more ε than it promises",
        {"epsilon": spent, "promised": budget.epsilon},
    )


def _distinct(assembly: Assembly) -> dict[str, tuple[LocalSolver, tuple[str, ...]]]:
    """The data holders' solvers, each once, with its clients; what a check is called after it."""
    groups: dict[int, list[str]] = {}
    for client in assembly.clients:
        groups.setdefault(id(assembly.solvers[client]), []).append(client)
    return {
        "" if len(groups) == 1 else f", {' '.join(clients)}": (
            assembly.solvers[clients[0]],
            tuple(clients),
        )
        for clients in groups.values()
    }


def _replayed(
    assembly: Assembly,
    shipped: LocalSolver,
    clients: tuple[str, ...],
    keys: runs.Keys,
    task: Task,
    shard: Shard,
    inside: list[Mechanism],
) -> list[Finding]:
    """Replays one solver; from outside, if it is not the one that the study builds with a mechanism.

    Puts the mechanism that was looked at into ``inside``.
    """
    visits = assembly.schedule.rounds

    def advance(task: Task, answer: Change) -> Task:
        return _next(assembly, shipped, task, answer)

    recorders: list[Recorder] = []
    samplers: list[SamplerRecorder] = []
    seen: list[Mechanism] = []

    def wrap(mechanism: Mechanism) -> Recorder:
        seen.append(mechanism)
        recorders.append(Recorder(mechanism))
        return recorders[-1]

    def watch(sampler: Sampler) -> SamplerRecorder:
        samplers.append(SamplerRecorder(sampler))
        return samplers[-1]

    if assembly.remake is not None:
        random_batches = assembly.sampler is not None and assembly.sampler.rate < 1.0
        solver = assembly.solver_with(wrap, watch if random_batches else None)
        alone = len(set(map(id, assembly.solvers.values()))) == 1
        kinds = [task]
        if shipped.survey is not None:
            at = Coordinates(np.zeros(assembly.family.size), np.ones(assembly.family.size), 0)
            kinds.append(task._replace(coordinates=at))
        if alone or all(runs.same_answer(shipped, solver, keys, kind, shard) for kind in kinds):
            inside.append(seen[-1])
            names = clients if len(clients) > 1 else (*clients, f"{clients[0]} again")
            return replay.replay(
                solver,
                recorders[-1],
                keys,
                task,
                shard,
                names,
                visits,
                advance,
                samplers[-1] if samplers else None,
                assembly.gather is not None,
                assembly.request.unit,
            )
    return replay.replay_without_mechanism(shipped, keys, task, shard, visits, advance)


def _next(assembly: Assembly, solver: LocalSolver, task: Task, answer: Change) -> Task:
    """The client's next task as its server would make it, were it the only client that answers."""
    if answer.survey is not None and solver.stand is not None:
        prior, client = assembly.prior, task.client
        told = Fold(prior, prior, prior, {client: task.factor}, {client: task.posterior}, 1.0)
        told = told._replace(surveys={client: answer.survey})
        at = solver.stand(assembly.family, told, None).coordinates
        return task._replace(version=task.version + 1, coordinates=at)
    floor = 1.0 / len(assembly.clients)
    posterior, delta = task.posterior, answer.delta
    damping = assembly.step_rule.choose(
        assembly.family, posterior, posterior, delta, Memory(), floor
    )
    factors = fold({task.client: task.factor}, {task.client: answer}, damping)
    moved = posterior_of(assembly.prior, factors)
    if not assembly.family.is_proper(moved):
        return task
    return task._replace(
        version=task.version + 1, posterior=moved, factor=factors[task.client], damping=damping
    )


def _trials(
    assembly: Assembly,
    mechanism: Mechanism,
    clip_norm: float,
    step: events.Event,
    planned: int,
    trials: int,
    canaries: bool,
    key: Key,
) -> list[Finding]:
    """The sampler, profile and canary layers, at the study's rate, noise and price."""
    budget = assembly.budget
    assert budget is not None  # of a private study
    sampler: Any = assembly.sampler
    slots = assembly.study.data.max_records or sampler.capacity
    found = [
        finding._replace(meaning=f"{finding.meaning} (driven by Threefry)")
        for finding in draws.check_sampler(sampler, step, slots, jax.random.fold_in(key, 0))
    ]
    if isinstance(step, events.PoissonSampled) and ":" not in noising.sampler_kind(assembly.study):
        # The same sampler for fewer slots: the changed record's chance is the same, and the trials
        # that a batch of thousands would take go into more steps, which tell more.
        slots = min(slots, _SLOTS)
        sampler = sampling.poisson(sampler.rate, slots)
        step = sampler.event(step.inner)
    # A batch of everybody is the same in every trial, and is clipped once.
    rows = 1 if isinstance(step, events.Gaussian) else sampler.capacity
    sums = assembly.study.sums
    noises = 1 if sums is None else sums.honest
    steps = max(1, min(planned, _MOST_STEPS, int(_ROWS / (2 * trials * rows * noises))))
    claim = events.repeat(step, steps)
    accountant, what = of_messages(budget.accountant), ""
    shipped = worst.shipped(sampler, mechanism, clip_norm, steps)
    if sums is not None:
        # Whoever sees no message sees so many noises, or more.
        step, what = in_sum(step, noises), f", in sums of {noises} noises"
        claim = events.repeat(step, steps)
        shipped = worst.in_sums(sampler, mechanism, clip_norm, steps, noises)
    relation = accountant.relation
    profiled: list[Finding] = []
    for index, pair in enumerate(worst.worst_pairs(step, relation, slots)):
        pair_key = jax.random.fold_in(key, 1 + index)

        def run(key: Key, count: int, pair: worst.Case = pair) -> Finding:
            return profiles.profile(shipped, pair, claim, accountant, budget.delta, key, count)

        finding = run(pair_key, trials)
        if not finding.passed and finding.numbers["gap"] < _CLEAR:
            # One correct study in a hundred gets here by chance.
            finding = run(jax.random.fold_in(pair_key, 1), 4 * trials)
        profiled.append(
            finding._replace(
                figure=f"{finding.figure}; {steps} of {planned} releases{what}",
                meaning=f"{finding.meaning} ({_GENERATOR})",
                numbers={**finding.numbers, "steps": steps, "generator": "threefry"},
            )
        )
    found += _telling(profiled)
    if canaries:
        found.append(
            one_run.canaries(
                sampler,
                mechanism,
                clip_norm,
                planned,
                slots,
                budget.delta,
                jax.random.fold_in(key, 99),
            )
        )
    return found


def _telling(profiled: list[Finding]) -> list[Finding]:
    """Takes the verdict from profiles of which none would refute much more noise than is claimed.

    One pair that tells is enough: the others are there for wrong prices, such as that of fixed
    batches, and need not be the worst ones of the right price.
    """
    factors = [finding.numbers["refuted_factor"] for finding in profiled]
    if any(factor is not None and factor <= _TELLING for factor in factors):
        return profiled
    return [
        finding._replace(
            passed=None,
            meaning="these trials tell nothing: they would not refute a claim of "
            f"{_TELLING:g} × the noise either; give more --trials",
        )
        if finding.passed
        else finding
        for finding in profiled
    ]


def _shard(assembly: Assembly, data: Path | None, seed: int) -> Shard:
    """Records for the replay, padded as a client pads its own."""
    client = assembly.clients[0]
    if data is not None:
        source = loading.load_shard(assembly, client, data)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = _write_synthetic(assembly, Path(folder), np.random.default_rng(seed))
            source = loading.load_shard(assembly, client, path)
    shard = loading.with_capacity(assembly, {client: source})[client]
    if int(shard.mask.sum()) < 3:
        raise errors.DataError(
            "the replay has fewer than 3 usable records, expected 3 or more",
            "declare a larger data.max_records, or give --data with more records",
        )
    return shard


def _write_synthetic(assembly: Assembly, folder: Path, generator: np.random.Generator) -> Path:
    """Writes a file such as the study describes, with values drawn evenly within its bounds."""
    study = assembly.study
    count = min(_RECORDS, study.data.max_records or _RECORDS)
    if isinstance(assembly.model, FromFile):
        path = folder / "synthetic.npz"
        records: dict[str, Any] = assembly.model.made_up(count, generator)
        np.savez(path, **records)
        return path
    path = folder / "synthetic.csv"
    cells: dict[str, list[str]] = {}
    for column in assembly.schema.values():
        cells[column.column] = [_cell(column, generator) for _ in range(count)]
    if study.data.identity_column is not None:
        cells[study.data.identity_column] = [f"unit {index}" for index in range(count)]
    names = list(study.data.columns or cells)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=study.data.separator)
        if study.data.columns is None:
            writer.writerow(names)
        writer.writerows(
            [cells.get(name, ["0"] * count)[row] for name in names] for row in range(count)
        )
    return path


def _cell(column: Number | Level | Binary, generator: np.random.Generator) -> str:
    match column:
        case Number(whole=True):
            low, high = column.bounds
            return str(int(generator.integers(int(low), int(high) + 1)))
        case Number():
            return repr(float(generator.uniform(*column.bounds)))
        case Level():
            codes = [code for code, _ in column.codes]
        case Binary():
            codes = sorted(column.true | column.false, key=str)
    return str(codes[int(generator.integers(len(codes)))])


def _finite(value: Any) -> Any:
    """Writes an infinite number as text, which JSON can hold."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _show(assembly: Assembly, found: list[Finding], failed: bool) -> None:
    console = tables.console()
    budget = assembly.budget
    assert budget is not None
    title = (
        f"Audit of {assembly.study.study.name}: ε ≤ {budget.epsilon:g} under "
        f"{budget.accountant.relation}, δ = {budget.delta:g}"
    ) + (f" — {assembly.mark}" if assembly.mark else "")
    names = ("layer", "check", "found", "verdict", "in words")
    console.print(
        tables.grid(names, [findings.row(finding) for finding in found], title, names), crop=False
    )
    lines = [f"FAILED {f.check}: {f.meaning}" for f in found if f.passed is False]
    gaps = findings.unchecked(found)
    lines += [f"NOT CHECKED {finding.check}: {finding.meaning}" for finding in gaps]
    if gaps and not failed:
        lines.append("no fault in what was checked, which is not all: this is no pass")
    elif not failed:
        lines.append(
            "nothing found. An audit finds faults and proves nothing: it does not see timing, other "
            "channels, or faults smaller than its trials tell"
        )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
