"""hybrid_groups and hybrid_reduce against one process, closed forms, and fully_shard on a 2-D mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from course_lib import device, fsdp, launch


def test_two_islands_of_two_ranks_have_the_mean_of_all_four() -> None:
    gradients = torch.arange(16.0).view(4, 4) ** 2  # a row for each rank

    def job() -> Tensor:
        islands, replicas = fsdp.hybrid_groups(4, 2)  # [0 1] [2 3], and across them [0 2] [1 3]
        groups = [dist.new_group(ranks) for ranks in islands + replicas]
        rank, output = dist.get_rank(), torch.empty(2)
        fsdp.hybrid_reduce(output, gradients[rank], groups[rank // 2], groups[2 + rank % 2])
        return output

    mean = gradients.mean(0)
    for rank, part in enumerate(launch(job, world_size=4, backend="gloo")):
        torch.testing.assert_close(part, mean.chunk(2)[rank % 2])


RequireRanks = Callable[[int], None]
ISLANDS = [(1, 1), (2, 1), (2, 2), (3, 3), (3, 1), (4, 2), (4, 4), (4, 1), (8, 2), (8, 4), (8, 8)]


def own_groups(world_size: int, shard: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's shard group and replica group; every rank makes all of them, in one order."""
    shards, replicas = fsdp.hybrid_groups(world_size, shard)
    made = [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in [*shards, *replicas]]
    rank = dist.get_rank()
    return made[rank // shard], made[len(shards) + rank % shard]


def test_neighbours_shard_and_equals_replicate() -> None:
    assert fsdp.hybrid_groups(8, 4) == (
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 4], [1, 5], [2, 6], [3, 7]],
    )
    assert fsdp.hybrid_groups(6, 2) == ([[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]])
    assert fsdp.hybrid_groups(3, 3) == ([[0, 1, 2]], [[0], [1], [2]])
    assert fsdp.hybrid_groups(3, 1) == ([[0], [1], [2]], [[0, 1, 2]])


@pytest.mark.parametrize(("world_size", "shard"), ISLANDS)
def test_every_rank_is_in_one_group_of_each_and_meets_each_other_rank_once(
    world_size: int, shard: int
) -> None:
    shards, replicas = fsdp.hybrid_groups(world_size, shard)
    assert sorted(rank for ranks in shards for rank in ranks) == list(range(world_size))
    assert sorted(rank for ranks in replicas for rank in ranks) == list(range(world_size))
    assert all(len({*island} & {*equals}) == 1 for island in shards for equals in replicas)


@pytest.mark.parametrize(
    ("world_size", "shard", "says"),
    [
        (8, 3, "shard=3 does not divide world_size=8"),
        (4, 8, "shard=8 does not divide world_size=4"),
        (4, 0, "shard=0: a number of ranks"),
        (4, -2, "shard=-2: a number of ranks"),
        (0, 1, "world_size=0"),
        (4, 2.0, "shard=2.0: a number of ranks"),
        (True, 1, "world_size=True"),
    ],
)
def test_islands_of_different_sizes_are_refused(world_size: int, shard: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fsdp.hybrid_groups(world_size, shard)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("world_size", "shard"), ISLANDS)
def test_the_mean_is_that_of_all_ranks_and_the_bytes_are_exact(
    world_size: int, shard: int, dtype: torch.dtype, backend: str, require_ranks: RequireRanks, seed: int
) -> None:  # fmt: skip
    require_ranks(world_size)
    size, replicas = 13, world_size // shard
    generator = torch.Generator().manual_seed(seed)
    grads = torch.randn(world_size, shard * size, generator=generator).to(dtype)

    def body() -> tuple[Tensor, Tensor]:
        groups = own_groups(world_size, shard)
        own = grads[dist.get_rank()].to(device())
        output = torch.full((size,), torch.nan, dtype=dtype, device=device())
        fsdp.hybrid_reduce(output, own, *groups)
        return output.cpu(), own.cpu()

    run = launch(body, world_size=world_size, backend=backend)
    mean = grads.double().mean(0).view(shard, size)
    rounding = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 0.05}[dtype]
    for rank, (output, own) in enumerate(run):
        torch.testing.assert_close(
            output.double(), mean[rank % shard], rtol=rounding, atol=rounding
        )
        assert torch.equal(output, run[rank % shard][0])  # replicas: the same bits
        assert torch.equal(own, grads[rank])
        sent = {
            operation.op: operation.bytes_sent
            for operation in run.ledger.operations(rank)
            if operation.op != "new_group"
        }
        assert sent == {
            "reduce_scatter": (shard - 1) * size * dtype.itemsize,
            "all_reduce": pytest.approx(2 * (replicas - 1) / replicas * size * dtype.itemsize),
        }


def test_arguments_that_do_not_fit_are_refused() -> None:
    def body() -> None:
        inside, across = own_groups(4, 2)
        row, shard = torch.ones(6), torch.empty(3)
        with pytest.raises(ValueError, match="share the ranks"):
            fsdp.hybrid_reduce(torch.empty(3), row, inside, inside)
        with pytest.raises(ValueError, match="grads must have 2 x 2"):
            fsdp.hybrid_reduce(torch.empty(2), row, inside, across)
        with pytest.raises(ValueError, match="must be alike"):
            fsdp.hybrid_reduce(shard.double(), row, inside, across)
        with pytest.raises(TypeError, match="floating-point"):
            fsdp.hybrid_reduce(shard.int(), row.int(), inside, across)

    launch(body, world_size=4, backend="gloo")


@pytest.mark.parametrize(("world_size", "shard"), [(4, 2), (8, 4), (8, 2)])
def test_fully_shard_on_a_mesh_of_two_dimensions_does_the_same(
    world_size: int, shard: int, seed: int
) -> None:
    """The groups of a mesh (replicate, shard), the mean, and a step's bytes: 3 (g-1)/g + 2 (r-1)/(r g)."""
    width = 8 * world_size

    def body() -> tuple[list[list[int]], bool]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(width, width, bias=False))
        alone = nn.Linear(width, width, bias=False)
        alone.load_state_dict(model[0].state_dict())
        shape = (world_size // shard, shard)
        mesh = dist.device_mesh.init_device_mesh(
            "cpu", shape, mesh_dim_names=("replicate", "shard")
        )
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        torch.manual_seed(seed + dist.get_rank())
        x = torch.randn(3, width)
        model(x).square().sum().backward()
        local = model[0].weight.grad.to_local()  # type: ignore[union-attr]
        alone(x).square().sum().backward()
        mean = torch.empty_like(local)
        groups = [mesh.get_group("shard"), mesh.get_group("replicate")]
        fsdp.hybrid_reduce(mean, alone.weight.grad, *groups)  # type: ignore[arg-type]
        same = torch.allclose(local, mean, rtol=1e-4, atol=1e-4)
        return [dist.get_process_group_ranks(group) for group in groups], same

    run = launch(body, world_size=world_size, backend="gloo")
    shards, replicas = fsdp.hybrid_groups(world_size, shard)
    numel, r = width * width, world_size // shard
    of_step = (3 * (shard - 1) / shard + 2 * (r - 1) / (r * shard)) * 4 * numel
    of_ours = ((shard - 1) / shard + 2 * (r - 1) / (r * shard)) * 4 * numel
    for rank, ([island, equals], same) in enumerate(run):
        assert same
        assert island == shards[rank // shard] and equals == replicas[rank % shard]
        sent = sum(
            operation.bytes_sent
            for operation in run.ledger.operations(rank)
            if operation.op in ("all_gather", "reduce_scatter", "all_reduce")
        )
        assert sent == pytest.approx(of_step + of_ours)
