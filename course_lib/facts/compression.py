"""Bytes each of n ranks sends for a compressed average of gradients, exactly.

The formulas follow the description of each algorithm instead of its code, and the tests compare the ledger
with them. Built-in collectives count as in the ledger: an all-reduce of M bytes takes 2 (n-1)/n M, and an
all-gather or all-to-all of M bytes in all takes (n-1)/n M. numel: elements of the tensor. Scales have 4
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

SCALE_BYTES = 4


def uncompressed_bytes(n: int, numel: int, itemsize: int = 4) -> float:
    """The mean by a ring all-reduce: 2 (n-1)/n of the tensor's bytes (Patarasuk and Yuan 2009)."""
    return 2 * (n - 1) / n * numel * itemsize


def topk_count(numel: int, fraction: float) -> int:
    """k: how many elements each rank sends, at least one."""
    return max(1, round(fraction * numel)) if numel else 0


def topk_bytes(n: int, numel: int, fraction: float, itemsize: int = 4, index: int = 4) -> int:
    """All-gathers of k values and k indices: (n-1) k (itemsize + index), which grows with n.

    Source: Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017, for the
    pairs; the all-gather by counting.
    7B elements, 1 %, 8 ranks: 3.92 GB; uncompressed in float32 49 GB.
    """
    return (n - 1) * topk_count(numel, fraction) * (itemsize + index)


def topk_break_even(fraction: float, itemsize: int = 4, index: int = 4) -> float:
    """The number of ranks from which on top-k sends at least as much as the uncompressed all-reduce.

    (n-1) fraction (itemsize + index) = 2 (n-1)/n itemsize. 1 %, 4-byte indices and values: 100.
    """
    return 2 * itemsize / (fraction * (itemsize + index))


def int8_bytes(n: int, numel: int, block: int = 256) -> int:
    """All-to-all and all-gather of shards in int8, with a scale for each block of a shard.

    Source: Wang et al., ZeRO++, 2023, for quantised reduction by all-to-all; the bytes by counting.
    7B elements, 8 ranks: 12.4 GB, 3.94 times less than float32.
    """
    shard = math.ceil(numel / n)
    return 2 * (n - 1) * (shard + SCALE_BYTES * math.ceil(shard / block))


def int8_gather_bytes(n: int, numel: int, block: int = 256) -> int:
    """The alternative, an all-gather of all ranks' int8 tensors: (n-1) (numel + scales).

    From 8 ranks on, this is at least as much as float32's 2 (n-1)/n x 4 numel.
    """
    return (n - 1) * (numel + SCALE_BYTES * math.ceil(numel / block))


def powersgd_elements(shape: Sequence[int], rank: int) -> int:
    """Elements sent for one tensor: rank (rows + columns) for a matrix, or all if these are fewer.

    All elements are also sent for any other tensor. Source: Vogels, Karimireddy, Jaggi, PowerSGD, NeurIPS
    2019. A convolution's (512, 512, 3, 3) is a 512 x 4,608 matrix: 461 / rank times smaller.
    """
    numel = math.prod(shape)
    if len(shape) < 2 or not numel:
        return numel
    rows, columns = shape[0], numel // shape[0]
    return min(numel, min(rank, rows, columns) * (rows + columns))


def powersgd_bytes(n: int, shapes: Iterable[Sequence[int]], rank: int, itemsize: int = 4) -> float:
    """All-reduces of vectors, P and Q. One 4,096 x 4,096 matrix, rank 4, 8 ranks: 229,376 bytes; 1/512."""
    return uncompressed_bytes(n, sum(powersgd_elements(s, rank) for s in shapes), itemsize)


def sign_bytes(n: int, numels: Iterable[int]) -> int:
    """All-to-all and all-gather of signs, one bit each, with one scale for each shard of each tensor.

    Source: Tang et al., 1-bit Adam, ICML 2021: all-to-all, average, all-gather. Here a shard has whole bytes.
    7B elements, 8 ranks: 1.53 GB, 1/32 of float32's 49 GB.
    """
    return sum(2 * (n - 1) * (math.ceil(numel / (8 * n)) + SCALE_BYTES) for numel in numels)


def one_bit_adam_ratio(warmup: float, bits: int = 16) -> float:
    """How many times less 1-bit Adam sends in a whole run, in which the share `warmup` is uncompressed.

    bits: of an element of the uncompressed gradient. With a warm-up of 15 %, compared with 16 bits: 4.9
    times, the "up to 5 times" of Tang et al., 1-bit Adam, ICML 2021; compared with 32 bits 5.7.
    """
    return 1 / (warmup + (1 - warmup) / bits)
