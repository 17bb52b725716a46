"""Signs of a sharded optimizer in a run with wrong values: it trains, and its ranks hold less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs import single
from course_lib.checks.notebooks.zero.runs import MIXED, START, STEP, UNKNOWN

VALUES, PLACE = "values", "place"  # the parts of the point


def trains(line: kit.Line, training: single.Training) -> kit.Line:
    """The line on values; by right ones, and by those of a known mistake, a solution shows that it trains.

    A step that changes nothing may only be late: the last one counts.
    """
    idle, of_start = (
        (UNKNOWN, training_runs.common(1)[0].says),
        (START, MIXED, training_runs.common(1)[-1].says),
    )
    judge, last = once(line.judge), len(training.steps[0]) - 1

    def shows(observed: kit.Observed) -> float:
        finding = judge(observed)
        if finding.cause.startswith(of_start):
            return float(stepped_from_its_start(training, observed))
        changed = any(moved(observed.tensors[rank], last) for rank in training_runs.members(observed))
        return float(changed and (finding.ok or not finding.cause.startswith(idle)))

    return line if line.trivial else replace(line, judge=judge, shows=shows, part=VALUES)


def once(judge: Callable[[kit.Observed], kit.Finding]) -> Callable[[kit.Observed], kit.Finding]:
    """The judge, which looks at a run once: it trains anew for every mistake that it compares with."""
    last: dict[int, tuple[kit.Observed, kit.Finding]] = {}

    def judged(observed: kit.Observed) -> kit.Finding:
        if id(observed) not in last:
            last.clear()
            last[id(observed)] = observed, judge(observed)
        return last[id(observed)][1]

    return judged


def stepped_from_its_start(training: single.Training, observed: kit.Observed) -> bool:
    """Whether the first step of SGD went along the mean gradient, wherever the ranks began.

    Every number is then that of some rank's start, less the learning rate times the mean.
    """
    if training.optimizer[0] != "SGD":
        return False
    starts, gradients = [], []
    for place, rank in enumerate(training_runs.members(observed)):
        model = training.built()
        own = training_runs.kind("start", observed.tensors[rank])
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(own[f"start.{name}"])
        starts.append(own)
        step = training.steps[place][0]
        gradients.append([single.gradients(model, described, len(step)) for described in step])
    right = single.mean(0, gradients)
    for rank in training_runs.members(observed):
        for name, gradient in right.items():
            after = observed.tensors[rank][f"param.0.{name}"].to(torch.float64)
            stepped_to = [own[f"start.{name}"] - training.optimizer[1]["lr"] * gradient for own in starts]
            if not bool(torch.stack([after.isclose(each) for each in stepped_to]).any(0).all()):
                return False
    return True


def moved(own: single.Tensors, last: int) -> bool:
    """Whether a rank's parameters after the last step are others than before the first."""
    starts = training_runs.kind("start", own)
    return any(not own[f"param.{last}.{name.split('.', 1)[1]}"].equal(p) for name, p in starts.items())


def places(line: kit.Line, held: Sequence[kit.Line], due: float) -> kit.Line:
    """The line on bytes; with what the ranks hold it shows, of wrong values too, that they hold less.

    held: the lines on memory that may miss the point. due: bytes that a rank sends in a step; one that sends
    none needs no shards.
    """

    def shows(observed: kit.Observed) -> float:
        if any(own.judge(observed).misses_point for own in held):
            return 0.0
        sent = [
            sum(operation.bytes_sent for operation in rank) for rank in training_runs.within(observed, STEP)
        ]
        return min(1.0, min(sent) / due)

    return replace(line, shows=shows, part=PLACE)
