"""Mishaps while sites join a study of masked sums: honest runs go on, and every sum is exact."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import Offer, Reply, Request
from fedvi.privacy import top_up
from fedvi.results import transcripts
from fedvi.server.core import key_board, protocol
from fedvi.server.store.transcript import Recorder
from fedvi.store.memory import MemoryServerStore
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import parse_study
from tests.masked import Lying, raw
from tests.unit.client.test_opening import NAMES, Dying, Killed, Round

ROUNDS = 6
LEAST = 5


@pytest.fixture(scope="module")
def assembly() -> Assembly:
    return build.assemble(parse_study(raw(names=NAMES, least=LEAST, rounds=ROUNDS)))


class Stormy(Round):
    """A consortium to which things happen, as a seed says."""

    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.workers: dict[str, Any] = {}
        self.sums: dict[int, list[tuple[str, ...]]] = {}

    @property
    def named(self) -> tuple[str, ...]:
        said = json.loads(self.coordinator.state.keys["set"])
        clients = tuple(said["clients"])
        self.sums.setdefault(said["visit"], []).append(clients)
        return clients

    def start(self, name: str, frail: bool) -> None:
        chance = self.chance
        if not frail or chance.random() < 0.8:
            self.workers[name] = self.worker(name)
            return
        step = chance.choice(["keys", "ask", "submit", "sign", "open"])
        heard, at = chance.random() < 0.5, chance.randint(1, 4)
        self.workers[name] = self.worker(name, lambda link: Dying(link, step, heard, at))

    def tick(self, name: str) -> None:
        try:
            if self.workers[name].tick() == "done":
                del self.workers[name]
        except Killed:
            del self.workers[name]

    def restart(self) -> None:
        store = MemoryServerStore()
        store.save(self.coordinator.state)
        self.coordinator = self.server(store)

    def happens(self) -> None:
        """One thing happens."""
        chance, name = self.chance, self.chance.choice(NAMES)
        what = chance.random()
        if what < 0.950:
            if name in self.workers:
                self.tick(name)
            elif chance.random() < 0.2:
                self.start(name, frail=True)
        elif what < 0.957:
            self.workers.pop(name, None)
        elif what < 0.965:
            self.restart()
        elif what < 0.978:
            with contextlib.suppress(errors.ConfigError, errors.RunFailed):
                self.coordinator.admit(name)
        elif what < 0.983:
            with contextlib.suppress(errors.ConfigError, errors.RunFailed):
                self.coordinator.remove(name)
        elif what < 0.986:
            self.workers.pop(name, None)
            self.coordinator.revoke([name])
        elif what < 0.990:
            with contextlib.suppress(errors.RunFailed):
                self.coordinator.control(chance.choice(["pause", "resume"]))
        else:
            self.now += chance.choice([1.0, 6.0, 11.0])
            self.coordinator.tick()

    def calm(self) -> None:
        """Nothing happens any more but that all come back, who are all admitted."""
        for _ in range(400):
            state = self.coordinator.state
            if state.status in ("paused", "failed"):
                self.coordinator.control("resume")
            elif state.status != "running":
                return
            for name in NAMES:
                if protocol.is_removed(state, name):
                    with contextlib.suppress(errors.RunFailed):
                        self.coordinator.admit(name)
                if name not in self.workers:
                    self.start(name, frail=False)
                self.tick(name)
            self.now += 1.0
            self.coordinator.tick()
        raise AssertionError("it never ends")

    def check_all(self) -> None:
        layers = self.assembly.spec.gathering.top_up
        assert all(len(found) == 1 for found in self.sums.values())
        assert len(set(self.secrets.values())) == len(self.secrets)
        named = [(visit, clients) for visit, (clients,) in self.sums.items()]
        assert len(named) == len(self.read)
        for (visit, clients), (_, found) in zip(named, self.read, strict=True):
            assert len(clients) >= LEAST
            stays = range(layers.kept(len(NAMES) - len(clients)))
            expected = sum(
                self.plain[f"{name}/{visit}"]
                + layers.total(
                    top_up.layer_keys(self.secrets[f"{name}/{visit}"], stays), len(found)
                )
                for name in clients
            )
            assert np.array_equal(found, expected)


# In the last of these a site joins, and is removed before it sends keys: then means go on as they were.
SEEDS = (*range(8), 55)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_run_goes_on(
    assembly: Assembly, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    storm = Stormy(assembly, monkeypatch, record=Recorder(tmp_path / "all", assembly.spec, None))
    storm.begin(seed)
    for name in storm.chance.sample(NAMES, storm.chance.randint(0, 2)):
        storm.coordinator.remove(name)
    for _ in range(400):
        storm.happens()
    storm.calm()
    state = storm.coordinator.state
    assert state.status == "completed"
    storm.check_all()
    monkeypatch.undo()
    replayed = transcripts.replay(assembly.spec, tmp_path / "all")
    found = protocol.reported(assembly.spec, state)
    for one, other in zip(tree.leaves(replayed.posterior), tree.leaves(found), strict=True):
        assert np.allclose(one, other, rtol=1e-9)


def ready(round_: Round, *absent: str, version: int = 1) -> dict[str, Any]:
    """Sites that have folded some sums, without those that are absent."""
    for name in absent:
        round_.coordinator.remove(name)
    workers = {name: round_.worker(name) for name in NAMES if name not in absent}
    round_.go_on(workers, lambda: round_.coordinator.state.version == version)
    return workers


def sizes(round_: Round) -> list[int]:
    return [len(update.clients) for update in round_.history if update.clients]


@pytest.fixture
def round_(assembly: Assembly, monkeypatch: pytest.MonkeyPatch) -> Round:
    return Round(assembly, monkeypatch)


def test_a_site_without_budget_holds_nobody_up(round_: Round) -> None:
    """It gets no reply but that its budget is spent, so that it can send no keys."""
    workers = ready(round_, "south")
    del workers["far"]
    round_.coordinator.apply(
        lambda spec, state, now: state._replace(away={**state.away, "far": protocol.EXHAUSTED})
    )
    round_.coordinator.admit("south")
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)
    workers["south"] = round_.worker("south")
    assert round_.worker("far").tick() == "done"
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    assert sizes(round_)[-1] == 6
    assert [update.removed for update in round_.history if update.removed][-1] == ("far",)


def test_a_late_answer_of_a_site_that_was_removed_keeps_it_from_no_round(round_: Round) -> None:
    workers = ready(round_, "south")
    workers["home"] = round_.worker("home", lambda link: Dying(link, "submit", heard=False))
    round_.go_on(workers)
    round_.coordinator.admit("south")
    round_.wait()
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)
    round_.coordinator.remove("home")
    # Its answer is taken, and it is sent away; then it is admitted, with the store that it has.
    gone = round_.worker("home")
    assert [gone.tick() for _ in range(2)][-1] == "done"
    round_.coordinator.admit("home")
    workers |= {name: round_.worker(name) for name in ("south", "home")}
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    assert sizes(round_)[-1] == 7


def test_after_the_last_round_nobody_joins(round_: Round) -> None:
    workers = ready(round_, "south", version=ROUNDS - 1)
    round_.go_on(workers, lambda: bool(round_.coordinator.state.tasks))
    round_.coordinator.admit("south")
    round_.go_on(workers)
    state = round_.coordinator.state
    assert (state.status, key_board.epoch(state)) == ("completed", 0)
    assert not any(update.added for update in state.history)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_site_that_joins_and_goes_away_can_be_removed_again(round_: Round, stage: int) -> None:
    workers = ready(round_, "south")
    round_.coordinator.admit("south")
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)
    if stage:
        # It sends keys of either epoch, and is killed before it sends its offers.
        dying = round_.worker("south", lambda link: Dying(link, "keys", heard=False, at=3))
        assert round_.go_on({**workers, "south": dying}) == ["south"]
    round_.go_on(workers)
    assert key_board.stage(round_.coordinator.state) == stage
    # Without its keys, or its offers, nobody gets a task, and no time of a round passes.
    version = round_.coordinator.state.version
    round_.wait()
    assert round_.coordinator.state.version == version
    round_.coordinator.remove("south")
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    assert key_board.epoch(round_.coordinator.state) == 1 + stage
    assert sizes(round_) == [6] * ROUNDS


def test_a_revoked_site_without_which_too_few_are_left_comes_back(round_: Round) -> None:
    workers = ready(round_, "south", "north")
    round_.coordinator.admit("south")
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)
    for name in NAMES[1:]:
        if name in workers:
            workers[name].tick()
            workers[name].tick()
    # Five are left without the two; with `far` gone too, four.
    round_.coordinator.revoke(["far"])
    far = workers.pop("far")
    round_.coordinator.remove("south")
    round_.go_on(workers)
    assert key_board.stage(round_.coordinator.state) == 0
    # The same process calls again: it has sent its keys.
    workers["far"] = far
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    assert sizes(round_) == [5] * ROUNDS


def test_a_site_that_is_enrolled_with_another_key_is_left_out(round_: Round) -> None:
    """It went on with the keys that it had signed before; the next that it signs, others refuse."""
    workers = ready(round_, "south")
    for name in NAMES:
        signer = round_.signers[name]
        known = signer.signer_of

        def other(who: str, content: bytes, signature: bytes, known: Any = known) -> str:
            found: str = known(who, content, signature)
            return "ab" * 32 if who == "far" and b"epoch" in content else found

        signer.signer_of = other  # type: ignore[method-assign]
    round_.coordinator.admit("south")
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)
    workers["south"] = round_.worker("south")
    with pytest.raises(errors.IdentityError, match="'far' are signed with another key"):
        round_.finish(workers)
    round_.coordinator.remove("far")
    workers = {name: round_.worker(name) for name in NAMES if name != "far"}
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    assert sizes(round_)[-1] == 6


# What a server that lies may try.


def test_no_visit_is_answered_in_two_epochs(round_: Round) -> None:
    """The server asks in the new epoch for the round before: for another sum of other sites."""
    workers = ready(round_, "south")
    round_.coordinator.admit("south")
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)

    def reply(request: Request, honest: Reply) -> Reply:
        if not isinstance(honest, Offer):
            return honest
        visit = honest.task.visit - 1
        return Offer(honest.task._replace(visit=visit, task_id=f"north/{visit}"))

    workers["south"] = round_.worker("south")
    workers["north"] = round_.worker("north", lambda link: Lying(link, reply))
    with pytest.raises(errors.ProtocolError, match="a mask serves one answer"):
        round_.go_on(workers)
