"""Eight bits and their scales: a tensor as fp8 values and one float32 number per block.

e4m3 has 254 numbers between -448 and 448. A gradient of 1e-5 is below its smallest number, and an outlier of
1,000 is above its largest. So each block of a tensor is divided by a scale that moves the block's largest
magnitude to the end of the format:

    scale  = amax / 448            float32, for each block
    values = x / scale             rounded to e4m3
    x      ~ values * scale

Each element of a float already has its own scale, the exponent. A normal number therefore comes back with a
relative error of at most 2^-4, whatever else is in its block. The block's scale matters only where the
exponent ends. An element 2^14 times smaller than its block's largest is subnormal, and one 2^18 times smaller
becomes 0. (8-bit integers do not have an exponent, so everything below 1/254 of the largest becomes 0.)

    block           scales                   bytes per value
    (-1, -1)        one for the tensor       1
    (1, -1)         one per row              1 + 4 / columns
    (1, 128)        DeepSeek-V3's tiles      1 + 4 / 128        activations
    (128, 128)      DeepSeek-V3's blocks     1 + 4 / 16,384     weights
    (1, 32), MX     powers of two, 1 byte    1 + 1 / 32

If a sharded weight has one scale, this scale needs the largest magnitude of *all* shards, which takes an
all-reduce of 4 bytes before the weight is gathered in 8 bits.

Sources: Micikevicius et al., FP8 Formats for Deep Learning, 2022, section 3. DeepSeek-AI, DeepSeek-V3
Technical Report, 2024, section 3.3.2 (tiles and blocks). OCP Microscaling Formats (MX) Specification 1.0,
2023, sections 5.2 and 6.3.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

Block = tuple[int, int]

# Blocks that share a scale, listed under the names by which recipes are known.
BLOCKS: dict[str, Block] = {
    "tensor": (-1, -1),
    "row": (1, -1),
    "tile": (1, 128),
    "block": (128, 128),
}
MX_BLOCK = 32  # values along a row that share a power of two
MX_TOP = 8  # exponent of e4m3's largest number, 448 = 1.75 * 2^8


def largest(dtype: torch.dtype) -> float:
    """The largest number of an 8-bit format.

    It is 448 for e4m3, 57,344 for e5m2, and 127 for int8 (-128 is not used).
    """
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def quantize(
    x: Tensor,
    block: Block,
    dtype: torch.dtype = torch.float8_e4m3fn,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """`x` in 8 bits, with a scale for each block: (values, scales).

    x: (rows, columns), float32 or bfloat16; it is not modified. block: (rows, columns) of a block, -1 for all
    of them; blocks at the edges can be smaller. dtype: float8_e4m3fn, float8_e5m2 or int8. group: ranks that
    hold parts of the same blocks, such as a sharded weight with one scale. They agree on the largest
    magnitudes. None means that this rank has all of every block, so nothing is sent.
    Returns values (rows, columns) in `dtype` and scales (blocks down, blocks across) in float32, which are
    amax / largest(dtype). A block of zeros has the scale 1. A block with an infinite element or a NaN has the
    scale NaN and comes back as NaN, so that the fault shows on all ranks.
    Sends an all-reduce of 4 bytes per scale if there is a group. Raises ValueError if x is not a matrix or a
    block is empty.
    """
    rows, columns = extent(x, block)
    # a maximum over ranks of NaN and a number can be either, so infinity stands for both faults
    amax = tiles(x.abs().float(), rows, columns).amax((1, 3)).nan_to_num(torch.inf, torch.inf)
    if group is not None:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    end = largest(dtype)
    scales = (amax / end).masked_fill(amax.isinf(), torch.nan)
    scales = scales.masked_fill(scales == 0, 1.0)
    # if a scale is rounded down, some values are beyond the end, where a cast can give infinity or NaN
    scaled = (x.float() / spread(scales, rows, columns, x)).clamp(-end, end)
    if dtype.is_floating_point:
        return scaled.to(dtype), scales
    return scaled.round().nan_to_num(0.0).to(dtype), scales  # int8 has no NaN, so its scale is NaN


def dequantize(
    values: Tensor, scales: Tensor, block: Block, dtype: torch.dtype = torch.float32
) -> Tensor:
    """values * scales, each block by its own scale: (rows, columns) in `dtype`.

    Inverts `quantize`, except for rounding.
    """
    rows, columns = extent(values, block)
    return (values.float() * spread(scales, rows, columns, values)).to(dtype)


def quantize_mx(x: Tensor, block: int = MX_BLOCK) -> tuple[Tensor, Tensor]:
    """`x` in e4m3 with a power of two for each `block` values along a row: (values, exponents).

    x: (rows, columns). exponents: int8, (rows, blocks across), which are floor(log2 amax) - 8, as the MX
    specification says. So the largest scaled value is between 256 and 512, and values above 448 are clipped
    to 448. A block with an infinite element or a NaN has the exponent 0, and all of its values are NaN.
    """
    rows, columns = extent(x, (1, block))
    amax = tiles(x.abs().float(), rows, columns).amax((1, 3))
    sound = amax.isfinite()
    binade = torch.frexp(torch.where(sound, amax, 1.0)).exponent - 1
    exponents = torch.where(sound & (amax > 0), binade - MX_TOP, 0).clamp(-127, 127)
    end = largest(torch.float8_e4m3fn)
    scaled = x.float() / spread(torch.exp2(exponents.float()), rows, columns, x)
    scaled = scaled.clamp(-end, end).masked_fill(~spread(sound, rows, columns, x), torch.nan)
    return scaled.to(torch.float8_e4m3fn), exponents.to(torch.int8)


def dequantize_mx(values: Tensor, exponents: Tensor, block: int = MX_BLOCK) -> Tensor:
    """The inverse of `quantize_mx`, except for rounding: float32."""
    return dequantize(values, torch.exp2(exponents.float()), (1, block))


# ---- blocks


def extent(x: Tensor, block: Block) -> Block:
    """Rows and columns of a block, with -1 replaced by the rows or columns of `x`."""
    if x.dim() != 2:
        raise ValueError(f"x has the shape {list(x.shape)}: expected is a matrix, so reshape it")
    if any(side == 0 or side < -1 for side in block):
        raise ValueError(f"block={block}: each side is 1 or more, or -1 for all of it")
    rows, columns = (
        size if side == -1 else side for side, size in zip(block, x.shape, strict=True)
    )
    return max(1, rows), max(1, columns)


def tiles(x: Tensor, rows: int, columns: int) -> Tensor:
    """`x` as (blocks down, rows, blocks across, columns), with zeros beyond its edges."""
    down, across = -(-x.shape[0] // rows), -(-x.shape[1] // columns)
    padded = F.pad(x, (0, across * columns - x.shape[1], 0, down * rows - x.shape[0]))
    return padded.view(down, rows, across, columns)


def spread(scales: Tensor, rows: int, columns: int, like: Tensor) -> Tensor:
    """The scale of each element of `like`."""
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return whole[: like.shape[0], : like.shape[1]]
