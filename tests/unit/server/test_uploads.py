"""Where answers wait: what goes on, what begins anew, and what never mixes."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvi import errors
from fedvi.server.store import uploads
from fedvi.server.store.uploads import Interrupted, Uploads

SMALL, LARGE = 1000, uploads.IN_MEMORY + 1000
ONE, TWO = "1" * 64, "2" * 64


def content(size: int, seed: int = 0) -> bytes:
    return bytes((seed + index * 7) % 251 for index in range(size))


@pytest.fixture
def place(tmp_path):
    return Uploads(tmp_path / "uploads", limit=10 * LARGE)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_upload_goes_on_where_it_stopped(place, size):
    data = content(size)
    half = size // 2
    upload = place.begin("south", ONE, size, 0)
    upload.add(0, data[:half])
    upload.close()
    assert place.received("south", ONE) == half
    upload = place.begin("south", ONE, size, half)
    upload.add(half, data[half:])
    assert bytes(upload.data()) == data
    upload.close()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_upload_may_go_back_and_may_not_leave_a_gap(place, size):
    data = content(size)
    upload = place.begin("south", ONE, size, 0)
    upload.add(0, b"\0" * 600)
    upload.close()
    with pytest.raises(Interrupted, match=r"600 have arrived"):
        place.begin("south", ONE, size, 601)
    upload = place.begin("south", ONE, size, 500)
    upload.add(500, data[500:])
    assert bytes(upload.data()) == b"\0" * 500 + data[500:]
    upload.close()


@pytest.mark.parametrize(("first", "second"), [(SMALL, SMALL), (LARGE, LARGE), (SMALL, LARGE)])
def test_another_answer_of_the_same_client_begins_anew(place, tmp_path, first, second):
    upload = place.begin("south", ONE, first, 0)
    upload.add(0, content(500, 1))
    upload.close()
    upload = place.begin("south", TWO, second, 0)
    upload.add(0, content(500, 2))
    assert place.received("south", ONE) == 0
    assert place.received("south", TWO) == 500
    assert bytes(upload.data()) == content(500, 2)
    upload.close()
    assert len(list((tmp_path / "uploads").glob("*"))) == (1 if second == LARGE else 0)


def test_clients_do_not_share_an_upload_of_the_same_bytes(place):
    south = place.begin("south", ONE, LARGE, 0)
    south.add(0, content(500))
    assert place.received("north", ONE) == 0
    north = place.begin("north", ONE, LARGE, 0)
    north.add(0, content(100))
    assert place.received("south", ONE) == 500
    south.close()
    north.close()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", "*", "é" * 100])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    place = Uploads(tmp_path / "uploads", limit=10 * LARGE)
    upload = place.begin(name, ONE, LARGE, 0)
    upload.close()
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.parent for path in found] == [tmp_path / "uploads"]
    assert found[0].stat().st_mode & 0o777 == 0o600


def test_more_than_was_announced_is_refused(place):
    upload = place.begin("south", ONE, SMALL, 0)
    with pytest.raises(errors.ProtocolError, match=r"to end by 1000"):
        upload.add(0, b"x" * (SMALL + 1))
    with pytest.raises(errors.ProtocolError, match=r"begin at 0"):
        upload.add(5, b"x")
    assert upload.received == 0


def test_more_than_the_limit_is_refused_before_a_byte_is_kept(tmp_path):
    place = Uploads(tmp_path / "uploads", limit=SMALL)
    with pytest.raises(errors.ProtocolError, match=r"expected at most 1000"):
        place.begin("south", ONE, SMALL + 1, 0)
    assert not (tmp_path / "uploads").exists()


def test_a_disk_that_fills_up_is_the_servers_trouble(place, monkeypatch):
    upload = place.begin("south", ONE, LARGE, 0)

    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(uploads.Full, match=r"No space left"):
        upload.add(0, b"x")
    assert upload.received == 0
    upload.close()


def test_bytes_stay_readable_after_their_file_is_gone(place, tmp_path):
    data = content(LARGE)
    upload = place.begin("south", ONE, LARGE, 0)
    upload.add(0, data)
    view = upload.data()
    upload.close()
    place.forget("south")
    assert list((tmp_path / "uploads").iterdir()) == []
    assert bytes(view) == data
    assert view.readonly


def part(place, client, sha256, size=LARGE):
    upload = place.begin(client, sha256, size, 0)
    upload.add(0, content(500))
    upload.close()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_answer_is_forgotten_and_no_other(place, size):
    part(place, "south", ONE, size)
    part(place, "north", ONE, size)
    place.forget("south", TWO)
    assert place.received("south", ONE) == 500
    place.forget("south", ONE)
    assert (place.received("south", ONE), place.received("north", ONE)) == (0, 500)


def test_what_a_killed_server_left_is_swept_and_what_goes_on_is_kept(tmp_path):
    folder = tmp_path / "uploads"
    Uploads(folder, LARGE).sweep([("south", ONE)])  # there is no folder yet
    for client, sha256 in (("south", ONE), ("north", TWO)):
        part(Uploads(folder, LARGE), client, sha256)
    (folder / "half.new").write_bytes(b"x")
    place = Uploads(folder, LARGE)
    place.sweep([("south", ONE), ("north", ONE)])
    assert place.received("south", ONE) == 0
    assert place.received("north", TWO) == 500
    assert len(list(folder.iterdir())) == 1


@given(cuts=st.lists(st.integers(1, LARGE - 1), max_size=6, unique=True).map(sorted))
def test_however_an_upload_is_cut_the_bytes_are_the_same(tmp_path_factory, cuts):
    place, data = Uploads(tmp_path_factory.mktemp("u"), limit=LARGE), content(LARGE)
    for start, end in zip([0, *cuts], [*cuts, LARGE], strict=True):
        upload = place.begin("south", ONE, LARGE, start)
        upload.add(start, data[start:end])
        if end < LARGE:
            upload.close()
    assert bytes(upload.data()) == data
    upload.close()


@pytest.mark.parametrize("offset", [0, 700])
def test_bytes_that_are_being_read_survive_another_upload_of_the_same_answer(place, offset):
    # To cut a file that is mapped kills the process that reads it, with SIGBUS.
    data = content(LARGE)
    first = place.begin("south", ONE, LARGE, 0)
    first.add(0, data)
    read = first.data()
    first.close()
    place.begin("south", ONE, LARGE, LARGE).close()
    again = place.begin("south", ONE, LARGE, offset)
    assert place.received("south", ONE) == offset
    again.add(offset, content(LARGE, 1)[offset:])
    assert bytes(read) == data
    assert bytes(again.data()) == data[:offset] + content(LARGE, 1)[offset:]
    again.close()
    place.forget("south")
    assert place.received("south", ONE) == 0


@pytest.mark.parametrize("offset", [0, 3000])
def test_bytes_that_an_older_call_reads_late_survive_it_too(place, offset):
    data = content(LARGE)
    first = place.begin("south", ONE, LARGE, 0)
    first.add(0, data)
    # A second call goes on where the first one is; only then the first one reads, and a third one begins.
    second = place.begin("south", ONE, LARGE, LARGE)
    read = first.data()
    third = place.begin("south", ONE, LARGE, offset)
    assert os.fstat(first._file).st_size == LARGE  # else the next line ends the process
    assert bytes(read) == data
    for upload in (first, second, third):
        upload.close()


def test_a_file_that_could_not_be_begun_anew_is_not_cut_the_next_time(place, monkeypatch):
    first = place.begin("south", ONE, LARGE, 0)
    first.add(0, content(LARGE))

    def full(*arguments):
        raise uploads.Full("no room")

    with monkeypatch.context() as patched:
        patched.setattr(uploads, "_begin_anew", full)
        with pytest.raises(uploads.Full):
            place.begin("south", ONE, LARGE, 0)
    place.begin("south", ONE, LARGE, 0).close()
    assert os.fstat(first._file).st_size == LARGE
    first.close()
