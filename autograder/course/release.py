"""Student versions: made by nbgrader's `generate_assignment`, and handed out in a folder and a zip.

With a repository on GitHub each notebook begins with badges that open it in Colab and Kaggle, and with a
cell that installs the course if it is not there.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from autograder.course.config import NOTEBOOKS, SOLUTIONS, base_config
from autograder.course.typed import keep, keep_aside

REPOSITORY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")
PLACEHOLDER = "owner/name"  # in the pages and the help
BRANCH = re.compile(r"[A-Za-z0-9._/-]{1,100}")
FOLDER = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+){0,9}")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same notebooks make the same zip


class ReleaseError(Exception):
    """Nothing was handed out; the text says why."""


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
    """The files that were written: the notebooks, the zip, and the README with its table."""

    notebooks: list[Path]
    archive: Path
    readme: Path


@dataclass(frozen=True)
class Place:
    """Where the handed-out notebooks lie on GitHub: `repository` is "owner/name", `folder` lies in it.

    The course is installed from there, too. ReleaseError for a name that cannot be one.
    """

    repository: str
    branch: str = "main"
    folder: str = "notebooks"

    def __post_init__(self) -> None:
        if not REPOSITORY.fullmatch(self.repository):
            raise ReleaseError(
                f"{self.repository!r} is not the name of a repository: it is OWNER/NAME, as on GitHub."
            )
        if self.repository.lower() == PLACEHOLDER:
            raise ReleaseError(
                f"{self.repository} stands for your own repository: put in its name."
            )
        if not BRANCH.fullmatch(self.branch) or ".." in self.branch:
            raise ReleaseError(f"{self.branch!r} is not the name of a branch.")
        if not FOLDER.fullmatch(self.folder) or ".." in self.folder:
            raise ReleaseError(
                f"{self.folder!r} is not a folder of a repository: it is a path such as notebooks."
            )

    @property
    def package(self) -> str:
        """The address from which pip installs the course."""
        return f"git+https://github.com/{self.repository}@{self.branch}"

    def colab(self, assignment: str) -> str:
        return f"https://colab.research.google.com/github/{self._file(assignment)}"

    def kaggle(self, assignment: str) -> str:
        return f"https://kaggle.com/kernels/welcome?src=https://github.com/{self._file(assignment)}"

    def badges(self, assignment: str) -> str:
        colab = "https://colab.research.google.com/assets/colab-badge.svg"
        kaggle = "https://kaggle.com/static/images/open-in-kaggle.svg"
        return (
            f"[![Open in Colab]({colab})]({self.colab(assignment)}) "
            f"[![Open in Kaggle]({kaggle})]({self.kaggle(assignment)})"
        )

    def _file(self, assignment: str) -> str:
        return f"{self.repository}/blob/{self.branch}/{self.folder}/{assignment}/{assignment}.ipynb"


def release(
    assignments: Sequence[str],
    into: Path,
    *,
    place: Place | None = None,
    notebooks: Path = NOTEBOOKS,
) -> Release:
    """Write the student versions to `into/<assignment>/`, all of them into one zip, and a README.

    Without a place on GitHub they are byte for byte those in `notebooks`, which were checked. With one,
    `opened_anywhere` adds two cells before the others. ReleaseError if an assignment was not built.
    """
    texts = {}
    for name in assignments:
        path = notebooks / name / f"{name}.ipynb"
        if not path.is_file():
            raise ReleaseError(
                f"there is no student version of {name}: run `make notebooks` first."
            )
        text = path.read_bytes()
        texts[name] = opened_anywhere(text, name, place) if place else text
    readme = _readme(texts, place)
    before = into.with_name(f"{into.name}_before")  # of what is handed out nothing else may be part
    written = []
    for name, text in texts.items():
        target = into / name / f"{name}.ipynb"
        if target.parent.exists():
            keep_aside(target.parent, {target.name}, before / name)
            shutil.rmtree(target.parent)
        target.parent.mkdir(parents=True)
        target.write_bytes(text)
        written.append(target)
    page = into / "README.md"
    if page.exists() and page.read_text(encoding="utf-8", errors="replace") != readme:
        keep(page, before / page.name)
    page.write_text(readme, encoding="utf-8")
    archive = into / "notebooks.zip"
    _write_zip(
        archive,
        {f"{n}/{n}.ipynb": text for n, text in texts.items()} | {"README.md": readme.encode()},
    )
    return Release(written, archive, into / "README.md")


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


def _readme(texts: dict[str, bytes], place: Place | None) -> str:
    lines = ["# Notebooks", ""]
    if place:
        lines += ["| notebook | |", "|---|---|"]
    for name, text in texts.items():
        here = f"[{_title(text) or name}]({name}/{name}.ipynb)"
        lines.append(f"| {here} | {place.badges(name)} |" if place else f"- {here}")
    if place:
        lines += [
            "",
            "The first code cell of each notebook installs the course if it is not there. It leaves",
            "PyTorch as it is. In Kaggle, turn on *Internet* in the notebook's settings before you run it.",
        ]
    return "\n".join([*lines, ""])


def _title(text: bytes) -> str:
    """The notebook's first heading, without signs that would end a link's text."""
    for cell in nbformat.reads(text.decode("utf-8"), as_version=4).cells:
        heading = re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if heading and cell.cell_type == "markdown":  # in code that is a comment
            return re.sub(r"[\[\]|]", "", heading[1]).strip()
    return ""


def _write_zip(path: Path, files: dict[str, bytes]) -> None:
    new = path.with_name(f".{path.name}.new")
    with zipfile.ZipFile(new, "w") as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, EPOCH)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    os.replace(new, path)
