"""Claims about what sums over clients cost: docs/proofs/aggregate_view.md, in numbers."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from fedvi import errors
from fedvi.privacy import caveats, events, joint_claims, ledger, statement
from fedvi.privacy.accountants import pld, rdp
from fedvi.privacy.delta_parts import with_tables
from fedvi.privacy.sums import Sums, in_sum, of_messages, with_sums

DELTA = 1e-5


def rounded(sigma: float, reach: int) -> np.ndarray:
    """The law of round(N(0, σ²)) on −reach … reach."""
    edges = np.arange(-reach, reach + 2) - 0.5
    return np.diff(scipy.stats.norm.cdf(edges, scale=sigma))


def several(sigma: float, count: int, reach: int) -> np.ndarray:
    """The law of the sum of ``count`` such numbers."""
    law = one = rounded(sigma, reach)
    for _ in range(count - 1):
        law = np.convolve(law, one)
    middle = len(law) // 2
    return law[middle - reach : middle + reach + 1]


def post_processed(sigma: float, count: int, reach: int) -> np.ndarray:
    """The law of round(Z + V), Z of variance count·σ², V of count − 1 uniforms: by its transform."""

    def at(k: int) -> float:
        def real(u: float) -> float:
            smooth = math.exp(-0.5 * count * (sigma * u) ** 2)
            return smooth * np.sinc(u / (2 * np.pi)) ** count * math.cos(u * k)

        end = 40.0 / sigma
        found, _ = scipy.integrate.quad(real, 0.0, end, limit=2000, epsabs=1e-14)
        return found / np.pi

    return np.array([at(k) for k in range(-reach, reach + 1)])


def bound(sigma: float, count: int) -> float:
    """The proof's bound on one probability, for fineness 1."""
    alias = 2.1 * math.exp(-((math.pi * sigma) ** 2) / 2)
    return (count + 1) * alias * (1 + alias) ** count


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 2), (1.5, 5), (2.5, 3)])
def test_a_sum_of_rounded_gaussians_is_a_rounding_of_the_sum(sigma, count):
    reach = math.ceil(8 * sigma * math.sqrt(count))
    apart = np.abs(several(sigma, count, reach) - post_processed(sigma, count, reach)).max()
    # 1e-12: quadrature, and tails beyond what is convolved.
    assert apart <= bound(sigma, count) + 1e-12
    assert bound(4096.0, 10**6) == 0.0


def test_coarse_noise_is_no_such_rounding():
    """At σ of a third of a step the two laws part: the bound is about something."""
    apart = np.abs(several(0.3, 3, 6) - post_processed(0.3, 3, 6)).max()
    assert 1e-3 < apart <= bound(0.3, 3)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_a_move_of_the_sum_costs_what_the_gaussian_of_all_noise_says(epsilon):
    sigma, count, move, reach = 2.5, 4, 3, 60
    law = several(sigma, count, reach)
    moved = np.roll(law, move)

    def price(of: int) -> float:
        mu = move / (sigma * math.sqrt(of))
        tail = scipy.stats.norm.cdf
        return tail(mu / 2 - epsilon / mu) - math.exp(epsilon) * tail(-mu / 2 - epsilon / mu)

    delta = np.maximum(moved - math.exp(epsilon) * law, 0.0).sum()
    assert delta <= price(count) + 1e-9
    # One noise more than there is would be too much credit.
    assert delta > price(count + 1)


def test_the_price_is_that_of_a_sum_that_colluding_clients_look_through():
    share, sums = 1.3, Sums(least_reporting=7, colluding=2)
    found = in_sum(events.Gaussian(share), sums.honest)
    assert found.noise_multiplier == pytest.approx(share * math.sqrt(7 - 2), rel=1e-12)
    rounds = events.repeat(events.Gaussian(share), 9)
    of_sums = with_sums(pld("substitute"), sums).epsilon(rounds, DELTA)
    whole = events.repeat(events.Gaussian(share * math.sqrt(5)), 9)
    assert of_sums == pld("substitute").epsilon(whole, DELTA)
    assert of_sums < pld("substitute").epsilon(rounds, DELTA)


def test_a_batch_stays_a_batch():
    event = events.Repeated(events.PoissonSampled(0.1, events.Gaussian(2.0), 1e-12), 5)
    found = in_sum(event, 4)
    assert found == events.Repeated(events.PoissonSampled(0.1, events.Gaussian(4.0), 1e-12), 5)
    fixed = events.WithoutReplacement(2, 10, events.Gaussian(2.0))
    assert in_sum(events.Composed((fixed, fixed)), 4).events[0].inner.noise_multiplier == 4.0


def test_noise_without_a_law_of_sums_has_no_price():
    with pytest.raises(errors.UnsupportedEvent, match="has no price in sums"):
        in_sum(events.DiscreteGaussian(2.0), 3)
    accountant = with_sums(rdp("substitute"), Sums(3, 0))
    assert not accountant.supports(events.DiscreteGaussian(2.0))
    assert accountant.supports(events.Gaussian(2.0))


def test_what_is_unprotected_stays_so():
    assert in_sum(events.Unprotected("a factor"), 5) == events.Unprotected("a factor")


@pytest.mark.parametrize("sums", [Sums(3, 3), Sums(3, 4), Sums(2, -1)])
def test_nobody_hides_among_clients_that_all_collude(sums):
    with pytest.raises(errors.ConfigError, match="colluding is"):
        with_sums(pld("substitute"), sums)


def test_tables_are_paid_for_once_and_the_way_back_is_whole():
    plain, sums = pld("substitute"), Sums(5, 1)
    both = with_tables(with_sums(plain, sums), 1e-12)
    assert with_sums(both, sums) == both == with_sums(with_tables(plain, 1e-12), sums)
    assert of_messages(both) == with_tables(plain, 1e-12)
    with pytest.raises(errors.ConfigError, match="sums of 4 noises"):
        with_sums(both, Sums(5, 2))


def header(**changes: object) -> ledger.Header:
    found = ledger.Header("heart", "ab12", "north", "record", "substitute", "aggregate", True)
    found = found._replace(
        planned=events.repeat(events.Gaussian(3.0), 4),
        epsilon=1.0,
        delta=DELTA,
        accountant="pld",
        least_reporting=9,
        colluding=0,
    )
    return found._replace(**changes)


def test_a_ledger_keeps_who_must_answer_and_its_hash_covers_it():
    book = ledger.open_ledger(header())
    lines = ledger.to_lines(book)
    assert ledger.from_lines(lines).header == book.header
    assert '"least_reporting":9' in lines[0]
    fewer = lines[0].replace('"least_reporting":9', '"least_reporting":8')
    with pytest.raises(errors.LedgerError):
        ledger.from_lines([fewer])


def test_a_header_of_the_view_message_is_written_as_before():
    plain = header(view="message", least_reporting=None, colluding=None)
    (line,) = ledger.to_lines(ledger.open_ledger(plain))
    assert "least_reporting" not in line
    assert "colluding" not in line


@pytest.mark.parametrize(
    "changes",
    [
        {"view": "message"},
        {"least_reporting": None},
        {"colluding": None},
        {"least_reporting": None, "colluding": None},
        {"colluding": 9},
        {"colluding": -1},
    ],
)
def test_a_header_with_half_a_view_is_refused(changes):
    with pytest.raises(errors.LedgerError, match=r"`view`|`colluding`"):
        ledger.open_ledger(header(**changes))


def test_a_budget_is_held_against_the_headers_view_whatever_it_was_made_for():
    event = events.Gaussian(3.0)
    price = with_sums(pld("substitute"), Sums(9, 0)).epsilon(event, DELTA)
    for accountant in (pld("substitute"), with_sums(pld("substitute"), Sums(9, 0))):
        budget = ledger.Budget(1.001 * price, DELTA, accountant)
        head = header(epsilon=1.001 * price, planned=event)
        book = ledger.spend(ledger.open_ledger(head), "north/0#0", event, budget)
        with pytest.raises(errors.BudgetExceeded):
            ledger.spend(book, "north/1#0", event, budget)
        # The credit of sums is no ledger's whose messages are seen.
        plain = head._replace(view="message", least_reporting=None, colluding=None)
        with pytest.raises(errors.BudgetExceeded):
            ledger.spend(ledger.open_ledger(plain), "north/0#0", event, budget)


def test_a_statement_prints_what_sums_tell_and_what_messages_tell():
    book = ledger.open_ledger(header())
    planned = book.header.planned
    found = statement.claims(book, planned, DELTA, [pld("add_remove"), pld("substitute")])
    assert [(c.view, c.relation) for c in found] == [
        ("aggregate", "add_remove"),
        ("aggregate", "substitute"),
        ("message", "add_remove"),
        ("message", "substitute"),
    ]
    whole = events.repeat(events.Gaussian(9.0), 4)
    assert found[1].epsilon == pytest.approx(pld("substitute").epsilon(whole, DELTA), rel=1e-9)
    assert found[3].epsilon == pld("substitute").epsilon(planned, DELTA)
    assert caveats.TRUSTED in found[0].declarations
    assert caveats.TRUSTED not in found[2].declarations
    other = [claim._replace(client="south") for claim in found]
    joined = joint_claims.consortium([*found, *other], disjoint=True)
    assert [(c.view, c.relation, c.epsilon) for c in joined] == [
        (c.view, c.relation, c.epsilon) for c in found
    ]
    text = statement.to_text(found)
    assert "view aggregate" in text
    assert "view message" in text
    assert "9 or more clients, and at most 0 of these" in text


def test_a_unit_at_several_clients_moves_one_sum_by_more_than_prices_add_up_to():
    """Without `disjoint`, what all clients claim together is what their messages cost."""
    clients, planned = 10, events.Gaussian(1.0)
    names = [f"site{index}" for index in range(clients)]
    parts = []
    for name in names:
        book = ledger.open_ledger(
            header(client=name, least_reporting=10, colluding=1, planned=planned, epsilon=99.0)
        )
        parts += statement.claims(book, planned, DELTA, [pld("substitute")])
    single = {part.view: part.epsilon for part in parts}
    # One unit at each: the nine honest answers, which whoever colludes gets by taking away its own, move
    # nine times as far in their sum, and hold nine noises.
    whole = events.Gaussian(3.0, substitute=9 * planned.substitute)
    truth = pld("substitute").epsilon(whole, DELTA)
    # Neither ten prices of one sum, nor ten sums as one sequence, would be enough.
    assert clients * single["aggregate"] < truth
    assert pld("substitute").epsilon(events.repeat(events.Gaussian(3.0), clients), DELTA) < truth
    joined = {part.view: part for part in joint_claims.consortium(parts, disjoint=False)}
    all_messages = events.repeat(planned, clients)
    assert joined["aggregate"].epsilon == pld("substitute").epsilon(all_messages, DELTA)
    assert joined["aggregate"].epsilon >= truth
    assert joined["aggregate"].delta == DELTA
    apart = {part.view: part for part in joint_claims.consortium(parts, disjoint=True)}
    assert apart["aggregate"].epsilon == pytest.approx(single["aggregate"])
    with pytest.raises(errors.ConfigError, match="have none of messages beside them"):
        joint_claims.consortium([p for p in parts if p.view == "aggregate"], disjoint=False)
