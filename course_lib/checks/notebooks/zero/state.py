"""A run of a sharded module, and its lines on full_state_dict(), which may fail without the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from course_lib.checks import kit
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training, train
from course_lib.checks.notebooks.zero.runs import UNKNOWN
from course_lib.checks.rank import toys

LEFT = (
    "Parameters still have a .grad from an earlier backward. Set it to None when their gradients have "
    "been reduced. A unit whose parameters all have a .grad counts as complete, and would send old "
    "gradients again."
)


def module_case(training: Training, title: str, case_lines: list[kit.Line], **more: Any) -> kit.Case:
    """A run of the student's module."""
    case = training_runs.training_case("sharded_module", title, training, case_lines, timeout=30.0, **more)
    width, samples = training.model["width"], training.steps[0][0][0]["samples"]
    out = kit.Spec(training.dtype, (samples, width))
    outputs = {f"out.{step}": out for step in range(len(training.steps[0]) + 1)}
    sides = [replace(side, outputs=side.outputs | outputs) if side.outputs else side for side in case.sides]
    return replace(case, sides=sides)


def faulty(observed: kit.Observed) -> tuple[str, str] | None:
    """(kind, name) of the fault in the first faulty full_state_dict(); None if all were as agreed."""
    for rank in training_runs.members(observed):
        if fault := observed.values[rank].state:
            return fault
    return None


def with_outputs(line: kit.Line, training: Training, unknown: Sequence[str] = ()) -> kit.Line:
    """The line on values, judged by the module's outputs if full_state_dict() cannot be read.

    A faulty full_state_dict() costs only its own line. If gradients are left in the parameters, the line says
    so, unless it has found a cause. unknown: the line's hints if it has found none.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = by_outputs(observed, training) if faulty(observed) else line.judge(observed)
        left = any(observed.values[rank].left for rank in training_runs.members(observed))
        known = finding.sentences[1:] and finding.sentences[1] not in (*unknown, training_runs.IN_A_GROUP)
        return (
            finding if finding.ok or known or not left else kit.wrong(finding.sentences[0], LEFT, cause=LEFT)
        )

    return replace(line, judge=judge)


def by_outputs(observed: kit.Observed, training: Training) -> kit.Finding:
    """The outputs of every step's first microbatch, and of one more after the last, are one process's."""
    everything, model = train(training), training.built()
    for step in range(len(training.steps[0]) + 1):
        kind = "start" if not step else f"param.{step - 1}"
        values = training_runs.kind(kind, everything)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(values[f"{kind}.{name}"])
        for place, rank in enumerate(training_runs.members(observed)):
            described = training.steps[place][step % len(training.steps[place])][0]
            x, _ = toys.batch(described, torch.float64)
            name, wanted = f"out.{step}", model(x).detach()
            if training_runs.differing({name: observed.tensors[rank][name]}, {name: wanted}, training.dtype):
                return kit.wrong(
                    (
                        f"the output of forward number {step + 1} on rank {rank} is not the output of one "
                        "process."
                    ),
                    "full_state_dict() could not be read, so the module's outputs were compared. Put "
                    "that right first, so that the check can say which parameter is wrong.",
                    cause=f"{UNKNOWN} of the outputs",
                )
    return kit.RIGHT


FAULTS = {
    "missing": (
        "full_state_dict() gives no tensor for {}.",
        "It must return a dict with a tensor for every name in module.named_parameters(), even frozen "
        "and unused parameters.",
    ),
    "freed": (
        "full_state_dict() gave {} without its memory, which had been freed.",
        "Views of a unit are empty once it is freed. Return copies, param.detach().clone(), made while the "
        "unit is gathered.",
    ),
    "shape": (
        "full_state_dict() gave {} in another shape or dtype than the parameter has.",
        "It must give whole parameters, each in its shape, not shards.",
    ),
}


def state_line() -> kit.Line:
    """full_state_dict() can be read: its values are judged with those of the training.

    The notebook gives this method, so the line has a small weight, and counts only beside right values.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        fault = faulty(observed)
        if fault is None:
            return kit.RIGHT
        said, advice = FAULTS.get(str(fault[0]), FAULTS["missing"])
        sentence = kit.Sentence(said.format(f"`{fault[1]}`"), said.format("a parameter"))
        return kit.wrong(sentence, advice, cause=f"state {fault[0]}")

    return kit.Line("full_state_dict(): every parameter, in copies", judge, 0.5, trivial=True)
