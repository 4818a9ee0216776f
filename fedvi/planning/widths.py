"""Predicts how wide the intervals of a study will be, from public numbers alone.

It runs the server's own update rule (``LocalSolver.stand``) on expected sums of made-up records, with noise
of the study's size, so that the prediction follows whatever the server does with noise.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam.base import is_full
from fedvi.expfam.gaussian import GaussianEta
from fedvi.expfam.matrices import from_triangle, triangle
from fedvi.planning import made_up, width_tables
from fedvi.planning.made_up import MadeUp
from fedvi.privacy.spoken import Summary
from fedvi.report.contents import Z95
from fedvi.report.labels import is_effect
from fedvi.study.build import Assembly
from fedvi.study.spec import regressions, shared_parts
from fedvi.study.spec.coefficients import in_file_units
from fedvi.updates.base import Fold, LocalSolver, Standing
from fedvi.updates.coordinates import EMPHASIS, Coordinates, no_coordinates

__all__ = [
    "Width",
    "Widths",
    "detectable",
    "expectation",
    "is_newton",
    "open_sds",
    "why_not",
    "widths",
]

# The 80 % point of the standard normal: the power at which an effect counts as detectable.
_Z80 = 0.8416212335729143
_REPEATS = 3
_MOST_ROUNDS = 1000
_SEED = 8
# An interval narrower than this share of the expected one is not due to chance, if the spread is stated.
_LUCK = 0.6
# A larger difference, in units of the scaled outcome, is none that a study could be about.
_LARGEST_DIFFERENCE = 50.0


class Width(NamedTuple):
    """The expected interval of one coefficient.

    Attributes:
      name, unit: of the coefficient; sds and effects are in the units of the file.
      sd: with the study's noise.
      open_sd: for a fit of the same records without noise.
      prior_sd: of the prior.
      detectable: the smallest effect whose interval excludes 0 in four of five studies; ∞ if there is
        none.
      open_detectable: the same without noise.
      stated: whether the study states how its columns spread; if not, the sds and the detectable effects
        are likely too small.
    """

    name: str
    unit: str
    sd: float
    open_sd: float
    prior_sd: float
    detectable: float
    open_detectable: float
    stated: bool = True

    @property
    def multiple(self) -> float:
        """The width as a multiple of the width without noise."""
        return self.sd / self.open_sd


class Widths(NamedTuple):
    """The expected intervals of a study.

    Attributes:
      rows: of the coefficients, in their order.
      records: assumed number at all clients together.
      ratio: the kind of ratio that exp(coefficient) is, such as "odds"; "" for none.
      assumed: the plan's assumptions, one clause each.
      silent: the columns whose spread the study does not state, so that the widths rest on a guess.
      kept: the part of what the records say that clipping is expected to leave: the median over effects.
    """

    rows: tuple[Width, ...]
    records: int
    ratio: str
    assumed: tuple[str, ...]
    silent: tuple[str, ...] = ()
    kept: float = 1.0

    def __repr__(self) -> str:
        return (
            f"Widths({len(self.rows)} coefficients from {self.records:,} records; intervals "
            f"{self.multiple:.2g} times as wide as without noise, in the median)"
        )

    def summary(self) -> Summary:
        """Returns the table of `fedvi plan`, and what it rests on."""
        title, lines = width_tables.title(self), width_tables.said_beside(self)
        return Summary(title, lines, (width_tables.table(self),))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def multiple(self) -> float:
        """The median of the multiples."""
        return float(np.median([row.multiple for row in self.rows]))

    @property
    def detectable(self) -> float:
        """The median of the smallest effects, for coefficients that are compared with 0."""
        return float(
            np.median([row.detectable for row in self.rows if is_effect(row.name)] or [math.inf])
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON; an infinite effect is None."""
        rows = [row._asdict() | {"multiple": row.multiple} for row in self.rows]
        for row in rows:
            for name in ("detectable", "open_detectable"):
                row[name] = row[name] if math.isfinite(row[name]) else None
        return {
            "records": self.records,
            "ratio": self.ratio,
            "coefficients": rows,
            "assumed": list(self.assumed),
            "silent": list(self.silent),
            "kept": self.kept,
        }


def why_not(assembly: Assembly) -> str:
    """Says why widths cannot be predicted; "" if they can."""
    solver = assembly.solvers[assembly.clients[0]]
    if not is_full(assembly.family) or shared_parts.PRIOR in assembly.solvers:
        return "widths are planned for a full Gaussian posterior with a normal prior"
    if not made_up.is_known(assembly):
        return "widths are planned for regressions of one number, a yes or no, or a time until an event"
    if assembly.noise_multiplier and assembly.schedule.rounds > _MOST_ROUNDS:
        return (
            f"schedule.rounds is {assembly.schedule.rounds:,}, and widths are planned for {_MOST_ROUNDS:,} "
            "at most: 10 to 50 are enough"
        )
    if assembly.noise_multiplier is not None and not is_newton(solver):
        return (
            f"the intervals of solver {solver.name} cannot be predicted: write solver kind "
            '"site_release", whose intervals hold the noise'
        )
    return ""


def widths(assembly: Assembly, repeats: int = _REPEATS, made: MadeUp | None = None) -> Widths:
    """Predicts the intervals of a study; see ``why_not``.

    Without noise the precision is the prior's plus that of all records, at the coefficients of
    ``made_up``. With noise, the server's rounds are simulated. Each has the expected gradient of all
    records at the current mean, and their curvature, both after clipping and with the noise of all
    clients. The sds are averaged over repeats. All clients hold records of one distribution, and all
    answer in every round.

    Args:
      assembly: the study.
      repeats: number of noise draws.
      made: records of the same formula and columns, if already made up.
    """
    records, model = sum(made_up.records_of(assembly)), assembly.model
    made = made_up.made_up(assembly) if made is None else made
    open_sd, prior = open_sds(assembly, made), np.asarray(assembly.prior.J, np.float64)
    prior_sd = _sds(prior)
    sd, kept = open_sd, 1.0
    if assembly.noise_multiplier:
        rehearsal = _Rehearsal.of(assembly, made, records)
        found = [rehearsal.sds(np.random.default_rng(_SEED + index)) for index in range(repeats)]
        sd = np.maximum(np.mean(found, axis=0), open_sd)
        clipped = rehearsal.kept_sds(np.random.default_rng(_SEED))
        effects = [is_effect(name) for name in model.names]
        kept = float(np.median((open_sd / clipped)[effects] ** 2)) if any(effects) else 1.0
    ratio, stated = regressions.ratio(assembly.study), made_up.stated(assembly)
    factors = in_file_units(assembly.study, model.names).factor
    values = zip(model.names, assembly.units, factors, sd, open_sd, prior_sd, strict=True)

    def smallest(one: float, before: float) -> float:
        found = detectable(one, before)
        return found if ratio or found < _LARGEST_DIFFERENCE else math.inf

    rows = tuple(
        Width(
            *(name, unit, float(factor * wide), float(factor * narrow), float(factor * before)),
            float(factor) * smallest(float(wide), float(before)),
            float(factor) * smallest(float(narrow), float(before)),
            name in stated,
        )
        for name, unit, factor, wide, narrow, before in values
    )
    said = tuple(made_up.assumptions(assembly)), made_up.silent(assembly)
    return Widths(rows, records, ratio, *said, kept)


def open_sds(assembly: Assembly, made: MadeUp) -> np.ndarray:
    """Returns the sds of a noiseless fit of all records, with a normal prior and a full Gaussian q, [D]."""
    precision = np.asarray(assembly.prior.J, np.float64) + made.curvature * sum(
        made_up.records_of(assembly)
    )
    return _sds(precision)


def _sds(precision: np.ndarray) -> np.ndarray:
    """Returns the sds of a precision [D, D]; a direction with precision 0 in float64 is very wide."""
    diagonal = np.diagonal(precision)
    if not diagonal.min() > 0.0:
        raise errors.ConfigError(
            "no width can be predicted: the made-up records do not fit the model's outcome",
            "say what is expected of the response: `expected` under its [data.schema]",
        )
    lengths = np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(precision / np.outer(lengths, lengths))
    return np.asarray(np.sqrt((vectors**2 / np.maximum(values, 1e-12)).sum(axis=1)) / lengths)


def expectation(assembly: Assembly) -> dict[str, Any] | None:
    """Returns the expectations with which a run will be compared, as plain values.

    Returns:
      records: at all clients; sds: without noise, by coordinate; least: lower bounds of the sds, which, for
      columns of unstated spread, assume that all records are as informative as the best made-up one;
      kept: sds ÷ the sds from the curvature left after clipping; noised: with the study's noise, None where
      there is none or the study does not state how its columns spread; declared: whether it does.
      None if no fitting records can be made up.
    """
    if not is_full(assembly.family) or shared_parts.PRIOR in assembly.solvers:
        return None
    if not made_up.is_known(assembly):
        return None
    made, records = made_up.made_up(assembly), sum(made_up.records_of(assembly))
    try:
        sds = kept = open_sds(assembly, made)
        noised = None
        if assembly.noise_multiplier and not why_not(assembly):
            rehearsal = _Rehearsal.of(assembly, made, records)
            kept = rehearsal.kept_sds(np.random.default_rng(_SEED))
            if not made_up.silent(assembly):
                noised = rehearsal.sds(np.random.default_rng(_SEED)).tolist()
    except errors.ConfigError:  # nothing is known of a user's own outcome that could be made up
        return None
    return {
        "records": records,
        "sds": [float(sd) for sd in sds],
        "least": [float(sd) for sd in _least(assembly, made, records, sds)],
        "kept": [float(narrow / wide) for narrow, wide in zip(sds, kept, strict=True)],
        "noised": noised,
        "declared": not made_up.silent(assembly),
    }


def _least(assembly: Assembly, made: MadeUp, records: int, sds: np.ndarray) -> np.ndarray:
    telling = (made.bend[..., None] * made.x**2).sum(axis=1).max(axis=0)
    bound = 1.0 / np.sqrt(np.diagonal(np.asarray(assembly.prior.J, np.float64)) + records * telling)
    said = made_up.stated(assembly)
    known = np.array([name in said for name in assembly.model.names])
    return np.where(known, _LUCK * sds, np.minimum(_LUCK * sds, bound))


def detectable(sd: float, prior_sd: float) -> float:
    """Returns the smallest effect whose 95 % interval leaves 0 out in four of five studies.

    With ρ = sd² / s₀², the posterior mean of an effect b is about (1 − ρ)·b, since the prior shrinks it,
    with a scatter of sd·√(1 − ρ) from records and noise. It must be 1.96 sd beyond 0 with probability 0.8.

    Returns:
      ∞ if the posterior equals the prior.

    >>> round(detectable(0.1, 100.0), 3)
    0.28
    """
    left = 1.0 - (sd / prior_sd) ** 2
    return math.inf if left <= 1e-3 else (Z95 + _Z80 * math.sqrt(left)) * sd / left


def is_newton(solver: LocalSolver) -> bool:
    """Whether answers are a gradient and a curvature at the q that was handed out."""
    return solver.stand is not None and set(solver.adds_up or ()) == {"gradient", "curvature"}


@dataclasses.dataclass(frozen=True)
class _Rehearsal:
    """Simulates the server's rounds.

    Attributes:
      family, prior, rounds: of the study.
      solver: of the clients.
      made: made-up records, which represent ``records`` records.
      gradient_sd, curvature_sd: of the noise of all clients together, treated as one.
      weight: factor of a curvature before it is clipped.
    """

    family: Any
    prior: GaussianEta
    rounds: int
    solver: LocalSolver
    made: MadeUp
    records: int
    gradient_sd: float
    curvature_sd: float
    weight: float

    @classmethod
    def of(cls, assembly: Assembly, made: MadeUp, records: int) -> "_Rehearsal":
        solver = assembly.solvers[assembly.clients[0]]
        known: Any = solver.stand
        more = math.sqrt(len(assembly.clients))
        gradient, curvature = (
            float(known.keywords[name]) * more for name in ("gradient_sd", "curvature_sd")
        )
        return cls(
            family=assembly.family,
            prior=assembly.prior,
            rounds=assembly.schedule.rounds,
            solver=solver,
            made=made,
            records=records,
            gradient_sd=gradient,
            curvature_sd=curvature,
            weight=gradient / curvature,
        )

    def kept_sds(self, random: np.random.Generator) -> np.ndarray:
        """Returns the sds without noise from the curvature left after clipping, [D]."""
        _, at, clean = self._begun(random)
        survey: Any = self.solver.survey
        if survey is not None and survey["outcome"] is not None:
            # Rows of surveyed outcomes are all weighed down, and what they share is no loss.
            evenly = self._kept(at, most_is_1=True)
            clean = at.outward(GaussianEta(np.zeros(self.family.size), evenly)).J
        return _sds(self.prior.J + clean)

    def _begun(
        self, random: np.random.Generator
    ) -> tuple[Standing | None, Coordinates, np.ndarray]:
        """Returns the standing after a survey, its coordinates, and the curvature of all records."""
        size = self.family.size
        survey: Any = self.solver.survey
        standing, at = None, no_coordinates(size, survey)
        if self.solver.survey is not None:
            nothing = GaussianEta(np.zeros(size), np.zeros((size, size)))
            standing = self._stood(nothing, None, {"all": self._surveyed(random)})
            # Slopes as the model expects, and no start, since all coefficients are 0 here.
            at = (standing.coordinates or at)._replace(sizes=False, spread=self._spread)
            standing = standing._replace(handed_out=standing.reported, coordinates=at)
        return standing, at, at.outward(GaussianEta(np.zeros(size), self._kept(at))).J

    def sds(self, random: np.random.Generator) -> np.ndarray:
        """Returns the sds that the server would report after all rounds, [D].

        If the noise is too large to invert in float64, the prior's sds are returned.
        """
        try:
            with np.errstate(invalid="ignore"):
                found = self._rehearsed(random)
        except np.linalg.LinAlgError:
            found = np.full(self.family.size, np.nan)
        return found if np.isfinite(found).all() else np.asarray(self.family.moments(self.prior)[1])

    def _rehearsed(self, random: np.random.Generator) -> np.ndarray:
        size = self.family.size
        standing, at, clean = self._begun(random)
        truth, rounds = np.zeros(size), self.rounds - self._without_step
        for _ in range(rounds):
            mean = self.family.moments(self.prior if standing is None else standing.handed_out)[0]
            noise = at.outward(self._noise(random))
            gradient, curvature = clean @ (truth - mean) + noise.h, clean + noise.J
            site = GaussianEta(gradient + curvature @ mean, curvature)
            standing = self._stood(site, standing, {})
        reported = self.prior if standing is None else standing.reported
        return np.asarray(self.family.moments(reported)[1])

    def _stood(
        self, site: GaussianEta, before: Standing | None, surveys: dict[str, Any]
    ) -> Standing:
        asked = self.prior if before is None else before.handed_out
        posterior = GaussianEta(self.prior.h + site.h, self.prior.J + site.J)
        fold = Fold(self.prior, self.prior, posterior, {"all": site}, {"all": asked}, 1.0, surveys)
        stand: Any = self.solver.stand
        return stand(
            self.family, fold, before, gradient_sd=self.gradient_sd, curvature_sd=self.curvature_sd
        )

    def _surveyed(self, random: np.random.Generator) -> GaussianEta:
        """Returns the sums of a survey after clipping, with noise."""
        survey: Any = self.solver.survey
        # The columns, from a record's first row; its interval's is the constant.
        held = self.family.size // len(survey["blocks"])
        x = self.made.x[:, 0, :held] * survey["blocks"][0]
        squares = x**2
        for part in (x, squares):
            part[:, survey["constant"]] *= survey["emphasis"]
        if (plan := survey["outcome"]) is not None:
            share = 0.5
            if plan["kind"] == "count":
                share = math.log1p(float(self.made.bend.mean())) / math.log1p(plan["most"])
            elif plan["kind"] == "event":
                share = float(self.made.bend.sum(axis=1).mean())
            squares[:, survey["constant"]] = EMPHASIS * share
        outcomes = np.full(len(survey["several"]), EMPHASIS / 2.0)
        length = np.sqrt((x**2 + squares**2).sum(axis=1) + outcomes @ outcomes) / survey["unit"]
        kept = np.minimum(1.0, 1.0 / np.maximum(length, 1e-300))[:, None]
        noise = self.gradient_sd * survey["unit"] * random.standard_normal((2, self.family.size))
        first, second = (
            np.pad((kept * part).mean(axis=0) * self.records, (0, self.family.size - held))
            for part in (x, squares)
        )
        sums = np.diag(second + noise[1])
        if plan is not None and plan["exposed"] is not None:
            # Every exposure is 1, and beside the squares that it is added to.
            sums[0, 1] = sums[1, 0] = self.records
            sums[[0, 1], [0, 1]] += self.records
        return GaussianEta(first + noise[0], sums)

    @property
    def _spread(self) -> float:
        """The spread of slopes that steps assume once it is known."""
        survey: Any = self.solver.survey
        plan = survey["outcome"]
        if plan is None:
            return 0.0
        return float(survey["curvature"]) ** -0.5 if plan["kind"] == "number" else 1.0

    @property
    def _without_step(self) -> int:
        """How many rounds are surveys."""
        survey: Any = self.solver.survey
        if survey is None:
            return 0
        plan = survey["outcome"]
        return 1 if plan is None or not plan["sizes"] else 2 + (plan["kind"] == "number")

    def _kept(self, at: Coordinates, most_is_1: bool = False) -> np.ndarray:
        """Returns the curvature of all records in coordinates, after weighting and clipping.

        ``most_is_1`` divides weights by the largest.
        """
        made, limit = self.made, float(self.solver.clip_norm or math.inf)
        x = np.moveaxis(at.columns(np.moveaxis(made.x, 2, 0)), 0, 2)
        slope = made.slope if made.steepest is None else made.steepest
        if x.shape[1] == 1:
            square = (x**2).sum(axis=2)
            longest = np.hypot(slope * np.sqrt(square), self.weight * made.bend * square)[:, 0]
        else:
            lengths = []
            for steep, sharp in zip(*(made.far or ([], [])), strict=True):
                gradients = np.einsum("k,nkd->nd", steep, x)
                hessians = np.einsum("k,nkd,nke->nde", sharp, x, x)
                lengths.append(
                    (np.linalg.norm(gradients, axis=1), np.linalg.norm(hessians, axis=(1, 2)))
                )
            first, second = np.max(lengths, axis=0)
            longest = np.hypot(first, self.weight * second)
        kept = np.minimum(1.0, limit / np.maximum(longest, 1e-300))
        if most_is_1:
            kept = kept / kept.max()
        whole = np.einsum("n,nk,nkd,nke->de", kept, made.bend, x, x, optimize=True)
        return np.asarray(whole * self.records / len(x))

    def _noise(self, random: np.random.Generator) -> GaussianEta:
        size = self.family.size
        twice = triangle(size)[2]
        drawn = self.curvature_sd * random.standard_normal(len(twice)) / twice
        curvature = from_triangle(drawn, size)
        return GaussianEta(self.gradient_sd * random.standard_normal(size), curvature)
