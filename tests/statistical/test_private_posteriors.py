"""Private posteriors stay honest: their own intervals cover the pooled answer, however long they run."""

import numpy as np
import pytest

from fedvi.federation import schedules
from tests.studies import raw_study, run_study, synthetic_logistic


def private(kind: str, rounds: int, family: str, seed: int) -> dict:
    raw = raw_study(
        ["c0", "c1", "c2", "c3"],
        5,
        kind="logistic",
        family=family,
        prior_scale=2.5,
        solver={"kind": "dp_optimisation", "steps": 20},
        schedule={"kind": kind, "rounds": rounds},
        latencies=[1.0, 1.7, 2.3, 3.1],
        simulation={"insecure_seed": seed},
    )
    raw["privacy"] = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "relation": "substitute"}
    raw["data"]["max_records"] = 120
    return raw


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["full_gaussian", "diagonal_gaussian"])
@pytest.mark.parametrize("kind", schedules.__all__)
def test_more_rounds_at_the_same_budget_do_not_make_it_confident_and_wrong(kind, family):
    sources = synthetic_logistic(4, 120, 5)
    for rounds in (2, 30):
        result = run_study(private(kind, rounds, family, seed=rounds), sources, pooled=True)
        mean, sd = result.assembly.family.moments(result.posterior)
        pooled_mean, pooled_sd = result.assembly.family.moments(result.pooled)
        distance = np.sqrt(np.mean(((mean - pooled_mean) / sd) ** 2))
        # 1 is what honest intervals give; Adam without the shortening gave up to 40 at 10 rounds.
        # Seeds are fixed; over 84 other runs the largest was 0.9, and the least ratio of sds 3.
        assert distance < 2.0, rounds
        assert (sd > 0.8 * pooled_sd).all(), rounds


@pytest.mark.nightly
def test_enough_records_give_the_pooled_answer():
    """At ε = 8 and 5,000 records a site, with a clip that spares most records, the mean is right.

    A clip norm of 1 would shrink the gradients of the records that fit worst, and so inflate the
    coefficients by half.
    """
    sources = synthetic_logistic(4, 5_000, 5)
    raw = private("synchronous", 4, "full_gaussian", seed=1)
    raw["privacy"]["epsilon"] = 8.0
    raw["data"]["max_records"] = 5_000
    raw["solver"] = {"kind": "dp_optimisation", "steps": 100, "clip_norm": 4.0}
    result = run_study(raw, sources, pooled=True)
    mean, sd = result.assembly.family.moments(result.posterior)
    pooled_mean, _ = result.assembly.family.moments(result.pooled)
    assert np.abs(mean - pooled_mean).max() < 0.15 * np.abs(pooled_mean).max()
    assert (sd < 0.2 * 2.5).all()
