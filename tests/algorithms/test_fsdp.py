"""course_lib.fsdp against one process and against PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from course_lib import device, fsdp, launch


def test_pieces_are_clipped_as_the_whole_gradient() -> None:
    whole = nn.Parameter(torch.zeros(4))
    gradient = torch.tensor([3.0, 0.0, 4.0, 12.0])

    def job() -> tuple[float, torch.Tensor]:
        piece = nn.Parameter(torch.zeros(2))
        piece.grad = gradient.chunk(2)[dist.get_rank()].clone()
        norm = fsdp.clip_grad_norm_([piece], 1.0)
        return norm, piece.grad

    ranks = launch(job, world_size=2, backend="gloo")
    whole.grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_([whole], 1.0)  # 13
    assert [float(norm), float(norm)] == pytest.approx([found for found, _ in ranks])
    torch.testing.assert_close(torch.cat([piece for _, piece in ranks]), whole.grad)


WORLDS = [1, 2, 3, 4, 8]
SIZES = (40, 7, 1, 13)  # elements of whole gradients; on 8 ranks some pieces are empty
RequireRanks = Callable[[int], None]


def whole(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=draw).to(dtype) for size in SIZES]


def piece(gradient: torch.Tensor, rank: int, n: int) -> nn.Parameter:
    """This rank's piece of a parameter of ones, with its piece of the gradient."""
    own = gradient.tensor_split(n)[rank].to(device())
    shard = nn.Parameter(torch.ones_like(own))
    shard.grad = own.clone()
    return shard


@pytest.mark.parametrize("share", [0.4, 2.0], ids=["above", "below"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("world_size", WORLDS)
def test_the_norm_is_that_of_one_process_and_all_pieces_are_scaled_alike(
    world_size: int, dtype: torch.dtype, share: float, backend: str, require_ranks: RequireRanks, seed: int
) -> None:  # fmt: skip
    require_ranks(world_size)
    gradients = whole(seed, dtype)
    alone = [nn.Parameter(torch.ones(size)) for size in SIZES]
    for parameter, gradient in zip(alone, gradients, strict=True):
        parameter.grad = gradient.float().clone()
    most = share * float(torch.cat(gradients).float().norm())
    norm = float(nn.utils.clip_grad_norm_(alone, most))

    def body() -> tuple[float, list[torch.Tensor]]:
        shards = [piece(one, dist.get_rank(), dist.get_world_size()) for one in gradients]
        shards.append(nn.Parameter(torch.ones(3, device=device())))  # without a gradient
        found = fsdp.clip_grad_norm_(iter(shards), most)
        return found, [shard.grad.float().cpu() for shard in shards if shard.grad is not None]

    run = launch(body, world_size=world_size, backend=backend)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for found, _ in run:
        assert found == pytest.approx(norm, rel=1e-5)
    for i, parameter in enumerate(alone):
        scaled = torch.cat([pieces[i] for _, pieces in run])
        assert parameter.grad is not None
        torch.testing.assert_close(scaled, parameter.grad, rtol=tolerance, atol=1e-6)
    for rank in range(world_size):
        (one,) = run.ledger.operations(rank)
        assert one.op == "all_reduce"
        assert one.bytes_sent == pytest.approx(2 * (world_size - 1) / world_size * 4)


@pytest.mark.parametrize("world_size", [2, 3])
def test_fully_shards_own_clips_alike(world_size: int, seed: int) -> None:
    """torch.nn.utils.clip_grad_norm_ on DTensors: the same norm, the same gradients, and more messages."""

    def body() -> tuple[float, float, bool, int]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 5), nn.LayerNorm(5))
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world_size,)))
        torch.manual_seed(seed + dist.get_rank())
        model(torch.randn(11, 9)).square().sum().backward()
        shards = []
        for parameter in model.parameters():
            local = parameter.grad.to_local()  # type: ignore[union-attr]
            shard = nn.Parameter(torch.ones_like(local))
            shard.grad = local.clone()
            shards.append(shard)
        ours = fsdp.clip_grad_norm_(shards, 0.3)
        theirs = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        same = [
            torch.allclose(parameter.grad.to_local(), shard.grad, rtol=1e-4)  # type: ignore[union-attr]
            for parameter, shard in zip(model.parameters(), shards, strict=True)
        ]
        return ours, float(theirs.full_tensor()), all(same), len(shards)  # type: ignore[attr-defined]

    for ours, theirs, same, count in launch(body, world_size=world_size):
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert same and count == 6


def test_replicas_are_counted_once(backend: str, require_ranks: RequireRanks, seed: int) -> None:
    require_ranks(4)
    gradients = whole(seed, torch.float32)
    norm = float(torch.cat(gradients).norm())

    def body() -> float:
        rank = dist.get_rank()
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        shards = [piece(one, rank % 2, 2) for one in gradients]
        return fsdp.clip_grad_norm_(shards, 1.0, groups[rank // 2], replicas[rank % 2])

    assert list(launch(body, world_size=4, backend=backend)) == pytest.approx([norm] * 4, rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_a_norm_that_is_not_finite_goes_into_all_gradients_as_torchs(bad: float) -> None:
    """NaN into all; an infinity leaves zeros, and NaN in its own place."""

    def body() -> tuple[float, torch.Tensor]:
        (shard,) = [piece(torch.tensor([3.0, 4.0, bad, 1.0]), dist.get_rank(), 2)]
        norm = fsdp.clip_grad_norm_([shard], 1.0)
        return norm, shard.grad

    alone = piece(torch.tensor([3.0, 4.0, bad, 1.0]), 0, 1)
    wanted = nn.utils.clip_grad_norm_([alone], 1.0)
    run = launch(body, world_size=2, backend="gloo")
    for norm, _ in run:
        torch.testing.assert_close(torch.tensor(norm), wanted, equal_nan=True)
    gradients = torch.cat([gradient for _, gradient in run])
    torch.testing.assert_close(gradients, alone.grad, equal_nan=True)


def test_no_shards_have_a_norm_of_0_and_shards_without_any_gradient_are_refused() -> None:
    def body() -> tuple[float, float]:
        shard = nn.Parameter(torch.ones(3))
        with pytest.raises(RuntimeError, match="no rank has a gradient"):
            fsdp.clip_grad_norm_([shard], 1.0)
        shard.grad = torch.zeros(3)  # a gradient that is 0 is one
        present = fsdp.clip_grad_norm_([shard] if dist.get_rank() else [], 1.0)
        return fsdp.clip_grad_norm_([], 1.0), present

    assert list(launch(body, world_size=2, backend="gloo")) == [(0.0, 0.0)] * 2
    assert list(launch(body, world_size=1, backend="gloo")) == [(0.0, 0.0)]
    assert float(nn.utils.clip_grad_norm_([], 1.0)) == 0.0
