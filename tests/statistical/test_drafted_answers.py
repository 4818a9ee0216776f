"""What `fedvi init` drafts, changed by nobody, on made-up tables of every outcome: is it right?

Runs are those of `evidence.zoo`, with fixed seeds of records and of noise, so that a night repeats the one
before; a change of fedvi draws them anew. Limits are then passed by chance as often as `CHANCE`, if
intervals and alarms are as promised.
"""

import pytest
import scipy.stats

from evidence import zoo

RUNS = 8
# Of runs of clean records, and of intervals: what is promised.
ALARMED, COVERED = 0.05, 0.95
CHANCE = 1.0 / 400.0


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", zoo.KINDS)
def test_a_drafted_study_finds_the_truth_in_any_unit_without_false_alarms(kind: str) -> None:
    found = {cell: zoo.judged(cell, range(RUNS)) for cell in zoo.design() if cell.kind == kind}
    runs = RUNS * len(found)
    # If intervals are right, 1 run of 2,000 has one of eight coefficients so far away: two are no luck.
    assert sum(one.beyond for one in found.values()) <= 1, found
    assert max(one.apart for one in found.values()) < zoo.same(kind), found
    hits = [sum(each) for each in zip(*(one.hits for one in found.values()), strict=True)]
    least = scipy.stats.binom.ppf(CHANCE / len(hits), runs, COVERED)
    assert min(hits) >= least, found
    most = scipy.stats.binom.ppf(1.0 - CHANCE, runs, ALARMED)
    assert sum(one.alarmed for one in found.values()) <= most, found
