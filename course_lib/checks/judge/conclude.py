"""From the findings on the lines of all cases to a score and a report."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from course_lib.checks import words
from course_lib.checks.judge import witness
from course_lib.checks.judge.case import ANY, Case, Exercise, Finding, Line, wrong
from course_lib.checks.report import SAME, WAITS, WAITS_FOR_OTHERS, Report, ReportLine

HALF, QUARTER = 0.5, 0.25
COUNTS_LATER = "(counts once another value is right)"
NOT_YET = (COUNTS_LATER, WAITS, WAITS_FOR_OTHERS)
PLACES = {"value": 0, "shape": 1, "communication": 2, "memory": 3}  # of the aspects, in the table
FEW = 3  # lines of one cause that keep their own names though none of them was looked at
# Why a line was not looked at: its run broke off or does not count, or was never begun.
BROKEN, NOT_BEGUN = "broken", "not begun"
AT = re.compile(r",? ?\bat (?:Cell In\[\d+\], )?line \d+")  # see `sentence.at`


@dataclass
class Judged:
    """A line with its finding, in the order of the cases.

    unjudged: BROKEN or NOT_BEGUN if the finding is that of the whole run, and not of this line. shown: the
    number that `Line.shows` gave, of a line that has one.
    """

    case: Case
    line: Line
    finding: Finding
    output: list[str] = field(default_factory=list)
    note: str = ""
    unjudged: str = ""
    shown: float | None = None


def conclude(name: str, exercise: Exercise, judged: list[Judged], seed: int, cases: str) -> Report:
    good = any(row.finding.ok for row in judged if is_value(row) and not row.line.trivial)
    only_trivial = all(row.line.trivial for row in judged if is_value(row))
    for row in judged:
        if row.line.trivial and row.finding.ok and not good and not only_trivial:
            row.finding, row.note = wrong(cause="trivial"), COUNTS_LATER
    tampered = next((row for row in judged if row.finding.cause == witness.TAMPERED), None)
    if tampered is not None:  # small cases do not show it: no case proves anything now
        for row in judged:
            row.finding, row.note, row.unjudged, row.shown = tampered.finding, "", BROKEN, None
    possible = sum(row.line.weight for row in judged)
    earned = sum(row.line.weight for row in judged if row.finding.ok)
    all_right = all(row.finding.ok for row in judged)
    score = 1.0 if all_right else round(earned / possible, 6)
    return Report(
        name,
        min(with_the_point(exercise, judged, score), without_the_point(exercise, judged, score)),
        report_lines(judged),
        possible=exercise.points,
        seed=seed,
        cases=cases,
        tampered=tampered is not None,
        extra=exercise.extra,
    )


def without_the_point(exercise: Exercise, judged: list[Judged], score: float) -> float:
    """The largest score that a solution can have: HALF, or a QUARTER, if a finding misses the point.

    So it is if no run was judged that could show the point: a solution may not hide by an error there that
    it misses it. The first such finding gets a sentence about it.
    """
    most = QUARTER if exercise.besides else HALF
    missed = next((row for row in in_order(judged) if misses(row, judged)), None)
    unseen = next((row for row in in_order(judged) if unproven(row, judged)), None)
    if not exercise.point or (missed is None and (unseen is None or score <= most)):
        return 1.0
    earned = "at most half of the points are earned"
    if exercise.besides:
        earned = f"at most a quarter of its points are earned, for {exercise.besides}"
    if missed is not None:
        tell(missed, f"The exercise is about {exercise.point}. Without that, {earned}.")
    elif unseen is not None:
        first = next(row for row in in_order(judged) if row.finding.cause == unseen.finding.cause)
        tell(first, f"The exercise is about {exercise.point}. No run shows that, so {earned}.")
    return most


def tell(row: Judged, sentence: str) -> None:
    row.finding = replace(row.finding, sentences=(*row.finding.sentences, sentence))


def unproven(row: Judged, judged: list[Judged]) -> bool:
    """Whether a row is of a run that alone can show a part of the point, and every such run broke."""
    part = row.case.proves
    return bool(part) and all(broke(other.case, judged) for other in judged if other.case.proves == part)


def broke(case: Case, judged: list[Judged]) -> bool:
    """Whether nothing of a run was judged, or a call in it raised an error."""
    rows = [row for row in judged if row.case is case]
    return any(row.finding.raised for row in rows) or all(row.unjudged for row in rows)


def misses(row: Judged, judged: list[Judged]) -> bool:
    """Whether a finding misses the point, of which no other run shows the same part."""
    others = (other.shown or 0.0 for other in judged if row.line.part and other.line.part == row.line.part)
    return row.finding.misses_point and max(others, default=0.0) < HALF


def with_the_point(exercise: Exercise, judged: list[Judged], score: float) -> float:
    """The score, and no less than HALF for a solution with wrong values that shows the point all the same.

    So it does if in no run more was sent than is due, and one shows at least half of the point, or of each of
    its parts, be the values of that run right or wrong. The first wrong value gets a sentence about it.
    """
    shares = [row.shown for row in judged if row.shown is not None]
    missed = any(misses(row, judged) for row in judged)
    if score >= HALF or not exercise.point or missed:
        return score
    parts = {row.line.part: 0.0 for row in judged if row.line.shows}
    for row in judged:
        if row.shown is not None:
            parts[row.line.part] = max(row.shown, parts[row.line.part])
    if not parts or min(shares, default=0.0) < 0 or min(parts.values()) < HALF:
        return score
    first = next(row for row in in_order(judged) if not row.finding.ok and not row.note)
    sentence = (
        f"Half of the points are earned all the same, for what the exercise is about: {exercise.point}."
    )
    tell(first, sentence)
    return HALF


def in_order(judged: list[Judged]) -> list[Judged]:
    """As the table has them: by aspect."""
    return sorted(judged, key=lambda row: PLACES[row.line.aspect])


def is_value(row: Judged) -> bool:
    return row.line.aspect in ("value", "shape")


def report_lines(judged: list[Judged]) -> list[ReportLine]:
    """In the order of the table: by aspect; of equal causes only the first is told.

    Of a cause that left many lines unjudged these are one line, behind the one that tells it.
    """
    known, placed = set[str](), set[int]()
    lines: list[ReportLine] = []
    alike: dict[str, list[tuple[Judged, ReportLine]]] = {}
    for row in in_order(judged):
        line, finding = row.line, row.finding
        title = finding.title or line.title
        made = ReportLine(title, finding.ok, line.aspect, line.weight, line.short, row.case.hidden, row.note)
        if finding.ok:
            made.say(finding.sentences)  # a remark
        elif not row.note:
            if finding.cause in known or (finding.cause == ANY and known):
                made.note = SAME
                if row.unjudged or finding.raised:
                    alike.setdefault(finding.cause, []).append((row, made))
            else:
                made.say(finding.sentences)
                made.output = row.output
            known.add(finding.cause)
        if made.general:
            made.general = one_place(made.general, id(row.case), placed)
        made.judged = row.note not in NOT_YET and not (row.unjudged and made.note == SAME)
        lines.append(made)
    for several in alike.values():
        if len(several) > FEW:
            fold(lines, several)
    return lines


def one_place(said: list[str], case: int, placed: set[int]) -> list[str]:
    """A case's general sentences, of which the first place of the case stays: each could say a number.

    placed: cases that have told one.
    """
    kept = []
    for sentence in said:
        match = AT.search(sentence)
        if match is not None and case in placed:
            sentence = AT.sub("", sentence)
        elif match is not None:
            sentence = sentence[: match.end()] + AT.sub("", sentence[match.end() :])
            placed.add(case)
        kept.append(sentence)
    return kept


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
    if unrun := len({id(row.case) for row, _ in several if row.unjudged == NOT_BEGUN}):
        runs = f"{words.counted(unrun, 'run')} {words.verb([0] * unrun, 'was', 'were')} not begun"
        together.say([f"{runs}, because a check ends after two deadlocks or time-outs."])
    place = next(i for i, line in enumerate(lines) if line is gone[0])
    lines[place] = together
    lines[:] = [line for line in lines if not any(line is folded for folded in gone)]
