"""A class handed in: which submissions there are, and each one's notebook, readable or not."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode


class UnreadableError(Exception):
    """What was handed in is no notebook; the text says why, for the student and the table."""


class MissingError(UnreadableError):
    """There is a folder for the assignment, but not the notebook."""


@dataclass(frozen=True)
class Submission:
    """One student's folder of one assignment, laid out as nbgrader's submitted directory."""

    student: str
    assignment: str
    folder: Path

    @property
    def notebook(self) -> Path:
        return self.folder / f"{self.assignment}.ipynb"


def find_submissions(folder: Path, known: list[str]) -> tuple[list[Submission], list[str]]:
    """(submissions, notes) of `folder/<student>/<assignment>/`, ordered by student.

    notes: sentences about folders that are nobody's submission of a `known` assignment.
    """
    submissions: list[Submission] = []
    notes: list[str] = []
    for student in sorted(path for path in folder.iterdir() if _is_folder(path)):
        inside = sorted(path for path in student.iterdir() if _is_folder(path))
        for path in inside:
            if path.name in known:
                submissions.append(Submission(student.name, path.name, path))
            else:
                notes.append(
                    f"{path} is left out: there is no assignment {path.name!r}; "
                    f"there are {', '.join(known)}."
                )
        if not inside:
            notes.append(f"{student} holds no assignment's folder and is left out.")
    return submissions, notes


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def stage(submission: Submission, folder: Path) -> None:
    """Copy the submission's notebook, in nbformat 4, and its time stamp into `folder`.

    Nothing else that lies beside the notebook takes part in grading. Raises UnreadableError.
    """
    notebook = read_submission(submission.notebook)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / submission.notebook.name)
    stamp = submission.folder / "timestamp.txt"
    if stamp.is_file():
        shutil.copyfile(stamp, folder / stamp.name)


def read_submission(path: Path) -> NotebookNode:
    """The notebook at `path`. Raises MissingError or UnreadableError."""
    if not path.is_file():
        others = sorted(other.name for other in path.parent.glob("*.ipynb"))
        hint = f"; the folder holds {', '.join(others)}" if others else ""
        raise MissingError(f"{path.name} was not handed in{hint}")
    try:
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UnreadableError("the file is not UTF-8 text, as notebooks are") from None
    except json.JSONDecodeError as error:
        raise UnreadableError(f"the file is not valid JSON: {error}") from None
    except RecursionError:
        raise UnreadableError("the file's JSON is nested too deeply for a notebook") from None
    return _as_notebook(data)


def _as_notebook(data: Any) -> NotebookNode:
    """Parsed JSON as a notebook of nbformat 4, with what matters for grading in its place."""
    try:
        notebook = nbformat.convert(nbformat.from_dict(data), to_version=4)
        for cell in notebook.cells:
            _tidy(cell)
        notebook.metadata = NotebookNode(notebook.get("metadata", {}))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableError(
            f"the file is JSON but no notebook ({type(error).__name__}: {error})"
        ) from None
    notebook.nbformat_minor = 5
    return notebook


def _tidy(cell: NotebookNode) -> None:
    """One cell as nbformat 4.5 has it: text in one string, its own id, no outputs."""
    source = cell["source"]
    cell["source"] = "".join(source) if isinstance(source, list) else str(source)
    cell["metadata"] = NotebookNode(cell.get("metadata", {}))
    if cell["cell_type"] not in ("code", "markdown", "raw"):
        cell["cell_type"] = "raw"
    if cell["cell_type"] == "code":
        cell["outputs"], cell["execution_count"] = [], None
    else:
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
