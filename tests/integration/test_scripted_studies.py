"""Whole simulated federations under scripts, against the exact posterior."""

from pathlib import Path

import numpy as np
import pytest

from fedvi.expfam import tree
from fedvi.federation.schedules import asynchronous, sequential, synchronous
from fedvi.federation.script import Stage, from_generator
from tests.plug_ins import allowing
from tests.studies import linear_regression, raw_study, run_study


@pytest.fixture(scope="module")
def problem():
    return linear_regression()


def by_generator():
    def script(progress):
        first, rest = progress.clients[:3], progress.clients[3:]
        progress = yield Stage(sequential(1), first)
        # What was seen of the first stage decides on the second one.
        kind = synchronous(1) if progress.version == len(first) else asynchronous(1)
        yield Stage(kind, rest)

    return from_generator(script, rounds=2)


def scripts(names: list[str]) -> dict[str, dict]:
    return {
        "list": {
            "kind": "scripted",
            "stages": [
                {"kind": "sequential", "over": names[:2], "rounds": 1},
                {"kind": "synchronous", "over": names[2:5], "rounds": 1},
                {"kind": "buffered_asynchronous", "over": names[5:], "rounds": 1, "buffer": 2},
            ],
        },
        "generator": {"kind": "by_generator"},
        "bounded": {"kind": "asynchronous", "rounds": 1, "most_stale": 1},
        "updates": {"kind": "asynchronous", "rounds": 1, "updates": len(names)},
    }


@pytest.mark.parametrize("which", ["list", "generator", "bounded", "updates"])
def test_recovers_the_exact_posterior_after_one_visit_per_client(problem, which):
    reference, sources = problem
    raw = raw_study(list(sources), 5, schedule=scripts(list(sources))[which])
    raw["model"]["noise_scale"] = float(np.sqrt(reference["noise_var"]))
    with allowing(by_generator=by_generator):
        result = run_study(raw, sources)
    # float64 algebra: the only iteration is a linear solve of size 5.
    mean, _ = result.assembly.family.moments(result.posterior)
    np.testing.assert_allclose(mean, reference["post_mean"], rtol=1e-9)
    np.testing.assert_allclose(result.posterior.J, reference["post_prec"], rtol=1e-9)
    total = tree.total((result.factors[name] for name in sorted(sources)), result.assembly.prior)
    assert tree.equal(result.posterior, tree.to_numpy(total))
    visits = [name for update in result.history for name in update.clients]
    assert sorted(visits) == sorted(sources)


def test_a_stage_until_converged_stops_short_of_its_rounds(problem):
    """Exact solvers: the second round moves nothing, and the gap of 1e-6 is met."""
    reference, sources = problem
    names = list(sources)
    stages = [
        {"kind": "sequential", "over": names[:4], "rounds": 1},
        {
            "kind": "sequential",
            "over": names[4:],
            "until": "converged",
            "tolerance": 1e-6,
            "rounds": 30,
        },
    ]
    raw = raw_study(names, 5, schedule={"kind": "scripted", "stages": stages})
    raw["model"]["noise_scale"] = float(np.sqrt(reference["noise_var"]))
    result = run_study(raw, sources)
    assert len(result.history) == 4 + 2 * 4
    assert result.assembly.schedule.rounds == 30
    np.testing.assert_allclose(result.posterior.J, reference["post_prec"], rtol=1e-9)


def test_the_schedules_of_the_guide_are_studies():
    """Every block of the section in `docs/federation.md` is read as it stands."""
    import tomllib

    from fedvi.study.config import parse_study
    from fedvi.study.spec import shared_parts

    guide = (Path(__file__).parents[2] / "docs/federation.md").read_text(encoding="utf-8")
    section = guide.partition("## Who works when")[2].partition("\n## ")[0]
    blocks = [part.partition("```")[0] for part in section.split("```toml\n")[1:]]
    assert len(blocks) == 6
    for block in blocks:
        given = tomllib.loads(block)["schedule"]
        if given["kind"] == "my_lab.mine":
            continue  # see `by_generator` above
        raw = raw_study(["a", "b", "c", "d"], 2, schedule=given)
        schedule, _, _ = shared_parts.schedule(parse_study(raw))
        assert schedule.rounds >= 1


def test_progress_names_the_stage_that_a_script_is_at(problem):
    """One line a round, with the rounds of its stage; a run without a script says what it said."""
    from fedvi.cli.simulate import _round

    _, sources = problem
    names = list(sources)
    stages = [
        {"kind": "synchronous", "over": names[:4], "rounds": 2},
        {"kind": "buffered_asynchronous", "rounds": 1, "buffer": len(names)},
    ]
    told = {}
    for kind, schedule in {
        "script": {"kind": "scripted", "stages": stages},
        "single": {"kind": "synchronous", "rounds": 2},
    }.items():
        raw = raw_study(names, 5, schedule=schedule)
        moments = []
        run_study(raw, sources, on_moment=moments.append)
        told[kind] = [_round(moment) for moment in moments if moment.update.gap is not None]
    assert told["script"] == [
        "stage 1 of 2, synchronous, round 1 of 2",
        "stage 1 of 2, synchronous, round 2 of 2",
        "stage 2 of 2, buffered asynchronous, round 1 of 1",
    ]
    assert told["single"] == ["round 1/2", "round 2/2"]


def test_nobody_knows_how_many_stages_a_generator_has(problem):
    _, sources = problem
    with allowing(by_generator=by_generator):
        raw = raw_study(list(sources), 5, schedule={"kind": "by_generator"})
        result = run_study(raw, sources)
    words = [update.stage.words for update in result.history]
    assert words[0] == "stage 1, sequential, round 0 of 1"
    assert words[-1].startswith("stage 2, ")
