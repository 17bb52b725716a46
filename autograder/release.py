"""Student versions: made by nbgrader's `generate_assignment`, and handed out in a folder and a zip."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from autograder.config import NOTEBOOKS, SOLUTIONS, base_config

REPOSITORY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})/[A-Za-z0-9._-]{1,100}")
BRANCH = re.compile(r"[A-Za-z0-9._/-]{1,100}")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same notebooks make the same zip


class ReleaseError(Exception):
    """Nothing was handed out; the text says why."""


def generate(
    assignment: str, into: Path, *, solutions: Path = SOLUTIONS, gradebook: bool = False
) -> Path:
    """Write the student version of `assignment` to `into/<assignment>/` and return its path.

    With `gradebook` the assignment is also entered into `into/../gradebook.db`, which must be done
    before submissions of it are graded. What was in the folder before is removed. Raises
    nbgrader's NbGraderException where the source is not what nbgrader understands.
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
    """What was written: the notebooks' folder, the zip, and the README with its table."""

    notebooks: list[Path]
    archive: Path
    readme: Path


def release(
    assignments: Sequence[str],
    into: Path,
    *,
    repository: str = "",
    branch: str = "main",
    notebooks: Path = NOTEBOOKS,
) -> Release:
    """Write the student versions to `into/<assignment>/`, all of them into one zip, and a README.

    Byte for byte as `notebooks` holds them: what was checked is what is handed out. repository:
    "owner/name" on GitHub, where this course lies with its `notebooks` folder: the README then links each
    notebook in Colab. Raises ReleaseError for a name that is none, and for an assignment that was not built.
    """
    if repository and not REPOSITORY.fullmatch(repository):
        raise ReleaseError(
            f"{repository!r} is no repository's name: it is OWNER/NAME, as on GitHub."
        )
    if not BRANCH.fullmatch(branch) or ".." in branch:
        raise ReleaseError(f"{branch!r} is no branch's name.")
    texts = {}
    for name in assignments:
        path = notebooks / name / f"{name}.ipynb"
        if not path.is_file():
            raise ReleaseError(
                f"there is no student version of {name}: run `make notebooks` first."
            )
        texts[name] = path.read_bytes()
    readme = _readme(texts, repository, branch)
    written = []
    for name, text in texts.items():
        target = into / name / f"{name}.ipynb"
        if target.parent.exists():
            shutil.rmtree(target.parent)
        target.parent.mkdir(parents=True)
        target.write_bytes(text)
        written.append(target)
    (into / "README.md").write_text(readme, encoding="utf-8")
    archive = into / "notebooks.zip"
    _write_zip(
        archive,
        {f"{n}/{n}.ipynb": text for n, text in texts.items()} | {"README.md": readme.encode()},
    )
    return Release(written, archive, into / "README.md")


def colab_link(assignment: str, repository: str, branch: str = "main") -> str:
    """Where Colab opens the student version of an assignment that lies on GitHub."""
    path = f"notebooks/{assignment}/{assignment}.ipynb"
    return f"https://colab.research.google.com/github/{repository}/blob/{branch}/{path}"


def _readme(texts: dict[str, bytes], repository: str, branch: str) -> str:
    lines = ["# Notebooks", ""]
    if repository:
        lines += ["| notebook | |", "|---|---|"]
    for name, text in texts.items():
        title = _title(text) or name
        here = f"[{title}]({name}/{name}.ipynb)"
        if repository:
            lines.append(f"| {here} | [open in Colab]({colab_link(name, repository, branch)}) |")
        else:
            lines.append(f"- {here}")
    if repository:
        lines += [
            "",
            "In Colab, run this in a cell of its own first. It leaves Colab's PyTorch as it is:",
            "",
            f"    %pip install git+https://github.com/{repository}@{branch}",
        ]
    return "\n".join([*lines, ""])


def _title(text: bytes) -> str:
    """The notebook's first heading, without what would end a link's text."""
    for cell in nbformat.reads(text.decode("utf-8"), as_version=4).cells:
        if match := re.search(r"^# +(.+)$", cell.source, re.MULTILINE):
            return re.sub(r"[\[\]|]", "", match[1]).strip()
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
