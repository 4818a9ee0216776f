"""A study by VIPS as a user runs it: checked, priced, simulated, over gRPC, and with a server that dies."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi import errors
from fedvi.cli.main import main
from fedvi.run import loading, server_plan
from fedvi.run.simulate import run
from fedvi.server.store import schema
from fedvi.study import build
from fedvi.study.config import load_study, parse_study
from tests.integration.test_killed_server import Lives
from tests.sites import assembled, check_undisturbed, sites_of, study_file, undisturbed
from tests.studies import raw_study, split

ROUNDS = 8


def hospitals(examples: Path, folder: Path, relation: str = "substitute") -> Path:
    """The heart-disease example by VIPS; with seeded noise, so that it comes out the same."""
    raw = load_study(examples / "heart-disease/study-descent.toml").as_dict()
    raw["solver"] = {"kind": "vips", "sampler": "full"}
    raw["schedule"] = {"kind": "synchronous", "rounds": ROUNDS}
    raw["privacy"]["relation"] = relation
    raw["simulation"] = {"insecure_seed": 2}
    for client in raw["clients"]:
        client["data"] = str(examples / "heart-disease" / client["data"])
    path = folder / "study.json"
    path.write_text(json.dumps(raw))
    return path


def shown(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_hospitals_can_plan_it(examples: Path, tmp_path: Path) -> None:
    study = str(hospitals(examples, tmp_path))
    checked = CliRunner().invoke(main, ["check", study])
    assert checked.exit_code == 0, checked.output
    # 15 coefficients and a triangle of 15 × 15 curvatures: one noised sum a message.
    assert "135 numbers a message" in checked.output
    assert "1 a message, 8 in all" in checked.output
    assert "vips *" in checked.output


@pytest.mark.parametrize("relation", ["substitute", "add_remove"])
def test_hospitals_can_run_it(examples: Path, tmp_path: Path, relation: str) -> None:
    assembly = build.assemble(load_study(hospitals(examples, tmp_path, relation)))
    result = run(assembly, loading.load_shards(assembly, tmp_path))
    assert assembly.family.is_proper(result.posterior)
    accountant = assembly.accountant("pld", relation)
    for name in assembly.clients:
        spent = accountant.epsilon(assembly.planned, 1e-5)
        assert 3.9 < spent <= 4.0
        assert result.ledgers[name].header.relation == relation
    mean = dict(
        zip(assembly.model.names, assembly.family.moments(result.posterior)[0], strict=True)
    )
    # What physicians know: chest pain on exertion and a depressed ST segment speak for the disease.
    assert mean["exang"] > 0.0
    assert mean["oldpeak"] > 0.0
    assert mean["thalach"] < 0.0


def test_compositions_stand_side_by_side(examples: Path, tmp_path: Path) -> None:
    """Linear, strong, zCDP, moments, RDP and PLD, as the papers compare them: printed and drawn."""
    study = str(hospitals(examples, tmp_path, "add_remove"))
    picture = tmp_path / "epsilon.svg"
    found = shown("privacy", study, "--historical", "--plot", str(picture))
    prices = {
        row["accountant"]: row["epsilon"]
        for row in found["prices"]
        if row["relation"] == "add_remove"
    }
    named = [prices[name] for name in ("pld", "rdp", "moments", "advanced")]
    assert named == sorted(named)
    assert prices["advanced"] <= prices["linear"] * (1.0 + 1e-9)
    assert prices["rdp"] <= prices["zcdp"] * 1.01
    assert prices["zcdp"] < prices["linear"]
    last = found["growth"][-1]["epsilon"]
    for name in ("linear", "advanced", "zcdp", "rdp", "pld"):
        assert last[name] == prices[name]
    assert last["moments (historical)"] == prices["moments"]
    drawn = picture.read_text()
    for name in (*last,):
        assert (last[name] is None) == (f"<!-- {name} -->" not in drawn)
    # Without the option nothing that is no guarantee is printed.
    plain = shown("privacy", study)
    assert not [name for name in plain["growth"][-1]["epsilon"] if "historical" in name]


@pytest.mark.nightly
def test_a_server_that_is_killed_and_clients_over_grpc_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the simulation in one process, posterior, factors and ledgers."""
    study = study_file(tmp_path, rounds=4, names=("north", "east"), solver={"kind": "vips"})
    assembly = assembled(study)
    expected = undisturbed(assembly, tmp_path)
    state = tmp_path / "server"
    state.mkdir()
    server_plan._write(state / server_plan.FILE, server_plan.to_json(server_plan.make(assembly)))
    with sites_of(assembly, tmp_path, tmp_path) as sites:
        lives = Lives(study, state, sites)
        for point in ("fold: done, not saved", "round: saved", "never"):
            code = lives.live(point)
            assert code == (0 if point == "never" else -signal.SIGKILL), (state / "log").read_text()
        sites.join()
        found = schema.read_state(state, assembly.spec.prior)
        assert found is not None
        check_undisturbed(sites, found, expected)
    assert found.standing is not None
    # Running means of four answers of each of two clients, of which the t-th weighs t(t + 1)/40.
    shares = np.array([2.0, 6.0, 12.0, 20.0]) / 40.0
    assert found.standing.squares == pytest.approx(2 * (shares**2).sum())


def private(**data: Any) -> dict[str, Any]:
    raw = raw_study(["a", "b"], 2, kind="logistic", solver={"kind": "vips"})
    raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"}
    raw["data"] |= {"max_records": 50, **data}
    return raw


def test_units_of_several_rows_are_refused_in_words() -> None:
    raw = private(unit_column="patient", max_rows_per_unit=3)
    raw["privacy"]["unit"] = "patient"
    with pytest.raises(errors.FedviError, match=r"found units of several rows") as refused:
        build.assemble(parse_study(raw))
    assert "site_release" in str(refused.value.hint)


def test_batches_of_a_fixed_size_have_no_price_under_add_remove() -> None:
    raw = private()
    raw["solver"]["sampler"] = {"kind": "feistel", "batch": 10}
    with pytest.raises(errors.ConfigError, match=r"cannot price under relation 'add_remove'"):
        build.assemble(parse_study(raw))
    raw["privacy"]["relation"] = "substitute"
    assert build.assemble(parse_study(raw)).noise_multiplier > 0.0


def test_a_study_without_noise_is_the_same_for_any_division_of_records() -> None:
    generator = np.random.default_rng(4)
    x = generator.normal(size=(60, 2))
    y = (generator.random(60) < 1.0 / (1.0 + np.exp(-x @ [1.0, -1.0]))).astype(float)
    found = []
    for clients in (["c0"], ["c0", "c1", "c2"]):
        raw = raw_study(clients, 2, kind="logistic")
        raw["solver"] = {"kind": "vips", "noise_multiplier": 0.0, "clip_norm": float("inf")}
        raw["schedule"] = {"kind": "synchronous", "rounds": 6}
        raw["data"]["max_records"] = 64
        owner = np.zeros(60, int) if len(clients) == 1 else np.arange(60) % 3
        found.append(run(build.assemble(parse_study(raw)), split(x, y, owner)))
    one, three = (result.posterior for result in found)
    np.testing.assert_allclose(three.J, one.J, rtol=1e-6)
    np.testing.assert_allclose(three.h, one.h, rtol=1e-6)
