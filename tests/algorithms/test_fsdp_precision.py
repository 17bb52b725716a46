"""all_gather_cast, reduce_scatter_mean and all_gather_int8 against float64, and the bytes of fully_shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from course_lib import device, fsdp, launch


def test_gradients_in_16_bits_are_averaged_in_32() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(2, 6).bfloat16()  # a row for each rank

    def job() -> Tensor:
        output = torch.empty(3)
        fsdp.reduce_scatter_mean(output, gradients[dist.get_rank()], torch.float32)
        return output

    parts = launch(job, world_size=2, backend="gloo")
    assert torch.equal(torch.cat(list(parts)), gradients.float().mean(0))


WORLDS = [1, 2, 3, 4, 8]
HALVES = [torch.bfloat16, torch.float16]
RequireRanks = Callable[[int], None]
# The largest relative error of a rounding: half of the distance between neighbours.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def new_group(ranks: list[int]) -> dist.ProcessGroup:
    """Its type says "a number, or None" on ranks outside of it."""
    return cast(dist.ProcessGroup, dist.new_group(ranks))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("size", [1, 37])
@pytest.mark.parametrize("world_size", WORLDS)
def test_shards_travel_in_the_dtype_of_the_output(
    world_size: int, size: int, dtype: torch.dtype, backend: str, require_ranks: RequireRanks, seed: int
) -> None:  # fmt: skip
    require_ranks(world_size)
    masters = drawn(seed, world_size, size)

    def body() -> tuple[Tensor, Tensor]:
        shard = masters[dist.get_rank()].to(device())
        output = torch.full((world_size, size), torch.nan, dtype=dtype, device=device())
        fsdp.all_gather_cast(output, shard)
        return output.cpu(), shard.cpu()

    run = launch(body, world_size=world_size, backend=backend)
    for rank, (output, shard) in enumerate(run):
        assert torch.equal(output, masters.to(dtype))
        assert torch.equal(shard, masters[rank])  # every low bit
        (operation,) = run.ledger.operations(rank)
        assert operation.op == "all_gather"
        assert operation.bytes_sent == (world_size - 1) * size * dtype.itemsize


@pytest.mark.parametrize("reduce_dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("world_size", WORLDS)
def test_gradients_are_summed_in_reduce_dtype(
    world_size: int, dtype: torch.dtype, reduce_dtype: torch.dtype, backend: str,
    require_ranks: RequireRanks, seed: int,
) -> None:  # fmt: skip
    require_ranks(world_size)
    size = 23
    grads = drawn(seed, world_size, world_size * size).to(dtype)

    def body() -> tuple[Tensor, Tensor]:
        own = grads[dist.get_rank()].to(device())
        output = torch.full((size,), torch.nan, device=device())
        fsdp.reduce_scatter_mean(output, own, reduce_dtype)
        return output.cpu(), own.cpu()

    run = launch(body, world_size=world_size, backend=backend)
    mean = grads.double().mean(0).view(world_size, size)
    # the cast of each gradient, and n - 1 sums, each of at most the magnitudes' sum, and the division
    bound = 1.01 * ROUNDING[reduce_dtype] * (world_size + 1) * grads.double().abs().mean(0)
    bound = bound.view(world_size, size) + 1e-7
    for rank, (output, own) in enumerate(run):
        assert output.dtype == torch.float32
        assert bool(((output.double() - mean[rank]).abs() <= bound[rank]).all())
        assert torch.equal(own, grads[rank])
        (operation,) = run.ledger.operations(rank)
        assert operation.op == "reduce_scatter"
        assert operation.bytes_sent == (world_size - 1) * size * reduce_dtype.itemsize


def test_a_sum_in_16_bits_loses_what_float32_keeps(
    backend: str, require_ranks: RequireRanks
) -> None:
    """Rank 0 has 1, the other seven 1/512 each: added to 1 in bfloat16 one after another they are lost."""
    require_ranks(8)
    small = 1 / 512

    def body() -> tuple[float, float]:
        value = 1.0 if dist.get_rank() == 0 else small
        grads = torch.full((8,), value, dtype=torch.bfloat16, device=device())
        wide, narrow = torch.empty(1, device=device()), torch.empty(1, device=device())
        fsdp.reduce_scatter_mean(wide, grads)
        fsdp.reduce_scatter_mean(narrow, grads, torch.bfloat16)
        return wide.item(), narrow.item()

    found = list(launch(body, world_size=8, backend=backend))
    right = (1 + 7 * small) / 8
    assert all(wide == pytest.approx(right, rel=1e-7) for wide, _ in found)
    worst = max(abs(narrow - right) for _, narrow in found)
    assert worst > 1e-3 * right


def test_a_part_of_the_division_comes_before_a_sum_in_float16(
    backend: str, require_ranks: RequireRanks
) -> None:
    """Three gradients of 30,000: their sum is above float16's 65,504, the sum of their halves is not."""
    require_ranks(3)

    def body() -> tuple[float, float]:
        grads = torch.full((3,), 30_000.0, dtype=torch.float16, device=device())
        output = torch.empty(1, device=device())
        fsdp.reduce_scatter_mean(output, grads, torch.float16)
        mean = output.item()
        fsdp.reduce_scatter_mean(output, torch.full_like(grads, torch.inf))
        return mean, output.item()

    for mean, infinite in launch(body, world_size=3, backend=backend):
        assert mean == pytest.approx(30_000, rel=1e-3)
        assert infinite == torch.inf  # an overflow is seen


def test_a_sub_group_gathers_and_reduces_by_its_own_places(
    backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(3)

    def body() -> tuple[list[float], float] | None:
        group = new_group([0, 2])
        if dist.get_rank() == 1:
            return None
        output = torch.empty(2, dtype=torch.bfloat16, device=device())
        shard = torch.tensor([float(dist.get_rank())], device=device())
        fsdp.all_gather_cast(output, shard, group)
        grads = torch.tensor([4.0, 8.0], dtype=torch.bfloat16, device=device())
        grads *= 1 + dist.get_rank()
        mean = torch.empty(1, device=device())
        fsdp.reduce_scatter_mean(mean, grads, group=group)
        return output.tolist(), mean.item()

    first, _, last = launch(body, world_size=3, backend=backend)
    assert first == ([0.0, 2.0], 8.0)
    assert last == ([0.0, 2.0], 16.0)


def test_masters_keep_steps_that_the_weights_do_not_show(
    backend: str, require_ranks: RequireRanks
) -> None:
    """100 steps of 1e-5 on a weight of 1: bfloat16's neighbour of 1 is 1 + 1/128."""
    require_ranks(2)

    def body() -> tuple[float, float]:
        master = torch.ones(3, device=device())
        weights = torch.empty(6, dtype=torch.bfloat16, device=device())
        for _ in range(100):
            fsdp.all_gather_cast(weights, master)
            master += 1e-5
        return master[0].item(), weights[0].item()

    for master, weight in launch(body, world_size=2, backend=backend):
        assert master == pytest.approx(1.001, abs=1e-5)
        assert weight == 1


REFUSED: dict[str, tuple[type[Exception], str, Callable[[], None]]] = {
    "an output of another size": (
        ValueError, "must have 1 x 3",
        lambda: fsdp.all_gather_cast(torch.empty(4), torch.ones(3)),
    ),
    "an output of whole numbers": (
        TypeError, "floating-point",
        lambda: fsdp.all_gather_cast(torch.empty(3, dtype=torch.int32), torch.ones(3)),
    ),
    "an output with gaps": (
        ValueError, "output is not contiguous",
        lambda: fsdp.all_gather_cast(torch.empty(6)[::2], torch.ones(3)),
    ),
    "no tensor": (
        TypeError, "shard is a list",
        lambda: fsdp.all_gather_cast(torch.empty(3), [1.0, 2.0, 3.0]),  # type: ignore[arg-type]
    ),
    "a sparse shard": (
        ValueError, "a dense tensor is expected",
        lambda: fsdp.all_gather_cast(torch.empty(3), torch.ones(3).to_sparse()),
    ),
    "a mean in 16 bits": (
        TypeError, "output is torch.bfloat16; torch.float32 is expected",
        lambda: fsdp.reduce_scatter_mean(torch.empty(3, dtype=torch.bfloat16), torch.ones(3)),
    ),
    "a sum of whole numbers": (
        TypeError, "reduce_dtype is torch.int32",
        lambda: fsdp.reduce_scatter_mean(torch.empty(3), torch.ones(3), torch.int32),
    ),
    "gradients of another size": (
        ValueError, "grads must have 1 x 3",
        lambda: fsdp.reduce_scatter_mean(torch.empty(3), torch.ones(6)),
    ),
    "blocks of no elements": (
        ValueError, "block=0",
        lambda: fsdp.all_gather_int8(torch.empty(3), torch.ones(3), 0),
    ),
}  # fmt: skip


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    def body() -> list[str]:
        said = []
        for kind, _, call in REFUSED.values():
            with pytest.raises(kind) as error:
                call()
            said.append(str(error.value))
        return said

    run = launch(body, world_size=1, backend="gloo")
    for (_, text, _), said in zip(REFUSED.values(), run[0], strict=True):
        assert text in said
    assert not run.ledger.operations(0)


def test_a_rank_outside_of_the_group_is_told(backend: str, require_ranks: RequireRanks) -> None:
    require_ranks(3)

    def body() -> None:
        group = new_group([0, 1])
        if dist.get_rank() == 2:
            with pytest.raises(ValueError, match="rank 2 is not in the group"):
                output, shard = torch.empty(2, device=device()), torch.ones(1, device=device())
                fsdp.all_gather_cast(output, shard, group)

    launch(body, world_size=3, backend=backend)


# ---- eight bits


@pytest.mark.parametrize("block", [4, 256])
@pytest.mark.parametrize("size", [1, 37, 600])
@pytest.mark.parametrize("world_size", WORLDS)
def test_eight_bits_are_off_by_half_a_scale(
    world_size: int, size: int, block: int, backend: str, require_ranks: RequireRanks, seed: int
) -> None:
    require_ranks(world_size)
    masters = drawn(seed, world_size, size)
    masters[:, size // 2] *= 1000  # one large element may spoil its own block alone

    def body() -> tuple[Tensor, Tensor]:
        shard = masters[dist.get_rank()].to(device())
        output = torch.full((world_size * size,), torch.nan, device=device())
        fsdp.all_gather_int8(output, shard, block)
        return output.view(world_size, size).cpu(), shard.cpu()

    run = launch(body, world_size=world_size, backend=backend)
    scales = torch.stack([
        torch.cat([part.abs().max().expand(len(part)) for part in row.split(block)]) for row in masters
    ]) / 127  # fmt: skip
    blocks = -(-size // block)
    for rank, (output, shard) in enumerate(run):
        assert torch.equal(output, run[0][0])  # the same bits on every rank
        assert bool(((output - masters).abs() <= 0.501 * scales).all())
        assert torch.equal(shard, masters[rank])
        (operation,) = run.ledger.operations(rank)
        assert operation.op == "all_gather" and operation.dtype == "uint8"
        assert operation.bytes_sent == (world_size - 1) * (size + 4 * blocks)


def test_eight_bits_of_zeros_infinities_and_16_bits(
    backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(2)

    def body() -> list[list[float]]:
        rows = []
        for values in (
            [0.0, 0.0, 1.0, -127.0],
            [torch.inf, 1.0, 2.0, 2.0],
            [torch.nan, 1.0, 4.0, 4.0],
        ):
            output = torch.empty(8, dtype=torch.bfloat16, device=device())
            shard = torch.tensor(values, dtype=torch.bfloat16, device=device())
            fsdp.all_gather_int8(output, shard, 2)
            rows.append(output[4:].float().tolist())
        fsdp.all_gather_int8(torch.empty(0, device=device()), torch.empty(0, device=device()))
        return rows

    for exact, infinite, undefined in launch(body, world_size=2, backend=backend):
        assert exact == [0.0, 0.0, 1.0, -127.0]
        for row, last in ((infinite, 2.0), (undefined, 4.0)):
            assert row[2:] == [last, last]
            assert all(value != value for value in row[:2])  # the fault shows in its block


# ---- PyTorch's own


@pytest.mark.parametrize(
    ("policy", "nbytes"),
    [
        (MixedPrecisionPolicy(), 12),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), 8),
        (MixedPrecisionPolicy(param_dtype=torch.bfloat16), 6),
    ],
    ids=["float32", "two precisions", "bfloat16"],
)
@pytest.mark.parametrize("world_size", [2, 4])
def test_fully_shard_sends_as_many_bytes_a_parameter(
    world_size: int, policy: MixedPrecisionPolicy, nbytes: int
) -> None:
    """Two all-gathers and a reduce-scatter of each block; the root has no weights."""
    width, layers = 8 * world_size, 3

    def body() -> None:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
        for layer in model:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model(torch.randn(2, width)).float().square().mean().backward()

    run = launch(body, world_size=world_size, backend="gloo")
    exact = nbytes * (world_size - 1) / world_size * layers * width * width
    for rank in range(world_size):
        sent = sum(
            operation.bytes_sent
            for operation in run.ledger.operations(rank)
            if operation.op in ("all_gather", "reduce_scatter")
        )
        assert sent == exact


def test_fully_shards_own_mean_is_ours(seed: int) -> None:
    """The gradients of a layer of fully_shard with both dtypes are reduce_scatter_mean's."""
    n, width = 4, 12

    def body() -> bool:
        torch.manual_seed(seed)
        model = nn.Linear(width, width, bias=False)
        alone = nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
        alone.weight.data.copy_(model.weight.data)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = dist.device_mesh.init_device_mesh("cpu", (n,))
        fully_shard(model, mesh=mesh, mp_policy=policy)
        torch.manual_seed(seed + dist.get_rank())
        x = torch.randn(5, width).bfloat16()
        model(x).sum().backward()
        alone(x).sum().backward()
        mean = torch.empty(width // n, width)
        fsdp.reduce_scatter_mean(mean, alone.weight.grad)  # type: ignore[arg-type]
        local = model.weight.grad.to_local()  # type: ignore[union-attr]
        return torch.allclose(local, mean, rtol=1e-6, atol=1e-7)

    assert all(launch(body, world_size=n, backend="gloo"))
