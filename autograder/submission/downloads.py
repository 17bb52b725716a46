"""The files of a class that an instructor downloaded from Moodle or Canvas, in a zip or unpacked.

They have the names of `autograder.submission.site_names`, and count straight in the class's folder and
nowhere else: in a student's own folder or zip they could be that student's invention.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from autograder.outcome.limits import Limits
from autograder.submission.intake import NAMES_SHOWN, STAMP, Submission, printable
from autograder.submission.site_names import Owner, assignment_of, owner_of, students_of
from autograder.submission.zips import BROKEN, Saved, read_file, read_zip
from course_lib.checks.words import counted, listing

KINDS = (".ipynb", ".zip")
DEEPEST = 4  # folders below a student's that are searched
MOST = 4 << 30  # bytes of notebooks that are written for all downloads together


@dataclass(frozen=True)
class Member:
    """A file of a download: its path there, when it was saved, and how so many bytes of it are read."""

    place: PurePosixPath
    saved: Saved
    read: Callable[[int], bytes]


@dataclass(frozen=True)
class Upload:
    """A notebook of a student, straight in the download or in a zip there."""

    origin: str
    file: str
    order: tuple[int, Saved]
    read: Callable[[int], bytes]


@dataclass
class Downloaded:
    """Submissions, the newest of each first; sentences on their origin, and on files that are left out.

    taken: the paths in the class's folder that come from a site.
    """

    submissions: list[Submission] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    taken: set[Path] = field(default_factory=set)


def find_downloaded(
    folder: Path, known: Sequence[str], into: Path, largest: int = Limits().notebook
) -> Downloaded:
    """Read the downloads in a class's folder. Their notebooks are written below `into`.

    OSError if `into` cannot be written. A file that cannot be read costs a note and no other student.
    """
    taken_in, desk = Downloaded(), _Desk(folder, known, into, largest)
    for path in sorted(folder.iterdir()):
        is_class = path.suffix.lower() == ".zip" and not owner_of(_name(path))
        if _is_hidden(path) or path.is_symlink() or not is_class:
            continue
        members, others = _of_zip(path, largest * len(known))
        if members:
            taken_in.taken.add(path)
            desk.take(path.name, members, others, taken_in)
    loose, others = _of_folder(folder, taken_in.taken)
    if loose:
        desk.take(f"{folder.name}/", loose, others, taken_in)
    taken_in.notes += _one_folder_down(folder, taken_in.taken)
    taken_in.submissions = desk.newest_first()
    return taken_in


def _name(path: Path) -> PurePosixPath:
    return PurePosixPath(path.name)


def _is_hidden(place: Path | PurePosixPath) -> bool:
    """Also what macOS adds to a zip."""
    return place.name.startswith(".") or "__MACOSX" in place.parts


def _of_zip(path: Path, largest: int) -> tuple[list[tuple[Owner, Member]], list[Owner]]:
    """The notebooks and zips of a zip in which the site has named every one of them, else none.

    Also the owners of its other files.
    """
    try:
        packed = zipfile.ZipFile(io.BytesIO(read_zip(path, largest)))
    except BROKEN:
        return [], []  # `find_zipped` says so
    pairs = [(owner_of(member.place), member) for member in _members(packed)]
    if not all(owner for owner, _ in pairs):
        return [], []
    names = [PurePosixPath(info.filename) for info in packed.infolist() if not info.is_dir()]
    others = [owner_of(name) for name in names if _is_other(name)]
    return [(owner, member) for owner, member in pairs if owner], list(filter(None, others))


def _is_other(place: PurePosixPath) -> bool:
    """Whether it is a student's file that is not a notebook, such as a PDF."""
    return place.suffix.lower() not in KINDS and not _is_hidden(place)


def _members(packed: zipfile.ZipFile) -> Iterator[Member]:
    for info in packed.infolist():
        place = PurePosixPath(info.filename)
        if place.suffix.lower() in KINDS and not info.is_dir() and not _is_hidden(place):

            def read(most: int, info: zipfile.ZipInfo = info) -> bytes:
                with packed.open(info) as file:
                    return file.read(most)

            yield Member(place, info.date_time, read)


def _of_folder(folder: Path, taken: set[Path]) -> tuple[list[tuple[Owner, Member]], list[Owner]]:
    """The same of an unpacked download, whose paths in `folder` join `taken`. Links are not followed."""
    pairs: list[tuple[Owner, Member]] = []
    others: list[Owner] = []
    for path in sorted(folder.iterdir()):
        if path in taken or _is_hidden(path) or path.is_symlink():
            continue
        is_folder = path.is_dir()
        if not owner_of(_name(path) / "x" if is_folder else _name(path)):
            continue
        files = list(_files(path, DEEPEST)) if is_folder else [path]
        for file in files:
            place = PurePosixPath(file.relative_to(folder))
            if place.suffix.lower() in KINDS and (owner := owner_of(place)):
                taken.add(path)
                saved: Saved = time.localtime(file.lstat().st_mtime)[:6]  # pyright: ignore
                read = lambda most, file=file: read_file(file, most)  # noqa: E731
                pairs.append((owner, Member(place, saved, read)))
            elif _is_other(place) and (owner := owner_of(place)):
                others.append(owner)
        if is_folder:
            taken.add(path)
    return pairs, others


def _files(folder: Path, deeper: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if _is_hidden(path) or path.is_symlink():
            continue
        if not path.is_dir():
            yield path
        elif deeper:
            yield from _files(path, deeper - 1)


def _one_folder_down(folder: Path, taken: set[Path]) -> list[str]:
    """Notes on folders into which a download was unpacked: their names could be a student's invention."""
    notes = []
    for path in sorted(folder.iterdir()):
        if path in taken or _is_hidden(path) or path.is_symlink() or not path.is_dir():
            continue
        inside = [entry for entry in sorted(path.iterdir()) if not _is_hidden(entry)]
        owners = [
            owner_of(_name(entry) / "x" if entry.is_dir() else _name(entry)) for entry in inside
        ]
        if owners and (first := owners[0]) and all(owners):
            taken.add(path)
            where = f"{folder.name}/{printable(path.name)}"
            notes.append(
                f"{where} holds files as {first.site} names them, and is left out: if it is a class, move "
                f"its content to {folder.name}, or grade {where}."
            )
    return notes


class _Desk:
    """Sorts the files of downloads by student and assignment, and writes those that count."""

    def __init__(self, folder: Path, known: Sequence[str], into: Path, largest: int) -> None:
        self.folder, self.known, self.into, self.largest = folder, known, into, largest
        self.dated: list[tuple[tuple[int, Saved], Submission]] = []
        self.written = 0

    def take(
        self,
        place: str,
        pairs: list[tuple[Owner, Member]],
        others: list[Owner],
        taken_in: Downloaded,
    ) -> None:
        """Take a download in. place: its name in sentences. others: the owners of other files."""
        by_owner: dict[tuple[str, str], list[tuple[Owner, Member]]] = defaultdict(list)
        for owner, member in pairs:
            by_owner[owner.name, owner.number].append((owner, member))
        students = students_of(owner for owner, _ in pairs)
        held = {assignment_of(owner.file, self.known) for owner, _ in pairs} - {""}
        marked = [(students[owner.name, owner.number], owner) for owner, _ in pairs if owner.late]
        late = {student for student, owner in marked if not self._is_stamped(student, owner, held)}
        taken_in.said += _said(place, pairs, students, sorted(late), self.folder.name)
        for key, files in sorted(by_owner.items()):
            try:
                taken_in.notes += self._student(students[key], place, files, held)
            except BROKEN as error:
                reason = str(error) or type(error).__name__
                taken_in.notes.append(
                    f"{place}: the files of {students[key]} cannot be read: {reason}."
                )

        without = [owner for owner in others if (owner.name, owner.number) not in by_owner]
        for key, student in sorted(students_of(without).items()):
            files_of = [printable(o.file) for o in without if (o.name, o.number) == key]
            taken_in.notes.append(
                f"{place}: {student} handed in no notebook, but {_few(files_of)}, and so is not in the table."
            )

    def newest_first(self) -> list[Submission]:
        """All submissions; of those of one student and assignment the newest comes first."""
        self.dated.sort(key=lambda pair: pair[0], reverse=True)  # stable
        self.dated.sort(key=lambda pair: (pair[1].student, pair[1].assignment))
        return [submission for _, submission in self.dated]

    def _student(
        self, student: str, place: str, files: list[tuple[Owner, Member]], held: set[str]
    ) -> list[str]:
        """Take in one student's files; returns notes. held: the assignments of the whole download."""
        uploads: dict[str, list[Upload]] = defaultdict(list)
        for owner, member in files:
            for name, upload in self._uploads(owner, member, place):
                uploads[name].append(upload)
        odd = uploads.pop("", [])
        new = [upload for upload in odd if not self._is_filed(student, upload)]
        odd, some_filed = new, len(new) < len(odd)
        if not some_filed and not uploads and len(odd) == len(held) == 1:
            uploads[next(iter(held))] = (
                odd  # the only notebook, where all others are of this assignment
            )
            odd = []
        strange = [printable(upload.origin) for upload in odd]
        for name, some in sorted(uploads.items()):
            counts, *older = sorted(some, key=lambda upload: upload.order, reverse=True)
            unread = [printable(upload.origin) for upload in older[:NAMES_SHOWN]] + strange[
                :NAMES_SHOWN
            ]
            submission = Submission(
                student, name, self._write(counts, name), printable(counts.origin), tuple(unread),
                stamp=self.folder / student / name / STAMP,
            )  # fmt: skip
            self.dated.append((counts.order, submission))
        if uploads or (some_filed and not odd):
            return []
        if not odd:
            return [f"{place}: {student} handed in no notebook of the course."]
        return [
            f"{_few(strange)} of {student} left out, since no assignment is in its name: put it into "
            f"{self.folder.name}/{student}/{self.known[0]}/, or another assignment's folder there."
        ]

    def _is_stamped(self, student: str, owner: Owner, held: set[str]) -> bool:
        """Whether a person wrote down when this file was handed in; a zip can be of any of `held`."""
        name = assignment_of(owner.file, self.known)
        names = {name} if name else held
        return bool(names) and all((self.folder / student / n / STAMP).is_file() for n in names)

    def _is_filed(self, student: str, upload: Upload) -> bool:
        """Whether a person has put this notebook into an assignment's folder, as the note on it asks."""
        places = [self.folder / student / name for name in self.known]
        files = [path for place in places if place.is_dir() for path in place.glob("*.ipynb")]
        if not files:
            return False
        content = upload.read(self.largest + 1)
        regular = (path for path in files if path.is_file() and not path.is_symlink())
        return any(read_file(path, self.largest + 1) == content for path in regular)

    def _uploads(self, owner: Owner, member: Member, place: str) -> Iterator[tuple[str, Upload]]:
        """(assignment or "", notebook) of a file: itself, or the notebooks of the zip that it is."""
        origin = f"{place}{member.place}" if place.endswith("/") else f"{place}: {member.place}"
        order = owner.upload, member.saved
        if member.place.suffix.lower() != ".zip":
            name = assignment_of(owner.file, self.known)
            yield name, Upload(origin, owner.file, order, member.read)
            return
        largest = self.largest * len(self.known)
        content = member.read(largest + 1)
        if len(content) > largest:
            raise ValueError(f"{member.place.name} has more than {largest / 1e6:.0f} MB")
        for inner in _members(zipfile.ZipFile(io.BytesIO(content))):
            if inner.place.suffix.lower() == ".ipynb" and (
                name := assignment_of(inner.place.name, self.known)
            ):
                inside = f"{origin}: {inner.place}"
                yield (
                    name,
                    Upload(inside, inner.place.name, (owner.upload, inner.saved), inner.read),
                )

    def _write(self, upload: Upload, assignment: str) -> Path:
        """The folder that holds the notebook alone, under the assignment's name if its own is similar."""
        content = upload.read(
            self.largest + 1
        )  # one byte too many, so that the reader sees it, too
        self.written += len(content)
        if self.written > MOST:
            raise ValueError(f"all notebooks together have more than {MOST >> 30} GB")
        similar = assignment_of(upload.file, [assignment])
        file = f"{assignment if similar else printable(Path(upload.file).stem)}.ipynb"
        mark = hashlib.sha256(file.encode() + b"\0" + content).hexdigest()[:16]
        notebook = self.into / mark / assignment / file
        notebook.parent.mkdir(parents=True, exist_ok=True)
        draft = notebook.with_suffix(f".{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(notebook)
        return notebook.parent


def _said(
    place: str,
    pairs: list[tuple[Owner, Member]],
    students: dict[tuple[str, str], str],
    late: list[str],
    folder: str,
) -> list[str]:
    """Sentences on a download: its kind, namesakes, and students whose late work has no time stamp yet."""
    (owner, member), *_ = pairs
    sites = " and ".join(sorted({each.site for each, _ in pairs}))
    first = students[owner.name, owner.number]
    said = [
        f"{place} holds a class as {sites} hands it out: {counted(len(students), 'student')}. "
        f"{printable(str(member.place))} was taken for the work of {first}."
    ]
    by_name: dict[str, list[str]] = defaultdict(list)
    for (name, _), student in sorted(students.items()):
        by_name[name] += [student] if owner.site == "Moodle" else []
    said += [
        f"{place} has {len(some)} participants called {name}, so Moodle's number is part of their names: "
        f"{_few(some)}. Moodle numbers them anew in each assignment: look at their rows."
        for name, some in by_name.items()
        if len(some) > 1
    ]
    if late:
        said.append(
            f"Canvas marks the work of {_few(late)} as late, and does not say when it was handed in. For a "
            f"penalty, write the time, such as 2026-11-21 10:00:00 UTC, into {folder}/{late[0]}/<assignment>/"
            f"{STAMP}."
        )
    return said


def _few(names: Sequence[str]) -> str:
    more = [f"{len(names) - NAMES_SHOWN:,} more"] if len(names) > NAMES_SHOWN else []
    return listing([*names[:NAMES_SHOWN], *more])
