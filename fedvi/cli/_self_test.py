"""`fedvi audit --self-test`: plants faults in memory, one at a time, and says which the audit finds."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.audit.faults import FAULTS, Fault, planted
from fedvi.audit.faults.fault import NEEDS
from fedvi.audit.findings import Finding
from fedvi.cli._audited import BROKE_OFF, LAYERS, Audited, Settings
from fedvi.inference.blocks import is_large
from fedvi.inference.predictor import has_predictor
from fedvi.study import build, modelling
from fedvi.study.build import Assembly

__all__ = ["MEANING", "Outcome", "lacking", "self_test", "summary"]


MEANING = (
    "A fault that nobody thought of is not among them, and smaller ones of these may be missed."
)
"""What a self-test says of other faults."""


class Outcome(NamedTuple):
    """What became of one fault.

    Attributes:
      fault: its name.
      says: what is wrong.
      found: whether a check failed; None where this study cannot show the fault, does not run with it, or
        no time was left.
      by: the check that failed; or why there is no answer.
      seconds: of a processor.
    """

    fault: str
    says: str
    found: bool | None
    by: str
    seconds: float


def self_test(
    description: Any,
    settings: Settings,
    clean: Iterable[Finding],
    faults: Iterable[Fault] | None = None,
) -> Iterator[Outcome]:
    """Plants each fault, builds the study with it, and audits that until a check fails.

    A check that fails without a fault finds none, and neither does a study that breaks before a check
    fails. What the study cannot show is not tried.

    Args:
      description: the study, as loaded.
      settings: of the audit; ``until`` holds for all faults together.
      clean: what the audit says without a fault.
      faults: to plant; left out, all.
    """
    failing = {finding.check for finding in clean if finding.passed is False}
    missing = lacking(build.assemble(description), settings)
    for fault in FAULTS if faults is None else faults:
        if missing[fault.name]:
            yield Outcome(fault.name, fault.says, None, missing[fault.name], 0.0)
            continue
        if settings.until is not None and time.monotonic() > settings.until:
            yield Outcome(
                fault.name, fault.says, None, "no time was left: give more --seconds", 0.0
            )
            continue
        begun = time.process_time()
        with planted(fault):
            found, by = _looked_for(description, settings, fault, failing)
        yield Outcome(fault.name, fault.says, found, by, time.process_time() - begun)


def _looked_for(
    description: Any, settings: Settings, fault: Fault, failing: set[str]
) -> tuple[bool | None, str]:
    rest = [layer for layer in LAYERS if layer != fault.layer]
    unfinished = ""
    try:
        audited = Audited(build.assemble(description), settings)
        for finding in audited.findings((fault.layer, *rest)):
            if finding.check.endswith(BROKE_OFF):
                unfinished = f"the study does not run with it: {finding.figure}"
            elif finding.passed is False and finding.check not in failing:
                return True, f"{finding.layer}: {finding.check}"
            if finding.passed is None and "no time was left" in finding.meaning:
                unfinished = finding.meaning
    except Exception as error:
        # No check saw the fault: that the code broke is no merit of the audit's.
        what = error.message if isinstance(error, errors.FedviError) else type(error).__name__
        return None, f"the study does not run with it: {what}"
    return (None, unfinished) if unfinished else (False, "no check failed")


def lacking(assembly: Assembly, settings: Settings) -> dict[str, str]:
    """Says of each fault what this study lacks to show it; empty where it has all."""
    has = _features(assembly, settings)
    return {
        fault.name: "; ".join(f"needs {NEEDS[need]}" for need in fault.needs if need not in has)
        for fault in FAULTS
    }


def summary(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Counts what was found, for a report."""
    tried = list(outcomes)
    return {
        "found": sum(outcome.found is True for outcome in tried),
        "missed": [outcome.fault for outcome in tried if outcome.found is False],
        "not_shown": [outcome.fault for outcome in tried if outcome.found is None],
        "meaning": MEANING,
        "planted": [outcome._asdict() for outcome in tried],
    }


def _features(assembly: Assembly, settings: Settings) -> set[str]:
    asked, sampler, sums = assembly.request, assembly.sampler, assembly.study.sums
    solver = assembly.solvers[assembly.clients[0]]
    predicts = has_predictor(assembly.model)
    told = {
        "one table": settings.one_table,
        "view aggregate": sums is not None,
        "colluding": sums is not None and sums.colluding > 0,
        "late answers": sums is not None and sums.least_reporting < len(assembly.clients),
        "visits": asked.rounds > 1,
        "unit client": asked.unit == "client",
        "parts": modelling.takes(assembly.study, "parts"),
        "unweighed": predicts and _is_unweighed(assembly.model),
        "survey": solver.survey is not None,
        "blocks": sampler is not None and sampler.rate == 1.0 and is_large(range(sampler.capacity)),
        "predictor": predicts and hasattr(assembly.prior, "J"),
        "random batches": sampler is not None and sampler.rate < 1.0,
    }
    # And what the study calls its kinds.
    kinds = {asked.solver, asked.family, asked.sampler, asked.mechanism, asked.accountant}
    return kinds | {name for name, has in told.items() if has}


def _is_unweighed(model: Any) -> bool:
    steepest = getattr(model, "steepest", None)
    return steepest is None or steepest(np.zeros(1), np.zeros(1)) is None
