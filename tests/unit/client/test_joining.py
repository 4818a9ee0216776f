"""A site joins a study of masked sums that began without it: all sites agree on keys anew."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from fedvi import errors
from fedvi.client import held_keys
from fedvi.federation.messages import KeyPart, NextTask, Reply, Request, Wait
from fedvi.privacy import ledger as ledgers
from fedvi.server.core import key_board, protocol
from fedvi.server.core.membership import let_go
from fedvi.server.core.run_events import between
from fedvi.store.memory import MemoryServerStore
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import parse_study
from fedvi.transport.memory import Link
from fedvi.transport.signers import within_one_process
from tests.masked import Consortium, Lying, raw, step_of
from tests.unit.client.test_begun_without import NAMES, play
from tests.unit.client.test_opening import NAMES as SEVEN
from tests.unit.client.test_opening import Dying, Round

ROUNDS = 5


def study(*names: str, least: int, solver: str = "site_release") -> Assembly:
    return build.assemble(parse_study(raw(solver, names=names, least=least, rounds=ROUNDS)))


@pytest.fixture(scope="module")
def assembly() -> Assembly:
    return study(*NAMES, least=4)


@pytest.fixture(scope="module")
def seven() -> Assembly:
    return study(*NAMES, "away", "near", least=5)


def begun_without(assembly: Assembly, *absent: str) -> tuple[Consortium, dict[str, Any]]:
    consortium = Consortium(assembly)
    for name in absent:
        consortium.coordinator.remove(name)
    there = [name for name in assembly.clients if name not in absent]
    return consortium, {name: consortium.worker(name) for name in there}


def until_version(consortium: Consortium, workers: dict[str, Any], version: int) -> None:
    for _ in range(40):
        if consortium.coordinator.state.version >= version:
            return
        play(consortium, workers, 1)
    raise AssertionError(f"version {version} is not reached")


def admitted(consortium: Consortium, workers: dict[str, Any], name: str) -> int:
    """Admits a site; returns the version at which it joined, once the round is over."""
    consortium.coordinator.admit(name)
    for _ in range(40):
        for update in consortium.coordinator.state.history:
            if name in update.added:
                workers[name] = consortium.worker(name)
                return update.version
        play(consortium, workers, 1)
    raise AssertionError(f"{name} does not join")


def folds(consortium: Consortium) -> list[list[str]]:
    history = consortium.coordinator.state.history
    return [sorted(update.clients) for update in history if update.clients]


@pytest.mark.parametrize("late", ["north", "south", "home"])
@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_site_joins_and_later_sums_are_with_it(
    assembly: Assembly, late: str, version: int
) -> None:
    consortium, workers = begun_without(assembly, late)
    until_version(consortium, workers, version)
    joined = admitted(consortium, workers, late)
    assert joined in (version, version + 1)
    play(consortium, workers)
    state = consortium.coordinator.state
    assert state.status == "completed"
    assert not protocol.is_removed(state, late)
    there = sorted(set(NAMES) - {late})
    assert folds(consortium) == [there] * joined + [sorted(NAMES)] * (ROUNDS - joined)
    assert [u.added for u in state.history if u.added] == [(late,)]
    assert not any(update.given_up or update.dropped for update in state.history)
    # It has the turns that are left, and pays for no other.
    assert ledgers.reservations(state.ledgers[late]) == ROUNDS - joined
    assert set(consortium.told) == {*NAMES}
    assert len(set(consortium.told.values())) == 1


def test_it_joins_when_the_round_is_over(assembly: Assembly) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    while not consortium.coordinator.state.tasks:
        workers["north"].tick()
    before = consortium.coordinator.state
    consortium.coordinator.admit("south")
    state = consortium.coordinator.state
    assert key_board.joining(state) == ("south",)
    assert protocol.is_removed(state, "south")
    # Asked again, nothing changes; removed again, it does not join.
    consortium.coordinator.admit("south")
    assert consortium.coordinator.state.keys == state.keys
    consortium.coordinator.remove("south")
    assert key_board.joining(consortium.coordinator.state) == ()
    consortium.coordinator.admit("south")
    assert consortium.worker("south").tick() == "done"  # not yet
    assert admitted(consortium, workers, "south") == before.version + 1
    play(consortium, workers)
    state = consortium.coordinator.state
    assert state.status == "completed"
    assert [*map(len, folds(consortium))] == [4] * (before.version + 1) + [5] * (4 - before.version)
    told = [event.text for event in between(assembly.spec, before, state, None)]
    assert "south joins: first all sites agree on keys anew" in told


def test_two_join_at_once_and_one_after_the_other(seven: Assembly) -> None:
    consortium, workers = begun_without(seven, "north", "away")
    consortium.coordinator.admit("north")
    consortium.coordinator.admit("away")
    workers |= {name: consortium.worker(name) for name in ("north", "away")}
    play(consortium, workers)
    assert [len(clients) for clients in folds(consortium)] == [7] * ROUNDS

    consortium, workers = begun_without(seven, "north", "away")
    first = admitted(consortium, workers, "away")
    second = admitted(consortium, workers, "north")
    until_version(consortium, workers, ROUNDS)
    sizes = [5] * first + [6] * (second - first) + [7] * (ROUNDS - second)
    assert [len(clients) for clients in folds(consortium)] == sizes
    assert consortium.coordinator.state.status == "completed"
    assert key_board.epoch(consortium.coordinator.state) == 2


@pytest.mark.parametrize("step", ["submit", "sign", "open", "never"])
def test_sums_are_exact_in_each_epoch(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Every sum that the server reads is that of its sites' answers, whoever is missing beside."""
    round_ = Round(study(*SEVEN, least=5), monkeypatch)
    round_.coordinator.remove("south")
    workers = round_.all()
    del workers["south"]
    round_.go_on(workers, lambda: round_.coordinator.state.version == 2)
    round_.coordinator.admit("south")
    round_.go_on(workers, lambda: key_board.epoch(round_.coordinator.state) == 1)
    joined = round_.coordinator.state.version
    workers["south"] = round_.worker("south")
    # It agrees on keys, and is killed in its first round or in none.
    workers["home"] = round_.worker("home", lambda link: Dying(link, step, heard=False))
    round_.finish(workers)
    assert round_.coordinator.state.status == "completed"
    round_.check(rounds=ROUNDS)
    sizes = [len(named) for named, _ in round_.read]
    assert sizes[:joined] == [6] * joined
    assert sizes[joined:] == [6 + (step != "submit"), *[6 + (step == "never")] * (4 - joined)]


def test_means_begin_anew(assembly: Assembly) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 3)
    assert consortium.coordinator.state.standing.folds > 1
    joined = admitted(consortium, workers, "south")
    state = consortium.coordinator.state
    assert state.standing.folds == joined
    assert (state.history[-1].added, state.history[-1].rounds) == (("south",), joined)
    until_version(consortium, workers, joined + 1)
    assert consortium.coordinator.state.standing.folds == 1


def test_a_site_that_is_away_then_is_awaited_or_removed(seven: Assembly) -> None:
    consortium, workers = begun_without(seven, "south")
    until_version(consortium, workers, 1)
    gone = workers.pop("home")
    joined = admitted(consortium, workers, "south")
    play(consortium, workers, 20)
    state = consortium.coordinator.state
    assert (state.version, key_board.stage(state)) == (joined, 0)
    assert key_board.owing(seven.spec, state) == ("home",)
    assert let_go(seven.spec, state, tls=True) == "remove_for_now"
    consortium.coordinator.remove("home")
    until_version(consortium, workers, joined + 1)
    assert let_go(seven.spec, consortium.coordinator.state, tls=True) == "revoke"
    assert "done" in [gone.tick() for _ in range(4)]
    told = between(seven.spec, state, consortium.coordinator.state, None)
    assert "home was removed: the study goes on without it" in [event.text for event in told]
    # It is admitted again, with the store that it has.
    again = admitted(consortium, workers, "home")
    play(consortium, workers)
    sizes = [len(clients) for clients in folds(consortium)]
    assert sizes[joined:] == [6] * (again - joined) + [7] * (ROUNDS - again)
    assert again < ROUNDS
    assert consortium.coordinator.state.status == "completed"


class Gone(Exception):
    pass


def dying(consortium: Consortium, name: str, step: str, count: int, late: bool) -> Any:
    """A worker that is killed at its request of a kind, before it is heard or after it is answered."""
    left = [count]

    def at(request: Request) -> None:
        if step_of(request) == step:
            left[0] -= 1
            if not left[0]:
                raise Gone

    def reply(request: Request, honest: Reply) -> Reply:
        if late:
            at(request)
        return honest

    def request(asked: Request) -> Request:
        if not late:
            at(asked)
        return asked

    return consortium.worker(name, lambda link: Lying(link, reply, request))


@pytest.mark.parametrize("late", [False, True], ids=["unheard", "heard"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("step", ["keys", "ask", "sign", "open", "submit"])
@pytest.mark.parametrize("name", ["north", "south"])
def test_a_site_killed_at_any_step_goes_on(
    assembly: Assembly, name: str, step: str, count: int, late: bool
) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    joined = admitted(consortium, workers, "south")
    workers[name] = dying(consortium, name, step, count, late)
    killed = False
    for _ in range(70):
        for who, worker in list(workers.items()):
            try:
                worker.tick()
            except Gone:
                killed, workers[who] = True, consortium.worker(who)
        consortium.now += 1.0
        consortium.coordinator.tick()
    assert killed
    assert consortium.coordinator.state.status == "completed"
    sizes = [len(clients) for clients in folds(consortium)]
    assert sizes == [4] * joined + [5] * (ROUNDS - joined)


@pytest.mark.parametrize("ticks", range(0, 16, 2))
def test_a_server_killed_in_the_middle_of_it_goes_on(assembly: Assembly, ticks: int) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    joined = admitted(consortium, workers, "south")
    for name in [*workers, *workers, *workers, *workers][:ticks]:
        workers[name].tick()
    store = MemoryServerStore()
    store.save(consortium.coordinator.state)
    consortium.coordinator = consortium.server(store)
    play(consortium, workers)
    sizes = [len(clients) for clients in folds(consortium)]
    assert sizes == [4] * joined + [5] * (ROUNDS - joined)


def test_who_may_be_admitted(assembly: Assembly) -> None:
    consortium, workers = begun_without(assembly, "south")
    with pytest.raises(errors.ConfigError, match="'sout' is not in the study"):
        consortium.coordinator.admit("sout")
    state = consortium.coordinator.state
    consortium.coordinator.admit("north")  # it is there
    assert consortium.coordinator.state.keys == state.keys
    play(consortium, workers)
    with pytest.raises(errors.RunFailed, match="the run is completed: no client can be admitted"):
        consortium.coordinator.admit("south")
    for other in (raw(), raw(least=3, names=NAMES, secure=False)):
        consortium = Consortium(build.assemble(parse_study(other)))
        with pytest.raises(errors.ConfigError, match="only a study of masked sums that clients"):
            consortium.coordinator.admit("east")


# What a server that lies may try.


def epochs(consortium: Consortium, name: str) -> int:
    held = held_keys.read(consortium.stores[name].load_keys())
    assert held is not None
    return held.epoch


def told_of(epoch: int, when: Callable[[Request, Reply], bool]) -> Callable[[Link], Link]:
    """A way on which a server tells a site of an epoch."""

    def reply(request: Request, honest: Reply) -> Reply:
        return Wait((), epoch) if when(request, honest) else honest

    return lambda link: Lying(link, reply)


def test_keys_of_epochs_before_are_erased_and_none_comes_back(assembly: Assembly) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    old = held_keys.read(consortium.stores["north"].load_keys())
    assert old is not None
    until_version(consortium, workers, admitted(consortium, workers, "south") + 1)
    new = held_keys.read(consortium.stores["north"].load_keys())
    assert new is not None
    assert (old.epoch, new.epoch) == (0, 1)
    assert not set(old.secrets.values()) & set(new.secrets.values())
    assert old.vouchers["east"] != new.vouchers["east"]
    assert old.set_up != new.set_up
    liar = consortium.worker("north", told_of(1, lambda request, honest: isinstance(honest, Wait)))
    with pytest.raises(
        errors.ProtocolError, match="asks for keys of epoch 1, and this site has those"
    ):
        liar.tick()


def test_a_site_whose_answer_is_not_opened_opens_it_no_more(assembly: Assembly) -> None:
    """Told of an epoch in the middle of a round, it neither signs nor opens what it answered before."""
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    lied: list[Request] = []

    def when(request: Request, honest: Reply) -> bool:
        asked = isinstance(honest, Wait) and bool(honest.parts) and b"visit" in honest.parts[0]
        if asked and not lied:
            lied.append(request)
            return True
        return False

    workers["north"] = consortium.worker("north", told_of(1, when))
    with pytest.raises(errors.ProtocolError, match="agreed on keys of epoch 1, and this server is"):
        play(consortium, workers, 6)
    held = held_keys.read(consortium.stores["north"].load_keys())
    assert held is not None
    assert (held.epoch, held.turn, held.seed, held.secrets) == (1, None, b"", {})


def test_where_all_must_answer_no_epoch_begins() -> None:
    consortium = Consortium(build.assemble(parse_study(raw())))
    liar = consortium.worker("north", told_of(1, lambda request, honest: isinstance(honest, Wait)))
    with pytest.raises(
        errors.ProtocolError, match="all sites answer in every round: none can join"
    ):
        liar.tick()


def test_another_key_under_a_known_name_is_refused(assembly: Assembly) -> None:
    """The authority works with the server, and gives it a certificate in the name of `east`."""
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    admitted(consortium, workers, "south")
    # All sites of a process sign with keys of one authority, which vouches for these too.
    forged = within_one_process(assembly.clients)["east"]
    consortium.signers["east"] = forged
    for name in NAMES:
        signer = consortium.signers[name]
        if name != "east":
            known = signer.signer_of

            def vouched(who: str, content: bytes, signature: bytes, known: Any = known) -> str:
                if who == "east" and json.loads(content).get("epoch"):
                    return forged.signer_of(who, content, signature)
                return known(who, content, signature)

            signer.signer_of = vouched  # type: ignore[method-assign]
    workers["east"] = consortium.worker("east")
    with pytest.raises(errors.IdentityError, match="'east' are signed with another key than those"):
        play(consortium, workers, 8)


def test_a_disk_set_back_to_the_keys_before_a_site_joined_is_refused(assembly: Assembly) -> None:
    """Nothing was charged since, so that ledgers agree; what others masked with is gone."""
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    admitted(consortium, workers, "south")
    backup = copy.deepcopy(consortium.stores["north"])
    for _ in range(8):
        if key_board.is_ready(consortium.assembly.spec, consortium.coordinator.state):
            break
        for worker in workers.values():
            worker.tick()
    assert consortium.stores["north"].ledger == backup.ledger
    consortium.stores["north"] = backup
    north = {"north": consortium.worker("north")}
    with pytest.raises(errors.ProtocolError, match="'north' sent other keys than before") as caught:
        play(consortium, north, 3)
    assert "where sites may be missing, the others go on without it" in caught.value.hint
    # They do.
    del workers["north"]
    play(consortium, workers)
    assert consortium.coordinator.state.status == "completed"
    assert folds(consortium)[-1] == sorted(set(NAMES) - {"north"})


def test_keys_of_another_epoch_are_refused(assembly: Assembly) -> None:
    """The server shows in the new epoch what a site had signed for the one before."""
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    old = consortium.coordinator.state.keys["1/east"]

    def reply(request: Request, honest: Reply) -> Reply:
        stage = request.part.stage if isinstance(request, NextTask) and request.part else 0
        if stage == 1 and isinstance(honest, Wait) and honest.parts:
            return Wait((honest.parts[0], old, *honest.parts[2:]))
        return honest

    admitted(consortium, workers, "south")
    workers["north"] = consortium.worker("north", lambda link: Lying(link, reply))
    with pytest.raises(errors.ProtocolError, match="are not of the epoch 1"):
        play(consortium, workers, 8)


def test_a_roster_that_the_policy_names_has_to_be_named_anew(assembly: Assembly) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    consortium.rosters["north"] = consortium.told["north"]
    workers["north"] = consortium.worker("north")
    until_version(consortium, workers, 2)
    admitted(consortium, workers, "south")
    with pytest.raises(errors.PolicyRefused, match="the roster of this study has the digest"):
        play(consortium, workers, 8)
    others = {name: workers[name] for name in NAMES if name != "north"}
    play(consortium, others, 4)
    consortium.rosters["north"] = consortium.told["east"]
    others["north"] = consortium.worker("north")
    play(consortium, others)
    assert consortium.coordinator.state.status == "completed"
    assert folds(consortium)[-1] == sorted(NAMES)


def test_parts_of_another_epoch_are_not_taken(assembly: Assembly) -> None:
    consortium, workers = begun_without(assembly, "south")
    until_version(consortium, workers, 1)
    spec, state = assembly.spec, consortium.coordinator.state
    with pytest.raises(errors.ProtocolError, match="epoch 1, and this server is at 0"):
        key_board.post(spec, state, "north", KeyPart(1, b"x", 1))
    admitted(consortium, workers, "south")
    state = consortium.coordinator.state
    after, told = key_board.post(spec, state, "north", KeyPart(1, b"x", 0))
    assert (after, told) == (state, Wait((), 1))
