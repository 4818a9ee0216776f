"""Runs a round of a simulation for all clients at once, with the same results as one by one.

    charge all ─► draw secrets ─► Fleet.together ─► digests ─► fold once

If a client has steps of its own (a policy, masks, a log, a deadline), if a client is absent, or if a
charge no longer fits the budget, the workers continue one by one from there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedvi import errors
from fedvi.client.fleet import Fleet
from fedvi.client.worker import Means, Visit, Worker, check_event
from fedvi.privacy.ledger import Ledger
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import protocol, whole_rounds
from fedvi.server.core.state import sharing
from fedvi.store.memory import MemoryClientStore
from fedvi.transport import codec
from fedvi.updates.base import Shard, Task
from fedvi.updates.coordinates import asked_for

__all__ = ["WholeRounds"]


class WholeRounds:
    """Runs the rounds of an in-memory run that can be run for all clients together.

    Args:
      workers: all workers of the run.
      coordinator: in the same process.
      fleet: computes the answers.
    """

    def __init__(
        self, workers: Mapping[str, Worker], coordinator: Coordinator, fleet: Fleet
    ) -> None:
        self._workers, self._coordinator, self._fleet = workers, coordinator, fleet
        self._means: Means | None = None
        self._stores: dict[str, MemoryClientStore] = {}
        means = [worker.means for worker in workers.values()]
        first = means[0] if means else None
        if first is None or None in (first.solver.update_many, first.solver.finish_many):
            return
        # A solver that renews depends on the posterior alone, which all tasks share.
        if not first.solver.renews:
            return
        # All share one solver, budget and root, so that one price and one call serve for all.
        for name, found in zip(workers, means, strict=True):
            if (
                found is None
                or found.solver is not first.solver
                or (found.budget, found.root) != (first.budget, first.root)
                or not isinstance(found.store, MemoryClientStore)
            ):
                return
            self._stores[name] = found.store
        self._means = first

    def go(
        self,
        queue: Sequence[tuple[float, int, str]],
        latencies: Mapping[str, Callable[[], float]],
        clock: Any,
    ) -> list[str] | None:
        """Runs as many rounds as can be run together.

        Args:
          queue: the clients that would begin now, each with its sort key.
          latencies: each client's time to answer.
          clock: its ``now`` is moved on.

        Returns:
          The order in which clients would begin afterwards; None if there was no such round.
        """
        # Asked before each request, so the quick checks come first.
        if self._means is None or len(queue) < len(self._workers) or not self._is_open():
            return None
        order, went = [name for *_, name in sorted(queue)], None
        before, arrived = self._coordinator.state.ledgers, tuple[str, ...]()
        if not (self._fits(order) and self._agrees_with(before)):
            return None
        try:
            while (task := self._charged()) is not None:
                encoded = self._encoded(task)
                arrivals = sorted(
                    (clock.now + latencies[name](), place, name) for place, name in enumerate(order)
                )
                came = tuple([name for _, _, name in arrivals])
                # One object for all rounds, as a rule: the history holds them all.
                arrived = arrived if came == arrived else came
                clock.now = arrivals[-1][0]
                self._coordinator.apply(_answered(task, arrived, encoded, self._solver.finish_many))
                # The clients that came last ask at once; the others slept until the fold.
                last = [name for at, _, name in arrivals if at == clock.now]
                order = went = [*last, *arrived[: len(arrived) - len(last)]]
        finally:
            # Also after an interrupted round: its charges stay.
            if self._coordinator.state.ledgers is not before:
                self._hand_back()
        return went

    @property
    def _solver(self) -> Any:
        assert self._means is not None
        return self._means.solver

    def _charged(self) -> Task | None:
        """Charges a round; returns the first client's task, or None if there is no round to run."""
        spec, state = self._coordinator.spec, self._coordinator.state
        if not self._is_open():
            return None
        task = protocol.task_of(spec, state, spec.clients[0])
        asked = asked_for(self._solver.survey, task.coordinates)
        if asked != "step" or jax.tree.leaves(self._solver.init(task.posterior)):
            return None
        if self._solver.check is not None:
            self._solver.check(self._workers[spec.clients[0]].records()[0])
        try:
            after = whole_rounds.begun(spec, state)
        except errors.FedviError:  # each client gets its error one by one
            return None
        if after is None:
            return None
        self._coordinator.apply(lambda spec, state, now: after)
        return task

    def _is_open(self) -> bool:
        return whole_rounds.is_open(self._coordinator.spec, self._coordinator.state)

    def _fits(self, order: Sequence[str]) -> bool:
        assert self._means is not None
        spec, clients = self._coordinator.spec, self._coordinator.spec.clients
        return (
            whole_rounds.are_possible(spec)
            and self._means.budget == spec.budget
            and len(order) == len(self._workers) == len(clients)
            and all(name in self._workers for name in clients)
            and all(store.is_idle for store in self._stores.values())
        )

    def _encoded(self, task: Task) -> codec.Encoded:
        """Computes all clients' answers, in the order of the study."""
        assert self._means is not None
        names, suffix = self._coordinator.spec.clients, f"/{task.visit}#0"
        root, secrets = self._means.root, list[bytes]()

        def visits_at(places: Sequence[int]) -> list[Visit]:
            releases = [(names[at], names[at] + suffix) for at in places]
            if places[-1] >= len(secrets):
                secrets.extend(root.secrets(releases))
            return [
                Visit(self._solver, "", secrets[at], (), task, self._read(*release))
                for at, release in zip(places, releases, strict=True)
            ]

        first, _ = self._workers[names[0]].records()
        parts: list[codec.Encoded] = []
        for block in self._fleet.together(first, len(names), visits_at):
            if block is None:  # one by one, with the same secrets, to find the client that fails
                parts = [_encoded_alone(*visits_at([at])) for at in range(len(names))]
                break
            count, released = block
            parts.append(codec.encode_many(released, count))
        for part in parts:
            check_event(self._solver, part.event)
        arrays = {
            name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays
        }
        digests = tuple(digest for part in parts for digest in part.digests)
        return codec.Encoded(digests, arrays, parts[0].event)

    def _read(self, name: str, release_id: str) -> Shard:
        shard, frozen = self._workers[name].records()
        self._stores[name].note_records(release_id, frozen)
        return shard

    def _agrees_with(self, books: Mapping[str, Ledger]) -> bool:
        """Whether the server's ledgers equal the clients'; if not, a greeting reports it."""
        return all(store.ledger == books.get(name) for name, store in self._stores.items())

    def _hand_back(self) -> None:
        """Gives each client its ledger, so that workers and server can continue one by one."""
        # Ledgers of many clients take much memory, and whoever continues stacks other visits.
        self._fleet.forget()
        state = self._coordinator.state
        for name in state.ledgers:
            self._stores[name].take_over(state.ledgers)
        if state.status not in protocol.OVER:
            self._coordinator.apply(lambda spec, state, now: sharing(spec, state))


def _encoded_alone(visit: Visit) -> codec.Encoded:
    _, released, _ = visit.computed()
    return codec.encode_many(jax.tree.map(lambda leaf: np.asarray(leaf)[None], released), 1)


def _answered(
    task: Task, arrived: tuple[str, ...], encoded: codec.Encoded, finish: Any
) -> Callable[..., protocol.ServerState]:
    def change(
        spec: protocol.ServerSpec, state: protocol.ServerState, now: float
    ) -> protocol.ServerState:
        return whole_rounds.answered(spec, state, task, arrived, encoded, finish)

    return change
