"""What a training run sends: how much, between which moments, and when within a backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checks import words
from course_lib.checks.judge.case import Finding, Line, Observed, wrong
from course_lib.ledger.operation import Operation


def volume_line(
    least: Sequence[float],
    *,
    most: Sequence[float] | None = None,
    hint: Callable[[float, Observed], str] | None = None,
    weight: float = 1.0,
    title: str = "bytes sent",
    what: str = "",
    between: tuple[int, int] | None = None,
    point: float = float("inf"),
) -> Line:
    """Bytes that each rank sends, collectives counted as the best algorithm sends them (see the ledger).

    Between `least` and `most` (the same when left out). hint: given the ratio, the usual cause. between:
    two places in "begun" of `recipes`, such as (2, 4) for the second step; the whole run when left out.
    point: from that many times too many bytes on, the point of the exercise is missed (see `Exercise`).
    """
    allowed = list(most or least)

    def judge(seen: Observed) -> Finding:
        sent = [sum(one.bytes_sent for one in rank) for rank in within(seen, between)]
        for rank, bytes_of_rank in enumerate(sent):
            if least[rank] - 1 <= bytes_of_rank <= allowed[rank] + 1:
                continue
            many = bytes_of_rank > allowed[rank]
            bound = allowed[rank] if many else least[rank]
            ratio = bytes_of_rank / bound if bound else float("inf")
            enough = "are enough" if many else "are needed"
            return wrong(
                f"rank {rank} sent {words.number(round(bytes_of_rank))} bytes; "
                f"{words.number(round(bound))} {enough}{what}.",
                hint(ratio, seen) if hint else "",
                cause=f"bytes {ratio:.2f}",
                misses_point=ratio >= point,
            )
        return Finding(True, title=f"{title}: {words.number(round(max(sent)))} by the busiest rank")

    return Line(title, judge, weight, "communication")


def within(seen: Observed, between: tuple[int, int] | None) -> list[list[Operation]]:
    """Each rank's operations between two moments; none of a rank that did not tell them as agreed."""
    if between is None:
        return seen.operations
    found = []
    for rank, operations in enumerate(seen.operations):
        told = seen.values[rank].get("begun")
        begun = told if isinstance(told, list) and len(told) > max(between) else []
        first, last = (begun[between[0]], begun[between[1]]) if begun else (0, 0)
        whole = type(first) is int and type(last) is int and 0 <= first <= last
        found.append(operations[first:last] if whole else [])
    return found


@dataclass(frozen=True)
class Pass:
    """A moment of backward: the gradients of all later blocks are complete, those of `block` are not.

    begun, waited: operations of the rank that had begun, and how many of them it had waited for; latest:
    whether it had waited for the last of them.
    """

    block: int
    begun: int
    waited: int
    latest: bool


@dataclass(frozen=True)
class LastBackward:
    """The last backward of a step. ended: operations begun by the time the next step's backward began."""

    passes: list[Pass]
    ended: int

    @property
    def first_block(self) -> Pass:
        """The moment before the gradients of block 0; nothing begun where it was not told."""
        return next((one for one in self.passes if one.block == 0), Pass(0, 0, 0, False))


def last_backwards(seen: Observed, rank: int) -> list[LastBackward]:
    """Of each step; without passes where these were not told in the agreed form.

    No more counts as begun at a pass than when backward was over, which is noted elsewhere: a class can reach
    the hooks on the model's blocks, and what they noted.
    """
    steps = seen.case.sides[rank].instructions["steps"]
    given = seen.values[rank].get("passes")
    told = given if isinstance(given, list) else []
    found, number = [], 0
    for place, step in enumerate(steps):
        number += len(step)
        entries = told[number - 1] if number <= len(told) else None
        following = told[number] if number < len(told) else None
        after = (
            following[0][1]
            if isinstance(following, list) and following and counts(following[0])
            else 0
        )
        over = begun_at(seen, rank, 1 + 2 * place)
        passes = [
            Pass(entry[0], min(entry[1], over), entry[2], bool(entry[3]))
            for entry in (entries if isinstance(entries, list) else [])
            if counts(entry)
        ]
        found.append(LastBackward(passes, after))
    return found


def begun_at(seen: Observed, rank: int, place: int) -> int:
    """Operations begun at a place in "begun" of `recipes`; 0 where that was not told as agreed."""
    told = seen.values[rank].get("begun")
    begun = told[place] if isinstance(told, list) and place < len(told) else 0
    return begun if type(begun) is int else 0


def counts(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 4
        and all(type(one) in (int, bool) for one in entry)
    )
