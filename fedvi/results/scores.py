"""Scores predictions against outcomes: classes, numbers and calibration."""

import math
from typing import NamedTuple

import numpy as np

__all__ = [
    "Classes",
    "Group",
    "Numbers",
    "area_under_curve",
    "groups_of",
    "summary",
    "weighted_groups",
]

_GROUPS = 10


class Group(NamedTuple):
    """Records with about the same predicted probability.

    Attributes:
      rows: how many; for a binomial outcome, trials.
      predicted: mean predicted probability.
      observed: share of them in which the outcome occurred.
    """

    rows: int
    predicted: float
    observed: float


class Classes(NamedTuple):
    """How well an outcome with two or more classes is predicted.

    For a binomial outcome, each trial counts as a record with two classes.

    Attributes:
      accuracy: share of records whose most probable class occurred.
      majority: share of the test records' most frequent class: the accuracy of a constant.
      auc: area under the ROC curve; None for more than two classes, or if only one occurs.
      brier: mean squared distance of the probabilities from the outcome. For two classes, of one
        probability, in [0, 1]; for more, the sum over classes, in [0, 2].
      calibration_error: mean over records of |predicted − observed| of their group (ECE).
      groups: by tenths of the predicted probability; for more than two classes, of the largest one.
    """

    accuracy: float
    majority: float
    auc: float | None
    brier: float
    calibration_error: float
    groups: tuple[Group, ...]


class Numbers(NamedTuple):
    """How well a number or a count is predicted.

    Attributes:
      rmse: root of the mean squared error of the predictive mean, in the unit of the file.
      spread: the RMSE of a constant, the mean of the test records.
      coverage_50, coverage_95: share of records within the central interval of that probability. An
        interval of counts holds at least that probability, and more where counts are small.
    """

    rmse: float
    spread: float
    coverage_50: float
    coverage_95: float


def area_under_curve(
    score: np.ndarray, positives: np.ndarray, negatives: np.ndarray
) -> float | None:
    """Returns the probability that a positive scores higher than a negative; ties count one half.

    The rank formula of Mann and Whitney, for [n] counts at each score. None if all or none are positive.

    >>> positive = np.array([False, False, True, True])
    >>> area_under_curve(np.array([0.1, 0.4, 0.4, 0.8]), positive, ~positive)
    0.875
    """
    values, place = np.unique(score, return_inverse=True)
    won, lost = (np.bincount(place, each, len(values)) for each in (positives, negatives))
    pairs = won.sum() * lost.sum()
    if not pairs:
        return None
    return float((won * (np.cumsum(lost) - 0.5 * lost)).sum() / pairs)


def groups_of(score: np.ndarray, came_true: np.ndarray) -> tuple[Group, ...]:
    """Divides records by the deciles of the score; equal scores stay together."""
    edges = np.unique(np.quantile(score, np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1]))
    group = np.searchsorted(edges, score, "left")
    return tuple(
        Group(int(here.sum()), float(score[here].mean()), float(came_true[here].mean()))
        for here in (group == index for index in np.unique(group))
    )


def weighted_groups(score: np.ndarray, trials: np.ndarray, events: np.ndarray) -> tuple[Group, ...]:
    """Divides trials by the deciles of the score; one record's trials, and equal scores, stay together."""
    order = np.argsort(score, kind="stable")
    reached = np.cumsum(trials[order])
    ends = np.searchsorted(reached, reached[-1] * np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1])
    group = np.searchsorted(np.unique(score[order][ends]), score, "left")
    found = []
    for index in np.unique(group):
        here = group == index
        rows = float(trials[here].sum())
        predicted = float(score[here] @ trials[here]) / rows
        found.append(Group(int(rows), predicted, float(events[here].sum()) / rows))
    return tuple(found)


def summary(
    labels: np.ndarray, mean: np.ndarray, below: np.ndarray, up_to: np.ndarray, unit: float
) -> Numbers:
    """Compares outcomes with means, and with intervals, given P(Y < y) and P(Y ≤ y).

    y is in the central interval of probability p, from the least k with P(Y ≤ k) ≥ (1 − p)/2 to the
    least with P(Y ≤ k) ≥ (1 + p)/2, if P(Y ≤ y) ≥ (1 − p)/2 and P(Y < y) < (1 + p)/2.
    """
    covered = [
        float(((up_to >= (1.0 - p) / 2.0) & (below < (1.0 + p) / 2.0)).mean()) for p in (0.5, 0.95)
    ]
    rmse = unit * math.sqrt(((labels - mean) ** 2).mean())
    return Numbers(rmse, unit * float(labels.std()), *covered)
