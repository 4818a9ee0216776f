"""What holds for every event, accountant and ledger, not only for the examples."""

import itertools
import json
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedvi.errors import BudgetExceeded, LedgerError
from fedvi.privacy import accountants
from fedvi.privacy.accountants import pld, rdp, zcdp
from fedvi.privacy.events import (
    NOTHING,
    Composed,
    DiscreteGaussian,
    Gaussian,
    PoissonSampled,
    Repeated,
    Unprotected,
    WithoutReplacement,
    compose,
    counts,
    from_json,
    repeat,
    to_json,
)
from fedvi.privacy.ledger import (
    Budget,
    Header,
    from_lines,
    mark_sent,
    open_ledger,
    seal,
    spend,
    spent,
    to_lines,
    verify,
)

ACCOUNTANTS = [pld("add_remove"), pld("substitute")]
CURVES = [make(relation) for make in (rdp, zcdp) for relation in ("add_remove", "substitute")]
DELTAS = st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])

positive = st.floats(0.0, 1e6, allow_nan=False)
gaussians = st.builds(Gaussian, positive, positive, positive)
poissons = st.builds(
    PoissonSampled,
    st.floats(1e-6, 1.0),
    gaussians,
    st.floats(0.0, 1.0, exclude_max=True),
)
discrete = st.builds(DiscreteGaussian, positive, positive, positive, positive)
fixed = st.integers(1, 10**9).flatmap(
    lambda size: st.builds(WithoutReplacement, st.integers(1, size), st.just(size), gaussians)
)
leaves = st.one_of(
    gaussians, discrete, poissons, fixed, st.builds(Unprotected, st.text(min_size=1))
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, st.integers(1, 10**9)),
        st.builds(Composed, st.lists(inner, max_size=4).map(tuple)),
        st.builds(PoissonSampled, st.floats(1e-6, 1.0), inner),
    ),
    max_leaves=8,
)

# Few noises and rates, so that convolutions are met again in the accountant's cache.
full = st.builds(Gaussian, st.floats(0.5, 100.0))
sampled = st.sampled_from([PoissonSampled(q, Gaussian(s)) for q in (0.02, 0.2) for s in (0.8, 2.0)])
priced = st.one_of(
    st.lists(full, min_size=1, max_size=4),
    st.lists(st.one_of(full, sampled), min_size=1, max_size=3),
)


@given(events)
def test_an_event_survives_json(event):
    written = json.dumps(to_json(event), allow_nan=False)
    assert from_json(json.loads(written)) == event


@given(events, events)
def test_composition_adds_counts(first, second):
    expected = counts(first)
    for atom, count in counts(second).items():
        expected[atom] = expected.get(atom, 0) + count
    assert counts(compose(first, second)) == expected
    assert counts(Composed((first, second))) == expected


@given(events, st.integers(1, 1000))
def test_repetition_multiplies_counts(event, times):
    expected = {atom: count * times for atom, count in counts(event).items()}
    assert counts(repeat(event, times)) == expected


@pytest.mark.nightly(only=("accountant1",))
@settings(max_examples=12)
@pytest.mark.parametrize("accountant", ACCOUNTANTS + CURVES)
@given(parts=priced, seed=st.integers(0, 2**32), delta=DELTAS)
def test_the_order_of_composition_does_not_matter(accountant, parts, seed, delta):
    shuffled = random.Random(seed).sample(parts, len(parts))
    nested = Composed((Composed(tuple(shuffled[:1])), *shuffled[1:]))
    assert accountant.epsilon(nested, delta) == accountant.epsilon(compose(*parts), delta)


@settings(max_examples=12)
@pytest.mark.parametrize("accountant", ACCOUNTANTS + CURVES)
@given(parts=priced, delta=DELTAS)
def test_what_epsilon_says_delta_certifies(accountant, parts, delta):
    event = compose(*parts)
    epsilon = accountant.epsilon(event, delta)
    assert accountant.delta(event, epsilon) <= delta
    if epsilon > 0:
        # 1e-6: far above the tolerance of either search.
        assert accountant.delta(event, epsilon * (1 - 1e-6)) > delta


@settings(max_examples=12)
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(parts=priced, delta=DELTAS)
def test_one_more_release_never_costs_less(accountant, parts, delta):
    fewer, more = compose(*parts[:-1]), compose(*parts)
    # 1e-4: with fewer parts the grid may be another, up to twice as fine.
    assert accountant.epsilon(more, delta) >= accountant.epsilon(fewer, delta) * (1 - 1e-4)
    assert accountant.epsilon(more, delta) <= accountant.epsilon(repeat(more, 2), delta) * (
        1 + 1e-4
    )


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(
    noise=st.floats(0.1, 1e3), factor=st.floats(1.0, 10.0), count=st.integers(1, 1000), delta=DELTAS
)
def test_more_noise_never_costs_more(accountant, noise, factor, count, delta):
    louder = accountant.epsilon(repeat(Gaussian(noise * factor), count), delta)
    quieter = accountant.epsilon(repeat(Gaussian(noise), count), delta)
    # 1e-12: where the bisection stops.
    assert louder <= quieter * (1 + 1e-12)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@given(parts=st.lists(full, min_size=1, max_size=4), small=DELTAS, large=DELTAS)
def test_a_larger_delta_never_costs_more(accountant, parts, small, large):
    assume(small <= large)
    event = compose(*parts)
    assert accountant.epsilon(event, large) <= accountant.epsilon(event, small)


FIXED = st.sampled_from(
    [WithoutReplacement(n, 100, Gaussian(s)) for n in (1, 20) for s in (2.0, 4.0)]
)


@settings(max_examples=8)
@given(atom=FIXED, count=st.sampled_from([1, 50]), delta=DELTAS)
def test_a_fixed_size_costs_more_than_poisson_batches_and_less_than_everybody(atom, count, delta):
    accountant = pld("substitute")
    found = accountant.epsilon(repeat(atom, count), delta)
    poisson = repeat(PoissonSampled(atom.rate, atom.inner), count)
    assert accountant.epsilon(poisson, delta) <= found
    assert found <= accountant.epsilon(repeat(atom.inner, count), delta)
    assert found <= rdp("substitute").epsilon(repeat(atom, count), delta)


@pytest.mark.nightly
@settings(max_examples=12)
@given(atom=sampled, count=st.sampled_from([1, 100]), delta=DELTAS)
def test_sampling_costs_no_more_than_everybody_and_substitution_no_less_than_removal(
    atom, count, delta
):
    found = {a.relation: a.epsilon(repeat(atom, count), delta) for a in ACCOUNTANTS}
    everybody = {a.relation: a.epsilon(repeat(atom.inner, count), delta) for a in ACCOUNTANTS}
    assert found["add_remove"] <= everybody["add_remove"]
    assert found["substitute"] <= everybody["substitute"]
    assert found["add_remove"] <= found["substitute"]


HEADER = Header("heart", "ab12", "north", "record", "substitute", "message", True)


@given(
    st.lists(st.floats(2.0, 200.0), max_size=12),
    st.floats(0.1, 5.0),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_ledger_never_holds_more_than_its_budget(noises, epsilon, sealings):
    accountant = pld("substitute")
    ledger, accepted = open_ledger(HEADER), []
    for number, (noise, sealing) in enumerate(zip(noises, sealings, strict=False)):
        before, name = ledger, f"release {number}"
        try:
            ledger = spend(ledger, name, Gaussian(noise), Budget(epsilon, 1e-5, accountant))
        except BudgetExceeded:
            assert ledger is before
            cost = accountant.epsilon(compose(*accepted, Gaussian(noise)), 1e-5)
            assert cost > epsilon
            continue
        accepted.append(Gaussian(noise))
        if sealing:
            ledger = mark_sent(seal(ledger, name, "d"), name)
        assert accountant.epsilon(spent(ledger), 1e-5) <= epsilon
    assert spent(ledger) == compose(NOTHING, *accepted)
    verify(ledger)
    assert from_lines(to_lines(ledger)) == ledger


LEDGER = open_ledger(HEADER._replace(protected=False, note="ν: no guarantee"))
for _name, _event in (
    ("a", Gaussian(3.0)),
    ("b", repeat(PoissonSampled(0.1, Gaussian(1.0), 1e-9), 5)),
    ("c", Unprotected("ein Faktor — exakt")),
):
    LEDGER = mark_sent(seal(spend(LEDGER, _name, _event, None), _name, f"digest {_name}"), _name)
LINES = to_lines(LEDGER)


@settings(max_examples=400)
@given(st.data())
def test_changing_any_byte_of_a_ledger_is_detected(data):
    number = data.draw(st.integers(0, len(LINES) - 1))
    line = LINES[number]
    position = data.draw(st.integers(0, len(line)))
    kind = data.draw(st.sampled_from(["replace", "insert", "delete"]))
    text = "" if kind == "delete" else data.draw(st.characters(max_codepoint=255))
    changed = line[:position] + text + line[position + (kind != "insert") :]
    assume(changed != line)
    with pytest.raises(LedgerError):
        from_lines([*LINES[:number], changed, *LINES[number + 1 :]])


@pytest.mark.nightly(but=("zcdp", "linear", "advanced"))
@pytest.mark.parametrize("name", accountants.__all__)
def test_numbers_at_the_ends_of_the_floats_have_a_price_or_none_and_end(name):
    """As a hostile ledger may hold: squares that overflowed raised, and one search had no end."""
    ends = (1e-308, 1.0, 1.7e308)
    found = 0
    for noise, shift, relation in itertools.product(ends, ends, ("add_remove", "substitute")):
        gaussian = Gaussian(noise, shift, min(2 * shift, 1.7e308))
        accountant = getattr(accountants, name)(relation)
        for event in (
            *(gaussian, Repeated(gaussian, 10**6), PoissonSampled(0.5, gaussian)),
            *(PoissonSampled(1e-300, gaussian), WithoutReplacement(1, 10**6, gaussian)),
            DiscreteGaussian(noise, shift, gaussian.substitute, 1e200),
        ):
            if accountant.supports(event):
                found += 1
                assert accountant.epsilon(event, 1e-5) >= 0
                assert 0 <= accountant.delta(event, 1e300) <= 1
    assert found >= 50
