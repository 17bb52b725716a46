"""The names that Moodle and Canvas give the files of a class, and the students' names in them.

Moodle (mod/assign/classes/downloader.php; in folders, or flat if the teacher chose that):

    Anna Ng_1234567_assignsubmission_file_/12_in_operation.ipynb
    Anna Ng_1234567_assignsubmission_file_12_in_operation.ipynb

Canvas (lib/content_zipper.rb; a class without names has anon_Ab3xY for name and number):

    nganna_12345_678901_12_in_operation-1.ipynb
    nganna_LATE_12345_678901_12_in_operation.ipynb

Canvas' first number is the student's in all assignments, and the second one counts uploads. Moodle's number
is the participant's in this assignment alone. So a student is called "nganna_12345" or "Anna Ng", and
`autograder.report.matching` finds the rows of both again. In place of a notebook there may be a zip, such as
the one of `python -m course_lib.submit`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from autograder.submission.intake import printable

MOODLE = re.compile(
    r"(?P<name>.+?)(?:_(?P<number>\d+))?_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)"
)
CANVAS = re.compile(
    r"(?:(?P<hidden>LATE_)?(?P<anonymous>anon_[A-Za-z0-9]+)|(?P<name>\w+?)_(?P<late>LATE_)?(?P<number>\d+))"
    r"_(?P<upload>\d+)_(?P<file>.+)"
)


@dataclass(frozen=True)
class Owner:
    """The student of a file, as the site wrote it in the file's or the folder's name.

    file: the file's own name. upload: Canvas' number of it; a later one is larger.
    """

    site: str
    name: str
    number: str
    file: str
    late: bool = False
    upload: int = 0


def owner_of(place: PurePosixPath) -> Owner | None:
    """Whose file this is, by the names of Moodle and Canvas; None if they have not named it."""
    *folders, last = place.parts
    for part in folders:
        if (named := MOODLE.fullmatch(part)) and not named["file"]:
            return Owner("Moodle", named["name"], named["number"] or "", last)
    if (named := MOODLE.fullmatch(last)) and named["file"]:
        return Owner("Moodle", named["name"], named["number"] or "", named["file"])
    if named := CANVAS.fullmatch(last):
        late = bool(named["late"] or named["hidden"])
        name, number = named["name"] or "", named["number"] or named["anonymous"]
        return Owner("Canvas", name, number, named["file"], late, int(named["upload"]))
    return None


def assignment_of(file: str, known: Iterable[str]) -> str:
    """The assignment in a file's name, such as "12_in_operation-1.ipynb"; "" if there is none, or two."""
    stem = PurePosixPath(file).stem.casefold()
    held = [
        name
        for name in known
        if re.search(rf"(?<![^\W_]){re.escape(name.casefold())}(?![^\W_])", stem)
    ]
    return held[0] if len(held) == 1 else ""


def students_of(owners: Iterable[Owner]) -> dict[tuple[str, str], str]:
    """The name of each (name, number) as a student. In Moodle the number is added if two share a name."""
    numbers: dict[str, set[str]] = defaultdict(set)
    canvas: set[tuple[str, str]] = set()
    for owner in owners:
        numbers[owner.name].add(owner.number)
        canvas |= {(owner.name, owner.number)} if owner.site == "Canvas" else set()
    return {
        (name, number): printable(
            "_".join(filter(None, (name, number)))
            if len(some) > 1 or (name, number) in canvas
            else name
        )
        for name, some in numbers.items()
        for number in some
    }
