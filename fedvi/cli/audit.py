"""`fedvi audit STUDY.toml`: does the code keep the promise? Tests what runs, not a model of it."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from fedvi import __version__
from fedvi.audit import findings
from fedvi.audit.findings import Finding
from fedvi.cli import _self_test
from fedvi.cli._audited import Audited, Settings
from fedvi.cli._flags import FILE, code_flags, seed_flag
from fedvi.report import tables
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import load_study

__all__ = ["audit"]


@click.command()
@click.argument("study", type=FILE)
@click.option(
    "--trials",
    type=click.IntRange(min=400),
    default=40_000,
    show_default=True,
    help="Runs on each of the two data sets of a worst-case pair. More find smaller faults.",
)
@click.option(
    "--data",
    type=FILE,
    help="Replay on the records of this file instead of synthetic ones. Figures then depend on "
    "them: keep the report with the data.",
)
@seed_flag("all that the audit draws")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Start no further check after so many seconds. The rest is reported as NOT CHECKED.",
)
@click.option(
    "--one-table",
    "one_table",
    is_flag=True,
    help="Also audit fedvi.DPSVI and fedvi.VIPS, at the study's clip norm. No study runs them.",
)
@click.option(
    "--self-test",
    "self_test",
    is_flag=True,
    help="Also plant known faults in memory, one at a time, and show which of them this audit of this "
    "study finds. Takes minutes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@code_flags
def audit(
    study: Path,
    trials: int,
    data: Path | None,
    seed: int,
    seconds: float | None,
    one_table: bool,
    self_test: bool,
    as_json: bool,
) -> None:
    """Test whether the code that a study runs keeps its privacy promise. Reads no data unless --data
    names a file: records are made up within the bounds of the study's schema.

    \b
      fedvi audit examples/heart-disease/study.toml
      fedvi audit study.toml --trials 160000 --json
      fedvi audit study.toml --self-test --one-table

    \b
    price    computes charges and the stated ε a second time, with other code. Do
             ledgers stop at their budget?
    client   interrupts a client, sets it back, gives it another task. Is noise
             fresh? Does one release have one message? Are secrets erased?
    worst    searches for records, also outside the schema's bounds, that move a
             total most. Do they move it further than is charged?
    replay   runs each solver, for every client and planned visit, on data that
             differ in one record, with the same randomness. How far do totals
             move? Is anything but noised totals in a message or a public metric?
             Is the noise as charged, whatever the records? Are noise and batches
             fresh?
    sums     (view = "aggregate") Does the server show anything but sums, if
             answers come late or too few come?
    sampler  draws batches. Are they what the price assumes?
    profile  runs sampler, clip and noise on the worst pair of data sets,
             thousands of times. Do outputs tell them apart better than the
             claimed δ(ε) allows? One gap above 0 refutes the claim, with 99 %
             confidence.

    An audit finds faults and proves nothing: what it cannot see is in docs/audit.md.

    Exit codes: 0 nothing found, or nothing to audit; 1 a check failed, or the study's code raised an
    error; 2 the study is wrong. NOT CHECKED is no pass: `passed` is then null in the JSON, and the exit
    code is 0. Faults that a self-test does not find are listed, and change no exit code.
    """
    description = load_study(study)
    if not description.privacy.private:
        if as_json:
            nothing = _head(description, trials, seed) | {"passed": None, "findings": []}
            tables.print_json(nothing)
        else:
            click.echo(
                'nothing to audit: the study says protection = "none", so that every client sends '
                "statistics of its records without noise (ε = ∞)"
            )
        return
    assembly = build.assemble(description)
    until = None if seconds is None else time.monotonic() + seconds
    settings = Settings(trials, data, seed, one_table, until)
    found = list(Audited(assembly, settings).findings())
    failed = findings.has_failed(found)
    if not as_json:
        _show(assembly, found, failed)
    planted = _planted(description, assembly, settings, found, as_json) if self_test else None
    if as_json:
        report = _head(description, trials, seed) | {
            # Null where something could not be judged: that is no pass.
            "passed": False if failed else None if findings.unchecked(found) else True,
            "findings": [findings.as_dict(finding) for finding in found],
        }
        if planted is not None:
            report["self_test"] = planted
        # A gap of no finite number is a finding too.
        tables.print_json(report)
    if failed:
        sys.exit(1)


def _head(description: Any, trials: int, seed: int) -> dict[str, Any]:
    """What every audit's JSON begins with."""
    return {
        "study": description.study.name,
        "fedvi": __version__,
        "digest": description.digest,
        "trials": trials,
        "seed": seed,
    }


def _planted(
    description: Any, assembly: Assembly, settings: Settings, found: list[Finding], quiet: bool
) -> dict[str, Any]:
    """Plants faults and shows which are found; what the study cannot show is said beforehand."""
    missing = _self_test.lacking(assembly, settings)
    if not quiet:
        apart = [name for name, what in missing.items() if what]
        click.echo(
            f"\nself-test: {len(missing)} faults are planted in memory, one at a time. This study cannot "
            f"show {len(apart)} of them:"
        )
        for name in apart:
            click.echo(f"  {name}: {missing[name]}")
    outcomes = []
    for outcome in _self_test.self_test(description, settings, found):
        outcomes.append(outcome)
        if not quiet and not missing[outcome.fault]:
            word = {True: "found", False: "MISSED", None: "NOT TRIED"}[outcome.found]
            click.echo(f"{word} {outcome.fault}: {outcome.by} ({outcome.seconds:.1f} s)")
    told = _self_test.summary(outcomes)
    if not quiet:
        planted = told["found"] + len(told["missed"])
        click.echo(
            f"{told['found']} of {planted} planted faults were found; "
            f"{len(told['not_shown'])} were not tried. {_self_test.MEANING}"
            if planted
            else "no fault was tried: nothing is known of what this audit would find"
        )
    return told


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
    tables.say(lines)
