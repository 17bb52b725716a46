"""Numbers and their units as a reader wants to see them, in tables, figures and error messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def exact(nbytes: float) -> str:
    """6144 -> "6,144"; a fraction, which only a built-in's booking has, keeps one decimal."""
    whole = round(nbytes)
    return f"{whole:,}" if abs(nbytes - whole) < 0.05 else f"{nbytes:,.1f}"


def size(nbytes: float) -> str:
    """6144 -> "6.1 KB": three digits at most, for figures. 1 KB is 1,000 bytes."""
    if nbytes < 1000:
        return f"{exact(nbytes)} B"
    for unit in ("KB", "MB", "GB", "TB"):
        nbytes /= 1000
        if nbytes < 999.5 or unit == "TB":
            break
    return f"{nbytes:.3g} {unit}"


def duration(seconds: float) -> str:
    """0.00123 -> "1.23 ms"."""
    scale, unit = time_unit(seconds)
    return f"{seconds * scale:.3g} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """The factor and the unit in which this many seconds read well."""
    if seconds >= 1:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def counted(number: int, noun: str) -> str:
    """1 -> "1 message", 2000 -> "2,000 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(numbers: Sequence[int]) -> str:
    """[1, 2, 3] -> "1, 2 and 3"."""
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rank_list(ranks: Iterable[int], world_size: int | None = None) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"; "all" when it is every rank of several; "6 of 0-15" when long."""
    listed = sorted(set(ranks))
    if world_size is not None and world_size > 1 and listed == list(range(world_size)):
        return "all"
    runs: list[list[int]] = []
    for rank in listed:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(_run(run) for run in runs)
    return text if len(text) <= 12 else f"{len(listed)} of {listed[0]}-{listed[-1]}"


def _run(run: Sequence[int]) -> str:
    if len(run) < 3:
        return ", ".join(map(str, run))
    return f"{run[0]}-{run[-1]}"


def tensor(dtype: str, shapes: Iterable[tuple[int, ...]]) -> str:
    """("float32", {(2,), (3,)}) -> "float32[2..3]"."""
    listed = sorted(set(shapes))
    if not dtype:
        return ""
    if len(listed) == 1:
        return f"{dtype}[{', '.join(map(str, listed[0]))}]"
    if all(len(shape) == 1 for shape in listed):
        return f"{dtype}[{listed[0][0]}..{listed[-1][0]}]"
    return f"{dtype}, {len(listed)} shapes"
