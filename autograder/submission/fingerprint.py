"""A hash of everything that a grade depends on: when it is the same, so is the grade.

A submission is graded again only if its own files have changed, or the assignment, the grader, the code that
all checks share, a library, a limit or the secret. If only an exercise's own check has changed, that exercise
is judged again, and the other verdicts stay.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from autograder.course.config import ROOT, WRITTEN
from autograder.outcome.limits import Limits
from autograder.submission.intake import HandedIn
from autograder.submission.own_files import is_own, own_files

PACKAGES = ("course_lib", "autograder")
LIBRARIES = ("torch", "numpy", "ipython", "cloudpickle", "nbformat", "nbgrader")


class Digest:
    """SHA-256 of a sequence of fields; each is hashed with its length, so that none runs into the next."""

    def __init__(self, *fields: str | bytes) -> None:
        self._hash = hashlib.sha256()
        for field in fields:
            self.add(field)

    def add(self, field: str | bytes) -> None:
        raw = field.encode() if isinstance(field, str) else field
        self._hash.update(f"{len(raw)}:".encode())
        self._hash.update(raw)

    def hex(self) -> str:
        return self._hash.hexdigest()


def of_library(root: Path = ROOT) -> str:
    """Of everything that all submissions share: our sources under `root`, and the versions beneath them.

    Reads every file of both packages: once for each run.
    """
    return _of_files(root, lambda _: True)


def of_shared(root: Path = ROOT) -> str:
    """The same without the files that only some exercises rest on."""
    return _of_files(root, lambda file: not is_own(file))


def of_exercise(check: str, root: Path = ROOT) -> str:
    """Of the files that exercise `check` alone rests on."""
    digest = Digest(check)
    for file in own_files(check, root):
        digest.add(str(file))
        digest.add((root / file).read_bytes())
    return digest.hex()


def _of_files(root: Path, wanted: Callable[[Path], bool]) -> str:
    digest = Digest(
        platform.python_version(), *(f"{library} {version(library)}" for library in LIBRARIES)
    )
    for package in PACKAGES:
        for path in _sources(root / package):
            if wanted(path.relative_to(root)):
                digest.add(str(path.relative_to(root)))
                digest.add(path.read_bytes())
    return digest.hex()


def _sources(package: Path) -> Iterator[Path]:
    """All files of a package, in a fixed order, but for files that Python and grading itself write there."""
    for path in sorted(package.rglob("*")):
        inside = path.relative_to(package).parts
        if "__pycache__" not in inside and inside[0] not in WRITTEN and path.is_file():
            yield path


def of_course(library: str, secret: bytes, limits: Limits, sandbox: str) -> str:
    """Of everything that does not depend on the assignment. sandbox: its layers, in words."""
    hidden = hashlib.sha256(secret).digest()
    return Digest(library, hidden, json.dumps(limits.to_json(), sort_keys=True), sandbox).hex()


def of_submission(
    course: str, source: str, released: str, student: str, assignment: str, handed_in: HandedIn
) -> str:
    """Of one submission. source, released: the assignment's notebooks, the instructor's and the student's."""
    return Digest(
        *(course, source, released, student, assignment),
        *(handed_in.content, handed_in.stamp, *handed_in.notes),
    ).hex()
