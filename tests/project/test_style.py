"""Lint, format and types of all files in the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "basedpyright"])
def test_the_code_is_clean(command):
    program, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
