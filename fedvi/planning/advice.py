"""Recommends a private mode for a study, and warns of estimates dominated by noise.

Reads no data: everything follows from public numbers. The results are estimates, not promises. A plan of
`fedvi.DPSVI` is advised in ``fedvi.privacy.advising``.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.data.formula import Part
from fedvi.data.schema import Binary, Number, Schema
from fedvi.expfam.base import DenseGaussian
from fedvi.inference import solvers as solver_kinds
from fedvi.inference.prior_frame import prior_frame
from fedvi.inference.solvers.vips import conjugate_form
from fedvi.inference.units import unit_model
from fedvi.models.capabilities import Regression, SharesEffects, is_concave
from fedvi.models.outcomes.base import TYPICAL_CURVATURE
from fedvi.planning import made_up
from fedvi.planning.plan import rounds_in_vain
from fedvi.planning.priors import quarrels
from fedvi.planning.scenarios import Lever, levers
from fedvi.planning.signals import (
    TYPICAL_SPREAD,
    PublicNumbers,
    Signal,
    defaults_of,
    given_clip_norm,
    is_known,
    signal,
    suggested_clip_norm,
    suggested_rounds,
)
from fedvi.planning.topics import topic_outlook
from fedvi.planning.widths import is_newton
from fedvi.privacy import calibrate, events, mechanisms, sampling
from fedvi.report import tables
from fedvi.study import factories, modelling
from fedvi.study.build import Assembly, assemble
from fedvi.study.config import parse_study
from fedvi.study.sections import KindSection
from fedvi.study.spec import shared_parts
from fedvi.updates.abilities import ability
from fedvi.updates.base import LocalSolver
from fedvi.updates.conjugate import ConjugateModel

__all__ = ["Mode", "Outlook", "doubts", "help_in_words", "levers_in_words", "outlook"]

# Another mode is recommended instead of the study's own only if it is better by this factor.
_CLEARLY = 1.1
# `site_release` is preferred if its ratio is at least this part of the best one.
_SLOWER = 0.5
# Below this ratio, noise alone leaves a large part of what the prior leaves.
_FAINT = 4.0
# Rounds that are enough for steps shortened by noise, where the solver does not say.
_ROUNDS = 12
# Below this share of the way to the answer, a plan has too few rounds.
_SHORT_OF_ROUNDS = 0.5


class Mode(NamedTuple):
    """One way to run the study with the same promise.

    Attributes:
      solver: its kind.
      current: whether it is the study's own.
      noise_multiplier: calibrated to the promise; None if the mode is not offered.
      clip_norm: the study's, or a suggested one; None if the mode is not offered.
      signal: None if the mode is not offered, or has no estimate.
      summed: ``signal.coefficients`` if only the sum of the clients' answers were seen; None if
        noise cannot be shared (docs/proofs/aggregate_view.md).
      note: why it is not offered, or empty.
      renews: whether its answers are fresh statistics at a common q, see ``LocalSolver.renews``.
      newton: whether these are gradients and curvatures, whose noise is included in the intervals.
    """

    solver: str
    current: bool
    noise_multiplier: float | None
    clip_norm: float | str | None
    signal: Signal | None
    summed: float | None
    note: str
    renews: bool = False
    newton: bool = False


@dataclasses.dataclass(frozen=True)
class Outlook:
    """The comparison of a private study's modes for `fedvi check` and `fedvi privacy`.

    Attributes:
      numbers: the public numbers that the estimates use.
      modes: the private solvers, in alphabetical order.
      recommended: one of them; None if none has a ratio.
      reason: why, in a sentence or two.
      warnings: estimates of the study's own mode that noise dominates; empty if there are none.
      guessed: the columns whose spread the study does not state, so that the estimates are a guess.
    """

    numbers: PublicNumbers
    modes: tuple[Mode, ...]
    recommended: str | None
    reason: str
    warnings: tuple[str, ...]
    guessed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        found: dict[str, Any] = tables.plain(vars(self))
        return found


def outlook(assembly: Assembly) -> Outlook | None:
    """Estimates the signal of every private mode at a study's promise, and recommends one.

    Each mode is priced as `fedvi check` prices the study's own: its noise is calibrated to the
    promise, with the study's accountant and rounds. Other modes have their default settings, except for
    the clip norm, which is ``suggested_clip_norm``.

    Returns:
      None if the study promises nothing, declares no largest number of records, or has a family that is
      not Gaussian or a conjugate model; for topics see ``fedvi.planning.topics``.
    """
    numbers = _numbers(assembly)
    if numbers is None:
        return None
    kinds = [
        kind
        for kind in solver_kinds.__all__
        if "mechanism" in factories.parameters(getattr(solver_kinds, kind))
    ]
    modes = tuple(_mode(assembly, numbers, kind) for kind in kinds)
    recommended, reason = _recommended(assembly, numbers, modes)
    own = next((mode for mode in modes if mode.current), None)
    warnings = () if own is None else (*_warnings(own), *_of_newton(own, assembly))
    guessed = made_up.silent(assembly) if made_up.is_known(assembly) else ()
    return Outlook(numbers, modes, recommended, reason, warnings, guessed)


def doubts(assembly: Assembly) -> tuple[str, ...]:
    """Returns all warnings of `fedvi check`, to print before a study runs, and again with its result.

    They concern settings that are allowed but probably unintended, rounds that release the same sums
    again, conflicts between bounds and the prior, and estimates of its own mode, or of topics, that noise
    dominates.
    """
    numbers, kind = _numbers(assembly), assembly.study.solver.kind
    found = [*assembly.warnings, *rounds_in_vain(assembly), *quarrels(assembly)]
    if numbers is not None and kind in solver_kinds.__all__ and assembly.noise_multiplier:
        own = _mode(assembly, numbers, kind)
        found += [*_warnings(own), *_of_newton(own, assembly)]
    topics = topic_outlook(assembly)
    return (*found, *(topics.warnings if topics is not None else ()))


def help_in_words(assembly: Assembly, present: Sequence[str]) -> str:
    """Says what would have narrowed the intervals of a run; "" if nothing would, or nothing is known.

    Args:
      assembly: of the run.
      present: the clients whose answers the posterior holds. A site that never answered added neither
        records nor noise, so that levers are those of a study without it.
    """
    absent = len(assembly.clients) - len(present)
    try:
        if absent:
            raw = assembly.study.as_written()
            raw["clients"] = [client for client in raw["clients"] if client["name"] in present]
            assembly = assemble(parse_study(raw, assembly.study.parts))
        said = levers_in_words(levers(assembly))
    # A script may name a site that never answered; and nothing may be known of a user's own outcome.
    except errors.FedviError:
        return ""
    return said + (
        f". Sites that gave no answer ({absent}) are left out" if said and absent else ""
    )


def levers_in_words(found: Sequence[Lever]) -> str:
    """Says what would narrow intervals most, and by how much; "" if nothing would.

    >>> levers_in_words([Lever("twice the records", 0.3), Lever("ε = 2 in place of 1", 0.25)])
    'what would help most: twice the records (intervals 30 % narrower); ε = 2 in place of 1 (25 %)'
    """
    if not found:
        return ""
    first, *rest = found
    then = "; ".join(f"{one.what} ({100.0 * one.narrower:.0f} %)" for one in rest)
    most = f"{first.what} (intervals {100.0 * first.narrower:.0f} % narrower)"
    return f"what would help most: {most}" + (f"; {then}" if then else "")


def _numbers(assembly: Assembly) -> PublicNumbers | None:
    """Returns the public numbers for the estimates; None for a study without modes to compare."""
    study, family, most = assembly.study, assembly.family, assembly.study.data.max_records
    if study.privacy.promise is None or assembly.budget is None or most is None:
        return None
    # Only one solver supports conjugate models.
    if not isinstance(family, DenseGaussian) or isinstance(assembly.model, ConjugateModel):
        return None
    return PublicNumbers(
        coefficients=assembly.model.size,
        records=round(np.mean([*shared_parts.records(study).values()])),
        clients=len(assembly.clients),
        rounds=assembly.schedule.rounds,
        prior_sd=_prior_sd(assembly),
        curvature=_curvature(assembly),
        correlated=family.correlated,
        variance=_variance(assembly),
    )


def _prior_sd(assembly: Assembly) -> float:
    root = prior_frame(assembly.family, assembly.model).root
    return float(np.median(np.linalg.norm(root, axis=1) if root.ndim == 2 else root))


def _curvature(assembly: Assembly) -> float:
    """Returns a record's information on a coefficient: declared, the model's, or that of binary trials."""
    model = _regression(assembly.model)
    declared = modelling.declared_curvature(assembly.study, assembly.design, model)
    if declared is not None:
        return declared
    return TYPICAL_CURVATURE if model is None else model.typical_curvature


def _variance(assembly: Assembly) -> float:
    """Returns the median variance of the formula's columns according to the schema; 1 if unknown."""
    if assembly.design is None:
        return 1.0
    found = [
        math.prod(_variance_of(part, assembly.schema) for part in parts)
        for parts in assembly.design.coefficients
        if parts
    ]
    known = [variance for variance in found if not math.isnan(variance)]
    return float(np.median(known)) if known else 1.0


def _variance_of(part: Part, schema: Schema) -> float:
    """Returns a public guess of a part's variance; NaN for a function, a count or an unknown column."""
    column = schema.get(part.column)
    if part.transform is not None or column is None:
        return math.nan
    if isinstance(column, Number):
        if column.whole:
            return math.nan
        return TYPICAL_SPREAD**2 if column.by_bounds else 1.0
    levels = 2 if isinstance(column, Binary) else max(2, len(column.levels))
    return (1.0 - 1.0 / levels) / levels  # for equally frequent levels


def _regression(model: Any) -> Regression | None:
    """Returns a model's regression, without the effects of sites; None if it has none."""
    base = model.base if isinstance(model, SharesEffects) else model
    return base if isinstance(base, Regression) else None


def _mode(assembly: Assembly, numbers: PublicNumbers, kind: str) -> Mode:
    """Builds, prices and evaluates one mode of the study."""
    study, budget = assembly.study, assembly.budget
    assert budget is not None
    current = kind == study.solver.kind
    if assembly.request.unit == "client" and not current:
        why = "protects records, and no client as a whole"
        return Mode(kind, False, None, None, None, None, why)
    if not current and "parts" in defaults_of(kind) and study.data.identity_column is None:
        return Mode(kind, False, None, None, None, None, "needs data.id_column")
    settings = dict(study.solver.arguments) if current else {}
    for name in ("sampler", "noise_multiplier", "clip_norm"):
        settings.pop(name, None)
    sampler = assembly.sampler
    solver = assembly.solvers[assembly.clients[0]]
    if current:
        noise = assembly.noise_multiplier
        given = given_clip_norm(kind, study.solver.arguments)
        clip_norm = given if given == "auto" else solver.clip_norm
        assert noise is not None
        assert clip_norm is not None
    else:
        clip_norm = suggested_clip_norm(kind, numbers) if is_known(kind) else 1.0
        try:
            sampler, solver = _built(assembly, kind, clip_norm)
            if study.sums is not None and solver.adds_up is None:
                return Mode(kind, False, None, None, None, None, 'needs view = "message"')
            noise = calibrate.calibrate(
                lambda noise: events.repeat(_renoised(solver.cost, noise), numbers.rounds),
                budget.accountant,
                budget.epsilon,
                budget.delta,
            )
        except errors.FedviError as error:
            return Mode(kind, False, None, None, None, None, error.message)
    found = None
    if "typical" in defaults_of(kind):
        settings |= _typical(assembly, settings)
    if is_known(kind):
        found = signal(kind, numbers, noise, clip_norm, sampler.rate, **settings)
    # Only fresh statistics contain no noise of their client from earlier rounds.
    summed = None
    if solver.renews and found is not None:
        # Under the view "aggregate" their noise is already that of the sum.
        terms = numbers.clients if study.sums is None else 1
        summed = found.coefficients * math.sqrt(terms)
    return Mode(
        *(kind, current, noise, clip_norm, found, summed, "", solver.renews, is_newton(solver))
    )


def _typical(assembly: Assembly, settings: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns `vips`' typical lengths and shares for a model that it supports."""
    form = conjugate_form(assembly.family, assembly.model, settings.get("row_norm"), "no", 0.0)
    return {
        "typical": {block.name: block.typical for block in form.blocks}
        | dict(settings.get("typical") or {}),
        "shares": {block.name: block.share for block in form.blocks}
        | dict(settings.get("shares") or {}),
    }


def _built(assembly: Assembly, kind: str, clip_norm: float | str) -> tuple[Any, LocalSolver]:
    """Returns another solver, at an arbitrary noise, and its sampler.

    It keeps the study's sampler, or uses whole shards if it does not support batches.

    Raises:
      FedviError: raised by the solver.
    """
    study = assembly.study
    most = study.data.max_records
    assert most is not None
    factory = factories.find(
        "privacy", study.privacy.mechanism, mechanisms, "mechanism", parts=study.parts
    )
    mechanism = factories.call(
        "privacy.mechanism",
        KindSection(kind=study.privacy.mechanism),
        factory,
        {"noise_multiplier": assembly.noise_multiplier or 1.0},
    )
    model = unit_model(assembly.model) if assembly.grouped else assembly.model

    def made(sampler: Any) -> LocalSolver:
        make: Any = getattr(solver_kinds, kind)
        found: LocalSolver = make(assembly.family, model, sampler, mechanism, clip_norm=clip_norm)
        return found

    sampler = assembly.sampler or sampling.full(most)
    try:
        return sampler, made(sampler)
    except errors.SolverError:
        if sampler.rate == 1.0:
            raise
        return sampling.full(most), made(sampling.full(most))


def _renoised(event: Any, noise: float) -> events.Event:
    """Returns the event of the same sums at another noise multiplier: shifts are in clip norms.

    Raises:
      UnsupportedEvent: the event is of another kind, as from an external mechanism.
    """
    match event:
        case events.PoissonSampled() | events.WithoutReplacement() | events.Repeated():
            return dataclasses.replace(event, inner=_renoised(event.inner, noise))
        case events.Gaussian() | events.DiscreteGaussian():
            return dataclasses.replace(event, noise_multiplier=noise)
        case _:
            raise errors.UnsupportedEvent(
                f"a visit costs a {type(event).__name__}, expected noised sums",
                "only what such mechanisms cost can be priced at another noise",
            )


def _recommended(
    assembly: Assembly, numbers: PublicNumbers, modes: tuple[Mode, ...]
) -> tuple[str | None, str]:
    """Picks the mode with the best ratio for coefficients, if clearly better than the study's own."""
    concave = is_concave(assembly.model)
    able = {
        mode.solver: mode.signal.coefficients
        for mode in modes
        # Another likelihood's curvature may have any sign, so Newton steps do not work there.
        if mode.signal is not None and (concave or not mode.newton)
    }
    if not able:
        return None, "no known mode can run this study"
    best = max(able, key=lambda kind: able[kind])
    newton = next((mode.solver for mode in modes if mode.newton), "")
    # Gradient steps stop early, which the ratio does not include: at 10.5 against 13.9 their posterior was
    # 40 to 60 times as far, in nats, from that of the pooled records (docs/modes.md).
    if able.get(newton, 0.0) >= max(1.0, _SLOWER * able[best]):
        best = newton
    current = next((mode for mode in modes if mode.current and mode.solver in able), None)
    own = None if current is None else current.solver
    if current is not None and (current.renews or best != newton):
        best = current.solver if able[current.solver] * _CLEARLY >= able[best] else best
    others = ", ".join(
        f"{kind} {value:.2g}"
        for kind, value in sorted(able.items(), key=lambda item: -item[1])
        if kind != best
    )
    lead = (
        f"keep {best}, since no other mode promises clearly more"
        if best == own
        else f"{best} promises most"
    )
    reason = (
        f"{lead}: about {able[best]:.2g} to 1 on a coefficient if records are as assumed; "
        f"{ability(best).strength}" + (f" (others: {others})" if others else "")
    )
    if able[best] < _FAINT:
        reason += (
            f"; but that is little: noise alone leaves an sd of about {numbers.prior_sd / able[best]:.2g} "
            f"on a coefficient, whose prior has {numbers.prior_sd:.2g}, so that only very large effects "
            "could stand out (`fedvi plan` says how large)"
        )
    chosen = next(mode for mode in modes if mode.solver == best)
    told = chosen.signal
    if chosen.renews and told is not None and told.curvature < 1.0 <= told.coefficients:
        count = numbers.coefficients
        reason += (
            f"; the {count} entries of a gradient stand out of the noise, but the "
            f"{count * (count + 1) // 2} of a curvature do not, so that widths of intervals depend mainly "
            "on the prior"
        )
    if chosen.renews and chosen.noise_multiplier is not None and assembly.sampler is not None:
        rate = assembly.sampler.rate
        enough = suggested_rounds(best, numbers, chosen.noise_multiplier, rate) or _ROUNDS
        if numbers.rounds < enough:
            reason += f"; about {enough} rounds would cost time, and no privacy"
    if _regression(assembly.model) is None:
        reason += "; ratios are rough, since this model does not say how much a record tells"
    if not concave:
        reason += (
            "; site_release is left out: its Newton steps need a log-likelihood that is concave in θ, and "
            "this model does not say that its own is"
        )
    return best, reason


def _of_newton(own: Mode, assembly: Assembly) -> tuple[str, ...]:
    """Warns of Newton steps on a likelihood that is not known to be concave."""
    if not own.newton or is_concave(assembly.model):
        return ()
    return (
        "site_release takes Newton steps, which need a log-likelihood that is concave in θ. With unknown "
        "scales, Student-t errors or mixtures it may never settle; to mend it: solver dp_optimisation, or "
        "keep this one if you know that your log-likelihood is concave",
    )


def _warnings(own: Mode) -> tuple[str, ...]:
    if own.signal is None:
        return ()
    found = own.signal
    mend = "more records, fewer coefficients, larger ε, or the same records at fewer sites"
    said = []
    if found.coefficients < 1.0:
        said.append(
            "the noise probably drowns single coefficients (signal to noise about "
            f"{found.coefficients:.2g}): each would stay near its prior, moved by noise, although "
            f"combinations of many columns may stand out; to mend it: {mend}"
        )
    elif found.curvature < 1.0:
        said.append(
            "the noise probably drowns the curvature in single directions (signal to noise about "
            f"{found.curvature:.2g}): intervals would be too wide, or ignore that columns are "
            f"correlated; to mend it: {mend}"
        )
    if found.travelled < _SHORT_OF_ROUNDS:
        said.append(
            f"the planned rounds go about {found.travelled:.0%} of the way to the answer; to mend it: "
            + ("more rounds" if own.renews else "a larger clip_norm, or more rounds")
        )
    return tuple(said)
