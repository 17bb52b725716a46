"""Scores for other people's gradebooks: Canvas and Moodle.

Both take back a file that they handed out. Canvas: the gradebook's export names its students and columns.
Moodle: the assignment's grading worksheet, whose header is in the site's language and has the columns that
the site chose: it is filled in, and nothing of it is made up.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autograder.report.wording import shown

Scores = Mapping[str, float | None]  # by student, as the folders are named; None: no grade yet

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
GRADE, MAXIMUM, MAY_CHANGE = "Grade", "Maximum Grade", "Grade can be changed"


class ExportError(Exception):
    """A file of the site's is not what it should be; the text says what was expected."""


@dataclass(frozen=True)
class Table:
    """A table as the site wrote it: its header, rows and the sign between fields."""

    header: list[str]
    rows: list[list[str]]
    delimiter: str = ","
    mark: str = ""  # a byte order mark at the beginning, which spreadsheets look for

    def column(self, name: str) -> int:
        """ExportError names the columns that there are."""
        if name not in self.header:
            raise ExportError(
                f"there is no column {name!r}; there are {', '.join(map(repr, self.header))}."
            )
        return self.header.index(name)

    def to_text(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, delimiter=self.delimiter, lineterminator="\r\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return self.mark + file.getvalue()


def read_table(text: str) -> Table:
    """A table with commas, semicolons or tabs. ExportError where there is no header."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    first = body.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    rows = [row for row in csv.reader(io.StringIO(body, newline=""), delimiter=delimiter) if row]
    if not rows or len(rows[0]) < 2:
        raise ExportError(
            "the file holds no table: a first line with the columns' names is expected."
        )
    width = len(rows[0])
    padded = [(row + [""] * width)[:width] for row in rows[1:]]
    return Table(rows[0], padded, delimiter, mark)


# ---- Canvas


def canvas(
    scores: Mapping[str, Scores],
    maxima: Mapping[str, float],
    roster: str,
    ids: Mapping[str, int] | None = None,
) -> tuple[str, list[str]]:
    """(the CSV to import, notes) from {assignment: scores} and the text of a gradebook export.

    The export tells who is who: a student's folder is named after a SIS login, a SIS id or Canvas' own id.
    ids: the assignments' ids in Canvas; without one it is read from the export's column "<name> (<id>)".
    Who has no grade gets an empty field, which Canvas leaves as it is. notes: sentences on who was not
    found. ExportError where the roster or an assignment's column is not what it should be.
    """
    table = read_table(roster)
    places = [table.column(name) for name in CANVAS]
    columns = {name: _canvas_column(table, name, ids or {}) for name in scores}
    keys = [table.column(name) for name in ("SIS Login ID", "SIS User ID", "ID")]
    rows, found = [], set()
    for row in table.rows:
        if not row[table.column("ID")].strip():
            continue  # what is not a student: points possible, manual posting
        graded: list[str] = []
        for name in scores:
            student = _student(scores[name], [row[key] for key in keys])
            found |= {(name, student)}
            graded.append(_field(scores[name].get(student)) if student is not None else "")
        rows.append([*(row[place] for place in places), *graded])
    possible = [POINTS_POSSIBLE, "", "", "", "", *(shown(maxima[name]) for name in scores)]
    made = Table([*CANVAS, *columns.values()], [possible, *rows])
    missing = [
        f"{student} has a grade in {name} and is not in the roster."
        for name in scores
        for student in sorted(scores[name])
        if (name, student) not in found
    ]
    return made.to_text(), missing


def _canvas_column(table: Table, assignment: str, ids: Mapping[str, int]) -> str:
    if assignment in ids:
        return f"{assignment} ({ids[assignment]})"
    pattern = re.compile(rf"{re.escape(assignment)} \(\d+\)")
    known = [name for name in table.header if pattern.fullmatch(name)]
    if len(known) != 1:
        raise ExportError(
            f"the roster has {len(known)} columns named '{assignment} (<id>)', and one is needed: make "
            f"the assignment in Canvas under this name and export again, or give its id."
        )
    return known[0]


def _student(scores: Scores, keys: Sequence[str]) -> str | None:
    """The student whose folder is named like one of the keys; an address also by what is before the @."""
    by_name = {student.strip().lower(): student for student in scores}
    for key in (one.strip().lower() for one in keys):
        for candidate in (key, key.partition("@")[0]):
            if candidate and candidate in by_name:
                return by_name[candidate]
    return None


def _field(score: float | None) -> str:
    return "" if score is None else shown(score)


# ---- Moodle


def moodle(
    scores: Scores,
    maximum: float,
    worksheet: str,
    *,
    student: str = "",
    grade: str = GRADE,
    may_change: str = MAY_CHANGE,
) -> tuple[str, list[str]]:
    """(the filled-in worksheet, notes) of one assignment.

    student: the column that holds what the students' folders are named after; without it the column in
    which most of them are found. grade, may_change: the names of these columns where the site's language
    is another. Only the grade is written; rows of students without one, and rows that Moodle says must
    not change, stay as they were. ExportError where a column is missing or the worksheet's maximum is
    another than the assignment's.
    """
    table = read_table(worksheet)
    place = table.column(grade)
    key = table.column(student) if student else _key_column(table, scores)
    locked = table.header.index(may_change) if may_change in table.header else None
    notes, found = [], set()
    rows = []
    for row in table.rows:
        who = _student(scores, [row[key]])
        if who is not None:
            found.add(who)
            _compare_maximum(table, row, maximum)
            if locked is not None and row[locked].strip().lower() in ("no", "0"):
                notes.append(
                    f"{who}: Moodle says that the grade cannot be changed; left as it was."
                )
            elif scores[who] is not None:
                row = [*row[:place], _field(scores[who]), *row[place + 1 :]]
        rows.append(row)
    notes += [
        f"{who} has a grade and is not in the worksheet." for who in sorted(set(scores) - found)
    ]
    return Table(table.header, rows, table.delimiter, table.mark).to_text(), notes


def _key_column(table: Table, scores: Scores) -> int:
    counts = [
        sum(_student(scores, [row[place]]) is not None for row in table.rows)
        for place in range(len(table.header))
    ]
    if not counts or not max(counts):
        raise ExportError(
            "no column of the worksheet holds the names of the students' folders, such as "
            f"{', '.join(sorted(scores)[:3])}: let the site put user names, ID numbers or addresses in it."
        )
    return counts.index(max(counts))


def _compare_maximum(table: Table, row: Sequence[str], maximum: float) -> None:
    if MAXIMUM not in table.header:
        return
    said = row[table.column(MAXIMUM)].strip()
    try:
        same = not said or abs(float(said.replace(",", ".")) - maximum) < 1e-9
    except ValueError:  # a scale of words instead of points
        same = False
    if not same:
        raise ExportError(
            f"the worksheet's maximum grade is {said}, the assignment has {shown(maximum)} points: set the "
            "assignment's maximum grade in Moodle and export the worksheet again."
        )
