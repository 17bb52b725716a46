"""Does a layout fit? This counts the bytes on the GPU that holds most, which is one of the first stage.

States: there are P' = P / (t p) parameters, with 2 bytes of weights, 2 or 4 of gradients, and 12 of the
optimizer. ZeRO divides the optimizer over dp and cp from stage 1, the gradients from 2, and the weights from
3. Activations: in 1F1B the first stage holds min(m, p) microbatches of its L / p layers, so p cancels if
m >= p. Interleaved v times, it holds (p - 1) / (p v) more.

Sources: Rajbhandari et al., ZeRO, 2020, section 5. Korthikanti et al., Reducing Activation Recomputation,
2022, table 2 (a layer). `facts.pipeline_activations` (what the first stage holds).
"""

from __future__ import annotations

from math import ceil

from course_lib.facts.transformer import Shape, layer_parameters, norm_parameters
from course_lib.facts.zero import MIXED
from course_lib.planning.layout import Layout


def stage_layers(layers: int, pp: int) -> tuple[int, int]:
    """Layers of a stage in the middle, and of the first and last stage.

    Both are equal, or the ends have one layer less if the two missing layers make the division even, as Llama
    3 does with 126 layers on 16 stages. Other remainders make some stages longer, and then the longest
    counts.
    """
    if pp > 2 and layers % pp and (layers + 2) % pp == 0:
        return (layers + 2) // pp, (layers + 2) // pp - 1
    return ceil(layers / pp), ceil(layers / pp)


def parameters_per_gpu(shape: Shape, layout: Layout) -> float:
    """P' of a rank of the first stage: its layers and the embedding; with one stage also the head."""
    _, ends = stage_layers(shape.layers, layout.pp)
    table = shape.vocab_size * shape.width
    params = ends * layer_parameters(shape) + table
    if shape.positions == "learned":
        params += shape.context * shape.width
    if layout.pp == 1:
        params += norm_parameters(shape) + (0 if shape.tied else table)
    return params / layout.tp


def layer_activations(
    shape: Shape, seq: int, layout: Layout, flash: bool = False, recompute: str | None = None
) -> float:
    """Bytes that one layer keeps for one microbatch, in 16 bits: Korthikanti et al., table 2.

    sbh/t (34 + 5as/h) with sequence parallelism, sbh (10 + 24/t + 5as/ht) without. The term of the scores is
    dropped by selective recomputation, and by attention that keeps no scores. Full recomputation keeps 2sbh,
    the block's input. Context parallelism divides the s of the stream, but not the s of the keys.
    """
    recompute = layout.recompute if recompute is None else recompute
    t = layout.tp
    stream = layout.microbatch * seq / layout.cp * shape.width
    if recompute == "full":
        return 2 * stream / (t if layout.sequence else 1)
    scores = 0 if flash or recompute == "selective" else 5 * shape.heads * seq / shape.width
    whole = 0 if layout.sequence else 10
    return stream * (whole + (34 - whole + scores) / t)


def in_flight(layout: Layout, microbatches: int) -> float:
    """Microbatches whose activations the first stage holds, in units of all its layers."""
    if layout.chunks == 1:
        return min(microbatches, layout.pp)
    held = (layout.pp - 1) * 2 + (layout.chunks - 1) * layout.pp + 1
    return min(microbatches * layout.chunks, held) / layout.chunks


def memory_parts(
    shape: Shape,
    layout: Layout,
    batch: int,
    seq: int | None = None,
    flash: bool = False,
) -> dict[str, float]:
    """The bytes of a rank of the first stage, by what they hold.

    batch: sequences of a step.
    """
    seq = shape.context if seq is None else seq
    params = parameters_per_gpu(shape, layout)
    shards = [layout.replicas if layout.zero >= stage else 1 for stage in (1, 2, 3)]
    _, layers = stage_layers(shape.layers, layout.pp)
    held = layers * in_flight(layout, layout.microbatches(batch))
    kept = held * layer_activations(shape, seq, layout, flash)
    again = 0.0
    if layout.recompute == "full":
        again = layer_activations(shape, seq, layout, flash, recompute="none")
    block = (
        layer_parameters(shape) / layout.tp * (2 + layout.gradients) if layout.zero == 3 else 0.0
    )
    tokens = layout.microbatch * seq / layout.cp
    logits = 6 * tokens * shape.vocab_size / layout.tp if layout.pp == 1 else 0.0
    return {
        "weights": 2 * params / shards[2],
        "gradients": layout.gradients * params / shards[1],
        "optimizer": MIXED[2] * params / shards[0],
        "gathered block": block,
        "activations": kept + again,
        "logits": logits,
    }


def memory_per_gpu(
    shape: Shape, layout: Layout, batch: int, seq: int | None = None, flash: bool = False
) -> float:
    """The sum of `memory_parts`: bytes on the GPU that holds most."""
    return sum(memory_parts(shape, layout, batch, seq, flash).values())
