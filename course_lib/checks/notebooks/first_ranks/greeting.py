"""hello, and how many messages the first exercises take."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.first_ranks.references import REFERENCE
from course_lib.runtime.gpus import gpu_count

HELLO = ("rank", "world size", "device")


@kit.exercise(points=1, objects=("hello",), references=REFERENCE)
def hello(draw: kit.Draw) -> Iterator[kit.Case]:
    for n, of in ((3, "3 ranks"), (1, "1 rank")):
        lines = [
            kit.Line(f"{what}, {of}", said_hello(place), weight=min(n, 2), trivial=n == 1)
            for place, what in enumerate(HELLO)
        ]
        yield kit.Case(of, [kit.side({}, plain=True) for _ in range(n)], lines)


def said_hello(place: int) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(observed.world_size):
            returned = observed.values[rank].result
            if not isinstance(returned, list) or len(returned) != len(HELLO):
                three = "Return three values: rank, world_size, device."
                return kit.wrong(
                    kit.Sentence(
                        f"hello() returned {words_for(returned)} on rank {rank}. {three}",
                        f"hello() returned something else on rank {rank}. {three}",
                    ),
                    cause="form",
                )
            right = (rank, observed.world_size, device_of(rank, observed.ledger.backend))[place]
            if returned[place] != right or isinstance(returned[place], bool):
                what = f"the {HELLO[place]} of rank {rank}"
                return kit.wrong(
                    kit.Sentence(
                        f"hello() gives {words_for(returned[place])} as {what}, but it is {right!r}.",
                        f"{what[0].upper()}{what[1:]} is {right!r}, but hello() does not give that.",
                    ),
                    hello_hint(place, returned, rank, observed.world_size),
                )
        return kit.RIGHT

    return judge


def words_for(value: object) -> str:
    return kit.came(value) if isinstance(value, dict) else repr(value)


def device_of(rank: int, backend: str) -> str:
    """Ranks take the GPUs in turn: with COURSE_RANKS_PER_GPU several of them have the same one."""
    return f"cuda:{rank % gpu_count()}" if backend == "nccl" else "cpu"


def hello_hint(place: int, returned: list, rank: int, n: int) -> str:
    if place == 2:
        return "Ask course_lib.device() and turn it into text with str()."
    if isinstance(returned[place], dict) and "function" in str(returned[place].get("other")):
        call = "dist.get_world_size()" if place else "dist.get_rank()"
        return f"This is the function itself, because its parentheses are missing. Write {call}."
    if returned[:2] == [n, rank]:
        return "Rank and world size are swapped."
    if isinstance(returned[place], str):
        return (
            "Environment variables are texts, whereas dist.get_rank() and dist.get_world_size() are numbers."
        )
    if place == 1 and returned[1] == n - 1:
        return "The world size counts the ranks, but the largest rank is one less, since they start at 0."
    if place == 0 and returned[0] == rank + 1:
        return "Ranks are counted from 0."
    if place == 0:
        return "Every rank runs the same function, but dist.get_rank() tells them apart."
    return "Ask dist.get_world_size()."


BOTH_ENDS = "Every message was counted at both ends. Count it once, where it is sent."
ALL_RANKS = "Your formula counts one rank. Count the messages of all ranks together."

EXCHANGE: dict[str, kit.Formula] = {
    "With an odd number of ranks, the last one has no partner and sends nothing.": lambda n: n,
    "A swap is two messages, one each way.": lambda n: n // 2,
    "A swap is two messages, one each way, but half a pair sends none.": lambda n: n / 2,
    ALL_RANKS: lambda n: 1,
    "Your formula counts one pair. Count the messages of all ranks together.": lambda n: 2,
    BOTH_ENDS: lambda n: 4 * (n // 2),
    "Each rank has one partner, so it does not send to all ranks.": lambda n: n * (n - 1),
    "Count two messages for each pair (0 and 1, 2 and 3, ...).": lambda n: n - 1,
}
RING_SHIFT: dict[str, kit.Formula] = {
    "One rank alone is its own neighbour and sends nothing.": lambda n: n,
    "The ring is closed, so the last rank also sends, to rank 0.": lambda n: n - 1,
    BOTH_ENDS: lambda n: 2 * n if n > 1 else 0,
    f"{BOTH_ENDS} Also, one rank alone sends nothing.": lambda n: 2 * n,
    "One step around the ring is one message from each rank.": lambda n: 2 * (n - 1),
    "Count one step around the ring, not a full turn, so one message per rank.": lambda n: n * (n - 1),
    ALL_RANKS: lambda n: 1,
}


@kit.exercise(points=1, objects=("exchange_messages", "ring_shift_messages"), references=REFERENCE)
def message_prediction(draw: kit.Draw) -> Iterator[kit.Case]:
    sizes = [(2,), (4,), (8,), (5,), (7,), (1,), (2 * draw.integer(10, 50) + 1,)]
    yield from kit.evaluated(
        [
            kit.Prediction("exchange_messages", 0, sizes, lambda n: 2 * (n // 2), EXCHANGE),
            kit.Prediction("ring_shift_messages", 1, sizes, lambda n: n if n > 1 else 0, RING_SHIFT),
        ]
    )
