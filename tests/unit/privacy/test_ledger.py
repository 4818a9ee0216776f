"""The ledger: charged before, never twice, never above the budget, and evident if changed."""

import dataclasses
import json
import math
import sys

import pytest

from fedvi.errors import BudgetExceeded, ConfigError, LedgerError, PrivacyError, UnsupportedEvent
from fedvi.privacy.accountants import pld
from fedvi.privacy.events import (
    NOTHING,
    Gaussian,
    PoissonSampled,
    Repeated,
    Unprotected,
    compose,
    repeat,
)
from fedvi.privacy.filter import rdp_filter
from fedvi.privacy.ledger import (
    TABLES_SHARE,
    Anchor,
    Budget,
    Header,
    Ledger,
    anchor,
    check_anchor,
    from_lines,
    is_lifetime,
    lifetime_header,
    mark_sent,
    open_ledger,
    open_ledgers,
    seal,
    spend,
    spent,
    state,
    to_lines,
    verify,
)

HEADER = Header("heart", "ab12", "north", "record", "substitute", "message", True)
OPEN = HEADER._replace(protected=False, note="simulation: no guarantee")
BUDGET = Budget(1.0, 1e-5, pld("substitute"))
ROUND = Gaussian(30.0)  # about six of them cost epsilon 1


@pytest.fixture
def ledger():
    """Three releases: one sent, one sealed, one reserved."""
    ledger = open_ledger(HEADER)
    for name in ("first", "second", "third"):
        ledger = spend(ledger, name, ROUND, BUDGET)
    ledger = seal(ledger, "first", "d1")
    ledger = mark_sent(ledger, "first")
    return seal(ledger, "second", "d2")


# Spending.


def test_ledgers_opened_together_are_those_opened_alone():
    headers = {name: HEADER._replace(client=name) for name in ("north", "south", "east")}
    headers["east"] = headers["east"]._replace(note="another")
    books = open_ledgers(headers)
    assert books == {name: open_ledger(header) for name, header in headers.items()}


@pytest.mark.parametrize("change", [{"client": ""}, {"client": 1}, {"table_distance": 0}])
def test_a_header_beside_a_good_one_is_checked_too(change):
    # 0 equals 0.0, and is written otherwise.
    headers = {"north": HEADER, "south": HEADER._replace(**{"client": "south"} | change)}
    with pytest.raises(LedgerError):
        open_ledgers(headers)


def test_everything_reserved_is_spent_whatever_became_of_it(ledger):
    assert spent(ledger) == repeat(ROUND, 3)
    assert spent(open_ledger(HEADER)) == NOTHING


def test_the_next_release_is_refused_before_it_exceeds_the_budget():
    ledger = open_ledger(HEADER)
    price = BUDGET.accountant.epsilon
    count = next(n for n in range(100) if price(repeat(ROUND, n + 1), 1e-5) > 1.0)
    cost = price(repeat(ROUND, count + 1), 1e-5)
    assert count > 1
    for number in range(1, count + 1):
        ledger = spend(ledger, f"round {number}", ROUND, BUDGET)
    with pytest.raises(BudgetExceeded) as caught:
        spend(ledger, f"round {count + 1}", ROUND, BUDGET)
    assert caught.value.message == (
        f"release 'round {count + 1}' would spend epsilon {cost:.3g} of 1 "
        "(delta 1e-05, accountant pld, substitute)"
    )
    assert "no more such releases fit" in caught.value.hint
    assert f"stop after the {count} that are reserved" in caught.value.hint
    verify(ledger)


def test_an_excess_in_the_last_digit_is_told_apart_from_the_budget():
    exact = BUDGET.accountant.epsilon(ROUND, 1e-5)
    spend(open_ledger(HEADER), "fits", ROUND, Budget(exact, 1e-5, BUDGET.accountant))
    with pytest.raises(BudgetExceeded) as caught:
        spend(open_ledger(HEADER), "x", ROUND, Budget(exact * (1 - 1e-9), 1e-5, BUDGET.accountant))
    found, allowed = caught.value.message.split("epsilon ")[1].split(" (")[0].split(" of ")
    assert float(found) > float(allowed)


def test_a_release_without_noise_exceeds_every_budget():
    with pytest.raises(BudgetExceeded, match="epsilon inf of 1"):
        spend(open_ledger(HEADER), "bare", Gaussian(0.0), BUDGET)


def test_a_smaller_release_may_still_fit_after_a_larger_was_refused(ledger):
    with pytest.raises(BudgetExceeded):
        spend(ledger, "large", Gaussian(3.0), BUDGET)
    assert state(spend(ledger, "small", ROUND, BUDGET), "small") == "reserved"


def test_a_release_is_reserved_once(ledger):
    for name in ("first", "second", "third"):
        with pytest.raises(LedgerError, match=f"'{name}' was reserved before"):
            spend(ledger, name, ROUND, BUDGET)
    with pytest.raises(LedgerError, match="release_id is empty"):
        spend(ledger, "", ROUND, BUDGET)


@pytest.mark.parametrize(
    "event",
    [
        Unprotected("a factor"),
        compose(ROUND, Unprotected("a factor")),
        PoissonSampled(0.1, Unprotected("a factor")),
        PoissonSampled(0.1, PoissonSampled(0.1, Repeated(Unprotected("a factor"), 2))),
    ],
)
def test_what_is_unprotected_enters_no_protected_ledger_and_no_budget(event):
    for header, budget in ((HEADER, BUDGET), (HEADER, None), (OPEN, BUDGET)):
        with pytest.raises(PrivacyError, match="unprotected") as caught:
            spend(open_ledger(header), "x", event, budget)
        assert not isinstance(caught.value, UnsupportedEvent)
    assert spent(spend(open_ledger(OPEN), "x", event, None)) == event


def test_a_protected_ledger_asks_for_a_budget():
    with pytest.raises(PrivacyError, match="has no budget"):
        spend(open_ledger(HEADER), "x", ROUND, None)
    assert spent(spend(open_ledger(OPEN), "x", ROUND, None)) == ROUND


def test_a_budget_of_another_relation_is_refused():
    with pytest.raises(PrivacyError, match="add_remove"):
        spend(open_ledger(HEADER), "x", ROUND, Budget(1.0, 1e-5, pld("add_remove")))


def test_an_event_that_the_accountant_does_not_know_is_refused():
    with pytest.raises(UnsupportedEvent):
        spend(open_ledger(HEADER), "x", PoissonSampled(0.1, Gaussian(90.0, 2.0)), BUDGET)


def test_a_budget_outside_its_range_is_refused():
    for epsilon, delta in ((-1.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 1.0)):
        with pytest.raises(ConfigError):
            Budget(epsilon, delta, pld("substitute"))


# States.


def test_a_release_goes_from_reserved_to_sealed_to_sent(ledger):
    found = [state(ledger, name) for name in ("first", "second", "third", "fourth")]
    assert found == ["sent", "sealed", "reserved", None]


def test_sealing_and_sending_again_change_nothing(ledger):
    assert seal(ledger, "first", "d1") is ledger
    assert seal(ledger, "second", "d2") is ledger
    assert mark_sent(ledger, "first") is ledger


@pytest.mark.parametrize("name", ["first", "second"])
def test_other_bytes_for_a_sealed_release_are_refused(ledger, name):
    with pytest.raises(LedgerError, match="is sealed with digest"):
        seal(ledger, name, "other")


def test_nothing_is_sealed_unreserved_or_sent_unsealed(ledger):
    with pytest.raises(LedgerError, match="never reserved"):
        seal(ledger, "fourth", "d4")
    with pytest.raises(LedgerError, match="is reserved, expected sealed"):
        mark_sent(ledger, "third")
    with pytest.raises(LedgerError, match="is unknown, expected sealed"):
        mark_sent(ledger, "fourth")
    with pytest.raises(LedgerError, match="digest is empty"):
        seal(ledger, "third", "")


# The chain.


def test_a_ledger_survives_its_lines(ledger):
    assert from_lines(to_lines(ledger)) == ledger
    assert from_lines(to_lines(open_ledger(OPEN))) == open_ledger(OPEN)


def test_a_ledger_may_go_on_after_it_was_read(ledger):
    longer = mark_sent(from_lines(to_lines(ledger)), "second")
    assert to_lines(longer)[:-1] == to_lines(ledger)
    verify(longer)


def test_a_name_in_any_script_survives():
    ledger = open_ledger(HEADER._replace(client="Zürich \U0001f3e5\n", note='"quoted"'))
    ledger = spend(ledger, "ν—1", ROUND, BUDGET)
    assert from_lines(to_lines(ledger)) == ledger


def test_changing_any_byte_of_any_line_is_detected(ledger):
    lines = to_lines(ledger)
    for number, line in enumerate(lines):
        for position, character in enumerate(line):
            # One bit, and a digit or letter that keeps the JSON valid.
            for other in {chr(ord(character) ^ 1), "0", "a", " "} - {character}:
                changed = line[:position] + other + line[position + 1 :]
                with pytest.raises(LedgerError):
                    from_lines([*lines[:number], changed, *lines[number + 1 :]])


def test_a_line_that_only_looks_different_is_refused(ledger):
    lines = to_lines(ledger)
    for number, line in enumerate(lines):
        for changed in (line + " ", json.dumps(json.loads(line)), line.replace("{", '{"a":1,', 1)):
            with pytest.raises(LedgerError):
                from_lines([*lines[:number], changed, *lines[number + 1 :]])


def test_taking_out_doubling_or_swapping_lines_is_detected(ledger):
    lines = to_lines(ledger)
    for number in range(1, len(lines) - 1):
        with pytest.raises(LedgerError, match=f"entry {number - 1}"):
            from_lines([*lines[:number], *lines[number + 1 :]])
        with pytest.raises(LedgerError, match=f"entry {number - 1}"):
            from_lines([*lines[:number], lines[number - 1], *lines[number:]])
        swapped = [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]
        with pytest.raises(LedgerError, match=f"entry {number - 1}"):
            from_lines(swapped)
    with pytest.raises(LedgerError, match="header"):
        from_lines(lines[1:])
    with pytest.raises(LedgerError, match="empty"):
        from_lines([])


def test_entries_of_another_ledger_are_refused(ledger):
    other = spend(open_ledger(HEADER._replace(client="south")), "first", ROUND, BUDGET)
    with pytest.raises(LedgerError, match=r"entry 0 .*does not follow"):
        from_lines([to_lines(ledger)[0], to_lines(other)[1]])


@pytest.mark.parametrize(
    ("position", "change", "reason"),
    [
        (0, {"event": Gaussian(300.0)}, "its hash does not follow"),
        (1, {"release_id": "fourth"}, "its hash does not follow"),
        (2, {"index": 7}, "its index is 7"),
        (3, {"digest": "other"}, "its hash does not follow"),
        (4, {"previous_hash": "0" * 64}, "it does not follow"),
        (5, {"hash": "0" * 64}, "its hash does not follow"),
    ],
)
def test_the_first_bad_entry_is_named(ledger, position, change, reason):
    entries = list(ledger.entries)
    entries[position] = entries[position]._replace(**change)
    with pytest.raises(LedgerError, match=rf"^entry {position} \(.*{reason}"):
        verify(ledger._replace(entries=tuple(entries)))


def forged(entries):
    """Builds lines with right hashes for any contents, as whoever owns the file can."""
    from fedvi.privacy import _chain as module

    made = open_ledger(HEADER)
    for fields in entries:
        made = module.append(made, **fields)
    return made


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([{"kind": "sealed", "release_id": "x", "digest": "d"}], "it is sealed after nothing"),
        ([{"kind": "sent", "release_id": "x"}], "it is sent after nothing"),
        ([{"kind": "reserved", "release_id": "x"}], "its event is None"),
        ([{"kind": "reserved", "release_id": "", "event": ROUND}], "it names no release"),
        (
            [{"kind": "reserved", "release_id": "x", "event": ROUND, "digest": "d"}],
            "its digest is 'd'",
        ),
        (
            [
                {"kind": "reserved", "release_id": "x", "event": ROUND},
                {"kind": "reserved", "release_id": "x", "event": ROUND},
            ],
            "it is reserved after reserved",
        ),
        (
            [
                {"kind": "reserved", "release_id": "x", "event": ROUND},
                {"kind": "sent", "release_id": "x"},
            ],
            "it is sent after reserved",
        ),
        (
            [{"kind": "reserved", "release_id": "x", "event": Unprotected("a factor")}],
            "it is unprotected in a protected ledger",
        ),
    ],
)
def test_a_chain_with_right_hashes_and_a_wrong_story_is_refused(entries, reason):
    made = forged(entries)
    with pytest.raises(LedgerError, match=reason):
        verify(made)
    with pytest.raises(LedgerError, match=reason):
        from_lines(to_lines(made))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"header":null,"hash":"0"}',
        '{"header":{"study":"x"},"hash":"0"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_ledger_is_refused(ledger, line):
    with pytest.raises(LedgerError):
        from_lines([line])
    with pytest.raises(LedgerError):
        from_lines([to_lines(ledger)[0], line])


def test_an_entry_of_an_unknown_event_or_number_is_refused(ledger):
    lines = to_lines(ledger)
    for old, new in (
        ('"kind":"gaussian"', '"kind":"laplace"'),
        (":30.0", ":NaN"),
        (":30.0", ":-1"),
    ):
        assert old in lines[1]
        with pytest.raises(LedgerError, match=r"^entry 0"):
            from_lines([lines[0], lines[1].replace(old, new), *lines[2:]])


@pytest.mark.parametrize(
    ("field", "value"),
    [("study", ""), ("client", ""), ("relation", "neighbour"), ("unit", ""), ("view", "")],
)
def test_a_header_must_say_what_it_is_about(field, value):
    with pytest.raises(LedgerError, match=f"`{field}`"):
        open_ledger(HEADER._replace(**{field: value}))
    with pytest.raises(LedgerError, match=f"`{field}`"):
        verify(Ledger(HEADER._replace(**{field: value}), ()))


# What another party saw.


def test_an_anchor_detects_a_rollback_a_cut_and_a_fork(ledger):
    seen = anchor(ledger)
    check_anchor(ledger, seen)
    check_anchor(spend(ledger, "later", ROUND, BUDGET), seen)
    check_anchor(ledger, anchor(open_ledger(HEADER)))
    for length in range(len(ledger.entries)):
        cut = from_lines(to_lines(ledger)[: length + 1])  # whole in itself
        with pytest.raises(LedgerError, match="were seen before"):
            check_anchor(cut, seen)
    fork = ledger._replace(entries=ledger.entries[:-1])
    for _ in range(2):
        fork = spend(fork, f"other {len(fork.entries)}", ROUND, BUDGET)
    verify(fork)
    with pytest.raises(LedgerError, match="was seen before"):
        check_anchor(fork, seen)
    with pytest.raises(LedgerError, match="0 or more"):
        check_anchor(ledger, Anchor(-1, seen.hash))


def test_a_ledger_that_is_extended_twice_keeps_two_stories():
    start = spend(open_ledger(HEADER), "first", ROUND, BUDGET)
    one = spend(start, "second", ROUND, BUDGET)
    other = spend(start, "second", Gaussian(40.0), BUDGET)
    assert (spent(one), spent(other)) == (repeat(ROUND, 2), compose(ROUND, Gaussian(40.0)))
    assert state(start, "second") is None
    sealed = seal(one, "second", "d")
    assert [state(book, "second") for book in (one, sealed, other)] == [
        "reserved",
        "sealed",
        "reserved",
    ]
    longer = spend(other, "third", ROUND, BUDGET)
    assert state(longer, "second") == "reserved"
    # The longer one has moved on: an old one still knows what it spent, and no more.
    with pytest.raises(BudgetExceeded):
        spend(start, "third", Gaussian(1.0), BUDGET)
    for book in (one, other, sealed):
        verify(book)


# The header's promise.

PROMISE = HEADER._replace(
    planned=repeat(ROUND, 6),
    epsilon=1.0,
    delta=1e-5,
    accountant="pld",
    table_distance=1e-15,
    disjoint=True,
    max_records=500,
    rows_per_unit=20,
)


def test_the_promise_survives_its_lines_and_no_byte_of_it_can_change():
    ledger = open_ledger(PROMISE)
    (line,) = to_lines(ledger)
    assert from_lines([line]) == ledger
    for position, character in enumerate(line):
        changed = line[:position] + chr(ord(character) ^ 1) + line[position + 1 :]
        with pytest.raises(LedgerError):
            from_lines([changed])


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": None},
        {"delta": 1.0},
        {"epsilon": math.inf},
        {"accountant": "fourier"},
        {"planned": Unprotected("a factor")},
        {"table_distance": -1.0},
        {"max_records": 0},
        {"disjoint": 1},
    ],
)
def test_a_promise_that_cannot_be_recomputed_is_refused(change):
    # Not by the types, which are checked in tests alone.
    with pytest.raises(LedgerError, match="header"):
        open_ledger(PROMISE._replace(**change))


def test_a_budget_above_the_promise_is_refused():
    for epsilon, delta in ((2.0, 1e-5), (1.0, 1e-4)):
        with pytest.raises(PrivacyError, match="promises"):
            spend(open_ledger(PROMISE), "x", ROUND, Budget(epsilon, delta, pld("substitute")))


def test_what_is_no_upper_bound_checks_no_budget():
    @dataclasses.dataclass(frozen=True)
    class Historical:
        name: str = "fourier"
        relation: str = "substitute"

        def supports(self, event):
            return True

        def epsilon(self, event, delta):
            return 0.0

        def delta(self, event, epsilon):
            return 0.0

    with pytest.raises(PrivacyError, match="no upper bound"):
        Budget(1.0, 1e-5, Historical())


# For life.


def test_a_filter_charges_for_life_and_refuses_what_exceeds_it():
    cap = rdp_filter(1.0, 1e-5, "substitute")
    ledger = open_ledger(lifetime_header("north", "record", "substitute"))
    while cap.admits(spent(ledger), ROUND):
        ledger = spend(ledger, f"{len(ledger.entries)}", ROUND, cap)
    assert 1 < len(ledger.entries) < 20
    with pytest.raises(BudgetExceeded, match="cap of 'north'") as caught:
        spend(ledger, "next", ROUND, cap)
    assert f"{len(ledger.entries)} releases" in caught.value.hint
    assert cap.epsilon_of(spent(ledger)) <= 1.0
    assert is_lifetime(ledger.header)
    assert not is_lifetime(HEADER)
    spend(ledger, "small", Gaussian(3000.0), cap)
    with pytest.raises(PrivacyError, match="declares substitute"):
        spend(ledger, "x", ROUND, rdp_filter(1.0, 1e-5, "add_remove"))


def test_a_cap_in_the_header_survives_its_lines_and_bounds_the_filter():
    header = lifetime_header("north", "record", "substitute", epsilon=1.0, delta=1e-5)
    ledger = open_ledger(header)
    assert from_lines(to_lines(ledger)) == ledger
    cap = rdp_filter(1.0, 1e-5 * (1 - TABLES_SHARE), "substitute")
    assert state(spend(ledger, "x", ROUND, cap), "x") == "reserved"
    for epsilon, delta in ((2.0, 1e-5), (1.0, 1e-4)):
        with pytest.raises(PrivacyError, match="promises"):
            spend(ledger, "x", ROUND, rdp_filter(epsilon, delta, "substitute"))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1.0},
        {"delta": 1e-5},
        {"epsilon": 0.0, "delta": 1e-5},
        {"epsilon": 1.0, "delta": 1e-5, "accountant": "rdp"},
        {"planned": ROUND},
        {"protected": False},
    ],
)
def test_a_cap_that_no_filter_checks_is_refused(change):
    with pytest.raises(LedgerError, match="header"):
        open_ledger(lifetime_header("north", "record", "substitute")._replace(**change))


# Speed.


def test_long_ledgers_are_verified_by_calls_in_proportion_to_their_length():
    def calls(count):
        ledger, made = open_ledger(OPEN), 0
        for number in range(count):
            ledger = spend(ledger, f"{number}", ROUND, None)
        lines = to_lines(ledger)

        def note(frame, event, argument):
            nonlocal made
            made += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            from_lines(lines)
        finally:
            sys.setprofile(before)
        return made

    assert calls(400) < 5 * calls(100)
