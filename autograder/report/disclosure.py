"""The part of a report on hidden cases that a student may read.

The kind of every case stays: its title, whether it passed, how it relates to others. So do the judge's
sentences on a fault and its usual cause, in the general words that were given to them where they were made
(see `course_lib.checks.sentence`). The seed and the ranks' output go. So does everything that a student's
code could have filled with the inputs that it was given, since a verdict that quotes it would carry the
inputs out: the text of an exception and any type that is not a common one, the arguments of a call, right
values and returned ones, the text of a line of code, shapes, sizes and tags.

Digits remain that the judge computed itself, such as which elements are wrong or how many bytes were sent.
They can be made to carry a few digits a case, and only of this student's own inputs: no other student gets
the same inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.checks.report import ASPECTS, Report, ReportLine


@dataclass(frozen=True)
class Disclosed:
    """One row of an exercise's table: see `course_lib.checks.report.ReportLine`."""

    title: str
    sign: str
    passed: bool
    note: str
    sentences: list[str]
    output: list[str]


def disclosed(report: dict[str, Any]) -> list[Disclosed]:
    """The rows of a judge's report that its student may read, in the order of the table."""
    whole = Report.from_json(report)
    rows = [line for aspect in ASPECTS for line in whole.lines if line.aspect == aspect]
    return [_row(line, hidden=whole.cases == "hidden" or line.hidden) for line in rows]


def _row(line: ReportLine, hidden: bool) -> Disclosed:
    """An older grader's report does not mark its general words: its hidden cases get no sentence."""
    if not hidden:
        return Disclosed(
            line.title, line.sign, line.passed, line.note, list(line.sentences), list(line.output)
        )
    sentences = [" ".join(said.split()) for said in line.general or [] if said]
    return Disclosed(line.title, line.sign, line.passed, line.note, sentences, [])
