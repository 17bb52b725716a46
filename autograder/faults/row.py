"""One row of the fault matrix: a submission, the grade that it must get, the harm that it must not do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autograder.faults.desk import CIRCLE, Desk

HONEST, KERNEL, RANKS, NOTEBOOK, CHEATING = "honest", "kernel", "ranks", "notebook", "cheating"
GROUPS = (HONEST, KERNEL, RANKS, NOTEBOOK, CHEATING)

FULL = 6.0
LOST = 3.0  # without the exercise that the fault sits in

# Layers of the sandbox that a row may need. Without its layer the row would harm the machine, or its
# success would only repeat that nothing holds it back. Then it is not graded, and the table says so.
FILES, NETWORK, PROCESSES = "files", "network", "processes"
CALLS, APART = "system calls", "ranks apart"


@dataclass(frozen=True)
class Row:
    """A submission and the grade that it must get.

    name: of the student who hands it in. make: writes the submission's folder. status, points: must be
    the grade's; None for points if no outside witness can tell (then the result must match `says`).
    must_not: the event that must not happen. noticed: how it would be noticed. says: a pattern that the
    result's sentences match, "" if they need say nothing. or_status: as right as `status`, if it is a race
    which limit is reached first. needs: of FILES, NETWORK, PROCESSES, CALLS, APART. quick: belongs to the
    reduced matrix of `make test`.
    """

    name: str
    group: str
    make: Callable[[Desk], None]
    status: str
    points: float | None
    must_not: str
    noticed: str
    says: str = ""
    or_status: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    quick: bool = False


# The exercise that the fault sits in is named, as the notebook's cell or as the function.
NAMED = "circle|neighbour_sum"

POINTS_TELL = "by its points"
MARK_TELLS = "by a file left outside the sandbox"
CANARY_TELLS = "by the instructor's secret word in the submission's output"


def before(code: str, exercise: str = CIRCLE) -> Callable[[Desk], None]:
    """The reference's answers, with `code` in front of one: a stop there loses the exercise."""

    def make(desk: Desk) -> None:
        notebook = desk.answered()
        desk.put(notebook, exercise, f"{dedented(code)}\n\n\n{desk.answers[exercise]}")
        desk.hand_in(notebook)

    return make


def instead(code: str, exercise: str = CIRCLE) -> Callable[[Desk], None]:
    """The reference's answers, but for one exercise, whose cell holds `code`."""

    def make(desk: Desk) -> None:
        notebook = desk.answered()
        desk.put(notebook, exercise, dedented(code))
        desk.hand_in(notebook)

    return make


def unsolved(code: str) -> Callable[[Desk], None]:
    """One exercise as it was handed out, and `code` that would have it count as solved."""

    def make(desk: Desk) -> None:
        notebook = desk.answered()
        desk.put(notebook, CIRCLE, f"{dedented(code)}\n\n\n{desk.stubs[CIRCLE]}")
        desk.hand_in(notebook)

    return make


def in_the_ranks(code: str) -> Callable[[Desk], None]:
    """The reference's answers, with `code` at the beginning of the function that the ranks call."""

    def make(desk: Desk) -> None:
        notebook = desk.answered()
        text = desk.answers[CIRCLE]
        first = next(line for line in text.splitlines(True) if line.startswith("    rank, n ="))
        body = textwrap.indent(dedented(code), "    ") + "\n"
        desk.put(notebook, CIRCLE, text.replace(first, first + body))
        desk.hand_in(notebook)

    return make


def dedented(code: str) -> str:
    return textwrap.dedent(code).strip("\n")


def chosen(rows: Sequence[Row], held: frozenset[str]) -> tuple[list[Row], list[Row]]:
    """(rows to grade, rows left out because the sandbox lacks a layer that they need)."""
    graded = [row for row in rows if held >= set(row.needs)]
    return graded, [row for row in rows if row not in graded]
