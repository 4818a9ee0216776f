"""Claims about a site that masks its answers: each lie of a server is refused with its own sentence."""

import base64
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedvi import errors
from fedvi.client import app
from fedvi.client.masking import task_digest
from fedvi.expfam import tree
from fedvi.federation.messages import (
    Done,
    Hello,
    KeyPart,
    NextTask,
    Offer,
    Payload,
    Reply,
    Request,
    Submit,
    Tensor,
    Wait,
    Welcome,
)
from fedvi.privacy import events, masks
from fedvi.privacy import ledger as ledgers
from fedvi.run import simulate
from fedvi.study import build
from fedvi.study.config import parse_study
from fedvi.transport import codec
from fedvi.transport.memory import Link
from fedvi.transport.signers import within_one_process
from fedvi.updates.base import Task
from fedvi.updates.coordinates import Coordinates
from tests.masked import NAMES, SOLVERS, Consortium, Lying, assembled, raw, records


@pytest.fixture(scope="module")
def assembly() -> build.Assembly:
    return assembled()


# Without a lie.


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(name, marks=[] if name == "site_release" else pytest.mark.nightly)
        for name in SOLVERS
    ],
)
def test_the_posterior_is_that_of_a_trusted_server_bit_for_bit(solver: str) -> None:
    masked, plain = (
        simulate.run(assembled(solver, secure=secure), records()) for secure in (True, False)
    )
    assert len(masked.history) == 2
    assert tree.equal(masked.posterior, plain.posterior)
    assert all(tree.equal(masked.factors[name], plain.factors[name]) for name in NAMES)


def test_what_leaves_and_what_the_ledger_seals_is_masked(assembly: build.Assembly) -> None:
    sent: list[Submit] = []

    def note(request: Request) -> Request:
        if isinstance(request, Submit):
            sent.append(request)
        return request

    consortium = Consortium(assembly)
    workers = {
        name: consortium.worker(name, lambda link: Lying(link, request=note)) for name in NAMES
    }
    consortium.run(workers)
    assert len(sent) == 6
    gather = assembly.gather
    for request in sent:
        (tensor,) = request.payload.tensors
        assert tensor.name == "masked"
        assert tensor.shape == (gather.size + masks.GUARD,)
        sealed = ledgers.digest(consortium.stores[request.client].ledger, f"{request.task_id}#0")
        assert sealed == request.payload.sha256
        # Zeros are behind the last words, and no trace of them is before the sum.
        assert np.all(codec.decode(request.payload)[0]["masked"][-masks.GUARD :] != 0)
    # The state of the server holds no more of them either, once the sum is folded.
    assert consortium.coordinator.state.answers == ()


def test_all_sites_pin_the_same_roster(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    consortium.run({name: consortium.worker(name) for name in NAMES})
    assert len(set(consortium.told.values())) == 1
    # Keys are gone once the run is over.
    assert [store.load_keys() for store in consortium.stores.values()] == [None] * 3


@pytest.fixture(scope="module")
def undisturbed(assembly: build.Assembly) -> Any:
    consortium = Consortium(assembly)
    consortium.run({name: consortium.worker(name) for name in NAMES})
    return consortium.coordinator.state.posterior


class Killed(BaseException):
    pass


@pytest.mark.parametrize("heard", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 11))
def test_a_site_that_is_killed_at_any_call_goes_on(
    assembly: build.Assembly, undisturbed: Any, at: int, heard: bool
) -> None:
    consortium, calls = Consortium(assembly), 0

    class Cut:
        def __init__(self, link: Link) -> None:
            self._link = link

        def handle(self, request: Request) -> Reply:
            nonlocal calls
            calls += 1
            if calls == at and not heard:
                raise Killed
            reply = self._link.handle(request)
            if calls == at:
                raise Killed
            return reply

    workers = {name: consortium.worker(name) for name in NAMES}
    workers["east"] = consortium.worker("east", Cut)
    for _ in range(2):
        try:
            consortium.run(workers)
        except Killed:
            workers = {name: consortium.worker(name) for name in NAMES}
    assert calls >= at
    state = consortium.coordinator.state
    assert state.status == "completed"
    assert tree.equal(state.posterior, undisturbed)
    # Each visit was answered once: nothing was masked twice.
    assert all(
        len([e for e in store.ledger.entries if e.kind == "sealed"]) == 2
        for store in consortium.stores.values()
    )


# A server that lies about keys.


def lies(reply: Callable[[tuple[bytes, ...]], tuple[bytes, ...]], stage: int = 1) -> Any:
    """A link that changes what is shown of a stage."""

    def change(request: Request, found: Reply) -> Reply:
        is_asked = isinstance(request, NextTask) and request.part and request.part.stage == stage
        if is_asked and isinstance(found, Wait) and found.parts:
            return Wait(reply(found.parts))
        return found

    return lambda link: Lying(link, reply=change)


def told(assembly: build.Assembly, wrap: Any, error: type[errors.FedviError], **given: Any) -> str:
    """What north is refused with, where the server lies to it alone; nothing of its records left."""
    consortium = Consortium(assembly, **given)
    workers = {name: consortium.worker(name) for name in NAMES} | {
        "north": consortium.worker("north", wrap)
    }
    with pytest.raises(error) as caught:
        consortium.run(workers)
    assert consortium.stores["north"].ledger.entries == ()
    return caught.value.message


def forged(part: bytes, **changed: str) -> bytes:
    said = json.loads(part)
    said["content"] = json.dumps({**json.loads(said["content"]), **changed})
    return json.dumps(said).encode()


def test_a_site_outside_the_study_is_refused(assembly: build.Assembly) -> None:
    said = told(assembly, lies(lambda parts: (*parts, parts[0])), errors.ProtocolError)
    assert said == "the server shows keys of 4 sites, expected those of the 3 of the study"


def test_a_site_that_is_left_out_is_refused(assembly: build.Assembly) -> None:
    said = told(assembly, lies(lambda parts: parts[:2]), errors.ProtocolError)
    assert said == "the server shows keys of 2 sites, expected those of the 3 of the study"


def test_a_swapped_key_is_refused(assembly: build.Assembly) -> None:
    own = base64.b64encode(bytes(range(32))).decode()
    said = told(
        assembly,
        lies(lambda parts: (parts[0], forged(parts[1], x25519=own), parts[2])),
        errors.IdentityError,
    )
    assert said == "the keys of 'east': the signature is not of them, or not of 'east'"


def test_keys_that_another_signed_are_refused(assembly: build.Assembly) -> None:
    stranger = within_one_process(["east"])["east"]

    def signed_by_a_stranger(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        said = json.loads(parts[1])
        signature = stranger.sign(said["content"].encode())
        said["signature"] = base64.b64encode(signature).decode()
        return (parts[0], json.dumps(said).encode(), parts[2])

    said = told(assembly, lies(signed_by_a_stranger), errors.IdentityError)
    assert said == "the keys of 'east': the signature is not of them, or not of 'east'"


def test_keys_in_the_place_of_another_site_are_refused(assembly: build.Assembly) -> None:
    said = told(assembly, lies(lambda parts: (parts[0], parts[2], parts[1])), errors.ProtocolError)
    assert said == "the keys shown as those of 'east' are not of the client 'east'"


def test_keys_of_another_study_are_refused(assembly: build.Assembly) -> None:
    said = told(
        assembly,
        lies(lambda parts: (parts[0], forged(parts[1], study="ab12"), parts[2])),
        errors.ProtocolError,
    )
    assert said.startswith("the keys shown as those of 'east' are not of the study ")


def test_keys_in_an_older_form_are_refused(assembly: build.Assembly) -> None:
    said = told(
        assembly,
        lies(lambda parts: (parts[0], forged(parts[1], form="fedvi keys 0"), parts[2])),
        errors.ProtocolError,
    )
    assert "are not written as 'fedvi keys 2'" in said


@pytest.mark.parametrize("part", [b"", b"{}", b"\xff", b'{"content": 3, "signature": ""}'])
def test_keys_that_cannot_be_read_are_refused(assembly: build.Assembly, part: bytes) -> None:
    said = told(assembly, lies(lambda parts: (parts[0], part, parts[2])), errors.ProtocolError)
    assert said == "the keys of 'east' cannot be read"


def test_a_server_that_shows_others_other_keys_of_this_site_is_refused(
    assembly: build.Assembly,
) -> None:
    said = told(assembly, lies(lambda parts: (forged(parts[0]), *parts[1:])), errors.ProtocolError)
    assert said == "the server shows other keys of this site than it made"


def test_two_sites_that_are_shown_two_sets_of_keys_find_out(assembly: build.Assembly) -> None:
    # South has two sets of keys, both signed: it works with the server.
    second = Consortium(assembly)
    first = Consortium(assembly, signers=second.signers)
    for consortium in (first, second):
        for name in NAMES:
            consortium.worker(name).tick()
    other = second.coordinator.state.keys["1/south"]
    workers = {
        "north": first.worker("north", lies(lambda parts: (*parts[:2], other))),
        "east": first.worker("east"),
        "south": first.worker("south"),
    }
    with pytest.raises(
        errors.PrivacyError, match="what 'north' sent to agree on a key is not of these"
    ):
        first.run(workers)


@pytest.mark.parametrize("changed", [lambda part: part[:-1], lambda part: bytes(len(part))])
def test_offers_that_were_changed_are_refused(assembly: build.Assembly, changed: Any) -> None:
    consortium = Consortium(assembly)
    workers = {name: consortium.worker(name) for name in NAMES}
    workers["south"] = consortium.worker(
        "south", lies(lambda parts: (parts[0], changed(parts[1]), parts[2]), stage=2)
    )
    with pytest.raises(errors.PrivacyError, match="what 'east' sent to agree on a key"):
        consortium.run(workers)
    assert consortium.stores["south"].ledger.entries == ()


def test_a_roster_that_the_policy_does_not_name_is_refused(assembly: build.Assembly) -> None:
    said = told(assembly, lambda link: link, errors.PolicyRefused, rosters={"north": "0" * 64})
    assert said.endswith(f"and the policy names {'0' * 64}")


def test_the_roster_that_the_policy_names_is_taken(assembly: build.Assembly) -> None:
    first = Consortium(assembly)
    first.set_up()
    roster = first.told["north"]
    second = Consortium(assembly, signers=first.signers, rosters=dict.fromkeys(NAMES, roster))
    second.run({name: second.worker(name) for name in NAMES})
    assert second.coordinator.state.status == "completed"


def test_a_roster_that_changed_since_it_was_pinned_is_refused(assembly: build.Assembly) -> None:
    consortium, other = Consortium(assembly), Consortium(assembly)
    for one in (consortium, other):
        one.set_up()
    # Another server, or this one, shows north another set of keys that is signed as it should be.
    consortium.signers = other.signers = {**other.signers, "north": consortium.signers["north"]}
    shown = other.coordinator.state.keys
    worker = consortium.worker(
        "north", lies(lambda parts: (parts[0], shown["1/east"], shown["1/south"]))
    )
    with pytest.raises(errors.ProtocolError, match="others than those that this site agreed with"):
        worker.tick()


# A server that lies about tasks.


def test_a_task_before_the_keys_is_refused(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    plain = dataclasses.replace(assembly, gather=assembly.gather._replace(bits=None))
    # The server runs the same study, and says nothing of masks: it offers its task at once.
    consortium.coordinator._spec = plain.spec

    def without_part(request: Request) -> Request:
        return request._replace(part=None) if isinstance(request, NextTask) else request

    worker = consortium.worker("north", lambda link: Lying(link, request=without_part))
    with pytest.raises(errors.ProtocolError) as caught:
        worker.tick()
    assert "answered with Offer before the sites agreed on keys" in caught.value.message
    assert consortium.stores["north"].ledger.entries == ()


def offered(consortium: Consortium, name: str) -> Task:
    reply = consortium.coordinator.handle(NextTask(name))
    assert isinstance(reply, Offer)
    return reply.task


def with_task(task: Task) -> Any:
    """A link that hands out this task, whatever the server says."""

    def change(request: Request, reply: Reply) -> Reply:
        is_asked = isinstance(request, NextTask) and request.part is None
        return Offer(task) if is_asked else reply

    return lambda link: Lying(link, reply=change)


@pytest.mark.parametrize(
    "change",
    [
        lambda task: task,
        lambda task: task._replace(posterior=tree.scale(task.posterior, 2.0)),
        lambda task: task._replace(version=7),
    ],
    ids=["the same", "another q", "another version"],
)
def test_a_second_task_of_a_visit_is_refused(assembly: build.Assembly, change: Any) -> None:
    consortium = Consortium(assembly)
    consortium.set_up()
    worker = consortium.worker("north")
    assert [worker.tick(), worker.tick()] == ["solved", "sent"]
    before = consortium.stores["north"].ledger
    task = Task(**{**last_task(consortium)._asdict()})
    worker = consortium.worker("north", with_task(change(task)))
    with pytest.raises(errors.ProtocolError) as caught:
        worker.tick()
    assert "asks for an answer of visit 0, and visit 0 was answered" in caught.value.message
    assert consortium.stores["north"].ledger == before


def last_task(consortium: Consortium) -> Task:
    """The task of north's first visit, as another site still holds it."""
    task = offered(consortium, "east")
    return task._replace(task_id="north/0", client="north")


def test_a_task_under_another_name_is_refused(assembly: build.Assembly) -> None:
    # By such a name the visit that its mask is of could be used again.
    consortium = Consortium(assembly)
    consortium.set_up()
    task = offered(consortium, "north")._replace(visit=5)
    worker = consortium.worker("north", with_task(task))
    with pytest.raises(errors.ProtocolError) as caught:
        worker.tick()
    assert caught.value.message == "the task of visit 5 is called 'north/0', expected 'north/5'"
    assert consortium.stores["north"].ledger.entries == ()
    # The server hears of it, and does not wait in vain.
    assert consortium.coordinator.state.away["north"] == "other"


def test_an_answer_is_masked_once_however_often_it_is_asked_for(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    consortium.set_up()
    sent: list[Submit] = []

    def lose(request: Request, reply: Reply) -> Reply:
        if isinstance(request, Submit):
            sent.append(request)
            raise errors.TransportError("lost")
        return reply

    for _ in range(3):
        worker = consortium.worker("north", lambda link: Lying(link, reply=lose))
        with pytest.raises(errors.TransportError):
            app.run(worker, pause=lambda seconds: None)
    assert len({request.payload for request in sent}) == 1


def test_another_q_for_one_site_shows_the_server_nothing(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    consortium.set_up()

    def other_q(request: Request, reply: Reply) -> Reply:
        if isinstance(reply, Offer):
            return Offer(reply.task._replace(posterior=tree.scale(reply.task.posterior, 2.0)))
        return reply

    workers = {name: consortium.worker(name) for name in NAMES}
    workers["north"] = consortium.worker("north", lambda link: Lying(link, reply=other_q))
    consortium.run(workers, until=lambda: bool(consortium.coordinator.state.history))
    (update,) = consortium.coordinator.state.history
    # The masks do not cancel: nothing is read of the round.
    assert update.given_up
    assert tree.equal(consortium.coordinator.state.posterior, assembly.prior)


# The site, and the name that holds it, differ between the sites of a round.
_OF_ALL = sorted({*Task._fields} - {"task_id", "client", "coordinates"})


@pytest.mark.parametrize("field", [*_OF_ALL, "set_up", "study", *Coordinates._fields])
def test_a_mask_is_bound_to_all_that_a_task_says(assembly: build.Assembly, field: str) -> None:
    consortium = Consortium(assembly)
    consortium.set_up()
    task = offered(consortium, "north")
    before = task_digest(bytes(32), "ab12", task)
    if field in Coordinates._fields:
        at = Coordinates(np.zeros(3), np.ones(3), 0)
        moved = at._replace(**{field: getattr(at, field) + 1})
        digests = [
            task_digest(bytes(32), "ab12", task._replace(coordinates=each)) for each in (at, moved)
        ]
        assert len({before, *digests}) == 3
        return
    if field in ("set_up", "study"):
        given = (bytes(31) + b"1", "ab12") if field == "set_up" else (bytes(32), "ab13")
        assert task_digest(*given, task) != before
        return
    value = getattr(task, field)
    moved = value + 1 if isinstance(value, int | float) else tree.add(value, assembly.prior)
    assert task_digest(bytes(32), "ab12", task._replace(**{field: moved})) != before
    # Whom it is for is no part of it: all sites of a round have the same.
    other = offered(consortium, "east")
    assert task_digest(bytes(32), "ab12", other) == before


@pytest.mark.parametrize("steps", [2.0**52, 2.0**61, 2.0**80, -(2.0**80)])
def test_an_answer_too_large_to_be_added_up_is_not_masked(
    assembly: build.Assembly, steps: float
) -> None:
    # As int64 the largest would pass for small ones.
    consortium = Consortium(assembly)
    worker, gather = consortium.set_up()["north"], assembly.gather
    reply = worker._link.handle(NextTask("north"))
    assert isinstance(reply, Offer)
    answer = {name: np.zeros(shape) for name, shape in gather.shapes.items()}
    answer["gradient"][0] = steps * gather.step
    tensors = [Tensor(name, "<f8", part.shape, part.tobytes()) for name, part in answer.items()]
    event = json.dumps(events.to_json(events.Gaussian(1.0)))
    payload = Payload(tuple(tensors), event, codec.digest(event, tensors))
    with pytest.raises(errors.PrivacyError, match="too large to be added up"):
        worker._mask(reply.task, payload)


# What a server refuses.


def test_a_server_takes_keys_once(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    consortium.set_up()
    # A site whose state was lost makes others, and can mask with none of them.
    fresh = Consortium(assembly, signers=consortium.signers)
    fresh.coordinator = consortium.coordinator
    with pytest.raises(errors.ProtocolError, match="sent other keys than before"):
        fresh.worker("north").tick()


@pytest.mark.parametrize(
    ("stage", "content"), [(2, b"1"), (3, b"1"), (0, b"1"), (1, bytes(1 << 20))]
)
def test_a_server_takes_no_part_that_none_sends(
    assembly: build.Assembly, stage: int, content: bytes
) -> None:
    consortium = Consortium(assembly)
    anchor = ledgers.anchor(consortium.stores["north"].ledger)
    digest = assembly.study.digest
    assert isinstance(consortium.coordinator.handle(Hello("north", digest, anchor)), Welcome)
    with pytest.raises(errors.ProtocolError, match="client 'north' sent"):
        consortium.coordinator.handle(NextTask("north", part=KeyPart(stage, content)))
    assert consortium.coordinator.state.keys == {}


def test_a_plain_answer_is_not_taken(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    workers = consortium.set_up()
    workers["north"]._mask = None
    with pytest.raises(errors.ProtocolError, match="an answer holds arrays"):
        consortium.run(workers)


# What a study may not say.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"names": ("north", "east")}, "beside 2 clients, expected 3 or more"),
        ({"privacy": {"least_reporting": 2}}, "least_reporting is 2 beside aggregation.secure"),
        ({"privacy": {"view": "message"}}, 'beside privacy.view = "message"'),
    ],
)
def test_a_study_whose_masks_hide_nothing_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said):
        parse_study(raw(**given))


def test_a_solver_whose_answers_do_not_add_up_is_refused_by_those_that_do() -> None:
    given = raw()
    given["solver"] = {"kind": "dp_optimisation", "clip_norm": 1.0, "steps": 2}
    with pytest.raises(errors.ConfigError) as caught:
        build.assemble(parse_study(given))
    assert '"site_release", "vips", "virtual_clients"' in caught.value.hint


def test_a_site_without_a_certificate_is_refused(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    consortium.signers = {**consortium.signers, "north": None}
    with pytest.raises(errors.ConfigError, match="nothing vouches for this site's keys"):
        consortium.worker("north")


def test_a_false_end_does_not_have_the_roster_pinned_anew(assembly: build.Assembly) -> None:
    consortium = Consortium(assembly)
    workers = consortium.set_up()
    consortium.run(workers, lambda: consortium.coordinator.state.version == 1)

    def over(request: Request, reply: Any) -> Any:
        return Done("over") if isinstance(request, NextTask) else reply

    for name in NAMES:
        worker = consortium.worker(name, lambda link: Lying(link, reply=over))
        while worker.tick() != "done":
            pass
        assert consortium.stores[name].load_keys() is None
    again = consortium.worker("north")
    with pytest.raises(errors.ProtocolError, match="keys of 'north' are gone"):
        consortium.run({"north": again})
    assert consortium.stores["north"].load_keys() is None


def test_a_site_that_is_started_after_the_end_hears_that_it_is_over(
    assembly: build.Assembly,
) -> None:
    consortium = Consortium(assembly)
    consortium.run(consortium.set_up())
    late = consortium.worker("north")
    while (told := late.tick()) != "done":
        assert told != "idle"
