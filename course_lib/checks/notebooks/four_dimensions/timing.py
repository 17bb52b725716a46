"""step_seconds: a step on a cluster, from two data sheets and one constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from course_lib.checks.kit import (
    RIGHT,
    SIZES,
    Case,
    Draw,
    Finding,
    Line,
    Model,
    Observed,
    Prediction,
    RankSide,
    call,
    evaluated,
    exercise,
    numeric,
    unwritten,
    wrong,
)
from course_lib.checks.notebooks.four_dimensions.plans import (
    GPT3,
    GPU,
    LINKS,
    Formula,
    Named,
    Plan,
    drawn,
    gpt,
    plan,
)
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.facts.step_by_hand import EFFICIENCY, REACHED, RUNS, ring_seconds
from course_lib.facts.step_by_hand import step_seconds as right

CLOSE = 2e-3  # relative, to what was asked for
TOLERANCE = 0.1  # to what was published
GRID = [k / 100 for k in range(50, 91)]  # efficiencies at which the fit looks
# Megatron-LM's table 1: billions of parameters, heads, width, layers, t, p, GPUs, batch, TFLOP/s; and the
# microbatch and chunks that the model finds fastest, since the paper does not print them.
TABLE_1 = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 1, 1),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 16, 1),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 2, 4),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 1, 5),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 1, 5),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 3),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 2),
)
FITTED = 5  # the row of 76.1B


POINT = "a step as the sum of its parts: compute, bytes of memory, waits for messages, and the bubble"


# ---- mistakes


def seconds(
    shape: Model,
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
    filling: float = 2,
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

    def ring(nbytes: float, n: float, speed: float, alpha: float) -> float:
        every = 2 * (n - 1)  # rounds, each with an alpha
        alphas = every if rounds is None else min(every, rounds)
        return ring_seconds(of_ring * nbytes, n, speed * wires / REACHED, 0) + alpha * alphas

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
        near = (1 if neighbours == "share a node" else 2) * replicas * t <= links["per_node"]
        near = (near and neighbours != "never share a node") or neighbours == "are always near"
        alpha, speed = links["NVLink alpha" if near else "network alpha"], fast if near else slow
        message = alpha * (rounds != 0) + message_bytes * tokens * h / (t if scatter and parts else 1) / (
            wires * speed
        )
        if not layout["sequence"] and scatter and gathers:
            message += all_reduce(message_bytes * tokens * h, t, 1) / 2
    waits *= waiting != "nowhere"
    compute, slot = m * (layers * layer + of_head), layers * (layer + waits)
    slot *= 1 if layers_cut else pp
    of_messages = messages * (v if of_chunks else 1) * message
    total = (1 if repeats == "1" else m) * (slot + of_head * head_runs + of_messages)
    if once:
        total = compute + slot - layers * layer + of_messages
    in_bubble = (slot if waiting == "everywhere" else layers * layer) + of_head * head_fills
    slots = {"once": pp - 1, "never": 0, "times m": m * (pp - 1), "p": pp}[bubbles]
    total += slots * (in_bubble / (v if chunked else 1) + filling * message)
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


NO_HEAD = "The head is missing on the last stage: three products, and the logits in float32."
IN_16_BITS = "M is in 16 bits: 2 bytes a number."
SLIPS: dict[str, Formula] = {
    "The FLOPs are those without recomputation, 72 for 96: a block that is recomputed runs forward twice, "
    "and its pointwise operations as well.": slip(again=False),
    "With full recomputation the products run 4 times, and not 3: a layer runs forward twice.": slip(
        runs_again=False
    ),
    "Selective recomputation runs the products of the scores once more, 4 times in place of 3.": slip(
        scores_again=False
    ),
    "NVLink's 600 GB/s are both directions together: a ring sends 300 each way.": slip(nvlink=1),
    "Networks are quoted in bits: 200 Gb/s are 25 GB/s.": slip(bits=1),
    "The network's 200 Gb/s are 25 GB/s each way, and not half of that.": slip(bits=16),
    "The bubble is multiplied by m: a pipeline fills and drains once a step.": slip(bubbles="times m"),
    "The bubble is missing: (p - 1) / v slots, in which a stage idles.": slip(bubbles="never"),
    "The bubble has p - 1 slots, and not p: a step with one stage has none.": slip(bubbles="p"),
    "The last stage has the head, and sets the pace; the slots of the bubble have none.": slip(
        head_fills=True
    ),
    "The pipeline fills and empties with two messages a stage, forward and backward.": slip(filling=1),
    "The pipeline fills with messages as well: (p - 1) times slot / v and two messages.": slip(filling=0),
    "That is one microbatch: a step has m, each with its slot, head and messages.": slip(repeats="1"),
    "m is the number of microbatches, batch / (dp microbatch): one has several sequences.": slip(
        repeats="dp"
    ),
    "m is batch / (dp microbatch): ranks of cp share the sequences of a microbatch.": slip(
        repeats="dp and cp"
    ),
    "The tokens are not divided by cp: a rank has s/cp of each sequence.": slip(tokens_cut=False),
    "A slot has all layers of the model: a stage has L/p of them.": slip(layers_cut=False),
    "tp cuts the head as well: its products and the logits are divided by t.": slip(head_cut=False),
    "The head's products run at e of the peak, as all others.": slip(head_reached=False),
    "Only sequence parallelism divides the stream by t: without it, norms and residuals are whole.": slip(
        stream_cut="always"
    ),
    "With sequence parallelism, t divides the stream's 44 and 22 bytes as well.": slip(stream_cut="never"),
    "Two messages a microbatch and chunk: an activation one way, a gradient the other way.": slip(messages=1),
    "Each chunk sends messages: a microbatch has 2v of them, and not 2.": slip(of_chunks=False),
    "Two stages may share a node, if 2 dp cp t GPUs fit into it: their messages take NVLink.": slip(
        neighbours="never share a node"
    ),
    "A message to another node takes the network: two stages share a node only if 2 dp cp t GPUs fit.": slip(
        neighbours="are always near"
    ),
    "The next stage is in another node if dp cp t GPUs fill one: both have to fit, 2 dp cp t.": slip(
        neighbours="share a node"
    ),
    "All of the ring runs on NVLink: the ranks in other nodes need a ring over the network.": slip(
        one_node=True
    ),
    IN_16_BITS: slip(stream_bytes=4),
    f"{IN_16_BITS} ": slip(stream_bytes=4, message_bytes=4),
    "Gradients travel in 16 bits: 2 P' bytes.": slip(gradient_bytes=4),
    "The waits for cp are missing: 3/2 of an all-reduce of the keys and values.": slip(over_cp=0),
    "A layer waits for 3/2 of an all-reduce over cp: forward half of one, backward one.": slip(over_cp=1),
    "Ranks of cp hold the same parameters: gradients are summed over dp and cp.": slip(over_dp_alone=True),
    "P' has the table's part besides the layers: V h / t.": slip(of_table=False),
    "In each microbatch ZeRO-3 sends 3/2 of an all-reduce: two gathers, and a reduce-scatter.": slip(
        gathers_3=1
    ),
    "ZeRO-3 sends in every microbatch: m times 3/2 of an all-reduce.": slip(of_microbatches=False),
    "ZeRO-3 hides behind the head, too.": slip(behind_head=False),
    "ZeRO-3 hides behind products and other operations, and not behind waits: links are busy then.": slip(
        behind_waits=True
    ),
    "The answers are in milliseconds; seconds were asked for.": lambda *args: 1e3 * right(*args),
    "The bubble is not divided by v: interleaved stages begin after a chunk, not after all layers.": slip(
        chunked=False
    ),
    "The replicas sum the gradients of the whole model: a rank holds P/(t p), and the table's part.": slip(
        whole=True
    ),
    "The communication is added once: every microbatch waits for its own all-reduces and messages.": slip(
        once=True
    ),
    "All ranks of a node use one card: each has its own, so that g rings across carry 1/g each.": slip(
        cards=False
    ),
    "Products reach `efficiency` of the data sheet's peak: here they run at the peak.": slip(reached=False),
    "ZeRO-3's messages count at least 0: compute hides no more of them than there are.": slip(below_0=True),
    "Products run forward and twice in backward, so that 24 tokens h^2 count `runs` times.": slip(
        forward_alone=True
    ),
    "The head's products run forward and twice in backward: 6 tokens h V.": slip(head_forward_alone=True),
    "t divides the bytes of the scores as well: a rank has a/t heads.": slip(scores_over_t=False),
    "The tokens are those of one sequence: a microbatch has several.": slip(sequences=False),
    NO_HEAD: slip(head=False),
    f"{NO_HEAD} ": slip(head_runs=False),
    "Data sheets are not reached: links and memory move bytes at 0.8 of theirs.": slip(memory=1, wires=1),
    "Memory is read at 0.8 of its data sheet.": slip(memory=1),
    "Links send at 0.8 of their data sheets.": slip(wires=1),
    "The alphas are missing: a ring has 2 (n - 1) rounds, a message one.": slip(rounds=0),
    "A ring over n ranks has 2 (n - 1) rounds, and each of them an alpha: one for a ring is too few.": (
        slip(rounds=1)
    ),
    "e is the share that products reach, and only that: memory moves bytes at 0.8 of its data sheet.": slip(
        of_products=False
    ),
    "The waits are missing: a layer waits for its all-reduces over tp, and over cp.": slip(waiting="nowhere"),
    "The bubble's slots lack the waits: a pipeline that fills waits for its all-reduces as well.": slip(
        waiting="outside the bubble"
    ),
    "Without ZeRO nothing divides the optimizer: each replica updates all parameters of its rank.": slip(
        by_zero=False
    ),
    "ZeRO divides the optimizer: each of dp cp ranks updates its share of the parameters.": slip(owned=False),
    "ZeRO-3 hides what it sends behind the compute of all microbatches: only the rest counts.": slip(hides=0),
    "A group whose ranks are a stride apart has per_node // stride of them in a node.": slip(strides=False),
    "After the ring inside the node each card carries X/g, not X.": slip(shared=False),
    "With full recomputation a layer waits for six all-reduces: two run forward again.": slip(six=False),
    "The logits move 16 bytes each, besides the products of the head.": slip(logits=False),
    "Without sequence parallelism a message also takes half an all-reduce of M over tp.": slip(gathers=False),
    "Scatter-gather is missing: each rank of tp sends 1/t, and the other stage gathers along tp.": slip(
        scatter=False
    ),
    "Each rank of tp sends M/t to the next stage, and not M: parts are gathered there.": slip(parts=False),
    "A ring over n ranks sends 2 (n - 1) / n of its bytes: here half of them are counted.": slip(of_ring=0.5),
    "The replicas' sum is missing.": slip(summed=0),
    "The replicas sum their gradients once a step, and not in each microbatch.": slip(summed_once=False),
    "An all-reduce sends 2 (n - 1) / n of its bytes: here half of them are counted for the replicas.": slip(
        summed=0.5
    ),
    "ZeRO-3 sends 3/2 of an all-reduce for each microbatch, of which computation hides a part.": slip(
        third=False
    ),
    "The optimizer is missing: it moves 34 bytes a parameter.": slip(update=0),
    "The optimizer moves 34 bytes a parameter, and not the 16 that it keeps.": slip(update=16 / 34),
    "Norms, GELU, softmax and dropout are missing: they compute little, and move bytes.": slip(
        pointwise=False
    ),
    "A layer waits for four all-reduces, or six: two forward, two backward, and two forward again.": slip(
        reduces=0.5
    ),
}  # fmt: skip


def of_the_peak(
    shape: Model, layout: Mapping[str, Any], batch: int, gpu: Mapping[str, float], links: Any, share: float
) -> float:
    """Seconds of the FLOPs of all parameters, 8 a token with recomputation, at a share of all GPUs' peak."""
    gpus = layout["pp"] * layout["dp"] * layout["cp"] * layout["tp"]
    params = shape.layers * 12 * shape.width**2 + shape.vocab_size * shape.width
    flops = (8 if layout["recompute"] == "full" else 6) * params * batch * shape.context
    return flops / (gpus * gpu["flops"] * share)


OF_THE_PEAK = (
    "Those are the FLOPs over a share of the peak. A step also waits for messages, moves bytes of memory and "
    "has a bubble: its parts are in the table."
)
SLIPS[OF_THE_PEAK] = of_the_peak


# ---- the published table


def row_args(row: tuple, efficiency: float) -> tuple:
    _, heads, width, layers, tp, pp, gpus, batch, _, microbatch, chunks = row
    layout = plan(pp, gpus // (tp * pp), tp, microbatch=microbatch, chunks=chunks)
    return gpt(layers, heads, width), layout, batch, GPU, LINKS, efficiency


def row_tflops(row: tuple, took: float) -> float:
    """TFLOP/s of each GPU: Megatron-LM's equation 3, with recomputation."""
    _, _, h, layers, _, _, gpus, batch, *_ = row
    flops = 96 * batch * 2048 * layers * h**2 * (1 + 2048 / (6 * h) + 51_200 / (16 * layers * h))
    return flops / (gpus * took) / 1e12


def fit(rates: Sequence[Sequence[float]]) -> list[float]:
    """Each row's TFLOP/s over the published, at the efficiency that gives the published of one row.

    rates: for each row the TFLOP/s at every efficiency of the grid. Between two of these it is a line.
    """
    target, row = TABLE_1[FITTED][8], rates[FITTED]
    for k in range(len(GRID) - 1):
        if row[k] <= target <= row[k + 1] and row[k + 1] > row[k]:
            at = (target - row[k]) / (row[k + 1] - row[k])
            between = [each[k] + at * (each[k + 1] - each[k]) for each in rates]
            return [tflops / line[8] for tflops, line in zip(between, TABLE_1, strict=True)]
    return []


def published_line() -> Case:
    calls = [call(0, row_args(row, efficiency)) for row in TABLE_1 for efficiency in GRID]

    def judge(observed: Observed) -> Finding:
        rates: list[list[float]] = []
        for k, row in enumerate(TABLE_1):
            answers = [observed.answer(k * len(GRID) + j) for j in range(len(GRID))]
            raised = next((answer.error for answer in answers if answer.error is not None), None)
            if raised is not None and raised[0] == "NotImplementedError":
                return unwritten("step_seconds", raised[2])
            took = [numeric(answer.value) if answer.error is None else None for answer in answers]
            if any(each is None or each <= 0 for each in took):
                return wrong(
                    f"step_seconds gives no positive number for the row of {row[0]}B.", cause="table"
                )
            rates.append([row_tflops(row, each) for each in took if each is not None])
        ratios = fit(rates)
        if not ratios:
            return wrong(
                f"no efficiency from {GRID[0]} to {GRID[-1]} gives the 140 TFLOP/s of the 76.1B row.",
                "The lines above judge its parts.",
                cause="table",
            )
        worst = max(range(len(ratios)), key=lambda k: abs(ratios[k] - 1))
        if abs(ratios[worst] - 1) <= TOLERANCE:
            return RIGHT
        return wrong(
            f"with the constant of the 76.1B row, that of {TABLE_1[worst][0]}B is off by "
            f"{100 * (ratios[worst] - 1):+.2f} %; 10 % were allowed.",
            "The lines above judge its parts.",
            cause="table",
        )

    line = Line("table 1: fitted on 76.1B, nine rows within 10 %", judge, 2)
    return Case("table 1", [RankSide({}, {"calls": calls}, {})], [line], recipe=SIZES, alone=True)


# ---- the exercise

# For numbers that no known mistake gives: the first lines have few parts, which these sentences list.
OF_ONE = (
    "The step of one GPU has no waits: it is compute and pointwise operations of the layers, the head in "
    "each microbatch, and the optimizer. Print these for the call, and compare them with the table."
)
OF_REPLICAS = (
    "If one GPU alone is right, two things are new here: the layers are recomputed, and one ring in the node "
    "sums the gradients, once. Without ZeRO the optimizer is as before, and one stage has no bubble."
)
OF_TP = (
    "If the lines above are right, the waits for tp are new here, and what t divides: products, the "
    "head, the parameters, and the stream with sequence parallelism alone."
)


def asked(shape: Model, layout: Plan, batch: int, links: Named = LINKS) -> tuple:
    return shape, layout, batch, GPU, links, EFFICIENCY


@exercise(points=7, objects=("step_seconds",), references=OF_NUMBERS, point=POINT)
def step_seconds(draw: Draw) -> Iterator[Case]:
    alone = [asked(gpt(24, 24, 2304), plan(1, 1, 1, recompute="none", microbatch=2), 64)]
    replicas = [asked(gpt(24, 24, 2304), plan(1, 8, 1, microbatch=2), 256)]
    one_node = [
        asked(gpt(24, 32, 4096), plan(1, 1, 8), 16),
        asked(gpt(24, 32, 4096), plan(1, 2, 4, recompute="none", sequence=True), 32),
    ]
    lecture = [asked(GPT3, plan(8, 16, 8), 1536), asked(GPT3, plan(16, 8, 8, chunks=3), 1536)]
    options = [
        asked(GPT3, plan(8, 16, 8, recompute="selective", sequence=True, zero=1), 1536),
        asked(gpt(32, 32, 4096), plan(1, 256, 1, zero=3, recompute="none"), 512),
        asked(gpt(32, 32, 4096, 65_536), plan(2, 4, 4, cp=4, recompute="selective", sequence=True), 32),
        asked(GPT3, plan(4, 8, 16), 256),
        # two stages in a node, two that fill it each, a fill of many stages, and a ZeRO-3 that hides in part
        asked(gpt(24, 32, 4096, 256), plan(2, 1, 4), 2),
        asked(gpt(24, 32, 4096, 256), plan(2, 1, 8), 2),
        asked(gpt(64, 32, 4096, 128), plan(32, 1, 1), 2),
        asked(gpt(4, 32, 4096, 64), plan(1, 64, 1, zero=3), 192),
        asked(gpt(24, 32, 4096), plan(1, 2, 1, cp=8), 4),
        asked(gpt(4, 32, 4096, 64), plan(1, 64, 2, zero=3), 192),
    ]
    if draw.hidden:
        for more in ({"recompute": "none", "sequence": True}, {"recompute": "full"}, {"zero": 1}):
            options.append(asked(*drawn(draw, **more)))
    parts = "Print the parts of your step for one call, and compare them with the table."

    def question(title: str, plans: list[tuple], weight: float, otherwise: str = parts) -> Prediction:
        return Prediction(
            "step_seconds", 0, plans, right, SLIPS, weight, title, otherwise, tolerance=CLOSE,
            ideas=(OF_THE_PEAK,),
        )  # fmt: skip

    yield from evaluated(
        [
            question("one GPU, nothing recomputed", alone, 0.5, OF_ONE),
            question("8 replicas in a node", replicas, 0.5, OF_REPLICAS),
            question("tp in a node", one_node, 0.5, OF_TP),
            question("1,024 A100s: 175B on 8 x 16 x 8 and 16 x 8 x 8", lecture, 2),
            question("other options", options, 1.5),
        ]
    )
    yield published_line()
