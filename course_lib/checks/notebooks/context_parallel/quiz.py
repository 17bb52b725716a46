"""The questions at the end of notebook 08, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.context_parallel.references import REFERENCES

RANKS, HEADS, KV_HEADS = 8, 32, 8
FLOPS, EACH_WAY = 312e12, 12.5e9  # A100 in 16 bits, 100 Gb/s
BLOCK = FLOPS / EACH_WAY
TIMES = {
    2: "Your answer is the limit for many ranks, but for N ranks it is 2 - 1/N.",
    RANKS: "Each rank computes some blocks, so the last rank computes only 2 - 1/N times the mean.",
    1: "Your answer is for zigzag. In the contiguous layout, the last rank's queries see the whole "
    "sequence, while the first rank's queries see only their own part.",
    (RANKS - 1) / (2 * RANKS - 1): "Your answer is the mean share of the time that ranks idle.",
    1 / (2 - 1 / RANKS): "Your answer is upside down. Say how many times as long it takes.",
    2 * RANKS / (RANKS + 1): "You counted N whole steps, but the first has only the diagonal, half a "
    "block, so it is (N - 1/2) over N/2.",
}
TRANSFERS = {
    16: "There are N steps, but nothing is sent after the last, because no rank needs the keys any more.",
    30: "Keys and values go in one message, or count as one transfer. Also, count only forward.",
    31: "You counted backward, with keys and gradients, but in forward only the keys travel.",
    14: "Count again, because rank r must see the keys of all 15 other ranks.",
}
BLOCKS = {
    24_500: "The paper's table prints this number, but the paper's own formula, FLOP/s over bytes/s, gives "
    "another number in this row.",
    6 * BLOCK: (
        "Your answer is six blocks, which must fit in memory according to the paper. But one block is "
        "enough to hide the messages."
    ),
    149_500: "Your answer is the paper's minimal *sequence*, six blocks, but one block is enough.",
    BLOCK / 8: "100 Gb/s are bits, so use 12.5 GB/s.",
    8 * BLOCK: "12.5 GB/s are already bytes, so do not convert them.",
    2 * BLOCK: "Without a mask, all scores are computed.",
    1.2 * BLOCK: "You counted backward, with gradients in float32. Count only forward.",
    BLOCK / 2: (
        "Keys and values are both sent, so count 4 bytes per feature, and 4 FLOPs per score and feature."
    ),
}
MOST = {
    HEADS: "Heads of keys and values are also exchanged, and there are fewer of them.",
    HEADS // KV_HEADS: (
        "Your answer is how many heads share one head of keys, but each rank needs a head of keys of its own."
    ),
    HEADS * KV_HEADS: "A rank needs whole heads.",
}
SMALLER = ("the time of the slowest rank", "the bytes sent", "the number of scores that all ranks compute")


@kit.exercise(
    points=5,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5"),
    references=REFERENCES,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", 2 - 1 / RANKS, slips=TIMES, unit="times",
                otherwise="The last rank has half a step and N - 1 whole steps, while the mean over ranks "
                          "is N/2.",
            ),
            kit.Answer(
                "answer_2", 15, slips=TRANSFERS, unit="transfers", tolerance=1e-9,
                otherwise="Count one fewer than the ranks, because a rank already has its own keys.",
            ),
            kit.Answer(
                "answer_3", BLOCK, slips=BLOCKS, unit="tokens",
                otherwise="4 c^2 h FLOPs at 312 TFLOP/s take as long as 4 c h bytes at 12.5 GB/s.",
            ),
            kit.Answer(
                "answer_4", KV_HEADS, slips=MOST, unit="ranks", tolerance=1e-9,
                otherwise="Every rank gets whole heads, of queries and of keys.",
            ),
            kit.Answer(
                "answer_5", ("the time of the slowest rank",), options=SMALLER,
                slips={
                    "the bytes sent": "All keys pass all ranks in either layout.",
                    "the number of scores that all ranks compute": "The mask leaves the same scores, "
                    "whichever rank computes them.",
                },
            ),
        ]
    )  # fmt: skip
