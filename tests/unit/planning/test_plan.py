"""Claims about the plan of a study: its numbers are those of a run, and no file is opened for it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedvi.cli.main import main
from fedvi.errors import ConfigError
from fedvi.planning.plan import Plan, plan
from fedvi.planning.widths import widths
from fedvi.privacy import accountants, events
from fedvi.study.config import load_study, parse_study
from tests.studies import raw_study

ROOT = Path(__file__).resolve().parents[3]
SIGMA, STEPS, ROUNDS, DELTA = 20.0, 3, 4, 1e-5


def raw_private(**privacy: Any) -> dict[str, Any]:
    raw = raw_study(["north", "south"], 2)
    raw["solver"] = {
        "kind": "dp_optimisation",
        "steps": STEPS,
        "clip_norm": 2.0,
        "noise_multiplier": SIGMA,
    }
    raw["schedule"] = {"kind": "synchronous", "rounds": ROUNDS}
    raw["privacy"] = {"epsilon": 2.0, "delta": DELTA, "unit": "record", "relation": "substitute"}
    raw["privacy"] |= {"mechanism": "gaussian"} | privacy
    raw["data"]["max_records"] = 50
    for name in ("x0", "x1"):
        raw["data"]["schema"][name]["bounds"] = [-20, 20]
    for client in raw["clients"]:
        client["data"] = "there/is/no/such.csv"
    return raw


@pytest.fixture(scope="module")
def private() -> Plan:
    return plan(parse_study(raw_private()))


def test_traffic_is_counted_from_family_and_schedule(private: Plan) -> None:
    # The full Gaussian in two dimensions: 2 means and 3 entries of a symmetric matrix.
    assert private.numbers_per_message == 5
    assert private.messages_per_client == ROUNDS
    assert private.steps_per_message == STEPS
    assert private.clients == ("north", "south")
    assert private.coefficients == ("x0", "x1")


def test_noise_is_measured_in_clip_norms(private: Plan) -> None:
    assert private.noise_multiplier == SIGMA
    assert private.noise_std == SIGMA * 2.0
    assert private.sampling_rate == 1.0
    assert private.batch_capacity == 50


def test_the_price_is_that_of_all_noised_sums_under_both_relations(private: Plan) -> None:
    sums = events.repeat(events.Gaussian(SIGMA, 1.0, 2.0), STEPS * ROUNDS)
    assert private.epsilon == {
        relation: accountants.pld(relation).epsilon(sums, DELTA) for relation in events.RELATIONS
    }
    # Substituting moves a sum twice as far as removing does.
    assert private.epsilon["add_remove"] < private.epsilon["substitute"] < 2.0


def test_the_price_by_renyi_accounting_stands_beside_and_is_looser(private: Plan) -> None:
    for relation, price in private.epsilon.items():
        beside = private.epsilon_rdp[relation]
        assert price is not None
        assert beside is not None
        assert price < beside < 2 * price
    assert plan(parse_study(raw_study(["c"], 2))).epsilon_rdp == {}


def checked(tmp_path: Path, **privacy: Any) -> Any:
    """Runs `fedvi check` on the private study."""
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw_private(**privacy)))
    return CliRunner().invoke(main, ["check", str(path)])


def test_check_prints_both_relations_the_accountant_and_rdp_beside(
    tmp_path: Path, private: Plan
) -> None:
    done = checked(tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    for word in ("under add/remove", "under substitute", "pld", "(rdp, looser, has ε ", "ε ≤ 2"):
        assert word in done.stdout
    assert "looser" not in checked(tmp_path, accountant="rdp").stdout


def test_check_says_what_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supports = type(accountants.pld("add_remove")).supports
    monkeypatch.setattr(
        type(accountants.pld("add_remove")),
        "supports",
        lambda self, event: self.relation == "substitute" and supports(self, event),
    )
    assert "ε not offered under add/remove, " in checked(tmp_path).stdout


def test_check_warns_of_a_delta_that_means_little(tmp_path: Path) -> None:
    done = checked(tmp_path, delta=0.1)
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: privacy.delta is 0.1, not below 1 / data.max_records")


def test_a_published_number_of_records_is_priced_under_substitution_alone(private: Plan) -> None:
    public = plan(parse_study(raw_private(records_public=True)))
    assert public.epsilon == {"substitute": private.epsilon["substitute"]}


def test_without_protection_the_price_is_infinite_and_nothing_is_noised() -> None:
    found = plan(parse_study(raw_study(["c"], 2)))
    assert found.epsilon == {"add_remove": math.inf, "substitute": math.inf}
    assert (found.noise_multiplier, found.noise_std, found.steps_per_message) == (None, None, 0)
    assert (found.budget_epsilon, found.delta, found.relation, found.mark) == (None, None, None, "")


def test_a_patient_s_rows_are_bounded_and_shown() -> None:
    raw = raw_private(unit="patient")
    raw["data"].update(unit_column="patient_id", max_rows_per_unit=7)
    found = plan(parse_study(raw))
    assert (found.unit, found.rows_per_unit) == ("patient", 7)
    # The same noise, clip and steps cost the same, whatever a unit is.
    assert found.epsilon == plan(parse_study(raw_private())).epsilon


def test_warnings_are_part_of_the_plan(private: Plan) -> None:
    assert private.warnings == ()
    warned = plan(parse_study(raw_private(delta=0.1)))
    assert len(warned.warnings) == 1
    assert warned.as_dict()["warnings"] == list(warned.warnings)


def test_a_plan_is_json_without_infinity() -> None:
    for raw in (raw_private(), raw_study(["c"], 2)):
        found = plan(parse_study(raw))
        text = json.dumps(found.as_dict(), allow_nan=False)
        again = json.loads(text)
        assert again["digest"] == parse_study(raw).digest
        assert again["epsilon"] == {
            name: "inf" if math.isinf(value) else value for name, value in found.epsilon.items()
        }


def test_a_plan_has_the_widths_that_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    built = plan(load_study(ROOT / "examples" / "trauma" / "study.toml"))
    rows = {row.name: row for row in built.widths().rows}
    assert rows["age"].sd == pytest.approx(widths(built.assembly).rows[2].sd)
    monkeypatch.setattr("fedvi.planning.plan.widths", None)  # computed once
    text, html = built.summary().text(120), built._repr_html_()
    assert all("± 95 %" in said and "smallest odds ratio" in said for said in (text, html))
    # Beside its number, a guess has a mark, and the columns that it is of are named.
    assert (
        "≥: a guess, since the study does not say how mortality, sex, age, ISS, GCS"
        in text.replace("\n  ", " ")
    )
    assert built.as_dict().keys().isdisjoint({"assembly", "widths"})


def test_a_plan_without_widths_says_why_and_is_shown_without_them(private: Plan) -> None:
    with pytest.raises(ConfigError, match="the intervals of solver dp_optimisation cannot"):
        private.widths()
    assert "± 95 %" not in private.summary().text(120)
