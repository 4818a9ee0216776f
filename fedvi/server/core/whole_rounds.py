"""Charges, accepts and folds a whole round at once, in a run in one process whose clients all answer.

The resulting state equals the one that individual requests lead to: the same numbers, ledgers and
history. Only ``presence``, which a server may forget, is left unchanged.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import stacked, tree
from fedvi.privacy.many_ledgers import Together, alike
from fedvi.server.core import fold_sizes, kept, key_board
from fedvi.server.core.fold_sizes import check_size, strictly
from fedvi.server.core.state import ServerSpec, ServerState
from fedvi.server.core.turns import check_folded, committed, moved_on
from fedvi.transport.codec import Encoded
from fedvi.typing import Eta
from fedvi.updates.base import Task

__all__ = ["answered", "are_possible", "begun", "is_open"]


def are_possible(spec: ServerSpec) -> bool:
    """Whether a run may have rounds that can be handled at once."""
    return (
        spec.schedule.barrier
        and spec.gather is None
        and spec.patience.deadline_seconds is None
        and spec.headers.keys() == set(spec.clients)
        and len(set(spec.costs.values())) == 1
    )


def is_open(spec: ServerSpec, state: ServerState) -> bool:
    """Whether a round can be handled at once: it begins, with all clients present and at the same visit."""
    if state.tasks or state.answers or state.away or state.skipped or state.stages:
        return False
    if state.status != "running" or not key_board.is_ready(spec, state):
        return False
    counts = {*_all(spec, state.visits), *_all(spec, state.turns)}
    return len(counts) == 1 and counts.pop() < spec.schedule.rounds


def begun(spec: ServerSpec, state: ServerState) -> ServerState | None:
    """Charges every client for its next task; None if their ledgers do not all match.

    Raises:
      FedviError: as ``ledger.spend`` does; nothing is charged then.
    """
    books = state.ledgers if isinstance(state.ledgers, Together) else alike(state.ledgers)
    if books is None:
        return None
    first = spec.clients[0]
    suffix = f"/{state.visits[first]}#0"
    return state._replace(ledgers=books.spend(suffix, spec.costs[first], spec.budget))


def answered(
    spec: ServerSpec,
    state: ServerState,
    task: Task,
    arrived: tuple[str, ...],
    encoded: Encoded,
    finish: Callable[[dict[str, np.ndarray], Task, Any], Any],
) -> ServerState:
    """Takes the answers of all clients and folds them.

    Args:
      state: from ``begun``.
      task: of any client; they differ only in name.
      arrived: all clients, in order of arrival.
      encoded: the answers, in the order of the study.
      finish: ``finish_many`` of the solver.

    Raises:
      ProtocolError: the answers do not fit the tasks, or cannot be folded.
    """
    names, visit, books = spec.clients, task.visit, state.ledgers
    assert isinstance(books, Together)
    if encoded.event != spec.costs[names[0]]:
        raise errors.ProtocolError(
            f"the answers of a round cost {encoded.event}, expected {spec.costs[names[0]]}"
        )
    before = stacked.of_all(names, state.factors)
    with strictly("the answers of a round cannot be read"):
        etas = finish(encoded.arrays, task, before.etas)
    if not tree.is_finite(etas):
        raise errors.ProtocolError("an answer of a round holds NaN or infinite numbers")
    check_size(etas, "an answer of a round")
    deltas = before.with_etas(tree.freeze(etas))
    # The set of names is that of earlier rounds: one of very many names takes time and memory.
    same = state.visits
    if not (stacked.is_alike(same) and same.names is names):
        same = stacked.Alike(names, visit)
    asked = same.with_value(task.posterior)
    staleness = (state.version - task.version,) * len(names)

    accepted, suffix = state.accepted, f"/{visit}#0"
    if not isinstance(accepted, _Accepted):
        accepted = _Accepted(accepted, names)
    state = state._replace(
        factors=before,
        visits=same,
        turns=same,
        ledgers=books.seal(suffix, encoded.digests).mark_sent(suffix),
        accepted=accepted.plus(_Round(visit, arrived, encoded.digests)),
    )
    with strictly("an answer of a round cannot be folded"):
        after = committed(spec, state, deltas, asked, staleness, arrived=arrived)
        # See `check_fold` for both reasons why a fold cannot fail.
        sure = hasattr(spec.family, "blocks") or fold_sizes.cannot_fail(spec, state, _size(etas))
        if not sure:
            check_folded(spec, state, after)
    return moved_on(spec, after)


class _Round(NamedTuple):
    """The answers to one visit: of all clients in order of arrival, digests in the order of the study."""

    visit: int
    arrived: tuple[str, ...]
    digests: tuple[str, ...]


class _Accepted(Mapping[str, str]):
    """What was accepted before, and the digests of whole rounds, in order of arrival.

    An entry for each client and round is made when one is asked for: there may be very many.
    """

    def __init__(
        self, before: Mapping[str, str], names: tuple[str, ...], rounds: tuple[_Round, ...] = ()
    ) -> None:
        self._before, self._names, self._rounds = before, names, rounds

    def plus(self, new: _Round) -> "_Accepted":
        return _Accepted(self._before, self._names, (*self._rounds, new))

    @functools.cached_property
    def _found(self) -> dict[str, str]:
        found = dict(self._before)
        for visit, arrived, digests in self._rounds:
            digest_of = dict(zip(self._names, digests, strict=True))
            found |= {f"{name}/{visit}": digest_of[name] for name in arrived}
        return found

    def __getitem__(self, task_id: str) -> str:
        return self._found[task_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._before) + len(self._rounds) * len(self._names)


def _all(spec: ServerSpec, counts: Mapping[str, int]) -> tuple[int, ...]:
    return kept.in_order(counts, spec.clients)


def _size(etas: Eta) -> float:
    """Returns the sum of the largest absolute number of each answer."""
    flat = [leaf.reshape(len(leaf), -1) for leaf in tree.leaves(etas)]
    # Without an array of absolute numbers, which would be as large.
    rows = [part for leaf in flat for part in (leaf.max(axis=1), -leaf.min(axis=1))]
    return float(np.maximum.reduce(rows).sum())
