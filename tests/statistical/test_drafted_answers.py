"""What `fedvi init` drafts, changed by nobody, on made-up tables of every outcome: is it right?

Runs are those of `evidence.zoo`, with fixed seeds of records and of noise, so that a night repeats the one
before; a change of fedvi draws them anew. Limits are then passed by chance as often as `CHANCE`, if
intervals and alarms are as promised.
"""

import functools

import pytest
import scipy.stats

from evidence import zoo

RUNS = 8
# Of runs of clean records, and of intervals: what is promised.
ALARMED, COVERED = 0.05, 0.95
CHANCE = 1.0 / 400.0


@functools.cache
def cells(kind: str) -> dict[zoo.Cell, zoo.Judged]:
    return {cell: zoo.judged(cell, range(RUNS)) for cell in zoo.design() if cell.kind == kind}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_drafted_answer_covers_the_truth_in_any_unit(kind: str) -> None:
    found = cells(kind).values()
    # If intervals are right, 1 run of 2,000 has one of eight coefficients so far away: two are no luck.
    assert sum(one.beyond for one in found) <= 1, cells(kind)
    assert max(one.apart for one in found) < zoo.same(kind), cells(kind)
    hits = [sum(each) for each in zip(*(one.hits for one in found), strict=True)]
    least = scipy.stats.binom.ppf(CHANCE / len(hits), RUNS * len(found), COVERED)
    assert min(hits) >= least, cells(kind)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_drafted_answer_raises_no_false_alarm(kind: str) -> None:
    found = cells(kind).values()
    most = scipy.stats.binom.ppf(1.0 - CHANCE, RUNS * len(found), ALARMED)
    assert sum(one.alarmed for one in found) <= most, cells(kind)
