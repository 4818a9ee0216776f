"""Claims about how a study becomes pieces: what is checked before any record is read."""

import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedvi
from fedvi import errors
from fedvi.client.policy import parse_policy
from fedvi.data import by_unit
from fedvi.data.source import ArraySource
from fedvi.federation import schedules
from fedvi.inference import solvers
from fedvi.planning.plan import plan
from fedvi.privacy import accountants, caveats, events, ledger
from fedvi.privacy.base import Mechanism
from fedvi.privacy.mechanisms import gaussian
from fedvi.run import loading
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.typing import ROWS
from fedvi.updates.base import LocalSolver
from tests.plug_ins import allowing
from tests.studies import raw_study


def assembled(change: Callable[[dict[str, Any]], object] = lambda raw: None) -> build.Assembly:
    """A non-private study of two clients and two coefficients, after a change of its tables."""
    raw = raw_study(["north", "south"], 2)
    change(raw)
    return build.assemble(parse_study(raw))


def private(noise_multiplier: float | None = 20.0, **solver: Any) -> build.Assembly:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "steps": 3, **solver}
        if noise_multiplier is not None:
            raw["solver"]["noise_multiplier"] = noise_multiplier
        raw["schedule"] = {"kind": "synchronous", "rounds": 4}
        raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
        raw["privacy"]["mechanism"] = "gaussian"
        raw["data"]["max_records"] = 50

    return assembled(change)


def refusal(change: Callable[[dict[str, Any]], object]) -> errors.FedviError:
    with pytest.raises(errors.FedviError) as error:
        assembled(change)
    assert error.value.exit_code == 2
    return error.value


# Prior and family


@pytest.mark.parametrize("family", ["full_gaussian", "diagonal_gaussian"])
def test_a_gaussian_prior_is_eta_0_itself(family: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["family"] = {"kind": family}
        raw["prior"] = {"scale": 4.0}

    assembly = assembled(change)
    mean, sd = assembly.family.moments(assembly.prior)
    np.testing.assert_array_equal(mean, 0.0)
    np.testing.assert_allclose(sd, 4.0, rtol=1e-14)  # float64 algebra
    assert list(assembly.solvers) == ["north", "south"]


def test_an_intercept_may_have_its_own_prior_scale() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["model"]["formula"] = "y ~ x0"
        raw["prior"] = {"scale": 1.0, "intercept_scale": 5.0}

    assembly = assembled(change)
    np.testing.assert_allclose(assembly.family.moments(assembly.prior)[1], [5.0, 1.0], rtol=1e-14)


def test_the_family_has_the_size_of_the_model() -> None:
    assert assembled().family.size == assembled().model.size == 2
    error = refusal(lambda raw: raw["family"].update(size=3))
    assert error.message.startswith("family.size: not a key of a study")


# The server's patience


def test_left_out_a_schedule_waits_for_everybody_and_for_half_of_them_at_least() -> None:
    assert assembled().patience == (None, 1)
    three = build.assemble(parse_study(raw_study(["a", "b", "c"], 2)))
    assert three.patience == (None, 2)
    assert three.spec.patience == three.patience


def test_deadline_and_quorum_are_keys_of_every_schedule() -> None:
    for kind in schedules.__all__:
        keys = {"kind": kind, "rounds": 1, "deadline_seconds": 90, "quorum": 2}
        assert assembled(lambda raw, keys=keys: raw.update(schedule=keys)).patience == (90.0, 2)


@pytest.mark.parametrize("found", [0, -1.0, True, "90", float("inf"), float("nan")])
def test_a_deadline_is_a_number_of_seconds(found: object) -> None:
    error = refusal(lambda raw: raw["schedule"].update(deadline_seconds=found))
    assert error.message.startswith("schedule.deadline_seconds is ")


@pytest.mark.parametrize("found", [0, 3, 1.0, True, "2"])
def test_a_quorum_is_a_number_of_the_clients(found: object) -> None:
    error = refusal(lambda raw: raw["schedule"].update(quorum=found))
    assert error.message.startswith(f"schedule.quorum is {found!r}, expected a whole number from 1")


# Budget and noise


def test_the_budget_is_the_promise_under_its_relation() -> None:
    budget = private().budget
    assert budget == ledger.Budget(2.0, 1e-5, accountants.pld("substitute"))
    assert assembled().budget is None


def test_left_out_noise_is_calibrated_to_the_budget_and_not_far_below_it() -> None:
    assembly = private(None)
    assert assembly.budget is not None
    spent = assembly.budget.accountant.epsilon(assembly.planned, 1e-5)
    # Calibration stops within a relative 1e-3 of the noise multiplier, on the safe side; ε moves
    # by about the same share, and 1 % leaves room for its slope.
    assert 0.99 * 2.0 <= spent <= 2.0


def test_noise_in_closed_form_costs_what_the_gaussian_profile_says() -> None:
    assembly = private(20.0)
    # Twelve sums of sensitivity 2 at σ = 20 are one of μ = 2·√12/20 under substitution.
    step = events.Gaussian(20.0, add_remove=1.0, substitute=2.0)
    assert events.counts(assembly.planned) == {step: 12}


def test_given_noise_that_is_too_small_exceeds_the_budget_before_a_record_is_read() -> None:
    with pytest.raises(
        errors.BudgetExceeded, match="4 rounds at noise_multiplier 1 spend"
    ) as error:
        private(1.0)
    assert error.value.exit_code == 5
    assert error.value.hint


def test_the_mark_of_simulated_noise_is_there_and_seeded_noise_adds_its_own() -> None:
    assert private().mark == "simulation: no guarantee"
    assert assembled().mark == ""

    raw = raw_study(["c"], 1, solver={"kind": "dp_optimisation", "noise_multiplier": 50.0})
    raw["privacy"] = {"epsilon": 9.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"}
    raw["privacy"]["mechanism"] = "gaussian"
    raw["data"]["max_records"] = 10
    raw["simulation"] = {"insecure_seed": 1}
    assembly = build.assemble(parse_study(raw))
    assert assembly.mark == "simulation: no guarantee; seeded noise: no guarantee"


def test_a_sampler_is_sized_for_the_declared_largest_client() -> None:
    assert private().sampler.capacity == 50
    drawn = private(sampler={"kind": "poisson", "rate": 0.25})
    assert 12 < drawn.sampler.capacity <= 50
    assert drawn.sampler.max_records == 50


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        ({"sampler": {"kind": "feistel", "batch": 51}}, "[solver.sampler]: batch is 51"),
        ({"sampler": {"kind": "feistel"}}, "solver.sampler.batch is missing"),
        ({"sampler": "ful"}, "solver.sampler.kind is 'ful', which is not in"),
        ({"sampler": 3}, "solver.sampler is 3, expected a kind in quotes, or a table with a kind"),
        ({"sampler": []}, "solver.sampler is [], expected a kind"),
        (
            {"sampler": {"kind": "poisson", "rate": 0.5, "overflow": 1.0}},
            "[solver.sampler]: overflow",
        ),
        ({"sampler": {"rate": 0.5}}, "solver.sampler is {'rate': 0.5}"),
        ({"sampler": {"kind": "poisson"}}, "solver.sampler.rate is missing"),
        ({"sampler": {"kind": "poisson", "rte": 1}}, "solver.sampler.rte: unknown key"),
        ({"sampler": {"kind": "poisson", "rate": 1.5}}, "[solver.sampler]: sampling rate is 1.5"),
        ({"sampler": {"kind": "full", "max_records": 9}}, "solver.sampler.max_records: not a key"),
        ({"noise_multiplier": "much"}, "solver.noise_multiplier is 'much', expected a finite"),
        ({"steps": 0}, "[solver]: steps is 0"),
        ({"draws": 0}, "[solver]: draws is 0"),
        ({"clip_norm": 0.0}, "solver.clip_norm is 0.0, expected a number from 1e-15 to 1e+15"),
        ({"clip_norm": 1e-16}, "solver.clip_norm is 1e-16"),
        ({"clip_norm": 1e16}, "solver.clip_norm is 1e+16"),
        ({"clip_norm": float("inf")}, "solver.clip_norm is inf"),
        ({"clip_norm": "Infinity"}, "solver.clip_norm is inf"),
        ({"noise_multiplier": 1.1e9}, "solver.noise_multiplier is 1100000000.0"),
        ({"clip_norm": -1}, "solver.clip_norm is -1, expected"),
        ({"learning_rate": -0.1}, "[solver]: learning_rate is -0.1"),
        ({"sampler": {"kind": 3}}, "solver.sampler is {'kind': 3}"),
        ({"noise_multiplier": -20.0}, "solver.noise_multiplier is -20.0"),
        ({"noise_multiplier": float("nan")}, "solver.noise_multiplier is nan"),
        ({"noise_multiplier": float("inf")}, "solver.noise_multiplier is inf"),
    ],
)
def test_a_wrong_key_of_solver_or_sampler_is_named(solver: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError) as error:
        private(**solver)
    assert error.value.message.startswith(message)
    assert error.value.hint


def test_a_noisy_solver_without_a_budget_states_its_noise() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation"}
        raw["data"]["max_records"] = 50

    error = refusal(change)
    assert error.message.startswith("solver.noise_multiplier is missing")
    assert error.hint


# Model and schedule


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("formula", "y ~ x9", "model.formula: `x9` is not declared under [data.schema]"),
        ("kind", "logistc", "model.kind is 'logistc', which is not in fedvi.models"),
        ("kind", "numpyro_model", "model.kind is 'numpyro_model'"),
        ("formula", 3, "model.formula is 3, expected a text"),
        ("fromula", "y ~ x0", "model.fromula: unknown key for kind 'linear'"),
        ("noise_scale", "1", "model.noise_scale is '1', expected a number"),
    ],
)
def test_a_wrong_key_of_the_model_is_named(key: str, value: Any, message: str) -> None:
    error = refusal(lambda raw: raw["model"].update({key: value}))
    assert error.message == message or error.message.startswith(message)
    assert error.hint


def test_a_built_in_model_needs_a_formula() -> None:
    assert "formula" in refusal(lambda raw: raw["model"].pop("formula")).message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"round": 1}, "schedule.round: unknown key"),
        ({"rounds": 0}, "schedule.rounds is 0, expected at least 1"),
        ({"rounds": "3"}, "schedule.rounds is '3', expected a whole number"),
        ({"damping": 1.5}, "schedule.damping is 1.5"),
        ({"damping": "none"}, "schedule.damping is 'none'"),
        ({"damping": True}, "schedule.damping is True"),
        ({"damping": [0.5]}, "schedule.damping is [0.5]"),
        ({"kind": "parallel"}, "schedule.kind is 'parallel', which is not in"),
    ],
)
def test_a_wrong_key_of_the_schedule_is_named(keys: dict[str, Any], message: str) -> None:
    error = refusal(lambda raw: raw["schedule"].update(keys))
    assert error.message.startswith(message)
    assert error.hint


@pytest.mark.parametrize("kind", schedules.__all__)
@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_that_means_nothing_is_refused_by_every_schedule(
    kind: str, tolerance: float
) -> None:
    keys = {"kind": kind, "rounds": 1, "tolerance": tolerance}
    error = refusal(lambda raw: raw.update(schedule=keys))
    assert error.message.startswith(f"schedule.tolerance is {tolerance}")
    assert error.hint


@pytest.mark.parametrize("kind", schedules.__all__)
def test_no_schedule_runs_no_round(kind: str) -> None:
    error = refusal(lambda raw: raw.update(schedule={"kind": kind, "rounds": 0}))
    assert error.message == "schedule.rounds is 0, expected at least 1"
    assert error.hint


def test_a_clip_norm_is_infinite_only_without_protection() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "clip_norm": "Infinity", "noise_multiplier": 0}
        raw["data"]["max_records"] = 50

    assert assembled(change).solvers["north"].clip_norm == float("inf")


@pytest.mark.parametrize("made", [dict, math.hypot, os.getcwd, json.dumps])
@pytest.mark.parametrize("section", ["solver", "sampler", "mechanism", "schedule", "family"])
def test_a_function_that_makes_no_such_thing_is_refused(section: str, made: Any) -> None:
    kind = "mine"

    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "noise_multiplier": 0.0}
        raw["data"]["max_records"] = 50
        if section == "sampler":
            raw["solver"]["sampler"] = kind
        elif section == "mechanism":
            raw["privacy"]["mechanism"] = kind
        else:
            raw[section] = {"kind": kind}

    with allowing(mine=made):
        assert refusal(change).hint


def test_an_unknown_mechanism_is_named_as_the_study_names_it() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "noise_multiplier": 0.0}
        raw["data"]["max_records"] = 50
        raw["privacy"]["mechanism"] = "gausian"

    error = refusal(change)
    assert error.message.startswith("privacy.mechanism is 'gausian', which is not in")
    assert error.hint.startswith("did you mean `gaussian`?")


# The columns of a file without header


def test_columns_that_lack_what_the_model_reads_are_refused_with_the_nearest() -> None:
    error = refusal(lambda raw: raw["data"].update(columns=["y", "x00", "x1"]))
    assert error.message == "data.columns: no `x0`, which the model needs"
    assert error.hint.startswith("did you mean `x00`?")
    error = refusal(lambda raw: raw["data"].update(columns=["y", "x0", "x1", "x1"]))
    assert error.message.startswith("data.columns: `x1` is there twice")


def test_columns_go_by_the_file_s_names_and_may_be_more_than_the_model_s() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["data"]["schema"]["x0"] = raw["data"]["schema"]["x0"] | {"column": "first"}
        raw["data"]["columns"] = ["y", "first", "x1", "more"]

    assert assembled(change).model.names == ("x0", "x1")


def test_a_fixed_damping_is_taken_as_it_is() -> None:
    assembly = assembled(lambda raw: raw["schedule"].update(damping=0.25))
    assert assembly.step_rule.name == "fixed(0.25)"


def test_a_solver_that_does_not_suit_the_model_is_refused() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["model"]["kind"] = "logistic"
        raw["data"]["schema"]["y"] = {"type": "binary"}

    error = refusal(change)
    assert error.message.startswith("[solver]: solver `exact` needs a linear model")


# Data


def test_a_client_without_a_file_is_named() -> None:
    with pytest.raises(errors.ConfigError) as error:
        loading.load_shards(assembled(), Path())
    assert error.value.message == "clients: 'north' names no data file"


def test_shards_are_padded_to_the_declared_size_or_by_their_own() -> None:
    source = {
        "north": ArraySource({"x": np.ones((3, 2)), "y": np.ones(3)}, np.ones(3, bool)),
        "south": ArraySource({"x": np.ones((1, 2)), "y": np.ones(1)}, np.ones(1, bool)),
    }
    assert [len(s.mask) for s in loading.with_capacity(assembled(), source).values()] == [4, 1]
    shards = loading.with_capacity(private(), source)
    assert [len(shard.mask) for shard in shards.values()] == [50, 50]
    assert [int(shard.mask.sum()) for shard in shards.values()] == [3, 1]


@pytest.mark.parametrize("solver", ["exact", "glm", "gradient"])
def test_a_private_study_takes_no_solver_without_protection(solver: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": solver}
        raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
        raw["data"]["max_records"] = 50

    error = refusal(change)
    assert error.message.startswith(f"solver.kind is {solver!r}, which releases without protection")
    assert error.hint


@pytest.mark.parametrize("noise", ["rounded_gaussian", "gaussian"])
def test_a_private_study_takes_no_solver_whose_sums_nobody_checks(
    monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    module = importlib.import_module("fedvi.inference.solvers.dp_optimisation")
    monkeypatch.setattr(module, "check_of", lambda *given: None)

    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "steps": 3}
        raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
        raw["privacy"]["mechanism"] = noise
        raw["data"]["max_records"] = 50

    if noise == "gaussian":  # in floating point, which is marked as no guarantee
        assert all(solver.check is None for solver in assembled(change).solvers.values())
        return
    error = refusal(change)
    assert "has no check of its compiled sums" in error.message
    assert "check_of" in error.hint


def test_nor_one_that_brings_a_mechanism_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = solvers.exact

    def priced(family: Any, model: Any) -> LocalSolver:
        return found(family, model)._replace(cost=events.Gaussian(50.0))

    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "exact"}
        raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
        raw["data"]["max_records"] = 50

    monkeypatch.setattr(solvers, "exact", priced)
    assert "has no check of its compiled sums" in refusal(change).message


def test_a_whole_number_of_noise_is_a_number() -> None:
    assert repr(private(20).noise_multiplier) == "20.0"  # type: ignore[arg-type]


def test_a_client_with_too_many_records_is_named_without_their_number() -> None:
    source = ArraySource({"x": np.ones((51, 2)), "y": np.ones(51)}, np.ones(51, bool))
    with pytest.raises(errors.DataError, match=r"^south: more records than") as error:
        loading.with_capacity(
            assembled(lambda raw: raw["data"].update(max_records=50)), {"south": source}
        )
    assert "51" not in str(error.value)


def test_in_a_private_study_too_many_records_are_left_out_by_position() -> None:
    y = np.arange(53.0)
    source = ArraySource({"x": np.ones((53, 2)), "y": y}, np.ones(53, bool))
    shard = loading.with_capacity(private(), {"south": source})["south"]
    np.testing.assert_array_equal(shard.records["y"], y[:50])
    assert shard.mask.all()


# Pairings, warnings, and what an audit and a policy ask


def test_a_mechanism_can_be_wrapped_and_everything_else_stays() -> None:
    assembly = private(3.0 * 20.0)
    seen: list[Mechanism] = []

    def wrap(mechanism: Mechanism) -> Mechanism:
        seen.append(mechanism)
        return mechanism

    solver = assembly.solver_with(wrap)
    assert [mechanism.noise_multiplier for mechanism in seen] == [60.0]
    assert solver.cost == assembly.solvers["north"].cost
    halved = assembly.solver_with(lambda mechanism: gaussian(mechanism.noise_multiplier / 2))
    step = events.Gaussian(30.0, add_remove=1.0, substitute=2.0)
    assert events.counts(halved.cost) == {step: 3}


def test_a_solver_without_noise_has_no_mechanism_to_wrap() -> None:
    with pytest.raises(
        errors.ConfigError, match=r"solver\.kind is 'exact', which has no mechanism"
    ):
        assembled().solver_with(lambda mechanism: mechanism)


def test_what_a_policy_judges_is_what_the_study_says() -> None:
    assembly = private(sampler={"kind": "poisson", "rate": 0.25})
    request = assembly.request
    assert (request.unit, request.relation, request.view) == ("record", "substitute", "message")
    assert (request.model, request.solver) == ("linear", "dp_optimisation")
    assert (request.sampler, request.mechanism, request.accountant) == (
        "poisson",
        "gaussian",
        "pld",
    )
    assert (request.rounds, request.planned) == (4, assembly.planned)
    # Float noise guarantees nothing, and a policy has to say that it may be.
    assert request.simulated
    lax = {"run": {"epsilon": 2.0, "delta": 1e-5}, "allow": {"simulated_noise": True}}
    parse_policy(lax).check(request)
    # Twenty clip norms of noise are what the study has.
    with pytest.raises(errors.PolicyRefused, match="noise_multiplier 20, expected at least 21"):
        parse_policy({**lax, "run": {**lax["run"], "noise_multiplier": 21.0}}).check(request)
    with pytest.raises(errors.PolicyRefused, match="releases without protection"):
        parse_policy(lax).check(assembled().request)
    assert assembled(by_patient).request.unit == "patient"


@pytest.mark.parametrize(("delta", "warns"), [(0.01999, False), (0.02, True), (0.3, True)])
def test_a_delta_that_one_published_record_would_keep_is_warned_of(
    delta: float, warns: bool
) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "noise_multiplier": 50.0}
        raw["privacy"] = {
            "epsilon": 2.0,
            "delta": delta,
            "unit": "record",
            "relation": "substitute",
        }
        raw["data"]["max_records"] = 50

    found = assembled(change).warnings
    assert len(found) == warns
    if warns:
        assert found[0].startswith(
            f"privacy.delta is {delta:g}, not below 1 / data.max_records = 0.02"
        )
        assert "such as 0.001" in found[0]
    assert assembled().warnings == ()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_noise_too_small_for_any_finite_price_is_refused_with_what_is_enough(noise: float) -> None:
    with pytest.raises(errors.FedviError, match=f"noise_multiplier {noise:g}") as error:
        private(noise)
    enough = float(error.value.hint.split()[0])
    assert private(None).noise_multiplier == enough


def promised(relation: str, **solver: Any) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "steps": 3, **solver}
        raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": relation}
        raw["privacy"]["mechanism"] = "gaussian"
        raw["data"]["max_records"] = 50

    return change


def test_batches_of_fixed_size_are_refused_under_add_remove_with_what_would_be_right() -> None:
    sampler = {"kind": "feistel", "batch": 5}
    error = refusal(promised("add_remove", sampler=sampler))
    assert error.message == (
        "solver.sampler is 'feistel' and privacy.mechanism 'gaussian', which accountant 'pld' "
        "cannot price under relation 'add_remove'"
    )
    assert 'relation = "substitute"' in error.hint
    assert 'sampler = { kind = "poisson", rate = 0.1 }' in error.hint
    assert assembled(promised("substitute", sampler=sampler)).relations == ("substitute",)
    found = plan(assembled(promised("substitute", sampler=sampler)))
    for prices in (found.epsilon, found.epsilon_rdp):
        assert prices["add_remove"] is None
        assert prices["substitute"] is not None
    assert found.as_dict()["epsilon"]["add_remove"] is None


def test_noise_that_the_accountant_does_not_know_is_refused_with_those_that_do(
    module: None,
) -> None:
    def change(raw: dict[str, Any]) -> None:
        promised("substitute")(raw)
        raw["privacy"]["mechanism"] = "discrete"

    error = refusal(change)
    assert "accountant 'pld' cannot price under relation 'substitute'" in error.message
    assert error.hint == "accountants that can: `rdp`, `zcdp`"


def test_noise_from_a_table_is_calibrated_with_the_price_of_the_table(module: None) -> None:
    def change(raw: dict[str, Any]) -> None:
        promised("substitute")(raw)
        raw["privacy"]["mechanism"] = "tabled"

    exact, tabled = assembled(promised("substitute")), assembled(change)
    # At most twice the 5 numbers that leave are drawn for a sum.
    assert (exact.table_distance, tabled.table_distance) == (0.0, 1e-8)
    assert tabled.budget is not None
    priced = tabled.accountant("pld", "substitute")
    assert tabled.budget.accountant == priced
    assert priced.epsilon(tabled.planned, 1e-5) <= 2.0
    assert exact.noise_multiplier is not None
    assert tabled.noise_multiplier is not None
    assert tabled.noise_multiplier > exact.noise_multiplier
    found = plan(tabled)
    assert found.epsilon["substitute"] == priced.epsilon(tabled.planned, 1e-5)


@pytest.mark.parametrize("accountant", accountants.__all__)
def test_every_accountant_can_check_the_budget(accountant: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        promised("substitute")(raw)
        raw["privacy"]["accountant"] = accountant

    assembly = assembled(change)
    assert assembly.budget is not None
    assert assembly.budget.accountant.name == accountant
    assert assembly.budget.accountant.epsilon(assembly.planned, 1e-5) <= 2.0
    # A budget that any accountant keeps is kept by the tightest one.
    assert accountants.pld("substitute").epsilon(assembly.planned, 1e-5) <= 2.0


# The patient as unit


def by_patient(raw: dict[str, Any]) -> None:
    raw["solver"] = {"kind": "dp_optimisation", "noise_multiplier": 50.0}
    raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "patient", "relation": "substitute"}
    raw["data"].update(max_records=4, unit_column="patient_id", max_rows_per_unit=2)


def read(folder: Path, change: Callable[[dict[str, Any]], object], text: str) -> ArraySource:
    (folder / "north.csv").write_text(text)
    return loading.load_shard(assembled(change), "north", folder / "north.csv")


PATIENTS = "patient_id,y,x0,x1\na,1,0,0\nb,2,0,0\na,3,0,0\n,9,0,0\na,4,0,0\nb,5\n"


def test_a_file_of_patients_is_grouped_and_the_identity_stays_behind(tmp_path: Path) -> None:
    source = read(tmp_path, by_patient, PATIENTS)
    assert set(source.records) == {"x", "y", ROWS}
    # The third row of a, the row of nobody and the line that cannot be read count as zero.
    np.testing.assert_array_equal(source.records["y"], [[1, 3], [2, 0]])
    shard = loading.with_capacity(assembled(by_patient), {"north": source})["north"]
    assert shard.records["x"].shape == (4, 2, 2)
    np.testing.assert_array_equal(shard.mask, [True, True, False, False])


def test_a_site_with_more_records_than_declared_is_told_which_are_used(tmp_path: Path) -> None:
    def private_for(most: int) -> Callable[[dict[str, Any]], None]:
        def apply(raw: dict[str, Any]) -> None:
            by_patient(raw)
            raw["data"]["max_records"] = most

        return apply

    path, said = tmp_path / "north.csv", []
    path.write_text(PATIENTS)
    for most in (1, 2):
        loading.load_shard(assembled(private_for(most)), "north", path, tell=said.append)
    (line,) = (line for line in said if "counts as zero" not in line)
    # It may end in a log: how many there are is not in it.
    assert line.startswith("north: more records than data.max_records, 1: only the first of them")
    assert "2" not in line


def test_more_parts_than_records_are_warned_of() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "virtual_clients", "noise_multiplier": 50.0, "parts": 100}
        raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
        raw["data"].update(max_records=50, id_column="patient_id")

    assert any("solver.parts is 100" in line for line in assembled(change).warnings)


def test_without_protection_patients_are_counted_and_their_rows_stay_apart(tmp_path: Path) -> None:
    def change(most: int) -> Callable[[dict[str, Any]], None]:
        def apply(raw: dict[str, Any]) -> None:
            raw["data"].update(max_records=most, unit_column="patient_id")

        return apply

    whole = "patient_id,y,x0,x1\na,1,0,0\nb,2,0,0\na,3,0,0\n"
    source = read(tmp_path, change(2), whole)
    np.testing.assert_array_equal(source.records["y"], [1, 2, 3])
    # Three rows of two patients fit a bound of two patients.
    shard = loading.with_capacity(assembled(change(2)), {"north": source})["north"]
    assert shard.mask.sum() == 3
    with pytest.raises(errors.DataError, match="more units in `patient_id` than"):
        read(tmp_path, change(1), whole)
    with pytest.raises(
        errors.DataError, match="record 2: column `patient_id` does not name its unit"
    ):
        read(tmp_path, change(2), "patient_id,y,x0,x1\na,1,0,0\n?,2,0,0\n")


@pytest.mark.parametrize("private_study", [True, False])
def test_a_file_without_the_column_that_says_whose_a_row_is_is_refused(
    tmp_path: Path, private_study: bool
) -> None:
    change = (
        by_patient if private_study else lambda raw: raw["data"].update(unit_column="patient_id")
    )
    with pytest.raises(errors.DataError, match="no column `patient_id` in the first line"):
        read(tmp_path, change, "patient,y,x0,x1\na,1,0,0\n")


def test_whose_a_row_is_may_be_no_covariate() -> None:
    def change(raw: dict[str, Any]) -> None:
        by_patient(raw)
        raw["data"]["unit_column"] = "x1"

    error = refusal(change)
    assert error.message == "data.unit_column is 'x1', which [data.schema.x1] declares too"
    assert error.hint

    def headless(raw: dict[str, Any]) -> None:
        by_patient(raw)
        raw["data"]["columns"] = ["patient-id", "y", "x0", "x1"]

    error = refusal(headless)
    assert error.message == "data.columns: no `patient_id`, which data.unit_column names"
    assert "`patient-id`" in error.hint


def test_rows_that_were_not_grouped_are_refused_in_a_study_of_patients() -> None:
    rows = ArraySource({"x": np.ones((3, 2)), "y": np.ones(3)}, np.ones(3, bool))
    with pytest.raises(errors.DataError, match=r"^north: records are not grouped") as error:
        loading.with_capacity(assembled(by_patient), {"north": rows})
    assert "by_unit" in error.value.hint
    patients = by_unit(rows, ["a", "b", "a"], 2)
    with pytest.raises(errors.DataError, match=r"^north: records are grouped"):
        loading.with_capacity(private(), {"north": patients})


MODULE = """
import numpyro
import numpyro.distributions as dist
from fedvi.expfam.gaussian import FullGaussian
from fedvi.inference.solvers import dp_optimisation
from fedvi.privacy import events
from fedvi.privacy.mechanisms import gaussian
from fedvi.privacy.mechanisms.gaussian import Gaussian
from fedvi.privacy.sampling import full


def sampler(max_records):
    return full(max_records)


def mechanism(noise_multiplier):
    return gaussian(noise_multiplier)


class Tabled(Gaussian):
    distance = 1e-9


def tabled(noise_multiplier):
    return Tabled(noise_multiplier)


class Discrete(Gaussian):
    def event(self, shift):
        return events.DiscreteGaussian(self.noise_multiplier)


def discrete(noise_multiplier):
    return Discrete(noise_multiplier)


def solver(family, model, sampler, mechanism, steps=1):
    return dp_optimisation(family, model, sampler, mechanism, steps=steps)


def larger(size):
    return FullGaussian(size + 1)


def ward(y, x0, noise=0.5):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Normal(b * x0, noise), obs=y)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The functions of a module of the user's, passed to whoever reads a study."""
    (tmp_path / "fedvi_test_build.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("fedvi_test_build")
    names = ("Discrete", "discrete", "larger", "mechanism", "sampler", "solver", "tabled", "ward")
    with allowing(**{name: getattr(own, name) for name in names}):
        yield
    sys.modules.pop("fedvi_test_build", None)


@pytest.mark.parametrize("part", ["solver", "sampler", "sampler table", "mechanism"])
def test_custom_code_marks_a_private_study_and_no_other(module: None, part: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["solver"] = {"kind": "dp_optimisation", "noise_multiplier": 50.0}
        raw["data"]["max_records"] = 50
        if part == "solver":
            raw["solver"]["kind"] = "solver"
        elif part == "mechanism":
            raw["privacy"]["mechanism"] = "mechanism"
        else:
            kind = "sampler"
            raw["solver"]["sampler"] = {"kind": kind} if "table" in part else kind

    def protect(raw: dict[str, Any]) -> None:
        raw["privacy"] = {"epsilon": 9.0, "delta": 1e-5, "unit": "record", "relation": "add_remove"}
        raw["privacy"]["mechanism"] = "gaussian"
        change(raw)

    assert assembled(protect).mark == f"simulation: no guarantee; {caveats.UNVETTED}"
    assert assembled(change).mark == ""


def test_an_outcome_of_one_s_own_marks_where_statistics_are_clipped_by_its_own_norms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fedvi_test_tame.py").write_text(
        """
import dataclasses
from typing import ClassVar

from fedvi.models.outcomes.accepted import Accepted
from fedvi.models.outcomes.normal import Normal
from fedvi.models.regression_statistics import KnownNoise


@dataclasses.dataclass(frozen=True)
class Form(KnownNoise):
    def square_norms(self, messages, local, records):
        found = super().square_norms(messages, local, records)
        return {name: 1e-12 * value for name, value in found.items()}


@dataclasses.dataclass(frozen=True)
class Tame(Normal):
    noise_scale: float = 1.0
    accepts: ClassVar[Accepted] = Accepted(("number",), "a number", ("number",))

    def conjugate_form(self, **shared):
        return Form(noise_scale=self.noise_scale, **shared)
"""
    )

    def change(kind: str) -> Callable[[dict[str, Any]], object]:
        def apply(raw: dict[str, Any]) -> None:
            raw["model"]["kind"] = "tame"
            raw["solver"] = {"kind": kind, "noise_multiplier": 50.0, "clip_norm": 1.0}
            raw["data"]["max_records"] = 50
            raw["privacy"] = {"epsilon": 9.0, "delta": 1e-5, "unit": "record"}
            raw["privacy"]["relation"] = "add_remove"

        return apply

    with allowing(tame=importlib.import_module("fedvi_test_tame").Tame):
        assert assembled(change("vips")).mark == caveats.UNVETTED
        # Elsewhere it decides what a record contributes, and each record is clipped whatever that is.
        assert assembled(change("site_release")).mark == ""


def test_a_family_of_another_size_than_the_model_s_is_refused(module: None) -> None:
    error = refusal(lambda raw: raw["family"].update(kind="larger"))
    assert "makes a family of size 3, but the model has 2 coordinates" in error.message
    assert error.hint


def test_a_class_that_says_not_what_it_is_of_is_no_model(module: None) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["model"]["kind"] = "Discrete"

    error = refusal(change)
    assert "a class that does not say what it is of" in error.message
    assert "`accepts`" in error.hint


@pytest.mark.numpyro
def test_an_argument_of_a_model_with_a_default_is_no_column_and_may_be_set(module: None) -> None:
    def change(keys: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
        def apply(raw: dict[str, Any]) -> None:
            raw["model"] = {"kind": "ward", **keys}
            raw["solver"] = {"kind": "gradient"}
            del raw["prior"]

        return apply

    assert assembled(change({})).model.names == ("b",)
    assert assembled(change({"noise": 2.0})).model.names == ("b",)
    error = refusal(change({"nose": 2.0}))
    assert error.message == "model.nose: unknown key for kind 'ward'"
    assert error.hint.startswith("did you mean `noise`?")


def test_a_logistic_model_takes_no_number_as_its_response() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["model"]["kind"] = "logistic"
        raw["solver"] = {"kind": "glm"}

    error = refusal(change)
    assert "the response 'y' is a number" in error.message
    assert 'data.schema.y.type = "binary"' in error.hint


def test_a_path_in_the_place_of_a_study_is_refused_with_what_reads_it() -> None:
    calls: tuple[Any, ...] = (fedvi.plan, fedvi.simulate)
    for call in calls:
        with pytest.raises(
            errors.ConfigError, match=r"the study is 'study.toml', expected"
        ) as caught:
            call("study.toml")
        assert "fedvi.load_study(path)" in caught.value.hint


def test_sums_of_so_many_numbers_that_rounding_takes_too_much_are_refused_before_a_run() -> None:
    def many(most: int) -> dict[str, Any]:
        raw = raw_study(["north"], 100, solver={"kind": "site_release", "noise_multiplier": 30.0})
        raw["data"]["max_records"] = most
        raw["privacy"]["mechanism"] = "rounded_gaussian"
        return raw

    with pytest.raises(errors.ConfigError) as error:
        build.assemble(parse_study(many(55_000)))
    assert "5,150 numbers a message and data.max_records = 55,000" in error.value.message
    assert "above 65,536" in error.value.hint
    build.assemble(parse_study(many(65_537)))
    build.assemble(parse_study(many(5_000)))


COUNTED: dict[str, Any] = {
    "model": {"kind": "poisson", "formula": "n ~ a"},
    "solver": {"kind": "site_release"},
    "schedule": {"kind": "synchronous", "rounds": 4},
    "prior": {"scale": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "record", "relation": "substitute"},
}


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        (lambda raw: None, True),
        (lambda raw: raw["model"].update(kind="negative_binomial", dispersion=0.5), True),
        (lambda raw: raw["solver"].update(clip_norm=2.0), False),
        (lambda raw: raw["model"].update(kind="linear"), False),
        (lambda raw: raw["model"].update(formula="a ~ n", kind="linear"), False),
        (lambda raw: raw.update(solver={"kind": "dp_optimisation", "steps": 3}), False),
        (
            lambda raw: raw.update(
                solver={"kind": "site_release", "noise_multiplier": 0.0},
                privacy={"protection": "none"},
            ),
            False,
        ),
    ],
    ids=["poisson", "negative binomial", "clipped", "linear", "covariate", "descent", "no noise"],
)
def test_a_count_s_expected_mean_is_in_the_digest_exactly_where_it_changes_the_solver(
    change: Callable[[dict[str, Any]], object], matters: bool
) -> None:
    def made(**expected: Any) -> build.Assembly:
        number = {"type": "number", "bounds": [0, 1], "missing": "drop"}
        raw: dict[str, Any] = json.loads(json.dumps(COUNTED))
        raw["study"], raw["clients"] = {"name": "counts", "seed": 1}, [{"name": "north"}]
        count = {"type": "count", "bounds": [0, 50], "missing": "drop", "expected": expected}
        raw["data"] = {"max_records": 5000, "schema": {"n": count, "a": number}}
        change(raw)
        return build.assemble(parse_study(raw))

    def solved(found: build.Assembly) -> tuple[Any, ...]:
        solver = found.solvers["north"]
        return solver.clip_norm, solver.survey, getattr(solver.stand, "keywords", None)

    plain, same, other = made(), made(sd=3.0), made(mean=20.0)
    assert same.study.digest == plain.study.digest
    assert (repr(solved(other)) != repr(solved(plain))) == matters
    assert (other.study.digest != plain.study.digest) == matters
    assert made(mean=20, sd=1.0).study.digest == other.study.digest


def test_models_whose_mean_enters_the_digest_are_those_that_know_a_curvature_at_it() -> None:
    from fedvi import models
    from fedvi.study.config import _CURVED

    curved = {
        name
        for name in ("logistic", "linear", "binomial", "poisson")
        if getattr(models, name)(["a"]).curvature_at(0.5) is not None
    }
    curved |= (
        {"negative_binomial"} if models.negative_binomial(["a"], 1.0).curvature_at(0.5) else set()
    )
    assert curved == _CURVED
