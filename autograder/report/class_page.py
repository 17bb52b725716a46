"""One page for the class: every score, the submissions to look at, each exercise's points.

It is one file that loads nothing; its one script, which sorts and filters the table, is named by its hash
in the page's Content-Security-Policy, and no other can run.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from autograder.book.leftover import in_words
from autograder.book.standing import Standing, final_score, has_no_time, reason
from autograder.outcome import statuses, wording
from autograder.outcome.result import Exercise, Result, write_whole
from autograder.report import figures, pages
from autograder.report.disclosure import disclosed
from autograder.report.eyes import Link, cut, looks, submissions
from course_lib.checks.words import counted

FEW = 5  # scores: a drawing of fewer says no more than the table
MISTAKES, FIRST = 15, 5  # of each assignment, and those that are not folded away
BY_HAND = "*"  # behind points that a person gave
NOT_WRITTEN = "not written yet"  # the title of a report on a stub

Of = Callable[[Result], Standing]  # a person's additions to a result


@dataclass(frozen=True)
class Line:
    """One row of the table of all submissions."""

    student: str
    assignment: str
    link: str
    score: str
    number: float
    status: str
    tone: str
    reason: str


def feedback_link(student: str, assignment: str) -> str:
    """The address of a feedback page, relative to the class page."""
    return "/".join(quote(part) for part in ("feedback", student, assignment, f"{assignment}.html"))


def nowhere(student: str, assignment: str) -> str:
    return ""


def as_graded(result: Result) -> Standing:
    return Standing()


def class_page(
    results: Sequence[Result],
    *,
    heading: str = "The class",
    link: Link = feedback_link,
    formgrader: Link = nowhere,
    standing: Of = as_graded,
    server: str = "",
    left_out: Sequence[str] = (),
) -> str:
    """The page's HTML.

    formgrader: its address of a submission. standing: a person's points of a submission, which count before
    the checks'. server: the address of the Jupyter server to which the links to formgrader lead. left_out:
    sentences on files that were handed in and not read.
    """
    script = (pages.FOLDER / "class.js").read_text("utf-8")
    by_assignment: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_assignment[result.assignment].append(result)
    maxima = {name: _maximum(some) for name, some in by_assignment.items()}
    ordered = sorted(results, key=lambda result: (result.student, result.assignment))
    lines = [_line(result, maxima[result.assignment], link, standing(result)) for result in ordered]
    eyes = looks(results, link)
    return pages.fill(
        "class.html.j2",
        policy=_policy(script),
        css=pages.styles("style.css", "class.css"),
        script=Markup(script),  # ours, and nothing is put into it
        heading=heading,
        tiles=_tiles(results),
        sandboxes=_sandboxes(results),
        eyes=eyes,
        left_out=[cut(note) for note in left_out],
        looked_at=submissions(eyes),
        assignments=[
            _assignment(name, by_assignment[name], link, formgrader, standing)
            for name in sorted(maxima)
        ],
        statuses=sorted({outcome.status for outcome in results}),
        rows=lines,
        server=server,
    )


def write_class_page(results: Sequence[Result], page: Path, **more) -> None:
    """Write the page to `page`, whole or not at all. more: as for `class_page`."""
    write_whole(page, class_page(results, **more))


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _maximum(results: Iterable[Result]) -> float:
    """An assignment's points, from the results that know them: one that could not be read does not."""
    return max((wording.maximum(result) for result in results), default=0.0)


def _line(result: Result, maximum: float, link: Link, standing: Standing) -> Line:
    points = final_score(result, standing)
    return Line(
        result.student,
        result.assignment,
        link(result.student, result.assignment),
        f"{wording.shown(points)} / {wording.shown(maximum)}",
        -1.0 if points is None else round(points, 6),
        result.status,
        wording.tone(result.status),
        cut(reason(result, standing)),
    )


def _tiles(results: Sequence[Result]) -> list[tuple[str, int]]:
    counts = Counter(result.status for result in results)
    return [("submissions", len(results)), *sorted(counts.items(), key=lambda item: -item[1])]


def _sandboxes(results: Sequence[Result]) -> list[str]:
    """Sentences: which layers held, for how many submissions. Those of which nothing ran do not count."""
    run = [result for result in results if result.status not in wording.WITHOUT_NOTEBOOK]
    counts = Counter(tuple(result.sandbox) for result in run)
    said = []
    for layers, count in counts.most_common():
        which = "All submissions" if count == len(run) else f"{count} of {len(run)} submissions"
        inside = f"inside: {', '.join(layers)}" if layers else "without a sandbox"
        said.append(f"{which} ran {inside}.")
    return said


# ---- one assignment


def _assignment(
    name: str, results: Sequence[Result], link: Link, formgrader: Link, standing: Of
) -> dict:
    graded = [result for result in results if result.status != statuses.UNGRADED]
    finals = [final_score(result, standing(result)) for result in graded]
    scores = [score for score in finals if score is not None]
    maximum = _maximum(results)
    mistakes = _mistakes(name, graded, link)
    return {
        "name": name,
        "summary": _summary(scores, maximum),
        "untimed": _untimed(results, standing),
        "many": len(scores) >= FEW,
        "scores": figures.histogram(scores, maximum)
        if len(scores) >= FEW and maximum
        else Markup(""),
        "exercises": _exercises(graded, standing),
        "table": _points(results, link, formgrader, standing),
        "mistakes": mistakes[:FIRST],
        "more": mistakes[FIRST:],
    }


def _summary(scores: Sequence[float], maximum: float) -> str:
    if not scores:
        return "No submission has a grade."
    of = {
        "mean": statistics.mean(scores), "median": statistics.median(scores), "lowest": min(scores),
        "highest": max(scores),
    }  # fmt: skip
    points_text = ", ".join(f"{what} {wording.shown(points)}" for what, points in of.items())
    # Not "graded", which is a status: also what was unreadable, or timed out, has a score.
    return (
        f"{counted(len(scores), 'score')}, out of {wording.shown(maximum)} points: {points_text}."
    )


def _untimed(results: Iterable[Result], standing: Of) -> str:
    """A sentence that names the students of whose work it is not known whether it was late; "" for none."""
    who = sorted(result.student for result in results if has_no_time(result, standing(result)))
    if not who:
        return ""
    work = "1 submission has" if len(who) == 1 else f"{len(who)} submissions have"
    return f"{work} no time stamp, so no points can be taken off for being late: {in_words(who)}."


def _exercises(results: Iterable[Result], standing: Of) -> list[dict]:
    """By exercise, in the notebook's order; of submissions that could be read, extra credit if tried."""
    by_name: dict[str, list[Exercise]] = defaultdict(list)
    shares_of: dict[str, list[float]] = defaultdict(list)
    for result in results:
        counts = standing(result)
        for exercise in result.exercises:
            if exercise.attempted:
                by_name[exercise.grade_id].append(exercise)
                shares_of[exercise.grade_id].append(_share(exercise, counts))
    rows = []
    for name, some in by_name.items():
        shares = shares_of[name]
        rows.append(
            {
                "title": wording.title(some[0]) + _tried(some),
                "mean": f"{sum(shares) / len(shares):.0%}",
                "full": sum(share >= 1.0 for share in shares),
                "none": sum(share <= 0.0 for share in shares),
                "figure": figures.bars(figures.bins_of_shares(shares)),
            }
        )
    return rows


def _share(exercise: Exercise, standing: Standing) -> float:
    return standing.points(exercise) / exercise.maximum if exercise.maximum else 1.0


def _points(results: Sequence[Result], link: Link, formgrader: Link, standing: Of) -> dict:
    """Students and exercises: the points that count, in the notebook's order."""
    known: dict[str, Exercise] = {}
    for result in results:
        for exercise in result.exercises:
            known.setdefault(exercise.grade_id, exercise)
    rows = []
    for result in sorted(results, key=lambda result: result.student):
        own = {
            own_exercise.grade_id: own_exercise
            for own_exercise in result.exercises
            if own_exercise.attempted
        }
        counts = standing(result)
        score = final_score(result, counts)
        rows.append(
            {
                "student": result.student,
                "link": link(result.student, result.assignment),
                "formgrader": formgrader(result.student, result.assignment),
                "score": wording.shown(score),
                "cells": [_cell(own.get(name), counts) for name in known],
            }
        )
    head = [
        (wording.title(exercise), wording.shown(exercise.maximum)) for exercise in known.values()
    ]
    return {
        "head": head,
        "rows": rows,
        "formgrader": any(row["formgrader"] for row in rows),
        "by_hand": any(text.endswith(BY_HAND) for row in rows for text, _ in row["cells"]),
    }


def _cell(exercise: Exercise | None, standing: Standing) -> tuple[str, str]:
    """(points, how the cell is coloured): "full", "part" or "none"; points by hand have a star."""
    if exercise is None:
        return "-", "none"
    own = standing.by_hand.get(exercise.grade_id)
    star = BY_HAND if own is not None and own.points is not None else ""
    share = _share(exercise, standing)
    return f"{wording.shown(standing.points(exercise))}{star}", (
        "full" if share >= 1 else "part" if share > 0 else "none"
    )


def _tried(some: Sequence[Exercise]) -> str:
    return f" (extra credit, tried by {len(some)})" if some[0].extra else ""


def _mistakes(assignment: str, results: Iterable[Result], link: Link) -> list[dict]:
    """The sentences on the first failing case of each exercise, the most frequent first.

    They stand in the general words of `disclosure`, so that the same mistake is counted as one though
    its values differ from submission to submission.
    """
    who: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        if result.status == statuses.BLANK:
            continue
        for exercise in result.exercises:
            lost = exercise.attempted and exercise.points < exercise.maximum
            if lost and (text := _first_sentence(exercise)):
                who[wording.title(exercise), text].append(result.student)
    ranked = sorted(who.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {
            "count": len(students),
            "exercise": exercise,
            "text": cut(text),
            "students": [(student, link(student, assignment)) for student in sorted(students)],
        }
        for (exercise, text), students in ranked[:MISTAKES]
    ]


def _first_sentence(exercise: Exercise) -> str:
    if not exercise.report:
        return exercise.reason
    failed = [row for row in disclosed(exercise.report) if not row.passed]
    if failed and failed[0].title == NOT_WRITTEN:
        return NOT_WRITTEN  # its place in the notebook differs between students
    return next(
        (said for row in failed for said in row.sentences), failed[0].title if failed else ""
    )
