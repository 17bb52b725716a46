"""Reads a class that was handed in: lists its submissions, and reads each one's files.

Of a submission's folder only the notebook and nbgrader's `timestamp.txt` are read, never more than a
limit of them, and only if they are regular files: a link, a pipe or anything else was put there on
purpose, and is named instead of opened.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course.scores import one_line
from autograder.outcome.limits import Limits

COPIED = re.compile(r"(?:Copy[ _]of[ _])*(.+?)(?:[-_ ]Copy\d*|[ _]?\(\d+\)|_\d)*")
STAMP = "timestamp.txt"
STAMP_BYTES = 200
NAMES_SHOWN = 5
FOLDERS_SEARCHED = 100
OF_PROGRAMS = (".ipynb_checkpoints", ".git", ".github", ".vscode", ".idea", ".cache", ".Trash")
NAME_BYTES = 128  # nbgrader's column for a student's id
MOST_CELLS = 10_000
# Of a cell's metadata only these are looked at; an editor's own can be as large as the file.
MARKS = (
    "cell_type", "checksum", "grade", "grade_id", "locked", "points", "schema_version", "solution", "task",
)  # fmt: skip
CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SURROGATE = re.compile("[\ud800-\udfff]")
LINE_END = re.compile("\r\n?")
VERSION = re.compile(r"\d{1,2}\.\d{1,3}(\.\d{1,3})?")
OTHER_PYTHON = "the grader runs Python"
ANOTHER = "another notebook"  # a remark that a person should read begins with it


class UnreadableError(Exception):
    """The submission is not a notebook; the text says why, for the student and the table."""


class SameNameError(Exception):
    """Two folders of a class would be one student; the text names them."""


class MissingError(UnreadableError):
    """There is a folder for the assignment, but not the notebook."""


@dataclass(frozen=True)
class Submission:
    """One student's folder of one assignment, laid out as nbgrader's submitted directory.

    `student` is the folder's name, with characters that no table can show written as escapes,
    shortened where no file could be named after it, and with a hash behind it if it was changed.
    origin: where its notebook was handed in, if that is not `folder`. unread: the same of other notebooks
    of this student and assignment, which do not count. stamp: the time stamp, if it is not in `folder`.
    """

    student: str
    assignment: str
    folder: Path
    origin: str = ""
    unread: tuple[str, ...] = ()
    stamp: Path | None = None

    @property
    def notebook(self) -> Path:
        return self.folder / f"{self.assignment}.ipynb"


@dataclass(frozen=True)
class HandedIn:
    """The content of a submission: the notebook's bytes, the time stamp or "", remarks on both."""

    content: bytes
    stamp: str = ""
    notes: list[str] = field(default_factory=list)


# ---- listing the submissions


def find_submissions(
    folder: Path, known: list[str], taken: Collection[Path] = ()
) -> tuple[list[Submission], list[str]]:
    """(submissions, notes) of `folder/<student>/<assignment>/`, ordered by student.

    A notebook straight in the student's folder counts, too, if it has the assignment's name and there is no
    such folder. If it is all that there is, it may have the name of a copy. notes: sentences about folders
    and notebooks that are not a student's submission of a `known` assignment, and about students whose names
    had to be written in another way. taken: paths in `folder` that are passed over, because no student has
    made them. OSError if `folder` cannot be listed, SameNameError if two students would be one.
    """
    submissions: list[Submission] = []
    notes: list[str] = [
        f"{printable(path.name)} is left out, as hidden folders are; if it is a student's, rename it."
        for path in sorted(folder.iterdir())
        if _hidden(path) and path.name not in OF_PROGRAMS and path.is_dir()
    ]
    students: dict[str, Path] = {}
    for path in _listed(folder):
        name = printable(path.name)
        if path in taken:
            continue
        if path.is_symlink():
            notes.append(f"{name} is a link and is left out: links are not followed.")
            continue
        if not path.is_dir():
            if _is_notebook(path):
                notes.append(
                    f"{folder.name}/{name} is left out, since it lies in no student's folder: move it to "
                    f"{folder.name}/<student>/<assignment>/."
                )
            continue
        if name in known:
            notes.append(
                f"{folder.name}/{name} is left out, since a student's folder is expected there and an "
                f"assignment has this name. If it holds students' folders, grade {folder.name}/{name}; if "
                f"{folder.name} is a student, grade the folder above it."
            )
            continue
        if name in students:
            raise SameNameError(
                f"{students[name].name!r} and {path.name!r} are both written as {name!r}: rename one of them"
            )
        students[name] = path
        if name != path.name:
            notes.append(f"{path.name!r} is written as {name!r}.")
        inside = [entry for entry in _listed(path) if entry.is_symlink() or entry.is_dir()]
        loose = [entry for entry in _listed(path) if entry not in inside and _is_notebook(entry)]
        for entry in inside:
            if entry.name in known:  # also a link: it gets a row, and is not followed
                beside = tuple(file.name for file in loose if file.name == f"{entry.name}.ipynb")
                submissions.append(Submission(name, entry.name, entry, unread=beside))
                loose = [file for file in loose if file.name not in beside]
            else:
                notes.append(
                    f"{folder.name}/{name}/{printable(entry.name)} is left out: there is no "
                    f"assignment {printable(entry.name)!r}; there are {', '.join(known)}."
                )
        for entry in loose:
            assignment = _copy_of(entry, known) if len(loose) == 1 and not inside else entry.stem
            if entry.suffix == ".ipynb" and assignment in known:
                submissions.append(Submission(name, assignment, path))
            else:
                notes.append(
                    f"{folder.name}/{name}/{printable(entry.name)} is left out: move it into a folder named "
                    f"after its assignment, such as {folder.name}/{name}/{known[0]}/."
                )
        if not inside and not any(
            _is_notebook(entry) or entry.suffix.lower() == ".zip" for entry in _listed(path)
        ):
            notes.append(of_nothing(folder, name))
    return submissions, notes


def of_nothing(folder: Path, student: str) -> str:
    """The note on a student's folder in which there is no work."""
    return f"{folder.name}/{student} holds no assignment's folder and is left out."


def _copy_of(path: Path, known: Collection[str]) -> str:
    """The assignment whose name a host or a browser changed, as in "Copy of 02_collectives (1).ipynb"."""
    copied = COPIED.fullmatch(path.stem)
    return copied[1] if copied and copied[1] in known else path.stem


def _is_notebook(path: Path) -> bool:
    return path.suffix.lower() == ".ipynb"


def _listed(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not _hidden(path))


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def printable(name: str) -> str:
    """`name` if it can stand in a table and a database, else with escapes for the other characters.

    A name that was changed ends in a hash of its own, so that no two become one. Files are named after
    students, with something added: so a long name is shortened.
    """
    shown = name
    if name in (".", ".."):  # as the site's file names them; as a folder they would be another one
        shown = name.replace(".", "dot")
    elif not name.isprintable():
        raw = name.replace("\\", "\\\\")
        shown = "".join(
            character if character.isprintable() else ascii(character)[1:-1] for character in raw
        )
    if shown != name or len(shown.encode()) > NAME_BYTES:
        mark = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
        shown = shown.encode()[: NAME_BYTES - 13].decode(errors="ignore") + f"~{mark}"
    return shown


# ---- reading a submission


def collect(submission: Submission, largest: int = Limits().notebook) -> HandedIn:
    """Read the submission's notebook, at most `largest` bytes of it, and its time stamp.

    The notebook of the assignment's name counts. If there is none, the only other one in the folder does,
    and if there is none at all, the only one in the folders within. MissingError and UnreadableError are
    the student's; OSError means that this machine could not read the files.
    """
    folder = submission.folder
    if folder.is_symlink():
        raise MissingError("the assignment's folder is a link; links are not followed")
    notebook, notes = _choose(submission)
    if submission.unread:
        notes += [f"{ANOTHER} that was handed in was not read: {', '.join(submission.unread)}"]
    content = _read_regular(notebook, largest)
    stamp, remarks = _read_stamp(submission.stamp or folder / STAMP)
    return HandedIn(content, stamp, notes + remarks)


def holds_notebook(submission: Submission) -> bool:
    """Whether there is a notebook in the folder, or one folder down, be it the right one or not."""
    return not submission.folder.is_symlink() and bool(
        _notebooks(submission.folder) or _one_folder_deeper(submission)
    )


def _choose(submission: Submission) -> tuple[Path, list[str]]:
    """(the notebook that counts, remarks)."""
    wanted, folder = submission.notebook, submission.folder
    others = [path for path in _notebooks(folder) if path.name != wanted.name]
    is_folder = wanted.is_dir() and not wanted.is_symlink()
    if os.path.lexists(wanted) and not is_folder:
        if not others or folder.name != submission.assignment:  # those of other assignments
            return wanted, []
        return wanted, [f"{ANOTHER} in the folder was not read: {_names(others, folder)}"]
    others = others or _one_folder_deeper(submission)
    if len(others) == 1:
        return others[0], [f"the notebook was handed in as {_names(others, folder)}"]
    hint = f"; the folder holds {_names(others, folder)}" if others else ""
    hint += "; there is a folder of its name" if is_folder else ""
    raise MissingError(f"{wanted.name} was not handed in{hint}")


def _notebooks(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if _is_notebook(path) and not path.is_dir()]


def _one_folder_deeper(submission: Submission) -> list[Path]:
    """The notebooks one folder down, where an archive leaves them that was packed with its folder.

    If one has the assignment's name, it stands alone.
    """
    folders = [path for path in _listed(submission.folder) if path.is_dir()][:FOLDERS_SEARCHED]
    files = [file for folder in folders if not folder.is_symlink() for file in _notebooks(folder)]
    named = [path for path in files if path.name == submission.notebook.name]
    return named if len(named) == 1 else files


def _names(paths: Iterable[Path], folder: Path) -> str:
    names = [printable(str(path.relative_to(folder))) for path in paths]
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _read_regular(path: Path, largest: int) -> bytes:
    """The bytes of a regular file. Opens nothing else: a pipe would wait for its other end."""
    name = printable(path.name)
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise UnreadableError(f"{name} is a link or a socket, not a file") from None
        raise
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):  # a folder, too, can be opened
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise UnreadableError(f"{name} is {what}")
        with open(opened, "rb", closefd=False) as file:
            content = file.read(largest + 1)
    finally:
        os.close(opened)
    if len(content) > largest:
        size = max(status.st_size, len(content)) / 2**20
        raise UnreadableError(
            f"{name} has {size:.0f} MB; notebooks of up to {largest / 2**20:.0f} MB are read"
        )
    return content


def _read_stamp(path: Path) -> tuple[str, list[str]]:
    """(the time stamp as nbgrader's `parse_utc` reads it, or "", remarks)."""
    if not os.path.lexists(path):
        return "", []
    from nbgrader.utils import parse_utc  # it takes seconds, and parsing does not need it

    try:
        text = _read_regular(path, STAMP_BYTES).decode("ascii").strip()
        parse_utc(text)
    except (UnreadableError, ValueError, OverflowError):
        return "", [f"{STAMP} holds no date and was not used"]
    return text, []


# ---- from bytes to a notebook


def parse(content: bytes) -> NotebookNode:
    """The notebook in `content`, of nbformat 4.5, without outputs. Raises UnreadableError.

    Of its metadata `saved_by` is left, the version of the Python that ran it, or "".
    """
    try:
        data = json.loads(content.decode("utf-8-sig"), parse_constant=lambda _: None)
        notebook = _as_notebook(data)
    except UnicodeDecodeError:
        raise UnreadableError("the file is not UTF-8 text, as notebooks are") from None
    except json.JSONDecodeError as error:
        raise UnreadableError(f"the file is not valid JSON: {error}") from None
    except RecursionError:
        raise UnreadableError("the file's JSON is nested too deeply for a notebook") from None
    except (AttributeError, KeyError, TypeError, ValueError, nbformat.ValidationError) as error:
        said = one_line(f"the file is JSON but not a notebook ({type(error).__name__}: {error})")
        raise UnreadableError(said) from None
    return notebook


def _sound(data: Any) -> Any:
    """JSON without the halves of characters that it can name and that no file can hold."""
    if isinstance(data, str):
        return SURROGATE.sub("\ufffd", data)
    if isinstance(data, list):
        return [_sound(value) for value in data]
    if isinstance(data, dict):
        return {_sound(key): _sound(value) for key, value in data.items()}
    return data


def _as_notebook(data: Any) -> NotebookNode:
    """Parsed JSON as a notebook of nbformat 4.5, with the parts that grading needs in place."""
    saved_by = _saved_by(data)
    if isinstance(data.get("cells"), list):
        # Also a file that calls itself newer than all known formats: it has a notebook's parts.
        data = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": _lean(data["cells"])}
    elif isinstance(data.get("worksheets"), list):
        cells = _lean([cell for sheet in data["worksheets"] for cell in sheet["cells"]])
        known = {key: data[key] for key in ("nbformat", "nbformat_minor") if key in data}
        data = known | {"metadata": {}, "worksheets": [{"cells": cells, "metadata": {}}]}
    else:
        raise ValueError("it has no list of cells")
    notebook = nbformat.convert(nbformat.from_dict(data), to_version=4)
    names: set[str] = set()
    for index, cell in enumerate(notebook.cells):
        _tidy(cell)
        name = cell.get("id")
        if not isinstance(name, str) or not CELL_ID.fullmatch(name) or name in names:
            cell["id"] = f"handed-in-{index}"
        names.add(cell["id"])
    notebook.metadata = NotebookNode(saved_by=saved_by)
    notebook.nbformat_minor = 5
    return notebook


def _lean(cells: list[dict]) -> list[dict[str, Any]]:
    """The cells with the parts that are graded or shown, and no others.

    A file of 20 MB can hold millions of lists or cells, and a notebook's own dicts take ten times the memory.
    """
    if len(cells) > MOST_CELLS:
        raise UnreadableError(
            f"the notebook has {len(cells):,} cells; notebooks of up to {MOST_CELLS:,} cells are read"
        )
    return [_lean_cell(cell) for cell in cells]


def _lean_cell(cell: dict) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "cell_type": _sound(cell["cell_type"]),
        "metadata": _lean_metadata(cell),
    }
    for key in ("source", "input"):
        if key in cell:
            text = cell[key]
            kept[key] = _sound("".join(text) if isinstance(text, list) else str(text))
    kept |= {key: cell[key] for key in ("id", "level") if isinstance(cell.get(key), str | int)}
    attachments = cell.get("attachments")
    if isinstance(attachments, dict):
        kept["attachments"] = {
            _sound(name): {
                _sound(kind): _sound(text) for kind, text in data.items() if isinstance(text, str)
            }
            for name, data in attachments.items()
            if isinstance(data, dict)
        }
    return kept | ({"outputs": []} if cell["cell_type"] == "code" else {})


def _lean_metadata(cell: dict) -> dict[str, Any]:
    """The grading metadata, the tags, and the id as Colab has it."""
    metadata = cell.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    kept: dict[str, Any] = {}
    if isinstance(own := metadata.get("nbgrader"), dict):
        marks = {key: own[key] for key in MARKS if key in own}
        kept["nbgrader"] = {
            key: _sound(mark) for key, mark in marks.items() if not isinstance(mark, list | dict)
        }
    tags = metadata.get("tags")
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        kept["tags"] = _sound(tags)
    if isinstance(name := metadata.get("id"), str):
        kept["id"] = _sound(name)
    return kept


def _saved_by(data: dict) -> str:
    """The Python that ran the notebook, such as "3.13.1", as its metadata say; "" if they do not."""
    metadata = data.get("metadata")
    language = metadata.get("language_info") if isinstance(metadata, dict) else None
    version = language.get("version") if isinstance(language, dict) else None
    return version if isinstance(version, str) and VERSION.fullmatch(version) else ""


def other_python(version: str) -> str:
    """A sentence if the notebook was saved by another Python than the grader's; else ""."""
    own = platform.python_version()
    if not version or version.split(".")[:2] == own.split(".")[:2]:
        return ""
    return f"{OTHER_PYTHON} {own}; this notebook was saved by Python {version}"


def _tidy(cell: NotebookNode) -> None:
    """One cell as nbformat 4.5 has it: text in one string, metadata a mapping, no outputs.

    Lines end in a line feed, also if the file was written on Windows.
    """
    source = cell["source"]
    text = "".join(source) if isinstance(source, list) else str(source)
    cell["source"] = LINE_END.sub("\n", text)
    metadata = cell.get("metadata")
    cell["metadata"] = NotebookNode(metadata if isinstance(metadata, dict) else {})
    tags = cell.metadata.get("tags")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        cell.metadata.pop("tags", None)
    if cell["cell_type"] not in ("code", "markdown", "raw"):
        cell["cell_type"] = "raw"
    if cell["cell_type"] == "code" or not isinstance(cell.get("attachments"), dict):
        cell.pop("attachments", None)
    if cell["cell_type"] == "code":
        cell["outputs"], cell["execution_count"] = [], None
    else:
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
