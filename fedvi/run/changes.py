"""Scripts which clients leave and join a simulated run, and when.

A study of masked sums that clients may miss begins without those that join, and admits them later.
"""

from collections.abc import Mapping

from fedvi import errors
from fedvi.server.coordinator import Coordinator
from fedvi.server.core import openings, protocol
from fedvi.server.core.protocol import OVER, ServerSpec

__all__ = ["Changes"]


class Changes:
    """Removes and adds clients of a coordinator after given numbers of complete rounds.

    Args:
      spec: of the run with all clients.
      remove: client → the number of rounds after which its factor is divided out.
      add: client → the number of rounds after which it joins; these clients are the study's last.

    Attributes:
      first: the spec at the beginning of the run.

    Raises:
      ConfigError: a client is not in the study, would be added before a client that precedes it or after
        it was removed, or a round is not in the schedule.
    """

    def __init__(self, spec: ServerSpec, remove: Mapping[str, int], add: Mapping[str, int]) -> None:
        for what, changes in (("remove", remove), ("add", add)):
            for name, rounds in changes.items():
                _check(spec, what, name, rounds)
        begun = len(spec.clients) - len(add)
        joining = {name: add[name] for name in spec.clients[begun:] if name in add}
        if len(joining) < len(add) or list(joining.values()) != sorted(joining.values()):
            raise errors.ConfigError(
                f"add is {dict(add)!r}, expected the last clients of the study, in its order",
                "put clients that join later at the end of the study, the last one to join last",
            )
        if add and begun < 1 + (spec.clients[0] not in spec.members):
            raise errors.ConfigError(
                f"add is {dict(add)!r}, which leaves nobody to begin with",
                "leave out at least one client of the study",
            )
        for name in joining.keys() & remove.keys():
            if remove[name] < add[name]:
                raise errors.ConfigError(
                    f"{name!r} is removed after round {remove[name]} and added after {add[name]}",
                    "a client that was removed does not come back",
                )
        self._spec, self._joining, self._leaving = spec, joining, dict(remove)
        self._admits = openings.opens(spec)
        self._without = list(add) if self._admits else []
        self._admitted: list[str] = []
        self.first = spec if self._admits else _begun_with(spec, begun)

    @property
    def absent(self) -> set[str]:
        """The clients that have not joined yet."""
        return {*self._joining, *self._admitted}

    @property
    def are_made(self) -> bool:
        """Whether no change is left to make."""
        return not (self._joining or self._leaving or self._admitted)

    def make(self, coordinator: Coordinator) -> list[str]:
        """Makes the changes that are due; returns the clients that joined."""
        joined = []
        while self._without:
            coordinator.remove(self._without.pop())
        # A change may complete a round, which makes the next change due.
        while coordinator.state.status not in OVER:
            history = coordinator.state.history
            rounds = history[-1].rounds if history else 0
            # Who is admitted joins when the round is over that goes on.
            ahead = self._admits and bool(coordinator.state.tasks)
            due = (n for n, after in self._joining.items() if after <= rounds + ahead)
            name = next(due, None)
            if name is not None:
                del self._joining[name]
                if self._admits:
                    coordinator.admit(name)
                    self._admitted.append(name)
                    continue
                coordinator.extend(_begun_with(self._spec, self._spec.clients.index(name) + 1))
                joined.append(name)
                continue
            name = next((n for n, after in self._leaving.items() if after <= rounds), None)
            if name is None:
                break
            del self._leaving[name]
            coordinator.remove(name)
        # These join when the round is over.
        state = coordinator.state
        here = [name for name in self._admitted if not protocol.is_removed(state, name)]
        self._admitted = [name for name in self._admitted if name not in here]
        return joined + here


def _check(spec: ServerSpec, what: str, name: str, rounds: int) -> None:
    if name not in spec.members:
        raise errors.ConfigError(
            f"{what} names {name!r}, which is no client of the study",
            errors.did_you_mean(name, spec.members),
        )
    if not 0 <= rounds < spec.schedule.rounds:
        raise errors.ConfigError(
            f"{what} is after round {rounds} for client {name!r}, expected at least 0 and below "
            f"{spec.schedule.rounds}, the rounds of the schedule",
            "clients cannot leave or join after the last round",
        )


def _begun_with(spec: ServerSpec, count: int) -> ServerSpec:
    """Returns the spec of a run with the first clients only."""
    if count == len(spec.clients):
        return spec
    clients, left_out = spec.clients[:count], set(spec.clients[count:])
    kept = {name: header for name, header in spec.headers.items() if name not in left_out}
    return spec._replace(clients=clients, headers=kept)
