"""What a type checker must know of the public names. `make lint` checks this file; nothing runs it."""

from typing import Any, assert_type

import fedvi
from fedvi.expfam.gaussian import FullGaussian
from fedvi.inference.noise_told import DPSVIRunResult
from fedvi.inference.svi import DPSVIState
from fedvi.planning.plan import Plan
from fedvi.results.simulation import Simulation

__all__ = ["one_table", "packages", "study"]


def one_table(model: Any, guide: Any, optim: Any, loss: Any, key: Any, x: Any) -> None:
    plan = fedvi.privacy.sgd(epsilon=1.0, delta=1e-6, steps=10, batch=10, max_records=100)
    assert_type(plan, fedvi.privacy.Descent)
    assert_type(fedvi.privacy.advice(plan), str)
    svi = fedvi.DPSVI(model, guide, optim, loss, plan)
    assert_type(svi, fedvi.DPSVI)
    assert_type(svi.init(key, x), DPSVIState)
    assert_type(svi.run(key, 10, x), DPSVIRunResult)
    fedvi.DPSVI(model, guide, optim, loss, 1.0)  # type: ignore[arg-type]
    fedvi.VIPS(model, "cheap")  # type: ignore[arg-type]


def study(path: str) -> None:
    found = fedvi.load_study(path)
    assert_type(found, fedvi.Study)
    assert_type(fedvi.plan(found), Plan)
    assert_type(fedvi.simulate(found, path), Simulation)
    _ = fedvi.simulated  # type: ignore[attr-defined]
    _ = fedvi.privacy.sdg  # type: ignore[attr-defined]
    fedvi.load_study(3)  # type: ignore[arg-type]


def packages() -> None:
    assert_type(fedvi.expfam.full_gaussian(3), FullGaussian)
    fedvi.models.logistic(["x"])
    _ = fedvi.models.logistics  # type: ignore[attr-defined]
    _ = fedvi.report.combine.combined  # type: ignore[attr-defined]
