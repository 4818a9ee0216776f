"""Splits tests into two tiers, and limits how long a fast one may take.

Cost is the processor's, of the test's process and of the children that it waited for, set-up and
teardown included where nothing else is said: a test that sleeps or waits costs nothing.
"""

import contextlib
import os
import time
from collections.abc import Generator, Iterator

import pytest

__all__ = ["FAST", "LIMIT", "Tiers"]

# What `make test` passes to `-m`.
FAST = "not nightly"
# What a test of the fast tier may cost, in seconds of a processor, where nothing is compiled yet; three
# times, since machines differ, and two workers that share a processor take up to twice as long as one.
LIMIT = 5.0 * 3.0

_NAMED = 10
_KEY = "processor_seconds"


class Tiers:
    """A pytest plugin that keeps named cases in the fast tier, and says what tests cost.

    Args:
        limit: Seconds of a processor that one test may take: with more, the run fails. None: no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit = limit
        self.seconds: dict[str, float] = {}
        # Without fixtures that tests share.
        self.own: dict[str, float] = {}
        self.began = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Takes the mark `nightly` from cases in ``but``, and from those that are not in ``only``.

        Raises:
          UsageError: a mark is not as `nightly(but=…)` or `nightly(only=…)` should be, or names cases that
            there are not.
        """
        wrong: set[str] = set()
        named: set[str] = set()
        for item in items:
            mark = item.get_closest_marker("nightly")
            if mark is None or not (mark.kwargs or mark.args):
                continue
            test = item.nodeid.split("[")[0]
            if mark not in item.own_markers or not _is_of_cases(mark):
                wrong.add(
                    f"{test} has {mark.args} and {mark.kwargs}, expected one of `but` and `only`, at the "
                    "test itself, with a tuple of cases"
                )
                continue
            but, only = (
                {f"{test}[{case}]" for case in mark.kwargs.get(name, ())}
                for name in ("but", "only")
            )
            named |= but | only
            if item.nodeid in but or (only and item.nodeid not in only):
                item.own_markers.remove(mark)
                if item.get_closest_marker("nightly") is not None:
                    wrong.add(f"{test} has a second mark, which makes all of it nightly")
        absent = named - {item.nodeid for item in items}
        # Whoever asks for one case of a test, or for what failed last, has not collected the others.
        is_partial = any("::" in asked for asked in config.args) or config.getoption("lf", False)
        if absent and not is_partial:
            wrong.add(f"they name cases that there are not: {', '.join(sorted(absent))}")
        if wrong:
            # A worker tells the process that reports nothing else.
            session.shouldfail = f"marks `nightly`: {'; '.join(sorted(wrong))}"
            raise pytest.UsageError(session.shouldfail)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[_BEFORE] = _now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope != "function":
            return (yield)
        with _counted(request.node):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with _counted(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        # What properties hold travels from a worker to the process that reports.
        report = yield
        if report.when == "teardown":
            cost = _now() - item.stash[_BEFORE], item.stash.get(_OWN, 0.0)
            report.user_properties.append((_KEY, cost))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            whole, own = dict(report.user_properties).get(_KEY, (0.0, 0.0))
            self.seconds[report.nodeid], self.own[report.nodeid] = whole, own

    def dearest(self) -> list[tuple[str, float]]:
        """The tests that took longest, first the dearest."""
        return sorted(self.seconds.items(), key=lambda one: -one[1])

    def above(self) -> list[str]:
        """The tests that took more than they may, without fixtures that others share."""
        return [
            name
            for name, seconds in self.own.items()
            if self.limit is not None and seconds > self.limit
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self.above():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.seconds:
            return
        minutes, seconds = divmod(round(time.monotonic() - self.began), 60)
        terminalreporter.section("time")
        terminalreporter.line(
            f"{len(self.seconds):,} tests took {minutes}:{seconds:02} min of the clock and "
            f"{sum(self.seconds.values()):,.0f} s of processors; the {_NAMED} dearest, in seconds of "
            f"processors:"
        )
        for name, cost in self.dearest()[:_NAMED]:
            terminalreporter.line(f"{cost:7.1f}  {name}")
        for name in self.above():
            terminalreporter.line(
                f"FAILED {name}: took {self.own[name]:.1f} s of a processor, where a test of the "
                f"fast tier may take {self.limit:g}: make it smaller, or mark it `nightly` and leave a "
                f"smaller one in its place",
                red=True,
            )
        if file := os.environ.get("FEDVI_TEST_TIMES"):
            with open(file, "w", encoding="utf-8") as table:
                table.writelines(f"{cost:.3f}\t{name}\n" for name, cost in self.dearest())


_BEFORE, _OWN = pytest.StashKey[float](), pytest.StashKey[float]()


def _is_of_cases(mark: pytest.Mark) -> bool:
    """Whether a mark names cases as it should; one string would be a tuple of letters."""
    if mark.args or mark.kwargs.keys() not in ({"but"}, {"only"}):
        return False
    (cases,) = mark.kwargs.values()
    return isinstance(cases, tuple) and len(cases) > 0 and all(isinstance(x, str) for x in cases)


@contextlib.contextmanager
def _counted(item: pytest.Item) -> Iterator[None]:
    """Adds what is done meanwhile to a test's own cost."""
    before = _now()
    try:
        yield
    finally:
        item.stash[_OWN] = item.stash.get(_OWN, 0.0) + _now() - before


def _now() -> float:
    """Seconds of processors until now, of this process and of the children that it waited for."""
    return sum(os.times()[:4])
