"""The pair at the edges of a sharded region: its communication in forward, and in backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from course_lib.checks import kit
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import saved_line, sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel.prediction import REFERENCE
from course_lib.checks.notebooks.tensor_parallel.shared import (
    FACTOR_N,
    GIVEN,
    and_unwritten,
    columns,
    interface,
    own_work,
    total,
)
from course_lib.facts import least_bytes
from course_lib.ledger.operation import Operation

ENTER, LEAVE = (0, 1)  # places of identity_all_reduce and all_reduce_identity among the exercise's objects
NAMES = ("identity_all_reduce", "all_reduce_identity")
COPY = (
    "Other code may also hold it, but dist.all_reduce works in place, so sum a copy, "
    "clone(memory_format=torch.contiguous_format)."
)
OWN_GRADIENT = (
    "Backward went on with the rank's own gradient. Each rank used x in its own way, and the gradient of x "
    "is the sum over all uses."
)
NO_GRAPH = (
    "The returned tensor has no graph behind it, or a backward that returns None for x. Autograd does "
    "not see what torch.distributed does, so write a torch.autograd.Function, and call its apply. "
    "dist.all_reduce works in place and returns nothing, so return the tensor."
)


def numbers(draw: kit.Draw, n: int, alike: bool, *shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Integers whose sum is exact in the dtype, for each of n ranks: the same ones, or others."""
    high = 250 // n if dtype.itemsize == 2 else 1 << 20
    if alike:
        return [draw.distinct(*shape, high=high).to(dtype)] * n
    return [draw.distinct(*shape, high=high).to(dtype) for _ in range(n)]


def a_run(
    draw: kit.Draw,
    which: int,
    n: int,
    shape: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
    layout: str = "",
) -> LayerRun:
    """One of the two on n ranks.

    A whole x enters, and each rank has a gradient of its own; each rank has a term of the tensor that leaves,
    and all have the same gradient. layout: "" for rows, or x lies in memory column by column, and the
    gradient too ("columns", as behind y.t()), or it is one number, "expanded", as that of a sum is.
    """
    enters = which == ENTER
    x = numbers(draw, n, enters, *shape, dtype=dtype)
    stored = numbers(draw, n, not enters, *((1, 1) if layout == "expanded" else shape), dtype=dtype)
    gradient = [g.expand(*shape) for g in stored]
    y = x if enters else [total(x)] * n
    grad = [total(gradient)] * n if enters else gradient
    wanted = [
        {"y": y[k], "grad.x": grad[k], "after.x": x[k], "after.gradient": gradient[k]} for k in range(n)
    ]
    columns = (shape, [1, shape[0]])
    strides = {"columns": columns, "expanded": (shape, [0, 0])}
    views = {"x": columns, "gradient": strides[layout]} if layout else {}
    return LayerRun(
        f"{'enter' if enters else 'leave'} {layout}".strip(),
        inputs=[{"x": tensor.t().contiguous() if layout else tensor} for tensor in x],
        wanted=wanted,
        gradient=[g.t().contiguous() for g in stored] if layout == "columns" else stored,
        object=which,
        views=views,
    )


# ---- values


def entered(run: LayerRun) -> list[kit.Slip]:
    """Usual mistakes where a whole tensor enters."""
    n, x, own, summed = run.size, *columns(run, "after.x", "after.gradient", "grad.x")
    return [
        kit.Slip(
            "Your function is the other of the two. If a whole tensor enters, each rank uses it, so "
            "forward sends nothing, and backward sums the gradients of all uses.",
            lambda k: {"y": n * x[k], "grad.x": own[k]},
        ),
        kit.Slip(
            "x is whole on every rank, so a sum in forward makes it N times too large.",
            lambda k: {"y": n * x[k]},
        ),
        kit.Slip("x is whole on every rank, so forward must leave it as it is.", lambda k: {"y": x[k] / n}),
        kit.Slip(OWN_GRADIENT, lambda k: {"y": x[k], "grad.x": own[k]}),
        kit.Slip(
            f"The gradient was divided by {n}. Take a sum over the uses, not a mean.",
            lambda k: {"grad.x": summed[k] / n},
        ),
        kit.Slip(
            f"The gradient is {n} times the sum, because it was summed twice.",
            lambda k: {"grad.x": n * summed[k]},
        ),
    ]


def left(run: LayerRun) -> list[kit.Slip]:
    """Usual mistakes where the terms of a sum leave."""
    n, own, summed, whole = run.size, *columns(run, "after.x", "y", "grad.x")
    return [
        kit.Slip(
            "Your function is the other of the two. If each rank has a term, forward sums the terms, "
            "and in backward every term gets the sum's gradient.",
            lambda k: {"y": own[k], "grad.x": n * whole[k]},
        ),
        kit.Slip(
            "Forward handed the rank's own term on. Sum the terms over the ranks, and wait for a sum "
            "that was begun with async_op=True.",
            lambda k: {"y": own[k]},
        ),
        kit.Slip(
            f"The sum was divided by {n}. Return the sum of the terms, not their mean.",
            lambda k: {"y": summed[k] / n},
        ),
        kit.Slip(FACTOR_N, lambda k: {"y": summed[k], "grad.x": n * whole[k]}),
        kit.Slip(
            "Every term goes into the sum with the factor 1, and has the sum's gradient as it is.",
            lambda k: {"y": summed[k], "grad.x": whole[k] / n},
        ),
    ]


def right(run: LayerRun, title: str, weight: float = 1.0, **more: Any) -> kit.Line:
    """Values and gradients of one run; then, that nothing else was written."""
    line = values_line(
        run, title, names=["y", "grad.x"],
        slips=entered(run) if run.object == ENTER else left(run),
        misfit=lambda name, came, k: no_graph(name, came), weight=weight, **more,
    )  # fmt: skip
    return without_a_word(and_unwritten(line, run, GIVEN, COPY))


def no_graph(name: str, came: str) -> str:
    return NO_GRAPH if name == "grad.x" and came == "None" else ""


def without_a_word(line: kit.Line) -> kit.Line:
    """The line; a solution that says nothing of backward misses the exercise's point."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        silent = {OWN_GRADIENT, NO_GRAPH} & set(finding.sentences)
        return replace(finding, misses_point=True) if silent and not finding.ok else finding

    return replace(line, judge=judge)


# ---- what is sent


def direction(run: LayerRun, which: str, weight: float = 1.0) -> kit.Line:
    """An all-reduce on one side, nothing on the other."""
    name = NAMES[run.object]
    sends = which == ("backward" if run.object == ENTER else "forward")
    nbytes = next(iter(run.inputs[0].values())).nbytes
    exact = least_bytes(run.size, nbytes) if sends else 0.0

    def hint(ratio: float, done: list[Operation]) -> str:
        if not sends:
            return f"{name} is the identity {which}, so nothing has to be sent."
        if {operation.op for operation in done} == {"all_gather"}:
            return "Gathering all terms and adding them up sends N/2 times as much as an all-reduce."
        return "One all-reduce is enough, which sends 2 (N-1)/N of the tensor."

    return sent_line(run, which, [exact] * run.size, hint=hint, weight=weight, title=f"{name}, {which}")


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if said := interface(text):
        return said
    if "leaf Variable that requires grad" in text or "modified by an inplace operation" in text:
        return f"x was written into. {COPY}"
    return ""


@kit.exercise(
    points=6,
    objects=NAMES,
    references=REFERENCE,
    hint=trouble,
    point="saying what goes back where autograd sees nothing",
    besides="forward alone",
)
def conjugate_functions(draw: kit.Draw) -> Iterator[kit.Case]:
    def both(n: int, *shape: int, **more: Any) -> tuple[LayerRun, LayerRun]:
        enter, leave = (a_run(draw, which, n, shape, **more) for which in (ENTER, LEAVE))
        return enter, leave

    enter, leave = both(3, 2, 6)
    nothing_kept = saved_line(
        leave, [0] * 3, title="nothing is kept for backward", weight=0.5,
        says="A sum's backward needs no values, so save nothing.",
    )  # fmt: skip
    for run, also in ((enter, []), (leave, [nothing_kept])):  # apart: one that raises costs itself alone
        name = NAMES[run.object]
        lines = [right(run, f"{name}, 3 ranks", 2)]
        lines += [direction(run, which, 0.5) for which in ("forward", "backward")]
        lines += [own_work(run, f"{name}: backward is yours", point=True), *also]
        yield runs.layer_case(f"{name}, 3 ranks", [run], lines)
    yield from memory_layouts(draw)
    enter, leave = both(2, 4)
    yield runs.layer_case("group", [enter, leave],
        [right(run, f"{NAMES[run.object]}, group {{1, 3}}", 0.5, short=True) for run in (enter, leave)],
        members=(1, 3), world_size=4,
    )  # fmt: skip
    if draw.hidden:
        for n in (4, 2):
            yield one_more(both(n, 3, 3), f"{n} ranks")
        half = [a_run(draw, which, 3, (6,), dtype=torch.bfloat16) for which in (ENTER, LEAVE)]
        yield one_more(half, "bfloat16")
        yield one_more(both(1, 4), "1 rank", trivial=True)


def memory_layouts(draw: kit.Draw) -> Iterator[kit.Case]:
    """Tensors that do not lie in memory row by row; a case for each function, since all_reduce raises."""
    for which in (ENTER, LEAVE):
        pair = [a_run(draw, which, 3, (2, 5), layout=layout) for layout in ("expanded", "columns")]
        yield runs.layer_case(f"{NAMES[which]}, layouts", pair,
            [
                right(run, f"{NAMES[which]}: x by columns, {gradient}", 0.5)
                for run, gradient in zip(pair, ("the gradient of a sum", "its gradient too"), strict=True)
            ],
        )  # fmt: skip


def one_more(pair: Sequence[LayerRun], title: str, trivial: bool = False) -> kit.Case:
    judged = [right(run, f"{NAMES[run.object]}, {title}", 0.5, short=True, trivial=trivial) for run in pair]
    return runs.layer_case(title, pair, judged)
