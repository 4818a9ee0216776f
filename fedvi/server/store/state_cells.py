"""Splits the server's state into cells of a database, and reassembles it.

A cell is named by a field and an item of it: a client, a group of clients, a position, or nothing.
Its text is JSON, in which a reference replaces each array. Append-only fields (folds, accepted answers,
ledgers) are not stored as cells but as unchangeable lines.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedvi.expfam import tree
from fedvi.federation.damping import Memory
from fedvi.federation.fold import Gap
from fedvi.federation.progress import StageEnd, StagePlace
from fedvi.server.core import kept
from fedvi.server.core.state import Answer, ServerState, Update
from fedvi.typing import Eta
from fedvi.updates.base import Change, Standing, Task
from fedvi.updates.coordinates import Coordinates

__all__ = [
    "APPENDED",
    "CELLS",
    "VOLATILE",
    "Key",
    "Reference",
    "assemble",
    "changes",
    "decode",
    "encode",
    "flatten",
    "line_of",
    "update_of",
]

APPENDED = ("accepted", "history", "ledgers")
"""Append-only fields."""

VOLATILE = ("presence",)
"""Fields that are reset when the server starts."""


class Key(NamedTuple):
    """Names a cell: a field of the state and an item of it, "" if the field has a single item."""

    field: str
    item: str


class Reference(NamedTuple):
    """Refers to an array in a cell's text.

    Attributes:
      sha256: of its bytes, little-endian and in C order; hex.
      dtype: NumPy's name, such as "<f8".
      shape: of the array.
    """

    sha256: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many bytes the array has."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


_GONE: Any = object()

_written = json.JSONEncoder(separators=(",", ":")).encode

# Fields of an update that its line omits if they are empty.
_RARE = ("removed", "added", "given_up", "dropped")
_NEWER = (*_RARE, "stage")

Put = Callable[[np.ndarray], Reference]
Get = Callable[[Reference], np.ndarray]


class _Form(NamedTuple):
    """Converts a value to and from JSON types; reading takes an η of the family for its tree structure."""

    write: Callable[[Any, Put], Any]
    read: Callable[[Any, Get, Eta], Any]


def _write_eta(eta: Eta, put: Put) -> Any:
    return [put(leaf) for leaf in tree.leaves(eta)]


def _read_eta(value: Any, get: Get, like: Eta) -> Eta:
    arrays = [get(Reference(sha256, dtype, tuple(shape))) for sha256, dtype, shape in value]
    if like is None:
        return tuple(arrays)
    rest = iter(arrays)
    return tree.map_leaves(lambda _: next(rest), like)


def _write_task(task: Task, put: Put) -> Any:
    etas = {name: _write_eta(getattr(task, name), put) for name in ("posterior", "factor")}
    at = _write_coordinates(task.coordinates)
    return {**task._asdict(), **etas, "coordinates": at}


def _read_task(value: Any, get: Get, like: Eta) -> Task:
    etas = {name: _read_eta(value[name], get, like) for name in ("posterior", "factor")}
    at = _read_coordinates(value.get("coordinates"))
    return Task(**{**value, **etas, "coordinates": at})


def _write_coordinates(at: Coordinates | None) -> Any:
    # D columns of a full Gaussian: a few thousand numbers at most.
    return at and {
        "centre": at.centre.tolist(),
        "scale": at.scale.tolist(),
        "constant": at.constant,
        "slopes": [at.spread, at.level, at.residual, at.sizes, at.blocks, at.baselines],
    }


def _read_coordinates(value: Any) -> Coordinates | None:
    # States of earlier versions have none, or nothing of slopes.
    return value and Coordinates(
        np.array(value["centre"]),
        np.array(value["scale"]),
        value["constant"],
        *value.get("slopes", ()),
    )


def _write_answer(answer: Answer, put: Put) -> Any:
    task, change = _write_task(answer.task, put), _write_eta(answer.change.delta, put)
    survey = answer.change.survey and _write_eta(answer.change.survey, put)
    told = {"survey": survey, "sized": answer.change.sized}
    return {**answer._asdict(), "task": task, "change": change, **told}


def _read_answer(value: Any, get: Get, like: Eta) -> Answer:
    value = dict(value)
    # Answers stored by earlier versions have none.
    survey, sized = value.pop("survey", None), value.pop("sized", None)
    sized = sized if isinstance(sized, float) else None
    change = Change(
        _read_eta(value["change"], get, like), survey and _read_eta(survey, get, like), sized
    )
    return Answer(**{**value, "task": _read_task(value["task"], get, like), "change": change})


def _write_memory(memory: Memory, put: Put) -> Any:
    update = None if memory.update is None else _write_eta(memory.update, put)
    return {"damping": memory.damping, "update": update}


def _read_memory(value: Any, get: Get, like: Eta) -> Memory:
    update = None if value["update"] is None else _read_eta(value["update"], get, like)
    return Memory(value["damping"], update)


def _read_stage(value: Any, get: Get, like: Eta) -> StageEnd:
    tuples = {name: tuple(value[name]) for name in ("visits", "turns", "away")}
    return StageEnd(**{**value, **tuples})


# Fields of a standing; unused ones are None, and states of earlier versions lack some.
_ETAS = ("handed_out", "reported", "curvature", "reference", "begun", "gradient", "prior")


def _write_standing(standing: Standing | None, put: Put) -> Any:
    if standing is None:
        return None
    etas = {name: getattr(standing, name) for name in _ETAS}
    return {
        **standing._asdict(),
        "weights": dict(standing.weights),
        "sites": {name: _write_eta(site, put) for name, site in standing.sites.items()},
        "centres": {name: put(centre) for name, centre in standing.centres.items()},
        "coordinates": _write_coordinates(standing.coordinates),
        **{name: eta and _write_eta(eta, put) for name, eta in etas.items()},
    }


def _read_standing(value: Any, get: Get, like: Eta) -> Standing | None:
    if value is None:
        return None
    etas = {name: value.get(name) for name in _ETAS}
    value = {
        **value,
        "weights": {name: tuple(weights) for name, weights in value["weights"].items()},
        "sites": {name: _read_eta(site, get, like) for name, site in value["sites"].items()},
        # States of earlier versions have none.
        "centres": {
            name: get(Reference(sha256, dtype, tuple(shape)))
            for name, (sha256, dtype, shape) in value.get("centres", {}).items()
        },
        "coordinates": _read_coordinates(value.get("coordinates")),
    }
    etas = {name: eta and _read_eta(eta, get, like) for name, eta in etas.items()}
    return Standing(**{**value, **etas})


_plain = _Form(lambda value, _: value, lambda value, _, __: value)
_bytes = _Form(
    lambda value, _: base64.b64encode(value).decode(), lambda value, _, __: base64.b64decode(value)
)
_names = _Form(lambda names, _: list(names), lambda value, _, __: tuple(value))
_eta = _Form(_write_eta, _read_eta)
_task = _Form(_write_task, _read_task)
_answer = _Form(_write_answer, _read_answer)
_memory = _Form(_write_memory, _read_memory)
_standing = _Form(_write_standing, _read_standing)
_stage = _Form(lambda end, put: end._asdict(), _read_stage)


class _Field(NamedTuple):
    """The form of a field's items, and how the field is split into items and joined again."""

    form: _Form
    split: Callable[[Any], Iterable[tuple[str, Any]]]
    join: Callable[[list[tuple[str, Any]]], Any]


def _one(form: _Form) -> _Field:
    return _Field(form, lambda value: [("", value)], lambda items: items[0][1])


def _by_client(form: _Form) -> _Field:
    return _Field(form, lambda mapping: mapping.items(), dict)


def _by_group(form: _Form) -> _Field:
    return _Field(
        form,
        lambda mapping: ((json.dumps(group), value) for group, value in mapping.items()),
        lambda items: {tuple(json.loads(item)): value for item, value in items},
    )


def _in_order(form: _Form) -> _Field:
    return _Field(
        form,
        lambda values: ((str(position), value) for position, value in enumerate(values)),
        lambda items: tuple(value for _, value in sorted(items, key=lambda pair: int(pair[0]))),
    )


CELLS: Mapping[str, _Field] = {
    "version": _one(_plain),
    "posterior": _one(_eta),
    "factors": _by_client(_eta),
    "visits": _by_client(_plain),
    "turns": _by_client(_plain),
    "tasks": _by_client(_task),
    "answers": _in_order(_answer),
    "memory": _by_group(_memory),
    "round_start": _one(_eta),
    "standing": _one(_standing),
    "status": _one(_plain),
    "away": _by_client(_plain),
    "skipped": _one(_names),
    "stages": _in_order(_stage),
    "keys": _by_client(_bytes),
}
"""Every field of `ServerState` that is neither append-only nor volatile."""


def flatten(state: ServerState) -> dict[Key, Any]:
    """Splits a state into the values of its cells, in order."""
    return {
        Key(field, item): value
        for field, kind in CELLS.items()
        for item, value in kind.split(getattr(state, field))
    }


def changes(before: ServerState | None, after: ServerState) -> tuple[dict[Key, Any], set[Key]]:
    """Compares two states by identity, and skips clients whose objects are shared.

    Returns:
      The values of the cells that changed, in the order of ``flatten``; and the keys of deleted cells.
    """
    if before is None:
        return flatten(after), set()
    found: dict[Key, Any] = {}
    gone: set[Key] = set()
    for field, kind in CELLS.items():
        was, now = getattr(before, field), getattr(after, field)
        if was is now:
            continue
        if not isinstance(now, Mapping) or kind.join is not dict:
            was, now = dict(kind.split(was)), dict(kind.split(now))
        for item, _, value in kept.differences(was, now, _GONE):
            if value is _GONE:
                gone.add(Key(field, item))
            else:
                found[Key(field, item)] = value
    return found, gone


def encode(key: Key, value: Any, put: Put) -> str:
    """Writes the text of a cell; calls ``put`` with each of its arrays."""
    # Non-standard JSON for NaN and infinities is fine: only `decode` reads this.
    return _written(CELLS[key.field].form.write(value, put))


def decode(key: Key, text: str, get: Get, like: Eta) -> Any:
    """Reads the text of a cell; ``get`` returns the array of each reference.

    Args:
      like: any η of the family; if None, every η is returned as the tuple of its leaves.
    """
    return CELLS[key.field].form.read(json.loads(text), get, like)


def assemble(cells: Mapping[Key, Any], appended: Mapping[str, Any]) -> ServerState:
    """Reassembles a state; volatile fields are as in a new one.

    Args:
      cells: the values, in the order of `flatten`.
      appended: the fields of ``APPENDED``.
    """
    items: dict[str, list[tuple[str, Any]]] = {field: [] for field in CELLS}
    for key, value in cells.items():
        items[key.field].append((key.item, value))
    # States stored before this field existed get its default.
    later = {"standing"} - {field for field, found in items.items() if found}
    fields = {field: kind.join(items[field]) for field, kind in CELLS.items() if field not in later}
    return ServerState(**fields, **appended)


def line_of(update: Update) -> str:
    """Writes one fold of the history."""
    gap = None if update.gap is None else update.gap._asdict()
    stage = None if update.stage is None else update.stage._asdict()
    fields = {**update._asdict(), "gap": gap, "stage": stage}
    # Omitting empty fields keeps the form that earlier versions of fedvi wrote and can read.
    rest = {name: value for name, value in fields.items() if name not in _NEWER or value}
    return json.dumps(rest, separators=(",", ":"))


def update_of(line: str) -> Update:
    """Reads one fold of the history."""
    fields = json.loads(line)
    gap = None if fields["gap"] is None else Gap(**fields["gap"])
    tuples = {
        name: tuple(fields.get(name, ())) if name in _RARE else tuple(fields[name])
        for name in ("clients", "staleness", "missing", *_RARE)
    }
    stage = fields.get("stage") and StagePlace(**fields["stage"])
    return Update(**{**fields, **tuples, "gap": gap, "stage": stage})
