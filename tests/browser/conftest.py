"""One copy of the course, one server and one Chromium for all tests; each test has a page of its own.

Every test ends with a picture in build/browser/, and without a kernel or a rank that still runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Error, Page, ViewportSize, sync_playwright

from tests.browser import chromium
from tests.browser.lab import Lab
from tests.browser.server import Server, copy_of_the_course
from tests.conftest import describe

SHOTS = Path(__file__).resolve().parents[2] / "build" / "browser"
SIZE: ViewportSize = {"width": 1400, "height": 1000}
# No test waits for a moment, only for states. A state that does not come is reported after this long.
GIVE_UP = 120_000  # ms


@pytest.fixture(scope="session", autouse=True)
def an_end_by_signal_is_an_end_as_any_other() -> Iterator[None]:
    """A suite that is terminated ends its server and its browser, as after Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_course(tmp_path_factory.mktemp("clone") / "course")


@pytest.fixture(scope="session")
def server(course: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`make lab`, as students type it."""
    started = Server(course, tmp_path_factory.mktemp("server") / "student")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; afterwards neither it nor Playwright's own process, the driver, may run."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    # As root, Chromium starts without its sandbox only.
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []
    playwright = sync_playwright().start()
    try:
        yield playwright.chromium.launch(
            executable_path=chromium(), args=arguments, handle_sigint=False, handle_sigterm=False
        )
    finally:
        own = [
            child for child in psutil.Process().children(recursive=True) if child.pid not in before
        ]
        with suppress(Error):  # a signal to all processes of the terminal may have ended the driver
            playwright.stop()
        _, left = psutil.wait_procs(own, 60.0)
        names = [describe(process.pid) for process in left]
        for process in left:
            process.kill()
    assert not left, f"left by the browser: {'; '.join(names)}"


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    with opened(browser, request.node.name) as new:
        yield new


@pytest.fixture
def lab(page: Page, server: Server) -> Iterator[Lab]:
    yield Lab(page, server, SHOTS)
    server.end_kernels()


@pytest.fixture(scope="module")
def shared_lab(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A page and a kernel for all tests of a file."""
    with opened(browser, request.module.__name__.rpartition(".")[2]) as new:
        yield Lab(new, server, SHOTS)
    server.end_kernels()


@contextmanager
def opened(browser: Browser, name: str) -> Iterator[Page]:
    """A page whose last view is kept as a picture."""
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(GIVE_UP)
    page = context.new_page()
    try:
        yield page
    finally:
        SHOTS.mkdir(parents=True, exist_ok=True)
        with suppress(Error):  # after an interrupt there may be no browser any more
            page.screenshot(path=SHOTS / f"{name}.png")
            context.close()
