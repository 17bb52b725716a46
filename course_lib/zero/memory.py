"""How many bytes of model states each rank holds, in each stage of ZeRO."""

from __future__ import annotations

WEIGHTS, GRADIENTS, STATES = 2, 2, 12  # bytes per parameter: 16 bits, 16 bits, float32 copy + m + v


def memory_per_rank(params: float, n: int, stage: int, offload: bool = False) -> float:
    """Bytes of model states on each of n ranks, for mixed-precision Adam with 16 bytes per parameter in all.

    params: how many parameters. stage: 0 (replicas), 1, 2 or 3.
    offload: keep the tensors of the optimizer's step in host memory. These are its states, from stage 2 on
        also the gradient shard (ZeRO-Offload), and in stage 3 also the parameter shard (ZeRO-Infinity). The
        result counts the bytes that stay on the device between steps; stage 3 also needs room for the units
        in use.

    The result does not count activations, communication buffers and parameters gathered for a moment.
    Source: ZeRO, section 5 and figure 1; Ren et al., "ZeRO-Offload" (2021), section 4.

    Raises ValueError for a stage other than 0 to 3, less than one rank or negative params.
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage is 0 (replicas), 1, 2 or 3, not {stage!r}")
    if n < 1 or params < 0:
        raise ValueError(f"n is at least 1 and params at least 0; here n = {n}, params = {params}")
    states = STATES / n if stage >= 1 else STATES
    gradients = GRADIENTS / n if stage >= 2 else GRADIENTS
    weights = WEIGHTS / n if stage >= 3 else WEIGHTS
    if offload:
        states = 0
        gradients = 0 if stage >= 2 else gradients
        weights = 0 if stage >= 3 else weights
    return float(params * (weights + gradients + states))
