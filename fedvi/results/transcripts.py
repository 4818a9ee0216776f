"""Recomputes a run with masked sums from its server's transcript, and compares it with a site's evidence.

    masked answers + openings ─► sums ─► folds ─► the task of each round, the posterior at the end
    compared with: digests in ledger and certificates, digests of the site's tasks, posterior.npz

So a site need not believe the server's arithmetic, either. Runs the server's own functions.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.client.masking import task_digest
from fedvi.expfam import tree
from fedvi.federation.messages import Tensor
from fedvi.privacy import certificates
from fedvi.privacy.agreement import Named
from fedvi.results import posterior as posteriors
from fedvi.server.core import openings, protocol, sum_rounds, turns
from fedvi.server.core.protocol import Answer, ServerSpec, ServerState
from fedvi.server.store import transcript
from fedvi.server.store.transcript import Round
from fedvi.store import sqlite
from fedvi.transport import codec
from fedvi.typing import Eta
from fedvi.updates.base import Change, Task

__all__ = ["Agreement", "Replayed", "check", "check_result", "replay"]

_NEAR = 1e-6
_FAR = 1e-9
"""How far two machines may differ in a number: relative to it, or to the largest of its array."""


class Replayed(NamedTuple):
    """A run, recomputed from its transcript.

    Attributes:
      study_digest: of the study.
      rounds: all of them, in order, as the transcript shows them.
      digests: visit → site → digest of its masked answer, of rounds that were folded; sites in the order
        of the study.
      posterior: η that the last fold gives.
    """

    study_digest: str
    rounds: tuple[Round, ...]
    digests: Mapping[int, Mapping[str, str]]
    posterior: Eta


class Agreement(NamedTuple):
    """How a site's evidence agrees with a transcript.

    Attributes:
      answers: how many of its sealed answers are in a sum.
      tasks: for how many of these it kept which task it answered.
      problem: what does not agree; empty if nothing.
    """

    answers: int
    tasks: int
    problem: str


def replay(spec: ServerSpec, folder: Path) -> Replayed:
    """Recomputes every sum and every fold of a run.

    Args:
      spec: of the study.
      folder: of the transcript.

    Raises:
      ConfigError: the transcript cannot be read.
      ProtocolError: a sum cannot be read from the masked answers, or a task is not what the folds before
        it give.
    """
    spec = spec._replace(headers={}, budget=None)
    state = protocol.initial_state(spec)
    rounds, digests = [], {}
    for visit, found in enumerate(transcript.read(folder, spec)):
        state = _begun(state, visit, found)
        _check_task(spec, state, found.task)
        if found.is_folded:
            digests[visit] = {
                name: codec.digest(codec.event_text(spec.costs[name]), found.answers[name])
                for name in spec.clients
                if name in found.answers
            }
        try:
            state = _over(spec, state, found)
        except errors.ProtocolError as error:
            raise errors.ProtocolError(f"round {visit}: {error.message}", error.hint) from error
        rounds.append(found)
    return Replayed(spec.study_digest, tuple(rounds), digests, protocol.reported(spec, state))


def check_result(spec: ServerSpec, replayed: Replayed, path: Path, names: Sequence[str]) -> None:
    """Compares a run's ``posterior.npz`` with the last fold.

    Args:
      spec: of the study.
      replayed: from `replay`.
      path: of the file.
      names: of θ's coordinates.

    Raises:
      ConfigError: the file cannot be read.
      ProtocolError: it holds another posterior.
    """
    kept = posteriors.read(path, spec.family, names).eta
    if not _are_near(kept, replayed.posterior):
        raise errors.ProtocolError(
            f"{path} holds another posterior than the folds of these sums give",
            "are both of the same run?",
        )


def check(replayed: Replayed, path: Path) -> Agreement | None:
    """Compares a transcript with what a site kept: its ledger, and which tasks and sets it answered.

    Args:
      replayed: from `replay`.
      path: of the site's store.

    Returns:
      None if the path is none of a site whose answers were masked.
    """
    if path.name != sqlite.DATABASE:
        return None
    try:
        kept = sqlite.read_evidence(path.parent)
        header = kept.ledger.header
        if not header.secure:
            return None
        if header.study_digest != replayed.study_digest:
            return Agreement(0, 0, f"the ledger is of study {header.study_digest:.12}")
        signed = {visit: certificates.read(text) for visit, text in kept.certificates.items()}
    except errors.FedviError as error:
        return Agreement(0, 0, error.message)
    tasks = {at: (found.terms.set_up, found.task) for at, found in signed.items()}
    tasks |= kept.tasks
    digests = {at: found.get(header.client, "") for at, found in replayed.digests.items()}
    sealed = {
        int(entry.release_id.rpartition("#")[0].rpartition("/")[2]): entry.digest
        for entry in kept.ledger.entries
        if entry.kind == "sealed"
    }
    answers = known = 0
    for visit, digest in sorted(sealed.items()):
        what = f"of round {visit} is another than"
        if visit >= len(replayed.rounds):
            return Agreement(
                answers, known, f"round {visit} is not in it, and this site answered that round"
            )
        found, (set_up, task) = replayed.rounds[visit], tasks.get(visit, ("", ""))
        if task:
            made = task_digest(bytes.fromhex(set_up), header.study_digest, found.task).hex()
            if made != task:
                return Agreement(answers, known, f"the task {what} the one that this site answered")
        if not digests.get(visit):
            continue
        if digests[visit] != digest:
            return Agreement(answers, known, f"the answer {what} the one that the ledger sealed")
        if visit in signed and signed[visit].named != _set(found, replayed.digests[visit]):
            return Agreement(answers, known, f"the set {what} the one that sites signed")
        answers, known = answers + 1, known + bool(task)
    return Agreement(answers, known, "")


def _set(found: Round, digests: Mapping[str, str]) -> str:
    """Returns the text of a round's set, made anew of the answers that are there."""
    return Named(found.task.visit, tuple(digests), tuple(digests.values())).text


def _begun(state: ServerState, visit: int, found: Round) -> ServerState:
    """Returns the state in which a round was folded or given up, but for the answers' content."""
    missing = [name for name in state.turns if name not in found.answers]
    return state._replace(
        visits=dict.fromkeys(state.visits, visit),
        turns={name: visit + (name in missing) for name in state.turns},
        skipped=tuple(missing),
    )


def _over(spec: ServerSpec, state: ServerState, found: Round) -> ServerState:
    gather, like = spec.gathering, spec.prior
    answers = []
    for name, tensors in found.answers.items():
        task = found.task._replace(client=name, task_id=f"{name}/{found.task.visit}")
        change = Change(spec.family.zeros())
        if found.is_folded:
            value = {tensor.name: _array(tensor) for tensor in tensors}
            change = sum_rounds.exact(gather, value, like, len(spec.clients))
        answers.append(Answer(task, change))
    state = state._replace(answers=tuple(answers))
    if not found.is_folded:
        return turns.given_up(spec, state)
    if openings.opens(spec):
        state = openings.restored(state, found.shown)
    return turns.sum_folded(spec, gather, state)


def _check_task(spec: ServerSpec, state: ServerState, shown: Task) -> None:
    made = protocol.task_of(spec, state, shown.client)
    same = (
        (shown.visit, shown.version, shown.damping) == (made.visit, made.version, made.damping)
        and _are_near(shown.posterior, made.posterior)
        and _are_near(shown.factor, made.factor)
        and _are_near(shown.coordinates or (), made.coordinates or ())
    )
    if not same:
        raise errors.ProtocolError(
            f"the task of round {shown.visit} is not what the folds of the rounds before it give",
            "the server handed out something else, or the transcript was changed",
        )


def _are_near(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal but for what two machines' arithmetic may differ in."""
    left, right = ([np.asarray(x, np.float64) for x in tree.leaves(part)] for part in (one, other))
    return [a.shape for a in left] == [b.shape for b in right] and all(
        np.allclose(a, b, _NEAR, _FAR * np.abs(b).max(initial=0.0))
        for a, b in zip(left, right, strict=True)
    )


def _array(tensor: Tensor) -> np.ndarray:
    return np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape)
