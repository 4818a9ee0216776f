"""What the client relies on holds for every store of ``fedvi.store``."""

import numpy as np
import pytest

from fedvi import errors
from fedvi.federation.messages import Payload, Tensor
from fedvi.privacy import accountants, events, ledger
from fedvi.store.base import ClientStore, Freeze, Pending
from fedvi.store.memory import MemoryClientStore
from fedvi.store.sqlite import SqliteClientStore

HEADER = ledger.Header("s", "d", "north", "record", "substitute", "message", True)
BUDGET = ledger.Budget(1.0, 1e-5, accountants.pld("substitute"))
NOISE = events.Gaussian(50.0)
SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
TASK, DATA, STATE, FROZEN = b"t" * 32, b"d" * 32, b"s" * 32, b"f" * 32
NUMBERS = np.array([[1, -2], [3, 2**31 - 1]], np.int32)
PAYLOAD = Payload(
    (
        Tensor("h", "<i4", (2, 2), NUMBERS.tobytes()),
        Tensor("nothing", "<f8", (0,), b""),
        Tensor("scalar", "<f8", (), np.float64(0.1).tobytes()),
    ),
    '{"kind":"é"}',
    "ab" * 32,
)
STORES = ("memory", "sqlite")


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    made = (
        MemoryClientStore(ledger.open_ledger(HEADER))
        if request.param == "memory"
        else SqliteClientStore(tmp_path / "state", HEADER)
    )
    yield made
    made.close()


def reserve(store, name="a#0", secret=SECRET):
    return store.reserve(ledger.spend(store.ledger, name, NOISE, BUDGET), name, secret, TASK)


def seal(store, name="a#0", payload=PAYLOAD, state=None):
    store.seal(ledger.seal(store.ledger, name, payload.sha256), name, payload, state)


def sealed(store, name="a#0", **options):
    reserve(store, name)
    store.note_inputs(name, DATA, STATE, FROZEN)
    seal(store, name, **options)


def kinds(store):
    return [entry.kind for entry in store.ledger.entries]


def test_every_store_is_a_client_store(store):
    assert isinstance(store, ClientStore)
    assert store.ledger == ledger.open_ledger(HEADER)
    assert (store.pending(), store.unsent(), store.load_state()) == (None, None, None)


def test_a_reservation_and_its_secret_are_kept_together(store):
    assert reserve(store) == store.pending() == Pending("a#0", SECRET, TASK)
    assert kinds(store) == ["reserved"]


def test_sealing_forgets_the_secret_and_keeps_the_bytes_and_the_state(store):
    sealed(store, state=b"secret factors")
    assert store.pending() is None
    assert store.unsent() == ("a#0", PAYLOAD)
    assert store.load_state() == b"secret factors"
    assert kinds(store) == ["reserved", "sealed"]


def test_sealing_without_a_state_forgets_the_one_before(store):
    sealed(store, state=b"secret factors")
    sealed(store, "b#0", state=None)
    assert store.load_state() is None


def test_acknowledging_forgets_the_bytes(store):
    sealed(store)
    store.acknowledge(ledger.mark_sent(store.ledger, "a#0"), "a#0")
    assert store.unsent() is None
    assert kinds(store) == ["reserved", "sealed", "sent"]
    store.acknowledge(store.ledger, "a#0")
    assert kinds(store) == ["reserved", "sealed", "sent"]


def test_the_oldest_sealed_release_is_sent_first(store):
    sealed(store, "b#0")
    sealed(store, "a#0")
    assert store.unsent()[0] == "b#0"
    store.acknowledge(ledger.mark_sent(store.ledger, "b#0"), "b#0")
    assert store.unsent()[0] == "a#0"


def test_inputs_may_be_noted_again_but_not_changed(store):
    reserve(store)
    for _ in range(2):
        store.note_inputs("a#0", DATA, STATE, FROZEN)
        assert store.pending() == Pending("a#0", SECRET, TASK, DATA, STATE)
    for data, state in ((TASK, STATE), (DATA, TASK)):
        with pytest.raises(errors.LedgerError, match="a second draw from the same secret"):
            store.note_inputs("a#0", data, state, FROZEN)
    assert store.pending() == Pending("a#0", SECRET, TASK, DATA, STATE)


def test_the_records_are_frozen_by_the_first_release(store):
    assert store.freeze.digest is None
    sealed(store)
    assert store.freeze.digest == FROZEN
    reserve(store, "b#0")
    with pytest.raises(errors.PrivacyError, match="the data set of a study is frozen"):
        store.note_inputs("b#0", DATA, STATE, TASK)
    assert store.pending().data is None
    assert store.freeze.digest == FROZEN
    assert len(store.freeze.key) == 32


def test_a_secret_is_drawn_anew_only_while_nothing_was_read(store):
    with pytest.raises(errors.LedgerError, match="not pending"):
        store.renew("a#0", OTHER, TASK)
    reserve(store)
    assert store.renew("a#0", OTHER, DATA) == store.pending() == Pending("a#0", OTHER, DATA)
    assert kinds(store) == ["reserved"]
    store.note_inputs("a#0", DATA, STATE, FROZEN)
    with pytest.raises(errors.LedgerError, match="its records were read"):
        store.renew("a#0", SECRET, TASK)
    assert store.pending().secret == OTHER


def test_another_reservation_gives_up_the_pending_one_which_stays_charged(store):
    reserve(store)
    reserve(store, "a#1", OTHER)
    assert store.pending() == Pending("a#1", OTHER, TASK)
    assert kinds(store) == ["reserved", "reserved"]
    with pytest.raises(errors.LedgerError, match="'a#0' is not pending; 'a#1' is"):
        store.note_inputs("a#0", DATA, STATE, FROZEN)


def test_a_charge_alone_leaves_what_is_pending_alone(store):
    reserve(store)
    store.charge(ledger.spend(store.ledger, "study/a#0", NOISE, BUDGET), "study/a#0")
    assert kinds(store) == ["reserved", "reserved"]
    assert store.pending() == Pending("a#0", SECRET, TASK)
    with pytest.raises(errors.LedgerError, match="expected a new name"):
        store.charge(store.ledger, "study/a#0")


def test_nothing_is_stored_that_does_not_follow(store):
    reserve(store)
    before, empty = store.ledger, ledger.open_ledger(HEADER)
    with pytest.raises(errors.LedgerError, match="is reserved, expected a new name"):
        store.reserve(before, "a#0", OTHER, TASK)
    with pytest.raises(errors.LedgerError, match="does not extend"):
        store.reserve(ledger.spend(empty, "b#0", NOISE, BUDGET), "b#0", SECRET, TASK)
    foreign = ledger.open_ledger(HEADER._replace(client="south"))
    with pytest.raises(errors.LedgerError, match="does not extend"):
        store.reserve(ledger.spend(foreign, "b#0", NOISE, BUDGET), "b#0", SECRET, TASK)
    longer = ledger.spend(before, "b#0", NOISE, BUDGET)
    with pytest.raises(errors.LedgerError, match="31 bytes"):
        store.reserve(longer, "b#0", SECRET[1:], TASK)
    with pytest.raises(errors.LedgerError, match="its inputs are unknown"):
        seal(store)
    store.note_inputs("a#0", DATA, STATE, FROZEN)
    with pytest.raises(errors.LedgerError, match="is reserved, expected sealed"):
        store.seal(before, "a#0", PAYLOAD, None)
    with pytest.raises(errors.LedgerError, match="and its bytes have"):
        store.seal(ledger.seal(before, "a#0", "cd" * 32), "a#0", PAYLOAD, None)
    with pytest.raises(errors.LedgerError, match="'b#0' is not pending"):
        store.seal(ledger.seal(longer, "b#0", PAYLOAD.sha256), "b#0", PAYLOAD, None)
    with pytest.raises(errors.LedgerError, match="is reserved, expected sent"):
        store.acknowledge(before, "a#0")
    assert store.ledger == before
    assert store.pending() == Pending("a#0", SECRET, TASK, DATA, STATE)
    assert store.unsent() is None


def test_the_end_of_a_study_erases_private_state_and_a_pending_secret(store):
    sealed(store, state=b"secret factors")
    reserve(store, "b#0")
    for _ in range(2):
        store.erase_state()
        assert (store.pending(), store.load_state()) == (None, None)
    assert kinds(store) == ["reserved", "sealed", "reserved"]
    assert store.unsent() == ("a#0", PAYLOAD)


def test_no_representation_shows_a_secret():
    shown = f"{Pending('a#0', SECRET, TASK, DATA, STATE)!r} {Freeze(SECRET, FROZEN)!r}"
    assert shown == "Pending('a#0') Freeze()"
