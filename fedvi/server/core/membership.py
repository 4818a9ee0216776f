"""Adds clients to a run that has begun, and removes them."""

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation import fold as folding
from fedvi.privacy import ledger as ledgers
from fedvi.server.core import kept, key_board, openings
from fedvi.server.core.fold_sizes import strictly
from fedvi.server.core.state import (
    OVER,
    REMOVED,
    ServerSpec,
    ServerState,
    Update,
    has_failed_for_good,
    is_removed,
    present,
    progress_of,
    served,
    sharing,
)
from fedvi.server.core.turns import (
    check_fold,
    noted,
    rounds_at_last_fold,
    settle,
    stand,
    tick,
)
from fedvi.updates.base import Standing
from fedvi.updates.noise_aware import anew

__all__ = ["admit", "extend", "let_go", "remove"]


def let_go(spec: ServerSpec, state: ServerState, tls: bool) -> str:
    """Says how an operator lets a client go, so that the run can do without it.

    Args:
      spec: of the run.
      state: of the run.
      tls: whether clients show certificates, which can be revoked.

    Returns:
      "remove" (for good), "remove_for_now" (it may be admitted later) or "revoke", for the commands; ""
      if too few clients would be left, or the keys of all are needed.
    """
    # One that was revoked, or has no budget, counts towards no quorum either.
    able = sum(not has_failed_for_good(state, name) for name in spec.members)
    if able <= spec.patience.quorum:
        return ""
    if spec.gather is None:
        return "remove"
    if key_board.can_do_without_some(spec, state):
        return "remove_for_now"
    return "revoke" if tls and key_board.is_ready(spec, state) else ""


def remove(spec: ServerSpec, state: ServerState, name: str, now: float) -> ServerState:
    """Divides a client's factor out of the posterior for good: η ← η − η_m, and η_m ← 0.

    Schedules no longer see the client, and it gets no task. An answer to the task that it holds is
    recorded in its ledger and not folded; an answer that waits is dropped. All that it was charged stays
    charged. Where the server computes a posterior from noisy factors, it recomputes that from the other
    clients' factors alone. Removing a client again changes nothing. With masked sums that sites may miss, a
    client can be removed while the keys of any client are missing: the study begins without it, and may
    `admit` it later.

    If the likelihood is Gaussian in θ, the result is at once the posterior of the other records. Otherwise
    the other factors, which were fitted beside this one, adapt as their clients answer again. Removal
    gives no privacy and returns no budget: what the client released has been seen.

    Args:
      name: of a client that holds records.

    Raises:
      ConfigError: there is no such client, or fewer clients than the quorum would be left.
      RunFailed: the run is over.
      ProtocolError: the run without the client cannot be computed in 64-bit arithmetic.
    """
    if name not in spec.members:
        raise errors.ConfigError(
            f"client {name!r} is not in the study", errors.did_you_mean(name, spec.members)
        )
    if is_removed(state, name):
        joins = name in key_board.joining(state)
        return key_board.admitted(state, name, joins=False) if joins else state
    before = key_board.can_do_without_some(spec, state)
    if spec.gather is not None and not before:
        hint = (
            "`fedvi ca revoke` lets later rounds go on without it, if privacy.least_reporting others "
            "are left; for a posterior without its records, stop the run, and start a study without it"
        )
        if not key_board.is_ready(spec, state):
            hint = (
                "nobody gets a task before the clients have agreed on keys, for which it is needed: start "
                "it again, or stop the run, and start a study without it"
            )
        raise errors.ConfigError(
            f"client {name!r} cannot be divided out: the study publishes sums over clients alone "
            '(privacy.view = "aggregate"), and keeps no client\'s factor',
            hint,
        )
    state = tick(spec, state, now)
    if state.status in OVER:
        raise errors.RunFailed(
            f"the run is {state.status.replace('_', ' ')}: no client can be removed from it",
            "a run that has failed can be resumed first; of one that is complete, `fedvi simulate "
            "--influence` shows what each client contributed",
        )
    left = sum(not is_removed(state, other) for other in spec.members) - 1
    if left < spec.patience.quorum:
        raise errors.ConfigError(
            f"without client {name!r} {left} are left, expected at least {spec.patience.quorum}, "
            "the study's quorum",
            "stop the run, and start a study with other clients or a smaller schedule.quorum",
        )
    if before:
        update = key_board.entry(spec, state, removed=(name,))
        away = kept.put(state.away, name, REMOVED)
        state = state._replace(away=away, history=(*state.history, update))
        return settle(spec, key_board.settled(spec, state), now)
    what = f"the run without client {name!r}"
    with strictly(f"{what} cannot be computed"):
        state = _without(spec, state, name)
        if not spec.family.is_proper(served(spec, state)):
            raise FloatingPointError
    if state.answers:
        check_fold(spec, state, f"{what}, and the answers that wait,")
    return settle(spec, state, now)


def admit(spec: ServerSpec, state: ServerState, name: str, now: float) -> ServerState:
    """Takes in a client that a study of masked sums began without, or does without.

    When the round is over, all clients that take part agree on keys anew, and nobody gets a task before.
    The client has the turns that are left, and its ledger begins empty. Noise, prices and thresholds
    are those of all clients of the study anyway. A mean over rounds, where the server computes one, begins
    anew: earlier sums are without this client's records. Admitting a client again changes nothing.

    Raises:
      ConfigError: there is no such client, or the study has no masked sums that clients may miss.
      RunFailed: the run is over.
    """
    if name not in spec.members:
        raise errors.ConfigError(
            f"client {name!r} is not in the study", errors.did_you_mean(name, spec.members)
        )
    if not openings.opens(spec):
        raise errors.ConfigError(
            f"client {name!r} cannot be admitted: only a study of masked sums that clients may miss can "
            "begin without one, and take it in later",
            "`fedvi server --extend` adds a client to a study that folds each client's own factor",
        )
    state = tick(spec, state, now)
    if state.status in OVER:
        raise errors.RunFailed(
            f"the run is {state.status.replace('_', ' ')}: no client can be admitted to it",
            "a run that has failed can be resumed first; after one that is complete, start a new study, "
            "whose cost adds to this one's",
        )
    if not is_removed(state, name) or name in key_board.joining(state):
        return state
    return settle(spec, key_board.admitted(state, name), now)


def extend(spec: ServerSpec, state: ServerState) -> ServerState:
    """Adds clients to a run that began without them: their factors are 1, their ledgers empty.

    They join in the current round, as if their earlier turns were over: no other client waits for them
    to catch up, and they answer fewer times. The other clients and the posterior do not change. Adding
    clients again changes nothing.

    Args:
      spec: of the study with the new clients, listed after all others; otherwise unchanged.
      state: of a run without them, or with them.

    Raises:
      ConfigError: the study publishes only sums; or the schedule is a script in Python, whose course may
        depend on the original clients; or the schedule has no turn left for a new client.
      RunFailed: the run is over.
    """
    known = tuple(name for name in spec.clients if name in state.factors)
    new = spec.clients[len(known) :]
    if not new:
        return state
    listed = ", ".join(new)
    if spec.gather is not None:
        raise errors.ConfigError(
            f"{listed} cannot be added: the study publishes sums over clients alone (privacy.view = "
            '"aggregate"), whose noise was fixed for those that it began with',
            "start a new study, whose cost adds to this one's",
        )
    if state.status in OVER:
        raise errors.RunFailed(
            f"the run is {state.status.replace('_', ' ')}: {listed} cannot be added to it",
            "a run that has failed can be resumed first; after one that is complete, start a new study, "
            "whose cost adds to this one's",
        )
    if spec.schedule.name == "from_generator":
        raise errors.ConfigError(
            f"{listed} cannot be added: the schedule is a script in Python, whose course may depend on "
            "its clients",
            "add clients to a study with another schedule, or list the script's stages",
        )
    before = spec._replace(clients=known)
    rounds_before, now = rounds_at_last_fold(before, state), progress_of(before, state)
    # A script's stage counts turns from its own beginning. Removed clients stopped earlier: leave them out.
    had = 0
    if state.stages:
        turns_of = dict(zip(known, state.stages[-1].turns, strict=True))
        had = min(turns_of[name] for name in present(before, state))
    turns = had + spec.schedule.view(now).rounds
    nothing = tree.freeze(spec.family.zeros())
    state = state._replace(
        factors={**state.factors, **dict.fromkeys(new, nothing)},
        visits={**state.visits, **dict.fromkeys(new, 0)},
        turns={**state.turns, **dict.fromkeys(new, turns)},
        stages=tuple(
            end._replace(
                visits=(*end.visits, *(0 for _ in new)), turns=(*end.turns, *(had for _ in new))
            )
            for end in state.stages
        ),
        ledgers={
            **state.ledgers,
            **{name: ledgers.open_ledger(spec.headers[name]) for name in new},
        },
    )
    state = sharing(spec, state)
    if spec.schedule.finished(progress_of(spec, state)):
        raise errors.ConfigError(
            f"{listed} cannot be added: the schedule has no turn left for a new client",
            "start a new study, whose cost adds to this one's",
        )
    update = Update(state.version, (), (), 1.0, 0, None, added=new)
    return noted(spec, state, rounds_before, update)


def _without(spec: ServerSpec, state: ServerState, name: str) -> ServerState:
    rounds_before = rounds_at_last_fold(spec, state)
    factors = kept.put(state.factors, name, tree.freeze(spec.family.zeros()))
    state = state._replace(
        version=state.version + 1,
        posterior=spec.keep(tree.freeze(folding.posterior_of(spec.prior, factors))),
        factors=factors,
        answers=tuple(answer for answer in state.answers if answer.task.client != name),
        # The step rule's memory of a group is a sum that includes this client's changes.
        memory={group: kept for group, kept in state.memory.items() if name not in group},
        away=kept.put(state.away, name, REMOVED),
    )
    if spec.stand is not None and state.standing is not None:
        begun = state._replace(standing=_anew(spec, state, state.standing))
        state = state._replace(standing=stand(spec, begun, {}, 1.0))
    update = Update(state.version, (), (), 1.0, 0, None, removed=(name,))
    return noted(spec, state, rounds_before, update)


def _anew(spec: ServerSpec, state: ServerState, standing: Standing) -> Standing | None:
    """Returns the standing before its next fold as if only the remaining clients had ever answered."""
    left = {name for name in spec.members if state.visits[name] and not is_removed(state, name)}
    if not left:
        return None
    noise = sum(
        update.damping**2 for update in state.history for name in update.clients if name in left
    )
    return anew(standing, left, noise)
