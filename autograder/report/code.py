"""The answers of a class as files, for programs that look for copied work, such as JPlag and copydetect.

    <assignment>/<student>/<exercise>.py           the answers of one student
    handed-out/<assignment>/<exercise>.py          the stubs, which all students have in common
    solutions/<assignment>/course/<exercise>.py    the course's own answers

An exercise that a student left as it was handed out has no file, and a student without any answer has no
folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOKS, SOLUTIONS
from autograder.course.twin import answers
from autograder.outcome.result import Result
from autograder.report.write import Class
from autograder.sample.sample_class import without_markers

HANDED_OUT, OWN = "handed-out", "solutions"
NOT_IN_A_NAME = re.compile(r"[^\w .@+~-]|^[ .-]|[ .]$")
NO_NOTEBOOK = (OSError, ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError)


def write_code(
    graded: Class,
    assignments: Iterable[str],
    folder: Path,
    *,
    solutions: Path = SOLUTIONS,
    notebooks: Path = NOTEBOOKS,
) -> tuple[int, list[str]]:
    """Write the files that this module's first lines name into `folder`, which is empty.

    Returns the number of students' files, and sentences on students who have none or another name there.
    OSError if a file cannot be written.
    """
    count, notes = 0, []
    for assignment in assignments:
        stubs = _answers_in(notebooks, assignment)
        own = _answers_in(solutions, assignment)
        _write(folder / HANDED_OUT / assignment, stubs)
        _write(
            folder / OWN / assignment / "course",
            {exercise: without_markers(text) for exercise, text in own.items()},
        )
        for result in graded.of(assignment):
            texts, missing = _answers_of(graded, result, stubs)
            name = safe(result.student)
            if missing:
                notes.append(f"{result.student} has no files in {assignment}: {missing}.")
            elif name != result.student:
                notes.append(f"{result.student!r} is written as {name!r}.")
            _write(folder / assignment / name, texts)
            count += len(texts)
    return count, list(dict.fromkeys(notes))


def safe(student: str) -> str:
    """The name if a folder can have it on every system; else a similar one with a hash of its own."""
    name = NOT_IN_A_NAME.sub("_", student)
    if name == student:
        return name
    return f"{name}~{hashlib.sha256(student.encode(errors='surrogatepass')).hexdigest()[:12]}"


def _answers_in(folder: Path, assignment: str) -> dict[str, str]:
    """The answers in a notebook of the course; none if it has no such assignment any more."""
    path = folder / assignment / f"{assignment}.ipynb"
    return answers(nbformat.read(path, as_version=4)) if path.is_file() else {}


def _answers_of(
    graded: Class, result: Result, stubs: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """A student's answers by exercise, and why there are none, or ""."""
    try:
        notebook: NotebookNode | None = graded.notebook(result)
        texts = {} if notebook is None else answers(notebook)
    except NO_NOTEBOOK as error:
        return {}, f"the graded notebook cannot be read ({type(error).__name__})"
    if notebook is None:
        return {}, f"there is no graded notebook, since the submission is {result.status!r}"
    written = {
        exercise: text
        for exercise, text in texts.items()
        if text.strip() and text.strip() != stubs.get(exercise, "").strip()
    }
    return written, "" if written else "every exercise is as it was handed out"


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    if texts:
        folder.mkdir(parents=True)
    for exercise, text in texts.items():
        path = folder / f"{safe(exercise)}.py"
        path.write_text(f"{text.rstrip()}\n", encoding="utf-8", errors="replace")
