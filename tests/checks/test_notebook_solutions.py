"""The library passes the checks that the notebooks' solutions pass: two texts of an algorithm, one behaviour.

A student who has solved an exercise may read the library's version of it, which must be a right answer to
the same question. Here the library's functions and classes are judged by the exercises' whole checks, hidden
cases included. The notebooks' own solutions are not judged here a second time: every graded cell judges them
when its notebook is executed, the kept outputs say that they get full points (test_build.py), and nbval finds
that an execution gives these outputs again (test_notebooks.py).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from course_lib import compression, facts, pipeline
from course_lib.checks.judge import judge
from course_lib.checks.judge.find import of_assignment
from course_lib.runtime import wire
from tests.checks.test_mutants import ASSIGNMENTS, drawing_once

ROOT = Path(__file__).resolve().parents[2]
TWINS = sorted(twin for twin in ROOT.glob("solutions/*/*.py") if twin.stem == twin.parent.name)
EXERCISES = {
    f"{assignment}/{name}": exercise
    for assignment in ASSIGNMENTS
    for name, exercise in of_assignment(assignment).items()
    if not exercise.constants
}
# Packages with an assignment's objects, if their names differ from the notebook's.
PACKAGES = {
    "01_why_distribute": ("planning", "facts"),
    "03_data_parallel": ("data_parallel", "compression"),
    "05_fsdp": ("fsdp", "facts"),
    "09_precision_and_memory": ("precision", "recompute"),
    "10_four_dimensions": (
        "mesh.coordinates",
        "mesh",
        "facts.four_dimensions",
        "planning.by_hand",
        "planning.replay_by_hand",
    ),
    "11_experts": ("experts", "facts"),
    "12_in_operation": ("operation",),
    "13_capstone": ("trainer",),
}

FORMULAS = "formulas: course_lib.facts has them under other names"
REPAIRED = "a program that the notebook gives, repaired"
# Exercises that the library does not answer, or answers differently, with the reason.
UNLIKE = {
    "00_first_ranks/message_prediction": FORMULAS,
    "00_first_ranks/collect": REPAIRED,
    "00_first_ranks/global_mean": REPAIRED,
    "00_first_ranks/neighbour_sum": REPAIRED,
    "02_collectives/predictions": FORMULAS,
    "02_collectives/ring_prediction": FORMULAS,
    "03_data_parallel/predictions": FORMULAS,
    "04_zero/offload": "the library's optimizers take `offload` when they are made",
    "04_zero/zero3_unit": "the library's units are made by Zero3Module, and take other arguments",
    "05_fsdp/predictions": FORMULAS,
    "06_tensor_parallel/mend": REPAIRED,
    "06_tensor_parallel/parallel_heads": "a step towards ParallelSelfAttention",
    "06_tensor_parallel/predictions": FORMULAS,
    "06_tensor_parallel/swap": "the library's parallelize_gpt exchanges the other layers, too",
    "07_pipeline/predictions": FORMULAS,
    "08_context_parallel/predictions": FORMULAS,
    "08_context_parallel/ring_forward": "a step towards ring_attention",
}
# Lines of an exercise that the library fails, with the reason.
FAILED = {
    "04_zero/zero1_optimizer": {
        "memory after the step: no more than P + 3P/N": "the row of gradients stays, as notebook 04 says",
        "without the shard's gradient: P + 2P/N": "likewise",
    },
}


def sign_all_reduce(tensor: Tensor, error: Tensor, server_error: Tensor, group=None) -> None:
    """The library's function takes the tensors of all parameters at once."""
    compression.sign_all_reduce([tensor], [error], [server_error], group)


class PipeDreamStage:
    """A stage made of the parts that the library's `run_pipedream` uses."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer):
        self.versioned = pipeline.Versioned(module, optimizer)
        self.passed: dict[int, tuple[Tensor, Tensor]] = {}

    def forward(self, microbatch: int, x: Tensor) -> Tensor:
        self.versioned.microbatch = microbatch
        x = x.detach().requires_grad_(x.is_floating_point())
        y = self.versioned(x)
        self.passed[microbatch] = x, y
        return y.detach()

    def backward(self, microbatch: int, gradient: Tensor | None = None) -> Tensor | None:
        x, y = self.passed.pop(microbatch)
        torch.autograd.backward((y,), (gradient,))
        self.versioned.update(microbatch)
        return x.grad


# Adapters between an exercise and the library, for names and arguments that differ.
ADAPTED = {
    "01_why_distribute/parameters": {"parameters": facts.parameters_by_part},
    "01_why_distribute/step_flops": {"step_flops": facts.transformer_flops},
    "03_data_parallel/one_bit_adam": {"sign_all_reduce": sign_all_reduce},
    "07_pipeline/pipedream_stage": {"PipeDreamStage": PipeDreamStage},
}


def of_the_library(name: str) -> tuple[object, ...]:
    """The objects that packages export under the exercise's names, or adapters of them."""
    assignment = name.partition("/")[0]
    topics = PACKAGES.get(assignment, (assignment.partition("_")[2],))
    packages = [importlib.import_module(f"course_lib.{topic}") for topic in topics]
    found = []
    for wanted in EXERCISES[name].objects:
        holders = [package for package in packages if hasattr(package, wanted)]
        adapted = ADAPTED.get(name, {}).get(wanted)
        assert adapted or holders, (
            f"course_lib.{' and '.join(topics)} exports no {wanted}, which {name} checks: export it, or "
            "give the reason in UNLIKE"
        )
        found.append(adapted or getattr(holders[0], wanted))
    return tuple(found)


def test_the_library_has_an_answer_to_every_exercise_that_is_not_unlike() -> None:
    for name in {*EXERCISES} - {*UNLIKE}:
        of_the_library(name)


@pytest.mark.drawn(0.4)
@pytest.mark.parametrize("name", [name for name in EXERCISES if name not in UNLIKE])
def test_the_library_passes_the_exercises_whole_check(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable = drawing_once(replace(EXERCISES[name], references=()))
    monkeypatch.setattr(judge, "find", lambda _: importable)
    report = judge.judge(name, wire.dumps(of_the_library(name)), seed, "hidden")
    failed = {line["title"]: line["sentences"] for line in report["lines"] if not line["passed"]}
    assert failed.keys() == FAILED.get(name, {}).keys(), failed
    assert (report["score"] == 1) == (not failed)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.stem)
def test_the_notebooks_own_are_judged_by_all_cases_when_they_are_executed(twin: Path) -> None:
    source = twin.read_text(encoding="utf-8")
    for name, exercise in of_assignment(twin.stem).items():
        objects = r",\s*".join(exercise.objects)
        call = rf'check\(\s*"{twin.stem}/{name}",\s*{objects},\s*cases="hidden",?\s*\)'
        assert re.search(call, source), f"no cell judges {name} by its hidden cases"


def test_exceptions_are_of_exercises_that_there_are() -> None:
    assert {*UNLIKE, *ADAPTED, *FAILED} <= {*EXERCISES}
    assert not {*UNLIKE} & {*ADAPTED}
    for name, adapted in ADAPTED.items():
        assert {*adapted} <= {*EXERCISES[name].objects}
