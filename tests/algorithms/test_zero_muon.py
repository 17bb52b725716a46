"""Muon with each matrix on one rank: values against one process, bytes, momentum, dealing and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib import device, launch
from course_lib.zero import ShardedMuon, deal, muon_step, orthogonalize

RequireRanks = Callable[[int], None]
WORLDS = [1, 2, 3, 4, 8]
STEPS, ROWS = 3, 24  # rows of a batch, which all world sizes divide
ITEM = 8
WIDTH = 12
BLOCK = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
SHAPES = {"a GPT's": 2 * BLOCK, "odd": [(1, 7), (7, 1), (5, 3), (3, 11), (8, 8)]}


def test_the_step_takes_another_way_to_orthogonalize() -> None:
    def job() -> Tensor:
        param = nn.Parameter(torch.zeros(2, 2))
        param.grad = torch.eye(2)
        muon_step([param], {}, [[0]], lambda matrix: matrix, lr=1.0, beta=0.5)
        return param.detach()

    (result,) = launch(job, world_size=1, backend="gloo")
    assert torch.equal(result, -1.5 * torch.eye(2))


class Layers(nn.Module):
    def __init__(self, shapes: Sequence[tuple[int, int]]):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        self.layers = nn.ParameterList(nn.Parameter(matrix) for matrix in drawn)

    def forward(self, x: Tensor) -> Tensor:
        """The mean loss of numbers (batch, 1)."""
        outputs = [torch.tanh(x * layer.flatten()).sum(1) for layer in self.layers]
        return torch.stack(outputs).square().mean()


def numbers(step: int, rank: int, n: int) -> Tensor:
    """A rank's part of a step's batch."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 1, generator=generator, dtype=torch.float64).chunk(n)[rank]


def sharded(shapes: Sequence[tuple[int, int]]) -> tuple[list[Tensor], int]:
    """(the matrices after training, elements of momentum), on a rank."""
    model = Layers(shapes)
    optimizer = ShardedMuon(model.parameters())
    dist.barrier()
    for step in range(STEPS):
        model(numbers(step, dist.get_rank(), dist.get_world_size())).backward()
        optimizer.step()
        optimizer.zero_grad()
    ends = [param.detach() for param in optimizer.params]
    return ends, sum(momentum.numel() for momentum in optimizer.momenta.values())


def alone(shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """One process, written without the library's step."""
    model = Layers(shapes)
    params = list(model.parameters())
    momenta = [torch.zeros_like(param) for param in params]
    for step in range(STEPS):
        model(numbers(step, 0, 1)).backward()
        with torch.no_grad():
            for param, momentum in zip(params, momenta, strict=True):
                assert param.grad is not None
                momentum.mul_(0.95).add_(param.grad)
                update = orthogonalize(param.grad + 0.95 * momentum)
                param -= 0.02 * max(1, param.shape[0] / param.shape[1]) ** 0.5 * update
                param.grad = None
    return [param.detach() for param in params]


@pytest.mark.parametrize("n", WORLDS)
@pytest.mark.parametrize("kind", SHAPES)
def test_ranks_train_as_one_process_and_send_what_zero_2_sends(kind: str, n: int) -> None:
    run = launch(sharded, SHAPES[kind], world_size=n, backend="gloo")
    wanted = alone(SHAPES[kind])
    owned = deal([param.shape for param in wanted], n)
    elements = [sum(wanted[k].numel() for k in own) for own in owned]
    for rank, (ends, held) in enumerate(run):
        worst = max(float((a - b).abs().max()) for a, b in zip(ends, wanted, strict=True))
        assert worst < 4e-15, f"rank {rank} differs by {worst}"
        assert all(torch.equal(a, b) for a, b in zip(ends, run[0][0], strict=True))
        assert held == elements[rank]
        operations = run.ledger.operations(rank)
        begin = next(i for i, operation in enumerate(operations) if operation.op == "barrier")
        sent = sum(operation.bytes_sent for operation in operations[begin:]) / STEPS
        assert sent == pytest.approx(2 * (n - 1) * max(elements) * ITEM)
        if kind == "a GPT's" and n in (2, 3):  # the dealing comes out even
            assert sent == pytest.approx(2 * (n - 1) / n * sum(elements) * ITEM)


def test_a_group_of_some_ranks_trains_by_itself(backend: str, require_ranks: RequireRanks) -> None:
    require_ranks(3)

    def job() -> list[Tensor]:
        group, rank = cast(dist.ProcessGroup, dist.new_group([0, 2])), dist.get_rank()
        begin = torch.eye(3) * (1 + rank), torch.ones(2, 4)
        params = [nn.Parameter(matrix.to(device())) for matrix in begin]
        if rank != 1:
            optimizer = ShardedMuon(params, group=group)
            for param in params:
                param.grad = torch.ones_like(param) * (1 + rank)
            optimizer.step()
        return [param.detach().cpu() for param in params]

    first, _, last = launch(job, world_size=3, backend=backend)
    assert all(torch.equal(a, b) for a, b in zip(first, last, strict=True))
    assert not torch.equal(first[0], torch.eye(3))


def test_a_gradient_that_is_missing_counts_as_zeros() -> None:
    def job() -> tuple[Tensor, Tensor]:
        used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 3))
        used.grad = torch.eye(2) if dist.get_rank() else None
        ShardedMuon([used, unused]).step()
        return used.detach(), unused.detach()

    for used, unused in launch(job, world_size=2, backend="gloo"):
        assert torch.equal(unused, torch.ones(2, 3))
        assert not torch.equal(used, torch.ones(2, 2))


@pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with PyTorch 2.9"
)
def test_one_rank_does_what_pytorchs_muon_does() -> None:
    """To bfloat16, in which PyTorch's orthogonalizes."""

    def job() -> tuple[list[Tensor], list[Tensor]]:
        ours = [nn.Parameter(torch.zeros(shape)) for shape in ((6, 6), (4, 9), (9, 4))]
        theirs = [nn.Parameter(torch.zeros_like(param)) for param in ours]
        optimizers = ShardedMuon(ours, lr=1.0), torch.optim.Muon(theirs, lr=1.0, weight_decay=0.0)
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            for a, b in zip(ours, theirs, strict=True):
                a.grad = torch.randn(a.shape, generator=generator)
                b.grad = a.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        return [a.detach() for a in ours], [b.detach() for b in theirs]

    ((ours, theirs),) = launch(job, world_size=1, backend="gloo")
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).norm() / b.norm()) < 0.03


def loads(shapes: Sequence[tuple[int, int]], n: int) -> list[int]:
    owned = deal(shapes, n)
    assert sorted(k for own in owned for k in own) == list(range(len(shapes)))
    return [sum(shapes[k][0] * shapes[k][1] for k in own) for own in owned]


def test_matrices_are_dealt_the_largest_first() -> None:
    assert deal([(2, 2), (4, 4), (1, 3), (2, 4)], 2) == [[1], [3, 0, 2]]
    assert deal([(2, 2)], 3) == [[0], [], []]
    assert deal([], 2) == [[], []]
    width = (
        768  # of the 124M model: a block has four matrices, of 3, 1, 4 and 4 squares of the width
    )
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    for n in (2, 3, 4, 8):
        assert len({*loads(12 * block, n)}) == 1
    with pytest.raises(ValueError, match="at least 1"):
        deal([(2, 2)], 0)


def test_half_a_matrix_orthogonalized_is_not_half_of_the_orthogonalized() -> None:
    """The numbers of notebook 04."""
    matrix = torch.randn(24, 96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = orthogonalize(matrix)
    halves = torch.cat([orthogonalize(half) for half in matrix.chunk(2)])
    assert 0.3 < float((whole - halves).norm() / whole.norm()) < 0.5
    values = [torch.linalg.svdvals(made) for made in (whole, halves)]
    assert 0.6 < float(values[0].min()) < float(values[0].max()) < 1.25
    assert float(values[1].min()) < 0.6


def test_orthogonalizing_turns_and_scales_with_the_matrix() -> None:
    matrix = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(orthogonalize(matrix.T), orthogonalize(matrix).T)
    torch.testing.assert_close(
        orthogonalize(1000 * matrix), orthogonalize(matrix), rtol=1e-5, atol=1e-6
    )


def test_refusals_are_sentences() -> None:
    def job() -> list[str]:
        said = []
        for params in ([], [torch.ones(3)]):
            with pytest.raises(ValueError) as refusal:
                ShardedMuon(params)
            said.append(str(refusal.value))
        return said

    ((empty, flat),) = launch(job, world_size=1, backend="gloo")
    assert "params is empty" in empty
    assert "parameter 0 has 1 dimensions" in flat
