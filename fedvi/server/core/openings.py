"""Unmasks the sum of a round that some sites did not answer.

    all answered, or were skipped ─► set ─► signatures of all in it ─► openings of all in it ─► streams

The set lists the sites that answered. Signatures and openings are kept in ``keys`` as "3/SITE" and
"4/SITE" until the round is over. A site that misses the deadline is away; the round continues without it
if it can, and is given up otherwise. Sites do not trust the server: each signs only one set, and opens
only a set that T sites signed. Proof: docs/proofs/secure_sums.md.
"""

import functools
import json
from typing import NamedTuple

from fedvi import errors
from fedvi.federation.messages import CLOSING, KeyPart, Payload
from fedvi.federation.whole_numbers import SHARES
from fedvi.privacy import agreement, shares
from fedvi.privacy.agreement import Named
from fedvi.privacy.masks import KEY_BYTES
from fedvi.server.core import kept
from fedvi.server.core.state import ServerSpec, ServerState

__all__ = [
    "Streams",
    "cleared",
    "is_late",
    "is_waiting",
    "moved",
    "opens",
    "owing",
    "parts",
    "phase",
    "post",
    "streams",
    "taken",
]

_SIGNED, _OPENED = CLOSING
_SET, _CERTIFIED, _SHARES = "set", "certified", "shares/"
_SIGNATURE_BYTES = 64


class Streams(NamedTuple):
    """Keys of the mask streams that did not cancel in a sum: those added, and those subtracted."""

    added: tuple[bytes, ...] = ()
    subtracted: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return "Streams()"


def opens(spec: ServerSpec) -> bool:
    """Whether answers are masked, and a round may be summed without some of them."""
    gather = spec.gather
    return (
        gather is not None
        and gather.bits is not None
        and gather.sums.least_reporting < len(spec.clients)
    )


def phase(state: ServerState) -> int:
    """Returns 1 while sites are asked to sign, 2 while they are asked to open, else 0."""
    return (_SET in state.keys) + (_CERTIFIED in state.keys)


def is_late(spec: ServerSpec, state: ServerState, client: str, visit: int) -> bool:
    """Whether an answer comes too late: the set of its round was already named, or the round is over."""
    return opens(spec) and (phase(state) > 0 or visit != state.turns[client])


def taken(
    spec: ServerSpec, state: ServerState, client: str, visit: int, payload: Payload
) -> ServerState:
    """Stores the sealed shares of an answer that is not late, to be passed on."""
    if not opens(spec) or is_late(spec, state, client, visit):
        return state
    (sealed,) = (bytes(tensor.data) for tensor in payload.tensors if tensor.name == SHARES)
    return state._replace(keys={**state.keys, _SHARES + client: sealed})


def _proposed(spec: ServerSpec, state: ServerState) -> ServerState:
    """Names the set of sites that answered."""
    answered = {answer.task.client: answer.task for answer in state.answers}
    inside = tuple(name for name in spec.clients if name in answered)
    digests = tuple(state.accepted[answered[name].task_id] for name in inside)
    text = Named(answered[inside[0]].visit, inside, digests).text
    return state._replace(keys={**state.keys, _SET: text.encode()})


def cleared(state: ServerState) -> ServerState:
    """Drops the set, signatures, openings and shares of a round that is over."""
    left = {key: part for key, part in state.keys.items() if not _is_of_round(key)}
    return state if len(left) == len(state.keys) else state._replace(keys=left)


def moved(spec: ServerSpec, state: ServerState) -> ServerState | None:
    """Takes a step towards a readable sum, once every site has answered or was skipped.

    Returns:
      The very same state while a site is waited for; None once all obtainable openings have come.

    Raises:
      ProtocolError: too few sites can help to read the sum: the round is to be given up.
    """
    if not phase(state):
        return _proposed(spec, state)
    inside = _named(state).clients
    stage = _SIGNED if phase(state) == 1 else _OPENED
    sent = [name for name in inside if f"{stage}/{name}" in state.keys]
    waited = [name for name in owing(state) if name not in state.away]
    needed = _threshold(spec)
    if stage == _OPENED and len(inside) < len(spec.clients):
        # Only the site itself can open the keys that it shares with sites outside the set.
        needed = len(inside)
    if len(sent) + len(waited) < needed:
        raise errors.ProtocolError(
            f"{len(sent) + len(waited)} sites help to open the sum of a round, expected {needed}"
        )
    if waited:
        return state
    if stage == _SIGNED:
        return state._replace(keys={**state.keys, _CERTIFIED: b"1"})
    return None


def owing(state: ServerState) -> tuple[str, ...]:
    """Returns the sites that have not sent the signature or opening that they were asked for."""
    if not phase(state):
        return ()
    stage = _SIGNED if phase(state) == 1 else _OPENED
    return tuple(name for name in _named(state).clients if f"{stage}/{name}" not in state.keys)


def is_waiting(state: ServerState) -> bool:
    """Whether a site that is not away still owes a signature or an opening."""
    return any(name not in state.away for name in owing(state))


def parts(spec: ServerSpec, state: ServerState, client: str) -> tuple[bytes, ...]:
    """Returns what a site is asked to sign or to open; empty if nothing is asked of it."""
    if client not in owing(state):
        return ()
    text = state.keys[_SET]
    if phase(state) == 1:
        return (text,)
    inside, own = _named(state).clients, spec.clients.index(client)
    signatures = (state.keys.get(f"{_SIGNED}/{name}", b"") for name in inside)
    start, stop = own * shares.SEALED_BYTES, (own + 1) * shares.SEALED_BYTES
    sealed = (state.keys[_SHARES + name][start:stop] for name in inside)
    return (text, *signatures, *sealed)


def post(spec: ServerSpec, state: ServerState, client: str, part: KeyPart) -> ServerState:
    """Stores a site's signature or opening, once; one that is no longer asked for changes nothing.

    Raises:
      ProtocolError: the study has no such rounds, or the part has an impossible length.
    """
    if not opens(spec):
        raise errors.ProtocolError(
            f"client {client!r} sent a part of stage {part.stage}, which opens a sum of some sites; in "
            "this study all answer every round",
            "give all sites the same study file",
        )
    stage = _SIGNED if phase(state) == 1 else _OPENED
    if not part.content or part.stage != stage or client not in owing(state):
        return state
    inside = _named(state).clients
    length = _SIGNATURE_BYTES
    if stage == _OPENED:
        outside = len(spec.clients) - len(inside)
        length = shares.SECRET_BYTES + outside * KEY_BYTES + (len(inside) - 1) * shares.SHARE_BYTES
    if len(part.content) != length:
        raise errors.ProtocolError(
            f"client {client!r} sent {len(part.content)} bytes to open a sum, expected {length}"
        )
    presence = state.presence
    return state._replace(
        keys={**state.keys, f"{stage}/{client}": part.content},
        presence=presence._replace(awaited=kept.without(presence.awaited, client)),
    )


def streams(spec: ServerSpec, state: ServerState) -> Streams:
    """Computes, from the openings, the mask streams that are left in the sum of the set's answers.

    Raises:
      ProtocolError: shares do not belong together.
    """
    inside, order = _named(state).clients, spec.clients.index
    outside = [name for name in spec.clients if name not in inside]
    end = shares.SECRET_BYTES + len(outside) * KEY_BYTES
    sent = {n: state.keys[f"{_OPENED}/{n}"] for n in inside if f"{_OPENED}/{n}" in state.keys}
    added: list[bytes] = []
    subtracted: list[bytes] = []
    for name in inside:
        if name in sent:
            added.append(sent[name][: shares.SECRET_BYTES])
            for other, start in zip(
                outside, range(shares.SECRET_BYTES, end, KEY_BYTES), strict=True
            ):
                into = added if order(other) > order(name) else subtracted
                into.append(sent[name][start : start + KEY_BYTES])
            continue
        held = {}
        for holder, opening in sent.items():
            at = [other for other in inside if other != holder].index(name)
            start = end + at * shares.SHARE_BYTES
            held[order(holder)] = opening[start : start + shares.SHARE_BYTES]
        added.append(shares.joined(held, _threshold(spec)))
    return Streams(tuple(added), tuple(subtracted))


def _is_of_round(key: str) -> bool:
    ofs = (_SET, _CERTIFIED, _SHARES, f"{_SIGNED}/", f"{_OPENED}/")
    return key.startswith(ofs)


def _threshold(spec: ServerSpec) -> int:
    assert spec.gather is not None
    return agreement.threshold(len(spec.clients), spec.gather.sums.colluding)


def _named(state: ServerState) -> Named:
    return _read(state.keys[_SET])


@functools.lru_cache(maxsize=8)
def _read(text: bytes) -> Named:
    raw = json.loads(text)
    return Named(raw["visit"], tuple(raw["clients"]), tuple(raw["digests"]))
