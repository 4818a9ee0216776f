"""Writes a server's part of a study to a file with JAX, and reads it without JAX.

    FOLDER/plan.json       the plan
    FOLDER/plan/ab/abcd…   its arrays above 1 MiB, named by their SHA-256

The plan stays readable text, whatever the size of the prior.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedvi import __version__, errors, plugins
from fedvi.data.line_numbers import line_with
from fedvi.expfam import tree
from fedvi.expfam.mapped_arrays import windows
from fedvi.privacy import events, ledger
from fedvi.privacy.sums import Sums
from fedvi.privacy.top_up import Layer, TopUp
from fedvi.server.core.protocol import ServerSpec
from fedvi.server.core.sum_rounds import Gather
from fedvi.store import blobs, files
from fedvi.study.config import Study, load_study, located, parse_study
from fedvi.study.spec import conjugates, shared_parts
from fedvi.transport.files import PRIVATE, put
from fedvi.typing import Eta
from fedvi.updates import base, finish, noise_aware, statistics
from fedvi.updates.conjugate import fields_of, from_table, is_own, to_table, tupled
from fedvi.updates.limits import Limit, Sign

if TYPE_CHECKING:
    from fedvi.study.build import Assembly

__all__ = [
    "ARRAYS",
    "FILE",
    "Finish",
    "Part",
    "ServerPlan",
    "earlier_digests",
    "keep",
    "make",
    "prepare",
    "read",
    "to_spec",
]

FILE = "plan.json"
"""The plan's name within a server's folder."""

ARRAYS = "plan"
"""The name, within a server's folder, of the folder of a plan's large arrays."""

_FORMAT = 4
# Those of 0.1.0, without limits of answers, and of what finished answers before outcomes were surveyed:
# results with such a plan are read, but no server runs on it.
_BEFORE = (2, 3)

_INLINE_BYTES = 1 << 20  # a larger array would take several times its size as text


class Finish(NamedTuple):
    """A function that the server runs, such as (released value, task) → ``Change``, given by name.

    Attributes:
      function: a name in ``_FUNCTIONS``, or among the ``finishes`` of the study's own solver.
      arguments: keyword arguments that JSON can hold; a conjugate model is a table, see ``_noted_model``.
    """

    function: str
    arguments: Mapping[str, Any]


class Part(NamedTuple):
    """The server's knowledge of one worker.

    Attributes:
      cost: the event of one answer.
      finish: turns an answer into a change of the worker's factor.
      header: of its ledger; None for the prior's worker, which reads no record.
      limit: how large an answer may be; None if it has no limit.
    """

    cost: events.Event
    finish: Finish
    header: ledger.Header | None
    limit: Limit | None = None


@dataclasses.dataclass(frozen=True)
class ServerPlan:
    """A study, and the values that need its model, solver or noise calibration to compute.

    Attributes:
      software: the version of fedvi that made it.
      study: as validated.
      names: of θ's coordinates.
      units: of the coordinates; "" where nothing was scaled.
      prior: η_0, proper.
      workers: the prior's worker, if there is one, and the clients in the order of the study.
      stand: turns noisy factors into the q that is handed out, see ``LocalSolver.stand``; None if not
        needed.
      renews: whether an answer replaces a factor, see ``LocalSolver.renews``.
      rounds: the largest number of answers of one client.
      table_distance: distance of one release's noise from the law that is priced.
      mark: printed beside every claim; empty if nothing needs saying.
      warnings: one sentence each, see ``fedvi.planning.advice.doubts``.
      expected: the expectation for its result, see ``fedvi.planning.widths.expectation``; or None.
      gather: how answers are summed, see ``ServerSpec.gather``; None if each is folded by itself.
      is_kept: whether it was read from a server's folder.
      is_whole: whether it has what a server needs; a plan of an earlier format serves to read a result.
    """

    software: str
    study: Study
    names: tuple[str, ...]
    units: tuple[str, ...]
    prior: Eta
    workers: Mapping[str, Part]
    stand: Finish | None
    renews: bool
    rounds: int
    table_distance: float
    mark: str
    warnings: tuple[str, ...]
    expected: Mapping[str, Any] | None = None
    gather: Gather | None = None
    is_kept: bool = False
    is_whole: bool = True

    @property
    def digest(self) -> str:
        """The study's digest, which a client's Hello must carry."""
        return self.study.digest

    @property
    def clients(self) -> tuple[str, ...]:
        """The data holders, in the order of the study."""
        return tuple(client.name for client in self.study.clients)

    @property
    def has_prior_worker(self) -> bool:
        """Whether the prior is a factor of its own, whose worker needs JAX and runs at the server."""
        return shared_parts.PRIOR in self.workers


def prepare(study_path: Path, folder: Path | None = None) -> ServerPlan:
    """Returns the plan of a study file, from ``folder/plan.json`` if there is one that fits.

    Otherwise another process computes it, so that this one needs no JAX. A plan fits if it was made from
    the same study by the same version of fedvi. Nothing is written: see ``keep``.

    Raises:
      CodeRefused: the plan in the folder names code that no server runs.
      FedviError: the study cannot be carried out; see ``build.assemble``.
    """
    study, path = load_study(study_path), folder and folder / FILE
    if path and path.exists():
        try:
            found = read(path, study.parts)
        except errors.CodeRefused:
            raise  # no version of fedvi wrote such a plan
        except errors.ConfigError:
            found = None  # of another version, or damaged: it can be computed again
        if found is not None and _fits(found, study):
            return found
    return _computed(study_path, study)


def keep(plan: ServerPlan, folder: Path) -> None:
    """Writes a plan to a server's folder for the next start, unless it was read from there.

    Call it after the state in the folder was opened: a folder that refuses a changed study, or that
    another server is using, must keep its own plan.

    Raises:
      LedgerError: it cannot be written.
    """
    if not plan.is_kept:
        with files.reported(folder / FILE):
            _write_plan(folder / FILE, plan)


def read(path: Path, parts: plugins.OutsideCode | None = None) -> ServerPlan:
    """Reads a stored plan.

    Args:
      path: of its file.
      parts: the code from outside fedvi that its study may name, see ``parse_study``.

    Raises:
      CodeRefused, PolicyRefused: its study names code that nobody allowed here; or it names a function
        that no server runs, or gives one what it does not take.
      ConfigError: it is missing, damaged, or of another version.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        # JSON may contain half a surrogate pair, which no digest can hold.
        json.dumps(content, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise errors.ConfigError(f"no plan of a run can be read at {path}: {error}") from error
    try:
        plan = _from_json(content, path, parts)
    except (errors.CodeRefused, errors.PolicyRefused) as error:
        raise located(error, str(path), text, "study") from error
    # Checked here, where the error can name the file; ``to_spec`` looks them up once more.
    named = [part.finish for part in plan.workers.values()]
    for name in named if plan.stand is None else [*named, plan.stand]:
        try:
            _function(name, plan.study)
        except errors.ConfigError as error:
            line = line_with(f'"function": {json.dumps(name.function)}', text)
            where = f"{path}, line {line}" if line else str(path)
            raise errors.CodeRefused(f"{error.message} ({where})", error.hint) from None
    return dataclasses.replace(plan, is_kept=True)


def earlier_digests(plan: ServerPlan, folder: Path) -> tuple[str, ...]:
    """Returns a study's digests before its ``added`` clients; a run of such a study may continue.

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
    path = folder / FILE
    if path.exists():
        before = read(path, plan.study.parts)
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


def make(assembly: "Assembly") -> ServerPlan:
    """Makes the server's plan of a built study.

    Raises:
      ConfigError: a solver's ``finish`` is not a function that a file may name, see ``_FUNCTIONS``.
    """
    # Imports JAX, which reading a plan does not need.
    from fedvi.planning import advice, widths

    spec = assembly.spec
    return ServerPlan(
        software=__version__,
        study=assembly.study,
        names=assembly.model.names,
        units=assembly.units,
        prior=tree.to_numpy(assembly.prior),
        workers={
            name: Part(
                spec.costs[name],
                _named(spec.finish[name], "finish", name, assembly.study),
                spec.headers.get(name),
                spec.limits.get(name),
            )
            for name in spec.clients
        },
        stand=None
        if spec.stand is None
        else _named(spec.stand, "stand", assembly.clients[0], assembly.study),
        renews=spec.renews,
        rounds=assembly.schedule.rounds,
        table_distance=assembly.table_distance,
        mark=assembly.mark,
        warnings=advice.doubts(assembly),
        expected=widths.expectation(assembly),
        gather=spec.gather,
    )


def to_spec(plan: ServerPlan) -> ServerSpec:
    """Returns the server's spec: equal to ``Assembly.spec``, built without JAX.

    A plug-in's family, schedule or solver is imported if it is allowed, and may import JAX.

    Raises:
      CodeRefused, PolicyRefused: the study names a plug-in that nobody allowed.
      ConfigError: the plan names a function that is no server's, or arguments that it does not take.
    """
    family = shared_parts.family(plan.study, len(plan.names))
    schedule, step_rule, patience = shared_parts.schedule(plan.study)
    return ServerSpec(
        study_digest=plan.digest,
        clients=tuple(plan.workers),
        family=family,
        prior=plan.prior,
        schedule=schedule,
        step_rule=step_rule,
        finish={name: _found(part.finish, plan.study) for name, part in plan.workers.items()},
        costs={name: part.cost for name, part in plan.workers.items()},
        patience=patience,
        headers={
            name: part.header for name, part in plan.workers.items() if part.header is not None
        },
        budget=shared_parts.budget(plan.study, plan.table_distance),
        seeded_otherwise=plan.study.digest_if_seeded_otherwise,
        stand=None if plan.stand is None else _found(plan.stand, plan.study),
        renews=plan.renews,
        limits={name: part.limit for name, part in plan.workers.items() if part.limit is not None},
        gather=plan.gather,
    )


def _fits(plan: ServerPlan, study: Study) -> bool:
    """Whether a plan is of this study; compared as JSON, which has one form of infinity."""
    return (
        plan.is_whole and plan.software == __version__ and plan.study.as_dict() == study.as_dict()
    )


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            base.finish_natural,
            finish.finish_change,
            finish.finish_low_rank,
            finish.finish_site,
            finish.finish_sites,
            finish.finish_whitened,
            noise_aware.of_changes,
            noise_aware.of_sites,
            statistics.finish_statistics,
            statistics.stand_statistics,
        )
    }
)
"""What a server may be told to run, by name; a solver from outside adds its own ``finishes``."""

# The argument of a function that is a conjugate model.
_MODEL = "model"


def _functions(study: Study) -> Mapping[str, Callable[..., Any]]:
    """Returns the functions that a plan of a study may name: fedvi's own, and those of its own solver.

    The factory of a solver from outside lists its functions in an attribute, ``finishes``.
    """
    if not study.is_outside("solver"):
        return _FUNCTIONS
    kind = study.solver.kind
    factory = study.parts.find("solver", "solver.kind", kind)
    own = {function.__name__: function for function in getattr(factory, "finishes", ())}
    return {**own, **_FUNCTIONS}


def _named(made: Callable[..., Any], what: str, worker: str, study: Study) -> Finish:
    function, arguments = made, {}
    if isinstance(made, functools.partial) and not made.args:
        function, arguments = made.func, dict(made.keywords)
    name = getattr(function, "__name__", "")
    try:
        if _MODEL in arguments:
            arguments[_MODEL] = _noted_model(arguments[_MODEL], study)
        same = json.loads(json.dumps(arguments)) == arguments
    except (errors.ModelError, TypeError, ValueError):
        same = False
    if not same or _functions(study).get(name) is not function:
        shown = f"{function.__module__}.{getattr(function, '__qualname__', name)}"
        raise errors.ConfigError(
            f"the solver of {worker!r} has `{what}` {shown}, which a server cannot name",
            "make it one of fedvi.updates, or a function of a module that the solver's factory lists in "
            "`finishes`; or a functools.partial of one, with keyword arguments that JSON can hold",
        )
    return Finish(name, arguments)


def _found(name: Finish, study: Study) -> Callable[..., Any]:
    function, arguments = _function(name, study), dict(name.arguments)
    if _MODEL in arguments:
        arguments[_MODEL] = _model(arguments[_MODEL], study)
    return functools.partial(function, **arguments) if arguments else function


def _function(name: Finish, study: Study) -> Callable[..., Any]:
    """Returns the function that a plan names.

    Raises:
      ConfigError: a server runs no function of this name, or it takes no such arguments.
    """
    functions = _functions(study)
    if name.function not in functions:
        raise errors.ConfigError(
            f"the plan names the function {name.function!r:.100}, expected one of {', '.join(functions)}",
            "a plan names no other code; remove it, and the server computes it again",
        )
    function = functions[name.function]
    takes = inspect.signature(function).parameters
    # Keywords alone: the rest is what a server hands over.
    given = [key for key, one in takes.items() if one.kind is one.KEYWORD_ONLY]
    unknown = sorted(name.arguments.keys() - set(given))
    if unknown:
        raise errors.ConfigError(
            f"the plan gives `{unknown[0]}` to {name.function}, which takes {', '.join(given) or 'none'}",
            "it was changed by hand, or made by another version: remove it, and it is computed again",
        )
    return function


def _noted_model(model: Any, study: Study) -> dict[str, Any]:
    """Returns the form of a conjugate model in a plan.

    One of fedvi's own is its class and its fields. Of a model from outside, the study says how it is made,
    or its outcome says of which class its ``form`` is: a file names no other class.
    """
    if is_own(model):
        return to_table(model)
    if model == conjugates.model_of(study):
        return {"model": "of the study"}
    if type(model) is _form(study):
        return {"model": "of the outcome", "fields": fields_of(model)}
    raise errors.ModelError(f"{type(model).__name__} is not of the study's own model")


def _model(noted: Any, study: Study) -> Any:
    """Returns the conjugate model of its form in a plan."""
    if not isinstance(noted, dict):
        raise errors.ConfigError("the plan's conjugate model is no table", "compute the plan again")
    form = _form(study) if noted.get("model") == "of the outcome" else None
    try:
        if noted.get("model") == "of the study":
            return conjugates.model_of(study)
        if form is not None:
            return form(**{key: tupled(value) for key, value in noted["fields"].items()})
        return from_table(noted)
    except (errors.ModelError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.ConfigError(
            f"the plan's conjugate model cannot be made: {error}",
            "it was changed by hand, or made by another version: remove it, and it is computed again",
        ) from error


def _form(study: Study) -> Any:
    """Returns the class of the conjugate form of an outcome from outside; None if it has none."""
    if not study.is_outside("model"):
        return None
    return getattr(study.parts.outcome(study.model.kind), "form", None)


def _read_finish(noted: Mapping[str, Any]) -> Finish:
    name = Finish(**noted)
    # Plans of 0.1.0 say the module as well, where it was then; the name alone is looked up.
    module, _, last = name.function.rpartition(":")
    if last in _FUNCTIONS and module.startswith("fedvi."):
        return name._replace(function=last)
    return name


def to_json(plan: ServerPlan) -> dict[str, Any]:
    """Returns a plan as plain values; floats keep every bit."""
    content = {
        "format": _FORMAT,
        "software": plan.software,
        "digest": plan.digest,
        "study": plan.study.as_dict(),
        "coefficients": [
            {"name": name, "unit": unit} for name, unit in zip(plan.names, plan.units, strict=True)
        ],
        "prior": [_noted(leaf) for leaf in tree.leaves(plan.prior)],
        "workers": [
            {
                "name": name,
                "cost": events.to_json(part.cost),
                "finish": part.finish._asdict(),
                "header": part.header and ledger.to_lines(ledger.open_ledger(part.header))[0],
                "limit": part.limit and part.limit._asdict(),
            }
            for name, part in plan.workers.items()
        ],
        "stand": plan.stand and plan.stand._asdict(),
        "renews": plan.renews,
        "rounds": plan.rounds,
        "table_distance": plan.table_distance,
        "mark": plan.mark,
        "warnings": list(plan.warnings),
        "expected": plan.expected,
        "gather": plan.gather and _noted_gather(plan.gather),
    }
    return {**content, "sha256": _sha256(content)}


def _limit(table: Mapping[str, Any]) -> Limit:
    return Limit(**{**table, "signs": tuple(Sign(*sign) for sign in table["signs"])})


def _sha256(content: Mapping[str, Any]) -> str:
    """Returns a checksum that detects damage or changes by hand; it is no signature."""
    rest = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _from_json(content: Any, path: Path, parts: plugins.OutsideCode | None = None) -> ServerPlan:
    try:
        if content["format"] not in (*_BEFORE, _FORMAT):
            raise errors.ConfigError(
                f"{path} has format {content['format']!r:.20}, expected 2 to {_FORMAT}",
                "it was written by another version of fedvi: use that one",
            )
        if content["sha256"] != _sha256(content):
            raise errors.ConfigError(
                f"{path} is not what was written: its sha256 differs",
                "it was damaged or changed by hand: remove it, and it is computed again",
            )
        study = parse_study(content["study"], parts)
        names = tuple(item["name"] for item in content["coefficients"])
        leaves = iter(content["prior"])
        zeros = shared_parts.family(study, len(names)).zeros()
        prior = tree.map_leaves(lambda leaf: _array(next(leaves), leaf.shape, path), zeros)
        plan = ServerPlan(
            software=content["software"],
            is_whole=content["format"] == _FORMAT,
            study=study,
            names=names,
            units=tuple(item["unit"] for item in content["coefficients"]),
            prior=tree.to_numpy(prior),
            workers={
                item["name"]: Part(
                    events.from_json(item["cost"]),
                    _read_finish(item["finish"]),
                    item["header"] and ledger.from_lines([item["header"]]).header,
                    (limit := item.get("limit")) and _limit(limit),
                )
                for item in content["workers"]
            },
            stand=content["stand"] and _read_finish(content["stand"]),
            renews=content["renews"],
            rounds=content["rounds"],
            table_distance=content["table_distance"],
            mark=content["mark"],
            warnings=tuple(content["warnings"]),
            expected=content.get("expected"),
            gather=content["gather"] and _gather(content["gather"]),
        )
    except errors.LedgerError as error:
        raise errors.ConfigError(f"{path} is not whole: {error.message}") from error
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise errors.ConfigError(f"{path} is no plan of a run: {error!r}") from error
    told = str(content.get("digest"))
    if plan.digest != told:
        raise errors.ConfigError(
            f"{path} is of study {told[:12]}, and holds one of digest {plan.digest[:12]}",
            "it was changed by hand: remove it, and it is computed again",
        )
    return plan


def _noted_gather(gather: Gather) -> dict[str, Any]:
    shapes = {name: list(shape) for name, shape in gather.shapes.items()}
    stride, layers = gather.top_up
    top_up = {"stride": stride, "layers": [layer._asdict() for layer in layers]}
    return {
        **gather._asdict(),
        "sums": gather.sums._asdict(),
        "shapes": shapes,
        "top_up": top_up,
    }


def _gather(noted: Mapping[str, Any]) -> Gather:
    shapes = {name: tuple(shape) for name, shape in noted["shapes"].items()}
    layers = noted.get("top_up", {"stride": 1, "layers": []})
    top_up = TopUp(
        layers["stride"],
        tuple(Layer(raw["missing"], tuple(raw["divisors"])) for raw in layers["layers"]),
    )
    return Gather(Sums(**noted["sums"]), noted["step"], shapes, noted["bits"], top_up)


def _computed(study_path: Path, study: Study) -> ServerPlan:
    """Computes a plan in another process, which may import the plug-ins that this one may.

    Raises:
      ConfigError: the study has parts that are objects, which no other process has.
      FedviError: raised in that process, or there is no space for its files.
    """
    if study.parts.given:
        raise errors.ConfigError(
            f"{', '.join(map(repr, study.parts.given))} was passed from Python, and another process "
            "computes a server's plan",
            "make it a plug-in (docs/add/plug-in.md)",
        )
    said = json.dumps([dict(study.parts.names), study.parts.policy])
    with (
        files.reported(study_path),
        tempfile.TemporaryDirectory(prefix="fedvi-plan-") as scratch,
    ):
        target = Path(scratch) / FILE
        # -P: modules are found as by any fedvi command, not in the working directory.
        command = [sys.executable, "-P", "-m", __spec__.name, str(study_path), str(target), said]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            # A plan needs no accelerator, which a client on this machine may be using.
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        if not target.exists():
            last = done.stderr.strip().rpartition("\n")[2]
            raise errors.FedviError(
                f"the plan of {study_path} could not be computed: {last or done.returncode}",
                "`fedvi check` on the same file may tell more",
            )
        content = json.loads(target.read_text(encoding="utf-8"))
        if "error" in content:
            kind = getattr(errors, content["error"])
            raise kind(content["message"], content["hint"])
        # Large arrays are memory-mapped, so they outlive the deletion of their files.
        return _from_json(content, target, study.parts)


def _noted(leaf: np.ndarray) -> Any:
    """Returns an array's form in a plan: its numbers, or the digest of its bytes."""
    return leaf.tolist() if leaf.nbytes <= _INLINE_BYTES else {"sha256": _digest(leaf)}


def _digest(leaf: np.ndarray) -> str:
    hasher = hashlib.sha256()
    for (piece,) in windows(leaf):
        hasher.update(piece)
    return hasher.hexdigest()


def _array(noted: Any, shape: tuple[int, ...], path: Path) -> np.ndarray:
    """Returns the array for its form in the plan at ``path``; maps a large one.

    Raises:
      LedgerError: its file is missing, or holds other bytes than were written.
    """
    if not isinstance(noted, dict):
        return np.array(noted).reshape(shape)
    place, size = (path.parent / ARRAYS, str(noted["sha256"])), 8 * math.prod(shape)
    blobs.verify(*place, size)
    return blobs.read(*place, size).view(np.float64).reshape(shape)


def _write_plan(path: Path, plan: ServerPlan) -> None:
    """Writes a plan, its large arrays first, and deletes those of an earlier plan."""
    leaves = tree.leaves(plan.prior)
    large = {_digest(leaf): leaf for leaf in leaves if leaf.nbytes > _INLINE_BYTES}
    folder = path.parent / ARRAYS
    if not large and not folder.exists():
        _write(path, to_json(plan))
        return
    arrays = blobs.Blobs(folder)
    arrays.put({name: leaf.reshape(-1).view(np.uint8) for name, leaf in large.items()})
    files.sync(path.parent)
    _write(path, to_json(plan))
    arrays.sweep(keep=large)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Writes a file atomically."""
    put(path, json.dumps(content, indent=1, allow_nan=False).encode(), PRIVATE)


def _main(study_path: str, target: str, said: str) -> None:
    """Computes the plan of a study file, in the other process.

    Args:
      study_path, target: of the study, and of the plan.
      said: names and policy of ``plugins.OutsideCode``, as JSON.
    """
    from fedvi.study import build

    names, policy = json.loads(said)
    try:
        study = load_study(study_path, plugins.OutsideCode(names=names, policy=policy))
        _write_plan(Path(target), make(build.assemble(study)))
    except errors.FedviError as error:
        content = {
            "error": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
        }
        _write(Path(target), content)


if __name__ == "__main__":
    _main(*sys.argv[1:])
