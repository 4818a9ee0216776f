"""`fedvi privacy STUDY.toml`: what a promise asks for, and what it means."""

import decimal
import math
from collections.abc import Iterator
from pathlib import Path

import click

from fedvi.cli import _outlook
from fedvi.cli._flags import FILE, code_flags, plot_flag
from fedvi.cli._outputs import check_new
from fedvi.planning.advice import outlook
from fedvi.planning.pricing import Pricing, pricing, with_target
from fedvi.planning.topics import topic_outlook
from fedvi.privacy.events import RELATIONS
from fedvi.privacy.statement import guessed
from fedvi.report import plots, tables
from fedvi.study.build import assemble
from fedvi.study.config import load_study
from fedvi.study.spec import shared_parts

__all__ = ["privacy"]


@click.command()
@click.argument("study", type=FILE)
@click.option("--epsilon", type=float, help="Promise this ε instead of the study's.")
@click.option("--delta", type=float, help="Promise this δ instead of the study's.")
@click.option(
    "--relation", type=click.Choice(RELATIONS), help="Promise this relation instead of the study's."
)
@click.option(
    "--rounds",
    type=int,
    help="Plan this many rounds instead of the study's; for a scripted schedule, this many turns of each "
    "client, over all stages.",
)
@click.option(
    "--historical",
    is_flag=True,
    help="Also print and draw the ε of formulas of older papers and tools, which is no guarantee.",
)
@plot_flag("ε over rounds")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@code_flags
def privacy(
    study: Path,
    epsilon: float | None,
    delta: float | None,
    relation: str | None,
    rounds: int | None,
    historical: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Price a study before it runs: the noise that its promise needs, ε by every accountant, the noise for
    other samplers and relations, which mode suits it, and what the numbers mean in words. Reads no data.

    \b
      fedvi privacy study.toml
      fedvi privacy study.toml --epsilon 1                     # stronger promise
      fedvi privacy study.toml --rounds 50 --plot epsilon.png  # longer study

    The relation says which two data sets must be hard to tell apart. `add_remove`: with and without one
    unit, such as a record. `substitute`: with one unit replaced by any other. The same noise costs more
    under `substitute`, which also hides what a unit's data say from somebody who knows that they are there.
    """
    check_new("--plot", plot)
    loaded = load_study(study)
    described = with_target(loaded, epsilon, delta, relation, rounds)
    assembly = assemble(described)
    found, expected = pricing(assembly, with_historical=historical), outlook(assembly)
    topics = topic_outlook(assembly)
    if plot is not None:
        _plot(found, plot)
    if as_json:
        plain = found.as_dict() | {"outlook": expected and expected.as_dict()}
        plain |= {"topics": topics and topics.as_dict()}
        tables.print_json(plain)
        return
    _show(found, shared_parts.is_scripted(loaded))
    if expected is not None:
        _outlook.show(expected)
    if topics is not None:
        _outlook.show_topics(topics)
    if plot is not None:
        click.echo(f"drawn to {plot}")


def _plot(found: Pricing, path: Path) -> None:
    names = found.growth[0].epsilon
    plots.epsilon_over_rounds(
        [row.rounds for row in found.growth],
        {name: [row.epsilon[name] for row in found.growth] for name in names},
        found.epsilon,
        f"{found.study}: {tables.relation_words(found.relation)}, δ = {found.delta:g}"
        + (f" — {found.mark}" if found.mark else ""),
        path,
    )


def _show(found: Pricing, scripted: bool) -> None:
    console = tables.console()
    mark = f" — {found.mark}" if found.mark else ""
    console.print(
        tables.plan_table(list(_rows(found, scripted)), f"Promise of {found.study}{mark}")
    )
    cells = [
        [
            row.accountant + (" (stated)" if row.stated else ""),
            tables.relation_words(row.relation),
            "not offered" if row.epsilon is None else tables.bound(row.epsilon),
            row.label
            or ("upper bound" if not row.least else f"upper bound; at least {_down(row.least)}"),
        ]
        for row in found.prices
    ]
    names = ["accountant", "relation", "ε", "what it is"]
    title = f"ε of all {found.rounds} rounds per client at δ = {found.delta:g}{mark}"
    console.print(tables.grid(names, cells, title, ("accountant", "relation", "what it is")))
    known = [name for name in found.growth[0].epsilon if found.growth[-1].epsilon[name] is not None]
    lines = [
        [str(row.rounds), *(tables.bound(row.epsilon[name]) for name in known)]
        for row in found.growth
    ]
    title = f"ε over rounds, {tables.relation_words(found.relation)}"
    console.print(tables.grid(["rounds", *known], lines, title, ()))
    if found.alternatives:
        cells = [
            [
                row.sampler + (" (this study)" if row.current else ""),
                tables.relation_words(row.relation),
                row.reason or tables.number(row.noise_multiplier),
            ]
            for row in found.alternatives
        ]
        title = f"Noise multiplier for ε = {found.epsilon:g}, were the study written otherwise"
        names = ["sampler", "relation", "noise multiplier"]
        console.print(tables.grid(names, cells, title, ("sampler", "relation")))
    if found.views:
        cells = [
            [row.view, tables.number(row.noise_multiplier), row.reason or "this study"]
            for row in found.views
        ]
        title = "Noise multiplier of each client for the same promise, by who sees what"
        names = ["view", "noise multiplier", "offered"]
        console.print(tables.grid(names, cells, title, ("view", "offered")))
    tables.say(_words(found))


def _rows(found: Pricing, scripted: bool) -> Iterator[tuple[str, str]]:
    yield (
        "promise",
        f"ε ≤ {found.epsilon:g}, δ = {found.delta:g}, unit {found.unit}, relation "
        f"{tables.relation_words(found.relation)}, view {found.view}",
    )
    if found.noise_multiplier is not None:
        std = f" = std {tables.number(found.noise_multiplier * (found.clip_norm or math.nan))}"
        yield (
            "noise",
            f"multiplier {tables.number(found.noise_multiplier)} × clip norm "
            f"{tables.number(found.clip_norm)}{std} on every noised sum",
        )
    of = " of a client at most, over all stages of the script" if scripted else ""
    yield "plan", f"{found.rounds} rounds{of}, {found.clients} clients"


def _words(found: Pricing) -> Iterator[str]:
    yield from (f"warning: {line}" for line in found.warnings)
    sees = "every message" if found.view == "message" else "all sums that are published"
    known = "what all other clients hold" if found.unit == "client" else "every other record"
    yield f"What it means, for someone who knows {known} and sees {sees}:"
    for row in found.meanings:
        guess = guessed(row.relation, found.unit)
        yield (
            f"- asked {guess}, both answers equally likely beforehand, they are right at most "
            f"{_percent(row.right)} of the time; if they wrongly accuse 1 % of those who did not take "
            f"part, they find at most {_percent(row.found)} of those who did"
        )
    yield (
        "These bounds hold for every attack and help in choosing; the promise is (ε, δ). The view "
        "`message` assumes that every message is seen; `aggregate`, that only the sum is seen; "
        "`secure_aggregate`, that all clients but two work with whoever sees the sum."
    )


def _down(value: float) -> str:
    """Formats a lower bound: rounded down, so that what is printed still holds."""
    exact = decimal.Context(prec=4, rounding=decimal.ROUND_FLOOR).create_decimal(repr(value))
    return tables.number(float(exact))


def _percent(value: float) -> str:
    return f"{math.ceil(value * 1000) / 10:g} %"
