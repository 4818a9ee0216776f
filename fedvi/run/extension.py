"""Checks that a study which replaces a running one differs only by further clients."""

from pathlib import Path

from fedvi import errors
from fedvi.expfam import tree
from fedvi.run import server_plan
from fedvi.run.server_plan import ServerPlan

__all__ = ["earlier"]


def earlier(plan: ServerPlan, folder: Path) -> tuple[str, ...]:
    """Returns the digests of a study before its clients that are ``added``: a run of one may go on.

    A digest is over all of a study but its clients' local paths, so a run that has one of these differs
    in those clients alone. Ledgers are the same if the price of an answer and the number of rounds are,
    which the store compares. The plan that the server kept says the rest: how an answer becomes a change,
    and what noise the server takes it to have. None of it hangs on the number of clients in fedvi's own
    solvers; in one of somebody's own it may, and is refused.

    Args:
      plan: of the study with the new clients.
      folder: the server's, with the plan of the run so far; without one there is nothing to compare.

    Raises:
      ConfigError: the longer study would be carried out in another way.
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
                "what the clients so far were promised, or how their answers count, would be another: "
                "start a new study",
            )
    return plan.study.earlier_digests
