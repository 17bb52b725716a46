"""A norm on parts of the sequence: whole weights, used by each rank for its own positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import saved_line, sent_line, values_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel.shared import columns, total
from course_lib.facts import least_bytes
from course_lib.ledger.operation import Operation

NORM = 2  # place among the exercise's objects
FLOAT = 8  # bytes
SEQ = 1  # the dimension of the sequence in (batch, seq, width)
EPS = 0.01  # another than LayerNorm's, for those who leave it out
SUMMED_BEHIND = (
    "The gradients of the norm's outputs were summed over the ranks, which have different positions. Put "
    "identity_all_reduce on weight and bias, not on the output."
)


SUMMED_IN_FORWARD = (
    "The norm's weight and bias were summed in forward, although every rank has all of them. Use the "
    "function that does nothing in forward and sums gradients in backward."
)


def misfit(name: str, came: str, k: int) -> str:
    if name in ("p.weight", "p.bias") and came == "None":
        return "Take over the norm's own parameters, as they are, because the optimizer finds nothing else."
    return ""


def parts(tensor: Tensor, n: int, dim: int = SEQ) -> list[Tensor]:
    return [part.contiguous() for part in tensor.tensor_split(n, dim)]


def norm_run(draw: kit.Draw, n: int, batch: int, seq: int, width: int) -> LayerRun:
    """A LayerNorm with weights of its own, on parts of the sequence."""
    kind = torch.float64
    x, g = (draw.normal(batch, seq, width, dtype=kind) for _ in range(2))
    weight, bias = (draw.normal(width, dtype=kind) for _ in range(2))
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    of_x, of_weight, of_bias = leaves
    y = F.layer_norm(of_x, (width,), of_weight, of_bias, EPS)
    for_x, for_weight, for_bias = torch.autograd.grad(y, leaves, g)
    wanted = [
        {
            "y": part, "grad.x": for_part, "grad.p.weight": for_weight, "grad.p.bias": for_bias,
            "p.weight": weight, "p.bias": bias,
        }
        for part, for_part in zip(parts(y.detach(), n), parts(for_x, n), strict=True)
    ]  # fmt: skip
    return LayerRun(
        "norm", [{"x": part} for part in parts(x, n)], wanted, parts(g, n), object=NORM,
        make=([], {}), norm=(weight, bias), eps=EPS,
    )  # fmt: skip


def norm_wrong(run: LayerRun) -> list[kit.Slip]:
    n = run.size
    x = [inputs["x"] for inputs in run.inputs]
    upstream = list(run.gradient or ())
    for_weight, for_x = run.wanted[0]["grad.p.weight"], columns(run, "grad.x")[0]
    width = x[0].shape[-1]

    def own(k: int) -> Tensor:
        """The weight's gradient from the rank's own positions."""
        return (upstream[k] * F.layer_norm(x[k], (width,), eps=EPS)).sum((0, 1))

    def other_eps(k: int) -> Tensor:
        parameters = run.wanted[k]["p.weight"], run.wanted[k]["p.bias"]
        return F.layer_norm(x[k], (width,), *parameters)

    def summed_behind(k: int) -> Tensor:
        """The gradient of x, if the gradients of the norm's outputs were summed."""
        of_x = x[k].clone().requires_grad_()
        y = F.layer_norm(of_x, (width,), run.wanted[k]["p.weight"], run.wanted[k]["p.bias"], EPS)
        return torch.autograd.grad(y, of_x, total(upstream))[0]

    even = len({part.shape for part in x}) == 1
    plain = [F.layer_norm(part, (width,), eps=EPS) for part in x]
    return [
        kit.Slip(
            "The weight's gradient covers only the rank's own positions. The weight is whole on every "
            "rank and used for the whole sequence, so sum the gradients, or the copies drift apart.",
            lambda k: {"grad.p.weight": own(k)},
        ),
        kit.Slip(
            f"The gradient was divided by {n}. The ranks have other positions of the same sequences, "
            "so their gradients are added up.",
            lambda k: {"grad.p.weight": for_weight / n},
        ),
        kit.Slip("The gradients were summed more than once.", lambda k: {"grad.p.weight": n * for_weight}),
        kit.Slip(
            "The gradients of x were summed over the ranks, which have different positions. Sum only "
            "the gradients of weight and bias.",
            lambda k: {"grad.x": total(for_x)},
        ),
        # uneven parts have no sum
        *([kit.Slip(SUMMED_BEHIND, lambda k: {"grad.x": summed_behind(k)})] if even else []),
        kit.Slip("The norm's own weight and bias were left out.", lambda k: {"y": plain[k]}),
        kit.Slip(SUMMED_IN_FORWARD, lambda k: {"y": n * run.wanted[k]["y"]}),
        kit.Slip(SUMMED_IN_FORWARD, lambda k: {"y": n * run.wanted[k]["y"], "grad.x": n * for_x[k]}),
        kit.Slip(
            f"The norm's eps is left out. It is {EPS:g} here, not LayerNorm's usual 1e-05, so use norm.eps.",
            lambda k: {"y": other_eps(k)},
        ),
    ]


def norm_lines(run: LayerRun) -> list[kit.Line]:
    n, width = run.size, run.wanted[0]["p.weight"].numel()
    own = FLOAT * max(inputs["x"].numel() for inputs in run.inputs)
    exact = least_bytes(n, 2 * width * FLOAT)
    slips = norm_wrong(run)

    def forward(ratio: float, done: list[Operation]) -> str:
        return "A norm needs all features of a position, and nothing of other positions."

    def backward(ratio: float, done: list[Operation]) -> str:
        return "The gradients of weight and bias, 2 x width numbers, are summed, and nothing else."

    return [
        values_line(
            run, "norm on parts: forward", names=["y", "p.weight", "p.bias"], slips=slips, misfit=misfit
        ),
        values_line(
            run, "norm on parts: gradients", names=["grad.x", "grad.p.weight", "grad.p.bias"],
            slips=slips, weight=2,
        ),
        sent_line(
            run, "forward", [0.0] * n, hint=forward, weight=0.5, title="norm: bytes forward", point=1
        ),
        sent_line(run, "backward", [exact] * n, hint=backward, weight=0.5, title="norm: bytes backward"),
        saved_line(run, [2 * own] * n, weight=0.5, title="norm: kept for backward",
                   says=("A norm keeps only its input for backward, which is the rank's part of the "
                        "sequence.")),
    ]  # fmt: skip
