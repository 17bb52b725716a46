"""How long is a step on a cluster that nobody here has? One constant is fitted, the rest is a data sheet.

For each microbatch, a stage runs its layers forward, backward, and forward again if they are recomputed. Each
layer waits for its all-reduces along tp, which are two in forward, two in backward, and two more if it runs
again. The last stage also has the head. The pipeline runs at the pace of its slowest stage, for m
microbatches, and idles (p - 1) / v of a slot at its ends. Messages between stages are sent by all tp ranks in
parts, 1/t each, and gathered inside the node (scatter-gather; Narayanan et al., 2021, section 4.1). Then the
replicas sum their gradients, and the optimizer reads and writes its states.

Nothing overlaps, with two exceptions. The bytes ZeRO-2 and 3 send hide behind the layers as far as these
last, and so do the replicas' sums in a system that overlaps them. Nothing is late, because there is no
straggler, no lost message and no contention. MegaScale's table 2 shows what that misses (`published.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from course_lib.facts.transformer import Shape, layer_parameters, transformer_flops
from course_lib.planning.layout import Layout
from course_lib.planning.memory import parameters_per_gpu, stage_layers
from course_lib.planning.roofline import REACHED, Work, bytes_seconds, head_seconds, layer_seconds
from course_lib.planning.topology import Cluster, Wire

ALL_REDUCES = {"none": 4, "selective": 4, "full": 6}  # per layer and microbatch
# Bytes per parameter: the gradient read twice, once for the norm (8), master weights and two moments read and
# written (24), the weights written (2).
UPDATE = 34


@dataclass(frozen=True)
class Step:
    """A step's seconds by what they are spent on; `seconds` is their sum."""

    compute: float
    tp: float
    cp: float
    pp: float
    bubble: float
    dp: float
    optimizer: float

    @property
    def seconds(self) -> float:
        return sum(getattr(self, each.name) for each in fields(self))

    def tflops(self, flops: float, gpus: int) -> float:
        """TFLOP/s of each GPU, if the step has so many FLOPs in all."""
        return flops / (gpus * self.seconds) / 1e12


def all_reduce_seconds(cluster: Cluster, ranks: list[int], nbytes: float) -> float:
    """A sum over a group. A gather and a reduce-scatter together take equally long.

    A ring takes 2 (n - 1) rounds with 2 (n - 1) / n of the bytes, on the group's slowest wire. If the group
    has g > 1 ranks in each of its nodes, it is hierarchical (notebook 02), with a ring of g inside each node,
    and g rings of n / g ranks between the nodes, each with 1/g of the bytes and its own card.
    """
    n, lanes = len(ranks), cluster.lanes(ranks)
    if cluster.crosses(ranks) and lanes > 1 and n % lanes == 0:
        across = _ring(cluster.wire("across"), n // lanes, nbytes / lanes)
        return _ring(cluster.wire("inside"), lanes, nbytes) + across
    return _ring(cluster.link(ranks), n, nbytes)


def _ring(wire: Wire, n: int, nbytes: float) -> float:
    return wire.slower(1 / REACHED).seconds(2 * (n - 1) / n * nbytes, 2 * (n - 1))


def step_parts(
    shape: Shape,
    layout: Layout,
    batch: int,
    cluster: Cluster,
    work: Work,
    seq: int | None = None,
) -> Step:
    """The seconds of a step, by what they are spent on. batch: sequences of the whole step.

    ValueError if the layout has another number of GPUs than the cluster.
    """
    if layout.gpus != cluster.gpus:
        raise ValueError(f"the layout has {layout.gpus} GPUs and the cluster {cluster.gpus}")
    seq = shape.context if seq is None else seq
    groups = {axis: layout.ranks(axis) for axis in layout.sizes}
    tokens = layout.microbatch * seq / layout.cp
    stream = 2 * tokens * shape.width  # bytes of one microbatch's residual stream
    m, v, p, gpu = layout.microbatches(batch), layout.chunks, layout.pp, cluster.gpu

    timed = layer_seconds(shape, tokens, seq, layout.tp, layout.sequence, gpu, work)
    layer = timed.total(layout.recompute)
    tp_layer = ALL_REDUCES[layout.recompute] * all_reduce_seconds(cluster, groups["tp"], stream)
    cp_layer = context_seconds(shape, layout, seq, cluster)
    head = head_seconds(shape, tokens, layout.tp, gpu, work)

    middle, ends = stage_layers(shape.layers, p)
    slot = layer + tp_layer + cp_layer
    longest = max(middle * slot if p > 2 else 0.0, ends * slot + head)
    at_the_end = longest == ends * slot + head
    layers = ends if at_the_end else middle
    message = 2 * v * message_seconds(cluster, layout, stream) if p > 1 else 0.0
    compute = m * (layers * layer + (head if at_the_end else 0.0))
    return Step(
        compute=compute,
        tp=m * layers * tp_layer,
        cp=m * layers * cp_layer,
        pp=m * message,
        bubble=(p - 1) * (middle * slot / v + message / v),
        dp=replica_seconds(shape, layout, cluster, m, compute, work.overlap),
        optimizer=bytes_seconds(
            UPDATE * parameters_per_gpu(shape, layout) / (layout.replicas if layout.zero else 1), gpu
        ),
    )  # fmt: skip


def context_seconds(shape: Shape, layout: Layout, seq: int, cluster: Cluster) -> float:
    """A layer's gather of keys and values along cp, in forward and again in backward, and the reduce-scatter.

    (Llama 3, section 3.3.2.) Grouped keys make it cheap: O(s) bytes, against O(s^2) FLOPs.
    """
    heads = max(1, shape.key_value_heads // layout.tp)
    nbytes = 2 * 2 * layout.microbatch * seq * heads * shape.head_dim
    return 3 / 2 * all_reduce_seconds(cluster, layout.ranks("cp"), nbytes)


def message_seconds(cluster: Cluster, layout: Layout, stream: float) -> float:
    """An activation, or its gradient, to the next stage: 1/t from each rank, then a gather along tp.

    A pipeline is as fast as its slowest stage, so one hop between nodes makes all messages take that long.
    """
    wire = cluster.link(layout.ranks("pp")).slower(1 / REACHED)
    gather = 0.0 if layout.sequence else all_reduce_seconds(cluster, layout.ranks("tp"), stream) / 2
    return wire.seconds(stream / layout.tp) + gather


def replica_seconds(
    shape: Shape, layout: Layout, cluster: Cluster, microbatches: int, compute: float, overlap: bool
) -> float:
    """Seconds for which the step waits for its replicas, along dp and cp together.

    Stages 0 and 1 send 2 (n - 1) / n of the gradients once, after the last backward. Stage 2 scatters the
    gradients of every microbatch and gathers the weights once. Stage 3 gathers the weights, 2 bytes each,
    twice per microbatch. Stages 2 and 3 hide what they send behind the compute, except for one layer. The
    other stages do the same if the system overlaps.
    """
    ranks = layout.replica_ranks()
    params = parameters_per_gpu(shape, layout)

    def half(nbytes: float) -> float:
        return all_reduce_seconds(cluster, ranks, nbytes) / 2

    scatter, gather = half(layout.gradients * params), half(2 * params)
    if layout.zero < 2:
        sent = scatter + (gather if layout.zero else scatter)
    else:
        sent = microbatches * scatter + (1 if layout.zero == 2 else 2 * microbatches) * gather
    if layout.zero < 2 and not overlap:
        return sent
    layer = layer_parameters(shape) / layout.tp
    return max(half(2 * layer) + half(layout.gradients * layer), sent - compute)


def step_seconds(
    shape: Shape, layout: Layout, batch: int, cluster: Cluster, work: Work, seq: int | None = None
) -> float:
    """The seconds of a step: the sum of `step_parts`."""
    return step_parts(shape, layout, batch, cluster, work, seq).seconds


def step_tflops(
    shape: Shape, layout: Layout, batch: int, cluster: Cluster, work: Work, seq: int | None = None
) -> float:
    """TFLOP/s of each GPU, counted with recomputation if there is any, as Megatron-LM's equation 3 does."""
    seq = shape.context if seq is None else seq
    recompute = layout.recompute if layout.recompute != "none" else False
    flops = transformer_flops(shape, batch, seq, causal=work.causal, recompute=recompute)
    return step_parts(shape, layout, batch, cluster, work, seq).tflops(flops, layout.gpus)
