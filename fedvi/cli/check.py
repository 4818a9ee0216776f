"""`fedvi check STUDY.toml`: the plan of a study, before any data is read."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fedvi import errors
from fedvi.cli import _outlook
from fedvi.cli._flags import FILE, allow_code_flag, policy_of_site
from fedvi.client.policy import load_policy
from fedvi.data.line_numbers import with_lines
from fedvi.planning.advice import outlook
from fedvi.planning.plan import Plan, plan
from fedvi.planning.priors import quarrels
from fedvi.planning.topics import topic_outlook
from fedvi.planning.widths import why_not
from fedvi.privacy import accountants, joint_claims, ledger, statement
from fedvi.report import tables
from fedvi.study.build import Assembly, assemble
from fedvi.study.config import load_study
from fedvi.study.policies import check_code
from fedvi.study.spec import regressions
from fedvi.study.spec.coefficients import prior_words

__all__ = ["check"]


@click.command()
@click.argument("study", type=FILE)
@policy_of_site("Also check the study against a site's own policy (TOML).")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@allow_code_flag
def check(study: Path, policy: Path | None, as_json: bool) -> None:
    """Validate a study file and print its plan: what would be released, how often, with how much
    noise, at what cost per client, and how many numbers would leave. Reads no data.

    \b
      fedvi check examples/heart-disease/study.toml
      fedvi check study.toml --policy policy.toml

    If the study leaves out the noise, it is calibrated as in a run. The cost is printed under both
    relations: add/remove (with or without one unit) and substitute (one unit replaced by another). "not
    offered" means that the plan has no price under that relation. [privacy] unit says what is protected:
    a record (a row), a patient with all rows, or a client with all its records.

    data.max_records is the most records (or patients) that any site may hold; of a site with more, only
    the first are used. Take it from the protocol or a register, not from a count of a file, and rather
    too large than too small: a larger number costs time alone.

    For a private study, it also prints the signal-to-noise ratio of each private mode, and recommends
    one. If the study does not declare that no unit is at two clients, it also prints what all clients
    cost together. `fedvi privacy` explains the numbers further.
    """
    described = load_study(study)
    judge = {} if policy is None else {"": load_policy(policy)}
    check_code(judge, described)
    try:
        assembly = assemble(described)
    except errors.ConfigError as error:
        raise with_lines(error, study.read_text(encoding="utf-8-sig")) from error
    for rules in judge.values():
        rules.check(assembly.request)
    found, expected, topics = plan(assembly), outlook(assembly), topic_outlook(assembly)
    if as_json:
        plain = found.as_dict() | {"formula": assembly.study.formula}
        plain |= {"prior_sd": prior_words(assembly.study)}
        plain |= {"outlook": expected and expected.as_dict()}
        plain |= {"topics": topics and topics.as_dict()}
        together = map(statement.as_dict, _together(assembly))
        plain["together"] = [{name: claim[name] for name in _TOGETHER} for claim in together]
        tables.print_json(plain)
        return
    title = f"Plan of {found.study}" + (f" — {found.mark}" if found.mark else "")
    tables.console().print(tables.plan_table(_rows(found, assembly), title), crop=False)
    if expected is not None:
        _outlook.show(expected)
    if topics is not None:
        _outlook.show_topics(topics)
    if not why_not(assembly):
        # A protocol asks for widths of intervals; a ratio of signal to noise does not give them.
        # On a line of its own, where no terminal is too narrow for what is to be copied.
        click.echo("for widths of intervals, and the sample size that an effect needs:")
        click.echo(f"  fedvi plan {study}")
    # `show` printed those of the noise beside the modes.
    for warning in (*found.warnings, *quarrels(assembly)):
        click.echo(f"warning: {warning}", err=True)
    if policy is not None:
        click.echo(f"the policy {policy} admits this study, as far as its own caps go")


def _curves(assembly: Assembly) -> list[str]:
    """Lists the splines of a formula with their knots and bounds, defaults included."""
    terms = () if assembly.design is None else assembly.design.terms
    factors = dict.fromkeys(factor for term in terms for factor in term)
    return [factor for factor in factors if "lower_bound=" in factor]


def _rows(found: Plan, assembly: Assembly) -> list[tuple[str, str]]:
    """Lists what is promised, then what leaves a site, then what is fitted and with which noise."""
    return [*_promised(found, assembly), *_fitted(found, assembly), *_noised(found)]


def _promised(found: Plan, assembly: Assembly) -> Iterator[tuple[str, str]]:
    if found.delta is None:
        yield "promise", "none: un-noised statistics leave every client (ε = ∞)"
    else:
        unit = "record" if found.unit is None else found.unit
        yield (
            "promise",
            f"ε ≤ {found.budget_epsilon:g} at δ = {found.delta:g}, if one {unit} is "
            f"{_CHANGES[str(found.relation)]} ({found.relation})",
        )
        yield "against", f"{_seen(assembly, found.view)} (view {found.view})"
        if found.rows_per_unit is not None:
            most = found.rows_per_unit
            rows = (
                "one row of each" if most == 1 else f"at most {most} rows of each, clipped together"
            )
            yield "unit", f"{unit}: {rows}"
            if question := regressions.question(assembly.study):
                yield "question", question
        yield "cost per client", f"ε {_costs(found.epsilon)}, at δ = {found.delta:g}"
        yield from _of_all(assembly)
        accountant = found.accountant
        if found.epsilon_rdp and accountant != "rdp":
            accountant += f" (rdp, looser, has ε {_costs(found.epsilon_rdp)})"
        yield "accountant", accountant
    yield (
        "leaves each client",
        f"{found.numbers_per_message} numbers a message, at most {found.messages_per_client} "
        f"messages: {found.numbers_per_message * found.messages_per_client} numbers",
    )
    yield "clients", _listed(found.clients)
    yield "digest", found.digest[:16] + "…  (every site must print the same)"


def _fitted(found: Plan, assembly: Assembly) -> Iterator[tuple[str, str]]:
    yield "model", found.model
    formula, curves = assembly.study.formula, _curves(assembly)
    if formula is not None:
        yield "formula", formula
    if curves:
        yield "curves", "; ".join(curves)
    yield "coefficients", _listed(found.coefficients)
    if assembly.study.prior is not None:
        yield "prior sd", f"{prior_words(assembly.study)}, of a coefficient"
    yield "family of q", found.family
    yield "schedule", found.schedule
    yield "solver", found.solver


def _noised(found: Plan) -> Iterator[tuple[str, str]]:
    if found.noise_multiplier is None:
        return
    number = tables.number
    # A client's capacity counts records, whatever the unit of privacy is.
    units = "records" if found.unit in (None, "client") else f"{found.unit}s"
    full = found.sampling_rate == 1.0
    most = " (data.max_records); of a site with more, only the first are used" if full else ""
    yield (
        "noised sums",
        f"{found.steps_per_message} a message, "
        f"{found.steps_per_message * found.messages_per_client} in all",
    )
    yield (
        "noise",
        f"multiplier {number(found.noise_multiplier)} × clip norm {number(found.clip_norm)} "
        f"= std {number(found.noise_std)}",
    )
    yield from _clip_norm(found)
    yield (
        "batches",
        f"sampling rate {number(found.sampling_rate)}, at most {found.batch_capacity} {units}{most}",
    )


def _clip_norm(found: Plan) -> Iterator[tuple[str, str]]:
    """Says what "auto" means in this plan."""
    if found.survey:
        yield (
            "first answers",
            "sums of the columns and of their squares, which cost what any other answer costs; the server "
            "centres and scales the columns by them, so that a clip norm of 1 fits",
        )
    elif found.clip_norm_auto:
        yield (
            "clip norm",
            "found from the declared columns: a first release of the columns' sums would say too little "
            "here, or the model has no use for one",
        )


def _together(assembly: Assembly) -> tuple[statement.Claim, ...]:
    """Prices all clients together, as a run will; empty where that is the price of one client."""
    privacy = assembly.study.privacy
    if privacy.promise is None or privacy.disjoint or len(assembly.clients) < 2:
        return ()
    book = ledger.open_ledger(assembly.header(assembly.clients[0]))
    priced = [getattr(accountants, privacy.accountant)(name) for name in assembly.relations]
    each = statement.claims(book, assembly.planned, privacy.promise.delta, priced)
    parts = [claim._replace(client=name) for name in assembly.clients for claim in each]
    return joint_claims.consortium(parts, privacy.disjoint)


def _of_all(assembly: Assembly) -> Iterator[tuple[str, str]]:
    """Says what all clients cost together, where that is more than one of them."""
    claims = _together(assembly)
    if not claims:
        return
    prices = ", ".join(
        f"{tables.bound(claim.epsilon)} under {tables.relation_words(claim.relation)}"
        for claim in claims
        if claim.view == claims[0].view
    )
    yield (
        f"cost of all {len(assembly.clients)} clients",
        f"ε {prices}, at δ = {tables.bound(claims[0].delta)}: one person may have a "
        f"{claims[0].unit} at every client, since the study does not declare `disjoint`, so the answers of "
        "all clients are priced together",
    )


_CHANGES = {
    "add_remove": "added or removed",
    "substitute": "replaced by another",
}

_TOGETHER = ("relation", "view", "epsilon", "delta")

_SEEN = {
    "message": "anybody who sees every message, the server too",
    "aggregate": "anybody who sees what is published, sums over clients; the server itself is trusted",
}
_MASKED = (
    "anybody who sees all that leaves a site, the server too, and works with {colluding} of the "
    "sites; masks hide all but one sum of a round"
)


def _seen(assembly: Assembly, view: str) -> str:
    sums = assembly.study.sums
    if sums is not None and assembly.study.aggregation.secure:
        return _MASKED.format(colluding=f"at most {sums.colluding}" if sums.colluding else "none")
    return _SEEN[view]


# So many names fit on a screen: a topic model has thousands of coefficients, a simulation of clients.
_MOST_NAMES = 30


def _listed(names: Sequence[str]) -> str:
    left = len(names) - _MOST_NAMES
    rest = f", … and {left} more (--json lists all)" if left > 0 else ""
    return ", ".join(names[:_MOST_NAMES]) + rest


def _costs(prices: dict[str, float | None]) -> str:
    return ", ".join(
        f"{'not offered' if price is None else tables.bound(price)} under {tables.relation_words(name)}"
        for name, price in prices.items()
    )
