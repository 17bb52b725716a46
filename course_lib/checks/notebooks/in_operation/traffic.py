"""A line about the bytes that a rank gives to collectives, whatever their algorithm sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.checks import kit, words
from course_lib.ledger.operation import Operation

OBJECTS = (
    "all_gather_object pickles an object and also sends its length, so more bytes travel than the numbers "
    "need. Put the numbers into a tensor."
)
Hint = Callable[[Sequence[Operation]], str]


def contributed(operation: Operation) -> float:
    """The bytes of this rank's own part: the full tensor of an all-gather holds a part of each rank."""
    parts = len(operation.group) if operation.op in ("all_gather", "gather") else 1
    return operation.nbytes / parts


def given_line(
    title: str, ranks: Sequence[int], least: int, most: int, *, calls: int, hint: Hint, weight: float,
    point: float = float("inf"),
) -> kit.Line:  # fmt: skip
    """Each rank gives between `least` and `most` bytes, to at most `calls` collectives.

    point: from so many bytes on, the point of the exercise is missed.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in ranks:
            done = observed.operations[rank]
            amount = sum(map(contributed, done))
            number = words.number(round(amount))
            if amount > most:
                said = f"rank {rank} gave {number} bytes, but {words.number(most)} are enough."
                # an object's length travels first, and then its bytes
                pickled = len(done) > 1 and done[1].dtype == "uint8"
                why = OBJECTS if pickled and amount < point else hint(done)
                return kit.wrong(said, why, cause="bytes", misses_point=amount >= point)
            if len(done) > calls:
                began = words.counted(len(done), "collective")
                enough = f"{calls} {words.verb([0] * calls, 'is', 'are')} enough"
                return kit.wrong(f"rank {rank} began {began}, but {enough}.", hint(done), cause="collectives")
            if amount < least:
                return kit.wrong(
                    f"rank {rank} gave {number} bytes, but the other ranks need at least {least} from it.",
                    "The values did not travel through collectives of the given group.",
                    cause="too few bytes",
                )
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")
