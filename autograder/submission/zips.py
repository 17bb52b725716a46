"""Zips that students handed in, as `python -m course_lib.submit` packs them: notebooks in their folders.

A class may hold `<student>.zip`, or any zip in `<student>/`. Of a zip only the members
`<assignment>/<assignment>.ipynb` are read, in however many folders they lie, and never more of them than a
notebook may have: a zip can be small and its content endless.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from autograder.outcome.limits import Limits
from autograder.submission.intake import Submission, printable

MEMBERS = 10_000  # of a zip: its list is read whole, and takes half a kilobyte for each
MEMBER = b"PK\x01\x02"  # an entry of that list begins with it
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)


def find_zipped(
    folder: Path, known: Sequence[str], into: Path, largest: int = Limits().notebook
) -> tuple[list[Submission], list[str]]:
    """(submissions, notes) of the zips in a class. Their notebooks are written below `into`.

    OSError if `into` cannot be written. A zip that cannot be read costs a note and no other student.
    """
    submissions: list[Submission] = []
    notes: list[str] = []
    for student, path in _zips(folder):
        place = printable(str(path.relative_to(folder)))
        try:
            content = _read(path, largest * len(known))
            unzipped = into / hashlib.sha256(content).hexdigest()[:16]
            assignments = _unzip(content, known, unzipped, largest)
        except BROKEN as error:
            notes.append(f"{place} cannot be read as a zip: {error or type(error).__name__}.")
            continue
        submissions += [
            Submission(printable(student), name, unzipped / name) for name in assignments
        ]
        if not assignments:
            notes.append(
                f"{place} holds no notebook of the course: a notebook's place in it is "
                f"{known[0]}/{known[0]}.ipynb, and so on."
            )
    return submissions, notes


def _zips(folder: Path) -> Iterator[tuple[str, Path]]:
    """(student, zip), in the order of their names. Links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from ((path.name, inside) for inside in sorted(path.iterdir()) if _is_zip(inside))
        elif _is_zip(path):
            yield path.stem, path


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and not path.name.startswith(".") and not path.is_symlink()


def _read(path: Path, largest: int) -> bytes:
    """The bytes of a regular file. ValueError for a pipe, a folder, or a file that is too much."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"it cannot be opened ({error.strerror})") from error
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size > largest:
            raise ValueError(
                f"it has {status.st_size / 1e6:.1f} MB, and {largest / 1e6:.1f} MB are read"
            )
        content = file.read(largest)
    if content.count(MEMBER) > MEMBERS:
        raise ValueError(f"it lists more than {MEMBERS:,} files")
    return content


def _unzip(content: bytes, known: Sequence[str], into: Path, largest: int) -> list[str]:
    """Write the notebooks of the zip to `into/<assignment>/`; returns the assignments."""
    members: dict[str, zipfile.ZipInfo] = {}
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        for member in packed.infolist():
            *folders, name = PurePosixPath(member.filename).parts or [""]
            if folders and folders[-1] in known and name == f"{folders[-1]}.ipynb":
                members.setdefault(folders[-1], member)
        for assignment, member in members.items():
            with packed.open(member) as file:
                text = file.read(largest + 1)  # one byte too many, so that the reader sees it, too
            notebook = into / assignment / f"{assignment}.ipynb"
            notebook.parent.mkdir(parents=True, exist_ok=True)
            draft = notebook.with_suffix(f".{os.getpid()}")
            draft.write_bytes(text)
            draft.replace(notebook)
    return sorted(members)


def joined(
    folders: Sequence[Submission], zipped: Sequence[Submission]
) -> tuple[list[Submission], list[str]]:
    """All submissions, by student, and notes. A notebook in a folder counts before the same one in a zip."""
    chosen: dict[tuple[str, str], Submission] = {}
    notes = []
    for submission in (*folders, *zipped):
        key = submission.student, submission.assignment
        if key in chosen:
            notes.append(
                f"{submission.student} handed in {submission.assignment} twice; the one in "
                f"{chosen[key].folder} counts, and the other one, in a zip, does not."
            )
        chosen.setdefault(key, submission)
    return [chosen[key] for key in sorted(chosen)], notes
