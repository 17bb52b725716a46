"""Compressed averages: nothing is lost, bytes as in the closed forms, the same bits everywhere; training."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

import course_lib
from course_lib import compression, facts, launch
from course_lib.compression.int8 import dequantize, quantize
from course_lib.compression.sign import shard_size
from course_lib.ledger.ledger import Ledger


def test_the_largest_elements_are_averaged_and_the_others_kept() -> None:
    """Each of two ranks sends 2 of its 4 elements. The others stay in its error, for the next step."""
    gradients = [torch.tensor([5.0, -1.0, 4.0, 2.0]), torch.tensor([1.0, -7.0, 6.0, 3.0])]
    sent = [torch.tensor([5.0, 0.0, 4.0, 0.0]), torch.tensor([0.0, -7.0, 6.0, 0.0])]

    def job() -> tuple[torch.Tensor, torch.Tensor]:
        gradient, error = gradients[dist.get_rank()].clone(), torch.zeros(4)
        compression.topk_all_reduce(gradient, 0.5, error)
        return gradient, error

    results = launch(job, world_size=2, backend="gloo")
    for rank, (mean, error) in enumerate(results):
        assert torch.equal(mean, (sent[0] + sent[1]) / 2)
        assert torch.equal(error, gradients[rank] - sent[rank])


WORLDS = [1, 2, 3, 4, 8]
RequireRanks = Callable[[int], None]


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal numbers of magnitudes that differ from element to element, as a gradient's do."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (wide * torch.randn(shape, generator=generator, dtype=torch.float64).exp()).to(dtype)


def here(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(course_lib.device())


def same_bits(results: list[torch.Tensor]) -> bool:
    bits = [one.reshape(-1).view(torch.uint8) for one in results]
    return all(torch.equal(bits[0], other) for other in bits)


def segments(ledger: Ledger, world_size: int) -> list[Ledger]:
    """The messages between one built-in barrier and the next."""
    cut: list[list[list]] = []
    for rank in range(world_size):
        parts: list[list] = [[]]
        for operation in ledger.operations(rank):
            if operation.op == "barrier":
                parts.append([])
            else:
                parts[-1].append(operation)
        cut.append(parts[:-1])
    return [Ledger(world_size, list(part)) for part in zip(*cut, strict=True)]


# ---- top-k


@pytest.mark.parametrize("world_size", WORLDS)
def test_topk(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    """Sent plus kept equals the input to the bit; the largest elements are sent; their mean is the result."""
    size = random.Random(seed).randrange(20, 300)
    cases = [(size, 0.1), (size, 1.0), (7, 0.01), (1, 0.5), (size, 0.37), (0, 0.5)]

    def asked(rank: int, step: int, numel: int) -> torch.Tensor:
        return draw(seed + 100 * rank + step, numel, dtype=torch.float32)

    def body() -> list:
        rank, kept = dist.get_rank(), []
        for numel, fraction in cases:
            error = here(torch.zeros(numel))
            for step in range(3):
                before = error.cpu().clone()
                tensor = here(asked(rank, step, numel))
                assert compression.topk_all_reduce(tensor, fraction, error) is None
                kept.append((before, tensor.cpu(), error.cpu().clone()))
        return kept

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    for i, (numel, fraction) in enumerate([case for case in cases for _ in range(3)]):
        total = torch.zeros(numel, dtype=torch.float64)
        for rank, steps in enumerate(found):
            before, _, after = steps[i]
            wanted = asked(rank, i % 3, numel) + before
            sent = wanted - after
            was_sent = after == 0
            assert torch.equal(sent[was_sent], wanted[was_sent])
            assert torch.equal(after[~was_sent], wanted[~was_sent])
            assert int(was_sent.sum()) == facts.topk_count(numel, fraction)
            if 0 < was_sent.sum() < numel:
                assert sent[was_sent].abs().min() >= after[~was_sent].abs().max()
            total += sent.double()
        results = [steps[i][1] for steps in found]
        assert same_bits(results)
        torch.testing.assert_close(results[0].double(), total / world_size, rtol=1e-5, atol=1e-6)


# ---- int8


def test_what_int8_leaves_out_is_exact(seed: int):
    """Element by element: sent + residual == input, without rounding; the residual is at most half a step."""
    for dtype in (torch.float32, torch.float64):
        for numel, block in ((1, 4), (256, 256), (257, 256), (1000, 16), (10, 1000)):
            rows = draw(seed + numel, 3, numel, dtype=dtype)
            rows[0, : numel // 2] = 0
            packed = quantize(rows, block)
            assert packed.shape == (3, numel + 4 * math.ceil(numel / block))
            said = dequantize(packed, numel, block, dtype)
            residual = rows - said
            assert torch.equal(said + residual, rows)
            for start in range(0, numel, block):
                part = slice(start, start + block)
                half = rows[:, part].abs().amax(1, keepdim=True) / 127 / 2
                assert (residual[:, part].abs() <= half * (1 + 1e-6)).all()
    tiny = torch.full((1, 4), 1e-45)
    assert torch.equal(dequantize(quantize(tiny), 4), torch.zeros(1, 4))  # no scale is that small


@pytest.mark.parametrize("world_size", WORLDS)
def test_int8(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    """N x result + all errors afterwards = all that was asked before, in float64 to its last digits."""
    sizes = [1, world_size - 1, 3 * world_size + 1, random.Random(seed).randrange(300, 3000)]

    def asked(rank: int, step: int, numel: int) -> torch.Tensor:
        return draw(seed + 100 * rank + step, numel)

    def body() -> list:
        rank, kept = dist.get_rank(), []
        for numel in sizes:
            error = here(torch.zeros(numel, dtype=torch.float64))
            for step in range(3):
                before = error.cpu().clone()
                tensor = here(asked(rank, step, numel))
                compression.int8_all_reduce(tensor, error)
                kept.append((before, tensor.cpu(), error.cpu().clone()))
        return kept

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    for i, numel in enumerate([numel for numel in sizes for _ in range(3)]):
        results = [steps[i][1] for steps in found]
        assert same_bits(results)
        wanted = [asked(r, i % 3, numel) + steps[i][0] for r, steps in enumerate(found)]
        total = torch.stack([torch.zeros(numel, dtype=torch.float64), *wanted]).sum(0)
        left = sum(steps[i][2] for steps in found)
        torch.testing.assert_close(world_size * results[0] + left, total, rtol=1e-12, atol=1e-12)
        if numel:
            largest = sum(float(one.abs().max()) for one in wanted) / world_size
            assert (results[0] - total / world_size).abs().max() <= 2.02 * largest / 127 / 2


# ---- signs


@pytest.mark.parametrize("world_size", WORLDS)
def test_signs(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    """Workers send one magnitude a shard; servers send its mean and keep the rest, to the last digits."""
    n, rng = world_size, random.Random(seed)
    shapes = [(1,), (3, 5), (8 * n,), (rng.randrange(2, 40), 7)]
    if n == 1:
        shapes.append((0,))

    def asked(rank: int, step: int) -> list[torch.Tensor]:
        return [draw(seed + 100 * rank + 10 * step + i, *s) for i, s in enumerate(shapes)]

    def body() -> list:
        rank, kept = dist.get_rank(), []
        errors = [here(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
        servers = [e.new_zeros(shard_size(e.numel(), n)) for e in errors]
        for step in range(3):
            before = [one.cpu().clone() for one in (*errors, *servers)]
            tensors = [here(one) for one in asked(rank, step)]
            compression.sign_all_reduce(tensors, errors, servers)
            after = [one.cpu().clone() for one in (*errors, *servers)]
            kept.append((before, [t.cpu() for t in tensors], after))
        return kept

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    for step in range(3):
        for i, shape in enumerate(shapes):
            results = [kept[step][1][i] for kept in found]
            assert same_bits(results)
            shard = shard_size(math.prod(shape), n)
            said = []
            for rank, kept in enumerate(found):
                before, _, after = kept[step]
                wanted = (asked(rank, step)[i] + before[i]).view(-1)
                said.append(wanted - after[i].view(-1))
                for mine, theirs in zip(said[-1].split(shard), wanted.split(shard), strict=True):
                    scale = theirs.abs().mean().expand_as(mine)
                    torch.testing.assert_close(mine, scale * theirs.sign(), rtol=1e-6, atol=1e-9)
            mean = torch.stack(said).mean(0)
            servers = [
                torch.cat([kept[step][when][len(shapes) + i] for kept in found])[: mean.numel()]
                for when in (0, 2)
            ]
            torch.testing.assert_close(
                results[0].view(-1) + servers[1], mean + servers[0], rtol=1e-12, atol=1e-12
            )


# ---- nothing is lost, only late


@pytest.mark.many_steps
def test_with_feedback_the_average_over_time_is_what_was_asked(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """The same gradient again and again: without feedback the bias stays, with it it fades as 1/steps."""
    world_size, steps, shape = 3, 200, (24, 18)

    def asked(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed + rank)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def averages(feedback: bool) -> dict[str, torch.Tensor]:
        rank, n = dist.get_rank(), dist.get_world_size()
        gradient = here(asked(rank))
        error, coarse = torch.zeros_like(gradient), torch.zeros_like(gradient)
        signs = torch.zeros_like(gradient)
        server = gradient.new_zeros(shard_size(gradient.numel(), n))
        low_rank = compression.PowerSGD(2, error_feedback=feedback)
        sums = {name: torch.zeros_like(gradient) for name in ("topk", "int8", "sign", "powersgd")}
        for _ in range(steps):
            for kept in () if feedback else (error, coarse, signs, server):
                kept.zero_()
            one = {name: gradient.clone() for name in sums}
            compression.topk_all_reduce(one["topk"], 0.1, error)
            compression.int8_all_reduce(one["int8"], coarse)
            compression.sign_all_reduce([one["sign"]], [signs], [server])
            low_rank.all_reduce([one["powersgd"]])
            for name, total in sums.items():
                total += one[name]
        return {name: (total / steps).cpu() for name, total in sums.items()}

    require_ranks(world_size)
    found = launch(
        lambda: (averages(False), averages(True)),
        world_size=world_size,
        backend=backend,
        timeout=180,
    )
    mean = torch.stack([asked(r) for r in range(world_size)]).mean(0)
    for name in ("topk", "int8", "sign", "powersgd"):
        without, with_it = (float((found[0][i][name] - mean).norm() / mean.norm()) for i in (0, 1))
        print(f"{name}: off by {without:.4f} without feedback, {with_it:.4f} with it")
        assert with_it < 0.2 * without, name


@pytest.mark.many_steps
def test_without_feedback_training_stalls_with_it_it_converges(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """Rank r minimises |x - a_r|^2 / 2. In one element the ranks pull apart with a force that cancels in the
    mean, but fills top-1 and sets int8's scale: the elements on which they agree are never sent."""
    size, steps = 16, 600
    heard = slice(1, size // 2)  # of rank 0's shard, where int8's scale is that of the pull

    def target(rank: int, pull: float = 0.0) -> torch.Tensor:
        drawn = torch.rand(size, generator=torch.Generator().manual_seed(seed))
        common = (1 + drawn) * draw(seed, size).sign().float()
        common[0] = pull if rank == 0 else -pull
        return common

    def minimise(kind: str, feedback: bool) -> float:
        a = here(target(dist.get_rank(), 10.0 if kind == "topk" else 1000.0))
        x, error = torch.zeros_like(a), torch.zeros_like(a)
        for step in range(steps):
            gradient = x - a
            if not feedback:
                error.zero_()
            if kind == "topk":
                compression.topk_all_reduce(gradient, 1 / size, error)
            else:
                compression.int8_all_reduce(gradient, error)
            x -= gradient * 0.05 / (1 + step / 50)
        return float((x - a)[heard].abs().max())

    def body() -> list[float]:
        return [minimise(kind, feedback) for kind in ("topk", "int8") for feedback in (False, True)]

    require_ranks(2)
    ends = launch(body, world_size=2, backend=backend, timeout=120)[0]
    topk_without, topk_with, int8_without, int8_with = ends
    start = float(target(0)[heard].abs().max())
    print(f"from {start:.3f} to {ends}")
    assert topk_without == int8_without == pytest.approx(start)
    assert topk_with < 0.25 * start
    assert int8_with < 0.25 * start


# ---- PowerSGD


@pytest.mark.parametrize("world_size", WORLDS)
def test_powersgd(world_size: int, seed: int, backend: str, require_ranks: RequireRanks):
    """Vectors and matrices of low rank are averaged exactly; the error of the others is kept, in the mean."""
    shapes = [(12, 9), (9,), (6, 4, 3, 3), (), (2, 2), (0, 3), (40, 5)]
    compressed = [0, 2, 6]

    def asked(rank: int, step: int) -> list[torch.Tensor]:
        drawn = [draw(seed + 1000 * rank + 50 * step + i, *s) for i, s in enumerate(shapes)]
        drawn[6] = draw(seed + rank, 40, 1) @ draw(seed, 1, 5)  # the mean over ranks has rank 1
        if step == 0:
            drawn[0].zero_()
        return drawn

    def body() -> list:
        compressor, kept = compression.PowerSGD(2), []
        errors = [torch.zeros(12, 9), torch.zeros(6, 36), torch.zeros(40, 5)]
        for step in range(4):
            gradients = [here(one) for one in asked(dist.get_rank(), step)]
            compressor.all_reduce(gradients)
            if step == 1:  # a gradient of zero has left no error and the first Q
                alone = [here(asked(dist.get_rank(), step)[0])]
                compression.PowerSGD(2).all_reduce(alone)
                torch.testing.assert_close(gradients[0], alone[0], rtol=1e-9, atol=1e-9)
            before, errors = errors, [one.cpu().clone() for one in compressor.errors]
            kept.append(([one.cpu() for one in gradients], before, errors))
        return kept

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    for step in range(4):
        means = [
            torch.stack(list(of)).mean(0)
            for of in zip(*(asked(r, step) for r in range(world_size)), strict=True)
        ]
        results = [kept[step][0] for kept in found]
        for i, mean in enumerate(means):
            assert same_bits([one[i] for one in results])
            if i not in compressed or i == 6:
                torch.testing.assert_close(results[0][i], mean, rtol=1e-9, atol=1e-9)
        for place, i in enumerate(compressed):
            before, after = (
                torch.stack([kept[step][when][place].double() for kept in found]).mean(0)
                for when in (1, 2)
            )
            result = results[0][i].reshape(after.shape)
            assert torch.linalg.matrix_rank(result) <= 2
            wanted = means[i].reshape(after.shape) + before
            torch.testing.assert_close(result + after, wanted, rtol=1e-9, atol=1e-9)


def test_warm_start_finds_the_best_factors(seed: int, backend: str, require_ranks: RequireRanks):
    """The same matrix again and again: Q turns to the leading singular vectors, against torch's SVD."""

    def body(warm_start: bool) -> list[float]:
        u, v = (torch.linalg.qr(draw(seed + i, rows, 20)).Q for i, rows in enumerate((30, 20)))
        matrix = u @ torch.diag(0.7 ** torch.arange(20, dtype=torch.float64)) @ v.T
        compressor = compression.PowerSGD(3, warm_start=warm_start, error_feedback=False)
        missed = []
        for _ in range(25):
            gradient = here(matrix.clone())
            compressor.all_reduce([gradient])
            missed.append(float((matrix - gradient.cpu()).norm()))
        best = torch.linalg.svdvals(matrix)[3:].norm()
        return [one / float(best) for one in missed]

    require_ranks(2)
    warm = launch(body, True, world_size=2, backend=backend)[0]
    cold = launch(body, False, world_size=2, backend=backend)[0]
    assert warm[-1] == pytest.approx(1, abs=1e-3)
    assert min(warm) >= 1 - 1e-9
    assert sum(cold) / len(cold) > 1.02


def test_powersgd_goes_on_where_it_was_saved(seed: int):
    def body() -> bool:
        def gradients(step: int) -> list[torch.Tensor]:
            return [draw(seed + step + 10 * dist.get_rank(), 8, 6), draw(seed + step, 3)]

        first, second = compression.PowerSGD(2), compression.PowerSGD(2, seed=5)
        for step in range(3):
            first.all_reduce(gradients(step))
        second.load_state_dict(first.state_dict())
        a, b = gradients(3), gradients(3)
        first.all_reduce(a)
        second.all_reduce(b)
        return all(map(torch.equal, a, b)) and all(map(torch.equal, first.errors, second.errors))

    assert list(launch(body, world_size=2, backend="gloo")) == [True, True]


# ---- 1-bit Adam


def say(asked: torch.Tensor, n: int) -> torch.Tensor:
    """Signs of the flat tensor, with the mean magnitude (a float32) of each rank's shard."""
    shard = shard_size(asked.numel(), n)
    parts = [
        part.abs().mean().float().double() * (2 * (part >= 0) - 1) for part in asked.split(shard)
    ]
    return torch.cat(parts)


def one_bit_adam(start: torch.Tensor, gradients, n: int, steps: int, warmup: int) -> torch.Tensor:
    """Algorithm 1 of the paper in one process, in float64, with Adam's bias correction."""
    x, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    errors, server = [torch.zeros_like(start) for _ in range(n)], torch.zeros_like(start)
    for t in range(1, steps + 1):
        own = [gradients(rank, t, x) for rank in range(n)]
        if t <= warmup:
            mean = torch.stack(own).mean(0)
            m, v = 0.9 * m + 0.1 * mean, 0.99 * v + 0.01 * mean**2
        else:
            asked = [0.9 * m + 0.1 * g + e for g, e in zip(own, errors, strict=True)]
            said = [say(one, n) for one in asked]
            errors = [a - s for a, s in zip(asked, said, strict=True)]
            mean = torch.stack(said).mean(0) + server
            m = say(mean, n)
            server = mean - m
        variance = v / (1 - 0.99 ** min(t, warmup))
        x = x - 0.01 / (1 - 0.9**t) * m / (variance.sqrt() + 1e-8)
    return x


@pytest.mark.parametrize("world_size", WORLDS)
def test_one_bit_adam_is_adam_and_then_the_papers_algorithm(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    size, steps, warmup = random.Random(seed).randrange(5, 90), 14, 6
    start = draw(seed, size)

    def gradient(rank: int, t: int, x: torch.Tensor) -> torch.Tensor:
        return x - draw(seed + 1 + rank, size) + draw(seed + 100 * t + rank, size)

    def body() -> list[torch.Tensor]:
        p = nn.Parameter(here(start.clone()))
        frozen = nn.Parameter(here(start.clone()), requires_grad=False)
        optimizer = compression.OneBitAdam([p, frozen], 0.01, (0.9, 0.99), warmup_steps=warmup)
        after = []
        for t in range(1, steps + 1):
            p.grad = here(gradient(dist.get_rank(), t, p.detach().cpu()))
            before = p.grad.clone()
            assert optimizer.step() is None
            assert torch.equal(p.grad, before)
            after.append(p.detach().cpu().clone())
        assert torch.equal(frozen.cpu(), start)
        return after

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    assert all(same_bits(list(step)) for step in zip(*found, strict=True))
    adam_p = nn.Parameter(start.clone())
    adam = torch.optim.Adam([adam_p], lr=0.01, betas=(0.9, 0.99))
    for t in range(1, warmup + 1):
        own = [gradient(r, t, adam_p.detach()) for r in range(world_size)]
        adam_p.grad = torch.stack(own).mean(0)
        adam.step()
    torch.testing.assert_close(found[0][warmup - 1], adam_p.detach(), rtol=1e-10, atol=1e-12)
    wanted = one_bit_adam(start, gradient, world_size, steps, warmup)
    torch.testing.assert_close(found[0][-1], wanted, rtol=1e-8, atol=1e-10)


def test_one_bit_adam_state_groups_and_elements_without_variance(seed: int):
    def body() -> list[bool]:
        rank = dist.get_rank()
        a, b = nn.Parameter(draw(seed, 6, 4)), nn.Parameter(draw(seed + 1, 5))
        optimizer = compression.OneBitAdam(
            [{"params": [a], "lr": 0.1}, {"params": [b]}], lr=0.0, warmup_steps=2
        )
        kept = b.detach().clone()

        def step(
            t: int, a: nn.Parameter, b: nn.Parameter, optimizer: compression.OneBitAdam
        ) -> float:
            def closure() -> float:
                loss = (a[1:] - draw(seed + 7 * t + rank, 5, 4)).square().sum() + b.sum()
                optimizer.zero_grad()
                loss.backward()
                return loss.item()

            return optimizer.step(closure)

        first_row = a[0].detach().clone()
        values = [step(t, a, b, optimizer) for t in range(5)]
        still = torch.equal(a[0], first_row) and torch.equal(b, kept) and values[0] > 0
        a2, b2 = nn.Parameter(a.detach().clone()), nn.Parameter(b.detach().clone())
        other = compression.OneBitAdam([{"params": [a2]}, {"params": [b2]}], warmup_steps=2)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch shares tensors
        for t in range(5, 8):
            step(t, a, b, optimizer)
            step(t, a2, b2, other)
        return [still, torch.equal(a, a2), bool((a[1:] != draw(seed, 6, 4)[1:]).all())]

    assert list(launch(body, world_size=2, backend="gloo")) == [[True, True, True]] * 2


# ---- what is sent


@pytest.mark.parametrize("world_size", WORLDS)
def test_bytes_are_those_of_the_closed_forms(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """To the byte on every rank, indices and scales included."""
    rng, n = random.Random(seed), world_size
    numel, fraction, rank_of_q = (
        rng.randrange(300, 5000),
        rng.uniform(0.01, 0.3),
        rng.randrange(1, 4),
    )
    shapes = [(rng.randrange(8, 40), rng.randrange(8, 40)), (5,), (4, 3, 3, 3), (2, 2), (1, 30)]
    numels = [math.prod(shape) for shape in shapes]

    def zeros(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return here(torch.zeros(numel, dtype=dtype))

    def body() -> None:
        tensors = [here(torch.zeros(shape)) for shape in shapes]
        params = [nn.Parameter(t.clone()) for t in tensors]
        compressor = compression.PowerSGD(rank_of_q)
        adam = compression.OneBitAdam(params, warmup_steps=1)
        calls = [
            lambda: compression.topk_all_reduce(zeros(), fraction, zeros()),
            lambda: compression.topk_all_reduce(zeros(torch.bfloat16), fraction, zeros()),
            lambda: compression.int8_all_reduce(zeros(), zeros()),
            lambda: compression.int8_all_reduce(zeros(torch.bfloat16), zeros(), block=64),
            lambda: compressor.all_reduce(tensors),
            lambda: compressor.all_reduce(tensors),
            lambda: adam.step(),
            lambda: adam.step(),
        ]
        dist.barrier()
        for call in calls:
            call()
            dist.barrier()

    wanted = [
        (["all_gather"] * 2, facts.topk_bytes(n, numel, fraction)),
        (["all_gather"] * 2, facts.topk_bytes(n, numel, fraction, itemsize=2)),
        (["all_to_all", "all_gather"], facts.int8_bytes(n, numel)),
        (["all_to_all", "all_gather"], facts.int8_bytes(n, numel, 64)),
        (["all_reduce"] * 2, facts.powersgd_bytes(n, shapes, rank_of_q)),
        (["all_reduce"] * 2, facts.powersgd_bytes(n, shapes, rank_of_q)),
        (["all_reduce"], facts.uncompressed_bytes(n, sum(numels))),
        (["all_to_all", "all_gather"], facts.sign_bytes(n, numels)),
    ]
    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend, timeout=120)
    _, *parts = segments(found.ledger, world_size)
    for part, (operations, nbytes) in zip(parts, wanted, strict=True):
        for rank in range(world_size):
            assert [one.op for one in part.operations(rank)] == operations
            assert part.bytes_sent(rank) == pytest.approx(nbytes, rel=1e-12)


def test_closed_forms():
    """Against figures worked out by hand."""
    assert facts.uncompressed_bytes(8, 7 * 10**9) == 49e9
    assert facts.topk_bytes(8, 7 * 10**9, 0.01) == pytest.approx(3.92e9)
    assert facts.topk_bytes(2, 10**6, 0.01) * 50 == facts.uncompressed_bytes(2, 10**6)
    assert facts.topk_break_even(0.01) == pytest.approx(100)
    assert facts.topk_bytes(100, 10**6, 0.01) == pytest.approx(facts.uncompressed_bytes(100, 10**6))
    assert (facts.topk_count(3, 0.01), facts.topk_count(0, 0.5), facts.topk_count(100, 0.07)) == (
        1,
        0,
        7,
    )
    assert facts.int8_bytes(8, 7 * 10**9) == pytest.approx(12.44e9, rel=1e-3)
    assert facts.int8_bytes(4, 10, 2) == 2 * 3 * (3 + 2 * 4)
    assert facts.int8_gather_bytes(8, 10**9) > facts.uncompressed_bytes(8, 10**9)
    assert facts.int8_gather_bytes(7, 10**9) < facts.uncompressed_bytes(7, 10**9)
    assert facts.powersgd_bytes(8, [(4096, 4096)], 4) == 229_376
    assert facts.powersgd_bytes(8, [(4096, 4096)], 4) * 512 == facts.uncompressed_bytes(8, 4096**2)
    assert [facts.powersgd_elements(s, 2) for s in ((), (7,), (3, 3), (8, 4, 4), (0, 5), (1, 9))] == [
        1, 7, 9, 48, 0, 9
    ]  # fmt: skip
    assert facts.sign_bytes(8, [7 * 10**9]) == pytest.approx(49e9 / 32, rel=1e-6)
    assert facts.sign_bytes(3, [1, 25]) == 2 * 2 * (1 + 4) + 2 * 2 * (2 + 4)
    assert facts.one_bit_adam_ratio(0.15) == pytest.approx(4.9, abs=0.05)
    assert facts.one_bit_adam_ratio(1.0) == 1


# ---- models that train


@pytest.mark.many_steps
def test_a_model_trains_as_well_for_less(seed: int, backend: str, require_ranks: RequireRanks):
    """A classifier on four ranks with data of their own: loss and bytes against the uncompressed average."""
    n, steps = 4, 120
    ways = ("sgd", "topk", "int8", "powersgd", "adam", "one_bit_adam")

    def train(way: str) -> tuple[list[float], torch.Tensor]:
        rank = dist.get_rank()
        teacher, inputs = (
            draw(seed, 32, 4),
            torch.randn(
                256,
                32,
                generator=torch.Generator().manual_seed(seed + 1 + rank),
                dtype=torch.float64,
            ),
        )
        labels = (inputs @ teacher).argmax(1).to(course_lib.device())
        features = here(inputs.float())
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 4)).to(
            course_lib.device()
        )
        params = list(model.parameters())
        errors = [torch.zeros_like(p) for p in params]
        powersgd = compression.PowerSGD(2)
        if way == "one_bit_adam":
            optimizer = compression.OneBitAdam(params, 3e-3, warmup_steps=steps // 4)
        elif way == "adam":
            optimizer = torch.optim.Adam(params, 3e-3)
        else:
            optimizer = torch.optim.SGD(params, 0.2, momentum=0.9)
        losses = []
        for step in range(steps):
            rows = torch.arange(64) + 64 * (step % 4)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features[rows]), labels[rows])
            loss.backward()
            gradients = [cast(torch.Tensor, p.grad) for p in params]
            if way == "powersgd":
                powersgd.all_reduce(gradients)
            for gradient, error in zip(gradients, errors, strict=True):
                if way == "topk":
                    compression.topk_all_reduce(gradient, 0.05, error)
                elif way == "int8":
                    compression.int8_all_reduce(gradient, error)
                elif way in ("sgd", "adam"):
                    dist.all_reduce(gradient)
                    gradient /= n
            optimizer.step()
            losses.append(loss.item())
        return losses, torch.cat([p.detach().view(-1) for p in params]).cpu()

    def body() -> dict:
        dist.barrier()
        done = {}
        for way in ways:
            done[way] = train(way)
            dist.barrier()
        return done

    require_ranks(n)
    found = launch(body, world_size=n, backend=backend, timeout=180)
    _, *parts = segments(found.ledger, n)
    first, last, sent = {}, {}, {}
    for way, part in zip(ways, parts, strict=True):
        assert same_bits([one[way][1] for one in found]), way
        curve = torch.tensor([one[way][0] for one in found]).mean(0)
        first[way], last[way] = float(curve[:4].mean()), float(curve[-4:].mean())
        sent[way] = part.bytes_sent(0)
        print(f"{way}: loss {first[way]:.3f} -> {last[way]:.3f}, {sent[way]:,} bytes a rank")
    for way in ways:
        base = "adam" if "adam" in way else "sgd"
        assert last[way] < 0.4 * first[way], way
        assert last[way] < last[base] + (0.2 if way == "one_bit_adam" else 0.1) * first[base], way
    shapes, numels = [(48, 32), (48,), (4, 48), (4,)], [48 * 32, 48, 4 * 48, 4]
    dense = facts.uncompressed_bytes(n, sum(numels))
    assert sent["sgd"] == sent["adam"] == pytest.approx(steps * dense)
    assert sent["topk"] == steps * sum(facts.topk_bytes(n, k, 0.05) for k in numels)
    assert sent["int8"] == steps * sum(facts.int8_bytes(n, k) for k in numels)
    assert sent["powersgd"] == pytest.approx(steps * facts.powersgd_bytes(n, shapes, 2))
    warmup = steps // 4
    expected = warmup * dense + (steps - warmup) * facts.sign_bytes(n, numels)
    assert sent["one_bit_adam"] == pytest.approx(expected)


# ---- every kind of input


def test_dtypes_strides_groups_and_overflow(seed: int, backend: str, require_ranks: RequireRanks):
    def body() -> list[str]:
        problems: list[str] = []
        rank = dist.get_rank()
        group = cast(dist.ProcessGroup, dist.new_group([1, 3]))

        def close(
            found: torch.Tensor, wanted: torch.Tensor, tolerance: float, *case: object
        ) -> None:
            off = (found.cpu().double() - wanted).abs().max() / wanted.abs().max()
            if not off <= tolerance:
                problems.append(f"{case}: off by {off}")

        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            all_of = [draw(seed + r, 6, 10).clamp(-8, 8).to(dtype) for r in range(4)]
            mean = torch.stack(all_of).double().mean(0)
            for error_dtype in (torch.float32, dtype):
                tensor, error = (
                    here(all_of[rank].clone()),
                    here(torch.zeros(6, 10, dtype=error_dtype)),
                )
                compression.topk_all_reduce(tensor, 1.0, error)
                close(tensor, mean, 1e-2, "topk", dtype)
                tensor = here(all_of[rank].clone())
                compression.int8_all_reduce(tensor, error.zero_())
                close(tensor, mean, 0.1, "int8", dtype)
                assert tensor.dtype == dtype and error.dtype == error_dtype
            tensor = here(all_of[rank].clone())
            compression.PowerSGD(6).all_reduce([tensor, here(all_of[rank][0].clone())])
            close(tensor, mean, 2e-2, "powersgd", dtype)

        whole = here(draw(seed + rank, 10, 6, dtype=torch.float32))
        view, untouched = whole.T[::2], whole.T[1::2].clone()
        compression.topk_all_reduce(view, 1.0, torch.zeros_like(view))
        wide = torch.stack([draw(seed + r, 10, 6).T[::2] for r in range(4)]).mean(0)
        close(view, wide, 1e-5, "strided topk")
        compression.int8_all_reduce(view, torch.zeros_like(view))
        close(view, wide, 0.02, "strided int8")
        if not torch.equal(whole.T[1::2], untouched):
            problems.append("elements beside the view were written")

        if rank in (1, 3):
            pair = torch.stack([draw(seed + r, 40) for r in (1, 3)]).mean(0)
            for average in (
                lambda t: compression.topk_all_reduce(t, 1.0, torch.zeros_like(t), group),
                lambda t: compression.int8_all_reduce(t, torch.zeros_like(t), group, block=1),
                lambda t: compression.PowerSGD(2, group=group).all_reduce([t]),
            ):
                tensor = here(draw(seed + rank, 40, dtype=torch.float32))
                average(tensor)
                close(tensor, pair, 0.02, "group")

        for bad in (math.inf, math.nan):
            tensor, errors = here(torch.ones(20)), [here(torch.ones(20)) for _ in range(3)]
            if rank == 2:
                tensor[7] = bad
            servers = [tensor.new_zeros(shard_size(20, 4))]
            first, second, third = tensor.clone(), tensor.clone(), tensor.clone().view(4, 5)
            compression.topk_all_reduce(first, 0.2, errors[0])
            compression.int8_all_reduce(second, errors[1])
            fourth = [tensor.clone()]
            compression.sign_all_reduce(fourth, [errors[2]], servers)
            compressor = compression.PowerSGD(1)
            compressor.all_reduce([third])
            results = {"topk": first, "int8": second, "powersgd": third, "sign": fourth[0]}
            for name, result in results.items():
                if result.isfinite().all():
                    problems.append(f"{name}: an overflow of rank 2 is not seen on rank {rank}")
            if not all(e.isfinite().all() for e in (*errors, *servers, *compressor.errors)):
                problems.append(f"{bad} is remembered")
            again = here(torch.ones(4, 5))
            compressor.all_reduce([again])
            if not again.isfinite().all():
                problems.append(f"{bad} stays in Q")
        return problems

    require_ranks(4)
    found = launch(body, world_size=4, backend=backend, timeout=120)
    assert not [problem for problems in found for problem in problems]


def wrong_calls() -> dict[str, tuple[Callable[[], object], type[Exception], str]]:
    """name: (call, error, part of the sentence)."""
    two, three, whole = torch.zeros(2), torch.zeros(3), torch.zeros(2, dtype=torch.int64)
    half = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    full = nn.Parameter(two)
    used = compression.PowerSGD(1)
    used._shapes = [torch.Size([9])]
    return {
        "fraction": (lambda: compression.topk_all_reduce(two, 0, two), ValueError, r"fraction=0.*\(0, 1\]"),
        "percent": (lambda: compression.topk_all_reduce(two, 5, two), ValueError, "fraction=5"),
        "error's shape": (lambda: compression.topk_all_reduce(two, 1, three), ValueError, r"error \(3,\)"),
        "no error": (lambda: compression.int8_all_reduce(two, None), TypeError, "error is a NoneType"),  # type: ignore[arg-type]
        "no tensor": (lambda: compression.int8_all_reduce([1.0], two), TypeError, "tensor is a list"),  # type: ignore[arg-type]
        "integers": (lambda: compression.int8_all_reduce(whole, two), ValueError, "int64.*floating"),
        "sparse": (lambda: compression.topk_all_reduce(two.to_sparse(), 1, two), ValueError, "dense"),
        "block": (lambda: compression.int8_all_reduce(two, two, block=0), ValueError, "block=0"),
        "rank": (lambda: compression.PowerSGD(0), ValueError, "rank=0"),
        "kinds": (lambda: compression.PowerSGD(1).all_reduce([two, half]), ValueError, "several kinds"),
        "shapes": (lambda: used.all_reduce([two]), ValueError, "in the call before"),
        "a gradient": (lambda: compression.PowerSGD(1).all_reduce([None]), TypeError, "NoneType"),  # type: ignore[list-item]
        "no warm-up": (lambda: compression.OneBitAdam([full], warmup_steps=0), ValueError, "at least one"),
        "lr": (lambda: compression.OneBitAdam([full], -1.0, warmup_steps=1), ValueError, "lr=-1.0"),
        "half": (lambda: compression.OneBitAdam([half], warmup_steps=1), ValueError, "float32 copy"),
        "mixed": (lambda: compression.OneBitAdam([full, half], warmup_steps=1), ValueError, "share one"),
        "nothing": (lambda: compression.OneBitAdam([], warmup_steps=1), ValueError, "empty parameter list"),
        "server": (lambda: compression.sign_all_reduce([two], [two], [two]), ValueError, "shards of 8"),
    }  # fmt: skip


def test_wrong_calls_are_told_what_is_wrong_before_anything_is_sent():
    def body() -> list[str]:
        problems = []
        for name, (call, kind, sentence) in wrong_calls().items():
            try:
                call()
            except kind as error:
                if not re.search(sentence, str(error)):
                    problems.append(f"{name}: {error}")
            else:
                problems.append(f"{name}: not refused")
        return problems

    found = launch(body, world_size=2, backend="gloo")
    assert [p for problems in found for p in problems] == []
    assert not found.ledger.operations()
