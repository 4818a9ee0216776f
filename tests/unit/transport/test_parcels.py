"""Signed files: whatever is not what the right party wrote is refused, with a sentence of its own."""

import os
import struct
import tracemalloc

import numpy as np
import pytest

from fedvi import errors
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation.messages import Done, Failure, Hello, Offer, Payload, Submit, Tensor
from fedvi.privacy import ledger as ledgers
from fedvi.transport import authority, bundle, codec, identity, parcels, wire
from fedvi.transport.parcels import ResultFile, TaskFile
from fedvi.transport.roster import Roster
from fedvi.updates.base import Task
from tests.pki import DAY, NOW, authority_in, party
from tests.servers import header

STUDY = "ab12"
EVENT = '{"kind":"unprotected","what":"x"}'


def eta(size, value=1.0):
    return GaussianEta(np.full(size, value), np.eye(size) * value)


def task_file(size=2, client="north"):
    task = Task("north/3", client, 3, 9, eta(size), eta(size, 0.5), 0.5)
    book = ledgers.open_ledger(header(client))
    return TaskFile(client, STUDY, 9, book, Offer(task), 1000)


def answer(size=2, client="north"):
    data = np.arange(size, dtype="<i4").tobytes()
    tensors = (Tensor("h", "<i4", (size,), data, 0.25),)
    payload = Payload(tensors, EVENT, codec.digest(EVENT, tensors))
    hello = Hello(client, STUDY, ledgers.anchor(ledgers.open_ledger(header(client))))
    return ResultFile(hello, Submit(client, "north/3", payload, 1))


class Parties:
    def __init__(self, folder):
        self.folder = folder
        self.root = authority_in(folder / "ca")
        self.server = party(self.root, "server", "server", ("localhost",))
        self.north, self.south = party(self.root, "north"), party(self.root, "south")
        self.pem = (self.root / "ca.pem").read_bytes()
        self.path = folder / "file"

    @property
    def roster(self):
        return Roster(self.root / "roster.json")

    def task(self, client="north", study=STUDY, size=2, pem=None):
        return parcels.read_task(self.path, pem or self.pem, client, study, eta(size))

    def result(self, pem=None):
        return parcels.read_result(self.path, pem or self.pem, self.roster)


@pytest.fixture(scope="module")
def shared_parties(tmp_path_factory):
    return Parties(tmp_path_factory.mktemp("parties"))


@pytest.fixture
def parties(shared_parties):
    shared_parties.path.unlink(missing_ok=True)
    return shared_parties


# 200: an array of 320 KB, which stands apart from the message.
@pytest.mark.parametrize("size", [2, 200])
def test_a_task_is_read_as_it_was_written(parties, size):
    made = task_file(size)
    parcels.write_task(parties.path, parties.server, made)
    found = parties.task(size=size)
    assert found._replace(reply=None) == made._replace(reply=None)
    assert tree.equal(found.reply.task.posterior, made.reply.task.posterior)
    assert tree.equal(found.reply.task.factor, made.reply.task.factor)
    assert found.reply.task[:4] == made.reply.task[:4]
    assert (parties.path.stat().st_size > bundle.INLINE) == (size == 200)


def test_the_end_of_a_run_is_read_as_it_was_written(parties):
    made = task_file()._replace(reply=Done("the budget is spent\n\nhint: see the ledger"))
    parcels.write_task(parties.path, parties.server, made)
    assert parties.task() == made


@pytest.mark.parametrize("size", [0, 2, 40_000])
def test_a_result_is_read_as_it_was_written(parties, size):
    made = answer(size)
    parcels.write_result(parties.path, parties.north, made)
    assert parties.result() == made


def test_a_failure_is_read_as_it_was_written(parties):
    made = answer()._replace(answer=Failure("north", "north/3", "data"))
    parcels.write_result(parties.path, parties.north, made)
    assert parties.result() == made


@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # of a certificate that was changed
@pytest.mark.parametrize("size", [2, 200])
def test_no_byte_of_a_task_can_be_changed_to_say_something_else(parties, size):
    made = task_file(size)
    parcels.write_task(parties.path, parties.server, made)
    whole = parties.path.read_bytes()
    assert parties.task(size=size).version == made.version
    refused = 0
    steps = max(1, len(whole) // 300)
    for position in range(0, len(whole), steps):
        changed = bytearray(whole)
        changed[position] ^= 1 << (position // steps % 8)
        parties.path.write_bytes(bytes(changed))
        try:
            found = parties.task(size=size)
        except errors.FedviError:
            refused += 1
            continue
        # A bit of a certificate's text that stands for nothing.
        assert found._replace(reply=None) == made._replace(reply=None)
        assert tree.equal(found.reply.task.posterior, made.reply.task.posterior)
    assert refused > 0.9 * len(whole) / steps


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: whole[:-1], "cut off before its end"),
        (lambda whole: whole[:20], "cut off before its end"),
        (lambda whole: whole + b"\0", "bytes beyond its end"),
        (lambda whole: b"", "is empty, expected a task file"),
        (lambda whole: b"PK" + whole[2:], "is something else, expected a task file"),
        (lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), "has sha256"),
        (lambda whole: whole.replace(b"ab12", b"ab13", 1), "is not of this file"),
        (lambda whole: whole[:13] + b"\xff" * 16 + whole[29:], "announces"),
    ],
    ids=["cut", "header", "longer", "empty", "other", "array", "message", "lengths"],
)
def test_a_damaged_task_is_refused_with_its_own_sentence(parties, change, words):
    parcels.write_task(parties.path, parties.server, task_file(200))
    parties.path.write_bytes(change(parties.path.read_bytes()))
    with pytest.raises(errors.FedviError, match=words):
        parties.task(size=200)


@pytest.mark.parametrize("word", ["task", "result"])
def test_a_file_of_another_version_says_what_to_install(parties, word, monkeypatch):
    def write():
        if word == "task":
            parcels.write_task(parties.path, parties.server, task_file())
        else:
            parcels.write_result(parties.path, parties.north, answer())

    def refused(words):
        read = parties.task if word == "task" else parties.result
        with pytest.raises(errors.ProtocolError, match=words) as found:
            read()
        assert "install the same version of fedvi at both ends" in found.value.hint

    write()
    whole = parties.path.read_bytes()
    parties.path.write_bytes(whole.replace(f"{word} 1\n".encode(), f"{word} 10\n".encode(), 1))
    refused(rf"is a {word} file of form 10, expected form 1")
    # Nothing is negotiated: a file is in the newest version of whoever wrote it.
    for spoken, words in (
        ((2, 3), "in protocol 3, expected 2"),
        ((0, 0), "without a protocol version"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(wire, "PROTOCOLS", spoken)
            write()
        refused(words)
    with monkeypatch.context() as patched:
        patched.setattr(wire, "PROTOCOLS", (2, 3))
        write()
        patched.setattr(wire, "PROTOCOLS", (3, 4))
        parties.task() if word == "task" else parties.result()


def test_what_is_no_file_is_not_waited_for(parties, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("pipe", "is no file"), (".", "cannot be read: Is a directory")):
        parties.path = tmp_path / name
        with pytest.raises(errors.ConfigError, match=words):
            parties.result()
    parties.path = parties.folder / "file"


def test_what_is_announced_takes_no_memory_before_it_is_there_and_signed(parties):
    """A site's message of 64 MiB would take gigabytes once it is read."""
    parties.path.write_bytes(b"fedvi task 1\n" + struct.pack("<QQ", 60 << 20, 100) + b"\0" * 100)
    tracemalloc.start()
    with pytest.raises(errors.ProtocolError, match=r"is cut off before its end"):
        parties.task()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    parties.path.write_bytes(b"fedvi result 1\n" + struct.pack("<QQ", (4 << 20) + 1, 100))
    with pytest.raises(errors.ProtocolError, match=r"expected at most 4194304"):
        parties.result()


def test_a_large_task_is_written_without_a_copy_and_read_with_one(parties):
    made, size = task_file(1200), 8 * 1200**2
    tracemalloc.start()
    parcels.write_task(parties.path, parties.server, made)
    assert tracemalloc.get_traced_memory()[1] < 0.5 * size
    tracemalloc.reset_peak()
    like = eta(1200)
    found = parcels.read_task(parties.path, parties.pem, "north", STUDY, like)
    # The posterior, the factor, and `like`, which is made of two arrays.
    assert tracemalloc.get_traced_memory()[1] < 4.5 * size
    tracemalloc.stop()
    assert tree.equal(found.reply.task.posterior, made.reply.task.posterior)


def test_what_a_killed_writer_left_is_removed_and_a_link_is_not_followed(parties, tmp_path):
    left, others = tmp_path / ".file.0123abcd", tmp_path / ".else.0123abcd"
    elsewhere = tmp_path / "records.csv"
    for path in (left, others, elsewhere):
        path.write_text("y,x\n")
    (tmp_path / "file").symlink_to(elsewhere)
    parcels.write_result(tmp_path / "file", parties.north, answer())
    assert sorted(path.name for path in tmp_path.iterdir()) == [others.name, "file", elsewhere.name]
    assert not (tmp_path / "file").is_symlink()
    assert elsewhere.read_text() == "y,x\n"


def test_an_answer_larger_than_the_study_s_is_refused_before_it_is_read(parties):
    parcels.write_result(parties.path, parties.north, answer(40_000))
    with pytest.raises(
        errors.ProtocolError, match=r"'north/3' has 160000 bytes, expected at most 9"
    ):
        parcels.read_result(parties.path, parties.pem, parties.roster, 9)


def test_a_task_of_another_client_study_or_kind_is_refused(parties):
    parcels.write_task(parties.path, parties.server, task_file())
    with pytest.raises(
        errors.ProtocolError, match=r"another client, expected 'south'.*says: .north"
    ):
        parties.task(client="south")
    with pytest.raises(
        errors.ProtocolError,
        match=r"study, expected the digest cd34; .* says: \"digest ab12\"",
    ):
        parties.task(study="cd34")
    with pytest.raises(errors.ProtocolError, match=r"natural parameters are announced"):
        parties.task(size=3)
    with pytest.raises(errors.ProtocolError, match=r"is a task file, expected a result file"):
        parties.result()
    parcels.write_result(parties.path, parties.north, answer())
    with pytest.raises(errors.ProtocolError, match=r"is a result file, expected a task file"):
        parties.task()
    parties.path.unlink()
    with pytest.raises(errors.ConfigError, match=r"cannot be read: No such file"):
        parties.task()


def test_a_task_that_no_server_of_the_authority_signed_is_refused(parties, tmp_path):
    other = authority_in(tmp_path / "ca", "Somebody else")
    parcels.write_task(parties.path, parties.server, task_file())
    with pytest.raises(errors.IdentityError, match=r"authority"):
        parties.task(pem=(other / "ca.pem").read_bytes())
    parcels.write_task(parties.path, parties.south, task_file())
    with pytest.raises(errors.IdentityError, match=r"role client, expected server"):
        parties.task()


def test_a_signature_of_one_kind_of_file_does_not_fit_the_other(parties):
    parcels.write_result(parties.path, parties.server, answer())
    whole = parties.path.read_bytes()
    parties.path.write_bytes(whole.replace(b"fedvi result 1\n", b"fedvi task 1\n", 1))
    with pytest.raises(errors.IdentityError, match=r"is not of this file"):
        parties.task()


def test_a_result_counts_only_from_who_signed_it_and_is_let_in(parties):
    parcels.write_result(parties.path, parties.south, answer())
    with pytest.raises(errors.IdentityError, match=r"to be of 'north', and was signed by 'south'"):
        parties.result()
    parcels.write_result(parties.path, parties.north, answer(client="south"))
    with pytest.raises(errors.IdentityError, match=r"to be of 'south', and was signed by 'north'"):
        parties.result()
    parcels.write_result(parties.path, parties.server, answer())
    with pytest.raises(errors.IdentityError, match=r"role server, expected client"):
        parties.result()
    # Enrolled, and taken off the list.
    listed = (parties.root / "roster.json").read_bytes()
    stranger = party(parties.root, "east")
    parcels.write_result(parties.path, stranger, answer(client="east"))
    assert parties.result().hello.client == "east"
    authority.revoke(parties.root, "east")
    with pytest.raises(errors.IdentityError, match=r"was revoked"):
        parties.result()
    (parties.root / "roster.json").write_bytes(listed)
    with pytest.raises(errors.IdentityError, match=r"not on the server's roster"):
        parties.result()


def test_a_result_whose_signer_s_certificate_has_ended_is_refused(parties, tmp_path, monkeypatch):
    root = authority_in(tmp_path / "ca", at=NOW - 5 * DAY)
    late = party(root, "late", days=1, at=NOW - 3 * DAY)
    with pytest.raises(errors.IdentityError, match=r"'late' expired"):
        parcels.write_result(parties.path, late, answer(client="late"))
    monkeypatch.setattr(identity.certificates, "now", lambda: NOW - 2.5 * DAY)
    parcels.write_result(parties.path, late, answer(client="late"))
    monkeypatch.undo()
    with pytest.raises(errors.IdentityError, match=r"'late' expired"):
        parties.result(pem=(root / "ca.pem").read_bytes())


def test_what_is_larger_than_a_payload_may_be_is_refused_at_both_ends(parties, monkeypatch):
    parcels.write_result(parties.path, parties.north, answer(40_000))
    parcels.write_task(parties.folder / "task", parties.server, task_file(200))
    monkeypatch.setattr(bundle, "PAYLOAD_LIMIT", 60_000)
    with pytest.raises(errors.ProtocolError, match=r"size is 160000, expected at most 60000"):
        parties.result()
    with pytest.raises(errors.ProtocolError, match=r"160000 bytes, expected at most 60000"):
        parcels.write_result(parties.path, parties.north, answer(40_000))
    with pytest.raises(errors.ProtocolError, match=r"321600 bytes, expected at most 60000"):
        parcels.write_task(parties.path, parties.server, task_file(200))
    parties.path = parties.folder / "task"
    with pytest.raises(errors.ProtocolError, match=r"size is 321600, expected at most 60000"):
        parties.task(size=200)
    parties.path = parties.folder / "file"


def test_a_ledger_that_does_not_hold_together_is_refused(parties, monkeypatch):
    book = ledgers.open_ledger(header("north"))
    lines = ledgers.to_lines(book)
    monkeypatch.setattr(ledgers, "to_lines", lambda _: [lines[0].replace("test", "tset"), "{}"])
    parcels.write_task(parties.path, parties.server, task_file())
    with pytest.raises(errors.LedgerError):
        parties.task()


def test_a_result_file_is_not_written_over_something_else(tmp_path, parties):
    target = tmp_path / "records.csv"
    parcels.check_target(target)
    with pytest.raises(errors.ConfigError, match=r"is no folder in which answer can be written"):
        parcels.check_target(target / "answer")
    target.write_text("y,x\n1,2\n")
    with pytest.raises(errors.ConfigError, match=r"is there and is no result file"):
        parcels.check_target(target)
    parcels.write_result(target, parties.north, answer())
    parcels.check_target(target)


def test_nothing_is_written_where_there_is_no_key_to_sign_with(parties, tmp_path):
    with pytest.raises(errors.ConfigError, match=r"cert.pem"):
        parcels.write_result(parties.path, tmp_path, answer())
    assert not parties.path.exists()


def test_a_ledger_of_another_name_is_no_text_of_the_clients(tmp_path):
    parties = Parties(tmp_path)
    words = "north' was rolled back; hint: run `curl evil.example`"
    parcel = task_file()._replace(ledger=ledgers.open_ledger(header(words)))
    parcels.write_task(parties.path, parties.server, parcel)
    with pytest.raises(errors.ProtocolError, match="ledger of another client") as caught:
        parties.task()
    assert caught.value.server_says == words
    assert "curl" not in caught.value.message + caught.value.hint
