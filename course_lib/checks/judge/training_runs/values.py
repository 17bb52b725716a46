"""Values of a training run: every rank's tensors against one process's, and the mistake that gives others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from course_lib.checks.judge.case import RIGHT, Finding, Line, Observed, wrong
from course_lib.checks.judge.compare import TOLERANCE, difference
from course_lib.checks.judge.training_runs.runs import members
from course_lib.checks.judge.training_runs.single import Gradient, Tensors, Training, mean, train, trained
from course_lib.checks.sentence import Sentence

WHAT = {
    "start": "parameter", "grad": "gradient of", "param": "parameter", "end": "parameter",
    "buffer": "buffer",
}  # fmt: skip


@dataclass(frozen=True)
class Mistake:
    """A way to go wrong whose values can be computed: gradient(rank), and the rank whose model is trained."""

    says: str
    gradient: Callable[[int], Gradient] = lambda rank: mean
    own_start: bool = False


def scaled(factor: float) -> Gradient:
    return lambda step, all_gradients: {
        name: factor * gradient for name, gradient in mean(step, all_gradients).items()
    }


def only(pick: Callable[[list[list[Tensors]]], list[list[Tensors]]]) -> Gradient:
    """The mean over a part of the gradients: pick(all_gradients) in the form of `all_gradients`."""
    return lambda step, all_gradients: mean(step, pick(all_gradients))


def common(n: int) -> list[Mistake]:
    """The mistakes that any data-parallel training can make on n ranks."""
    return [
        Mistake(
            "Each rank went on with the gradients of its own data: nothing was exchanged.",
            lambda rank: only(lambda all_gradients: [all_gradients[rank]]),
        ),
        Mistake(
            f"That is the sum over the {n} ranks: divide it by their number, once.", lambda rank: scaled(n)
        ),
        Mistake(
            f"That is the mean divided by {n} once more: average once, before or after the sum.",
            lambda rank: scaled(1 / n),
        ),
        Mistake(
            "Only the last microbatch was exchanged; gradients of the earlier ones stayed on their ranks.",
            last_exchanged,
        ),
        Mistake(
            "Only the last microbatch counts: the earlier gradients were overwritten, not added to.",
            lambda rank: only(lambda all_gradients: [microbatches[-1:] for microbatches in all_gradients]),
        ),
        Mistake(
            "Each rank trained the model that it made itself: all must start from the first rank's.",
            own_start=True,
        ),
    ]


def whole_world(n: int, world_size: int) -> Mistake:
    """The ranks outside the group of n were counted, too."""
    return Mistake(
        f"That is divided by {world_size}, the number of all ranks; the group has {n}: "
        "dist.get_world_size(group).",
        lambda rank: scaled(n / world_size),
    )


def last_exchanged(rank: int) -> Gradient:
    def gradient(step: int, all_gradients: list[list[Tensors]]) -> Tensors:
        sums = dict(mean(step, [microbatches[-1:] for microbatches in all_gradients]))
        for micro in all_gradients[rank][:-1]:
            for name, tensor in micro.items():
                sums[name] = sums[name] + tensor if name in sums else tensor.clone()
        return sums

    return gradient


def same_as_one_process(
    what: str,
    training: Training,
    title: str,
    *,
    gradient: Gradient = mean,
    mistakes: Iterable[Mistake] = (),
    weight: float = 1.0,
    trivial: bool = False,
    short: bool = False,
) -> Line:
    """Every rank's tensors of kind `what` ("start", "grad", "param", "end") are one process's on all data."""

    def judge(observed: Observed) -> Finding:
        everything = train(training, gradient)
        expected = kind(what, everything)
        starts = kind("start", everything) if what == "param" else {}
        for k, rank in enumerate(members(observed)):
            actual = {name: observed.tensors[rank][name] for name in expected}
            differ = differing(actual, expected, training.dtype, starts)
            if differ:
                says = usual_cause(training, differ[0], actual, k, mistakes)
                # other sizes and numbers of ranks are the same mistake
                cause = re.sub(r"\d+", "N", says)
                return wrong(first(differ[0], actual, expected, rank, observed), says, cause=cause)
        return RIGHT

    return Line(title, judge, weight, trivial=trivial, short=short)


def kind(what: str, tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(f"{what}.")}


def differing(
    actual: Tensors, expected: Tensors, dtype: torch.dtype, starts: Tensors | None = None
) -> list[str]:
    """Names whose tensors differ by more than rounding, in order.

    starts: parameters before the first step. One that steps have brought near to zero is as inexact as it was
    there; measured by its own size alone, 1 of 300 right runs in float32 failed.
    """
    tolerance = TOLERANCE[dtype]
    overall = max((float(tensor.abs().max()) for tensor in expected.values() if tensor.numel()), default=0.0)
    differ = []
    for name, wanted in expected.items():
        error = (actual[name].to(torch.float64) - wanted).abs()
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        began = (starts or {}).get(f"start.{name.split('.', 2)[-1]}", wanted)
        largest = max(largest, float(began.abs().max()) if began.numel() else 0.0)
        bound = tolerance * max(largest, 1e-3 * overall, 1e-12)
        if not bool((error <= bound).all()):  # also where it is not a number
            differ.append(name)
    return differ


def first(name: str, actual: Tensors, expected: Tensors, rank: int, observed: Observed) -> Sentence:
    """The first tensor that is wrong: on which rank, after which step, and by how much."""
    what, _, rest = name.partition(".")
    if what in ("grad", "param"):
        step, _, rest = rest.partition(".")
        when = f"in step {int(step) + 1}" if what == "grad" else f"after step {int(step) + 1}"
    else:
        when = "after the last step" if what == "end" else "after the model was wrapped"
    subject = f"{WHAT[what]} {rest}"
    general = f"{when}, {subject} on rank {rank} is not what one process gets from all data"
    if what == "start":
        general = f"{when}, {subject} on rank {rank} is not the first rank's"
    if name in observed.values[rank].without:
        return Sentence(f"{when}, {subject} on rank {rank} is None; a tensor is expected.", f"{general}.")
    return difference(general, actual[name], expected[name], "an element is ")


def usual_cause(
    training: Training, wrong_first: str, actual: Tensors, rank: int, mistakes: Iterable[Mistake]
) -> str:
    """The first mistake whose values are the ones that were found, in the step that went wrong first.

    rank: which of the training's own ranks found them, counted in the group where one is passed.

    Later steps are not looked at: there the ranks' models differ, which no computation here follows.
    """
    what, step = wrong_first.split(".")[:2]
    steps = None if what == "end" else int(step) + 1 if what in ("grad", "param") else 0
    prefix = f"{what}.{step}." if what in ("grad", "param") else f"{what}."
    of_that_step = {name: tensor for name, tensor in actual.items() if name.startswith(prefix)}
    for mistake in mistakes:
        values = trained(training, mistake.gradient(rank), rank if mistake.own_start else 0, steps)
        expected = {name: values[name] for name in of_that_step}
        if not differing(of_that_step, expected, training.dtype):
            return mistake.says
    return ""
