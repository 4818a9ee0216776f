"""The replay of a private solver whose guide also holds effects of the site: clipped and noised with θ."""

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedvi import expfam, models
from fedvi.audit.recording import Recorder
from fedvi.audit.replay import replay
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.models.site_effects import site_effects
from fedvi.privacy import bounded as bounds
from fedvi.privacy import mechanisms, sampling
from fedvi.privacy.random import insecure_root, key
from fedvi.updates.base import Shard, Task

SIZE, SLOTS, CLIP = 2, 32, 0.1

# The function of the same name hides the module as an attribute of its package.
module = importlib.import_module("fedvi.inference.solvers.dp_optimisation")


def product_keys(client: str, name: str) -> Any:
    secret = insecure_root(1).secret(client, name)
    return lambda purpose: key(secret, purpose)


def found(mechanism: Any, learnt: bool = False) -> dict[str, bool | None]:
    model = site_effects(models.logistic(["a", "b"]), scale=0.8, learnt=learnt)
    family, recorder = expfam.full_gaussian(model.size), Recorder(mechanism)
    solver = solvers.dp_optimisation(
        family, model, sampling.full(SLOTS), recorder, clip_norm=CLIP, steps=3, draws=2
    )
    generator = np.random.default_rng(0)
    mask = np.arange(SLOTS) < 12
    records = {
        "x": generator.normal(size=(SLOTS, SIZE)) * mask[:, None],
        "y": generator.integers(0, 2, SLOTS) * mask.astype(float),
    }
    prior = tree.to_numpy(family.isotropic(1.0))
    task = Task("t", "a", 0, 0, prior, family.zeros(), 1.0)

    def advance(task: Task, answer: Any) -> Task:
        factor = tree.add_scaled(task.factor, answer.delta, 0.1)
        return task._replace(posterior=tree.add(prior, factor), factor=factor)

    findings = replay(
        solver, recorder, product_keys, task, Shard(records, mask), ("a", "b"), 2, advance
    )
    return {finding.check: finding.passed for finding in findings}


@pytest.mark.nightly
@pytest.mark.parametrize("learnt", [False, True], ids=["known", "learnt"])
def test_the_code_as_it_is_passes(learnt: bool) -> None:
    outcome = found(mechanisms.rounded_gaussian(2.0), learnt)
    assert all(outcome.values()), outcome


def test_effects_that_are_left_out_of_the_norm_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """θ's gradient is clipped as ever, and that of the effect shrunk by the same factor: too little."""

    def clipped(contributions: Any, clip_norm: float, batch: Any, mechanism: Any) -> Any:
        location, raw = contributions
        shared = (location[:, :SIZE] ** 2).sum(axis=1)
        shared = shared + (raw[:, :SIZE, :SIZE] ** 2).sum(axis=(1, 2))
        factor = jnp.minimum(1.0, clip_norm / jnp.maximum(jnp.sqrt(shared), 1e-9))

        def total(leaf: Any) -> Any:
            shape = (-1, *[1] * (leaf.ndim - 1))
            kept = jnp.nan_to_num(leaf * factor.reshape(shape))
            return jnp.where(batch.mask.reshape(shape), kept, 0.0).sum(axis=0)

        bounded = bounds.clipped_sum(contributions, clip_norm, batch, mechanism)
        return dataclasses.replace(bounded, total=jax.tree.map(total, contributions))

    def of_parts(parts: Any, clip_norm: float, _: str, *rest: Any) -> Any:
        return clipped(parts.of(0).formed(), clip_norm, *rest)

    monkeypatch.setattr(module, "clipped_sum", clipped)
    monkeypatch.setattr(module, "clipped", of_parts)
    outcome = found(mechanisms.gaussian(2.0))
    assert outcome["one record added or removed"] is False
    assert outcome["one record substituted"] is False
    assert outcome["noise scale"] is True


class NoneForEffects:
    """A mechanism that leaves out the noise of what "stays at the site anyway"."""

    def __init__(self) -> None:
        self._inner = mechanisms.gaussian(2.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def perturb(self, key: Any, total: Any, clip_norm: float) -> Any:
        def shared(noised: Any, exact: Any) -> Any:
            last = jnp.arange(exact.shape[-1]) < SIZE
            return jnp.where(jnp.broadcast_to(last, exact.shape), noised, exact)

        return jax.tree.map(shared, self._inner.perturb(key, total, clip_norm), total)


@pytest.mark.nightly
def test_effects_without_noise_are_found() -> None:
    outcome = found(NoneForEffects())
    assert outcome["noise everywhere"] is False
