"""Zips that students handed in, as `python -m course_lib.submit` packs them: notebooks in their folders.

A class may hold `<student>.zip`, or any zip in `<student>/` or `<student>/<assignment>/`. Of a zip only the
members `<assignment>.ipynb` are read, in however many folders they lie, and never more of them than a
notebook may have: a zip can be small and its content endless. Of several such notebooks of one assignment the
one that was saved last counts, by the time in the zip: the zip's name does not tell which is newer.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from autograder.outcome.limits import Limits
from autograder.submission.intake import (
    NAMES_SHOWN,
    STAMP,
    Submission,
    holds_notebook,
    printable,
)

MEMBERS = 10_000  # of a zip: its list is read whole, and takes half a kilobyte for each
MEMBER = b"PK\x01\x02"  # an entry of that list begins with it
Saved = tuple[int, int, int, int, int, int]  # as a zip has it: from the year to the second
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)


def find_zipped(
    folder: Path,
    known: Sequence[str],
    into: Path,
    largest: int = Limits().notebook,
    taken: Collection[Path] = (),
) -> tuple[list[Submission], list[str]]:
    """(submissions, notes) of the zips in a class. Their notebooks are written below `into`.

    taken: paths in the class's folder that are passed over, because no student has made them.
    OSError if `into` cannot be written. A zip that cannot be read costs a note and no other student.
    """
    dated: list[tuple[Saved, Submission]] = []
    notes: list[str] = []
    for student, path in _zips(folder, known, taken):
        place = printable(str(path.relative_to(folder)))
        try:
            content = read_zip(path, largest * len(known))
            unzipped = into / hashlib.sha256(content).hexdigest()[:16]
            members, inner = _unzip(content, known, unzipped, largest)
        except BROKEN as error:
            notes.append(f"{place} cannot be read as a zip: {error or type(error).__name__}.")
            continue
        for name, (counts, *older) in members.items():
            # a zip may hold thousands of them
            shown = [printable(member.filename) for member in (counts, *older[:NAMES_SHOWN])]
            origin, *unread = (f"{place}: {name_inside}" for name_inside in shown)
            if len(older) > NAMES_SHOWN:
                unread.append(f"{place}: {len(older) - NAMES_SHOWN:,} more")
            submission = Submission(
                printable(student), name, unzipped / name, origin, tuple(unread),
                stamp=None if path.parent == folder else path.parent / STAMP,
            )  # fmt: skip
            dated.append((counts.date_time, submission))
        if inner:
            more = f" and {len(inner) - 1:,} more" if len(inner) > 1 else ""
            notes.append(f"{place} holds another zip ({printable(inner[0])}{more}): unpack it.")
        elif not members:
            notes.append(
                f"{place} holds no notebook of the course: their names are {known[0]}.ipynb, and so on."
            )
    dated.sort(key=lambda pair: pair[0], reverse=True)  # stable
    dated.sort(key=lambda pair: (pair[1].student, pair[1].assignment))
    return [submission for _, submission in dated], notes


def _zips(
    folder: Path, known: Sequence[str], taken: Collection[Path]
) -> Iterator[tuple[str, Path]]:
    """(student, zip), in the order of their names. Links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink() or path in taken:
            continue
        if path.name in known:
            continue  # no student's folder, as `find_submissions` says
        if path.is_dir():
            inside = sorted(path.iterdir())
            folders = [entry for entry in inside if entry.name in known and entry.is_dir()]
            for entry in folders:
                inside += [] if entry.is_symlink() else sorted(entry.iterdir())
            yield from ((path.name, entry) for entry in inside if _is_zip(entry))
        elif _is_zip(path):
            yield path.stem, path


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and not path.name.startswith(".") and not path.is_symlink()


def read_file(path: Path, most: int) -> bytes:
    """The first `most` bytes of a regular file. ValueError for a pipe, a link or a folder."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(f"it cannot be opened ({error.strerror})") from error
    with open(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(most)


def read_zip(path: Path, largest: int) -> bytes:
    """The bytes of a zip. ValueError if it is not a regular file, or is too much."""
    content = read_file(path, largest + 1)
    if len(content) > largest:
        size = path.lstat().st_size
        raise ValueError(f"it has {size / 1e6:.1f} MB, and {largest / 1e6:.1f} MB are read")
    if content.count(MEMBER) > MEMBERS:
        raise ValueError(f"it lists more than {MEMBERS:,} files")
    return content


def _unzip(
    content: bytes, known: Sequence[str], into: Path, largest: int
) -> tuple[dict[str, list[zipfile.ZipInfo]], list[str]]:
    """Write the notebooks of the zip to `into/<assignment>/`.

    Returns the members of each assignment, in the order of the assignments, and the zips in the zip, which
    are not read. The first member of an assignment is written.
    """
    members: dict[str, list[zipfile.ZipInfo]] = defaultdict(list)
    inner: list[str] = []
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        for member in packed.infolist():
            name = PurePosixPath(member.filename)
            if name.suffix == ".ipynb" and name.stem in known:
                members[name.stem].append(member)
            elif name.suffix.lower() == ".zip" and not name.name.startswith("."):
                inner.append(member.filename)
        for assignment, some in members.items():
            some.sort(key=lambda member: member.date_time, reverse=True)
            with packed.open(some[0]) as file:
                text = file.read(largest + 1)  # one byte too many, so that the reader sees it, too
            notebook = into / assignment / f"{assignment}.ipynb"
            notebook.parent.mkdir(parents=True, exist_ok=True)
            draft = notebook.with_suffix(f".{os.getpid()}")
            draft.write_bytes(text)
            draft.replace(notebook)
    return dict(sorted(members.items())), inner


def joined(
    folders: Sequence[Submission], zipped: Sequence[Submission]
) -> tuple[list[Submission], list[str]]:
    """All submissions, by student, and notes on those of which only one counts.

    A notebook in a folder counts before the same one in a zip, and of zips the first in `zipped`. An
    assignment's folder without a notebook gives way to a zip. If a class was downloaded again for the
    sake of late work, a file that is in both downloads is passed over without a note.
    """
    chosen: dict[tuple[str, str], Submission] = {}
    in_zips = {(submission.student, submission.assignment) for submission in zipped}
    folders = [
        submission
        for submission in folders
        if (submission.student, submission.assignment) not in in_zips or holds_notebook(submission)
    ]
    for submission in (*folders, *zipped):
        key = submission.student, submission.assignment
        first = chosen.setdefault(key, submission)
        if first is not submission:
            # Downloads with the same file share a folder, which is named after the file's content.
            origins = [submission.origin] if submission.folder != first.folder else []
            others = (*first.unread, *origins, *submission.unread)
            chosen[key] = replace(first, unread=others)
    ordered = [chosen[key] for key in sorted(chosen)]
    notes = [
        f"{submission.student} handed in {submission.assignment} more than once: "
        f"{submission.origin or submission.folder} counts, and {', '.join(submission.unread)} "
        f"{'do' if len(submission.unread) > 1 else 'does'} not."
        for submission in ordered
        if submission.unread
    ]
    return ordered, notes
