"""Plain English for numbers and lists, so that every message is written alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def number(value: float) -> str:
    """1000 -> "1,000"; 1.75 -> "1.75"; 1e-05 stays."""
    if isinstance(value, int) or (abs(value) < 1e15 and abs(value - round(value)) <= 1e-9 * abs(value)):
        return f"{round(value):,}"
    if 0.001 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return f"{value:.4g}"


def apart(value: float, other: float) -> tuple[str, str]:
    """Both numbers with four digits, or as many more as it takes to tell them apart."""
    digits = next((d for d in range(4, 17) if f"{value:.{d}g}" != f"{other:.{d}g}"), 17)
    return f"{value:.{digits}g}", f"{other:.{digits}g}"


def counted(amount: int, noun: str) -> str:
    """(1, "rank") -> "1 rank"; (1000, "element") -> "1,000 elements"; "copy" -> "copies", "batch" ->
    "batches"."""
    if amount != 1:
        plural = f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else plural
    return f"{number(amount)} {noun}"


def times(amount: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(amount, f"{number(amount)} times")


def listing(items: Iterable[object], word: str = "and") -> str:
    """[1, 2, 3] -> "1, 2 and 3"."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {word} {texts[-1]}"


def spans(indices: Sequence[int]) -> list[str]:
    """Sorted indices as runs: [0, 1, 2, 7] -> ["0 to 2", "7"]."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    texts: list[str] = []
    for first, last in runs:
        if last - first > 1:
            texts.append(f"{number(first)} to {number(last)}")
        else:
            texts += [number(index) for index in range(first, last + 1)]
    return texts


def which(noun: str, indices: Sequence[int]) -> str:
    """("element", [8, 9]) -> "elements 8 and 9"; long lists are cut after three runs."""
    runs = spans(indices)
    if len(runs) > 4:
        runs = [*runs[:3], f"{number(len(indices))} in all"]
        return f"{noun}s {', '.join(runs[:3])} and others ({runs[3]})"
    return f"{noun}{'s' if len(indices) > 1 else ''} {listing(runs)}"


def ranks(indices: Sequence[int]) -> str:
    return which("rank", sorted(indices))


def verb(indices: Sequence[int], singular: str = "holds", plural: str = "hold") -> str:
    return singular if len(indices) == 1 else plural
