"""What leaves through the door has the noise that was charged, at every fineness."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedvi.privacy import base, mechanisms, random, release, sampling
from fedvi.privacy import bounded as bounds
from fedvi.privacy.mechanisms import _alias

COUNT = 150_000


def released_noise(mechanism, clip_norm: float, seed: int) -> np.ndarray:
    """The released value of a total of zeros, in units of its charged standard deviation."""
    bounded = bounds.Bounded(
        jnp.zeros(COUNT, jnp.int32),
        base.Shift(clip_norm, clip_norm, 2.0 * clip_norm),
        sampling.full(1),
        mechanism.grid(clip_norm),
    )
    released = release.release(random.insecure_root(seed).key("noise"), bounded, mechanism)
    charged = released.event.noise_multiplier * clip_norm
    return np.asarray(released.value.integers) * released.value.step / charged


def is_standard_normal(noise: np.ndarray) -> bool:
    """Moments within 5 standard errors, and Kolmogorov–Smirnov; seeds are fixed."""
    return bool(
        abs(noise.mean()) < 5 / math.sqrt(noise.size)
        and abs((noise**2).mean() - 1) < 5 * math.sqrt(2 / noise.size)
        and abs((noise**4).mean() - 3) < 5 * math.sqrt(96 / noise.size)
        and scipy.stats.kstest(noise, "norm").pvalue > 1e-6
    )


@pytest.mark.nightly(
    but=("5.0-1.0-discrete_gaussian", "80.0-0.01-rounded_gaussian", "80.0-0.01-discrete_gaussian")
)
@pytest.mark.parametrize("name", ["rounded_gaussian", "discrete_gaussian"])
@pytest.mark.parametrize(("noise_multiplier", "clip_norm"), [(0.7, 3.0), (5.0, 1.0), (80.0, 0.01)])
def test_released_noise_is_what_was_charged(name, noise_multiplier, clip_norm):
    assert is_standard_normal(
        released_noise(getattr(mechanisms, name)(noise_multiplier), clip_norm, 7)
    )


@pytest.mark.parametrize("factor", [0.5, 0.8])
@pytest.mark.parametrize("noise_multiplier", [1.0, 80.0])
def test_weaker_noise_than_charged_is_seen(monkeypatch, factor, noise_multiplier):
    honest = _alias.draw

    def weaker(law, key, count):
        return jnp.round(factor * honest(law, key, count).astype(jnp.float32)).astype(jnp.int32)

    monkeypatch.setattr(_alias, "draw", weaker)
    assert not is_standard_normal(
        released_noise(mechanisms.rounded_gaussian(noise_multiplier), 1.0, 7)
    )


def test_steps_and_keys_do_not_share_noise():
    mechanism = mechanisms.rounded_gaussian(80.0)
    keys = jax.random.split(random.insecure_root(1).key("noise"), 2)
    zeros = jnp.zeros(COUNT, jnp.int32)
    one, two = (np.asarray(mechanism.perturb(key, zeros, 1.0)) for key in keys)
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(COUNT)
