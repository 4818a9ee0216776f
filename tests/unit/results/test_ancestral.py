"""Claims about NumPyro models run forwards: which columns they draw, in what order, and by what laws."""

import jax
import numpy as np
import pytest

from fedvi import errors, models
from fedvi.results import ancestral
from fedvi.results.ancestral import Outcome
from tests import forward_models
from tests.forward_models import unconstrained

pytestmark = pytest.mark.numpyro

COUNT = 20_000
WITHIN = 4.9 * 0.5 / np.sqrt(COUNT)  # of a proportion, false alarms below 1e-6


def model(function, **example):
    return models.numpyro_model(function, example)


WARD = model(forward_models.ward, days=0.0, kind=np.int32(0), age=0.0)
CLUSTERS = model(forward_models.clusters, age=0.0, smokes=0.0, ward=np.int32(0))


def sampled(found, theta, given, seed=1):
    drawn = ancestral.outcomes(found)
    return ancestral.sampled(found, drawn, theta, given, COUNT, np.random.SeedSequence(seed))


def test_the_columns_that_a_model_draws_are_found_in_its_order():
    assert ancestral.outcomes(WARD) == (Outcome("kind", "kind"), Outcome("days", "days"))
    assert [o.column for o in ancestral.outcomes(CLUSTERS)] == ["age", "smokes", "ward"]
    line = model(forward_models.line, x=np.zeros(2), y=0.0)
    assert ancestral.outcomes(line) == (Outcome("y", "y"),)
    counted = model(forward_models.counted, x=np.zeros(2), y=np.zeros(2))
    assert ancestral.outcomes(counted) == (Outcome("y", "y", first=True),)


@pytest.mark.parametrize(
    ("function", "columns", "said"),
    [
        (forward_models.tangled, ("a", "b"), r"depends on a column that is drawn later"),
        (forward_models.factored, ("a",), r"is a numpyro\.factor of a record"),
        (forward_models.squared, ("a",), r"observes is none of the columns a"),
    ],
)
def test_a_model_without_an_order_or_a_law_is_refused(function, columns, said):
    with pytest.raises(errors.ModelError, match=said):
        ancestral.outcomes(model(function, **dict.fromkeys(columns, 0.0)))


def test_a_later_column_is_drawn_given_the_earlier_one_that_was_drawn():
    age = np.full(COUNT, 1.0)
    found = sampled(WARD, np.array([0.0, 10.0, 20.0, 1.0]), {"age": age})
    chances = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    for kind in range(3):
        here = found["kind"] == kind
        assert here.mean() == pytest.approx(chances[kind], abs=WITHIN)
        # sd 0.5 around the level of that kind, plus age
        error = 5.0 * 0.5 / np.sqrt(here.sum())
        assert found["days"][here].mean() == pytest.approx(10.0 * kind + 1.0, abs=error)
    assert (found["age"] == 1.0).all()


@pytest.mark.nightly
def test_a_mixture_that_is_summed_out_column_by_column_has_its_joint_law():
    values = {
        "weights": np.array([0.3, 0.7]),
        "centres": np.array([-1.0, 1.0]),
        "rates": np.array([0.9, 0.2]),
        "shares": np.array([[0.8, 0.1, 0.1], [0.1, 0.3, 0.6]]),
    }
    with jax.enable_x64(True):
        theta = np.asarray(unconstrained(CLUSTERS, values))
    found = sampled(CLUSTERS, theta, {})
    for smokes in (0, 1):
        rates = np.where(smokes, values["rates"], 1.0 - values["rates"])
        for ward in range(3):
            each = values["weights"] * rates * values["shares"][:, ward]
            here = (found["smokes"] == smokes) & (found["ward"] == ward)
            assert here.mean() == pytest.approx(each.sum(), abs=WITHIN)
            centre = (each * values["centres"]).sum() / each.sum()
            # sd at most √(1 + 0.5²) within a cell
            error = 5.0 * np.sqrt(1.25) / np.sqrt(here.sum())
            assert found["age"][here].mean() == pytest.approx(centre, abs=error)


def test_an_offset_stands_beside_the_count_that_is_drawn():
    counted = model(forward_models.counted, x=np.zeros(1), y=np.zeros(2))
    offset = np.log(np.where(np.arange(COUNT) % 2, 1.0, 9.0))
    y = np.stack([np.zeros(COUNT), offset], axis=1)
    found = sampled(counted, np.array([0.0]), {"x": np.ones((COUNT, 1)), "y": y})["y"]
    assert (found[:, 1] == offset).all()
    half = COUNT // 2
    assert found[::2, 0].mean() == pytest.approx(9.0, abs=5.0 * 3.0 / np.sqrt(half))
    assert found[1::2, 0].mean() == pytest.approx(1.0, abs=5.0 / np.sqrt(half))


def test_the_same_seed_draws_the_same_records():
    theta, given = np.array([0.0, 1.0, 2.0, 0.5]), {"age": np.zeros(COUNT)}
    one, again, other = (sampled(WARD, theta, given, seed)["days"] for seed in (1, 1, 2))
    assert (one == again).all()
    assert not (one == other).all()
