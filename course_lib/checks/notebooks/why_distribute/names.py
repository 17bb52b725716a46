"""The names under which by_module of `SavedBytes` has its bytes, and the mistakes that give other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course_lib.checks import kit, words

Entries = Mapping[str, float | None]  # by_module without zeros
# The name under which a mistake enters the bytes of each module, with its sentence.
NAMES: dict[str, Callable[[str], str]] = {
    "Use the name of the innermost submodule that runs, such as '2.1'.": (
        lambda name: name.partition(".")[0]
    ),
    "The first of the names is the module itself, but the innermost that runs is the last.": (
        lambda name: ""
    ),
    "The module around the one that runs has the bytes, but the innermost is the last of a stack of names.": (
        lambda name: name.rpartition(".")[0]
    ),
}
NOT_ALL = "Its entries do not add up to total. A storage belongs to the first module that kept it."
NOT_TAKEN_OFF = (
    "When a submodule's forward is over, its parent runs on, '' for the module itself. Keep a stack of "
    "names, and take the last one off again."
)
INNERMOST = (
    "The name belongs to the innermost submodule that runs when a storage is first kept (see "
    "named_modules())."
)


def entries(by_module: Any) -> dict[str, float | None] | None:
    """Those of by_module, as plain data, that are not 0; None if it is not a dict."""
    pairs = by_module.get("dict") if isinstance(by_module, dict) else None
    if not isinstance(pairs, list):
        return None
    return {name: kit.numeric(value) for name, value in pairs if isinstance(name, str) and value}


def named_right(
    named: Entries | None, wanted: Entries, runs: Sequence[tuple[Entries, Entries]]
) -> kit.Finding:
    """The finding on by_module of a run. runs: entries and right ones, of all whose total is right."""
    if named is None:
        return kit.wrong("by_module is not a dict.", "It has bytes by the names of modules.", cause="no dict")
    if named == wanted:
        return kit.RIGHT
    if not named:
        return kit.wrong(
            "by_module is empty.", "Let pack add to the entry of the module that runs.", cause="empty"
        )
    names = words.listing(repr(name) for name in named)
    said = kit.Sentence(f"by_module has bytes for {names}.", "by_module has other bytes than were kept.")
    return kit.wrong(said, why([(entered, right) for entered, right in runs if entered != right]))


def why(off: Sequence[tuple[Entries, Entries]]) -> str:
    """off: the wrong entries of all runs, each with the right ones."""
    if any(total(entered) != total(right) for entered, right in off):
        return NOT_ALL
    for says, entered_as in NAMES.items():
        if all(entered == summed(right, entered_as) for entered, right in off):
            return says
    missing = all("" not in entered and "" in right for entered, right in off)
    return NOT_TAKEN_OFF if missing else INNERMOST


def total(numbers: Entries) -> float:
    return sum(number or 0 for number in numbers.values())


def summed(right: Entries, entered_as: Callable[[str], str]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, nbytes in right.items():
        sums[entered_as(name)] = sums.get(entered_as(name), 0) + (nbytes or 0)
    return sums
