"""ε after each release, from ledgers alone: also of what was charged before a restart."""

import time

from fedvi import errors
from fedvi.privacy import accountants, events
from fedvi.privacy import ledger as ledgers
from fedvi.server.watch.page_spending import Curve, Spending

COST = events.Gaussian(8.0)
BUDGET = ledgers.Budget(3.0, 1e-5, accountants.pld("substitute"))


def book(client: str, charged: int, cost: events.Event = COST) -> ledgers.Ledger:
    header = ledgers.Header("t", "ab12", client, "record", "substitute", "message", True)
    made = ledgers.open_ledger(header)
    for number in range(charged):
        name = f"{client}/{number}#0"
        made = ledgers.spend(made, name, cost, BUDGET)
        made = ledgers.seal(made, name, "ab")
    return made


def priced(spending: Spending, books: dict[str, ledgers.Ledger]) -> tuple[Curve, ...]:
    """Asks until the thread is done."""
    until = time.monotonic() + 20.0
    spending.curves(books)
    while spending._work is not None:
        assert time.monotonic() < until
        time.sleep(0.01)
        spending.curves(books)
    return spending.curves(books)


def test_each_point_is_the_price_of_the_releases_up_to_it():
    spending = Spending(BUDGET)
    found = priced(spending, {"a": book("a", 3), "b": book("b", 3), "c": book("c", 1)})
    spending.close()
    expected = [BUDGET.accountant.epsilon(events.repeat(COST, k), 1e-5) for k in (1, 2, 3)]
    assert found == (
        Curve(("a", "b"), tuple(zip((1, 2, 3), expected, strict=True))),
        Curve(("c",), ((1, expected[0]),)),
    )


def test_what_changed_is_priced_again_and_what_did_not_is_not():
    spending, first = Spending(BUDGET), {"a": book("a", 1)}
    before = priced(spending, first)
    known = dict(spending._known)
    assert spending.curves(first) == before
    assert spending._work is None
    after = priced(spending, {"a": book("a", 2)})
    spending.close()
    assert [len(curve.points) for curve in after] == [2]
    assert after[0].points[0] == before[0].points[0]
    assert known.items() <= spending._known.items()


def test_nothing_is_priced_without_a_budget_or_before_the_first_release():
    for budget in (None, BUDGET):
        spending = Spending(budget)
        assert priced(spending, {"a": book("a", 0)}) == ()
        spending.close()


def test_what_the_accountant_does_not_know_leaves_no_half_of_a_picture():
    class Unknowing:
        name, relation = "pld", "substitute"

        def supports(self, event):
            return False

        def epsilon(self, event, delta):
            raise errors.UnsupportedEvent("this event is not known")

        delta = epsilon

    spending = Spending(ledgers.Budget(3.0, 1e-5, Unknowing()))
    assert priced(spending, {"a": book("a", 2)}) == ()
    spending.close()
