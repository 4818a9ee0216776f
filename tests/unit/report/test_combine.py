"""Claims about answers of several synthetic sets: intervals hold the truth as often as they say."""

import numpy as np
import pytest
import scipy.stats

from fedvi.errors import ConfigError
from fedvi.report.combine import combine


def test_the_variance_is_that_between_sets_less_what_a_set_adds_by_its_size():
    found = combine([1.0, 2.0, 4.0], [0.3, 0.2, 0.1])
    between = np.var([1.0, 2.0, 4.0], ddof=1)
    assert found.estimate == pytest.approx(7.0 / 3.0)
    assert found.sd**2 == pytest.approx(4.0 / 3.0 * between - 0.2)
    assert found.degrees == pytest.approx(2.0 * (1.0 - 0.2 / (4.0 / 3.0 * between)) ** 2)
    assert not found.floored


def test_intervals_from_sets_cover_what_the_posterior_is_right_about():
    # θ̂ ~ N(θ, s²) is known with s; sets of 50 records of sd 1 are drawn at θ ~ N(θ̂, s²).
    generator = np.random.default_rng(0)
    runs, sets, size, s = 4000, 20, 50, 0.3
    centre = generator.normal(0.0, s, (1, runs))
    theta = centre + s * generator.normal(size=(sets, runs))
    means = theta + generator.normal(size=(sets, runs)) / np.sqrt(size)
    found = combine(means, np.full((sets, runs), 1.0 / size))
    reach = scipy.stats.t.ppf(0.975, found.degrees) * found.sd
    covered = (np.abs(found.estimate) < reach).mean()
    # Standard error of a share of 4,000: 0.0035; the t is an approximation.
    assert covered == pytest.approx(0.95, abs=0.015)
    # One set alone, taken for data, would say 1/√50 and cover half of that.
    naive = (np.abs(means[0]) < 1.96 / np.sqrt(size)).mean()
    assert naive < 0.6


def test_too_few_sets_give_a_wider_interval_and_say_so():
    found = combine([[1.0, 1.0], [1.1, 5.0]], [[9.0, 0.1], [9.0, 0.1]])
    assert found.floored.tolist() == [True, False]
    assert found.sd[0] == pytest.approx(np.sqrt(1.5 * np.var([1.0, 1.1], ddof=1)))


@pytest.mark.parametrize(
    ("estimates", "variances", "said"),
    [
        ([1.0], [1.0], r"at least two sets"),
        ([1.0, 2.0], [1.0], r"expected the same of both"),
        ([1.0, 2.0], [1.0, 0.0], r"no number above 0"),
        ([1.0, np.nan], [1.0, 1.0], r"is not finite"),
    ],
)
def test_what_is_no_set_of_answers_is_refused(estimates, variances, said):
    with pytest.raises(ConfigError, match=said):
        combine(estimates, variances)
