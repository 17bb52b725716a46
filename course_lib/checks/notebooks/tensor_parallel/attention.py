"""ParallelHeads: heads cut over the ranks. ParallelSelfAttention: grouped ones and dropout, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import (
    held_line,
    saved_line,
    sent_line,
    values_line,
    values_or_refusal_line,
)
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.notebooks.tensor_parallel.attention_dropout import dropout_case
from course_lib.checks.notebooks.tensor_parallel.heads import LR, Heads, head_slips
from course_lib.checks.notebooks.tensor_parallel.linear import SUB_GROUP, WHOLE_WEIGHT
from course_lib.checks.notebooks.tensor_parallel.shared import MANY, interface, own_work
from course_lib.checks.notebooks.tensor_parallel.slips import linear_trouble
from course_lib.checks.notebooks.tensor_parallel.whole import FLOAT, REFERENCE
from course_lib.ledger.operation import Operation

ALONE = (
    "A rank keeps x once, and 1/n of queries, keys, values and the heads' outputs. Anything more is another "
    "copy of x, or belongs to other ranks' heads."
)
UNKNOWN = (
    "No usual mistake gives these values. On 1 rank the layer is an ordinary one, with query, key, value and "
    "out drawn in this order, each only once (also in a subclass), so compare it there first."
)

WRONG = "The gradients of the parameters are not right."
FEWER_HEADS = (
    "With fewer key and value heads than ranks, a rank has one whole head of these, so cut key and "
    "value over the group `across`."
)
COPIES = (
    "Several ranks hold a copy of the same key and value head. Sum the gradients of its weight and of "
    "its bias over the group `same`, and over no other ranks."
)

ODD = "6 heads, 4 ranks"
ODD_KEYS = "12 heads, 6 of keys and values, 4 ranks"
POINT = "heads of which each rank holds only its part, with one sum behind them"
UNEVEN = "The ranks cannot share these heads equally. Raise a ValueError that names the heads and the ranks."


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    if case_of_it.title in (ODD, ODD_KEYS) and kind == "error" and not interface(text):
        return UNEVEN
    if "is invalid for input of size" in text or "unflatten" in text:
        more = f" {FEWER_HEADS}" if "of keys" in case_of_it.title else ""
        return f"A rank has heads / n heads, each of head_dim = width / heads features.{more}"
    return linear_trouble(case_of_it, kind, text)


def attention_run(name: str, whole: Heads, *, refuses: bool = False) -> LayerRun:
    y = whole.output(whole.parameters, whole.x)
    wanted = {"y": y, "grad.x": whole.gradients()[0], "again": whole.after_step()}
    kwargs = {"kv_heads": whole.kv_heads, "bias": len(whole.parameters) > 4}
    if whole.kv_heads == whole.heads:
        del kwargs["kv_heads"]
    return LayerRun(
        name, [{"x": whole.x}] * whole.n, [wanted] * whole.n, [whole.g] * whole.n,
        make=([whole.width, whole.heads], kwargs), seed=whole.seed, lr=LR, refuses=refuses,
    )  # fmt: skip


def refused_run(name: str, draw: kit.Draw, n: int, heads: int, kv_heads: int = 0) -> LayerRun:
    """Heads that n ranks cannot share equally: a sentence, or right values all the same."""
    whole = Heads.draw(draw, 1, heads, kv_heads or heads, 2, (1, 2), True)
    run = attention_run(name, whole)
    return LayerRun(
        name, list(run.inputs) * n, list(run.wanted) * n, [whole.g] * n, make=run.make, seed=run.seed,
        lr=LR, refuses=True,
    )  # fmt: skip


def lines_of(
    run: LayerRun, whole: Heads, title: str, weight: float, sent: bool = True, after_step: float = 0.5
) -> list[kit.Line]:
    """Values forward, backward and after a step, and the bytes of each direction.

    after_step: how much the output after a step weighs, as a share of `weight`.
    """
    slips, n, copied = head_slips(whole), whole.n, whole.copies > 1
    volume = 2 * (n - 1) * FLOAT * whole.x.numel() / n
    lines = [
        values_line(
            run, f"{title}: {what}", names=[name], slips=slips, weight=weight * share, otherwise=otherwise
        )
        for name, what, share, otherwise in (
            ("y", "output", 1, f"{UNKNOWN} {FEWER_HEADS}" if copied else UNKNOWN),
            ("grad.x", "gradient of x", 0.5, ""),
            ("again", "output after a step", after_step, f"{WRONG} {COPIES}" if copied else WRONG),
        )
    ]
    if not sent:
        return lines
    return [
        *lines,
        sent_line(
            run, "forward", [volume] * n, weight=weight / 2, title=f"{title}: bytes forward", point=MANY,
            hint=lambda ratio, done: ("One all-reduce is enough, behind out, because all work before "
                                     "it is on a rank's own heads."),
        ),
        more_is_nothing(
            sent_line(
                run, "backward", [volume] * n, weight=weight, title=f"{title}: bytes backward",
                hint=entered, tells_the_point=True,
            )
        ),
    ]  # fmt: skip


def more_is_nothing(line: kit.Line) -> kit.Line:
    """The line, for which too many bytes do not show that the point is missed: x may have entered twice."""
    shows = line.shows
    return replace(line, shows=shows and (lambda observed: max(0.0, shows(observed))))


def entered(ratio: float, done: list[Operation]) -> str:
    if abs(ratio - 3) < 0.1:
        return (
            "x enters three times, for query, key and value each, so its gradient is summed three "
            "times. Let it enter once. Then the three gradients are summed on the rank."
        )
    return "One all-reduce, of the gradient of x."


def same_heads(n: int, kv_heads: int) -> list[list[int]]:
    """Groups of the ranks that hold the same head, and of one rank for each head."""
    copies = n // kv_heads
    same = [list(range(first, first + copies)) for first in range(0, n, copies)]
    return same + [list(range(first, n, copies)) for first in range(copies)]


def memory_lines(run: LayerRun, whole: Heads) -> list[kit.Line]:
    n, b, s, w = whole.n, *whole.x.shape
    parameters = sum(parameter.numel() for parameter in whole.own(0, whole.parameters)) + w
    kept = b * s * w + (6 * b * s * w + 4 * b * whole.heads * s * s) / n
    return [
        kit.essential(
            held_line(
                run, [FLOAT * parameters] * n, says=WHOLE_WEIGHT, weight=1.5,
                title="parameters: the rank's heads alone",
            )
        ),
        saved_line(
            run, [FLOAT * kept] * n, says=ALONE, weight=1.5,
            title="kept for backward: x, and the rank's part of the rest",
        ),
    ]  # fmt: skip


@kit.exercise(points=6, objects=("ParallelHeads",), references=REFERENCE, hint=trouble, point=POINT)
def parallel_heads(draw: kit.Draw) -> Iterator[kit.Case]:
    whole = Heads.draw(draw, 4, 8, 8, 4, (2, 3), True)
    run = attention_run("heads", whole)
    wide = Heads.draw(draw, 4, 8, 8, 64, (2, 4), True)  # 8.4 MB: seen among the pages of a process
    large = replace(attention_run("wide", wide), pages=True)
    yield layer_case(
        "4 ranks",
        [run, large],
        [
            *lines_of(run, whole, "8 heads, 4 ranks", 2),
            values_line(
                large, "8 wider heads", names=["y", "grad.x"], slips=head_slips(wide), weight=0.5, short=True
            ),
            own_work(run),
            *memory_lines(large, wide),
        ],
    )
    odd = refused_run("odd", draw, 4, 6)
    line = values_or_refusal_line(odd, ODD, (6, 4), otherwise=UNEVEN, weight=1)
    yield layer_case(ODD, [odd], [line])
    yield plain(draw, 2, 4, "4 heads, group {1, 2}", 1, members=SUB_GROUP, world_size=3)
    yield plain(draw, 3, 3, "a head for each of 3 ranks", 1)
    whole = Heads.draw(draw, 1, 2, 2, 4, (1, 3), True)
    run = attention_run("one", whole)
    yield layer_case("1 rank", [run], [values_line(run, "1 rank", weight=0.5, trivial=True, short=True)])
    if draw.hidden:
        yield plain(draw, 2, 6, "6 heads, 2 ranks", 1)


def plain(draw: kit.Draw, n: int, heads: int, title: str, weight: float, **more: Any) -> kit.Case:
    """As many key and value heads as query heads, without a bias."""
    whole = Heads.draw(draw, n, heads, heads, 4, (1, 5), False)
    run = attention_run("plain", whole)
    return layer_case(title, [run], lines_of(run, whole, title, weight, sent=False), **more)


@kit.exercise(
    points=4, objects=("ParallelSelfAttention",), references=REFERENCE, extra=True, hint=trouble, point=POINT
)
def parallel_self_attention(draw: kit.Draw) -> Iterator[kit.Case]:
    yield grouped(draw, 2, 8, 4, "8 heads, 4 of keys and values, group {1, 2}", 2, SUB_GROUP, 3)
    yield grouped(draw, 4, 4, 2, "4 heads, 2 of keys and values, 4 ranks", 1.5)
    yield plain(draw, 2, 4, "kv_heads left out, 2 ranks", 0.5)
    odd = refused_run("odd", draw, 4, 12, 6)
    line = values_or_refusal_line(odd, ODD_KEYS, (6, 4), otherwise=UNEVEN, weight=0.5)
    yield layer_case(ODD_KEYS, [odd], [line])
    yield dropout_case(draw)
    if draw.hidden:
        yield dropout_case(draw, 3, 6)
        yield grouped(draw, 4, 8, 4, "8 heads, 4 of keys and values, 4 ranks", 1)
        yield grouped(draw, 3, 6, 3, "6 heads, 3 of keys and values, 3 ranks", 1)
        yield grouped(draw, 4, 8, 1, "8 heads, 1 of keys and values, 4 ranks", 1)


def grouped(
    draw: kit.Draw,
    n: int,
    heads: int,
    kv_heads: int,
    title: str,
    weight: float,
    members: Sequence[int] = (),
    world_size: int = 0,
) -> kit.Case:
    """Fewer key and value heads than query heads; where they are fewer than ranks, some hold the same one."""
    whole = Heads.draw(draw, n, heads, kv_heads, 4, (2, 3), kv_heads != 2 or n == 4)
    run = attention_run("grouped", whole)
    known = same_heads(n, kv_heads) if kv_heads < n else []
    once = whole.copies == 1
    # where ranks hold copies of a head, a step shows whether these stay alike
    lines = lines_of(run, whole, title, weight, sent=once, after_step=0.5 if once else 3)
    lines += memory_lines(run, whole) if once else []
    return layer_case(title, [run], lines, members=members, world_size=world_size, known=known)
