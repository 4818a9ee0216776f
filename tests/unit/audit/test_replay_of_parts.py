"""The replay of solvers that clip whole changes: what enters their noise moves as far as is charged."""

from typing import Any

import numpy as np
import pytest

from fedvi import expfam, models
from fedvi.audit.recording import Recorder
from fedvi.audit.replay import replay
from fedvi.expfam import tree
from fedvi.inference import solvers
from fedvi.inference.base import Shard, Task
from fedvi.privacy import mechanisms, sampling
from fedvi.privacy.random import insecure_root, key
from fedvi.typing import IDS

SIZE, SLOTS = 2, 32


def product_keys(client: str, name: str) -> Any:
    secret = insecure_root(1).secret(client, name)
    return lambda purpose: key(secret, purpose)


def found(name: str, **options: Any) -> dict[str, bool | None]:
    family = expfam.full_gaussian(SIZE)
    recorder = Recorder(mechanisms.rounded_gaussian(2.0))
    solver = getattr(solvers, name)(
        family,
        models.logistic(["a", "b"]),
        sampling.full(SLOTS),
        recorder,
        clip_norm=0.3,
        **options,
    )
    generator = np.random.default_rng(0)
    mask = np.arange(SLOTS) < 12
    records = {
        "x": 5.0 * generator.normal(size=(SLOTS, SIZE)) * mask[:, None],
        "y": generator.integers(0, 2, SLOTS) * mask.astype(float),
        IDS: np.arange(SLOTS, dtype=np.uint64) * mask.astype(np.uint64),
    }
    prior = family.isotropic(2.5)
    task = Task("t", "a", 0, 0, prior, family.zeros(), 1.0)

    def advance(task: Task, answer: Any) -> Task:
        factor = tree.add_scaled(task.factor, answer.delta, 0.1)
        return task._replace(posterior=tree.add(prior, factor), factor=factor, damping=0.1)

    findings = replay(
        solver, recorder, product_keys, task, Shard(records, mask), ("a", "b"), 3, advance
    )
    return {finding.check: finding.passed for finding in findings}


@pytest.mark.parametrize("name", ["virtual_clients", "perturbed_update"])
def test_the_code_as_it_is_passes(name: str) -> None:
    outcome = found(name) if name == "perturbed_update" else found(name, parts=3)
    assert all(outcome.values()), outcome
