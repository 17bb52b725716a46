"""The model of a step as four short functions of plain numbers, as notebook 10 asks for.

    all_reduce_seconds   a ring on the wire a group has
    memory_per_gpu       GB on the GPU that holds most
    step_seconds         a step of a GPT, from two data sheets and one constant
    best_layout          the fastest layout that can be cut and fits

`step_time.py` and `memory.py` do the same for other models (grouped keys, SwiGLU, flash attention), and keep
the parts of a step separate. Their results agree with the results of this file within 3 % on Megatron-LM's
rows (a test checks it). Here a product takes as long as its FLOPs, whatever its shape.

A layout is a dict: "pp", "dp", "cp", "tp" (ranks, tp innermost), "microbatch" (sequences), "chunks" (v),
"zero" (0, 1 or 3), "recompute", and "sequence" (parallelism along tp). Links are given as on a data sheet:
NVLink in bytes per second, both directions together, and the network in bits per second.

Sources: Narayanan et al., 2021, sections 2 to 4; Korthikanti et al., 2022, table 2; Rajbhandari et al., 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Protocol

Numbers = Mapping[str, float]
Layout = Mapping[str, Any]

REACHED = 0.8  # of a data sheet's bytes per second
RESERVED = 4  # GB of each GPU for NCCL's buffers and fragments
EFFICIENCY = 0.63
LONG = 32_768  # tokens from which on a sequence is cut over cp
MICROBATCHES, CHUNKS, ZERO = (1, 2, 4), (1, 2, 4), (0, 1, 3)
# By recomputation: how often a layer's products run, how often the products of the scores run, and the number
# of all-reduces along tp. A backward counts as two.
RUNS = {"none": (3, 3, 4), "selective": (3, 4, 4), "full": (4, 4, 6)}

A100 = {"flops": 312e12, "bandwidth": 2.039e12, "memory": 80}
SELENE = {
    "per_node": 8, "NVLink": 600e9, "NVLink alpha": 3.4e-6, "network": 200e9, "network alpha": 14e-6
}  # fmt: skip
LEAN = {"cp": 1, "microbatch": 1, "chunks": 1, "zero": 0, "recompute": "full", "sequence": False}


class Gpt(Protocol):
    """The sizes of a GPT with GPT-2's parts."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def width(self) -> int: ...


def memory_per_gpu(shape: Gpt, layout: Layout, batch: int) -> float:
    """GB (1e9 bytes) on a GPU of the first stage, in a step of `batch` sequences.

    There are P' = (12 h^2 for each of L/p layers, and the table) / t parameters, with 2 bytes of weights, 2
    of gradients, and 12 of the optimizer. Stage 1 of ZeRO divides the 12 over dp and cp. Stage 3 divides all
    16, but also holds one whole layer. The stage keeps min(m, p) microbatches of its L/p layers, and
    (p - 1) / v more with v chunks.
    """
    pp, t, v, h = layout["pp"], layout["tp"], layout["chunks"], shape.width
    replicas = layout["dp"] * layout["cp"]
    layers, of_layer = shape.layers / pp, 12 * h**2 / t
    params = layers * of_layer + shape.vocab_size * h / t
    zero = {
        0: 16 * params,
        1: (4 + 12 / replicas) * params,
        3: 16 * params / replicas + 4 * of_layer,
    }

    stream = layout["microbatch"] * shape.context / layout["cp"] * h
    whole = 0 if layout["sequence"] else 10
    scores = 5 * shape.heads * shape.context / h
    kept = {
        "none": stream * (whole + (34 - whole + scores) / t),
        "selective": stream * (whole + (34 - whole) / t),
        "full": 2 * stream / (t if layout["sequence"] else 1),
    }
    microbatches = batch / (layout["dp"] * layout["microbatch"])
    held = min(microbatches, pp if v == 1 else pp + (pp - 1) / v) * layers
    again = kept["none"] if layout["recompute"] == "full" else 0
    return (zero[layout["zero"]] + held * kept[layout["recompute"]] + again) / 1e9


def all_reduce_seconds(nbytes: float, n: int, stride: int, links: Numbers) -> float:
    """A sum over n ranks that are `stride` apart, with g of them in each node.

    It is a ring of g inside every node, and g rings of n / g between the nodes, each with 1/g of the bytes
    and its own network card. One of the two kinds of ring sends nothing if the group is inside one node, or
    if g is 1.
    """
    inside = min(n, max(1, int(links["per_node"]) // stride))
    nvlink = ring_seconds(nbytes, inside, links["NVLink"] / 2, links["NVLink alpha"])
    network = links["network"] / 8, links["network alpha"]
    return nvlink + ring_seconds(nbytes / inside, n / inside, *network)


def ring_seconds(nbytes: float, n: float, speed: float, alpha: float) -> float:
    """2 (n - 1) rounds, and 2 (n - 1) / n of the bytes. speed: a data sheet's bytes per second each way."""
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / (REACHED * speed)


def step_seconds(
    shape: Gpt, layout: Layout, batch: int, gpu: Numbers, links: Numbers, efficiency: float
) -> float:
    """Seconds of a step with `batch` sequences: slots of the last stage, bubble, replicas, optimizer."""
    pp, cp, t, v = (layout[name] for name in ("pp", "cp", "tp", "chunks"))
    s, h, replicas = shape.context, shape.width, layout["dp"] * layout["cp"]
    tokens = layout["microbatch"] * s / cp
    m, layers = batch / (layout["dp"] * layout["microbatch"]), shape.layers / pp
    flops, hbm = gpu["flops"] * efficiency, gpu["bandwidth"] * REACHED
    runs, scores, reduces = RUNS[layout["recompute"]]

    # one layer of one microbatch
    stream = tokens * h / (t if layout["sequence"] else 1)
    layer = (runs * 24 * tokens * h**2 + scores * 4 * tokens * s * h) / t / flops
    layer += stream * (44 + 22 * (runs - 3)) / hbm + tokens * h / t * (40 + 16 * (runs - 3)) / hbm
    layer += tokens * s * shape.heads / t * (20 + 9 * (scores - 3)) / hbm
    keys = 4 * layout["microbatch"] * s * h / t
    waits = reduces * all_reduce_seconds(2 * tokens * h, t, 1, links)
    waits += 3 / 2 * all_reduce_seconds(keys, cp, t, links)
    head = (6 * tokens * h * shape.vocab_size / flops + 16 * tokens * shape.vocab_size / hbm) / t

    # a microbatch's messages, forward and backward, for v chunks
    message = 0.0
    if pp > 1:
        inside = pp * replicas * t <= links["per_node"]
        alpha = links["NVLink alpha" if inside else "network alpha"]
        speed = links["NVLink"] / 2 if inside else links["network"] / 8
        message = alpha + 2 * tokens * h / t / (REACHED * speed)
        if not layout["sequence"]:
            message += all_reduce_seconds(2 * tokens * h, t, 1, links) / 2
    compute, slot = m * (layers * layer + head), layers * (layer + waits)
    pipeline = m * (slot + head + 2 * v * message) + (pp - 1) * (slot / v + 2 * message)

    params = (layers * 12 * h**2 + shape.vocab_size * h) / t
    summed = all_reduce_seconds(2 * params, replicas, t, links)
    if layout["zero"] == 3:
        summed = max(0.0, 3 / 2 * m * summed - compute)
    update = 34 * params / hbm / (replicas if layout["zero"] else 1)
    return pipeline + summed + update


def best_layout(
    shape: Gpt,
    gpus: int,
    batch: int,
    gpu: Numbers,
    links: Numbers,
    efficiency: float = EFFICIENCY,
) -> dict[str, Any] | None:
    """The layout with the shortest step of all that can be cut and fit, or None if none does."""
    fitting = (
        layout
        for layout in layouts(shape, gpus, batch)
        if memory_per_gpu(shape, layout, batch) <= gpu["memory"] - RESERVED
    )

    def seconds(layout: Layout) -> float:
        return step_seconds(shape, layout, batch, gpu, links, efficiency)

    return min(fitting, key=seconds, default=None)


def layouts(shape: Gpt, gpus: int, batch: int) -> Iterator[dict[str, Any]]:
    """Every layout of so many GPUs that can be cut, with every option."""
    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
    for tp, cp, pp in product(divisors, divisors if shape.context >= LONG else [1], divisors):
        if gpus % (tp * cp * pp):
            continue
        sizes = {"pp": pp, "dp": gpus // (tp * cp * pp), "cp": cp, "tp": tp}
        for options in product(MICROBATCHES, CHUNKS, ZERO, RUNS):
            names = ("microbatch", "chunks", "zero", "recompute")
            layout = {**sizes, **dict(zip(names, options, strict=True)), "sequence": tp > 1}
            if not obstacle(shape, layout, batch):
                yield layout


def obstacle(shape: Gpt, layout: Layout, batch: int) -> str:
    """The first reason why a layout cannot be cut, or "" if it can."""
    pp, cp, tp, v = (layout[name] for name in ("pp", "cp", "tp", "chunks"))
    rows = layout["dp"] * layout["microbatch"]
    parts = (2 * cp if cp > 1 else 1) * tp
    for number, by, what in (
        (shape.heads, tp, "heads into tp parts"),
        (shape.layers, pp * v, "layers into pp v chunks"),
        (batch, rows, "sequences into dp replicas' microbatches"),
        (shape.context, parts, "tokens into parts of cp and tp"),
    ):
        if number % by:
            return f"{by:,} does not divide {number:,}: {what}"
    if layout["zero"] == 3 and pp > 1:
        return "ZeRO-3 with a pipeline: every microbatch would gather every layer"
    if v > 1 and (pp == 1 or batch // rows % pp):
        return f"v = {v} needs a pipeline, and microbatches in multiples of pp"
    return ""
