"""A small run for tests of what keeps its state: clients that answer by a fixed rule, no noise."""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedvi import expfam
from fedvi.expfam import tree
from fedvi.expfam.gaussian import GaussianEta
from fedvi.federation import damping, schedules
from fedvi.federation.messages import Hello, NextTask, Offer, Payload, Submit
from fedvi.privacy import events, ledger
from fedvi.privacy.release import disclose
from fedvi.server.coordinator import Coordinator
from fedvi.server.core.state import ServerSpec
from fedvi.transport import codec
from fedvi.updates.base import Task, finish_natural

CLIENTS = ("south", "north", "east")
COST = events.Unprotected("q")

INLINE, FILED = 2, 12
"""Sizes of θ at which J (8·D² bytes) stands in a row, and in a file of its own, with LIMIT."""

LIMIT = ("_INLINE_BYTES", 1_000)
"""What tests set in ``server.durable``, so that small arrays go where large ones do."""


def header(client: str, digest: str = "d") -> ledger.Header:
    return ledger.Header("s", digest, client, "record", "substitute", "message", False)


def make_spec(size: int = INLINE, kind: str = "synchronous", rounds: int = 2) -> ServerSpec:
    family = expfam.full_gaussian(size)
    return ServerSpec(
        study_digest="d",
        clients=CLIENTS,
        family=family,
        prior=family.isotropic(2.0),
        schedule=getattr(schedules, kind)(rounds),
        step_rule=damping.adaptive(),
        finish=dict.fromkeys(CLIENTS, finish_natural),
        costs=dict.fromkeys(CLIENTS, COST),
        headers={name: header(name) for name in CLIENTS},
    )


def answer(task: Task) -> Payload:
    """Sharper by half a record or so, from the task alone: whoever answers it again says the same."""
    generator = np.random.default_rng(zlib.crc32(task.task_id.encode()))
    direction = generator.normal(size=task.posterior.h.shape)
    eta = GaussianEta(
        np.asarray(task.posterior.h) + direction,
        np.asarray(task.posterior.J) - 0.5 * np.outer(direction, direction),
    )
    return codec.encode(disclose(tree.to_numpy(eta)._asdict(), COST.what))


def play(spec: ServerSpec, coordinator: Coordinator, passes: int = 20) -> None:
    """Lets every client in turn ask and answer, until a pass brings nothing."""
    for name in spec.clients:
        book = coordinator.state.ledgers[name]
        coordinator.handle(Hello(name, spec.study_digest, ledger.anchor(book)))
    for _ in range(passes):
        worked = False
        for name in spec.clients:
            reply = coordinator.handle(NextTask(name))
            if isinstance(reply, Offer):
                coordinator.handle(Submit(name, reply.task.task_id, answer(reply.task)))
                worked = True
        if not worked:
            return


def frozen(value: Any) -> Any:
    """Returns what equals another's only if types, structure and every bit do; no presence."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.strides, value.tobytes()
    if hasattr(value, "_fields"):
        fields = [name for name in value._fields if name != "presence"]
        return type(value), *((name, frozen(getattr(value, name))) for name in fields)
    if isinstance(value, Mapping):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(frozen(item) for item in value)
    return type(value), value
