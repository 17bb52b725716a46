"""Adam8bit and its codes, against bitsandbytes' published table, AdamW, and an emulation in float64."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.precision import (
    DYNAMIC_SIGNED,
    DYNAMIC_UNSIGNED,
    Adam8bit,
    dynamic_map,
    linear_map,
)
from course_lib.precision.eight_bit import SMALL, decode, encode

# The numbers between 0 and 1 of bitsandbytes' signed map, as published (six digits), decade by decade.
PUBLISHED = """
5.5e-7
3.25e-6 7.75e-6
2.125e-5 4.375e-5 6.625e-5 8.875e-5
1.5625e-4 2.6875e-4 3.8125e-4 4.9375e-4 6.0625e-4 7.1875e-4 8.3125e-4 9.4375e-4
1.28125e-3 1.84375e-3 2.40625e-3 2.96875e-3 3.53125e-3 4.09375e-3 4.65625e-3 5.21875e-3
5.78125e-3 6.34375e-3 6.90625e-3 7.46875e-3 8.03125e-3 8.59375e-3 9.15625e-3 9.71875e-3
.0114063 .0142188 .0170313 .0198438 .0226563 .0254687 .0282813 .0310938
.0339063 .0367188 .0395312 .0423437 .0451563 .0479687 .0507813 .0535938
.0564062 .0592188 .0620313 .0648437 .0676563 .0704687 .0732813 .0760937
.0789063 .0817188 .0845312 .0873438 .0901563 .0929687 .0957813 .0985937
.1070313 .1210938 .1351562 .1492188 .1632813 .1773437 .1914063 .2054687
.2195313 .2335937 .2476562 .2617188 .2757813 .2898437 .3039063 .3179688
.3320313 .3460937 .3601562 .3742188 .3882813 .4023437 .4164062 .4304687
.4445313 .4585937 .4726563 .4867187 .5007812 .5148437 .5289062 .5429688
.5570313 .5710938 .5851563 .5992188 .6132813 .6273438 .6414063 .6554688
.6695313 .6835938 .6976563 .7117188 .7257813 .7398438 .7539063 .7679688
.7820313 .7960938 .8101563 .8242188 .8382813 .8523438 .8664063 .8804688
.8945313 .9085938 .9226563 .9367188 .9507813 .9648438 .9789063 .9929688
"""


@pytest.mark.parametrize("fault", [float("inf"), float("nan")])
def test_a_fault_stays_in_the_moments_and_in_its_block(fault: float) -> None:
    x = torch.ones(4)
    x[1] = fault
    back = decode(*encode(x, DYNAMIC_SIGNED, 2), DYNAMIC_SIGNED, 2)
    assert back.isnan().tolist() == [True, True, False, False]


def test_the_signed_map_is_the_published_one() -> None:
    half = [float(number) for number in PUBLISHED.split()]
    assert len(half) == 127
    wanted = torch.tensor([-x for x in reversed(half)] + [0.0, *half, 1.0])
    assert torch.allclose(DYNAMIC_SIGNED, wanted, rtol=1e-5, atol=0)
    assert float(DYNAMIC_SIGNED[0]) == pytest.approx(-0.992968738, abs=1e-9)


@pytest.mark.parametrize("made", [dynamic_map, linear_map])
@pytest.mark.parametrize("signed", [True, False])
def test_a_map_has_256_numbers_in_order(made: Callable[[bool], Tensor], signed: bool) -> None:
    numbers = made(signed)
    assert numbers.shape == (256,) and numbers.dtype == torch.float32
    assert (numbers.diff() >= 0).all() and 0.0 in numbers.tolist()
    assert float(numbers[-1]) == 1 and float(numbers[0]) == pytest.approx(
        (-0.992969 if made is dynamic_map else -1) if signed else 0, abs=1e-6
    )


def test_the_unsigned_map_reaches_over_seven_decades() -> None:
    numbers = DYNAMIC_UNSIGNED
    assert float(numbers[1]) == pytest.approx(3.25e-7, rel=1e-6)
    for i in range(7):
        inside = (numbers > 10.0 ** (i - 7)) & (numbers < 10.0 ** (i - 6) * (1 - 1e-6))
        assert int(inside.sum()) == 2 ** (i + 1)


@pytest.mark.parametrize("block", [1, 64, 256, 5000])
@pytest.mark.parametrize("size", [1, 255, 256, 4100])
def test_encode_takes_the_nearest_number(size: int, block: int, seed: int) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed)) ** 3
    x[: min(size, block) // 2] *= 1e-4
    codes, scales = encode(x, DYNAMIC_SIGNED, block)
    assert (codes.dtype, codes.shape) == (torch.uint8, (size,))
    assert torch.equal(scales, torch.stack([part.abs().max() for part in x.split(block)]))
    back = decode(codes, scales, DYNAMIC_SIGNED, block)
    each = scales.repeat_interleave(block)[:size]
    distance = (x[:, None] / each[:, None] - DYNAMIC_SIGNED).abs()
    assert ((back / each - x / each).abs() <= distance.amin(1) + 1e-7).all()
    zeros = decode(*encode(torch.zeros(300), DYNAMIC_SIGNED, 256), DYNAMIC_SIGNED, 256)
    assert not zeros.any()


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in shapes]


def give(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param in params:
        sizes = torch.exp2(torch.randn(param.shape, generator=generator))
        param.grad = (sizes * torch.randn(param.shape, generator=generator)).to(param.dtype)


def test_the_first_step_and_small_parameters_are_adamws(seed: int) -> None:
    ours = drawn(seed, (70, 90), (SMALL - 1,), (64, 64))
    theirs = copy.deepcopy(ours)
    settings: dict[str, Any] = dict(lr=1e-2, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.1)
    optimizer, reference = Adam8bit(ours, **settings), torch.optim.AdamW(theirs, **settings)
    for step in range(4):
        for params in (ours, theirs):
            give(params, seed + step)
        optimizer.step()
        reference.step()
        pairs = list(zip(ours, theirs, strict=True))
        for a, b in pairs if step == 0 else pairs[1:2]:
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6)  # 8 bits lie between
    apart = (ours[0] - theirs[0]).abs()
    assert apart.square().mean().sqrt() < 5e-4  # of steps of 1e-2; 60 draws made 2.6e-4 to 3.0e-4
    assert apart.max() < 2e-2  # a single element can come to a step: one draw of 61 made 1.01e-2
    assert optimizer.state[ours[1]]["m"].dtype == torch.float32
    assert optimizer.state[ours[2]]["m"].dtype == torch.uint8  # 4,096 elements are enough


def nearest(x: Tensor, numbers: Tensor, block: int) -> Tensor:
    """`x` as codes and scales would give it back, in float64 and without them."""
    parts = []
    for part in x.flatten().split(block):
        scale = part.abs().max()
        places = (part[:, None] / scale - numbers.double()).abs().argmin(1)
        parts.append(numbers.double()[places] * scale)
    return torch.cat(parts).view_as(x)


@pytest.mark.parametrize("block", [64, 256, 2048])
def test_steps_are_those_of_an_emulation(block: int, seed: int) -> None:
    (param,) = params = drawn(seed, (67, 80))
    wanted = param.detach().double()
    m, v = torch.zeros_like(wanted), torch.zeros_like(wanted)
    optimizer = Adam8bit(params, lr=1e-2, weight_decay=0.05, block=block)
    for step in range(1, 4):
        give(params, seed + step)
        assert param.grad is not None
        gradient = param.grad.double()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        update = m / (1 - 0.9**step) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        wanted = wanted * (1 - 1e-2 * 0.05) - 1e-2 * update
        m, v = nearest(m, DYNAMIC_SIGNED, block), nearest(v, DYNAMIC_UNSIGNED, block)
        optimizer.step()
        # an element halfway between two numbers may take the other one
        off = (param.detach() - wanted).abs() > 1e-5
        assert int(off.sum()) <= 2, step


@pytest.mark.parametrize("block", [64, 256, 2048])
def test_states_have_two_bytes_a_parameter_and_the_scales(block: int, seed: int) -> None:
    (param,) = params = drawn(seed, (128, 515))
    optimizer = Adam8bit(params, block=block)
    give(params, seed)
    optimizer.step()
    held = sum(x.nbytes for x in optimizer.state[param].values() if isinstance(x, Tensor))
    assert held == 2 * param.numel() + 8 * -(-param.numel() // block)
    owned = {
        x.untyped_storage().nbytes()
        for x in optimizer.state[param].values()
        if isinstance(x, Tensor)
    }
    assert max(owned) == param.numel()  # no view of something larger


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_come_back_from_a_file(dtype: torch.dtype, seed: int) -> None:
    ours = [nn.Parameter(param.detach().to(dtype)) for param in drawn(seed, (70, 90), (30,))]
    optimizer = Adam8bit(ours, lr=1e-2)
    for step in range(3):
        give(ours, seed + step)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    theirs = copy.deepcopy(ours)
    again = Adam8bit(theirs, lr=5.0)
    file.seek(0)
    again.load_state_dict(torch.load(file))
    for a, b in zip(ours, theirs, strict=True):
        kinds = [
            {k: getattr(x, "dtype", x) for k, x in o.state[p].items()}
            for o, p in ((optimizer, a), (again, b))
        ]
        assert kinds[0] == kinds[1]
    for step in range(3, 5):
        for made, params in ((optimizer, ours), (again, theirs)):
            give(params, seed + step)
            made.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_parameter_without_a_gradient_is_skipped_and_a_block_of_zeros_stays() -> None:
    params = [nn.Parameter(torch.ones(5000)), nn.Parameter(torch.ones(5000))]
    optimizer = Adam8bit(params, lr=0.1)
    for _ in range(3):
        params[0].grad = torch.zeros(5000).index_fill(0, torch.arange(600, 5000), 1.0)
        optimizer.step()
    assert torch.equal(params[1], torch.ones(5000)) and params[1] not in optimizer.state
    assert torch.equal(params[0][:600], torch.ones(600)) and params[0].isfinite().all()
    with pytest.raises(ValueError, match="block=0"):
        Adam8bit(params, block=0)


def largest_update(codes: tuple[Tensor, Tensor], seed: int) -> float:
    """The largest change of a weight in 6 steps, in learning rates."""
    (param,) = params = drawn(seed, (80, 80))
    optimizer, most = Adam8bit(params, lr=1.0, codes=codes), 0.0
    for step in range(6):
        give(params, seed + step)
        with torch.no_grad():
            param.zero_()
        optimizer.step()
        most = max(most, float(param.detach().abs().max()))
    return most


def test_a_linear_map_for_v_takes_enormous_steps(seed: int) -> None:
    assert largest_update((DYNAMIC_SIGNED, DYNAMIC_UNSIGNED), seed) < 10
    assert largest_update((DYNAMIC_SIGNED, linear_map(False)), seed) > 100
