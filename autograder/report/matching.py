"""Whose row is this? A site's table of students, and the names of their folders.

A folder is named after one of a row's keys, such as a login or an address. The work of a class that was
downloaded has the names that Moodle and Canvas give it (`autograder.submission.downloads`): a person's name
without some of its signs, or with a number that stands in the row as well.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_lib.checks.words import counted

Scores = Mapping[str, float | None]  # by student, as the folders are named; None: no grade yet


NOT_IN_FILES = re.compile(r"[&<>\"`|':\\/]")
NUMBER = re.compile(r"\d+$")


@dataclass
class Matches:
    """Which student each row of a table is: `students`, by the row's number, and `notes` on doubtful rows."""

    students: dict[int, str]
    notes: list[str]
    fitting: set[str]  # students whom a row fits, also if none got the grade


def match(scores: Scores, rows: Sequence[Sequence[str]], names: Sequence[str]) -> Matches:
    """Find each row's student, whose folder is named like one of its keys.

    rows: the keys of each row, the better ones first. An address also fits by its part before the @, if no
    whole key fits: two people at two universities may share that part. A student whom two rows fit equally
    well belongs to neither. If still none fits, signs that Moodle leaves out of a folder's name do not count,
    such as the one in O'Brien. names: of the rows, for the notes.
    """
    by_name = {student.strip().lower(): student for student in scores}
    keys = [[text.strip().lower() for text in row] for row in rows]
    parts = [[text.partition("@")[0] for text in row] for row in keys]
    cleaned = [[_cleaned(text) for text in row] for row in keys]
    readings = ((by_name, keys), (by_name, parts), (_by_cleaned(scores), cleaned))
    columns = range(max(map(len, keys), default=0))
    students: dict[int, str] = {}
    fits: dict[str, list[int]] = {}  # by student, the rows that fit best
    settled: set[int] = set()  # all these rows
    late: dict[int, str] = {}  # other rows, by the student whom they fit less well
    for (by_text, texts), column in itertools.product(readings, columns):
        here: dict[str, list[int]] = {}
        for k, row in enumerate(texts):
            student = by_text.get(row[column]) if row[column] else None
            if student is None or k in settled:
                continue
            if student in fits:
                late.setdefault(k, student)
            else:
                here.setdefault(student, []).append(k)
        for student, some in here.items():
            fits[student] = some
            settled |= {*some}
            if len(some) == 1:
                students[some[0]] = student
    notes = [
        f"{len(some)} rows fit the folder {student} equally well and stay as they were: "
        f"{' and '.join(names[k] for k in some)}. Enter the grade of {student} by hand, or give the folder a "
        "name that only one of the rows has, such as the whole address, and grade again."
        for student, some in fits.items()
        if len(some) > 1
    ]
    notes += [
        f"{names[k]} fits the folder {student}, too, but the grade went to {names[fits[student][0]]}, who "
        "fits it better. See whose work it is."
        for k, student in late.items()
        if k not in settled and len(fits[student]) == 1
    ]
    return Matches(students, notes, set(fits))


def _cleaned(text: str) -> str:
    """A name as Moodle writes it for a folder: its downloader and clean_filename change these signs."""
    return NOT_IN_FILES.sub("", text.replace("_", " ")).strip().lower()


def _by_cleaned(scores: Scores) -> dict[str, str]:
    """Students by their names in this form; two of one form are left out."""
    counts = Counter(map(_cleaned, scores))
    return {text: student for student in scores if counts[text := _cleaned(student)] == 1}


def numbered(row: Sequence[str], scores: Scores) -> str:
    """The student called "nganna_101" or "Anna Ng_101" whose name and number stand in this row; else "".

    Canvas leaves the signs out of a name that it gives a file, and a table may have the words in another
    order. So letters are compared, and the number decides.
    """
    letters = {_letters(text) for text in row} - {""}
    numbers = {ended[0] for text in row if (ended := NUMBER.search(text.strip()))}
    for student in scores:
        name, _, number = student.rpartition("_")
        if number in numbers and _letters(name) in letters:
            return student
    return ""


def by_column(students: Mapping[int, str], columns: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence on the columns in which rows had the name of their student's folder; none if no row had.

    students: by the row's number, as in `Matches`; columns: the texts of each column, the better ones first.
    """
    counts: Counter[str] = Counter()
    for k, student in students.items():
        wanted = _cleaned(student)
        fitting = (
            name
            for form in (_cleaned, lambda text: _cleaned(text.partition("@")[0]))
            for name, texts in columns.items()
            if form(texts[k]) == wanted
        )
        counts.update(itertools.islice(fitting, 1))
    if not counts:
        return []
    parts = [f"{counts[name]} by {name!r}" for name in columns if counts[name]]
    return [f"Students were found in the roster by the names of their folders: {', '.join(parts)}."]


def by_number(matched: Matches, own: Sequence[str], names: Sequence[str]) -> list[str]:
    """A sentence on rows that were found by a number, as in "nganna_101"; none if there are none."""
    rows = [k for k, student in sorted(matched.students.items()) if student == own[k]]
    if not rows:
        return []
    return [
        f"{counted(len(rows), 'row')} {'was' if len(rows) == 1 else 'were'} found by the number in a "
        f"student's name: the grade of {own[rows[0]]} went to {names[rows[0]]}."
    ]


def _letters(text: str) -> str:
    return "".join(sorted(filter(str.isalpha, text.lower())))
