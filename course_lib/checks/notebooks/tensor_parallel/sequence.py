"""Sequence parallelism: between the regions each rank has a part of the sequence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.layers import runs
from course_lib.checks.judge.layers.lines import sent_line, values_line, values_or_refusal_line
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel import sequence_dim
from course_lib.checks.notebooks.tensor_parallel.prediction import REFERENCE
from course_lib.checks.notebooks.tensor_parallel.sequence_norm import (
    SEQ,
    norm_lines,
    norm_run,
    norm_wrong,
    parts,
)
from course_lib.checks.notebooks.tensor_parallel.sequence_runs import (
    GATHER,
    NAMES,
    SCATTER,
    gathering,
    scattering,
)
from course_lib.checks.notebooks.tensor_parallel.shared import (
    GIVEN,
    and_unwritten,
    columns,
    interface,
    own_work,
    total,
)
from course_lib.facts import least_bytes
from course_lib.ledger.operation import Operation

SIDE_BY_SIDE = (
    "Collectives put parts one after the other along dimension 0, the batch, but here they belong "
    "side by side along the sequence, dimension 1."
)
WRONG_SHAPE = re.compile(r"got \[(\d+), (\d+), \d+\]")  # of a gradient, in PyTorch's words
EXPECTED_SHAPE = re.compile(r"shape compatible with \[(\d+), (\d+), \d+\]")
COPY = "Other code may also hold it, so communicate in your own copy."


def gathered_wrong(run: LayerRun) -> list[kit.Slip]:
    x, whole, upstream, grad = columns(run, "after.x", "y", "after.gradient", "grad.x")
    n = run.size
    batch = x[0].shape[0]
    stacked = torch.cat(x).reshape(whole[0].shape)
    interleaved = torch.stack(x, SEQ + 1).flatten(SEQ, SEQ + 1)
    means = "The gradient is a mean over the ranks. Sum over all uses."
    slips = [
        kit.Slip(
            "The positions are in another order. Rank r has the r-th part of the sequence, not every "
            "N-th position.",
            lambda k: {"y": interleaved},
        ),
        kit.Slip(
            "Backward took the rank's part of its own gradient. Each rank uses all of the sequence in "
            "its own way, so the gradients are summed, and the rank gets its part of the sum.",
            lambda k: {"grad.x": parts(upstream[k], n)[k]},
        ),
        kit.Slip(means, lambda k: {"grad.x": grad[k] / n}),
        kit.Slip(
            "Backward gave the rank another rank's part of the sum.", lambda k: {"grad.x": grad[(k + 1) % n]}
        ),
        kit.Slip("Backward gave the rank another rank's part of the sum.", lambda k: {"grad.x": grad[k - 1]}),
        kit.Slip(
            "The sum was cut along the batch, dimension 0, as reduce_scatter_tensor does. Bring the "
            "sequence to the front first.",
            lambda k: {"grad.x": total(upstream).reshape(n, *x[k].shape)[k]},
        ),
    ]
    if batch > 1:
        says = (
            "The ranks' parts were put one after the other along dimension 0, as "
            "all_gather_into_tensor does, and cut into sequences afterwards. They belong side by side "
            "along the sequence."
        )
        slips.insert(0, kit.Slip(says, lambda k: {"y": stacked}))
    return slips


def scattered_wrong(run: LayerRun) -> list[kit.Slip]:
    x, part, upstream, grad = columns(run, "after.x", "y", "after.gradient", "grad.x")
    n = run.size
    flat = total(x).reshape(n, *part[0].shape)

    def own_place(k: int) -> Tensor:
        """The rank's gradient at its positions, zeros elsewhere."""
        return torch.cat([g if r == k else torch.zeros_like(g) for r, g in enumerate(upstream)], SEQ)

    return [
        kit.Slip(
            "Your result is the rank's part of its own term. Sum the terms of all ranks.",
            lambda k: {"y": parts(x[k], n)[k]},
        ),
        kit.Slip("Your result is a mean. Sum the terms.", lambda k: {"y": part[k] / n}),
        *(
            kit.Slip(
                "Your result is another rank's part. Rank r must have the r-th part of the sequence.",
                lambda k, by=by: {"y": part[(k + by) % n]},
            )
            for by in range(1, n)
        ),
        kit.Slip(
            "The sum was cut along the batch, dimension 0, as reduce_scatter_tensor does. Bring the "
            "sequence to the front first.",
            lambda k: {"y": flat[k]},
        ),
        kit.Slip(
            "Backward put the rank's own gradient in its place, and left zeros in the other parts. "
            "The rank's term went into every part of the sum, so gather the gradients of all ranks.",
            lambda k: {"grad.x": own_place(k)},
        ),
        kit.Slip(
            "The gradient is N times too large. Gather the parts' gradients, do not sum them.",
            lambda k: {"grad.x": n * grad[k]},
        ),
        kit.Slip(
            "The parts' gradients were put one after the other along dimension 0, as "
            "all_gather_into_tensor does. They belong side by side along the sequence.",
            lambda k: {"grad.x": torch.cat(upstream).reshape(grad[k].shape)},
        ),
    ]


def other_way(run: LayerRun, k: int) -> list[int]:
    """The shape that the other function of the pair makes of the k-th rank's x."""
    batch, seq, width = run.inputs[k]["x"].shape
    return [batch, seq // run.size if run.object == GATHER else seq * run.size, width]


def pair_misfit(run: LayerRun) -> Any:
    """(name, the result, k) -> the usual cause of another shape."""
    batch, *_ = run.wanted[0]["y"].shape

    def hint(name: str, came: str, k: int) -> str:
        shape = [int(size) for size in re.findall(r"\d+", came.partition("[")[2])]
        if came == "None" and name == "grad.x":
            return (
                "The returned tensor has no graph behind it, because autograd does not see what "
                "torch.distributed does. Write a torch.autograd.Function, and call its apply."
            )
        if name == "y" and shape == list(run.wanted[k]["grad.x"].shape) and run.object == GATHER:
            return "Your result is x's own part, but the parts are gathered into a region."
        if name == "y" and shape == other_way(run, k):
            return (
                "Your function is the other of the two. One gathers in forward, and its "
                "counterpart reduces and scatters."
            )
        if len(shape) == 3 and shape[0] != batch:
            return SIDE_BY_SIDE
        if run.object == SCATTER and name == "y" and shape == list(run.inputs[k]["x"].shape):
            return "Your result is the whole sequence, but a rank keeps only its part of the sum."
        return ""

    return hint


def pair_line(run: LayerRun, title: str, names: Sequence[str], weight: float, **more: Any) -> kit.Line:
    slips = gathered_wrong(run) if run.object == GATHER else scattered_wrong(run)
    line = values_line(run, title, names=names, slips=slips, misfit=pair_misfit(run), weight=weight, **more)
    return and_unwritten(line, run, GIVEN, COPY)


def both_ways(run: LayerRun) -> list[kit.Line]:
    """Values and gradients of one of the pair, and the bytes of each direction: half an all-reduce."""
    n, name = run.size, NAMES[run.object]
    whole = run.wanted[0]["y" if run.object == GATHER else "grad.x"].nbytes
    half = [least_bytes(n, whole) / 2] * n

    def hint(ratio: float, done: list[Operation]) -> str:
        if abs(ratio - 2) < 0.05 and any(operation.op == "all_reduce" for operation in done):
            return "An all-reduce is both halves. If each rank needs only a part, the first half is enough."
        return "A gather, or a reduce-scatter, sends (N-1)/N of the whole once."

    return [
        pair_line(run, f"{name}: forward", ["y"], 1.5),
        pair_line(run, f"{name}: backward", ["grad.x"], 1.5),
        *(
            sent_line(run, way, half, hint=hint, weight=0.5, title=f"{name}: bytes {way}", point=ALL_REDUCE)
            for way in ("forward", "backward")
        ),
    ]


def trouble(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if case_of_it.title == sequence_dim.TITLE:
        return sequence_dim.trouble(text)
    if said := interface(text):
        return said
    if case_of_it.title == UNEVEN and kind != "deadlock":
        return "Look first whether N divides the length of the sequence, and raise a ValueError that says so."
    if "created in no_grad mode" in text:
        return (
            "A collective was called on a tensor with a graph, but autograd does not follow it. So `joined` "
            "and `summed_part` need a backward. Hand both to `Conjugate`, one for each direction."
        )
    if "not contiguous" in text:
        return "A part along the sequence is a view with gaps, so call contiguous() before it is sent."
    came, expected = WRONG_SHAPE.search(text), EXPECTED_SHAPE.search(text)
    if came and expected and came[1] == expected[1]:
        if int(came[2]) < int(expected[2]):
            return "x has all positions here, so backward must gather the gradients of all ranks' parts."
        return "x is the rank's part here, so backward must return the rank's part of the summed gradients."
    if "returned an invalid gradient" in text:
        return f"A gradient has the shape of its tensor. {SIDE_BY_SIDE}"
    if kind == "deadlock" or "collective number" in text:
        return "All ranks call the same collectives in the same order, forward and backward."
    return ""


UNEVEN = "5 positions, 2 ranks"
ALL_REDUCE = 1.5  # times the bytes of one of its halves, and more: no half is there


@kit.exercise(
    points=8, objects=NAMES, references=REFERENCE, hint=trouble,
    point="tokens of which each rank holds only its part, with the halves of an all-reduce at the edges",
)  # fmt: skip
def sequence_parallel(draw: kit.Draw) -> Iterator[kit.Case]:
    gather, scatter = gathering(draw, 3, (2, 6, 4)), scattering(draw, 3, (2, 6, 4))
    norm = norm_run(draw, 3, 2, 9, 40)
    yield runs.layer_case(
        "the pair, 3 ranks", [gather, scatter], [*both_ways(gather), *both_ways(scatter), own_work(gather)]
    )
    yield runs.layer_case("the norm, 3 ranks", [norm], norm_lines(norm))
    gather, scatter = gathering(draw, 2, (3, 4, 2)), scattering(draw, 2, (3, 4, 2))
    yield runs.layer_case("group", [gather, scatter],
        [
            pair_line(run, f"{NAMES[run.object]}, group {{1, 3}}", ["y", "grad.x"], 0.5, short=True)
            for run in (gather, scatter)
        ],
        members=(1, 3), world_size=4,
    )  # fmt: skip
    uneven = replace(scattering(draw, 2, (2, 5, 3)), refuses=True)
    yield runs.layer_case(
        UNEVEN, [uneven], [values_or_refusal_line(uneven, f"{NAMES[SCATTER]}: {UNEVEN}", [5, 2], weight=0.5)]
    )
    yield sequence_dim.dim_case(draw)
    if draw.hidden:
        for n, dtype in ((4, torch.float64), (2, torch.bfloat16), (1, torch.float64)):
            yield again(draw, n, dtype)


def again(draw: kit.Draw, n: int, dtype: torch.dtype) -> kit.Case:
    """The three of them on n ranks."""
    shape = (2, 2 * n, 3)
    pair = [gathering(draw, n, shape, dtype), scattering(draw, n, shape, dtype)]
    title = f"{words.counted(n, 'rank')}, {str(dtype)[6:]}"
    judged = [
        pair_line(run, f"{NAMES[run.object]}, {title}", ["y", "grad.x"], 0.5, short=True, trivial=n == 1)
        for run in pair
    ]
    norm = norm_run(draw, n, 2, 2 * n, 6)
    judged.append(
        values_line(norm, f"norm, {words.counted(n, 'rank')}", slips=norm_wrong(norm), weight=0.5,
                    short=True, trivial=n == 1)
    )  # fmt: skip
    return runs.layer_case(title, [*pair, norm], judged)
