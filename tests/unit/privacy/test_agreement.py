"""Claims about sets: every course of a small consortium opens one sum, and each lie has its sentence.

The search below is of four sites, of which one works with the server, and T = 3. A state is what each
honest site has stored, and all that the server has got. The server hands any of two tasks to each site,
names any set to any site at any time, forges for its own site, and shows any signatures it has. A site may
be killed before it stores, or after it stored and before its reply is heard.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from fedvi import errors
from fedvi.privacy import agreement
from fedvi.privacy.agreement import Named, Terms, Turn

NAMES = ("a", "b", "c", "d")
HONEST = NAMES[:3]
TERMS = Terms("ab12", "cd34", NAMES, colluding=1, least=3)
DIGESTS = {name: name * 64 for name in NAMES}


def text(*clients: str, visit: int = 0, **digests: str) -> str:
    return Named(visit, clients, tuple({**DIGESTS, **digests}[name] for name in clients)).text


SETS = [text(*clients) for size in (2, 3, 4) for clients in itertools.combinations(NAMES, size)]


class State(NamedTuple):
    """What sites stored, and what the server has got."""

    turns: tuple[Turn, ...]
    signatures: frozenset[tuple[str, str, str]] = frozenset()
    openings: frozenset[tuple[str, str]] = frozenset()


def moves(
    terms: Terms, state: State, keep: Callable[[Turn, Turn], Turn] = lambda before, after: after
) -> Iterator[State]:
    """All that may happen next; ``keep`` is what a site stores of a turn, and of the one after it."""
    for at, (own, turn) in enumerate(zip(HONEST, state.turns, strict=True)):
        for one in SETS:
            signers = {"d"} | {
                n for n, task, t in state.signatures if (task, t) == (turn.task, one)
            }
            for is_signing in (True, False):
                try:
                    if is_signing:
                        after = agreement.may_sign(terms, own, turn, DIGESTS[own], one)
                    else:
                        after = agreement.may_open(terms, own, turn, DIGESTS[own], one, signers)
                except errors.ProtocolError:
                    continue
                turns = (*state.turns[:at], keep(turn, after), *state.turns[at + 1 :])
                yield state._replace(turns=turns)  # killed once it stored
                if is_signing:
                    sent = state.signatures | {(own, turn.task, one)}
                    yield state._replace(turns=turns, signatures=sent)
                else:
                    yield state._replace(turns=turns, openings=state.openings | {(own, one)})


def reachable(**given: object) -> Iterator[State]:
    """Every state, from each way of handing out two tasks, but for the honest sites' names."""
    terms: Terms = given.pop("terms", TERMS)  # type: ignore[assignment]
    begun = [
        State(tuple(Turn(0, task) for task in tasks))
        for tasks in (("00", "00", "00"), ("00", "00", "11"))
    ]
    seen, waiting = set(begun), list(begun)
    while waiting:
        state = waiting.pop()
        yield state
        for after in moves(terms, state, **given):  # type: ignore[arg-type]
            if after not in seen:
                seen.add(after)
                waiting.append(after)


def sums_shown(state: State, terms: Terms = TERMS) -> list[frozenset[str]]:
    """The groups of honest sites whose sums the server can compute, each without a smaller one in it.

    A self mask is known of a site that opened, or of which enough shares are: the server's own site has
    one. A pair's stream is known if one of the two opened for a set without the other. Streams that are
    not known tie a site to the other's, and what is tied to a site behind a self mask is hidden with it.
    """
    opened = [(own, agreement.named(NAMES, one).clients) for own, one in state.openings]
    bare = {
        name
        for name in HONEST
        if name in {own for own, _ in opened}
        or 1 + len({own for own, clients in opened if name in clients}) >= terms.threshold
    }
    apart = {
        frozenset((own, name)) for own, clients in opened for name in NAMES if name not in clients
    }
    found = []
    left = set(HONEST)
    while left:
        group = {left.pop()}
        while grown := {o for o in left for g in group if frozenset((o, g)) not in apart}:
            group |= grown
            left -= grown
        if group <= bare:
            found.append(frozenset(group))
    return found


def is_safe(state: State, terms: Terms = TERMS) -> bool:
    """Whether at most one sum is shown, of no fewer honest sites than were promised, and one set opened."""
    shown = sums_shown(state, terms)
    one_set = len({one for _, one in state.openings}) <= 1
    return one_set and len(shown) <= 1 and all(len(group) >= 2 for group in shown)


def test_no_course_opens_two_sets() -> None:
    states = list(reachable())
    assert all(is_safe(state) for state in states)
    # The search gets somewhere: sums of all honest sites, and of two, are shown in some courses.
    shown = {group for state in states for group in sums_shown(state)}
    assert {len(group) for group in shown} == {2, 3}
    assert len(states) > 1000


def test_the_search_finds_a_site_that_signs_twice() -> None:
    assert any(
        not is_safe(state)
        for state in reachable(keep=lambda before, after: after._replace(signed=""))
    )


def test_the_search_finds_a_threshold_that_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "threshold", lambda clients, colluding: 2)
    assert any(not is_safe(state) for state in reachable())


def test_the_search_finds_sites_that_open_for_a_set_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        agreement, "_checked", lambda terms, own, turn, sealed, one: agreement.named(NAMES, one)
    )
    assert any(not is_safe(state) for state in reachable())


# Sites that join: all agree on keys anew, and the server may tell any site so at any time.


class Site(NamedTuple):
    """What one site stored: its progress in its last round, and how often it agreed on keys anew.

    Attributes:
      epoch: 0 or 1.
      answered: the last round that it answered, by its ledger; −1 before the first.
      turn: of that round; None if it answered nothing under the keys of this epoch.
    """

    epoch: int = 0
    answered: int = -1
    turn: Turn | None = None


class Epochs(NamedTuple):
    """What sites stored, and what the server has got: (site, digest of its task, set)."""

    sites: tuple[Site, ...]
    signatures: frozenset[tuple[str, str, str]] = frozenset()
    openings: frozenset[tuple[str, str, str]] = frozenset()


@functools.cache
def decided(own: str, turn: Turn, one: str, signers: frozenset[str] | None) -> Turn | None:
    """The turn after a set is signed or, with ``signers``, opened; None if it is refused."""
    try:
        if signers is None:
            return agreement.may_sign(TERMS, own, turn, DIGESTS[own], one)
        return agreement.may_open(TERMS, own, turn, DIGESTS[own], one, signers)
    except errors.ProtocolError:
        return None


@functools.cache
def sets(visit: int) -> list[str]:
    some = (itertools.combinations(NAMES, size) for size in (3, 4))
    return [text(*clients, visit=visit) for clients in itertools.chain(*some)]


def epoch_moves(state: Epochs, named: int, other: str, forgets: bool) -> Iterator[Epochs]:
    """All that may happen next, in two epochs and two rounds.

    Nobody is killed here: that only takes something from what the server gets. The digest of a task is of
    all keys, so that no two epochs have the same.

    Args:
      state: before.
      named: the round whose sets are named; of two rounds neither changes what is said of the other.
      other: the site that gets another task in the first epoch; empty for none.
      forgets: whether a site may answer a round once in each epoch.
    """
    for at, (own, site) in enumerate(zip(HONEST, state.sites, strict=True)):

        def with_it(site: Site, at: int = at) -> tuple[Site, ...]:
            return (*state.sites[:at], site, *state.sites[at + 1 :])

        if site.epoch == 0:
            # Its keys and its turn are erased.
            yield state._replace(sites=with_it(Site(1, -1 if forgets else site.answered)))
        for visit in (0, 1):
            if visit > site.answered:
                task = f"{visit}{site.epoch}{'x' * (own == other and not site.epoch)}"
                yield state._replace(sites=with_it(Site(site.epoch, visit, Turn(visit, task))))
        if site.turn is None:
            continue
        task = site.turn.task
        for one in sets(named):
            signers = {n for n, under, t in state.signatures if (under, t) == (task, one)} | {"d"}
            told = {(own, task, one)}
            if after := decided(own, site.turn, one, None):
                sites = with_it(site._replace(turn=after))
                yield state._replace(sites=sites, signatures=state.signatures | told)
            if after := decided(own, site.turn, one, frozenset(signers)):
                sites = with_it(site._replace(turn=after))
                yield state._replace(sites=sites, openings=state.openings | told)


def epoch_states(named: int, other: str = "", forgets: bool = False) -> Iterator[Epochs]:
    begun = Epochs((Site(),) * len(HONEST))
    seen, waiting = {begun}, [begun]
    while waiting:
        state = waiting.pop()
        yield state
        for after in epoch_moves(state, named, other, forgets):
            if after not in seen:
                seen.add(after)
                waiting.append(after)


def opens_one_sum(state: Epochs) -> bool:
    """Whether one set at most was opened, under one task, and that shows no sum of too few."""
    openings = frozenset((own, one) for own, _, one in state.openings)
    one_task = len({task for _, task, _ in state.openings}) <= 1
    return one_task and is_safe(State((), openings=openings))


@pytest.mark.parametrize("named", [0, 1])
@pytest.mark.parametrize("other", ["", "c"])
def test_no_course_of_two_epochs_opens_two_sets(named: int, other: str) -> None:
    opened = set()
    for state in epoch_states(named, other):
        assert not state.openings or opens_one_sum(state)
        opened |= {
            (task, len(agreement.named(NAMES, one).clients)) for _, task, one in state.openings
        }
    # In some courses a sum of the first epoch is opened, and in others one of the second.
    assert {(f"{named}{epoch}", size) for epoch in (0, 1) for size in (3, 4)} <= opened


def test_the_search_finds_a_site_that_answers_one_round_in_both_epochs() -> None:
    assert any(not opens_one_sum(state) for state in epoch_states(0, forgets=True))


@pytest.mark.parametrize("clients", range(3, 40))
@pytest.mark.parametrize("colluding", [0, 1, 2, 5])
def test_two_sets_need_more_signatures_than_there_are(clients: int, colluding: int) -> None:
    least = agreement.threshold(clients, colluding)
    assert 2 * (least - colluding) > clients - colluding
    # And no smaller threshold would do.
    assert 2 * (least - 1 - colluding) <= clients - colluding


# Each lie has its own sentence.

TURN = Turn(4, "00")
ALL = text(*NAMES, visit=4)


def refused(said: str, turn: Turn = TURN, own: str = "a", sealed: str | None = DIGESTS["a"]) -> str:
    with pytest.raises(errors.ProtocolError) as signing:
        agreement.may_sign(TERMS, own, turn, sealed, said)
    # With every signature there is, it is not opened either.
    with pytest.raises(errors.ProtocolError) as opening:
        agreement.may_open(TERMS, own, turn, sealed, said, NAMES)
    assert signing.value.message == opening.value.message
    return opening.value.message


def test_a_set_of_another_round_is_refused() -> None:
    expected = (
        "the set of sites to be opened is of round 3, and this site's last answer is of round 4"
    )
    assert refused(text(*NAMES, visit=3)) == expected


def test_a_set_without_the_site_is_refused() -> None:
    assert refused(text("b", "c", "d", visit=4)).startswith("the set of round 4 does not hold 'a'")


@pytest.mark.parametrize("sealed", [None, "b" * 64])
def test_a_set_with_another_answer_of_the_site_is_refused(sealed: str | None) -> None:
    expected = "the set of round 4 names another answer of 'a' than its ledger holds"
    assert refused(ALL, sealed=sealed) == expected


def test_a_set_below_the_floor_is_refused() -> None:
    said = refused(text("a", "b", visit=4))
    assert said.startswith("the set of round 4 holds 2 sites, expected 3 or more")


def test_a_second_set_is_refused_and_the_first_signed_again() -> None:
    first = agreement.may_sign(TERMS, "a", TURN, DIGESTS["a"], ALL)
    assert agreement.may_sign(TERMS, "a", first, DIGESTS["a"], ALL) == first
    said = refused(text("a", "b", "c", visit=4), turn=first)
    assert said.startswith("this site signed another set of round 4")
    # Neither is one with another answer of somebody else.
    assert refused(text(*NAMES, visit=4, b="e" * 64), turn=first) == said


def test_too_few_signatures_are_refused() -> None:
    for signers in ((), ("a",), ("a", "b"), ("a", "a", "b"), ("a", "b", "stranger")):
        with pytest.raises(errors.ProtocolError, match="the sites in the set of round 4 signed it"):
            agreement.may_open(TERMS, "a", TURN, DIGESTS["a"], ALL, signers)
    found = agreement.may_open(TERMS, "a", TURN, DIGESTS["a"], ALL, ("b", "c", "d"))
    assert found == Turn(4, "00", ALL, True)


def test_signatures_of_sites_outside_the_set_count_for_nothing() -> None:
    said = text("a", "b", "c", visit=4)
    with pytest.raises(errors.ProtocolError, match="2 of the sites in the set of round 4 signed"):
        agreement.may_open(TERMS, "a", TURN, DIGESTS["a"], said, ("a", "b", "d"))


@pytest.mark.parametrize("clients", [("b", "a", "c"), ("a", "a", "b", "c"), ("a", "b", "c", "e")])
def test_a_set_of_other_names_is_refused(clients: tuple[str, ...]) -> None:
    said = Named(4, clients, ("a" * 64,) * len(clients)).text
    assert "names some that are not in the study, or twice" in refused(said)


@pytest.mark.parametrize(
    "said",
    ["", "{}", "[]", "3", ALL + " ", ALL.replace('"a"', '"a" ', 1), '{"visit":4,"clients":4}'],
)
def test_a_set_that_is_written_otherwise_is_refused(said: str) -> None:
    assert "cannot be read" in refused(said)


def test_what_is_signed_is_bound_to_all_that_it_is_of() -> None:
    found = {
        agreement.said(TERMS, "00", ALL),
        agreement.said(TERMS, "11", ALL),
        agreement.said(TERMS, "00", text(*NAMES, visit=5)),
        agreement.said(TERMS._replace(study_digest="ab13"), "00", ALL),
        agreement.said(TERMS._replace(set_up="cd35"), "00", ALL),
    }
    assert len(found) == 5
