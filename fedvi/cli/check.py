"""`fedvi check STUDY.toml`: the plan of a study, before any data is read."""

import json
from pathlib import Path

import click

from fedvi.experiment.config import load_study
from fedvi.experiment.plan import Plan, plan
from fedvi.report import tables

__all__ = ["check"]


@click.command()
@click.argument("study", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def check(study: Path, as_json: bool) -> None:
    """Validate a study file and print its plan: what would be released, how often, with how much
    noise, at what cost per client, and how many numbers would leave. Reads no data.

    Calibrates the noise if the study leaves it out, exactly as a run would.
    """
    found = plan(load_study(study))
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2, allow_nan=False))
        return
    title = f"Plan of {found.study}" + (f" — {found.mark}" if found.mark else "")
    tables.console().print(tables.plan_table(_rows(found), title), crop=False)


def _rows(found: Plan) -> list[tuple[str, str]]:
    number = tables.number
    rows = [
        ("digest", found.digest[:16] + "…  (every site must print the same)"),
        ("model", found.model),
        ("coefficients", ", ".join(found.coefficients)),
        ("family of q", found.family),
        ("schedule", found.schedule),
        ("solver", found.solver),
        ("clients", ", ".join(found.clients)),
        (
            "leaves each client",
            f"{found.numbers_per_message} numbers a message, at most {found.messages_per_client} "
            f"messages: {found.numbers_per_message * found.messages_per_client} numbers",
        ),
    ]
    if found.noise_multiplier is not None:
        rows += [
            (
                "noised sums",
                f"{found.steps_per_message} a message, "
                f"{found.steps_per_message * found.messages_per_client} in all",
            ),
            (
                "noise",
                f"multiplier {number(found.noise_multiplier)} × clip norm {number(found.clip_norm)} "
                f"= std {number(found.noise_std)}",
            ),
            (
                "batches",
                f"sampling rate {number(found.sampling_rate)}, "
                f"at most {found.batch_capacity} records",
            ),
        ]
    if found.delta is None:
        rows.append(("privacy", "none: un-noised statistics leave every client (ε = ∞)"))
        return rows
    names = {"add_remove": "add/remove", "substitute": "substitute"}
    costs = [f"{tables.bound(found.epsilon[key])} under {names[key]}" for key in found.epsilon]
    return [
        *rows,
        ("promise", f"ε ≤ {found.budget_epsilon:g} under {found.relation}, δ = {found.delta:g}"),
        (
            "cost per client",
            f"ε {', '.join(costs)}, at δ = {found.delta:g}",
        ),
        ("unit, view", f"{found.unit}, message (whoever sees every message)"),
        ("accountant", found.accountant),
    ]
