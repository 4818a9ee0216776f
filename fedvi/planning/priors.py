"""Explains a prior by the ratio for a practical step of each column, and finds conflicts with bounds."""

import math
from dataclasses import replace
from typing import NamedTuple

from fedvi.data.schema import Number
from fedvi.data.unit_words import step_of
from fedvi.planning.made_up import expected_of, is_known, spread_of
from fedvi.report.contents import Z95
from fedvi.study.build import Assembly
from fedvi.study.round_numbers import round_below
from fedvi.study.spec import regressions
from fedvi.study.spec.coefficients import in_file_units, outcome_unit

__all__ = ["Step", "quarrels", "steps"]

# If an sd of a covariate changes the odds by less than this factor, the prior leaves no room for an effect.
_LEAST_ROOM = 1.5
# The same where the unit is half the width of the bounds, which nobody chose: the prior may not be meant.
_ROOM_BY_BOUNDS = 2.0
# Bounds more than this many units of the coefficient wide are of another unit than was meant. Some study
# states very wide bounds to say nothing.
_UNITS = 1e7
# The step that is named: an eighth of the bounds' width, as in a plan that knows no better.
_SPREAD = 0.125
# Bounds this many sds wide are far too wide for their number.
_WIDE = 16.0
# Bounds that end this many units or sds from the centre hold a long tail, which is clipped most.
_FAR = 30.0


class Step(NamedTuple):
    """The prior of one coefficient, for a practical step of its column.

    Attributes:
      name: of the column.
      step: in the unit of the file: a round number, about an sd.
      low, high: the 95 % prior interval of the ratio for that step; of the difference, in the unit of the
        file, if the model has no ratios.
      per: the step with its unit, such as "10 years".
      unit: of a difference, such as "mmHg"; may be empty.
    """

    name: str
    step: float
    low: float
    high: float
    per: str
    unit: str = ""


def steps(assembly: Assembly) -> tuple[Step, ...]:
    """Returns a step for each number that is a term by itself, and for each binary column."""
    ratio, unit = bool(regressions.ratio(assembly.study)), outcome_unit(assembly.study)
    found = []
    for name, sd, column in _alone(assembly):
        sd *= float(in_file_units(assembly.study, (name,)).factor[0])
        step, size, per = 1.0, sd, "1"
        if isinstance(column, Number) and not column.whole:
            step = round_below(spread_of(column, expected_of(assembly, name))[1])
            size, per = sd * step / column.scale, step_of(replace(column, scale=step))
        high = Z95 * size
        if ratio:
            high = math.exp(min(high, 700.0))
        found.append(Step(name, step, 1.0 / high if ratio else -high, high, per, unit))
    return tuple(found)


def quarrels(assembly: Assembly) -> tuple[str, ...]:
    """Returns conflicts between bounds, scales and the prior, with a remedy, one sentence each."""
    said, ratio = [], regressions.ratio(assembly.study)
    for name, sd, column in _alone(assembly):
        if not isinstance(column, Number) or column.whole:
            continue
        spread = spread_of(column, expected_of(assembly, name))[1]
        step = round_below(spread)
        room, of_step = (
            math.exp(min(Z95 * sd * far / column.scale, 700.0)) for far in (spread, step)
        )
        low, high = column.bounds
        within = f"the bounds [{low:g}, {high:g}]"
        if not low <= column.center <= high:
            said.append(
                f"data.schema.{name}.center: {column.center:g} is outside of {within}: the intercept is "
                "for a record that cannot be, and is hard to tell from the effect; state a usual value"
            )
        if not 1.0 <= (high - low) / column.scale <= _UNITS:
            said.append(
                f"data.schema.{name}.scale: one unit of the coefficient is {column.scale:g}, and {within} "
                f"are {(high - low) / column.scale:.2g} such units wide: state a step that matters, such "
                f"as {round_below(_SPREAD * (high - low)):g}"
            )
            continue
        if ratio and room < (_ROOM_BY_BOUNDS if column.by_bounds else _LEAST_ROOM):
            said.append(
                f"data.schema.{name}: the prior leaves little room for an effect: {step:g} more change the "
                f"{ratio} by a factor of {of_step:.2g} at most (95 %), since one unit of the coefficient "
                f"is {column.scale:g}. State center and scale = {step:g}, or a wider prior.scale"
            )
        believed = expected_of(assembly, name)
        unit = column.scale if believed.sd is None else max(column.scale, believed.sd)
        far = max(high - column.center, column.center - low) / unit
        if assembly.study.privacy.private and far > _FAR and column.scale != (high - low) / 2.0:
            log = f", or write log1p({name}) into the formula" if low >= 0.0 else ""
            said.append(
                f"data.schema.{name}.bounds: [{low:g}, {high:g}] reach {far:.0f} steps of {unit:g} from "
                "the center. Records out there are clipped most: if they are few, the coefficient may be "
                f"off by more than its interval shows. State bounds that end where records become rare{log}"
            )
        # A stated scale is assumed to fit the prior, whatever the bounds.
        if (high - low) / spread > _WIDE and column.scale == (high - low) / 2.0:
            said.append(
                f"data.schema.{name}.bounds: [{low:g}, {high:g}] are {(high - low) / spread:.0f} sds wide: "
                f"state a center and scale = {step:g}, or narrower bounds, so that one unit "
                "of the coefficient is one that patients differ by"
            )
    return tuple(said)


def _alone(assembly: Assembly) -> list[tuple[str, float, object]]:
    """Lists the columns that are coefficients by themselves: name, prior sd, declaration."""
    if not is_known(assembly):
        return []
    design, model, found = assembly.design, assembly.model, []
    scales = dict(zip(model.names, model.prior_scales, strict=True))
    for name, parts in zip(design.names, design.coefficients, strict=True):
        if (
            len(parts) == 1
            and parts[0].transform is None
            and name in assembly.schema
            and name in scales
        ):
            found.append((name, float(scales[name]), assembly.schema[name]))
    return found
