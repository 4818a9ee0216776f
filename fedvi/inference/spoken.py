"""Makes the repr and summary of `DPSVI` and `VIPS`: the promise, the charges, and the noise of a step."""

from typing import Any

from fedvi.privacy import ledger as ledgers
from fedvi.privacy.descent import Descent
from fedvi.privacy.runs import Runs
from fedvi.privacy.spoken import Speaks, Summary, facts

__all__ = ["SpeaksOfRuns"]


class SpeaksOfRuns(Speaks):
    """Repr and summary from the plan and the ledger alone: they show no record, key or loss."""

    privacy: Descent
    model: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model}; {self.privacy.promised}; {self._charges} charged)"

    def summary(self) -> Summary:
        """Returns the promise, the charges, and the noise of each step."""
        plan = self.privacy.summary()
        rows = {row[0]: row[1] for row in plan.tables[0].rows}
        rows["runs"] = f"{self._charges} charged"
        table = facts([("model", self._model), *rows.items(), *self._more_facts()])
        return Summary(type(self).__name__, (), (table,), plan.warnings)

    def _more_facts(self) -> list[tuple[str, str]]:
        return []

    @property
    def _model(self) -> str:
        return str(getattr(self.model, "__name__", type(self.model).__name__))

    @property
    def _charges(self) -> str:
        runs: Runs | None = getattr(self, "_runs", None)
        done = 0 if runs is None else ledgers.reservations(runs.ledger)
        return f"{done} of {self.privacy.runs} run{'s' * (self.privacy.runs != 1)}"
