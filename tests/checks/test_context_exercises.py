"""The checks of notebook 08 against the library, and the closed forms in them against autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autograder.sample.mutants import read_mutants
from course_lib import facts
from course_lib.checks.judge import judge
from course_lib.checks.judge.case import Case, Draw
from course_lib.checks.judge.find import find
from course_lib.checks.notebooks.context_parallel import layout, merge, prediction, tiles, whole
from course_lib.checks.rank import operators
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.operators import without_operators
from course_lib.checks.rank.peak import Peak
from course_lib.checks.rank.refusing import refused
from course_lib.context_parallel.balanced import zigzag
from course_lib.context_parallel.softmax import online_softmax_merge
from course_lib.context_parallel.tiles import tiled_attention
from course_lib.runtime import wire
from tests.checks.test_mutants import judged as judged_mutant

ASSIGNMENT = "08_context_parallel"
MUTANTS = Path(__file__).parents[1] / "mutants" / ASSIGNMENT
PARTS = {"plain": merge.masked, "large": merge.large}


@pytest.mark.parametrize(
    "title", ["the whole matrix", "checkpointed, and backward makes all of it"]
)
def test_right_values_with_all_scores_at_once_are_half_at_most(title: str, seed: int) -> None:
    (mutant,) = (one for one in read_mutants(MUTANTS / "tiled_attention.py") if one.title == title)
    report, printed = judged_mutant(f"{ASSIGNMENT}/tiled_attention", mutant, seed, whole=True)
    assert 0 < report.score <= 0.5, printed


def test_pytorchs_kernel_earns_nothing_by_whatever_name(seed: int) -> None:
    """Its operator is refused in every call, not only where bytes are counted."""
    title = "PyTorch's kernel, by the operator within it"
    (mutant,) = (one for one in read_mutants(MUTANTS / "tiled_attention.py") if one.title == title)
    report, printed = judged_mutant(f"{ASSIGNMENT}/tiled_attention", mutant, seed, whole=True)
    assert report.score == 0, printed


def test_slow_tiles_are_not_taken_for_a_loop_without_an_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = find(f"{ASSIGNMENT}/tiled_attention")

    def soon(draw: Draw) -> Iterator[Case]:
        for case in one.cases(draw):
            yield replace(case, timeout=1.0) if case.title == tiles.LONG else case

    def slow(q, k, v, block=256, causal=False):
        while q.shape[1] > 512:
            q * 2
        return tiled_attention(q, k, v, block=block, causal=causal)

    monkeypatch.setattr(judge, "find", lambda _: replace(one, cases=soon, references=()))
    report = judge.judge(one.name, wire.dumps((slow,)), seed)
    assert tiles.SLOW in str(report["lines"])
    assert "Does a loop there ever end" not in str(report["lines"])


def test_hidden_cases_are_the_visible_ones_and_more(seed: int) -> None:
    for name in ("online_softmax_merge", "tiled_attention", "zigzag", "predictions", "questions"):
        one = find(f"{ASSIGNMENT}/{name}")
        visible = [line.title for case in one.cases(Draw(seed)) for line in case.lines]
        hidden = [line.title for case in one.cases(Draw(seed, hidden=True)) for line in case.lines]
        assert set(visible) <= set(hidden), name


def test_an_error_is_placed_in_the_students_code_or_nowhere() -> None:
    """PyTorch's line does not help a student: autograd raises far from their code."""

    def own() -> None:
        torch.zeros(3, 1).unflatten(1, (2, -1))

    def placed(call: Callable[[], object]) -> str:
        with pytest.raises((RuntimeError, NotImplementedError)) as raised:
            call()
        return describe(raised.value.with_traceback(raised.tb.tb_next))[2]

    assert placed(own).endswith(": torch.zeros(3, 1).unflatten(1, (2, -1))")
    x = torch.ones(1, requires_grad=True)
    without_backward = type("F", (torch.autograd.Function,), {"forward": lambda ctx, x: x + 1})
    assert placed(without_backward.apply(x).backward) == ""


def test_a_missing_return_is_asked_for(seed: int) -> None:
    def attend(q, k, v, block=256, causal=False):
        q + 1

    said = str(judge.judge(f"{ASSIGNMENT}/tiled_attention", wire.dumps((attend,)), seed)["lines"])
    assert "the output is None" in said and "Is there a `return` at its end?" in said


def test_gradients_are_not_explained_where_forward_is_wrong(seed: int) -> None:
    """A hint about gradients does not help a student whose output is wrong."""

    def swapped(out, lse, block_out, block_lse):
        share = (lse - block_lse).sigmoid()[..., None]
        return (1 - share) * out + share * block_out, torch.logaddexp(lse, block_lse)

    payload = wire.dumps((swapped,))
    report = judge.judge(f"{ASSIGNMENT}/online_softmax_merge", payload, seed)
    said = str(report["lines"])
    assert "weights of old and new are swapped" in said
    assert merge.GRAPH not in said and merge.NAN_BEHIND not in said and merge.TOO_LARGE not in said


# --- expected values -----------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradients_of_full_attention_are_autograds(causal: bool, seed: int) -> None:
    one = whole.Whole.draw(Draw(seed), 2, 7, 4, 2, 3, causal)
    q, k, v = (x.clone().requires_grad_() for x in one.inputs.values())
    keys, values = (x.repeat_interleave(2, 2).transpose(1, 2) for x in (k, v))
    y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, is_causal=causal)
    y = y.transpose(1, 2)
    y.backward(one.grad)
    torch.testing.assert_close(one.y, y.detach())
    for name, x in (("grad.q", q), ("grad.k", k), ("grad.v", v)):
        torch.testing.assert_close(one.gradients()[name], x.grad)


@pytest.mark.parametrize("which", PARTS)
def test_the_gradients_of_a_merge_are_autograds(which: str, seed: int) -> None:
    parts = PARTS[which](Draw(seed))
    call = parts.call("one")
    given = {name: x.clone().requires_grad_() for name, x in call.inputs.items()}
    out, lse = online_softmax_merge(*given.values())
    torch.autograd.backward([out, lse], list(parts.grads))
    torch.testing.assert_close(out.detach(), call.wanted["out"])
    torch.testing.assert_close(lse.detach(), call.wanted["lse"])
    for name, x in given.items():
        part = call.part(f"grad.{name}")
        assert x.grad is not None
        assert part.near(x.grad, part.beside({}), {}).all()


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_what_is_foretold_is_what_the_library_says(n: int) -> None:
    """Of keys and values in 16 bits: 131,072 tokens, 8 heads of keys of 128 features."""
    kv_bytes = 131_072 / n * 2 * 8 * 128 * 2
    for direction in ("forward", "backward"):
        sent = facts.ring_attention_bytes(n, 131_072, 8 * 128, 2, direction)
        assert prediction.ring(n, kv_bytes, direction) == pytest.approx(sent)
    assert sum(prediction.idle(r, n) for r in range(n)) / n == pytest.approx((n - 1) / (2 * n - 1))


@pytest.mark.parametrize(("seq", "n"), [(16, 4), (29, 4), (3, 2), (7, 1), (101, 7)])
def test_the_layout_that_is_expected_is_the_librarys(seq: int, n: int) -> None:
    dealt = [list(spans) for spans in zigzag(seq, n)]
    assert layout.held(layout.pairs(seq, n)) == layout.held(dealt)


@pytest.mark.parametrize(
    "forged",
    [
        None,
        [3],
        [[{"range": [0, 4]}]],
        [[{"range": [0, 4, 0]}]],
        [[{"range": [0, "4", 1]}]],
        [[{"range": [0, 1 << 4000, 1]}]],
        [[{"range": [0, 100_000, 1]}] * 2],
        [[{"other": "range"}]],
    ],
)
def test_what_is_no_layout_is_refused(forged: Any) -> None:
    """A rank's code may answer in the recipe's name: the judge goes on after any answer."""
    assert layout.read(forged) is None


# --- measurements and refusals -------------------------------------------------------------------


def test_the_peak_is_what_was_alive_at_once() -> None:
    x = torch.ones(1000, dtype=torch.float64, requires_grad=True)
    with Peak([x]) as peak:
        y = (x * 2).exp()  # two at a time; autograd keeps the result alone
        for _ in range(10):
            passing = x.detach() + 1
            del passing
    assert peak.highest == 16_000
    gradient = torch.ones_like(y)
    peak.start_again()
    with peak:
        y.backward(gradient)
    assert 16_000 <= peak.highest <= 32_000


OPERATORS = {
    "PyTorch's function": F.scaled_dot_product_attention,
    "its kernel": torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    "its plain way": torch.ops.aten._scaled_dot_product_attention_math.default,
}


def test_an_operator_is_refused_once_by_however_many_parts_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch 2.6 does not let a kernel be replaced a second time."""
    parts = [("scaled_dot_product", "the first"), ("flash_attention", "the second")]
    both = "_scaled_dot_product_flash_attention"
    assert operators.named(parts)[both] == "the first"
    assert operators.named(parts)["_flash_attention_forward"] == "the second"
    registered: list[tuple[str, str]] = []

    class Library:
        def __init__(self, *_: str) -> None: ...

        def impl(self, name: str, kernel: object, key: str, **_: object) -> None:
            assert (name, key) not in registered
            registered.append((name, key))

        def _destroy(self) -> None: ...

    monkeypatch.setattr(operators, "_Library", Library)
    with without_operators(parts):
        assert (both, "CPU") in registered


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_operator_is_refused_by_whatever_way_one_comes_to_it(
    name: str, requires_grad: bool
) -> None:
    q, attend = torch.ones(1, 1, 4, 8, requires_grad=requires_grad), OPERATORS[name]
    with without_operators([("scaled_dot_product", "write it yourself")]):
        with pytest.raises(RuntimeError, match="yourself"):
            attend(q, q, q)
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="yourself"):
            pool.submit(attend, q, q, q).result()
    result = attend(q, q, q)
    assert (result[0] if isinstance(result, tuple) else result).shape == q.shape


def test_a_refused_function_is_there_again_afterwards() -> None:
    before = F.scaled_dot_product_attention
    names = {"torch.nn.functional:scaled_dot_product_attention": "write it yourself"}
    with refused(names), pytest.raises(RuntimeError, match="write it yourself"):
        F.scaled_dot_product_attention(torch.ones(1), torch.ones(1), torch.ones(1))
    assert F.scaled_dot_product_attention is before
