"""ColumnParallelLinear and RowParallelLinear: the two ways to cut a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from course_lib.checks.judge.layers.lines import (
    held_line,
    saved_line,
    sent_line,
    values_line,
    values_or_refusal_line,
)
from course_lib.checks.judge.layers.runs import Run, layer_case
from course_lib.checks.kit import Case, Draw, Line, Slip, essential, exercise
from course_lib.checks.notebooks.tensor_parallel.shared import own_work
from course_lib.checks.notebooks.tensor_parallel.slips import (
    column_slips,
    linear_trouble,
    many,
    misfit,
    row_misfit,
    row_slips,
)
from course_lib.checks.notebooks.tensor_parallel.whole import FLOAT, REFERENCE, Whole

POINT = "a layer of which each rank has its part alone"
SUB_GROUP = (1, 2)  # of three ranks: its first is not the world's first
WHOLE_WEIGHT = (
    "The whole weight is still there: a slice is a view, and keeps the whole tensor behind it; so does an "
    "attribute that holds the whole layer. Keep a copy of this rank's part alone: .detach().clone()."
)
NOT_FOLLOWED = (
    "x was cut by something that autograd does not follow: `part` detaches, and is for parameters. "
    "`own_features` takes the rank's features of x, and its backward gathers their gradient."
)
UNEVEN = (
    "The last features belong to no rank: cut as torch.tensor_split does, where the first parts are longer, "
    "or raise a ValueError that says which numbers do not fit."
)


def both_ways(
    run: Run, title: str, weight: float, slips: Sequence[Slip], misfit: Callable[[str, str, int], str]
) -> list[Line]:
    """A line for the parameters and the output, and one for the gradients."""
    backward = [name for name in run.wanted[0] if name.startswith("grad.")]
    forward = [name for name in run.wanted[0] if name not in backward]
    parameters = [name for name in forward if name.startswith("p.")]
    return [
        values_line(run, f"{title}: {what}", names=names, weight=weight, slips=slips, misfit=misfit)
        for what, names in (("output", forward), ("gradients", [*parameters, *backward]))
    ]


# ---- column-parallel


def column_run(name: str, whole: Whole, gather: bool, *, refuses: bool = False, bias: bool = True) -> Run:
    wanted = []
    for k in range(whole.n):
        tensors = {"p.weight": whole.part(k, whole.weight, 0)}
        if whole.bias is not None:
            tensors["p.bias"] = whole.part(k, whole.bias, 0)
        tensors["y"] = whole.y if gather else whole.part(k, whole.y, -1)
        tensors["grad.x"] = whole.for_x
        tensors["grad.p.weight"] = whole.part(k, whole.for_weight, 0)
        if whole.bias is not None:
            tensors["grad.p.bias"] = whole.part(k, whole.for_bias, 0)
        wanted.append(tensors)
    upstream = [whole.g if gather else whole.part(k, whole.g, -1) for k in range(whole.n)]
    return Run(
        name, [{"x": whole.x}] * whole.n, wanted, upstream, seed=whole.seed, refuses=refuses,
        make=([whole.size_in, whole.size_out], {"bias": bias, "gather_output": gather}),
    )  # fmt: skip


def column_lines(run: Run, whole: Whole, gather: bool, title: str, weight: float) -> list[Line]:
    """Values forward and backward, and what each direction sent."""
    share = (whole.n - 1) / whole.n
    forward, backward = (share * FLOAT * whole.y.numel() * gather, 2 * share * FLOAT * whole.x.numel())
    return [
        *both_ways(run, title, weight, column_slips(whole, gather), misfit(whole, 0, gather)),
        sent_line(
            run, "forward", [forward] * whole.n, weight=weight / 2, title=f"{title}: bytes forward",
            hint=lambda ratio, done: many(ratio, done, "an all-gather") or forward_hint(gather),
        ),
        sent_line(
            run, "backward", [backward] * whole.n, weight=weight / 2, title=f"{title}: bytes backward",
            hint=lambda ratio, done: "One all-reduce of the gradient of x, and nothing else.",
        ),
    ]  # fmt: skip


def forward_hint(gather: bool) -> str:
    if gather:
        return "One all-gather of the rank's features, and nothing else."
    return "Forward sends nothing: every rank has the whole x, and keeps its own output."


@exercise(points=7, objects=("ColumnParallelLinear",), references=REFERENCE, hint=linear_trouble, point=POINT)
def column_parallel_linear(draw: Draw) -> Iterator[Case]:
    whole = Whole.draw(draw, 4, (draw.integer(5, 9), 12), (2, 3))
    run = column_run("plain", whole, False)
    wide = Whole.draw(draw, 4, (512, 2048), (2, 8))  # 8.4 MB: seen among the pages of a process
    large = replace(column_run("wide", wide, False), pages=True)
    yield layer_case(
        "4 ranks", [run, large],
        [
            *column_lines(run, whole, False, "4 ranks, 12 features", 2),
            values_line(
                large, "4 ranks, 2,048 features", slips=column_slips(wide, False),
                misfit=misfit(wide, 0), weight=0.5, short=True,
            ),
            *memory_lines(large, wide, wide.x.numel(), weight=1.5),
        ],
    )  # fmt: skip
    whole = Whole.draw(draw, 2, (draw.integer(5, 9), 6), (2, 4), bias=False)
    run = column_run("gathered", whole, True, bias=False)
    uneven = Whole.draw(draw, 2, (4, 7), (3,))
    odd = column_run("uneven", uneven, True, refuses=True)
    yield layer_case(
        "sub-group", [run, odd],
        [
            *column_lines(run, whole, True, "gather_output, no bias, group {1, 2}", 1),
            values_or_refusal_line(
                odd, "7 features, 2 ranks", (7, 2), slips=column_slips(uneven, True),
                otherwise=UNEVEN, weight=1,
            ),
        ],
        members=SUB_GROUP, world_size=3,
    )  # fmt: skip
    whole = Whole.draw(draw, 3, (5, 6), (4,))
    run = column_run("flat", whole, True)
    yield layer_case("3 ranks", [run], column_lines(run, whole, True, "gather_output, 3 ranks", 1.5))
    yield one_rank(draw, lambda whole: column_run("one", whole, True), column_slips)
    if draw.hidden:
        whole = Whole.draw(draw, 4, (3, 4), (2,))
        run = column_run("narrow", whole, True)
        uneven = Whole.draw(draw, 4, (3, 10), (2, 2))
        odd = column_run("uneven", uneven, False, refuses=True)
        yield layer_case(
            "hidden",
            [run, odd],
            [
                *column_lines(run, whole, True, "a feature for each rank", 1),
                values_or_refusal_line(
                    odd, "10 features, 4 ranks", (10, 4), slips=column_slips(uneven, False), otherwise=UNEVEN
                ),
            ],
        )


def memory_lines(run: Run, whole: Whole, saved: int, weight: float, extra: int = 0) -> list[Line]:
    """1/n of the parameters (and `extra` bytes), and, of the tensors for backward, the input alone."""
    return [
        essential(
            held_line(
                run, [whole.nbytes / whole.n + extra] * whole.n, says=WHOLE_WEIGHT, weight=weight,
                title="parameters: 1/4 of the layer's",
            )
        ),
        saved_line(
            run, [FLOAT * saved] * whole.n, weight=weight, title="kept for backward: this rank's input",
            says="Backward needs the input that this rank multiplied, and its part of the weight. Anything "
            "else that is kept belongs to work that other ranks do.",
        ),
    ]  # fmt: skip


def one_rank(draw: Draw, run_of: Callable[[Whole], Run], slips: Callable[[Whole, bool], list[Slip]]) -> Case:
    whole = Whole.draw(draw, 1, (4, 5), (3,))
    run = run_of(whole)
    line = values_line(run, "1 rank", weight=0.5, trivial=True, short=True)
    return layer_case("1 rank", [run], [line])


# ---- row-parallel


def row_run(name: str, whole: Whole, parallel: bool, *, refuses: bool = False, bias: bool = True) -> Run:
    inputs, wanted = [], []
    for k in range(whole.n):
        inputs.append({"x": whole.part(k, whole.x, -1).contiguous() if parallel else whole.x})
        tensors = {"p.weight": whole.part(k, whole.weight, 1)}
        if whole.bias is not None:
            tensors["p.bias"] = whole.bias
        tensors["y"] = whole.y
        tensors["grad.p.weight"] = whole.part(k, whole.for_weight, 1)
        tensors["grad.x"] = whole.part(k, whole.for_x, -1) if parallel else whole.for_x
        if whole.bias is not None:
            tensors["grad.p.bias"] = whole.for_bias
        wanted.append(tensors)
    return Run(
        name, inputs, wanted, [whole.g] * whole.n, seed=whole.seed, refuses=refuses,
        make=([whole.size_in, whole.size_out], {"bias": bias, "input_is_parallel": parallel}),
    )  # fmt: skip


def unfollowed(name: str, came: str, k: int) -> str:
    """A whole x without a gradient, though the weight has one, which is looked at first."""
    return NOT_FOLLOWED if (name, came) == ("grad.x", "None") else ""


def row_lines(run: Run, whole: Whole, parallel: bool, title: str, weight: float) -> list[Line]:
    """Values forward and backward, and what each direction sent."""
    share = (whole.n - 1) / whole.n
    forward = 2 * share * FLOAT * whole.y.numel()
    padded = 2 * (whole.n - 1) * FLOAT * -(-whole.y.numel() // whole.n)  # for those who reduce by pieces
    backward = 0 if parallel else share * FLOAT * whole.x.numel()
    behind = (
        "The gradient of the sum is each term's gradient, and every rank has it: nothing is sent."
        if parallel
        else "One all-gather of the parts of the gradient of x, and nothing else."
    )
    known = row_misfit(whole, parallel)

    def whole_misfit(name: str, came: str, k: int) -> str:
        return ("" if parallel else unfollowed(name, came, k)) or known(name, came, k)

    return [
        *both_ways(run, title, weight, row_slips(whole, parallel), whole_misfit),
        sent_line(
            run, "forward", [forward] * whole.n, most=[padded] * whole.n, weight=weight / 2,
            title=f"{title}: bytes forward",
            hint=lambda ratio, done: "One all-reduce of the output's terms, and nothing else.",
        ),
        sent_line(
            run, "backward", [backward] * whole.n, weight=weight / 2, title=f"{title}: bytes backward",
            hint=lambda ratio, done: many(ratio, done, "an all-gather") or behind,
        ),
    ]  # fmt: skip


@exercise(points=7, objects=("RowParallelLinear",), references=REFERENCE, hint=linear_trouble, point=POINT)
def row_parallel_linear(draw: Draw) -> Iterator[Case]:
    whole = Whole.draw(draw, 4, (8, draw.integer(5, 9)), (2, 3))
    run = row_run("plain", whole, True)
    wide = Whole.draw(draw, 4, (2048, 512), (2, 8))
    large = replace(row_run("wide", wide, True), pages=True)
    yield layer_case(
        "4 ranks", [run, large],
        [
            *row_lines(run, whole, True, "4 ranks, 8 features", 2),
            own_work(run, weight=1),
            values_line(
                large, "4 ranks, 2,048 features", slips=row_slips(wide, True),
                misfit=row_misfit(wide, True), weight=0.5, short=True,
            ),
            *memory_lines(large, wide, wide.x.numel() // 4, weight=1.5, extra=FLOAT * 512),
        ],
    )  # fmt: skip
    whole = Whole.draw(draw, 2, (6, draw.integer(5, 9)), (2, 4), bias=False)
    run = row_run("whole", whole, False, bias=False)
    uneven = Whole.draw(draw, 2, (7, 4), (3,))
    odd = row_run("uneven", uneven, False, refuses=True)
    yield layer_case(
        "sub-group", [run, odd],
        [
            *row_lines(run, whole, False, "the whole x, no bias, group {1, 2}", 1),
            values_or_refusal_line(
                odd, "7 features, 2 ranks", (7, 2), slips=row_slips(uneven, False), misfit=unfollowed,
                otherwise=UNEVEN, weight=1,
            ),
        ],
        members=SUB_GROUP, world_size=3,
    )  # fmt: skip
    whole = Whole.draw(draw, 3, (6, 5), (4,))
    run = row_run("flat", whole, False)
    yield layer_case("3 ranks", [run], row_lines(run, whole, False, "the whole x, 3 ranks", 1.5))
    yield one_rank(draw, lambda whole: row_run("one", whole, True), row_slips)
    if draw.hidden:
        whole = Whole.draw(draw, 4, (4, 3), (2,))
        run = row_run("narrow", whole, True)
        uneven = Whole.draw(draw, 4, (10, 3), (2, 2))
        odd = row_run("uneven", uneven, True, refuses=True)
        yield layer_case(
            "hidden",
            [run, odd],
            [
                *row_lines(run, whole, True, "a feature for each rank", 1),
                values_or_refusal_line(
                    odd, "10 features, 4 ranks", (10, 4), slips=row_slips(uneven, True), otherwise=UNEVEN
                ),
            ],
        )
