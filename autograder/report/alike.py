"""Solutions that are suspiciously alike: to the course's own, or to each other.

The comparison is of fingerprints (see `fingerprints`): names, comments, docstrings and layout do not count,
nor does text that the student version holds in any of its cells. A finding says "look at these", no more.

Two limits keep it from accusing students of the lines that everybody writes:

* LEAST: a solution needs so many fingerprints of its own. Answers to questions, formulas, and exercises
  of a few lines have fewer: there is one good answer to them.
* SHARE: of the smaller solution's fingerprints, so many must be in the other. Right solutions of this
  course's exercises that were written apart (the tests' mutants) share a third at most, with each other
  and with the course's own. A changed copy shares 0.6 after many changes, 0.95 after one, and all after
  renaming.

Among students, fingerprints that many of them share are the exercise's own and do not count; solutions
that are the same but for names are found all the same. So a class takes time in proportion to its size.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from autograder.course.twin import grade_id
from autograder.report.fingerprints import Shape, given_prints, shape
from course_lib.checks.judge.find import UnknownExercise, find

LEAST = 20
SHARE = 0.8
MANY = 20  # students: a fingerprint that more of them share says nothing
FEW = 4  # students: so many may share one in any class, however small

Answers = Mapping[str, str]  # the texts of one submission's exercises: {grade_id: text}


@dataclass(frozen=True)
class Likeness:
    """A reason to look at these students' solutions of one exercise (named by its `grade_id`).

    students: several, alike to each other; or alike to the course's own solution, one or several that are
    the same but for names. share: of the smaller solution's fingerprints; 1.0 for several that are the same.
    """

    exercise: str
    students: tuple[str, ...]
    share: float
    reference: bool = False

    def __str__(self) -> str:
        name = self.exercise.removesuffix("_check")
        if self.reference:
            each_other = ", and they are the same but for names" if len(self.students) > 1 else ""
            return f"{name}: {self.share:.0%} of it is in the course's own solution{each_other}"
        same = "the same but for names" if self.share == 1.0 else f"{self.share:.0%} shared"
        return f"{name}: {same}"


@dataclass(frozen=True)
class Originals:
    """The texts to which solutions of one assignment are compared, as fingerprints: the references, by
    exercise, and everything that was handed out."""

    references: dict[str, frozenset[int]]
    released: frozenset[int]


def originals(
    source: NotebookNode, released: NotebookNode, modules: Iterable[str] = ()
) -> Originals:
    """From the instructor's notebook, the student version and the sources of reference modules."""
    library = given_prints(list(modules))
    released_prints = given_prints(
        [cell.source for cell in released.cells if cell.cell_type == "code"]
    )
    return Originals(
        {name: given_prints([text]) | library for name, text in answers(source).items()},
        released_prints,
    )


def reference_modules(exercises: Iterable[str]) -> list[str]:
    """The sources of the modules that these exercises ("02_collectives/all_gather") may not import.

    None of them is imported. A name without an exercise has no references.
    """
    names: set[str] = set()
    for exercise in exercises:
        try:
            names |= set(find(exercise).references)
        except UnknownExercise:  # of another course, with checks of its own
            continue
    return [
        path.read_text(encoding="utf-8") for name in sorted(names) for path in _module_files(name)
    ]


def _module_files(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [
            path
            for location in spec.submodule_search_locations
            for path in Path(location).glob("*.py")
        ]
    return [Path(spec.origin)] if spec.origin else []


def answers(notebook: NotebookNode) -> dict[str, str]:
    """The exercises' texts of a notebook whose metadata can be trusted: ours, or a restored one."""
    return {
        name: cell.source
        for cell in notebook.cells
        if cell.cell_type == "code"
        and cell.metadata.get("nbgrader", {}).get("solution")
        and (name := grade_id(cell))
    }


def compare(submitted: Mapping[str, Answers], against: Originals) -> list[Likeness]:
    """Findings among the students' answers, {student: {grade_id: text}}, those with most in common first."""
    by_exercise: dict[str, dict[str, Shape]] = defaultdict(dict)
    for student, texts in submitted.items():
        for exercise, text in texts.items():
            own_shape = shape(text, against.released)
            if own_shape is not None and len(own_shape.prints) >= LEAST:
                by_exercise[exercise][student] = own_shape
    likenesses: list[Likeness] = []
    for exercise, shapes in by_exercise.items():
        copied = _like_reference(exercise, shapes, against.references.get(exercise, frozenset()))
        known = {student for likeness in copied for student in likeness.students}
        others = {
            student: shape_of_it for student, shape_of_it in shapes.items() if student not in known
        }
        likenesses += copied + _like_each_other(exercise, others, len(shapes))
    return sorted(
        likenesses, key=lambda likeness: (-likeness.share, likeness.exercise, likeness.students)
    )


def _like_reference(
    exercise: str, shapes: dict[str, Shape], reference: frozenset[int]
) -> list[Likeness]:
    """Students whose solutions are the same but for names are one finding."""
    same: dict[str, list[str]] = defaultdict(list)
    for student, own in shapes.items():
        if _share(own, reference) >= SHARE:
            same[own.whole].append(student)
    return [
        Likeness(
            exercise, tuple(sorted(group)), _share(shapes[group[0]], reference), reference=True
        )
        for group in same.values()
    ]


def _share(own: Shape, reference: frozenset[int]) -> float:
    return len(own.prints & reference) / len(own.prints)


def _like_each_other(exercise: str, shapes: dict[str, Shape], handed_in: int) -> list[Likeness]:
    same: dict[str, list[str]] = defaultdict(list)
    for student, own in shapes.items():
        same[own.whole].append(student)
    pairs = [
        Likeness(exercise, tuple(sorted(group)), 1.0) for group in same.values() if len(group) > 1
    ]
    # of students with the same solution one stands for all
    first = {group[0]: shapes[group[0]] for group in same.values()}
    holders: dict[int, list[str]] = defaultdict(list)
    for student, own in first.items():
        for each in own.prints:
            holders[each].append(student)
    common = max(FEW, min(MANY, handed_in // 10))
    rare = [some for some in holders.values() if 1 < len(some) <= common]
    shared = Counter(pair for some in rare for pair in itertools.combinations(some, 2))
    for (own, other), count in shared.items():
        share = count / min(len(first[own].prints), len(first[other].prints))
        if share >= SHARE:
            pairs.append(Likeness(exercise, tuple(sorted((own, other))), share))
    return pairs


def groups(likenesses: Iterable[Likeness]) -> dict[tuple[str, ...], list[Likeness]]:
    """The findings by their students, those with the most exercises first."""
    by_students: dict[tuple[str, ...], list[Likeness]] = defaultdict(list)
    for likeness in likenesses:
        by_students[likeness.students].append(likeness)
    return dict(sorted(by_students.items(), key=lambda item: (-len(item[1]), item[0])))
