"""The parts of a study that a server builds as well as a client: family, schedule, budget; no JAX."""

import math
from typing import Any

from fedvi import errors, expfam
from fedvi.experiment import factories
from fedvi.experiment.config import KindSection, Study
from fedvi.expfam.base import ExponentialFamily
from fedvi.federation import damping, schedules
from fedvi.federation.progress import Patience, Schedule
from fedvi.privacy import accountants, ledger
from fedvi.privacy.itemised import with_tables
from fedvi.typing import PRIOR

__all__ = ["PRIOR", "budget", "family", "has_odds", "schedule"]


def family(study: Study, size: int) -> Any:
    """Builds the family of q over θ of a given size.

    Raises:
      ConfigError: there is no such family, or it refuses its arguments.
    """
    factory = factories.find("family", study.family.kind, expfam)
    return factories.call("family", study.family, factory, {"size": size}, ExponentialFamily)


def schedule(study: Study) -> tuple[Schedule, damping.StepRule, Patience]:
    """Builds who works when, how the server chooses its steps, and how long it waits for a client.

    Raises:
      ConfigError: there is no such schedule, or a key holds what it may not.
    """
    arguments = study.schedule.arguments
    rule = _step_rule(arguments.pop("damping", "adaptive"))
    patience = _patience(arguments, len(study.clients))
    section = KindSection(kind=study.schedule.kind, **arguments)
    factory = factories.find("schedule", study.schedule.kind, schedules)
    made = factories.call("schedule", section, factory, {}, Schedule)
    if not isinstance(made.rounds, int) or made.rounds < 1:
        raise errors.ConfigError(
            f"schedule.rounds is {made.rounds!r}, expected a whole number of at least 1",
            "rounds are passes over all clients; ten are a good start",
        )
    return made, rule, patience


def _step_rule(given: Any) -> damping.StepRule:
    if given == "adaptive":
        return damping.adaptive()
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise errors.ConfigError(
            f'schedule.damping is {given!r}, expected "adaptive" or a number above 0 and at most 1',
            "leave it out, and the server chooses the step",
        )
    return damping.fixed(float(given))


def _patience(arguments: dict[str, Any], clients: int) -> Patience:
    """Takes the keys `deadline_seconds` and `quorum` out of a schedule's arguments."""
    deadline = arguments.pop("deadline_seconds", None)
    quorum = arguments.pop("quorum", (clients + 1) // 2)
    if deadline is not None and not (
        isinstance(deadline, int | float)
        and not isinstance(deadline, bool)
        and 0 < deadline < math.inf
    ):
        raise errors.ConfigError(
            f"schedule.deadline_seconds is {deadline!r}, expected a finite number above 0",
            "a client that takes longer is skipped for that turn; left out, everybody is waited for",
        )
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 1 <= quorum <= clients:
        raise errors.ConfigError(
            f"schedule.quorum is {quorum!r}, expected a whole number from 1 to {clients}, the "
            "number of clients",
            "with fewer clients present the run waits; left out, it is half of them",
        )
    return Patience(None if deadline is None else float(deadline), quorum)


def budget(study: Study, table_distance: float = 0.0) -> ledger.Budget | None:
    """Builds what each client may spend; None without protection.

    Args:
      study: the promise.
      table_distance: of the noise of one release from the law that is priced: part of the price.
    """
    promise = study.privacy.promise
    if promise is None:
        return None
    factory = factories.find("privacy", study.privacy.accountant, accountants, "accountant")
    accountant = with_tables(factory(promise.relation), table_distance)
    return ledger.Budget(promise.epsilon, promise.delta, accountant)


def has_odds(study: Study) -> bool:
    """Says whether exp(coefficient) is an odds ratio."""
    return study.model.kind == "logistic"
