"""The recipe that runs layers: the bytes and operations that it counts, refuses and lets pass."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from course_lib.checks.judge.compare import close
from course_lib.checks.rank import layers, own_parts
from course_lib.checks.rank.counting import Saved, alive, more
from course_lib.checks.rank.gpt import build

GPT_OF = {"seed": 3, "vocab_size": 11, "context": 8, "layers": 1, "heads": 2, "width": 8}


def test_nothing_is_refused_before_a_rank_reads_what_a_student_wrote() -> None:
    """The process that forks ranks imports the recipes, also for other exercises and for `launch`."""
    assert layers.before_reading is own_parts.refuse_imports
    assert own_parts._GUARD not in sys.meta_path


def test_a_view_counts_as_all_that_it_keeps_alive() -> None:
    before = alive()
    part = torch.ones(100, 8)[:10]
    assert more(alive(), before) == 100 * 8 * 4
    part = part.clone()
    assert more(alive(), before) == 10 * 8 * 4


def test_what_backward_needs_counts_once_and_without_the_parameters() -> None:
    layer, x = nn.Linear(8, 16), torch.ones(4, 8, requires_grad=True)
    with Saved(layer.parameters()) as saved:
        (layer(x) + layer(x.view(2, 2, 8)).flatten(0, 1)).sum()
    assert saved.nbytes == x.numel() * 4
    with Saved() as saved:
        layer(x)
    assert saved.nbytes == (x.numel() + layer.weight.numel()) * 4


def test_a_gradient_is_handed_on_as_it_is(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 4, generator=generator, requires_grad=True)
    gradient = torch.randn(4, 3, generator=generator).T
    came: list[torch.Tensor] = []
    y = 2 * x
    y.register_hook(came.append)
    layers.Hand.apply(y, gradient).backward()  # pyright: ignore[reportFunctionMemberAccess]
    assert came[0].stride() == gradient.stride() and torch.equal(came[0], gradient)
    assert x.grad is not None and torch.equal(x.grad, 2 * gradient)


def test_the_same_description_gives_the_same_model_and_leaves_the_generator_alone() -> None:
    state = torch.get_rng_state()
    one, other = build(GPT_OF), build(GPT_OF)
    assert torch.equal(torch.get_rng_state(), state)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert p.dtype == torch.float64 and torch.equal(p, q) and bool(p.detach().all())


def test_what_was_imported_before_is_refused_when_it_is_used() -> None:
    from torch.distributed.nn import functional as differentiated

    was = vars(differentiated._AllReduce)["forward"]
    with own_parts.own_parts(), pytest.raises(RuntimeError, match="N times too large"):
        differentiated._AllReduce.apply(None, None, torch.ones(2))
    assert vars(differentiated._AllReduce)["forward"] is was


def test_who_imports_decides_whether_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("torch.distributed.nn")]:
        monkeypatch.delitem(sys.modules, name)
    from cloudpickle.cloudpickle import subimport

    student: dict[str, Any] = {"__name__": "__main__"}
    with own_parts.own_parts():
        with pytest.raises(ImportError, match=r"torch\.autograd\.Function"):
            exec("import torch.distributed.nn.functional", student)
        assert subimport("torch.distributed.nn") is sys.modules["torch.distributed.nn"]
    assert own_parts._GUARD not in sys.meta_path


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1 + 1e-6])
def test_no_tolerance_hides_what_is_not_a_number(wrong: float) -> None:
    wanted = torch.ones(3, dtype=torch.float64)
    assert close(wanted * (1 + 1e-12), wanted)
    assert not close(torch.tensor([1, 1, wrong], dtype=torch.float64), wanted)
