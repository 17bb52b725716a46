"""Recipe (see `harness`) that saves without stopping: `write` waits until the recipe opens its gate.

No time is measured. A gate is opened by a thread of the recipe's, which waits for what a wrong answer does,
and not longer than PATIENCE; a right answer does not depend on it. A wait is a number of short ones, so that
a machine which stands still, or has no core for this process, does not use it up.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.rank.harness import describe
from course_lib.checks.wire import Instructions, Place

_describe, _Thread, _Event, _Lock, _clone, _full = (
    describe, threading.Thread, threading.Event, threading.Lock, torch.Tensor.clone, torch.full
)  # fmt: skip
PATIENCE = 50  # short waits, for a thread to begin what it must not
STUCK = 500  # short waits, after which a save waits for its write
LONGEST = 10.0  # seconds, of a write
SHORT = 0.01  # seconds
SIZES = {"w": 6, "b": 3}


@dataclass
class BehindReply:
    """The reply about a script.

    error: of a call that was not to raise. written: of each write, in the order in which they ended, the step
    and the values of "w", as they were at its end. blocked: whether a save came back only when
    it was written. together: the most writes under way at a time. raised: the text of the error that a call
    raised, and which. waited: whether wait() came back after the write; memories: of the copies of "w".
    called: the types that `write` got, if they are others than a number and a dict.
    """

    error: Place | None = None
    written: list[tuple[int, list[float]]] = field(default_factory=list)
    blocked: bool = False
    together: int = 0
    raised: str = ""
    teller: str = ""
    waited: bool = True
    memories: int = 0
    called: str = ""


@dataclass(frozen=True)
class BehindInstructions(Instructions):
    """scripts: their names; values: of "w" at each save; words: of the error."""

    scripts: list[str]
    values: list[float]
    words: str

    def parts(self) -> list[str]:
        return list(self.scripts)


class Disk:
    """`write`, its gate, and what it has seen."""

    def __init__(self, reply: BehindReply):
        self.reply = reply
        self.fails: dict[int, str] = {}  # the texts of the errors of these steps
        self.gate, self.ended, self.lock = _Event(), _Event(), _Lock()
        self.second = _Event()  # two writes were under way
        self.under_way = 0
        self.caller = threading.get_ident()
        self.kept: list[Tensor] = []  # so that new memory is other memory

    def write(self, step: Any, tensors: Any) -> None:
        if not isinstance(step, int) or not isinstance(tensors, dict):
            self.reply.called = f"({type(step).__name__}, {type(tensors).__name__})"
            raise TypeError("write takes a step and a dict of tensors")
        with self.lock:
            self.under_way += 1
            self.reply.together = max(self.reply.together, self.under_way)
            self.kept.append(tensors["w"])
            if self.under_way > 1:
                self.second.set()
        if threading.get_ident() == self.caller and not self.gate.is_set():
            self.reply.blocked = True
        else:
            self.gate.wait(LONGEST)
        with self.lock:
            self.under_way -= 1
            values = [float(value) for value in _clone(tensors["w"])]
            self.reply.written.append((int(step), values))
            self.ended.set()
        if step in self.fails:
            raise OSError(self.fails[step])

    def function(self) -> Any:
        """`write` as a plain function, which does not hand out this object."""
        return lambda step, tensors: self.write(step, tensors)

    def settle(self, writes: int) -> None:
        """Return when so many writes have ended; some answers do not wait for them."""
        for _ in range(int(LONGEST / SHORT)):
            if len(self.reply.written) >= writes or self.reply.called:
                return
            _Event().wait(SHORT)


def tensors_of(value: float) -> dict[str, Tensor]:
    return {name: _full((size,), value) for name, size in SIZES.items()}


class Watched(dict):
    """Tensors by name, which another thread than the caller's gets only after `save` has returned.

    So an answer in which the thread makes the copy always has the later values.
    """

    def __init__(self, tensors: dict[str, Tensor], back: Any):
        super().__init__(tensors)
        self.back, self.caller = back, threading.get_ident()

    def stop(self) -> None:
        if threading.get_ident() != self.caller:
            any(self.back.wait(SHORT) for _ in range(STUCK))

    def items(self) -> Any:
        self.stop()
        return super().items()

    def values(self) -> Any:
        self.stop()
        return super().values()

    def keys(self) -> Any:
        self.stop()
        return super().keys()

    def __iter__(self) -> Any:
        self.stop()
        return super().__iter__()

    def __getitem__(self, name: str) -> Tensor:
        self.stop()
        return super().__getitem__(name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)  # a copy is a plain dict


def opened_after(event: Any, gate: Any, stuck: Any = None) -> Any:
    """A thread that opens the gate after the event, or when its patience ends; then it calls `stuck`."""

    def wait() -> None:
        happened = any(event.wait(SHORT) for _ in range(PATIENCE if stuck is None else STUCK))
        if not happened and stuck is not None:
            stuck()
        gate.set()

    thread = _Thread(target=wait, daemon=True)
    thread.start()
    return thread


def copied(made: Any, disk: Disk, values: list[float], words: str) -> None:
    """A save comes back while its write is under way, and the tensors change."""
    back = _Event()
    saver, tensors = made(disk.function()), tensors_of(values[0])
    changed = _Event()  # the tensors have the values of the next step

    def stuck() -> None:
        disk.reply.blocked = True

    thread = opened_after(back, disk.gate, stuck)
    saver.save(1, Watched(tensors, changed))
    for tensor in tensors.values():
        tensor.fill_(values[1])
    changed.set()
    back.set()
    thread.join()
    saver.wait()
    disk.settle(1)


def one_at_a_time(made: Any, disk: Disk, values: list[float], words: str) -> None:
    """A second save while the first is under way."""
    saver = made(disk.function())
    saver.save(1, tensors_of(values[0]))
    thread = opened_after(disk.second, disk.gate)
    saver.save(2, tensors_of(values[1]))
    thread.join()
    saver.wait()
    disk.settle(2)


def failing(made: Any, disk: Disk, values: list[float], words: str) -> None:
    """The first write raises."""
    disk.fails[5], reply = words, disk.reply
    disk.gate.set()
    saver = made(disk.function())
    for name, call in (
        ("save", lambda: saver.save(5, tensors_of(values[0]))),
        ("the next save", lambda: saver.save(6, tensors_of(values[1]))),
        ("wait", saver.wait),
    ):
        if name == "the next save":
            disk.ended.wait(LONGEST)
        try:
            call()
        except Exception as error:
            if not reply.raised:
                reply.teller, reply.raised = name, texts_of(error)


def texts_of(error: BaseException) -> str:
    """The texts of an exception and of those that it came from."""
    texts = []
    now: BaseException | None = error
    while now is not None and len(texts) < 5:
        texts.append(str(now)[:200])
        now = now.__cause__ or now.__context__
    return " / ".join(texts)


def waiting(made: Any, disk: Disk, values: list[float], words: str) -> None:
    """wait() while the write is under way."""
    back = _Event()
    saver = made(disk.function())
    saver.save(1, tensors_of(values[0]))
    thread = opened_after(back, disk.gate)
    saver.wait()
    disk.reply.waited = disk.ended.is_set()
    back.set()
    thread.join()
    disk.settle(1)


def again(made: Any, disk: Disk, values: list[float], words: str) -> None:
    """Saves one after the other: where their copies lie."""
    disk.gate.set()
    saver = made(disk.function())
    for step, value in enumerate(values):
        saver.save(step, tensors_of(value))
        saver.wait()
    disk.settle(len(values))
    disk.reply.memories = len({tensor.data_ptr() for tensor in disk.kept})


SCRIPTS = {
    "copied": copied,
    "one at a time": one_at_a_time,
    "failing": failing,
    "waiting": waiting,
    "again": again,
}


def scripts(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: BehindInstructions
) -> tuple[dict[str, BehindReply], dict[str, Any]]:
    """Every script of the instructions."""
    replies: dict[str, BehindReply] = {}
    stuck = False  # whether a save waits for its own write: then no gate is closed any more
    for name in instructions.scripts:
        reply = BehindReply()
        disk = Disk(reply)
        if stuck:
            disk.gate.set()
        try:
            SCRIPTS[name](objects[0], disk, instructions.values, instructions.words)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not replies and not str(error):
                raise
            reply.error = _describe(error)
        replies[name] = reply
        stuck |= reply.blocked
    return replies, {}
