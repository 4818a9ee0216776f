"""Claims about a whole client as privacy unit: its price, what is refused, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedvi import errors
from fedvi.client.policy import parse_policy
from fedvi.inference import solvers
from fedvi.planning.advice import outlook
from fedvi.privacy import caveats, events, statement
from fedvi.privacy.accountants import pld
from fedvi.privacy.mechanisms import rounded_gaussian
from fedvi.study import build
from fedvi.study.config import load_study, parse_study
from tests.commands import invoked as fedvi
from tests.sites import study_file
from tests.studies import raw_study, run_study, synthetic_logistic

NAMES = ["north", "east", "south"]
PROMISE = {"epsilon": 4.0, "delta": 1e-5, "unit": "client", "relation": "add_remove"}
SOLVER = {"kind": "perturbed_update", "clip_norm": 2.0}


def raw(solver: dict[str, Any] | None = None, **privacy: Any) -> dict[str, Any]:
    found = raw_study(
        NAMES,
        2,
        kind="logistic",
        solver={**SOLVER, **(solver or {})},
        schedule={"kind": "synchronous", "rounds": 2},
        privacy={**PROMISE, **privacy},
    )
    found["data"]["max_records"] = 40
    return found


def assembled(**changes: Any) -> build.Assembly:
    return build.assemble(parse_study(raw(**changes)))


@pytest.mark.nightly
def test_the_audit_tries_neighbours_that_differ_in_a_whole_client(tmp_path: Path) -> None:
    """Planted prices that are too small are in `tests/unit/audit/test_replay_of_parts.py`."""
    study = study_file(tmp_path, solver=SOLVER, privacy=PROMISE, rounds=2)
    arguments = ("audit", study, "--trials", "2000", "--json")
    honest = {row["check"]: row["passed"] for row in audited(*arguments)}
    assert honest["one client's data added or removed"] is True
    assert honest["one client's data substituted"] is True
    assert False not in honest.values()


def audited(*arguments: object) -> Any:
    done = fedvi(*arguments)
    return json.loads(done.stdout)["findings"]


# The price.


@pytest.mark.parametrize("clean", [False, True])
def test_a_visit_is_priced_as_the_view_of_messages_has_it_for_a_client(clean: bool) -> None:
    """A client: C to take away, 2C to substitute. A record turns the whole clipped change: 2C."""
    found = assembled(solver={"clean_factor": clean, "noise_multiplier": 8.0})
    expected = events.Gaussian(8.0, add_remove=1.0, substitute=2.0)
    assert found.solvers["north"].cost == expected
    assert found.planned == events.repeat(expected, 2)
    record = assembled(solver={"clean_factor": clean, "noise_multiplier": 8.0}, unit="record")
    assert record.solvers["north"].cost == events.Gaussian(8.0, 2.0, 2.0)


def test_no_key_of_a_study_gives_a_record_the_price_of_a_client() -> None:
    for unit in ("record", "client"):
        with pytest.raises(errors.ConfigError, match=r"solver\.unit: not a key of a study"):
            assembled(unit=unit, solver={"unit": "client"})
    made, mechanism = assembled(), rounded_gaussian(2.0)
    with pytest.raises(
        errors.SolverError, match=r"unit is 'patient', expected 'record' or 'client'"
    ):
        solvers.perturbed_update(made.family, made.model, made.sampler, mechanism, unit="patient")


def test_half_the_noise_takes_a_client_away_and_as_much_puts_another_in_its_place() -> None:
    away, record = assembled(), assembled(unit="record")
    assert away.noise_multiplier is not None
    assert record.noise_multiplier == pytest.approx(2.0 * away.noise_multiplier, rel=1e-3)
    other, another = (assembled(unit=u, relation="substitute") for u in ("client", "record"))
    assert other.noise_multiplier == another.noise_multiplier
    assert pld("add_remove").epsilon(away.planned, 1e-5) <= 4.0


def test_sums_over_clients_hide_whole_clients_too() -> None:
    privacy = {"view": "aggregate", "least_reporting": 3, "colluding": 1}
    found = assembled(solver={"clean_factor": True}, **privacy)
    single = assembled(solver={"clean_factor": True})
    assert found.noise_multiplier is not None
    assert single.noise_multiplier == pytest.approx(2**0.5 * found.noise_multiplier, rel=1e-3)


# What is refused.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"solver": {"kind": "local_averaging", "clip_norm": 1.0}},
            r"^solver\.kind is 'local_averaging' beside privacy\.unit = \"client\"",
        ),
        (
            {"solver": {"kind": "perturbed_update_of_mine"}},
            r"^solver\.kind is 'perturbed_update_of_mine' beside",
        ),
        ({"data": {"unit_column": "who"}}, r"^data\.unit_column is 'who' beside"),
        (
            {"privacy": {"records_public": True, "relation": "substitute"}},
            r"^privacy\.records_public is true beside",
        ),
        ({"privacy": {"disjoint": False}}, r"^privacy\.disjoint is false beside"),
    ],
)
def test_what_protects_no_whole_client_is_refused(change: dict[str, Any], message: str) -> None:
    given = raw()
    for section, keys in change.items():
        given[section] = keys if section == "solver" else {**given[section], **keys}
    with pytest.raises(errors.ConfigError, match=message) as found:
        parse_study(given)
    assert found.value.hint


def test_a_policy_allows_whole_clients_where_it_says_so_alone() -> None:
    """Their price may be none of a record's, which a site that says nothing wants protected."""
    request = assembled().request
    run = {"epsilon": 9.0, "delta": 1e-5}
    with pytest.raises(errors.PolicyRefused, match=r"unit 'client' is not allowed"):
        parse_policy({"run": run}).check(request)
    parse_policy({"run": run, "allow": {"units": ["client"]}}).check(request)
    life = {"epsilon": 9.0, "delta": 1e-5, "relation": "add_remove"}
    allow = {"units": ["record", "client"]}
    with pytest.raises(
        errors.PolicyRefused, match=r"unit 'client' cannot be charged to the lifetime"
    ):
        parse_policy({"run": run, "allow": allow, "life": life}).check(request)
    parse_policy({"run": run, "allow": allow, "life": {**life, "unit": "client"}}).check(request)


def test_other_modes_are_not_offered_for_a_client() -> None:
    found = outlook(assembled())
    assert found is not None
    for mode in found.modes:
        assert mode.current or (mode.noise_multiplier, mode.note) == (
            None,
            "protects records, and no client as a whole",
        )


# What is said.


def test_a_claim_says_that_data_sets_differ_in_all_that_one_client_holds() -> None:
    sources = synthetic_logistic(3, 30, 2)
    given = raw() | {"clients": [{"name": name} for name in sources]}
    result = run_study(given, sources)
    text = statement.to_text(result.consortium)
    assert "with and without everything that one client holds" in text
    assert "or with any other records in its place" in text
    assert "no site holds more than 40 records" in text
    assert caveats.EACH_ITS_OWN in text
    assert caveats.WHOLE_CLIENTS in text
    assert caveats.SURPLUS not in text
    assert {claim.unit for claim in result.consortium} == {"client"}
    # Each is a unit of its own: the largest price, and no sum of them.
    each = {claim.relation: claim.epsilon for claim in result.sites[0].claims}
    assert {claim.relation: claim.epsilon for claim in result.consortium} == each
    assert each["add_remove"] <= 4.0 < each["substitute"]
    assert result.ledgers["c0"].header.unit == "client"
    assert result.ledgers["c0"].header.disjoint


def test_the_neighbours_of_a_record_are_described_as_they_were() -> None:
    assert statement.neighbours("substitute", "record") == (
        "the data of a site with one record or with another in its place"
    )


@pytest.mark.nightly
def test_every_command_says_that_a_client_is_protected(tmp_path: Path) -> None:
    study = study_file(
        tmp_path,
        solver=SOLVER,
        privacy={**PROMISE, "relation": "substitute"},
        rounds=2,
    )
    assert load_study(study).privacy.disjoint
    checked = " ".join(fedvi("check", study).stdout.split())
    assert "if one client is replaced by another" in checked
    assert "at most 30 records" in checked
    priced = fedvi("privacy", study)
    assert "which of two known data sets a given client holds" in " ".join(priced.stdout.split())
    run = tmp_path / "run"
    assert fedvi("simulate", study, "--quiet", "--out", run).exit_code == 0
    verified = fedvi("ledger", "verify", run, "--recompute")
    assert verified.exit_code == 0, verified.output
    shown = fedvi("ledger", "show", run / "ledger/north.jsonl")
    assert "client, substitute, message" in " ".join(shown.stdout.split())
    assert fedvi("report", run, "--format", "md").exit_code == 0
    (page,) = run.rglob("*.md")
    told = " ".join(page.read_text().split())
    assert "any other records in its place" in told
    assert "30 clients" not in told
    content = json.loads((run / "result.json").read_text())
    assert {row["unit"] for row in content["consortium"]} == {"client"}
