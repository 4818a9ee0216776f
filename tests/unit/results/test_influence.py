"""Claims about what each client contributed: exact for a conjugate model, no number where none is sound."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest

from fedvi.expfam.gamma import Gamma
from fedvi.expfam.gaussian import DiagonalGaussian, FullGaussian, GaussianEta
from fedvi.results.influence import ALONE, CLEANED, IMPROPER, PROJECTED, influence, trace_noise
from fedvi.results.outcome import record
from fedvi.results.run_record import influence_rows
from fedvi.updates.coordinates import Coordinates
from fedvi.updates.noise_aware import of_sites
from tests.studies import linear_regression, random_eta, raw_study, run_study


def test_dividing_a_conjugate_factor_out_is_the_fit_without_that_client() -> None:
    _, sources = linear_regression()
    size = next(iter(sources.values())).records["x"].shape[1]
    whole = run_study(raw_study(list(sources), size), sources)
    rest = {name: source for name, source in sources.items() if name != "c3"}
    without = run_study(raw_study(list(rest), size), rest)
    family = whole.assembly.family
    mean, sd = family.moments(whole.posterior)
    expected = (family.moments(without.posterior)[0] - mean) / sd
    rows = influence_rows(record(whole))
    assert rows is not None
    (row,) = (row for row in rows if row["client"] == "c3")
    # float64 algebra, conditioned by the precision
    assert list(row["shift_in_sds"].values()) == pytest.approx(
        expected.tolist(), rel=1e-6, abs=1e-9
    )
    assert np.abs(expected).max() > 0.05
    assert sum(row["precision_share"] for row in rows) == pytest.approx(1.0, rel=1e-12)
    # With unit noise a share is that of the squared norms of its records, for the prior is isotropic.
    squares = {name: (source.records["x"] ** 2).sum() for name, source in sources.items()}
    share = squares["c3"] / sum(squares.values())
    assert row["precision_share"] == pytest.approx(share, rel=1e-9)


def test_shares_and_shifts_do_not_depend_on_the_units_of_coordinates() -> None:
    family, names = FullGaussian(3), ["a", "b"]
    prior, *sites = (random_eta(family, seed) for seed in range(3))
    scale = np.array([1.0, 1000.0, 0.01])  # θ in other units: h / scale, J / scale scaleᵀ

    def changed(eta: Any) -> Any:
        return GaussianEta(eta.h / scale, eta.J / np.outer(scale, scale))

    factors = dict(zip(names, sites, strict=True))
    found = influence(family, prior, factors, names, False)
    moved = {name: changed(site) for name, site in factors.items()}
    other = influence(family, changed(prior), moved, names, False)
    assert found is not None
    assert other is not None
    for one, two in zip(found, other, strict=True):
        assert one.share == pytest.approx(two.share, rel=1e-9)
        assert one.shifts == pytest.approx(two.shifts, rel=1e-7)


def test_the_diagonal_family_agrees_with_a_full_one_of_diagonal_members() -> None:
    flat = DiagonalGaussian(3)
    prior, *sites = (random_eta(flat, seed) for seed in range(3))

    def full(eta: Any) -> Any:
        return GaussianEta(eta.h, np.diag(eta.J))

    names, factors = ["a", "b"], dict(zip("ab", sites, strict=True))
    one = influence(flat, prior, factors, names, False)
    wide = {name: full(site) for name, site in factors.items()}
    two = influence(FullGaussian(3), full(prior), wide, names, False)
    assert one is not None
    assert two is not None
    for row, other in zip(one, two, strict=True):
        assert (row.client, row.reason) == (other.client, other.reason)
        assert row.share == pytest.approx(other.share, rel=1e-12)
        assert row.shifts == pytest.approx(other.shifts, rel=1e-9)


def test_where_division_tells_no_mean_a_reason_stands_instead_of_numbers() -> None:
    family = FullGaussian(1)

    def site(precision: float) -> Any:
        return GaussianEta(np.array([1.0]), np.array([[precision]]))

    # Noise: b's precision is negative, and a alone holds the product up.
    names, factors = ["a", "b"], {"a": site(5.0), "b": site(-3.0)}
    a, b = influence(family, site(1.0), factors, names, False) or ()
    assert (a.shifts, a.reason) == (None, IMPROPER)
    assert b.shifts is not None
    assert (a.share, b.share) == (pytest.approx(2.5), pytest.approx(-1.5))
    # Noise drowned the precision: no share, and the posterior was a projection.
    a, b = influence(family, site(1.0), {"a": site(-1.0), "b": site(-0.5)}, names, False) or ()
    assert (a.share, a.shifts, a.reason) == (None, None, PROJECTED)
    # What the server made of noisy sums cannot be undone for one client.
    a, b = influence(family, site(1.0), {"a": site(1.0), "b": site(3.0)}, names, True) or ()
    assert (a.share, a.shifts, a.reason) == (0.25, None, CLEANED)
    # A family without a precision has no answer.
    assert influence(Gamma(1), site(1.0), factors, names, False) is None


def noisy(sources: Any, noise_multiplier: float) -> Any:
    """Runs site release on the conjugate problem, with seeded noise."""
    size = next(iter(sources.values())).records["x"].shape[1]
    solver = {"kind": "site_release", "clip_norm": 100.0, "noise_multiplier": noise_multiplier}
    schedule = {"kind": "synchronous", "rounds": 10}
    raw = raw_study(list(sources), size, solver=solver, schedule=schedule)
    raw["data"]["max_records"], raw["simulation"] = 256, {"insecure_seed": 5}
    return run_study(raw, sources)


def test_shifts_of_site_release_are_those_of_a_run_without_the_client() -> None:
    _, sources = linear_regression()
    x, y = (sources["c3"].records[name] for name in "xy")
    sources["c3"] = dataclasses.replace(sources["c3"], records={"x": x, "y": y + 0.5 * x[:, 0]})
    whole = noisy(sources, 0.002)
    without = noisy({name: source for name, source in sources.items() if name != "c3"}, 0.002)
    family = whole.assembly.family
    mean, sd = family.moments(whole.posterior)
    expected = (family.moments(without.posterior)[0] - mean) / sd
    rows = influence_rows(record(whole))
    assert rows is not None
    (row,) = (row for row in rows if row["client"] == "c3")
    assert row["reason"] == ""
    found = np.array(list(row["shift_in_sds"].values()))
    # What is left is the noise of both runs, of one gradient of c3 and of the mean over folds: 0.03.
    assert np.abs(found - expected).max() < 0.1
    assert np.abs(expected).max() > 0.5
    assert sum(row["precision_share"] for row in rows) == pytest.approx(1.0)


def test_where_noise_drowns_the_curvature_no_shares_are_told() -> None:
    """They were 139 % and −39 %, say."""
    _, sources = linear_regression()
    rows = influence_rows(record(noisy(sources, 20.0)))
    assert rows is not None
    assert {row["precision_share"] for row in rows} == {None}
    assert all(row["shift_in_sds"] for row in rows)


def test_of_the_only_client_that_answered_there_is_no_shift() -> None:
    _, sources = linear_regression()
    rows = influence_rows(record(noisy({"c3": sources["c3"]}, 0.01)))
    assert rows is not None
    assert [(row["shift_in_sds"], row["reason"]) for row in rows] == [(None, ALONE)]


def test_a_file_holds_no_endless_list_of_shifts() -> None:
    _, sources = linear_regression()
    size = next(iter(sources.values())).records["x"].shape[1]
    result = run_study(raw_study(list(sources), size), sources)
    names = tuple(f"x{index}" for index in range(100_000 // len(sources) + 1))
    wide = dataclasses.replace(result.assembly.model, names=names)
    many = dataclasses.replace(result, assembly=dataclasses.replace(result.assembly, model=wide))
    assert influence_rows(record(many)) is None
    assert influence_rows(record(result)) is not None


# What a client says alone


def test_what_a_conjugate_client_says_alone_is_the_fit_to_its_records_alone() -> None:
    _, sources = linear_regression()
    size = next(iter(sources.values())).records["x"].shape[1]
    whole = run_study(raw_study(list(sources), size), sources)
    own = run_study(raw_study(["c3"], size), {"c3": sources["c3"]})
    expected = np.stack(own.assembly.family.moments(own.posterior), axis=1)
    rows = influence_rows(record(whole))
    assert rows is not None
    (row,) = (row for row in rows if row["client"] == "c3")
    found = [(cell["mean"], cell["sd"]) for cell in row["alone"]]
    # float64 algebra, conditioned by the precision
    assert np.asarray(found) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert (
        np.asarray(found)[:, 1].min()
        > np.asarray([cell["sd"] for cell in record(whole).rows()]).min()
    )


def test_nothing_is_said_alone_where_that_is_no_distribution() -> None:
    family = FullGaussian(2)
    prior = family.isotropic(1.0)
    sites = {
        "a": GaussianEta(np.zeros(2), -3.0 * np.eye(2)),
        "b": GaussianEta(np.zeros(2), 9.0 * np.eye(2)),
    }
    found = influence(family, prior, sites, ["a", "b"], False)
    assert found is not None
    assert found[0].alone is None
    assert found[1].alone == ((0.0, pytest.approx(10.0**-0.5)),) * 2
    # Of noisy factors it is what the server's own rule makes of them.
    told = influence(
        family, prior, sites, ["a"], True, own=lambda name: (np.ones(2), 2 * np.ones(2))
    )
    assert told is not None
    assert told[0].alone == ((1.0, 2.0),) * 2
    silent = influence(family, prior, sites, ["a"], True)
    assert silent is not None
    assert silent[0].alone is None


def test_the_noise_of_a_share_is_reckoned_where_it_was_added() -> None:
    """In coordinates in which columns are shorter, the same noise hides more of the coefficients."""
    prior = FullGaussian(2).isotropic(1.0)
    stand = functools.partial(of_sites, curvature_sd=3.0)
    assert trace_noise(stand, prior, None) == pytest.approx(3.0 * math.sqrt(2.0))
    half = Coordinates(np.zeros(2), np.array([1.0, 0.5]), 0)
    assert trace_noise(stand, prior, half) == pytest.approx(3.0 * math.sqrt(1.0 + 4.0**2))
    assert trace_noise(None, prior, None) == 0.0
