"""The transcript of a study with masked sums: all that its server computed each sum and each fold from.

    FOLDER/00000.npz, 00001.npz, …   one file for each round: its task, the masked answers, their openings

It holds what any server of the study sees, and no more: by docs/proofs/secure_sums.md nobody can read more
than the sums in it. ``results.transcripts`` recomputes the run from it.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedvi import errors
from fedvi.expfam import tree
from fedvi.federation.messages import Tensor
from fedvi.federation.whole_numbers import MASKED, SHARES
from fedvi.server.core import openings, sum_rounds
from fedvi.server.core.openings import OpeningMessages
from fedvi.server.core.protocol import task_of
from fedvi.server.core.state import ServerSpec, ServerState, present
from fedvi.store import files
from fedvi.transport.files import PRIVATE, put
from fedvi.updates.base import Task
from fedvi.updates.coordinates import Coordinates

__all__ = ["TRANSCRIPT", "Recorder", "Round", "read"]

TRANSCRIPT = "transcript"
"""The folder's name within a server's folder."""

_FORM = "fedvi transcript 2"


class Round(NamedTuple):
    """One round.

    Attributes:
      is_folded: whether its sum was folded, and not given up.
      task: what all its sites were asked, under the name of one of them.
      answers: site → the tensors of its masked answer, in order of arrival; of a round that was given up
        the names alone, without tensors. Perhaps nobody answered that.
      messages: by what its sum was opened.
      digest: SHA-256 of its file.
    """

    is_folded: bool
    task: Task
    answers: Mapping[str, tuple[Tensor, ...]]
    messages: OpeningMessages
    digest: bytes


class Recorder:
    """Writes each round of a run before its fold is saved; see ``ServerSpec.record``.

    A server that is killed in between writes the same round again.

    Args:
      folder: created, readable by its owner alone, if it does not exist.
      state: as last saved; None for a new run.

    Raises:
      ConfigError: the study has no masked sums, or another schedule than "synchronous"; or rounds of the
        run so far are not in the folder, or others are.
      LedgerError: the folder cannot be written.
    """

    def __init__(self, folder: Path, spec: ServerSpec, state: ServerState | None) -> None:
        if not spec.is_masked:
            raise errors.ConfigError(
                "--transcript is given, and the study's sums are not masked: a transcript would show each "
                "site's answer",
                "leave it out, or write secure = true into [aggregation]",
            )
        if not spec.schedule.barrier:
            raise errors.ConfigError(
                f"--transcript is given with the schedule {spec.schedule.name!r}, expected 'synchronous'"
            )
        over = 0 if state is None else _rounds(spec, state)
        missing = [visit for visit in range(over) if not _path(folder, visit).is_file()]
        if missing:
            raise errors.ConfigError(
                f"{folder}: round {missing[0]} of the run is not in this transcript",
                "give --transcript from the first start on, and with the same folder",
            )
        # A server that was killed may have written the round that goes on now; it may end otherwise.
        begun = () if state is None else (_path(folder, over),)
        known = {*begun, *(_path(folder, visit) for visit in range(over))}
        others = sorted({*folder.glob("*.npz")} - known)
        if others:
            raise errors.ConfigError(
                f"{others[0]} is there, and the run is at round {over}",
                "a transcript of another run? name another --state, or move that folder away",
            )
        self._folder, self._spec = folder, spec
        with files.reported(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in begun:
                path.unlink(missing_ok=True)

    def __call__(self, state: ServerState, is_folded: bool) -> None:
        """Writes the current round of a state; returns once it is on the disk.

        Raises:
          LedgerError: it cannot be written.
        """
        task = _task(self._spec, state)
        content = _written(self._spec, state, task, is_folded)
        path = _path(self._folder, task.visit)
        with files.reported(path):
            put(path, content, PRIVATE)


def read(folder: Path, spec: ServerSpec) -> Iterator[Round]:
    """Yields the rounds of a transcript in their order.

    Raises:
      ConfigError: there is none, a file cannot be read, or it is of another study.
    """
    paths = {*folder.glob("*.npz")}
    if not paths:
        raise errors.ConfigError(
            f"{folder} holds no round of a transcript", "`fedvi server --transcript` makes one"
        )
    for visit in range(len(paths)):
        path = _path(folder, visit)
        if path not in paths or not path.is_file():
            raise errors.ConfigError(
                f"{folder}: round {visit} is missing: of {len(paths)} rounds, expected {path.name}",
                "copy the folder again; a transcript has no other files that end in .npz",
            )
        try:
            raw = path.read_bytes()
            with np.load(io.BytesIO(raw), allow_pickle=False) as file:
                if sum(part.file_size for part in file.zip.infolist()) > len(raw):
                    raise ValueError("it is compressed, and no server writes it so")
                content = {name: file[name] for name in file.files}
            found = _read(spec, visit, content, hashlib.sha256(raw).digest())
        except errors.ConfigError:
            raise
        # A file that somebody changed can raise nearly anything.
        except Exception as error:
            raise errors.ConfigError(
                f"{path}: no round can be read: {type(error).__name__}: {error}",
                "copy the folder again",
            ) from error
        yield found


def _path(folder: Path, visit: int) -> Path:
    return folder / f"{visit:05d}.npz"


def _task(spec: ServerSpec, state: ServerState) -> Task:
    """Returns the task of the current round, which perhaps nobody answered."""
    if state.answers:
        return state.answers[0].task
    return task_of(spec, state, spec.clients[0])._replace(visit=_rounds(spec, state))


def _rounds(spec: ServerSpec, state: ServerState) -> int:
    """Returns how many rounds are over."""
    return min(state.turns[name] for name in present(spec, state))


def _written(spec: ServerSpec, state: ServerState, task: Task, is_folded: bool) -> bytes:
    gather = spec.gathering
    names = [answer.task.client for answer in state.answers]
    at, told = task.coordinates, openings.opening_messages(state)
    content: dict[str, Any] = {
        "about": {
            "form": _FORM,
            "study": spec.study_digest,
            "is_folded": is_folded,
            "visit": task.visit,
            "version": task.version,
            "damping": task.damping,
            "constant": at and at.constant,
            "slopes": at and [at.spread, at.level, at.residual, at.sizes, at.blocks, at.baselines],
            "sites": names,
            "opened": [*told.openings],
            "absent": [*told.absent],
        }
    }
    content["about"] = np.array(json.dumps(content["about"]))
    for what, eta in (("posterior", task.posterior), ("factor", task.factor)):
        for number, leaf in enumerate(tree.leaves(eta)):
            content[f"{what}/{number}"] = np.asarray(leaf)
    if at is not None:
        content |= {"centre": at.centre, "scale": at.scale}
    if is_folded:
        words = [sum_rounds.masked_words(gather, answer.change) for answer in state.answers]
        content["words"] = np.stack(words)
        for name, part in told.openings.items():
            content[f"opening/{name}"] = np.frombuffer(part, np.uint8)
        if told.sealed:
            sealed = b"".join(told.sealed[name] for name in names)
            content["sealed"] = np.frombuffer(sealed, "<i4").reshape(
                len(names), len(spec.clients), -1
            )
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    return buffer.getvalue()


def _read(spec: ServerSpec, visit: int, content: Mapping[str, np.ndarray], digest: bytes) -> Round:
    about = json.loads(str(content["about"]))
    if about["form"] != _FORM:
        raise errors.ConfigError(
            f"round {visit} of the transcript has the form {about['form']!r}, expected {_FORM!r}",
            "verify it with the version of fedvi that wrote it",
        )
    if (about["study"], about["visit"]) != (spec.study_digest, visit):
        raise errors.ConfigError(
            f"round {visit} of the transcript is of round {about['visit']}, study {about['study']:.12}, "
            f"expected study {spec.study_digest:.12}"
        )
    names, is_folded = [str(name) for name in about["sites"]], about["is_folded"] is True
    if not set(names) <= set(spec.clients) or len(set(names)) < len(names):
        raise errors.ConfigError(
            f"round {visit} of the transcript names sites that the study does not have"
        )

    def eta(what: str) -> Any:
        leaves = (_floats(content[f"{what}/{at}"]) for at in range(len(content)))
        return tree.map_leaves(lambda _: next(leaves), spec.family.zeros())

    centred = about["constant"] is not None
    whose = names[0] if names else spec.clients[0]
    task = Task(
        task_id=f"{whose}/{visit}",
        client=whose,
        visit=visit,
        version=int(about["version"]),
        posterior=eta("posterior"),
        factor=eta("factor"),
        damping=float(about["damping"]),
        coordinates=Coordinates(
            _floats(content["centre"]),
            _floats(content["scale"]),
            int(about["constant"]),
            spread=float(about["slopes"][0]),
            level=float(about["slopes"][1]),
            residual=float(about["slopes"][2]),
            sizes=about["slopes"][3] is True,
            blocks=int(about["slopes"][4]),
            baselines=int(about["slopes"][5]),
        )
        if centred
        else None,
    )
    spec.family.check(task.posterior, f"the task of round {visit}")
    if not is_folded:
        return Round(False, task, dict.fromkeys(names, ()), OpeningMessages({}, {}), digest)
    answers, sealed = {}, {}
    kind = content["words"].dtype.str
    if kind not in ("<i4", "<i8"):
        raise ValueError(f"its words have dtype {kind}, expected <i4 or <i8")
    for number, name in enumerate(names):
        words = np.ascontiguousarray(content["words"][number])
        tensors = [Tensor(MASKED, kind, words.shape, words.tobytes())]
        if "sealed" in content:
            part = np.ascontiguousarray(content["sealed"][number], "<i4")
            sealed[name] = part.tobytes()
            tensors.append(Tensor(SHARES, "<i4", part.shape, sealed[name]))
        answers[name] = tuple(tensors)
    opened = {name: content[f"opening/{name}"].tobytes() for name in about["opened"]}
    absent = tuple(str(name) for name in about["absent"])
    return Round(True, task, answers, OpeningMessages(sealed, opened, absent), digest)


def _floats(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64, casting="safe")
