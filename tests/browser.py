"""Starts a real browser, headless, for tests of pages.

    from tests import browser as browsers

    browser, page = browsers.browser, browsers.page  # both fixtures, where pytest finds them

    def test_the_page_asks_for_nothing(page: Page, report: Path) -> None:
        seen = browsers.watch(page)
        page.goto(report.as_uri())
        assert seen.fetched == []
        assert seen.complaints == []

It is the Chromium of the machine, driven by Playwright; none is downloaded. Without one, tests skip, and
say why; where the environment has FEDVI_REQUIRE_BROWSER they fail instead.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

__all__ = ["Seen", "browser", "overflow", "page", "watch"]

REQUIRED = "FEDVI_REQUIRE_BROWSER"
"""Set in the environment, and not empty, to fail where there is no browser."""

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Tests may run as root and in small containers, where Chromium's own sandbox and /dev/shm do not work.
# The rest keeps the browser itself from calling anybody.
_FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--force-color-profile=srgb",
)


@dataclass
class Seen:
    """What a page did while it was watched.

    Attributes:
      requests: the address of every request, the page's own and inline data included.
      complaints: what the browser's console said in error or in warning, uncaught errors of scripts, and
        requests that failed.
    """

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def fetched(self) -> list[str]:
        """The requests that went to a network."""
        inline = ("file:", "data:", "blob:", "about:")
        return [address for address in self.requests if not address.startswith(inline)]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A browser for the tests of one module; skips, or fails if it must not, where there is none.

    No longer than a module: while Playwright runs, no other event loop can run in this thread.
    """
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        _absent(f"none of {', '.join(_NAMES)} is on the PATH")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _absent("playwright is not installed")
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        except Error as error:
            _absent(f"{path} does not start: {error.message}")
        yield started
        started.close()


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """An empty page, 1280 by 900 pixels, in a fresh profile; nothing waits longer than 10 seconds."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    context.set_default_timeout(10_000)
    yield context.new_page()
    context.close()


def watch(page: "Page") -> Seen:
    """Notes from now on what a page asks for and complains of."""
    seen = Seen()

    def on_console(message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            seen.complaints.append(f"{message.type}: {message.text}")

    def on_failure(request: "Request") -> None:
        seen.complaints.append(f"failed: {request.url} {request.failure}")

    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", on_console)
    page.on("pageerror", lambda error: seen.complaints.append(f"uncaught: {error}"))
    page.on("requestfailed", on_failure)
    return seen


def overflow(page: "Page") -> int:
    """Returns by how many pixels a page is wider than its window; 0 where nobody scrolls sideways."""
    found: int = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return found


def _absent(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, and there is no browser: {reason}")
    pytest.skip(f"needs a browser: {reason}")
