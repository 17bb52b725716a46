"""The costs of a layout: bytes a rank sends in a step, by axis, and the parameters it holds.

The closed forms come from `course_lib.facts` and are combined in the same way as `make_step` combines the
parts:

    pp   activations and their gradients, m microbatches, and v times as often if it is interleaved
    dp   the sum of the gradients over dp x cp: an all-reduce, or what ZeRO sends instead
    cp   keys and values around the ring
    tp   the layers' sums; with sequence parallelism also the gradients of what is whole on each rank
    numbers   the count of the targets over dp, and the loss over pp x dp x cp, 8 bytes each

Sources: see `facts.axis_bytes`, `facts.zero_bytes` and `facts.pipeline_bytes_sent`.
"""

from __future__ import annotations

import torch

from course_lib import facts
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline.gpt import balanced, head_share
from course_lib.planning import Layout


def layout_costs(
    config: GPTConfig,
    layout: Layout,
    batch_size: int,
    seq: int | None = None,
    stage: int = 0,
    itemsize: int = 4,
) -> dict[str, float]:
    """For one rank and one step: "pp", "dp", "cp", "tp", "numbers" in bytes; "held" in parameters.

    batch_size: rows of all replicas; seq: tokens of each row, by default the model's context. stage: the
    rank's coordinate on pp. itemsize: bytes of a parameter, an activation and a gradient.

    The bytes are exact if all stages have equally many layers, with one exception. ZeRO-2 has a bucket every
    25 MiB, and the zeros that fill up all but one are left out. Raises ValueError if the head's work makes
    the stages uneven, or if an axis does not divide what it cuts.
    """
    seq = config.context if seq is None else seq
    _check_even(config, layout)
    m, tp = layout.microbatches(batch_size), layout.tp
    sent = facts.axis_bytes(config, layout.sizes, m, batch_size, seq, stage, itemsize)
    tokens = layout.microbatch * seq // layout.cp
    message, there = tokens * config.width * itemsize, (layout.pp, m, stage)
    # The rest is the gradient of a tied table.
    sent["pp"] -= facts.pipeline_bytes_sent(*there, message)
    message /= tp if layout.sequence else 1
    sent["pp"] += facts.pipeline_bytes_sent(*there, message, layout.chunks)
    if itemsize > 4 and stage == layout.pp - 1:  # the loss' numbers have 4 bytes there, and here 8
        sent["tp"] += m * facts.vocab_parallel_loss_bytes(tp, tokens, itemsize - 4)
    if layout.sequence:
        sent["tp"] += m * facts.least_bytes(tp, _whole_on_tp(config, layout, stage) * itemsize)

    params = facts.rank_parameters(config, layout.sizes, stage)
    rows, n = _rows(config, layout, stage, params), layout.replicas
    if layout.zero:
        backwards = m * layout.chunks if layout.zero == 2 else m  # each sends all buckets
        sent["dp"] = facts.zero_bytes(rows, n, itemsize, layout.zero, backwards)
    ranks = layout.pp * n
    numbers = facts.least_bytes(layout.dp, 8) + facts.least_bytes(ranks, 8)
    held = sum(-(-row // n) for row in rows) if layout.zero == 3 else params
    return {**sent, "numbers": numbers, "held": held}


def _whole_on_tp(config: GPTConfig, layout: Layout, stage: int) -> int:
    """Parameters of a rank that tp does not cut, and that each of tp's ranks uses on other tokens."""
    of_layer = 2 * facts.norm_parameters(config) + 2 * config.bias * config.width
    learned = config.context * config.width if config.positions == "learned" else 0
    ends = (stage == 0) * learned + (stage == layout.pp - 1) * facts.norm_parameters(config)
    return config.layers // layout.pp * of_layer + ends


def _rows(config: GPTConfig, layout: Layout, stage: int, params: int) -> list[int]:
    """Elements of each flat row ZeRO cuts: one row of all parameters; in stage 3 one per block and a rest."""
    if layout.zero < 3:
        return [params]
    layers = config.layers // layout.pp
    whole = 2 * facts.norm_parameters(config) + 2 * config.bias * config.width
    block = whole + (facts.layer_parameters(config) - whole) // layout.tp
    rest = params - layers * block  # of one stage of the rank: with the embedding, or the head
    return [block] * layers + [rest] * (rest > 0)


def _check_even(config: GPTConfig, layout: Layout) -> None:
    stages = layout.pp * layout.chunks
    with torch.device("meta"):
        head = head_share(GPT(config))
    layers = [len(blocks) for blocks in balanced(config.layers, stages, head)]
    if len(set(layers)) > 1:
        raise ValueError(
            f"{config.layers} layers are cut into stages of {layers}, as the head weighs {head:.2f} blocks: "
            "the closed forms are of stages with equally many"
        )
