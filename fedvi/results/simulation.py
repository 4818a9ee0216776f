"""``fedvi.simulate``: runs a simulated federation, whose result includes a verdict."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec

from fedvi.planning import advice
from fedvi.privacy.spoken import Speaks, Summary, Table, up
from fedvi.report import tables
from fedvi.results import outcome
from fedvi.results import verdict as verdicts
from fedvi.results.verdict import Verdict
from fedvi.run import simulate as running
from fedvi.run.simulate import Result
from fedvi.study.spec import regressions

__all__ = ["Simulation", "simulate"]

P = ParamSpec("P")

# The most rows of a table in a summary.
_MOST_SHOWN = 40


class Simulation(Speaks, Result):
    """A ``Result`` with a verdict: printed, it says in sentences how far to trust its numbers."""

    @functools.cached_property
    def verdict(self) -> Verdict:
        """What a reader needs before any number; see ``fedvi.results.verdict``."""
        return outcome.verdict_of(self)

    @functools.cached_property
    def warnings(self) -> tuple[str, ...]:
        """What must be said beside any of its numbers: the mark, doubts about the plan, and alarms."""
        said = (self.assembly.mark, *advice.doubts(self.assembly), *self.verdict.alarms)
        return tuple(dict.fromkeys(filter(None, said)))

    def summary(self) -> Summary:
        """Returns the verdict, the coefficients, and each client's privacy cost."""
        study = self.assembly.study
        ratio, rows = regressions.ratio(study), outcome.record(self).rows()
        shown = rows[:_MOST_SHOWN]
        units = any(row["unit"] for row in shown)
        names = ("coefficient", *(("unit",) if units else ()), "mean", "sd", "95 % interval")
        names += (f"{ratio} ratio (95 %)",) if ratio else ()
        cells = [
            (
                row["name"],
                *((row["unit"],) if units else ()),
                *tables.coefficient_cells(row, ratio),
            )
            for row in shown
        ]
        more = len(rows) - len(shown)
        title = f"The first {len(shown)} of {len(rows)} coefficients" if more else "Posterior"
        words = (0, 1) if units else (0,)
        paid = [
            (
                row["client"],
                str(row["releases"]),
                *(up(row["epsilon"][name]) for name in sorted(row["epsilon"])),
                tables.number(row["delta"]),
            )
            for row in outcome.privacy_rows(self)[:_MOST_SHOWN]
        ]
        relations = sorted(outcome.privacy_rows(self)[0]["epsilon"])
        heads = (
            "client",
            "releases",
            *(f"ε {tables.relation_words(name)}" for name in relations),
            "δ",
        )
        return Summary(
            f"{study.study.name}, simulated",
            tuple(verdicts.lines(self.verdict, with_alarms=False)),
            (Table(names, tuple(cells), words, title), Table(heads, tuple(paid), (0,), "Privacy")),
            self.warnings,
        )


def _judged(run: Callable[P, Result]) -> Callable[P, Simulation]:
    """Makes a simulating function warn before it runs, and return a ``Simulation``."""

    @functools.wraps(run)
    def simulate(*args: P.args, **kwargs: P.kwargs) -> Simulation:
        kwargs.setdefault("on_warning", lambda line: warnings.warn(line, stacklevel=4))
        found = run(*args, **kwargs)
        return Simulation(
            **{field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        )

    return simulate


simulate = _judged(running.simulate)
