"""Builds the parts of a study that server and client share: family, schedule, budget; needs no JAX."""

from collections.abc import Collection, Mapping
from typing import Any

from fedvi import errors, expfam
from fedvi.data.written import is_number
from fedvi.expfam.base import ExponentialFamily
from fedvi.federation import damping, schedules
from fedvi.federation.progress import Patience, Schedule
from fedvi.federation.script import Stage, scripted
from fedvi.privacy import accountants, ledger
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.sums import Sums, with_sums
from fedvi.study import factories
from fedvi.study.config import Study
from fedvi.study.sections import KindSection
from fedvi.study.spec import conjugates
from fedvi.typing import PRIOR

__all__ = ["PRIOR", "budget", "family", "is_scripted", "records", "schedule"]

# The key for all clients that a table of deadlines does not name.
_DEFAULT = "default"


def family(study: Study, size: int) -> Any:
    """Builds the family of q over θ of a given size.

    Raises:
      ConfigError: there is no such family, or it refuses its arguments.
    """
    conjugate = conjugates.model_of(study)
    if conjugate is not None:
        return conjugate.family
    factory = factories.find("family", study.family.kind, expfam, parts=study.parts)
    return factories.call(
        "family",
        study.family,
        factory,
        {"size": size},
        ExponentialFamily,
        outside=study.is_outside("family"),
    )


def schedule(study: Study) -> tuple[Schedule, damping.StepRule, Patience]:
    """Builds the schedule, the server's step rule, and how long it waits for a client.

    Raises:
      ConfigError: there is no such schedule, or a key has a wrong value.
    """
    arguments = study.schedule.arguments
    rule = _step_rule(arguments.pop("damping", "adaptive"))
    clients = tuple(client.name for client in study.clients)
    patience = _patience(arguments, clients, study.sums)
    is_script = study.schedule.kind == "scripted"
    if study.sums is not None and not is_script:  # for a script, each stage is checked
        _check_summed("schedule", study.schedule.kind, None, study.sums)
    if is_script:
        arguments["stages"] = _stages(arguments.get("stages", []), clients, study.sums)
        factory = scripted
    else:
        kind, others = study.schedule.kind, ("scripted",)
        factory = factories.find("schedule", kind, schedules, besides=others, parts=study.parts)
    section = KindSection(kind=study.schedule.kind, **arguments)
    outside = study.is_outside("schedule")
    made = factories.call("schedule", section, factory, {}, Schedule, outside=outside)
    _check_buffer("schedule", arguments, len(clients))
    if not isinstance(made.rounds, int) or made.rounds < 1:
        raise errors.ConfigError(
            f"schedule.rounds is {made.rounds!r}, expected a whole number of at least 1",
            "rounds are passes over all clients; ten are a good start",
        )
    return made, rule, patience


def is_scripted(study: Study) -> bool:
    """Whether a study's rounds come from several stages, or from a function of its own."""
    return study.schedule.kind == "scripted" or study.is_outside("schedule")


def _stages(given: Any, clients: Collection[str], sums: Sums | None) -> tuple[Stage, ...]:
    """Builds the stages of a script from a list of tables."""
    if not isinstance(given, list) or not all(isinstance(table, dict) for table in given):
        raise errors.ConfigError(
            f"schedule.stages is {given!r}, expected a list of tables",
            'write e.g. stages = [{ kind = "sequential", over = ["north"], rounds = 2 }]',
        )
    return tuple(
        _stage(f"schedule.stages[{index}]", dict(table), clients, sums)
        for index, table in enumerate(given)
    )


def _stage(
    where: str, arguments: dict[str, Any], clients: Collection[str], sums: Sums | None
) -> Stage:
    kind, over = arguments.pop("kind", None), arguments.pop("over", None)
    if not isinstance(kind, str):
        raise errors.ConfigError(
            f"{where}.kind is missing" if kind is None else f"{where}.kind is {kind!r}",
            "name one of " + ", ".join(schedules.__all__),
        )
    # A site's policy learns of a study's own schedule code from `schedule.kind` only.
    if kind not in schedules.__all__:
        raise errors.ConfigError(
            f"{where}.kind is {kind!r}, expected one of " + ", ".join(schedules.__all__),
            "a schedule of your own is a whole script: see fedvi.federation.script.from_generator",
        )
    factory = factories.find(where, kind, schedules)
    _check_over(where, over, clients)
    if sums is not None:
        _check_summed(where, kind, over, sums)
    _check_until(where, arguments)
    try:
        made = factories.call(where, KindSection(kind=kind, **arguments), factory, {}, Schedule)
    except errors.ConfigError as error:
        message = error.message
        if message.startswith("schedule.") and not message.startswith(where):
            message = where + message.removeprefix("schedule")
        raise errors.ConfigError(message, error.hint) from error
    _check_buffer(where, arguments, len(clients if over is None else over))
    return Stage(made, None if over is None else tuple(over))


def _check_buffer(where: str, arguments: Mapping[str, Any], count: int) -> None:
    """Refuses to wait for more answers than there are clients, since each has one at a time."""
    buffer = arguments.get("buffer", 1)
    if isinstance(buffer, int) and buffer > count:
        raise errors.ConfigError(
            f"{where}.buffer is {buffer}, expected at most {count}, the number of clients there: each "
            "holds one task at a time",
            'as many as clients is kind = "synchronous"; 2 or 3 are usual',
        )


def _check_over(where: str, over: Any, clients: Collection[str]) -> None:
    if over is None:
        return
    if not isinstance(over, list) or not over or not all(isinstance(name, str) for name in over):
        raise errors.ConfigError(
            f"{where}.over is {over!r}, expected a list of at least one client",
            "leave it out for a stage of all clients",
        )
    for name in over:
        if name not in clients:
            raise errors.ConfigError(
                f"{where}.over names {name!r}, which is no client of the study",
                errors.did_you_mean(name, clients),
            )
        if over.count(name) > 1:
            raise errors.ConfigError(
                f"{where}.over names {name!r} twice, expected every client once",
                "clients take their turns in the order of the study, whatever their order here",
            )


def _check_summed(where: str, kind: str, over: list[str] | None, sums: Sums) -> None:
    """Refuses a stage whose single answers would not be protected by the view "aggregate".

    Guarantee: with what is let through, the price of that view (docs/proofs/aggregate_view.md) holds for
    the whole script. Proof: it is asked of a round that all of its answers start from one posterior, that
    no client has two of them, and that their sum is published with k_min of them or not at all; who
    answered, the set K, may be any that is public. A synchronous stage is made of such rounds, and
    a stage over a part of the clients is one in which K lies in that part, but for who still holds a task
    that started from the posterior that is served: the study says so before any record is read, so K is
    as public as where clients do not answer. The share of noise, σ/√(k_min − t), was fixed for sums of
    k_min answers, not for sums of all clients, so that it protects each of these as well. The server
    counts answers anew in every round, and a stage ends between two rounds: no answer waits then, and one
    that comes later started from a posterior that is no more served, and is dropped, or from the very one
    that is, and is one of that round's. Rounds compose as before: each client is charged for the tasks
    that it was given, at most those of the stages that it stands in.
    """
    if kind != "synchronous":
        raise errors.ConfigError(
            f'{where}.kind is {kind!r} beside privacy.view = "aggregate", expected "synchronous": only '
            "there are the answers of a round published as one sum",
            'write kind = "synchronous", or "scripted" with stages of that kind; or promise '
            'view = "message"',
        )
    if over is not None and len(over) < sums.least_reporting:
        raise errors.ConfigError(
            f"{where}.over names {len(over)} of the clients ({', '.join(over)}), expected at least "
            f"privacy.least_reporting, {sums.least_reporting}: each adds noise for sums of so many",
            "leave `over` out for a stage of all clients, or name more; or declare a smaller "
            "least_reporting, at which every client adds more noise",
        )


def _check_until(where: str, arguments: dict[str, Any]) -> None:
    """Pops `until` from a stage's arguments; it states in words that there is a tolerance."""
    until = arguments.pop("until", None)
    if until is None:
        return
    if until != "converged":
        raise errors.ConfigError(
            f'{where}.until is {until!r}, expected "converged"',
            "a number of answers is written `updates = …`, of passes `rounds = …`",
        )
    if not arguments.get("tolerance"):
        raise errors.ConfigError(
            f'{where}.tolerance is missing, or 0, beside until = "converged"',
            "add `tolerance = …`, the gap in posterior sds at which to stop, such as 0.01",
        )
    if "rounds" not in arguments and "updates" not in arguments:
        raise errors.ConfigError(
            f"{where} could run for ever: `rounds` is missing",
            "add `rounds = …`, the largest number of passes, for which a budget is planned",
        )


def _step_rule(given: Any) -> damping.StepRule:
    if given == "adaptive":
        return damping.adaptive()
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise errors.ConfigError(
            f'schedule.damping is {given!r}, expected "adaptive" or a number above 0 and at most 1',
            "leave it out, and the server chooses the step",
        )
    return damping.fixed(float(given))


def _patience(
    arguments: dict[str, Any], clients: tuple[str, ...], sums: Sums | None = None
) -> Patience:
    """Pops `deadline_seconds` and `quorum` from a schedule's arguments.

    If a sum needs a least number of clients to be published, the quorum cannot be smaller.
    """
    deadline, count = arguments.pop("deadline_seconds", None), len(clients)
    least = 1 if sums is None else sums.least_reporting
    quorum = arguments.pop("quorum", max((count + 1) // 2, least))
    if isinstance(quorum, bool) or not isinstance(quorum, int) or not 1 <= quorum <= count:
        raise errors.ConfigError(
            f"schedule.quorum is {quorum!r}, expected a whole number from 1 to {count}, the "
            "number of clients",
            "with fewer clients present the run waits; left out, it is half of them",
        )
    if quorum < least:
        raise errors.ConfigError(
            f"schedule.quorum is {quorum}, expected at least privacy.least_reporting, {least}: a round "
            "with fewer answers is given up",
            "leave quorum out, or raise it",
        )
    if isinstance(deadline, dict):
        return Patience(_deadlines(deadline, clients), quorum)
    return Patience(None if deadline is None else _seconds("", deadline), quorum)


def _deadlines(table: dict[str, Any], clients: tuple[str, ...]) -> dict[str, float]:
    """Reads a table client → seconds, in which "default" applies to clients that are not named."""
    for name in table:
        if name not in (*clients, _DEFAULT):
            raise errors.ConfigError(
                f"schedule.deadline_seconds.{name}: no client of the study",
                errors.did_you_mean(name, (*clients, _DEFAULT)),
            )
    given = {name: _seconds(f".{name}", value) for name, value in table.items()}
    rest = dict.fromkeys((PRIOR, *clients), given[_DEFAULT]) if _DEFAULT in given else {}
    return rest | {name: seconds for name, seconds in given.items() if name in clients}


def _seconds(key: str, given: Any) -> float:
    if not is_number(given) or given <= 0:
        raise errors.ConfigError(
            f"schedule.deadline_seconds{key} is {given!r}, expected a finite number above 0",
            "a client that takes longer is skipped for that turn; left out, everybody is waited for",
        )
    return float(given)


def budget(study: Study, table_distance: float = 0.0) -> ledger.Budget | None:
    """Builds each client's budget; None without protection.

    Args:
      study: the promise.
      table_distance: distance of one release's noise from the law that is priced; part of the price.
    """
    promise = study.privacy.promise
    if promise is None:
        return None
    factory = factories.find("privacy", study.privacy.accountant, accountants, "accountant")
    accountant = with_tables(with_sums(factory(promise.relation), study.sums), table_distance)
    return ledger.Budget(promise.epsilon, promise.delta, accountant)


def records(study: Study) -> dict[str, int]:
    """Returns client → its assumed number of records, or patients: max_records unless stated."""
    most = study.data.max_records or 1000
    return {client.name: min(most, client.expected_records or most) for client in study.clients}
