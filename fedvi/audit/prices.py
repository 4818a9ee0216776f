"""Compares charges, stated prices and refusals with an independent second count."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from fedvi import errors
from fedvi.audit import second_price
from fedvi.audit.charges import Charge, charges
from fedvi.audit.findings import Finding, judged, not_checked
from fedvi.audit.noise import FALSE_ALARM
from fedvi.privacy import accountants, events, ledger
from fedvi.privacy.base import Mechanism
from fedvi.privacy.statement import Claim

__all__ = ["Public", "check_prices"]

_DRAWS = 20_000
"""Noised numbers drawn for each client's part of a sum, whose std is then known to half a per cent."""

_FULL = 64
"""How many releases fill the budget of the test ledger: each takes one to two hundredths of it."""


class Public(NamedTuple):
    """A study's public numbers, from which prices are computed a second time.

    Attributes:
      solver: its kind.
      settings: of the solver, from the study.
      unit, relation, view: of the promise.
      visits: how often a client answers at most.
      clients: the number of clients.
      noise: std of the noise in one message, in clip norms.
      rate: the probability that a unit is in a batch.
      fixed: whether batches have a fixed size.
      batch, slots: of a batch of fixed size; else 0.
      least_reporting, colluding: of the view "aggregate", whose sums have the noise of so many answers, of
        which so many are known; else 1 and 0.
      epsilon, delta, accountant: of the promise.
    """

    solver: str
    settings: Mapping[str, Any]
    unit: str
    relation: str
    view: str
    visits: int
    clients: int
    noise: float
    rate: float
    fixed: bool
    batch: int
    slots: int
    least_reporting: int
    colluding: int
    epsilon: float
    delta: float
    accountant: str

    def noises(self, view: str) -> tuple[int, int]:
        """Returns the fewest noises in a sum that ``view`` shows, and how many the observer knows."""
        return (1, 0) if view == "message" else (self.least_reporting, self.colluding)


def check_prices(
    public: Public,
    cost: events.Event,
    claims: Sequence[Claim],
    mechanism: Mechanism | None,
    in_sums: events.Event | None,
    seed: int = 0,
) -> list[Finding]:
    """Compares prices with an independent second computation, which shares no code with the first.

    Args:
      public: the study's public numbers.
      cost: the event that the solver announces for one visit.
      claims: the statement's claims about one client's planned releases.
      mechanism: draws the noise of several clients; None if there is none.
      in_sums: the event of one visit as fedvi prices it in sums; None under the view "message".
      seed: of the noise drawn here.
    """
    releases = second_price.planned(
        public.solver, public.settings, public.unit, public.noise, public.rate, public.fixed
    )
    found = _budgets(public)
    if releases is None:
        return [
            *found,
            not_checked(
                "price",
                "prices counted again",
                f"the audit does not know the solver {public.solver!r}, and so not what its releases "
                "should be charged; a solver of your own needs a proof of its own",
            ),
        ]
    found = [
        _charged(public, releases, charges(cost)),
        *(_stated(public, releases, claim) for claim in claims),
        _kept(public, releases),
        *found,
    ]
    if in_sums is not None:
        found.append(_sum_of_noises(public, charges(in_sums), mechanism, seed))
    return found


def _charged(
    public: Public, releases: Sequence[second_price.Release], found: Sequence[Charge | None]
) -> Finding:
    """Checks that a visit is charged for exactly the noised sums that its solver should make."""
    expected = [
        Charge(
            release.noise,
            release.add_remove,
            release.substitute,
            rate=release.rate,
            poisson=release.rate < 1.0 and not release.fixed,
            batch=public.batch,
            slots=public.slots,
        )
        for release in releases
    ]
    apart = [
        name
        for name in Charge._fields
        if len(found) != len(expected)
        or any(
            one is None or not math.isclose(getattr(one, name), getattr(other, name), rel_tol=1e-6)
            for one, other in zip(found, expected, strict=True)
        )
    ]
    passed = not apart
    one, other = (found[0] if found else None), expected[0]
    return judged(
        "price",
        "what a visit is charged",
        passed,
        f"{len(found)} noised sums of {len(expected)}: {one} of {other}",
        "noise, shifts and rate of each release are those that the solver, sampler and unit ask for",
        f"a visit is charged something else than its releases: {', '.join(apart)}",
        {"apart": apart, "charged": len(found), "expected": len(expected)},
    )


def _stated(public: Public, releases: list[second_price.Release], claim: Claim) -> Finding:
    name = f"stated ε, {claim.view}, {claim.relation}"
    noises = public.noises(claim.view)
    least = second_price.attained(releases, public.visits, claim.relation, claim.delta, noises)
    room = second_price.TOLERANCE if public.rate < 1.0 else 1e-4
    what = "what an adversary attains on one pair of data sets"
    if claim.accountant in ("rdp", "zcdp"):
        by_orders = second_price.by_orders(
            releases, public.visits, claim.relation, claim.delta, noises, claim.accountant == "rdp"
        )
        if by_orders > least:
            least, room, what = by_orders, 1e-4, "the bound by the best of all orders"
    passed = claim.epsilon >= least * (1.0 - room)
    return judged(
        "price",
        name,
        passed,
        f"ε {claim.epsilon:.5g} by {claim.accountant}, counted again {least:.5g}",
        f"the ε that a statement says is not below {what}",
        f"the ε that a statement says is below {what}: it promises what does not hold",
        {"stated": claim.epsilon, "attained": least, "noises": list(noises)},
    )


def _kept(public: Public, releases: list[second_price.Release]) -> Finding:
    noises = public.noises(public.view)
    least = second_price.attained(releases, public.visits, public.relation, public.delta, noises)
    passed = least <= public.epsilon * (1.0 + second_price.TOLERANCE)
    return judged(
        "price",
        "the promise, counted again",
        passed,
        f"ε {least:.5g} attained of {public.epsilon:g} promised",
        "with this noise, so many visits and this view the promise is not refuted by arithmetic",
        "the noise is too small for the promise, whatever an accountant says",
        {"attained": least, "promised": public.epsilon, "noises": list(noises)},
    )


def _sum_of_noises(
    public: Public, priced: Sequence[Charge | None], mechanism: Mechanism | None, seed: int
) -> Finding:
    """Tests the noise left in a sum of k_min clients once t colluding clients subtract theirs."""
    name = "noise left in a sum"
    if mechanism is None:
        return not_checked("price", name, "there is no mechanism whose noise could be added up")
    grid = getattr(mechanism, "grid", lambda _: None)(1.0)
    step = 1.0 if grid is None else grid.step
    zeros = jnp.zeros(_DRAWS, jnp.float32 if grid is None else jnp.int32)

    @jax.jit
    def answer(key: Any) -> Any:
        return mechanism.perturb(key, zeros, 1.0)

    keys = jax.random.split(jax.random.key(seed), public.least_reporting)
    answers = np.stack([np.asarray(answer(key), np.float64) for key in keys]) * step
    left = answers.sum(axis=0) - answers[: public.colluding].sum(axis=0)
    claimed = min(charge.noise_multiplier if charge else 0.0 for charge in priced)
    square = float((left**2).sum() / claimed**2) if claimed > 0.0 else 0.0
    chance = float(scipy.stats.chi2.cdf(square, _DRAWS)) if claimed > 0.0 else 1.0
    ratio = math.sqrt(square / _DRAWS)
    exact = second_price.left_in_sum(public.noise, public.least_reporting, public.colluding)
    passed = chance >= FALSE_ALARM and claimed <= exact * (1.0 + 1e-9)
    return judged(
        "price",
        name,
        passed,
        f"std {ratio:.4g} × priced, of {public.least_reporting} answers less {public.colluding} known "
        f"ones; priced {claimed:.5g}, counted again {exact:.5g} clip norms",
        "what is left of a sum's noise, once known answers are subtracted, is what it is priced for",
        "a sum is priced for more noise than is left in it once known answers are subtracted",
        {"ratio": ratio, "priced": claimed, "exact": exact, "p_value": chance},
    )


def _budgets(public: Public) -> list[Finding]:
    """Charges small releases to a ledger with the study's budget until it refuses one."""
    relation: events.Relation = "add_remove" if public.relation == "add_remove" else "substitute"
    shift = 1.0 if relation == "add_remove" else 2.0
    accountant = getattr(accountants, public.accountant)(relation)
    # About 64 releases then fill the budget; accountants other than `pld` admit fewer.
    mu = _mu_of(public.epsilon, public.delta)
    noise = shift * math.sqrt(_FULL) / mu
    budget = ledger.Budget(public.epsilon, public.delta, accountant)
    header = ledger.Header("audit", "0", "audit", "record", relation, "message", True)
    book, admitted = ledger.open_ledger(header), 0
    # Charge most of them together, since each price takes a while.
    event: events.Event = events.Gaussian(noise)
    for count in (_FULL // 4, _FULL // 4, _FULL // 8, *[1] * _FULL):
        try:
            book = ledger.spend(
                book, f"audit/{len(book.entries)}", events.repeat(event, count), budget
            )
        except errors.BudgetExceeded:
            continue
        admitted += count
    least = second_price.attained(
        [second_price.Release(noise, 1.0, 2.0)], max(admitted, 1), relation, public.delta, (1, 0)
    )
    refused = admitted < 2 * _FULL - _FULL // 4 - _FULL // 8
    passed = refused and admitted > 0 and least <= public.epsilon * (1.0 + 1e-4)
    # Accountants of Rényi orders admit less: compare those with the bound by the best order.
    if passed and public.accountant in ("rdp", "zcdp"):
        by_orders = second_price.by_orders(
            [second_price.Release(noise, 1.0, 2.0)], admitted, relation, public.delta, (1, 0), True
        )
        least, passed = by_orders, by_orders <= public.epsilon * (1.0 + 1e-4)
    spent = judged(
        "price",
        "a ledger stops at its budget",
        passed,
        f"{admitted} releases of noise {noise:.4g} admitted, which cost ε {least:.5g} of "
        f"{public.epsilon:g}",
        "a ledger refuses the first release that its budget does not pay for",
        "a ledger admits releases that its budget does not pay for",
        {"admitted": admitted, "attained": least},
    )
    return [spent, _chain(book)]


def _mu_of(epsilon: float, delta: float) -> float:
    """Returns the μ of Gaussian noise that attains ε at δ."""
    low, high = 1e-6, 1e3
    for _ in range(80):
        middle = math.sqrt(low * high)
        found = second_price.attained(
            [second_price.Release(1.0 / middle, 1.0, 1.0)], 1, "add_remove", delta, (1, 0)
        )
        low, high = (middle, high) if found < epsilon else (low, middle)
    return low


def _chain(book: ledger.Ledger) -> Finding:
    """Tampers with a ledger's lines to hide a release, and checks that reading refuses them."""
    name = book.entries[0].release_id
    book = ledger.mark_sent(ledger.seal(book, name, "0" * 64), name)
    lines = ledger.to_lines(book)
    second = lines[2] if len(lines) > 2 else lines[1]
    changed: dict[str, Callable[[], list[str]]] = {
        "an entry taken out": lambda: [*lines[:2], *lines[3:]],
        "the first entry taken out": lambda: [lines[0], *lines[2:]],
        "two entries exchanged": lambda: [lines[0], lines[2], lines[1], *lines[3:]],
        "an entry written again": lambda: [*lines, lines[-1]],
        "a cheaper event": lambda: [
            *lines[:2],
            second.replace('"noise_multiplier":', '"noise_multiplier":9'),
            *lines[3:],
        ],
        "a cheaper event under a hash of its own": lambda: [
            *lines[:2],
            _forged(second),
            *lines[3:],
        ],
        "another promise": lambda: [lines[0].replace('"record"', '"client"'), *lines[1:]],
    }
    taken = [what for what, lines_of in changed.items() if _is_read(lines_of())]
    sound = _is_read(lines)
    passed = sound and not taken
    return judged(
        "price",
        "a changed ledger is refused",
        passed,
        f"{len(changed)} changes, {len(taken)} read as if nothing were wrong",
        "no entry of a ledger can be taken out, exchanged or made cheaper unseen",
        f"a ledger is read as sound after: {', '.join(taken)}"
        if sound
        else "a ledger that is sound is refused",
        {"taken": taken},
    )


def _forged(line: str) -> str:
    """Makes an entry's event cheaper, and recomputes its hash, as anybody could."""
    entry = json.loads(line)
    hash_of = entry.pop("hash")

    def hashed(fields: dict[str, Any]) -> str:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    assert hashed(entry) == hash_of, "the form of a ledger's entries is another one"
    text = json.dumps(entry["event"]).replace('"noise_multiplier": ', '"noise_multiplier": 9')
    entry["event"] = json.loads(text)
    return json.dumps({**entry, "hash": hashed(entry)}, sort_keys=True, separators=(",", ":"))


def _is_read(lines: list[str]) -> bool:
    try:
        ledger.verify(ledger.from_lines(lines))
    except errors.FedviError:
        return False
    return True
