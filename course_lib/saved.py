"""A notebook as a student has saved it: its sections, their exercises, and what the checks printed there.

Everything is read from the file and nothing is run. `course_lib.progress` adds the points up, and
`course_lib.submit` asks whether the notebook is ready to be handed in.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

from course_lib.checks.colour import plain
from course_lib.checks.judge.find import UnknownExercise, find, of_assignment
from course_lib.checks.words import listing

NAME = re.compile(r"(\d\d_\w+)/(\w+)")
NUMBER = re.compile(r"\d\d?", re.ASCII)
HEADING = re.compile(r"^(#{1,2}) (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SCORE = r"^{name}(?: \(extra credit\))? {{2,}}([\d.,]+) of [\d.,]+$"
RUNS_ITS_CELL = re.compile(
    r"\s*%%(?:time|timeit|capture|prun)\b.*\n?"
)  # these run in the notebook as others do
DEFINES = re.compile(r"^(?:(?:async )?def |class )?(\w+)(?= *[=:(])", re.MULTILINE)
NEWER = re.compile(
    r"_newer(_\d+)?\Z"
)  # the course's newer version of a notebook, put there by `make lab`
DONE, UNWRITTEN, PARTLY, UNCHECKED, BROKEN, UNDEFINED, UNJUDGED = (
    "checked",
    "not written yet",
    "half written",
    "not checked yet",
    "not Python",
    "no cell defines it",
    "its check is missing here; a grader puts it back",
)
ELSEWHERE = "If yours are elsewhere, name their folder behind the command."
AT_HOSTS = (
    "Colab and Kaggle keep the open notebook where no command sees it. Read your points below its checks, "
    "and to hand it in, download it with the menu File."
)
HOSTS = [("content",), ("kaggle",)]  # Colab and Kaggle run cells in a folder of these
STUB_LEFT, DOTS_LEFT = "raise NotImplementedError() is still in it", "... is still in it"
MOST_NAMED = 4  # parts of an exercise that are still open
ABSENT = "Not in this file"  # in place of a section


class UnreadableNotebook(Exception):
    """The file does not hold a notebook of the course. The text says why."""


class StrangeNotebook(UnreadableNotebook):
    """Jupyter can open the file, but it has no check of the course: a scratch file, perhaps."""


@dataclass(frozen=True)
class Exercise:
    """An exercise and the last table that its check printed.

    section: the heading above it. possible: the points it gives, extra credit if `extra`. points: None
    unless the file contains a table for it. state: one of the words above. left: the rest of one that is half
    written, in words.
    """

    name: str
    section: str
    state: str
    possible: float
    extra: bool
    points: float | None = None
    left: str = ""

    @property
    def words(self) -> str:
        """The state, and what is still to be written."""
        return f"{self.state}: {self.left}" if self.left else self.state


class Written(NamedTuple):
    """The state of a name that a cell defines, and what is still to be written if it is half written."""

    state: str
    left: str = ""


@dataclass(frozen=True)
class Notebook:
    """A file of the course, with the exercises in their order in the file.

    Exercises whose check is not in the file come last, since a cell might have been deleted. changed: whether
    a cell for an answer has another text than the course gave it, be it a part of an exercise alone.
    """

    path: Path
    assignment: str
    title: str
    exercises: tuple[Exercise, ...]
    changed: bool = False


def read(path: Path) -> Notebook:
    """The notebook in the file `path`. UnreadableNotebook, with a sentence, if it is not of the course."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        cells = [(cell["cell_type"], _text(cell["source"]), cell) for cell in content["cells"]]
    except OSError as error:
        raise UnreadableNotebook(f"{path} cannot be opened: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableNotebook(
            f"{path} is not a notebook that Jupyter could open ({error}).{_earlier(path)}"
        ) from error
    return _read(path, cells)


def _earlier(path: Path) -> str:
    """A sentence that names Jupyter's own copy of a damaged file, if there is one."""
    copy = path.parent / ".ipynb_checkpoints" / f"{path.stem}-checkpoint.ipynb"
    return f" {copy} holds what Jupyter kept of an earlier state." if copy.is_file() else ""


def read_all(places: Iterable[Path]) -> tuple[list[Notebook], list[UnreadableNotebook]]:
    """(notebooks, why other files are left out) of `places`, as `find_notebooks` takes them.

    A scratch file or a damaged one in a folder hides no other. UnreadableNotebook if the file itself is
    named, or if nothing else is there.
    """
    places = list(places)
    notebooks, left_out = [], []
    for path in find_notebooks(places):
        try:
            notebooks.append(read(path))
        except UnreadableNotebook as error:
            if path in map(_place, places):
                raise
            left_out.append(error)
    if left_out and not notebooks:
        raise UnreadableNotebook("\n".join(map(str, left_out)))
    return notebooks, left_out


def find_notebooks(places: Iterable[Path]) -> Iterator[Path]:
    """The notebooks named by `places`: files, and folders that hold them up to one folder deeper.

    A place that is not in this folder is looked for where a student works, at last as the name of a notebook
    without its ending, or as its number. A newer version next to a notebook counts as soon as something is
    written in it.
    UnreadableNotebook if there is no such place, or if a folder holds no notebook.
    """
    for named in places:
        place = _place(named)
        if place.is_file():
            yield place
            continue
        if not place.is_dir():
            raise UnreadableNotebook(f"there is no file or folder {named}.{known_names()}")
        inside = [
            path
            for path in notebooks_in(place)
            if not path.stem.endswith("-checkpoint")
            and not (NEWER.search(path.stem) and is_untouched(path))
        ]
        if not inside:
            cure = AT_HOSTS if place.resolve().parts[1:2] in HOSTS else ELSEWHERE
            raise UnreadableNotebook(
                f"there is no notebook in {place.resolve()}, nor in a folder in it. {cure}"
            )
        yield from inside


def _place(named: Path) -> Path:
    """Where a file or folder is that a person has named; it need not exist."""
    place = named if named.exists() else default_folder() / named
    if not place.exists():  # the name of a notebook alone
        pattern = f"*/{glob.escape(named.name)}.ipynb"
        place = next(iter(sorted(default_folder().glob(pattern))), place)
    if not place.exists() and NUMBER.fullmatch(named.name):
        pattern = f"{int(named.name):02d}_*"
        place = next(filter(Path.is_dir, sorted(default_folder().glob(pattern))), place)
    return place


def default_folder() -> Path:
    """Where a student works: `work/`, made by `make lab`; on a rented machine in `course/`; else here.

    `course/` can itself be the folder that was handed out, unpacked there as its page says.
    """
    for folder in (Path("work"), Path("course/work")):
        if folder.is_dir():
            return folder
    unpacked = Path("course")
    return unpacked if notebooks_in(unpacked) and not notebooks_in(Path()) else Path()


def notebooks_in(folder: Path) -> list[Path]:
    """Files in the folder, and in folders in it that are not hidden."""
    return sorted([*folder.glob("*.ipynb"), *folder.glob("[!.]*/*.ipynb")])


def known_names() -> str:
    """A sentence that names the notebooks where a student works, each in a folder of its own; else ""."""
    folders = [path.name for path in default_folder().glob("[0-9][0-9]_*") if path.is_dir()]
    where = f"The folder {default_folder()}" if default_folder() != Path() else "This folder"
    return f" {where} holds {listing(sorted(folders))}." if folders else ""


def is_untouched(path: Path) -> bool:
    """Whether nothing is written in a notebook yet."""
    try:
        return not is_begun(read(path))
    except UnreadableNotebook:
        return False


def is_begun(notebook: Notebook) -> bool:
    """Whether something is written in it, if only one of several functions that a check takes."""
    written = (exercise.state not in (UNWRITTEN, UNJUDGED) for exercise in notebook.exercises)
    return notebook.changed or any(written)


def begun_of_each(notebooks: Iterable[Notebook]) -> list[Notebook]:
    """All but untouched files of an assignment of which another file is begun, under a name of its own."""
    notebooks = list(notebooks)
    begun = {notebook.assignment for notebook in notebooks if is_begun(notebook)}
    return [each for each in notebooks if each.assignment not in begun or is_begun(each)]


def _read(path: Path, cells: list[tuple[str, str, dict[str, Any]]]) -> Notebook:
    title = section = assignment = ""
    exercises: dict[str, Exercise] = {}
    graded: set[str] = set()
    written: dict[
        str, Written
    ] = {}  # of each name, the state of the last cell above that defines it
    for kind, source, cell in cells:
        if kind == "markdown":
            for level, heading in HEADING.findall(FENCE.sub("", source)):
                title, section = (title or heading, section) if level == "#" else (title, heading)
        elif kind == "code":
            tree = _parsed(source)
            if not (called := _check(tree)):
                written |= _defined(tree, source, written, _is_changed(source, cell))
                continue
            assignment, name, objects = called
            # A notebook also checks answers of its own, to show a mistake: those are not the student's.
            own = bool(cell.get("metadata", {}).get("nbgrader", {}).get("grade"))
            if name not in exercises or own > (name in graded):
                states = {thing: written.get(thing, Written(UNDEFINED)) for thing in objects}
                exercises[name] = _exercise(path, f"{assignment}/{name}", section, states, cell)
            graded |= {name} if own else set()
    if not assignment:
        raise StrangeNotebook(f"{path} has no check of this course in it.")
    for name, known in of_assignment(assignment).items():
        if name not in exercises:
            exercises[name] = Exercise(name, ABSENT, UNJUDGED, known.points, known.extra)
    changed = any(_is_changed(source, cell) for kind, source, cell in cells if kind == "code")
    return Notebook(path, assignment, title or assignment, tuple(exercises.values()), changed)


def _is_changed(source: str, cell: dict[str, Any]) -> bool:
    """Whether a cell for an answer is no longer as it was handed out, by nbgrader's digest of it."""
    own = cell.get("metadata", {}).get("nbgrader", {})
    if not own.get("solution") or own.get("grade") or not own.get("checksum"):
        return False
    # the text and kind of the cell, whether it is graded, an answer, locked, and its name
    parts = (source, "code", "False", "True", "False", own.get("grade_id", ""))
    digest = hashlib.md5("".join(parts).encode(), usedforsecurity=False).hexdigest()
    return digest != own["checksum"]


def _exercise(
    path: Path, name: str, section: str, objects: dict[str, Written], cell: dict[str, Any]
) -> Exercise:
    try:
        known = find(name)
    except UnknownExercise as unknown:
        raise UnreadableNotebook(
            f"{path} is of another version of the course: {unknown}"
        ) from unknown
    state, left = _together(objects)
    score = re.search(SCORE.format(name=re.escape(known.name)), _printed(cell), re.MULTILINE)
    points = float(score[1].replace(",", "")) if score else None
    state = state or (DONE if score else UNCHECKED)
    return Exercise(known.name, section, state, known.points, known.extra, points, left)


def _together(objects: dict[str, Written]) -> Written:
    """The state of the objects that a check takes, of which some can be written; "" if all are."""
    states = [written.state for written in objects.values()]
    if faults := [state for state in (BROKEN, UNDEFINED) if state in states]:
        return Written(faults[0])
    left = [name for name, written in objects.items() if written.state in (UNWRITTEN, PARTLY)]
    if not left:
        return Written("")
    if set(states) == {UNWRITTEN}:
        return Written(UNWRITTEN)
    if len(objects) == 1:
        return objects[left[0]]
    named = (
        left
        if len(left) <= MOST_NAMED
        else [*left[: MOST_NAMED - 1], f"{len(left) - MOST_NAMED + 1} more"]
    )
    return Written(PARTLY, f"{listing(named)} {'is' if len(left) == 1 else 'are'} still open")


def _check(tree: ast.Module | None) -> tuple[str, str, list[str]] | None:
    """(assignment, exercise, names of its objects) of a cell that calls `check`; else None."""
    for node in ast.walk(tree) if tree else ():
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "check"
        ):
            first, *objects = node.args or [None]
            if isinstance(first, ast.Constant) and (parts := NAME.fullmatch(str(first.value))):
                return parts[1], parts[2], [o.id for o in objects if isinstance(o, ast.Name)]
    return None


def _defined(
    tree: ast.Module | None, source: str, above: dict[str, Written], changed: bool
) -> dict[str, Written]:
    """The state of each name a cell defines. A cell with a mistake in its grammar also defines it.

    changed: whether the student has changed the cell, since else nothing in it is half written.
    """
    if tree is None:
        return dict.fromkeys(DEFINES.findall(source), Written(BROKEN))
    names = {name for node in ast.walk(tree) for name in _bound(node)}
    states = dict.fromkeys(names, Written(DONE))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            states[node.name] = _of_function(node, above, changed)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {name for target in targets for name in _assigned(target)}
            states |= dict.fromkeys(names, _of_value(node.value, changed))
    return states


def _of_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    above: dict[str, Written],
    changed: bool,
) -> Written:
    """A function that uses an unwritten function of the cells `above` is not written to its end either."""
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    used = [
        name
        for name in dict.fromkeys(names)
        if name in above and above[name].state in (UNWRITTEN, PARTLY)
    ]
    stub = _has_stub(node)
    if not stub and not used:
        return Written(DONE)
    first = node.body[ast.get_docstring(node) is not None :][:1]
    if not changed or any(map(_is_stub, first)):
        return Written(UNWRITTEN)
    return Written(
        PARTLY, STUB_LEFT if stub else f"it uses {used[0]}, which is {above[used[0]].state}"
    )


def _of_value(value: ast.expr | None, changed: bool) -> Written:
    if value is None or not _has_dots(value):
        return Written(DONE)
    bare = isinstance(value, ast.Constant)
    return Written(PARTLY, DOTS_LEFT) if changed and not bare else Written(UNWRITTEN)


def _assigned(target: ast.expr) -> Iterator[str]:
    """The names that get a value in an assignment, which in `a, b = 1, 2` are both."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _assigned(part)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names a node can define, wherever it is in a cell."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.asname or node.name


def _has_stub(node: ast.AST) -> bool:
    """Whether a stub's line is left where it can be reached, since below a `return` it does no harm."""
    if _is_stub(node):
        return True
    for _, part in ast.iter_fields(node):
        for child in part if isinstance(part, list) else [part]:
            if isinstance(child, ast.AST) and _has_stub(child):
                return True
            if isinstance(child, ast.Return):
                break
    return False


def _is_stub(node: ast.AST) -> bool:
    """`raise NotImplementedError()` without a text is what a stub consists of."""
    if not isinstance(node, ast.Raise):
        return False
    raised = node.exc
    if isinstance(raised, ast.Call) and not raised.args:
        raised = raised.func
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _has_dots(node: ast.AST) -> bool:
    """Whether `...` is in place of an answer, and not part of an index such as `x[..., 0]`."""
    if isinstance(node, ast.Subscript):
        return _has_dots(node.value)
    if isinstance(node, ast.Constant):
        return node.value is ...
    return any(map(_has_dots, ast.iter_child_nodes(node)))


def _parsed(source: str) -> ast.Module | None:
    """The cell as Python, with IPython's own lines turned into calls; None if it contains a mistake."""
    source = RUNS_ITS_CELL.sub("", source, count=1) if source.lstrip().startswith("%%") else source
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except (SyntaxError, ValueError):
        return None


def _printed(cell: dict[str, Any]) -> str:
    outputs = cell.get("outputs") or []
    return plain("".join(_text(o.get("text", "")) for o in outputs if o.get("name") == "stdout"))


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
