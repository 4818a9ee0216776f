"""Computes what-if scenarios: a study's widths at another ε, number of records, sites, columns or view."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.planning.made_up import MadeUp, made_up
from fedvi.planning.signals import given_clip_norm
from fedvi.planning.widths import Widths, why_not, widths
from fedvi.report.labels import is_effect
from fedvi.study.build import Assembly, assemble
from fedvi.study.config import Study, parse_study
from fedvi.study.rare_references import rare_references

__all__ = [
    "MOST_EPSILON",
    "VIEWS",
    "Cell",
    "Lever",
    "Needs",
    "changed",
    "levers",
    "needs",
    "rows_of",
    "table",
]

VIEWS = ("message", "aggregate")

# ε as multiples of the study's, and records as multiples of the study's.
_EPSILONS, _RECORDS = (0.25, 0.5, 1.0, 2.0, 4.0), (1.0, 2.0, 4.0)
# Search ranges for ε, and for factors of records and of sites.
MOST_EPSILON = 20.0
_LEAST_EPSILON, _MOST_TIMES = 0.05, 256
_HALVINGS = 7
# A lever that narrows intervals by less than this share is not reported.
_WORTH = 0.03


class Cell(NamedTuple):
    """One scenario in a table.

    Attributes:
      epsilon, view: of the scenario.
      times: its records, as a multiple of the study's.
      records: at all sites together.
      detectable, open_detectable: the median of the smallest detectable effects, with and without noise.
      multiple: the median width, as a multiple of the width without noise.
    """

    epsilon: float
    view: str
    times: float
    records: int
    detectable: float
    open_detectable: float
    multiple: float


class Needs(NamedTuple):
    """What is needed to detect an effect in four of five studies; None if nothing suffices.

    Attributes:
      name: of the coefficient.
      effect: on the scale of coefficients.
      detectable, open_detectable: the smallest effects for the study as it is, with and without noise.
      epsilon: a sufficient ε, with these records.
      records: per site, at this ε.
      sites: of the present size, at this ε.
    """

    name: str
    effect: float
    detectable: float
    open_detectable: float
    epsilon: float | None
    records: int | None
    sites: int | None


class Lever(NamedTuple):
    """One change of a study, and its effect.

    Attributes:
      what: the change, in words.
      narrower: the share by which the median interval of a covariate would be narrower.
      change: the same for ``changed``.
    """

    what: str
    narrower: float
    change: Mapping[str, Any] = {}


def changed(
    study: Study,
    *,
    epsilon: float | None = None,
    times: float = 1.0,
    sites: int | None = None,
    view: str | None = None,
    formula: str | None = None,
    clip_norm: float | str | None = None,
    reference: tuple[str, int] | None = None,
) -> Study:
    """Returns a study with changed numbers.

    Args:
      study: as it is.
      epsilon: of the promise.
      times: factor for the records of each site.
      sites: number of sites; added ones have the median site's number of records.
      view: of the promise.
      formula: of the model.
      clip_norm: of the solver.
      reference: a column of levels, and which of them, from 0, is the one to compare the others with.
    """
    raw = study.as_written()
    if epsilon is not None:
        raw["privacy"]["epsilon"] = epsilon
    if view is not None:
        raw["privacy"]["view"] = view
        for name in ("least_reporting", "colluding"):
            raw["privacy"].pop(name, None)
    # The noise is calibrated again.
    raw["solver"].pop("noise_multiplier", None)
    if formula is not None:
        raw["model"]["formula"] = formula
    if clip_norm is not None:
        raw["solver"]["clip_norm"] = clip_norm
    if reference is not None:
        name, first = reference
        table = raw["data"]["schema"][name]
        order = sorted(range(len(table["levels"])), key=lambda i: i != first)
        table["levels"] = [table["levels"][i] for i in order]
        table["expected"]["shares"] = [table["expected"]["shares"][i] for i in order]
    most = raw["data"].get("max_records", 1000)
    raw["data"]["max_records"] = max(1, round(most * times))
    for client in raw["clients"]:
        client["expected_records"] = max(1, round(client.get("expected_records", most) * times))
    if sites is not None:
        held = int(np.median([client["expected_records"] for client in raw["clients"]]))
        more = range(len(raw["clients"]), sites)
        raw["clients"] = raw["clients"][:sites]
        raw["clients"] += [{"name": f"planned-{n}", "expected_records": held} for n in more]
    return parse_study(raw, study.parts)


def table(assembly: Assembly) -> tuple[Cell, ...]:
    """Returns the smallest effects over ε, records and views; scenarios that cannot run are left out."""
    promise = assembly.study.privacy.promise
    if promise is None:
        return ()
    study, made, found = assembly.study, made_up(assembly), []
    for view in VIEWS:
        for epsilon in (promise.epsilon * part for part in _EPSILONS):
            for times in _RECORDS:
                make = functools.partial(changed, study, epsilon=epsilon, times=times, view=view)
                one = _of(make, made)
                if one is not None:
                    median = [row.open_detectable for row in one.rows if is_effect(row.name)]
                    found.append(
                        Cell(
                            *(epsilon, view, times, one.records, one.detectable),
                            float(np.median(median or [math.inf])),
                            one.multiple,
                        )
                    )
    return tuple(found)


def needs(assembly: Assembly, name: str, effect: float) -> Needs:
    """Searches for the ε, records and number of sites at which an effect is detected.

    Args:
      assembly: of a private study.
      name: of a coefficient.
      effect: on the coefficient's scale, other than 0; for a ratio r, log r.

    Raises:
      ConfigError: the study has no such coefficient, or does not compare it with 0.
    """
    study, made = assembly.study, made_up(assembly)
    now = widths(assembly, made=made)
    names = [row.name for row in now.rows]
    effects = [each for each in names if is_effect(each)]
    if name not in effects:
        raise errors.ConfigError(
            f"--effect names {name!r}, which is no effect that the study estimates",
            errors.did_you_mean(name, effects),
        )
    row = now.rows[names.index(name)]

    def does(make: Callable[[], Study]) -> bool:
        found = _of(make, made)
        return found is not None and found.rows[names.index(name)].detectable <= abs(effect)

    epsilon = None
    if study.privacy.private:
        epsilon = _least(
            lambda value: does(lambda: changed(study, epsilon=value)), _LEAST_EPSILON, MOST_EPSILON
        )
    held = float(
        np.median(
            [client.expected_records or study.data.max_records or 1000 for client in study.clients]
        )
    )
    times = _least(lambda value: does(lambda: changed(study, times=value)), 1.0 / 16, _MOST_TIMES)
    records = None if times is None else math.ceil(held * times)
    count = _least(
        lambda value: does(lambda: changed(study, sites=max(1, round(value)))), 1.0, _MOST_TIMES
    )
    sites = None if count is None else math.ceil(count)
    return Needs(name, effect, row.detectable, row.open_detectable, epsilon, records, sites)


def levers(assembly: Assembly) -> tuple[Lever, ...]:
    """Returns the changes that would narrow a private study's intervals, the best first."""
    study, promise = assembly.study, assembly.study.privacy.promise
    if promise is None or why_not(assembly):
        return ()
    made = made_up(assembly)
    before = widths(assembly, 1, made)
    tried: list[tuple[str, dict[str, Any]]] = [
        (
            f"ε = {2.0 * promise.epsilon:g} in place of {promise.epsilon:g}, a weaker promise",
            {"epsilon": 2.0 * promise.epsilon},
        ),
        ("twice the records at each site", {"times": 2.0}),
        (
            f"{2 * len(study.clients)} sites in place of {len(study.clients)}",
            {"sites": 2 * len(study.clients)},
        ),
    ]
    if study.sums is None and len(study.clients) > 1:
        tried.append(
            ('view = "aggregate", where only sums over sites are seen', {"view": "aggregate"})
        )
    norm = given_clip_norm(study.solver.kind, study.solver.arguments)
    if isinstance(norm, float | int):
        tried.append((f'clip_norm = "auto" in place of {norm:g}', {"clip_norm": "auto"}))
    fewer = _fewer_columns(assembly)
    if fewer:
        tried.append(
            (
                "a formula of half the columns",
                {"formula": fewer},
            )
        )
    found = []
    for what, change in tried:
        same = None if "formula" in change else made
        after = _of(functools.partial(changed, study, **change), same)
        if after is not None:
            found.append(Lever(what, 1.0 - _ratio(before, after), change))
    for each in rare_references(assembly.schema, study.data.columns_schema, assembly.design):
        change = {"reference": (each.name, each.place)}
        after = _of(functools.partial(changed, study, **change))
        if after is not None:
            what = f"{each.best!r} in place of {each.first!r} as the reference of {each.name}"
            what += ", for its intervals"
            found.append(Lever(what, 1.0 - _ratio_of(each.name, before, after), change))
    return tuple(
        sorted((one for one in found if one.narrower > _WORTH), key=lambda one: -one.narrower)
    )


def _ratio(before: Widths, after: Widths) -> float:
    """Returns the median ratio of new to old widths, over the effects in both."""
    old = {row.name: row.sd for row in before.rows}
    new = [row.sd / old[row.name] for row in after.rows if is_effect(row.name) and row.name in old]
    return float(np.median(new)) if new else 1.0


def _ratio_of(column: str, before: Widths, after: Widths) -> float:
    """Returns the ratio of the median width of a column's levels, whichever they are compared with."""
    new, old = (
        np.median([row.sd for row in found.rows if row.name.startswith(f"{column}[")])
        for found in (after, before)
    )
    return float(new / old)


def _fewer_columns(assembly: Assembly) -> str:
    """Returns the formula with the first half of its terms; "" if it has fewer than two."""
    design, text = assembly.design, assembly.study.formula or ""
    terms = [":".join(term) for term in design.terms if term]
    if len(terms) < 2 or design.offset is not None:
        return ""
    kept = [*([] if () in design.terms else ["0"]), *terms[: (len(terms) + 1) // 2]]
    return f"{text.partition('~')[0].strip()} ~ {' + '.join(kept)}"


def _of(make: Callable[[], Study], made: MadeUp | None = None) -> Widths | None:
    """Returns the widths of a study; None if it cannot run, or has no prediction."""
    try:
        assembly = assemble(make())
    except errors.FedviError:
        return None
    return None if why_not(assembly) else widths(assembly, 1, made)


def _least(does: Callable[[float], bool], low: float, high: float) -> float | None:
    """Returns the smallest number for which ``does`` holds, within some per cent; None if there is none."""
    if not does(high):
        return None
    if does(low):
        return low
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if does(middle) else (middle, high)
    return high


def rows_of(cells: Sequence[Cell], view: str) -> Iterator[tuple[float, list[Cell]]]:
    """Yields each ε of a view with its cells."""
    for epsilon in sorted({cell.epsilon for cell in cells if cell.view == view}):
        yield epsilon, [cell for cell in cells if cell.view == view and cell.epsilon == epsilon]
