"""The cases by NumPy alone, for all candidates: their environments share nothing else."""

from typing import Any, NamedTuple

import numpy as np


class Table(NamedTuple):
    """Synthetic columns, the records in a batch, the noise multiplier. The clip norm is 1 throughout."""

    columns: tuple[Any, ...]
    batch: int
    noise: float


def vae() -> Table:
    """60,000 records of 784 binary columns."""
    x = (np.random.default_rng(0).random((60_000, 784)) < 0.2).astype(np.float32)
    return Table((x,), 128, 2.0)


def logistic() -> Table:
    """50,000 records of 100 covariates and an outcome."""
    random = np.random.default_rng(0)
    x = random.normal(size=(50_000, 100)).astype(np.float32)
    return Table((x, _outcomes(random, x[:, :10].sum(axis=1))), 256, 2.0)


def hierarchical() -> Table:
    """500 records of 5 covariates, one of 3 groups and an outcome; batches of 10, the paper's script's."""
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 5)).astype(np.float32)
    group = random.integers(0, 3, 500).astype(np.int32)
    slopes = random.normal(size=(3, 5))
    return Table((x, group, _outcomes(random, (x * slopes[group]).sum(axis=1))), 10, 40.0)


def _outcomes(random: np.random.Generator, logits: Any) -> Any:
    return (random.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits))).astype(np.float32)


TABLES = {"vae": vae, "logistic": logistic, "hierarchical": hierarchical}
