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
    "This fraction is the sum over all ranks. Give the fraction of one rank, which is the same for all.": (
        lambda s, p, m, v: p * ideal(s, p, m, v)
    ),
    "A naive rank idles while each of the m microbatches is on one of the p - 1 others, so m times as "
    "long.": (instead("naive", lambda s, p, m, v: (p - 1) / m)),
    "Under the naive schedule one of p ranks works at a time, so p - 1 idle for one that works.": (
        instead("naive", lambda s, p, m, v: (p - 1) / p)
    ),
    "1F1B has GPipe's bubble, because it takes as long to fill and to drain. It saves memory, not time.": (
        instead("one_f_one_b", lambda s, p, m, v: 0)
    ),
    "p ranks are filled in p - 1 steps, because the first works from the start.": (
        lambda s, p, m, v: p if s == "naive" else p / m
    ),
    "Only the time to fill is counted. The pipeline also drains, so forwards and backwards both wait.": (
        lambda s, p, m, v: ideal(s, p, m, v) / 3
    ),
    "The bubble is counted twice. Filling waits for forwards and draining for backwards, so it is (p-1)(F+B) "
    "in all, (p-1)/m of m (F+B).": lambda s, p, m, v: 2 * ideal(s, p, m, v),
}
SPLIT: Mapping[str, Idle] = {
    "Interleaving divides the bubble by the chunks, because the pipeline fills in steps of 1/v of a stage.": (
        instead(LOOP, lambda s, p, m, v: (p - 1) / m)
    ),
    "Your bubble is multiplied by the chunks. They divide the bubble, but multiply the messages.": (
        instead(LOOP, lambda s, p, m, v: v * (p - 1) / m)
    ),
    "Your bubble has p v stages in a row. A rank works on v of them, so the pipeline fills in p - 1 steps of "
    "1/v.": (instead(LOOP, lambda s, p, m, v: (p * v - 1) / (m * v))),
    "ZB-H1 fills the bubble with the weights' halves, for which no rank waits, so (p-1)(F+I-W) is left.": (
        instead(HALVES, lambda s, p, m, v: (p - 1) / m)
    ),
    "ZB-H1 still has a bubble, (p-1)(F+I-W). ZB-H2 has none, but holds twice as much.": (
        instead(HALVES, lambda s, p, m, v: 0)
    ),
    "A microbatch takes F + I + W = 3, and (p-1)(F+I-W) = p - 1 is left of the bubble, so a third of 1F1B's "
    "bubble.": instead(HALVES, lambda s, p, m, v: 2 * (p - 1) / (3 * m)),
    "With F = I = W = 1 a microbatch takes 3, not 1, even under ZB-H1. This gives (p-1)/(3 m).": (
        instead(HALVES, lambda s, p, m, v: (p - 1) / (2 * m))
    ),
}
OTHER_DENOMINATOR = {
    "ideal": "Your fraction is the bubble over the whole time. The ideal time is only the time a rank spends "
    "computing, m (F+B). For GPipe this gives (p-1)/m.",
    "total": "Your fraction is the bubble over the ideal time, as in Megatron-LM's papers. Of the total, "
    "which has the bubble in it, it is (p-1)/(m+p-1).",
}
PERCENT = "Give a share, so 0.25 and not 25."
TIME_ALONE = "Your result is the bubble's time. Divide it by the rank's computing time, m (F+B)."
PEAK: Mapping[str, kit.Formula] = {
    "Your peak is 1F1B's peak. GPipe does no backward before its last forward, so it holds all m.": (
        lambda s, p, m, rank, v=1: min(m, p - rank) if s == "gpipe" else peak(s, p, m, rank, v)
    ),
    "Under 1F1B a rank holds the microbatches between it and the last stage, p - i, so fewer "
    "towards the end.": (
        lambda s, p, m, rank, v=1: min(m, p) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "No rank holds more than all m, so m is the peak with fewer microbatches than stages.": (
        lambda s, p, m, rank, v=1: p - rank if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "The forward before the first backward also counts, so p - 1 - i to warm up, and one more.": (
        lambda s, p, m, rank, v=1: min(m, p - 1 - rank) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "Ranks are counted from 0, so rank i has p - 1 - i behind it, and the last holds one.": (
        lambda s, p, m, rank, v=1: min(m, p - rank + 1) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "Your peak is the wrong way round. The first rank waits longest for its backwards, so it holds most.": (
        lambda s, p, m, rank, v=1: min(m, rank + 1) if s == "one_f_one_b" else peak(s, p, m, rank, v)
    ),
    "A naive rank is done with a microbatch before the next one arrives, so it holds one.": (
        lambda s, p, m, rank, v=1: m if s == "naive" else peak(s, p, m, rank, v)
    ),
}
SPLIT_PEAK: Mapping[str, kit.Formula] = {
    "Your peak is the peak of 1F1B. But a rank of the loop warms up with 2 (p-1-i) + (v-1) p forwards, and "
    "does one more.": (lambda s, p, m, rank, v=1: min(m, p - rank) if s == LOOP else peak(s, p, m, rank, v)),
    "Your peak counts 1F1B's peak once for each chunk. But a loop is deeper, so a rank takes 2 (p-1-i) + "
    "(v-1) p to warm up, and one more.": (
        lambda s, p, m, rank, v=1: min(m * v, v * (p - rank)) if s == LOOP else peak(s, p, m, rank, v)
    ),
    "The forward after the warm-up also counts before its backward, so there is one more.": (
        lambda s, p, m, rank, v=1: (
            min(m * v, 2 * (p - 1 - rank) + (v - 1) * p) if s == LOOP else peak(s, p, m, rank, v)
        )
    ),
    "A rank never holds more than there are, so it holds at most m v.": (
        lambda s, p, m, rank, v=1: (
            2 * (p - 1 - rank) + (v - 1) * p + 1 if s == LOOP else peak(s, p, m, rank, v)
        )
    ),
    "Count chunks, each of 1/v of a rank's layers, not whole ranks' worth.": (
        lambda s, p, m, rank, v=1: peak(s, p, m, rank, v) / (v if s == LOOP else 1)
    ),
    "ZB-H1 holds as much as 1F1B, while ZB-H2 holds twice as much.": (
        lambda s, p, m, rank, v=1: 2 * (p - 1 - rank) + 1 if s == HALVES else peak(s, p, m, rank, v)
    ),
    "Do not count activations that await only their W, because this function counts what waits for B or I.": (
        lambda s, p, m, rank, v=1: min(m, p) if s == HALVES else peak(s, p, m, rank, v)
    ),
}


def sent(down: Callable[[int, int, int], int], up: Callable[[int, int, int], int]) -> kit.Formula:
    """So many activations and gradients for each microbatch, of (p, rank, v)."""
    return lambda p, m, rank, nbytes, v=1: m * nbytes * (down(p, rank, v) + up(p, rank, v)) if p > 1 else 0


SENT: Mapping[str, kit.Formula] = {
    "Only the activations are counted, but each comes back as a gradient of the same size.": (
        sent(lambda p, r, v: v - (r == p - 1), lambda p, r, v: 0)
    ),
    "The model's last stage sends no activation, and its first no gradient.": (
        sent(lambda p, r, v: v, lambda p, r, v: v)
    ),
    "In a loop, the last rank sends to the first, so only the model's last chunk sends nothing on, and only "
    "its first chunk sends nothing back.": (
        sent(lambda p, r, v: v * (r < p - 1), lambda p, r, v: v * (r > 0))
    ),
    "With v chunks each microbatch passes a rank v times, so the rank sends v times as much.": (
        sent(lambda p, r, v: int(r < p - 1), lambda p, r, v: int(r > 0))
    ),
    "Only one microbatch is counted, but each of the m is sent.": (
        lambda p, m, rank, nbytes, v=1: facts.pipeline_bytes_sent(p, 1, rank, nbytes, v)
    ),
    "Your result is the sum over all ranks. Give the bytes of one rank.": (
        lambda p, m, rank, nbytes, v=1: sum(
            facts.pipeline_bytes_sent(p, m, each_rank, nbytes, v) for each_rank in range(p)
        )
    ),
    "Your result is the bytes a rank receives. The last stage receives activations and sends gradients, "
    "while the first stage does the opposite.": sent(
        lambda p, r, v: v - (r == 0), lambda p, r, v: v - (r == 0)
    ),
    "One stage sends nothing, because there is no other rank.": (
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
        "total": "The bubble of one rank over bubble and computing together, so r / (1 + r), where r is "
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
        otherwise="Write the rank's list out for small p and m, then count one more with each F and one less "
        "with each backward. Give the most.",
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
                otherwise="For each microbatch, a rank sends an activation from each of its stages except "
                "the model's last, and a gradient from each except the model's first.",
            ),
        ]
    )  # fmt: skip
