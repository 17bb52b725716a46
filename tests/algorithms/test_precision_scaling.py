"""quantize and dequantize against a loop over blocks, torch's casts, and one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import device, launch
from course_lib.precision import (
    BLOCKS,
    dequantize,
    dequantize_mx,
    quantize,
    quantize_mx,
)
from course_lib.precision.scaling import Block, extent


def test_two_halves_of_a_row_are_quantized_as_the_row() -> None:
    """Both ranks take the scale of the row, which is that of its largest element."""
    row = torch.tensor([[0.5, -2.54, 1.0, 0.02, 0.0, 0.3]])

    def job() -> tuple[Tensor, Tensor]:
        half = row.chunk(2, dim=1)[dist.get_rank()]
        return quantize(half, (1, -1), torch.int8, group=dist.group.WORLD)

    (left, scale), (right, other) = launch(job, world_size=2, backend="gloo")
    values, scales = quantize(row, (1, -1), torch.int8)
    assert torch.equal(torch.cat([left, right], dim=1), values)
    assert torch.equal(scale, scales) and torch.equal(other, scales)


RequireRanks = Callable[[int], None]
DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
ENDS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def drawn(seed: int, rows: int, columns: int) -> Tensor:
    """Magnitudes of many decades, one outlier, and a block of zeros at the end."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    x *= torch.exp2(8 * torch.randn(rows, columns, generator=generator).clamp(-2, 2))
    x[rows // 2, columns // 3] = -1e5
    x[-1, -3:] = 0
    return x


def block_by_block(x: Tensor, block: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The definition: a loop over blocks, torch's cast after a clamp."""
    rows, columns = (n if side == -1 else side for side, n in zip(block, x.shape, strict=True))
    values, end = torch.empty(x.shape, dtype=dtype), ENDS[dtype]
    scales = []
    for top in range(0, x.shape[0], rows):
        scales.append([])
        for left in range(0, x.shape[1], columns):
            part = x[top : top + rows, left : left + columns]
            amax = part.abs().max()
            scale = amax / end if amax > 0 else torch.tensor(1.0)
            scaled = (part / scale).clamp(-end, end)
            scaled = scaled.round() if dtype == torch.int8 else scaled
            values[top : top + rows, left : left + columns] = scaled.to(dtype)
            scales[-1].append(scale)
    return values, torch.stack([torch.stack(row) for row in scales])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block", [*BLOCKS.values(), (1, 32), (7, 11), (-1, 5), (300, 1)], ids=str)
@pytest.mark.parametrize("shape", [(130, 257), (3, 40), (1, 1)])
def test_it_is_a_loop_over_blocks(
    shape: tuple[int, int], block: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    x = drawn(seed, *shape)
    before = x.clone()
    values, scales = quantize(x, block, dtype)
    wanted, wanted_scales = block_by_block(x, block, dtype)
    assert torch.equal(values.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scales, wanted_scales) and torch.equal(x, before)
    assert (values.dtype, scales.dtype, values.shape) == (dtype, torch.float32, x.shape)
    back = dequantize(values, scales, block)
    assert back.dtype == torch.float32 and back.isfinite().all()
    if dtype == torch.float8_e4m3fn:
        ends = torch.kron(scales, torch.ones(*extent(x, block)))[: shape[0], : shape[1]]
        normal = x.abs() >= 2.0**-6 * ends
        assert ((back - x).abs() <= 2.0**-4 * x.abs() * (1 + 1e-6))[normal].all()


def test_a_block_of_zeros_and_the_smallest_numbers() -> None:
    values, scales = quantize(torch.zeros(2, 4), (1, 2))
    assert torch.equal(scales, torch.ones(2, 2)) and not values.float().any()
    # the scale of a block of subnormal numbers is rounded by up to a half, and a value lies beyond the end
    tiny = torch.full((1, 2), 57344 * 1.4 * 2.0**-149)
    values, scales = quantize(tiny, (-1, -1), torch.float8_e5m2)
    assert float(scales) == 2.0**-149 and values.float().tolist() == [[57344, 57344]]
    assert float((tiny / scales).to(torch.float8_e5m2).float()[0, 0]) == float("inf")


@pytest.mark.parametrize("fault", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [*DTYPES, "mx"], ids=str)
def test_a_block_with_a_fault_is_nan_and_the_others_are_not(
    dtype: torch.dtype | str, fault: float
) -> None:
    x = torch.tensor([[fault, 1000.0, 3.0, 0.0], [1.0, 2.0, -3.0, 0.0]])
    if dtype == "mx":
        back = dequantize_mx(*quantize_mx(x, 2), 2)
    else:
        back = dequantize(*quantize(x, (1, 2), dtype), (1, 2))
    assert back[0, :2].isnan().all()
    torch.testing.assert_close(back.flatten()[2:], x.flatten()[2:], rtol=2**-3, atol=0)


def test_a_number_whose_scale_would_be_zero_is_zero() -> None:
    values, scales = quantize(torch.tensor([[2.0**-149, 0.0]]), (1, 2))
    assert not values.float().any() and scales.item() == 1


def test_bfloat16_is_scaled_in_float32(seed: int) -> None:
    x = drawn(seed, 9, 300).bfloat16()
    values, scales = quantize(x, (1, 128))
    assert torch.equal(values.float(), quantize(x.float(), (1, 128))[0].float())
    assert scales.dtype == torch.float32
    assert dequantize(values, scales, (1, 128), torch.bfloat16).dtype == torch.bfloat16


def test_arguments_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="expected is a matrix"):
        quantize(torch.ones(4), (1, -1))
    with pytest.raises(ValueError, match="each side is 1 or more, or -1"):
        quantize(torch.ones(4, 4), (0, 4))
    with pytest.raises(ValueError, match="each side"):
        dequantize(torch.ones(4, 4).to(torch.float8_e4m3fn), torch.ones(1, 1), (4, -2))


@pytest.mark.parametrize("columns", [64, 70])
def test_mx_takes_the_exponent_and_clips(columns: int, seed: int) -> None:
    x = drawn(seed, 20, columns)
    values, exponents = quantize_mx(x)
    assert exponents.shape == (20, -(-columns // 32)) and values.element_size() == 1
    back = dequantize_mx(values, exponents)
    for row in range(20):
        for k, part in enumerate(x[row].split(32)):
            amax = part.abs().max().double()
            exponent = int(exponents[row, k])
            assert amax == 0 or 256 <= amax / 2.0**exponent < 512
            scaled = (part / 2.0**exponent).clamp(-448, 448).to(torch.float8_e4m3fn).float()
            assert torch.equal(back[row].split(32)[k], scaled * 2.0**exponent)
    # torch's cast to e8m0 rounds to the nearest power: it is not MX's floor
    cast_up = torch.tensor([1.5]).to(torch.float8_e8m0fnu).float()
    assert float(cast_up) == 2.0 and float(quantize_mx(torch.tensor([[1.5]]))[1]) == -8


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_shards_share_the_scale_of_the_whole(
    world_size: int, dim: int, backend: str, seed: int, require_ranks: RequireRanks
) -> None:
    require_ranks(world_size)
    x = drawn(seed, 24, 36)

    def job() -> tuple[Tensor, Tensor]:
        shard = x.chunk(world_size, dim)[dist.get_rank()].to(device())
        block = (-1, -1) if dim == 0 else (1, -1)  # of a row, if columns are sharded
        values, scales = quantize(shard, block, group=dist.group.WORLD)
        return values.view(torch.uint8), scales

    run = launch(job, world_size=world_size, backend=backend)
    values, scales = quantize(x, (-1, -1) if dim == 0 else (1, -1))
    assert torch.equal(torch.cat([part for part, _ in run], dim), values.view(torch.uint8))
    assert all(torch.equal(found, scales) for _, found in run)
    operations = run.ledger.operations(0)
    assert [(operation.op, operation.nbytes) for operation in operations] == [
        ("all_reduce", 4 if dim == 0 else 4 * 24)
    ]


def test_a_fault_of_one_rank_is_told_to_all(backend: str, require_ranks: RequireRanks) -> None:
    """Of a number and NaN a backend may take either as the maximum."""
    require_ranks(3)

    def body() -> bool:
        x = torch.ones(1, 4, device=device())
        if dist.get_rank() == 1:
            x[0, 2] = float("nan")
        return bool(dequantize(*quantize(x, (1, 4), group=dist.group.WORLD), (1, 4)).isnan().all())

    assert all(launch(body, world_size=3, backend=backend))


def test_a_group_of_its_own_agrees_alone(backend: str, require_ranks: RequireRanks) -> None:
    require_ranks(4)

    def job() -> float:
        groups = [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in ([0, 2], [1, 3])]
        rank = dist.get_rank()
        x = torch.tensor([[448.0 * rank]], device=device())
        return float(quantize(x, (-1, -1), group=groups[rank % 2])[1])

    assert list(launch(job, world_size=4, backend=backend)) == [2.0, 3.0, 2.0, 3.0]


# Blocks of the weights that share a scale, beside those of the activations.
WEIGHTS: dict[Block, Block] = {(-1, -1): (-1, -1), (1, -1): (-1, 1), (1, 128): (128, 128)}


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def test_a_float_bears_an_outlier_that_ruins_whole_numbers(seed: int) -> None:
    """The relative error of a product's rows without the outlier, by what shares a scale."""
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(256, 1024, generator=generator), torch.randn(1024, 256, generator=generator)
    found = {}
    for outlier in (1.0, 100.0, 100_000.0):
        x[3, 7] = outlier
        rest = torch.arange(256) != 3

        def error(block: Block, dtype: torch.dtype, rest: Tensor = rest) -> float:
            left = dequantize(*quantize(x, block, dtype), block)
            right = dequantize(*quantize(w, WEIGHTS[block], dtype), WEIGHTS[block])
            return relative((left @ right)[rest], (x @ w)[rest])

        found[outlier] = {
            "tensor": error((-1, -1), torch.float8_e4m3fn),
            "row": error((1, -1), torch.float8_e4m3fn),
            "tile": error((1, 128), torch.float8_e4m3fn),
            "int8": error((-1, -1), torch.int8),
        }
    for name, most in (("tensor", 0.039), ("row", 0.039), ("tile", 0.039), ("int8", 0.017)):
        assert found[1.0][name] < most
    assert found[100.0]["tensor"] < 0.039 and found[100.0]["int8"] > 0.2
    assert found[1e5]["tensor"] > 0.1 and found[1e5]["int8"] > 0.99
    assert found[1e5]["row"] < 0.039 and found[1e5]["tile"] < 0.039
