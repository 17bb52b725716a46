"""zero_bubble_h1: 1F1B with the backward cut in two."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes, refusal_case, schedules_case
from course_lib.checks.notebooks.pipeline.form import EQUAL, Form, schedule_exercise
from course_lib.checks.notebooks.pipeline.order import (
    IMPOSSIBLE,
    Row,
    ahead,
    all_forwards_first,
    first_of,
    is_naive,
    longest_gap,
    orders_differ,
    two_forwards,
    warm_up,
)
from course_lib.checks.notebooks.pipeline.schedules import PASSES, WHY, forwards_needed, some, uneven
from course_lib.pipeline.actions import flat

NAME = "zero_bubble_h1"
KEEP = "Rank i has i W in store when it comes to its last I, because they fill the time until the step ends."


def stored(row: Row) -> int:
    """W that wait when the last I is done, without its own."""
    kinds = [action.kind for action in flat(row)]
    return kinds[::-1].index("I") - 1 if "I" in kinds else 0


def at_once(sizes: Sizes, rows: Rows) -> str:
    """Every W directly after its I."""
    for row in rows:
        done = list(flat(row))
        for action, following in zip(done, [*done[1:], None], strict=True):
            if action.kind == "I" and (following is None or following != action._replace(kind="W")):
                return ""
    return (
        "Every W follows directly after its I, so this is 1F1B with its backward cut in two. A gradient is "
        f"sent a W sooner, but no W fills a gap. Put each W where the rank would idle. {KEEP}"
    )


def first_rank_stores(sizes: Sizes, rows: Rows) -> str:
    """Stored the wrong way round."""
    p = sizes.stages
    if p > 1 and all(stored(row) == p - 1 - rank for rank, row in enumerate(rows)):
        return (
            "Rank 0 keeps the most W for its end, the last rank none. But it must be the opposite, because "
            f"the last rank has its last I first. {KEEP}"
        )
    return ""


def too_few_stored(sizes: Sizes, rows: Rows) -> str:
    for rank, row in enumerate(rows):
        if stored(row) < rank:
            return kit.Sentence(
                f"Rank {rank} has {words.number(stored(row))} W in store when it comes to its last I, and "
                f"idles once they are done. {KEEP}",
                f"A rank has too few W in store when it comes to its last I. {KEEP}",
            )
    return ""


def all_at_the_end(sizes: Sizes, rows: Rows) -> str:
    """No W before the last I."""
    if sizes.microbatches > sizes.stages > 1 and all(stored(row) == sizes.microbatches - 1 for row in rows):
        return (
            "Every rank keeps all its W for the end, so it also keeps the activations of all microbatches. "
            f"{KEEP} Before that, do an older W after each I."
        )
    return ""


def second_handmade(sizes: Sizes, rows: Rows) -> str:
    p, m = sizes.stages, sizes.microbatches
    if p > 1 and all(ahead(row) == min(m, 2 * (p - r) - 1) for r, row in enumerate(rows)):
        return "This is ZB-H2, because its warm-up is twice as long and holds up to 2p-1 microbatches."
    return ""


def all_first(sizes: Sizes, rows: Rows) -> str:
    if sizes.microbatches > sizes.stages and all_forwards_first(sizes, rows):
        return "All forwards come before the first I, as in GPipe, so this takes GPipe's memory."
    return ""


def too_many_stored(sizes: Sizes, rows: Rows) -> str:
    for rank, row in enumerate(rows):
        if stored(row) > rank:
            return kit.Sentence(
                f"Rank {rank} has {words.number(stored(row))} W in store when it comes to its last I. {KEEP}",
                f"A rank has too many W in store when it comes to its last I. {KEEP}",
            )
    return ""


short, long = warm_up(forwards_needed, WHY)
USUAL = first_of(
    is_naive,
    at_once,
    all_first,
    second_handmade,
    all_at_the_end,
    short,
    first_rank_stores,
    too_few_stored,
    long,
    too_many_stored,
    two_forwards,
    orders_differ,
)
FORM = Form(
    NAME,
    disorder=IMPOSSIBLE,
    late=first_of(USUAL, longest_gap),
    heavy=USUAL,
    idle="(p-1)(F+I-W)",
    held="p, those included that only await W",
    kinds="FIW",
    weight_share=1,
    most_held=lambda sizes, rank: sizes.stages,
)


@schedule_exercise(points=8, objects=(NAME,), point="a third of 1F1B's bubble, in its memory")
def zero_bubble_h1(draw: kit.Draw) -> Iterator[kit.Case]:
    wanted = [Sizes(4, 8), some(draw), Sizes(3, 3), Sizes(1, 2)]
    lines = [
        FORM.line(PASSES, wanted, [], 3),
        FORM.line("a rank idles p-1, F = I = W = 1", wanted, [FORM.takes(EQUAL)], 2.5),
        FORM.line("and (p-1)(F+I-W) for other times", wanted, [FORM.takes(uneven(draw))], 1),
        FORM.line("activations: at most p, until their W", wanted, [FORM.holds], 2.5, "memory"),
    ]
    yield schedules_case("schedules", wanted, lines)
    few = Sizes(4, 3)
    here = f"with {few.microbatches} microbatches rank 0 waits for its first I"
    why = "rank 0 has no forward left to do until its first I, so it idles longer than (p-1)(F+I-W)."
    yield refusal_case(NAME, few, "m is less than p", here, why)
    if draw.hidden:
        larger = [some(draw, 6, most=9), Sizes(7, 7)]
        yield FORM.larger(larger, [FORM.takes(EQUAL, uneven(draw)), FORM.holds], 2)
