"""What `[schedule]` may say: stages of a script, deadlines by client, and how mistakes are told."""

from typing import Any

import pytest

from fedvi import errors
from fedvi.federation.progress import Progress
from fedvi.federation.schedules import synchronous
from fedvi.federation.script import Stage, from_generator
from fedvi.study.config import Study, parse_study
from fedvi.study.spec import shared_parts
from fedvi.typing import PRIOR
from tests.studies import raw_study

NAMES = ["a", "b", "c", "d"]
STAGES = [
    {"kind": "sequential", "over": ["a", "b"], "rounds": 2},
    {
        "kind": "synchronous",
        "over": ["c", "d"],
        "until": "converged",
        "tolerance": 0.01,
        "rounds": 20,
    },
    {"kind": "asynchronous", "updates": 20},
]


def study_of(**schedule: Any) -> Study:
    return parse_study(raw_study(NAMES, 2, schedule=schedule))


def refusal(**schedule: Any) -> errors.ConfigError:
    with pytest.raises(errors.ConfigError) as found:
        shared_parts.schedule(study_of(**schedule))
    assert found.value.hint
    return found.value


def test_a_script_of_the_documentation_is_planned_for_its_busiest_client():
    schedule, _, _ = shared_parts.schedule(study_of(kind="scripted", stages=STAGES))
    assert (schedule.name, schedule.rounds) == ("scripted", 20 + 20)
    start = Progress(tuple(NAMES), (0,) * 4, (0,) * 4, (), (), 0, float("inf"))
    assert schedule.select(start) == ("a",)
    # A study keeps its stages when it is written and read again, and so its digest.
    study = study_of(kind="scripted", stages=STAGES)
    assert parse_study(study.as_dict()).digest == study.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "sequentail"}, ".kind is 'sequentail', expected one of asynchronous, "),
        ({"kind": "scripted"}, ".kind is 'scripted', expected one of asynchronous, "),
        ({"kind": None}, ".kind is missing"),
        ({"kind": 3}, ".kind is 3"),
        ({"kind": "my_lab.schedules:mine"}, ".kind is 'my_lab.schedules:mine', which names code"),
        ({"round": 2}, ".round: unknown key for kind 'synchronous'"),
        ({"rounds": 0}, ".rounds is 0, expected at least 1"),
        ({"rounds": "2"}, ".rounds is '2', expected a whole number"),
        ({"rounds": None}, ".rounds is missing for kind 'synchronous'"),
        ({"rounds": None, "until": "converged", "tolerance": 0.1}, " could run for ever"),
        ({"until": "converged"}, ".tolerance is missing, or 0, beside until"),
        ({"until": "converged", "tolerance": 0.0}, ".tolerance is missing, or 0, beside until"),
        ({"until": "done"}, ".until is 'done', expected \"converged\""),
        ({"tolerance": -1.0}, ".tolerance is -1.0"),
        ({"over": []}, ".over is [], expected a list"),
        ({"over": "a"}, ".over is 'a', expected a list"),
        ({"over": ["a", "e"]}, ".over names 'e', which is no client"),
        ({"over": ["a", "b", "a"]}, ".over names 'a' twice"),
        ({"over": ["prior"]}, ".over names 'prior', which is no client"),
        ({"kind": "asynchronous", "rounds": None}, ".rounds is missing, expected `rounds` or"),
        ({"kind": "asynchronous", "updates": 0}, ".updates is 0, expected at least 1"),
        ({"kind": "asynchronous", "most_stale": -1}, ".most_stale is -1, expected at least 0"),
        ({"kind": "buffered_asynchronous", "buffer": 0}, ".buffer is 0, expected at least 1"),
        ({"kind": "buffered_asynchronous", "buffer": 9}, ".buffer is 9, expected at most 4"),
        (
            {"kind": "buffered_asynchronous", "buffer": 3, "over": ["a", "b"]},
            ".buffer is 3, expected at most 2",
        ),
        ({"deadline_seconds": 5.0}, ".deadline_seconds: unknown key"),
    ],
)
def test_a_mistake_in_a_stage_is_told_with_its_place(change, message):
    stage = {"kind": "synchronous", "rounds": 1} | change
    stage = {name: value for name, value in stage.items() if value is not None}
    error = refusal(kind="scripted", stages=[STAGES[0], stage])
    assert error.message.startswith(f"schedule.stages[1]{message}")


def test_the_nearest_key_of_a_stage_is_named():
    stage = {"kind": "asynchronous", "update": 20}
    assert "updates" in refusal(kind="scripted", stages=[stage]).hint


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({}, "schedule.stages is empty"),
        ({"stages": []}, "schedule.stages is empty"),
        ({"stages": "sequential"}, "schedule.stages is 'sequential', expected a list"),
        ({"stages": ["sequential"]}, "schedule.stages is ['sequential'], expected a list"),
        ({"stages": STAGES, "rounds": 3}, "schedule.rounds: unknown key for kind 'scripted'"),
    ],
)
def test_a_script_without_stages_is_refused(schedule, message):
    assert refusal(kind="scripted", **schedule).message.startswith(message)


def test_a_script_in_python_is_passed_and_reached_by_its_name():
    def mine(passes: int = 3):
        def script(progress):
            yield Stage(synchronous(passes))

        return from_generator(script, rounds=passes)

    study = study_of(kind="mine", passes=5).with_parts({"mine": mine})
    schedule, _, _ = shared_parts.schedule(study)
    assert schedule.rounds == 5
    # A stage of a script is fedvi's own: a policy judges by `schedule.kind` alone.
    staged = study_of(kind="scripted", stages=[{"kind": "mine"}]).with_parts({"mine": mine})
    with pytest.raises(
        errors.ConfigError, match=r"^schedule\.stages\[0\]\.kind is 'mine', expected"
    ):
        shared_parts.schedule(staged)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (90, dict.fromkeys([PRIOR, *NAMES], 90.0)),
        ({"a": 5, "c": 1.5}, {"a": 5.0, "c": 1.5}),
        ({"a": 5, "default": 60}, {PRIOR: 60.0, "a": 5.0, "b": 60.0, "c": 60.0, "d": 60.0}),
        (None, {}),
    ],
)
def test_each_client_may_have_its_own_deadline(given, expected):
    keys = {} if given is None else {"deadline_seconds": given}
    _, _, patience = shared_parts.schedule(study_of(kind="synchronous", rounds=1, **keys))
    found = {name: patience.deadline_of(name) for name in [PRIOR, *NAMES]}
    assert found == {name: expected.get(name) for name in found}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"e": 5}, "schedule.deadline_seconds.e: no client of the study"),
        ({"prior": 5}, "schedule.deadline_seconds.prior: no client of the study"),
        ({"a": 0}, "schedule.deadline_seconds.a is 0, expected a finite number above 0"),
        ({"a": "5"}, "schedule.deadline_seconds.a is '5', expected a finite number above 0"),
        ({"default": True}, "schedule.deadline_seconds.default is True, expected a finite"),
        ([5], "schedule.deadline_seconds is [5], expected a finite number above 0"),
    ],
)
def test_a_deadline_that_cannot_be_is_told_with_its_client(given, message):
    error = refusal(kind="synchronous", rounds=1, deadline_seconds=given)
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("schedule", "size"),
    [
        ({"kind": "synchronous", "rounds": 5}, 4),
        ({"kind": "sequential", "rounds": 5}, 1),
        ({"kind": "asynchronous", "rounds": 5}, 1),
        ({"kind": "buffered_asynchronous", "rounds": 5, "buffer": 3}, 3),
        ({"kind": "scripted", "stages": STAGES}, 1),
        ({"kind": "scripted", "stages": STAGES[1:]}, 2),
    ],
)
def test_the_first_fold_holds_those_whom_its_schedule_waits_for(schedule, size):
    """Coordinates are made of it. Counting all clients, the planted bug, takes its sum for a larger one."""
    found, _, _ = shared_parts.schedule(study_of(**schedule))
    assert found.first_fold(tuple(NAMES)) == size
