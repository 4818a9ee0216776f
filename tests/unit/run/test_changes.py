"""Claims about clients that leave or join a simulated run, and about a study that got further clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.federation import schedules
from fedvi.privacy import ledger
from fedvi.results import outcome, run_record
from fedvi.run import server_plan, simulate
from fedvi.study import build
from fedvi.study.config import parse_study
from tests import masked
from tests.sites import study_file
from tests.studies import linear_regression, raw_study, run_study

PRIVATE: dict[str, Any] = {
    "solver": {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0},
    "privacy": {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
    "simulation": {"insecure_seed": 5},
}


def raw_of(count: int, added: int = 0, kind: str = "sequential", **sections: Any) -> dict[str, Any]:
    """The conjugate problem's first clients, the last of which are marked as added."""
    reference, _ = linear_regression()
    names = [f"c{index}" for index in range(count)]
    raw = raw_study(
        names, reference["x"].shape[1], schedule={"kind": kind, "rounds": 3}, **sections
    )
    raw["data"]["max_records"] = 200
    for client in raw["clients"][count - added :]:
        client["added"] = True
    return raw


def run(raw: dict[str, Any], **changes: Any) -> simulate.Result:
    _, sources = linear_regression()
    names = [client["name"] for client in raw["clients"]]
    return run_study(raw, {name: sources[name] for name in names}, **changes)


def check_equal(one: simulate.Result, other: simulate.Result) -> None:
    for field in ("h", "J"):
        np.testing.assert_allclose(
            getattr(one.posterior, field), getattr(other.posterior, field), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("kind", schedules.__all__)
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_without_a_client_the_posterior_is_that_of_the_study_without_it(
    kind: str, rounds: int
) -> None:
    found = run(raw_of(4, kind=kind), remove={"c3": rounds})
    check_equal(found, run(raw_of(3, kind=kind)))
    (change,) = (update for update in found.history if update.removed)
    assert (change.removed, change.rounds) == (("c3",), rounds)
    # What it was charged stays charged: at least the rounds before, at most the one that it was in.
    assert rounds <= ledger.reservations(found.ledgers["c3"]) <= rounds + 1
    told = outcome.as_dict(found)["history"]
    assert [line["removed"] for line in told if line["removed"]] == [["c3"]]


@pytest.mark.parametrize("kind", schedules.__all__)
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_with_a_client_that_joins_the_posterior_is_that_of_the_study_with_it(
    kind: str, rounds: int
) -> None:
    found = run(raw_of(4, added=1, kind=kind), add={"c3": rounds})
    check_equal(found, run(raw_of(4, kind=kind)))
    folds = [name for update in found.history for name in update.clients]
    assert folds.count("c3") == ledger.reservations(found.ledgers["c3"]) == 3 - rounds
    told = outcome.as_dict(found)["history"]
    assert [line["added"] for line in told if line["added"]] == [["c3"]]


@pytest.mark.nightly
def test_one_joins_one_leaves_and_noise_replays() -> None:
    raw = raw_of(4, added=1, kind="synchronous", **PRIVATE)
    changes = {"add": {"c3": 1}, "remove": {"c1": 2}}
    one, other = run(raw, **changes), run(raw, **changes)
    assert one.history == other.history
    assert one.ledgers == other.ledgers
    np.testing.assert_array_equal(one.posterior.h, other.posterior.h)
    assert [(u.added, u.removed) for u in one.history if not u.clients] == [
        (("c3",), ()),
        ((), ("c1",)),
    ]
    assert not one.factors["c1"].J.any()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"remove": {"c9": 1}}, r"remove names 'c9', which is no client of the study"),
        ({"add": {"prior": 1}}, r"add names 'prior', which is no client of the study"),
        ({"remove": {"c1": 3}}, r"remove is after round 3 for client 'c1', expected at least 0"),
        ({"add": {"c1": 1}}, r"add is \{'c1': 1\}, expected the last clients of the study"),
        ({"add": {"c2": 2, "c3": 1}}, r"expected the last clients of the study, in its order"),
        ({"add": {"c0": 1, "c1": 1, "c2": 1, "c3": 1}}, r"which leaves nobody to begin with"),
        (
            {"add": {"c3": 2}, "remove": {"c3": 1}},
            r"'c3' is removed after round 1 and added after 2",
        ),
        ({"remove": {"c0": 0, "c1": 0, "c2": 0}}, r"without client 'c2' 1 are left"),
    ],
)
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.ConfigError, match=text):
        run(raw_of(4), **changes)


def test_the_command_says_who_left_and_who_joined(tmp_path: Path) -> None:
    exact = {"solver": {"kind": "exact"}, "privacy": {"protection": "none"}, "simulation": {}}
    names = ("north", "east", "west", "south")
    study = str(study_file(tmp_path, names=names, **exact))
    changes = ["--remove", "east=1", "--add", "south=2"]
    found = CliRunner().invoke(main, ["simulate", study, *changes])
    assert found.exit_code == 0, found.output
    assert "removed: east after round 1, at version 2\n" in found.stdout
    assert "added: south after round 2, at version 3\n" in found.stdout
    assert "the posterior is without the factor of east" in found.stdout
    # Also in the progress, where a line without answers is not the prior's.
    assert found.stderr.splitlines()[1] == "removed: east"
    assert "the prior" not in found.stderr
    for wrong in ("east", "east=-1", "=1", "east=x"):
        found = CliRunner().invoke(main, ["simulate", study, "--remove", wrong])
        assert found.exit_code == 2
        assert f"--remove is '{wrong}', expected CLIENT=ROUNDS" in found.stderr


def test_a_study_of_sums_says_that_it_began_without_a_client(tmp_path: Path) -> None:
    names, out = ("north", "east", "west", "south"), tmp_path / "out"
    promise = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
    sums = {
        "solver": {"kind": "site_release", "clip_norm": 2.0},
        "schedule": {"kind": "synchronous", "rounds": 1, "deadline_seconds": 10.0},
        "privacy": {**promise, "view": "aggregate", "least_reporting": 3},
        "aggregation": {"secure": True},
    }
    study = str(study_file(tmp_path, names=names, **sums))
    run = ["simulate", study, "--remove", "east=0", "--out", str(out)]
    found = CliRunner().invoke(main, run)
    assert found.exit_code == 0, found.output
    assert "removed: east after round 0, at version 0\n" in found.stdout
    found_report = CliRunner().invoke(main, ["report", str(out)])
    assert found_report.exit_code == 0, found_report.output
    # It never had a factor, nor a charge.
    assert "the factor of east" not in found.stdout
    text = (out / "report" / "report.md").read_text()
    assert "removed at version 0" in text
    assert "the factor of a removed site" not in text


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_client_joins_a_study_of_masked_sums(rounds: int) -> None:
    names = ("north", "east", "south", "west", "home")
    raw = masked.raw(names=names, least=4, rounds=4)
    found = run_study(raw, masked.records(names), add={"home": rounds})
    assert [len(one.clients) for one in found.history if one.clients] == [4] * rounds + [5] * (
        4 - rounds
    )
    assert [(one.removed, one.added) for one in found.history if not one.clients] == [
        (("home",), ()),
        ((), ("home",)),
    ]
    assert ledger.reservations(found.ledgers["home"]) == 4 - rounds
    # What is expected of the run's widths counts it.
    assert run_record.took_part(names, [(u.clients, u.removed) for u in found.history]) == names


def test_the_report_says_when_it_joined(tmp_path: Path) -> None:
    names, out = ("north", "east", "west", "south"), tmp_path / "out"
    promise = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
    sums = {
        "solver": {"kind": "site_release", "clip_norm": 2.0},
        "schedule": {"kind": "synchronous", "rounds": 3, "deadline_seconds": 10.0},
        "privacy": {**promise, "view": "aggregate", "least_reporting": 3},
        "aggregation": {"secure": True},
    }
    study = str(study_file(tmp_path, names=names, **sums))
    found = CliRunner().invoke(main, ["simulate", study, "--add", "south=1", "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "removed: south after round 0, at version 0\n" in found.stdout
    assert "added: south after round 1, at version 1\n" in found.stdout
    found = CliRunner().invoke(main, ["report", str(out)])
    assert found.exit_code == 0, found.output
    text = (out / "report" / "report.md").read_text()
    assert "joined at version 1" in text
    assert "removed at version" not in text


# A study that got further clients


def test_a_longer_study_knows_the_digests_of_what_it_was() -> None:
    begun, once = parse_study(raw_of(2)), parse_study(raw_of(3, added=1))
    twice = parse_study(raw_of(4, added=2))
    assert begun.earlier_digests == ()
    assert once.earlier_digests == (begun.digest,)
    assert twice.earlier_digests == (once.digest, begun.digest)
    assert begun.origin_digest == once.origin_digest == twice.origin_digest == begun.digest
    assert len({begun.digest, once.digest, twice.digest, parse_study(raw_of(3)).digest}) == 4


def test_a_study_that_differs_in_anything_else_has_another_origin() -> None:
    begun = parse_study(raw_of(2))
    for change in (
        {"prior": {"scale": 0.5}},
        {"schedule": {"kind": "sequential", "rounds": 4}},
        {"study": {"name": "test", "seed": 4}},
        {"simulation": {"insecure_seed": 1}},
    ):
        assert begun.digest not in parse_study({**raw_of(3, added=1), **change}).earlier_digests
    renamed = raw_of(3, added=1)
    renamed["clients"][0]["name"] = "other"
    assert begun.digest not in parse_study(renamed).earlier_digests


def test_clients_that_were_added_stand_behind_the_others() -> None:
    raw = raw_of(3, added=1)
    raw["clients"].reverse()
    with pytest.raises(
        errors.ConfigError, match=r"clients: 'c2' is marked `added`, and stands before"
    ):
        parse_study(raw)
    with pytest.raises(errors.ConfigError, match=r"clients: 'c0' is marked `added`"):
        parse_study(raw_of(1, added=1))


def test_ledgers_and_the_division_of_records_go_on_under_the_longer_study() -> None:
    short, long = (
        build.assemble(parse_study(raw_of(*counts, **PRIVATE))) for counts in ((2,), (3, 1))
    )
    assert short.spec.study_digest != long.spec.study_digest
    assert {name: long.header(name) for name in short.clients} == short.spec.headers


def kept(folder: Path, raw: dict[str, Any]) -> server_plan.ServerPlan:
    plan = server_plan.make(build.assemble(parse_study(raw)))
    (folder / server_plan.FILE).write_text(json.dumps(server_plan.to_json(plan)))
    return plan


def test_a_run_is_extended_only_if_the_others_are_promised_and_folded_as_before(
    tmp_path: Path,
) -> None:
    plan = server_plan.make(build.assemble(parse_study(raw_of(3, added=1, **PRIVATE))))
    assert server_plan.earlier_digests(plan, tmp_path) == plan.study.earlier_digests
    kept(tmp_path, raw_of(2, **PRIVATE))
    assert server_plan.earlier_digests(plan, tmp_path) == plan.study.earlier_digests
    # As a calibration of one's own might, that hangs on the number of clients.
    louder = {**PRIVATE["solver"], "noise_multiplier": 40.0}
    kept(tmp_path, raw_of(2, **{**PRIVATE, "solver": louder}))
    with pytest.raises(errors.ConfigError, match=r"the plan differs in workers, expected in"):
        server_plan.earlier_digests(plan, tmp_path)
    kept(tmp_path, {**raw_of(2, **PRIVATE), "prior": {"scale": 0.7}})
    with pytest.raises(errors.ConfigError, match=r"the plan differs in .*prior"):
        server_plan.earlier_digests(plan, tmp_path)
