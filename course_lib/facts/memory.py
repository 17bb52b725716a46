"""A training step's bytes on one GPU: model states, activations, logits; and which layout fits first.

T = batch * seq tokens of one GPU's microbatch. Everything is counted at the moment when the loss is computed.
At that time everything that forward keeps for backward exists, and so do the logits. While a checkpointed
block runs again, later in backward, its activations replace the logits, which are larger unless 6 V < 34 h.

Sources: Rajbhandari et al., ZeRO, 2020, section 5 (states by stage). Korthikanti et al., Reducing Activation
Recomputation in Large Transformer Models, 2022, section 4 (activations; full recomputation keeps each block's
input). The bytes of activations are those of the course's GPT, see `saved_layer_bytes`, and were measured.
"""

from __future__ import annotations

from course_lib.facts.tensor_parallel import saved_layer_bytes
from course_lib.facts.transformer import Shape, layer_parameters, transformer_parameters
from course_lib.facts.zero import MIXED, zero_memory

# (stage of sharding, full checkpointing), the cheapest first. Stages 1 and 2 send no more bytes than
# replicas. Stage 3 sends half as much again, but this can be hidden, whereas recomputation always costs a
# third of the FLOPs.
LAYOUTS: tuple[tuple[int, bool], ...] = tuple(
    (stage, checkpoint) for checkpoint in (False, True) for stage in range(4)
)


def activation_bytes(
    shape: Shape,
    batch: int,
    seq: int,
    itemsize: int = 2,
    *,
    flash: bool = True,
    checkpoint: bool = False,
) -> float:
    """Bytes all blocks of `course_lib.models.GPT` keep for backward, without embedding and head.

    itemsize: bytes of an activation. flash: attention keeps a float32 number for each query and head.
    Otherwise it keeps the softmax, b a s^2 elements per layer, which its gradient and the product with the
    values share, and grouped keys and values are copied for each query head that shares them.
    checkpoint: only every block's input, L T h itemsize.

    With GPT-2's parts there are 16 elements for each of the T h. For example, LLaMA-7B with 8 x 2,048 tokens
    in 16 bits keeps 89 GB, 158 without flash, 4.3 checkpointed.
    """
    if checkpoint:
        return float(shape.layers * batch * seq * shape.width * itemsize)
    layer = saved_layer_bytes(shape, batch, seq, itemsize=itemsize)
    if not flash:
        layer += batch * shape.heads * seq * (seq * itemsize - 4)
        shared = shape.heads - shape.key_value_heads
        layer += 2 * batch * seq * shared * shape.head_dim * itemsize
    return shape.layers * layer


def logits_bytes(shape: Shape, batch: int, seq: int) -> int:
    """The logits in float32 and their copy in 16 bits: 6 T V. 8,192 tokens of Llama 3: 6.3 GB."""
    return 6 * batch * seq * shape.vocab_size


def layout_bytes(
    shape: Shape, gpus: int, batch: int, seq: int, stage: int = 0, checkpoint: bool = False
) -> dict[str, float]:
    """The bill of one GPU, in bytes by what they hold; its sum must fit.

    Weights and gradients in 16 bits, 12 bytes per parameter for the optimizer. Stage 1 divides these 12 by
    the GPUs, stage 2 also the gradients, and stage 3 also the weights. Stage 3 also holds one block's weights
    and gradients whole. batch: sequences of one GPU. No stage divides activations or logits.
    """
    params = transformer_parameters(shape)
    parts = [tuple(each if i == k else 0 for i, each in enumerate(MIXED)) for k in range(3)]
    weights, gradients, states = (
        zero_memory(params, gpus, stage, precision=(w, g, s)) for w, g, s in parts
    )
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": states,
        "gathered block": 4.0 * layer_parameters(shape) if stage == 3 else 0.0,
        "activations": activation_bytes(shape, batch, seq, checkpoint=checkpoint),
        "logits": float(logits_bytes(shape, batch, seq)),
    }


def first_that_fits(
    shape: Shape, gpus: int, room: float, batch: int, seq: int
) -> tuple[int, bool] | None:
    """The cheapest of LAYOUTS whose bill is at most `room` bytes on each GPU; None if none of them fits.

    The largest rank counts. Here shards are not rounded to whole numbers, so all ranks hold equally much.
    """
    for stage, checkpoint in LAYOUTS:
        if sum(layout_bytes(shape, gpus, batch, seq, stage, checkpoint).values()) <= room:
            return stage, checkpoint
    return None
