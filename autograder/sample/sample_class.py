"""The sample class: eleven students made from the solutions and the mutants, so never out of date.

Each hands in the student version with the exercises filled in by the reference, except for the fault that the
student is here to show. A new assignment joins the class by itself: one student hands in all of it, another
one if it has extra credit, which all others leave alone. A typical mistake is shown once, in the assignment
with a mutant of that title, by a student who got stuck there: the exercises before it are right, and the rest
is as it was handed out. Faults that do not depend on an assignment's exercises are shown on the first. So
each reference is graded whole once: more would take long and show no more of the grading. The last three are
broken or hostile, one of each kind; many more are in `autograder.faults`.
"""

from __future__ import annotations

import ast
import copy
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOKS, SOLUTIONS
from autograder.course.twin import SOLUTION_MARKERS, grade_id
from autograder.sample.mutants import MUTANTS, Mutant, wrong_answers

# Texts of the exercises of one assignment, in the notebook's order: {grade_id: text}.
Answers = dict[str, str]


@dataclass(frozen=True)
class Assignment:
    """The texts that the students start from: the reference answers, the empty ones, and the mutants.

    reference: with empty texts for exercises that are extra credit; extra: the reference's answers to these.
    """

    name: str
    reference: Answers
    empty: Answers
    mutants: Path = MUTANTS
    extra: Answers = field(default_factory=dict)

    def wrong_answers(self) -> list[Mutant]:
        """The wrong answers to all exercises, in the order of the notebook."""
        return [
            mutant
            for exercise in self.reference
            if exercise not in self.extra
            for mutant in wrong_answers(self.name, exercise, self.mutants)
        ]


Student = Callable[[Assignment], Answers | None]  # None: does not hand it in


def perfect(assignment: Assignment) -> Answers:
    """All answers, in the assignments without extra credit; `extra_credit` answers the others."""
    return dict(assignment.reference)


def blank(assignment: Assignment) -> Answers:
    return dict(assignment.empty)


def extra_credit(assignment: Assignment) -> Answers | None:
    return assignment.reference | assignment.extra if assignment.extra else None


def partial(assignment: Assignment) -> Answers:
    """Slips in the first exercise that has mutants, and leaves the last exercise as it was."""
    mutants = assignment.wrong_answers()
    if not mutants:
        raise LookupError(f"{assignment.mutants / assignment.name} holds no wrong answer.")
    last = [name for name in assignment.reference if name not in assignment.extra][-1]
    return slip(assignment, mutants[0]) | {last: assignment.empty[last]}


def slip(assignment: Assignment, mutant: Mutant) -> Answers:
    """The reference's answers, but for one, which is the mutant's."""
    text = instead(assignment.reference[mutant.exercise], mutant.text)
    return assignment.reference | {mutant.exercise: text}


def stuck(title: str) -> Student:
    """A student who stops at one wrong answer: the first mutant whose title matches."""

    def student(assignment: Assignment) -> Answers | None:
        for mutant in assignment.wrong_answers():
            if re.search(title, mutant.title, re.IGNORECASE):
                names = list(assignment.reference)
                rest = names[names.index(mutant.exercise) + 1 :]
                return slip(assignment, mutant) | {name: assignment.empty[name] for name in rest}
        return None

    return student


def instead(reference: str, mutant: str) -> str:
    """The reference without the names that the mutant defines, and the mutant behind it.

    So helpers that stand in the same cell remain for the exercises that follow.
    """
    lines = reference.split("\n")
    names = {name for node in ast.parse(mutant).body if (name := getattr(node, "name", None))}
    for node in reversed(ast.parse(reference).body):
        if getattr(node, "name", None) in names:
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            del lines[first - 1 : node.end_lineno]
    return "\n".join(lines).strip() + f"\n\n\n{mutant}"


def without_markers(text: str) -> str:
    """The text as a student has it, without the marks of a solution's beginning and end."""
    lines = [line for line in text.split("\n") if line.strip() not in SOLUTION_MARKERS]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).strip())


def dead_rank(assignment: Assignment) -> Answers:
    """The first exercise that is checked ends its process in the middle of the ranks' work."""
    exercise = assignment.wrong_answers()[0].exercise
    begin = re.escape(SOLUTION_MARKERS[0])
    fatal = r"\g<0>\n\1import os\n\n\1os._exit(1)"
    text, count = re.subn(
        rf"^( +){begin}$", fatal, assignment.reference[exercise], count=1, flags=re.MULTILINE
    )
    if not count:
        raise LookupError(
            f"{assignment.name}: {exercise!r} is not a function that could end its rank."
        )
    return assignment.reference | {exercise: text}


def touched(assignment: Assignment) -> Answers:
    """No answers, but the text is not quite as it was handed out."""
    return {name: f"{text}\n# mine" for name, text in assignment.empty.items()}


# A change to a notebook besides its answers: it gives another notebook, or the bytes of a file.
Change = Callable[[NotebookNode], NotebookNode | bytes]


def own_cell(source: str) -> NotebookNode:
    """A cell that the student added. Its id is not drawn, or the next run would find a changed notebook."""
    return nbformat.v4.new_code_cell(source, id="of-my-own")


def kernel_dies(notebook: NotebookNode) -> NotebookNode:
    """A cell of the student's own, behind the first exercise, ends the notebook's process."""
    first = next(i for i, cell in enumerate(notebook.cells) if _is_exercise(cell))
    notebook.cells.insert(first + 1, own_cell("import os\n\nos._exit(1)"))
    return notebook


def broken_file(notebook: NotebookNode) -> bytes:
    """Half of a file."""
    whole = nbformat.writes(notebook).encode()
    return whole[: len(whole) // 2]


def forged(notebook: NotebookNode) -> NotebookNode:
    """Every check says that all is right, and every graded cell says so too."""
    notebook.cells.insert(0, own_cell(FORGERY))
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source = f"{cell.metadata['nbgrader']['points']}.0"
            cell.metadata["tags"] = ["skip-execution"]
    return notebook


FORGERY = """\
import course_lib.checks


class Right:
    score = 1.0

    def points(self, maximum):
        return maximum


course_lib.checks.check = check = lambda *args, **kwargs: Right()"""

PERFECT, EXTRA = "sample-perfect", "sample-extra-credit"

CHANGES: dict[str, Change] = {
    "sample-broken-file": broken_file,
    "sample-forged-checks": forged,
    "sample-kernel-dies": kernel_dies,
}
OF_MUTANTS: dict[str, Student] = {  # each in the first assignment that has such a mutant
    "sample-deadlock": stuck(r"sends wait for their receiver"),
    "sample-twice-the-bytes": stuck(r"the whole input in every round"),
    "sample-built-in": stuck(r"DistributedDataParallel inside"),
}
STUDENTS: dict[str, Student] = {
    PERFECT: perfect,
    EXTRA: extra_credit,
    "sample-partial": partial,
    **OF_MUTANTS,
    "sample-dead-rank": dead_rank,
    "sample-blank": blank,
    "sample-broken-file": perfect,
    "sample-forged-checks": touched,
    "sample-kernel-dies": perfect,
}


def hands_in(student: str, place: int, extra: bool) -> bool:
    """Whether the student looks at the course's assignment number `place`. extra: it has extra credit."""
    if student in (PERFECT, EXTRA):
        return extra == (student == EXTRA)
    return student in OF_MUTANTS or place == 0


def make_sample_class(
    folder: Path,
    assignments: list[str],
    *,
    solutions: Path = SOLUTIONS,
    notebooks: Path = NOTEBOOKS,
    mutants: Path = MUTANTS,
) -> list[str]:
    """Write `folder/<student>/<assignment>/<assignment>.ipynb` for all students, anew.

    Returns those of OF_MUTANTS who hand in nothing: no mutant of these assignments shows their mistake.
    """
    if folder.exists():
        shutil.rmtree(folder)
    for place, name in enumerate(assignments):
        answers = _exercises(solutions / name / f"{name}.ipynb")
        empty = _exercises(notebooks / name / f"{name}.ipynb")
        extra = {
            name_of_it: answers[name_of_it]
            for name_of_it in _extra(notebooks / name / f"{name}.ipynb")
        }
        reference = answers | {answer: empty[answer] for answer in extra}
        released = nbformat.read(notebooks / name / f"{name}.ipynb", as_version=4)
        for student, make in STUDENTS.items():
            if not hands_in(student, place, bool(extra)):
                continue
            if student in OF_MUTANTS and (folder / student).exists():
                continue  # it was shown before
            handed = make(Assignment(name, reference, empty, mutants, extra))
            if handed is None:
                continue
            path = folder / student / name / f"{name}.ipynb"
            path.parent.mkdir(parents=True)
            made = handed_in(student, released, handed)
            if isinstance(made, bytes):
                path.write_bytes(made)
            else:
                nbformat.write(made, path)
    return [mutant for mutant in OF_MUTANTS if not (folder / mutant).exists()]


def handed_in(student: str, released: NotebookNode, answers: Answers) -> NotebookNode | bytes:
    """The student version with the answers and the student's other changes."""
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        if (text := answers.get(grade_id(cell) or "")) is not None:
            cell["source"] = without_markers(text)
    return CHANGES[student](notebook) if student in CHANGES else notebook


def _exercises(path: Path) -> Answers:
    """The texts of a notebook's solution cells, in its order."""
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if _is_exercise(cell)
    }


def _extra(path: Path) -> list[str]:
    """The exercises of a notebook that are extra credit: their checks have no points."""
    own = (cell.metadata.get("nbgrader", {}) for cell in nbformat.read(path, as_version=4).cells)
    return [
        metadata["grade_id"].removesuffix("_check")
        for metadata in own
        if metadata.get("points") == 0
    ]


def _is_exercise(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))
