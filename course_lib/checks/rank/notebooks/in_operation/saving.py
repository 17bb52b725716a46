"""Recipe (see `harness`) that cuts saves off: after each operation, in each state that the disk may be in.

It hands back the operations of each save, and what `newest` loaded in each of the states. Which states there
are, and what is to be loaded in them, the judge works out by itself, from the operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.notebooks.in_operation.cutting import (
    WORLDS,
    Operation,
    after,
    cached,
    states,
    texts,
)
from course_lib.checks.wire import Count, Instructions, Place
from course_lib.operation.disk import Disk

_Disk, _after, _cached, _states, _texts, _describe = Disk, after, cached, states, texts, describe
MOST = 1_000  # bytes of a part that go back
KEPT = 2_000  # outcomes that go back
Save = tuple[int, dict[str, str]]  # the step, and the parts: bytes in hexadecimal digits


@dataclass
class Loaded:
    """The result of `newest`: None, (step, parts), or something else, whose type is in `misfit`.

    error: if it raised, or if the save before it did; then `saving` is true.
    """

    step: int | None = None
    parts: dict[str, str] = field(default_factory=dict)
    misfit: str = ""
    error: Place | None = None
    saving: bool = False


@dataclass
class ScriptReply:
    """The reply about a script.

    saves: the operations of each save, made one after the other; error: of the save that raised, which is the
    last. loaded: after each save. outcomes: all that was loaded, each once; cut, again: of each world, after
    each operation, in each state, the number of the outcome.
    """

    saves: list[list[Operation]] = field(default_factory=list)
    error: Place | None = None
    loaded: list[Loaded] = field(default_factory=list)
    outcomes: list[Loaded] = field(default_factory=list)
    cut: dict[str, list[list[Count]]] = field(default_factory=dict)
    again: dict[str, list[list[Count]]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptInstructions:
    """One script.

    name     of the script
    saves    made on an empty disk, one after the other; all but the last are synced afterwards, and the last
             is cut off
    again    the save that is made after each cut; None: none is
    """

    name: str
    saves: list[Save]
    again: Save | None


@dataclass(frozen=True)
class SavingInstructions(Instructions):
    scripts: list[ScriptInstructions]

    def parts(self) -> list[str]:
        return [script.name for script in self.scripts]


class Recorded(_Disk):
    """A disk that keeps the arguments of its operations, too."""

    def __init__(self, files: Mapping[str, bytes]):
        super().__init__(files)
        self.operations: list[Operation] = []

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data)
        self.operations.append(("write", [name, *_texts(bytes(data))]))

    def sync(self, name: str) -> None:
        super().sync(name)
        self.operations.append(("sync", [name]))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.operations.append(("rename", [old, new]))

    def remove(self, name: str) -> None:
        super().remove(name)
        self.operations.append(("remove", [name]))

    def sync_folder(self) -> None:
        super().sync_folder()
        self.operations.append(("sync_folder", []))


Recorded.__name__ = Disk.__name__  # in the text of Python's errors, since the notebook calls it a Disk


def parts_of(save: Save) -> dict[str, bytes]:
    return {name: bytes.fromhex(digits) for name, digits in save[1].items()}


def load(newest: Any, disk: Disk) -> Loaded:
    """`newest` of the disk; an error is an outcome, too."""
    try:
        returned = newest(disk)
    except Exception as error:
        return Loaded(error=_describe(error))
    if returned is None:
        return Loaded()
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        return Loaded(misfit=type(returned).__name__)
    step, parts = returned
    if isinstance(step, bool) or not isinstance(step, int) or not isinstance(parts, dict):
        return Loaded(misfit=f"({type(step).__name__}, {type(parts).__name__})")
    if not all(isinstance(data, bytes | bytearray | memoryview) for data in parts.values()):
        return Loaded(misfit="a dict whose values are not bytes")
    returned = {str(name): bytes(data)[:MOST].hex() for name, data in list(parts.items())[:MOST]}
    return Loaded(int(step), returned)


class Script:
    """One script; equal states are looked at once."""

    def __init__(self, objects: list, described: ScriptInstructions):
        self.commit, self.newest = objects
        self.described, self.reply = described, ScriptReply()
        self.numbers: dict[str, int] = {}
        self.known: dict[tuple, int] = {}

    def make(self) -> None:
        """The saves, each on what the last has left in the cache, synced."""
        self.files: dict[str, bytes] = {}
        for save in self.described.saves:
            self.before, disk = self.files, Recorded(self.files)
            try:
                self.commit(disk, save[0], parts_of(save))
            except NotImplementedError:
                raise
            except Exception as error:
                self.reply.error = _describe(error)
            self.reply.saves.append(disk.operations)
            if self.reply.error is not None:
                return
            self.files = _cached(_after(self.before, disk.operations))
            self.reply.loaded.append(load(self.newest, _Disk(self.files)))

    def cut_off(self) -> None:
        """The last save, in every world."""
        if self.reply.error is not None:
            return
        operations = self.reply.saves[-1]
        for world in WORLDS:
            self.reply.cut[world], self.reply.again[world] = [], []
            for done in range(len(operations) + 1):
                possible = list(_states(self.before, operations, done, world))
                self.reply.cut[world].append([self.look(files) for files in possible])
                if self.described.again is not None and world in ("killed", "power"):
                    self.reply.again[world].append([self.save_again(files) for files in possible])

    def look(self, files: dict[str, bytes]) -> int:
        key = ("look", *sorted(files.items()))
        if key not in self.known:
            self.known[key] = self.number(load(self.newest, _Disk(files)))
        return self.known[key]

    def save_again(self, files: dict[str, bytes]) -> int:
        key = ("again", *sorted(files.items()))
        if key not in self.known:
            disk = _Disk(files)
            try:
                assert self.described.again is not None
                self.commit(disk, self.described.again[0], parts_of(self.described.again))
                outcome = load(self.newest, _Disk(_cached(disk)))
            except Exception as error:
                outcome = Loaded(error=_describe(error), saving=True)
            self.known[key] = self.number(outcome)
        return self.known[key]

    def number(self, outcome: Loaded) -> int:
        """Of equal outcomes the number is the same."""
        key = repr(outcome)
        if key not in self.numbers and len(self.reply.outcomes) < KEPT:
            self.numbers[key] = len(self.reply.outcomes)
            self.reply.outcomes.append(outcome)
        return self.numbers.get(key, KEPT - 1)


def scripts(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: SavingInstructions
) -> tuple[dict[str, ScriptReply], dict[str, Any]]:
    """Every script. All saves come first: `newest` has to look at the disk that it is given."""
    made = [Script(objects, described) for described in instructions.scripts]
    for script in made:
        script.make()
    for script in made:
        script.cut_off()
    return {script.described.name: script.reply for script in made}, {}
