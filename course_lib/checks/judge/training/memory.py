"""The memory that the ranks of a training run hold: at some moments, and at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.checks.judge.case import RIGHT, Finding, Line, Observed, wrong


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
            for moment, place, enough in most:
                if not (measured := observed.held[rank].get(f"held.{place}")):
                    return wrong(f"rank {rank} was not measured {moment}.")
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
            if not (measured := observed.held[rank].get("highest")):
                return wrong(f"rank {rank} was not measured during forward and backward.")
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

    return Line(title, judge, weight, "memory", enough={"highest": enough + slack})


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
