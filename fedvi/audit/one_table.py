"""Audits ``DPSVI`` and ``VIPS`` on tables that differ in one record.

Both are tested from outside, since the change of the parameters in a step is its release. With steps of
length 1 the noised mean gradient is the difference of two states. With equal seeds the noise cancels in the
difference of two tables, which leaves how far the record moved the sum.
"""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.stats

from fedvi import errors
from fedvi.audit.findings import Finding, judged
from fedvi.audit.noise import FALSE_ALARM
from fedvi.audit.recording import Recorder
from fedvi.privacy import events, mechanisms
from fedvi.privacy.descent import Descent, sgd

__all__ = ["Plan", "check_dpsvi", "check_one_table", "check_vips"]

_SIZE = 3
_LEAST_NOISE = 20.0
"""Smallest noise multiplier used, so that many runs can be priced; no claim is made about them."""

_ROWS, _MOST = 11, 16
_ROUNDING = 0.02
"""Rounding error, in clip norms, of float32 parameters that also contain the noise."""


class Plan(NamedTuple):
    """The study's numbers for a descent on one table.

    Attributes:
      noise: the noise multiplier.
      clip_norm: C.
      relation: of the promise.
    """

    noise: float
    clip_norm: float
    relation: events.Relation


def check_one_table(plan: Plan, seed: int = 0) -> list[Finding]:
    """Tests both classes for one data holder, on made-up regressions of three coefficients.

    Args:
      plan: the study's numbers, as far as they apply to one table.
    """
    found = []
    for check in (check_dpsvi, check_vips):
        try:
            result = check(plan, seed)
        except errors.PrivacyError as error:
            # Both classes check themselves on made-up records, and refuse to charge where that fails.
            result = Finding(
                "one table",
                f"{check.__name__.removeprefix('check_').upper()}, made-up records",
                False,
                error.message,
                "one record may move a release further than is charged",
            )
        found += [result] if isinstance(result, Finding) else result
    return found


def check_dpsvi(plan: Plan, seed: int = 0) -> list[Finding]:
    """Compares first steps on tables that differ in one record, with full and with Poisson batches."""
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(_ROWS, _SIZE + 1)).astype(np.float32)
    odd = _odd(generator)
    found, moved, worst = [], 0, {"add_remove": 0.0, "substitute": 0.0}
    for sampler in ("full", "poisson"):
        fit = _Fit(plan, sampler, seed)
        # A row of NaN contributes zero, like a missing record.
        bare = [fit.step(np.vstack([table, np.full((1, _SIZE + 1), np.nan, np.float32)]))]
        grown = [fit.step(np.vstack([table, row])) for row in odd]
        if sampler == "full":
            noise, used_twice = fit.noise(), fit.is_used_twice()
            # Also a table that is one row shorter, with the same seed.
            bare.append(_Fit(plan, sampler, seed).step(table))
        for one, move in itertools.product(bare, grown):
            distance = fit.apart(one, move)
            moved += distance > _ROUNDING
            worst["add_remove"] = max(worst["add_remove"], distance)
        for one in grown:
            for other in grown:
                worst["substitute"] = max(worst["substitute"], fit.apart(one, other) / 2.0)
    for relation, largest in worst.items():
        # Allow for floating-point rounding; NaN fails the comparison.
        passed = largest <= 1.0 + _ROUNDING
        found.append(
            Finding(
                "one table",
                f"DPSVI, one record, {relation}",
                passed if moved else None,
                f"moves a step by at most {largest:.4g} of what is charged; {len(odd)} records tried",
                "no record moves a step further than is charged"
                if passed
                else "a record moves a step further than is charged",
                {"largest": largest, "moved": moved},
            )
        )
    return [*found, noise, used_twice]


def check_vips(plan: Plan, seed: int = 0) -> Finding:
    """Runs one round of ``VIPS`` with a recorded mechanism, on tables that differ in one record."""
    from fedvi import models
    from fedvi.inference.vips import VIPS

    recorder = Recorder(mechanisms.rounded_gaussian(max(plan.noise, _LEAST_NOISE)))
    made = dataclasses.replace(_descent(plan, "full", seed, 1), mechanism=recorder)
    model = models.linear([f"x{index}" for index in range(_SIZE)], noise_scale=1.0)

    def total(table: np.ndarray) -> np.ndarray:
        fit = VIPS(model, made)
        recorder.start()
        fit.run({"x": table[:, :-1], "y": table[:, -1]}, progress_bar=False)
        (call,) = recorder.stop()
        return call.total * ((call.layout.step or 1.0) / call.layout.clip_norm)

    generator = np.random.default_rng(seed)
    table = generator.normal(size=(_ROWS, _SIZE + 1)).astype(np.float32)
    bare = total(table)
    grown = [total(np.vstack([table, row])) for row in _odd(generator)]
    largest = max(float(np.linalg.norm(one - bare)) for one in grown)
    apart = max(float(np.linalg.norm(one - other)) / 2.0 for one in grown for other in grown)
    worst = max(largest, apart)
    passed = worst <= 1.0 + 1e-9
    return Finding(
        "one table",
        "VIPS, one record",
        passed if worst > 0.0 else None,
        f"moves a sum by at most {worst:.6g} of what is charged",
        "no record moves a sum of statistics further than is charged"
        if passed
        else "a record moves a sum of statistics further than is charged",
        {"largest": worst},
    )


class _Fit:
    """A ``DPSVI`` of a small regression, whose steps show their releases."""

    def __init__(self, plan: Plan, sampler: str, seed: int) -> None:
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import Trace_ELBO, autoguide

        from fedvi.inference.svi import DPSVI

        def regression(x: Any, y: Any) -> None:
            b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([_SIZE]).to_event(1))
            with numpyro.plate("records", x.shape[0]):
                numpyro.sample("y", dist.Normal(x @ b, 1.0), obs=y)

        self._plan = _descent(plan, sampler, seed, 2)
        guide = autoguide.AutoNormal(regression)
        self._svi = DPSVI(regression, guide, numpyro.optim.SGD(1.0), Trace_ELBO(), self._plan)
        self._state: Any = None

    def step(self, table: np.ndarray) -> np.ndarray:
        """Returns the first step's change of all parameters, in clip norms of the noised sum."""
        if self._state is None:
            self._state = self._svi.init(jax.random.key(0), table[:, :-1], table[:, -1])
        # Allow one state on another table, which `DPSVI` otherwise refuses.
        self._svi._used.clear()
        after, _ = self._svi.update(self._state, table[:, :-1], table[:, -1])
        return self._moved(self._state, after)

    def noise(self) -> Finding:
        """Tests the noise of several runs' first steps, on records that contribute zero."""
        quiet = np.full((_ROWS + 1, _SIZE + 1), np.nan, np.float32)
        moves = []
        for _ in range(8):
            state = self._svi.init(jax.random.key(0), quiet[:, :-1], quiet[:, -1])
            # Allow states that `DPSVI` would refuse as used: their noise is tested here.
            self._svi._used.clear()
            after, _ = self._svi.update(state, quiet[:, :-1], quiet[:, -1])
            moves.append(self._moved(state, after))
        sigma = self._plan.mechanism.noise_multiplier
        chances = []
        for at, one in enumerate(moves):
            for other in moves[:at]:
                # Only the noise differs: the parameters, and so the public part, are the same.
                square = float(((one - other) ** 2).sum() / (2.0 * sigma**2))
                chances.append(float(scipy.stats.chi2.cdf(square, one.size)))
        whole = sum(float(((one - np.mean(moves, axis=0)) ** 2).sum()) for one in moves) / sigma**2
        freedom = (len(moves) - 1) * moves[0].size
        overall = float(scipy.stats.chi2.cdf(whole, freedom))
        chance = min(1.0, min(*chances, overall) * (len(chances) + 1))
        passed = chance >= FALSE_ALARM
        return judged(
            "one table",
            "DPSVI, noise",
            passed,
            f"std {math.sqrt(whole / freedom):.4g} × charged over {freedom} numbers; corrected p "
            f"{chance:.2g}",
            "each run's steps have the noise that is charged for, and noise of their own",
            "steps have less noise than is charged for, or share it",
            {"p_value": chance, "ratio": math.sqrt(whole / freedom)},
        )

    def is_used_twice(self) -> Finding:
        """Tests that a used state is refused: the same noise on other records would cancel."""
        table = np.ones((_ROWS + 1, _SIZE + 1), np.float32)
        state = self._svi.init(jax.random.key(0), table[:, :-1], table[:, -1])
        self._svi._used.clear()
        self._svi.update(state, table[:, :-1], table[:, -1])
        try:
            self._svi.update(state, -table[:, :-1], table[:, -1])
            refused = False
        except errors.PrivacyError:
            refused = True
        return judged(
            "one table",
            "DPSVI, a state serves once",
            refused,
            "refused" if refused else "taken",
            "a state that was used is refused",
            "one state, and its noise, serves two tables: their difference shows records",
        )

    def apart(self, one: np.ndarray, other: np.ndarray) -> float:
        """Returns the distance of two steps; infinite if one is not finite."""
        distance = float(np.linalg.norm(one - other))
        return distance if math.isfinite(distance) else math.inf

    def _moved(self, before: Any, after: Any) -> np.ndarray:
        one, other = (
            np.concatenate(
                [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)]
            )
            for params in (
                self._svi.optim.get_params(state.optim_state) for state in (before, after)
            )
        )
        return (other - one) * self._plan.sampler.rate / self._plan.clip_norm


def _descent(plan: Plan, sampler: str, seed: int, steps: int) -> Descent:
    size: dict[str, Any] = {"rate": 0.5} if sampler == "poisson" else {}
    return sgd(
        steps=steps,
        max_records=_MOST,
        noise_multiplier=max(plan.noise, _LEAST_NOISE),
        delta=1e-5,
        clip_norm=plan.clip_norm,
        relation=plan.relation,
        sampler=sampler,
        runs=64,
        insecure_seed=seed,
        **size,
    )


def _odd(generator: np.random.Generator) -> list[np.ndarray]:
    """Returns large, small, zero and opposite records, as rows of columns and outcome."""
    rows = [np.full((1, _SIZE + 1), value, np.float32) for value in (0.0, 1.0, 1e30, np.inf)]
    for factor in (1e-3, 1.0, 30.0, 1e4):
        row = (factor * generator.normal(size=(1, _SIZE + 1))).astype(np.float32)
        rows += [
            row,
            np.hstack([row[:, :-1], -row[:, -1:]]),
            np.hstack([row[:, :-1], 0 * row[:, -1:]]),
        ]
    return rows
