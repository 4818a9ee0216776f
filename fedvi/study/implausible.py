"""Warns of numbers in a study that are allowed but probably unintended."""

import math
from collections.abc import Iterator

from fedvi.data.unit_words import counted
from fedvi.privacy.statement import DELTA_TOO_LARGE, FEW_RECORDS
from fedvi.study.config import Study
from fedvi.study.spec import regressions
from fedvi.study.spec.coefficients import design_of, known_noise, outcome_scales

__all__ = ["few_records", "implausible"]

# More rounds have no visible benefit.
_MANY = 1000
# exp(10) is an odds ratio of 22,000.
_WIDE = 10.0
# A clip norm this many times the typical norm never clips, and its noise dominates.
_TIMES = 100.0
# A known noise outside of these parts of the scaled outcome is probably in another unit.
_LEAST_NOISE, _MOST_NOISE = 0.02, 5.0


def implausible(study: Study, typical_norm: float | None) -> Iterator[str]:
    """Yields warnings that name the key, its value and a better one.

    Args:
      study: as validated.
      typical_norm: a public guess of the length of a row of covariates; None if there is none.
    """
    yield from _of_delta(study)
    most, unit = study.data.max_records, study.privacy.unit
    if study.privacy.private and most is not None and unit != "client":
        yield from filter(None, [few_records(most, unit or "record")])
    rounds = study.schedule.arguments.get("rounds")
    if isinstance(rounds, int) and rounds > _MANY:
        yield (
            f"schedule.rounds is {rounds:,}: the more often a site answers, the more noise each answer "
            "needs. 10 to 50 are enough"
        )
    scale, ratio = (
        0.0 if study.prior is None else study.prior.scale,
        regressions.ratio(study),
    )
    if study.privacy.private and scale > _WIDE and ratio:
        yield (
            f"prior.scale is {scale:g}: it takes {ratio} ratios of any size for likely, and where noise "
            "hides the records, intervals become as wide. 2.5 leaves nearly all to the records, and 0.5 to "
            "1 suit a unit that is a step which matters"
        )
    yield from _of_noise(study)
    clip = study.solver.arguments.get("clip_norm")
    limit = _TIMES * max(1.0, typical_norm or 1.0)
    if study.privacy.private and isinstance(clip, int | float) and clip > limit:
        yield (
            f"solver.clip_norm is {clip:g}, and no record's contribution comes near: noise grows with it, "
            'and drowns everything. Write clip_norm = "auto" where the solver takes that, or about '
            f"{max(1.0, typical_norm or 1.0):.2g}"
        )


def few_records(most: int, unit: str) -> str:
    """Warns of a ``max_records`` that leaves next to nothing to learn from; "" if it is large enough."""
    if most >= FEW_RECORDS:
        return ""
    return (
        f"data.max_records is {most}: no site may use more than its first {most} {unit}s, and the noise "
        "hides what so few say. Declare the largest number that any site may hold, such as 5000"
    )


def _of_noise(study: Study) -> Iterator[str]:
    """Compares a known noise, which is in the unit of the file, with the scale of its outcome."""
    known = known_noise(study)
    if not known:
        return
    schema, design = design_of(study)
    scales = outcome_scales(design, schema)
    for name, noise, scale in zip(design.response.columns, known, scales, strict=False):
        if not _LEAST_NOISE <= noise <= _MOST_NOISE:
            unit = counted(schema, name, many=True)
            yield (
                f"model.noise_scale is {noise * scale:g}: it is the sd of a record around its mean, in "
                f"{unit}, and 1 of the scaled {name} is {scale:g} of them. Is it in another unit? If it is "
                f"from a version that took it of the scaled outcome, write {noise * scale**2:.4g}"
            )


def _of_delta(study: Study) -> Iterator[str]:
    """Compares δ with 1 / N: publishing one of N units at random, unprotected, is (0, 1/N)-private."""
    promise, most, of = study.privacy.promise, study.data.max_records, "data.max_records"
    if promise is not None and promise.unit == "client":
        most, of = len(study.clients), "the number of clients"
    if promise is not None and most is not None and promise.delta * most >= DELTA_TOO_LARGE:
        yield (
            f"privacy.delta is {promise.delta:g}, not below 1 / {of} = {1.0 / most:.3g}: "
            f"to publish a {promise.unit} picked at random would keep such a promise. "
            f"Choose delta far below, such as {10.0 ** math.floor(math.log10(0.1 / most)):g}"
        )
