"""Run the tests of this folder, or say in a sentence what they lack: `make test-browser`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.browser import chromium

LEFT_OUT = "The tests in a browser were left out"
NEEDED = {
    "playwright": ".venv/bin/python -m pip install -r requirements-browser.lock",
    "sphinx": ".venv/bin/python -m pip install -r requirements-site.lock",
}


def main(arguments: list[str]) -> int:
    if sentence := missing():
        print(sentence)
        return 0
    # All four files at a time; a choice of tests runs in one process, in turn.
    whole = ["-n", "4", "--dist", "loadfile", str(Path(__file__).parent)]
    return pytest.main([*(arguments or whole), "-p", "no:cacheprovider"])


def missing() -> str:
    """The sentence that says what to install; "" if everything is there."""
    if chromium() is None:
        return f"{LEFT_OUT}, because there is no Chromium here: sudo apt-get install chromium"
    for package, command in NEEDED.items():
        if find_spec(package) is None:
            return f"{LEFT_OUT}, because {package} is missing: {command}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
