"""The graded cells of an assignment, read from the instructor's notebook and never from a submission.

A graded cell calls `check` with the objects that its exercise's check takes:

    report = check("02_collectives/ring_prediction", ring_bytes_sent, ring_rounds)
    ### BEGIN HIDDEN TESTS
    report = check("02_collectives/ring_prediction", ring_bytes_sent, ring_rounds, cases="hidden")
    ### END HIDDEN TESTS

When a submission is graded the cell is not run. The arguments are evaluated in the student's notebook,
and their values are judged outside of it.

The cell of an exercise that is extra credit has 0 points, so that nbgrader's maximum stays as it is; the
exercise itself says how many points it adds to that.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from autograder.course.twin import BuildError, answers, grade_id
from course_lib.checks.judge.case import Exercise
from course_lib.checks.judge.find import UnknownExercise, find


@dataclass(frozen=True)
class Graded:
    """One graded cell.

    check: the name that `check` is called with; expressions: its other arguments, as source;
    functions: whether they have to be callable. by_hand: points are left to a person, and the cell is
    run like any other. extra: `points` are extra credit, and not part of the assignment's maximum.
    """

    grade_id: str
    points: float
    check: str = ""
    expressions: tuple[str, ...] = ()
    functions: bool = False
    by_hand: bool = False
    extra: bool = False

    @property
    def name(self) -> str:
        """The exercise's name in tables and sentences."""
        return self.check.rpartition("/")[2] or self.grade_id


@dataclass(frozen=True)
class Assignment:
    """Everything that grading needs to know about one assignment.

    released: the student version; graded: by `grade_id`, in the notebook's order.
    """

    name: str
    released: NotebookNode
    graded: dict[str, Graded]

    @property
    def maximum(self) -> float:
        return sum(graded.points for graded in self.graded.values() if not graded.extra)


def read_assignment(name: str, solutions: Path, notebooks: Path) -> Assignment:
    """The assignment `name` of the folders of sources and of student versions.

    BuildError if a graded cell cannot be graded, or if the two notebooks do not belong together.
    """
    source = nbformat.read(solutions / name / f"{name}.ipynb", as_version=4)
    released = nbformat.read(notebooks / name / f"{name}.ipynb", as_version=4)
    return make_assignment(name, source, released)


def make_assignment(name: str, source: NotebookNode, released: NotebookNode) -> Assignment:
    """The assignment of an instructor's notebook and its student version. BuildError as above."""
    return Assignment(name, released, graded_cells(name, source, released))


def graded_cells(name: str, source: NotebookNode, released: NotebookNode) -> dict[str, Graded]:
    """The graded cells of the instructor's notebook `source`, by `grade_id`. BuildError as above."""
    graded = read_graded(name, source)
    points = {
        exercise.grade_id: 0.0 if exercise.extra else exercise.points
        for exercise in graded.values()
    }
    released_points = {
        str(grade_id(cell)): float(cell.metadata["nbgrader"]["points"])
        for cell in released.cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }
    if list(points.items()) != list(released_points.items()):
        raise BuildError(
            f"{name}: the student version's graded cells are not those of the source: "
            "run `make notebooks`."
        )
    return graded


def read_graded(name: str, source: NotebookNode) -> dict[str, Graded]:
    """The graded cells by `grade_id`, of a notebook that has no student version yet. BuildError as above."""
    return {
        own["grade_id"]: _read_cell(cell, f"{name}, cell {own['grade_id']!r}")
        for cell in source.cells
        if (own := cell.metadata.get("nbgrader", {})).get("grade")
    }


def require_python(name: str, source: NotebookNode) -> None:
    """BuildError if Python cannot read a cell of code, unless the cell is tagged to raise an exception."""
    for cell in source.cells:
        if cell.cell_type != "code" or "raises-exception" in cell.metadata.get("tags", []):
            continue
        try:
            ast.parse(TransformerManager().transform_cell(cell.source))
        except SyntaxError as error:
            line = (error.text or "").strip()
            raise BuildError(
                f"{name}, cell {cell['id']!r}: Python cannot read line {error.lineno} of the cell, "
                f"{line!r}: {error.msg}."
            ) from None


def compare_points(name: str, graded: dict[str, Graded]) -> None:
    """BuildError if a cell has other points than its exercise. An instructor may change them later."""
    for cell_name, cell in graded.items():
        due = find(cell.check).points if cell.check else cell.points
        if cell.points != due:
            raise BuildError(
                f"{name}, cell {cell_name!r}: the cell has {cell.points:g} points, and the exercise "
                f"{cell.check} has {due:g}. Change one of the two, and `report.points` in the cell."
            )


def compare_objects(name: str, graded: dict[str, Graded]) -> None:
    """BuildError if a cell hands in other names than its exercise's `objects`, which students are told."""
    for cell_name, cell in graded.items():
        due = find(cell.check).objects if cell.check else cell.expressions
        if cell.expressions != due:
            raise BuildError(
                f"{name}, cell {cell_name!r}: the exercise {cell.check} has objects={due!r}, and the cell "
                f"hands in {', '.join(cell.expressions)}. Write the same names in both."
            )


def compare_names(name: str, source: NotebookNode, graded: dict[str, Graded]) -> None:
    """BuildError if a cell's `grade_id` is misspelt: by it, grades, releases and feedback find the cell.

    A check is named after its exercise, and a solution after an exercise or after what the cell defines.
    """
    exercises = [cell.name for cell in graded.values()]
    for cell_name, cell in graded.items():
        if cell.check and cell_name != f"{cell.name}_check":
            raise BuildError(
                f"{name}, cell {cell_name!r}: it checks {cell.check}, so its grade_id must be "
                f"'{cell.name}_check'."
            )
    for cell_name, code in answers(source).items():
        if cell_name not in {*exercises, *graded, *_defined(code)}:
            raise BuildError(
                f"{name}, cell {cell_name!r}: its grade_id is neither the name of an exercise nor of "
                f"something that the cell defines. The exercises are {', '.join(exercises)}."
            )


def _defined(code: str) -> set[str]:
    """The names that a cell binds at its top."""
    names = set()
    for node in ast.parse(TransformerManager().transform_cell(code)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            bound = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            names |= {each.id for each in bound if isinstance(each.ctx, ast.Store)}
    return names


def _read_cell(cell: NotebookNode, where: str) -> Graded:
    own = cell.metadata["nbgrader"]
    points = float(own["points"])
    if cell.cell_type != "code" or own.get("solution") or own.get("task"):
        return Graded(own["grade_id"], points, by_hand=True)
    check, expressions = _call(cell.source, where)
    exercise = _exercise(check, len(expressions), where)
    if exercise.extra and points:
        raise BuildError(
            f'{where}: {check} is extra credit, so its cell has "points": 0, not {points:g}: the '
            f"{exercise.points:g} that can be earned are not part of the assignment's maximum."
        )
    if not exercise.extra and not points:
        raise BuildError(
            f"{where}: a check of 0 points is one of extra credit, and {check} is not: give it points, or "
            "mark the exercise with extra=True."
        )
    if exercise.extra:
        points = float(exercise.points)
    functions = not exercise.constants
    return Graded(own["grade_id"], points, check, expressions, functions, extra=exercise.extra)


def _call(source: str, where: str) -> tuple[str, tuple[str, ...]]:
    """(name, arguments) of the cell's `check(...)`: the one on hidden cases if there is one."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BuildError(f"{where}: a graded cell is plain Python: {error}.") from None
    calls = [_parts(node, where) for node in ast.walk(tree) if _is_check(node)]
    chosen = {call[:2] for call in calls if call[2]} or {call[:2] for call in calls}
    if not chosen:
        raise BuildError(
            f'{where}: a graded cell calls check("<assignment>/<exercise>", ...); this one does not, '
            "and could not be judged outside the notebook."
        )
    if len(chosen) > 1:
        raise BuildError(f"{where}: a graded cell has one check; this one has {len(chosen)}.")
    return chosen.pop()


def _is_check(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (isinstance(called, ast.Name) and called.id == "check") or (
        isinstance(called, ast.Attribute) and called.attr == "check"
    )


def _parts(node: ast.AST, where: str) -> tuple[str, tuple[str, ...], bool]:
    """(name, arguments, on hidden cases?) of a call of `check`."""
    assert isinstance(node, ast.Call)
    name = _text(node.args[0]) if node.args else ""
    others = node.args[1:]
    if not name or not others or any(isinstance(argument, ast.Starred) for argument in others):
        raise BuildError(
            f"{where}: check takes the exercise's name as a text, then its objects one by one; "
            f"this is {ast.unparse(node)}."
        )
    hidden = any(word.arg == "cases" and _text(word.value) == "hidden" for word in node.keywords)
    return name, tuple(ast.unparse(argument) for argument in others), hidden


def _text(node: ast.expr) -> str:
    """The text that `node` is, or ""."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""


def _exercise(check: str, objects: int, where: str) -> Exercise:
    """The exercise that is checked. BuildError if there is none, or if it takes other objects."""
    try:
        exercise = find(check)
    except UnknownExercise as unknown:
        topic = check.partition("/")[0].partition("_")[2]
        raise BuildError(
            f"{where}: {unknown} Is it imported in course_lib/checks/notebooks/{topic}/__init__.py?"
        ) from None
    if len(exercise.objects) != objects:
        raise BuildError(
            f"{where}: {check} takes {', '.join(exercise.objects)}; the cell hands in {objects}."
        )
    return exercise
