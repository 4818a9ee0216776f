"""Judges a finished run: what a reader needs first. Uses NumPy alone, since servers need it too."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi.data.expected import parse_expected
from fedvi.data.schema import Number
from fedvi.planning.width_tables import CLIPPED
from fedvi.report import tables
from fedvi.report.contents import Z95
from fedvi.report.labels import is_effect
from fedvi.results.chance import by_chance, most_by_chance
from fedvi.study.config import Study
from fedvi.study.spec import regressions, shared_parts
from fedvi.study.spec.coefficients import design_of, readings
from fedvi.typing import INTERCEPT, LOG_SCALE
from fedvi.updates.abilities import ability

__all__ = ["Contributions", "Joint", "Verdict", "from_dict", "judge", "lines", "open_sds"]

# An sd above _WIDER × the prior's is no rounding; one below _NARROWER × the expected one is no luck.
_WIDER, _NARROWER = 1.02, 0.6
# A site with less than this part of its fair share of the precision adds almost nothing; and so little
# is no chance if it is twice the noise below this part of it.
_LITTLE, _CLEARLY = 0.1, 0.5
# A reference patient's probability below this, or above 1 minus this, is not plausible.
_RAREST = 1e-3
# The log odds ratio to the declared odds from which a rate is not plausible.
_FAR = math.log(30.0)
# The same for records with average columns.
_FAR_USUAL = math.log(10.0)
# From this correlation of two coefficients the records tell of a combination of both alone, if the sd is
# more than this part of its prior's: of an effect beside the intercept, and of each of two effects.
_TWINS, _LOOSE, _LOOSE_BOTH = 0.95, 0.25, 0.1
# An interval of more than this part of its prior's is the prior's.
_SAME = 0.9
# If clipping takes a part of what is known of an effect, and that part of the effect is this many of its
# sds, the mean may be off by more than its interval says. Of nine tables (benchmarks/README.md), two whose
# means were 4 and 6 sds off were above it, with 6 and 7, and all others at 3 or below.
_LONG = 4.0
# Intervals this many times as wide as planned, noise and all, are of other records than the declared ones.
_LESS = 4.0
# Of four sites whose noise hid much of the curvature, it gave sds 1.0 to 1.3 times those without noise.
_AGREE = 1.5
# The released curvature is used if it makes the sd smaller than this part of the prior's.
_SEEN = 0.5
_NAMED = 8
# Where noise costs as much as this part of the records, it hides nearly all that they say.
_ALL_LOST = 0.98
# The rounds that show a pace; and the pace above which no number of rounds is foretold.
_PACE, _STILL = 4, 0.95
# More than this many prior sds from the prior mean is outside what the prior allows.
_BEYOND = 3.0
# A mean that moved by less than this part of the prior's sd, with an interval of at least _WHOLE of its
# width, is the prior's.
_STAYED, _WHOLE = 0.05, 0.98
# A mean this close to an end of the outcome's bounds, in parts of their width, is at it, if its sd is below
# the other part.
_EDGE, _SURE_EDGE = 0.01, 0.05
# A ratio above this, or below 1 / this, is implausible for a level, or for a step of a number that is a
# quarter of its bounds.
_RATIO = 50.0
# A reference record that would have met this many events by the end, or so few, is implausible.
_ALL_GONE, _NONE_GONE = 30.0, 1e-4
_INTERVAL = re.compile(r"baseline \(([^,]+), ([^\]]+)[\])]$")
# A mean this many times a count's bound is implausible.
_MANY = 3.0
# In sds of the intercept: clipping may move it by less without a word.
_MOVED = 1.5
# If the expected sds without noise change by this factor, other records were declared than were used.
_OTHER = 1.7
# From this ratio of interval widths, with and without privacy, a reader wants advice.
_WIDE = 1.5


class Verdict(NamedTuple):
    """What a reader needs before any number.

    Attributes:
      effects: how many coefficients are compared with 0.
      stand_out: those whose interval excludes 0.
      by_chance: those of them that may do so by chance, since so many are looked at.
      multiples: coefficient → its width as a multiple of the expected width without noise; empty where
        there is no expectation.
      records: that all sites are assumed to hold; None where there is no expectation.
      effective: how many records would give the same precision without noise; None also where the
        releases contradict the declared records.
      settled: whether noise explains every move of the last round; None if unknown, as after a single
        round.
      alarms: reasons not to rely on the result as it is, one sentence each; empty if there are none.
      helps: what would narrow intervals most; empty if unknown.
      rounds_left: about how many more rounds would settle a run that did not, by the pace of its last
        ones; None if they show no pace, or it settled.
      question: how the unit of protection changes what is asked; empty if it does not.
      as_declared: whether the releases fit what the study declares of the outcome and the records; else
        nothing that follows from the declarations is said.
    """

    effects: int
    stand_out: tuple[str, ...]
    multiples: Mapping[str, float]
    records: int | None
    effective: int | None
    settled: bool | None
    alarms: tuple[str, ...]
    helps: str = ""
    rounds_left: int | None = None
    by_chance: tuple[str, ...] = ()
    as_declared: bool = True
    question: str = ""

    @property
    def multiple(self) -> float | None:
        """The median of the multiples."""
        return float(np.median(list(self.multiples.values()))) if self.multiples else None

    @property
    def wants_help(self) -> bool:
        """Whether privacy causes much of the width, or most effects do not stand out."""
        if not self.as_declared:
            return False
        return 2 * len(self.stand_out) < self.effects or (self.multiple or 1.0) > _WIDE

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return {**self._asdict(), "multiple": self.multiple, "lines": list(lines(self))}


class Contributions(NamedTuple):
    """Each site's part in a posterior, as far as it may be shown.

    Attributes:
      shares: site → its share of the likelihood's precision; empty if shares may not be shown.
      noise: the sd of the noise in each share; None if it is not known, so that no share can be judged.
      never: sites that never answered.
    """

    shares: Mapping[str, float | None] = {}
    noise: float | None = 0.0
    never: tuple[str, ...] = ()


class Joint(NamedTuple):
    """A Gaussian posterior of all coefficients together.

    Attributes:
      mean, covariance: [D] and [D, D].
      usual: the columns' means by a survey, which was released with noise, 1 for the constant; None
        without a survey.
      clipped: see ``Standing.clipped``.
    """

    mean: np.ndarray
    covariance: np.ndarray
    usual: np.ndarray | None = None
    clipped: float = 0.0

    def average(self) -> tuple[float, float] | None:
        """Returns mean and sd of the predictor at the columns' means; None without a survey."""
        if self.usual is None:
            return None
        sd = math.sqrt(float(self.usual @ self.covariance @ self.usual))
        return float(self.usual @ self.mean), sd


def from_dict(values: Mapping[str, Any] | None) -> Verdict | None:
    """Reads what ``as_dict`` wrote; None of a result without a verdict."""
    if not values:
        return None
    known = {name: values[name] for name in Verdict._fields if name in values}
    lists = ("stand_out", "alarms", "by_chance")
    known |= {name: tuple(known[name]) for name in lists if name in known}
    return Verdict(**known)


def open_sds(
    family: Any, standing: Any, prior: Any, expected: Mapping[str, Any] | None
) -> np.ndarray | None:
    """Returns the sds that a fit of the same records without noise is expected to have, [D]; or None.

    A study may declare little of its records, so the released curvature is used where it stands out of
    the noise: where the released posterior, which holds no noise of the mean, is much narrower than the
    prior, and the reported one, which holds it, is narrower too. Without clipping it would be narrower
    still. Noise makes this estimate too wide. So where a study declares all of its columns, and the two
    agree about as well as noise lets them, what was declared is used.
    """
    planned = None if expected is None else np.asarray(expected["sds"], np.float64)
    if standing is None or planned is None or expected is None:
        return planned
    own, reported, before = (
        np.asarray(family.moments(eta)[1])
        for eta in (standing.handed_out, standing.reported, prior)
    )
    told = np.maximum(own * np.asarray(expected["kept"]), _NARROWER * planned)
    seen = (own < _SEEN * before) & (reported < _SAME * before)
    if expected.get("declared") and seen.any():
        times = float(np.median((told / planned)[seen]))
        if 1.0 / _AGREE < times < _AGREE:
            return planned
    return np.where(seen, told, planned)


_NO_ROUND = (
    "no round has moved the posterior yet: it is the prior, or has the answers of some sites only, and its "
    "widths say nothing"
)


def judge(
    study: Study,
    rows: Sequence[Mapping[str, Any]],
    prior: Sequence[Mapping[str, float]] | None,
    moves: Sequence[Sequence[float]],
    contributions: Contributions,
    open_sd: np.ndarray | None = None,
    expected: Mapping[str, Any] | None = None,
    joint: Joint | None = None,
    helps: str = "",
) -> Verdict:
    """Judges a finished run from its releases.

    Args:
      study: the run's study.
      rows: the posterior by coordinate of θ: name, mean, sd, lower, upper; not in the units of the file,
        since what is expected of it is not either.
      prior: its mean and sd likewise; None if it has none.
      moves: (largest move of a mean, surprise, jitter) of each round, in posterior sds.
      contributions: of the sites.
      open_sd: see ``open_sds``.
      expected: see ``fedvi.planning.widths.expectation``.
      joint: the posterior of all coefficients together; None if it has no correlations.
      helps: what would narrow intervals most, in words.
    """
    effects = []
    # Topics, or parameters of a function, are not compared with 0.
    if study.formula is not None and not regressions.is_function(study):
        effects = [index for index, row in enumerate(rows) if is_effect(row["name"])]
    # Where noise made an interval wider than the prior, its position is noise, too.
    stand_out = [
        rows[i]["name"]
        for i in effects
        if (rows[i]["lower"] > 0.0 or rows[i]["upper"] < 0.0)
        and (prior is None or rows[i]["sd"] <= _WIDER * prior[i]["sd"])
    ]
    solver = ability(study.solver.kind)
    settled = None if len(moves) < 2 else tables.has_settled(*moves[-1])
    if len(moves) == 1 and solver.conjugate:
        settled = True  # in closed form
    if _unmoved(rows, prior) == {row["name"] for row in rows}:
        settled = None  # a prior that nothing moved has nowhere to settle
    unheld = solver.unheld if study.privacy.private else ""
    multiples: dict[str, float] = {}
    records = effective = None
    # Noise that intervals leave out makes correlations, too.
    twins = [] if unheld else list(_twins(rows, prior, effects, joint))
    rate = tuple(_of_rate(study, rows, joint))
    # What columns that say the same leave open has nothing to do with noise.
    out = {name for pair in twins for name in pair}
    free = [i for i in effects if rows[i]["name"] not in out]
    less = tuple(_of_less(rows, free, expected))
    # Without privacy, an interval wider than expected has other causes. And an interval that leaves the
    # noise out does not show what noise costs.
    # And of another outcome than the declared one, nothing is expected.
    if (
        open_sd is not None
        and expected is not None
        and study.privacy.private
        and not (unheld or rate or less)
    ):
        multiples = {
            row["name"]: row["sd"] / float(sd)
            for row, sd in zip(rows, open_sd, strict=False)
            if row["name"] not in out
        }
        records = int(expected["records"])
        off = [float(open_sd[i]) / expected["sds"][i] for i in free] or [1.0]
        if 1.0 / _OTHER < np.median(off) < _OTHER:
            sds = [rows[i]["sd"] for i in free]
            effective = _effective(records, sds, prior, open_sd, free)
    if not moves:
        # Widths and levers of a prior say nothing.
        return Verdict(len(effects), (), {}, None, None, None, (_NO_ROUND,), "")
    alarms = (
        *_unsettled(moves, settled),
        *([unheld] if unheld else []),
        *_of_widths(rows, prior, effects, expected),
        *_of_prior(rows, prior),
        *_of_ratios(study, rows, prior, effects),
        *_of_survival(study, rows),
        *_of_count(study, joint),
        *_of_residuals(study, joint),
        *_of_number(study, rows),
        *_of_twins(twins),
        *_of_contributions(study, contributions),
        *rate,
        *less,
        *_of_clipping(study, rows, prior, expected, effects),
    )
    return Verdict(
        *(len(effects), tuple(stand_out), multiples, records, effective),
        *(settled, tuple(alarms), helps),
        None if settled else _rounds_left(moves),
        by_chance([rows[i] for i in effects], stand_out),
        not (rate or less),
        regressions.question(study),
    )


def lines(verdict: Verdict, with_alarms: bool = True) -> Iterator[str]:
    """Yields the verdict in sentences, the most important first.

    Args:
      verdict: of a run.
      with_alarms: whether its alarms are among them; else the caller shows them.
    """
    count, found = verdict.effects, verdict.stand_out
    doubt = ""
    if verdict.settled is False:
        doubt = ". This may change, since the run did not settle"
    elif verdict.alarms:
        doubt = ". There are doubts about this run: read them before you rely on an effect"
    if count:
        one = len(found) == 1
        yield (
            f"{len(found)} of {count} effects stand{'s' * one} out, since “no effect” is outside "
            f"{'its 95 % interval' if one else 'their 95 % intervals'}: {_listed(found)}"
            f"{_said_of_chance(verdict)}{doubt}"
            if found
            else f"none of {count} effects stands out: records and noise leave the direction open"
        )
    if verdict.question:
        yield verdict.question
    if verdict.multiple is not None and verdict.records is not None:
        more = max(verdict.multiple, 1.0)
        said = (
            f"privacy makes the intervals about {more:.2g} times as wide"
            if more > 1.05
            else "intervals are about as wide as without privacy"
        )
        if verdict.effective is not None and more > 1.05:
            # A share of the records, since their number is not published.
            lost = 1.0 - verdict.effective / verdict.records
            of = "the noise"
            if lost > _ALL_LOST:
                # The ratio may then be that of the prior to a fit without noise, not of this run.
                said, of = "the noise hides nearly all that the records say", "it"
            share = tables.share_in_words(lost)
            said += f": {of} costs as much as leaving out {share} of the records would"
        yield said
    if verdict.settled and not verdict.alarms:
        yield (
            "the run settled: more rounds would change little. With other noise, an effect whose interval "
            "ends close to “no effect” could come out otherwise"
        )
    if verdict.settled is None and not verdict.alarms:
        yield "whether the run settled is not known: that takes two rounds"
    yield from (f"look out: {alarm}" for alarm in verdict.alarms if with_alarms)
    if verdict.rounds_left is not None:
        yield (
            f"by the pace of its last rounds, the run lacked about {verdict.rounds_left} more to settle. "
            "Under privacy a longer run is another run on the same records, and spends its ε again"
        )
    if verdict.helps:
        yield verdict.helps


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def _said_of_chance(verdict: Verdict) -> str:
    """Says which effects may stand out by chance, and how many would; "" if none may."""
    weak, of = verdict.by_chance, verdict.effects
    if not weak:
        return ""
    most = f". If no effect were real, up to {most_by_chance(of)} of {of} would stand out by chance"
    if len(weak) < len(verdict.stand_out):
        return f"{most}; {_listed(weak)} may be such"
    what = (
        "this one is a hint, not a finding"
        if len(weak) == 1
        else "take these as hints, not as findings"
    )
    return f"{most}: {what}"


def _effective(
    records: int,
    sds: Sequence[float],
    prior: Sequence[Mapping[str, float]] | None,
    open_sd: np.ndarray,
    effects: Sequence[int],
) -> int | None:
    """Returns how many records without noise would give the run's precision: the median over effects."""
    if prior is None or not effects:
        return None
    before = np.array([prior[i]["sd"] for i in effects]) ** -2.0
    told = np.asarray(sds) ** -2.0 - before
    could = np.maximum(np.asarray(open_sd)[list(effects)] ** -2.0 - before, 1e-12)
    return round(records * float(np.clip(np.median(told / could), 0.0, 1.0)))


def _unsettled(moves: Sequence[Sequence[float]], settled: bool | None) -> Iterator[str]:
    if settled is False and not moves[-1][1] < tables.SETTLED:
        yield (
            "the run did not settle: the last answers missed what earlier rounds foretold, by "
            f"{moves[-1][1]:.2g} posterior sd, which noise does not explain. Rely on neither means nor "
            "intervals: choose units in which coefficients and intercepts are small, or give it more "
            "rounds, or less noise"
        )
    elif settled is False:
        yield (
            f"the run did not settle: the last round still moved a mean by {moves[-1][0]:.2g} posterior "
            "sd, further than noise does; give it more rounds, or less noise"
        )


def _rounds_left(moves: Sequence[Sequence[float]]) -> int | None:
    """Returns how many more rounds would settle a run whose moves shrink as in its last rounds.

    >>> _rounds_left([(8.0, 0.0, 0.1), (4.0, 0.0, 0.1), (2.0, 0.0, 0.1), (1.0, 0.0, 0.1)])
    2
    """
    if len(moves) < _PACE:
        return None
    first, last = moves[-_PACE], moves[-1]
    wanted = 0
    for part, aim in ((0, max(tables.SETTLED, last[2])), (1, tables.SETTLED)):
        if last[part] < aim or first[part] == 0.0:  # settled, or foretold at first: no pace
            continue
        pace = (last[part] / max(first[part], 1e-300)) ** (1.0 / (_PACE - 1))
        if not 0.0 < pace < _STILL:
            return None
        wanted = max(wanted, math.ceil(math.log(aim / last[part]) / math.log(pace)))
    return wanted or None


def _unmoved(
    rows: Sequence[Mapping[str, Any]], prior: Sequence[Mapping[str, float]] | None
) -> set[str]:
    """Returns the coefficients whose mean and width are the prior's."""
    return {
        row["name"]
        for row, before in zip(rows, prior or (), strict=False)
        if abs(row["mean"] - before["mean"]) < _STAYED * before["sd"]
        and _WHOLE <= row["sd"] / before["sd"] <= _WIDER
    }


def _of_widths(
    rows: Sequence[Mapping[str, Any]],
    prior: Sequence[Mapping[str, float]] | None,
    effects: Sequence[int],
    expected: Mapping[str, Any] | None,
) -> Iterator[str]:
    unmoved = _unmoved(rows, prior)
    if prior is not None and len(unmoved) == len(rows):
        yield (
            "the run learnt nothing: each interval is the prior's. Noise hides the records, or none of "
            "them counted: look at what `fedvi data inspect` says of each file"
        )
    elif prior is not None and effects:
        wide = [
            row["name"]
            for row, before in zip(rows, prior, strict=False)
            if row["sd"] > _WIDER * before["sd"]
        ]
        if wide:
            yield (
                f"{tables.some(wide, _NAMED)}: the interval is wider than before any record was seen, so "
                "that noise alone moved it"
            )
        same = [
            rows[i]["name"]
            for i in effects
            if rows[i]["sd"] > _SAME * prior[i]["sd"] and rows[i]["name"] not in wide
        ]
        gone = [
            rows[i]["name"]
            for i in effects
            if rows[i]["name"].endswith("]") and rows[i]["sd"] >= _WHOLE * prior[i]["sd"]
        ]
        silent = [name for name in same if name in unmoved and name not in gone]
        if 2 * len(same) > len(effects) and not wide:
            yield "most intervals are as wide as the prior's: the run added next to nothing"
        elif rest := [name for name in same if name not in (*silent, *gone)]:
            yield (
                f"{tables.some(rest, _NAMED)}: the interval is as wide as before any record was seen: "
                "noise hides the effect, or the column is the same in nearly all records"
            )
        if silent:
            yield (
                f"the records say nothing about {tables.some(silent, _NAMED)}: the interval is the "
                "prior's. Noise hides it, or the column is the same in all records that count"
            )
        if gone:
            yield (
                f"the records say nothing about {tables.some(gone, _NAMED)}: no record has the level, "
                "noise hides the few that have, or files write it otherwise than "
                "`data.schema` does; see `fedvi data inspect`"
            )
    if expected is not None:
        narrow = [rows[i]["name"] for i in effects if rows[i]["sd"] < expected["least"][i]]
        if narrow:
            yield (
                f"{tables.some(narrow, _NAMED)}: the interval is narrower than {expected['records']:,} "
                "records could make it even without noise; check what is declared, and do not rely on it"
            )


def _of_prior(
    rows: Sequence[Mapping[str, Any]], prior: Sequence[Mapping[str, float]] | None
) -> Iterator[str]:
    """Yields coefficients and intercepts far outside the prior, which then shapes the answer."""
    beyond = [
        row["name"]
        for row, before in zip(rows, prior or (), strict=False)
        if not row["name"].startswith(LOG_SCALE)
        and abs(row["mean"] - before["mean"]) > _BEYOND * before["sd"]
    ]
    if beyond:
        yield (
            f"{tables.some(beyond, _NAMED)}: further from the prior's mean than the prior takes for "
            f"possible ({_BEYOND:g} of its sds), so that it shapes the answer: a column may be in another "
            "unit than was meant, the prior too narrow, or the column alone tells the outcome, or the fit "
            "went astray"
        )


def _of_ratios(
    study: Study,
    rows: Sequence[Mapping[str, Any]],
    prior: Sequence[Mapping[str, float]] | None,
    effects: Sequence[int],
) -> Iterator[str]:
    """Yields ratios that no usual study has, with intervals that exclude 1."""
    ratio = regressions.ratio(study)
    read = readings(study, [row["name"] for row in rows])
    for i, row in ((i, rows[i]) for i in effects if ratio):
        if row["lower"] <= 0.0 <= row["upper"] or not read[i].is_ratio:
            continue
        name = row["name"]
        while name and name not in study.data.columns_schema:
            name = name.partition(": ")[2]  # after a class
        column = study.data.columns_schema.get(name, {})
        part = 1.0
        if column.get("type") in ("number", "count") and "bounds" in column:
            low, high = column["bounds"]
            # A step that is left out is half the width of a number's bounds, and 1 of a count.
            step = (high - low) / 2.0 if column["type"] == "number" else 1.0
            part = min(1.0, (high - low) / 4.0 / float(column.get("scale", step)))
        if prior is not None and study.prior is not None:
            # Of a column that fills a small part of its bounds, no two records are so far apart.
            part *= min(1.0, study.prior.scale / prior[i]["sd"])
        if part * abs(row["mean"]) > math.log(_RATIO):
            found = math.exp(max(-700.0, min(row["mean"], 700.0)))
            article = "an" if ratio == "odds" else "a"
            yield (
                f"{row['name']}: {article} {ratio} ratio of {tables.number(found, 2)} is implausible: "
                "look at the column's unit, its bounds and its levels"
            )


def _of_survival(study: Study, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields an alarm if surely nearly none of the reference records, or all, are left at the end."""
    if regressions.ratio(study) != "hazard":
        return
    time = design_of(study)[1].response.columns[0]
    bounds = study.data.columns_schema.get(time, {}).get("bounds")
    if bounds is None:
        return
    least = most = 0.0
    for row in rows:
        found = _INTERVAL.match(row["name"])
        if found is None:
            continue
        # As they are fitted, hazards are per follow-up, and ends of intervals in the unit of the file.
        start, end = (float(part.replace("∞", "inf")) / bounds[1] for part in found.groups())
        width = min(1.0, end) - start
        low, high = (
            math.exp(min(row["mean"] + sign * Z95 * row["sd"], 700.0)) for sign in (-1.0, 1.0)
        )
        least, most = least + low * max(width, 0.0), most + high * max(width, 0.0)
    if least > _ALL_GONE or 0.0 < most < _NONE_GONE:
        left = "none" if least > _ALL_GONE else "all"
        yield (
            f"of reference records, nearly {left} would be without the event at {time} = {bounds[1]:g}, "
            "the end of the bounds, which is hardly plausible: the fit went astray, or the unit or the "
            f"bounds of {time} are not as declared"
        )


def _of_number(study: Study, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields numbers whose mean, for a reference record, is surely at an end of the declared bounds."""
    if study.formula is None or regressions.is_function(study):
        return
    schema, design = design_of(study)
    if design.response.type not in ("number", "several"):
        return
    for name in design.response.columns:
        column = schema[name]
        called = INTERCEPT if design.response.type == "number" else f"{name}: {INTERCEPT}"
        row = next((row for row in rows if row["name"] == called), None)
        if row is None or not isinstance(column, Number):
            continue
        low, high = ((end - column.center) / column.scale for end in column.bounds)
        edge = _EDGE * (high - low)
        if not low + edge < row["mean"] < high - edge and row["sd"] < _SURE_EDGE * (high - low):
            mean = column.center + column.scale * row["mean"]
            yield (
                f"{name} of reference records would be {tables.number(mean, 3)}, at an end of its bounds "
                "or beyond: files may be in another unit than the study, or its reference is far from a "
                "usual record"
            )


def _twins(
    rows: Sequence[Mapping[str, Any]],
    prior: Sequence[Mapping[str, float]] | None,
    effects: Sequence[int],
    joint: Joint | None,
) -> Iterator[tuple[str, str]]:
    """Yields pairs of an effect and an earlier effect, or an intercept, that only their sum determines."""
    if prior is None or joint is None:
        return
    sds = np.sqrt(np.diagonal(joint.covariance))
    near = np.abs(joint.covariance) > _TWINS * np.outer(sds, sds)
    fixed = [i for i, row in enumerate(rows) if row["name"].endswith(INTERCEPT)]
    open_ = [
        i
        for i in effects
        if rows[i]["sd"] > _LOOSE_BOTH * prior[i]["sd"]
        and rows[i]["lower"] <= 0.0 <= rows[i]["upper"]
    ]
    for i in effects:
        earlier = fixed if rows[i]["sd"] > _LOOSE * prior[i]["sd"] else []
        for k in (*earlier, *(k for k in open_ if k < i and i in open_)):
            if near[i, k]:
                yield rows[k]["name"], rows[i]["name"]


def _of_twins(twins: Sequence[tuple[str, str]]) -> Iterator[str]:
    for one, other in twins[:_NAMED]:
        if one.endswith(INTERCEPT):
            yield (
                f"{other}: the run cannot tell its effect from the intercept: the column is the same in "
                "nearly all records, as where its bounds cut it off or its reference level is rare (then "
                "put a common level first)"
            )
        else:
            yield (
                f"{one} and {other}: the run cannot tell one effect from the other: the two columns say "
                "nearly the same, or noise hides their difference; leave one of them out"
            )


def _of_contributions(study: Study, contributions: Contributions) -> Iterator[str]:
    """Yields sites that added nothing, as far as the noise in their shares lets it be seen."""
    for name in contributions.never:
        yield f"{name} never answered: the result holds nothing of its records"
    known = {name: share for name, share in contributions.shares.items() if share is not None}
    if len(known) < 2 or contributions.noise is None:
        return
    most = study.data.max_records or 1000
    held = {client.name: client.expected_records or most for client in study.clients}
    total = sum(held.get(name, most) for name in known)
    for name, share in known.items():
        fair = held.get(name, most) / total
        if share < _LITTLE * fair and share + 2.0 * contributions.noise < _CLEARLY * fair:
            yield (
                f"{name} added {'nothing that can be seen' if share < 0.0 else 'little'} (its share of "
                f"the precision is {share:.0%}): noise hides it, or it holds few records, or its file "
                "does not fit the schema"
            )


def _of_less(
    rows: Sequence[Mapping[str, Any]],
    effects: Sequence[int],
    expected: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Yields an alarm if the records tell far less than the declared ones would, beside the same noise."""
    noised = None if expected is None else expected.get("noised")
    if not noised or not effects:
        return
    times = float(np.median([rows[i]["sd"] / noised[i] for i in effects]))
    if times > _LESS:
        yield (
            f"intervals are about {times:.0f} times as wide as planned, noise and all: sites hold far "
            "fewer records than declared, or the outcome is not as declared, such as the same in nearly "
            "all records"
        )


def _of_clipping(
    study: Study,
    rows: Sequence[Mapping[str, Any]],
    prior: Sequence[Mapping[str, float]] | None,
    expected: Mapping[str, Any] | None,
    effects: Sequence[int],
) -> Iterator[str]:
    """Yields alarms if clipping is expected to leave little, or less than an effect's interval bears."""
    if expected is None or not effects or not study.privacy.private:
        return
    lost = {i: 1.0 - expected["kept"][i] ** 2 for i in effects}
    left = 1.0 - float(np.median(list(lost.values())))
    if left < CLIPPED:
        yield (
            f"clipping is expected to leave {tables.share_in_words(left)} of what the records say: "
            "intervals are wide. And means may be further from those without privacy than intervals show, "
            "since the records that are clipped most count least"
        )
        return
    centre = {i: 0.0 if prior is None else prior[i]["mean"] for i in effects}
    # What all coefficients lose, the intercept too, is lost by all records alike; what one loses beyond it,
    # by its extreme values.
    alike = min(1.0 - kept**2 for kept in expected["kept"])
    long = [
        i
        for i in effects
        if (lost[i] - alike) * abs(rows[i]["mean"] - centre[i]) > _LONG * rows[i]["sd"]
    ]
    if long:
        most = max(lost[i] for i in long)
        yield (
            f"{tables.some([rows[i]['name'] for i in long], _NAMED)}: clipping is expected to remove "
            f"{tables.share_in_words(most)} of what the records say, mostly of records with extreme "
            "values. If the effect differs for those, its mean may be off by about that part of its size, "
            "which is more than its interval shows; other means may be off, too. Bounds that end where "
            "records become rare leave less to clip"
        )


def _of_rate(study: Study, rows: Sequence[Mapping[str, Any]], joint: Joint | None) -> Iterator[str]:
    """Yields an alarm if the rate of a reference or average patient is not plausible, for odds."""
    formula = study.formula or ""
    intercept = next((row for row in rows if row["name"] == INTERCEPT), None)
    if intercept is None or regressions.ratio(study) != "odds":
        return
    outcome = formula.partition("~")[0].strip()
    table = study.data.columns_schema.get(outcome)
    if table is None or table.get("type") != "binary":
        return
    average = None if joint is None else joint.average()
    mean, sd = average or (intercept["mean"], intercept["sd"])
    rate = 1.0 / (1.0 + math.exp(-max(-700.0, min(mean, 700.0))))
    whose = "reference patients" if average is None else "records with average columns"
    why = (
        "its reference is far from a usual patient"
        if average is None
        else "the outcome is not as declared"
    )
    shares = parse_expected(table, f"data.schema.{outcome}").shares
    if shares is not None and 0.0 < shares[1] < 1.0:
        said = math.log(shares[1] / shares[0])
        if abs(mean - said) - Z95 * sd > (_FAR if average is None else _FAR_USUAL):
            yield (
                f"{outcome} would be true for {rate:.2g} of {whose}, and {shares[1]:.2g} was expected: the "
                f"fit went astray, or {why}"
            )
    elif abs(mean) - Z95 * sd > -math.log(_RAREST):
        yield (
            f"{outcome} would be true for {rate:.2g} of {whose}, which is hardly plausible: the fit went "
            f"astray, or {why}"
        )


def _of_count(study: Study, joint: Joint | None) -> Iterator[str]:
    """Yields an alarm if a count's usual mean is surely above its bound, or so small that none is seen."""
    average = None if joint is None or regressions.ratio(study) != "rate" else joint.average()
    if average is None:
        return
    design = design_of(study)[1]
    name, exposure = design.response.columns[0], design.offset
    most = study.data.columns_schema.get(name, {}).get("bounds", (0.0, math.inf))[1]
    # A record with the largest exposure may never be there: follow-up ends at the event.
    most = most if exposure is None else math.inf
    low, high = (average[0] + sign * Z95 * average[1] for sign in (-1.0, 1.0))
    least = 1.0 / sum(shared_parts.records(study).values())
    if low > math.log(_MANY * most) or high < math.log(least):
        rate = math.exp(max(-700.0, min(average[0], 700.0)))
        where = "" if exposure is None else f" and the largest {exposure.column}"
        yield (
            f"{name}: a mean of {rate:.2g} in records with average columns{where} is hardly plausible: the "
            "fit went astray, or a column is in another unit than was meant"
        )


def _of_residuals(study: Study, joint: Joint | None) -> Iterator[str]:
    """Yields an alarm if long residuals are clipped, and no normal distribution explains them."""
    average = None if joint is None else joint.average()
    if joint is None or average is None or joint.clipped <= _MOVED * average[1]:
        return
    yield (
        f"some records of {design_of(study)[1].response.columns[0]} are so far from the others that "
        f"clipping moves the intercept by about {joint.clipped / average[1]:.2g} of its sds, and "
        "coefficients of rare levels likewise: intervals do not show it. Narrower bounds of the outcome or "
        "its logarithm, leave less to clip"
    )
