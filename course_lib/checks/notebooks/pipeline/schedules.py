"""naive, gpipe, one_f_one_b: schedules with one stage a rank and whole backwards."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes, schedules_case
from course_lib.checks.notebooks.pipeline.form import EQUAL, Form, schedule_exercise
from course_lib.checks.notebooks.pipeline.order import (
    IMPOSSIBLE,
    ahead,
    all_forwards_first,
    first_of,
    is_naive,
    longest_gap,
    orders_differ,
    two_forwards,
    warm_up,
)
from course_lib.pipeline import Durations

PASSES = "every pass once, on its rank, in an order that works"
FULL = "a short bubble and few activations"


def nothing(sizes: Sizes, rows: Rows) -> str:
    """No hint."""
    return ""


def some(draw: kit.Draw, least: int = 2, unit: int = 1, most: int = 5) -> Sizes:
    """Some stages, and more microbatches than stages."""
    stages = draw.integer(least, most + 1)
    more = stages + draw.integer(2, 6) if unit == 1 else 2 * stages
    return Sizes(stages, more)


def uneven(draw: kit.Draw) -> Durations:
    """Other times than F = I = W, W the shortest."""
    weight = draw.integer(1, 4)
    return Durations(weight + draw.integer(1, 4), weight + draw.integer(0, 4), weight)


# ---- naive


def gpipes_memory(sizes: Sizes, rows: Rows) -> str:
    if all_forwards_first(sizes, rows):
        return "This is GPipe, because all microbatches go in before the first one comes back."
    return "The next microbatch goes into the first stage only after the previous one has come back."


NAIVE = Form("naive", disorder=IMPOSSIBLE, late=nothing, heavy=gpipes_memory, held="one microbatch at a time")


@schedule_exercise(points=3, objects=("naive",), point="one microbatch at a time")
def naive(draw: kit.Draw) -> Iterator[kit.Case]:
    wanted = [Sizes(4, 4), some(draw), Sizes(1, 3)]
    lines = [
        NAIVE.line(PASSES, wanted, [], 2),
        NAIVE.line("one microbatch at a time", wanted, [NAIVE.holds], 3),
    ]
    yield schedules_case("schedules", wanted, lines)
    if draw.hidden:
        yield NAIVE.larger([some(draw, 6, most=9), Sizes(5, 1)], [NAIVE.holds], 2)


# ---- GPipe


def forwards_first(sizes: Sizes, rows: Rows) -> kit.Finding:
    """Every rank does all forwards before its first backward."""
    m = sizes.microbatches
    for rank, row in enumerate(rows):
        if ahead(row) < m:
            sentence = kit.Sentence(
                f"{sizes.call('gpipe')}: rank {rank} goes backward after {words.number(ahead(row))} of its "
                f"{words.counted(m, 'forward')}. In GPipe all forwards come first.",
                "gpipe does a backward before all forwards are done. In GPipe all forwards come first.",
            )
            early = all(ahead(row) == min(m, sizes.stages - r) for r, row in enumerate(rows))
            later = "This is 1F1B, which comes later." if early else ""
            return kit.wrong(
                sentence, is_naive(sizes, rows) or later, cause="backward first", misses_point=True
            )
    return kit.RIGHT


GPIPE = Form("gpipe", disorder=IMPOSSIBLE, late=first_of(is_naive, orders_differ, longest_gap), heavy=nothing)


@schedule_exercise(points=5, objects=("gpipe",), point="all microbatches in the pipeline at once")
def gpipe(draw: kit.Draw) -> Iterator[kit.Case]:
    wanted = [Sizes(4, 8), some(draw), Sizes(4, 2), Sizes(1, 3)]
    lines = [
        GPIPE.line(PASSES, wanted, [], 2),
        GPIPE.line("all forwards, then all backwards", wanted, [forwards_first], 2),
        GPIPE.line("a rank idles (p-1)(F+B)", wanted, [GPIPE.takes(EQUAL, uneven(draw))], 3),
    ]
    yield schedules_case("schedules", wanted, lines)
    if draw.hidden:
        larger = [some(draw, 6, most=9), Sizes(5, 1)]
        yield GPIPE.larger(larger, [forwards_first, GPIPE.takes(EQUAL, uneven(draw))], 2)


# ---- 1F1B


def forwards_needed(sizes: Sizes, rank: int) -> int:
    """Before the first backward: down to the last stage, and its own."""
    return min(sizes.microbatches, sizes.stages - rank)


WHY = "one for each stage from it to the last, p - i"
short, long = warm_up(forwards_needed, WHY)


def sold_as_1f1b(sizes: Sizes, rows: Rows) -> str:
    m, p = sizes.microbatches, sizes.stages
    if m <= p or not all_forwards_first(sizes, rows):
        return ""
    return kit.Sentence(
        f"This is GPipe's order, and GPipe's memory, since rank 0 does {m} forwards before its first "
        f"backward. Stage 0 of {p} needs {p}, because then the first gradient can be back.",
        "This is GPipe's order, and GPipe's memory, since all forwards come before the first backward. "
        "Stage 0 of p needs p, because then the first gradient can be back.",
    )


ONE_F_ONE_B = Form(
    "one_f_one_b",
    disorder=IMPOSSIBLE,
    late=first_of(is_naive, short, long, two_forwards, orders_differ, longest_gap),
    heavy=first_of(sold_as_1f1b, long, two_forwards),
    excess=2,  # one forward too many on every rank is still 1F1B
)


@schedule_exercise(points=9, objects=("one_f_one_b",), point=FULL)
def one_f_one_b(draw: kit.Draw) -> Iterator[kit.Case]:
    form = ONE_F_ONE_B
    wanted = [Sizes(4, 8), some(draw), Sizes(2, 4), Sizes(1, 3)]
    fewer = [Sizes(4, 2), Sizes(draw.integer(3, 7), 1), Sizes(3, 3)]
    lines = [
        form.line(PASSES, wanted, [], 3),
        form.line("a rank idles (p-1)(F+B), B = 2 F", wanted, [form.takes(EQUAL)], 2.5),
        form.line("and for other times", wanted, [form.takes(uneven(draw))], 1),
        form.line("activations on stage i: min(m, p-i)", wanted, [form.holds], 3, "memory"),
    ]
    yield schedules_case("schedules", wanted, lines)
    lines = [
        form.line("no more microbatches than stages", fewer, [form.takes(EQUAL)], 1, edge=True),
        form.line("activations: then at most m", fewer, [form.holds], 0.5, "memory", edge=True),
    ]
    yield schedules_case("few", fewer, lines)
    if draw.hidden:
        larger, shorter = some(draw, 6, most=9), Sizes(7, draw.integer(2, 7))
        looks = [form.takes(EQUAL, uneven(draw)), form.holds]
        lines = [
            form.line("more stages", [larger], looks, 2),
            form.line("more stages than microbatches", [shorter], looks, 1, edge=True),
        ]
        yield schedules_case("larger", [larger, shorter], lines, hidden=True)
