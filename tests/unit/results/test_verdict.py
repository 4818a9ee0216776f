"""A verdict is right of runs that went well, and of runs that did not."""

from typing import Any

import numpy as np
import pytest

from fedvi.data.source import ArraySource
from fedvi.planning import advice
from fedvi.planning.widths import expectation
from fedvi.results import run_record
from fedvi.results import verdict as verdicts
from fedvi.results.outcome import record, verdict_of
from fedvi.results.verdict import Contributions, Joint, judge
from fedvi.run.simulate import run
from fedvi.study.config import parse_study
from fedvi.study.spec.coefficients import design_of
from tests.unit.planning.test_widths import planned, raw_plan, sources


def said(verdict: Any) -> str:
    return "\n".join(verdicts.lines(verdict))


@pytest.mark.parametrize("epsilon", [2.0, 8.0])
def test_a_run_that_went_well_has_no_alarm(epsilon: float) -> None:
    result = run(planned(raw_plan(epsilon)), sources(), pooled=True)
    found = verdict_of(result)
    assert found.alarms == ()
    assert found.settled
    assert set(found.stand_out) >= {"age", "score"}
    family = result.assembly.family
    sd, exact = family.moments(result.posterior)[1], family.moments(result.pooled)[1]
    assert found.multiple == pytest.approx(float(np.median(sd / exact)), rel=0.25)
    assert found.effective is not None
    assert 0 < found.effective <= 2400
    assert "settled" in said(found)


def test_too_small_an_epsilon_is_told_and_what_would_help() -> None:
    found = verdict_of(run(planned(raw_plan(0.05)), sources()), advise=True)
    assert found.alarms
    # Of three effects that nobody can see, one may stand out by chance.
    assert len(found.stand_out) < found.effects
    assert found.effective is not None
    assert found.effective < 50
    assert "look out" in said(found)
    assert "settled" not in said(found)
    assert "what would help most" in said(found)


def test_a_site_that_never_answered_is_not_counted_as_if_it_had() -> None:
    raw = raw_plan(0.05)
    assembly = planned(raw)
    own = record(run(assembly, sources()))
    raw["clients"] += [{"name": "silent"}, {"name": "removed"}]
    with_silent, nothing = planned(raw), own.family.zeros()
    last = own.history[-1]
    of_more = own._replace(
        study=with_silent.study,
        clients=with_silent.clients,
        factors={**own.factors, "silent": nothing, "removed": nothing},
        history=(
            last._replace(clients=("removed",)),
            last._replace(clients=(), removed=("removed",)),
            *own.history,
        ),
    )
    expected, of_all = expectation(assembly), expectation(with_silent)
    assert expected is not None
    assert of_all is not None
    assert of_all["sds"][1] < 0.9 * expected["sds"][1]
    alone, found = run_record.verdict_of(own, expected), run_record.verdict_of(of_more, of_all)
    assert (found.records, found.effective) == (alone.records, alone.effective)
    # To a precision of few per cent, as of a coefficient that depends on others.
    assert found.multiples == pytest.approx(alone.multiples, rel=0.05)
    helps = advice.help_in_words(with_silent, assembly.clients)
    assert "sites in place of 4" in helps
    assert helps.endswith(". Sites that gave no answer (2) are left out")
    assert advice.help_in_words(assembly, assembly.clients) == helps.partition(". Sites")[0]


@pytest.mark.nightly
def test_too_many_columns_are_told() -> None:
    raw = raw_plan(0.3)
    noise = {
        f"z{index}": {"type": "number", "bounds": [-4, 4], "center": 0, "scale": 1}
        for index in range(25)
    }
    raw["data"]["schema"] |= noise
    raw["model"]["formula"] += " + " + " + ".join(noise)
    random, given = np.random.default_rng(1), sources()
    for name, source in given.items():
        more = random.standard_normal((len(source.valid), 25))
        x = np.hstack([source.records["x"], more])
        given[name] = ArraySource({"x": x, "y": source.records["y"]}, source.valid)
    found = verdict_of(run(planned(raw), given))
    assert found.alarms
    assert 2 * len(found.stand_out) < found.effects
    assert found.wants_help


def test_noise_that_costs_nearly_all_records_is_not_said_to_leave_the_prior() -> None:
    # Of many records, an interval seven times as wide as without noise may be far narrower than the prior.
    found = verdicts.Verdict(3, ("age",), {"age": 8.0}, 100_000, 1_600, True, ())
    _, said, *_ = verdicts.lines(found)
    assert said == (
        "the noise hides nearly all that the records say: it costs as much as leaving out about 98 % of "
        "the records would"
    )


def test_a_dead_site_is_named() -> None:
    given = sources()
    given["s2"] = ArraySource(given["s2"].records, np.zeros(600, bool))
    found = verdict_of(run(planned(raw_plan(8.0)), given))
    assert [alarm.partition(" ")[0] for alarm in found.alarms] == ["s2"]


def study(epsilon: float = 8.0, **sections: Any) -> dict[str, Any]:
    """Returns the study with other keys in some of its sections."""
    raw = raw_plan(epsilon)
    return raw | {key: raw[key] | more for key, more in sections.items()}


def drawn(outcome: Any = None, **valid: int) -> dict[str, ArraySource]:
    """Returns the sites' records with an outcome of their covariates, of which some alone are valid."""
    random, found = np.random.default_rng(3), {}
    for name, source in sources().items():
        x, y = source.records["x"], source.records["y"]
        y = y if outcome is None else np.asarray(outcome(x, random), float)
        found[name] = ArraySource({"x": x, "y": y}, np.arange(len(y)) < valid.get(name, len(y)))
    return found


def _linear(x: Any, random: Any) -> Any:
    return x @ [1.0, 0.5, 0.6, 0.4] + random.normal(size=len(x))


LINEAR = {"kind": "linear", "formula": "los ~ age + score + male", "noise_scale": 1.0}
LOS = {"los": {"type": "number", "bounds": [-10, 10], "center": 0, "scale": 1}}
RARE = {"dead": {"type": "binary", "expected": {"share": 0.02}}}


def columns(**more: Any) -> dict[str, Any]:
    return {"schema": raw_plan()["data"]["schema"] | more}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("raw", "given"),
    [
        (study(4.0), drawn()),
        (study(20.0), drawn()),
        (study(privacy={"view": "aggregate"}), drawn()),
        (study(privacy={"relation": "substitute"}), drawn()),
        (study(4.0, model=LINEAR, data=columns(**LOS)), drawn(_linear)),
        (study(solver={"kind": "glm"}) | {"privacy": {"protection": "none"}}, drawn()),
        # Nothing to be found, and nothing is: that is no fault of the run.
        (study(), drawn(lambda x, random: random.uniform(size=len(x)) < 0.3)),
        (study() | {"clients": [{"name": "s0"}]}, {"s0": drawn()["s0"]}),
        (study(data=columns(**RARE)), drawn(lambda x, random: random.uniform(size=len(x)) < 0.02)),
        (
            study() | {"clients": [{"name": "s0"}, {"name": "s3", "expected_records": 60}]},
            {"s0": drawn()["s0"], "s3": drawn(s3=60)["s3"]},
        ),
    ],
    ids=["4", "20", "sums", "substitute", "linear", "open", "null", "one", "rare", "unequal"],
)
def test_ten_runs_that_went_well_have_no_alarm(raw: Any, given: Any) -> None:
    found = verdict_of(run(planned(raw), given))
    assert found.alarms == ()
    assert found.settled
    assert "look out" not in said(found)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("raw", "given", "words"),
    [
        (study(0.05), drawn(), "added next to nothing"),
        (study(), drawn(s0=0, s1=0, s2=0, s3=0), "the run learnt nothing"),
        (
            study(4.0, data={"max_records": 3}),
            drawn(s0=3, s1=3, s2=3, s3=3),
            "the run learnt nothing",
        ),
        (study(4.0, solver={"clip_norm": 1e-4}), drawn(), "the run learnt nothing"),
        (
            study(4.0, solver={"clip_norm": 1e-4}),
            drawn(),
            "clipping is expected to leave less than 1 %",
        ),
        (study(4.0, solver={"clip_norm": 1e6}), drawn(), "the run learnt nothing"),
        (study(4.0, prior={"scale": 0.01}), drawn(), "added next to nothing"),
        (study(4.0, schedule={"rounds": 2}), drawn(), "did not settle"),
        (
            study(),
            drawn(lambda x, random: x[:, 1] > 0.0),
            "age: further from the prior's mean than",
        ),
        (study(20.0), drawn(lambda x, random: np.ones(len(x))), "dead would be true for 1 of"),
        (study(0.5, solver={"kind": "vips", "clip_norm": 2.0}), drawn(), "leave out the noise"),
    ],
    ids=[
        "epsilon",
        "dead",
        "few",
        "clip-low",
        "clipped",
        "clip-high",
        "prior",
        "rounds",
        "separated",
        "ones",
        "unheld",
    ],
)
def test_ten_runs_that_did_not_go_well_say_why(raw: Any, given: Any, words: str) -> None:
    found = verdict_of(run(planned(raw), given))
    assert any(words in alarm for alarm in found.alarms), found.alarms
    assert "settled: more rounds" not in said(found)


def rows(*sds: float, mean: float = 0.0) -> list[dict[str, Any]]:
    names = ("(Intercept)", "age", "score", "male")
    return [
        {"name": name, "mean": mean, "sd": sd, "lower": mean - 1.96 * sd, "upper": mean + 1.96 * sd}
        for name, sd in zip(names, sds, strict=True)
    ]


PRIOR = [{"mean": 0.0, "sd": 4.0}, *[{"mean": 0.0, "sd": 1.0}] * 3]
EXPECTED = {"records": 2400, "sds": [0.1] * 4, "least": [0.06] * 4, "kept": [1.0] * 4}


def judged(found: list[dict[str, Any]], moves: Any = ((0.1, 0.0, 0.2),) * 2, **more: Any) -> Any:
    given = {
        "contributions": Contributions(),
        "open_sd": np.array(EXPECTED["sds"]),
        "expected": EXPECTED,
    } | more
    raw = given.pop("study", None) or raw_plan()
    return judge(parse_study(raw), found, PRIOR, moves, **given)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (judged(rows(0.2, 0.2, 1.3, 0.2)), "score: the interval is wider than before"),
        (judged(rows(0.2, 0.02, 0.2, 0.2)), "age: the interval is narrower than 2,400 records"),
        (
            judged(rows(0.2, 0.2, 0.2, 0.2), contributions=Contributions({"s0": 1.1, "s1": -0.1})),
            "s1 added nothing that can be seen",
        ),
        (
            judged([*rows(0.1, 0.2, 0.2, 0.2, mean=-9.0)[:1], *rows(0.1, 0.2, 0.2, 0.2)[1:]]),
            "dead would be true for",
        ),
        (
            judged(rows(0.2, 0.2, 0.2, 0.2), ((3.0, 0.0, 0.1), (0.2, 2.0, 0.1))),
            "did not settle: the last answers missed what earlier rounds foretold, by 2 posterior sd",
        ),
        (
            judged(rows(0.2, 0.2, 0.2, 0.2), ((3.0, 0.0, 0.1), (2.5, 0.0, 0.1))),
            "did not settle: the last round still moved a mean by 2.5 posterior sd",
        ),
        (judged(rows(0.2, 0.95, 0.95, 0.95)), "as wide as the prior's"),
        (
            judged([*rows(*[0.2] * 4)[:1], *rows(*[0.2] * 4, mean=3.5)[1:]]),
            "than the prior takes for possible",
        ),
    ],
    ids=["wide", "narrow", "negative", "rate", "unforetold", "unsettled", "prior", "beyond"],
)
def test_each_gate_has_its_sentence(verdict: Any, words: str) -> None:
    (alarm,) = verdict.alarms
    assert words in alarm


def test_what_clipping_takes_of_a_large_effect_is_told_and_of_a_small_one_is_not() -> None:
    """Of a tail that is clipped: 7 % of an effect of 98 sds was 6 sds off, of 3 sds nothing."""
    kept = EXPECTED | {"kept": [1.0, 0.96, 1.0, 1.0]}
    large = judged(rows(0.02, 0.01, 0.02, 0.02, mean=1.0), expected=kept | {"least": [0.001] * 4})
    (alarm,) = large.alarms
    assert alarm.startswith("age: clipping is expected to remove about 8 % of what the records say")
    assert "Bounds that end where records become rare" in alarm
    assert judged(rows(*[0.2] * 4, mean=1.0), expected=kept).alarms == ()
    # What all lose, the intercept too, is no column's own.
    alike = EXPECTED | {"kept": [0.7, 0.7, 0.7, 0.7], "least": [0.001] * 4}
    assert judged(rows(0.02, 0.01, 0.02, 0.02, mean=1.0), expected=alike).alarms == ()


def test_records_that_tell_far_less_than_the_declared_ones_are_told_and_not_laid_to_privacy() -> (
    None
):
    found = judged(rows(*[0.9] * 4), expected=EXPECTED | {"noised": [0.15] * 4})
    assert any("about 6 times as wide as planned, noise and all" in one for one in found.alarms)
    assert found.multiples == {}
    # Nothing stands out, and levers follow from declarations that do not hold.
    assert not found.wants_help
    assert judged(rows(*[0.5] * 4), expected=EXPECTED | {"noised": [0.15] * 4}).wants_help
    fine = judged(rows(*[0.2] * 4), expected=EXPECTED | {"noised": [0.15] * 4})
    assert fine.alarms == ()
    assert fine.multiples
    # What two columns that say the same leave open is told as that.
    twins = judged(
        rows(0.2, 0.7, 0.7, 0.2), expected=EXPECTED | {"noised": [0.15] * 4}, joint=joint((1, 2))
    )
    assert not any("as planned" in one for one in twins.alarms)


def test_a_share_that_noise_explains_is_no_alarm() -> None:
    shares = {"s0": 1.07, "s1": -0.07}
    for noise in (0.2, None):
        assert judged(rows(*[0.2] * 4), contributions=Contributions(shares, noise)).alarms == ()
    assert len(judged(rows(*[0.2] * 4), contributions=Contributions(shares, 0.05)).alarms) == 1


def test_a_site_that_never_answers_is_told_from_one_that_added_little() -> None:
    raw = raw_plan(8.0)
    raw["schedule"] |= {"deadline_seconds": 60, "quorum": 2}
    raw["clients"][1]["latency_seconds"] = 1e6
    found = verdict_of(run(planned(raw), sources()))
    assert found.alarms == ("s1 never answered: the result holds nothing of its records",)


def joint(*pairs: tuple[int, int], sd: float = 0.5, usual: Any = None, mean: float = 0.0) -> Any:
    covariance = np.eye(4)
    for one, other in pairs:
        covariance[one, other] = covariance[other, one] = -0.99
    return Joint(np.full(4, mean), sd**2 * covariance, usual)


def test_columns_that_say_the_same_are_named_and_their_widths_are_not_laid_to_privacy() -> None:
    found = judged(rows(0.1, 0.5, 0.5, 0.1), joint=joint((1, 2)))
    (alarm,) = found.alarms
    assert "age and score: the run cannot tell one effect from the other" in alarm
    assert set(found.multiples) == {"(Intercept)", "male"}
    (alarm,) = judged(rows(0.5, 0.5, 0.1, 0.1), joint=joint((0, 1))).alarms
    assert "age: the run cannot tell its effect from the intercept" in alarm
    # Narrow intervals of correlated coefficients, as of a polynomial, are no fault.
    assert judged(rows(*[0.08] * 4), joint=joint((1, 2), sd=0.08)).alarms == ()
    # Nor are two effects that stand out both.
    assert judged(rows(*[0.2] * 4, mean=1.0), joint=joint((1, 2), sd=0.2)).alarms == ()


def test_one_effect_of_which_nothing_was_seen_is_named() -> None:
    (alarm,) = judged(rows(0.2, 0.2, 0.2, 0.95)).alarms
    assert alarm.startswith("male: the interval is as wide as before any record was seen")
    (alarm,) = judged(rows(0.2, 0.2, 0.2, 0.99)).alarms
    assert alarm.startswith("the records say nothing about male: the interval is the prior's")


def test_a_posterior_that_is_its_prior_says_that_nothing_was_learnt_and_not_that_it_settled() -> (
    None
):
    found = judged([*rows(4.0, 1, 1, 1)[:1], *rows(4.0, 1.0, 0.99, 1.01)[1:]])
    assert found.settled is None
    assert found.alarms[0].startswith("the run learnt nothing: each interval is the prior's")
    assert "settled" not in said(found)
    moved = judged([*rows(3.0, 1, 1, 1)[:1], *rows(4.0, 1.0, 0.99, 1.01)[1:]])
    assert not any("learnt nothing" in alarm for alarm in moved.alarms)


def told_of(
    kind: str,
    formula: str,
    names: dict[str, tuple[float, float]],
    others: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Returns the verdict on a made-up posterior, coefficient → (mean, sd), of a study of this kind."""
    raw = study(
        model={"kind": kind, "formula": formula} | more,
        data=columns(**(OTHERS | (others or {}))),
        prior={"scale": 2.5},
    )
    raw["model"] = {"kind": kind, "formula": formula} | more
    found = [
        {"name": name, "mean": mean, "sd": sd, "lower": mean - 2 * sd, "upper": mean + 2 * sd}
        for name, (mean, sd) in names.items()
    ]
    before = [{"mean": 0.0, "sd": 2.5 if name[0] != "b" else 10.0} for name in names]
    return judge(parse_study(raw), found, before, ((0.1, 0.0, 0.2),) * 2, Contributions()).alarms


OTHERS = {
    "days": {"type": "number", "bounds": [1, 3000]},
    "old": {"type": "number", "bounds": [18, 100]},
    "grade": {"type": "level", "levels": ["I", "II", "III"]},
}


def test_a_start_many_prior_sds_away_is_told_of_intercepts_too() -> None:
    near = told_of("logistic", "dead ~ old", {"(Intercept)": (-4.0, 0.2), "old": (0.5, 0.2)})
    assert not any("prior's mean" in alarm for alarm in near)
    far = told_of("linear", "days ~ old", {"(Intercept)": (-8.0, 0.2), "old": (0.5, 0.2)})
    (alarm,) = far
    assert alarm.startswith("(Intercept): further from the prior's mean than the prior takes")


def test_a_level_of_which_nothing_was_seen_is_told_whatever_noise_made_of_its_mean() -> None:
    seen = {"(Intercept)": (0.1, 0.2), "grade[II]": (0.5, 0.2), "old": (0.2, 0.3)}
    (alarm,) = told_of("logistic", "dead ~ grade + old", seen | {"grade[III]": (0.4, 2.48)})
    assert alarm.startswith("the records say nothing about grade[III]: no record has the level")
    assert told_of("logistic", "dead ~ grade + old", seen | {"grade[III]": (0.4, 0.9)}) == ()


@pytest.mark.parametrize(
    ("name", "mean", "is_told"),
    [
        ("grade[III]", -4.0, True),
        ("grade[III]", -3.8, False),
        # Of a step of half the bounds' width, the ratio of a quarter counts.
        ("old", 4.0, False),
        ("old", 8.0, True),
    ],
)
def test_a_ratio_that_is_implausible_is_told(name: str, mean: float, is_told: bool) -> None:
    """Hazard ratios of 0.02 stood as findings, without a word."""
    formula = "Surv(days, dead) ~ grade + old"
    seen = {"baseline (0, ∞)": (-8.0, 0.2), "old": (0.2, 0.3), "grade[III]": (0.1, 0.2)}
    told = told_of("survival", formula, seen | {name: (mean, 0.5)})
    assert any("ratio of" in alarm and "is implausible" in alarm for alarm in told) == is_told
    open_ = told_of("survival", formula, seen | {name: (mean, 5.0)})
    assert not any("is implausible" in alarm for alarm in open_)


@pytest.mark.parametrize("per", [1.0, 365.25, 1e-3])
@pytest.mark.parametrize(
    ("hazards", "left"),
    [((0.0, 1.0), ""), ((5.4, 6.0), "nearly none"), ((-12.0, -13.0), "nearly all")],
)
def test_survival_that_is_implausible_is_told_in_any_unit_of_time(
    hazards: tuple[float, float], left: str, per: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are fitted, log hazards are per follow-up, whatever the file counts in."""
    bounds, cut = [1 / per, 3000 / per], 365 / per
    monkeypatch.setitem(OTHERS, "days", {"type": "number", "bounds": bounds})
    names = (f"baseline (0, {cut:g}]", f"baseline ({cut:g}, ∞)")
    seen = {name: (mean, 0.3) for name, mean in zip(names, hazards, strict=True)}
    told = told_of("survival", "Surv(days, dead) ~ old", seen | {"old": (0.2, 0.3)}, cuts=[cut])
    assert [left in alarm for alarm in told] == [True] * bool(left)
    # Where hazards are open, nothing is claimed.
    wide = {name: (mean, 6.0) for name, mean in zip(names, hazards, strict=True)}
    assert (
        told_of("survival", "Surv(days, dead) ~ old", wide | {"old": (0.2, 0.3)}, cuts=[cut]) == ()
    )


def test_a_part_of_a_curve_is_no_ratio() -> None:
    curve = "bs(old, knots=[45, 70], degree=1, lower_bound=18, upper_bound=100)"
    names = design_of(
        parse_study(study(model={"formula": f"dead ~ {curve}"}, data=columns(**OTHERS)))
    )[1].names
    seen = {name: (4.5 if "bs" in name else 0.1, 0.3) for name in names}
    assert len(seen) > 2
    assert not any("ratio of" in alarm for alarm in told_of("logistic", f"dead ~ {curve}", seen))


@pytest.mark.parametrize(
    ("mean", "sd", "told"),
    [(0.5, 0.01, False), (0.99, 0.01, True), (-1.2, 0.05, True), (-1.2, 0.5, False)],
)
@pytest.mark.parametrize("several", [False, True])
def test_a_mean_at_an_end_of_the_outcomes_bounds_is_told(
    mean: float, sd: float, told: bool, several: bool
) -> None:
    """As where all files are in another unit, and each number was clipped."""
    kind, left = ("multivariate_linear", "cbind(days, old)") if several else ("linear", "days")
    seen = {"days: (Intercept)" if several else "(Intercept)": (mean, sd)}
    alarms = told_of(kind, f"{left} ~ grade", seen)
    assert any("at an end of its bounds" in alarm for alarm in alarms) == told


def test_what_a_patient_as_the_unit_changes_of_the_question_is_said() -> None:
    raw = study(privacy={"unit": "patient"}, data={"unit_column": "who"})
    found = judged(rows(*[0.2] * 4), study=raw)
    assert "all rows of a patient count together, about as much as one row" in said(found)
    assert "settled" in said(found)
    assert verdicts.from_dict(found.as_dict()) == found
    raw["data"]["max_rows_per_unit"] = 1
    assert judged(rows(*[0.2] * 4), study=raw).question == ""


def test_an_outcome_unlike_the_declared_one_is_told_and_no_width_is_held_against_it() -> None:
    usual = np.array([1.0, 0.5, 0.5, 0.6])
    found = judged(rows(*[0.4] * 4, mean=-2.0), joint=joint(usual=usual, mean=-2.0, sd=0.4))
    (alarm,) = found.alarms
    assert "of records with average columns, and 0.3 was expected" in alarm
    assert found.multiples == {}
    fine = judged(rows(*[0.2] * 4), joint=joint(usual=usual, sd=0.2))
    assert fine.alarms == ()
    assert fine.multiples


def test_effects_of_a_run_that_did_not_settle_are_not_told_as_final() -> None:
    unsettled = judged(rows(*[0.2] * 4, mean=1.0), ((3.0, 0.0, 0.1), (2.5, 2.0, 0.1)))
    assert "This may change, since the run did not settle" in said(unsettled)
    assert "may change" not in said(judged(rows(*[0.2] * 4, mean=1.0)))


@pytest.mark.parametrize(
    ("last", "left"),
    [
        ([(1.0, 0.0, 0.1), (0.8, 0.0, 0.1), (0.64, 0.0, 0.1), (0.512, 0.0, 0.1)], 3),
        # Moves of the size of noise are no reason for more rounds, missed aims are.
        ([(1.0, 2.0, 0.9), (0.8, 1.4, 0.9), (0.8, 0.98, 0.9), (0.8, 0.686, 0.9)], 3),
        ([(1.0, 0.0, 0.1), (1.0, 0.0, 0.1), (1.1, 0.0, 0.1), (1.0, 0.0, 0.1)], None),
        ([(9.0, 0.0, 0.1), (2.0, 0.0, 0.1)], None),
    ],
    ids=["moves", "aims", "no pace", "too few"],
)
def test_how_many_more_rounds_would_settle_a_run_is_told(last: Any, left: int | None) -> None:
    found = judged(rows(*[0.2] * 4), last)
    assert found.settled is False
    assert found.rounds_left == left
    assert (f"about {left} more to settle" in said(found)) == (left is not None)
    assert verdicts.from_dict(found.as_dict()) == found


def test_the_rounds_that_a_verdict_asks_for_do_settle_the_run() -> None:
    raw = study(prior={"scale": 0.05, "intercept_scale": 2.5}, schedule={"rounds": 5})
    short = verdict_of(run(planned(raw), sources()))
    assert short.settled is False
    assert short.rounds_left is not None
    # Noise makes the pace vary, and is larger in each of more rounds.
    raw["schedule"]["rounds"] += 2 * short.rounds_left
    assert verdict_of(run(planned(raw), sources())).settled


def test_the_first_line_of_a_run_with_alarms_does_not_read_as_if_all_were_well() -> None:
    silent = judged(rows(*[0.2] * 4, mean=1.0), contributions=Contributions(never=("s1",)))
    assert silent.settled
    first, *others = verdicts.lines(silent)
    assert first.startswith("3 of 3 effects stand out")
    assert first.endswith("There are doubts about this run: read them before you rely on an effect")
    assert not any("settled" in line for line in others)
    # A caller that shows the alarms itself says no more, either.
    assert [*verdicts.lines(silent, with_alarms=False)] == [first, *others[:1]]
    assert "doubts" not in said(judged(rows(*[0.2] * 4, mean=1.0)))


def test_an_effect_that_chance_may_explain_is_no_finding() -> None:
    """Of three effects, the largest must be 2.39 sds from 0, the next 2.24, the last 1.96."""

    def of(*means: float) -> Any:
        made = rows(*[0.2] * 4)
        for row, mean in zip(made[1:], means, strict=True):
            row |= {"mean": 0.2 * mean, "lower": 0.2 * (mean - 1.96), "upper": 0.2 * (mean + 1.96)}
        return judged(made)

    one = of(2.1, 0.5, -0.5)
    assert (one.stand_out, one.by_chance) == (("age",), ("age",))
    first = next(verdicts.lines(one))
    assert first.startswith(
        "1 of 3 effects stands out, since “no effect” is outside its 95 % interval: age"
    )
    assert (
        "If no effect were real, up to 1 of 3 would stand out by chance: this one is a hint"
        in first
    )
    two = of(2.1, -5.0, 0.5)
    assert two.by_chance == ("age",)
    assert "up to 1 of 3 would stand out by chance; age may be such" in next(verdicts.lines(two))
    for clear in (of(2.0, -5.0, 3.0), of(-2.5, 2.3, 2.0), of(0.0, 0.0, 2.5)):
        assert clear.by_chance == ()
        assert "by chance" not in next(verdicts.lines(clear))
    both = of(2.2, 0.0, -2.1)
    assert both.by_chance == ("age", "male")
    assert next(verdicts.lines(both)).endswith("by chance: take these as hints, not as findings")


def test_with_no_effect_at_all_one_study_in_twenty_keeps_one() -> None:
    random, study, kept = np.random.default_rng(3), parse_study(raw_plan()), 0
    for _ in range(2000):
        made = [
            {"name": f"x{i}", "mean": at, "sd": 1.0, "lower": at - 1.96, "upper": at + 1.96}
            for i, at in enumerate(random.normal(size=8))
        ]
        found = judge(study, made, None, ((0.1, 0.0, 0.2),) * 2, Contributions())
        kept += len(found.by_chance) < len(found.stand_out)
    # 5 % of 2,000 is 100, with an sd of 10: further off by chance less than once in 10,000.
    assert 60 < kept < 140


def test_a_curvature_that_noise_made_is_not_taken_for_the_records() -> None:
    """Without a record seen, noise alone had halved some of the sds that were handed out."""
    result = run(planned(raw_plan(0.05)), sources())
    expected = expectation(result.assembly)
    assert expected is not None
    standing, family = result.standing, result.assembly.family
    assert standing is not None
    told = {"handed_out": family.isotropic(0.01), "reported": family.isotropic(3.0)}
    found = verdicts.open_sds(family, standing._replace(**told), result.assembly.prior, expected)
    assert np.array_equal(found, np.array(expected["sds"]))


def test_what_was_declared_is_used_where_the_releases_agree_with_it() -> None:
    """Noise widens what releases say: beside it, privacy seemed to cost the demo a fifth less."""
    result = run(planned(raw_plan(8.0)), sources())
    expected = expectation(result.assembly)
    assert expected is not None
    assert expected["declared"]
    standing, family, prior = result.standing, result.assembly.family, result.assembly.prior
    assert standing is not None

    def found(times: float, **more: Any) -> Any:
        precision = np.diag((times * np.array(expected["sds"])) ** -2.0)
        told = standing.handed_out._replace(h=np.zeros(len(precision)), J=precision)
        given = expected | {"kept": [1.0] * len(precision)} | more
        return verdicts.open_sds(family, standing._replace(handed_out=told), prior, given)

    for times in (0.8, 1.3):
        assert np.array_equal(found(times), np.array(expected["sds"]))
    assert np.allclose(found(2.0), 2.0 * np.array(expected["sds"]))  # other records than declared
    assert np.allclose(
        found(1.3, declared=False), 1.3 * np.array(expected["sds"])
    )  # nothing declared


def test_no_gate_is_shut_for_a_usual_result() -> None:
    found = judged(rows(0.2, 0.2, 0.2, 0.2), contributions=Contributions({"s0": 0.4, "s1": 0.6}))
    assert found.alarms == ()
    # 1 / 0.04 − 1 of 1 / 0.01 − 1
    assert found.effective == round(2400 * 24 / 99)
    assert found.multiple == pytest.approx(2.0)


def test_what_spreads_more_than_was_assumed_is_not_too_narrow() -> None:
    raw = raw_plan()
    stated = expectation(planned(raw))
    assert stated is not None
    assert np.allclose(stated["least"], 0.6 * np.array(stated["sds"]))
    for column in raw["data"]["schema"].values():
        column.pop("expected")
        column |= {"bounds": [40, 60]} if column["type"] == "number" else {}
    silent = expectation(planned(raw))
    assert silent is not None
    # Of numbers from end to end of their bounds, and outcomes as often true as not, intervals of a fit
    # without noise have half the width that is planned where a study says nothing.
    assert np.all(np.array(silent["least"]) < 0.5 * np.array(silent["sds"]))


def test_records_other_than_the_declared_ones_are_not_counted() -> None:
    found = judged(rows(0.4, 0.4, 0.4, 0.4), open_sd=np.full(4, 0.3))
    assert found.effective is None
    assert "records would without noise" not in said(found)
    assert found.multiple == pytest.approx(4 / 3)


def test_one_round_tells_not_whether_it_settled() -> None:
    found = judged(rows(0.2, 0.2, 0.2, 0.2), ((3.0, 0.0, 0.1),))
    assert found.settled is None
    assert "not known" in said(found)


def test_intervals_that_leave_the_noise_out_are_held_against_nothing() -> None:
    found = judged(rows(0.1, 0.1, 0.1, 0.1), study=study(solver={"kind": "vips", "clip_norm": 1.0}))
    assert found.multiple is None
    assert "leave out the noise" in said(found)
    assert "as wide as without privacy" not in said(found)


def test_what_noise_alone_moved_does_not_stand_out() -> None:
    found = judged(rows(0.2, 0.2, 1.3, 0.2, mean=3.0))
    assert found.stand_out == ("age", "male")


def test_a_verdict_is_read_as_it_was_written() -> None:
    found = judged(rows(0.2, 0.2, 0.2, 0.2))
    assert verdicts.from_dict(found.as_dict()) == found
    assert verdicts.from_dict(None) is None


def test_a_run_without_a_round_says_so_and_judges_no_width() -> None:
    assert judged(rows(*[0.2] * 4), helps="more").multiples  # with rounds
    found = judged(rows(*[0.2] * 4), moves=(), helps="more")
    assert (found.multiples, found.helps) == ({}, "")
    assert "no round has moved the posterior yet" in said(found)
