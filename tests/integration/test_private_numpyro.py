"""Claims about private site release of a NumPyro model that is no GLM, or has no normal prior."""

import functools
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

from fedvi.run import simulate
from fedvi.study.config import parse_study

pytestmark = pytest.mark.numpyro

MODULE = "fedvi_private_models"
MODELS = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def stages(y, age, dose):
    b = numpyro.sample("b", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        slope = b[0] * age + b[1] * dose
        numpyro.sample("y", dist.OrderedLogistic(slope, jnp.array([-1.0, 0.5])), obs=y)


def heavy(y, age, dose):
    b = numpyro.sample("b", dist.Laplace(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b[0] * age + b[1] * dose + b[2]), obs=y > 0)
"""
CUTS = np.array([-np.inf, -1.0, 0.5, np.inf])
COUNTS = {"north": 900, "south": 600}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on Python's path with the models, and two files of made-up records in three stages."""
    path, generator = tmp_path_factory.mktemp("private"), np.random.default_rng(7)
    (path / f"{MODULE}.py").write_text(MODELS)
    for client, count in COUNTS.items():
        age, dose = generator.normal(size=(2, count))
        latent = 0.8 * age - 0.5 * dose + generator.logistic(size=count)
        stage = np.array(["none", "some", "much"])[np.digitize(latent, CUTS[1:-1])]
        rows = [
            f"{s},{a!r},{d!r}" for s, a, d in zip(stage, age.tolist(), dose.tolist(), strict=True)
        ]
        (path / f"{client}.csv").write_text("\n".join(["y,age,dose", *rows]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        yield path


def fitted(
    folder: Path, model: str, *, rounds: int, epsilon: float, seed: int, **solver: Any
) -> Any:
    number = {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}
    study = {
        "study": {"name": "stages", "seed": 3},
        "model": {"kind": model},
        "solver": {"kind": "site_release", **solver},
        "schedule": {"kind": "synchronous", "rounds": rounds},
        "privacy": {
            "epsilon": epsilon, "delta": 1e-5, "unit": "record", "relation": "substitute"
        },
        "simulation": {"insecure_seed": seed},
        "data": {
            "max_records": 900,
            "schema": {
                "y": {"type": "level", "levels": ["none", "some", "much"]},
                "age": number,
                "dose": number,
            },
        },
        "clients": [{"name": name, "data": f"{name}.csv"} for name in COUNTS],
    }  # fmt: skip
    result = simulate.simulate(
        parse_study(study), folder, parts={model: getattr(importlib.import_module(MODULE), model)}
    )
    return result.assembly.family.moments(result.posterior)


@functools.cache
def pooled(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd of the posterior of all records of ``stages``, by a grid in float64."""
    lines = [line.split(",") for c in COUNTS for line in (folder / f"{c}.csv").read_text().split()]
    rows = [line for line in lines if line[0] != "y"]
    stage = np.array([["none", "some", "much"].index(row[0]) for row in rows])
    x = np.array([[float(row[1]), float(row[2])] for row in rows])
    axes = np.linspace(0.4, 1.2, 81), np.linspace(-0.9, -0.1, 81)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    predictor = grid @ x.T
    upper, lower = (scipy.special.expit(CUTS[stage + k] - predictor) for k in (1, 0))
    logs = np.log(upper - lower).sum(1) - (grid**2).sum(1) / (2.0 * 1.5**2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ grid
    return mean, np.sqrt(weights @ (grid - mean) ** 2)


@pytest.mark.nightly
def test_an_ordinal_model_reaches_its_pooled_posterior_at_a_large_epsilon(folder: Path) -> None:
    mean, sd = fitted(
        folder, "stages", rounds=10, epsilon=200.0, seed=1, clip_norm=5.0, draws=32
    )  # fmt: skip
    wanted, wanted_sd = pooled(folder)
    # Of eight seeds means were off by 0.23 sds, at most 0.45, and sds up to 4 % wider, as noise and draws
    # make them.
    assert (np.abs(mean - wanted) < 0.75 * wanted_sd).all()
    assert (sd < 1.2 * wanted_sd).all()
    assert (sd > 0.95 * wanted_sd).all()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_drowned_coefficients_of_laplace_priors_keep_about_the_priors_sd(
    folder: Path, seed: int
) -> None:
    mean, sd = fitted(folder, "heavy", rounds=10, epsilon=0.02, seed=seed, clip_norm=2.0)
    assert (sd < 1.5 * math.sqrt(2.0)).all()
    assert (np.abs(mean) < 2.5 * sd).all()
