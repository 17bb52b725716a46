"""make_step and make_step_with_zero: one function of a layout, whose losses are those of one process."""

from __future__ import annotations

import re
from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.capstone.layout_lines import loss_line, training_line
from course_lib.checks.notebooks.capstone.layout_record import bytes_line, shards_line
from course_lib.checks.notebooks.capstone.layout_run import drawn
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.models import GPTConfig
from course_lib.planning import Layout

RECIPE = "course_lib.checks.rank.notebooks.capstone.stepping:steps"
SECONDS = 40.0
IMPORTS = ("torch._dynamo",)
POINT = "ranks that each do their part of a batch, and one sum of their terms"
POINT_OF_ZERO = "a sum of which each replica gets only its own shard"

ORDER = (
    "All members of a group must call its collectives in the same order and with equal sizes, even ranks "
    "without a loss."
)
NO_LOSS = (
    "Only the last stage has losses, so on the other stages `run_schedule` returns an empty dict. Add "
    "losses up from a zero, which all ranks have."
)
PIPE = 'The schedule is for the ranks of pp, so give `run_schedule` their group, mesh.group("pp").'
GONE = (
    "With ZeRO, `grad` can be None after backward, because the gradients have left for the shards, or the "
    "rank owns nothing of the parameter. Make the terms larger before backward by dividing by n times "
    "fewer targets."
)
CUT_FIRST = (
    "Cut the model first, because `mesh_stages` takes the GPT, while ZeRO-3 takes the module of each stage."
)
WITHOUT_ZERO = "ZeRO-3's parameters are shards already, so a plain optimizer of torch.optim steps them."
OTHER_SIZES = (
    "Ranks of pp hold other parameters, so their gradients have other sizes. Sum gradients only over "
    'mesh.group(("dp", "cp")).'
)
STUB_NAMES = (
    "The stub's last lines read your variables `stages` and `optimizer` and return your function `step`, "
    "so use these names."
)
UNNAMED = re.compile(r"name '(stages|step)' is not defined")
DISAGREE = re.compile(r"do not agree on their collective number|collective number")
EMPTY = re.compile(
    r"ZeroDivisionError|division by zero|non-empty TensorList|KeyError: 0|'int' object has no attribute|"
    r"StopIteration|max\(\) (arg|iterable argument) is"
)


def title_of(layout: Layout) -> str:
    """ "ZeRO-1, pp 2 x dp 2, m 3" """
    axes = " x ".join(f"{axis} {size}" for axis, size in layout.sizes.items() if size > 1)
    more = [f"v {layout.chunks}"] * (layout.chunks > 1) + ["sequence"] * layout.sequence
    return ", ".join([*[f"ZeRO-{layout.zero}"] * (layout.zero > 0), axes, *more])


def case(
    draw: kit.Draw, microbatch: int, zero: int = 0, *, chunks: int = 1, sequence: bool = False,
    layers: int = 1, tied: bool = False, **sizes: int,
) -> kit.Case:  # fmt: skip
    layout = Layout(sizes, microbatch, chunks, zero, "none", sequence)
    config = GPTConfig(vocab_size=32, context=16, layers=layers, heads=2, width=16, tied=tied)
    run, title = drawn(draw, layout, config), title_of(layout)
    lines = [loss_line(run, title), training_line(run, title), bytes_line(run, title)]
    if zero:
        lines.append(shards_line(run, title))
    sides = [run.side(rank) for rank in range(layout.gpus)]
    return kit.Case(
        title, sides, lines, recipe=RECIPE, groups=run.mesh.groups, imports=IMPORTS, timeout=SECONDS
    )  # fmt: skip


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if UNNAMED.search(text):
        return STUB_NAMES
    if "the schedule is for" in text:
        return PIPE
    if "Zero3Module" in text and ("attribute" in text or "GPT" in text):
        return CUT_FIRST
    if "holds the parameters already" in text:
        return WITHOUT_ZERO
    if "NoneType" in text and "ZeRO" in case.title:
        return GONE
    if "pp" in case.title and EMPTY.search(text):
        return NO_LOSS
    if "pp" in case.title and DISAGREE.search(text):
        return OTHER_SIZES
    return ORDER if kind == "deadlock" else ""


@kit.exercise(points=8, objects=("make_step",), references=REFERENCES, hint=trouble, point=POINT)
def make_step(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, 2, dp=3)
    yield case(draw, 12, sequence=True, tp=2)
    yield case(draw, 3, chunks=2, layers=4, tied=True, pp=2)
    yield case(draw, 6, cp=2, dp=2)
    if draw.hidden:
        yield case(draw, 3, layers=3, pp=3)
        yield case(draw, 2, tied=True, tp=2, dp=2)
        yield case(draw, 2, layers=2, pp=2, dp=2, tp=2)
        yield case(draw, 3, layers=2, sequence=True, cp=2, tp=2, pp=2)


@kit.exercise(
    points=12, objects=("make_step",), references=REFERENCES, hint=trouble, point=POINT_OF_ZERO
)  # fmt: skip
def make_step_with_zero(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, 2, 1, dp=3)
    yield case(draw, 12, 3, cp=2)
    yield case(draw, 3, 2, dp=2, tp=2)
    yield case(draw, 3, 1, layers=2, pp=2, dp=2)
    if draw.hidden:
        yield case(draw, 3, 3, dp=2, cp=2)
        yield case(draw, 3, 3, layers=2, pp=2, dp=2)
        yield case(draw, 2, 2, dp=3)
        yield case(draw, 3, 1, chunks=2, layers=4, tied=True, pp=2, cp=2)
        yield case(draw, 3, 1, layers=2, pp=2, dp=2, tp=2)
