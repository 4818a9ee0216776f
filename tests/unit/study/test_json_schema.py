"""Claims about the JSON schemas: they allow what a file may say, and find usual mistakes."""

import copy
import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from fedvi.data import schema as columns
from fedvi.study.drafts import json_schema
from tests.conftest import ROOT

STUDY = json_schema.study_schema()
POLICY = json_schema.policy_schema()
EXAMPLES = sorted((ROOT / "examples").glob("*/study*.toml"))


def mistakes(raw: Any, schema: dict[str, Any] = STUDY) -> list[str]:
    """Where the schema finds fault, as paths; a missing key by where it is missed."""
    found = jsonschema.Draft7Validator(schema).iter_errors(raw)
    return sorted({".".join(map(str, error.absolute_path)) for error in found})


def private() -> dict[str, Any]:
    return tomllib.loads((ROOT / "examples/heart-disease/study-descent.toml").read_text())


def studies_in_tests() -> list[Any]:
    """Every study that a test writes as one text, and all that documentation shows whole."""
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for text in re.findall(r'"""\n(\[study\].*?)"""', path.read_text(), re.DOTALL):
            filled = re.sub(r"= \"?\{(\w+)\}\"?", '= "logistic"', text)
            try:
                raw = tomllib.loads(filled)
            except tomllib.TOMLDecodeError:
                continue  # a template whose gaps are more than one kind
            # Some are put together of parts: these are whole.
            if {"study", "model", "solver", "schedule", "privacy", "data", "clients"} <= raw.keys():
                found.append(pytest.param(raw, id=f"{path.stem}-{len(found)}"))
    return found


def test_the_schemas_are_schemas() -> None:
    for schema in (STUDY, POLICY):
        jsonschema.Draft7Validator.check_schema(schema)


@pytest.mark.parametrize("name", ["study", "policy"])
def test_the_file_in_docs_is_up_to_date(name: str) -> None:
    kept = json.loads((ROOT / "docs" / f"{name}.schema.json").read_text())
    made = json_schema.study_schema() if name == "study" else json_schema.policy_schema()
    told = f"run: fedvi init --json-schema {name} > docs/{name}.schema.json"
    assert kept == json.loads(json.dumps(made)), told


def test_every_example_fits() -> None:
    assert len(EXAMPLES) >= 3
    for path in EXAMPLES:
        assert mistakes(tomllib.loads(path.read_text())) == [], path


def test_there_are_studies_in_tests() -> None:
    assert len(studies_in_tests()) >= 3


@pytest.mark.parametrize("raw", studies_in_tests())
def test_every_study_in_tests_fits(raw: dict[str, Any]) -> None:
    assert mistakes(raw) == []


def test_what_documentation_shows_of_schedules_fits() -> None:
    text = (ROOT / "docs" / "federation.md").read_text()
    shown = [
        tomllib.loads(block)["schedule"]
        for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
        if block.startswith("[schedule]")
    ]
    assert {table["kind"] for table in shown} >= {"sequential", "synchronous", "scripted"}
    for table in shown:
        assert mistakes({**private(), "schedule": table}) == [], table


def test_a_function_of_ones_own_takes_any_key() -> None:
    raw = private()
    raw["model"] = {"kind": "my_lab.hospital", "depth": 3}
    raw["solver"] = {"kind": "my_lab.mine", "speed": "fast"}
    assert mistakes(raw) == []


def changed(change: Callable[[dict[str, Any]], object]) -> list[str]:
    raw = copy.deepcopy(private())
    change(raw)
    return mistakes(raw)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda raw: raw["study"].update(sed=1), "study"),
        (lambda raw: raw["study"].update(name="no blanks"), "study.name"),
        (lambda raw: raw["study"].update(seed="7"), "study.seed"),
        (lambda raw: raw["study"].update(seed=-1), "study.seed"),
        (lambda raw: raw.update(modle=raw.pop("model")), ""),
        (lambda raw: raw.pop("solver"), ""),
        (lambda raw: raw["model"].update(kind="logistc"), "model.kind"),
        (lambda raw: raw["model"].update(kind=1), "model.kind"),
        (lambda raw: raw["model"].update(formla="y ~ x"), "model"),
        (lambda raw: raw["model"].pop("formula"), "model"),
        (lambda raw: raw["model"].update(formula=1), "model.formula"),
        (lambda raw: raw["model"].update(kind="survival"), "model"),
        (lambda raw: raw["prior"].update(scale=0), "prior.scale"),
        (lambda raw: raw["family"].update(kind="gauss"), "family.kind"),
        (lambda raw: raw["solver"].update(clip_nrom=1.0), "solver"),
        (lambda raw: raw["solver"].update(clip_norm="1"), "solver.clip_norm"),
        (lambda raw: raw["solver"].update(steps=1.5), "solver.steps"),
        (lambda raw: raw["solver"].update(sampler="poison"), "solver.sampler"),
        (lambda raw: raw["solver"].update(sampler={"kind": "poisson"}), "solver.sampler"),
        (lambda raw: raw["solver"].update(noise_multiplier=-1), "solver.noise_multiplier"),
        (lambda raw: raw["solver"].update(kind="glm"), "solver"),
        (lambda raw: raw["schedule"].update(kind="sync"), "schedule.kind"),
        (lambda raw: raw["schedule"].update(rounds="ten"), "schedule.rounds"),
        (lambda raw: raw["schedule"].pop("rounds"), "schedule"),
        (lambda raw: raw["schedule"].update(quorum=0), "schedule.quorum"),
        (
            lambda raw: raw.update(schedule={"kind": "scripted", "stages": [{"kind": "x"}]}),
            "schedule.stages.0.kind",
        ),
        (lambda raw: raw["privacy"].update(epsilon=0), "privacy.epsilon"),
        (lambda raw: raw["privacy"].update(epsilon="1"), "privacy.epsilon"),
        (lambda raw: raw["privacy"].update(delta=0.5), "privacy.delta"),
        (lambda raw: raw["privacy"].pop("delta"), "privacy"),
        (lambda raw: raw["privacy"].update(protection="none"), "privacy.delta"),
        (lambda raw: raw["privacy"].update(unit="patients"), "privacy.unit"),
        (lambda raw: raw["privacy"].update(relation="replace"), "privacy.relation"),
        (lambda raw: raw["privacy"].update(accountant="fourier"), "privacy.accountant"),
        (lambda raw: raw["privacy"].update(mechanism="laplace"), "privacy.mechanism"),
        (lambda raw: raw["data"].update(max_record=1), "data"),
        (lambda raw: raw["data"].update(max_records=0), "data.max_records"),
        (lambda raw: raw["data"].update(columns="age,sex"), "data.columns"),
        (lambda raw: raw["data"]["schema"]["age"].pop("type"), "data.schema.age"),
        (lambda raw: raw["data"]["schema"]["age"].update(type="real"), "data.schema.age.type"),
        (lambda raw: raw["data"]["schema"]["age"].pop("bounds"), "data.schema.age"),
        (lambda raw: raw["data"]["schema"]["age"].update(bounds=[1]), "data.schema.age.bounds"),
        (lambda raw: raw["data"]["schema"]["age"].update(levels=["a"]), "data.schema.age"),
        (lambda raw: raw["data"]["schema"]["cp"].pop("levels"), "data.schema.cp"),
        (
            lambda raw: raw["data"]["schema"]["fbs"].update(missing="mean"),
            "data.schema.fbs.missing",
        ),
        (
            lambda raw: raw["data"]["schema"]["fbs"].update(outside="clip"),
            "data.schema.fbs.outside",
        ),
        (lambda raw: raw.update(clients=[]), "clients"),
        (lambda raw: raw["clients"][1].pop("name"), "clients.1"),
        (lambda raw: raw["clients"][0].update(dat="x.csv"), "clients.0"),
        (lambda raw: raw["clients"][0].update(name="-north"), "clients.0.name"),
    ],
)
def test_a_mistake_in_a_study_is_found_where_it_is(
    change: Callable[[dict[str, Any]], object], where: str
) -> None:
    assert where in changed(change)


def admitted() -> dict[str, Any]:
    text = (ROOT / "fedvi/client/policy.py").read_text().partition('"""')[2].partition('"""')[0]
    shown = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    return tomllib.loads(shown.replace('"…"', f'"{"0" * 64}"'))


def test_the_policy_in_the_documentation_fits() -> None:
    assert mistakes(admitted(), POLICY) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda raw: raw["run"].update(epsilom=1), "run"),
        (lambda raw: raw["run"].update(epsilon=0), "run.epsilon"),
        (lambda raw: raw["run"].update(accountant="fourier"), "run.accountant"),
        (lambda raw: raw["run"].update(rounds=1.5), "run.rounds"),
        (lambda raw: raw.pop("run"), ""),
        (lambda raw: raw["life"].pop("relation"), "life"),
        (lambda raw: raw["allow"].update(solvers=["site_relese"]), "allow.solvers.0"),
        (lambda raw: raw["allow"].update(models="logistic"), "allow.models"),
        (lambda raw: raw["allow"]["custom"][0].update(name="lab:hospital"), "allow.custom.0.name"),
        (lambda raw: raw["allow"]["custom"][0].update(sha256="abc"), "allow.custom.0.sha256"),
    ],
)
def test_a_mistake_in_a_policy_is_found_where_it_is(
    change: Callable[[dict[str, Any]], object], where: str
) -> None:
    raw = admitted()
    change(raw)
    assert where in mistakes(raw, POLICY)


def test_the_keys_of_columns_are_those_that_are_read() -> None:
    kinds = {
        part["if"]["properties"]["type"]["const"]: set(part["then"]["properties"])
        for part in STUDY["properties"]["data"]["properties"]["schema"]["additionalProperties"][
            "allOf"
        ]
    }
    assert kinds == {kind: set(keys) for kind, keys in columns._KEYS.items()}


def test_every_key_of_a_section_says_what_it_is() -> None:
    for schema in (STUDY, POLICY):
        for name, section in schema["properties"].items():
            if name in ("model", "family", "solver", "schedule"):
                continue
            table = section.get("items", section)
            for key, found in table["properties"].items():
                if name == "allow" and "items" in found:
                    continue  # lists of kinds, of which the section says enough
                assert found.get("description"), f"{name}.{key}"


def test_descriptions_of_arguments_come_from_where_they_are_written() -> None:
    solver = STUDY["properties"]["solver"]["properties"]
    assert solver["clip_norm"]["description"]
    assert solver["learning_rate"]["description"]
