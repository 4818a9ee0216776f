"""Without a policy a site answers no study that guarantees nothing, unless a flag allows it by name."""

import itertools
from pathlib import Path

import pytest

from fedvi import errors
from fedvi.client.policy import parse_policy
from fedvi.study.build import assemble
from fedvi.study.config import parse_study
from fedvi.study.policies import check_without_policy
from tests.studies import raw_study

FILE = Path("studies/study.toml")
PROMISE = {"epsilon": 4.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
PRIVATE = {"kind": "dp_optimisation", "steps": 2, "clip_norm": 1.0}
LEAVES = "un-noised statistics of the records would leave this site"
OPEN = f'protection = "none" in [privacy]: {LEAVES}'
SEEDED = "insecure_seed = 3 in [simulation]: whoever has the file can take the noise off"
FLOAT = 'mechanism = "gaussian" in [privacy]: its noise is drawn in floating point, and guarantees nothing'

STUDIES = {
    "a promise": ({}, {}),
    "open": ({"protection": "none"}, {"unprotected": OPEN}),
    "seeded": ({"insecure_seed": 3}, {"simulated_noise": SEEDED}),
    "float": ({"mechanism": "gaussian"}, {"simulated_noise": FLOAT}),
    "seeded float": (
        {"mechanism": "gaussian", "insecure_seed": 3},
        {"simulated_noise": SEEDED},
    ),
    "open and seeded": (
        {"protection": "none", "insecure_seed": 3},
        {"unprotected": OPEN, "simulated_noise": SEEDED},
    ),
}


def study(protection=None, mechanism=None, insecure_seed=None):
    privacy = {"protection": "none"} if protection else dict(PROMISE)
    if mechanism:
        privacy["mechanism"] = mechanism
    raw = raw_study(
        ["north"],
        2,
        solver={"kind": "exact"} if protection else PRIVATE,
        privacy=privacy,
        simulation={} if insecure_seed is None else {"insecure_seed": insecure_seed},
    )
    raw["data"]["max_records"] = 30
    return assemble(parse_study(raw))


@pytest.mark.parametrize("kind", STUDIES)
def test_every_study_without_a_guarantee_needs_the_flag_of_its_name_and_no_other(kind):
    settings, reasons = STUDIES[kind]
    assembly = study(**settings)
    for unprotected, simulated in itertools.product((False, True), repeat=2):
        given = {"unprotected": unprotected, "simulated_noise": simulated}
        missing = [name for name in reasons if not given[name]]
        if not missing:
            check_without_policy(assembly, FILE, **given)
            continue
        with pytest.raises(errors.PolicyRefused) as caught:
            check_without_policy(assembly, FILE, **given)
        assert caught.value.exit_code == 5
        assert caught.value.message.startswith(f"{FILE} guarantees nothing, and no policy of this")
        for name, said in reasons.items():
            assert (said in caught.value.message) == (name in missing)
            flag = f"--allow-{name.replace('_', '-')}"
            assert (flag in caught.value.hint) == (name in missing)
            assert (f"{name} = true" in caught.value.hint) == (name in missing)


def test_a_policy_takes_no_open_study_for_a_private_one_because_its_solver_adds_noise():
    """Its noise is drawn from [study] seed, so that whoever has the file can take it off."""
    raw = raw_study(
        ["north"],
        2,
        solver={**PRIVATE, "noise_multiplier": 50.0},
        privacy={"protection": "none", "mechanism": "rounded_gaussian"},
    )
    raw["data"]["max_records"] = 30
    request = assemble(parse_study(raw)).request
    assert (request.unprotected, request.simulated) == (True, False)
    run = {"epsilon": 4.0, "delta": 1e-5}
    with pytest.raises(errors.PolicyRefused, match=r"allow\.unprotected is not true"):
        parse_policy({"run": run}).check(request)
    parse_policy({"run": run, "allow": {"unprotected": True}}).check(request)
    assert not study().request.unprotected
