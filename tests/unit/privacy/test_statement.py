"""Statements: what is claimed is never less than what was spent, and says what it leaves out."""

import json
import math

import pytest

from fedvi.errors import BudgetExceeded, ConfigError, PrivacyError, UnsupportedEvent
from fedvi.privacy import caveats, statement
from fedvi.privacy.accountants import pld
from fedvi.privacy.delta_parts import Delta, with_tables
from fedvi.privacy.events import (
    Gaussian,
    PoissonSampled,
    Unprotected,
    WithoutReplacement,
    repeat,
)
from fedvi.privacy.filter import rdp_filter
from fedvi.privacy.joint_claims import consortium
from fedvi.privacy.ledger import (
    TABLES_SHARE,
    Budget,
    Header,
    lifetime_header,
    open_ledger,
    seal,
    spend,
)
from fedvi.privacy.statement import Claim, as_dict, claims, right_guess

HEADER = Header("heart", "ab12", "north", "record", "substitute", "message", True)
ACCOUNTANTS = (pld("add_remove"), pld("substitute"))
ROUND = Gaussian(30.0)
DELTA = 1e-5


def ledger_of(count, header=HEADER):
    ledger = open_ledger(header)
    for number in range(count):
        ledger = spend(ledger, f"round {number}", ROUND, Budget(5.0, DELTA, ACCOUNTANTS[1]))
    return ledger


def excluded(relation):
    return caveats.EXCLUSIONS + ((caveats.SURPLUS,) if relation == "add_remove" else ())


def test_a_claim_states_the_planned_releases_whenever_the_run_stops():
    found = claims(ledger_of(2), repeat(ROUND, 10), DELTA, ACCOUNTANTS)
    assert [claim.relation for claim in found] == ["add_remove", "substitute"]
    for claim, accountant in zip(found, ACCOUNTANTS, strict=True):
        assert claim._replace(priced=None) == Claim(
            client="north",
            unit="record",
            relation=accountant.relation,
            view="message",
            epsilon=accountant.epsilon(repeat(ROUND, 10), DELTA),
            delta=DELTA,
            accountant="pld",
            releases=2,
            exclusions=excluded(accountant.relation),
            mark="",
            items=Delta(DELTA, 0.0, 0.0),
            assumptions=(caveats.PSEUDORANDOM, caveats.ENTROPY),
            declarations=(caveats.FROZEN,),
            right=0.5 + 0.5 * accountant.delta(repeat(ROUND, 10), 0.0),
        )
        assert 0.5 < claim.right < right_guess(claim.epsilon, DELTA)


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
    assert caveats.FLOAT_NOISE in claim.exclusions
    assert set(caveats.EXCLUSIONS) < set(claim.exclusions)


def test_what_left_unprotected_is_claimed_as_infinite_and_written_as_json():
    ledger = spend(
        open_ledger(HEADER._replace(protected=False)), "x", Unprotected("a factor"), None
    )
    claim = claims(ledger, ROUND, DELTA, ACCOUNTANTS[:1])[0]
    assert claim.epsilon == math.inf
    written = json.loads(json.dumps(as_dict(claim), allow_nan=False))
    assert written["epsilon"] == "inf"
    assert written["exclusions"] == list(excluded("add_remove"))


def test_units_beyond_the_declared_number_are_excluded_where_one_may_be_removed():
    add_remove, substitute = claims(ledger_of(1), ROUND, DELTA, ACCOUNTANTS)
    assert caveats.SURPLUS in add_remove.exclusions
    assert caveats.SURPLUS not in substitute.exclusions
    assert "more records than were declared" in caveats.SURPLUS


def test_two_numbers_for_one_relation_are_refused():
    with pytest.raises(ConfigError, match="each relation once"):
        claims(ledger_of(1), ROUND, DELTA, (ACCOUNTANTS[0], ACCOUNTANTS[0]))


def test_an_unknown_event_is_not_claimed():
    with pytest.raises(UnsupportedEvent):
        claims(ledger_of(1), PoissonSampled(0.1, Gaussian(1.0, 2.0)), DELTA, ACCOUNTANTS)


def claim_of(client, epsilon, relation="substitute", delta=DELTA, **changes):
    claim = Claim(
        client, "record", relation, "message", epsilon, delta, "pld", 3, caveats.EXCLUSIONS, ""
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
        *caveats.EXCLUSIONS,
        "more",
        caveats.PERSONS_AT_SEVERAL_SITES,
    )
    assert substitute.client == "all 2 clients"
    assert substitute.releases == 6


@pytest.mark.parametrize("relation", ["add_remove", "substitute"])
@pytest.mark.parametrize(
    ("view", "several"),
    [("message", caveats.CLIENTS_TOGETHER), ("aggregate", caveats.CLIENTS_IN_ONE_SUM)],
)
def test_whole_clients_are_protected_and_what_is_more_than_one_is_told(view, several, relation):
    claims = [claim_of(name, 1.0, relation, unit="client", view=view) for name in ("a", "b")]
    (whole,) = consortium(claims, disjoint=True)
    assert several in whole.exclusions
    assert caveats.PERSONS_AT_SEVERAL_SITES not in whole.exclusions


def test_persons_at_several_sites_are_more_than_added_up_in_one_sum():
    claims = [claim_of(name, 1.0, view="aggregate") for name in ("a", "b")]
    (whole,) = consortium(claims, disjoint=True)
    assert caveats.PERSONS_IN_ONE_SUM in whole.exclusions
    assert caveats.PERSONS_AT_SEVERAL_SITES not in whole.exclusions


def test_sites_whose_claims_cannot_be_composed_pay_the_sum():
    add_remove, substitute = consortium(PARTS, disjoint=False)
    assert (add_remove.epsilon, add_remove.delta) == (2.5, pytest.approx(1.1e-5, rel=1e-12))
    assert (substitute.epsilon, substitute.delta) == (3.75, pytest.approx(2e-5, rel=1e-12))
    assert caveats.AT_SEVERAL_SITES[0].format(unit="record") in substitute.exclusions
    assert caveats.PERSONS_AT_SEVERAL_SITES not in substitute.exclusions


def claims_of_sites(noises, distance=0.0):
    """The claims of one site for each noise multiplier, under both relations."""
    found = []
    for index, noise in enumerate(noises):
        header = HEADER._replace(client=f"site {index}", table_distance=distance)
        found += claims(open_ledger(header), repeat(Gaussian(noise), 10), DELTA, ACCOUNTANTS)
    return found


@pytest.mark.parametrize("noises", [(30.0,) * 4, (20.0, 30.0, 60.0)])
def test_sites_that_may_share_persons_pay_for_all_releases_as_one_sequence(noises):
    """Gaussian noise composes in closed form: 1/σ² of the whole is the sum of 1/σ² over releases."""
    parts = claims_of_sites(noises)
    whole = Gaussian(sum(10 / noise**2 for noise in noises) ** -0.5)
    for joined, accountant in zip(consortium(parts, disjoint=False), ACCOUNTANTS, strict=True):
        alone = [part for part in parts if part.relation == joined.relation]
        assert joined.epsilon == pytest.approx(accountant.epsilon(whole, DELTA), rel=1e-6)
        assert max(part.epsilon for part in alone) < joined.epsilon
        assert joined.epsilon < 0.8 * sum(part.epsilon for part in alone)
        assert joined.delta == DELTA
        assert joined.right == pytest.approx(0.5 + 0.5 * accountant.delta(whole, 0.0), rel=1e-6)
        for line in caveats.AT_SEVERAL_SITES:
            assert line.format(unit="record") in joined.exclusions
        assert "priced" not in as_dict(joined)


def test_what_a_ledger_reserved_beyond_the_plan_counts_in_the_sequence():
    cheap = claims(ledger_of(10), repeat(ROUND, 2), DELTA, ACCOUNTANTS[1:])
    (joined,) = consortium([*cheap, *claims_of_sites((30.0,) * 2)[3:]], disjoint=False)
    assert joined.epsilon >= ACCOUNTANTS[1].epsilon(repeat(ROUND, 20), DELTA)


def test_the_largest_error_of_the_tables_counts_for_all_sites():
    parts = [*claims_of_sites((30.0,), 1e-12)[1:], *claims_of_sites((30.0,) * 2)[3:]]
    (joined,) = consortium(parts, disjoint=False)
    whole = with_tables(ACCOUNTANTS[1], 1e-12)
    assert joined.epsilon == whole.epsilon(repeat(ROUND, 20), DELTA)


@pytest.mark.parametrize("relation", [0, 1])
def test_a_sequence_without_a_finite_price_is_added_up(relation):
    """The error of the tables counts e^ε times: with the ε of all sites it is more than δ."""
    parts = claims_of_sites((3.0,) * 20, 1e-17)[relation::2]
    whole = with_tables(ACCOUNTANTS[relation], 1e-17)
    with pytest.raises(PrivacyError):
        whole.epsilon(repeat(Gaussian(3.0), 200), DELTA)
    (joined,) = consortium(parts, disjoint=False)
    assert joined.epsilon == pytest.approx(sum(part.epsilon for part in parts))
    assert joined.delta == pytest.approx(20 * DELTA)


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


# What delta is made of.

TABLES = 1e-9  # far larger than any table's, so that it shows


def test_delta_is_the_sum_of_its_parts_and_epsilon_pays_for_all_of_them():
    plan = repeat(PoissonSampled(0.1, Gaussian(2.0), overflow=1e-9), 20)
    header = HEADER._replace(table_distance=TABLES)
    (claim,) = claims(open_ledger(header), plan, DELTA, ACCOUNTANTS[:1])
    assert sum(claim.items) == pytest.approx(DELTA, rel=1e-12)
    assert claim.items.overflow == pytest.approx((1 + math.exp(claim.epsilon)) * 20e-9)
    assert claim.items.tables == pytest.approx((1 + math.exp(claim.epsilon)) * 20e-9)
    bare = ACCOUNTANTS[0].epsilon(plan, DELTA)
    assert claim.epsilon > bare
    # What is left for the mechanism and overflow suffices at the stated epsilon.
    assert ACCOUNTANTS[0].delta(plan, claim.epsilon) <= DELTA - claim.items.tables


def test_the_price_of_tables_holds_both_ways():
    priced = with_tables(ACCOUNTANTS[0], TABLES)
    plan = repeat(ROUND, 10)
    assert priced.delta(plan, priced.epsilon(plan, DELTA)) <= DELTA
    assert with_tables(priced, TABLES) == priced
    assert with_tables(ACCOUNTANTS[0], 0.0) is ACCOUNTANTS[0]
    with pytest.raises(PrivacyError, match="tables") as caught:
        priced.epsilon(plan, 1e-8)
    assert "larger delta" in caught.value.hint


@pytest.mark.parametrize("distance", [1e-17, TABLES])
def test_too_little_noise_for_the_tables_is_told_with_the_largest_epsilon(distance):
    priced = with_tables(ACCOUNTANTS[0], distance)
    with pytest.raises(PrivacyError, match="up to an epsilon of about") as caught:
        priced.epsilon(Gaussian(0.1), DELTA)
    largest = float(caught.value.message.rsplit(" ", 1)[1])
    assert largest == pytest.approx(math.log(DELTA / distance), rel=0.01)
    assert "smaller epsilon" in caught.value.hint
    assert priced.delta(Gaussian(0.1), largest + 0.2) > DELTA


def test_a_relation_without_a_price_beside_the_promised_one_is_infinite():
    # Half the noise that substitute needs: only what is promised has a price.
    plan = Gaussian(0.4)
    book = open_ledger(HEADER._replace(table_distance=1e-17))
    found = {c.relation: c.epsilon for c in claims(book, plan, DELTA, ACCOUNTANTS)}
    assert found["add_remove"] < 20
    assert found["substitute"] == math.inf
    (joined,) = consortium(claims(book, plan, DELTA, ACCOUNTANTS[1:]), disjoint=False)
    assert joined.epsilon == math.inf


def test_a_budget_is_checked_against_the_whole_delta():
    accountant = ACCOUNTANTS[1]
    exact = accountant.epsilon(ROUND, DELTA)
    spend(open_ledger(HEADER), "x", ROUND, Budget(exact, DELTA, accountant))
    header = HEADER._replace(table_distance=TABLES)
    with pytest.raises(BudgetExceeded):
        spend(open_ledger(header), "x", ROUND, Budget(exact, DELTA, accountant))


def test_assumptions_and_exclusions_follow_from_what_was_done():
    fixed = WithoutReplacement(10, 100, ROUND)
    (claim,) = claims(open_ledger(HEADER), fixed, DELTA, ACCOUNTANTS[1:])
    assert caveats.UNIFORM_BATCHES in claim.assumptions
    marked = open_ledger(HEADER._replace(note="custom code: claim not vetted"))
    (claim,) = claims(marked, ROUND, DELTA, ACCOUNTANTS[1:])
    assert caveats.CUSTOM_CODE in claim.exclusions
    assert caveats.FLOAT_NOISE not in claim.exclusions


def test_a_patient_as_unit_and_every_declaration_reach_the_text():
    header = HEADER._replace(
        unit="patient", max_records=500, rows_per_unit=20, disjoint=True, records_public=True
    )
    cap = rdp_filter(3.0, DELTA, "substitute")
    life = spend(open_ledger(lifetime_header("north", "patient", "substitute")), "x", ROUND, cap)
    (part,) = claims(open_ledger(header), ROUND, DELTA, ACCOUNTANTS[1:])
    parts = [part._replace(lifetime=statement.lifetime_spend(life, cap))]
    text = statement.to_text([*parts, *consortium(parts, disjoint=True)])
    for expected in (
        "unit patient",
        "no site holds more than 500 patients",
        "of each patient at most 20 rows are used",
        "no patient is at two sites",
        "ChaCha20",
        "delta = mechanism",
        "for life: epsilon",
        "when messages were sent",
    ):
        assert expected in text
    assert json.loads(json.dumps(as_dict(parts[0]), allow_nan=False))["lifetime"]["cap"] == 3.0


def test_nothing_is_spent_for_life_before_the_first_release_and_delta_is_the_whole():
    cap = rdp_filter(3.0, DELTA * (1 - TABLES_SHARE), "substitute")
    for header in (
        lifetime_header("north", "record", "substitute", epsilon=3.0, delta=DELTA),
        lifetime_header("north", "record", "substitute"),
    ):
        empty = statement.lifetime_spend(open_ledger(header), cap)
        assert (empty.epsilon, empty.cap, empty.releases) == (0.0, 3.0, 0)
        assert empty.delta == pytest.approx(DELTA, rel=1e-12)
        one = spend(open_ledger(header), "x", ROUND, cap)
        found = statement.lifetime_spend(one, cap)
        assert found.epsilon == cap.epsilon_of(ROUND) > 0
        assert found.delta == empty.delta


def test_tables_beyond_their_part_of_delta_leave_no_spend_that_can_be_stated():
    cap = rdp_filter(3.0, DELTA * (1 - TABLES_SHARE), "substitute")
    fits = DELTA * TABLES_SHARE / (1 + math.exp(3.0))
    for distance, finite in ((fits * 0.99, True), (fits * 1.01, False)):
        header = lifetime_header("north", "record", "substitute", distance, 3.0, DELTA)
        found = statement.lifetime_spend(spend(open_ledger(header), "x", ROUND, cap), cap)
        assert math.isfinite(found.epsilon) == finite


def test_disjointness_is_declared_only_where_the_maximum_is_taken():
    line = caveats.DISJOINT.format(unit="record")
    assert line in consortium(PARTS, disjoint=True)[0].declarations
    assert line not in consortium(PARTS, disjoint=False)[0].declarations


def test_numbers_in_the_text_are_rounded_up():
    text = statement.to_text([claim_of("north", 1.23456712)])
    assert "epsilon 1.23458" in text or "epsilon 1.23457" in text
    assert float(text.split("epsilon ")[1].split()[0]) >= 1.23456712
    assert "infinite" in statement.to_text([])


def test_other_studies_on_the_same_records_are_not_covered():
    (claim,) = claims(ledger_of(1), ROUND, DELTA, ACCOUNTANTS[1:])
    assert caveats.OTHER_RUNS in claim.exclusions
    text = statement.to_text([claim])
    assert "other studies and other runs on the same records" in text
    assert "ledger for life" in text


@pytest.mark.parametrize("count", [3, 6, 7, 10])
def test_deltas_are_added_up_as_they_are_declared(count):
    # Of floats, three times 1e-5 is 3.0000000000000004e-05, which rounds up to more.
    parts = [claim_of(f"site {index}", 1.0) for index in range(count)]
    (joined,) = consortium(parts, disjoint=False)
    assert joined.delta == float(f"{count}e-5")
    assert f"at delta {joined.delta:g}," in statement.to_text([joined])
    ones = [claim_of(f"site {index}", 1.0, delta=0.4) for index in range(count)]
    assert consortium(ones, disjoint=False)[0].delta == 1.0
