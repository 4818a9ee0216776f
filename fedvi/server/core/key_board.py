"""Relays the keys that sites mask their answers with: each site posts its part once per stage.

    stage 1   each site's signed public keys            ─► all of them, to every site
    stage 2   each site's offers to the sites after it  ─► to each site, the offers made to it

A site that is removed, or revoked, before stage 1 is complete has empty parts: the study begins without it.

Sites do not trust the server here: they check signatures and tags, and a forged part stops the run.
"""

from fedvi import errors
from fedvi.federation.messages import KeyPart, Wait
from fedvi.privacy.pairs import OFFER_BYTES
from fedvi.server.core import kept, openings
from fedvi.server.core.state import REMOVED, REVOKED, ServerSpec, ServerState, Update

__all__ = [
    "STAGES",
    "boards",
    "can_do_without_some",
    "is_ready",
    "parts",
    "post",
    "settled",
    "stage",
    "standing",
    "wanted",
]

STAGES = (1, 2)

_LONGEST = 16 << 10
"""Most bytes of signed keys: a certificate and 3 KiB, with room to spare."""


def stage(state: ServerState) -> int:
    """Returns how many stages are complete: every site posted its part."""
    return sum(key.startswith(("1/", "2/")) for key in state.keys) // len(state.visits)


def standing(state: ServerState) -> tuple[int, ...]:
    """Returns the progress of key exchange and opening; a change of it wakes the sites that wait."""
    return stage(state), openings.phase(state)


def is_ready(spec: ServerSpec, state: ServerState) -> bool:
    """Whether tasks may be handed out: no mask is needed, or all parts are there."""
    return spec.gather is None or spec.gather.bits is None or stage(state) >= len(STAGES)


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


def post(
    spec: ServerSpec, state: ServerState, name: str, part: KeyPart
) -> tuple[ServerState, Wait]:
    """Stores a site's part, if it has content, and returns the stage's parts once all have arrived.

    Raises:
      ProtocolError: the study has no masks; or the part differs from the site's first one, comes too
        early, or has an impossible length.
    """
    if spec.gather is None or spec.gather.bits is None:
        raise errors.ProtocolError(
            f"client {name!r} sent keys for masks, which this study does not have",
            "give all sites the same study file",
        )
    key = f"{part.stage}/{name}"
    if part.content and state.keys.get(key) != part.content:
        _check(spec, state, name, part)
        state = settled(spec, state._replace(keys={**state.keys, key: part.content}))
    return state, Wait(parts(spec, state, name, part.stage))


def can_do_without_some(spec: ServerSpec, state: ServerState) -> bool:
    """Whether a study may still begin without sites: rounds may miss some, and nobody has seen any keys."""
    return openings.opens(spec) and stage(state) == 0


def settled(spec: ServerSpec, state: ServerState) -> ServerState:
    """Completes stage 1 without sites that were removed or revoked, once all others have posted.

    They are removed for good, since they can never be given keys. What one of them posted is dropped at
    once: before the stage is complete nobody has seen it.
    """
    if not can_do_without_some(spec, state):
        return state
    gone = [name for name in spec.clients if state.away.get(name) in (REMOVED, REVOKED)]
    if not gone:
        return state
    own = {f"{STAGES[0]}/{name}" for name in gone}
    if own & state.keys.keys():
        state = state._replace(keys={k: part for k, part in state.keys.items() if k not in own})
    waited = [n for n in spec.clients if n not in gone and f"{STAGES[0]}/{n}" not in state.keys]
    # A study's quorum is T and `least_reporting`, or more.
    if waited or len(spec.clients) - len(gone) < spec.patience.quorum:
        return state
    blank = {f"{number}/{name}": b"" for name in gone for number in STAGES}
    new = tuple(name for name in gone if state.away[name] == REVOKED)
    if new:
        update = Update(state.version, (), (), 1.0, 0, None, removed=new)
        away = kept.put_all(state.away, dict.fromkeys(new, REMOVED))
        state = state._replace(away=away, history=(*state.history, update))
    # A turn that it missed while the others waited for its keys was of no round.
    skipped = tuple(name for name in state.skipped if name not in gone)
    return state._replace(keys={**state.keys, **blank}, skipped=skipped)


def _check(spec: ServerSpec, state: ServerState, name: str, part: KeyPart) -> None:
    if part.stage not in STAGES or stage(state) < part.stage - 1:
        raise errors.ProtocolError(
            f"client {name!r} sent its part of stage {part.stage}, expected that of stage "
            f"{min(stage(state) + 1, len(STAGES))}"
        )
    if f"{part.stage}/{name}" in state.keys:
        raise errors.ProtocolError(
            f"client {name!r} sent other keys than before: each site makes its keys once a study",
            "was the site's state lost, or set back? Then start a new study: lost keys cannot be "
            "replaced within a study",
        )
    size, behind = len(part.content), len(spec.clients) - 1 - spec.clients.index(name)
    if size > _LONGEST if part.stage == 1 else size != max(1, behind * OFFER_BYTES):
        raise errors.ProtocolError(
            f"client {name!r} sent {size} bytes as its part of stage {part.stage}"
        )
