"""The rows of a graded class: on the terminal and as `grades.csv`."""

from __future__ import annotations

import csv
import io
import shutil
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from autograder.book.standing import Standing, final_score, reason
from autograder.course.typed import write_generated
from autograder.outcome.result import Result
from autograder.outcome.wording import shown, title

COLUMNS = ("student", "assignment", "score", "max_score", "status", "reason")
NARROWEST_REASON = 40
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet's formulas begin with these


@dataclass(frozen=True)
class Row:
    """One submission's grade. `score` is None only where the status is "ungraded"."""

    student: str
    assignment: str
    score: float | None
    max_score: float
    status: str
    reason: str


def as_text(rows: list[Row], width: int | None = None) -> str:
    """The table, at most `width` columns wide (default: the terminal); long reasons are wrapped."""
    width = width or shutil.get_terminal_size((120, 24)).columns
    head = ("student", "assignment", "score", "status")
    cells = [
        (row.student, row.assignment, f"{shown(row.score)}/{shown(row.max_score)}", row.status)
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    used = sum(widths) + 2 * len(widths)
    room = max(NARROWEST_REASON, width - used)

    def line(texts: tuple[str, ...], reason: str) -> str:
        aligned = [
            text.rjust(size) if i == 2 else text.ljust(size)
            for i, (text, size) in enumerate(zip(texts, widths, strict=True))
        ]
        parts = textwrap.wrap(reason, room) or [""]
        first = "  ".join([*aligned, parts[0]]).rstrip()
        return "\n".join([first, *(" " * used + part for part in parts[1:])])

    rule = "-" * min(width, used + room)
    body = [line(texts, row.reason) for texts, row in zip(cells, rows, strict=True)]
    return "\n".join([line(head, "reason"), rule, *body])


def write_csv(rows: list[Row], path: Path) -> None:
    """Write `rows` to `path`, whole or not at all; an ungraded score is an empty field.

    A text that a spreadsheet would compute (a student may be called "=1+1") gets an apostrophe in front.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(COLUMNS)
    for row in rows:
        score = "" if row.score is None else shown(row.score)
        texts = (plain(row.student), row.assignment, score, shown(row.max_score), row.status)
        writer.writerow([*texts, plain(row.reason)])
    write_generated(path, buffer.getvalue())


def read_csv(path: Path) -> list[Row]:
    """The rows that `write_csv` wrote; none if there is no such file."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [
            Row(
                spelled(row["student"]),
                row["assignment"],
                float(row["score"]) if row["score"] else None,
                float(row["max_score"]),
                row["status"],
                spelled(row["reason"]),
            )
            for row in csv.DictReader(file)
        ]


def row_of(result: Result, standing: Standing, maximum: float) -> Row:
    """The row of a result, after what a person added to it and the points taken off for being late."""
    score = final_score(result, standing)
    said = reason(result, standing)
    return Row(result.student, result.assignment, score, maximum, result.status, said)


def write_points(
    results: Iterable[Result], standing: Callable[[Result], Standing], path: Path
) -> None:
    """Write each student's points of every exercise to `path`: a row per student, a column per exercise.

    The points are those that count, a person's before the checks'. A field is empty if there is no grade,
    if an exercise could not be read, and if extra credit was left alone.
    """
    columns: dict[tuple[str, str], str] = {}
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for result in sorted(results, key=lambda result: (result.assignment, result.student)):
        own, counts = rows.setdefault(result.student, {}), standing(result)
        total = final_score(result, counts)
        columns.setdefault((result.assignment, ""), result.assignment)
        own[result.assignment, ""] = "" if total is None else shown(total)
        for exercise in result.exercises:
            key = (result.assignment, exercise.grade_id)
            columns.setdefault(
                key, f"{result.assignment}/{title(exercise)} ({shown(exercise.maximum)})"
            )
            if total is not None and exercise.attempted:
                own[key] = shown(counts.points(exercise))
    ordered = sorted(
        columns, key=lambda key: key[0]
    )  # stable: exercises stay in the notebook's order
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(["student", *(columns[key] for key in ordered)])
    for student in sorted(rows):
        writer.writerow([plain(student), *(rows[student].get(key, "") for key in ordered)])
    write_generated(path, buffer.getvalue())


def spelled(text: str) -> str:
    """The inverse of `plain`."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def plain(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text
