"""A server with one site of its own plays at random against three real ones: it opens one set a round.

What each site decides of a set is searched whole in tests/unit/privacy/test_agreement.py. Here are the
sites' processes and stores with it: two tasks a visit, sets of any sites and answers, signatures and
shares of any set, visits out of turn, and kills before a site is heard.
"""

import collections
import json
import random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedvi import errors
from fedvi.client import opening
from fedvi.client.held_keys import Held, ratcheted, read
from fedvi.client.masking import task_digest
from fedvi.expfam import tree
from fedvi.federation.messages import (
    Hello,
    NextTask,
    Noted,
    Offer,
    Receipt,
    Reply,
    Request,
    Submit,
    Wait,
    Welcome,
)
from fedvi.federation.whole_numbers import SHARES
from fedvi.privacy import agreement, pairs, shares
from fedvi.privacy.agreement import Named, Terms
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.updates.base import Task
from tests.masked import Consortium, raw

NAMES = ("a", "b", "c", "d")
HONEST = NAMES[:3]


@pytest.fixture(scope="module")
def assembly() -> build.Assembly:
    return build.assemble(parse_study(raw(names=NAMES, least=3, rounds=200)))


class Killed(BaseException):
    pass


class Sent(Exception):
    """A site sent what it must not."""


class Server:
    """Shows keys as an honest one, and then whatever it likes."""

    def __init__(self, assembly: build.Assembly, seed: int) -> None:
        self.draw = random.Random(seed)
        self.consortium = Consortium(assembly)
        self.consortium.coordinator = self  # type: ignore[assignment]
        self.digest = assembly.digests[0]
        self.eta = tree.to_numpy(assembly.prior)
        self.visit, self.reply, self.about = 0, Wait(), ""
        self.board: dict[str, bytes] = {}
        self.sets: list[str] = []
        # By site and visit: the task's mark, the digest and the sealed shares of what it answered.
        self.answers: dict[tuple[str, int], list[tuple[float, str, bytes]]] = (
            collections.defaultdict(list)
        )
        self.signed: dict[tuple[str, str], bytes] = {}
        self.opened: dict[int, set[str]] = collections.defaultdict(set)
        self.sites = {name: self.consortium.worker(name) for name in NAMES}
        for _ in range(3):
            for worker in self.sites.values():
                worker.tick()
        self.own = self.held("d")
        self.key = Ed25519PrivateKey.from_private_bytes(self.own.signing)
        sums = assembly.gather.sums
        self.terms = Terms(self.digest, self.own.set_up, NAMES, sums.colluding, 3)

    def held(self, name: str) -> Held:
        found = read(self.consortium.stores[name].load_keys())
        assert found is not None
        return found

    def task(self, name: str, visit: int, scale: float) -> tuple[Task, bytes]:
        eta = tree.scale(self.eta, scale)
        task = Task(f"{name}/{visit}", name, visit, 0, eta, self.eta, 1.0)
        return task, task_digest(bytes.fromhex(self.own.set_up), self.digest, task)

    def handle(self, request: Request) -> Reply:
        name = request.client
        match request:
            case Hello():
                return Welcome(0, request.anchor)
            case NextTask(part=part) if part and part.stage <= 2:
                return self.keys(name, part.stage, part.content)
            case NextTask(part=part) if part and part.content:
                if self.draw.random() < 0.15:
                    raise Killed
                self.heard(name, part.stage, part.content)
                return Wait()
            case NextTask():
                found, self.reply = self.reply, Wait()
                return found
            case Submit(payload=payload):
                _, _, visit = request.task_id.rpartition("/")
                (sealed,) = (bytes(t.data) for t in payload.tensors if t.name == SHARES)
                self.answers[name, int(visit)].append((self.scale, payload.sha256, sealed))
                return Receipt("accepted", 0, None)
        return Noted()

    def keys(self, name: str, stage: int, content: bytes) -> Wait:
        if content:
            self.board[f"{stage}/{name}"] = content
        found = [self.board.get(f"{stage}/{other}", b"") for other in NAMES]
        if not all(found):
            return Wait()
        if stage == 1:
            return Wait(tuple(found))
        own, size = NAMES.index(name), pairs.OFFER_BYTES
        parts = (part[(own - at - 1) * size : (own - at) * size] for at, part in enumerate(found))
        return Wait(tuple(part if at < own else b"" for at, part in enumerate(parts)))

    def heard(self, name: str, stage: int, content: bytes) -> None:
        """Looks at what a site signed or opened, which must be in its store by now."""
        said, turn = json.loads(self.about), self.held(name).turn
        if turn is None or turn.signed != self.about:
            raise Sent("what is sent was not stored")
        if stage == 3:
            self.signed[name, self.about] = content
            return
        if not turn.opened or self.held(name).seed:
            raise Sent("what is opened was not stored")
        self.opened[said["visit"]].add(self.about)
        inside = [site for site in said["clients"] if site in HONEST]
        marks = {answer[0] for site in inside for answer in self.answers[site, said["visit"]]}
        if len(self.opened[said["visit"]]) > 1 or len(inside) < 2 or len(marks) != 1:
            raise Sent(f"two sums, or one of too few, or of two tasks: {self.opened}")

    def move(self) -> None:
        name = self.draw.choice(HONEST)
        visit = max(0, self.visit + self.draw.choice([0] * 30 + [-1, 1]))
        act = self.draw.random()
        if act < 0.25:
            self.scale = self.draw.choice([1.0] * 5 + [2.0])
            self.reply = Offer(self.task(name, visit, self.scale)[0])
            self.tick(name, 2)
        elif act < 0.6:
            known = [text for text in self.sets if json.loads(text)["visit"] == visit]
            if len(known) < 3 and self.draw.random() < 0.5:
                known = [self.named(visit)]
                self.sets += known
            if known:
                self.ask(name, self.draw.choice(known), is_signing=True)
        elif act < 0.95 and self.sets:
            self.ask(name, self.draw.choice(self.sets[-3:]), is_signing=False)
        elif self.draw.random() < 0.4:
            self.visit += 1

    def tick(self, name: str, times: int) -> None:
        try:
            for _ in range(times):
                self.sites[name].tick()
        except (errors.FedviError, Killed):
            self.sites[name] = self.consortium.worker(name)
        self.reply = Wait()

    def named(self, visit: int) -> str:
        inside = tuple(name for name in NAMES if self.draw.random() < 0.85)
        found = [[answer[1] for answer in self.answers[name, visit]] for name in inside]
        return Named(
            visit, inside, tuple(self.draw.choice(one or ["e" * 64]) for one in found)
        ).text

    def ask(self, name: str, text: str, *, is_signing: bool) -> None:
        """Has a site sign a set, or open it, with all signatures that there are and what it forges."""
        self.about, said = text, json.loads(text)
        if is_signing:
            self.reply = Wait((text.encode(),))
            return self.tick(name, 1)
        own, visit = self.answers[name, said["visit"]], said["visit"]
        _, digest = self.task(name, visit, own[-1][0] if own else 1.0)
        signatures, sealed = [], []
        start = NAMES.index(name) * shares.SEALED_BYTES
        for other in said["clients"]:
            if other == "d":
                signatures.append(self.key.sign(agreement.said(self.terms, digest.hex(), text)))
                secret = ratcheted(self.own, visit).secrets[name]
                key = pairs.share_key(secret, digest, other)
                sealed.append(shares.seal(key, bytes(shares.SHARE_BYTES)))
                continue
            signatures.append(self.signed.get((other, text), b""))
            found = [answer[2] for answer in self.answers[other, visit]] or [b""]
            sealed.append(self.draw.choice(found)[start : start + shares.SEALED_BYTES])
        self.reply = Wait((text.encode(), *signatures, *sealed))
        return self.tick(name, 1)


def play(assembly: build.Assembly, seed: int, moves: int = 250) -> Server:
    server = Server(assembly, seed)
    for _ in range(moves):
        server.move()
    return server


def test_a_server_that_plays_at_random_opens_one_set_a_round(assembly: build.Assembly) -> None:
    opened = [play(assembly, seed).opened for seed in range(8)]
    # It gets somewhere.
    assert sum(map(len, opened)) >= 4


def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = opening.signature
    monkeypatch.setattr(
        opening, "signature", lambda *given: (given[2], signature(*given)[1]), raising=True
    )


def _binds_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    said, share_key = agreement.said, pairs.share_key
    monkeypatch.setattr(agreement, "said", lambda terms, task, text: said(terms, "", text))
    monkeypatch.setattr(
        pairs, "share_key", lambda secret, task, sender: share_key(secret, b"", sender)
    )


def _keeps_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opening.opened

    def kept(*given: Any) -> Any:
        held, *told = opened(*given)
        return held._replace(seed=given[2].seed), *told

    monkeypatch.setattr(opening, "opened", kept)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_forgets, "what is sent was not stored"),
        (_binds_no_task, "two sums, or one of too few, or of two tasks"),
        (_keeps_its_seed, "what is opened was not stored"),
    ],
)
def test_a_planted_fault_is_found(
    assembly: build.Assembly, monkeypatch: pytest.MonkeyPatch, plant: Any, found: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(Sent, match=found):
        collections.deque((play(assembly, seed) for seed in range(40)), maxlen=0)
