"""Audits a round of secure sums: recomputes independently what the sites mask and the server adds.

The audit knows the secrets of its sites, which hold no records. It shares no code with the masks: HKDF is
written out here, and the stream comes directly from the cipher.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import math
import struct
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedvi import errors
from fedvi.audit.findings import Finding, judged
from fedvi.client.masking import Form, MaskedLink, Masking, task_digest
from fedvi.expfam import tree
from fedvi.federation.messages import (
    Hello,
    NextTask,
    Offer,
    Payload,
    Reply,
    Request,
    Submit,
    Tensor,
    Wait,
)
from fedvi.federation.whole_numbers import SHARES
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.agreement import Named
from fedvi.privacy.ledger import Header
from fedvi.privacy.noise_table import table
from fedvi.privacy.shares import SEALED_BYTES
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import openings
from fedvi.server.core.protocol import ServerSpec
from fedvi.store.base import SECRET_BYTES
from fedvi.store.memory import MemoryClientStore, MemoryServerStore
from fedvi.transport import codec
from fedvi.transport.memory import MemoryLink
from fedvi.transport.signers import within_one_process
from fedvi.updates.base import Task

__all__ = ["check_masked"]

_OVERDUE = 1e9


class _Round(NamedTuple):
    """The auditor's view of a round.

    Attributes:
      coordinator: received the answers.
      maskings: of the sites.
      held: client → the keys in its store after it masked its answer.
      tasks: client → its task.
      plain, masked: client → its answer.
      late: the client that did not send its answer; empty if all did.
    """

    coordinator: Coordinator
    maskings: Mapping[str, Masking]
    held: Mapping[str, Any]
    tasks: Mapping[str, Task]
    plain: Mapping[str, Payload]
    masked: Mapping[str, Payload]
    late: str


def check_masked(spec: ServerSpec, answers: Mapping[str, Payload]) -> list[Finding]:
    """Plays one round of a study with secure sums, and returns a finding for each property.

    Args:
      spec: of the study, without ledgers and budget.
      answers: client → a made-up answer, in its form without masks.
    """
    found = _played(spec, answers)
    checks = [_sum(spec, found), _masks(spec, found), _once(found)]
    if openings.opens(spec):
        late = spec.clients[-1]
        without = _played(spec, answers, late)
        second = _sum(spec, without)
        checks[0] = second if checks[0].passed else checks[0]
        signed = _played(spec, answers, late, turns=1)
        checks += [
            _set(spec, without),
            _outside(spec, signed),
            _kept_back(spec, signed),
            _enough(spec),
        ]
    return checks


def _played(
    spec: ServerSpec, answers: Mapping[str, Payload], late: str = "", turns: int = 2
) -> _Round:
    """Plays a round; a late site has masked its answer, and is skipped before it sends it.

    Args:
      spec, answers: as in `check_masked`.
      late: the late site; empty for none.
      turns: how often the other sites then ask for work: first they sign, then they open.
    """
    gather = spec.gathering
    assert gather.bits is not None
    now = 0.0
    coordinator = Coordinator(spec, MemoryServerStore(), clock=lambda: now)
    signers = within_one_process(spec.clients)
    form = Form(spec.study_digest, spec.clients, **gather._asdict())
    maskings, stores, links = {}, {}, {}
    for name in spec.clients:
        header = Header("audit", spec.study_digest, name, "record", "substitute", "message", True)
        stores[name] = MemoryClientStore(ledgers.open_ledger(header))
        maskings[name] = Masking(name, form, signers[name], stores[name])
        links[name] = MaskedLink(MemoryLink(coordinator.handle), maskings[name])
        links[name].handle(Hello(name, spec.study_digest))
    tasks: dict[str, Task] = {}
    # Three passes: keys, offers, tasks.
    for _ in range(3):
        for name, link in links.items():
            reply = link.handle(NextTask(name))
            if isinstance(reply, Offer):
                tasks[name] = reply.task
    masked = {name: maskings[name].mask(tasks[name], answers[name]) for name in spec.clients}
    held = {name: json.loads(stores[name].load_keys() or b"{}") for name in masked}
    in_time = [name for name in spec.clients if name != late]
    for name, payload in masked.items():
        _seal(stores[name], tasks[name], payload)
        if name != late:
            links[name].handle(Submit(name, tasks[name].task_id, payload))
    if late:
        now = _OVERDUE
        coordinator.tick()
    for name in in_time * turns:
        if openings.phase(coordinator.state):
            links[name].handle(NextTask(name))
    return _Round(coordinator, maskings, held, tasks, answers, masked, late)


def _seal(store: MemoryClientStore, task: Task, payload: Payload) -> None:
    """Records an answer in a site's ledger, as its worker does."""
    release_id = f"{task.task_id}#0"
    book = ledgers.charge(store.ledger, release_id, codec.event_from(payload.event))
    store.reserve(book, release_id, bytes(SECRET_BYTES), b"")
    store.note_inputs(release_id, b"", b"", b"")
    store.seal(ledgers.seal(book, release_id, payload.sha256), release_id, payload, None)


def _sum(spec: ServerSpec, found: _Round) -> Finding:
    """Compares the fold of masked answers with one of the same answers without masks."""
    stays = _layers_that_stay(spec, missing=bool(found.late))
    open_spec = spec._replace(gather=spec.gathering._replace(bits=None))
    now = 0.0
    coordinator = Coordinator(open_spec, MemoryServerStore(), clock=lambda: now)
    for name in spec.clients:
        coordinator.handle(Hello(name, spec.study_digest))
        coordinator.handle(NextTask(name))
    for name, payload in found.plain.items():
        if name != found.late:
            noised = _noised(spec, payload, _secret(found, name), stays)
            coordinator.handle(Submit(name, found.tasks[name].task_id, noised))
    if found.late:
        now = _OVERDUE
        coordinator.tick()
    same = tree.equal(coordinator.state.posterior, found.coordinator.state.posterior)
    passed = same and coordinator.state.version == found.coordinator.state.version == 1
    return judged(
        "sums",
        "a masked sum is the plain one",
        passed,
        "the same in every bit" if passed else "not the same",
        "masks cancel, enough noise stays for the sites that are missing, and the posterior equals that of "
        "a server that sees every answer",
        "the folded sum is not that of the answers with the noise that was priced: masks do not "
        "cancel, or too many or too few layers of noise were taken off",
    )


def _masks(spec: ServerSpec, found: _Round) -> Finding:
    """Recomputes every mask from the sites' secrets."""
    gather = spec.gathering
    assert gather.bits is not None
    unsigned = f"<u{gather.bits // 8}"
    wrong = []
    for own, name in enumerate(spec.clients):
        numbers = [
            np.rint(np.ravel(part) / gather.step)
            for _, part in sorted(codec.decode(found.plain[name])[0].items())
        ]
        words = np.concatenate([*numbers, np.zeros(4)]).astype(np.int64)
        if openings.opens(spec):
            layers = _layers(spec, _secret(found, name), len(gather.top_up.layers))
            words[: len(layers)] += layers
        words = words.astype(unsigned)
        held = found.held[name]
        digest = task_digest(bytes.fromhex(held["set_up"]), spec.study_digest, found.tasks[name])
        for index, other in enumerate(spec.clients):
            if index == own:
                continue
            key = _expanded(base64.b64decode(held["secrets"][other]), b"fedvi mask 1" + digest)
            part = _stream(key, len(words), unsigned)
            words = words + part if index > own else words - part
        if openings.opens(spec):
            key = _expanded(_secret(found, name), b"fedvi self mask 1")
            words = words + _stream(key, len(words), unsigned)
        sent = found.masked[name].tensors[0]
        if words.tobytes() != bytes(sent.data):
            wrong.append(name)
    return Finding(
        "sums",
        "a mask is ChaCha20 under 256 bits of each pair and task",
        not wrong,
        f"{len(spec.clients) - len(wrong)} of {len(spec.clients)} masks",
        "each mask is the one that the sites' secrets and the task make"
        if not wrong
        else f"the mask of {wrong[0]} is another: it may be one that can be guessed, or that was used",
    )


def _layers_that_stay(spec: ServerSpec, missing: int) -> int:
    """Counts the fewest layers with which the honest answers of a sum have the noise of a sum of all."""
    gather = spec.gathering
    count = 0
    while _left(spec, missing, count) < 1 and count < len(gather.top_up.layers):
        count += 1
    return count


def _left(spec: ServerSpec, missing: int, layers: int) -> Fraction:
    """Returns the noise variance of honest answers with their first layers, in units of the priced one."""
    gather, all_sites = spec.gathering, len(spec.clients)
    # One draw of the table has the variance of one term of the base noise: of one, or of two.
    square = gather.top_up.stride**2
    share = Fraction(square, 1 if square == 1 else 1 + square)
    divisors = [c for layer in gather.top_up.layers[:layers] for c in layer.divisors]
    variance = 1 + sum((share / c**2 for c in divisors), Fraction(0))
    colluding = gather.sums.colluding
    return (all_sites - missing - colluding) * variance / (all_sites - colluding)


def _noised(spec: ServerSpec, payload: Payload, secret: bytes, layers: int) -> Payload:
    """Adds the first layers of a site's noise to its answer."""
    gather = spec.gathering
    if not layers:
        return payload
    value, _ = codec.decode(payload)
    noise, start, tensors = _layers(spec, secret, layers), 0, []
    for name in sorted(value):
        shape, size = value[name].shape, value[name].size
        steps = np.rint(value[name] / gather.step) + noise[start : start + size].reshape(shape)
        tensors.append(Tensor(name, "<f8", shape, (steps * gather.step).tobytes()))
        start += size
    return Payload(tuple(tensors), payload.event, codec.digest(payload.event, tensors))


def _layers(spec: ServerSpec, secret: bytes, count: int) -> np.ndarray:
    """Draws the sum of the first layers of a site's noise anew, number by number: int64, in steps."""
    gather = spec.gathering
    alias, high, low = (row.tolist() for row in table("rounded_gaussian"))
    total = [0] * gather.size
    for number, layer in enumerate(gather.top_up.layers[:count]):
        key = _expanded(secret, b"fedvi layer 1" + number.to_bytes(4, "big"))
        encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        for divisor in layer.divisors:
            words = struct.unpack(f"<{gather.size}I", encryptor.update(bytes(4 * gather.size)))
            for at, word in enumerate(words):
                column = word % 2**16
                coin, bar = word // 2**16 % 2**15, high[column] // 2**16
                if coin == bar:
                    continue
                size = column if coin < bar else alias[column]
                total[at] += (1 - 2 * (word >> 31)) * math.floor(size / divisor + 0.5)
            # What is left of a threshold decides the few that tie, in order.
            for at, word in enumerate(words):
                column = word % 2**16
                if word // 2**16 % 2**15 == high[column] // 2**16:
                    first, second = struct.unpack("<2I", encryptor.update(bytes(8)))
                    coin = first // 2**16 * 2**32 + second
                    bar = high[column] % 2**16 * 2**32 + low[column]
                    size = column if coin < bar else alias[column]
                    total[at] += (1 - 2 * (word >> 31)) * math.floor(size / divisor + 0.5)
    return np.array(total, np.int64) * gather.top_up.stride


def _secret(found: _Round, name: str) -> bytes:
    """Returns a site's secret of the round, as it is in its store; none where all must answer."""
    return base64.b64decode(found.held[name].get("seed", ""))


def _expanded(secret: bytes, info: bytes) -> bytes:
    """HKDF-Expand of RFC 5869, one block."""
    return hmac.new(secret, info + b"\1", hashlib.sha256).digest()


def _stream(key: bytes, count: int, unsigned: str) -> np.ndarray:
    size = count * np.dtype(unsigned).itemsize
    content = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))
    return np.frombuffer(content, unsigned)


def _once(found: _Round) -> Finding:
    """Asks a site with a sealed answer for a second answer under the same mask."""
    name, masking = next(iter(found.maskings.items()))
    try:
        masking.mask(found.tasks[name], found.plain[name])
        passed = False
    except errors.ProtocolError:
        passed = True
    return judged(
        "sums",
        "a mask is used once",
        passed,
        "refused" if passed else "masked again",
        "a site masks one answer of each visit",
        "two answers behind one mask show their difference, with the noise of two messages",
    )


def _set(spec: ServerSpec, found: _Round) -> Finding:
    """Asks a site that opened a sum to sign the set of all sites, once the late answer has come."""
    digests = tuple(found.masked[name].sha256 for name in spec.clients)
    visit = found.tasks[found.late].visit
    whole = Named(visit, tuple(spec.clients), digests).text.encode()
    passed = _is_refused(found.maskings[spec.clients[0]], (whole,))
    return judged(
        "sums",
        "a site signs one set of a round",
        passed,
        "refused" if passed else "signed another",
        "of a round one sum is opened",
        "two sums of a round may be opened, and their difference shows one site's answer",
    )


def _outside(spec: ServerSpec, found: _Round) -> Finding:
    """Asks a site that is about to open a sum for its share of the late answer's mask as well."""
    name = spec.clients[0]
    sealed = next(t for t in found.masked[found.late].tensors if t.name == SHARES)
    parts = openings.parts(spec, found.coordinator.state, name)
    asked = (*parts, bytes(sealed.data)[:SEALED_BYTES])
    passed = len(parts) > 1 and _is_refused(found.maskings[name], asked)
    return judged(
        "sums",
        "nothing of a site outside the set is opened",
        passed,
        "refused" if passed else "opened",
        "the share of a site whose answer is not in the sum stays closed",
        "the mask of a site that is not in the sum can be opened, and its answer with it",
    )


def _kept_back(spec: ServerSpec, found: _Round) -> Finding:
    """Has a site open a sum without one site, and looks for more in it than that sum needs."""
    gather, name = spec.gathering, spec.clients[1]
    sent: list[bytes] = []
    with contextlib.suppress(errors.FedviError):
        asked = _asking(openings.parts(spec, found.coordinator.state, name), sent)
        found.maskings[name].close(asked)
    held, secret = found.held[name], _secret(found, name)
    digest = task_digest(bytes.fromhex(held["set_up"]), spec.study_digest, found.tasks[name])
    pair = base64.b64decode(held["secrets"][found.late])
    surplus = range(_layers_that_stay(spec, missing=1), len(gather.top_up.layers))
    numbers = (number.to_bytes(4, "big") for number in surplus)
    expected = (
        _expanded(secret, b"fedvi self mask 1"),
        _expanded(pair, b"fedvi mask 1" + digest),
        *(_expanded(secret, b"fedvi layer 1" + number) for number in numbers),
    )
    passed = sent == [b"".join(expected)]
    return judged(
        "sums",
        "the noise that a sum needs stays closed",
        passed,
        "nothing more is opened" if passed else "something else is opened",
        "of a sum without a site, the others open their self masks, the keys that they share with it, and "
        "the layers of noise that the sum no longer needs",
        "an opening holds something else than that, by which the noise of the sum might be taken off",
    )


def _enough(spec: ServerSpec) -> Finding:
    """Counts the noise that is left in a sum for each number of missing sites."""
    gather = spec.gathering
    most = len(spec.clients) - gather.sums.least_reporting
    least = min(_left(spec, count, gather.top_up.kept(count)) for count in range(most + 1))
    passed = least >= 1
    return judged(
        "sums",
        "layers of noise make up for missing sites",
        passed,
        f"{float(least):.4g} × the priced variance, or more",
        f"sums without up to {most} sites have the noise that is priced",
        "a sum without some sites has less noise than is priced",
    )


def _is_refused(masking: Masking, parts: tuple[bytes, ...]) -> bool:
    """Whether a site refuses to sign or open ``parts``, and sends nothing."""
    sent: list[bytes] = []
    try:
        masking.close(_asking(parts, sent))
    except errors.ProtocolError:
        return not sent
    return False


def _asking(parts: tuple[bytes, ...], sent: list[bytes]) -> MemoryLink:
    """Returns a server that asks a site to sign or open ``parts``, and notes in ``sent`` what it sends."""

    def handle(request: Request) -> Reply:
        if isinstance(request, NextTask) and request.part and request.part.content:
            sent.append(request.part.content)
            return Wait()
        return Wait(parts)

    return MemoryLink(handle)
