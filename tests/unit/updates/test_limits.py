"""How large an answer may be: what no honest site exceeds, and what no other may send."""

import math

import numpy as np
import pytest
import scipy.stats

from fedvi import errors
from fedvi.updates import limits
from fedvi.updates.limits import Limit, check, limit_of


@pytest.mark.parametrize("numbers", [1, 2, 5, 20, 351, 10_000, 1_000_000])
@pytest.mark.parametrize("answers", [1, 7])
def test_noise_alone_exceeds_a_limit_in_one_answer_of_a_billion_at_most(numbers, answers):
    # In units of the noise of one number; nothing is contributed, and C counts for nothing.
    limit = limit_of(0, 1.0, 1.0, numbers)
    most = limit.of_sum(answers) / limits._ROUNDING / math.sqrt(answers)
    assert scipy.stats.chi.sf(most, numbers) < 1e-9


def test_a_sum_of_all_records_at_the_clip_with_its_noise_is_taken():
    generator = np.random.default_rng(0)
    limit = limit_of(300, 2.0, 13.0, 20)
    direction = generator.normal(size=20)
    whole = 600.0 * direction / np.linalg.norm(direction)
    for _ in range(2000):
        noised = whole + 26.0 * generator.normal(size=20)
        check(limit, {"gradient": noised[:5], "curvature": noised[5:]}, "an answer")


@pytest.mark.parametrize("far", [1.01, 1e6, 1e200, 1e305])
@pytest.mark.parametrize("shape", [(5,), (5, 3), ()])
def test_what_is_longer_is_refused_and_the_message_shows_no_number_of_it(far, shape):
    limit = limit_of(300, 1.0, 26.0, 20)
    value = {"first": np.zeros(shape), "second": np.full(shape, 1e-300)}
    value["first"].reshape(-1)[0] = -far * limit.of_sum(1)
    with pytest.raises(errors.ProtocolError, match=r"^the answer is longer than 591\.") as caught:
        check(limit, value, "the answer")
    assert f"{far * limit.of_sum(1):.4g}"[:4] not in str(caught.value).replace("591.", "")


def test_many_small_numbers_count_together():
    limit = Limit(10.0, 0.0)
    check(limit, {"a": np.full(100, 0.99)}, "the answer")
    with pytest.raises(errors.ProtocolError, match=r"is longer than"):
        check(limit, {"a": np.full(50, 1.1), "b": np.full(50, 1.1)}, "the answer")


def test_the_limit_of_a_sum_grows_as_contributions_and_as_the_root_of_noise():
    limit = Limit(3.0, 2.0)
    assert limit.of_sum(4) == pytest.approx(1.001 * (12.0 + 4.0))
    assert limit.of_sum(4, 9.0) == pytest.approx(1.001 * (12.0 + 12.0))


def test_what_is_not_clipped_has_no_limit():
    assert limit_of(300, math.inf, 0.0, 20) is None


def test_an_answer_without_arrays_is_left_to_whoever_reads_it():
    check(Limit(10.0, 0.0), {}, "the answer")
    check(Limit(10.0, 0.0), {"a": np.zeros((0, 3))}, "the answer")
