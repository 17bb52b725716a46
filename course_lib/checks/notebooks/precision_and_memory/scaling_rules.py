"""Scales and values of `quantize`, right and by the usual mistakes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.checks import words

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ENDS = {E4M3: 448.0, E5M2: 57344.0}
ULP, LEAST = 4e-7, 1.5e-45  # of a scale; a step of float32's subnormal numbers
NEAR = 4e-6  # of an element: x / scale is rounded in float32 before the cast
Block = tuple[int, int]
PARTS = ("scales", "values", "x")
Scales = Callable[[Tensor, Block, torch.dtype], Tensor]
SMALL = (
    "A block whose magnitudes are small has a scale like the others: amax / 448, however small. A block of "
    "zeros alone needs another."
)
ZEROS = "A block of zeros was divided by its scale: 0 / 0 is NaN. It has the scale 1."
CLAMP = (
    "No clamp: a scale that was rounded down leaves values beyond the format's end, and the cast makes "
    "infinity of them (of e4m3 values of NaN on older PyTorch). Clamp to the largest number before the cast."
)
LOCAL = (
    "two ranks, two scales, one weight: each rank took the largest magnitude of its own shard. Take the "
    "largest of all of `group`: all_reduce with MAX, before you divide."
)
ALONG = (
    "(rows, columns): a tile of 1 x 128 lies along a row, along what the product sums, and (1, -1) is a "
    "scale for each row."
)
UPSIDE_DOWN = "The scale is upside down: values = x / scale and x = values * scale, so it is amax / largest."
FROM_AMAX = "scale = the block's largest magnitude / the format's largest number."
ONE = "One scale for all of x: `block` says what shares one."
SHAPE = "Scales have a row for each row of blocks and a column for each column of blocks; (1, 1) for one."


def table(dtype: torch.dtype) -> Tensor:
    """All finite numbers of a format, in order."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    return codes[codes.isfinite()].unique()


def over_blocks(x: Tensor, block: Block, of: Callable[[Tensor], Tensor]) -> Tensor:
    """`of` each block of x, (blocks down, blocks across)."""
    rows, columns = (size if side == -1 else side for side, size in zip(block, x.shape, strict=True))
    return torch.stack([torch.stack([of(part) for part in band.split(columns, 1)]) for band in x.split(rows)])


def amax(part: Tensor) -> Tensor:
    return part.abs().max()


def right(x: Tensor, block: Block, dtype: torch.dtype) -> Tensor:
    """Float64; 0 for a block of zeros."""
    return over_blocks(x.double(), block, amax) / ENDS[dtype]


def spread(scales: Tensor, x: Tensor, block: Block) -> Tensor:
    rows, columns = (size if side == -1 else side for side, size in zip(block, x.shape, strict=True))
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return whole[: x.shape[0], : x.shape[1]]


def slips(dtype: torch.dtype) -> dict[str, Scales]:
    """The sentence for each mistake, and the scales that it gives."""
    end, other = ENDS[dtype], ENDS[E4M3 if dtype == E5M2 else E5M2]
    by_slip: dict[str, Scales] = {
        UPSIDE_DOWN: (
            lambda x, block, dtype: 1 / right(x, block, dtype)
        ),
        "Signs count in it: the largest magnitude of a block may be that of a negative number, -7 beside 5. "
        "Take abs() first.": lambda x, block, dtype: over_blocks(x.double(), block, torch.max) / end,
        "Its sign is that of the block's largest element: a scale is a magnitude over the largest number.": (
            lambda x, block, dtype: over_blocks(
                x.double(), block, lambda part: part.flatten()[part.abs().argmax()]
            ) / end
        ),
        f"The largest number of this format is {words.number(end)}, "
        f"{words.number(other)} is that of the other: torch.finfo(dtype).max.": (
            lambda x, block, dtype: over_blocks(x.double(), block, amax) / other
        ),
        "That is the largest magnitude itself: divided by it all values lie below 1, and the format's upper "
        "half is unused.": lambda x, block, dtype: over_blocks(x.double(), block, amax),
        ONE: lambda x, block, dtype: (
            (right(x, (-1, -1), dtype)).expand_as(right(x, block, dtype))
        ),
        "The scale is kept in 8 bits, and rounded: it is a float32, 4 bytes a block.": (
            lambda x, block, dtype: right(x, block, dtype).float().to(dtype).double()
        ),
        "The scale was computed in bfloat16, and rounded: x.float() first.": (
            lambda x, block, dtype: right(x, block, dtype).bfloat16().double()
        ),
        "The scale is that of the mean magnitude: larger ones lie beyond the end.": (
            lambda x, block, dtype: over_blocks(x.double(), block, lambda part: part.abs().mean()) / end
        ),
    }  # fmt: skip
    return by_slip


def value_slips(x: Tensor, scales: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The sentence for each mistake with right scales, and the values that it gives, in float64."""
    scaled = (x.double() / scales).nan_to_num()
    end = ENDS[dtype]
    steps = table(dtype)
    below = steps[torch.searchsorted(steps, scaled.abs().clamp(max=end), right=True) - 1].copysign(scaled)
    return {
        "x was multiplied by the scale: divide.": cast(x.double() * scales, dtype),
        "x was not divided by its block's scale.": cast(x.double(), dtype),
        "round() makes whole numbers: fp8 has finer ones, and the cast rounds by itself.": cast(
            scaled.round(), dtype
        ),
        "Values were cut off towards 0: the cast rounds to the nearest number.": below,
    }


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    end = ENDS[dtype]
    return x.clamp(-end, end).to(torch.float32).to(dtype).double()
