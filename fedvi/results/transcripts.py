"""Recomputes a run with masked sums from its server's transcript, and compares it with a site's evidence.

    masked answers + openings ─► sums ─► folds ─► the task of each round, the posterior at the end
    compared with: digests in ledger and certificates, digests of the site's tasks and keys, posterior.npz

So a site need not believe the server's arithmetic, either. Runs the server's own functions.
"""

import hashlib
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
from fedvi.privacy.certificates import Certificate
from fedvi.results import posterior as posteriors
from fedvi.server.core import key_board, openings, protocol, sum_rounds, turns
from fedvi.server.core.protocol import Answer, ServerSpec, ServerState
from fedvi.server.store import transcript
from fedvi.server.store.transcript import Round
from fedvi.store import sqlite
from fedvi.store.sqlite import Evidence
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
      digest: SHA-256 of the transcript, hex. Who compares findings must have the same one.
      rounds: all of them, in order, as the transcript shows them, but for the answers' content.
      digests: visit → site → digest of its masked answer, of rounds that were folded; sites in the order
        of the study.
      posterior: η that the last fold gives.
      is_done: whether the study's schedule was done then.
    """

    study_digest: str
    digest: str
    rounds: tuple[Round, ...]
    digests: Mapping[int, Mapping[str, str]]
    posterior: Eta
    is_done: bool


class Agreement(NamedTuple):
    """How a site's evidence agrees with a transcript.

    Attributes:
      answers: how many of its sealed answers are in a sum.
      tasks: for how many of these it kept which task it answered.
      sets: how many sums have the answers, of all sites, that are named in a certificate of this site.
      given_up: how many sums the site helped to open that were given up, as the transcript has it.
      problem: what does not agree; empty if nothing.
    """

    answers: int = 0
    tasks: int = 0
    sets: int = 0
    given_up: int = 0
    problem: str = ""


class _Kept(NamedTuple):
    """What a site kept, by visit.

    Attributes:
      client: the site.
      study_digest: of its ledger.
      sealed: digest of its answer.
      tasks: (digest of the sites' keys, digest of the task that it answered).
      signed: the certificate of the sum that it opened.
    """

    client: str
    study_digest: str
    sealed: Mapping[int, str]
    tasks: Mapping[int, tuple[bytes, str]]
    signed: Mapping[int, Certificate]


def replay(spec: ServerSpec, folder: Path) -> Replayed:
    """Recomputes every sum and every fold of a run.

    Args:
      spec: of the study.
      folder: of the transcript.

    Raises:
      ConfigError: the transcript cannot be read.
      ProtocolError: a sum is of too few sites or cannot be read from the masked answers, a task is not
        what the folds before it give, or the schedule was done before.
    """
    spec = spec._replace(headers={}, budget=None)
    state = protocol.initial_state(spec)
    rounds, digests, whole = [], {}, hashlib.sha256()
    for visit, found in enumerate(transcript.read(folder, spec)):
        if _is_done(spec, state):
            raise errors.ProtocolError(
                f"there is a round {visit}, and the study's schedule was done before it"
            )
        state = _begun(state, visit, found)
        _check_task(spec, state, found.task)
        try:
            if found.is_folded:
                digests[visit] = _digests(spec, found)
                state = _folded(spec, state, found, _set(found, digests[visit]))
            else:
                state = turns.given_up(spec, state._replace(answers=_answers(spec, found)))
        except errors.ProtocolError as error:
            raise errors.ProtocolError(f"round {visit}: {error.message}", error.hint) from error
        # The answers of all rounds may be more than memory holds.
        rounds.append(found._replace(answers=dict.fromkeys(found.answers, ())))
        whole.update(found.digest)
    return Replayed(
        spec.study_digest,
        whole.hexdigest(),
        tuple(rounds),
        digests,
        protocol.reported(spec, state),
        _is_done(spec, state),
    )


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
        kept = _kept(sqlite.read_evidence(path.parent))
    except errors.FedviError as error:
        return Agreement(problem=error.message)
    if kept is None:
        return None
    if kept.study_digest != replayed.study_digest:
        return Agreement(problem=f"the ledger is of study {kept.study_digest:.12}")
    agreed = Agreement()
    for visit, found in enumerate(replayed.rounds):
        digests = replayed.digests.get(visit, {})
        if problem := _problem(kept, found, digests):
            return agreed._replace(problem=problem)
        is_in, is_signed = kept.client in digests, visit in kept.signed
        agreed = Agreement(
            agreed.answers + is_in,
            agreed.tasks + (is_in and visit in kept.tasks),
            agreed.sets + (is_signed and found.is_folded),
            agreed.given_up + (is_signed and not found.is_folded),
        )
    last = max(kept.sealed, default=-1)
    if last >= len(replayed.rounds):
        problem = f"round {last} is not in it, and this site answered that round"
        return agreed._replace(problem=problem)
    return agreed


def _kept(evidence: Evidence) -> _Kept | None:
    """Reads a site's evidence; None if its answers were not masked.

    Raises:
      PrivacyError: it cannot be read.
    """
    header, entries = evidence.ledger.header, evidence.ledger.entries
    if not header.secure:
        return None
    signed = {visit: certificates.read(text) for visit, text in evidence.certificates.items()}
    tasks = {at: (found.terms.set_up, found.task) for at, found in signed.items()}
    try:
        return _Kept(
            header.client,
            header.study_digest,
            {
                int(entry.release_id.rpartition("#")[0].rpartition("/")[2]): entry.digest or ""
                for entry in entries
                if entry.kind == "sealed"
            },
            {
                at: (bytes.fromhex(keys), task)
                for at, (keys, task) in {**tasks, **evidence.tasks}.items()
            },
            signed,
        )
    except ValueError as error:
        raise errors.PrivacyError(f"what the site kept cannot be read: {error}") from None


def _problem(kept: _Kept, found: Round, digests: Mapping[str, str]) -> str:
    """Returns how a round contradicts what a site kept; empty if it does not.

    Args:
      kept: by the site.
      found: the round.
      digests: site → digest of its masked answer; empty if the round was given up.
    """
    visit = found.task.visit
    other, own = f"of round {visit} is another than the one that", digests.get(kept.client)
    if visit in kept.tasks:
        keys, task = kept.tasks[visit]
        if task_digest(keys, kept.study_digest, found.task).hex() != task:
            return f"the task {other} this site answered"
    if not found.is_folded:
        return ""
    if own and visit not in kept.sealed:
        return f"round {visit} shows an answer of this site, and its ledger sealed none"
    if own and own != kept.sealed[visit]:
        return f"the answer {other} the ledger sealed"
    opening = found.messages.openings.get(kept.client)
    if visit not in kept.signed:
        if opening is None:
            return ""
        return f"round {visit} shows keys of this site, and it has no certificate that it opened them for"
    signed = kept.signed[visit]
    if signed.named != _set(found, digests).text:
        return f"the set {other} sites signed"
    if opening and signed.opening not in ("", hashlib.sha256(opening).hexdigest()):
        return f"the keys of round {visit} that it shows as this site's are others than this site opened"
    return ""


def _is_done(spec: ServerSpec, state: ServerState) -> bool:
    return spec.schedule.finished(protocol.progress_of(spec, state))


def _digests(spec: ServerSpec, found: Round) -> dict[str, str]:
    return {
        name: codec.digest(codec.event_text(spec.costs[name]), found.answers[name])
        for name in spec.clients
        if name in found.answers
    }


def _set(found: Round, digests: Mapping[str, str]) -> Named:
    """Returns a round's set, made anew of the answers that are there."""
    return Named(found.task.visit, tuple(digests), tuple(digests.values()))


def _begun(state: ServerState, visit: int, found: Round) -> ServerState:
    """Returns the state in which a round was folded or given up, but for the answers' content."""
    missing = [name for name in state.turns if name not in found.answers]
    return state._replace(
        visits=dict.fromkeys(state.visits, visit),
        turns={name: visit + (name in missing) for name in state.turns},
        skipped=tuple(missing),
    )


def _folded(spec: ServerSpec, state: ServerState, found: Round, named: Named) -> ServerState:
    gather, least = spec.gathering, spec.gathering.sums.least_reporting
    if len(found.answers) < least:
        raise errors.ProtocolError(
            f"its sum holds {len(found.answers)} answers, expected {least} or more"
        )
    state = state._replace(answers=_answers(spec, found))
    if openings.opens(spec):
        if set(openings.opening_messages(state).absent) - set(found.messages.absent):
            state = key_board.means_begun_anew(spec, state)
        state = openings.restored(spec, state, named, found.messages)
    return turns.sum_folded(spec, gather, state)


def _answers(spec: ServerSpec, found: Round) -> tuple[Answer, ...]:
    """Returns a round's answers as the server holds them; those of a round that was given up are empty."""
    answers = []
    for name, tensors in found.answers.items():
        task = found.task._replace(client=name, task_id=f"{name}/{found.task.visit}")
        change = Change(spec.family.zeros())
        if found.is_folded:
            value = {tensor.name: _array(tensor) for tensor in tensors}
            change = sum_rounds.exact(spec.gathering, value, spec.prior, len(spec.clients))
        answers.append(Answer(task, change))
    return tuple(answers)


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
