"""Claims about study files: what they may say, and how each mistake in one is reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedvi.errors import ConfigError
from fedvi.study.config import Study, load_study, parse_study
from tests.studies import raw_study


def raw_private() -> dict[str, Any]:
    """The tables of a private study of two clients."""
    raw = raw_study(["north", "south"], 1, solver={"kind": "dp_optimisation"})
    raw["privacy"] = {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
    raw["data"]["max_records"] = 20
    return raw


def changed(change: Callable[[dict[str, Any]], object]) -> Study:
    """The private study after one change of its tables."""
    raw = json.loads(json.dumps(raw_private()))
    change(raw)
    return parse_study(raw)


def by_patient(raw: dict[str, Any], **data: Any) -> None:
    raw["privacy"]["unit"] = "patient"
    raw["data"].update(unit_column="patient_id", **data)


def refusal(change: Callable[[dict[str, Any]], object]) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        changed(change)
    assert error.value.hint
    return error.value


# What is accepted


def test_defaults_are_a_full_gaussian_and_no_simulation_settings() -> None:
    study = parse_study(raw_private() | {"family": {"kind": "full_gaussian"}})
    without = raw_private()
    del without["family"]
    assert parse_study(without) == study
    assert study.simulation.insecure_seed is None


def test_a_promise_exists_exactly_where_a_study_is_private() -> None:
    promise = parse_study(raw_private()).privacy.promise
    assert promise == (1.0, 1e-5, "record", "substitute")
    assert parse_study(raw_study(["c"], 1)).privacy.promise is None


def test_a_study_cannot_be_changed_after_it_was_read() -> None:
    study = parse_study(raw_private())
    with pytest.raises(ValueError, match="frozen"):
        study.privacy.epsilon = 100.0  # type: ignore[misc]


# The digest


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["clients"][0].update(data="elsewhere.csv"),
        lambda raw: raw["clients"][0].update(latency_seconds=9.0),
        lambda raw: raw.update(simulation={"latency_jitter": 0.5}),
    ],
    ids=["data path", "latency", "simulation"],
)
def test_the_digest_ignores_what_is_local(change: Callable[[dict[str, Any]], object]) -> None:
    assert changed(change).digest == parse_study(raw_private()).digest


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["study"].update(seed=4),
        lambda raw: raw["model"].update(formula="y ~ x0"),
        lambda raw: raw["prior"].update(scale=2.0),
        lambda raw: raw["solver"].update(clip_norm=2.0),
        lambda raw: raw["schedule"].update(rounds=2),
        lambda raw: raw["privacy"].update(epsilon=2.0),
        lambda raw: raw["privacy"].update(records_public=True),
        lambda raw: raw["data"].update(max_records=21),
        lambda raw: by_patient(raw),
        lambda raw: by_patient(raw, max_rows_per_unit=3),
        lambda raw: raw["data"]["schema"]["x0"].update(bounds=[0, 1]),
        lambda raw: raw["clients"].append({"name": "east"}),
        lambda raw: raw["clients"].reverse(),
    ],
    ids=[
        *("seed", "formula", "prior", "solver", "rounds", "epsilon", "public", "max_records"),
        *("unit", "rows of a unit", "bounds", "one more client", "order of clients"),
    ],
)
def test_the_digest_changes_with_all_that_sites_agree_on(
    change: Callable[[dict[str, Any]], object],
) -> None:
    assert changed(change).digest != parse_study(raw_private()).digest


def test_the_digest_does_not_depend_on_the_order_of_keys_and_sections() -> None:
    raw = raw_private()
    turned = {name: raw[name] for name in reversed(raw)}
    turned["privacy"] = dict(reversed(turned["privacy"].items()))
    assert parse_study(turned).digest == parse_study(raw).digest


def test_a_study_survives_json_with_infinity_in_it() -> None:
    study = changed(lambda raw: raw["solver"].update(clip_norm=float("inf")))
    text = json.dumps(study.as_dict(), allow_nan=False)
    again = parse_study(json.loads(text))
    assert again.digest == study.digest
    assert again.solver.arguments["clip_norm"] == "Infinity"  # the builder reads it as inf


# What is refused


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ("study", "sed", "seed"),
        ("prior", "scal", "scale"),
        ("privacy", "epsilom", "epsilon"),
        ("data", "max_record", "max_records"),
        ("simulation", "insecure_sed", "insecure_seed"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(section: str, key: str, near: str) -> None:
    error = refusal(lambda raw: raw.setdefault(section, {}).update({key: 1}))
    assert error.message == f"{section}.{key}: unknown key"
    assert error.hint.startswith(f"did you mean `{near}`? known: ")


def test_an_unknown_key_of_a_client_is_named_with_its_place() -> None:
    error = refusal(lambda raw: raw["clients"][1].update(dat="x.csv"))
    assert error.message == "clients[1].dat: unknown key"
    assert "did you mean `data`?" in error.hint


def test_a_misspelt_section_is_named_rather_than_the_missing_one() -> None:
    error = refusal(lambda raw: raw.update(modle=raw.pop("model")))
    assert error.message == "modle: unknown key"
    assert "did you mean `model`?" in error.hint


@pytest.mark.parametrize(
    "section", ["study", "model", "solver", "schedule", "privacy", "data", "clients"]
)
def test_a_missing_section_is_named_with_what_it_would_say(section: str) -> None:
    error = refusal(lambda raw: raw.pop(section))
    assert error.message == f"{section} is missing"
    assert section in error.hint


@pytest.mark.parametrize("section", ["model", "family", "solver", "schedule"])
def test_a_section_that_calls_a_function_needs_its_kind(section: str) -> None:
    error = refusal(lambda raw: raw[section].pop("kind"))
    assert error.message == f"{section}.kind is missing"


@pytest.mark.parametrize("key", ["epsilon", "delta", "unit", "relation"])
def test_a_private_study_promises_completely(key: str) -> None:
    error = refusal(lambda raw: raw["privacy"].pop(key))
    assert error.message == f"privacy.{key} is missing"
    assert 'protection = "none"' in error.hint


def test_nothing_is_promised_beside_no_protection() -> None:
    error = refusal(lambda raw: raw["privacy"].update(protection="none"))
    assert error.message == 'privacy.epsilon is given beside protection = "none"'


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("epsilon", 0.0, "greater than 0"),
        ("epsilon", float("inf"), "a finite number"),
        ("epsilon", float("nan"), "a finite number"),
        ("epsilon", "1", "a number"),
        ("delta", 1.0, "less than 0.5"),
        ("delta", 0.5, "less than 0.5"),
        ("relation", "substitue", "'add_remove' or 'substitute'"),
        ("unit", "site", "'record', 'patient' or 'client'"),
        ("view", "secure_aggregate", "'message' or 'aggregate'"),
        ("protection", "some", "'dp' or 'none'"),
        ("disjoint", 1, "true or false"),
    ],
)
def test_a_promise_that_means_nothing_is_refused(key: str, value: object, expected: str) -> None:
    error = refusal(lambda raw: raw["privacy"].update({key: value}))
    assert error.message == f"privacy.{key} is {value!r}, expected {expected}"


def test_a_wrong_word_is_answered_with_the_nearest() -> None:
    error = refusal(lambda raw: raw["privacy"].update(relation="substitue"))
    assert error.hint == "did you mean `substitute`? known: `add_remove`, `substitute`"


@pytest.mark.parametrize("accountant", ["pdl", "my_lab.accountants:cheap"])
@pytest.mark.parametrize("private", [True, False])
def test_only_listed_accountants_check_a_budget(accountant: str, private: bool) -> None:
    def change(raw: dict[str, Any]) -> None:
        if not private:
            raw["privacy"] = {"protection": "none"}
        raw["privacy"]["accountant"] = accountant

    error = refusal(change)
    assert error.message.startswith(f"privacy.accountant is {accountant!r}")
    assert "`pld`" in error.hint


def test_a_published_number_of_records_cannot_hide_whether_one_was_added() -> None:
    error = refusal(lambda raw: raw["privacy"].update(relation="add_remove", records_public=True))
    assert error.message.startswith('privacy.relation is "add_remove"')
    study = changed(lambda raw: raw["privacy"].update(records_public=True))
    assert study.privacy.records_public


def test_a_promise_of_zero_says_what_epsilon_is() -> None:
    error = refusal(lambda raw: raw["privacy"].update(epsilon=-1.0))
    assert error.message == "privacy.epsilon is -1.0, expected greater than 0"
    assert "1 is a common promise" in error.hint


# The patient as unit


def test_a_patient_is_protected_by_the_column_that_says_whose_a_row_is() -> None:
    study = changed(by_patient)
    assert study.privacy.promise == (1.0, 1e-5, "patient", "substitute")
    assert (study.data.unit_column, study.data.rows_per_unit) == ("patient_id", 20)
    assert changed(lambda raw: by_patient(raw, max_rows_per_unit=3)).data.rows_per_unit == 3


def test_a_unit_survives_json() -> None:
    study = changed(by_patient)
    assert parse_study(json.loads(json.dumps(study.as_dict()))).digest == study.digest


def test_unit_and_column_belong_together() -> None:
    error = refusal(lambda raw: raw["privacy"].update(unit="patient"))
    assert error.message == 'data.unit_column is missing beside privacy.unit = "patient"'
    assert 'unit = "record"' in error.hint
    error = refusal(lambda raw: raw["data"].update(unit_column="patient_id"))
    assert error.message == "data.unit_column is 'patient_id' beside privacy.unit = \"record\""
    assert 'unit = "patient"' in error.hint
    error = refusal(lambda raw: raw["data"].update(max_rows_per_unit=3))
    assert error.message == "data.max_rows_per_unit is given without data.unit_column"


@pytest.mark.parametrize("rows", [0, -1, 10**4 + 1, 2.0])
def test_the_rows_of_a_unit_are_a_positive_number(rows: object) -> None:
    error = refusal(lambda raw: by_patient(raw, max_rows_per_unit=rows))
    assert error.message.startswith(f"data.max_rows_per_unit is {rows}, expected")


def test_a_study_without_protection_may_name_whose_its_rows_are() -> None:
    raw = raw_study(["c"], 1)
    raw["data"]["unit_column"] = "patient_id"
    assert parse_study(raw).data.unit_column == "patient_id"


def test_a_private_study_declares_the_largest_number_of_records() -> None:
    error = refusal(lambda raw: raw["data"].pop("max_records"))
    assert error.message == "data.max_records is missing"
    raw = raw_study(["c"], 1)
    assert parse_study(raw).data.max_records is None


@pytest.mark.parametrize("name", ["north", "North"])
def test_two_clients_may_not_share_a_name_in_any_case(name: str) -> None:
    error = refusal(lambda raw: raw["clients"][1].update(name=name))
    assert "stands twice" in error.message


@pytest.mark.parametrize("name", ["prior", "Prior"])
def test_the_prior_s_worker_keeps_its_name(name: str) -> None:
    error = refusal(lambda raw: raw["clients"][1].update(name=name))
    assert error.message == f"clients: the name {name!r} is reserved"


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "a\n", "ä"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    error = refusal(lambda raw: raw["clients"][0].update(name=name))
    assert error.message.startswith(f"clients[0].name is {name!r}, expected a letter or digit")
    error = refusal(lambda raw: raw["study"].update(name=name))
    assert error.message.startswith(f"study.name is {name!r}, expected a letter or digit")


def test_a_study_has_at_least_one_client() -> None:
    error = refusal(lambda raw: raw.update(clients=[]))
    assert error.message == "clients is empty"
    assert "[[clients]]" in error.hint


@pytest.mark.parametrize("latency", [-1.0, float("inf"), float("nan")])
def test_a_latency_is_a_finite_time(latency: float) -> None:
    error = refusal(lambda raw: raw["clients"][0].update(latency_seconds=latency))
    assert error.message.startswith("clients[0].latency_seconds is ")


@pytest.mark.parametrize(
    ("section", "value", "words"),
    [
        ("model", 3, "a table [model]"),
        ("privacy", "dp", "a table [privacy]"),
        ("data", [], "a table [data]"),
        ("prior", 1.0, "a table [prior]"),
        ("clients", 3, "a table [[clients]] for each site"),
    ],
)
def test_a_section_that_is_no_table_is_told_so(section: str, value: Any, words: str) -> None:
    error = refusal(lambda raw: raw.update({section: value}))
    assert error.message == f"{section} is {value!r}, expected {words}"


def test_what_is_no_table_deeper_down_is_told_so() -> None:
    error = refusal(lambda raw: raw["data"]["schema"].update(y=3))
    assert error.message == "data.schema.y is 3, expected a table [data.schema.y]"
    error = refusal(lambda raw: raw["clients"].append(3))
    assert error.message == "clients[2] is 3, expected a table [[clients]]"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("prior", "scale", 1e-7),
        ("prior", "scale", 1e7),
        ("prior", "intercept_scale", 0.0),
        ("data", "max_records", 10**8 + 1),
        ("data", "separator", ";;"),
        ("data", "separator", ""),
        ("data", "separator", "\n"),
        ("study", "seed", 2**63),
        ("study", "name", "n" * 65),
        ("simulation", "insecure_seed", 2**63),
        ("solver", "steps", 10**400),
        pytest.param("solver", "steps", 10**5000, id="too many digits for Python to print"),
    ],
)
def test_a_value_out_of_range_is_refused(section: str, key: str, value: Any) -> None:
    raw = raw_private()
    raw.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError) as error:
        parse_study(raw)
    assert error.value.message.startswith(f"{section}.{key} is ")
    assert "expected" in error.value.message
    assert len(error.value.message) < 250
    assert error.value.hint


def test_values_at_the_ends_of_their_ranges_are_taken() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["study"] = {"name": "n" * 64, "seed": 2**63 - 1}
        raw["prior"] = {"scale": 1e6, "intercept_scale": 1e-6}
        raw["data"] |= {"max_records": 10**8, "separator": "\t"}

    assert changed(change).study.seed == 2**63 - 1


def test_a_client_s_name_fits_a_file_name() -> None:
    error = refusal(lambda raw: raw["clients"][0].update(name="n" * 65))
    assert error.message.endswith("expected at most 64 characters")


def test_a_path_that_no_file_can_have_is_refused() -> None:
    error = refusal(lambda raw: raw["clients"][0].update(data="a\0b"))
    assert error.message.startswith("clients.data is 'a\\x00b', expected a path")


def test_tables_in_tables_without_end_are_refused() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = {"a": deep}
    error = refusal(lambda raw: raw["data"]["schema"].update(y=deep))
    assert error.message.startswith("data is nested more than ")


# Files


def test_a_file_is_read_however_an_editor_saved_it(tmp_path: Path) -> None:
    text = (
        '[study]\nname = "s"\n[model]\nkind = "linear"\n[solver]\nkind = "exact"\n[schedule]\n'
        'kind = "sequential"\n[privacy]\nprotection = "none"\n[data.schema.y]\ntype = "binary"\n'
        '[[clients]]\nname = "north"\n'
    )
    plain, marked = tmp_path / "plain.toml", tmp_path / "marked.toml"
    plain.write_bytes(text.encode())
    marked.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert load_study(plain) == load_study(str(marked))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[study", "is not valid TOML"),
        (b"[study]\nname = a\n", "is not valid TOML"),
        (b"\xff\xfe", "is not a text file in UTF-8"),
        (b"a = " + b"9" * 5000, "too many digits"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as error:
        load_study(path)
    assert str(path) in error.value.message
    assert error.value.hint


def test_a_path_that_leads_to_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no study file at"):
        load_study(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot read") as error:
        load_study(tmp_path)
    assert error.value.hint


def test_a_resolved_study_is_read_by_its_suffix(tmp_path: Path) -> None:
    study = parse_study(raw_private())
    path = tmp_path / "study.json"
    path.write_text(json.dumps(study.as_dict()), encoding="utf-8")
    assert load_study(path) == study
    path.rename(tmp_path / "study.toml")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_study(tmp_path / "study.toml")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", r"holds \[\], expected a table of sections"),
        ("3", "holds 3, expected"),
        ('{"study": {"name": "\\ud800"}}', "is not valid JSON"),
        ("9" * 5000, "too many digits"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "is missing"),
    ],
)
def test_a_json_file_that_is_no_study_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "study.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words) as error:
        load_study(path)
    assert error.value.hint


def test_a_path_with_a_nul_character_leads_to_no_file() -> None:
    with pytest.raises(ConfigError, match="no study file at"):
        load_study("a\0b.toml")


def test_the_digest_tells_whether_noise_comes_from_a_seed_and_not_from_which() -> None:
    plain, one, other = (
        parse_study(raw_study(["north"], 1, simulation=section))
        for section in ({}, {"insecure_seed": 1}, {"insecure_seed": 2})
    )
    assert one.digest == other.digest == plain.digest_if_seeded_otherwise
    assert plain.digest == one.digest_if_seeded_otherwise != one.digest


def test_a_study_printed_is_a_few_lines_of_what_it_is() -> None:
    study = load_study(
        Path(__file__).resolve().parents[3] / "examples" / "heart-disease" / "study.toml"
    )
    for said in (repr(study), str(study)):
        assert said.splitlines() == [
            "Study heart-disease",
            "  logistic: disease ~ age + sex + painless + chol + thalach + exang + oldpeak",
            "  ε ≤ 4 at δ = 1e-05 for one record under substitute, view message",
            "  sites 4: cleveland, budapest, switzerland, long-beach",
            "  site_release; synchronous, 12 rounds",
        ]
    for more in (study.summary().text(100), study._repr_html_()):
        assert "at most 400 at any site" in more
        assert study.digest[:16] in more
    open_ = load_study(Path(__file__).resolve().parents[3] / "examples" / "trauma" / "study.toml")
    assert "no protection (ε = ∞)" in repr(open_)
