"""Builds a study's solver with its noise: calibrated to the promise, or checked against it."""

import dataclasses
import functools
import math
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from fedvi import errors
from fedvi.data.written import is_number
from fedvi.federation.progress import Schedule
from fedvi.inference import solvers as solver_kinds
from fedvi.inference.blocks import BLOCK, length_of
from fedvi.inference.clipping import MOST_ROWS, predictor_limit
from fedvi.inference.units import unit_model
from fedvi.models.base import Model
from fedvi.models.capabilities import Regression
from fedvi.models.outcomes.base import check_steepest
from fedvi.privacy import accountants, calibrate, events, ledger, mechanisms, sampling, top_up
from fedvi.privacy.base import Mechanism, Sampler
from fedvi.privacy.bounded import float_limit
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.noise_table import TABLE_DISTANCE
from fedvi.privacy.top_up import TopUp
from fedvi.study import factories
from fedvi.study.config import Study
from fedvi.study.sections import KindSection
from fedvi.updates.base import LocalSolver
from fedvi.updates.conjugate import ConjugateModel
from fedvi.updates.coordinates import Foreseen

__all__ = ["Made", "solver_of"]

_CLIP_NORMS = (1e-15, 1e15)
_LARGEST_NOISE = 1e9
# A noise multiplier at which a mechanism takes its largest number of draws for one number.
_FINEST = 256.0


def _sampler(study: Study, given: Any) -> Any:
    if study.data.max_records is None:
        raise errors.ConfigError(
            f"data.max_records is missing, which solver.kind {study.solver.kind!r} needs",
            "declare the largest number of records at any client (of patients, where "
            "data.unit_column is given): batches are sized for it",
        )
    section = {"kind": given} if isinstance(given, str) else given
    if not isinstance(section, dict) or not isinstance(section.get("kind"), str):
        raise errors.ConfigError(
            f"solver.sampler is {given!r}, expected a kind in quotes, or a table with a kind",
            'write sampler = "full", { kind = "poisson", rate = 0.1 } or '
            '{ kind = "feistel", batch = 128 }',
        )
    kind = KindSection(**section)
    factory = factories.find("solver.sampler", kind.kind, sampling, parts=study.parts)
    supplied = {"max_records": study.data.max_records}
    outside = kind.kind not in sampling.__all__
    return factories.call("solver.sampler", kind, factory, supplied, Sampler, outside=outside)


class Made(NamedTuple):
    """The results of ``solver_of``; see the attributes of ``Assembly``."""

    solver: LocalSolver
    budget: ledger.Budget | None
    noise_multiplier: float | None = None
    sampler: Any = None
    table_distance: float = 0.0
    remake: Callable[..., LocalSolver] | None = None
    step: float | None = None
    fineness: int = 1
    # The ε of the whole study, if the noise was calibrated.
    spent: float | None = None


def solver_of(
    study: Study,
    family: Any,
    model: Model | ConjugateModel,
    schedule: Schedule,
    budget: ledger.Budget | None,
    public: Foreseen,
) -> Made:
    """Builds the solver; calibrates its noise if the study leaves the noise multiplier out.

    ``public`` holds what the columns' declarations say.
    """
    factory = factories.find("solver", study.solver.kind, solver_kinds, parts=study.parts)
    outside = study.is_outside("solver")
    arguments = dict(study.solver.arguments)
    known = factories.parameters(factory)
    # The unit comes only from the promise: a key of the solver's own could contradict the price.
    unit = "client" if study.privacy.unit == "client" else "record"
    supplied: dict[str, Any] = {"family": family, "model": model, "unit": unit}
    if "mechanism" not in known:
        solver = factories.call(
            "solver", study.solver, factory, supplied, LocalSolver, outside=outside
        )
        # Checked by price, not by `supports`: unprotected events are supported, with an infinite price.
        if budget is not None and math.isinf(budget.accountant.epsilon(solver.cost, budget.delta)):
            raise errors.ConfigError(
                f"solver.kind is {study.solver.kind!r}, which releases without protection, "
                "but [privacy] promises differential privacy",
                'use a private solver such as "dp_optimisation", or protection = "none"',
            )
        if budget is not None:
            _check_checked(study, solver)
        return Made(solver, budget)
    if study.data.unit_column is not None:
        # The solver clips what one record contributes, so all rows of a patient are one record.
        supplied["model"] = unit_model(typing.cast(Model, model))
    if "foreseen" in known and isinstance(model, Regression) and model.layout is None:
        # This solver weighs records by the longest gradient that they may have.
        check_steepest(model.response)
    if "foreseen" in known and study.data.max_records is not None:
        first = schedule.first_fold(tuple(client.name for client in study.clients))
        supplied["foreseen"] = public._replace(
            rounds=schedule.rounds, clients=first, records=study.data.max_records
        )
    noise = arguments.pop("noise_multiplier", None)
    sampler = _sampler(study, arguments.pop("sampler", "full"))
    if "clip_norm" in known:
        _check_clip_norm(arguments.get("clip_norm"), private=study.privacy.private)
    mechanism = factories.find(
        "privacy", study.privacy.mechanism, mechanisms, "mechanism", parts=study.parts
    )
    noise_section = KindSection(kind=study.privacy.mechanism)
    section = KindSection(kind=study.solver.kind, **arguments)

    def noised_by(noise_multiplier: float) -> Mechanism:
        noise = {"noise_multiplier": noise_multiplier}
        found: Mechanism = factories.call(
            "privacy.mechanism",
            noise_section,
            mechanism,
            noise,
            Mechanism,
            outside=study.is_outside("mechanism"),
        )
        return found

    def build(
        noise_multiplier: float,
        wrap: Callable[[Mechanism], Mechanism] | None = None,
        watch: Callable[[Sampler], Sampler] | None = None,
    ) -> LocalSolver:
        made = noised_by(noise_multiplier)
        if wrap is not None:
            made = wrap(made)
        picked = sampler if watch is None else watch(sampler)
        given = supplied | {"sampler": picked, "mechanism": made}
        return factories.call("solver", section, factory, given, LocalSolver, outside=outside)

    def total(noise_multiplier: float) -> events.Event:
        return events.repeat(build(noise_multiplier).cost, schedule.rounds)

    if noise is None and budget is None:
        raise errors.ConfigError(
            "solver.noise_multiplier is missing and there is no budget to calibrate it for",
            "give noise_multiplier, or a [privacy] section with epsilon and delta",
        )
    if noise is not None:
        _check_noise(noise)
    distance, spent = 0.0, None
    if budget is not None:
        # A published sum contains the noise of all clients that answered.
        noises = 1 if study.sums is None else len(study.clients)
        finest = noised_by(_FINEST)
        distance = noises * _table_distance(finest, build(1.0), _layer_draws(study))
        accountant = with_tables(budget.accountant, distance)
        budget = dataclasses.replace(budget, accountant=accountant)
        _check_pairing(study, accountant, total(1.0))
        if noise is None:
            noise = calibrate.calibrate(total, accountant, budget.epsilon, budget.delta)
            spent = accountant.epsilon(total(noise), budget.delta)
        else:
            _check_price(float(noise), total, budget, schedule.rounds)
    chosen = float(noise)
    solver = build(chosen)
    if budget is not None and noised_by(chosen).grid(1.0) is not None:
        _check_checked(study, solver)
    if "foreseen" in known and solver.streams and chosen > 0.0:
        _check_rounding(study, solver, sampler, noised_by(chosen))
    grid = noised_by(chosen).grid(solver.clip_norm) if solver.clip_norm is not None else None
    return Made(
        solver=solver,
        budget=budget,
        noise_multiplier=chosen,
        sampler=sampler,
        table_distance=distance,
        remake=functools.partial(build, chosen),
        step=None if grid is None else grid.step,
        fineness=getattr(noised_by(chosen), "fineness", 1),
        spent=spent,
    )


def layers_of(study: Study, fineness: int) -> TopUp:
    """Returns the layers of noise that make up for missing sites; none where all must answer."""
    if study.sums is None or not study.sums.topped_up:
        return top_up.NONE
    least, colluding, clients = study.sums
    return top_up.planned(clients, colluding, least, fineness)


def _layer_draws(study: Study) -> int:
    """Bounds how many draws from the noise table the layers of one number take, whatever the noise."""
    finer = (2**power for power in range(int(_FINEST).bit_length()))
    return max(layers_of(study, fineness).draws for fineness in finer)


def _table_distance(mechanism: Mechanism, solver: LocalSolver, layers: int) -> float:
    """Bounds the total variation between one noised sum and the law that is priced.

    For a mechanism that draws from a table, ``distance`` is that of one draw. A sum has one draw for each
    of its numbers, or for each entry of a square of which only a triangle is used, which is less than twice
    as many. More numbers may be noised than sent, if a site keeps some to itself.

    Args:
      mechanism, solver: as the study builds them.
      layers: how many more draws a number takes; see ``top_up``.
    """
    count = solver.number_count if solver.noised_count is None else solver.noised_count
    distance = float(getattr(mechanism, "distance", 0.0))
    return 2 * count * (distance + (layers * TABLE_DISTANCE if distance else 0.0))


def _check_checked(study: Study, solver: LocalSolver) -> None:
    """Refuses a private solver whose compiled sums nobody would try before a charge."""
    if solver.check is None:
        raise errors.ConfigError(
            f"solver.kind is {study.solver.kind!r}, which has no check of its compiled sums, "
            "but [privacy] promises differential privacy",
            "let its factory return LocalSolver(…, check=check_of(…)); see docs/add/solver.md",
        )


def _check_rounding(
    study: Study, solver: LocalSolver, sampler: Sampler, mechanism: Mechanism
) -> None:
    """Refuses sums of so many numbers that rounding would take too much of the clip norm."""
    most, rows = typing.cast(int, study.data.max_records), sampler.capacity
    size = solver.number_count
    norm = typing.cast(float, solver.clip_norm)
    try:
        if most <= MOST_ROWS:
            predictor_limit(length_of(rows, rows), size, norm, mechanism)
        else:  # in float64, so that only the grid takes something
            float_limit(norm, BLOCK, -(-most // BLOCK), most, size, mechanism, double=True)
    except errors.PrivacyError as error:
        more = f"declare data.max_records above {MOST_ROWS:,}, from where on float64 is used; or "
        raise errors.ConfigError(
            f"solver.kind is {study.solver.kind!r} with {size:,} numbers a message and data.max_records = "
            f"{most:,}: {error.message}",
            f"{more if most <= MOST_ROWS else ''}leave out columns of the formula",
        ) from error


def _check_noise(noise: Any) -> None:
    if not is_number(noise) or not 0 <= noise <= _LARGEST_NOISE:
        raise errors.ConfigError(
            f"solver.noise_multiplier is {noise!r}, expected a finite number of at least 0 and at "
            f"most {_LARGEST_NOISE:g}",
            "leave it out: it is then calibrated to the budget",
        )


def _check_pairing(study: Study, accountant: Any, planned: events.Event) -> None:
    """Refuses a combination of sampler, mechanism, relation and accountant that has no price."""
    if accountant.supports(planned):
        return
    privacy = study.privacy
    found = (
        f"solver.sampler is {study.kinds['sampler']!r} and privacy.mechanism "
        f"{privacy.mechanism!r}, which accountant {privacy.accountant!r} cannot price under "
        f"relation {privacy.relation!r}"
    )
    other = "substitute" if privacy.relation == "add_remove" else "add_remove"
    if getattr(accountants, privacy.accountant)(other).supports(planned):
        sampled = next(iter(events.counts(planned)))
        rate = getattr(sampled, "rate", 0.1)
        raise errors.ConfigError(
            found,
            f'promise relation = "{other}", or use sampler = '
            f'{{ kind = "poisson", rate = {rate:.3g} }}',
        )
    able = [
        name
        for name in accountants.__all__
        if getattr(accountants, name)(privacy.relation).supports(planned)
    ]
    raise errors.ConfigError(
        found,
        "accountants that can: " + ", ".join(f"`{name}`" for name in able)
        if able
        else 'no accountant can; use mechanism = "rounded_gaussian" and the poisson sampler',
    )


def _check_price(
    noise: float, total: Callable[[float], events.Event], budget: ledger.Budget, rounds: int
) -> None:
    """Refuses noise that the accountant cannot price, or that costs more than the budget."""
    accountant, promised = (
        budget.accountant,
        f"delta {budget.delta:g}, {budget.accountant.relation}",
    )
    try:
        spent = accountant.epsilon(total(noise), budget.delta)
    except errors.PrivacyError as error:
        raise errors.ConfigError(
            f"solver.noise_multiplier is {noise:g}, which accountant {accountant.name!r} cannot "
            f"price: {error.message}",
            _enough(total, budget),
        ) from error
    if math.isinf(spent):
        raise errors.BudgetExceeded(
            f"{rounds} rounds at noise_multiplier {noise:g} have no finite epsilon by accountant "
            f"{accountant.name!r}, expected {budget.epsilon:g} or less ({promised})",
            _enough(total, budget),
        )
    if spent > budget.epsilon:
        raise errors.BudgetExceeded(
            f"{rounds} rounds at noise_multiplier {noise:g} spend epsilon {spent:.4g} "
            f"of {budget.epsilon:g} ({promised})",
            _enough(total, budget),
        )


def _enough(total: Callable[[float], events.Event], budget: ledger.Budget) -> str:
    """Says how much noise the budget needs."""
    try:
        least = calibrate.calibrate(total, budget.accountant, budget.epsilon, budget.delta)
    except errors.FedviError as error:
        return error.hint or error.message
    return f"{least:g} is enough; left out, noise_multiplier is calibrated to the budget"


def _check_clip_norm(given: Any, *, private: bool) -> None:
    """Refuses a clip norm at which float32 sums of clipped records would vanish or overflow."""
    if given == "Infinity":  # see Study.as_dict
        given = math.inf
    if isinstance(given, bool) or not isinstance(given, int | float):
        return
    low, high = _CLIP_NORMS
    if low <= given <= high or (given == math.inf and not private):
        return
    raise errors.ConfigError(
        f"solver.clip_norm is {given}, expected a number from {low:g} to {high:g}",
        "it bounds what one record contributes; 1 is a good start. Without protection it may be inf",
    )
