"""Mistakes of `step_seconds`: the step with one part left out or taken otherwise, and a sentence for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.plans import Formula
from course_lib.planning.by_hand import REACHED, RUNS
from course_lib.planning.by_hand import step_seconds as right


def seconds(
    shape: kit.Model,
    layout: Mapping[str, Any],
    batch: int,
    gpu: Mapping[str, float],
    links: Mapping[str, float],
    efficiency: float,
    *,
    again: bool = True,
    runs_again: bool = True,
    nvlink: float = 2,
    bits: float = 8,
    bubbles: str = "once",
    whole: bool = False,
    once: bool = False,
    cards: bool = True,
    head: bool = True,
    head_runs: bool = True,
    memory: float = REACHED,
    wires: float = REACHED,
    logits: bool = True,
    strides: bool = True,
    shared: bool = True,
    six: bool = True,
    gathers: bool = True,
    rounds: float | None = None,
    of_products: bool = True,
    waiting: str = "everywhere",
    owned: bool = True,
    by_zero: bool = True,
    hides: float = 1,
    scatter: bool = True,
    parts: bool = True,
    summed: float = 1,
    summed_once: bool = True,
    update: float = 1,
    pointwise: bool = True,
    reduces: float = 1,
    chunked: bool = True,
    third: bool = True,
    scores_again: bool = True,
    reached: bool = True,
    head_reached: bool = True,
    repeats: str = "m",
    tokens_cut: bool = True,
    layers_cut: bool = True,
    head_cut: bool = True,
    stream_cut: str = "sequence",
    head_fills: bool = False,
    neighbours: str = "may share a node",
    messages: float = 2,
    of_chunks: bool = True,
    filling: float | None = 2,
    one_node: bool = False,
    stream_bytes: int = 2,
    message_bytes: int = 2,
    of_ring: float = 1,
    forward_alone: bool = False,
    head_forward_alone: bool = False,
    scores_over_t: bool = True,
    sequences: bool = True,
    below_0: bool = False,
    gradient_bytes: int = 2,
    over_cp: float = 3 / 2,
    over_dp_alone: bool = False,
    of_table: bool = True,
    gathers_3: float = 3 / 2,
    of_microbatches: bool = True,
    behind_head: bool = True,
    behind_waits: bool = False,
    alpha_alone: bool = False,
    half_the_rounds: bool = False,
    message_alpha: bool = False,
    ring_bytes: str = "2 (n - 1) / n",
    wires_of_ring: float | None = None,
    times_speed: bool = False,
    swapped: bool = False,
    waits_once: bool = False,
    head_once: bool = False,
    of_chunk: bool = False,
    filling_of_chunk: bool = False,
) -> float:
    """The right step with mistakes: each keyword is one of its parts."""
    pp, cp, t, v = (layout[name] for name in ("pp", "cp", "tp", "chunks"))
    s, h, replicas = shape.context, shape.width, layout["dp"] * layout["cp"]
    tokens = (layout["microbatch"] if sequences else 1) * s / (cp if tokens_cut else 1)
    rows = {"dp": layout["dp"], "dp and cp": replicas * layout["microbatch"]}
    m = batch / rows.get(repeats, layout["dp"] * layout["microbatch"])
    layers = shape.layers / pp
    flops = gpu["flops"] * (efficiency if reached else 1)
    hbm = gpu["bandwidth"] * memory * (1 if of_products else efficiency)
    runs, scores, sums = RUNS[layout["recompute"]]
    runs, scores = (runs if again and runs_again else 3), (scores if again else 3)
    scores = 3 if layout["recompute"] == "selective" and not scores_again else scores
    sums = sums if six else 4
    fast, slow = links["NVLink"] / nvlink, links["network"] / bits
    fast, slow = (slow, fast) if swapped else (fast, slow)

    def ring(nbytes: float, n: float, speed: float, alpha: float) -> float:
        every = (1 if half_the_rounds else 2) * (n - 1)  # rounds, each with an alpha
        alphas = every if rounds is None else min(every, rounds)
        speed *= wires if wires_of_ring is None else wires_of_ring
        sent = {"2 (n - 1)": 2 * (n - 1), "1": 1}.get(ring_bytes, of_ring * 2 * (n - 1) / n)
        took = sent * nbytes / REACHED**2 * speed if times_speed else sent * nbytes / speed
        return took + alpha * (1 if alpha_alone else alphas)

    def all_reduce(nbytes: float, n: int, stride: int) -> float:
        inside = n if one_node else min(n, max(1, int(links["per_node"]) // (stride if strides else 1)))
        if not cards and n > inside:
            return ring(nbytes, n, slow, links["network alpha"])
        across = ring(nbytes / (inside if shared else 1), n / inside, slow, links["network alpha"])
        return ring(nbytes, inside, fast, links["NVLink alpha"]) + across

    cut = {"sequence": layout["sequence"], "always": True, "never": False}[stream_cut]
    stream = tokens * h / (t if cut else 1)
    layer = ((1 if forward_alone else runs) * 24 * tokens * h**2 + scores * 4 * tokens * s * h) / t / flops
    if pointwise:
        layer += stream * (44 + 22 * (runs - 3)) / hbm + tokens * h / t * (40 + 16 * (runs - 3)) / hbm
        layer += tokens * s * shape.heads / (t if scores_over_t else 1) * (20 + 9 * (scores - 3)) / hbm
    waits = sums * reduces * all_reduce(stream_bytes * tokens * h, t, 1)
    waits += over_cp * all_reduce(4 * layout["microbatch"] * s * h / t, cp, t)
    of_head = (
        (2 if head_forward_alone else 6)
        * tokens
        * h
        * shape.vocab_size
        / (flops if head_reached else gpu["flops"])
    )
    of_head += 16 * tokens * shape.vocab_size * logits / hbm
    of_head *= head / (t if head_cut else 1)
    message = 0.0
    if pp > 1:
        stages = {"share a node": 1, "of the first two stages count": 2}.get(neighbours, pp)
        near = stages * replicas * t <= links["per_node"]
        near = (near and neighbours != "never share a node") or neighbours == "are always near"
        alpha, speed = links["NVLink alpha" if near else "network alpha"], fast if near else slow
        message = alpha * (rounds != 0 or message_alpha) + message_bytes * tokens * h / (
            t if scatter and parts else 1
        ) / (wires * speed)
        if not layout["sequence"] and scatter and gathers:
            message += all_reduce(message_bytes * tokens * h, t, 1) / 2
    waits *= waiting != "nowhere"
    compute = m * (layers * layer + of_head)
    slot = layers * layer + (1 if waits_once else layers) * waits
    slot /= v if of_chunk else 1
    slot *= 1 if layers_cut else pp
    of_messages = messages * (v if of_chunks else 1) * message
    in_slot = of_head * head_runs * (not head_once)
    total = (1 if repeats == "1" else m) * (slot + in_slot + of_messages) + of_head * head_once
    if once:
        total = compute + slot - layers * layer + of_messages
    in_bubble = (slot if waiting == "everywhere" else layers * layer) + of_head * head_fills
    slots = {"once": pp - 1, "never": 0, "times m": m * (pp - 1), "p": pp}[bubbles]
    to_fill = (2 * v if filling is None else filling) / (v if filling_of_chunk else 1)
    total += slots * (in_bubble / (v if chunked else 1) + to_fill * message)
    held = params = (layers * 12 * h**2 + of_table * shape.vocab_size * h) / t
    if whole:
        params = shape.layers * 12 * h**2 + shape.vocab_size * h
    sent = all_reduce(gradient_bytes * params, layout["dp"] if over_dp_alone else replicas, t) * summed
    sent *= 1 if summed_once else m
    if layout["zero"] == 3 and third:
        hidden = compute - (0 if behind_head else m * of_head) + behind_waits * m * layers * waits
        sent = max(
            -1e9 if below_0 else 0.0, gathers_3 * (m if of_microbatches else 1) * sent - hides * hidden
        )
    return (
        total
        + sent
        + update * 34 * held / hbm / (replicas if (layout["zero"] or not by_zero) and owned else 1)
    )


def slip(**change: Any) -> Formula:
    return lambda *args: seconds(*args, **change)


WHOLE_SLOTS = (
    "A bubble of p - 1 whole slots is counted, each with the head. But the slots of the bubble have no head, "
    "and each is only slot / v long, with two messages."
)
NO_HEAD = "The head is missing on the last stage, so add three products, and also the logits in float32."
IN_16_BITS = "M is in 16 bits, so count 2 bytes per element."
ONE_SPEED = "NVLink's 600 GB/s are both directions together, so a ring sends 300 each way."
IN_BITS = "Networks are quoted in bits, so 200 Gb/s are 25 GB/s."
ONE_ALPHA = "A ring over n ranks has 2 (n - 1) rounds, each with an alpha, so one alpha per ring is too few."
NO_ALPHA = "The alphas are missing, although a ring has 2 (n - 1) rounds, and a message has one."
REACHED_ONCE = (
    "The speeds are multiplied by 0.8 twice. `fast` and `slow` are those of the data sheets, each way, and "
    "0.8 stands in the ring's formula."
)
NO_MESSAGES = (
    "The messages are missing, but a microbatch has 2v of them, and the pipeline fills with two per stage."
)
HALF_OF_A_RING = (
    "A ring passes chunks n - 1 times to add them up, and n - 1 times again to hand out the sums. So rounds "
    "and bytes both count 2 (n - 1), and you have half of them."
)
SLIPS: dict[str, Formula] = {
    "The FLOPs are those without recomputation, 72 instead of 96. A block that is recomputed runs forward "
    "twice, and so do its pointwise operations.": slip(
        again=False
    ),
    "With full recomputation the products run 4 times, not 3, because a layer runs forward twice.": slip(
        runs_again=False
    ),
    "Selective recomputation runs the products of the scores once more, so 4 times instead of 3.": slip(
        scores_again=False
    ),
    ONE_SPEED: slip(nvlink=1),
    IN_BITS: slip(bits=1),
    "The network's 200 Gb/s are 25 GB/s each way, not half of that.": slip(bits=16),
    "The bubble is multiplied by m, but a pipeline fills and drains only once per step.": slip(
        bubbles="times m"
    ),
    "The bubble is missing, so add (p - 1) / v slots, in which a stage idles.": slip(bubbles="never"),
    "The bubble has p - 1 slots, not p, because a step with one stage has none.": slip(bubbles="p"),
    "The last stage has the head, so it sets the pace, but the slots of the bubble have no head.": slip(
        head_fills=True
    ),
    WHOLE_SLOTS: slip(head_fills=True, chunked=False),
    f"{WHOLE_SLOTS} ": slip(head_fills=True, chunked=False, filling=None),
    f"{WHOLE_SLOTS}  ": slip(head_fills=True, chunked=False, filling=0),
    f"{WHOLE_SLOTS}   ": slip(head_fills=True, chunked=False, filling=0, messages=0),
    "The pipeline fills and empties with two messages per stage, in forward and also in backward.": slip(
        filling=1
    ),
    "The pipeline fills with messages as well, so count (p - 1) times slot / v and two messages.": slip(
        filling=0
    ),
    "Only one microbatch is counted, but a step has m, each with its slot, head and messages.": slip(
        repeats="1"
    ),
    "m is the number of microbatches, batch / (dp microbatch), because one has several sequences.": slip(
        repeats="dp"
    ),
    "m is batch / (dp microbatch), because ranks of cp share the sequences of a microbatch.": slip(
        repeats="dp and cp"
    ),
    "The tokens are not divided by cp, but a rank has only s/cp of each sequence.": slip(tokens_cut=False),
    "A slot has all layers of the model, but a stage has only L/p of them.": slip(layers_cut=False),
    "tp also cuts the head, so its products and the logits are divided by t.": slip(head_cut=False),
    "The head's products run at e of the peak, as all others do.": slip(head_reached=False),
    "Only sequence parallelism divides the stream by t, so without it norms and residuals are whole.": slip(
        stream_cut="always"
    ),
    "With sequence parallelism, t also divides the stream's 44 and 22 bytes.": slip(stream_cut="never"),
    "Count two messages per microbatch and chunk, because an activation goes one way, and a gradient the "
    "other way.": slip(
        messages=1
    ),
    "Each chunk sends messages, so a microbatch has 2v of them, not 2.": slip(of_chunks=False),
    "Stages may share a node if all p dp cp t GPUs fit into it, and then their messages take NVLink.": slip(
        neighbours="never share a node"
    ),
    "A message to another node takes the network, because the stages share a node only if p dp cp t GPUs "
    "fit.": slip(
        neighbours="are always near"
    ),
    "The next stage is in another node if dp cp t GPUs fill one, because all stages have to fit, p dp cp "
    "t.": slip(
        neighbours="share a node"
    ),
    "The first two stages share a node, but others don't, and the slowest message sets the pace of all. So "
    "all p dp cp t GPUs have to fit.": slip(
        neighbours="of the first two stages count"
    ),
    "The whole ring runs on NVLink, but the ranks in other nodes need a ring over the network.": slip(
        one_node=True
    ),
    IN_16_BITS: slip(stream_bytes=4),
    f"{IN_16_BITS} ": slip(stream_bytes=4, message_bytes=4),
    "Gradients travel in 16 bits, so count 2 P' bytes.": slip(gradient_bytes=4),
    "The waits for cp are missing, so add 3/2 of an all-reduce of the keys and values.": slip(over_cp=0),
    "A layer waits for 3/2 of an all-reduce over cp, because forward waits for half of one, and backward for "
    "one.": slip(
        over_cp=1
    ),
    "Ranks of cp hold the same parameters, so gradients are summed over dp and cp.": slip(over_dp_alone=True),
    "P' also has the table's part besides the layers, V h / t.": slip(of_table=False),
    "In each microbatch ZeRO-3 sends 3/2 of an all-reduce, because it has two all-gathers and a "
    "reduce-scatter.": slip(
        gathers_3=1
    ),
    "ZeRO-3 sends in every microbatch, so count m times 3/2 of an all-reduce.": slip(of_microbatches=False),
    "ZeRO-3 also hides behind the head.": slip(behind_head=False),
    "ZeRO-3 hides behind products and other operations, but not behind waits, because the links are busy "
    "then.": slip(
        behind_waits=True
    ),
    "The answers are in milliseconds, but seconds were asked for.": lambda *args: 1e3 * right(*args),
    "The bubble is not divided by v, but interleaved stages begin after a chunk, not after all layers.": slip(
        chunked=False
    ),
    "The replicas sum the gradients of the whole model, but a rank holds only P/(t p) and the table's "
    "part.": slip(
        whole=True
    ),
    "The communication is added only once, but every microbatch waits for its own all-reduces and "
    "messages.": slip(
        once=True
    ),
    "All ranks of a node use one card, but each has its own. So g rings run across, and each carries "
    "1/g.": slip(
        cards=False
    ),
    "Products run at the peak here, but they reach only `efficiency` of the data sheet's peak.": slip(
        reached=False
    ),
    "ZeRO-3's messages count at least 0, because compute hides no more of them than there are.": slip(
        below_0=True
    ),
    "Products run forward and twice in backward, so 24 tokens h^2 count `runs` times.": slip(
        forward_alone=True
    ),
    "The head's products run forward and twice in backward, so count 6 tokens h V.": slip(
        head_forward_alone=True
    ),
    "t also divides the bytes of the scores, because a rank has a/t heads.": slip(scores_over_t=False),
    "Only the tokens of one sequence are counted, but a microbatch has several.": slip(sequences=False),
    f"{ONE_SPEED} {IN_BITS}": slip(nvlink=1, bits=1),
    f"NVLink's speed is given in bytes. {ONE_SPEED}": slip(nvlink=8),
    "NVLink's speed is given in bytes, so do not divide it by 8.": slip(nvlink=16),
    "`fast` and `slow` are swapped. `fast` is NVLink's speed, and `slow` is the network card's.": slip(
        swapped=True
    ),
    "The ring's bytes are multiplied by the speed. Put the divisor in parentheses, X / (0.8 * speed).": slip(
        times_speed=True
    ),
    REACHED_ONCE: slip(wires=REACHED**2),
    f"{REACHED_ONCE} ": slip(wires=REACHED**2, wires_of_ring=REACHED),
    "The ring's links send at 0.8 of their data sheets.": slip(wires_of_ring=1),
    HALF_OF_A_RING: slip(half_the_rounds=True, of_ring=0.5),
    "A ring has 2 (n - 1) rounds, n - 1 to add up and n - 1 to hand out, but here half of the alphas are "
    "counted.": slip(
        half_the_rounds=True
    ),
    "In a ring each round sends one of n chunks, so divide 2 (n - 1) X by n.": slip(ring_bytes="2 (n - 1)"),
    "A rank of a ring sends 2 (n - 1) / n of the X bytes, which is 0 if n is 1.": slip(ring_bytes="1"),
    "Each layer has waits of its own, so a slot has L/p times `layer + waits`.": slip(waits_once=True),
    "The last stage computes the head for every microbatch, so the head counts m times.": slip(
        head_once=True
    ),
    "The speeds are those of one cluster, whatever `links` says, so read them from `links`.": (
        lambda shape, layout, batch, gpu, links, efficiency: right(
            shape, layout, batch, gpu, {**links, "NVLink": 600e9, "network": 200e9}, efficiency
        )
    ),
    "A slot has L/p layers also with chunks. Only in the bubble is it divided by v.": slip(of_chunk=True),
    "The pipeline fills with slot / v and two whole messages per stage, so v divides only the slot.": slip(
        filling_of_chunk=True
    ),
    NO_MESSAGES: slip(messages=0, filling=0),
    "A microbatch sends two messages per chunk, and the pipeline fills with two per stage, because "
    "activations go one way, and gradients the other way.": slip(
        messages=1, filling=1
    ),
    NO_HEAD: slip(head=False),
    f"{NO_HEAD} ": slip(head_runs=False),
    "Data sheets are not reached, because links and memory move bytes at 0.8 of theirs.": slip(
        memory=1, wires=1
    ),
    "Memory is read at 0.8 of its data sheet.": slip(memory=1),
    "Links send at 0.8 of their data sheets.": slip(wires=1),
    NO_ALPHA: slip(rounds=0),
    f"{NO_ALPHA} ": slip(rounds=0, message_alpha=True),
    ONE_ALPHA: slip(rounds=1),
    f"{ONE_ALPHA} ": slip(alpha_alone=True),
    "e is only the share that products reach, while memory moves bytes at 0.8 of its data sheet.": slip(
        of_products=False
    ),
    "The waits are missing, but a layer waits for its all-reduces over tp, and also over cp.": slip(
        waiting="nowhere"
    ),
    "The bubble's slots lack the waits, but a pipeline that fills also waits for its all-reduces.": slip(
        waiting="outside the bubble"
    ),
    "Without ZeRO nothing divides the optimizer, so each replica updates all parameters of its rank.": slip(
        by_zero=False
    ),
    "ZeRO divides the optimizer, so each of dp cp ranks updates only its share of the parameters.": slip(
        owned=False
    ),
    "ZeRO-3 hides its messages behind the compute of all microbatches, so only the rest counts.": slip(
        hides=0
    ),
    "A group whose ranks are a stride apart has per_node // stride of them in a node.": slip(strides=False),
    "After the ring inside the node each card carries X/g, not X.": slip(shared=False),
    "With full recomputation a layer waits for six all-reduces, because two run forward again.": slip(
        six=False
    ),
    "The logits also move 16 bytes each, in addition to the products of the head.": slip(logits=False),
    "Without sequence parallelism a message also takes half an all-reduce of M over tp.": slip(gathers=False),
    "Scatter-gather is missing. Each rank of tp sends only 1/t, and then the other stage gathers along "
    "tp.": slip(
        scatter=False
    ),
    "Each rank of tp sends M/t to the next stage, not M, because the parts are gathered there.": slip(
        parts=False
    ),
    "A ring over n ranks sends 2 (n - 1) / n of its bytes, but here half of them are counted.": slip(
        of_ring=0.5
    ),
    "The replicas' sum is missing.": slip(summed=0),
    "The replicas sum their gradients once per step, not in each microbatch.": slip(summed_once=False),
    "An all-reduce sends 2 (n - 1) / n of its bytes, but half of them are counted for the replicas.": slip(
        summed=0.5
    ),
    "ZeRO-3 sends 3/2 of an all-reduce for each microbatch, but computation hides a part of it.": slip(
        third=False
    ),
    "The optimizer is missing, although it moves 34 bytes per parameter.": slip(update=0),
    "The optimizer moves 34 bytes per parameter, not the 16 it keeps.": slip(update=16 / 34),
    "Norms, GELU, softmax and dropout are missing. They compute little, but they move bytes.": slip(
        pointwise=False
    ),
    "A layer waits for four all-reduces, or six: two in forward, two in backward, and two if it runs forward "
    "again.": slip(
        reduces=0.5
    ),
}  # fmt: skip


def of_the_peak(
    shape: kit.Model,
    layout: Mapping[str, Any],
    batch: int,
    gpu: Mapping[str, float],
    links: Any,
    share: float,
) -> float:
    """Seconds of the FLOPs of all parameters, 8 a token with recomputation, at a share of all GPUs' peak."""
    gpus = layout["pp"] * layout["dp"] * layout["cp"] * layout["tp"]
    params = shape.layers * 12 * shape.width**2 + shape.vocab_size * shape.width
    flops = (8 if layout["recompute"] == "full" else 6) * params * batch * shape.context
    return flops / (gpus * gpu["flops"] * share)


OF_THE_PEAK = (
    "Your seconds are the FLOPs over a share of the peak. But a step also waits for messages, moves bytes of "
    "memory and has a bubble, so add the parts in the table."
)
SLIPS[OF_THE_PEAK] = of_the_peak
