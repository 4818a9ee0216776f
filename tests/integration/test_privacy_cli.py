"""Claims about `fedvi privacy`: its numbers are the accountants', its words follow from them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedvi.planning.pricing import pricing, with_target
from fedvi.privacy import accountants, historical
from fedvi.study import build
from fedvi.study.config import load_study
from tests.commands import invoked as fedvi

STUDY = """
[study]
name = "priced"
[model]
kind = "logistic"
formula = "y ~ age"
[solver]
kind = "dp_optimisation"
steps = 20
sampler = { kind = "poisson", rate = 0.05 }
[schedule]
kind = "synchronous"
rounds = 3
[privacy]
epsilon = 1.0
delta = 1e-5
unit = "record"
relation = "add_remove"
[data]
max_records = 1000
[data.schema.y]
type = "binary"
[data.schema.age]
type = "number"
bounds = [0, 100]
[[clients]]
name = "north"
[[clients]]
name = "south"
"""


def write(folder: Path, **changes: str) -> Path:
    text = STUDY
    for old, new in changes.items():
        old = {"sampler": '{ kind = "poisson", rate = 0.05 }'}.get(old, old)
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "study.toml"
    path.write_text(text)
    return path


def priced(*arguments: object) -> Any:
    done = fedvi("privacy", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return priced(write(tmp_path_factory.mktemp("priced")), "--historical")


@pytest.mark.nightly
def test_the_stated_number_keeps_the_promise_and_is_the_tightest_upper_bound(found: Any) -> None:
    (stated,) = [row for row in found["prices"] if row["stated"]]
    assert (stated["accountant"], stated["relation"]) == ("pld", "add_remove")
    assert 0.99 < stated["epsilon"] <= 1.0
    bounds = [
        row["epsilon"]
        for row in found["prices"]
        if row["relation"] == "add_remove" and not row["label"] and row["epsilon"] is not None
    ]
    assert len(bounds) >= 4
    assert min(map(float, bounds)) == stated["epsilon"]


@pytest.mark.nightly
def test_the_stated_number_comes_with_what_the_worst_data_attain(found: Any) -> None:
    for row in found["prices"]:
        if row["accountant"] == "pld":
            assert 0.97 * row["epsilon"] < row["least"] <= row["epsilon"]
        else:
            assert row["least"] is None


@pytest.mark.nightly
def test_every_accountant_is_listed_under_both_relations(found: Any) -> None:
    listed = {(row["accountant"], row["relation"]) for row in found["prices"] if not row["label"]}
    assert listed == {
        (name, relation)
        for name in accountants.__all__
        for relation in ("add_remove", "substitute")
    }


@pytest.mark.nightly
def test_what_is_no_upper_bound_says_so(found: Any) -> None:
    old = [row for row in found["prices"] if row["accountant"] in historical.METHODS]
    assert old
    assert all(row["label"] == historical.LABEL for row in old)
    assert not any(row["stated"] for row in old)


@pytest.mark.nightly
def test_epsilon_grows_with_the_rounds_up_to_the_plan(found: Any) -> None:
    rounds = [row["rounds"] for row in found["growth"]]
    curve = [row["epsilon"]["pld"] for row in found["growth"]]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == 3
    assert curve == sorted(curve)
    (stated,) = [row for row in found["prices"] if row["stated"]]
    assert curve[-1] == pytest.approx(stated["epsilon"], rel=1e-9)


@pytest.mark.nightly
def test_alternatives_say_what_each_sampler_and_relation_asks_for(found: Any) -> None:
    noise = {
        (row["sampler"].split(",")[0], row["relation"]): row["noise_multiplier"]
        for row in found["alternatives"]
    }
    (current,) = [row for row in found["alternatives"] if row["current"]]
    assert current["noise_multiplier"] == found["noise_multiplier"]
    # Substituting a record moves a sum twice as far, and a fixed size costs more than Poisson.
    assert noise["poisson", "substitute"] > noise["poisson", "add_remove"]
    assert noise["feistel", "substitute"] > noise["poisson", "substitute"]
    assert noise["full", "substitute"] == pytest.approx(2 * noise["full", "add_remove"], rel=1e-2)
    assert noise["feistel", "add_remove"] is None


@pytest.mark.nightly
def test_the_words_are_bounds_on_what_an_attacker_can_tell(found: Any) -> None:
    meaning = {row["relation"]: row for row in found["meanings"]}
    for row in meaning.values():
        assert 0.5 < row["right"] < 1
        assert 0.01 < row["found"] < 1
    # (ε, δ)-DP alone bounds the advantage; the whole profile can only say more.
    worst = (math.exp(1.0) - 1 + 2e-5) / (math.exp(1.0) + 1)
    assert meaning["add_remove"]["right"] <= 0.5 + worst / 2 + 1e-9


def test_a_stronger_promise_and_a_longer_plan_ask_for_more_noise(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, sampler='"full"'))
    noises = [
        pricing(build.assemble(with_target(study, **change))).noise_multiplier
        for change in ({}, {"epsilon": 0.5}, {"rounds": 12})
    ]
    assert noises[0] is not None
    assert noises[1] == pytest.approx(2 * noises[0], rel=0.1)
    assert noises[2] == pytest.approx(2 * noises[0], rel=0.01)


SCRIPT = """kind = "scripted"
deadline_seconds = 60
stages = [
  { kind = "sequential", over = ["north"], rounds = 2 },
  { kind = "synchronous", until = "converged", tolerance = 0.1, rounds = 5 },
]
"""


def test_the_rounds_of_a_script_are_a_clients_turns_over_all_stages(tmp_path: Path) -> None:
    """Against a synchronous schedule of as many rounds: a price does not ask when a turn is."""
    scripted = write(tmp_path, **{'kind = "synchronous"\nrounds = 3\n': SCRIPT}, sampler='"full"')
    script = load_study(scripted)
    (tmp_path / "plain").mkdir()
    plain = load_study(write(tmp_path / "plain", sampler='"full"'))

    def price(study: Any, **change: Any) -> Any:
        found = pricing(build.assemble(with_target(study, **change)))
        return found.rounds, found.noise_multiplier, found.prices, found.growth

    assert price(script) == price(plain, rounds=7)
    assert price(script, rounds=12) == price(plain, rounds=12)
    assert price(script, epsilon=0.5) == price(plain, epsilon=0.5, rounds=7)
    printed = " ".join(fedvi("privacy", scripted, "--rounds", 12).stdout.split())
    assert "12 rounds of a client at most, over all stages of the script, 2 clients" in printed


def test_a_script_that_cannot_be_carried_out_has_no_price(tmp_path: Path) -> None:
    broken = SCRIPT.replace('over = ["north"]', 'over = ["nroth"]')
    path = write(tmp_path, **{'kind = "synchronous"\nrounds = 3\n': broken}, sampler='"full"')
    done = fedvi("privacy", path, "--rounds", 4)
    assert done.exit_code == 2
    assert "schedule.stages[0].over names 'nroth'" in done.output


def test_the_tables_name_promise_relation_and_meaning(tmp_path: Path) -> None:
    done = fedvi("privacy", write(tmp_path, sampler='"full"'), "--plot", tmp_path / "epsilon.svg")
    assert done.exit_code == 0, done.output
    for words in (
        "ε ≤ 1",
        "(stated)",
        "add/remove",
        "equally likely beforehand",
        "hold for every attack",
    ):
        assert words in done.output
    assert (tmp_path / "epsilon.svg").read_text().count("<path") > 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epsilon", "-1"), "privacy.epsilon is -1.0"),
        (("--delta", "1"), "privacy.delta is 1.0"),
        (("--rounds", "0"), "schedule.rounds is 0"),
        (("--plot", "epsilon.gif"), "ends in '.gif'"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, arguments: tuple[str, str], words: str) -> None:
    done = fedvi("privacy", write(tmp_path, sampler='"full"'), *arguments)
    assert done.exit_code == 2
    assert words in done.output
    assert not (tmp_path / "epsilon.gif").exists()


def test_a_study_that_promises_nothing_has_no_price(tmp_path: Path) -> None:
    path = write(tmp_path, sampler='"full"')
    text = path.read_text()
    start, end = text.index("epsilon"), text.index("[data]")
    path.write_text(
        text[:start] + 'protection = "none"\n' + text[end:].replace("max_records = 1000\n", "")
    )
    text = path.read_text().replace('"dp_optimisation"\nsteps = 20\nsampler = "full"', '"glm"')
    path.write_text(text)
    done = fedvi("privacy", path)
    assert done.exit_code == 2
    assert "protection" in done.output
