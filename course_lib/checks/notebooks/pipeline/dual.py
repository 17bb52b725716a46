"""dualpipe: two copies of the model, from both ends, forwards overlapped with backwards."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes, schedules_case
from course_lib.checks.notebooks.pipeline.form import CLOSE, EQUAL, Form, schedule_exercise
from course_lib.checks.notebooks.pipeline.order import MISNAMED, ahead, first_of, longest_gap, of_kind
from course_lib.checks.notebooks.pipeline.schedules import PASSES
from course_lib.pipeline import Durations, Pair, simulate
from course_lib.pipeline.actions import flat
from course_lib.pipeline.generators import dualpipe as ours

NAME = "dualpipe"


def both_ways(sizes: Sizes, rank: int) -> list[int]:
    return [rank, 2 * sizes.stages - 1 - rank]


def one_direction(sizes: Sizes, rows: Rows) -> str:
    """A second copy that does nothing, or that runs the same way as the first."""
    p = sizes.stages
    if all(action.stage < p for row in rows for action in flat(row)):
        return (
            "Your schedule has one copy of the model, but DualPipe has two. The second half of the "
            "microbatches enters at the last rank, which holds stage p, the first of the second copy."
        )
    held = [{action.stage for action in flat(row)} for row in rows]
    if all(own == {rank, p + rank} for rank, own in enumerate(held)):
        return (
            "Both copies run from rank 0 to the last, but the second copy must run the other way and "
            "begin on the last rank. Rank i holds its stage p-1-i, which is numbered p + (p-1-i)."
        )
    return ""


def each_copys_own(sizes: Sizes, rows: Rows) -> str:
    """Microbatches shared out in another way than by halves."""
    half = sizes.microbatches // 2
    second = [action for row in rows for action in flat(row) if action.stage >= sizes.stages]
    if any(action.microbatch < half for action in second):
        return "The first m/2 microbatches belong to the first copy, and the rest to the second copy."
    return ""


def no_pairs(sizes: Sizes, rows: Rows) -> str:
    if not any(isinstance(entry, Pair) for row in rows for entry in row):
        return (
            "Nothing is overlapped. Write Pair(F, B) for a forward of one direction and a backward of the "
            "other direction, so that a rank does them as one block."
        )
    return ""


def whole_backwards(sizes: Sizes, rows: Rows) -> str:
    """No backward is cut, so that W is on the way of the others."""
    if not any(of_kind(row, "I") for row in rows):
        return (
            "Every backward is whole. While the pipeline fills and empties, the next rank waits only for "
            "I, so cut these backwards and put W into the gaps."
        )
    return ""


def one_after_the_other(sizes: Sizes, rows: Rows) -> str:
    """All of one direction before anything of the other."""
    for rank, row in enumerate(rows):
        copies = [action.stage >= sizes.stages for action in flat(row)]
        if copies in (sorted(copies), sorted(copies, reverse=True)):
            return kit.Sentence(
                f"Rank {rank} does all of one direction before anything of the other direction, but they "
                "must run at the same time and fill each other's gaps.",
                "A rank does all of one direction before anything of the other direction, but they must "
                "run at the same time and fill each other's gaps.",
            )
    return ""


def all_in(sizes: Sizes, rows: Rows) -> str:
    """More forwards before the first backward than there are places for."""
    for rank, row in enumerate(rows):
        if ahead(row) > sizes.stages + 1:
            return kit.Sentence(
                f"Rank {rank} does {words.counted(ahead(row), 'forward')} before its first backward.",
                "A rank does more than p + 1 forwards before its first backward.",
            )
    return ""


def where(sizes: Sizes, rows: Rows) -> str:
    return longest_gap(sizes, rows, copies=2)


FORM = Form(
    NAME,
    disorder=first_of(one_direction, each_copys_own, MISNAMED),
    late=first_of(one_after_the_other, no_pairs, whole_backwards, where),
    heavy=all_in,
    idle="(p/2-1)(F&B + B - 3W), F&B = F + B here",
    held="p + 1",
    stages=both_ways,
    layout="rank i holds stage i of one copy and p-1-i of the other copy, numbered p + (p-1-i)",
    kinds="FBIW",
    pairs=True,
    copies=2,
)


def overlaps(sizes: Sizes, rows: Rows) -> kit.Finding:
    """Where a pair takes less time than its parts, the step ends as early as it can."""
    lasting = Durations(overlapped=2)
    total, least = (
        simulate(schedule, lasting, 2).total for schedule in (rows, ours(sizes.stages, sizes.microbatches))
    )
    if total <= least + CLOSE * least:
        return kit.RIGHT
    sentence = kit.Sentence(
        f"{sizes.call(NAME)}: if a pair takes 2 and F = I = W = 1, the step takes {words.number(total)}, but "
        f"{words.number(least)} is possible.",
        f"with {NAME} the step takes longer than it needs to where pairs are shorter than F + B.",
    )
    return kit.wrong(sentence, kit.usual(FORM.late, sizes, rows), cause="pairs", misses_point=True)


@schedule_exercise(points=5, objects=(NAME,), extra=True, point="overlapping forwards with backwards")
def dualpipe(draw: kit.Draw) -> Iterator[kit.Case]:
    stages = 2 * draw.integer(1, 4)
    drawn = Sizes(stages, 2 * stages + 2 * draw.integer(1, 4))
    wanted = [Sizes(4, 10), drawn, Sizes(2, 4), Sizes(6, 12)]
    weight = draw.integer(1, 4)
    longer = weight + draw.integer(1, 4)
    other_times = FORM.takes(Durations(longer, longer, weight))
    lines = [
        FORM.line(PASSES, wanted, [], 1.5),
        FORM.line("a rank idles 2 (p/2-1), F = I = W = 1", wanted, [FORM.takes(EQUAL)], 1),
        FORM.line("and for other times", wanted, [other_times], 0.5),
        FORM.line("the step with pairs shorter than F + B", wanted, [overlaps], 1),
        FORM.line("activations: at most p + 1", wanted, [FORM.holds], 1, "memory"),
    ]
    yield schedules_case("schedules", wanted, lines)
    if draw.hidden:
        larger = [Sizes(8, 16 + 2 * draw.integer(0, 4)), Sizes(6, 20)]
        yield FORM.larger(larger, [FORM.takes(EQUAL), overlaps, FORM.holds], 1)
