"""Which mode suits a study: the ratios follow the noise that is really there, and so does the advice.

All seeds are fixed, of records and of noise: these tests give the same answer every time.
"""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from fedvi import errors, models
from fedvi.cli.main import main
from fedvi.data.source import ArraySource
from fedvi.models.capabilities import is_concave
from fedvi.models.outcomes.normal import Normal
from fedvi.models.site_effects import site_effects
from fedvi.planning.advice import outlook
from fedvi.planning.signals import (
    TYPICAL_CURVATURE,
    PublicNumbers,
    Signal,
    signal,
    suggested_clip_norm,
)
from fedvi.privacy import accountants, events
from fedvi.run.simulate import run
from fedvi.study.build import assemble
from fedvi.study.config import load_study, parse_study
from tests import forward_models
from tests.plug_ins import allowing
from tests.studies import raw_study, synthetic_logistic

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZE, CLIENTS, RECORDS, DELTA = 6, 4, 500, 1e-5
NUMBERS = PublicNumbers(SIZE, RECORDS, CLIENTS, rounds=10)


def raw_private(
    kind: str,
    epsilon: float,
    *,
    rounds: int = 10,
    size: int = SIZE,
    model: str = "logistic",
    family: str = "full_gaussian",
    **solver: Any,
) -> dict[str, Any]:
    clients = [f"c{index}" for index in range(CLIENTS)]
    schedule = {"kind": "synchronous", "rounds": rounds}
    raw = raw_study(clients, size, kind=model, family=family, schedule=schedule)
    numbers = NUMBERS._replace(coefficients=size, rounds=rounds)
    raw["solver"] = {"kind": kind, "clip_norm": suggested_clip_norm(kind, numbers)} | solver
    raw["privacy"] = {
        "epsilon": epsilon,
        "delta": DELTA,
        "unit": "record",
        "relation": "substitute",
    }
    raw["privacy"]["mechanism"] = "gaussian"
    raw["data"]["max_records"] = RECORDS
    raw["simulation"] = {"insecure_seed": 1}
    return raw


def planned(raw: dict[str, Any]) -> Any:
    return outlook(assemble(parse_study(raw)))


def own(found: Any) -> Signal:
    (mode,) = [mode for mode in found.modes if mode.current]
    return mode.signal


@functools.cache
def simulated() -> list[tuple[str, float, Signal, Any]]:
    """Runs two modes at one promise, one at a larger and the other at a hopeless one."""
    sources = synthetic_logistic(CLIENTS, RECORDS, SIZE)
    rows = []
    # Climbs pay for every visit, so two; fresh statistics want many.
    for kind, epsilon, rounds in [
        ("site_release", 4.0, 10),
        ("site_release", 0.5, 10),
        ("dp_optimisation", 0.5, 2),
        ("dp_optimisation", 0.02, 2),
    ]:
        assembly = assemble(parse_study(raw_private(kind, epsilon, rounds=rounds)))
        found = outlook(assembly)
        rows.append((kind, epsilon, own(found), run(assembly, sources, pooled=True)))
    return rows


@pytest.mark.nightly
def test_modes_and_promises_are_ordered_as_their_posteriors_are() -> None:
    """Larger ratio, smaller KL to the pooled posterior.

    About 2, 200, 800 and 1,300 with two seeds of noise; the ratios are 14, 1.9, 1.6 and 0.09.
    """
    rows = simulated()
    ratios = [row[2].coefficients for row in rows]
    divergences = [
        float(result.assembly.family.kl(result.posterior, result.pooled)) for *_, result in rows
    ]
    assert sorted(ratios, reverse=True) == ratios
    assert sorted(divergences) == divergences


@pytest.mark.nightly
def test_a_study_that_is_said_to_drown_returns_about_the_prior() -> None:
    *_, (_, _, drowned, result) = simulated()
    family, prior = result.assembly.family, result.assembly.prior
    (warning,) = outlook(result.assembly).warnings
    assert drowned.coefficients < 0.2
    assert warning.startswith("the noise probably drowns single coefficients")
    # Over six coefficients. The records, without noise, would move it by 14 and more.
    assert float(family.kl(result.posterior, prior)) < 1.0
    # And one that is said to stand out does not.
    best = simulated()[0][3]
    assert not outlook(best.assembly).warnings
    assert float(family.kl(best.posterior, prior)) > 10.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "clip_norm", "epsilon"), [("site_release", 10.0, 8.0), ("vips", 4.0, 30.0)]
)
def test_the_ratio_is_the_noise_that_is_left_on_a_coefficient(
    kind: str, clip_norm: float, epsilon: float
) -> None:
    """A linear model on standardised columns, where all that is assumed holds; 24 coefficients.

    The root of a mean of 24 squares has a relative sd of 0.14; a factor √M, √T or k left out is 2 or more.
    """
    size = 24
    generator = np.random.default_rng(5)
    theta = generator.normal(size=size)
    sources = {}
    for index in range(CLIENTS):
        x = generator.normal(size=(RECORDS, size))
        y = x @ theta + generator.normal(size=RECORDS)
        sources[f"c{index}"] = ArraySource({"x": x, "y": y}, np.ones(RECORDS, bool))
    # Errors are symmetric, so that clipping them moves nothing.
    raw = raw_private(kind, epsilon, size=size, model="linear", clip_norm=clip_norm, rounds=20)
    assembly = assemble(parse_study(raw))
    result = run(assembly, sources, pooled=True)
    means = [assembly.family.moments(eta)[0] for eta in (result.posterior, result.pooled)]
    left = math.sqrt(float(((means[0] - means[1]) ** 2).mean()))
    found = own(outlook(assembly))
    assert found.curvature > 1.0
    assert found.travelled > 0.95
    assert 0.6 < left * found.coefficients < 1.5


def hospital(schema: dict[str, Any], formula: str = "died ~ age + sex + iss", seed: int = 0) -> Any:
    """The study of docs/guides/hospital.md."""
    raw = raw_private("site_release", 2.0, rounds=20, clip_norm=2.0)
    raw["model"] = {"kind": "logistic", "formula": formula}
    raw["prior"] = {"scale": 2.5}
    raw["simulation"] = {"insecure_seed": seed}
    raw["clients"] = [{"name": "north"}, {"name": "south"}]
    raw["privacy"]["delta"] = 1e-6
    yes = {"type": "binary", "true": ["yes"], "false": ["no"]}
    raw["data"] = {"max_records": 2_000, "schema": {"died": yes} | schema}
    return assemble(parse_study(raw))


AGE = {"type": "number", "bounds": [18, 100]}
ISS = {"type": "number", "bounds": [1, 75]}
SEX = {"type": "binary", "true": ["m"], "false": ["f"]}


@pytest.mark.nightly
def test_columns_that_are_scaled_by_their_bounds_are_told_with_their_own_spread() -> None:
    """Of the guide's two hospitals, one table of records, and twelve seeds of noise.

    Were its columns standardised, the ratio would be 59. The root of a mean of 24 squares has a relative sd
    of 0.14.
    """
    random = np.random.default_rng(1)
    assembly = hospital({"age": AGE, "sex": SEX, "iss": ISS})
    sources = {}
    for name, count in (("north", 1900), ("south", 1200)):
        age = random.normal(55, 18, count).clip(18, 100).round()
        sex = random.integers(0, 2, count)
        iss = random.gamma(2.0, 9.0, count).clip(1, 75).round()
        logit = -4.2 + 0.4 * (age - 50) / 10 + 0.3 * sex + 0.8 * iss / 10
        died = (random.random(count) < 1 / (1 + np.exp(-logit))).astype(float)
        x = np.stack([np.ones(count), (age - 59) / 41, sex, (iss - 38) / 37], axis=1)
        sources[name] = ArraySource({"x": x, "y": died}, np.ones(count, bool))
    pooled = assembly.family.moments(run(assembly, sources, pooled=True).pooled)[0]
    left = []
    for seed in range(12):
        noised = hospital({"age": AGE, "sex": SEX, "iss": ISS}, seed=seed)
        left.append(np.asarray(assembly.family.moments(run(noised, sources).posterior)[0] - pooled))
    # Of age and the injury score; the prior's sd is 2.5.
    wanted = 2.5 / math.sqrt(float((np.array(left)[:, [1, 3]] ** 2).mean()))
    found = own(outlook(assembly)).coefficients
    assert 0.6 < found / wanted < 1.6
    assert 5.0 < found < 9.0


@pytest.mark.parametrize(
    ("schema", "formula", "variance"),
    [
        ({"age": AGE}, "died ~ age", 0.35**2),
        ({"age": AGE | {"center": 59, "scale": 41}}, "died ~ age", 0.35**2),
        ({"age": AGE | {"center": 50, "scale": 10}}, "died ~ age", 1.0),
        ({"sex": SEX}, "died ~ sex", 0.25),
        ({"sex": SEX, "age": AGE}, "died ~ sex:age", 0.25 * 0.35**2),
        ({"s": {"type": "level", "levels": ["a", "b", "c", "d"]}}, "died ~ s", 3.0 / 16.0),
        ({"falls": {"type": "count", "bounds": [0, 20]}}, "died ~ falls", 1.0),
        ({"iss": ISS}, "died ~ log(iss)", 1.0),
        ({"iss": ISS, "age": AGE}, "died ~ log(iss) + age", 0.35**2),
        ({"sex": SEX}, "died ~ 1", 1.0),
    ],
)
def test_the_variance_of_a_column_is_that_of_its_declared_scale(
    schema: dict[str, Any], formula: str, variance: float
) -> None:
    assert outlook(hospital(schema, formula)).numbers.variance == pytest.approx(variance)


def test_every_mode_is_priced_at_the_promise_of_the_study() -> None:
    raw = raw_private("virtual_clients", 1.0)
    raw["data"]["id_column"] = "id"
    found = planned(raw)
    modes = {mode.solver: mode for mode in found.modes}
    assert set(modes) == {
        "dp_optimisation",
        "local_averaging",
        "perturbed_update",
        "site_release",
        "vips",
        "virtual_clients",
    }
    # Sums a study, and how far substituting a record moves one, in clip norms.
    plans = {
        "dp_optimisation": (10 * 100, 2.0),
        "local_averaging": (10, 4.0),
        "perturbed_update": (10, 2.0),
        "site_release": (10, 2.0),
        "vips": (10, 2.0),
        "virtual_clients": (10, 4.0),
    }
    accountant = accountants.pld("substitute")
    for kind, (sums, shift) in plans.items():
        noise = modes[kind].noise_multiplier
        event = events.repeat(events.Gaussian(noise, shift, shift), sums)
        assert 0.99 < accountant.epsilon(event, DELTA) <= 1.0, kind
        assert not modes[kind].note
    assert [kind for kind, mode in modes.items() if mode.current] == ["virtual_clients"]
    assert [kind for kind, mode in modes.items() if mode.summed] == ["site_release", "vips"]


def test_ratios_are_those_of_the_records_that_sites_are_expected_to_hold() -> None:
    raw = raw_private("site_release", 8.0)
    most = planned(raw)
    for client in raw["clients"]:
        client["expected_records"] = RECORDS // 5
    found = planned(raw)
    assert (most.numbers.records, found.numbers.records) == (RECORDS, RECORDS // 5)
    assert own(found).coefficients < own(most).coefficients / 2


def test_what_is_not_offered_says_why_and_is_not_recommended() -> None:
    found = planned(raw_private("dp_optimisation", 1.0, family="diagonal_gaussian"))
    (mode,) = [mode for mode in found.modes if mode.solver == "site_release"]
    assert (mode.noise_multiplier, mode.signal) == (None, None)
    assert "needs the full Gaussian family" in mode.note
    assert found.recommended == "dp_optimisation"
    for mode in found.modes:
        if mode.solver in ("local_averaging", "virtual_clients"):
            assert (mode.noise_multiplier, mode.note) == (None, "needs data.id_column")


def test_batches_stay_with_modes_that_can_use_them() -> None:
    sampled = {"sampler": {"kind": "poisson", "rate": 0.1}, "steps": 20}
    found = planned(raw_private("dp_optimisation", 1.0, rounds=2, **sampled))
    modes = {mode.solver: mode for mode in found.modes}
    whole = planned(raw_private("dp_optimisation", 1.0, rounds=2, steps=20))
    full = {mode.solver: mode for mode in whole.modes}
    assert modes["perturbed_update"] == full["perturbed_update"]
    assert modes["site_release"].noise_multiplier < full["site_release"].noise_multiplier
    # Where noise is large, a tenth of the records is worth a tenth of the noise: neither helps.
    assert own(found).coefficients == pytest.approx(own(whole).coefficients, rel=0.01)


def test_a_mode_that_stands_out_is_recommended_over_the_studys_own() -> None:
    found = planned(raw_private("perturbed_update", 1.0, rounds=10))
    assert found.recommended == "site_release"
    assert "promises most" in found.reason
    assert "more records, fewer coefficients, larger ε" in found.warnings[0]
    kept = planned(raw_private("site_release", 1.0, rounds=30))
    assert kept.recommended == "site_release"
    assert kept.reason.startswith("keep site_release, since no other mode promises clearly more")


@pytest.mark.parametrize("kind", ["site_release", "dp_optimisation"])
def test_newton_steps_are_not_advised_for_a_likelihood_of_ones_own(kind: str) -> None:
    """Those on Student-t errors wandered off, with small sds: nobody knows that it is concave."""
    raw = raw_private(kind, 4.0, rounds=20)
    raw["model"]["kind"] = "line"
    raw.pop("prior", None)
    with allowing(line=forward_models.line):
        found = planned(raw)
    assert found.recommended == "dp_optimisation"
    assert "site_release is left out" in found.reason
    warned = any("concave" in warning for warning in found.warnings)
    assert warned == (kind == "site_release")


def test_a_model_says_whether_newton_steps_suit_it() -> None:
    @dataclasses.dataclass(frozen=True)
    class HeavyTails(Normal):
        concave: ClassVar[bool] = False

    names = ["(Intercept)", "age"]
    base = models.linear(names)
    heavy = dataclasses.replace(base, response=HeavyTails(1.0))
    assert all(map(is_concave, (base, models.multinomial(names, ["a", "b", "c"]))))
    assert is_concave(site_effects(base, scale=0.7))
    assert not is_concave(heavy)
    assert not is_concave(site_effects(heavy, scale=0.7))
    assert not is_concave(object())


def test_few_rounds_with_much_noise_do_not_arrive() -> None:
    """Ten rounds on Adult did worse than fifty, at the same ε of 1, under `substitute`."""
    adult = PublicNumbers(coefficients=108, records=2_442, clients=10, rounds=50)
    many = signal("site_release", adult, 52.78, 2.0)
    few = signal("site_release", adult._replace(rounds=10), 23.61, 2.0)
    assert few.travelled < many.travelled
    assert few.coefficients < many.coefficients
    # Two rounds of each are left out.
    lost = math.sqrt((8 / 10) / (48 / 50))
    assert few.curvature == pytest.approx(many.curvature * lost, rel=1e-3)


def test_a_solver_that_nobody_knows_has_no_ratio() -> None:
    with pytest.raises(errors.ConfigError, match=r"'site_releas' has no estimate"):
        signal("site_releas", NUMBERS, 1.0, 1.0)


def test_without_a_promise_there_is_nothing_to_say() -> None:
    assert planned(raw_study(["c"], 2)) is None


@pytest.mark.parametrize("command", ["check", "privacy"])
def test_the_commands_print_and_serialise_it(command: str, tmp_path: Any) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw_private("perturbed_update", 0.5)))
    runner = CliRunner(env={"COLUMNS": "80"})
    done = runner.invoke(main, [command, str(path)])
    assert done.exit_code == 0, done.output
    for words in ("perturbed_update *", "the noise probably drowns", "recommended: site_release"):
        assert words in done.stdout
    start = done.stdout.index("Signal to noise of each mode")
    table = done.stdout[start : done.stdout.index("warning: the noise")]
    # What this study cannot use is not listed; the reason is given in few words.
    assert "virtual_clients" not in table
    said = "left out, as this study stands: local_averaging, virtual_clients (needs data.id_column)"
    assert said in " ".join(done.stdout.split())
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
    plain = json.loads(runner.invoke(main, [command, str(path), "--json"]).stdout)["outlook"]
    assert plain["recommended"] == "site_release"
    assert {mode["solver"] for mode in plain["modes"] if mode["current"]} == {"perturbed_update"}


def test_a_mode_that_a_study_of_sums_cannot_use_is_left_out() -> None:
    found = outlook(assemble(load_study(EXAMPLES / "heart-disease" / "study-sums.toml")))
    notes = {mode.solver: mode.note for mode in found.modes if mode.noise_multiplier is None}
    assert notes["dp_optimisation"] == notes["perturbed_update"] == 'needs view = "message"'
    assert "dp_optimisation" not in found.reason


def test_a_ratio_that_rests_on_a_guess_says_of_which_columns() -> None:
    study = load_study(EXAMPLES / "heart-disease" / "study.toml").as_written()
    assert outlook(assemble(parse_study(study))).guessed == ()
    del study["data"]["schema"]["age"]["expected"]
    assert outlook(assemble(parse_study(study))).guessed == ("age",)


def test_what_is_said_of_vips_follows_its_noise() -> None:
    drowned = planned(raw_private("vips", 0.02, size=24))
    assert own(drowned).coefficients < 1.0
    assert drowned.warnings[0].startswith("the noise probably drowns single coefficients")
    assert not planned(raw_private("vips", 30.0, size=2)).warnings
    # Gradients are D numbers and curvatures D(D + 1)/2: between the two promises the one stands out alone.
    between = planned(raw_private("vips", 2.0, size=24, rounds=30))
    assert own(between).coefficients > 1.0 > own(between).curvature
    words = "the 24 entries of a gradient stand out of the noise, but the 300 of a curvature do not"
    assert words in between.reason
    # Rounds cost time alone: at the noise that T of them pay for, T answers have 9/5 of the noise of one.
    once, many = (
        signal("vips", NUMBERS._replace(rounds=rounds), 3.0 * math.sqrt(rounds), 1.0)
        for rounds in (1, 400)
    )
    assert many.curvature == pytest.approx(once.curvature / math.sqrt(9.0 / 5.0), rel=0.01)
    assert many.travelled > once.travelled
    # The last answer alone has the noise of all 400.
    last = signal("vips", NUMBERS._replace(rounds=400), 60.0, 1.0, averaging=0.0)
    assert last.curvature == pytest.approx(once.curvature / 20.0, rel=1e-9)


def test_a_record_of_many_trials_tells_as_many_times_as_much() -> None:
    raw = raw_private("vips", 1.0)
    raw["model"] = {
        "kind": "binomial",
        "formula": "cbind(s, f) ~ 0 + " + " + ".join(f"x{index}" for index in range(SIZE)),
        "typical_trials": 20,
    }
    raw["data"]["schema"] |= {name: {"type": "count", "bounds": [0, 99]} for name in ("s", "f")}
    many = planned(raw)
    assert many.numbers.curvature == pytest.approx(20 * TYPICAL_CURVATURE)
    raw["model"]["typical_trials"] = 1
    once = planned(raw)
    assert once.numbers == planned(raw_private("vips", 1.0)).numbers
    assert own(many).coefficients > 0.0
    assert {mode.solver for mode in many.modes if mode.noise_multiplier is None} == {
        mode.solver for mode in once.modes if mode.noise_multiplier is None
    }


def test_a_likelihood_without_a_conjugate_form_is_not_offered_to_vips() -> None:
    raw = raw_private("site_release", 1.0)
    raw["model"]["kind"] = "poisson"
    raw["data"]["schema"]["y"] = {"type": "count", "bounds": [0, 100]}
    (mode,) = [mode for mode in planned(raw).modes if mode.solver == "vips"]
    assert (mode.noise_multiplier, mode.signal) == (None, None)
    assert "needs a conjugate-exponential model" in mode.note
