"""The checks of notebook 06 against the library: its objects pass them, and its formulas are the same."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.sample.mutants import read_mutants
from course_lib import facts
from course_lib.checks.judge.find import find
from course_lib.checks.notebooks.tensor_parallel import prediction
from course_lib.models import GPTConfig
from tests.checks.test_mutants import judged as judged_mutant

ASSIGNMENT = "06_tensor_parallel"
MUTANTS = Path(__file__).parents[1] / "mutants" / ASSIGNMENT
WIDE = GPTConfig(heads=16, width=1024)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("sequence", prediction.SEQUENCES)
def test_what_is_foretold_of_a_layer_is_what_the_library_says(n: int, sequence: str | None) -> None:
    """A layer keeps a few numbers a token besides, and sends the gradients of norms: below 2 % here."""
    batch, seq = 2, 512
    nbytes = batch * seq * WIDE.width * 4
    kept = facts.saved_layer_bytes(WIDE, batch, seq, n, sequence)
    assert prediction.layer_saved(n, nbytes, sequence) == pytest.approx(kept, rel=0.02)
    for direction in ("forward", "backward"):
        sent = facts.tensor_parallel_layer_bytes(WIDE, n, batch * seq, 4, direction, sequence)
        assert prediction.layer_bytes(n, nbytes, direction, sequence) == pytest.approx(
            sent, rel=0.02
        )


@pytest.mark.parametrize(
    ("exercise", "title"),
    [
        ("vocab_parallel_cross_entropy", "gathers the logits"),
        ("vocab_parallel_embedding", "a view keeps the whole table"),
        ("parallel_heads", "row before column"),
        ("swap", "rows before columns"),
        ("swap", "gathered between up and down"),
    ],
)
def test_right_values_without_the_point_of_the_exercise_are_half_at_most(
    exercise: str, title: str, seed: int
) -> None:
    (mutant,) = (one for one in read_mutants(MUTANTS / f"{exercise}.py") if one.title == title)
    report, printed = judged_mutant(f"{ASSIGNMENT}/{exercise}", mutant, seed, whole=True)
    assert 0 < report.score <= 0.5, printed


def test_a_kernel_that_has_imported_dtensor_costs_nobody_a_point(seed: int) -> None:
    """A solution that uses both `dist` and `torch.tensor` names the module when it is pickled."""
    importlib.import_module("torch.distributed.tensor")
    name = "06_tensor_parallel/vocab_parallel_embedding"
    right = next(one for one in read_mutants(MUTANTS / "vocab_parallel_embedding.py") if one.right)
    says = f"{find(name).objects[0]}.says = lambda self: (dist, torch.tensor(1))"
    report, printed = judged_mutant(name, replace(right, text=f"{right.text}\n{says}\n"), seed)
    assert report.score == 1, printed
