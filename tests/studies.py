"""Small studies and records that several tests share."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedvi.data.source import ArraySource
from fedvi.expfam.dirichlet import Dirichlet
from fedvi.expfam.gamma import Gamma
from fedvi.expfam.low_rank_gaussian import LowRankEta, LowRankGaussian
from fedvi.expfam.normal_gamma_rows import NormalGammaRows
from fedvi.expfam.normal_wishart import NormalWishart
from fedvi.expfam.product import Product
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study

REFERENCES = Path(__file__).parent / "references"

CONJUGATE: dict[str, dict[str, Any]] = {
    "discrete_network": {"variables": ["a", "b"], "levels": [2, 3], "parents": [[], ["a"]]},
    "factor_analysis": {"columns": ["a", "b"], "factors": 1, "scales": [1.0, 1.0], "row_norm": 1.5},
    "gaussian_mixture": {
        "columns": ["a", "b"],
        "components": 2,
        "scales": [1.0, 1.0],
        "row_norm": 2.0,
    },
    "hidden_markov": {"states": 2, "symbols": 3, "length": 4},
    "latent_dirichlet": {"topics": 2, "vocabulary": 9, "length": 20.0, "distinct": 4},
    "linear_unknown_noise": {"coefficients": ["a"], "prior_scales": [3.0], "row_norm": 1.0},
    "sigmoid_belief_network": {"visible": 3, "hidden": 2},
}
"""Arguments of a small model of each conjugate kind."""


def raw_study(
    clients: list[str],
    size: int,
    *,
    kind: str = "linear",
    family: str = "full_gaussian",
    solver: dict[str, Any] | None = None,
    schedule: dict[str, Any] | None = None,
    prior_scale: float = 1.0,
    latencies: list[float] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """Returns the tables of a study of ``y ~ 0 + x0 + x1 + …``, without protection."""
    columns = [f"x{index}" for index in range(size)]
    response = (
        {"type": "binary", "true": ["1"], "false": ["0"]}
        if kind == "logistic"
        else {"type": "number", "bounds": [-1e6, 1e6], "center": 0, "scale": 1}
    )
    number = {"type": "number", "bounds": [-1e6, 1e6], "center": 0, "scale": 1}
    return {
        "study": {"name": "test", "seed": 3},
        "model": {"kind": kind, "formula": "y ~ 0 + " + " + ".join(columns)},
        "family": {"kind": family},
        "prior": {"scale": prior_scale},
        "solver": solver or {"kind": "exact"},
        "schedule": schedule or {"kind": "sequential", "rounds": 1},
        "privacy": {"protection": "none"},
        "data": {"schema": {"y": response, **dict.fromkeys(columns, number)}},
        "clients": [
            {"name": name, "latency_seconds": latency}
            for name, latency in zip(clients, latencies or [1.0] * len(clients), strict=True)
        ],
        **sections,
    }


def run_study(raw: dict[str, Any], sources: dict[str, ArraySource], **options: Any) -> Any:
    """Builds and simulates a study on records in memory."""
    return simulate.run(build.assemble(parse_study(raw)), sources, **options)


def split(x: np.ndarray, y: np.ndarray, client: np.ndarray) -> dict[str, ArraySource]:
    """Splits records by a client index, naming the clients c0, c1, …"""
    return {
        f"c{index}": ArraySource(
            {"x": x[client == index], "y": y[client == index]},
            np.ones((client == index).sum(), bool),
        )
        for index in np.unique(client)
    }


def linear_regression() -> tuple[dict[str, np.ndarray], dict[str, ArraySource]]:
    """Returns the conjugate reference problem of 8 clients, and its records by client."""
    with np.load(REFERENCES / "linreg_conjugate_8clients.npz") as file:
        reference = dict(file)
    sources = split(reference["x"], reference["y"], reference["client"])
    return reference, sources


def trauma() -> dict[str, Any]:
    """Returns the reference posterior of the three trauma hospitals."""
    return json.loads((REFERENCES / "trauma.json").read_text())


def random_eta(family: Any, seed: int) -> Any:
    """Returns a proper member of a family, well conditioned; its moments are finite."""
    generator = np.random.default_rng(seed)
    if isinstance(family, Product):
        seeds = generator.integers(2**32, size=len(family.parts)).tolist()
        return tuple(map(random_eta, family.parts, seeds))
    mean = generator.normal(size=family.size)
    if isinstance(family, LowRankGaussian):
        root = generator.normal(size=(family.rank, family.rank))
        # Bᵀ B = I, so that the eigenvalues of the precision are at least 0.5 − 0.4.
        precision = root @ root.T - 0.4 * np.eye(family.rank)
        return LowRankEta(mean, generator.uniform(0.5, 3.0, family.size), precision)
    if isinstance(family, NormalWishart):
        roots = generator.normal(size=(family.rows, family.columns, family.columns)) / 2.0
        return family.from_parameters(
            generator.normal(size=(family.rows, family.columns)),
            generator.uniform(1.5, 4.0, family.rows),
            0.5 * family.columns + generator.uniform(1.5, 3.0, family.rows),
            roots @ roots.swapaxes(1, 2) + 0.5 * np.eye(family.columns),
        )
    if isinstance(family, NormalGammaRows):
        roots = generator.normal(size=(family.groups, family.columns, family.columns)) / 2.0
        return family.from_parameters(
            generator.normal(size=(family.groups, family.rows, family.columns)),
            roots @ roots.swapaxes(1, 2) + 0.5 * np.eye(family.columns),
            *generator.uniform((2.0, 0.5), (4.0, 3.0), (family.groups, 2)).T,
        )
    if isinstance(family, Gamma):
        return family.from_parameters(*generator.uniform(1.5, 4.0, (2, family.size)))
    if isinstance(family, Dirichlet):
        return family.from_parameters(generator.uniform(1.5, 4.0, family.shape))
    root = generator.normal(size=(family.size, family.size)) / 2.0
    covariance = root @ root.T + 0.5 * np.eye(family.size)
    if family.zeros().J.ndim == 1:
        return family.from_moments(mean, np.diagonal(covariance))
    return family.from_moments(mean, covariance)


def synthetic_logistic(
    clients: int, records: int, size: int, seed: int = 0
) -> dict[str, ArraySource]:
    """Returns a logistic regression problem with shifted covariates per client."""
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=size)
    sources = {}
    for index in range(clients):
        x = generator.normal(size=(records, size)) + 0.3 * generator.normal(size=size)
        y = (generator.uniform(size=records) < 1.0 / (1.0 + np.exp(-x @ theta))).astype(float)
        sources[f"c{index}"] = ArraySource({"x": x, "y": y}, np.ones(records, bool))
    return sources
