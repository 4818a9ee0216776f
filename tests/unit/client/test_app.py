"""A worker as a process: it ends when the run does, stops where it is told to, and tells no secret."""

import os
import signal
import time

import pytest
from click.testing import CliRunner

from fedvi.cli.health import _HEARD
from fedvi.cli.main import main
from fedvi.client import app
from fedvi.federation.messages import Done, NextTask, Offer, Wait
from fedvi.store.memory import MemoryClientStore
from tests.unit.client.test_worker import Server, header, ledger, make_worker


class Reports:
    """What was reported: kind, sentence and values of each line."""

    def __init__(self):
        self.lines = []

    def __call__(self, kind, text, **fields):
        self.lines.append((kind, text, fields))

    @property
    def kinds(self):
        return [kind for kind, _, _ in self.lines]


def watched(server, epsilon=lambda: 0.25):
    reports = Reports()
    return app.Watched(server, 2, reports, epsilon), reports


def test_a_worker_works_to_the_end_of_the_run_and_says_why_it_ended():
    server = Server(visits=2)
    link, reports = watched(server)
    assert app.run(make_worker(link)) == "finished"
    assert len(server.received) == 2
    assert reports.kinds == ["joined", "task", "answer", "task", "answer"]
    assert reports.lines[1][1] == "visit 1 of 2: solving task north/0"
    assert reports.lines[-1][2]["epsilon"] == 0.25


def test_what_is_reported_is_named_in_advance():
    server = Server(visits=1)
    link, reports = watched(server)
    app.run(make_worker(link))
    values = {name for _, _, fields in reports.lines for name in fields}
    assert values == {"version", "task", "visit", "rounds", "status", "epsilon"}


class Waiting(Server):
    """Has nothing to do at first."""

    def __init__(self, waits):
        super().__init__(visits=0)
        self.waits = waits

    def handle(self, request):
        if isinstance(request, NextTask) and self.waits:
            self.waits -= 1
            return Wait()
        return super().handle(request)


def test_a_server_that_answers_at_once_that_there_is_nothing_is_not_asked_in_a_rush():
    pauses = []
    app.run(make_worker(Waiting(3)), pauses.append)
    assert len(pauses) == 3
    assert min(pauses) >= 0.1


class Interrupted(Server):
    """Sends this process a signal while a request is on its way."""

    def __init__(self, number, at):
        super().__init__(visits=2)
        self.number, self.at = number, at

    def handle(self, request):
        if isinstance(request, self.at):
            self.at = ()
            os.kill(os.getpid(), self.number)
        return super().handle(request)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_worker_and_what_it_kept_goes_on_later(number):
    before = signal.getsignal(number)
    store = MemoryClientStore(ledger.open_ledger(header()))
    interrupted = Interrupted(number, NextTask)
    with pytest.raises(app.Stopped, match=number.name), app.stop_on_signals():
        app.run(make_worker(interrupted, store=store))
    assert signal.getsignal(number) is before
    server = Server(visits=2)
    assert app.run(make_worker(server, store=store)) == "finished"
    undisturbed = Server(visits=2)
    app.run(make_worker(undisturbed))
    assert server.received == undisturbed.received


def test_a_second_signal_would_end_the_process_at_once():
    handlers = []

    def interrupted():
        with app.stop_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                handlers.append(signal.getsignal(signal.SIGTERM))

    with pytest.raises(app.Stopped):
        interrupted()
    assert handlers == [signal.SIG_DFL]


def test_a_stop_is_no_error_that_a_retry_could_swallow():
    assert not issubclass(app.Stopped, Exception)


def test_requests_and_replies_pass_unchanged():
    server = Server(visits=1)
    link, _ = watched(server)
    assert link.handle(NextTask("north")) == Offer(server.tasks[0])
    assert watched(Server(visits=0))[0].handle(NextTask("north")) == Done("finished")


def test_the_health_of_a_client_is_when_its_server_last_answered(tmp_path):
    assert _HEARD == app.HEARD
    asked = ["health", "--client", str(tmp_path)]
    found = CliRunner().invoke(main, asked)
    assert found.exit_code == 3
    assert "no server has answered" in found.output
    (tmp_path / app.HEARD).touch()
    assert CliRunner().invoke(main, asked).exit_code == 0
    long_ago = time.time() - 600
    os.utime(tmp_path / app.HEARD, (long_ago, long_ago))
    found = CliRunner().invoke(main, asked)
    assert found.exit_code == 3
    assert "600 s ago" in found.output
