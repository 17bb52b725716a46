"""Axis types: wrong programs are named at their line, and right ones are silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import course_lib.tensor_parallel.linear
from course_lib import launch
from course_lib.axis_types import AxisTypes, NotTyped, P, R, S, V, axis_types
from course_lib.checks.notebooks.tensor_parallel.kinds import ASKED
from course_lib.fsdp import PrefetchedModule
from course_lib.mesh import Mesh
from course_lib.models import GPT, GPTConfig
from course_lib.tensor_parallel import (
    all_gather_split,
    all_reduce_identity,
    identity_all_reduce,
    parallelize_gpt,
    vocab_parallel_cross_entropy,
)
from course_lib.tensor_parallel.cut import Parallel
from course_lib.zero import Zero2Optimizer


def test_a_missing_sum_is_named_at_its_line() -> None:
    x, up, down = torch.randn(5, 8), torch.randn(6, 8), torch.randn(8, 6)

    def block(x: Tensor, add_up: Callable[[Tensor], Tensor]) -> Tensor:
        h = F.gelu(F.linear(x, up))
        return x + add_up(F.linear(h, down))

    def found(add_up: Callable[[Tensor], Tensor]) -> AxisTypes:
        with axis_types(tp=2) as types:
            types.set(up, tp=S(0))
            types.set(down, tp=S(1))
            y = block(x, add_up)
            types.expect(y, tp=R)
        return types

    assert found(all_reduce_identity).finding is None
    finding = found(lambda term: term).finding
    assert finding is not None
    assert finding.source == "return x + add_up(F.linear(h, down))"
    assert "adds a copy, shape (5, 8), to each term of a sum" in finding.sentence


# ---- a block by hand, over dp and tp


class Edges:
    """The functions at the edges of the region."""

    def __init__(self, tp: dist.ProcessGroup):
        self.tp = tp

    def into(self, x: Tensor) -> Tensor:
        return identity_all_reduce(x, self.tp)

    def out(self, x: Tensor) -> Tensor:
        return all_reduce_identity(x, self.tp)

    def twice_in_backward(self, x: Tensor) -> Tensor:
        return Twice.apply(x, self.tp)


class Twice(torch.autograd.Function):
    """PyTorch's own all-reduce: it sums gradients, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, total = group, x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        total = grads[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


Block = Callable[..., Tensor]


def right(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.gelu(F.linear(f.into(norm(x)), w1, b1))
    return x + (f.out(F.linear(h, w2)) + b2)


def no_sum_forward(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.gelu(F.linear(f.into(norm(x)), w1, b1))
    return x + (F.linear(h, w2) + b2)


def no_sum_backward(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.gelu(F.linear(norm(x), w1, b1))
    return x + (f.out(F.linear(h, w2)) + b2)


def summed_twice(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.gelu(F.linear(f.into(norm(x)), w1, b1))
    return x + (f.out(f.out(F.linear(h, w2))) + b2)


def summed_twice_in_backward(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.gelu(F.linear(f.into(norm(x)), w1, b1))
    return x + (f.twice_in_backward(F.linear(h, w2)) + b2)


def bias_on_every_rank(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.gelu(F.linear(f.into(norm(x)), w1, b1))
    return x + f.out(F.linear(h, w2, b2))


def gelu_of_terms(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.linear(f.into(norm(x)), w1, b1)
    return x + F.gelu(F.linear(h, w2)) + b2


def relu_of_terms(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.linear(f.into(norm(x)), w1, b1)
    return x + F.relu(F.linear(h, w2)) + b2


def norm_of_a_part(x, w1, b1, w2, b2, norm, f: Edges):
    h = F.layer_norm(F.linear(f.into(norm(x)), w1, b1), (w1.shape[0],))
    return x + (f.out(F.linear(F.gelu(h), w2)) + b2)


def followed(block: Block, forgotten: str = "") -> AxisTypes:
    """The block forward and backward on two replicas of two ranks."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(8)
    w1, b1, w2, b2 = (nn.Parameter(torch.randn(s)) for s in ((6, 8), (6,), (8, 6), (8,)))
    x = torch.randn(3, 5, 8, requires_grad=True)
    kinds = {"w1": (w1, S(0)), "b1": (b1, S(0)), "w2": (w2, S(1)), "b2": (b2, R)}
    kinds |= {f"norm.{name}": (param, R) for name, param in norm.named_parameters()}
    with axis_types(dp=2, tp=2) as types:
        for param, kind in kinds.values():
            types.set(param, tp=kind)
        types.set(x, dp=S(0))
        y = block(x * 1, w1, b1, w2, b2, norm, Edges(types.group("tp")))
        types.expect(y, "the output", dp=S(0), tp=R)
        (y * y).sum().backward()
        for name, (param, _) in kinds.items():
            if name != forgotten:
                dist.all_reduce(param.grad, group=types.group("dp"))
        for name, (param, kind) in kinds.items():
            assert param.grad is not None
            types.expect(param.grad, f"{name}.grad", dp=R, tp=kind)
        assert x.grad is not None
        types.expect(x.grad, "x.grad", dp=S(0), tp=R)
    return types


def gradient(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad


def test_the_twelve_kinds_of_notebook_06_are_found() -> None:
    x, w1, w2, b2 = (torch.randn(s, requires_grad=True) for s in ((6, 8), (4, 8), (8, 4), (8,)))
    with axis_types(dp=2, tp=2) as types:
        types.set(x, dp=S(0))
        types.set(w1, tp=S(0))
        types.set(w2, tp=S(1))
        u = identity_all_reduce(x * 1, types.group("tp"))
        h = F.gelu(F.linear(u, w1))
        z = F.linear(h, w2)
        s = all_reduce_identity(z, types.group("tp"))
        for tensor in (u, h, z):
            tensor.retain_grad()
        (s + b2).square().sum().backward()
        forward = [types.of(tensor)["tp"] for tensor in (w1, h, w2, z, s, b2)]
        backward = [types.of(gradient(tensor))["tp"] for tensor in (z, h, w2, u, b2)]
        on_dp = types.of(gradient(w1))["dp"]
    answers = [asked.right for asked in ASKED]
    assert [str(kind) for kind in (*forward, *backward, on_dp)] == answers


def test_the_right_block_is_silent_and_quick() -> None:
    followed(right)
    began = time.process_time()
    types = followed(right)
    assert types.finding is None, types
    assert time.process_time() - began < 2
    assert str(types).startswith("No mistake found in 1")


OF_TERM = "adds a copy, shape (8,), to each term of a sum. The sum over tp will have it once"
WRONG = [
    (no_sum_forward, "return x + (F.linear(h, w2) + b2)", OF_TERM),
    (no_sum_backward, "h = F.gelu(F.linear(norm(x), w1, b1))", "sum the terms over tp"),
    (summed_twice, "return x + (f.out(f.out(F.linear(h, w2))) + b2)", "all_reduce over tp sums copies"),
    (summed_twice_in_backward, "dist.all_reduce(total, group=ctx.group)", "all_reduce over tp sums copies"),
    (bias_on_every_rank, "return x + f.out(F.linear(h, w2, b2))", OF_TERM),
    (gelu_of_terms, "return x + F.gelu(F.linear(h, w2)) + b2", "gelu is not linear"),
    (relu_of_terms, "return x + F.relu(F.linear(h, w2)) + b2", "relu is not linear"),
    (norm_of_a_part, "h = F.layer_norm(", "native_layer_norm needs all of dimension 2"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "source", "sentence"), WRONG)
def test_a_wrong_block_is_named_at_its_line(block: Block, source: str, sentence: str) -> None:
    finding = followed(block).finding
    assert finding is not None
    assert source in str(finding)
    assert finding.line.startswith("test_axis_types.py, line ")
    assert finding.backward == (block is no_sum_backward)
    assert sentence in finding.sentence


@pytest.mark.parametrize("name", ["w1", "b2", "norm.weight"])
def test_a_parameter_without_the_sum_over_dp_is_named(name: str) -> None:
    finding = followed(right, forgotten=name).finding
    assert finding is not None
    assert finding.sentence == (
        f"{name}.grad should be a copy on dp, and is a term of a sum. A sum over dp is missing."
    )


# ---- the library's GPT


def of_gpt(
    sizes: dict[str, int], sequence: Any = None, trusted: bool = True, **options: Any
) -> AxisTypes:
    """A step of the library's GPT, from tokens to gradients."""
    torch.manual_seed(0)
    options = {"heads": 4, "width": 32, "layers": 1} | options
    with axis_types(**sizes) as types:
        mesh = Mesh(sizes, device="cpu")
        rows = {"dp": S(0)} if "dp" in sizes else {}
        model = parallelize_gpt(GPT(GPTConfig(32, 8, **options)), mesh.group("tp"), sequence)
        kinds = kinds_of(model)
        for param in model.parameters():
            types.set(param, tp=kinds.get(param, R))
        tokens = types.set(torch.randint(32, (2, 8)), **rows)
        loss_of = vocab_parallel_cross_entropy
        if trusted:
            summed = {"dp": P} if rows else {}
            loss_of = types.trusted(loss_of, logits={**rows, "tp": S(-1)}, target=rows, out=summed)
            between = R if sequence is None else S(1)
            types.trusted(model.token_embedding, tokens=rows, out={**rows, "tp": between})
        logits = model(tokens)
        types.expect(logits, "the logits", **rows, tp=S(2))
        loss_of(logits, tokens, mesh.group("tp"), vocab_size=32, reduction="sum").backward()
        for name, param in model.named_parameters():
            assert param.grad is not None
            if rows:
                dist.all_reduce(param.grad, group=mesh.group("dp"))
            types.expect(
                param.grad, f"{name}.grad", tp=kinds.get(param, R), **{axis: R for axis in rows}
            )
    return types


def kinds_of(model: nn.Module) -> dict[nn.Parameter, Any]:
    layers = [module for module in model.modules() if isinstance(module, Parallel)]
    return {
        getattr(layer, name): S(cut.dim) for layer in layers for name, cut in layer.cuts.items()
    }


LLAMA = {"mlp": "swiglu", "norm": "rms", "positions": "rotary", "bias": False}


@pytest.mark.parametrize(
    ("sizes", "sequence", "options"),
    [
        ({"dp": 2, "tp": 2}, None, {"layers": 2}),
        ({"dp": 2, "tp": 2}, "keep", {}),
        ({"tp": 4}, "keep", {"heads": 8, "layers": 2}),
        ({"tp": 2, "dp": 2}, "regather", {"tied": False, "heads": 8, "kv_heads": 4}),
        ({"tp": 2}, None, LLAMA),
        ({"tp": 2}, "regather", LLAMA),
    ],
)
def test_the_librarys_gpt_is_silent(sizes: dict[str, int], sequence: Any, options: Any) -> None:
    types = of_gpt(sizes, sequence, **options)
    assert types.finding is None, types


def test_a_patched_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(self: Any, x: Tensor) -> Tensor:
        return all_reduce_identity(F.linear(x, self.weight, self.bias), self.group)

    linear = course_lib.tensor_parallel.linear
    wrong: list[tuple[Any, str, Any, str]] = [
        (
            linear.RowParallelLinear,
            "forward",
            early,
            "addmm adds a copy, shape (32,), to each term",
        ),
        (linear, "identity_all_reduce", lambda x, group: x, "sum the terms over tp first"),
        (
            linear,
            "all_reduce_identity",
            lambda x, group: x,
            "adds a copy, shape (32,), to each term",
        ),
        (linear, "all_reduce_identity", Twice.apply, "all_reduce over tp sums copies"),
    ]
    for where, name, replacement, sentence in wrong:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, replacement)
            finding = of_gpt({"tp": 2}).finding
        assert finding is not None
        assert sentence in finding.sentence
    with (
        monkeypatch.context() as patch
    ):  # a norm's weights, each rank on its own part of the sequence
        patch.setattr(
            "course_lib.tensor_parallel.replicated.sum_gradients", lambda _, *params: params
        )
        finding = of_gpt({"tp": 2}, "keep").finding
    assert finding is not None
    assert "should be a copy on tp, and is a term of a sum" in finding.sentence


# ---- programs that are refused


def test_the_vocabularys_loss_needs_a_signature() -> None:
    with pytest.raises(NotTyped, match=r"embedding looks up whole numbers.*types\.trusted"):
        of_gpt({"tp": 2}, trusted=False)


def test_pipelines_and_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="axis types follow dp and tp, not pp"):
        axis_types(pp=2, tp=2)
    with axis_types(dp=2) as types, pytest.raises(NotTyped, match="do not follow send"):
        dist.send(torch.ones(2), dst=1, group=types.group("dp"))
    layer = nn.Linear(4, 4)
    with (
        axis_types(dp=2),
        pytest.raises(NotTyped, match="do not follow ZeRO or FSDP: reduce_scatter over dp"),
    ):
        optimizer = Zero2Optimizer(layer.parameters(), torch.optim.SGD, lr=0.1)
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    with (
        axis_types(dp=2),
        pytest.raises(NotTyped, match="do not follow ZeRO or FSDP: all_gather over dp"),
    ):
        model = PrefetchedModule(GPT(GPTConfig(32, 8, layers=1, heads=2, width=8)))
        model(torch.ones(2, 8, dtype=torch.long))


def test_dropout_and_single_elements_are_refused() -> None:
    with axis_types(tp=2), pytest.raises(NotTyped, match="Set dropout to 0"):
        F.dropout(torch.ones(2), 0.5)
    with axis_types(tp=2) as types, pytest.raises(NotTyped, match="Give each rank at least two"):
        heads = types.set(torch.ones(2, 8), tp=S(1)).view(2, 1, 8)
        types.of(heads)


def test_a_plan_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ValueError, match="give the axes"):
        axis_types()
    with pytest.raises(ValueError, match="tp=1: an axis has at least two ranks"):
        axis_types(tp=1)
    with axis_types(tp=2) as types:
        with pytest.raises(ValueError, match="not 'dp'"):
            types.set(torch.ones(2), dp=R)
        with pytest.raises(TypeError, match="a type is R, P, V or S"):
            types.set(torch.ones(2), tp="R")  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=r"S\(2\) needs that dimension"):
            types.set(torch.ones(2), tp=S(2))


# ---- types follow the memory


def test_a_view_and_what_is_behind_it_have_one_type() -> None:
    with axis_types(tp=2) as types:
        x = types.set(torch.ones(2, 3, 8), tp=S(-1))
        assert types.of(x) == {"tp": S(2)}
        assert types.of(x.view(2, 3, 4, 2).transpose(1, 2))["tp"] == S(1)
        assert types.of(x.flatten(0, 1).t().contiguous())["tp"] == S(0)
        buffer = torch.zeros(4, 2)
        for row in buffer.unbind():
            row.copy_(types.set(torch.ones(2), tp=P))
        assert types.of(buffer)["tp"] == P
        buffer[0].zero_()
        assert types.of(buffer)["tp"] == V


def test_slices_of_three_joined_matrices_are_parts() -> None:
    with axis_types(tp=2) as types:
        x = types.set(torch.ones(2, 12, requires_grad=True), tp=S(1))
        query, key, value = (x * 1).chunk(3, -1)
        assert types.of(query * key)["tp"] == S(1)
        (query * key * value).sum().backward()
        assert x.grad is not None
        assert types.of(x.grad)["tp"] == S(1)
        assert types.finding is None


def test_equal_numbers_are_a_part_where_a_part_is_used() -> None:
    """The gradient of a sum is an expanded one: a copy in memory, and a part beside other parts."""
    with axis_types(dp=2) as types:
        x = types.set(torch.ones(6, 4), dp=S(0))
        weight = torch.ones(4, 8, requires_grad=True)
        (x @ weight).sum().backward()
        assert weight.grad is not None
        assert types.of(weight.grad)["dp"] == P
        assert types.finding is None, types


def test_a_gather_joins_parts_and_its_backward_keeps_one() -> None:
    with axis_types(tp=2) as types:
        x = types.set(torch.ones(2, 4, requires_grad=True), tp=S(1))
        assert types.of(all_gather_split(x))["tp"] == R


@pytest.mark.parametrize(
    ("kind", "operation", "sentence"),
    [
        (S(0), dist.all_reduce, "adds up parts along dimension 0"),
        (P, lambda x: dist.all_reduce(x, dist.ReduceOp.MAX), "takes the max of terms of a sum"),
        (P, lambda x: dist.all_reduce(x, dist.ReduceOp.AVG), "takes the mean of terms of a sum"),
        (
            P,
            lambda x: dist.all_gather([x.clone(), x.clone()], x),
            "lays terms of a sum one after the other",
        ),
        (
            R,
            lambda x: dist.all_gather([x.clone(), x.clone()], x),
            "all_gather over tp gathers copies",
        ),
        (
            S(0),
            lambda x: x.mean(),
            "is not a term of a sum. Divide a sum by the count of all ranks",
        ),
        (P, lambda x: x * x, "mul combines a term of a sum with another one"),
        (P, lambda x: x.relu(), "relu is not linear, and is applied to a term of a sum"),
    ],
)
def test_a_wrong_operation_has_its_sentence(kind: Any, operation: Any, sentence: str) -> None:
    with axis_types(tp=2) as types:
        operation(types.set(torch.ones(4, 2), tp=kind))
    assert types.finding is not None
    assert sentence in types.finding.sentence


def test_only_the_first_mistake_is_kept() -> None:
    with axis_types(tp=2) as types:
        x = types.set(torch.ones(4), tp=P)
        first = F.gelu(x)
        dist.all_reduce(first)
        types.expect(first, tp=S(0))
    assert "gelu is not linear" in str(types)
    assert "first = F.gelu(x)" in str(types)


# ---- the process afterwards


def test_the_groups_of_before_come_back() -> None:
    make = dist.new_group
    with axis_types(tp=2) as types:
        assert (dist.get_world_size(), dist.get_rank()) == (2, 0)
        assert dist.get_process_group_ranks(types.group("tp")) == [0, 1]
    assert dist.new_group is make
    assert not dist.is_initialized()


def test_a_rank_of_a_run_can_ask_too(cpu_backend: str) -> None:
    def job() -> tuple[str, float]:
        finding = followed(no_sum_forward).finding
        total = torch.ones(())
        dist.all_reduce(total)
        return str(finding), total.item()

    for sentence, total in launch(job, world_size=2, backend=cpu_backend):
        assert "adds a copy, shape (8,)" in sentence
        assert total == 2
