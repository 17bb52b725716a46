"""A rank's idle time, memory and bytes sent in a step of a pipeline: formulas that the student writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.pipeline.apart import Fraction, fractions
from course_lib.checks.notebooks.pipeline.references import REFERENCES

LOOP, HALVES = "interleaved_one_f_one_b", "zero_bubble_h1"
FLUSHED = ("naive", "gpipe", "one_f_one_b")
Idle = Callable[[str, int, int, int], float]  # schedule, p, m, v: of all that a rank computes


def ideal(schedule: str, p: int, m: int, chunks: int = 1) -> float:
    return facts.pipeline_bubble_of_ideal(schedule, p, m, chunks=chunks)


def total(schedule: str, p: int, m: int, chunks: int = 1) -> float:
    return facts.pipeline_bubble_of_total(schedule, p, m, chunks=chunks)


def peak(schedule: str, p: int, m: int, rank: int, chunks: int = 1) -> float:
    return facts.pipeline_activations(schedule, p, m, rank, chunks)


# ---- what usual mistakes give


def of_ideal(idle: Idle) -> kit.Formula:
    return lambda schedule, p, m, chunks=1: idle(schedule, p, m, chunks)


def of_total(idle: Idle) -> kit.Formula:
    def formula(schedule: str, p: int, m: int, chunks: int = 1) -> float:
        ratio = idle(schedule, p, m, chunks)
        return ratio / (1 + ratio)

    return formula


def instead(schedule: str, says: Idle) -> Idle:
    """The value of `says` for one schedule, and the truth for the others."""
    return lambda name, p, m, v: says(name, p, m, v) if name == schedule else ideal(name, p, m, v)


PLAIN: Mapping[str, Idle] = {
    "That is the sum over all ranks: the fraction of one is asked for, and it is the same for all.": (
        lambda s, p, m, v: p * ideal(s, p, m, v)
    ),
    "A naive rank idles while each of the m microbatches is on one of the p - 1 others: m times as long.": (
        instead("naive", lambda s, p, m, v: (p - 1) / m)
    ),
    "One of p ranks works at a time under the naive schedule: p - 1 idle for one that works.": (
        instead("naive", lambda s, p, m, v: (p - 1) / p)
    ),
    "1F1B has GPipe's bubble, as long to fill and to drain. It saves memory, not time.": (
        instead("one_f_one_b", lambda s, p, m, v: 0)
    ),
    "p ranks are filled in p - 1 steps: the first works from the start.": (
        lambda s, p, m, v: p if s == "naive" else p / m
    ),
    "That is the time to fill alone; the pipeline drains as well, so forwards and backwards both wait.": (
        lambda s, p, m, v: ideal(s, p, m, v) / 3
    ),
    "Filling waits for forwards, draining for backwards: (p-1)(F+B) in all, (p-1)/m of m (F+B). It is not "
    "counted twice.": lambda s, p, m, v: 2 * ideal(s, p, m, v),
}
SPLIT: Mapping[str, Idle] = {
    "Interleaving divides the bubble by the chunks: the pipeline fills in steps of 1/v of a stage.": (
        instead(LOOP, lambda s, p, m, v: (p - 1) / m)
    ),
    "That multiplies by the chunks. They divide the bubble, and multiply the messages.": (
        instead(LOOP, lambda s, p, m, v: v * (p - 1) / m)
    ),
    "That has p v stages in a row. A rank works on v of them, so the pipeline fills in p - 1 steps of 1/v.": (
        instead(LOOP, lambda s, p, m, v: (p * v - 1) / (m * v))
    ),
    "ZB-H1 fills the bubble with the weights' halves, for which no rank waits: (p-1)(F+I-W) is left of it.": (
        instead(HALVES, lambda s, p, m, v: (p - 1) / m)
    ),
    "ZB-H1 has a bubble still, (p-1)(F+I-W); ZB-H2 has none, and holds twice as much.": (
        instead(HALVES, lambda s, p, m, v: 0)
    ),
    "A microbatch takes F + I + W = 3, and what is left of the bubble is (p-1)(F+I-W) = p - 1: a third of "
    "1F1B's.": instead(HALVES, lambda s, p, m, v: 2 * (p - 1) / (3 * m)),
    "With F = I = W = 1 a microbatch takes 3, not 1, also under ZB-H1: (p-1)/(3 m).": (
        instead(HALVES, lambda s, p, m, v: (p - 1) / (2 * m))
    ),
}
OTHER_DENOMINATOR = {
    "ideal": "That is the bubble over the whole time. The ideal time is what a rank computes alone, m (F+B): "
    "(p-1)/m for GPipe.",
    "total": "That is the bubble over the ideal time, as Megatron-LM's papers have it. Of the total, which "
    "has the bubble in it, it is (p-1)/(m+p-1).",
}
PERCENT = "A share is asked for, 0.25 and not 25."
TIME_ALONE = "That is the bubble's time. Divide it by the time that the rank computes, m (F+B)."
PEAK: Mapping[str, kit.Formula] = {
    "That is 1F1B's. GPipe does no backward before its last forward: it holds all m.": (
        lambda s, p, m, rank, v=1: min(m, p - rank) if s == "gpipe" else peak(s, p, m, rank, v)
    ),
    "Under 1F1B a rank holds the microbatches between it and the last stage: p - i, fewer towards the end.": (
        lambda s, p, m, rank, v=1: min(m, p) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "Never more than there are: with fewer microbatches than stages, m.": (
        lambda s, p, m, rank, v=1: p - rank if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "The forward before the first backward counts, too: p - 1 - i to warm up, and one more.": (
        lambda s, p, m, rank, v=1: min(m, p - 1 - rank) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "Ranks are counted from 0: rank i has p - 1 - i behind it, and the last holds one.": (
        lambda s, p, m, rank, v=1: min(m, p - rank + 1) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "That is the wrong way round: the first rank waits longest for its backwards, and holds most.": (
        lambda s, p, m, rank, v=1: min(m, rank + 1) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "A naive rank is done with a microbatch before the next one comes: it holds one.": (
        lambda s, p, m, rank, v=1: m if s == "naive" else peak(s, p, m, rank, v)
    ),
}
SPLIT_PEAK: Mapping[str, kit.Formula] = {
    "That is 1F1B's. A rank of the loop warms up with 2 (p-1-i) + (v-1) p forwards, and does one more.": (
        lambda s, p, m, rank, v=1: min(m, p - rank) if s == LOOP else peak(s, p, m, rank, v)
    ),
    "That is 1F1B's, once for each chunk. A loop is deeper: 2 (p-1-i) + (v-1) p to warm up, and one more.": (
        lambda s, p, m, rank, v=1: min(m * v, v * (p - rank)) if s == LOOP else peak(s, p, m, rank, v)
    ),
    "The forward after the warm-up counts, too, before its backward: one more.": (
        lambda s, p, m, rank, v=1: (
            min(m * v, 2 * (p - 1 - rank) + (v - 1) * p) if s == LOOP else peak(s, p, m, rank, v)
        )
    ),
    "Never more than there are: m v.": (
        lambda s, p, m, rank, v=1: (
            2 * (p - 1 - rank) + (v - 1) * p + 1 if s == LOOP else peak(s, p, m, rank, v)
        )
    ),
    "Count chunks, each of 1/v of a rank's layers, not whole ranks' worth.": (
        lambda s, p, m, rank, v=1: peak(s, p, m, rank, v) / (v if s == LOOP else 1)
    ),
    "ZB-H1 was made to hold what 1F1B does; twice as much is ZB-H2.": (
        lambda s, p, m, rank, v=1: 2 * (p - 1 - rank) + 1 if s == HALVES else peak(s, p, m, rank, v)
    ),
    "Do not count activations that await only their W: an activation is given up at I.": (
        lambda s, p, m, rank, v=1: min(m, p) if s == HALVES else peak(s, p, m, rank, v)
    ),
}


def sent(down: Callable[[int, int, int], int], up: Callable[[int, int, int], int]) -> kit.Formula:
    """So many activations and gradients for each microbatch, of (p, rank, v)."""
    return lambda p, m, rank, nbytes, v=1: m * nbytes * (down(p, rank, v) + up(p, rank, v)) if p > 1 else 0


SENT: Mapping[str, kit.Formula] = {
    "That is activations alone: each comes back as a gradient of the same size.": (
        sent(lambda p, r, v: v - (r == p - 1), lambda p, r, v: 0)
    ),
    "The model's last stage sends no activation, and its first no gradient.": (
        sent(lambda p, r, v: v, lambda p, r, v: v)
    ),
    "In a loop the last rank sends to the first. Only the model's last chunk sends nothing on, and only its "
    "first sends nothing back.": (sent(lambda p, r, v: v * (r < p - 1), lambda p, r, v: v * (r > 0))),
    "With v chunks each microbatch passes a rank v times: it sends v times as much.": (
        sent(lambda p, r, v: int(r < p - 1), lambda p, r, v: int(r > 0))
    ),
    "That is of one microbatch: each of the m is sent.": (
        lambda p, m, rank, nbytes, v=1: facts.pipeline_bytes_sent(p, 1, rank, nbytes, v)
    ),
    "That is the sum over all ranks: one rank's bytes are asked for.": (
        lambda p, m, rank, nbytes, v=1: sum(
            facts.pipeline_bytes_sent(p, m, each_rank, nbytes, v) for each_rank in range(p)
        )
    ),
    "That is what it receives. The last stage receives activations and sends gradients, the first the other "
    "way round.": sent(lambda p, r, v: v - (r == 0), lambda p, r, v: v - (r == 0)),
    "One stage sends nothing: there is no other rank.": (
        lambda p, m, rank, nbytes, v=1: (
            m * nbytes * (2 * v - 2) if p == 1 else facts.pipeline_bytes_sent(p, m, rank, nbytes, v)
        )
    ),
}


def bubble(index: int, which: str, formula: kit.Formula, arguments: Sequence[tuple]) -> kit.Prediction:
    """A line for one of the two fractions: of the schedules in `arguments`."""
    over, other = (of_ideal, total) if which == "ideal" else (of_total, ideal)
    split = arguments[0][0] == LOOP
    slips = {OTHER_DENOMINATOR[which]: other}
    slips |= {says: over(idle) for says, idle in (SPLIT if split else PLAIN).items()}
    slips[PERCENT] = of_ideal(lambda *args: 100 * formula(*args))
    if which == "ideal":
        slips[TIME_ALONE] = of_ideal(lambda name, p, m, v: 3 * m * ideal(name, p, m, v))
    otherwise = {
        "ideal": "The bubble of one rank over its computing time, m (F+B) with F = 1 and B = 2.",
        "total": "The bubble of one rank over bubble and computing together: r / (1 + r), where r is "
        "bubble_of_ideal.",
    }
    title = f"bubble_of_{which}: {'interleaved 1F1B, ZB-H1' if split else 'naive, GPipe, 1F1B'}"
    return kit.Prediction(
        f"bubble_of_{which}", index, arguments, formula, slips, title=title, otherwise=otherwise[which]
    )


def activations(arguments: Sequence[tuple]) -> kit.Prediction:
    split = arguments[0][0] == LOOP
    return kit.Prediction(
        "peak_activations", 2, arguments, peak, SPLIT_PEAK if split else PEAK,
        title=f"peak_activations: {'interleaved 1F1B, ZB-H1' if split else 'naive, GPipe, 1F1B'}",
        otherwise="Write the rank's list out for small p and m: one more with each F, one less with each "
        "backward. The most is asked for.",
    )  # fmt: skip


@kit.exercise(
    points=7,
    objects=("bubble_of_ideal", "bubble_of_total", "peak_activations", "pipeline_bytes_sent"),
    references=REFERENCES,
)
def predictions(draw: kit.Draw) -> Iterator[kit.Case]:
    p = draw.integer(5, 9)
    m = p * draw.integer(3, 8)
    nbytes = 1024 * draw.integer(1_000, 9_000)
    plain = [(name, p, m) for name in FLUSHED] + [("gpipe", p, 3), ("one_f_one_b", 1, 4)]
    split = [(LOOP, p, m, 2), (LOOP, 4, 8, 3), (HALVES, p, m), (HALVES, 3, 5)]
    yield fractions(
        Fraction(
            [bubble(0, "ideal", ideal, plain), bubble(0, "ideal", ideal, split)],
            "bubble_of_total",
            lambda share: share / (1 - share),
        ),
        Fraction(
            [bubble(1, "total", total, plain), bubble(1, "total", total, split)],
            "bubble_of_ideal",
            lambda ratio: ratio / (1 + ratio),
        ),
        draw,
    )
    yield from kit.evaluated(
        [
            activations([(name, p, m, rank) for name in FLUSHED for rank in (0, 2, p - 1)]
                        + [("one_f_one_b", 8, 3, 1), ("gpipe", 8, 3, 1)]),
            activations([(LOOP, p, m, 0, 2), (LOOP, p, m, p - 1, 2), (LOOP, 4, 8, 1, 3),
                         (LOOP, 4, 4, 0, 2), (HALVES, p, m, 0), (HALVES, p, m, p - 2)]),
            kit.Prediction(
                "pipeline_bytes_sent", 3,
                [(p, m, 0, nbytes), (p, m, 2, nbytes), (p, m, p - 1, nbytes), (4, 8, 0, nbytes, 2),
                 (4, 8, 1, nbytes, 2), (4, 8, 3, nbytes, 3), (1, m, 0, nbytes)],
                facts.pipeline_bytes_sent, SENT,
                otherwise="For each microbatch: an activation from each of its stages but the model's last, "
                "and a gradient from each but the model's first.",
            ),
        ]
    )  # fmt: skip
