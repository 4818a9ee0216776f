"""Checks that a study which replaces a running one differs only by further clients."""

from pathlib import Path

from fedvi import errors
from fedvi.expfam import tree
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan

__all__ = ["earlier"]


def earlier(plan: ServerPlan, folder: Path) -> tuple[str, ...]:
    """Returns the study's digests before its ``added`` clients; a run of such a study may continue.

    A digest covers all of a study but its clients' local paths, so a run with one of these digests differs
    only in those clients. The store checks that ledgers agree: the price of an answer and the number of
    rounds. The server's stored plan gives the rest: how an answer becomes a change, and which noise the
    server assumes. None of it depends on the number of clients in fedvi's own solvers. In a user's own
    solver it may, which is refused.

    Args:
      plan: of the study with the new clients.
      folder: the server's, with the plan of the run so far; without a plan nothing is compared.

    Raises:
      ConfigError: the plans differ in more than the new clients.
    """
    path = folder / server_plan.FILE
    if path.exists():
        before = server_plan.read(path)
        kept = {name: plan.workers.get(name) for name in before.workers}
        changed = {
            "workers": kept != dict(before.workers),
            "prior": not tree.equal(before.prior, plan.prior),
            **{
                field: getattr(before, field) != getattr(plan, field)
                for field in ("names", "units", "stand", "renews", "rounds", "table_distance")
            },
        }
        named = [field for field, differs in changed.items() if differs]
        if named:
            raise errors.ConfigError(
                f"with the clients that were added the plan differs in {', '.join(named)}, expected in "
                "new clients alone",
                "otherwise the promise to the earlier clients, or the use of their answers, would change: "
                "start a new study",
            )
    return plan.study.earlier_digests
