"""step_seconds: a step on a cluster, from two data sheets and one constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.plans import GPT3, GPU, LINKS, Named, Plan, drawn, gpt, plan
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.checks.notebooks.four_dimensions.timing_mistakes import OF_THE_PEAK, SLIPS
from course_lib.planning.by_hand import EFFICIENCY
from course_lib.planning.by_hand import step_seconds as right
from course_lib.planning.table_1 import TABLE_1

CLOSE = 2e-3  # relative, to what was asked for
TOLERANCE = 0.1  # to what was published
GRID = [k / 100 for k in range(50, 91)]  # efficiencies at which the fit looks
FITTED = 5  # the row of 76.1B


OTHER_LINKS = Named(
    "{**SELENE, 'NVLink': 900e9, 'network': 400e9}", {**LINKS, "NVLink": 900e9, "network": 400e9}
)
POINT = "a step as the sum of its parts (compute, bytes of memory, waits for messages, and the bubble)"


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


def published_line() -> kit.Case:
    calls = [kit.call(0, row_args(row, efficiency)) for row in TABLE_1 for efficiency in GRID]

    def judge(observed: kit.Observed) -> kit.Finding:
        rates: list[list[float]] = []
        for k, row in enumerate(TABLE_1):
            answers = [observed.answer(k * len(GRID) + j) for j in range(len(GRID))]
            raised = next((answer.error for answer in answers if answer.error is not None), None)
            if raised is not None and raised[0] == "NotImplementedError":
                return kit.unwritten("step_seconds", raised[2])
            took = [kit.numeric(answer.value) if answer.error is None else None for answer in answers]
            if any(each is None or each <= 0 for each in took):
                return kit.wrong(
                    f"step_seconds gives no positive number for the row of {row[0]}B.", cause="table"
                )
            rates.append([row_tflops(row, each) for each in took if each is not None])
        ratios = fit(rates)
        if not ratios:
            return kit.wrong(
                f"no efficiency from {GRID[0]} to {GRID[-1]} gives the 140 TFLOP/s of the 76.1B row.",
                "The lines above judge its parts.",
                cause="table",
            )
        worst = max(range(len(ratios)), key=lambda k: abs(ratios[k] - 1))
        if abs(ratios[worst] - 1) <= TOLERANCE:
            return kit.RIGHT
        return kit.wrong(
            f"with the constant of the 76.1B row, the row of {TABLE_1[worst][0]}B is off by "
            f"{100 * (ratios[worst] - 1):+.2f} %, but only 10 % were allowed.",
            "The lines above judge its parts.",
            cause="table",
        )

    line = kit.Line("table 1: fitted on 76.1B, nine rows within 10 %", judge, 2)
    return kit.Case("table 1", [kit.evaluating(calls)], [line], recipe=kit.SIZES, alone=True)


# ---- the exercise

# For numbers that no known mistake gives: the first lines have few parts, which these sentences list.
OF_ONE = (
    "One GPU sends nothing, so `ring` over one rank takes 0 seconds. The slot is L/p layers, and the "
    "pipeline is m times the slot and the head. Print these for the call, then compare them with the table."
)
OF_REPLICAS = (
    "If one GPU alone is right, only a ring in the node is new here, which sums the gradients once. Compare "
    "`fast` and `ring` with the table."
)
OF_TP = (
    "The waits for tp are new here, and the lines above hardly see a link. So compare `fast` and `ring` with "
    "the table, with 2 (n - 1) alphas and 0.8 of the speed each way. Each layer of a slot has its waits."
)


def asked(shape: kit.Model, layout: Plan, batch: int, links: Named = LINKS) -> tuple:
    return shape, layout, batch, GPU, links, EFFICIENCY


@kit.exercise(points=7, objects=("step_seconds",), references=OF_NUMBERS, point=POINT)
def step_seconds(draw: kit.Draw) -> Iterator[kit.Case]:
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
        # two stages in a node, two that fill it each, a fill of many stages of which the first two share a
        # node, and a ZeRO-3 that hides in part
        asked(gpt(24, 32, 4096, 256), plan(2, 1, 4), 2),
        asked(gpt(24, 32, 4096, 256), plan(2, 1, 8), 2),
        asked(gpt(64, 32, 4096, 128), plan(32, 1, 1), 2),
        asked(gpt(4, 32, 4096, 64), plan(1, 64, 1, zero=3), 192),
        asked(gpt(24, 32, 4096), plan(1, 2, 1, cp=8), 4),
        asked(gpt(4, 32, 4096, 64), plan(1, 64, 2, zero=3), 192),
        asked(gpt(24, 32, 4096), plan(2, 2, 4), 16, OTHER_LINKS),
    ]
    # as many microbatches as stages, and chunks whose messages take nearly as long as their layers
    short = [asked(gpt(32, 32, 4096, 128), plan(16, 1, 8, chunks=2), 16)]
    if draw.hidden:
        for more in ({"recompute": "none", "sequence": True}, {"recompute": "full"}, {"zero": 1}):
            options.append(asked(*drawn(draw, **more)))
    parts = "Print the parts of your step for one call, then compare them with the table."

    def question(title: str, plans: list[tuple], weight: float, otherwise: str = parts) -> kit.Prediction:
        return kit.Prediction(
            "step_seconds", 0, plans, right, SLIPS, weight, title, otherwise, tolerance=CLOSE,
            ideas=(OF_THE_PEAK,),
        )  # fmt: skip

    yield from kit.evaluated(
        [
            question("one GPU, nothing recomputed", alone, 0.5, OF_ONE),
            question("8 replicas in a node", replicas, 0.5, OF_REPLICAS),
            question("tp in a node", one_node, 0.5, OF_TP),
            question("1,024 A100s: 175B on 8 x 16 x 8 and 16 x 8 x 8", lecture, 2),
            question("other options", options, 1.25),
            question("a short step with chunks", short, 0.25),
        ]
    )
    yield published_line()
