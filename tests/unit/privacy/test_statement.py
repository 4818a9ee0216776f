"""Statements: what is claimed is never less than what was spent, and says what it leaves out."""

import json
import math

import pytest

from fedvi.errors import ConfigError, UnsupportedEvent
from fedvi.privacy import statement
from fedvi.privacy.accountants import pld
from fedvi.privacy.events import Gaussian, PoissonSampled, Unprotected, repeat
from fedvi.privacy.ledger import Budget, Header, open_ledger, seal, spend
from fedvi.privacy.statement import Claim, as_dict, claims, consortium

HEADER = Header("heart", "ab12", "north", "record", "substitute", "message", True)
ACCOUNTANTS = (pld("add_remove"), pld("substitute"))
ROUND = Gaussian(30.0)
DELTA = 1e-5


def ledger_of(count, header=HEADER):
    ledger = open_ledger(header)
    for number in range(count):
        ledger = spend(ledger, f"round {number}", ROUND, Budget(5.0, DELTA, ACCOUNTANTS[1]))
    return ledger


def test_a_claim_states_the_planned_releases_whenever_the_run_stops():
    found = claims(ledger_of(2), repeat(ROUND, 10), DELTA, ACCOUNTANTS)
    assert [claim.relation for claim in found] == ["add_remove", "substitute"]
    for claim, accountant in zip(found, ACCOUNTANTS, strict=True):
        assert claim == Claim(
            client="north",
            unit="record",
            relation=accountant.relation,
            view="message",
            epsilon=accountant.epsilon(repeat(ROUND, 10), DELTA),
            delta=DELTA,
            accountant="pld",
            releases=2,
            exclusions=statement.EXCLUSIONS,
            mark="",
        )


def test_a_claim_is_never_less_than_what_was_spent():
    for claim, accountant in zip(
        claims(ledger_of(4), ROUND, DELTA, ACCOUNTANTS), ACCOUNTANTS, strict=True
    ):
        assert claim.epsilon == accountant.epsilon(repeat(ROUND, 4), DELTA)


def test_a_release_counts_once_however_far_it_came():
    ledger = seal(ledger_of(2), "round 0", "d")
    assert [c.releases for c in claims(ledger, ROUND, DELTA, ACCOUNTANTS)] == [2, 2]


def test_a_mark_is_carried_and_excludes_float_noise():
    marked = ledger_of(1, HEADER._replace(note="simulation: no guarantee"))
    claim = claims(marked, ROUND, DELTA, ACCOUNTANTS[:1])[0]
    assert claim.mark == "simulation: no guarantee"
    assert statement.FLOAT_NOISE in claim.exclusions
    assert set(statement.EXCLUSIONS) < set(claim.exclusions)


def test_what_left_unprotected_is_claimed_as_infinite_and_written_as_json():
    ledger = spend(
        open_ledger(HEADER._replace(protected=False)), "x", Unprotected("a factor"), None
    )
    claim = claims(ledger, ROUND, DELTA, ACCOUNTANTS[:1])[0]
    assert claim.epsilon == math.inf
    written = json.loads(json.dumps(as_dict(claim), allow_nan=False))
    assert written["epsilon"] == "inf"
    assert written["exclusions"] == list(statement.EXCLUSIONS)


def test_what_a_file_s_form_gives_away_is_excluded_from_every_claim():
    assert statement.FORM_OF_FILE in claims(ledger_of(1), ROUND, DELTA, ACCOUNTANTS)[0].exclusions
    assert "max_records" in statement.FORM_OF_FILE


def test_two_numbers_for_one_relation_are_refused():
    with pytest.raises(ConfigError, match="each relation once"):
        claims(ledger_of(1), ROUND, DELTA, (ACCOUNTANTS[0], ACCOUNTANTS[0]))


def test_an_unknown_event_is_not_claimed():
    with pytest.raises(UnsupportedEvent):
        claims(ledger_of(1), PoissonSampled(0.1, Gaussian(1.0, 2.0)), DELTA, ACCOUNTANTS)


def claim_of(client, epsilon, relation="substitute", delta=DELTA, **changes):
    claim = Claim(
        client, "record", relation, "message", epsilon, delta, "pld", 3, statement.EXCLUSIONS, ""
    )
    return claim._replace(**changes)


PARTS = [
    claim_of("north", 1.0, "add_remove"),
    claim_of("north", 2.0),
    claim_of("south", 1.5, "add_remove", delta=1e-6),
    claim_of("south", 1.75, mark="simulation: no guarantee", exclusions=("more",)),
]


def test_disjoint_sites_pay_the_maximum_and_say_for_whom_it_is_more():
    add_remove, substitute = consortium(PARTS, disjoint=True)
    assert (add_remove.relation, add_remove.epsilon, add_remove.delta) == ("add_remove", 1.5, 1e-5)
    assert (substitute.relation, substitute.epsilon) == ("substitute", 2.0)
    assert substitute.mark == "simulation: no guarantee"
    assert substitute.exclusions == (
        *statement.EXCLUSIONS,
        "more",
        "a person whose records are at k sites pays k times",
    )
    assert substitute.client == "all 2 clients"
    assert substitute.releases == 6


def test_sites_that_may_share_persons_pay_the_sum():
    add_remove, substitute = consortium(PARTS, disjoint=False)
    assert (add_remove.epsilon, add_remove.delta) == (2.5, pytest.approx(1.1e-5, rel=1e-12))
    assert (substitute.epsilon, substitute.delta) == (3.75, pytest.approx(2e-5, rel=1e-12))
    assert statement.ADDED_UP in substitute.exclusions
    assert statement.PERSONS_AT_SEVERAL_SITES not in substitute.exclusions


def test_one_infinite_claim_makes_the_whole_infinite():
    for disjoint in (True, False):
        joined = consortium([claim_of("north", math.inf), claim_of("south", 1.0)], disjoint)
        assert joined[0].epsilon == math.inf


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ([], "no claim"),
        ([claim_of("north", 1.0), claim_of("north", 2.0)], "2 claims of 1 clients"),
        (PARTS[:3], "3 claims of 2 clients"),
        ([claim_of("north", 1.0), claim_of("south", 1.0, unit="client")], "`unit`"),
        ([claim_of("north", 1.0), claim_of("south", 1.0, view="aggregate-trusted")], "`view`"),
    ],
)
def test_claims_that_do_not_belong_together_are_refused(parts, match):
    with pytest.raises(ConfigError, match=match):
        consortium(parts, disjoint=True)
