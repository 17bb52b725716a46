"""From the findings on the lines of all cases to a score and a report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from course_lib.checks import words
from course_lib.checks.judge import witness
from course_lib.checks.judge.case import ANY, Case, Exercise, Finding, Line, wrong
from course_lib.checks.report import SAME, WAITS, Report, ReportLine

HALF, QUARTER = 0.5, 0.25
COUNTS_LATER = "(counts once another value is right)"
NOT_YET = (COUNTS_LATER, WAITS)
PLACES = {"value": 0, "shape": 1, "communication": 2, "memory": 3}  # of the aspects, in the table
FEW = 3  # lines of one cause that keep their own names though none of them was looked at
# Why a line was not looked at: its run broke off or does not count, or was never begun.
BROKEN, NOT_BEGUN = "broken", "not begun"


@dataclass
class Judged:
    """A line with its finding, in the order of the cases.

    unjudged: BROKEN or NOT_BEGUN if the finding is that of the whole run, and not of this line.
    """

    case: Case
    line: Line
    finding: Finding
    output: list[str] = field(default_factory=list)
    note: str = ""
    unjudged: str = ""


def conclude(name: str, exercise: Exercise, judged: list[Judged], seed: int, cases: str) -> Report:
    good = any(one.finding.ok for one in judged if is_value(one) and not one.line.trivial)
    only_trivial = all(one.line.trivial for one in judged if is_value(one))
    for one in judged:
        if one.line.trivial and one.finding.ok and not good and not only_trivial:
            one.finding, one.note = wrong(cause="trivial"), COUNTS_LATER
    tampered = next((one for one in judged if one.finding.cause == witness.TAMPERED), None)
    if tampered is not None:  # small cases do not show it: no case proves anything now
        for one in judged:
            one.finding, one.note, one.unjudged = tampered.finding, "", BROKEN
    possible = sum(one.line.weight for one in judged)
    earned = sum(one.line.weight for one in judged if one.finding.ok)
    all_right = all(one.finding.ok for one in judged)
    score = 1.0 if all_right else round(earned / possible, 6)
    return Report(
        name,
        min(score, without_the_point(exercise, judged)),
        report_lines(judged),
        possible=exercise.points,
        seed=seed,
        cases=cases,
        tampered=tampered is not None,
        extra=exercise.extra,
    )


def without_the_point(exercise: Exercise, judged: list[Judged]) -> float:
    """The largest score that a solution can have: HALF, or a QUARTER, if a finding misses the point.

    The first such finding gets a sentence about it.
    """
    missed = next((one for one in in_order(judged) if one.finding.misses_point), None)
    if missed is None or not exercise.point:
        return 1.0
    told = f"The exercise is about {exercise.point}: without that at most "
    if exercise.besides:
        told += f"a quarter of its points is earned, for {exercise.besides}."
    else:
        told += "half of its points are earned."
    missed.finding = replace(missed.finding, sentences=(*missed.finding.sentences, told))
    return QUARTER if exercise.besides else HALF


def in_order(judged: list[Judged]) -> list[Judged]:
    """As the table has them: by aspect."""
    return sorted(judged, key=lambda one: PLACES[one.line.aspect])


def is_value(one: Judged) -> bool:
    return one.line.aspect in ("value", "shape")


def report_lines(judged: list[Judged]) -> list[ReportLine]:
    """In the order of the table: by aspect; of equal causes only the first is told.

    Of a cause that left many lines unjudged these are one line, behind the one that tells it.
    """
    known: set[str] = set()
    lines: list[ReportLine] = []
    alike: dict[str, list[tuple[Judged, ReportLine]]] = {}
    for one in in_order(judged):
        line, finding = one.line, one.finding
        title = finding.title or line.title
        made = ReportLine(
            title, finding.ok, line.aspect, line.weight, line.short, one.case.hidden, one.note
        )
        if finding.ok:
            made.say(finding.sentences)  # a remark
        elif not one.note:
            if finding.cause in known or (finding.cause == ANY and known):
                made.note = SAME
                if one.unjudged or finding.raised:
                    alike.setdefault(finding.cause, []).append((one, made))
            else:
                made.say(finding.sentences)
                made.output = one.output
            known.add(finding.cause)
        made.judged = one.note not in NOT_YET and not (one.unjudged and made.note == SAME)
        lines.append(made)
    for several in alike.values():
        if len(several) > FEW:
            fold(lines, several)
    return lines


def fold(lines: list[ReportLine], several: list[tuple[Judged, ReportLine]]) -> None:
    """Several of the lines become one that has their weight, in the place of the first of them."""
    gone = [made for _, made in several]
    together = ReportLine(
        f"{words.counted(len(gone), 'other case')} were not judged",
        False,
        gone[0].aspect,
        sum(made.weight for made in gone),
        hidden=any(made.hidden for made in gone),
        note=SAME,
        judged=False,
    )
    if unrun := len({id(one.case) for one, _ in several if one.unjudged == NOT_BEGUN}):
        runs = f"{words.counted(unrun, 'run')} {words.verb([0] * unrun, 'was', 'were')} not begun"
        together.say([f"{runs}: after two deadlocks or time-outs a check ends."])
    place = next(i for i, line in enumerate(lines) if line is gone[0])
    lines[place] = together
    lines[:] = [line for line in lines if not any(line is one for one in gone)]
