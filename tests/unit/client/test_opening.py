"""Claims about rounds that some sites do not answer: sums are exact, and every lie opens nothing."""

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.client.held_keys import Held, read
from fedvi.expfam import tree
from fedvi.federation.messages import (
    CLOSING,
    KeyPart,
    NextTask,
    Offer,
    Payload,
    Reply,
    Request,
    Submit,
    Wait,
)
from fedvi.federation.whole_numbers import SHARES, whole
from fedvi.privacy import agreement, pairs, top_up
from fedvi.privacy import ledger as ledgers
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import openings, sum_rounds, turns
from fedvi.server.core.protocol import is_durably_equal
from fedvi.server.file_exchange import Hand
from fedvi.store.memory import MemoryServerStore
from fedvi.study import build, noising
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.transport.memory import Link, MemoryLink
from tests.masked import Consortium, Lying, raw, step_of

NAMES = ("north", "east", "south", "west", "home", "away", "far")
# Of seven with one that works with the server, five must sign a set: two may be missing.
LEAST = 5


@pytest.fixture(scope="module")
def assembly() -> build.Assembly:
    return build.assemble(parse_study(raw(names=NAMES, least=LEAST, rounds=3)))


class Killed(BaseException):
    pass


class Dying:
    """A link of a site that is killed at its first request of a kind; before it is heard, or after."""

    def __init__(self, link: Link, step: str, heard: bool, at: int = 1) -> None:
        self._link, self._step, self._heard, self._left = link, step, heard, at

    def handle(self, request: Request) -> Reply:
        if step_of(request) == self._step:
            self._left -= 1
        if self._left == 0 and not self._heard:
            raise Killed
        reply = self._link.handle(request)
        if self._left == 0:
            raise Killed
        return reply


class Round(Consortium):
    """A consortium that notes what sites mask and what the server reads, and whose time can pass."""

    def __init__(
        self, assembly: build.Assembly, monkeypatch: pytest.MonkeyPatch, **given: Any
    ) -> None:
        super().__init__(assembly, **given)
        self.plain: dict[str, np.ndarray] = {}
        self.secrets: dict[str, bytes] = {}
        self.read: list[tuple[tuple[str, ...], np.ndarray]] = []
        totals = sum_rounds.totals

        def noted(gather: Any, answers: list[Any], *given: Any) -> Any:
            found = totals(gather, answers, *given)
            self.read.append((self.named, whole(found, gather.shapes, gather.step)))
            return found

        monkeypatch.setattr(sum_rounds, "totals", noted)

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(json.loads(self.coordinator.state.keys["set"])["clients"])

    def worker(self, name: str, wrap: Callable[[Link], Link] = lambda link: link) -> Any:
        worker = super().worker(name, wrap)
        masked, gather = worker._mask, self.assembly.gather

        def note(task: Any, payload: Any) -> Any:
            numbers = whole(codec.decode(payload)[0], gather.shapes, gather.step)
            self.plain[f"{name}/{task.visit}"] = numbers
            found = masked(task, payload)
            self.secrets[f"{name}/{task.visit}"] = read(self.stores[name].load_keys()).seed
            return found

        worker._mask = note
        return worker

    def all(self) -> dict[str, Any]:
        return {name: self.worker(name) for name in self.assembly.clients}

    def go_on(
        self, workers: dict[str, Any], until: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Lets sites tick until the run is over, or nothing moves; returns who was killed on the way."""
        killed, quiet = [], 0
        for _ in range(200):
            before = self.coordinator.state
            for name, worker in [*workers.items()]:
                if until():
                    return killed
                try:
                    if worker.tick() == "done":
                        del workers[name]
                except Killed:
                    del workers[name]
                    killed.append(name)
            quiet = quiet + 1 if is_durably_equal(before, self.coordinator.state) else 0
            if quiet == 3:
                return killed
        raise AssertionError("it never ends")

    def wait(self) -> None:
        self.now += 11.0
        self.coordinator.tick()

    def finish(self, workers: dict[str, Any]) -> None:
        """Lets time pass, and sites go on, until the run is over."""
        for _ in range(30):
            if self.coordinator.state.status != "running":
                return
            self.wait()
            self.go_on(workers)
        raise AssertionError("it never ends")

    @property
    def history(self) -> Any:
        return self.coordinator.state.history

    def check(self, rounds: int) -> None:
        """Each sum that was read is that of its sites' answers and needed layers, bit for bit."""
        assert len(self.read) == rounds
        # Each round has secrets of its own: one that was opened once tells nothing of another.
        assert len(set(self.secrets.values())) == len(self.secrets)
        layers = self.assembly.gather.top_up
        for visit, (named, found) in enumerate(self.read):
            stays = range(layers.kept(len(NAMES) - len(named)))
            expected = sum(
                self.plain[f"{name}/{visit}"]
                + layers.total(
                    top_up.layer_keys(self.secrets[f"{name}/{visit}"], stays), len(found)
                )
                for name in named
            )
            assert np.array_equal(found, expected)


@pytest.fixture
def round_(assembly: build.Assembly, monkeypatch: pytest.MonkeyPatch) -> Round:
    return Round(assembly, monkeypatch)


# Without a lie.


@pytest.mark.parametrize("missing", range(3))
@pytest.mark.parametrize("step", ["submit", "sign", "open"])
def test_sums_are_exact_whoever_drops_out(round_: Round, step: str, missing: int) -> None:
    workers = round_.all()
    for name in NAMES[1 : 1 + missing]:
        workers[name] = round_.worker(name, lambda link: Dying(link, step, heard=False))
    killed = round_.go_on(workers)
    assert len(killed) == missing
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    round_.check(rounds=3)
    assert all(update.clients for update in round_.history)
    sizes = [7 if step != "submit" else 7 - missing, 7 - missing, 7 - missing]
    assert [len(named) for named, _ in round_.read] == sizes


@pytest.mark.parametrize("missing", range(3))
def test_an_opening_holds_no_layer_that_the_sum_needs(round_: Round, missing: int) -> None:
    opened: dict[str, bytes] = {}

    def heard(name: str) -> Callable[[Request], Request]:
        def noted(request: Request) -> Request:
            if step_of(request) == "open":
                opened.setdefault(name, request.part.content)
            return request

        return noted

    workers = {
        name: round_.worker(name, lambda link, name=name: Lying(link, request=heard(name)))
        for name in NAMES
    }
    gone = NAMES[1 : 1 + missing]
    for name in gone:
        workers[name] = round_.worker(name, lambda link: Dying(link, "submit", heard=False))
    round_.go_on(workers)
    if missing:
        round_.wait()
    round_.go_on(workers, until=lambda: len(round_.history) == 1)
    assert set(opened) == set(NAMES) - set(gone)
    layers = round_.assembly.gather.top_up
    stays = layers.kept(missing)
    for name, content in opened.items():
        secret = round_.secrets[f"{name}/0"]
        keys = [key for _, key in top_up.layer_keys(secret, range(len(layers.layers)))]
        # Where nobody is missing the secret opens all layers; else no secret and no share leaves.
        assert (secret in content) == (not missing)
        assert [key in content for key in keys[:stays]] == [False] * stays
        if missing:
            spare = b"".join(keys[stays:])
            assert content.startswith(top_up.self_mask_key(secret))
            assert content.endswith(spare)
            assert len(content) == 32 * (1 + missing) + len(spare)


def test_who_comes_back_is_in_the_next_sum(round_: Round) -> None:
    workers = round_.all()
    workers["east"] = round_.worker("east", lambda link: Dying(link, "submit", heard=False))
    round_.go_on(workers)
    round_.wait()
    round_.go_on(workers, until=lambda: len(round_.history) == 1)
    # Its answer of the first round is dropped, and its turn in the second is over: it was away.
    workers["east"] = round_.worker("east")
    round_.go_on(workers)
    assert round_.coordinator.state.status == "completed"
    assert [len(update.clients) for update in round_.history if update.clients] == [6, 6, 7]
    assert [update.dropped for update in round_.history if update.dropped] == [("east",)]
    round_.check(rounds=3)


def test_no_round_waits_for_a_site_whose_certificate_is_revoked(round_: Round) -> None:
    workers = round_.all()
    round_.go_on(workers, until=lambda: len(round_.history) == 1)
    del workers["east"]
    round_.coordinator.revoke({"east"})
    # No time passes: the two rounds that are left wait for no deadline.
    round_.go_on(workers)
    assert round_.coordinator.state.status == "completed"
    assert [len(update.clients) for update in round_.history] == [7, 6, 6]
    round_.check(rounds=3)


def test_a_site_that_is_gone_while_another_is_missing_leaves_a_round_that_is_given_up(
    round_: Round,
) -> None:
    # The key that the two share is nobody else's: no sum can be read, and the study goes on.
    workers = round_.all()
    workers["east"] = round_.worker("east", lambda link: Dying(link, "submit", heard=False))
    workers["far"] = round_.worker("far", lambda link: Dying(link, "open", heard=False))
    round_.go_on(workers)
    round_.finish(workers)
    assert [bool(update.given_up) for update in round_.history] == [True, False, False]
    assert round_.coordinator.state.status == "completed"
    assert [named for named, _ in round_.read] == [("north", "south", "west", "home", "away")] * 2


def test_signatures_and_openings_leave_what_looking_at_all_sites_would(
    round_: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, looked, progress_of = round_.assembly.spec, [], turns.progress_of
    monkeypatch.setattr(turns, "progress_of", lambda *of: looked.append(of) or progress_of(*of))

    class Compared:
        dear = 0

        def __init__(self, link: Link) -> None:
            self._link = link

        def handle(self, request: Request) -> Reply:
            before = len(looked)
            reply = self._link.handle(request)
            if step_of(request) in ("sign", "open"):
                Compared.dear += len(looked) > before
            state = round_.coordinator.state
            forgotten = state._replace(presence=state.presence._replace(round=None))
            afresh = turns.settle(spec, forgotten, round_.now)
            assert is_durably_equal(afresh, state)
            assert dict(afresh.presence.awaited) == dict(state.presence.awaited)
            assert afresh.away == state.away
            return reply

    workers = {name: round_.worker(name, Compared) for name in NAMES}
    workers["east"] = round_.worker("east", lambda link: Dying(Compared(link), "sign", heard=False))
    round_.go_on(workers)
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    # The last signature and the last opening of each round, where nobody had to be given up.
    assert Compared.dear <= 2 * 3


def test_a_posterior_of_fewer_sites_is_that_of_a_trusted_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without layers, and at one noise: a trusted server's sums have that of the fewest answers.
    monkeypatch.setattr(noising, "layers_of", lambda study, fineness: top_up.NONE)
    studies = [raw(names=NAMES, least=LEAST, rounds=3, secure=secure) for secure in (True, False)]
    for study in studies:
        study["solver"] = {**study["solver"], "noise_multiplier": 20.0}
    masked, plain = (build.assemble(parse_study(study)) for study in studies)
    found = []
    for one in (masked, plain):
        consortium = Consortium(one)
        # Where there are masks, keys are agreed on by all before two are gone.
        workers = (
            {name: consortium.worker(name) for name in NAMES}
            if one is plain
            else consortium.set_up()
        )
        del workers["east"], workers["far"]
        for _ in range(20):
            for worker in workers.values():
                worker.tick()
            consortium.now += 3.0
            consortium.coordinator.tick()
        found.append(consortium.coordinator.state)
    assert [state.status for state in found] == ["completed"] * 2
    for state in found:
        assert [len(update.clients) for update in state.history] == [5, 5, 5]
    assert tree.equal(found[0].posterior, found[1].posterior)


@pytest.mark.parametrize("heard", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 21))
def test_a_site_that_is_killed_at_any_call_goes_on(round_: Round, at: int, heard: bool) -> None:
    sent: dict[tuple[Any, ...], set[Any]] = {}

    class Cut:
        calls = 0

        def __init__(self, link: Link) -> None:
            self._link = link

        def handle(self, request: Request) -> Reply:
            Cut.calls += 1
            if isinstance(request, Submit):
                sent.setdefault(("submit", request.task_id), set()).add(request.payload)
            elif step_of(request) in ("sign", "open"):
                key = (step_of(request), round_.coordinator.state.keys["set"])
                sent.setdefault(key, set()).add(request.part.content)
            if Cut.calls == at and not heard:
                raise Killed
            reply = self._link.handle(request)
            if Cut.calls == at:
                raise Killed
            return reply

    workers = round_.all()
    workers["east"] = round_.worker("east", Cut)
    killed = round_.go_on(workers)
    assert killed == ["east"]
    # On the disk of the process before; no time has passed.
    workers["east"] = round_.worker("east", Cut)
    assert round_.go_on(workers) == []
    assert round_.coordinator.state.status == "completed"
    round_.check(rounds=3)
    assert [len(update.clients) for update in round_.history] == [7, 7, 7]
    # What was sent again are the same bytes: a set is signed once, and opened once.
    assert len(sent) == 9
    assert all(len(contents) == 1 for contents in sent.values())


@pytest.mark.parametrize("at", range(1, 120, 6))
def test_a_server_that_is_killed_at_any_call_goes_on(
    assembly: build.Assembly, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    round_, calls, store = Round(assembly, monkeypatch), 0, MemoryServerStore()
    round_.coordinator = round_.server(store)

    class Restarting:
        def __init__(self, link: Link) -> None:
            self._link = link

        def handle(self, request: Request) -> Reply:
            nonlocal calls
            calls += 1
            reply = self._link.handle(request)
            if calls == at:
                round_.coordinator = round_.server(store)
                raise errors.TransportError("lost")
            return reply

    workers = {name: round_.worker(name, Restarting) for name in NAMES}
    with pytest.raises(errors.TransportError):
        round_.go_on(workers)
    round_.go_on({name: round_.worker(name) for name in NAMES})
    assert round_.coordinator.state.status == "completed"
    round_.check(rounds=3)


def held(round_: Round, name: str) -> Held:
    found = read(round_.stores[name].load_keys())
    assert found is not None
    return found


def test_keys_of_a_round_are_gone_once_it_is_opened(round_: Round) -> None:
    workers = round_.all()
    round_.go_on(workers, until=lambda: len(round_.coordinator.state.answers) == 7)
    before = held(round_, "north")
    assert before.seed
    round_.go_on(workers, until=lambda: len(round_.history) == 1)
    after = held(round_, "north")
    assert after.turn is not None
    assert after.turn.opened
    kept = round_.stores["north"].load_keys()
    for secret in (before.seed, *before.secrets.values()):
        assert base64.b64encode(secret) not in kept
    assert after.at == 1
    assert after.secrets == {n: pairs.next_secret(s) for n, s in before.secrets.items()}


def test_a_server_keeps_nothing_of_a_round_that_is_over(round_: Round) -> None:
    workers = round_.all()
    round_.go_on(workers, until=lambda: len(round_.history) == 1)
    assert all(key.startswith(("1/", "2/")) for key in round_.coordinator.state.keys)


# A server that lies: what the site is told, nothing of it is opened.


def closing(change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Any:
    """A link that changes what a site is asked to sign, or to open."""

    def changed(request: Request, reply: Reply) -> Reply:
        asked = isinstance(request, NextTask) and request.part and request.part.stage in CLOSING
        return (
            Wait(change(reply.parts))
            if asked and isinstance(reply, Wait) and reply.parts
            else reply
        )

    return lambda link: Lying(link, reply=changed)


def without(text: bytes, *gone: str) -> bytes:
    """The same set without some sites."""
    found = agreement.named(NAMES, text.decode())
    pairs_ = zip(found.clients, found.digests, strict=True)
    left = [(name, digest) for name, digest in pairs_ if name not in gone]
    return agreement.Named(found.visit, *map(tuple, zip(*left, strict=True))).text.encode()


def told(round_: Round, wrap: Any, error: type[errors.FedviError] = errors.ProtocolError) -> str:
    """What north says when the server lies to it alone; it opened nothing of that round."""
    workers = round_.all()
    workers["north"] = round_.worker("north", wrap)
    with pytest.raises(error) as caught:
        round_.go_on(workers)
    turn = held(round_, "north").turn
    assert turn is not None
    assert not turn.opened
    assert "4/north" not in round_.coordinator.state.keys
    return caught.value.message


def test_two_sets_are_refused(round_: Round) -> None:
    seen: list[bytes] = []

    def change(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        seen.append(parts[0])
        return parts if len(seen) == 1 else (without(parts[0], "far"),)

    assert told(round_, closing(change)).startswith("this site signed another set of round 0")


def test_a_set_below_the_floor_is_refused(round_: Round) -> None:
    lie = closing(lambda parts: (without(parts[0], "far", "home", "east"),))
    assert "holds 4 sites, expected 5 or more" in told(round_, lie)


def test_a_server_with_a_lower_floor_or_threshold_is_refused(
    assembly: build.Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_, spec = Round(assembly, monkeypatch), assembly.spec
    # The study's digest, and so the greeting, is that of the study; its numbers are the server's own.
    lower = spec._replace(
        gather=spec.gather._replace(sums=spec.gather.sums._replace(least_reporting=3)),
        patience=spec.patience._replace(quorum=3),
    )
    monkeypatch.setattr(agreement, "threshold", lambda clients, colluding: 3)
    round_.coordinator = Coordinator(lower, MemoryServerStore(), clock=lambda: round_.now)
    workers = {name: round_.worker(name) for name in NAMES}
    round_.go_on(workers, until=lambda: len(round_.coordinator.state.keys) == 14)
    for name in NAMES[4:]:
        del workers[name]
    round_.go_on(workers)
    round_.wait()
    with pytest.raises(errors.ProtocolError, match="holds 4 sites, expected 5 or more"):
        round_.go_on(workers)


def test_another_q_for_one_site_is_refused_by_it(round_: Round) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Offer):
            return Offer(reply.task._replace(posterior=tree.scale(reply.task.posterior, 2.0)))
        return reply

    workers = round_.all()
    workers["north"] = round_.worker("north", lambda link: Lying(link, reply=change))
    # Its share was sealed for another task than the others answered.
    with pytest.raises(errors.PrivacyError, match="the share that 'north' sealed for this site"):
        round_.go_on(workers)
    # And their signatures are of a set of answers to another task than its own.
    with pytest.raises(errors.ProtocolError, match="1 of the sites in the set of round 0 signed"):
        round_.go_on({"north": workers["north"]})


@pytest.mark.parametrize("forged", [b"", bytes(64)])
def test_too_few_signatures_are_refused(round_: Round, forged: bytes) -> None:
    def change(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return parts if len(parts) == 1 else (*parts[:5], *([forged] * 3), *parts[8:])

    assert told(round_, closing(change)).startswith("4 of the sites in the set of round 0 signed")


def test_a_signature_in_the_place_of_another_sites_counts_for_nothing(round_: Round) -> None:
    def change(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return parts if len(parts) == 1 else (parts[0], *([parts[1]] * 7), *parts[8:])

    assert told(round_, closing(change)).startswith("1 of the sites in the set of round 0 signed")


def test_a_swapped_signing_key_is_refused(round_: Round) -> None:
    def change(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Wait) and len(reply.parts) == 7 and b"mlkem768" in reply.parts[1]:
            said = json.loads(reply.parts[1])
            own = base64.b64encode(bytes(32)).decode()
            said["content"] = json.dumps({**json.loads(said["content"]), "ed25519": own})
            return Wait((reply.parts[0], json.dumps(said).encode(), *reply.parts[2:]))
        return reply

    workers = round_.all()
    workers["north"] = round_.worker("north", lambda link: Lying(link, reply=change))
    with pytest.raises(errors.IdentityError, match="the keys of 'east': the signature is not"):
        round_.go_on(workers)


@pytest.mark.parametrize("key", ["", "AAAA", base64.b64encode(bytes(33)).decode()])
def test_a_site_that_could_not_sign_a_set_is_refused_before_anything_is_masked(
    round_: Round, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    workers, signer = round_.all(), round_.signers["far"]
    masking = workers["far"]._link._masking
    signed = masking._signed

    def without_key(keys: Any, signing: bytes, epoch: int) -> bytes:
        said = json.loads(json.loads(signed(keys, signing, epoch))["content"])
        content = json.dumps({**said, "ed25519": key}, sort_keys=True, separators=(",", ":"))
        by = base64.b64encode(signer.sign(content.encode())).decode()
        return json.dumps({"content": content, "signature": by}).encode()

    monkeypatch.setattr(masking, "_signed", without_key)
    with pytest.raises(errors.ProtocolError, match="the keys of 'far' hold no key of Ed25519"):
        round_.go_on(workers)
    assert round_.coordinator.state.tasks == {}


def test_a_site_that_is_in_the_set_and_not_in_it_is_refused(round_: Round) -> None:
    def change(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        # Its share is to be opened, and the keys that others have with it.
        return parts if len(parts) == 1 else (without(parts[0], "far"), *parts[1:])

    said = told(round_, closing(change))
    assert said == ("the server shows 14 signatures and shares for a set of 6 sites, expected 12")


def test_a_late_answer_is_not_opened(round_: Round) -> None:
    workers = round_.all()
    workers["east"] = round_.worker("east", lambda link: Dying(link, "submit", heard=False))
    round_.go_on(workers)
    round_.wait()
    round_.go_on(workers, until=lambda: len(round_.coordinator.state.history) == 1)
    # The answer arrives, and a set with it is named to who opened already.
    turn = held(round_, "north").turn
    assert turn is not None
    digest = ledgers.digest(round_.stores["east"].ledger, "east/0#0")
    first = agreement.named(NAMES, turn.signed)
    digests = dict(zip(first.clients, first.digests, strict=True)) | {"east": digest}
    late = agreement.Named(0, NAMES, tuple(digests[name] for name in NAMES)).text.encode()

    def change(request: Request, reply: Reply) -> Reply:
        return Wait((late,)) if isinstance(request, NextTask) and request.part else reply

    link = Lying(MemoryLink(round_.coordinator.handle), reply=change)
    form = workers["north"]._link._masking
    before = round_.stores["north"].load_keys()
    with pytest.raises(errors.ProtocolError, match="this site signed another set of round 0"):
        form.close(link)
    assert round_.stores["north"].load_keys() == before


def test_a_certificate_of_another_round_is_refused(round_: Round) -> None:
    first: list[tuple[bytes, ...]] = []

    def change(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        if len(parts) > 1:
            first.append(parts)
        return first[0] if round_.coordinator.state.version == 1 else parts

    said = told(round_, closing(change))
    assert said.endswith("is of round 0, and this site's last answer is of round 1")


def test_a_forged_share_is_refused(round_: Round) -> None:
    def change(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return parts if len(parts) == 1 else (*parts[:9], bytes(len(parts[9])), *parts[10:])

    said = told(round_, closing(change), errors.PrivacyError)
    assert said.startswith("the share that 'east' sealed for this site is not of this round")


def test_a_disk_that_was_set_back_is_refused(round_: Round) -> None:
    workers = round_.all()
    round_.go_on(workers, until=lambda: len(round_.coordinator.state.keys) == 14)
    backup = copy.deepcopy(round_.stores["north"])
    round_.go_on(workers, until=lambda: len(round_.history) == 1)
    round_.stores["north"] = backup
    with pytest.raises(errors.LedgerError):
        round_.worker("north").tick()
    assert held(round_, "north").turn is None


def test_a_plain_signature_without_an_answer_is_refused(round_: Round) -> None:
    workers = round_.all()
    round_.go_on(workers, until=lambda: len(round_.coordinator.state.keys) == 14)
    named = agreement.Named(0, NAMES, ("0" * 64,) * 7).text.encode()
    link = Lying(MemoryLink(round_.coordinator.handle), reply=lambda request, reply: Wait((named,)))
    with pytest.raises(errors.ProtocolError, match="has masked no answer yet"):
        workers["east"]._link._masking.close(link)


# What a server refuses.


@pytest.mark.parametrize("stage", CLOSING)
def test_a_server_takes_no_opening_that_has_another_length(round_: Round, stage: int) -> None:
    workers = round_.all()
    asked = f"{stage}/north"
    round_.go_on(workers, until=lambda: openings.phase(round_.coordinator.state) == stage - 2)
    state = round_.coordinator.state
    with pytest.raises(errors.ProtocolError, match="bytes to open a sum, expected"):
        round_.coordinator.handle(NextTask("far", part=KeyPart(stage, b"1")))
    assert asked not in state.keys or round_.coordinator.state.keys == state.keys


def test_a_server_takes_no_shares_that_sites_could_not_read(round_: Round) -> None:
    # Of the right shape, and twice as long: cut by place, no site would have its own.
    def change(request: Request) -> Request:
        if not isinstance(request, Submit):
            return request
        sent = request.payload
        tensors = [
            tensor._replace(dtype="<i8", data=bytes(2 * len(tensor.data)))
            if tensor.name == SHARES
            else tensor
            for tensor in sent.tensors
        ]
        made = Payload(tuple(tensors), sent.event, codec.digest(sent.event, tensors))
        return request._replace(payload=made)

    workers = round_.all()
    workers["east"] = round_.worker("east", lambda link: Lying(link, request=change))
    with pytest.raises(errors.ProtocolError, match="sealed shares have dtype int64, expected <i4"):
        round_.go_on(workers)
    assert "shares/east" not in round_.coordinator.state.keys


def test_a_false_opening_leaves_a_round_that_is_given_up(round_: Round) -> None:
    def change(request: Request) -> Request:
        if step_of(request) == "open":
            return request._replace(part=KeyPart(CLOSING[1], bytes(len(request.part.content))))
        return request

    workers = round_.all()
    workers["east"] = round_.worker("east", lambda link: Lying(link, request=change))
    round_.go_on(workers)
    assert [bool(update.given_up) for update in round_.history] == [True] * 3
    assert tree.equal(round_.coordinator.state.posterior, round_.assembly.prior)


# What is told of the noise.


def test_a_standing_knows_the_noise_of_sums_without_some_sites(round_: Round) -> None:
    spec, told = round_.assembly.spec, []

    def stand(family: Any, fold: Any, before: Any) -> Any:
        told.append(fold.noise)
        return spec.stand(family, fold, before)

    store = MemoryServerStore()
    noting = spec._replace(stand=stand)
    round_.coordinator = Coordinator(noting, store, clock=lambda: round_.now)
    workers = round_.all()
    # It answers the first round, and is gone in the second.
    workers["east"] = round_.worker("east", lambda link: Dying(link, "submit", heard=False, at=2))
    round_.go_on(workers)
    round_.finish(workers)
    assert [len(named) for named, _ in round_.read] == [7, 6, 6]
    layers = round_.assembly.gather.top_up
    # That of all seven is the unit.
    louder = float(6 * layers.variance(layers.kept(1)) / 7)
    assert told == [1.0, louder, louder]
    assert round_.coordinator.state.standing.noise == louder > 1.0


@pytest.mark.parametrize("noise", [0.9, 20.0, 1000.0])
def test_layers_are_in_proportion_to_the_noise_of_each_site(noise: float) -> None:
    given = raw(names=NAMES, least=LEAST)
    given["solver"] = {**given["solver"], "noise_multiplier": noise}
    given["privacy"]["epsilon"] = 100.0
    made = build.assemble(parse_study(given))
    steps = noise * 2.0 / made.gather.step  # clip_norm is 2
    draws = [c for layer in made.gather.top_up.layers for c in layer.divisors]
    layers = sum((made.gather.top_up.stride * 4096 / c) ** 2 for c in draws)
    # Of six honest sites four are left.
    assert 4 * (steps**2 + layers) == pytest.approx(6 * steps**2, rel=0.16)
    assert 4 * (steps**2 + layers) >= 6 * steps**2 * (1 - 1e-12)


def test_draws_of_layers_are_in_the_distance_of_the_tables() -> None:
    some, all_ = (build.assemble(parse_study(raw(names=NAMES, least=n))) for n in (LEAST, 7))
    draws = some.gather.top_up.draws
    assert draws > 0
    assert all_.gather.top_up.draws == 0
    # Without layers a number takes two draws at most.
    assert some.table_distance >= all_.table_distance * (2 + draws) / 2


# What a study may not say.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"least": 4},
            "privacy.least_reporting is 4 beside aggregation.secure = true, expected at least 5",
        ),
        ({"least": 6, "privacy": {"colluding": 4}}, "expected at least 6"),
        ({"least": 6, "privacy": {"colluding": 5}}, "expected at least 7"),
    ],
)
def test_a_study_of_which_two_sums_could_be_opened_is_refused(given: Any, said: str) -> None:
    if said.endswith("6"):
        parse_study(raw(names=NAMES, **given))
        return
    with pytest.raises(errors.ConfigError, match=said):
        parse_study(raw(names=NAMES, **given))


def test_a_study_whose_sites_would_be_asked_otherwise_is_refused() -> None:
    given = raw("virtual_clients", names=NAMES, least=LEAST)
    with pytest.raises(errors.ConfigError, match="would be asked otherwise than others"):
        build.assemble(parse_study(given))


def test_rounds_that_are_opened_do_not_travel_by_hand(round_: Round, tmp_path: Path) -> None:
    exchange = Hand(round_.assembly.spec, round_.coordinator)
    with pytest.raises(errors.ConfigError, match="which do not travel by hand"):
        exchange.export("north", tmp_path, tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_script_whose_stages_may_be_of_some_sites_is_refused() -> None:
    given = raw(names=NAMES, least=LEAST)
    stages = [{"kind": "synchronous", "rounds": 2}]
    given["schedule"] = {"kind": "scripted", "stages": stages, "deadline_seconds": 10.0}
    with pytest.raises(errors.ConfigError, match="expected rounds that all clients are asked in"):
        build.assemble(parse_study(given))


@pytest.mark.parametrize("least", [LEAST, 7])
def test_signing_keys_are_made_where_sets_are_signed(least: int) -> None:
    consortium = Consortium(build.assemble(parse_study(raw(names=NAMES, least=least))))
    consortium.set_up()
    found = read(consortium.stores["north"].load_keys())
    assert found is not None
    assert (bool(found.signing), len(found.vouchers)) == ((True, 7) if least < 7 else (False, 0))
