"""Claims about ledgers that are charged together: each is the ledger of the same steps alone."""

import pytest

from fedvi import errors
from fedvi.privacy import events
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.accountants import pld
from fedvi.privacy.many_ledgers import alike

NAMES = ("north", "south", "east")
COST = events.Gaussian(3.0, add_remove=1.0, substitute=2.0)
OTHER = events.Gaussian(5.0, add_remove=1.0, substitute=2.0)


def opened(name, **changes):
    header = ledgers.Header("heart", "ab12", name, "record", "add_remove", "message", True)
    return ledgers.open_ledger(header._replace(**changes))


def alone(book, name, suffix, digest, cost=COST):
    book = ledgers.charge(book, name + suffix, cost)
    return ledgers.mark_sent(ledgers.seal(book, name + suffix, digest), name + suffix)


@pytest.fixture
def budget():
    return ledgers.Budget(5.0, 1e-5, pld("add_remove"))


@pytest.mark.parametrize("begun", [False, True])
def test_each_ledger_is_that_of_its_steps_alone(begun, budget):
    books = {name: opened(name) for name in NAMES}
    if begun:
        books = {name: alone(book, name, "/0#0", "d0") for name, book in books.items()}
    together = alike(books)
    for visit in (1, 2):
        suffix = f"/{visit}#0"
        together = together.spend(suffix, COST, budget)
        together = together.seal(suffix, tuple(f"{name}{visit}" for name in NAMES))
        together = together.mark_sent(suffix)
        books = {name: alone(book, name, suffix, f"{name}{visit}") for name, book in books.items()}
    assert dict(together) == books
    for book in together.values():
        ledgers.verify(book)
    assert ledgers.tally(together.first) == ledgers.tally(books["south"])


def test_what_does_not_fit_the_budget_is_charged_to_nobody(budget):
    together = alike({name: opened(name) for name in NAMES})
    dear = events.Gaussian(0.1, add_remove=1.0, substitute=2.0)
    with pytest.raises(errors.BudgetExceeded):
        together.spend("/0#0", dear, budget)
    assert all(not book.entries for book in together.values())


def test_ledgers_of_other_promises_or_prices_are_not_alike():
    same = {name: opened(name) for name in NAMES}
    assert alike(same) is not None
    assert alike({}) is None
    assert alike({**same, "east": opened("east", note="another")}) is None
    assert alike({**same, "east": alone(same["east"], "east", "/0#0", "d")}) is None
    spent = {name: alone(book, name, "/0#0", "d") for name, book in same.items()}
    assert alike({**spent, "east": alone(same["east"], "east", "/0#0", "d", OTHER)}) is None
    open_ = {name: ledgers.charge(book, name + "/0#0", COST) for name, book in same.items()}
    assert alike(open_) is None


def test_a_release_is_reserved_once_and_goes_through_its_states(budget):
    books = {name: alone(opened(name), name, "/0#0", "d") for name in NAMES}
    together = alike(books)
    with pytest.raises(errors.LedgerError):
        together.spend("/0#0", COST, budget)
    with pytest.raises(errors.LedgerError):
        together.seal("/1#0", ("a", "b", "c"))
    charged = together.spend("/1#0", COST, budget)
    with pytest.raises(errors.LedgerError):
        charged.mark_sent("/1#0")
    with pytest.raises(errors.LedgerError):
        charged.seal("/1#0", ("a", "b"))
