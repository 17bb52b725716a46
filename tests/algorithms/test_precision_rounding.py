"""stochastic_round: neighbours, expected values, and replicas with equal generators."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import device, launch
from course_lib.precision import stochastic_round


def test_replicas_with_equal_generators_round_as_one_process() -> None:
    weights = torch.linspace(1, 2, 1000)

    def rounded() -> Tensor:
        return stochastic_round(weights, torch.Generator().manual_seed(7))

    for result in launch(rounded, world_size=2, backend="gloo"):
        assert torch.equal(result, rounded())


def of_bits(*bits: int) -> Tensor:
    return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)


def neighbours(x: Tensor) -> tuple[Tensor, Tensor]:
    """Towards zero and away from it, by the definition of bfloat16: the upper half of a float32."""
    bits = x.view(torch.int32)
    down = bits >> 16 << 16
    up = torch.where(bits == down, down, down + (1 << 16))
    return down.view(torch.float32), up.view(torch.float32)


def test_every_value_is_one_of_two_neighbours(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(100_000, generator=generator)
    x = x * torch.exp2(torch.randint(-140, 120, x.shape, generator=generator).float())
    rounded = stochastic_round(x, generator).float()
    down, up = neighbours(x)
    assert bool(((rounded == down) | (rounded == up)).all())
    assert bool((rounded == down).any()) and bool((rounded == up).any())


@pytest.mark.parametrize("start", [0x3F800000, 0xBF800000, 0x00010000, 0x80000000, 0x7F000000])
@pytest.mark.parametrize("low", [0, 1, 100, 0x4000, 0x8000, 0xC001, 0xFFFF])
def test_it_goes_up_as_often_as_the_lower_half_says(start: int, low: int, seed: int) -> None:
    count, p = 200_000, low / 65536
    value = start + low - (1 << 32 if start >> 31 else 0)
    x = of_bits(value).expand(count)
    rounded = stochastic_round(x, torch.Generator().manual_seed(seed)).float()
    ups = int((rounded == neighbours(x)[1]).sum()) if low else 0
    assert abs(ups - count * p) <= 6 * math.sqrt(count * p * (1 - p)) + 10


def test_exact_values_infinities_and_nan_stay(seed: int) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32) << 16
    nan = of_bits(0x7F800001, 0x7FFFFFFF, -1, 0x7FC00000)
    x = torch.cat([every.view(torch.float32), nan])
    rounded = stochastic_round(x, torch.Generator().manual_seed(seed))
    same = rounded.view(torch.int16) == x.to(torch.bfloat16).view(torch.int16)
    assert bool((same | (rounded.isnan() & x.isnan())).all())
    assert bool(rounded[-4:].isnan().all())


def test_a_thousand_small_steps_arrive(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    nearest = torch.ones(400, dtype=torch.bfloat16)
    stochastic = nearest.clone()
    for _ in range(1000):
        nearest = (nearest.float() - 1e-3).bfloat16()
        stochastic = stochastic_round(stochastic.float() - 1e-3, generator)
    assert bool((nearest == 1).all())
    assert abs(float(stochastic.float().mean())) < 0.02


def test_the_generator_decides_alone(seed: int) -> None:
    x = torch.randn(1000)
    before = torch.get_rng_state()
    first, again, other = (
        stochastic_round(x, torch.Generator().manual_seed(number)) for number in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(seed)
    first = stochastic_round(x.t())
    torch.manual_seed(seed)
    assert torch.equal(first, stochastic_round(x.t()))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match=r"must be torch\.float32"):
        stochastic_round(torch.zeros(1, dtype=torch.float64))


def test_replicas_with_equal_generators_stay_equal(
    backend: str, require_ranks: Callable[[int], None]
) -> None:
    require_ranks(2)

    def job() -> tuple[list[float], list[float]]:
        weights = [torch.ones(64, dtype=torch.bfloat16, device=device()) for _ in range(2)]
        own = torch.Generator(device()).manual_seed(dist.get_rank())
        shared = torch.Generator(device()).manual_seed(7)
        for _ in range(5):
            for kind, generator in enumerate((own, shared)):
                weights[kind] = stochastic_round(weights[kind].float() - 1e-3, generator)
        return weights[0].tolist(), weights[1].tolist()

    (own_0, shared_0), (own_1, shared_1) = launch(job, world_size=2, backend=backend)
    assert own_0 != own_1 and shared_0 == shared_1
