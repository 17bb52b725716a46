"""The web pages of `make site` on a telephone and on a screen, in the dark and in the light."""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.browser.conftest import GIVE_UP, SHOTS
from tests.browser.server import environment, make

WIDTHS, HEIGHT = (400, 1400), 900
PICTURED = ("index.html", "notebooks/02_collectives.html")
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that writes nothing to the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(scope="module")
def site(course: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of the site that `make site` builds, and its pages."""
    done = subprocess.run(
        make("site"), cwd=course, env=environment(course), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    html = course / "build" / "site" / "html"
    pages = sorted(path.relative_to(html).as_posix() for path in html.rglob("*.html"))
    server = ThreadingHTTPServer(("localhost", 0), functools.partial(Quiet, directory=str(html)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}", pages
    server.shutdown()
    thread.join()
    server.server_close()


def test_pages_fit_and_have_no_errors(browser: Browser, site: tuple[str, list[str]]) -> None:
    """Each page is opened on a telephone, then widened, and its colours are changed while it is open."""
    address, pages = site
    assert set(PICTURED) <= set(pages)
    context = browser.new_context()
    context.set_default_timeout(GIVE_UP)
    page = context.new_page()
    faults: list[str] = []

    def note(line: ConsoleMessage) -> None:
        if line.type == "error":
            faults.append(f"{page.url}: {line.text}")

    page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
    page.on("console", note)
    try:
        for name in pages:
            page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
            page.goto(f"{address}/{name}")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": HEIGHT})
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    faults.append(f"{name}: {wide} pixels wide where {width} are shown")
                for scheme in SCHEMES if name in PICTURED else ():
                    page.emulate_media(color_scheme=scheme)
                    page.screenshot(path=SHOTS / f"site_{Path(name).stem}_{width}_{scheme}.png")
                    if (darkness(page) == "dark") != (scheme == "dark"):
                        faults.append(f"{name}: {darkness(page)} where {scheme} is wished for")
    finally:
        context.close()
    assert not faults, "\n".join(faults)


def darkness(page: Page) -> str:
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return "dark" if int(background.partition("(")[2].partition(",")[0]) < 128 else "light"
