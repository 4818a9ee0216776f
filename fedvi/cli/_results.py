"""The end of a run, as a server and `fedvi import` leave it in the state's folder and print it."""

import os
from pathlib import Path
from typing import Any

from fedvi import errors
from fedvi.privacy import ledger as ledgers
from fedvi.report import tables
from fedvi.results import posterior as posteriors
from fedvi.results import result_json, run_record
from fedvi.results import verdict as verdicts
from fedvi.results.one_shot import estimated_gap
from fedvi.results.run_folder import RESULT
from fedvi.results.run_record import RunRecord
from fedvi.run.server_plan import ServerPlan
from fedvi.server.core import protocol
from fedvi.server.core.protocol import ServerSpec, ServerState
from fedvi.study import remarks
from fedvi.study.spec import regressions

__all__ = ["check_completed", "content", "moves", "show", "write"]


def write(plan: ServerPlan, spec: ServerSpec, state: ServerState, folder: Path) -> None:
    """Leaves the posterior, and what is known of it, in the folder of a server's state.

    A later end of the same run replaces it, each file as a whole.
    """
    result, beside = folder / RESULT, folder / f".{RESULT}"
    for made in (result, beside):
        made.mkdir(parents=True, exist_ok=True)
    posterior = protocol.reported(spec, state)
    noise = run_record.of_server(plan, spec, state).noise_scale
    posteriors.write(beside, spec.family, posterior, plan.names, plan.mark, noise)
    posteriors.write_json(beside / "result.json", content(plan, spec, state))
    for file in beside.iterdir():
        os.replace(file, result / file.name)
    beside.rmdir()


def content(plan: ServerPlan, spec: ServerSpec, state: ServerState) -> dict[str, Any]:
    """Returns all that is known of a run, as plain values for JSON."""
    run = run_record.of_server(plan, spec, state)
    verdict = run_record.verdict_of(run, plan.expected)
    counts = protocol.folded(state)
    clients = [
        {
            "name": name,
            "answers": counts[name],
            "charged": ledgers.reservations(state.ledgers[name]),
            "missed": sum(name in update.missing for update in state.history),
            "removed": protocol.is_removed(state, name),
            "ledger": str(ledgers.anchor(state.ledgers[name])),
        }
        for name in plan.clients
    ]
    known = result_json.content(run, verdict, plan.warnings)
    return tables.plain(known | {"status": state.status, "clients": clients})


def show(plan: ServerPlan, spec: ServerSpec, state: ServerState, folder: Path) -> None:
    """Prints the posterior, who answered, and where it is kept."""
    console = tables.console()
    run = run_record.of_server(plan, spec, state)
    rows = run.rows()
    mark = f" — {plan.mark}" if plan.mark else ""
    tables.say(verdicts.lines(run_record.verdict_of(run, plan.expected)))
    title = f"Posterior of {plan.study.study.name}{mark}"
    table = tables.coefficient_table(
        rows, title, regressions.ratio(plan.study), False, console.width
    )
    console.print(table, crop=False)
    lines = [*tables.ratio_notes(rows, regressions.ratio(plan.study))]
    lines += remarks.remarks(plan.study, spec.family, rows)
    lines += remarks.of_surveys(plan.study, run.noise_scale, run.wider_priors)
    counts = protocol.folded(state)
    lines += [
        f"{sum(bool(update.clients) for update in state.history)} folds; answers: "
        + ", ".join(f"{name} {counts[name]}" for name in plan.clients)
    ]
    lines += tables.missed_turns(update.missing for update in state.history)
    lines += moves(run)
    for index, update in enumerate(state.history):
        lines += [f"{name} was added at version {update.version}" for name in update.added]
        for name in update.removed if spec.gather is not None else ():
            later = (one.version for one in state.history[index:] if name in one.added)
            back = next(later, None)
            until = "" if back is None else f", until version {back}"
            if back != update.version:
                lines.append(f"sums after version {update.version} are without {name}{until}")
        for name in update.removed if spec.gather is None else ():
            lines.append(
                f"{name} was removed at version {update.version}: its factor is not in the posterior, "
                "and what it was charged stays charged"
            )
    lines.append(f"kept in {folder / RESULT}; what it cost: fedvi ledger show {folder}")
    tables.say(lines)


def moves(run: RunRecord) -> list[str]:
    """Says how far the last round moved the posterior, and how far more rounds might."""
    gaps = [update.gap for update in run.history if update.gap is not None]
    one_shot = estimated_gap(run)
    lines = []
    if gaps and one_shot != 0.0:
        lines.append(tables.last_move(gaps[-1].mean_shift, len(gaps), *gaps[-1][2:]))
    if one_shot is not None:
        lines.append(tables.more_rounds(one_shot))
    return lines


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
