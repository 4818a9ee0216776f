"""Rounds that travel by hand, over real workers: what a simulation computes, and nothing drawn twice."""

import copy
import shutil

import pytest

from fedvi import errors
from fedvi.client.file_link import FileLink, Written
from fedvi.expfam import tree
from fedvi.federation.messages import Begin, Done, Failure, Hello, Submit
from fedvi.privacy import ledger as ledgers
from fedvi.run import site as sites_of
from fedvi.server.app import payload_limit
from fedvi.server.core import protocol
from fedvi.server.file_exchange import standing
from fedvi.store.memory import MemoryClientStore
from fedvi.transport import parcels
from fedvi.transport.memory import MemoryLink
from tests import hand
from tests.hand import CLIENTS, Consortium


def seeded(**options):
    study = hand.raw(private=True, **options)
    study["simulation"] = {"insecure_seed": 7}
    return study


def check_as_simulated(consortium, ledgers_found):
    expected = hand.rerun(consortium.assembly)
    state = consortium.hand.coordinator.state
    assert state.status == "completed"
    assert tree.equal(protocol.served(consortium.spec, state), expected.posterior)
    for name in CLIENTS:
        assert tree.equal(state.factors[name], expected.factors[name])
        assert ledgers_found[name] == expected.ledgers[name] == state.ledgers[name]


@pytest.mark.nightly(but=("sequential-2",))
@pytest.mark.parametrize(("kind", "rounds"), [("synchronous", 1), ("sequential", 2)])
def test_rounds_by_hand_are_the_simulated_ones_bit_for_bit(kind, rounds, tmp_path):
    consortium = Consortium(tmp_path, seeded(kind=kind, rounds=rounds))
    sites = {name: consortium.site(name) for name in CLIENTS}
    hand.play(consortium, sites, hand.nothing)
    for name, site in sites.items():
        assert site.end(consortium.task(name)) == "the schedule has finished"
    check_as_simulated(consortium, {name: site.ledger for name, site in sites.items()})


def test_one_client_comes_by_hand_and_the_others_over_a_link(tmp_path):
    consortium = Consortium(tmp_path, seeded())
    far = consortium.site("c0")
    link = MemoryLink(consortium.hand.coordinator.handle)
    near = {}
    for name in CLIENTS[1:]:
        store = MemoryClientStore(ledgers.open_ledger(consortium.assembly.header(name)))
        shard = sites_of.shard_of(consortium.assembly, name, hand.records()[name])
        near[name] = sites_of.client_worker(consortium.assembly, name, link, store, shard)
    while consortium.hand.coordinator.state.status == "running":
        made = consortium.export("c0")
        if made.status == "task":
            consortium.take(far.answer(made.path))
        for worker in near.values():
            worker.tick()
    far.end(consortium.task("c0"))
    found = {"c0": far.ledger, **{name: worker.ledger for name, worker in near.items()}}
    check_as_simulated(consortium, found)


def test_an_export_made_again_by_another_process_is_the_same_task(tmp_path):
    consortium = Consortium(tmp_path, hand.raw())
    site = consortium.site("c0")
    first = site.read(consortium.task("c0"))
    consortium.hand = consortium.opened()
    again = site.read(consortium.task("c0"))
    assert again.ledger == first.ledger
    assert tree.equal(again.reply.task.posterior, first.reply.task.posterior)
    assert again.reply.task[:4] == first.reply.task[:4]
    assert ledgers.reservations(consortium.hand.coordinator.state.ledgers["c0"]) == 1


@pytest.fixture
def private(tmp_path):
    """Noise comes from the operating system: drawn twice, it would differ."""
    return Consortium(tmp_path, hand.raw(private=True))


def payload(consortium, path):
    answer = parcels.read_result(path, consortium.authority, consortium.roster).answer
    assert isinstance(answer, Submit)
    return answer.payload


def test_an_answer_is_the_same_until_a_later_task_file_says_that_it_arrived(private):
    site, others = private.site("c0"), [private.site(name) for name in CLIENTS[1:]]
    task = private.task("c0")
    result = site.answer(task)
    first = payload(private, result)
    book = site.ledger
    result.unlink()  # lost on the way, or never read
    assert payload(private, site.answer(task)) == first
    assert site.ledger == book
    assert [entry.kind for entry in book.entries] == ["reserved", "sealed"]
    # The same file, carried twice, counts once.
    assert private.take(result) == "accepted"
    assert private.take(result) == "duplicate"
    for other in others:
        private.take(other.answer(private.task(other.name)))
    # What the server did with the first round is known here when the second begins.
    later = site.answer(private.task("c0"))
    kinds = [entry.kind for entry in site.ledger.entries]
    assert kinds == ["reserved", "sealed", "sent", "reserved", "sealed"]
    assert payload(private, later) != first
    assert private.take(result) == "duplicate"
    assert private.take(later) == "accepted"


def test_a_task_that_was_answered_and_acknowledged_is_an_old_file(private):
    sites = [private.site(name) for name in CLIENTS]
    tasks = {site.name: private.task(site.name) for site in sites}
    for site in sites:
        private.take(site.answer(tasks[site.name]))
    sites[0].answer(private.task("c0"))
    with pytest.raises(errors.ProtocolError, match=r"task 'c0/0' was answered.*an old one"):
        sites[0].answer(tasks["c0"])
    # Nor is an old end believed, which erases what the solver keeps.
    ended = sites[0].read(tasks["c0"])._replace(reply=Done("the run was stopped"))
    with pytest.raises(errors.ProtocolError, match=r"task 'c0/0' was answered.*an old one"):
        sites[0].worker(ended, tasks["c0"].with_suffix(".none")).tick()


def test_a_site_that_was_set_back_is_told_before_it_draws_anything(private):
    sites = {name: private.site(name) for name in CLIENTS}
    early = copy.deepcopy(sites["c0"].store)
    for name, site in sites.items():
        private.take(site.answer(private.task(name)))
    sites["c0"].store = early
    with pytest.raises(errors.LedgerError, match=r"the client's ledger of 'c0' was rolled back"):
        sites["c0"].answer(private.task("c0"))
    assert sites["c0"].ledger.entries == ()


def test_a_server_that_was_set_back_is_told_by_the_site(private):
    sites = {name: private.site(name) for name in CLIENTS}
    early = private.hand.coordinator.state
    for _ in range(2):
        for name, site in sites.items():
            private.take(site.answer(private.task(name)))
    sites["c0"].end(private.task("c0"))
    private.store.save(early)
    private.hand = private.opened()
    with pytest.raises(errors.ProtocolError, match=r"the server was set back") as refused:
        sites["c0"].answer(private.task("c0"))
    assert "an old one" in refused.value.message


def test_a_site_that_was_set_back_and_answers_again_is_a_conflict_that_is_charged_once(private):
    site = private.site("c0")
    early = copy.deepcopy(site.store)
    task = private.task("c0")
    kept = private.folder / "kept.result"
    shutil.copy(site.answer(task), kept)
    site.store = early
    other = site.answer(task)
    assert payload(private, other) != payload(private, kept)
    assert private.take(kept) == "accepted"
    before = private.hand.coordinator.state
    for _ in range(2):
        assert private.take(other) == "conflict"
        after = private.hand.coordinator.state
        assert after._replace(ledgers=None, presence=None) == before._replace(
            ledgers=None, presence=None
        )
        book = after.ledgers["c0"]
        assert ledgers.reservations(book) == 2
        assert [e.digest for e in book.entries if e.digest] == [
            payload(private, kept).sha256,
            payload(private, other).sha256,
        ]
    # The site hears of it with the next file, and refuses to go on.
    for name in CLIENTS[1:]:
        private.take(private.site(name).answer(private.task(name)))
    with pytest.raises(errors.LedgerError, match=r"are not the same"):
        site.answer(private.task("c0"))


def test_a_file_beside_the_answer_that_began_to_arrive_over_a_network_is_charged(private):
    site = private.site("c0")
    early = copy.deepcopy(site.store)
    task = private.task("c0")
    begun = payload(private, site.answer(task))
    anchor = ledgers.anchor(private.hand.coordinator.state.ledgers["c0"])
    private.hand.coordinator.handle(Hello("c0", private.spec.study_digest, anchor))
    private.hand.coordinator.handle(Begin("c0", "c0/0", begun.sha256, begun.event))
    site.store = early
    assert private.take(site.answer(task)) == "conflict"
    state = private.hand.coordinator.state
    assert ledgers.reservations(state.ledgers["c0"]) == 2
    assert state.accepted == {}


def test_an_answer_that_no_file_knows_of_is_imported_before_the_next_task(private):
    """Two servers of one study: the ledgers agree, and the answer to one task is not the other's."""
    site = private.site("c0")
    task = private.task("c0")
    site.answer(task)
    parcel = site.read(task)
    foreign = parcel.reply.task._replace(task_id="c0/1", visit=1)
    link = FileLink(
        parcel._replace(reply=parcel.reply._replace(task=foreign)),
        lambda: site.ledger,
        lambda made: pytest.fail("nothing may be written"),
    )
    with pytest.raises(errors.ProtocolError, match=r"asks for 'c0/1'.*does not know the answer"):
        link.handle(Submit("c0", "c0/0", site.store.unsent()[1]))


def test_a_receipt_is_for_the_very_bytes_that_arrived(private):
    """Both ledgers would have to be forged for this to be met; the link tells it all the same."""
    site = private.site("c0")
    task = private.task("c0")
    private.take(site.answer(task))
    book = private.hand.coordinator.state.ledgers["c0"]
    link = FileLink(site.read(task)._replace(ledger=book), lambda: site.ledger, pytest.fail)
    sealed = site.store.unsent()[1]
    assert link.handle(Submit("c0", "c0/0", sealed)).status == "accepted"
    other = sealed._replace(sha256="ab" * 32)
    assert link.handle(Submit("c0", "c0/0", other)).status == "conflict"


def test_an_answer_larger_than_the_server_takes_is_not_written(private):
    site = private.site("c0")
    task = private.task("c0")
    parcel = site.read(task)._replace(payload_limit=8)
    worker = site.worker(parcel, task.with_suffix(".result"))
    assert worker.tick() == "solved"
    with pytest.raises(errors.ProtocolError, match=r"bytes, expected at most 8"):
        worker.tick()
    assert not task.with_suffix(".result").exists()
    assert site.store.unsent() is not None


def test_an_answer_on_its_way_when_the_run_ends_is_acknowledged_all_the_same(private):
    site = private.site("c0")
    result = site.answer(private.task("c0"))
    private.hand.coordinator.control("stop")
    with pytest.raises(Written):
        site.end(private.task("c0"))
    assert private.take(result) == "accepted"
    assert site.end(private.task("c0")) == "the run was stopped"
    assert site.store.unsent() is None
    assert site.ledger == private.hand.coordinator.state.ledgers["c0"]


def test_what_a_site_may_not_answer_travels_as_one_word(private):
    site = private.site("c0")
    task = private.task("c0")
    target = task.with_suffix(".result")
    worker = site.worker(site.read(task), target)

    def refuse(*arguments):
        raise errors.PolicyRefused("4711 is too much")

    worker._admit = refuse
    with pytest.raises(errors.PolicyRefused):
        worker.tick()
    parcel = parcels.read_result(target, private.authority, private.roster)
    assert parcel.answer == Failure("c0", "c0/0", "policy")
    assert b"4711" not in target.read_bytes()
    assert private.hand.take(parcel) == "noted"
    assert private.hand.coordinator.state.away == {"c0": "policy"}


def test_an_answer_with_another_ledger_than_its_own_is_refused_before_it_is_folded(private):
    """A site whose ledger was written anew in between: the server takes no part of its answer."""
    site = private.site("c0")
    result = site.answer(private.task("c0"))
    parcel = parcels.read_result(result, private.authority, private.roster)
    before = private.hand.coordinator.state
    forged = parcel.hello._replace(anchor=parcel.hello.anchor._replace(hash="ab" * 32))
    with pytest.raises(errors.LedgerError, match=r"are not the same"):
        private.hand.take(parcel._replace(hello=forged))
    assert protocol.is_durably_equal(before, private.hand.coordinator.state)
    assert private.hand.take(parcel) == "accepted"


def test_an_old_or_refused_file_changes_nothing_and_brings_nobody_back(private):
    """Whoever carries files may hand in the same ones again; only their clients' own calls may."""
    sites = [private.site(name) for name in CLIENTS]
    results = [site.answer(private.task(site.name)) for site in sites]
    for result in results:
        private.take(result)
    parcel = parcels.read_result(results[0], private.authority, private.roster)
    # In the next round the site says that it cannot answer, and then it does.
    private.task("c0")
    private.hand.take(parcel._replace(answer=Failure("c0", "c0/1", "solver")))
    answer = parcels.read_result(
        sites[0].answer(private.folder / "out" / "c0-1.task"), private.authority, private.roster
    )
    before = private.hand.coordinator.state
    assert before.away == {"c0": "solver"}
    assert private.take(results[0]) == "duplicate"
    assert private.hand.take(parcel._replace(answer=Failure("c0", "c0/0", "data"))) == "noted"
    changed = parcel.answer.payload._replace(sha256="ab" * 32)
    other = parcel._replace(answer=parcel.answer._replace(payload=changed))
    with pytest.raises(errors.ProtocolError, match=r"sha256"):
        private.hand.take(other)
    forged = answer.hello._replace(anchor=answer.hello.anchor._replace(hash="ab" * 32))
    with pytest.raises(errors.LedgerError):
        private.hand.take(answer._replace(hello=forged))
    with pytest.raises(errors.ProtocolError, match=r"sha256"):
        private.hand.take(answer._replace(answer=answer.answer._replace(payload=changed)))
    assert protocol.is_durably_equal(before, private.hand.coordinator.state)
    assert private.hand.take(answer) == "accepted"
    assert private.hand.coordinator.state.away == {}


def test_a_site_changes_between_files_and_a_network(tmp_path):
    consortium = Consortium(tmp_path, seeded(rounds=3))
    sites = {name: consortium.site(name) for name in CLIENTS}
    link = MemoryLink(consortium.hand.coordinator.handle)

    def over_the_network(site):
        """Answers what is on its way and one more task, or hears of the end."""
        shard = sites_of.shard_of(consortium.assembly, site.name, hand.records()[site.name])
        worker = sites_of.client_worker(consortium.assembly, site.name, link, site.store, shard)
        while (done := worker.tick()) not in ("idle", "done"):
            if done == "sent" and site.name not in consortium.hand.coordinator.state.tasks:
                return

    # The first answer is in a file when the network comes up; the file then counts no more.
    first = {name: site.answer(consortium.task(name)) for name, site in sites.items()}
    for site in sites.values():
        over_the_network(site)
    assert {consortium.take(path) for path in first.values()} == {"duplicate"}
    while consortium.hand.coordinator.state.version == 1:
        for site in sites.values():
            over_the_network(site)
    # The last round is by hand again.
    hand.play(consortium, sites, hand.nothing)
    for name, site in sites.items():
        site.end(consortium.task(name))
    check_as_simulated(consortium, {name: site.ledger for name, site in sites.items()})


def test_a_task_says_how_large_its_answer_may_be(private):
    read = private.site("c0").read(private.task("c0"))
    assert read.payload_limit == payload_limit(private.spec) < 1 << 20


def test_a_paused_run_is_named_as_what_is_waited_for(private):
    private.hand.coordinator.control("pause")
    assert private.export("c0").status == "wait"
    words = standing(private.spec, private.hand.coordinator.state, "c0")
    assert words == "waits: the run is paused"


def test_a_foreign_task_another_study_and_numbers_that_are_none_are_refused(private):
    site = private.site("c0")
    result = site.answer(private.task("c0"))
    parcel = parcels.read_result(result, private.authority, private.roster)
    before = private.hand.coordinator.state
    with pytest.raises(errors.ProtocolError, match=r"c0/7'.*this run awaits the answer to 'c0/0'"):
        private.hand.take(parcel._replace(answer=parcel.answer._replace(task_id="c0/7")))
    with pytest.raises(errors.ProtocolError, match=r"read another study"):
        private.hand.take(parcel._replace(hello=parcel.hello._replace(study_digest="ab")))
    broken = parcel.answer.payload._replace(sha256="cd" * 32)
    with pytest.raises(errors.ProtocolError, match=r"sha256"):
        private.hand.take(parcel._replace(answer=parcel.answer._replace(payload=broken)))
    assert protocol.is_durably_equal(before, private.hand.coordinator.state)


def test_who_waits_gets_no_file_and_who_is_done_gets_the_end(tmp_path):
    consortium = Consortium(tmp_path, hand.raw(rounds=1, kind="sequential"))
    assert consortium.export("c1").status == "wait"
    sites = {name: consortium.site(name) for name in CLIENTS}
    hand.play(consortium, sites, hand.nothing)
    made = consortium.export("c1")
    assert (made.status, made.path.name) == ("end", "c1-end.task")
    assert sites["c1"].read(made.path).reply == Done("the schedule has finished")
    assert sites["c1"].end(made.path) == "the schedule has finished"
    # Again, as a client over the network may ask again.
    assert sites["c1"].end(made.path) == "the schedule has finished"


def test_a_file_can_be_read_by_its_owner_alone(tmp_path):
    consortium = Consortium(tmp_path, hand.raw())
    task = consortium.task("c0")
    result = consortium.site("c0").answer(task)
    assert [path.stat().st_mode & 0o777 for path in (task, result)] == [0o600, 0o600]
