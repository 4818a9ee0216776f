"""Holds the releases of a run, simulated or served, and what follows from them; needs no JAX."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam.base import is_full
from fedvi.report.contents import Z95
from fedvi.report.labels import is_effect
from fedvi.results import verdict as verdicts
from fedvi.results.influence import as_rows, influence, refolded, trace_noise
from fedvi.results.verdict import Verdict
from fedvi.run.server_plan import ServerPlan
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerSpec, ServerState, Update
from fedvi.study.config import Study
from fedvi.study.spec import shared_parts
from fedvi.study.spec.coefficients import MOST, coefficients, in_file_units
from fedvi.typing import PRIOR, Eta
from fedvi.updates.base import Standing

__all__ = [
    "IMPROPER",
    "RunRecord",
    "influence_rows",
    "of_server",
    "prior_rows",
    "took_part",
    "verdict_of",
]

IMPROPER = "the factors' product was improper: the posterior shown is its projection"
"""Alarm for a run whose product of factors is improper."""

# Less than this says nothing worth a sentence.
_WIDER = 1.01
# The most coefficients whose correlations are looked at.
_MOST_JOINT = 1000
# The most shifts, by client and coefficient, that are computed.
_MOST_SHIFTS = 100_000


class RunRecord(NamedTuple):
    """The releases of a run, and the public parts of its study.

    Attributes:
      study: of the run.
      clients: the data holders, in the order of the study.
      names, units: of θ's coordinates.
      family: of the posterior.
      stated: η_0 as the study states it, proper.
      posterior: η of the reported q.
      factors: worker → η_m.
      history: all folds.
      standing: the server's last result from noisy factors; None if it just adds them up.
      stand: the function that made it, see ``LocalSolver.stand``; None if there is none.
      is_projected: whether Σ factors was improper at the end, so that q is a projection.
      is_summed: whether only sums over clients are published, so that no factor belongs to one client.
      mark: printed beside every claim; empty if nothing needs saying.
    """

    study: Study
    clients: Sequence[str]
    names: Sequence[str]
    units: Sequence[str]
    family: Any
    stated: Eta
    posterior: Eta
    factors: Mapping[str, Eta]
    history: Sequence[Update]
    standing: Standing | None
    stand: Callable[..., Any] | None
    is_projected: bool
    is_summed: bool
    mark: str

    @property
    def has_prior_factor(self) -> bool:
        """Whether the prior is a factor of its own, which has no mean and sd."""
        return PRIOR in self.factors

    @property
    def prior(self) -> Eta:
        """η_0: the study's, unless a survey told how columns are spread."""
        told = None if self.standing is None else self.standing.prior
        return self.stated if told is None else told

    @property
    def noise_scale(self) -> float | None:
        """The sd of residuals in the unit of the model, if the run learnt it.

        A run that ended before the last count, or whose last count noise hides, has that of outcomes, which
        is no smaller.
        """
        at = None if self.standing is None else self.standing.coordinates
        survey = getattr(self.stand, "keywords", {}).get("survey")
        plan = None if survey is None else survey["outcome"]
        if at is None or survey is None or plan is None or plan["kind"] != "number":
            return None
        guessed = survey["curvature"] ** -0.5
        return at.residual or (at.spread if at.spread not in (0.0, guessed) else None)

    @property
    def wider_priors(self) -> dict[str, float]:
        """Coefficient → the sd of its prior, in the unit of the file, where a survey made it wider."""
        if self.prior is self.stated:
            return {}
        stated, sd = (np.asarray(self.family.moments(eta)[1]) for eta in (self.stated, self.prior))
        told = in_file_units(self.study, self.names).moments(sd, sd)[1]
        found = zip(self.names, told.tolist(), sd > stated * _WIDER, strict=True)
        return {name: value for name, value, wider in found if wider and is_effect(name)}

    def rows(self, pooled: Eta | None = None) -> list[dict[str, Any]]:
        """Lists the posterior by coordinate; see ``fedvi.study.spec.coefficients``."""
        return coefficients(self.family, self.posterior, self.names, self.units, self.study, pooled)


def of_server(plan: ServerPlan, spec: ServerSpec, state: ServerState) -> RunRecord:
    """Returns the releases of a server's run."""
    return RunRecord(
        study=plan.study,
        clients=plan.clients,
        names=plan.names,
        units=plan.units,
        family=spec.family,
        stated=spec.prior,
        posterior=protocol.reported(spec, state),
        factors=state.factors,
        history=state.history,
        standing=state.standing,
        stand=spec.stand,
        is_projected=state.standing is None and not spec.family.is_proper(state.posterior),
        is_summed=spec.gather is not None,
        mark=plan.mark,
    )


def influence_rows(run: RunRecord) -> list[dict[str, Any]] | None:
    """Lists each client's contribution; see ``fedvi.results.influence``.

    Returns:
      By client: precision_share, shift_in_sds (coefficient → shift without the client; None with a
      reason) and reason. None if the family has no such answer, the list would be very long, or single
      clients' answers are not published.
    """
    # With sums, a factor is a part of the sum, and no single client's.
    if run.is_summed or len(run.names) * len(run.clients) > _MOST_SHIFTS:
        return None
    without, own = None, None
    if run.stand is not None:
        without, own = refolded(
            *(run.family, run.stand, run.prior, run.factors, run.standing, run.history)
        )
    found = influence(
        run.family,
        run.prior,
        run.factors,
        run.clients,
        run.stand is not None,
        without,
        _trace_noise(run),
        own,
    )
    known = in_file_units(run.study, run.names)
    return None if found is None else as_rows(found, run.names, known.moments)


def prior_rows(run: RunRecord) -> list[dict[str, float]] | None:
    """Lists mean and sd of the prior, for the coordinates that ``RunRecord.rows`` lists.

    Returns:
      None if the prior is not in the family: it is then a factor of its own, refined along with the
      clients, without mean and sd.
    """
    if run.has_prior_factor:
        return None
    mean, sd = in_file_units(run.study, run.names).moments(*run.family.moments(run.prior))
    listed = zip(mean[:MOST].tolist(), sd[:MOST].tolist(), strict=True)
    return [{"mean": middle, "sd": spread} for middle, spread in listed]


def verdict_of(run: RunRecord, expected: Mapping[str, Any] | None) -> Verdict:
    """Judges a run from its releases; see ``fedvi.results.verdict``.

    Args:
      run: a run that has ended.
      expected: see ``fedvi.planning.widths.expectation``.
    """
    prior, open_sd = None if run.has_prior_factor else _rows(run, run.prior), None
    present = took_part(run.clients, [(one.clients, one.removed) for one in run.history])
    expected = expected and _with_noise(run, _of_those(present, run, expected))
    if prior is not None:
        open_sd = verdicts.open_sds(run.family, run.standing, run.prior, expected)
    moves = [
        (update.gap.mean_shift, *update.gap[2:]) for update in run.history if update.gap is not None
    ]
    found = verdicts.judge(
        *(run.study, _rows(run, run.posterior), prior, moves),
        *(_contributions(run), open_sd, expected, _joint(run)),
    )
    return found._replace(alarms=(*found.alarms, IMPROPER)) if run.is_projected else found


def _rows(run: RunRecord, eta: Eta) -> list[dict[str, Any]]:
    """Lists the coordinates of θ as they are fitted: what is expected of them is in no other unit."""
    mean, sd = (np.asarray(values[:MOST], np.float64) for values in run.family.moments(eta))
    ends = mean - Z95 * sd, mean + Z95 * sd
    values = zip(run.names, *(each.tolist() for each in (mean, sd, *ends)), strict=False)
    return [dict(zip(("name", "mean", "sd", "lower", "upper"), row, strict=True)) for row in values]


def took_part(
    clients: Sequence[str], history: Iterable[tuple[Iterable[str], Iterable[str]]]
) -> tuple[str, ...]:
    """Returns the clients whose answers the posterior holds, in the order of the study.

    Args:
      clients: of the study.
      history: who answered, and who was removed, at each update.
    """
    found: set[str] = set()
    for answered, removed in history:
        found = (found | set(answered)) - set(removed)
    return tuple(name for name in clients if name in found)


def _of_those(
    present: Sequence[str], run: RunRecord, expected: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns what is expected of a run in which only these clients took part.

    A precision is the prior's plus that of the records, in proportion to their number: this is exact
    where the prior adds little, or where coefficients do not depend on each other.
    """
    held = shared_parts.records(run.study)
    share = sum(held[name] for name in present) / sum(held.values())
    if share in (0.0, 1.0):
        return expected
    before = np.asarray(run.family.moments(run.stated)[1]) ** -2.0
    found = {**expected, "records": round(expected["records"] * share), "noised": None}
    for name in ("sds", "least"):
        told = np.maximum(np.asarray(expected[name]) ** -2.0 - before, 0.0)
        found[name] = ((before + share * told) ** -0.5).tolist()
    return found


def _with_noise(run: RunRecord, expected: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what is expected of a run that learnt the noise around outcomes, in place of the guess."""
    if run.noise_scale is None or not isinstance(run.stand, functools.partial):
        return expected
    sharper = 1.0 / (run.stand.keywords["survey"]["curvature"] * run.noise_scale**2)
    before = np.asarray(run.family.moments(run.stated)[1]) ** -2.0
    found = {**expected, "noised": None}
    for name in ("sds", "least"):
        told = np.maximum(np.asarray(expected[name]) ** -2.0 - before, 0.0)
        found[name] = ((before + sharper * told) ** -0.5).tolist()
    return found


def _trace_noise(run: RunRecord) -> float:
    return trace_noise(run.stand, run.prior, run.standing and run.standing.coordinates)


def _contributions(run: RunRecord) -> verdicts.Contributions:
    """Returns what is known of each client's part in the posterior."""
    shares = {row["client"]: row["precision_share"] for row in influence_rows(run) or ()}
    seen = {name for update in run.history for name in (*update.clients, *update.removed)}
    never = tuple(name for name in run.clients if name not in seen)
    noise: float | None = 0.0
    if run.study.privacy.private and shares:
        trace, noise = _trace_noise(run), None
        if trace > 0.0:
            total = sum(float(run.family.trace(run.prior, run.factors[name])) for name in shares)
            noise = trace / total if total > 0.0 else None
    return verdicts.Contributions({k: v for k, v in shares.items() if k not in never}, noise, never)


def _joint(run: RunRecord) -> verdicts.Joint | None:
    """Returns what a verdict needs of a Gaussian posterior with correlations; None of any other."""
    if not is_full(run.family) or len(run.names) > _MOST_JOINT:
        return None
    mean = run.family.moments(run.posterior)[0]
    covariance = np.linalg.inv(np.asarray(run.posterior.J, np.float64))
    at = None if run.standing is None else run.standing.coordinates
    usual = None
    if at is not None and at.blocks == at.baselines == 1:
        usual = at.centre.copy()
        usual[at.constant] = 1.0
    clipped = 0.0 if run.standing is None else run.standing.clipped
    return verdicts.Joint(np.asarray(mean, np.float64), covariance, usual, clipped)
