"""interleaved_one_f_one_b: 1F1B on a loop, with several stages a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from course_lib.checks import kit
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes, refusal_case, schedules_case
from course_lib.checks.notebooks.pipeline.form import EQUAL, Form, schedule_exercise
from course_lib.checks.notebooks.pipeline.order import (
    IMPOSSIBLE,
    ahead,
    all_forwards_first,
    first_of,
    is_naive,
    longest_gap,
    of_kind,
    two_forwards,
    warm_up,
)
from course_lib.checks.notebooks.pipeline.schedules import PASSES, uneven
from course_lib.pipeline.actions import flat

NAME = "interleaved_one_f_one_b"


def looped(sizes: Sizes, rank: int) -> list[int]:
    return [chunk * sizes.stages + rank for chunk in range(sizes.v)]


def other_layout(sizes: Sizes, rows: Rows) -> str:
    """Stages dealt out in another way that one knows."""
    p, v = sizes.stages, sizes.v
    if v == 1 or p == 1:
        return ""

    def lies(stages: Callable[[int], list[int]]) -> bool:
        held = [{action.stage for action in flat(row)} for row in rows]
        return all(own == set(stages(rank)) for rank, own in enumerate(held))

    if lies(lambda rank: [rank]):
        return "Each rank holds v stages, so its chunk c is stage c p + i of the model."
    if lies(lambda rank: [rank * v + chunk for chunk in range(v)]):
        return (
            "Neighbouring stages on one rank are one longer stage, so the pipeline fills no sooner. On a "
            "loop chunk c of rank i is stage c p + i."
        )
    if v == 2 and lies(lambda rank: [rank, 2 * p - 1 - rank]):
        return "Your layout is a V, as in ZB-V and DualPipeV. But on a loop rank i holds stages i and p + i."
    return ""


def without_groups(sizes: Sizes, rows: Rows) -> str:
    """All microbatches through one chunk before the next, or one microbatch through all of them."""
    p, m = sizes.stages, sizes.microbatches
    if sizes.v == 1:
        return ""
    for kinds, name in (("F", "forward"), ("B", "backward")):
        done = of_kind(rows[0], kinds)
        if m > p and len({action.stage for action in done[:m]}) == 1:
            return kit.Sentence(
                f"Rank 0 takes all {m} microbatches {name} through stage {done[0].stage} before it goes on "
                f"to another of its stages. But microbatches go around in groups of p = {p}. A group goes "
                "through one chunk and then through the next, before the next group follows.",
                f"Rank 0 takes all microbatches {name} through one stage before it goes on to another of its "
                "stages. But microbatches go around in groups of p, first through one chunk, then through "
                "the next.",
            )
        if p > 1 and len(done) > 1 and done[0].stage != done[1].stage:
            return kit.Sentence(
                f"Rank 0 goes from {done[0]} on to {done[1]}, another of its stages. But a microbatch "
                f"passes p = {p} ranks on its way around the loop, so the other {p - 1} of its group go "
                "through the first stage in that time.",
                "Rank 0 goes from one of its stages to another after one microbatch, but a group of p goes "
                "through one chunk before any of its microbatches is back from the loop.",
            )
    return ""


def backward_order(sizes: Sizes, rows: Rows) -> str:
    """Backward begins with the last chunk."""
    for rank, row in enumerate(rows):
        done, last = of_kind(row, "B"), looped(sizes, rank)[-1]
        if len(done) == sizes.microbatches * sizes.v and done[0].stage != last:
            return kit.Sentence(
                f"The first backward of rank {rank} is {done[0]}, but the gradient comes from the last "
                f"stage, so stage {last}, the rank's last chunk, is first. Backward goes through the "
                "chunks in reverse.",
                "Backward goes through a rank's chunks in reverse, the last one first.",
            )
    return ""


def always_two(sizes: Sizes, rows: Rows) -> str:
    """The default number of chunks, whatever the call asks for."""
    p, v = sizes.stages, sizes.v
    if v == 2 or any({action.stage for action in flat(row)} != {r, p + r} for r, row in enumerate(rows)):
        return ""
    return kit.Sentence(
        f"Your ranks have 2 chunks each, but this call asks for {v}. Does the argument `chunks` appear "
        "wherever you count chunks?",
        "Your ranks have 2 chunks each, whatever the call asks for. Count chunks with the argument `chunks`.",
    )


def cut_off(sizes: Sizes, rows: Rows) -> str:
    """Backwards that are lost because the formula's warm-up is longer than there are forwards."""
    p, v, m = sizes.stages, sizes.v, sizes.microbatches
    for rank, row in enumerate(rows):
        formula, forwards = 2 * (p - 1 - rank) + (v - 1) * p, len(of_kind(row, "F"))
        if formula > m * v == forwards > len(of_kind(row, "B")):
            return kit.Sentence(
                f"The formula gives rank {rank} a warm-up of {formula} forwards, but rank {rank} has only "
                f"{forwards}. Take the smaller of the two numbers, because all backwards come after it.",
                "With few microbatches the formula's warm-up is longer than a rank's list of forwards. Take "
                "the smaller of the two numbers.",
            )
    return ""


def least_ahead(sizes: Sizes, rank: int) -> int:
    """Forwards before the first backward without which ranks wait, even if messages take no time."""
    p, v = sizes.stages, sizes.v
    return min(sizes.microbatches * v, p - 1 - rank + (v - 1) * p + 1)


def most_ahead(sizes: Sizes, rank: int) -> int:
    """Megatron-LM's: twice as far from the last rank, so that messages have time."""
    return min(sizes.microbatches * sizes.v, least_ahead(sizes, rank) + sizes.stages - 1 - rank)


short, _ = warm_up(least_ahead, "(v-1)p round the loop, p-1-i down to the last rank, and one more")
_, long = warm_up(most_ahead, "2(p-1-i) + (v-1)p of warm-up, and the first of the steady state")


def plain_warm_up(sizes: Sizes, rows: Rows) -> str:
    p, v = sizes.stages, sizes.v
    if v > 1 and p > 1 and all(ahead(row) == p - rank for rank, row in enumerate(rows)):
        return (
            "Your warm-up is the warm-up of plain 1F1B, p-1-i. But here the first microbatch has to go "
            "around v times before any gradient comes, so it takes 2(p-1-i) + (v-1)p."
        )
    return ""


def all_first(sizes: Sizes, rows: Rows) -> str:
    return "All forwards come before the first backward." if all_forwards_first(sizes, rows) else ""


FORM = Form(
    NAME,
    disorder=first_of(
        always_two, other_layout, without_groups, backward_order, plain_warm_up, cut_off, IMPOSSIBLE, short
    ),
    late=first_of(is_naive, without_groups, plain_warm_up, short, long, two_forwards, longest_gap),
    heavy=first_of(without_groups, all_first, long, two_forwards),
    idle="(p-1)(F+B)/v",
    held="min(mv, 2(p-1-i) + (v-1)p + 1) on rank i",
    stages=looped,
    layout="on a loop rank i holds stages i, p + i, 2p + i and so on",
    excess=1.5,  # one forward too many on every rank, or one for each rank, leaves the bubble short
)


@schedule_exercise(points=9, objects=(NAME,), point="a bubble v times shorter")
def interleaved_one_f_one_b(draw: kit.Draw) -> Iterator[kit.Case]:
    stages, chunks = draw.integer(2, 5), draw.integer(2, 4)
    drawn = Sizes(stages, stages * draw.integer(2, 4), chunks)
    wanted = [Sizes(4, 8, None, default=2), Sizes(3, 6, 3), drawn, Sizes(2, 2, 4)]
    with_one_each = [*wanted, Sizes(3, 6, 1)]
    lines = [
        FORM.line(PASSES, with_one_each, [], 2),
        FORM.line("a rank idles (p-1)(F+B)/v, B = 2 F", wanted, [FORM.takes(EQUAL)], 2.5),
        FORM.line("and for other times", wanted, [FORM.takes(uneven(draw))], 1),
        FORM.line("activations: at most 2(p-1-i) + (v-1)p + 1", wanted, [FORM.holds], 2, "memory"),
    ]
    yield schedules_case("schedules", with_one_each, lines)
    one_group = Sizes(3, 3, 3)  # fewer forwards than in the formula's warm-up of rank 0
    line = FORM.line("one group of microbatches, m = p", [one_group], [FORM.takes(EQUAL)], 0.5, edge=True)
    yield schedules_case("few", [one_group], [replace(line, trivial=True)])
    few = Sizes(4, 6, None, default=2)
    here = f"{few.microbatches} microbatches are not whole groups of {few.stages}"
    why = "the last group would be short, so ranks wait for it."
    yield refusal_case(NAME, few, "m is not a multiple of p", here, why)
    if draw.hidden:
        p = draw.integer(5, 8)
        larger = [Sizes(p, 3 * p, 2), Sizes(4, 12, 3), Sizes(1, 3, 2)]
        yield FORM.larger(larger, [FORM.takes(EQUAL, uneven(draw)), FORM.holds], 2)
