"""Fully sharded data parallelism: bytes a rank sends in a step, and when the arithmetic hides them.

A unit is a group of parameters that are gathered and freed together, usually a block. The root is the unit of
all parameters outside the blocks.

Sources: Zhao et al., PyTorch FSDP, VLDB 2023, sections 3.2 (sharding, and hybrid sharding) and 3.3
(prefetch); the settings are methods of `torch.distributed.fsdp.FSDPModule`: set_requires_gradient_sync and
set_reshard_after_backward.
"""

from __future__ import annotations

from course_lib.facts.transformer import Shape, layer_parameters, transformer_parameters

KEEPS = (None, "gradients", "weights between", "weights")


def fsdp_gathers(microbatches: int = 1, reshard: bool = True, keep: str | None = None) -> int:
    """How often a unit is gathered in a step of K microbatches.

    reshard: units are freed after forward, and gathered again for backward. keep: names the tensors that stay
    unsharded between microbatches. None, or "gradients" (of this rank): no weights. "weights between": the
    weights stay from one microbatch's backward to the next one's forward, so each forward except the first
    finds them. "weights": they stay all the time, so nothing has to be gathered again, whatever `reshard`
    says.
    """
    if keep not in KEEPS:
        raise ValueError(f"keep is one of {KEEPS}, not {keep!r}")
    if keep == "weights" or (keep == "weights between" and not reshard):
        return 1
    if keep == "weights between":
        return microbatches + 1
    return microbatches * (2 if reshard else 1)


def fsdp_bytes(
    params: float,
    n: int,
    microbatches: int = 1,
    *,
    weights: float = 2,
    gradients: float = 4,
    reshard: bool = True,
    keep: str | None = None,
) -> float:
    """Bytes each of n ranks sends in a step.

    params: elements of all units. weights, gradients: bytes of an element in a gather, and in a
    reduce-scatter. With keep=None every microbatch reduces, otherwise only the last one does. A root that
    stays whole between forward and backward is gathered once less in every microbatch.
    """
    gathers = fsdp_gathers(microbatches, reshard, keep)
    reductions = microbatches if keep is None else 1
    return (n - 1) / n * params * (gathers * weights + reductions * gradients)


def hides_from(n: int, flops: float, each_way: float, itemsize: float = 2) -> float:
    """Tokens of a rank from which on a unit's forward takes as long as the gather of the next unit.

    A forward of P parameters takes 2 P T / flops seconds, and a gather (n-1)/n P itemsize / each_way, so P
    cancels. Backward needs as many tokens with gradients of two bytes, and half as many again with four.
    """
    return (n - 1) / n * itemsize / 2 * flops / each_way


def unit_bytes(shape: Shape, itemsize: float = 2) -> tuple[float, float]:
    """Bytes of one block, and of the root: embeddings, the last norm, and the head unless it is tied."""
    block = layer_parameters(shape)
    return itemsize * block, itemsize * (transformer_parameters(shape) - shape.layers * block)


# ---- hybrid sharding: n = shard x replicas; an island's ranks shard, and equals across islands are replicas


def hybrid_inside(params: float, shard: int, *, weights: float = 2, gradients: float = 4) -> float:
    """Bytes a rank sends inside its island: two gathers and a reduce-scatter over `shard` ranks."""
    return (shard - 1) / shard * params * (2 * weights + gradients)


def hybrid_across(params: float, shard: int, replicas: int, *, gradients: float = 4) -> float:
    """Bytes a rank sends across islands: an all-reduce of its shard's gradients over `replicas`."""
    return 2 * (replicas - 1) / replicas * params / shard * gradients


def crossing_bytes(params: float, n: int, *, weights: float = 2, gradients: float = 4) -> float:
    """Bytes one rank's ring sends out of an island when all n ranks shard.

    In a ring, every rank sends (n-1)/n of the tensor to its neighbour, in each gather and reduce-scatter. Of
    an island's ranks, only the last has its neighbour in the next island.
    """
    return (n - 1) / n * params * (2 * weights + gradients)
