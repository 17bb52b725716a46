"""Layers cut over ranks against the unsharded ones in float64: values, gradients, dropout, refusals."""

from __future__ import annotations

import ast
import inspect
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib import device, launch, tensor_parallel
from course_lib.models import GPT, MLP, GPTConfig, SelfAttention, rotate


def test_an_mlp_cut_over_two_ranks_is_that_of_one_process() -> None:
    torch.manual_seed(0)
    mlp, x = MLP(GPTConfig(width=8, heads=2)).double(), torch.randn(3, 8).double()

    def job() -> tuple[Tensor, Tensor]:
        parallel = tensor_parallel.parallelize_mlp(mlp)
        y = parallel(x)
        y.square().sum().backward()
        return y.detach(), parallel.up.weight.grad  # half of the rows

    (y, upper), (same_y, lower) = launch(job, world_size=2, backend="gloo")
    wanted = mlp(x)
    wanted.square().sum().backward()
    found = y, same_y, torch.cat([upper, lower])
    torch.testing.assert_close(found, (wanted.detach(), wanted.detach(), mlp.up.weight.grad))


RequireRanks = Callable[[int], None]
WORLDS = [1, 2, 3, 4, 8]
SEQUENCES = (None, "keep", "regather")
CONFIG = GPTConfig(vocab_size=8, context=8, width=4, layers=1, heads=2)
FOLDER = Path(inspect.getfile(tensor_parallel)).parent


def own(x: Tensor, dim: int) -> Tensor:
    """This rank's part, as PyTorch's `tensor_split` cuts it."""
    return x.tensor_split(dist.get_world_size(), dim)[dist.get_rank()]


def same(found: Tensor | None, wanted: Tensor | None, *case: object) -> None:
    """Equal in float64 up to rounding; the case stands in the message."""
    assert found is not None and wanted is not None, case
    torch.testing.assert_close(
        found, wanted, rtol=1e-10, atol=1e-10, msg=lambda text: f"{case}, rank {dist.get_rank()}: {text}"
    )  # fmt: skip


def same_gradients(layer: nn.Module, reference: nn.Module, *case: object) -> None:
    """Every parameter's gradient is the rank's part of the unsharded one's."""
    cuts = {
        f"{prefix}.{name}".lstrip("."): cut
        for prefix, one in layer.named_modules()
        for name, cut in getattr(one, "cuts", {}).items()
    }
    wanted = dict(reference.named_parameters())
    named = dict(layer.named_parameters())
    assert named.keys() == wanted.keys(), case
    for name, param in named.items():
        gradient = wanted[name].grad
        assert gradient is not None
        same(param.grad, cuts[name].part(gradient) if name in cuts else gradient, *case, name)


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Made on the device: parallel layers send their values when they are made."""
    torch.manual_seed(seed)
    with device():
        return make().double()


def compare(
    seed: int,
    make: Callable[[], nn.Module],
    unsharded: Callable[[], nn.Module],
    shape: tuple[int, ...],
    in_part: int | None = None,
    out_part: int | None = None,
    *case: object,
) -> None:
    """One forward and backward of both, on the same input; every rank has seeds of its own.

    in_part, out_part: the dimension of which the layer takes, or returns, the rank's part.
    """
    reference = seeded(seed, unsharded)
    layer = seeded(seed + 100 * dist.get_rank(), make)
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(shape, dtype=torch.float64, generator=generator).to(device())
    whole.requires_grad_()
    expected = reference(whole)
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=generator).to(device())
    (expected * weights).sum().backward()

    def part(x: Tensor, dim: int | None) -> Tensor:
        return x if dim is None else own(x, dim)

    x = part(whole.detach(), in_part).clone().requires_grad_()
    y = layer(x)
    same(y, part(expected, out_part), *case, "forward")
    (y * part(weights, out_part)).sum().backward()
    assert whole.grad is not None
    same(x.grad, part(whole.grad, in_part), *case, "gradient of x")
    same_gradients(layer, reference, *case)


def linear_cases(seed: int) -> None:
    """Odd sizes, sizes below the number of ranks, all ways in and out; `gather_output` by default."""
    n = dist.get_world_size()
    for (*sizes, bias), flag, sequence in itertools.product(
        [(5, 7, True), (3, 16, False), (17, 2, True)], [True, False], SEQUENCES
    ):
        case = (*sizes, bias, flag, sequence)
        unsharded, shape = partial(nn.Linear, *sizes, bias), (3, 2 * n, sizes[0])
        rows, features = -2 if sequence else None, -1
        make = partial(tensor_parallel.ColumnParallelLinear, *sizes, bias, flag, sequence=sequence)
        compare(seed, make, unsharded, shape, rows, None if flag else features, "column", *case)
        make = partial(tensor_parallel.RowParallelLinear, *sizes, bias, flag, sequence=sequence)
        compare(seed, make, unsharded, shape, features if flag else None, rows, "row", *case)
    compare(
        seed, partial(tensor_parallel.ColumnParallelLinear, 4, 6), partial(nn.Linear, 4, 6), (5, 4)
    )
    compare(
        seed, partial(tensor_parallel.RowParallelLinear, 4, 6), partial(nn.Linear, 4, 6), (5, 4)
    )


def region_cases(seed: int) -> None:
    """MLP and attention as the GPT has them, with its draws; key heads more, equal and fewer than ranks."""
    n = dist.get_world_size()
    heads = {1: 4, 3: 6}.get(n, 8)
    kv_heads = [h for h in (heads, 1, 2, 4) if not heads % h and not (h % n and n % h)]
    for sequence in SEQUENCES:
        rows = -2 if sequence else None
        for kind, hidden, bias in [("gelu", 11, True), ("swiglu", 13, False)]:
            config = GPTConfig(width=6, heads=1, mlp=kind, hidden=hidden, bias=bias)
            make = partial(tensor_parallel.ParallelMLP, 6, hidden, kind, bias, sequence=sequence)
            compare(seed, make, partial(MLP, config), (2, 3 * n, 6), rows, rows, kind, sequence)
        for kv in kv_heads:
            positions = "learned" if kv == 1 else "rotary"
            config = GPTConfig(
                width=4 * heads, heads=heads, kv_heads=kv, positions=positions, bias=kv != 4
            )
            make = partial(
                tensor_parallel.ParallelSelfAttention, 4 * heads, heads, kv, config.bias,
                rotate=None if kv == 1 else rotate, sequence=sequence,
            )  # fmt: skip
            shape, case = (2, 3 * n, 4 * heads), ("attention", kv, sequence)
            compare(seed, make, partial(PositionsGiven, config), shape, rows, rows, *case)


class PositionsGiven(SelfAttention):
    """The GPT's attention, called with the input alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, torch.arange(x.shape[1], device=x.device))


@pytest.mark.parametrize("world_size", WORLDS)
def test_layers_are_the_unsharded_ones(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    require_ranks(world_size)

    def body() -> None:
        linear_cases(seed)
        region_cases(seed + 1)

    launch(body, world_size=world_size, backend=backend, timeout=240)


def test_the_conjugate_functions(seed: int):
    """Forward and backward, each rank with values and gradients of its own; parts that are not equal."""

    def body() -> None:
        rank, n = dist.get_rank(), dist.get_world_size()
        generator = torch.Generator().manual_seed(seed)
        values, grads = torch.randn(2, n, 4, 2 * n, 7, dtype=torch.float64, generator=generator)

        def run(function: Callable, x: Tensor, grad: Tensor, *rest: object) -> tuple:
            x = x.clone().requires_grad_()
            y = function(x, None, *rest)
            y.backward(grad)
            return y.detach(), x.grad

        y, g = run(tensor_parallel.identity_all_reduce, values[0], grads[rank])
        same(y, values[0]), same(g, grads.sum(0))
        y, g = run(tensor_parallel.all_reduce_identity, values[rank], grads[0])
        same(y, values.sum(0)), same(g, grads[0])
        for dim in (-1, 0, 1):
            y, g = run(tensor_parallel.split_all_gather, values[0], own(grads[0], dim), dim)
            same(y, own(values[0], dim)), same(g, grads[0])
            size = values[0].shape[dim]
            y, g = run(tensor_parallel.all_gather_split, own(values[0], dim), grads[0], dim, size)
            same(y, values[0]), same(g, own(grads[0], dim))
        y, g = run(tensor_parallel.all_gather_reduce_scatter, own(values[0], -2), grads[rank])
        same(y, values[0]), same(g, own(grads.sum(0), -2))
        y, g = run(tensor_parallel.reduce_scatter_all_gather, values[rank], own(grads[0], -2))
        same(y, own(values.sum(0), -2)), same(g, grads[0])

    launch(body, world_size=3, backend="gloo")
    launch(body, world_size=1, backend="gloo")


def test_layers_in_groups_of_their_own(seed: int, backend: str, require_ranks: RequireRanks):
    """Two groups of two side by side, one with a key head for both; a rank outside a group gets an error."""
    require_ranks(4)

    def body() -> str:
        pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
        mine = dist.get_rank() % 2
        make = partial(tensor_parallel.ParallelSelfAttention, 8, 4, 1, group=pairs[mine])
        attention = seeded(seed + dist.get_rank(), make)
        config = GPTConfig(width=8, heads=4, kv_heads=1)
        reference = seeded(
            seed + [0, 1][mine], lambda: SelfAttention(config)
        )  # the first of sorted ranks
        x = torch.randn(2, 5, 8, dtype=torch.float64).to(device())
        y, expected = attention(x), reference(x, torch.arange(5, device=device()))
        same(y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        same_gradients(attention, reference)
        with pytest.raises(ValueError) as told:
            tensor_parallel.ColumnParallelLinear(2, 2, group=pairs[1 - mine])
        return str(told.value)

    for rank, told in enumerate(launch(body, world_size=4, backend=backend)):
        assert told.startswith(f"rank {rank} is not in the group")


def test_bfloat16_frozen_parameters_and_inputs_without_gradient(seed: int):
    def body() -> None:
        for sequence in SEQUENCES:
            torch.manual_seed(seed)
            reference = MLP(GPTConfig(width=8, heads=1, hidden=20))
            torch.manual_seed(seed)
            mlp = tensor_parallel.ParallelMLP(8, 20, sequence=sequence)
            x = torch.randn(4, 6, 8)
            expected = reference(x)
            mlp.up.weight.requires_grad_(False)
            y = mlp(own(x, -2) if sequence else x)
            y.sum().backward()
            exact = mlp.down.weight.grad
            assert mlp.up.weight.grad is None and exact is not None
            mlp.zero_grad()
            mlp.up.weight.requires_grad_(True)
            part = (own(x, -2) if sequence else x).clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                mlp(part).float().sum().backward()
            assert part.grad is not None and mlp.up.weight.grad is not None
            mixed = mlp.down.weight.grad
            assert mixed is not None and mixed.dtype == torch.float32
            torch.testing.assert_close(mixed, exact, rtol=0.05, atol=0.1)
            expected.sum().backward()
            up = reference.up.weight.grad
            assert up is not None
            torch.testing.assert_close(mlp.up.weight.grad, own(up, 0), rtol=0.05, atol=0.1)
            mlp = mlp.bfloat16()
            low = x.bfloat16()
            rough = mlp(own(low, -2) if sequence else low)
            assert rough.dtype == torch.bfloat16
            wanted = own(expected, -2) if sequence else expected
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(rough.float(), wanted, rtol=0.05, atol=0.02)

    launch(body, world_size=2, backend="gloo")


# ---- dropout


def test_masks_are_equal_outside_a_region_and_different_inside():
    """Ranks begin with different seeds; afterwards they agree again, even if only some masks were drawn."""

    def body() -> dict[str, Tensor]:
        torch.manual_seed(dist.get_rank())
        tensor_parallel.same_random_state()
        ones = torch.ones(2000)
        dropout = tensor_parallel.ShardDropout(0.5)
        seen = {"outside": F.dropout(ones, 0.5), "inside": dropout(ones), "again": dropout(ones)}
        seen["outside afterwards"] = F.dropout(ones, 0.5)
        dropout.eval()
        assert dropout(ones) is ones
        return seen

    found = launch(body, world_size=3, backend="gloo")
    for a, b in itertools.combinations(found, 2):
        assert torch.equal(a["outside"], b["outside"])
        assert torch.equal(a["outside afterwards"], b["outside afterwards"])
        for inside in ("inside", "again"):
            assert 700 < int((a[inside] != b[inside]).sum()) < 1300
    one = found[0]
    for a, b in itertools.combinations(one, 2):
        assert not torch.equal(one[a], one[b])
    assert all(800 < int((mask == 2).sum()) < 1200 for mask in one.values())


def test_dropout_of_attention_is_drawn_again_by_a_checkpoint(seed: int):
    """A recomputed forward has the masks of the first; its gradients are those without recomputation."""

    def body() -> list[Tensor]:
        gradients = []
        for again in (False, True):
            torch.manual_seed(seed)
            attention = tensor_parallel.ParallelSelfAttention(8, 4, dropout=0.4).double()
            tensor_parallel.same_random_state()
            x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
            y = checkpoint(attention, x, use_reentrant=False) if again else attention(x)
            assert not torch.equal(y, attention(x))
            y.square().sum().backward()
            assert x.grad is not None
            gradients.append(x.grad)
        same(*gradients)
        return gradients

    first, second = launch(body, world_size=2, backend="gloo")
    assert torch.equal(first[0], second[0])  # x is whole on both, and so is its gradient


# ---- what is refused


def test_refusals_are_sentences():
    def body() -> dict[str, str]:
        told = {}
        x = torch.ones(2, 3, 4)
        attempts: dict[str, Callable[[], object]] = {
            "heads=3 cannot be shared equally by 2 ranks": lambda: (
                tensor_parallel.ParallelSelfAttention(6, 3)
            ),
            "heads=4 equal heads": lambda: tensor_parallel.ParallelSelfAttention(6, 4),
            "kv_heads=3 must divide heads=4": lambda: tensor_parallel.ParallelSelfAttention(
                8, 4, 3
            ),
            "kv_heads=3 on 2 ranks": lambda: tensor_parallel.ParallelSelfAttention(12, 6, 3),
            "dropout is for attend=None": lambda: tensor_parallel.ParallelSelfAttention(
                8, 4, attend=lambda q, k, v: q, dropout=0.1
            ),
            "activation is 'gelu' or 'swiglu', not 'relu'": lambda: tensor_parallel.ParallelMLP(
                4, 4, "relu"
            ),  # type: ignore
            "sequence='yes'": lambda: tensor_parallel.RowParallelLinear(4, 4, sequence="yes"),  # type: ignore
            "was given 4 features": lambda: tensor_parallel.ColumnParallelLinear(5, 4)(x),
            "2 are expected on this rank": lambda: tensor_parallel.RowParallelLinear(
                4, 4, True, True
            )(x),
            "pad the sequence to a multiple of 2": lambda: tensor_parallel.RowParallelLinear(
                4, 4, sequence="keep"
            )(x),
            "token 7 lies outside the vocabulary, 0 .. 6": lambda: (
                tensor_parallel.VocabParallelEmbedding(7, 2)(torch.tensor([[7]]))
            ),
            "one over the features alone is expected": lambda: tensor_parallel.SequenceParallelNorm(
                nn.LayerNorm((2, 3))
            ),
            "LayerNorm or RMSNorm is expected": lambda: tensor_parallel.SequenceParallelNorm(
                nn.Linear(2, 2)
            ),  # type: ignore
        }
        for words, attempt in attempts.items():
            with pytest.raises((ValueError, TypeError)) as error:
                attempt()
            told[words] = str(error.value)
        return told

    for told in launch(body, world_size=2, backend="gloo"):
        for words, sentence in told.items():
            assert words in sentence


class Scaled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def hooked(module: nn.Module) -> Any:
    module.register_forward_hook(lambda *_: None)
    return module


def with_another_layer(model: GPT, where: str, layer: nn.Module) -> GPT:
    model.blocks[0].get_submodule(where).add_module("another", layer)
    return model


def test_options_of_a_given_module_are_carried_over_or_refused() -> None:
    """Each would be lost without a word, since the parallel layer computes by itself."""

    def body() -> None:
        odd = {"max_norm": 1.0, "scale_grad_by_freq": True, "sparse": True}
        for option, value in odd.items():
            embedding = nn.Embedding(8, 4, **{option: value})
            refuse(
                f"embedding has {option}",
                lambda e: tensor_parallel.VocabParallelEmbedding(8, 4, embedding=e),
                embedding,
            )
            refuse(f"embedding has {option}", tensor_parallel.SequenceParallelEmbedding, embedding)
        refuse(
            "is expected",
            lambda e: tensor_parallel.VocabParallelEmbedding(9, 4, embedding=e),
            nn.Embedding(8, 4),
        )
        weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        for made in (tensor_parallel.ColumnParallelLinear, tensor_parallel.RowParallelLinear):
            for says, linear in {
                "a Scaled cannot be cut": Scaled(4, 4),
                "a Bilinear cannot be cut": nn.Bilinear(4, 4, 4),
                "parametrizations": weighted,
                "hooks": hooked(nn.Linear(4, 4)),
                "4 and 4 are expected": nn.Linear(4, 8),
            }.items():
                refuse(says, lambda given, made=made: made(4, 4, linear=given), linear)
        for norm in (nn.LayerNorm(4), nn.RMSNorm(4)):
            refuse("hooks", tensor_parallel.SequenceParallelNorm, hooked(norm))
        for where in ("attention", "mlp"):
            refuse(
                "'another'",
                tensor_parallel.parallelize_gpt,
                with_another_layer(GPT(CONFIG), where, nn.Linear(4, 4)),
            )
        model = GPT(CONFIG)
        model.dropout = nn.Dropout1d(0.1)
        refuse(
            "a Dropout1d cannot be cut",
            lambda m: tensor_parallel.parallelize_gpt(m, sequence="keep"),
            model,
        )

        model = GPT(CONFIG)
        model.blocks[0].eval()
        parallel = tensor_parallel.parallelize_gpt(model, sequence="keep")
        assert parallel.training
        assert not any(module.training for module in parallel.blocks[0].modules())

    launch(body, world_size=2, backend="gloo")


def refuse(says: str, call: Callable[[Any], object], given: object) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        call(given)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_padding_token_gets_no_gradient(world_size: int) -> None:
    tokens = torch.tensor([[0, 5, 2], [5, 5, 4]])

    def body(padding: int) -> None:
        torch.manual_seed(0)
        plain = nn.Embedding(6, 4, padding_idx=padding)
        layer = tensor_parallel.VocabParallelEmbedding(6, 4, embedding=plain)
        (plain(tokens).sum(-1) * tokens).sum().backward()
        (layer(tokens).sum(-1) * tokens).sum().backward()
        grad = layer.cuts["weight"].part(plain.weight.grad)
        torch.testing.assert_close(layer.weight.grad, grad)
        assert not layer.cuts["weight"].whole(layer.weight.grad)[padding].any()

    for padding in (0, 5):
        launch(body, padding, world_size=world_size, backend="gloo")


def test_the_folder_can_be_copied_out_alone(tmp_path: Path):
    """It imports torch and itself only, and works under another name outside the package."""
    for path in FOLDER.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) < 300, path.name
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            top = {name.partition(".")[0] for name in names}
            assert top <= {"torch", *sys.stdlib_module_names}, (path.name, top)
    shutil.copytree(FOLDER, tmp_path / "lifted")
    program = "import sys; sys.path[:0] = ['.']; import lifted"
    program += "; assert not any('course_lib' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, check=True)
