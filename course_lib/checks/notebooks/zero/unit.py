"""Unit: one unit of ZeRO-3. It gathers its parameters, frees them, and reduces their gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.notebooks.zero.references import REFERENCE
from course_lib.checks.notebooks.zero.runs import MEMBERS, REFUSED, WORLD
from course_lib.checks.notebooks.zero.unit_lines import (
    NO_GRADIENT_YET,
    SHARD_WITHOUT_GRADIENT,
    UnitRun,
    bytes_of,
    cleared,
    draw_run,
    empty_and_whole,
    frees,
    gathers,
    own_shard,
    reduces,
    used_again,
)
from course_lib.checks.notebooks.zero.unit_memory import large_unit
from course_lib.checks.rank.notebooks.zero.sharded import UnitInstructions

RECIPE = "course_lib.checks.rank.notebooks.zero.sharded:unit"


def side(run: UnitRun, rank: int, group: bool) -> kit.RankSide:
    inputs = {f"p{k}": p for k, p in enumerate(run.params[rank])} | {"x": run.x}
    for number, ranks in enumerate(run.gradients):
        inputs |= {f"g{number}.{k}": g for k, g in enumerate(ranks[rank]) if g is not None}
    shard = kit.Spec(torch.float64, (run.size,))
    outputs = {"shard": shard}
    for when in ("first", "second"):
        outputs |= {f"{when}.{k}": kit.Spec.of(p) for k, p in enumerate(run.params[0])}
    if run.trained:
        outputs |= {"back": kit.Spec.of(run.params[0][0]), "mean.0": shard, "mean.1": shard}
    instructions = UnitInstructions(len(run.params[0]), run.trained, run.trained, 0 if group else None)
    return kit.RankSide(inputs, instructions, outputs)


def both(*judges: Callable[[kit.Observed], kit.Finding]) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        findings = (judge_part(observed) for judge_part in judges)
        return next((finding for finding in findings if not finding.ok), kit.RIGHT)

    return judge


def unit_trouble(case: kit.Case, kind: str, text: str) -> str:
    if said := training_runs.group_trouble(case, text):
        return said
    if re.search(r"out of bounds for storage of size [1-9]", text):
        return (
            "The storage is too small for the row. resize_() takes bytes, numel() * element_size(), and "
            "an element has 4 bytes only in float32."
        )
    if "out of bounds for storage" in text or "setStorage" in text or kind == "died":
        return (
            "Memory was read after it had been freed. The shard must be a copy, own.clone(), because "
            "a view of the row is empty after free(). gather() resizes the storage first and then "
            "writes into it, and reduce() reads only gradients."
        )
    if "modified inplace" in text or "requires grad" in text:
        return (
            "gather() and reduce() are not part of a graph, so write @torch.no_grad() above them, or "
            "give the collective shard.detach()."
        )
    if NO_GRADIENT_YET.search(text):
        return SHARD_WITHOUT_GRADIENT
    if "NoneType" in text:
        return "A parameter without a gradient counts as zeros."
    return ""


@kit.exercise(
    points=7, objects=("Unit",), references=REFERENCE, hint=unit_trouble, refused=REFUSED,
    point="holding nothing between uses",
)  # fmt: skip
def zero3_unit(draw: kit.Draw) -> Iterator[kit.Case]:
    def unit_case(run: UnitRun, title: str, case_lines: list[kit.Line]) -> kit.Case:
        return kit.Case(title, [side(run, k, False) for k in range(run.n)], case_lines, recipe=RECIPE)

    run = draw_run(draw, 3)
    yield unit_case(run, "3 ranks", [
        kit.Line("shard: part r of the first rank's row", own_shard(run), 1),
        kit.Line("gather(): every parameter, as the shards are now", gathers(run), 2),
        kit.Line(
            "free(): no memory behind them, in no view", frees(run), 2,
            shows=empty_and_whole(run), part="memory behind parameters",
        ),
        kit.Line("backward after free() and gather()", used_again(run), 1.5),
        kit.Line("reduce(): the mean in shard.grad, two backwards add up", reduces(run), 1.5),
        kit.Line("reduce(): .grad of the parameters is None", cleared, 0.5),
        kit.Line("bytes of gather() and reduce()", bytes_of(run), 1.5, "communication"),
    ])  # fmt: skip
    fixed = draw_run(draw, 2, trained=False)
    line = kit.Line("a frozen unit", both(own_shard(fixed), gathers(fixed), frees(fixed)), 0.5)
    yield unit_case(fixed, "frozen, 2 ranks", [line])
    unused = draw_run(draw, 2, missing=True)
    line = kit.Line("a parameter that one rank does not use", reduces(unused), 0.5)
    yield unit_case(unused, "unused, 2 ranks", [line])
    yield in_a_group(draw)
    yield replace(large_unit(draw), proves="memory")
    if draw.hidden:
        more = draw_run(draw, 4, missing=True)
        judged = both(own_shard(more), gathers(more), reduces(more))
        yield unit_case(more, "4 ranks", [kit.Line("4 ranks", judged, 1)])
        alone = draw_run(draw, 1)
        judged = both(own_shard(alone), gathers(alone), reduces(alone))
        yield unit_case(alone, "1 rank", [kit.Line("1 rank", judged, 0.5, trivial=True)])


def in_a_group(draw: kit.Draw) -> kit.Case:
    """Two of three ranks have a unit, and are passed as group=."""
    run = draw_run(draw, len(MEMBERS))
    title = f"group {{{', '.join(map(str, MEMBERS))}}} of {WORLD} ranks"
    sides = [kit.absent() for _ in range(WORLD)]
    for place, rank in enumerate(MEMBERS):
        sides[rank] = side(run, place, True)
    judged = both(own_shard(run), gathers(run), reduces(run))

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = judged(observed)
        if finding.ok:
            return finding
        return kit.wrong(finding.sentences[0], training_runs.IN_A_GROUP, cause=finding.cause)

    return kit.Case(title, sides, [kit.Line(title, judge, 1)], recipe=RECIPE, groups=[list(MEMBERS)])
