"""ring_all_reduce: its cases, and the usual mistakes of a ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from course_lib.checks import kit, words
from course_lib.checks.notebooks.collectives.record import a_round_more, sends, sent_wider, turned_left
from course_lib.checks.notebooks.collectives.shards import NOT_AGREED
from course_lib.checks.notebooks.collectives.sums import (
    REFERENCE,
    common_hint,
    complete_chunks,
    counts_of,
    other_dtype,
    rounding_case,
    sum_case,
    tail,
)
from course_lib.facts import exact_bytes, rounds

CHUNKS = "chunks of 1/N, of which a rank sends one in a round, and never the whole tensor"
MANY_MORE = 1.5  # times the bytes of such chunks; whole tensors are twice as many on four ranks


def ring_hint(mistakes: list[kit.Mistake], n: int, numel: int, observed: kit.Observed) -> str:
    if left := turned_left(observed, ring_of(observed)):
        return left
    if tail(mistakes, n, numel):
        rest = numel % n
        they = "They are" if rest > 1 else "It is"
        covered = words.counted(numel - rest, "element")
        return f"{they} the remainder of {numel} / {n}, because your chunks cover {covered}."
    if numel < n and all(mistake.sign == "own" for mistake in mistakes):
        return (
            f"With {words.counted(numel, 'element')} and {n} ranks, some chunks are empty. "
            "torch.tensor_split makes such chunks."
        )
    return common_hint(mistakes, n, numel) or phase_hint(mistakes, n, numel, observed)


def ring_of(observed: kit.Observed) -> list[int]:
    """The ranks of the ring, in its order."""
    return observed.case.groups[0] if observed.case.groups else list(range(observed.world_size))


def phase_hint(mistakes: list[kit.Mistake], n: int, numel: int, observed: kit.Observed) -> str:
    """Which of the ring's two phases went wrong, and how."""
    signs = {mistake.sign for mistake in mistakes}
    ring = ring_of(observed)
    if signs & {"twice", "times"} and all(len(sends(observed, rank)) == 2 * n - 1 for rank in ring):
        return (
            "Every rank sent 2N - 1 messages, although two phases of N - 1 rounds are 2N - 2. In a round too "
            "many of the first phase, complete chunks are added once more."
        )
    if signs & {"twice", "times"}:
        return (
            "A value was added twice. The second phase must copy the complete chunks, not add them, and a "
            "round passes on a chunk, not a sum that has already been around."
        )
    if signs <= {"copy", "own"} and "copy" in signs:
        return (
            "Chunks with a single rank's value went around the ring. This happens if the second phase "
            "starts from the chunk each rank began with instead of the chunk it finished. It also happens if "
            "the first phase never adds what arrives, or adds it before wait()."
        )
    if signs & {"moved", "moved_copy"}:
        return (
            "A chunk was received in another chunk's place. In round k, rank r sends chunk r - k and "
            "receives chunk r - k - 1."
        )
    if set(complete_chunks(mistakes, n, numel)) == {1}:
        return (
            "One chunk on each rank is complete, as after the first phase. The second sends the complete "
            "chunks around in N - 1 rounds, and copies them."
        )
    rounds_of_both = all(len(sends(observed, rank)) == 2 * (n - 1) for rank in ring)
    one_short = n > 2 and {counts.count(0) for counts in counts_of(mistakes)} == {1}
    if one_short and numel >= n and not rounds_of_both:
        return "Every sum misses one rank. The first phase takes N - 1 rounds, so one round is missing."
    return (
        "The second phase passes on chunks that are not complete. Which chunk did rank r finish in the "
        "first phase? With the indices r - k and r - k - 1, it is chunk r + 1."
    )


def ring_trouble(case: kit.Case, kind: str, text: str) -> str:
    n = case.world_size
    if dtype := other_dtype(kind, text):
        return dtype
    if kind == "deadlock" and "finished" in text.splitlines()[0]:
        return NOT_AGREED
    if kind == "deadlock":
        return (
            "Every rank must send to its right and receive from its left in the same round, so post both "
            "together with dist.batch_isend_irecv."
        )
    if kind == "error" and ("must match the size" in text or "ends of a message differ" in text):
        return (
            "Chunks differ in length if N does not divide the size. The buffer must therefore fit the "
            "chunk the left neighbour sends in this round."
        )
    if kind == "error" and "IndexError" in text and case.sides[0].inputs["tensor"].numel() % n:
        return (
            f"torch.chunk can return fewer than {n} chunks, and never an empty one, whereas "
            f"tensor_split({n}) always returns {n}."
        )
    return ""


def ring_cost(ratio: float, observed: kit.Observed) -> str:
    n = observed.world_size
    if wider := sent_wider(observed):
        return wider
    if n > 2 and abs(ratio - n / 2) < 0.02:
        return "The bytes are N - 1 times the whole tensor. In each round, pass on only one chunk of 1/N."
    if abs(ratio - n) < 0.02:
        return "Every round sends the whole tensor, but a round's message is one chunk of 1/N."
    return "Each of the two phases takes N - 1 rounds, and each round sends one chunk of 1/N."


def ring_rounds(ratio: float, observed: kit.Observed) -> str:
    most = rounds("ring_all_reduce", observed.world_size)
    one_each = all(len(sends(observed, rank)) <= most for rank in range(observed.world_size))
    if ratio < 3 and one_each:
        return (
            "Send and receive at the same time. A rank that waits between its send and its receive takes "
            "two rounds."
        )
    return "Send a whole chunk in one message, because every message costs another latency."


@kit.exercise(points=12, objects=("ring_all_reduce",), references=REFERENCE, hint=ring_trouble, point=CHUNKS)
def ring_all_reduce(draw: kit.Draw) -> Iterator[kit.Case]:
    def case(n: int, *shape: int, **more: Any) -> kit.Case:
        return sum_case(draw, kit.Setting(n, shape, **more), ring_hint)

    def small(n: int, *shape: int, **more: Any) -> kit.Case:
        return case(n, *shape, aspect="shape", short=True, **more)

    def traffic(n: int, numel: int, suffix: str, weight: float) -> list[kit.Line]:
        least = [exact_bytes("ring_all_reduce", n, numel, 4, rank) for rank in range(n)]
        most = rounds("ring_all_reduce", n)
        sent = kit.bytes_line(
            least, hint=ring_cost, weight=weight, title=f"bytes sent{suffix}", point=MANY_MORE
        )
        return [
            a_round_more(sent, most, -(-numel // n) * 4),
            kit.rounds_line(most, hint=ring_rounds, title=f"rounds{suffix}", each_way=True),
        ]

    yield case(4, 1000, weight=3, more=(*traffic(4, 1000, "", 4.5), kit.only_messages(0.5)))
    yield case(2, 8)
    yield case(3, 6, weight=2)
    yield case(4, 10, weight=2, aspect="shape", more=(rounded(4, 10),))
    yield case(3, 2, aspect="shape")
    yield small(3, 7, dtype=torch.bfloat16, title="bfloat16", weight=0.5)
    yield small(3, 4, 3, layout="transposed", title="non-contiguous", weight=0.5)
    yield small(4, 5, members=(1, 3), title="sub-group {1, 3}")
    yield small(2, 0, title="no elements", trivial=True, weight=0.25)
    yield small(1, 5, title="1 rank", trivial=True, weight=0.25)
    yield rounding_case(draw, kit.Setting(3, (11,), aspect="shape"))
    if draw.hidden:
        yield case(5, 13, aspect="shape")
        yield case(8, 64, aspect="shape", more=tuple(traffic(8, 64, ", 8 ranks", 1)))
        yield small(3, 2, 5, dtype=torch.int64, title="int64, two dimensions")
        yield small(2, 3, 4, layout="every_other", title="a view with gaps")


def rounded(n: int, numel: int) -> kit.Line:
    """A size that n does not divide: up to one chunk's rounding more, in every round."""
    count = rounds("ring_all_reduce", n)
    least, most = count * (numel // n) * 4, count * -(-numel // n) * 4
    title = f"bytes sent, {numel} elements"
    return kit.bytes_line([least] * n, most=[most] * n, hint=ring_cost, title=title)
