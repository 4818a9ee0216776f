"""A study of masked sums that begins without a site which never came."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from fedvi import errors
from fedvi.federation.messages import NextTask, Reply, Request, Wait
from fedvi.privacy import agreement, certificates
from fedvi.privacy.agreement import Terms, Turn
from fedvi.privacy.certificates import Certificate
from fedvi.server.core import key_board, protocol
from fedvi.server.core.run_events import between
from fedvi.study import build
from fedvi.study.build import Assembly
from fedvi.study.config import parse_study
from fedvi.transport.memory import Link
from tests.masked import Consortium, Lying, raw

NAMES = ("north", "east", "south", "west", "home")


@pytest.fixture(scope="module")
def assembly() -> Assembly:
    return build.assemble(parse_study(raw(names=NAMES, least=4, rounds=3)))


def play(consortium: Consortium, workers: dict[str, Any], turns: int = 60) -> None:
    for _ in range(turns):
        for worker in workers.values():
            worker.tick()
        consortium.now += 3.0
        consortium.coordinator.tick()


def revoke(consortium: Consortium, name: str) -> None:
    consortium.coordinator.revoke([name])


def remove(consortium: Consortium, name: str) -> None:
    consortium.coordinator.remove(name)


@pytest.mark.parametrize("leave", [remove, revoke])
@pytest.mark.parametrize("absent", ["north", "south", "home"])
@pytest.mark.parametrize("posted", [False, True], ids=["never came", "posted keys"])
def test_a_study_begins_without_a_site_that_is_removed_or_revoked(
    assembly: Assembly, leave: Callable[[Consortium, str], None], absent: str, posted: bool
) -> None:
    consortium = Consortium(assembly)
    there = [name for name in NAMES if name != absent]
    workers = {name: consortium.worker(name) for name in there}
    if posted:
        consortium.worker(absent).tick()
    workers[there[0]].tick()
    leave(consortium, absent)
    if leave is remove:
        # A late one is told.
        assert consortium.worker(absent).tick() == "done"
    play(consortium, workers)
    state = consortium.coordinator.state
    assert state.status == "completed"
    assert protocol.is_removed(state, absent)
    assert consortium.absent == {absent}
    assert [update.removed for update in state.history if update.removed] == [(absent,)]
    folds = [sorted(update.clients) for update in state.history if update.clients]
    assert folds == [sorted(there)] * 3
    assert not any(update.given_up or update.missing for update in state.history)


def test_a_site_may_be_missing_beside_one_that_the_study_began_without() -> None:
    names = (*NAMES, "away", "near")
    assembly = build.assemble(parse_study(raw(names=names, least=5, rounds=3)))
    consortium = Consortium(assembly)
    workers = {name: consortium.worker(name) for name in names if name != "south"}
    consortium.coordinator.remove("south")
    while consortium.coordinator.state.version < 1:
        play(consortium, workers, 1)
    del workers["home"]
    play(consortium, workers)
    state = consortium.coordinator.state
    assert state.status == "completed"
    assert [len(update.clients) for update in state.history if update.clients] == [6, 5, 5]
    assert not any(update.given_up for update in state.history)


@pytest.mark.parametrize("leave", [remove, revoke])
def test_the_log_says_so(assembly: Assembly, leave: Callable[[Consortium, str], None]) -> None:
    consortium = Consortium(assembly)
    workers = {name: consortium.worker(name) for name in NAMES[1:]}
    for worker in workers.values():
        worker.tick()
    before = consortium.coordinator.state
    leave(consortium, "north")
    told = between(assembly.spec, before, consortium.coordinator.state, None)
    assert "north was removed: the study begins without it" in [event.text for event in told]


def test_it_waits_for_enough_and_needs_each_once_keys_are_there(assembly: Assembly) -> None:
    consortium = Consortium(assembly)
    consortium.coordinator.remove("west")
    with pytest.raises(
        errors.ConfigError, match="without client 'home' 3 are left, expected at least 4"
    ):
        consortium.coordinator.remove("home")
    revoke(consortium, "home")
    workers = {name: consortium.worker(name) for name in NAMES[:3]}
    play(consortium, workers, 4)
    # Three are too few for sums of four: nobody was shown any keys.
    assert key_board.stage(consortium.coordinator.state) == 0
    workers["home"] = consortium.worker("home")
    play(consortium, workers)
    assert consortium.coordinator.state.status == "completed"

    begun = Consortium(assembly)
    begun.set_up()
    with pytest.raises(errors.ConfigError, match="cannot be divided out") as refused:
        begun.coordinator.remove("west")
    assert "`fedvi ca revoke` lets later rounds go on without it" in str(refused.value.hint)


@pytest.mark.parametrize("leave", [remove, revoke])
@pytest.mark.parametrize("posted", [False, True], ids=["owes its offers", "sent its offers"])
def test_a_site_that_leaves_between_the_stages_makes_the_others_agree_anew(
    assembly: Assembly, leave: Callable[[Consortium, str], None], posted: bool
) -> None:
    consortium = Consortium(assembly)
    workers = {name: consortium.worker(name) for name in NAMES}
    for worker in workers.values():
        worker.tick()
    gone = workers.pop("east")
    if posted:
        gone.tick()
    # All have seen its keys.
    leave(consortium, "east")
    assert key_board.standing(consortium.coordinator.state) == (1, 0, 0)
    play(consortium, workers)
    state = consortium.coordinator.state
    assert state.status == "completed"
    folds = [sorted(update.clients) for update in state.history if update.clients]
    assert folds == [sorted(workers)] * 3
    assert [update.removed for update in state.history if update.removed] == [("east",)]


def test_where_all_must_answer_nobody_is_left_out() -> None:
    consortium = Consortium(build.assemble(parse_study(raw())))
    with pytest.raises(errors.ConfigError, match="cannot be divided out") as refused:
        consortium.coordinator.remove("east")
    assert "agreed on keys, for which it is needed" in str(refused.value.hint)
    revoke(consortium, "east")
    assert not protocol.is_removed(consortium.coordinator.state, "east")


TERMS = Terms("ab", "cd", NAMES, 1, 4, ("home",))


def test_a_set_with_a_site_that_the_study_began_without_is_not_signed() -> None:
    turn = Turn(0, "ef")
    for inside in (NAMES, (*NAMES[:3], "home")):
        text = agreement.Named(0, inside, tuple("x" for _ in inside)).text
        with pytest.raises(errors.ProtocolError, match="names 'home', which this study began"):
            agreement.may_sign(TERMS, "north", turn, "x", text)
        with pytest.raises(errors.ProtocolError, match="names 'home', which this study began"):
            agreement.may_open(TERMS, "north", turn, "x", text, inside)
    text = agreement.Named(0, NAMES[:4], ("x",) * 4).text
    assert agreement.may_sign(TERMS, "north", turn, "x", text).signed == text


def test_a_set_with_such_a_site_is_not_opened_either(assembly: Assembly) -> None:
    """The server leaves out the signing, and asks at once for the opening."""

    def reply(request: Request, honest: Reply) -> Reply:
        if not (isinstance(honest, Wait) and len(honest.parts) > 2 and b"visit" in honest.parts[0]):
            return honest
        text, *parts = honest.parts
        told = json.loads(text)
        names, digests = ("north", *told["clients"]), ("x", *told["digests"])
        whole = agreement.Named(told["visit"], names, digests).text.encode()
        count = len(told["clients"])
        return Wait((whole, b"", *parts[:count], b"", *parts[count:]))

    consortium = Consortium(assembly)
    workers = {name: consortium.worker(name) for name in NAMES[2:]}
    workers["east"] = consortium.worker("east", lambda link: Lying(link, reply))
    consortium.coordinator.remove("north")
    with pytest.raises(errors.ProtocolError, match="names 'north', which this study began without"):
        play(consortium, workers, 12)


def lied_to(
    consortium: Consortium, name: str, lie: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
) -> Any:
    """A worker that is shown other parts of stage 1."""

    def reply(request: Request, honest: Reply) -> Reply:
        stage = request.part.stage if isinstance(request, NextTask) and request.part else 0
        if stage == 1 and isinstance(honest, Wait) and honest.parts:
            return Wait(lie(honest.parts))
        return honest

    def way(link: Link) -> Link:
        return Lying(link, reply=reply)

    return consortium.worker(name, way)


def test_a_server_that_shows_too_few_sites_is_refused(assembly: Assembly) -> None:
    consortium = Consortium(assembly)
    liar = lied_to(consortium, "north", lambda parts: (*parts[:3], b"", b""))
    workers = {name: consortium.worker(name) for name in NAMES[1:]}
    liar.tick()
    for worker in workers.values():
        worker.tick()
    with pytest.raises(errors.ProtocolError, match="keys of 3 of 5 sites, expected 4 or more"):
        liar.tick()


def test_a_server_that_leaves_out_a_site_that_is_there_is_refused(assembly: Assembly) -> None:
    # By the site itself, and by who was shown it: two sites that saw different sites agree on no key.
    for name, match in (("home", "other keys of this site"), ("north", "to agree on a key")):
        consortium = Consortium(assembly)
        workers = {other: consortium.worker(other) for other in NAMES}
        workers[name] = lied_to(consortium, name, lambda parts: (*parts[:4], b""))
        found: list[errors.FedviError] = []
        for _ in range(4):
            for worker in workers.values():
                try:
                    worker.tick()
                except (errors.ProtocolError, errors.PrivacyError) as error:
                    found.append(error)
        assert any(match in error.message for error in found)
        # Of masks that nobody else makes nothing cancels.
        assert consortium.coordinator.state.version == 0


def test_certificates_of_such_a_study_are_read_again() -> None:
    held = Certificate(TERMS, 0, "ef", "text", {}, {})
    assert certificates.read(held.written()).terms == TERMS
    # Those of an earlier version name no absent sites.
    content = json.loads(held.written())
    del content["terms"]["absent"]
    assert certificates.read(json.dumps(content).encode()).terms.absent == ()
