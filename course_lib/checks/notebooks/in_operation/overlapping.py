"""AsyncCheckpoint: a copy now, and the write behind the next steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from course_lib.checks import kit
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.rank.notebooks.in_operation.behind import (
    SCRIPTS,
    SIZES,
    BehindInstructions,
    BehindReply,
)

RECIPE = "course_lib.checks.rank.notebooks.in_operation.behind:scripts"
POINT = "a save that comes back before it is written, with the values of its own step"
NO_COPY = (
    "The file of step 1 holds the values of step 2, which were computed while the file was written. Copy "
    "the tensors before `save` returns."
)
BLOCKS = (
    "`save` returned only after its write had ended. Let a thread write, and return as soon as the copy is "
    "made."
)
TWO = (
    "Two writes ran at the same time. If the later write ends first, the older checkpoint then counts as "
    "the newest. So begin a write only after the previous write has ended."
)
SILENT = (
    "`write` raised an error, but neither the next save nor wait() raised it, so the program continues "
    "although the disk is full. Keep the thread's error and raise it in the next call."
)
NO_WAIT = "wait() returned while a write was still running, so a program that ends now loses the checkpoint."
NEW_MEMORY = (
    "Each save takes new memory for its copies. Instead, copy into the memory of an earlier save that is "
    "already written."
)
IDEAS = (NO_COPY, BLOCKS)


def line(script: str, title: str, weight: float, look: Callable[[BehindReply], kit.Finding]) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        reply: BehindReply = observed.values[0][script]
        if reply.called:
            return kit.wrong(
                f"`write` got {reply.called}.", "`write` takes a step and a dict of tensors.", cause="call"
            )
        if reply.error is not None:
            error, text, place = reply.error
            if error == "NotImplementedError":
                return kit.unwritten("AsyncCheckpoint", place)
            said = kit.error_sentence("AsyncCheckpoint", error, text)
            return kit.wrong(said, kit.at(place) if place else "", cause=f"raised {error} {place}")
        return look(reply)

    return kit.Line(title, judge, weight)


def shown(line: kit.Line, part: str) -> kit.Line:
    """A line that shows one part of the point."""
    return replace(kit.telling(line), part=part)


@kit.exercise(
    points=4, objects=("AsyncCheckpoint",), references=REFERENCES, extra=True, point=POINT
)  # fmt: skip
def async_checkpoint(draw: kit.Draw) -> Iterator[kit.Case]:
    values = [float(value) for value in draw.distinct(4, low=1, high=1000)]
    words = f"no space left on device {draw.integer(100, 1000)}"

    def holds(written: tuple[int, list[float]], step: int, value: float) -> bool:
        return written[0] == step and written[1] == [value] * SIZES["w"]

    def once(reply: BehindReply) -> kit.Finding | None:
        if len(reply.written) == 1:
            return None
        return kit.wrong(f"one save led to {len(reply.written)} calls of `write`.", cause="number of writes")

    def comes_back(reply: BehindReply) -> kit.Finding:
        if (finding := once(reply)) is not None:
            return finding
        return kit.wrong(BLOCKS, misses_point=True) if reply.blocked else kit.RIGHT

    def copies(reply: BehindReply) -> kit.Finding:
        if (finding := once(reply)) is not None:
            return finding
        if holds(reply.written[0], 1, values[0]):
            return kit.RIGHT
        moved = holds(reply.written[0], 1, values[1])
        said = "the write of step 1 does not have the values of its step."
        return kit.wrong(said, NO_COPY if moved else "", misses_point=moved)

    def one_by_one(reply: BehindReply) -> kit.Finding:
        if reply.together > 1:
            return kit.wrong(TWO)
        steps = [step for step, _ in reply.written]
        if steps != [1, 2]:
            return kit.wrong(
                kit.Sentence(
                    f"steps 1 and 2 were saved, but {steps} were written.",
                    "other steps were written than saved.",
                )
            )
        return kit.RIGHT

    def own_values(reply: BehindReply) -> kit.Finding:
        if not (finding := one_by_one(reply)).ok:
            return finding
        if all(holds(each, k + 1, values[k]) for k, each in enumerate(reply.written)):
            return kit.RIGHT
        return kit.wrong(
            "the next save overwrote the copies of a save before they were written.",
            "Wait for the previous write, then copy.",
            misses_point=holds(reply.written[0], 1, values[1]),
        )

    def tells(reply: BehindReply) -> kit.Finding:
        if words in reply.raised and reply.teller != "save":
            return kit.RIGHT
        if words in reply.raised:
            return kit.wrong("`save` raised the error of its own write.", BLOCKS)
        if reply.raised:
            said = kit.Sentence(f"another error was raised: {reply.raised}", "another error was raised.")
            return kit.wrong(said, "Raise the error of `write`.")
        return kit.wrong(SILENT)

    def waits(reply: BehindReply) -> kit.Finding:
        return kit.RIGHT if reply.waited and len(reply.written) == 1 else kit.wrong(NO_WAIT)

    def same_memory(reply: BehindReply) -> kit.Finding:
        if [step for step, _ in reply.written] != list(range(len(values))):
            return kit.wrong("the saves were not all written once and in order.", cause="number of writes")
        return kit.RIGHT if reply.memories <= 2 else kit.wrong(NEW_MEMORY)

    def used_again(observed: kit.Observed) -> kit.Finding:
        """A tensor that is not copied takes no memory: that mistake has its own sentence."""
        first, finding = observed.values[0]["copied"], memory.judge(observed)
        alike = first.error is None and not finding.ok and NO_COPY in copies(first).sentences
        return copies(first) if alike else finding

    memory = line("again", "memory is used again", 1, same_memory)
    lines = [
        shown(line("copied", "save comes back before it is written", 2, comes_back), "behind"),
        shown(line("copied", "with the values of its own step", 2, copies), "a copy"),
        line("one at a time", "one write at a time", 1.5, one_by_one),
        line("one at a time", "each with its own values", 0.5, own_values),
        line("failing", "an error of write is raised", 1.5, tells),
        line("waiting", "wait() waits", 1, waits),
        replace(memory, judge=used_again),
    ]
    instructions = BehindInstructions(list(SCRIPTS), values, words)
    sides = [kit.RankSide({}, instructions, {})]
    yield kit.Case("saves", sides, lines, recipe=RECIPE, alone=True, timeout=60.0)
