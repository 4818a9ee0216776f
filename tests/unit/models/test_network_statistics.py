"""Claims about discrete Bayesian networks."""

import jax
import numpy as np
import pytest

from fedvi import VIPS, errors, privacy
from fedvi.inference.solvers.vips import vips
from fedvi.models.network_statistics import DiscreteNetwork
from fedvi.privacy import mechanisms, sampling
from tests.vips import federate, shard_of

# Pearl's sprinkler, with a season of four levels.
MODEL = DiscreteNetwork(
    ("season", "rain", "sprinkler", "wet"),
    (4, 2, 2, 3),
    ((), ("season",), ("season",), ("rain", "sprinkler")),
    concentration=0.5,
)


def simulated(count: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    season = generator.integers(4, size=count)
    rain = generator.uniform(size=count) < np.array([0.7, 0.3, 0.1, 0.5])[season]
    sprinkler = generator.uniform(size=count) < np.array([0.1, 0.4, 0.8, 0.2])[season]
    wet = rain.astype(int) + (sprinkler & (generator.uniform(size=count) < 0.8))
    return np.stack([season, rain, sprinkler, wet], axis=1).astype(np.int32)


def test_one_round_is_the_exact_posterior():
    levels = simulated(500, 1)
    solver = vips(
        MODEL.family, MODEL, sampling.full(500), mechanisms.gaussian(0.0), clip_norm=np.inf
    )
    found = federate(solver, [shard_of({"levels": levels})], 1)[-1].handed_out
    season, rain, sprinkler, wet = levels.T
    for part, (row, column, shape) in zip(
        found,
        [
            (0 * season, season, (1, 4)),
            (season, rain, (4, 2)),
            (season, sprinkler, (4, 2)),
            (2 * rain + sprinkler, wet, (4, 3)),
        ],
        strict=True,
    ):
        counts = np.zeros(shape)
        np.add.at(counts, (row, column), 1.0)
        # Totals without noise are handed over in float32.
        np.testing.assert_allclose(part.power + 1.0, 0.5 + counts, rtol=1e-6, atol=1e-5)


def test_cells_are_named_in_the_order_of_their_numbers():
    tables = MODEL.tables(MODEL.start)
    assert {name: table.shape for name, table in tables.items()} == {
        "season": (1, 4),
        "rain": (4, 2),
        "sprinkler": (4, 2),
        "wet": (4, 3),
    }
    assert MODEL.names[:6] == (
        *(f"season={level}" for level in range(4)),
        "rain=0|season=0",
        "rain=1|season=0",
    )
    assert MODEL.names[-3] == "wet=0|rain=1,sprinkler=1"
    assert MODEL.names[-6] == "wet=0|rain=1,sprinkler=0"


def test_a_record_has_the_norm_of_one_cell_in_each_table_whatever_its_levels():
    records = {"levels": simulated(50, 2)}
    local = MODEL.expected({}, records)
    with jax.enable_x64(True):
        squares = MODEL.square_norms({}, {"known": local["known"].astype("float64")}, records)
    np.testing.assert_array_equal(sum(map(np.asarray, squares.values())), 4.0)


def test_levels_that_are_missing_or_not_declared_leave_out_the_tables_that_need_them():
    levels = np.array([[0, 1, 1, 2], [-1, 1, 1, 2], [0, 2, 1, 1], [0, 1, 1, -7]], np.int32)
    known = MODEL.expected({}, {"levels": levels})["known"]
    assert known.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 0], [1, 1, 1, 0]]
    halves = MODEL.expected({}, {"levels": np.array([[0.0, 0.5, 1.0, 2.0]], np.float32)})["known"]
    assert halves.tolist() == [[1, 0, 1, 0]]
    assert MODEL.sound({"levels": levels}).tolist() == [True, True, False, False]
    assert MODEL.sound({"levels": np.array([[0.0, 0.5, 1.0, 2.0]])}).tolist() == [False]


def test_private_tables_are_near_the_true_ones():
    levels = simulated(4000, 3)
    plan = privacy.sgd(
        epsilon=1.0, delta=1e-5, steps=1, max_records=4000, sampler="full", insecure_seed=1
    )
    result = VIPS(MODEL, plan).run({"levels": levels}, progress_bar=False)
    rain = MODEL.tables(result.posterior)["rain"][:, 1]
    # A thousand records a season: sds of .015 of sampling, and as much of noise of some ten counts.
    assert np.abs(rain - [0.7, 0.3, 0.1, 0.5]).max() < 0.08


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variables": ("a", "a")}, "no name twice"),
        ({"levels": (2,)}, "2 variables, 1 numbers of levels and 2 lists of parents"),
        ({"levels": (2, 1)}, "b has 1 levels, expected at least 2"),
        ({"parents": ((), ("c",))}, "b has the parent 'c', which is no variable"),
        ({"parents": ((), ("a", "a"))}, "expected no name twice"),
        ({"parents": (("b",), ("a",))}, "parents form a cycle: "),
        ({"parents": (("a",), ())}, "parents form a cycle: a -> a"),
        ({"concentration": 0.0}, "concentration is 0.0"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    arguments = {"variables": ("a", "b"), "levels": (2, 2), "parents": ((), ("a",))}
    with pytest.raises(errors.ModelError, match=message):
        DiscreteNetwork(**(arguments | change))
