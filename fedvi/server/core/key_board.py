"""Relays the keys that sites mask their answers with: each site posts its part once per stage.

    stage 1   each site's signed public keys            ─► all of them, to every site
    stage 2   each site's offers to the sites after it  ─► to each site, the offers made to it

A site that is removed, or revoked, before stage 1 is complete has empty parts: the study begins without it.
If it is admitted later, all sites agree on keys anew, in the next epoch. So do the others if a site leaves
between the stages.

Sites do not trust the server here: they check signatures and tags, and a forged part stops the run.
"""

from fedvi import errors
from fedvi.federation.messages import KeyPart, Wait
from fedvi.privacy.pairs import OFFER_BYTES
from fedvi.server.core import kept, openings
from fedvi.server.core.state import (
    EXHAUSTED,
    REMOVED,
    REVOKED,
    ServerSpec,
    ServerState,
    Update,
    present,
)
from fedvi.updates.noise_aware import anew

__all__ = [
    "STAGES",
    "admitted",
    "boards",
    "can_do_without_some",
    "entry",
    "epoch",
    "is_ready",
    "joined",
    "joining",
    "means_begun_anew",
    "means_kept",
    "owing",
    "parts",
    "post",
    "settled",
    "stage",
    "standing",
    "told_to_wait",
    "wanted",
]

STAGES = (1, 2)

_LONGEST = 16 << 10
"""Most bytes of signed keys: a certificate and 3 KiB, with room to spare."""

_EPOCH, _JOINS = "epoch", "joins/"

_BEFORE = "before/"
"""Of each site that was absent when a sum was last folded, if sites agree on keys anew since."""


def epoch(state: ServerState) -> int:
    """Returns how many times the sites agreed on keys, or began to, before the keys that are here."""
    return int(state.keys.get(_EPOCH, b"0"))


def stage(state: ServerState) -> int:
    """Returns how many stages are complete: every site posted its part."""
    return sum(key.startswith(("1/", "2/")) for key in state.keys) // len(state.visits)


def standing(state: ServerState) -> tuple[int, ...]:
    """Returns the progress of key exchange and opening; a change of it wakes the sites that wait."""
    return epoch(state), stage(state), openings.phase(state)


def is_ready(spec: ServerSpec, state: ServerState) -> bool:
    """Whether tasks may be handed out: no mask is needed, or all parts are there."""
    return not spec.is_masked or stage(state) >= len(STAGES)


def parts(spec: ServerSpec, state: ServerState, name: str, stage: int) -> tuple[bytes, ...]:
    """Returns the parts that a site may see, in the order of the study; none until all have arrived.

    In stage 2 a site sees one offer from each site before it, and empty parts from the others.
    """
    found = [state.keys.get(f"{stage}/{other}") for other in spec.clients]
    contents = [content for content in found if content is not None]
    if len(contents) < len(spec.clients):
        return ()
    if stage == 1:
        return tuple(contents)
    own = spec.clients.index(name)
    return tuple(
        content[(own - index - 1) * OFFER_BYTES : (own - index) * OFFER_BYTES]
        if index < own
        else b""
        for index, content in enumerate(contents)
    )


def boards(spec: ServerSpec, state: ServerState, name: str) -> dict[int, tuple[bytes, ...]]:
    """Returns the parts of each complete stage that a site may see."""
    return {number: parts(spec, state, name, number) for number in STAGES[: stage(state)]}


def wanted(spec: ServerSpec, state: ServerState, name: str) -> int | None:
    """Returns the stage in which the server waits for this site's part; None if it waits for none."""
    if is_ready(spec, state):
        return None
    number = STAGES[stage(state)]
    return None if f"{number}/{name}" in state.keys else number


def owing(spec: ServerSpec, state: ServerState) -> tuple[str, ...]:
    """Returns the sites whose part is missing, so that no task can be handed out."""
    return tuple(n for n in present(spec, state) if wanted(spec, state, n) is not None)


def told_to_wait(state: ServerState, name: str) -> Wait:
    """Returns the reply to a site that gets no task; tells of an epoch for which it has no keys yet."""
    return Wait((), 0 if f"{STAGES[0]}/{name}" in state.keys else epoch(state))


def post(
    spec: ServerSpec, state: ServerState, name: str, part: KeyPart
) -> tuple[ServerState, Wait]:
    """Stores a site's part, if it has content, and returns the stage's parts once all have arrived.

    Raises:
      ProtocolError: the study has no masks; or the part differs from the site's first one, comes too
        early, has an impossible length, or is of an epoch that has not begun.
    """
    if not spec.is_masked:
        raise errors.ProtocolError(
            f"client {name!r} sent keys for masks, which this study does not have",
            "give all sites the same study file",
        )
    if part.epoch > epoch(state):
        raise errors.ProtocolError(
            f"client {name!r} agreed on keys of epoch {part.epoch}, and this server is at {epoch(state)}",
            "was the server set back to an older state? It must go on from its newest",
        )
    if part.epoch < epoch(state):
        return state, Wait((), epoch(state))
    key = f"{part.stage}/{name}"
    if part.content and state.keys.get(key) != part.content:
        _check(spec, state, name, part)
        state = state._replace(keys={**state.keys, key: part.content})
    state = settled(spec, state)
    return state, Wait(parts(spec, state, name, part.stage))


def can_do_without_some(spec: ServerSpec, state: ServerState) -> bool:
    """Whether sites may still be left out: rounds may miss some, and the keys are not complete."""
    return openings.opens(spec) and not is_ready(spec, state)


def settled(spec: ServerSpec, state: ServerState) -> ServerState:
    """Completes stage 1 without sites that were removed or revoked, once all others have posted.

    They are removed, until they are admitted, and so is a site without budget, which can send no keys.
    What one of them posted is dropped then: before the stage is complete nobody has seen it. If one leaves
    after that, the others begin the next epoch.
    """
    if not can_do_without_some(spec, state):
        return state
    gone = [n for n in spec.clients if state.away.get(n) in (REMOVED, REVOKED, EXHAUSTED)]
    # A study's quorum is T and `least_reporting`, or more. With fewer, one that was revoked is waited for.
    if not gone or len(spec.clients) - len(gone) < spec.patience.quorum:
        return state
    if stage(state) > 0:
        is_shown = any(state.keys[f"{STAGES[0]}/{name}"] for name in gone)
        return state._replace(keys=_next_epoch(state)) if is_shown else state
    waited = [n for n in spec.clients if n not in gone and f"{STAGES[0]}/{n}" not in state.keys]
    if waited:
        return state
    blank = {f"{number}/{name}": b"" for name in gone for number in STAGES}
    new = tuple(name for name in gone if state.away[name] != REMOVED)
    if new:
        update = entry(spec, state, removed=new)
        away = kept.put_all(state.away, dict.fromkeys(new, REMOVED))
        state = state._replace(away=away, history=(*state.history, update))
    # A turn that it missed while the others waited for its keys was of no round.
    skipped = tuple(name for name in state.skipped if name not in gone)
    return state._replace(keys={**state.keys, **blank}, skipped=skipped)


def admitted(state: ServerState, name: str, joins: bool = True) -> ServerState:
    """Notes that a site joins when the round is over or, after all, does not."""
    keys = {key: part for key, part in state.keys.items() if key != _JOINS + name}
    return state._replace(keys={**keys, **({_JOINS + name: b""} if joins else {})})


def joining(state: ServerState) -> tuple[str, ...]:
    """Returns the sites that join when the round is over."""
    return tuple(key.removeprefix(_JOINS) for key in state.keys if key.startswith(_JOINS))


def joined(spec: ServerSpec, state: ServerState) -> ServerState:
    """Takes in the sites that join, if no round has begun; all sites then agree on new keys first."""
    names = joining(state)
    if not names or state.answers:
        return state
    number = _rounds(spec, state)
    # Tasks of earlier rounds may be left over; their answers come too late, and are dropped.
    if any(t.visit >= number for t in state.tasks.values()):
        return state
    away = state.away
    for name in names:
        away = kept.without(away, name)
    begun = dict.fromkeys(names, number)
    update = entry(spec, state, added=names)
    return state._replace(
        keys=_next_epoch(state),
        # A late answer, of before it was left out, must not stand for one of this round.
        visits=kept.put_all(state.visits, begun),
        turns=kept.put_all(state.turns, begun),
        away=away,
        history=(*state.history, update),
    )


def _next_epoch(state: ServerState) -> dict[str, bytes]:
    before = {key: part for key, part in state.keys.items() if key.startswith(_BEFORE)}
    absent = openings.opening_messages(state).absent
    return {
        _EPOCH: b"%d" % (epoch(state) + 1),
        **(before or {_BEFORE + name: b"" for name in absent}),
    }


def entry(
    spec: ServerSpec, state: ServerState, removed: tuple[str, ...] = (), added: tuple[str, ...] = ()
) -> Update:
    """Returns an entry of the history for sites that leave or join between folds of sums."""
    rounds = _rounds(spec, state)
    return Update(state.version, (), (), 1.0, rounds, None, removed=removed, added=added)


def means_kept(spec: ServerSpec, state: ServerState) -> ServerState:
    """Before a fold, starts means over rounds anew if a site is there that was absent at the one before."""
    before = {key for key in state.keys if key.startswith(_BEFORE)}
    if not before:
        return state
    state = state._replace(keys={k: part for k, part in state.keys.items() if k not in before})
    absent = {_BEFORE + name for name in openings.opening_messages(state).absent}
    return means_begun_anew(spec, state) if before - absent else state


def means_begun_anew(spec: ServerSpec, state: ServerState) -> ServerState:
    """Starts means over rounds anew, since those so far are of sums without a site that joined."""
    if state.standing is None:
        return state
    noise = sum(len(update.clients) * update.damping**2 for update in state.history)
    return state._replace(standing=anew(state.standing, spec.members, noise))


def _rounds(spec: ServerSpec, state: ServerState) -> int:
    return min((state.turns[name] for name in present(spec, state)), default=0)


def _check(spec: ServerSpec, state: ServerState, name: str, part: KeyPart) -> None:
    if part.stage not in STAGES or stage(state) < part.stage - 1:
        raise errors.ProtocolError(
            f"client {name!r} sent its part of stage {part.stage}, expected that of stage "
            f"{min(stage(state) + 1, len(STAGES))}"
        )
    if f"{part.stage}/{name}" in state.keys:
        raise errors.ProtocolError(
            f"client {name!r} sent other keys than before: each site makes its keys once an epoch",
            "was the site's state lost, or set back? Lost keys cannot be replaced: where sites may be "
            "missing, the others go on without it; where all must answer, start a new study",
        )
    size, behind = len(part.content), len(spec.clients) - 1 - spec.clients.index(name)
    if size > _LONGEST if part.stage == 1 else size != max(1, behind * OFFER_BYTES):
        raise errors.ProtocolError(
            f"client {name!r} sent {size} bytes as its part of stage {part.stage}"
        )
