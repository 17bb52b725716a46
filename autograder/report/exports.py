"""Scores for other gradebooks: Canvas and Moodle.

Both take back a file that they handed out. Canvas: the gradebook's export names its students and columns.
Moodle: the assignment's grading worksheet, whose header is in the site's language and has the columns that
the site chose: it is filled in, and nothing of it is made up. If the site shows all of them, these
are Identifier, Full name, Email address, Status, Grade, Maximum Grade, Grade can be changed, Last modified
(submission), Last modified (grade), Feedback comments (mod/assign/feedback/offline of Moodle reads them).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autograder.outcome.wording import shown
from autograder.report.matching import Scores, by_column, by_number, match, numbered
from course_lib.checks.words import counted

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
GRADE, MAXIMUM, MAY_CHANGE = "Grade", "Maximum Grade", "Grade can be changed"
IMPORTED = (
    "Identifier",
    "Last modified (grade)",
)  # columns that Moodle's importer reads beside the grade


class ExportError(Exception):
    """A file of the site's is not as it should be; the text says what was expected."""


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
    """A table with commas, semicolons or tabs. ExportError if there is no header."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    first = body.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        rows = [
            row for row in csv.reader(io.StringIO(body, newline=""), delimiter=delimiter) if row
        ]
    except csv.Error as error:
        raise ExportError(f"the file holds no table: {error}.") from None
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

    The export identifies students: a student's folder is named after a SIS login, a SIS id or Canvas' own
    id, or is called "nganna_101", as work that was downloaded from Canvas is. ids: the assignments' ids in
    Canvas; without one it is read from the export's column "<name> (<id>)".
    A column that the export has keeps its name. A student without a grade here keeps what the export has, a
    score or EX, since Canvas takes an empty field for a grade to be removed.
    notes: sentences on how students were found and on those who were not. ExportError if the roster or an
    assignment's column is not as it should be, or if the column has other points possible than the
    assignment.
    """
    table = read_table(roster)
    places = [table.column(name) for name in CANVAS]
    columns = {name: _canvas_column(table, name, ids or {}) for name in scores}
    for name, column in columns.items():
        _compare_possible(table, column, maxima[name])
    named = {name: table.column(name) for name in ("SIS Login ID", "SIS User ID", "ID")}
    keys = [*named.values()]
    # rows without an id, such as the points possible, belong to no student
    people = [row for row in table.rows if row[table.column("ID")].strip()]
    called = [_called(row, [places[0], *keys]) for row in people]
    marks = {name: [numbered(row, scores[name]) for row in people] for name in scores}
    matched = {
        name: match(
            scores[name],
            [
                [*(row[key] for key in keys), own]
                for row, own in zip(people, marks[name], strict=True)
            ],
            called,
        )
        for name in scores
    }
    rows = []
    for k, row in enumerate(people):
        graded: list[str] = []
        for name in scores:
            score = scores[name].get(matched[name].students.get(k, ""))
            own = row[table.column(columns[name])] if columns[name] in table.header else ""
            graded.append(own if score is None else shown(score))
        rows.append([*(row[place] for place in places), *graded])
    possible = [POINTS_POSSIBLE, "", "", "", "", *(shown(maxima[name]) for name in scores)]
    made = Table([*CANVAS, *columns.values()], [possible, *rows])
    everybody = {k: student for name in scores for k, student in matched[name].students.items()}
    missing = [
        f"{student} has a grade in {name} and is not in the roster."
        for name in scores
        for student in sorted(scores[name])
        if student not in matched[name].fitting
    ]
    unnamed = [k for k, row in enumerate(people) if k not in everybody and not row[keys[0]].strip()]
    if missing and unnamed:
        who = "; ".join(called[k] for k in unnamed)
        missing.append(
            f"No folder fits {counted(len(unnamed), 'row')} without a SIS Login ID: {who}."
        )
    doubtful = dict.fromkeys(note for name in scores for note in matched[name].notes)
    how = dict.fromkeys(
        by_column(everybody, {name: [row[key] for row in people] for name, key in named.items()})
    )
    how |= dict.fromkeys(
        note for name in scores for note in by_number(matched[name], marks[name], called)
    )
    return made.to_text(), [*how, *doubtful, *missing]


def _called(row: Sequence[str], places: Sequence[int]) -> str:
    """A row's name in a sentence: its first two texts in these columns, such as "Ng, Anna (s1)"."""
    texts = dict.fromkeys(text for place in places if (text := row[place].strip()))
    first, *more = texts or ["a row without a name"]
    return f"{first} ({more[0]})" if more else first


def _canvas_column(table: Table, assignment: str, ids: Mapping[str, int]) -> str:
    if assignment in ids:
        own = [name for name in table.header if name.endswith(f" ({ids[assignment]})")]
        return own[0] if len(own) == 1 else f"{assignment} ({ids[assignment]})"
    pattern = re.compile(rf"{re.escape(assignment)} \(\d+\)")
    known = [name for name in table.header if pattern.fullmatch(name)]
    if len(known) != 1:
        raise ExportError(
            f"the roster has {len(known)} columns named '{assignment} (<id>)', and one is needed: make "
            f"the assignment in Canvas under this name and export again, or give the number of its column, "
            f"as in --id {assignment}=4711. There are {', '.join(map(repr, table.header))}."
        )
    return known[0]


def _compare_possible(table: Table, column: str, maximum: float) -> None:
    """ExportError if Canvas has other points for the column, since all percentages would then be wrong."""
    if column not in table.header or not maximum:  # a new column, or no notebook that could be read
        return
    name, place = table.column(CANVAS[0]), table.column(column)
    for row in table.rows:
        possible = _number(row[place]) if row[name].strip() == POINTS_POSSIBLE.strip() else None
        if possible is not None and abs(possible - maximum) >= 1e-9:
            raise ExportError(
                f"the column {column!r} has {shown(possible)} points possible, and the assignment has "
                f"{shown(maximum)}: set the assignment's points in Canvas to {shown(maximum)} and export the "
                "gradebook again."
            )


def _number(text: str) -> float | None:
    """None for a text that is not a number, such as "(read only)"."""
    try:
        number = float(text.strip().replace(",", "."))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# ---- Moodle


@dataclass(frozen=True)
class Columns:
    """The names of a worksheet's columns, if the site's language is another.

    student: the column that the students' folders are named after ("": the one in which most are found).
    no: the word in the column `may_change` of a row that must stay as it is. A column `maximum` or
    `may_change` that was not named by the caller may be missing.
    """

    student: str = ""
    grade: str = GRADE
    maximum: str = MAXIMUM
    may_change: str = MAY_CHANGE
    no: str = "No"

    def optional(self, table: Table, name: str, usual: str) -> int | None:
        """The place of a column that may be missing under its usual name. ExportError else."""
        return None if name == usual and name not in table.header else table.column(name)


def moodle(
    scores: Scores, maximum: float, worksheet: str, columns: Columns | None = None
) -> tuple[str, list[str]]:
    """(the filled-in worksheet, notes) of one assignment.

    Only the grade is written; rows of students without one, and rows that Moodle says must not change,
    stay as they were: the dates by which Moodle sees whether a grade was changed in between, too.
    A grade above the maximum is written as the maximum, since Moodle's importer passes over such a row
    without a word ("out of range" in mod/assign/feedback/offline); the notes name whose extra credit is lost.
    ExportError if a column is missing or the worksheet's maximum is another than the assignment's.
    """
    columns, table = columns or Columns(), read_table(worksheet)
    place = table.column(columns.grade)
    key = table.column(columns.student) if columns.student else _key_column(table, scores)
    most = columns.optional(table, columns.maximum, MAXIMUM)
    may_change = columns.optional(table, columns.may_change, MAY_CHANGE)
    rows, locked, cut = [], [], []
    called = [_called(row, [*range(min(2, len(row))), key]) for row in table.rows]
    own = [numbered(row, scores) for row in table.rows]
    keys = [
        # A row without a text in the column of the others may still have the folder's name elsewhere.
        [row[key], mark, *(row if not row[key].strip() else [""] * len(row))]
        for row, mark in zip(table.rows, own, strict=True)
    ]
    matched = match(scores, keys, called)
    for k, row in enumerate(table.rows):
        who = matched.students.get(k)
        is_locked = may_change is not None and _is_no(row[may_change], columns.no)
        if is_locked:
            locked.append(who or row[key])
        if who is not None:
            _compare_maximum("" if most is None else row[most], maximum)
            score = scores[who]
            if score is not None and not is_locked:
                row = [*row[:place], shown(min(score, maximum)), *row[place + 1 :]]
                cut += [who] if score > maximum else []
        rows.append(row)
    by_key = [student for k, student in matched.students.items() if student != own[k]]
    notes = (
        [f"The students' folders have the names in the column {table.header[key]!r}."]
        if by_key and not columns.student
        else []
    )
    notes += [
        *by_number(matched, own, called),
        *matched.notes,
        *_left_alone(locked),
        *_cut(cut, scores, maximum),
    ]
    notes += _not_importable(table, columns)
    notes += [
        f"{who} has a grade and is not in the worksheet."
        for who in sorted(set(scores) - matched.fitting)
    ]
    return Table(table.header, rows, table.delimiter, table.mark).to_text(), notes


def _is_no(text: str, no: str) -> bool:
    return text.strip().lower() in (no.strip().lower(), "0")


def _left_alone(locked: Sequence[str]) -> list[str]:
    if not locked:
        return []
    rows = "1 row stays as it was" if len(locked) == 1 else f"{len(locked)} rows stay as they were"
    return [f"{rows}, since Moodle says that the grade cannot be changed: {', '.join(locked)}."]


def _cut(students: Sequence[str], scores: Scores, maximum: float) -> list[str]:
    if not students:
        return []
    who = ", ".join(f"{student} ({shown(scores[student] or 0)})" for student in students)
    return [
        f"Moodle takes no grade above an assignment's maximum, so {shown(maximum)} is written for {who}: "
        "enter the points above it as a grade item of its own, which Moodle can mark as extra credit."
    ]


def _not_importable(table: Table, columns: Columns) -> list[str]:
    """Sentences on columns that Moodle needs in an English worksheet; others have names of their own."""
    missing = [repr(name) for name in IMPORTED if name not in table.header]
    if columns.grade != GRADE or not missing:
        return []
    return [
        f"Moodle imports no worksheet without its column {' and '.join(missing)}: export it again."
    ]


def _key_column(table: Table, scores: Scores) -> int:
    counts = [
        len(match(scores, [[row[place]] for row in table.rows], [""] * len(table.rows)).fitting)
        for place in range(len(table.header))
    ]
    if any(numbered(row, scores) for row in table.rows):
        return counts.index(max(counts))
    if not counts or not max(counts):
        raise ExportError(
            "no column of the worksheet holds the names of the students' folders, such as "
            f"{', '.join(sorted(scores)[:3])}: let the site put user names, ID numbers or addresses in it."
        )
    return counts.index(max(counts))


def _compare_maximum(text: str, maximum: float) -> None:
    said = text.strip()
    if not said or not maximum:  # no notebook that could be read says how many points there are
        return
    most = _number(said)  # None for a scale of words instead of points
    if most is None or abs(most - maximum) >= 1e-9:
        raise ExportError(
            f"the worksheet's maximum grade is {said}, the assignment has {shown(maximum)} points: set the "
            "assignment's maximum grade in Moodle and export the worksheet again."
        )
