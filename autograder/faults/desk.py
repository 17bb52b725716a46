"""The desk where a row's submission is made: released notebook, reference's answers, traps around."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.course.release import generate
from autograder.course.twin import grade_id, read_twin
from autograder.sample.sample_class import without_markers

ASSIGNMENT = "00_selftest"
TWIN = Path(__file__).parent / "course" / ASSIGNMENT / f"{ASSIGNMENT}.py"
PREDICTION, CIRCLE, ANSWERS = "prediction", "circle", "answers"


@dataclass(frozen=True)
class Course:
    """The small assignment on the instructor's side, made anew with a secret word of its own.

    folder holds solutions/, notebooks/ (the student version), class/ (the submissions), out/ (grading's
    files) and marks/, where nothing may ever be written.
    """

    folder: Path
    canary: str = field(default_factory=lambda: f"canary{secrets.token_hex(8)}")
    port: int = 0  # where a listener of the grader's machine waits for a connection

    @property
    def solutions(self) -> Path:
        return self.folder / "solutions"

    @property
    def notebooks(self) -> Path:
        return self.folder / "notebooks"

    @property
    def submissions(self) -> Path:
        return self.folder / "class"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    def make(self) -> None:
        """Write the instructor's side. Raises nbgrader's NbGraderException, BuildError, OSError."""
        for folder in (self.submissions, self.out, self.marks):
            folder.mkdir(parents=True)
        self.marks.chmod(0o777)  # only the sandbox keeps a submission from writing there
        source = self.solutions / ASSIGNMENT / TWIN.name
        source.parent.mkdir(parents=True)
        # the word stands among the hidden tests: a submission that prints it has read a hidden file
        text = TWIN.read_text(encoding="utf-8").replace("CANARY", self.canary)
        source.write_text(text, encoding="utf-8")
        nbformat.write(read_twin(source), source.with_suffix(".ipynb"))
        generate(ASSIGNMENT, self.notebooks, solutions=self.solutions)


@dataclass(frozen=True)
class Desk:
    """A student's desk: the released notebook, the reference's answers, the folder for the submission.

    In texts that are put into a notebook the words MARK, FOLDER, SOLUTIONS, OUT, CANARY and PORT stand for
    the row's file in `marks`, the course's folder and those in it, a word of the row's own that pages must
    not run as script, and the port of the listener.
    """

    course: Course
    student: str
    released: NotebookNode
    answers: dict[str, str]
    stubs: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.course.submissions / self.student / ASSIGNMENT

    @property
    def path(self) -> Path:
        return self.folder / f"{ASSIGNMENT}.ipynb"

    @property
    def mark(self) -> Path:
        return self.course.marks / self.student

    def blank(self) -> NotebookNode:
        """The notebook as it was handed out."""
        return copy.deepcopy(self.released)

    def answered(self) -> NotebookNode:
        """The notebook with the reference's answers."""
        notebook = self.blank()
        for name, text in self.answers.items():
            self.put(notebook, name, text)
        return notebook

    def put(self, notebook: NotebookNode, name: str, text: str) -> None:
        """Write `text` into the cell with this `grade_id`."""
        cell_of(notebook, name)["source"] = self.filled(text)

    def filled(self, text: str) -> str:
        """`text` with the words that stand for something of this row replaced."""
        words = {
            "MARK": self.mark,
            "FOLDER": self.course.folder,
            "SOLUTIONS": self.course.solutions,
            "OUT": self.course.out,
            "PORT": self.course.port,
            "SCRIPT": script_word(self.student),
        }
        for word, stands_for in words.items():
            text = text.replace(word, str(stands_for))
        return text

    def hand_in(self, notebook: NotebookNode, name: str = f"{ASSIGNMENT}.ipynb") -> None:
        self.hand_in_bytes(nbformat.v4.writes(notebook).encode(), name)

    def hand_in_bytes(self, content: bytes, name: str = f"{ASSIGNMENT}.ipynb") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(content)

    def lay_beside(self, name: str, text: str) -> None:
        """A file beside the notebook."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.filled(text), encoding="utf-8")


def script_word(student: str) -> str:
    """The word that a row writes into script, to be found again in a page."""
    return f"script_of_{student.replace('-', '_')}"


def cell_of(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook's cell with this `grade_id`; LookupError if there is none."""
    for cell in notebook.cells:
        if grade_id(cell) == name:
            return cell
    raise LookupError(f"no cell has the grade_id {name!r}")


def new_cell(source: str, kind: str = "code") -> NotebookNode:
    """A cell that a student adds."""
    make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
    return make(source)


def desks(course: Course, students: list[str]) -> Iterator[Desk]:
    """A desk for each student, with the released notebook."""
    released = nbformat.read(course.notebooks / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", as_version=4)
    source = nbformat.read(course.solutions / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", as_version=4)
    answers = {name: without_markers(cell_of(source, name).source) for name in exercises(source)}
    stubs = {name: cell_of(released, name).source for name in exercises(source)}
    for student in students:
        yield Desk(course, student, released, answers, stubs)


def exercises(notebook: NotebookNode) -> list[str]:
    with_solution = (c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution"))
    return [name for cell in with_solution if (name := grade_id(cell)) is not None]
