"""What an operator reads of a run: prices of what was charged, and who answered a fold."""

import threading
from types import SimpleNamespace
from typing import Any

from fedvi.privacy import accountants, mechanisms
from fedvi.privacy import ledger as ledgers
from fedvi.privacy.base import Shift
from fedvi.privacy.ledger import Budget, Header
from fedvi.server.core import run_events
from fedvi.server.core.prices import Prices
from fedvi.server.core.protocol import Update

HEADER = Header("heart", "ab12", "north", "record", "substitute", "message", True)

EVENT = mechanisms.gaussian(8.0).event(Shift(1.0, 1.0, 2.0))
BUDGET = Budget(4.0, 1e-5, accountants.pld("substitute"))


def priced(prices: Prices, ledger: Any) -> float | None:
    """Asks, waits until all that is queued is priced, and asks again."""
    prices.epsilon(ledger)
    done = threading.Event()
    prices.update({}, lambda _: done.set())
    assert done.wait(60.0)
    return prices.epsilon(ledger)


def test_a_new_charge_never_has_the_price_of_the_charges_before_it() -> None:
    prices, ledger = Prices(BUDGET), ledgers.open_ledger(HEADER)
    assert priced(prices, ledger) == 0.0
    for count in (1, 2):
        ledger = ledgers.spend(ledger, f"r{count}", EVENT, BUDGET)
        assert prices.epsilon(ledger) is None  # unknown, and not that of one charge fewer
        assert priced(prices, ledger) == BUDGET.accountant.epsilon(
            ledgers.spent(ledger), BUDGET.delta
        )
    prices.close()


def test_folds_that_wait_for_a_price_are_told_when_the_server_closes() -> None:
    prices, told, hold = Prices(BUDGET), [], threading.Event()
    prices.update({}, lambda _: hold.wait(60.0))
    prices.update({"north": ledgers.open_ledger(HEADER)}, told.append)
    threading.Timer(0.1, hold.set).start()
    prices.close()
    assert told == [None]


def test_a_late_answer_is_not_called_missing() -> None:
    spec: Any = SimpleNamespace(schedule=SimpleNamespace(rounds=9))
    update = Update(5, ("north", "south"), (0, 1), 1.0, 4, None, missing=("south", "west"))
    said = run_events.folded(spec, update, {})
    assert "late, for an earlier turn: south" in said
    assert "MISSING: west" in said
