"""Unmasks the sum of a round that some sites did not answer.

    all answered, or were skipped ─► set ─► signatures of all in it ─► openings of all in it ─► streams

The set lists the sites that answered. Signatures and openings are kept in ``keys`` as "3/SITE" and
"4/SITE" until the round is over. A site that misses the deadline is away; the round continues without it
if it can, and is given up otherwise. Sites do not trust the server: each signs only one set, and opens
only a set that T sites signed. Proof: docs/proofs/secure_sums.md.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedvi import errors
from fedvi.federation.messages import CLOSING, KeyPart, Payload
from fedvi.federation.whole_numbers import SHARES
from fedvi.privacy import agreement, shares, top_up
from fedvi.privacy.agreement import Named
from fedvi.privacy.masks import KEY_BYTES
from fedvi.server.core import kept
from fedvi.server.core.state import LEFT, ServerSpec, ServerState

__all__ = [
    "OpeningMessages",
    "Streams",
    "cleared",
    "is_late",
    "is_waiting",
    "moved",
    "opening_messages",
    "opens",
    "owing",
    "parts",
    "phase",
    "post",
    "restored",
    "streams",
    "taken",
]

_SIGNED, _OPENED = CLOSING
_SET, _CERTIFIED, _SHARES, _KEYS = "set", "certified", "shares/", "1/"
_SIGNATURE_BYTES = 64


class Streams(NamedTuple):
    """Keys of what did not cancel in a sum.

    Attributes:
      added, subtracted: of mask streams.
      surplus: (layer, key) of noise that the sum no longer needs; see ``top_up``.
    """

    added: tuple[bytes, ...] = ()
    subtracted: tuple[bytes, ...] = ()
    surplus: tuple[tuple[int, bytes], ...] = ()

    def __repr__(self) -> str:
        return "Streams()"


class OpeningMessages(NamedTuple):
    """All messages by which the sum of a round was opened; empty where all sites must answer.

    Attributes:
      sealed: site → the sealed shares of its answer.
      openings: site → its opening.
      absent: the sites that the study began without.
    """

    sealed: Mapping[str, bytes]
    openings: Mapping[str, bytes]
    absent: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "OpeningMessages()"


def opens(spec: ServerSpec) -> bool:
    """Whether answers are masked, and a round may be summed without some of them."""
    return spec.is_masked and spec.gathering.sums.least_reporting < len(spec.clients)


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
    of_round = (_SET, _CERTIFIED, _SHARES, f"{_SIGNED}/", f"{_OPENED}/")
    left = {key: part for key, part in state.keys.items() if not key.startswith(of_round)}
    return state if len(left) == len(state.keys) else state._replace(keys=left)


def opening_messages(state: ServerState) -> OpeningMessages:
    """Returns all messages by which the sum of the current round can be read."""

    def of(start: str) -> dict[str, bytes]:
        keys = state.keys.items()
        return {key.removeprefix(start): part for key, part in keys if key.startswith(start)}

    return OpeningMessages(of(_SHARES), of(f"{_OPENED}/"), _absent(state))


def restored(
    spec: ServerSpec, state: ServerState, named: Named, messages: OpeningMessages
) -> ServerState:
    """Returns a state whose round can be read by ``streams``, from ``opening_messages`` of it.

    Raises:
      ProtocolError: an opening has an impossible length, or too few sites opened.
    """
    keys = {_SHARES + name: part for name, part in messages.sealed.items()}
    keys |= {f"{_KEYS}{name}": b"" for name in messages.absent}
    state = state._replace(keys=keys | {_SET: named.text.encode(), _CERTIFIED: b"1"})
    for name, part in messages.openings.items():
        state = post(spec, state, name, KeyPart(_OPENED, part))
    # No other opening will come.
    moved(spec, state._replace(away=dict.fromkeys(spec.clients, LEFT)))
    return state


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
        length = shares.SECRET_BYTES + (len(inside) - 1) * shares.SHARE_BYTES
        if outside:
            masked = outside - len(_absent(state))
            length = KEY_BYTES * (1 + masked + len(_surplus(spec, outside)))
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
    """Computes, from the openings, the mask streams and the surplus noise in the sum of the set's answers.

    Raises:
      ProtocolError: shares do not belong together.
    """
    inside, order = _named(state).clients, spec.clients.index
    outside = [name for name in spec.clients if name not in inside]
    absent = _absent(state)
    masked = [name for name in outside if name not in absent]
    sent = {n: state.keys[f"{_OPENED}/{n}"] for n in inside if f"{_OPENED}/{n}" in state.keys}
    layers = _surplus(spec, len(outside))
    added: list[bytes] = []
    subtracted: list[bytes] = []
    surplus: list[tuple[int, bytes]] = []
    if not outside:
        for name in inside:
            secret = _secret(spec, inside, sent, name)
            added.append(top_up.self_mask_key(secret))
            surplus += top_up.layer_keys(secret, layers)
        return Streams(tuple(added), (), tuple(surplus))
    for name, opening in sent.items():
        own, *keys = (opening[at : at + KEY_BYTES] for at in range(0, len(opening), KEY_BYTES))
        added.append(own)
        for other, key in zip(masked, keys, strict=False):
            (added if order(other) > order(name) else subtracted).append(key)
        surplus += zip(layers, keys[len(masked) :], strict=True)
    return Streams(tuple(added), tuple(subtracted), tuple(surplus))


def _secret(spec: ServerSpec, inside: Sequence[str], sent: Mapping[str, bytes], name: str) -> bytes:
    """Returns a site's secret, from its own opening or else from the shares in those of others."""
    if name in sent:
        return sent[name][: shares.SECRET_BYTES]
    held = {}
    for holder, opening in sent.items():
        at = [other for other in inside if other != holder].index(name)
        start = shares.SECRET_BYTES + at * shares.SHARE_BYTES
        held[spec.clients.index(holder)] = opening[start : start + shares.SHARE_BYTES]
    return shares.joined(held, _threshold(spec))


def _surplus(spec: ServerSpec, missing: int) -> range:
    """Returns the numbers of the layers of noise that a sum without so many sites no longer needs."""
    layers = spec.gathering.top_up
    return range(layers.kept(missing), len(layers.layers))


def _absent(state: ServerState) -> tuple[str, ...]:
    """Returns the sites that the study began without: their keys are empty, see ``key_board``."""
    found = (key for key, part in state.keys.items() if key.startswith(_KEYS) and not part)
    return tuple(key.removeprefix(_KEYS) for key in found)


def _threshold(spec: ServerSpec) -> int:
    return agreement.threshold(len(spec.clients), spec.gathering.sums.colluding)


def _named(state: ServerState) -> Named:
    return _read(state.keys[_SET])


@functools.lru_cache(maxsize=8)
def _read(text: bytes) -> Named:
    raw = json.loads(text)
    return Named(raw["visit"], tuple(raw["clients"]), tuple(raw["digests"]))
