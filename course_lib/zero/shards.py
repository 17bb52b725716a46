"""Flat shards: how parameters of any shape are cut into equal parts for N ranks.

Cutting by parameter gives uneven parts (the embedding can be half a model), but a collective needs equal
parts. So the parameters are laid one after another in one flat buffer, zeros are appended until N divides
its length, and rank r owns the r-th of N equal parts. A boundary can fall inside a parameter.

    parameters   [ a a a a a | b b | c c c c ]
    4 ranks      [ a a a | a a b | b c c | c c 0 ]      one zero of padding

The parameters themselves become views of the buffer, so an all-gather into the buffer writes them in place,
without a copy.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020;
flat parameters as in Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ParamGroup = dict[str, Any]  # of torch.optim: {"params": parameters, and the options for them}


def flatten_and_shard(params: Iterable[torch.Tensor], n: int) -> list[torch.Tensor]:
    """The elements of `params` in a row, cut into n flat shards of one size; zeros fill the last ones.

    params: tensors of any shapes, of one dtype and on one device. They are not changed, because the shards
        are views of one new buffer of n * ceil(P / n) elements, where P counts the elements of all params.

    Raises ValueError if there are no params, if they have several dtypes or devices, or if n < 1.
    """
    tensors = [param.detach() for param in params]
    if n < 1:
        raise ValueError(f"n is a number of ranks, at least 1, not {n}")
    if not tensors:
        raise ValueError("params is empty, so there is nothing to cut into shards")
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) > 1:
        mixture = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(
            f"params are {mixture}, but a flat buffer has one dtype and one device. Call once for each kind."
        )
    total = sum(tensor.numel() for tensor in tensors)
    flat = tensors[0].new_zeros(padded(total, n))
    for tensor, offset in zip(tensors, offsets(tensors), strict=True):
        flat[offset : offset + tensor.numel()] = tensor.reshape(-1)
    return list(flat.tensor_split(n)) if total else [flat] * n


def padded(numel: int, n: int) -> int:
    """The smallest multiple of n that is not below numel."""
    return -(-numel // n) * n


def offsets(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Where each tensor begins when all are laid in a row."""
    begins, total = [], 0
    for tensor in tensors:
        begins.append(total)
        total += tensor.numel()
    return begins


@dataclass(frozen=True)
class Span:
    """The part of one parameter that a rank's shard holds: elements start to stop of the parameter.

    `low` and `high` are their bounds in the shard. All four are 0 if the shard holds no element of the
    parameter.
    """

    start: int
    stop: int
    low: int
    high: int


class ShardLayout:
    """The positions of parameters in a row of n shards, of which this rank owns one.

    offsets: where each parameter begins in the row.  numel: their elements, without padding.
    shard_numel: elements of a shard.  begin: where this rank's shard begins in the row.
    spans: each parameter's part of this rank's shard.
    """

    def __init__(self, params: Sequence[torch.Tensor], rank: int, n: int):
        self.shapes = [param.shape for param in params]
        self.offsets = offsets(params)
        self.numel = sum(param.numel() for param in params)
        self.shard_numel = padded(self.numel, n) // n
        self.begin = rank * self.shard_numel
        self.spans = [self._span(i) for i in range(len(params))]

    def views(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Each parameter's part of a whole row, in the parameter's shape."""
        return [
            row[begin : begin + shape.numel()].view(shape)
            for begin, shape in zip(self.offsets, self.shapes, strict=True)
        ]

    def pieces(self, shard: torch.Tensor) -> list[torch.Tensor]:
        """Each parameter's part of this rank's shard, flat, often empty."""
        return [shard[span.low : span.high] for span in self.spans]

    def _span(self, i: int) -> Span:
        begin, numel = self.offsets[i], self.shapes[i].numel()
        low = max(begin, self.begin)
        high = min(begin + numel, self.begin + self.shard_numel)
        if high <= low:
            return Span(0, 0, 0, 0)
        return Span(low - begin, high - begin, low - self.begin, high - self.begin)


class Home:
    """Memory for shards, here on the parameters' own device. `offload.py` provides other places."""

    def is_apart(self, device: torch.device) -> bool:
        """Whether a shard of parameters on `device` is kept elsewhere than in the parameters."""
        return False

    def empty(self, numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Uninitialised memory for a shard of parameters that live on `device`."""
        return torch.empty(numel, dtype=dtype, device=device)

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Whether the optimizer's state `tensor` can stay where the optimizer made it."""
        return True
