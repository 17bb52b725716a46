"""A Gradescope autograder: the zip to upload, and the program in it.

Gradescope unpacks the zip to /autograder/source, runs `setup.sh` once and, for every submission,
`run_autograder`, which has 10 minutes and must leave /autograder/results/results.json behind. Results are
written as they come, so that a submission that takes too long shows the points so far.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from autograder.course.config import OUT, ROOT, WRITTEN
from autograder.course.typed import NAME, ExistsError, keep_changed
from autograder.outcome import statuses
from autograder.outcome.result import Result
from autograder.report.gradescope import write_results

SECONDS = 600  # Gradescope's own limit, unless the assignment's settings say otherwise
RESERVE = 60  # of these, for starting, writing and ending
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bundle twice is the same file twice
LARGEST = 100 << 20  # bytes: larger files are not looked at

SETUP = """#!/usr/bin/env bash
# Runs once, when Gradescope builds the autograder's image (Ubuntu, as root).
set -euo pipefail
cd /autograder/source
export DEBIAN_FRONTEND=noninteractive COURSE_TORCH=cpu
apt-get update
apt-get install -y --no-install-recommends bubblewrap ca-certificates
for version in 3.13 3.12 3.11; do
  if apt-get install -y --no-install-recommends "python$version" "python$version-venv"; then
    python="python$version"
    break
  fi
done
if [ -z "${python:-}" ]; then
  echo "This image has no Python from 3.11 on: choose a newer base image (Ubuntu 24.04)." >&2
  exit 1
fi
"$python" tools/make_venv.py --python "$python"
"""
RUN = """#!/usr/bin/env bash
# Runs for every submission.
set -uo pipefail
cd /autograder/source
exec .venv/bin/python -m autograder gradescope run {assignment} --root /autograder{seconds}
"""

Grade = Callable[[Path, Callable[[Result], None]], Result]


def make_bundle(
    assignment: str,
    target: Path,
    *,
    secret: bytes,
    seconds: int = SECONDS,
    record: Path = OUT / NAME,
    overwrite: bool = True,
) -> None:
    """Write the autograder's zip for one assignment to `target`.

    secret: the course's, from which the hidden inputs are drawn: they can be computed from the zip.
    seconds: the limit that is set for the autograder in Gradescope. record, overwrite: as for
    `keep_changed`. FileNotFoundError if the assignment has not been built.
    """
    limit = "" if seconds == SECONDS else f" --seconds {seconds}"
    files: dict[str, bytes] = {
        "setup.sh": SETUP.encode(),
        "run_autograder": RUN.format(assignment=assignment, seconds=limit).encode(),
        "secret": secret,
    }
    files |= {str(path.relative_to(ROOT)): path.read_bytes() for path in _sources(assignment)}
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, EPOCH)
            mode = 0o755 if name in ("setup.sh", "run_autograder") else 0o644
            info.external_attr = (stat.S_IFREG | (0o600 if name == "secret" else mode)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(info, files[name])
    new.chmod(0o600)
    try:
        keep_changed(target, new.read_bytes(), record, overwrite=overwrite)
    except ExistsError:
        new.unlink()
        raise
    new.replace(target)


def _sources(assignment: str) -> Iterator[Path]:
    """The files for grading one assignment: the library, the autograder, the notebook's three forms."""
    for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE"):
        yield ROOT / name
    yield ROOT / "tools" / "make_venv.py"
    for name in (
        f"solutions/{assignment}/{assignment}.py",
        f"solutions/{assignment}/{assignment}.ipynb",
    ):
        yield ROOT / name
    yield ROOT / "notebooks" / assignment / f"{assignment}.ipynb"
    for package in ("course_lib", "autograder"):
        for path in sorted((ROOT / package).rglob("*")):
            inside = path.relative_to(ROOT / package).parts
            if path.is_file() and "__pycache__" not in inside and inside[0] not in WRITTEN:
                yield path


# ---- in Gradescope's container


def run(root: Path, assignment: str, grade: Grade) -> Result:
    """Grade the files in `root/submission` and write `root/results/results.json`; returns the result.

    grade: (a class's folder with this one submission, a function for results that are not finished) -> the
    result. Never raises, neither for the submission nor for `grade`: then the result is `ungraded`.
    """
    target = root / "results" / "results.json"
    student = student_of(root / "submission_metadata.json")
    begun = Result(student, assignment, statuses.GRADED)
    write_results(begun, target, unfinished=True)
    with tempfile.TemporaryDirectory(prefix="submission-") as scratch:
        try:
            take_in(root / "submission", Path(scratch) / student / assignment)
            result = grade(
                Path(scratch), lambda so_far: write_results(so_far, target, unfinished=True)
            )
        except Exception as error:  # the grader's own failure: no grade, and Gradescope says so
            reason = f"the grading failed ({type(error).__name__}: {error})"
            result = Result(student, assignment, statuses.UNGRADED, reason)
    write_results(result, target)
    return result


def student_of(metadata: Path) -> str:
    """A name for the submission's authors: Gradescope's ids of its users, so the same every time."""
    try:
        users = json.loads(metadata.read_text(encoding="utf-8"))["users"]
        ids = sorted(re.sub(r"[^A-Za-z0-9]", "", str(user["id"])) for user in users)
    except (OSError, ValueError, KeyError, TypeError):
        ids = []  # run by hand, without Gradescope's file
    return "student-" + ("-".join(name for name in ids if name) or "unknown")


def take_in(handed_in: Path, folder: Path) -> None:
    """Copy the notebooks that were handed in to `folder`, wherever they lay; nothing else.

    Links are not followed. Of two files with one name, the one that lies higher up counts.
    """
    folder.mkdir(parents=True)
    files = sorted(handed_in.rglob("*.ipynb"), key=lambda path: (len(path.parts), path))
    for path in files:
        inside = _parents(handed_in, path)
        if any(part.is_symlink() for part in (path, *inside)) or not path.is_file():
            continue
        if path.stat().st_size <= LARGEST and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)


def _parents(top: Path, path: Path) -> Sequence[Path]:
    return [parent for parent in path.parents if parent.is_relative_to(top) and parent != top]
