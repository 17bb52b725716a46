"""Hints from the order of a schedule: how far ranks run ahead, and in which order microbatches come.

Each hint names a usual mistake if the schedule looks as that mistake makes it look; otherwise it is "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes
from course_lib.pipeline import Action, Pair, simulate
from course_lib.pipeline.actions import flat

Row = Sequence[Action | Pair]
Hint = Callable[[Sizes, Rows], str]
SHOWN = 8  # microbatches of an order that are told


def first_of(*hints: Hint) -> Hint:
    """The first of the hints that knows something."""

    def hint(sizes: Sizes, rows: Rows) -> str:
        return next((said for candidate in hints if (said := candidate(sizes, rows))), "")

    return hint


def ahead(row: Row) -> int:
    """Forwards before the first backward."""
    count = 0
    for action in flat(row):
        if action.kind in "BI":
            break
        count += action.kind == "F"
    return count


def of_kind(row: Row, kinds: str) -> list[Action]:
    return [action for action in flat(row) if action.kind in kinds]


def by_stage(rows: Rows, kinds: str) -> dict[int, list[int]]:
    """The microbatches of each stage's actions of these kinds, in order; stages from the first on."""
    orders: dict[int, list[int]] = {}
    for action in sorted(of_kind([entry for row in rows for entry in row], kinds), key=lambda a: a.stage):
        orders.setdefault(action.stage, []).append(action.microbatch)
    return orders


def shown(order: Sequence[int]) -> str:
    return ", ".join(map(str, order[:SHOWN])) + (", ..." if len(order) > SHOWN else "")


# ---- of any schedule


def counted_from_one(sizes: Sizes, rows: Rows) -> str:
    """Stages or microbatches that begin with 1."""
    done = [action for row in rows for action in flat(row)]
    for name, numbers in (
        ("Stages", {action.stage for action in done}),
        ("Microbatches", {action.microbatch for action in done}),
    ):
        if numbers and min(numbers) == 1 and max(numbers) == len(numbers):
            return f"{name} are counted from 0."
    return ""


def turned_round(sizes: Sizes, rows: Rows) -> str:
    """Actions whose stage and microbatch have changed places: read so, each rank has its own stages."""
    for rank, row in enumerate(rows):
        named = {action.microbatch % sizes.stages for action in flat(row)}
        if not row or named != {rank} or sizes.stages == 1:
            return ""
    return "Have stage and microbatch changed places? Write Action(stage, kind, microbatch)."


def one_list(sizes: Sizes, rows: Rows) -> str:
    """One list for all ranks, with the actions of several stages."""
    several = len({action.stage for action in flat(rows[0])}) > 1 if rows else False
    if sizes.stages > 1 and sizes.v == 1 and several and all(row == rows[0] for row in rows):
        return (
            "All ranks have the same list. Give each rank a list of its own, with the actions of its own "
            "stage ([[]] * stages contains one list many times)."
        )
    return ""


def not_there(sizes: Sizes, rows: Rows) -> str:
    """Microbatches that there are not, where a rank runs further ahead than there are microbatches."""
    outside = any(action.microbatch >= sizes.microbatches for row in rows for action in flat(row))
    few = sizes.microbatches < sizes.stages * sizes.v
    return (
        "With fewer microbatches than stages a rank has no more than m forwards, so its warm-up ends with "
        "them."
        if outside and few
        else ""
    )


def not_come_back(sizes: Sizes, rows: Rows) -> str:
    """Forwards without their backward."""
    for rank, row in enumerate(rows):
        forwards, backwards = len(of_kind(row, "F")), len(of_kind(row, "BI"))
        if forwards == sizes.microbatches * sizes.v and 0 < backwards < forwards:
            lost = forwards - backwards
            return kit.Sentence(
                f"Rank {rank} does {words.counted(forwards, 'forward')}, but only "
                f"{words.counted(backwards, 'backward')}, so {lost} {words.verb([0] * lost, 'is', 'are')} "
                "missing. Every microbatch comes back, the last of them after the rank's last forward.",
                "A rank has as many backwards as forwards, because every microbatch comes back, the last of "
                "them after the rank's last forward.",
            )
    return ""


def ranks_reversed(sizes: Sizes, rows: Rows) -> str:
    """The rows of a schedule from the last rank to the first."""
    p = sizes.stages
    firsts = [{action.stage % p for action in flat(row) if action.stage < p} for row in rows]
    if p > 1 and firsts == [{p - 1 - rank} for rank in range(p)]:
        return "The lists are in the reverse order. The first list is for rank 0, which has the first stage."
    return ""


def orders_differ(sizes: Sizes, rows: Rows) -> str:
    """Neighbouring stages that take the microbatches in different orders."""
    for kinds, name in (("F", "forward"), ("BI", "backward")):
        orders = by_stage(rows, kinds)
        for stage, order in orders.items():
            before = orders.get(stage - 1, order)
            if order != before and sorted(order) == sorted(before):
                return kit.Sentence(
                    f"Stage {stage - 1} takes the microbatches {name} in the order {shown(before)}, but "
                    f"stage {stage} in the order {shown(order)}, so one stage waits for an action the other "
                    "stage does later.",
                    f"All stages take the microbatches {name} in one order. Otherwise one stage waits "
                    "for an action the other stage does later.",
                )
    return ""


def behind_the_next(sizes: Sizes, rows: Rows) -> str:
    """A rank that goes backward sooner than the next one can send it anything."""
    for rank, (row, below) in enumerate(pairwise(rows)):
        own, needed = ahead(row), ahead(below)
        if own < needed and of_kind(row, "BI"):
            return kit.Sentence(
                f"Rank {rank} does {words.counted(own, 'forward')} before its first backward, but "
                f"rank {rank + 1} does {needed}. So rank {rank + 1} needs {needed} from rank {rank} first, "
                f"while rank {rank} waits for its gradient. A stage must run further ahead than the stage "
                "after it.",
                "A stage must run further ahead than the stage after it, because otherwise each waits for "
                "the other stage.",
            )
    return ""


MISNAMED = first_of(one_list, counted_from_one, turned_round, ranks_reversed)  # in any schedule
IMPOSSIBLE = first_of(MISNAMED, not_there, not_come_back, orders_differ, behind_the_next)


# ---- how far each rank runs ahead, where a schedule says it


def warm_up(needed: Callable[[Sizes, int], int], why: str) -> tuple[Hint, Hint]:
    """Hints on too few forwards before the first backward (late), and on too many (heavy).

    needed: forwards before the first backward; why: how one comes by it.
    """

    def wrong_ranks(sizes: Sizes, rows: Rows, sign: int) -> Iterator[tuple[int, int, int]]:
        for rank, row in enumerate(rows):
            own, right = ahead(row), needed(sizes, rank)
            if (own - right) * sign > 0:
                yield rank, own, right

    def short(sizes: Sizes, rows: Rows) -> str:
        for rank, own, right in wrong_ranks(sizes, rows, -1):
            return kit.Sentence(
                f"Rank {rank} does {words.counted(own, 'forward')} before its first backward, but the "
                f"pipeline stays full with {right} ({why}).",
                f"A rank does too few forwards before its first backward to keep the pipeline full ({why}).",
            )
        return ""

    def long(sizes: Sizes, rows: Rows) -> str:
        ranks_ahead = list(wrong_ranks(sizes, rows, 1))
        last = sizes.stages - 1
        if len(ranks_ahead) == 1 and ranks_ahead[0][0] == last and last and ranks_ahead[0][2] == 1:
            return "The last rank needs no warm-up, because it can go backward as soon as it went forward."
        for rank, own, right in ranks_ahead:
            return kit.Sentence(
                f"Rank {rank} does {words.counted(own, 'forward')} before its first backward, but {right} "
                f"{words.verb([0] * right, 'is', 'are')} enough ({why}).",
                f"A rank does more forwards before its first backward than are needed ({why}).",
            )
        return ""

    return short, long


def two_forwards(sizes: Sizes, rows: Rows) -> str:
    """A warm-up of the right length, and more forwards than backwards after it."""
    for rank, row in enumerate(rows):
        rest = [action for action in flat(row) if action.kind != "W"][ahead(row) :]
        for action, following in pairwise(rest):
            if action.kind == following.kind == "F":
                return kit.Sentence(
                    f"Rank {rank} does {action} and {following} in a row after its first backward, but "
                    "from there on one forward and one backward take turns.",
                    "After the first backward one forward and one backward take turns.",
                )
    return ""


def all_forwards_first(sizes: Sizes, rows: Rows) -> bool:
    """Whether every rank does all of its forwards before its first backward, as in GPipe."""
    return all(ahead(row) == sizes.microbatches * sizes.v for row in rows)


def one_at_a_time(sizes: Sizes, rows: Rows) -> bool:
    """Whether every rank has one microbatch in flight at most, as in the naive schedule."""
    for row in rows:
        held = 0
        for action in flat(row):
            held += {"F": 1, "W": 0}.get(action.kind, -1)
            if held > 1:
                return False
    return True


def is_naive(sizes: Sizes, rows: Rows) -> str:
    if sizes.stages > 1 and sizes.microbatches > 1 and one_at_a_time(sizes, rows):
        return (
            "This is the naive schedule, because the next microbatch enters only when the previous one "
            "is done."
        )
    return ""


def longest_gap(sizes: Sizes, rows: Rows, copies: int = 1) -> str:
    """Where the chart shows the longest white between two actions of a rank."""
    run = simulate(rows, copies=copies, checked=True)
    gaps = [
        (after - end, rank, place)
        for rank, (starts, ends) in enumerate(zip(run.starts, run.ends, strict=True))
        for place, (end, after) in enumerate(zip(ends, starts[1:], strict=False))
    ]
    gap, rank, place = max(gaps, default=(0, 0, 0))
    if not gap:
        return ""
    return kit.Sentence(
        f"In the chart the longest gap is on rank {rank}, between {rows[rank][place]} and "
        f"{rows[rank][place + 1]}.",
        "Look in the chart for the longest gap between two actions of a rank.",
    )
