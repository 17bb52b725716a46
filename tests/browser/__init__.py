"""The course in a real browser: `make test-browser`."""

from __future__ import annotations

import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """The path of the machine's Chromium, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)
