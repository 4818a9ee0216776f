"""Events: what they refuse, how they compose and flatten, how they are written and read."""

import json
import math

import numpy as np
import pytest

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy.events import (
    NOTHING,
    Composed,
    Gaussian,
    PoissonSampled,
    Repeated,
    Unprotected,
    compose,
    counts,
    from_json,
    repeat,
    to_json,
)

GAUSSIAN = to_json(Gaussian(2.0))
ONE_OF_EACH = [
    Gaussian(2.0),
    Gaussian(0.0, add_remove=0.0, substitute=0.0),
    PoissonSampled(0.01, Gaussian(1.5), overflow=1e-9),
    PoissonSampled(1.0, Composed((Gaussian(1.0), Gaussian(2.0)))),
    Repeated(Gaussian(3.0), 7),
    Composed((Gaussian(1.0), Unprotected("a factor"))),
    Unprotected("a factor"),
    NOTHING,
]


@pytest.mark.parametrize(
    ("make", "field", "found"),
    [
        (lambda: Gaussian(-1.0), "noise_multiplier", "-1.0"),
        (lambda: Gaussian(math.nan), "noise_multiplier", "nan"),
        (lambda: Gaussian(math.inf), "noise_multiplier", "inf"),
        (lambda: Gaussian(1.0, add_remove=-0.5), "add_remove", "-0.5"),
        (lambda: Gaussian(1.0, substitute=math.inf), "substitute", "inf"),
        (lambda: PoissonSampled(0.0, Gaussian(1.0)), "rate", "0.0"),
        (lambda: PoissonSampled(1.5, Gaussian(1.0)), "rate", "1.5"),
        (lambda: PoissonSampled(math.nan, Gaussian(1.0)), "rate", "nan"),
        (lambda: PoissonSampled(0.5, Gaussian(1.0), overflow=1.0), "overflow", "1.0"),
        (lambda: PoissonSampled(0.5, Gaussian(1.0), overflow=-1e-9), "overflow", "-1e-09"),
        (lambda: Repeated(Gaussian(1.0), 0), "count", "0"),
        (lambda: Unprotected(""), "what", "''"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_its_field_and_value(make, field, found):
    with pytest.raises(ConfigError) as caught:
        make()
    assert f"`{field}`" in caught.value.message
    assert found in caught.value.message


def test_every_record_may_be_sampled_with_probability_one():
    assert PoissonSampled(1.0, Gaussian(1.0)).rate == 1.0


def test_equal_numbers_of_other_types_make_the_same_event_and_the_same_json():
    event = Repeated(Gaussian(np.float64(2.0), np.float64(1.0), np.float64(2.0)), 3)
    same = from_json({**to_json(Repeated(Gaussian(2.0), 3)), "inner": GAUSSIAN | {"add_remove": 1}})
    assert event == same
    assert hash(event) == hash(same)
    assert json.dumps(to_json(event)) == json.dumps(to_json(same))
    assert json.dumps(to_json(Gaussian(1.0, -0.0))) == json.dumps(to_json(Gaussian(1.0, 0.0)))


def test_flattening_multiplies_through_nesting_and_joins_equal_atoms():
    a, b = Gaussian(1.0), PoissonSampled(0.1, Gaussian(2.0))
    event = Composed((a, Repeated(Composed((a, b, Repeated(b, 2))), 5), NOTHING))
    assert counts(event) == {a: 6, b: 15}
    assert counts(NOTHING) == {}


def test_a_sampled_composition_stays_one_atom():
    sampled = PoissonSampled(0.1, Repeated(Gaussian(2.0), 3))
    assert counts(Repeated(sampled, 4)) == {sampled: 4}


def test_composing_flattens_merges_neighbours_and_drops_nothing():
    a, b = Gaussian(1.0), Gaussian(2.0)
    assert compose(a, NOTHING, compose(a, b), repeat(b, 2)) == Composed(
        (Repeated(a, 2), Repeated(b, 3))
    )
    assert compose(a) == a
    assert compose(NOTHING, NOTHING) == NOTHING


def test_a_long_composition_of_equal_releases_stays_short():
    event = NOTHING
    for _ in range(1000):
        event = compose(event, Gaussian(1.0))
    assert event == Repeated(Gaussian(1.0), 1000)


def test_repeating_none_or_nothing_is_nothing():
    assert repeat(Gaussian(1.0), 0) == NOTHING
    assert repeat(NOTHING, 5) == NOTHING
    assert repeat(Gaussian(1.0), 1) == Gaussian(1.0)
    with pytest.raises(ConfigError, match="count"):
        repeat(Gaussian(1.0), -1)


@pytest.mark.parametrize("event", ONE_OF_EACH)
def test_an_event_survives_json(event):
    assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


def test_an_unknown_kind_is_refused_with_the_nearest_known_one():
    with pytest.raises(UnsupportedEvent, match="'gausian'") as caught:
        from_json({"kind": "gausian", "noise_multiplier": 1.0})
    assert "did you mean `gaussian`" in caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "gaussian", "noise_multiplier": 1.0, "add_remove": 1.0},
        {**to_json(Gaussian(1.0)), "amplified": True},
        {"kind": "composed", "events": {"kind": "gaussian"}},
        {"kind": "repeated", "inner": 3, "count": 2},
        {"kind": ["gaussian"]},
        {},
        "gaussian",
    ],
)
def test_a_missing_or_unknown_field_is_refused(data):
    with pytest.raises(UnsupportedEvent):
        from_json(data)


@pytest.mark.parametrize(
    ("data", "field", "found"),
    [
        (GAUSSIAN | {"noise_multiplier": "2"}, "noise_multiplier", "'2'"),
        (GAUSSIAN | {"noise_multiplier": True}, "noise_multiplier", "True"),
        (GAUSSIAN | {"noise_multiplier": None}, "noise_multiplier", "None"),
        (GAUSSIAN | {"substitute": 10**400}, "substitute", "inf"),
        ({"kind": "poisson", "rate": 2.0, "inner": GAUSSIAN, "overflow": 0.0}, "rate", "2.0"),
        ({"kind": "poisson", "rate": 0.5, "inner": GAUSSIAN, "overflow": []}, "overflow", "[]"),
        ({"kind": "repeated", "inner": GAUSSIAN, "count": 2.0}, "count", "2.0"),
        ({"kind": "repeated", "inner": GAUSSIAN, "count": True}, "count", "True"),
        ({"kind": "unprotected", "what": 3}, "what", "3"),
    ],
)
def test_a_value_of_another_type_in_json_is_refused_with_its_field(data, field, found):
    with pytest.raises(ConfigError) as caught:
        from_json(data)
    assert f"`{field}`" in caught.value.message
    assert found in caught.value.message


def test_deep_nesting_is_refused_before_it_exhausts_the_stack():
    data = to_json(Gaussian(1.0))
    for _ in range(100_000):
        data = {"kind": "repeated", "inner": data, "count": 2}
    with pytest.raises(UnsupportedEvent, match="nested"):
        from_json(data)
