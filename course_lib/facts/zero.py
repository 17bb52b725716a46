"""ZeRO: bytes of model states a rank keeps, and bytes it sends in a step.

Stage 0 is data parallelism; 1 shards the optimizer's states, 2 also the gradients, 3 also the parameters.

Source: Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
SC 2020: section 5 and figure 1 (memory), section 7 (communication). Offload: Ren et al., ZeRO-Offload,
USENIX ATC 2021, section 4; Rajbhandari et al., ZeRO-Infinity, SC 2021, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence

# Bytes per parameter by precision: (weights, gradients, the optimizer's states), for Adam.
MIXED = (2, 2, 12)  # 16-bit weights and gradients; float32 copy of the weights, m and v
FLOAT32 = (4, 4, 8)  # m and v
STAGES = (0, 1, 2, 3)


def zero_memory(
    params: float,
    n: int,
    stage: int,
    offload: bool = False,
    precision: tuple[float, float, float] = MIXED,
) -> float:
    """Bytes of model states on the device of each of n ranks, between steps.

    offload: the tensors of the optimizer's step are in host memory. These are its states, from stage 2 on
    also the gradient shard, and in stage 3 also the parameter shard.
    """
    _check(stage)
    weights, gradients, states = precision
    kept = weights / (n if stage == 3 else 1) * (not (offload and stage == 3))
    kept += gradients / (n if stage >= 2 else 1) * (not (offload and stage >= 2))
    kept += states / (n if stage >= 1 else 1) * (not offload)
    return params * kept


def zero_volume(stage: int, microbatches: int = 1, no_sync: bool = False) -> int:
    """A rank's traffic in a step, in units of (n-1)/n of the bytes of all parameters.

    no_sync: the gradients of all microbatches except the last stay where they are, unsharded (stages 0 and
    3). Stage 1 reduces in the step, however many microbatches there were; stage 2 reduces after each of them.
    """
    _check(stage)
    if no_sync and stage == 2:
        raise ValueError("stage 2 keeps no whole gradients: it has no no_sync")
    reductions = 1 if no_sync or stage == 1 else microbatches
    if stage == 0:
        return 2 * reductions
    gathers = 2 * microbatches if stage == 3 else 1
    return gathers + reductions


def zero_bytes(
    sizes: Sequence[int],
    n: int,
    itemsize: int,
    stage: int,
    microbatches: int = 1,
    no_sync: bool = False,
) -> int:
    """Bytes each rank sends in a step, exactly: each flat buffer is padded to a multiple of n.

    sizes: elements of the flat buffers. For stage 1 there is one (for each dtype and parameter group), for
    stage 2 these are its buckets, and for stage 3 its units, all of them trainable and each used once in a
    forward.
    """
    shards = sum(-(-size // n) for size in sizes)
    return zero_volume(stage, microbatches, no_sync) * (n - 1) * shards * itemsize


def _check(stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"stage is one of {STAGES}, not {stage!r}")
