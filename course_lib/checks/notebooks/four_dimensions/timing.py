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
    nvlink: float = 2,
    bits: float = 8,
    bubbles: str = "once",
    whole: bool = False,
    once: bool = False,
    cards: bool = True,
    head: bool = True,
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
    hides: float = 1,
    scatter: bool = True,
    summed: float = 1,
    update: bool = True,
    pointwise: bool = True,
    reduces: float = 1,
    chunked: bool = True,
    third: bool = True,
    scores_again: bool = True,
    reached: bool = True,
) -> float:
    """The right step with mistakes: each keyword is one of its parts."""
    pp, cp, t, v = (layout[name] for name in ("pp", "cp", "tp", "chunks"))
    s, h, replicas = shape.context, shape.width, layout["dp"] * layout["cp"]
    tokens = layout["microbatch"] * s / cp
    m, layers = batch / (layout["dp"] * layout["microbatch"]), shape.layers / pp
    flops = gpu["flops"] * (efficiency if reached else 1)
    hbm = gpu["bandwidth"] * memory * (1 if of_products else efficiency)
    runs, scores, sums = RUNS[layout["recompute"]]
    runs, scores = (runs, scores) if again else (3, 3)
    scores = 3 if layout["recompute"] == "selective" and not scores_again else scores
    sums = sums if six else 4
    fast, slow = links["NVLink"] / nvlink, links["network"] / bits

    def ring(nbytes: float, n: float, speed: float, alpha: float) -> float:
        every = 2 * (n - 1)  # rounds, each with an alpha
        alphas = every if rounds is None else min(every, rounds)
        return ring_seconds(nbytes, n, speed * wires / REACHED, 0) + alpha * alphas

    def all_reduce(nbytes: float, n: int, stride: int) -> float:
        inside = min(n, max(1, int(links["per_node"]) // (stride if strides else 1)))
        if not cards and n > inside:
            return ring(nbytes, n, slow, links["network alpha"])
        across = ring(nbytes / (inside if shared else 1), n / inside, slow, links["network alpha"])
        return ring(nbytes, inside, fast, links["NVLink alpha"]) + across

    stream = tokens * h / (t if layout["sequence"] else 1)
    layer = (runs * 24 * tokens * h**2 + scores * 4 * tokens * s * h) / t / flops
    if pointwise:
        layer += stream * (44 + 22 * (runs - 3)) / hbm + tokens * h / t * (40 + 16 * (runs - 3)) / hbm
        layer += tokens * s * shape.heads / t * (20 + 9 * (scores - 3)) / hbm
    waits = sums * reduces * all_reduce(2 * tokens * h, t, 1)
    waits += 3 / 2 * all_reduce(4 * layout["microbatch"] * s * h / t, cp, t)
    of_head = (
        (6 * tokens * h * shape.vocab_size / flops + 16 * tokens * shape.vocab_size * logits / hbm) / t * head
    )
    message = 0.0
    if pp > 1:
        near = 2 * replicas * t <= links["per_node"]
        alpha, speed = links["NVLink alpha" if near else "network alpha"], fast if near else slow
        message = alpha * (rounds != 0) + 2 * tokens * h / (t if scatter else 1) / (wires * speed)
        if not layout["sequence"] and scatter and gathers:
            message += all_reduce(2 * tokens * h, t, 1) / 2
    waits *= waiting != "nowhere"
    compute, slot = m * (layers * layer + of_head), layers * (layer + waits)
    total = m * (slot + of_head + 2 * v * message)
    if once:
        total = compute + slot - layers * layer + 2 * v * message
    in_bubble = slot if waiting == "everywhere" else layers * layer
    idle = (pp - 1) * (in_bubble / (v if chunked else 1) + 2 * message)
    total += idle * {"once": 1, "never": 0, "times m": m}[bubbles]
    params = (layers * 12 * h**2 + shape.vocab_size * h) / t
    if whole:
        params = shape.layers * 12 * h**2 + shape.vocab_size * h
    sent = all_reduce(2 * params, replicas, t) * summed
    if layout["zero"] == 3 and third:
        sent = max(0.0, 3 / 2 * m * sent - hides * compute)
    held = (layers * 12 * h**2 + shape.vocab_size * h) / t
    return total + sent + update * 34 * held / hbm / (replicas if layout["zero"] and owned else 1)


def slip(**change: Any) -> Formula:
    return lambda *args: seconds(*args, **change)


SLIPS: dict[str, Formula] = {
    "The FLOPs are those without recomputation, 72 for 96: a block that is recomputed runs forward twice, "
    "and its pointwise operations as well.": slip(again=False),
    "Selective recomputation runs the products of the scores once more, 4 times in place of 3.": slip(
        scores_again=False
    ),
    "NVLink's 600 GB/s are both directions together: a ring sends 300 each way.": slip(nvlink=1),
    "Networks are quoted in bits: 200 Gb/s are 25 GB/s.": slip(bits=1),
    "The bubble is multiplied by m: a pipeline fills and drains once a step.": slip(bubbles="times m"),
    "The bubble is missing: (p - 1) / v slots, in which a stage idles.": slip(bubbles="never"),
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
    "Products run at the data sheet's peak there and reach `efficiency` of it, or ZeRO-3's messages count "
    "below 0.": slip(reached=False),
    "The head is missing on the last stage: three products, and the logits in float32.": slip(head=False),
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
    "The replicas' sum is missing.": slip(summed=0),
    "An all-reduce sends 2 (n - 1) / n of its bytes: here half of them are counted for the replicas.": slip(
        summed=0.5
    ),
    "ZeRO-3 sends 3/2 of an all-reduce for each microbatch, of which computation hides a part.": slip(
        third=False
    ),
    "The optimizer is missing: it moves 34 bytes a parameter.": slip(update=False),
    "Norms, GELU, softmax and dropout are missing: they compute little, and move bytes.": slip(
        pointwise=False
    ),
    "A layer waits for four all-reduces, or six: two forward, two backward, and two forward again.": slip(
        reduces=0.5
    ),
}  # fmt: skip


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
            f"{100 * (ratios[worst] - 1):+.0f} %; 10 % were allowed.",
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
    "sums the gradients, once. One stage still sends no messages, and has no bubble."
)
OF_TP = (
    "If the lines above are right, the waits for tp are new here, and what t divides: products, the "
    "head, the parameters, and the stream with sequence parallelism alone."
)


def asked(shape: Model, layout: Plan, batch: int, links: Named = LINKS) -> tuple:
    return shape, layout, batch, GPU, links, EFFICIENCY


@exercise(points=7, objects=("step_seconds",), references=OF_NUMBERS)
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
    ]
    if draw.hidden:
        for more in ({"recompute": "none", "sequence": True}, {"recompute": "full"}, {"zero": 1}):
            options.append(asked(*drawn(draw, **more)))
    parts = "Print the parts of your step for one call, and compare them with the table."

    def question(title: str, plans: list[tuple], weight: float, otherwise: str = parts) -> Prediction:
        return Prediction("step_seconds", 0, plans, right, SLIPS, weight, title, otherwise, tolerance=CLOSE)

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
