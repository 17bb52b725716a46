"""One page for the class: submissions to look at, each exercise's points, every submission.

It is one file that loads nothing; its one script, which sorts and filters the table, is named by its hash
in the page's Content-Security-Policy, and no other can run.
"""

from __future__ import annotations

import base64
import hashlib
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from autograder.outcome import status as statuses
from autograder.outcome import wording
from autograder.outcome.result import Exercise, Result, write_whole
from autograder.report import figures, pages
from autograder.report.alike import Likeness, groups
from autograder.report.disclosure import disclosed

MISTAKES = 15  # of each assignment
REASON = 300  # characters of a reason in the table
OF_A_CELL = re.compile(r"cell ('[\w-]+') (had been \w+)")
NAMED = 3  # cells
NOT_WRITTEN = "not written yet"  # the title of a report on a stub
CALM = (statuses.GRADED, statuses.BLANK)  # statuses that no person needs to look at

Link = Callable[[str, str], str]  # (student, assignment) -> a page's address; "" for none


@dataclass(frozen=True)
class Line:
    """One row of the table, or of those to be looked at."""

    student: str
    assignment: str
    link: str
    score: str
    number: float
    status: str
    tone: str
    reason: str
    why: list[str]


def _together(said: Iterable[str]) -> list[str]:
    """Sentences about cells that say the same of each, as one: "cells 'a', 'b', 'c' and 6 more had ...\"."""
    cells: dict[str, list[str]] = {}
    for sentence in said:
        match = OF_A_CELL.fullmatch(sentence)
        name, rest = match.groups() if match else ("", sentence)
        cells.setdefault(rest, []).append(name)
    together = []
    for rest, names in cells.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        listed = ", ".join(names[:NAMED]) + more
        together.append(f"cell{'s' * (len(names) > 1)} {listed} {rest}" if names[0] else rest)
    return together


def feedback_link(student: str, assignment: str) -> str:
    """The address of a feedback page, relative to the class page."""
    return "/".join(quote(part) for part in ("feedback", student, assignment, f"{assignment}.html"))


def nowhere(student: str, assignment: str) -> str:
    return ""


def class_page(
    results: Sequence[Result],
    *,
    alike: Mapping[str, Sequence[Likeness]] | None = None,
    heading: str = "The class",
    link: Link = feedback_link,
    formgrader: Link = nowhere,
) -> str:
    """The page's HTML.

    alike: by assignment, see `autograder.report.alike.compare`. formgrader: its address of a submission.
    """
    script = (pages.FOLDER / "class.js").read_text("utf-8")
    by_assignment: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_assignment[result.assignment].append(result)
    maxima = {name: _maximum(some) for name, some in by_assignment.items()}
    ordered = sorted(results, key=lambda result: (result.student, result.assignment))
    lines = [_line(result, maxima[result.assignment], link) for result in ordered]
    return pages.fill(
        "class.html.j2",
        policy=_policy(script),
        css=pages.styles("style.css", "class.css"),
        script=Markup(script),  # ours, and nothing is put into it
        heading=heading,
        tiles=_tiles(results),
        sandboxes=_sandboxes(results),
        eyes=[line for line in lines if line.why],
        alike=_alike(alike or {}, link),
        assignments=[
            _assignment(name, by_assignment[name], link, formgrader) for name in sorted(maxima)
        ],
        statuses=sorted({outcome.status for outcome in results}),
        rows=lines,
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


def _line(result: Result, maximum: float, link: Link) -> Line:
    points = wording.score(result)
    why = _together(result.eyes)
    if result.status not in CALM and result.reason:
        why = list(dict.fromkeys([result.reason, *why]))
    elif result.status not in CALM:
        why.insert(0, wording.SAID.get(result.status, "see the feedback page"))
    return Line(
        result.student,
        result.assignment,
        link(result.student, result.assignment),
        f"{wording.shown(points)} / {wording.shown(maximum)}",
        -1.0 if points is None else round(points, 6),
        result.status,
        wording.tone(result.status),
        _cut(result.reason),
        [_cut(text) for text in why],
    )


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= REASON else f"{flat[: REASON - 3]}..."


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


def _alike(alike: Mapping[str, Sequence[Likeness]], link: Link) -> list[dict]:
    return [
        {
            "students": [(student, link(student, assignment)) for student in students],
            "assignment": assignment,
            "said": [str(likeness) for likeness in likenesses],
        }
        for assignment in sorted(alike)
        for students, likenesses in groups(alike[assignment]).items()
    ]


# ---- one assignment


def _assignment(name: str, results: Sequence[Result], link: Link, formgrader: Link) -> dict:
    graded = [result for result in results if result.status != statuses.UNGRADED]
    scores = [result.score for result in graded]
    maximum = _maximum(results)
    return {
        "name": name,
        "summary": _summary(scores, maximum),
        "scores": figures.histogram(scores, maximum) if scores and maximum else Markup(""),
        "exercises": _exercises(graded),
        "table": _points(results, link, formgrader),
        "mistakes": _mistakes(name, graded, link),
    }


def _summary(scores: Sequence[float], maximum: float) -> str:
    if not scores:
        return "No submission has a grade."
    of = {
        "mean": statistics.mean(scores), "median": statistics.median(scores), "lowest": min(scores),
        "highest": max(scores),
    }  # fmt: skip
    points_text = ", ".join(f"{what} {wording.shown(points)}" for what, points in of.items())
    return f"{len(scores)} graded, of {wording.shown(maximum)} points: {points_text}."


def _exercises(results: Iterable[Result]) -> list[dict]:
    """By exercise, in the notebook's order; of submissions that could be read, extra credit if tried."""
    by_name: dict[str, list[Exercise]] = defaultdict(list)
    for result in results:
        for exercise in result.exercises:
            if exercise.attempted:
                by_name[exercise.grade_id].append(exercise)
    rows = []
    for some in by_name.values():
        shares = [
            exercise.points / exercise.maximum if exercise.maximum else 1.0 for exercise in some
        ]
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


def _points(results: Sequence[Result], link: Link, formgrader: Link) -> dict:
    """Students and exercises: the checks' points, in the notebook's order."""
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
        score = wording.score(result)
        rows.append(
            {
                "student": result.student,
                "link": link(result.student, result.assignment),
                "formgrader": formgrader(result.student, result.assignment),
                "score": wording.shown(score),
                "cells": [_cell(own.get(name)) for name in known],
            }
        )
    head = [
        (wording.title(exercise), wording.shown(exercise.maximum)) for exercise in known.values()
    ]
    return {"head": head, "rows": rows, "formgrader": any(row["formgrader"] for row in rows)}


def _cell(exercise: Exercise | None) -> tuple[str, str]:
    """(points, how the cell is coloured): "full", "part" or "none"."""
    if exercise is None:
        return "-", "none"
    share = exercise.points / exercise.maximum if exercise.maximum else 1.0
    return wording.shown(exercise.points), (
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
            "text": _cut(text),
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
