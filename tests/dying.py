"""Runs `fedvi` and kills it with SIGKILL where its first argument says: never part of the product.

    python -m tests.dying "answer: saved" server STUDY.json --state DIR …

Arrays above a few bytes leave the messages and the database, so that small ones do what large ones do.
"""

import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from fedvi.cli import _results
from fedvi.federation.messages import Hello, NextTask, Submit
from fedvi.server.app import App
from fedvi.server.core import protocol, turns
from fedvi.server.rpc import dispatcher, service
from fedvi.server.store import durable, uploads
from fedvi.server.store.durable import SqliteServerStore
from fedvi.store import blobs, files
from fedvi.transport import bundle, wire

INLINE, CHUNK = 16, 24

# The command has its module's name.
cli = importlib.import_module("fedvi.cli.server")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def always(*arguments: Any, **named: Any) -> bool:
    return True


def before(
    owner: Any, name: str, wanted: Callable[..., bool] = always, act: Callable[[], None] = die
) -> None:
    """Dies when a function is called."""
    original = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        if wanted(*arguments, **named):
            act()
        return original(*arguments, **named)

    setattr(owner, name, watched)


def after(owner: Any, name: str, wanted: Callable[..., bool] = always) -> None:
    """Dies when a function, or a coroutine, has done its work and nobody knows of it."""
    original = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        hit = wanted(*arguments, **named)
        result = original(*arguments, **named)
        if hit:
            die()
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:
        await original(*arguments, **named)
        die()

    setattr(owner, name, awaited if inspect.iscoroutinefunction(original) else watched)


def within(owner: Any, name: str) -> None:
    """Dies between the first and the second piece of what a generator yields."""
    original = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        pieces = original(*arguments, **named)
        yield next(pieces)
        die()

    setattr(owner, name, watched)


def at_commit(*numbers: int) -> None:
    """Dies before one of the commits of the process; the first makes the schema, if it is new."""
    connect, count = files.connect, 0

    def watched(*arguments: Any, **named: Any) -> Any:
        connection = connect(*arguments, **named)

        def trace(statement: str) -> None:
            nonlocal count
            count += statement == "COMMIT"
            if count in numbers:
                die()

        connection.set_trace_callback(trace)
        return connection

    files.connect = watched


def offers(store: SqliteServerStore, state: Any) -> bool:
    known = store.load()
    return bool(state.tasks.keys() - (known.tasks.keys() if known is not None else set()))


def answers(store: SqliteServerStore, state: Any) -> bool:
    known = store.load()
    return known is not None and len(state.accepted) > len(known.accepted)


def folds(store: SqliteServerStore, state: Any) -> bool:
    known = store.load()
    return known is not None and state.version > known.version


def ends_round(store: SqliteServerStore, state: Any) -> bool:
    return folds(store, state) and state.history[-1].gap is not None


def of(kind: type) -> Callable[..., bool]:
    return lambda spec, state, request, *rest: isinstance(request, kind)


def waits_long(event: Any, seconds: float) -> bool:
    return seconds > 5.0  # a request for work, not the time keeper


def soon() -> None:
    threading.Timer(0.2, die).start()


# In the order in which one run meets them.
POINTS: dict[str, Callable[[], None]] = {
    "start: no schema yet": lambda: at_commit(1),
    "start: an empty schema": lambda: before(SqliteServerStore, "_check_study"),
    "start: taken up, no port open": lambda: before(App, "_open"),
    "start: again": lambda: before(App, "_open"),
    "start: ready": lambda: after(cli, "_greet"),
    "hello: arrived": lambda: before(protocol, "step", of(Hello)),
    "hello: before the reply": lambda: before(wire, "welcome_to"),
    "offer: asked for": lambda: before(protocol, "step", of(NextTask)),
    "offer: before it is saved": lambda: before(SqliteServerStore, "save", offers),
    "offer: saved": lambda: after(SqliteServerStore, "save", offers),
    "offer: before the reply": lambda: before(wire, "task_to"),
    "payload: asked for": lambda: before(service.Federation, "GetPayload"),
    "payload: under way": lambda: within(bundle, "pieces"),
    "upload: how much is there": lambda: before(wire, "progress_to"),
    "upload: begun": lambda: after(uploads.Uploads, "begin"),
    "upload: under way": lambda: after(uploads.Upload, "add"),
    "upload: complete": lambda: before(bundle, "cut"),
    "answer: before it is looked at": lambda: before(protocol, "step", of(Submit)),
    "answer: charged, not saved": lambda: after(protocol, "_seal"),
    "answer: before it is saved": lambda: before(SqliteServerStore, "save", answers),
    "answer: saved": lambda: after(SqliteServerStore, "save", answers),
    "answer: its upload is forgotten": lambda: after(uploads.Uploads, "forget"),
    "answer: before the reply": lambda: before(wire, "receipt_to"),
    "waiting: for the others": lambda: before(dispatcher, "until", waits_long, soon),
    "fold: begun": lambda: before(turns, "_fold"),
    "fold: factors, no posterior": lambda: before(turns.folding, "posterior_of"),
    "fold: done, not saved": lambda: after(turns, "_fold"),
    "save: before the files": lambda: before(blobs.Blobs, "put"),
    "save: files without a name": lambda: after(blobs.Blobs, "put"),
    "save: before the commit": lambda: at_commit(3),
    "save: before files are dropped": lambda: before(blobs.Blobs, "drop", lambda _, n: bool(n)),
    "round: before it is saved": lambda: before(SqliteServerStore, "save", ends_round),
    "round: saved": lambda: after(SqliteServerStore, "save", ends_round),
    "log: before a line": lambda: before(SqliteServerStore, "record_event"),
    "log: again": lambda: before(SqliteServerStore, "record_event"),
    # Not before the run is complete.
    "end: before the result": lambda: before(_results, "write"),
    "end: the result is written": lambda: after(_results, "write"),
    "end: before anybody is told": lambda: before(wire, "done_to"),
    "never": lambda: None,
}


def main() -> None:
    durable._INLINE_BYTES = uploads.IN_MEMORY = bundle.INLINE = INLINE
    bundle.CHUNK, bundle.LEAST_CHUNK = CHUNK, 1
    POINTS[sys.argv.pop(1)]()
    from fedvi.cli.main import main as fedvi

    fedvi()


if __name__ == "__main__":
    main()
