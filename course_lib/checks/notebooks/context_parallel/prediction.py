"""Attention over a spread sequence: the bytes sent, the idle ranks, and when a ring hides its messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.context_parallel.references import REFERENCES

HALF = 2  # bytes of a number in 16 bits
A100, H100 = 312e12, 989e12  # FLOP/s in 16 bits


def ring(n: int, kv_bytes: float, direction: str) -> float:
    """kv_bytes: of one rank's keys and values together, in 16 bits; their gradients travel in 32."""
    tokens = kv_bytes * n / (2 * HALF)  # of width 1
    return facts.ring_attention_bytes(n, tokens, 1, HALF, direction)


def ulysses(n: int, tokens: float, width: int, kv_width: int, itemsize: int = HALF) -> float:
    return facts.ulysses_bytes(n, tokens, width, kv_width, itemsize)


def idle(rank: int, n: int) -> float:
    return facts.causal_idle_shares(n)[rank]


def hiding(flops: float, bytes_per_second: float, width: int, kv_width: int, causal: bool = False) -> float:
    return facts.hiding_block(flops, bytes_per_second, width, kv_width, HALF, causal=causal)


def rounds(forward: kit.Formula, keys: kit.Formula, gradients: kit.Formula) -> kit.Formula:
    """So many times the keys and values, in each direction, and their gradients, of n."""

    def formula(n: int, kv_bytes: float, direction: str) -> float:
        if n == 1:
            return 0.0
        if direction == "forward":
            return forward(n) * kv_bytes
        return (keys(n) + 2 * gradients(n)) * kv_bytes

    return formula


def less(n: int) -> float:
    return n - 1


def same(n: int) -> float:
    return n


RING: Mapping[str, kit.Formula] = {
    "Nothing is sent in the last of N steps, because no rank needs the keys any more. Count N - 1 "
    "transfers.": rounds(same, less, same),
    "In backward as well, no rank needs the keys after the last step, so count them N - 1 times. Their "
    "gradients travel N times.": rounds(less, same, same),
    "Keys are counted once too often in each direction, because the last step sends none. Count N - 1 "
    "times.": rounds(same, same, same),
    "In backward, the gradients of keys and values travel as well.": rounds(less, less, lambda n: 0),
    "Gradients travel in float32, so they have twice the bytes of the keys in 16 bits.": (
        rounds(less, less, lambda n: n / 2)
    ),
    "Gradients travel in float32, so they have twice the bytes. They travel N times, because the last "
    "transfer brings them home.": rounds(less, less, lambda n: (n - 1) / 2),
    "After N - 1 transfers, the gradients are one rank short of home, so count N times.": rounds(
        less, less, less
    ),
    "You counted only the gradients, or both in 16 bits. In backward, the keys go around again, N - 1 "
    "times in 16 bits, and their gradients N times in 32.": rounds(less, lambda n: 0, same),
    "(N-1)/N is a collective's share of the whole, but here each rank sends a part N - 1 times.": (
        rounds(lambda n: (n - 1) / n, lambda n: (n - 1) / n, lambda n: 1)
    ),
    "kv_bytes includes both keys and values, so do not count them twice.": (
        lambda n, kv_bytes, direction: 2 * ring(n, kv_bytes, direction)
    ),
    "You counted the bytes of all ranks. Count only one rank's bytes.": (
        lambda n, kv_bytes, direction: n * ring(n, kv_bytes, direction)
    ),
    "One rank has no other rank to send to.": lambda n, kv_bytes, direction: (
        2 * kv_bytes if n == 1 and direction == "backward" else ring(n, kv_bytes, direction)
    ),
}


def parts(q: float, kv: float, share: kit.Formula) -> kit.Formula:
    """So many tensors of the width of queries, and of keys, of which `share` of n is sent."""
    return lambda n, tokens, width, kv_width, itemsize=HALF: (
        share(n) * tokens / n * (q * width + kv * kv_width) * itemsize
    )


def others(n: int) -> float:
    return (n - 1) / n


ULYSSES: Mapping[str, kit.Formula] = {
    "The output also has to come back, in a fourth all-to-all of the width of q.": parts(1, 2, others),
    "You counted only q and the output, but keys and values are exchanged as well.": parts(2, 0, others),
    "Keys and values have kv_width, so with fewer heads of keys they are smaller.": parts(4, 0, others),
    "Count keys *and* values, so two tensors of kv_width.": parts(2, 1, others),
    "Count two tensors of each width, q and the output, and also keys and values.": parts(1, 1, others),
    "A rank keeps 1/N of its own part, so it sends the rest, (N-1)/N.": parts(2, 2, lambda n: 1),
    "Each rank holds tokens / N, so it sends (N-1)/N of that.": parts(2, 2, lambda n: n - 1),
    "You counted the bytes of all ranks. Count only one rank's bytes.": parts(2, 2, less),
    "A part is sent once, not N - 1 times, because each other rank gets a different piece of it.": (
        parts(2, 2, lambda n: (n - 1) ** 2 / n)
    ),
    "You counted forward and backward. Count only one direction.": parts(4, 4, others),
    "Each number has itemsize bytes.": lambda n, tokens, width, kv_width, itemsize=HALF: ulysses(
        n, tokens, width, kv_width, 1
    ),
    "Elements do not always have 2 bytes, so use the argument itemsize.": (
        lambda n, tokens, width, kv_width, itemsize=HALF: ulysses(n, tokens, width, kv_width, HALF)
    ),
}
IDLE: Mapping[str, kit.Formula] = {
    "In the first step, a rank has only the diagonal, half a block, so all steps last n - 1/2, not n.": (
        lambda rank, n: (n - 1 - rank) / n
    ),
    "You computed the share in which the rank works, not its idle share.": lambda rank, n: 1 - idle(rank, n),
    "The shares are the wrong way round. The first rank's queries see the fewest keys, so it idles the "
    "most.": lambda rank, n: rank / (n - 0.5),
    "Rank r also has work in the first step, so it idles in n - 1 - r of the other steps.": (
        lambda rank, n: (n - rank) / (n - 0.5)
    ),
    "You computed the mean of all ranks, but the share depends on the rank.": lambda rank, n: (
        (n - 1) / (2 * n - 1)
    ),
    "The denominator also includes the first step, which counts as half a step.": (
        lambda rank, n: (n - 1 - rank) / (n - 1) if n > 1 else 0.0
    ),
    "Give a share, between 0 and 1.": lambda rank, n: 100 * idle(rank, n),
}


def times(factor: float, always: bool = True) -> kit.Formula:
    return lambda flops, rate, width, kv_width, causal=False: (
        hiding(flops, rate, width, kv_width, causal) * (factor if always or causal else 1.0)
    )


def rounding(how: Callable[[float], int]) -> kit.Formula:
    return lambda *sizes, **option: how(hiding(*sizes, **option))


HIDING: Mapping[str, kit.Formula] = {
    "Under a causal mask, half of the scores are computed, but all of the keys are sent, so twice the "
    "tokens are needed.": times(0.5, always=False),
    "Half of the scores make the computing shorter, so more tokens are needed, not fewer.": (
        times(0.25, always=False)
    ),
    "Keys and values have kv_width, but scores use width, so the block shrinks by their ratio.": (
        lambda flops, rate, width, kv_width, causal=False: hiding(flops, rate, 1, 1, causal)
    ),
    "The ratio of the widths is upside down. Smaller keys hide sooner.": (
        lambda flops, rate, width, kv_width, causal=False: hiding(flops, rate, kv_width, width, causal)
    ),
    "Keys *and* values are sent, so count 2 c kv_width numbers.": times(0.5),
    "A 16-bit number has two bytes, and the rate is in bytes.": times(1 / 2),
    "A product of matrices has two FLOPs for each of its terms, and there are two products, so count 4 "
    "c^2 width.": times(2),
    "There are two products, q k^T and p v, of 2 c^2 width FLOPs each.": times(4),
    "Your answer is six blocks, the paper's *sequence*, which must fit in memory. But one block is enough "
    "to hide the messages.": times(6),
    "The rate is in bytes per second, not in bits.": times(1 / 8),
    "The rate is already in bytes per second, so do not convert it.": times(8),
    "The quotient of the speeds is upside down. More FLOP/s need more tokens to hide the same message.": (
        lambda flops, rate, width, kv_width, causal=False: (
            (rate / flops) ** 2 * hiding(flops, rate, width, kv_width, causal)
        )
    ),
    "Do not round the number up.": rounding(math.ceil),
    "Do not round the number down.": rounding(math.floor),
}


@kit.exercise(
    points=7,
    objects=("ring_bytes_sent", "ulysses_bytes_sent", "causal_idle_share", "hiding_block"),
    references=REFERENCES,
)
def predictions(draw: kit.Draw) -> Iterator[kit.Case]:
    n, kv = draw.integer(5, 9), 65_536 * draw.integer(10, 90)
    tokens, width = 5_040 * draw.integer(3, 20), 128 * draw.integer(20, 40)
    rate = 7e9 * draw.integer(3, 57)  # 7 divides neither speed, so no right answer is whole
    yield from kit.evaluated(
        [
            kit.Prediction(
                "ring_bytes_sent", 0,
                [(n, kv, "forward"), (3, kv, "forward"), (1, kv, "forward")], ring, RING,
                title="ring_bytes_sent: forward",
                otherwise="Count N - 1 transfers of kv_bytes.",
            ),
            kit.Prediction(
                "ring_bytes_sent", 0,
                [(n, kv, "backward"), (2, kv, "backward"), (1, kv, "backward")], ring, RING,
                title="ring_bytes_sent: backward", weight=1.5,
                otherwise="Count the keys N - 1 times, in 16 bits, and their gradients N times, in 32.",
            ),
            kit.Prediction(
                "ulysses_bytes_sent", 1,
                [(n, tokens, width, width // 4, 2), (4, tokens, width, width, 4),
                 (1, tokens, width, width, 2)],
                ulysses, ULYSSES, weight=1.5,
                otherwise="Count (N-1)/N of this rank's q, k, v and output, with tokens / N of each.",
            ),
            kit.Prediction(
                "causal_idle_share", 2,
                [(0, n), (2, n), (n - 1, n), (0, 2), (0, 1)], idle, IDLE, weight=1.5,
                otherwise="The last rank works all the time, half a step and then n - 1 whole steps. Rank "
                          "r works half a step and then r whole steps.",
            ),
            kit.Prediction(
                "hiding_block", 3,
                [(A100, rate, width, width), (H100, rate, width, width // 4),
                 (A100, rate, width, width // 2, True)],
                hiding, HIDING, weight=1.5,
                otherwise="For c tokens, 4 c^2 width FLOPs (half of them if causal) take as long as 2 c "
                          "kv_width numbers of 2 bytes.",
            ),
        ]
    )  # fmt: skip
