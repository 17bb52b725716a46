"""The list for eyes: submissions at which a person should look, and why.

A remark that several submissions of an assignment share, such as changed cells after an editor has saved them
all, becomes one row with their names. So the remark that one submission alone has stands out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autograder.outcome import statuses, wording
from autograder.outcome.result import Result

OF_A_CELL = re.compile(r"cell ('[\w-]+') (had been \w+)")
NAMED = 3  # cells
SHARED = 3  # submissions from which on a remark is one row
LONGEST = 300  # characters of a remark
CALM = (statuses.GRADED, statuses.BLANK)  # statuses that no person needs to look at

Link = Callable[[str, str], str]  # (student, assignment) -> a page's address; "" for none
Key = tuple[str, str, str]  # assignment, status ("" for a calm one), what is said


@dataclass(frozen=True)
class Look:
    """One row: the submissions of an assignment, their status if it matters, and what is said of them."""

    students: list[tuple[str, str]]  # names and links
    assignment: str
    status: str
    tone: str
    why: list[str]


def looks(results: Iterable[Result], link: Link) -> list[Look]:
    """The rows, those on one submission first."""
    ordered = sorted(results, key=lambda result: (result.student, result.assignment))
    sharing: dict[Key, list[Result]] = defaultdict(list)
    cells: dict[Key, dict[str, None]] = defaultdict(dict)  # names, in their order
    for result in ordered:
        for key, name in _remarks(result):
            cells[key] |= {name: None} if name else {}
            if result not in sharing[key]:
                sharing[key].append(result)
    shared = {key for key, some in sharing.items() if len(some) >= SHARED}
    rows = []
    for result in ordered:
        own: dict[Key, dict[str, None]] = defaultdict(dict)
        for key, name in _remarks(result):
            if key not in shared:
                own[key] |= {name: None} if name else {}
        if own:
            why = [_said(key, list(names)) for key, names in own.items()]
            rows.append(_look([result], link, why))
    return rows + [
        _look(sharing[key], link, [_said(key, list(cells[key]))]) for key in sorted(shared)
    ]


def submissions(rows: Sequence[Look]) -> int:
    """How many submissions the rows name."""
    return len({(student, row.assignment) for row in rows for student, _ in row.students})


def cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 3]}..."


def _remarks(result: Result) -> list[tuple[Key, str]]:
    """The remarks on a submission, each with the cell that it is about, or ""."""
    said = list(result.eyes)
    if result.status not in CALM:
        said.insert(0, result.reason or wording.SAID.get(result.status, "see the feedback page"))
    status = "" if result.status in CALM else result.status
    remarks = []
    for sentence in dict.fromkeys(said):
        match = OF_A_CELL.fullmatch(sentence)
        name, rest = match.groups() if match else ("", sentence)
        remarks.append(((result.assignment, status, rest), name))
    return remarks


def _said(key: Key, names: list[str]) -> str:
    """ "cells 'a', 'b', 'c' and 6 more had been changed\"."""
    if not names:
        return cut(key[2])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return cut(f"cell{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{more} {key[2]}")


def _look(some: Sequence[Result], link: Link, why: list[str]) -> Look:
    first = some[0]
    students = [(result.student, link(result.student, result.assignment)) for result in some]
    calm = len(some) > 1 and first.status in CALM
    status = "" if calm else first.status
    return Look(students, first.assignment, status, wording.tone(first.status), why)
