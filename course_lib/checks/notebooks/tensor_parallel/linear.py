"""ColumnParallelLinear and RowParallelLinear: the two ways to cut a linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import (
    held_line,
    saved_line,
    sent_line,
    values_line,
    values_or_refusal_line,
)
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.notebooks.tensor_parallel.shared import own_work, shows_its_part
from course_lib.checks.notebooks.tensor_parallel.slips import (
    column_slips,
    linear_trouble,
    many,
    misfit,
    row_misfit,
    row_slips,
)
from course_lib.checks.notebooks.tensor_parallel.whole import FLOAT, REFERENCE, Whole
from course_lib.ledger.operation import Operation

POINT = "a layer of which each rank holds only its part"
SUB_GROUP = (1, 2)  # of three ranks: its first is not the world's first
WHOLE_WEIGHT = (
    "The whole weight is still in memory. A slice is a view and keeps the whole tensor alive, and so "
    "does an attribute that holds the whole layer. Keep only a copy of this rank's part, "
    ".detach().clone()."
)
KEPT = (
    "Backward needs the input that this rank multiplied, and its part of the weight. Anything else that is "
    "kept belongs to work that other ranks do."
)
NOT_FOLLOWED = (
    "x was cut by something autograd does not follow. `part` detaches, because it is for parameters. "
    "`own_features` takes the rank's features of x, and its backward gathers their gradient."
)

Misfit = Callable[[str, str, int], str]


@dataclass(frozen=True)
class Cut:
    """A linear layer of which each rank has its part, by columns or by rows: `column`, `row`.

    argument: the constructor's own one. x, upstream: of each rank the input, and the gradient of the output.
    wanted: of each rank the tensors, in the order in which they are looked at; None: a bias that is left out.
    misfit: the usual cause of another shape.
    sent: least and most bytes of a rank in each direction, and the hint. saved: numbers that forward keeps.
    held: bytes of a rank's parameters.
    """

    whole: Whole
    argument: tuple[str, bool]
    x: Sequence[Tensor]
    upstream: Sequence[Tensor]
    wanted: Sequence[Mapping[str, Tensor | None]]
    slips: Sequence[kit.Slip]
    misfit: Misfit
    sent: Mapping[str, tuple[float, float, Callable[[float, list[Operation]], str]]]
    saved: int
    held: float

    def run(self, name: str, *, refuses: bool = False, pages: bool = False) -> LayerRun:
        wanted = [{key: tensor for key, tensor in own.items() if tensor is not None} for own in self.wanted]
        made = dict([("bias", self.whole.bias is not None), self.argument])
        return LayerRun(
            name, [{"x": x} for x in self.x], wanted, self.upstream, seed=self.whole.seed,
            make=([self.whole.size_in, self.whole.size_out], made), refuses=refuses, pages=pages,
        )  # fmt: skip

    def lines(self, run: LayerRun, title: str, weight: float) -> list[kit.Line]:
        """Values forward and backward, and what each direction sent."""
        backward = [name for name in run.wanted[0] if name.startswith("grad.")]
        forward = [name for name in run.wanted[0] if name not in backward]
        parameters = [name for name in forward if name.startswith("p.")]
        return [
            self.values(run, f"{title}: output", forward, weight),
            self.values(run, f"{title}: gradients", [*parameters, *backward], weight),
            *(
                sent_line(
                    run, direction, [least] * run.size, most=[most] * run.size, weight=weight / 2,
                    title=f"{title}: bytes {direction}", hint=hint,
                )
                for direction, (least, most, hint) in self.sent.items()
            ),
        ]  # fmt: skip

    def values(
        self, run: LayerRun, title: str, names: Sequence[str], weight: float, *, short: bool = False
    ) -> kit.Line:
        return values_line(
            run, title, names=names, slips=self.slips, misfit=self.misfit, weight=weight, short=short
        )

    def large_lines(self, run: LayerRun, title: str) -> list[kit.Line]:
        """Values, 1/n of the parameters, and, of the tensors for backward, the input alone."""
        held, saved = [self.held] * run.size, [FLOAT * self.saved] * run.size
        own, kept = "parameters: 1/4 of the layer's", "kept for backward: this rank's input"
        its_part = kit.essential(held_line(run, held, says=WHOLE_WEIGHT, weight=1.5, title=own))
        return [
            self.values(run, title, [], 0.5, short=True),
            shows_its_part(its_part, run, self.whole.weight),
            saved_line(run, saved, says=KEPT, weight=1.5, title=kept),
        ]


def column(whole: Whole, gather: bool) -> Cut:
    share, ranks = (whole.n - 1) / whole.n, range(whole.n)
    gathered, reduced = share * FLOAT * whole.y.numel() * gather, 2 * share * FLOAT * whole.x.numel()

    def forward(ratio: float, done: list[Operation]) -> str:
        if said := many(ratio, done, "an all-gather"):
            return said
        if gather:
            return "One all-gather of the rank's features, and nothing else."
        return "Forward sends nothing, because every rank has the whole x, and keeps its own output."

    def backward(ratio: float, done: list[Operation]) -> str:
        return "One all-reduce of the gradient of x, and nothing else."

    return Cut(
        whole,
        ("gather_output", gather),
        x=[whole.x] * whole.n,
        upstream=[whole.g if gather else whole.part(k, whole.g, -1) for k in ranks],
        wanted=[
            {
                "p.weight": whole.part(k, whole.weight, 0),
                "p.bias": None if whole.bias is None else whole.part(k, whole.bias, 0),
                "y": whole.y if gather else whole.part(k, whole.y, -1),
                "grad.x": whole.for_x,
                "grad.p.weight": whole.part(k, whole.for_weight, 0),
                "grad.p.bias": None if whole.bias is None else whole.part(k, whole.for_bias, 0),
            }
            for k in ranks
        ],
        slips=column_slips(whole, gather),
        misfit=misfit(whole, 0, gather),
        sent={"forward": (gathered, gathered, forward), "backward": (reduced, reduced, backward)},
        saved=whole.x.numel(),
        held=whole.nbytes / whole.n,
    )


def row(whole: Whole, parallel: bool) -> Cut:
    share, ranks, numbers = (whole.n - 1) / whole.n, range(whole.n), whole.y.numel()
    reduced = 2 * share * FLOAT * numbers
    by_pieces = 2 * (whole.n - 1) * FLOAT * -(-numbers // whole.n)  # padded, for those who reduce so
    gathered = 0.0 if parallel else share * FLOAT * whole.x.numel()
    known = row_misfit(whole, parallel)

    def whole_misfit(name: str, came: str, k: int) -> str:
        return ("" if parallel else unfollowed(name, came, k)) or known(name, came, k)

    def forward(ratio: float, done: list[Operation]) -> str:
        return "One all-reduce of the output's terms, and nothing else."

    def backward(ratio: float, done: list[Operation]) -> str:
        if said := many(ratio, done, "an all-gather"):
            return said
        if parallel:
            return (
                "The gradient of the sum is each term's gradient, and every rank has it, so nothing is sent."
            )
        return "One all-gather of the parts of the gradient of x, and nothing else."

    return Cut(
        whole,
        ("input_is_parallel", parallel),
        x=[whole.part(k, whole.x, -1).contiguous() if parallel else whole.x for k in ranks],
        upstream=[whole.g] * whole.n,
        wanted=[
            {
                "p.weight": whole.part(k, whole.weight, 1),
                "p.bias": whole.bias,
                "y": whole.y,
                "grad.p.weight": whole.part(k, whole.for_weight, 1),
                "grad.x": whole.part(k, whole.for_x, -1) if parallel else whole.for_x,
                "grad.p.bias": None if whole.bias is None else whole.for_bias,
            }
            for k in ranks
        ],
        slips=row_slips(whole, parallel),
        misfit=whole_misfit,
        sent={"forward": (reduced, by_pieces, forward), "backward": (gathered, gathered, backward)},
        saved=whole.x.numel() // whole.n,
        held=whole.nbytes / whole.n + FLOAT * whole.size_out,  # the bias is whole
    )


def unfollowed(name: str, came: str, k: int) -> str:
    """A whole x without a gradient, though the weight has one, which is looked at first."""
    return NOT_FOLLOWED if (name, came) == ("grad.x", "None") else ""


def odd_case(odd: Cut, features: int) -> kit.Case:
    """Features that the ranks do not divide."""
    run, title = odd.run("uneven", refuses=True), f"{features} features, {odd.whole.n} ranks"
    refusal = values_or_refusal_line(run, title, (features, odd.whole.n), slips=odd.slips, misfit=odd.misfit)
    return layer_case(title, [run], [refusal])


def one_rank(run: LayerRun) -> kit.Case:
    return layer_case("1 rank", [run], [values_line(run, "1 rank", weight=0.5, trivial=True, short=True)])


@kit.exercise(
    points=7, objects=("ColumnParallelLinear",), references=REFERENCE, hint=linear_trouble, point=POINT
)
def column_parallel_linear(draw: kit.Draw) -> Iterator[kit.Case]:
    cut = column(Whole.draw(draw, 4, (draw.integer(5, 9), 12), (2, 3)), False)
    wide = column(Whole.draw(draw, 4, (512, 2048), (2, 8)), False)  # 8.4 MB: seen among a process's pages
    run, large = cut.run("plain"), wide.run("wide", pages=True)
    lines = [*cut.lines(run, "4 ranks, 12 features", 2), *wide.large_lines(large, "4 ranks, 2,048 features")]
    yield layer_case("4 ranks", [run, large], lines)
    cut = column(Whole.draw(draw, 2, (draw.integer(5, 9), 6), (2, 4), bias=False), True)
    run, called = cut.run("gathered"), "gather_output, no bias, group {1, 2}"
    yield layer_case("sub-group", [run], cut.lines(run, called, 1), members=SUB_GROUP, world_size=3)
    cut = column(Whole.draw(draw, 3, (5, 6), (4,)), True)
    run = cut.run("flat")
    yield layer_case("3 ranks", [run], cut.lines(run, "gather_output, 3 ranks", 1.5))
    yield odd_case(column(Whole.draw(draw, 3, (4, 7), (3,)), True), 7)  # torch.chunk: 3, 3 and 1
    yield one_rank(column(Whole.draw(draw, 1, (4, 5), (3,)), True).run("one"))
    if draw.hidden:
        cut = column(Whole.draw(draw, 4, (3, 4), (2,)), True)
        run = cut.run("narrow")
        yield layer_case("hidden", [run], cut.lines(run, "a feature for each rank", 1))
        yield odd_case(column(Whole.draw(draw, 4, (3, 10), (2, 2)), False), 10)


@kit.exercise(
    points=7, objects=("RowParallelLinear",), references=REFERENCE, hint=linear_trouble, point=POINT
)
def row_parallel_linear(draw: kit.Draw) -> Iterator[kit.Case]:
    cut = row(Whole.draw(draw, 4, (8, draw.integer(5, 9)), (2, 3)), True)
    wide = row(Whole.draw(draw, 4, (2048, 512), (2, 8)), True)
    run, large = cut.run("plain"), wide.run("wide", pages=True)
    lines = [*cut.lines(run, "4 ranks, 8 features", 2), own_work(run, weight=1)]
    lines += wide.large_lines(large, "4 ranks, 2,048 features")
    yield layer_case("4 ranks", [run, large], lines)
    cut = row(Whole.draw(draw, 2, (6, draw.integer(5, 9)), (2, 4), bias=False), False)
    run, called = cut.run("whole"), "the whole x, no bias, group {1, 2}"
    yield layer_case("sub-group", [run], cut.lines(run, called, 1), members=SUB_GROUP, world_size=3)
    cut = row(Whole.draw(draw, 3, (6, 5), (4,)), False)
    run = cut.run("flat")
    yield layer_case("3 ranks", [run], cut.lines(run, "the whole x, 3 ranks", 1.5))
    yield odd_case(row(Whole.draw(draw, 3, (7, 4), (3,)), False), 7)
    yield one_rank(row(Whole.draw(draw, 1, (4, 5), (3,)), True).run("one"))
    if draw.hidden:
        cut = row(Whole.draw(draw, 4, (4, 3), (2,)), True)
        run = cut.run("narrow")
        yield layer_case("hidden", [run], cut.lines(run, "a feature for each rank", 1))
        yield odd_case(row(Whole.draw(draw, 4, (10, 3), (2, 2)), True), 10)
