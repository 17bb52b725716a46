"""The memory that the ranks of a training run hold: at some moments, and at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.checks.judge.asked import ELSEWHERE, asked_early
from course_lib.checks.judge.case import RIGHT, Finding, Line, Observed, wrong
from course_lib.runtime.moments import HIGHEST

STEP = 2  # moments of a step: after backward, and after the optimizer


def held_line(
    most: Sequence[tuple[str, int, float]],
    *,
    slack: float,
    hint: Callable[[float], str] | None = None,
    weight: float = 1.0,
    title: str = "memory held",
    point: float = float("inf"),
) -> Line:
    """Bytes that each rank holds at some moments, as the kernel counts the process's pages.

    most: (the moment in words, its place in "held" of the recipe, bytes that are enough there). slack: bytes
    that allocators and libraries may hold besides. point: from so many bytes on, at any of the moments, the
    point of the exercise is missed (see `Exercise`).
    """

    def judge(observed: Observed) -> Finding:
        for rank in range(observed.world_size):
            if finding := at_another_time(observed, rank):
                return finding
            for moment, place, enough in most:
                if not (measured := observed.held[rank].get(f"held.{place}")):
                    return wrong(f"rank {rank} was not measured {moment}.", misses_point=True)
                got = measured[0]
                if got > enough + slack:
                    return wrong(
                        f"rank {rank} holds {megabytes(got)} {moment}; {megabytes(enough)} are enough.",
                        hint(got / enough) if hint else "",
                        cause=f"held {moment}",
                        misses_point=got >= point,
                    )
        return RIGHT

    bounds = {f"held.{place}": enough + slack for _, place, enough in most}
    return Line(title, judge, weight, "memory", enough=bounds)


def peak_line(
    enough: float,
    *,
    slack: float,
    hint: Callable[[float], str] | None = None,
    weight: float = 1.0,
    title: str = "peak of memory",
    point: float = float("inf"),
) -> Line:
    """The most that each rank holds whenever forward leaves a block or backward enters one.

    point: from so many bytes on the point of the exercise is missed.
    """

    def judge(observed: Observed) -> Finding:
        for rank in range(observed.world_size):
            if finding := at_another_time(observed, rank):
                return finding
            if not (measured := observed.held[rank].get(HIGHEST)):
                return wrong(f"rank {rank} was not measured during a step.", misses_point=True)
            got = max(measured)
            if got > enough + slack:
                return wrong(
                    f"rank {rank} holds up to {megabytes(got)} during forward and backward; "
                    f"{megabytes(enough)} are enough.",
                    hint(got / enough) if hint else "",
                    cause="peak",
                    misses_point=got >= point,
                )
        return RIGHT

    return Line(title, judge, weight, "memory", enough={HIGHEST: enough + slack})


def at_another_time(observed: Observed, rank: int) -> Finding | None:
    """A finding if the rank let itself be measured at other moments than it reports.

    It had begun as many operations as its reply says, and the network had carried what it had begun to send a
    step before. At an optimizer's last moment it had begun all.
    """
    begun, all_of_them = observed.values[rank].begun, len(observed.operations[rank])
    if observed.case.recipe.endswith(":sharded_optimizer") and begun[-1:] != [all_of_them]:
        return ELSEWHERE
    for place, reported in enumerate(begun):
        earlier = begun[place - STEP] if place >= STEP else 0
        due = sum(operation.bytes_sent for operation in observed.operations[rank][:earlier])
        if finding := asked_early(observed, rank, f"held.{place}", begun=reported, sent=due):
            return finding
    during = observed.progress[rank].get(HIGHEST, ()) if observed.progress else ()
    last = max((at.rows for at in during), default=None)
    return ELSEWHERE if last is not None and last < max(begun[:-1], default=0) else None


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
