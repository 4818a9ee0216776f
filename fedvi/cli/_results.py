"""The end of a run, as a server and `fedvi import` leave it in the state's folder and print it."""

import os
from pathlib import Path
from typing import Any

from fedvi import __version__, errors
from fedvi.expfam.base import Gaussian
from fedvi.privacy import ledger as ledgers
from fedvi.report import tables
from fedvi.results import posterior as posteriors
from fedvi.results.one_shot import OneVisit, estimated_gap
from fedvi.run.server_plan import ServerPlan
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.study import intervals, shared_parts, site_effects
from fedvi.study.coefficients import UNCONSTRAINED
from fedvi.study.regressions import is_function

__all__ = ["RESULT", "check_completed", "content", "show", "write"]

RESULT = "result"
"""The name, within a server's folder, of the folder of the posterior."""


def write(plan: ServerPlan, spec: ServerSpec, state: ServerState, folder: Path) -> None:
    """Leaves the posterior, and what is known of it, in the folder of a server's state.

    A later end of the same run replaces it, each file as a whole.
    """
    result, beside = folder / RESULT, folder / f".{RESULT}"
    for made in (result, beside):
        made.mkdir(parents=True, exist_ok=True)
    posterior = protocol.reported(spec, state)
    posteriors.write(beside, spec.family, posterior, plan.names, plan.mark)
    posteriors.write_json(beside / "result.json", content(plan, spec, state))
    for file in beside.iterdir():
        os.replace(file, result / file.name)
    beside.rmdir()


def content(plan: ServerPlan, spec: ServerSpec, state: ServerState) -> dict[str, Any]:
    """Returns all that is known of a run, as plain values for JSON."""
    rows = plan.rows(protocol.reported(spec, state))
    said = site_effects.remark(plan.study, rows)
    return posteriors.plain(
        {
            "fedvi": __version__,
            "study": plan.study.study.name,
            "digest": plan.digest,
            "status": state.status,
            "protection": plan.study.privacy.protection,
            "mark": plan.mark,
            "coefficients": rows,
            **({"remark": said} if said else {}),
            "one_shot_gap": _one_shot_gap(plan, spec, state),
            "projected": state.standing is None and not spec.family.is_proper(state.posterior),
            "clients": [
                {
                    "name": name,
                    "answers": state.visits[name],
                    "charged": ledgers.reservations(state.ledgers[name]),
                    "missed": sum(name in update.missing for update in state.history),
                    "removed": protocol.is_removed(state, name),
                    "ledger": str(ledgers.anchor(state.ledgers[name])),
                }
                for name in plan.clients
            ],
            "history": [
                {
                    "version": update.version,
                    "clients": list(update.clients),
                    "missing": list(update.missing),
                    "removed": list(update.removed),
                    "added": list(update.added),
                    "given_up": list(update.given_up),
                    "dropped": list(update.dropped),
                    "staleness": list(update.staleness),
                    "damping": update.damping,
                    "rounds": update.rounds,
                    "gap": None if update.gap is None else update.gap._asdict(),
                }
                for update in state.history
            ],
        }
    )


def show(plan: ServerPlan, spec: ServerSpec, state: ServerState, folder: Path) -> None:
    """Prints the posterior, who answered, and where it is kept."""
    console = tables.console()
    rows = plan.rows(protocol.reported(spec, state))
    mark = f" — {plan.mark}" if plan.mark else ""
    title = f"Posterior of {plan.study.study.name}{mark}"
    table = tables.coefficient_table(
        rows, title, shared_parts.ratio(plan.study), False, console.width
    )
    console.print(table, crop=False)
    said = (site_effects.remark(plan.study, rows), intervals.remark(plan.study))
    lines = [*tables.ratio_notes(rows, shared_parts.ratio(plan.study)), *filter(None, said)]
    if is_function(plan.study.model.kind) and isinstance(spec.family, Gaussian):
        lines.append(UNCONSTRAINED)
    lines += [
        f"{sum(bool(update.clients) for update in state.history)} folds; answers: "
        + ", ".join(f"{name} {state.visits[name]}" for name in plan.clients)
    ]
    lines += tables.missed_turns(update.missing for update in state.history)
    moves = [update.gap for update in state.history if update.gap is not None]
    one_shot = _one_shot_gap(plan, spec, state)
    if moves and one_shot != 0.0:
        lines.append(tables.last_move(moves[-1].mean_shift, len(moves), *moves[-1][2:]))
    if one_shot is not None:
        lines.append(tables.more_rounds(one_shot))
    for update in state.history:
        lines += [f"{name} was added at version {update.version}" for name in update.added]
        for name in update.removed:
            answers = sum(name in before.clients for before in state.history)
            lines.append(
                f"{name} was removed at version {update.version}: its factor is not in the posterior, "
                f"and its {answers} folded answers stay charged"
            )
    lines.append(f"kept in {folder / RESULT}; what it cost: fedvi ledger show {folder}")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _one_shot_gap(plan: ServerPlan, spec: ServerSpec, state: ServerState) -> float | None:
    released = OneVisit(
        plan.study, plan.names, spec.family, spec.prior, state.factors, state.history
    )
    return estimated_gap(released)


def check_completed(state: ServerState) -> None:
    """Refuses to call it a success if a run ended before its schedule did.

    Raises:
      BudgetExceeded, RunFailed: it did.
    """
    reason = protocol.ending(state)
    if state.status == "budget_exhausted":
        raise errors.BudgetExceeded(reason, "the posterior so far is kept")
    if state.status != "completed":
        raise errors.RunFailed(
            reason, "the posterior so far is kept; the log says who could not go on"
        )
