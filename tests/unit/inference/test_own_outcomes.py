"""An outcome from outside of fedvi decides what its own record contributes, and nothing of another one."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from fedvi import expfam
from fedvi.inference import weights, whitened
from fedvi.inference.predictor import gradients
from fedvi.models.glm import regression
from fedvi.models.outcomes.accepted import Accepted
from fedvi.updates.base import Task
from tests.studies import random_eta

SIZE, COUNT = 3, 8


@dataclasses.dataclass(frozen=True)
class Nosy:
    """A normal outcome whose derivatives change sign if any row that they are given has a large y."""

    conjugate: ClassVar[bool] = False
    accepts: ClassVar[Accepted] = Accepted(("number",), "a number", ("number",))

    def log_density(self, linear_predictor: Any, y: Any) -> Any:
        return self.derivatives(linear_predictor, y)[0]

    def derivatives(self, linear_predictor: Any, y: Any) -> tuple[Any, Any, Any]:
        a = jnp.asarray(linear_predictor)
        left = jnp.asarray(y).astype(a.dtype) - a
        sign = self._sign(y)
        return -0.5 * sign * left**2, sign * left, -sign * jnp.ones_like(left)

    def steepest(self, linear_predictor: Any, y: Any) -> Any:
        return jnp.abs(jnp.asarray(linear_predictor)) + 2.0 + self._sign(y)

    def sharpest(self, linear_predictor: Any, y: Any) -> Any:
        return jnp.ones_like(jnp.asarray(linear_predictor)) + 0.1 * self._sign(y)

    def _sign(self, y: Any) -> Any:
        return jnp.where(jnp.max(jnp.asarray(y)) > 2.0, -1.0, 1.0)


MODEL: Any = regression([f"x{index}" for index in range(SIZE)], 2.5, None, Nosy(), False)


def records() -> list[dict[str, Any]]:
    """The same records twice, but for the first outcome."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(0.4 * generator.normal(size=(COUNT, SIZE)), jnp.float32)
    y = jnp.asarray(generator.uniform(-1.0, 1.0, COUNT), jnp.float32)
    return [{"x": x, "y": y}, {"x": x, "y": y.at[0].set(3.0)}]


def assert_only_the_first_differs(one: Any, other: Any) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left[1:], right[1:])
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(one, other, strict=True))


def test_it_moves_no_other_record_s_gradient() -> None:
    family = expfam.full_gaussian(SIZE)
    task = Task("c/0", "c", 0, 0, random_eta(family, 1), family.zeros(), 1.0)
    at: Any = whitened.single(whitened.frame(family, task))
    guide = at.mean, jnp.zeros_like(at.root)
    noise = jnp.ones((2, SIZE), jnp.float32)
    assert_only_the_first_differs(
        *(gradients(MODEL, guide, at, noise, rows).formed() for rows in records())
    )


def test_it_moves_no_other_record_s_curvature_or_weight() -> None:
    mean, root = jnp.zeros(SIZE, jnp.float32), jnp.eye(SIZE, dtype=jnp.float32)
    at = jnp.zeros(SIZE), jnp.ones(SIZE), 0, 0.0, 0.0
    assert_only_the_first_differs(
        *(weights.of_predictor(MODEL, 5, mean, root, at, rows, 1.0, 0.5) for rows in records())
    )
