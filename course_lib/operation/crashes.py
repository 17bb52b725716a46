"""Tries every power failure of a save: after each operation, in each state in which the disk can then be.

    saves on one disk, the power fails after operation k    for every k
    the disk is in one of its states                        for every state
    newest looks at it                                      one of two checkpoints must be found, whole
    the save is made again, in spite of what is left        and newest must find it

A save of two parts has 9 operations and a few dozen states, which takes milliseconds. Programs like this one
find faults that years of use do not. Pillai et al., OSDI 2014, do it with recorded system calls, in their
tool ALICE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .disk import Disk, PowerFailure

Parts = Mapping[str, bytes]
Commit = Callable[[Disk, int, dict[str, bytes]], object]
Newest = Callable[[Disk], tuple[int, dict[str, bytes]] | None]


@dataclass(frozen=True)
class Crash:
    """A power failure, and one state in which it can have left the disk.

    operations: how many were carried out; after: the last of them, or "". returned: how many of the saves had
    returned. files: bytes by name.
    """

    operations: int
    after: str
    returned: int
    files: dict[str, bytes]


@dataclass(frozen=True)
class Fault:
    """A power failure that did harm: `crash`, and the harm in words."""

    crash: Crash
    what: str


def power_failures(
    commit: Commit,
    saves: Sequence[tuple[int, Parts]],
    files: Parts | None = None,
    *,
    any_order: bool = False,
) -> Iterator[Crash]:
    """Every crash of `saves`, made one after the other on a disk that held `files`.

    The saves are repeated once for each of their operations. Each time k operations are carried out, and then
    the power fails. Raises the same errors as `commit`.
    """
    power = 0
    while True:
        disk, returned = Disk(files, power), 0
        try:
            for step, parts in saves:
                commit(disk, step, dict(parts))
                returned += 1
        except PowerFailure:
            pass
        after = disk.log[-1] if disk.log else ""
        for state in disk.after_power_failure(any_order=any_order):
            yield Crash(len(disk.log), after, returned, state)
        if returned == len(saves):
            return
        power += 1


def faults(
    commit: Commit, newest: Newest, saves: Sequence[tuple[int, Parts]], *, any_order: bool = False
) -> Iterator[Fault]:
    """All faults of `commit` and `newest`; none if a checkpoint survives every power failure.

    saves: (step, parts), with steps that do not fall. After the power failure, `newest` has to return either
    the last save that had returned or the save that was under way. Then the last save is made again, and
    `newest` has to return it.
    """
    states = [None, *((step, dict(parts)) for step, parts in saves)]  # after so many saves
    for crash in power_failures(commit, saves, any_order=any_order):
        loaded = _outcome(newest, Disk(crash.files))
        if loaded not in states[crash.returned : crash.returned + 2]:
            yield Fault(crash, _words(loaded))
        loaded = _outcome(_save_again, Disk(crash.files), commit, newest, *saves[-1])
        if loaded != states[-1]:
            yield Fault(crash, f"saved again: {_words(loaded)}")


def _save_again(disk: Disk, commit: Commit, newest: Newest, step: int, parts: Parts) -> object:
    commit(disk, step, dict(parts))
    return newest(disk)


def _outcome(function: Callable[..., object], *arguments: object) -> object:
    try:
        return function(*arguments)
    except Exception as error:  # an error is one of the outcomes: it becomes the fault's text
        return f"{type(error).__name__}: {error}"


def _words(loaded: object) -> str:
    if isinstance(loaded, str):
        return loaded
    return "newest returned None" if loaded is None else f"newest returned other bytes: {loaded!r}"
