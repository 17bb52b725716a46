"""Student versions: made by nbgrader's `generate_assignment`, and handed out in a folder and a zip.

The folder also holds the course's package as a wheel, and a page for students (`autograder.course.handout`).
With a repository on GitHub each notebook begins with badges that open it in Colab and Kaggle, and with a
cell that installs the course if it is not there.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from autograder.course.config import NOTEBOOKS, SOLUTIONS, base_config
from autograder.course.handout import ADDRESS, page
from autograder.course.place import Place, ReleaseError
from autograder.course.self_study import add_solutions
from autograder.course.typed import keep

EPOCH = (1980, 1, 1, 0, 0, 0)  # the same notebooks make the same zip
ARCHIVE = "notebooks.zip"
OURS = b"a release of the course"  # the zip's comment


def generate(
    assignment: str, into: Path, *, solutions: Path = SOLUTIONS, gradebook: bool = False
) -> Path:
    """Write the student version of `assignment` to `into/<assignment>/` and return its path.

    With `gradebook` the assignment is also entered into `into/../gradebook.db`, which must be done
    before submissions of it are graded. The folder's earlier content is removed. Raises
    nbgrader's NbGraderException if nbgrader does not understand the source.
    """
    config = base_config(solutions, into.parent)
    config.CourseDirectory.release_directory = str(into)
    config.CourseDirectory.assignment_id = assignment
    config.GenerateAssignment.no_database = not gradebook
    config.SaveCells.enabled = gradebook
    config.GenerateAssignment.force = True
    GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()
    return into / assignment / f"{assignment}.ipynb"


@dataclass(frozen=True)
class Release:
    """The files that were written: the notebooks, the zip, and the page for students."""

    notebooks: list[Path]
    archive: Path
    readme: Path


def write_release(
    assignments: Sequence[str],
    into: Path,
    *,
    package: Path,
    place: Place | None = None,
    questions: str = "",
    self_study: bool = False,
    notebooks: Path = NOTEBOOKS,
    solutions: Path = SOLUTIONS,
) -> Release:
    """Write the student versions to `into/<assignment>/`, the package, a README, and all of it into one zip.

    Without a place on GitHub the notebooks are byte for byte those in `notebooks`, which were checked. With
    one, `opened_anywhere` adds two cells before the others. package: the wheel; questions: the address at
    which students ask; self_study: with the solutions, folded below the checks (`add_solutions`). Whatever a
    person changed in `into` is copied beside it first. ReleaseError if an assignment was not built, or for an
    address that cannot be one.
    """
    if questions and not ADDRESS.fullmatch(questions):
        raise ReleaseError(
            f"{questions!r} is not an address: it begins with https:// or mailto: and has no spaces."
        )
    texts = {}
    for name in assignments:
        path = notebooks / name / f"{name}.ipynb"
        if not path.is_file():
            raise ReleaseError(
                f"there is no student version of {name}: run `make notebooks` first."
            )
        text = path.read_bytes()
        if self_study:
            text = with_solutions(text, solutions / name / f"{name}.ipynb")
        texts[name] = opened_anywhere(text, name, place) if place else text
    files = {f"{name}/{name}.ipynb": text for name, text in texts.items()}
    files["README.md"] = page(texts, package.name, place, questions, self_study).encode()
    files[package.name] = package.read_bytes()
    _keep_typed(into, texts, files)
    for name in texts:
        shutil.rmtree(into / name, ignore_errors=True)
    for name, content in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(content)
    _write_zip(into / ARCHIVE, files)
    written = [into / name / f"{name}.ipynb" for name in texts]
    return Release(written, into / ARCHIVE, into / "README.md")


def _keep_typed(into: Path, folders: Iterable[str], files: Mapping[str, bytes]) -> None:
    """Copy to `<into>_before` what this release would lose: all that the last one did not write.

    The copies are not in `into`, since all that lies there is handed out.
    """
    handed_out = _last_release(into / ARCHIVE)
    inside = (path for name in folders for path in sorted((into / name).rglob("*")))
    for path in (*inside, *(into / name for name in files if "/" not in name)):
        name = path.relative_to(into).as_posix()
        if path.is_file() and path.read_bytes() not in (files.get(name), handed_out.get(name)):
            keep(path, into.with_name(f"{into.name}_before") / name)
    if (into / ARCHIVE).is_file() and not handed_out:
        keep(into / ARCHIVE, into.with_name(f"{into.name}_before") / ARCHIVE)


def _last_release(archive: Path) -> dict[str, bytes]:
    """The files of the zip that the last release wrote; none if there is no such zip, or another one."""
    try:
        with zipfile.ZipFile(archive) as last:
            return (
                {name: last.read(name) for name in last.namelist()} if last.comment == OURS else {}
            )
    except (OSError, zipfile.BadZipFile):
        return {}


def with_solutions(text: bytes, source: Path) -> bytes:
    """The notebook with the solutions of `source`, see `add_solutions`."""
    notebook: NotebookNode = nbformat.reads(text.decode("utf-8"), as_version=4)
    add_solutions(notebook, nbformat.read(source, as_version=4))
    return f"{nbformat.writes(notebook)}\n".encode()


def opened_anywhere(text: bytes, assignment: str, place: Place) -> bytes:
    """The notebook, after a cell of badges and a cell that installs the course if it is not there.

    Neither belongs to an exercise: grading takes them for the student's own, and runs the second, which
    finds the course and does nothing.
    """
    notebook: NotebookNode = nbformat.reads(text.decode("utf-8"), as_version=4)
    badges = nbformat.v4.new_markdown_cell(place.badges(assignment), id="open-elsewhere")
    course = nbformat.v4.new_code_cell(GET_THE_COURSE.format(place.package), id="get-the-course")
    notebook.cells = [badges, course, *notebook.cells]
    return f"{nbformat.writes(notebook)}\n".encode()


GET_THE_COURSE = """\
# Installs the course if it is not there, as in Colab and Kaggle. PyTorch stays as it is.
import importlib.util

if importlib.util.find_spec("course_lib") is None:
    %pip install -q {}"""


def _write_zip(path: Path, files: dict[str, bytes]) -> None:
    new = path.with_name(f".{path.name}.new")
    with zipfile.ZipFile(new, "w") as archive:
        archive.comment = OURS
        for name in sorted(files):
            info = zipfile.ZipInfo(name, EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    os.replace(new, path)
