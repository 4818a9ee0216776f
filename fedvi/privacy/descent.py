"""Plans the privacy of a gradient descent: sampler, noise, clip norm and ε, fixed before the first step."""

import dataclasses
import hashlib
import math
import warnings
from typing import Any

from fedvi import errors
from fedvi.privacy import accountants, calibrate, events, mechanisms, sampling
from fedvi.privacy.advisories import has_whole_batches
from fedvi.privacy.base import Mechanism, Sampler, Shift
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.ledger import TABLES_SHARE, Budget, Header
from fedvi.privacy.mechanisms import _alias
from fedvi.privacy.mechanisms.rounded_gaussian import RoundedGaussian
from fedvi.privacy.noise_table import variance
from fedvi.privacy.runs import Keeper, Runs
from fedvi.privacy.sampling.poisson import Poisson
from fedvi.privacy.spoken import Speaks, Summary, facts, up

__all__ = ["Descent", "sgd"]

# The share of the clip norm that rounding may take, if there is a choice of grids.
_GRID_SHARE = 0.01
# The share of δ that batches beyond their capacity may take before the capacity is raised.
_OVERFLOW_SHARE = 0.01
# The share of a budget that must be spent for it not to be told that less is.
_SPENT = 0.95


@dataclasses.dataclass(frozen=True)
class Descent(Speaks):
    """How every step of a descent samples, clips and adds noise; made by ``sgd``.

    Attributes:
      sampler: which records a step sees.
      mechanism: the noise of one step's sum.
      clip_norm: C, the L2 bound on one record's contribution to a step.
      steps: T, how many steps one run may take.
      runs: how many runs may start.
      relation: the neighbouring relation of the promise.
      epsilon, delta: the promise for all runs together. Without noise epsilon is infinite. If the noise
        was given, epsilon rises a little once the model's parameters are counted (``DPSVI.privacy``).
      accountant: checks the promise.
      seed: of simulated noise; None if noise comes from the operating system.
      follows: whether the noise was given and epsilon was computed from it.
      keeper: stores the ledger; None keeps it in memory, where other processes do not see it.
    """

    sampler: Sampler
    mechanism: Mechanism
    clip_norm: float
    steps: int
    runs: int
    relation: events.Relation
    epsilon: float
    delta: float
    accountant: accountants.Accountant
    seed: int | None = None
    follows: bool = False
    # Not part of the promise, so it must not enter `repr` and the study digest computed from it.
    keeper: Keeper | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def promised(self) -> str:
        """The promise, in a few words."""
        if not self.protected or not math.isfinite(self.epsilon):
            return "no protection"
        said = f"ε ≤ {up(self.epsilon)} at δ = {self.delta:g} for one record under {self.relation}"
        return said + (f"; MARKED: {self.mark}" if self.mark else "")

    def summary(self) -> Summary:
        """Returns the promise and the noise of each step; see ``fedvi.privacy.advice`` for more."""
        sampler: Any = self.sampler
        noise = self.mechanism.noise_multiplier
        rows = [
            ("promise", self.promised),
            ("runs", str(self.runs)),
            ("counted", "in memory, by one object" if self.keeper is None else self.keeper.place),
            ("steps of a run", str(self.steps)),
            (
                "records in a step",
                f"each with probability {sampler.rate:.3g}, of at most {sampler.max_records:,}",
            ),
            ("clip norm", f"{self.clip_norm:.3g}"),
            ("noise", f"sd {noise:.4g} × clip norm on the sum of a step" if noise else "none"),
            ("accountant", self.accountant.name if self.protected else ""),
        ]
        return Summary("Plan of a descent", (), (facts(rows),), tuple(filter(None, [self.mark])))

    @property
    def step(self) -> events.Event:
        """The event of one step."""
        shift = Shift(self.clip_norm, self.clip_norm, 2.0 * self.clip_norm)
        return self.sampler.event(self.mechanism.event(shift))

    @property
    def run(self) -> events.Event:
        """The event of all steps of one run."""
        return events.repeat(self.step, self.steps)

    @property
    def total(self) -> events.Event:
        """The event of all steps of all runs."""
        return events.repeat(self.step, self.steps * self.runs)

    @property
    def mark(self) -> str:
        """The warning that every claim about this plan must carry; empty if there is none."""
        seeded = "" if self.seed is None else "simulation: no guarantee"
        return self.mechanism.mark or seeded

    @property
    def protected(self) -> bool:
        """Whether epsilon is finite, so that there is a guarantee."""
        return math.isfinite(self.epsilon)

    @property
    def capped(self) -> str:
        """Why less than epsilon is spent, in a sentence; empty if about all of it is."""
        sampler = self.sampler
        if self.follows or not self.protected or not isinstance(sampler, Poisson):
            return ""
        spent = self.accountant.epsilon(self.total, self.delta * (1.0 - TABLES_SHARE))
        if spent >= _SPENT * self.epsilon:
            return ""
        return (
            f"of epsilon {self.epsilon:g} only {up(spent)} is spent: a Poisson batch is cut at its "
            f"capacity of {sampler.capacity} rows with probability {sampler.overflow:.1e}, which costs "
            "about e^epsilon times as much of delta, so that less noise has no price. Batches of a fixed "
            'size (sampler="feistel", under substitute) and sampler="full" are never cut; with Poisson '
            "batches give a larger delta, or fewer steps or runs"
        )

    def fitted(self, numbers: int) -> "Descent":
        """Returns the plan for releases of d = ``numbers`` coordinates, on the coarsest grid that suffices.

        Rounding d coordinates to a grid of step g takes √d·g off the clip norm, and every grid finer than
        the coarsest doubles the draws. So this picks the coarsest grid that takes at most a hundredth of
        C, whatever the grid was before. The price of a step stays; the tables' share of δ doubles with
        the draws. If the noise was given, epsilon is recomputed with that share.
        """
        if not isinstance(self.mechanism, RoundedGaussian) or not self.protected:
            return self
        steps = math.sqrt(numbers) / _GRID_SHARE
        fineness = next(
            (
                2**power
                for power in range(_alias.FINEST.bit_length())
                if math.sqrt(variance(2**power)) / self.mechanism.noise_multiplier >= steps
            ),
            _alias.FINEST,
        )
        chosen = dataclasses.replace(self.mechanism, fineness=fineness)
        plan = dataclasses.replace(self, mechanism=chosen)
        if not self.follows:
            return plan
        return dataclasses.replace(plan, epsilon=max(plan.epsilon, plan.stated(numbers)))

    def stated(self, numbers: int) -> float:
        """Returns the epsilon of all runs, for releases of ``numbers`` coordinates a step."""
        return with_tables(self.accountant, self.distance(numbers)).epsilon(self.total, self.delta)

    def distance(self, numbers: int) -> float:
        """Returns the total variation between the noise of ``numbers`` coordinates and its exact law."""
        return float(getattr(self.mechanism, "distance", 0.0) * numbers)

    @property
    def kept(self) -> str:
        """Where the ledger is kept, for a statement; empty if in memory."""
        return "" if self.keeper is None else self.keeper.place

    def open_runs(self, numbers: int, study: str = "dpsvi", mark: str = "") -> Runs:
        """Returns the ``Runs`` that charge each run, for releases of ``numbers`` coordinates a step.

        Args:
          numbers: coordinates of one release.
          study: the study name in the ledger's header.
          mark: a warning for claims, added to the plan's own ``mark``.

        Raises:
          PrivacyError: if the noise tables take more of δ than was reserved for them.
          LedgerError: if the keeper holds a damaged ledger, or that of another plan.
        """
        if self.protected:
            stated = self.stated(numbers)
            if stated > self.epsilon:
                raise errors.PrivacyError(
                    f"{numbers} numbers a step cost epsilon {stated:.6g} with the tables of the "
                    f"noise, {self.epsilon:.6g} was promised",
                    "use a larger delta, fewer steps, or give noise_multiplier",
                )
        header = Header(
            study=study,
            study_digest=hashlib.sha256(repr(self).encode()).hexdigest(),
            client="self",
            unit="record",
            relation=self.relation,
            view="message",
            protected=self.protected,
            note="; ".join(filter(None, (self.mark, mark))),
            planned=self.total,
            epsilon=self.epsilon if self.protected else None,
            delta=self.delta if self.protected else None,
            accountant=self.accountant.name if self.protected else "",
            table_distance=self.distance(numbers),
            max_records=getattr(self.sampler, "max_records", None),
            fixed_sizes=study == "dpsvi" and has_whole_batches(self.total),
            rows_checked=study == "dpsvi",
        )
        return Runs(header, self.run, self.runs, self.budget(), self.keeper)

    def budget(self) -> Budget | None:
        """Returns the budget that runs are checked against; None without noise."""
        if not self.protected:
            return None
        return Budget(self.epsilon, self.delta, self.accountant)


def sgd(
    *,
    steps: int,
    max_records: int,
    epsilon: float | int | None = None,
    delta: float | int | None = None,
    noise_multiplier: float | int | None = None,
    clip_norm: float | int = 1.0,
    batch: float | int | None = None,
    rate: float | int | None = None,
    sampler: str = "poisson",
    relation: events.Relation = "substitute",
    accountant: str = "pld",
    runs: int = 1,
    float_noise: bool = False,
    insecure_seed: int | None = None,
    ledger: Any = None,
) -> Descent:
    """Plans a private gradient descent and calibrates its noise to a budget.

    Guarantee: see ``fedvi.DPSVI``. ``epsilon`` is that of all ``steps`` of all ``runs``, whenever one
    stops.

    Args:
      steps: T, the largest number of steps of one run.
      max_records: the largest number of records that there may be. It is public, so the exact count
        need not be. Batches are sized for it: a full batch has ``max_records`` rows, however long the
        table is.
      epsilon, delta: the budget; the noise is calibrated to it. Common advice: epsilon of 1 is
        strong, up to 4 or so usual; delta well below 1 / max_records. Where Poisson batches cannot spend a
        large epsilon, a warning says why.
      noise_multiplier: noise std ÷ clip_norm, in place of ``epsilon``; 0 for no noise and no
        protection.
      clip_norm: C, the largest L2 norm of one record's gradient that counts in full; a tenth to
        the median of the norms is a good start.
      batch: the expected (Poisson) or exact (feistel) number of records a step.
      rate: the probability that a record is in a step, in place of ``batch``.
      sampler: "poisson", "feistel" (fixed size, without replacement) or "full".
      relation: "substitute" or "add_remove".
      accountant: one of ``fedvi.privacy.accountants``.
      runs: how often a descent may start on the same records; the budget covers all runs.
      float_noise: draw noise in floating point: faster, without a guarantee, and marked.
      insecure_seed: draw noise from a seed, for tests; without a guarantee, and marked.
      ledger: counts runs over all processes, e.g. ``fedvi.LedgerFolder("spent")``. By default the count
        is in memory, and another process, or another ``DPSVI``, starts from zero.

    Raises:
      ConfigError, PrivacyError: if an argument is out of its range, or if both or neither of two
        mutually exclusive arguments are given.

    >>> plan = sgd(epsilon=1.0, delta=1e-5, steps=1000, batch=500, max_records=50_000)
    >>> round(plan.mechanism.noise_multiplier, 1), plan.sampler.rate
    (2.4, 0.01)
    """
    for name, count in (("steps", steps), ("max_records", max_records), ("runs", runs)):
        if type(count) is not int or count < 1:
            raise errors.ConfigError(
                f"{name} is {count!r}, expected an integer of at least 1",
                "NumPy's integers and floats are converted by int(…)",
            )
    if delta is not None and not 0.0 <= delta < 1.0:
        raise errors.ConfigError(
            f"delta is {delta}, expected at least 0 and below 1",
            "choose one well below 1 / max_records",
        )
    if not clip_norm > 0.0:
        raise errors.ConfigError(f"clip_norm is {clip_norm}, expected a number above 0")
    if ledger is not None and not hasattr(ledger, "extended"):
        raise errors.ConfigError(
            f"ledger is {ledger!r}, expected a keeper such as fedvi.LedgerFolder, or None",
            'give the name of a folder for this plan alone: fedvi.LedgerFolder("spent")',
        )
    if (epsilon is None) == (noise_multiplier is None):
        raise errors.ConfigError(
            f"epsilon is {epsilon} and noise_multiplier is {noise_multiplier}, expected one of them",
            "give epsilon and delta to have the noise calibrated",
        )
    if delta is None and noise_multiplier != 0.0:
        raise errors.ConfigError("delta is missing", "choose one well below 1 / max_records")
    if accountant not in accountants.__all__:
        raise errors.ConfigError(
            f"accountant is {accountant!r}, expected one of {', '.join(accountants.__all__)}",
            errors.did_you_mean(accountant, accountants.__all__),
        )
    make: Any = mechanisms.gaussian if float_noise else mechanisms.rounded_gaussian
    chosen = _sampler(sampler, batch, rate, max_records)
    priced = getattr(accountants, accountant)(relation)
    plan = Descent(
        chosen, make(1.0), float(clip_norm), steps, runs, relation, math.inf, float(delta or 0.0), priced,
        insecure_seed, keeper=ledger,
    )  # fmt: skip

    def total(noise: float) -> events.Event:
        # Float noise stands in for the grid: the search also tries noise that no grid can carry.
        return dataclasses.replace(plan, mechanism=mechanisms.gaussian(noise)).total

    if noise_multiplier == 0.0:
        return dataclasses.replace(plan, mechanism=make(0.0))
    if not math.isfinite(clip_norm):
        raise errors.ConfigError(
            f"clip_norm is {clip_norm}, expected a finite number",
            "noise is measured in clip norms; only noise_multiplier=0 goes without",
        )
    assert delta is not None
    # What the noise tables need is known only once the model's parameters are counted.
    left = delta * (1.0 - TABLES_SHARE)
    if noise_multiplier is None:
        assert epsilon is not None
        plan = dataclasses.replace(plan, sampler=_roomy(chosen, left, steps * runs, epsilon))
        noise = calibrate.calibrate(total, priced, epsilon, left)
        plan = dataclasses.replace(plan, mechanism=make(noise), epsilon=float(epsilon))
        if plan.capped:
            warnings.warn(plan.capped, stacklevel=2)
        return plan
    try:
        found = priced.epsilon(total(float(noise_multiplier)), left)
    except errors.PrivacyError:
        # Batches that overflow may be the reason, and there can be fewer of these.
        plan = dataclasses.replace(plan, sampler=_roomy(chosen, left, steps * runs, math.inf))
        found = priced.epsilon(total(float(noise_multiplier)), left)
    return dataclasses.replace(
        plan, mechanism=make(float(noise_multiplier)), epsilon=found, follows=True
    )


def _sampler(
    kind: str, batch: float | int | None, rate: float | int | None, max_records: int
) -> Sampler:
    if kind not in sampling.__all__:
        raise errors.ConfigError(
            f"sampler is {kind!r}, expected one of {', '.join(sampling.__all__)}",
            errors.did_you_mean(kind, sampling.__all__),
        )
    if kind == "full":
        if batch is not None or rate is not None:
            raise errors.ConfigError("batch or rate is given beside sampler 'full'")
        return sampling.full(max_records)
    if (batch is None) == (rate is None):
        raise errors.ConfigError(
            f"batch is {batch} and rate is {rate}, expected one of them",
            'or sampler="full", for every record in every step',
        )
    most = max_records if kind == "feistel" else math.nextafter(max_records, 0.0)
    if batch is not None and not 0 < batch <= most:
        raise errors.ConfigError(
            f"batch is {batch}, expected a number above 0 and "
            f"{'at most' if kind == 'feistel' else 'below'} max_records, {max_records}",
            'sampler="full" takes every record in every step',
        )
    if kind == "feistel":
        size = batch if batch is not None else round(float(rate or 0.0) * max_records)
        return sampling.feistel(int(size), max_records)
    return sampling.poisson(
        rate if rate is not None else float(batch or 0) / max_records, max_records
    )


def _roomy(sampler: Any, delta: float, releases: int, epsilon: float) -> Any:
    """Returns the sampler with batches large enough for ε and δ, where that takes more rows than usual.

    Batches that are cut cost (1 + e^ε) · releases · overflow of δ (docs/proofs/overflow.md). No capacity
    brings the overflow below the rounding of the table of gaps, ``gap_count`` · 2⁻⁶⁵.
    """
    if not isinstance(sampler, Poisson):
        return sampler
    wanted = _OVERFLOW_SHARE * delta / (1.0 + math.exp(min(epsilon, 700.0))) / releases
    if sampler.overflow <= wanted:
        return sampler
    least = 2.0 * sampler.gap_count * 2.0**-65
    if sampler.overflow <= least:
        return sampler
    return sampling.poisson(sampler.rate, sampler.max_records, max(wanted, least))
