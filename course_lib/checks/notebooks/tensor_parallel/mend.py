"""mend: three blocks, each with a sum that is missing or in the wrong place, mended by one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.notebooks.tensor_parallel.prediction import REFERENCE
from course_lib.checks.notebooks.tensor_parallel.shared import FACTOR_N, interface, total
from course_lib.facts import least_bytes

NAMES = ("rows_then_columns", "bias_behind", "norm_before")
TOKENS, WIDTH, HIDDEN = 3, 8, 12
GELU_OF_TERMS = (
    "gelu is applied to each rank's own term of x A, and gelu(a) + gelu(b) is not gelu(a + b). Add the terms "
    "up first."
)
GELU_SUMMED = "You add up behind gelu. gelu(a) + gelu(b) is not gelu(a + b), so add up in front of it."
FORGOTTEN_BIAS = "The bias is missing. Add it once, behind the sum."
DIVIDED_BIAS = (
    "Each rank adds a share of the bias, so the sum is right, but b2 then gets a share of its "
    "gradient. Add all of it behind the sum."
)
SOME_BIAS = (
    "The bias is added on some ranks only, so it has a gradient only there, and the other copies stay "
    "behind. Every rank adds it, behind the sum."
)
H_ALONE = (
    "The sum is in its place, but the gradient of h is only this rank's own term. Every rank uses h for its "
    "own columns of B, so h enters the second product through identity_all_reduce, as before."
)
X_ALONE = (
    "The gradient of x is only this rank's own term. Every rank uses x for its own hidden features, so x "
    "enters through identity_all_reduce, as before."
)
NO_ENTRANCE = (
    "The gradient that goes back through the norm is this rank's own term. Every rank uses the norm's output "
    "for its own hidden features, so it enters the region there."
)
BEFORE_THE_NORM = (
    "The region begins in front of the norm, so the norm's own weight gets this rank's term of its "
    "gradient. Every rank computes the norm separately, so let its output enter."
)
STREAM_TOO = (
    "The residual stream also enters the region. Its gradient is already whole on every rank, so "
    "summing it counts it N times."
)


@dataclass(frozen=True)
class Block:
    """A block on one process and on n ranks.

    cut: for each input the dimension that is cut over the ranks; None: all ranks have it.
    y_cut: the output's.
    """

    which: int
    n: int
    cut: Mapping[str, int | None]
    y_cut: int | None
    whole: Sequence[Tensor]
    y: Tensor
    g: Tensor

    def parts(self, x: Tensor, dim: int | None) -> list[Tensor]:
        pieces = [x] * self.n if dim is None else x.tensor_split(self.n, dim)
        return [piece.detach().clone() for piece in pieces]

    def inputs(self) -> dict[str, list[Tensor]]:
        """For each name a list over the ranks."""
        return {name: self.parts(x, self.cut[name]) for name, x in zip(self.cut, self.whole, strict=True)}

    def wanted(self) -> dict[str, list[Tensor]]:
        back = zip(self.cut, gradients(self.y, self.whole, self.g), strict=True)
        right = {f"grad.{name}": self.parts(gradient, self.cut[name]) for name, gradient in back}
        return {"y": self.parts(self.y, self.y_cut), **right}

    def run(self) -> LayerRun:
        inputs, wanted = self.inputs(), self.wanted()
        return LayerRun(
            NAMES[self.which],
            inputs=[{name: of[k] for name, of in inputs.items()} for k in range(self.n)],
            wanted=[{name: of[k] for name, of in wanted.items()} for k in range(self.n)],
            gradient=self.parts(self.g, self.y_cut),
            object=self.which,
        )


def gradients(y: Tensor, inputs: Sequence[Tensor], g: Tensor) -> list[Tensor]:
    return [gradient.detach() for gradient in torch.autograd.grad(y, inputs, g, retain_graph=True)]


def drawn(draw: kit.Draw, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [draw.normal(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]


# ---- the three blocks, with the usual mistakes


def rows_then_columns(draw: kit.Draw, n: int) -> tuple[LayerRun, list[kit.Slip]]:
    """x is cut by features, w1 by rows and w2 by columns; the output is cut by features."""
    x, w1, w2 = drawn(draw, (TOKENS, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    y = F.linear(F.gelu(F.linear(x, w1)), w2)
    g = draw.normal(TOKENS, WIDTH, dtype=torch.float64)
    block = Block(0, n, {"x": 1, "w1": 1, "w2": 0}, 1, (x, w1, w2), y, g)
    inputs, wanted = block.inputs(), block.wanted()
    terms = [F.gelu(F.linear(a, b)) for a, b in zip(inputs["x"], inputs["w1"], strict=True)]
    own = [
        gradients(F.linear(F.gelu(F.linear(x, w1)), part), (x,), of_part)[0]
        for part, of_part in zip(inputs["w2"], block.parts(g, 1), strict=True)
    ]
    return block.run(), [
        kit.Slip(GELU_OF_TERMS, lambda k: {"y": F.linear(terms[k], inputs["w2"][k])}),
        kit.Slip(GELU_SUMMED, lambda k: {"y": F.linear(total(terms), inputs["w2"][k])}),
        kit.Slip(FACTOR_N, lambda k: {"y": wanted["y"][k], "grad.x": n * wanted["grad.x"][k]}),
        kit.Slip(H_ALONE, lambda k: {"y": wanted["y"][k], "grad.x": block.parts(own[k], 1)[k]}),
    ]


def bias_behind(draw: kit.Draw, n: int) -> tuple[LayerRun, list[kit.Slip]]:
    """Columns, then rows, and a bias that all ranks have."""
    x, w1, w2, b2 = drawn(draw, (TOKENS, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN), (WIDTH,))
    y = F.linear(F.gelu(F.linear(x, w1)), w2, b2)
    g = draw.normal(TOKENS, WIDTH, dtype=torch.float64)
    block = Block(1, n, {"x": None, "w1": 0, "w2": 1, "b2": None}, None, (x, w1, w2, b2), y, g)
    inputs, wanted, bias = block.inputs(), block.wanted(), b2.detach()
    own = [
        gradients(F.linear(F.gelu(F.linear(x, a)), b), (x,), g)[0]
        for a, b in zip(inputs["w1"], inputs["w2"], strict=True)
    ]
    return block.run(), [
        kit.Slip(
            (
                f"The bias is in the sum {n} times, because every rank adds it to its term. Add it once, "
                "behind the sum."
            ),
            lambda k: {"y": wanted["y"][k] + (n - 1) * bias},
        ),
        kit.Slip(FORGOTTEN_BIAS, lambda k: {"y": wanted["y"][k] - bias}),
        kit.Slip(DIVIDED_BIAS, lambda k: {"grad.b2": wanted["grad.b2"][k] / n}),
        kit.Slip(X_ALONE, lambda k: {"y": wanted["y"][k], "grad.x": own[k]}),
        kit.Slip(FACTOR_N, lambda k: {"y": wanted["y"][k], "grad.b2": n * wanted["grad.b2"][k]}),
        kit.Slip(FACTOR_N, lambda k: {"grad.w2": n * wanted["grad.w2"][k]}),
    ]


def norm_before(draw: kit.Draw, n: int) -> tuple[LayerRun, list[kit.Slip]]:
    """A norm with a weight of its own, columns, then rows, and the residual stream."""
    x, scale, w1, w2 = drawn(draw, (TOKENS, WIDTH), (WIDTH,), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    normed = F.layer_norm(x, (WIDTH,), scale)
    y = x + F.linear(F.gelu(F.linear(normed, w1)), w2)
    g = draw.normal(TOKENS, WIDTH, dtype=torch.float64)
    block = Block(2, n, {"x": None, "scale": None, "w1": 0, "w2": 1}, None, (x, scale, w1, w2), y, g)
    inputs, wanted = block.inputs(), block.wanted()
    own = [
        gradients(F.linear(F.gelu(F.linear(normed, a)), b), (x, scale), g)
        for a, b in zip(inputs["w1"], inputs["w2"], strict=True)
    ]
    return block.run(), [
        kit.Slip(NO_ENTRANCE, lambda k: {"grad.x": g + own[k][0], "grad.scale": own[k][1]}),
        kit.Slip(BEFORE_THE_NORM, lambda k: {"grad.x": wanted["grad.x"][k], "grad.scale": own[k][1]}),
        kit.Slip(STREAM_TOO, lambda k: {"grad.x": wanted["grad.x"][k] + (n - 1) * g}),
        kit.Slip(FACTOR_N, lambda k: {"grad.w2": n * wanted["grad.w2"][k]}),
    ]


BLOCKS: tuple[Callable[[kit.Draw, int], tuple[LayerRun, list[kit.Slip]]], ...] = (
    rows_then_columns, bias_behind, norm_before,
)  # fmt: skip
OTHERWISE = (  # where the first two have a wrong output, and the third wrong gradients
    "The sum belongs between the first matrix and gelu, and nothing else has to change.",
    "Add up the terms without a bias, and add the bias to the sum.",
    "The norm's output enters the region through identity_all_reduce, and nothing else has to change.",
)


# ---- lines


def hint(ratio: float, done: list[Any]) -> str:
    return "One all-reduce in each direction is enough." if ratio > 1 else ""


def misfit(name: str, came: str, k: int) -> str:
    return SOME_BIAS if (name, came) == ("grad.b2", "None") else ""


def lines(run: LayerRun, slips: list[kit.Slip], title: str, weight: float) -> list[kit.Line]:
    """Values and gradients, then the bytes: each block has one sum forward and one backward."""
    size = TOKENS * (HIDDEN if run.object == 0 else WIDTH) * torch.float64.itemsize
    name, least = NAMES[run.object], [least_bytes(run.size, size)] * run.size
    says = OTHERWISE[run.object]
    output = values_line(run, "", names=["y"], slips=slips, otherwise="" if run.object == 2 else says)
    rest = [key for key in run.wanted[0] if key != "y"]
    back = values_line(
        run, "", names=rest, slips=slips, misfit=misfit, otherwise=says if run.object == 2 else ""
    )
    values = kit.Line(f"{name}{title}", kit.both(output.judge, back.judge), 2 * weight)
    sent = [
        sent_line(run, way, least, hint=hint, weight=0.25 * weight, title=f"{name}{title}: bytes {way}")
        for way in ("forward", "backward")
    ]
    return [values, *sent]


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    return interface(text)


@kit.exercise(points=5, objects=NAMES, references=REFERENCE, hint=trouble)
def mend(draw: kit.Draw) -> Iterator[kit.Case]:
    for block, name in zip(BLOCKS, NAMES, strict=True):  # apart: a block that raises costs itself alone
        run, slips = block(draw, 2)
        yield layer_case(name, [run], lines(run, slips, "", 1))
    for block, name in zip(BLOCKS, NAMES, strict=True):  # last: one that hangs ends the check
        run, slips = block(draw, 2)
        group = lines(run, slips, ", group {1, 3}", 0.25)
        yield layer_case(f"{name}, group", [run], group, members=(1, 3), world_size=4)
    if draw.hidden:
        for block, name in zip(BLOCKS, NAMES, strict=True):
            run, slips = block(draw, 4)
            yield layer_case(f"{name}, 4 ranks", [run], lines(run, slips, ", 4 ranks", 0.5))
