"""The course's package as a wheel: the file from which students install it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from autograder.course.config import ROOT

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "course_lib")
EPOCH = "315532800"  # 1980, the first year of a zip: the same sources make the same wheel


class PackageError(Exception):
    """The wheel could not be built; the text says what pip said."""


def build_wheel(into: Path, root: Path = ROOT) -> Path:
    """Build the wheel in `into` from a copy of the sources, so that nothing is left beside them.

    Works without a network: it takes this environment's setuptools. Raises PackageError.
    """
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="course-package-") as scratch:
        for name in SOURCES:
            copy(root / name, Path(scratch) / name)
        options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "wheel", *options, str(into.resolve()), scratch],
            env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise PackageError(
            f"The package could not be built: {' '.join(last)} It needs pip and setuptools 77.0.3 or newer."
        )
    return max(into.glob("course_lib-*.whl"), key=lambda wheel: wheel.stat().st_mtime)


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder without what Python compiled."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)
