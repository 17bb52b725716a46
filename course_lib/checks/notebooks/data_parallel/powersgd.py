"""PowerSGD: its cases, and the usual mistakes (extra credit).

The first Q is random, and a student's code may draw other numbers than ours. The rest is determined: the
result R of a step gives the space of its Q, the error that all ranks together have kept, and with them the
next result, to rounding. So each step is judged on the state that the step before has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.data_parallel.low_rank import (
    SHAPES,
    PowerSGDRun,
    draw_run,
    near,
    next_result,
    onto,
    span,
)

RECIPE = "course_lib.checks.rank.notebooks.data_parallel.averaging:averaged"
REFERENCE = ("course_lib.compression",)


# ---- values


def results(observed: kit.Observed, run: PowerSGDRun, rank: int, k: int) -> list[torch.Tensor]:
    return [observed.tensors[rank][run.name(step, k)].to(torch.float64) for step in run.steps]


def vectors(run: PowerSGDRun) -> Callable[[kit.Observed], kit.Finding]:
    """A tensor that is not a matrix is averaged as it is."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in run.members:
            for step in run.steps:
                actual, mean = results(observed, run, rank, 1)[step], run.mean(step, 1)
                if near(run, actual, mean):
                    continue
                n = len(run.members)
                why = "A vector is not compressed, so its mean is exact."
                if near(run, actual, mean * n) and n > 1:
                    why = f"The result is the sum over the {n} ranks. Divide it by their number."
                elif any(near(run, actual, own[1]) for own in run.gradients[step]) and n > 1:
                    why = (
                        "The vector was left as it was, but a gradient that is not a matrix must also be "
                        "averaged."
                    )
                said = f"in step {step + 1}, the vector on rank {rank} is not the mean of the ranks' vectors."
                return kit.wrong(said, why)
        return kit.RIGHT

    return judge


def matrices(run: PowerSGDRun) -> Iterator[tuple[int, str]]:
    for k, shape in enumerate(SHAPES):
        if len(shape) == 2:
            yield k, f"the {shape[0]} x {shape[1]} matrix"


def first_step(run: PowerSGDRun) -> Callable[[kit.Observed], kit.Finding]:
    """The mean, projected onto `rank` orthonormal columns: which ones is free, if they span the mean."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in run.members:
            for k, what in matrices(run):
                actual, mean = results(observed, run, rank, k)[0], run.mean(0, k)
                if not bool(actual.isfinite().all()):
                    return kit.wrong(f"in step 1, {what} on rank {rank} is not finite.", UNSTABLE)
                basis = span(actual, run.rank)
                wanted = mean if run.low_rank else onto(basis, mean)
                if near(run, actual, wanted):
                    continue
                said = f"in step 1, {what} on rank {rank} is not P Q^T of the mean with {run.rank} columns."
                return kit.wrong(said, why_not(run, actual, mean, basis, k, rank))
        return kit.RIGHT

    return judge


UNSTABLE = "Gram-Schmidt divides by zero if a column depends on others, but torch.linalg.qr does not."


def why_not(
    run: PowerSGDRun, actual: torch.Tensor, mean: torch.Tensor, basis: torch.Tensor, k: int, rank: int
) -> str:
    n, own = len(run.members), run.gradients[0][list(run.members).index(rank)][k]
    if near(run, actual, mean):
        return "The result is the whole mean, so nothing was compressed."
    if near(run, actual, own):
        return "The gradient was left as it was. all_reduce must write P Q^T into the gradients it is given."
    if n > 1 and near(run, actual, n * onto(basis, mean)):
        return f"Q is the sum over the {n} ranks. Divide it by their number."
    if n > 1 and near(run, actual, onto(basis, own)):
        return "The result is this rank's own gradient, projected. Q = G^T P has to be averaged as well as P."
    if not near(run, actual, onto(basis, actual)):
        return f"The result has more than {run.rank} independent columns."
    if near(run, actual, onto(basis, mean)):
        return (
            "A mean of rank 2 comes through whole with 2 columns, if P spans the columns of G Q, with the "
            "mean as G. So every rank has to start from the same Q, drawn from a generator with a fixed "
            "seed."
        )
    return (
        "Average P = G Q, then make it orthonormal in the same way on every rank (torch.linalg.qr(P).Q). "
        "Average Q = G^T P as well. The result is P Q^T. Without orthonormal columns it has another size, "
        "and if P is not averaged, the ranks' Q belong to different P."
    )


def later_steps(run: PowerSGDRun) -> Callable[[kit.Observed], kit.Finding]:
    """Each result follows from the one before: warm start, and the error that was kept."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for k, what in matrices(run):
            actual = results(observed, run, run.members[0], k)
            missing = run.mean(0, k) - actual[0]
            for step in run.steps[1:]:
                asked = run.mean(step, k) + missing
                expected = next_result(asked, actual[step - 1], run.rank)
                if not near(run, actual[step], expected):
                    said = f"in step {step + 1}, {what} does not follow from the steps before."
                    return kit.wrong(said, slip(run, actual, step, k, missing))
                missing = asked - actual[step]
        return kit.RIGHT

    return judge


def slip(run: PowerSGDRun, actual: Sequence[torch.Tensor], step: int, k: int, missing: torch.Tensor) -> str:
    now, mean = actual[step], run.mean(step, k)
    basis = span(now, run.rank)
    ways = {
        "The part that P Q^T missed in earlier steps was not added. Compress gradient + error.": mean,
        "The error has the wrong sign: error = gradient + error, less P Q^T.": mean - missing,
        "The error of the step before was counted twice.": mean + 2 * missing,
    }
    if step > 1:
        latest = run.mean(step - 1, k) - actual[step - 1]
        ways["The error is gradient *and* earlier error together, less P Q^T."] = mean + latest
        every = run.mean(0, k) - actual[0] + missing
        ways["The new error must replace the old error, because it already includes it."] = mean + every
    for says, asked in ways.items():
        if near(run, now, next_result(asked, actual[step - 1], run.rank)):
            return says
    if near(run, now, onto(basis, mean + missing)):
        return (
            "The step did not start from the Q of the step before (warm start). Keep Q once it is averaged."
        )
    for says, asked in ways.items():
        if near(run, now, onto(basis, asked)):
            return f"{says} The step also did not start from the Q of the step before."
    return (
        "Compress gradient + error, start from the last Q, then keep the part of that sum that P Q^T misses."
    )


def alike(run: PowerSGDRun) -> Callable[[kit.Observed], kit.Finding]:
    def judge(observed: kit.Observed) -> kit.Finding:
        first = observed.tensors[run.members[0]]
        for rank in run.members[1:]:
            for name, tensor in first.items():
                if not torch.equal(observed.tensors[rank][name], tensor):
                    step = int(name.split(".")[0]) + 1
                    return kit.wrong(
                        f"after step {step}, ranks {run.members[0]} and {rank} hold different values.",
                        "P and Q must be averaged on all ranks, so that every rank computes the same "
                        "product.",
                        cause="bits",
                    )
        return kit.RIGHT

    return judge


def traffic(run: PowerSGDRun) -> kit.Line:
    count = len(run.members)
    itemsize = run.dtype.itemsize
    exact = len(run.steps) * facts.powersgd_bytes(count, SHAPES, run.rank, itemsize)
    whole = facts.uncompressed_bytes(count, sum(torch.Size(s).numel() for s in SHAPES), itemsize)

    def hint(ratio: float, observed: kit.Observed) -> str:
        if abs(ratio * exact - len(run.steps) * whole) < 1:
            return "Every gradient travelled whole."
        return "In a step, all-reduce the vectors, P (rows x r) and Q (columns x r) once each."

    each = [exact if rank in run.members else 0.0 for rank in range(run.n)]
    half = len(run.steps) * whole / exact / 2  # of what is sent without compression
    return kit.volume_line(each, hint=hint, weight=2, title="bytes sent", point=half)


def powersgd_case(run: PowerSGDRun, title: str, *, short: bool = False, weight: float = 1.0) -> kit.Case:
    placed = {rank: run.side(place) for place, rank in enumerate(run.members)}
    sides = [placed.get(rank) or kit.absent() for rank in range(run.n)]
    groups = [list(run.members)] if len(run.members) < run.n else []
    alone = len(run.members) == 1
    if short:
        judge = kit.both(first_step(run), later_steps(run), vectors(run), alike(run))
        lines = [kit.Line(title, judge, weight, trivial=alone, short=True)]
    else:
        lines = [
            kit.Line(f"the mean as P Q^T: {title}", first_step(run), 2),
            kit.Line("later steps: last Q, error added", later_steps(run), 3),
            kit.Line("vectors go uncompressed", vectors(run), 0.5),
            kit.Line("the same bits on every rank", alike(run), 0.5, trivial=True),
            traffic(run),
        ]
    return kit.Case(title, sides, lines, recipe=RECIPE, groups=groups)


@kit.exercise(
    points=4, objects=("PowerSGD",), references=REFERENCE, extra=True,
    point="sending thin factors in place of matrices",
)  # fmt: skip
def powersgd(draw: kit.Draw) -> Iterator[kit.Case]:
    run = draw_run(draw, (0, 1), 2, 1, low_rank=True)
    yield powersgd_case(run, "2 ranks, a mean of rank 2", short=True, weight=2)
    run = draw_run(draw, (0, 1, 2), 3, 4)
    yield powersgd_case(run, "3 ranks, 4 steps")
    yield powersgd_case(draw_run(draw, (0, 1), 2, 2, rank=1), "rank=1, 2 ranks", short=True)
    if draw.hidden:
        run = draw_run(draw, (0, 1), 2, 2, rank=3)
        yield powersgd_case(run, "rank=3, 2 ranks", short=True, weight=0.5)
        run = draw_run(draw, (1, 2), 3, 3)
        yield powersgd_case(run, "sub-group {1, 2}", short=True, weight=0.5)
        run = draw_run(draw, (0, 1), 2, 3, dtype=torch.float32)
        yield powersgd_case(run, "float32", short=True, weight=0.5)
        run = draw_run(draw, (0,), 1, 3)
        yield powersgd_case(run, "1 rank", short=True, weight=0.5)
