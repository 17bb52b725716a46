"""memory_per_gpu: states and activations of the GPU that holds most, in GB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course_lib.checks.kit import Case, Draw, Model, Prediction, evaluated, exercise
from course_lib.checks.notebooks.four_dimensions.plans import GPT3, Formula, drawn, gpt, plan
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.facts.step_by_hand import memory_per_gpu as right


def gb(
    shape: Model,
    layout: dict[str, Any],
    batch: int,
    *,
    held: str = "min",
    gradients: int = 0,
    moments: int = 12,
    shards: str = "replicas",
    table: bool = True,
    table_cut: bool = True,
    stream: bool = True,
    of_stage: bool = True,
    seq: bool = True,
    scores: bool = True,
    again: bool = True,
    gathered: bool = True,
    v_more: bool = True,
    attached: bool = True,
) -> float:
    """The count with mistakes: each keyword is one part of it."""
    pp, t, v, h = layout["pp"], layout["tp"], layout["chunks"], shape.width
    replicas = layout["dp"] * layout["cp"]
    n = {"replicas": replicas, "dp": layout["dp"], "world": replicas * pp * t}[shards]
    layers, of_layer = shape.layers / pp, 12 * h**2 / t
    params = layers * of_layer + table * shape.vocab_size * h / (t if table_cut else 1)
    states = {
        0: (4 + moments) * params,
        1: (2 + 2 / (n if gradients else 1) + moments / n) * params,
        3: (4 + moments) * params / n + 4 * of_layer * gathered,
    }
    rows = layout["microbatch"] * shape.context / (layout["cp"] if seq else 1) * h
    whole = 0 if layout["sequence"] and stream else 10
    products = 5 * shape.heads * shape.context / h * scores
    kept = {
        "none": rows * (whole + (34 - whole + products) / t),
        "selective": rows * (whole + (34 - whole) / t),
        "full": 2 * rows / (t if layout["sequence"] and stream else 1),
    }
    m = batch / (layout["dp"] * layout["microbatch"])
    more = (pp - 1) / v
    most = pp + more * (v > 1 and v_more)
    in_flight = {
        "min": min(m, most), "m": m, "one": 1, "p": most, "always more": min(m, pp + more),
        "times more": min(m, pp) * (1 + more * (v > 1)),
    }  # fmt: skip
    kept_of = in_flight[held] * (layers if of_stage else shape.layers)
    extra = kept["none"] if layout["recompute"] == "full" and again else 0
    return (states[layout["zero"]] + attached * (kept_of * kept[layout["recompute"]] + extra)) / 1e9


def slip(**change: Any) -> Formula:
    return lambda shape, layout, batch: gb(shape, layout, batch, **change)


ALL_LAYERS = "Those are the activations of all layers: a stage has L/p of them."
STATES: dict[str, Formula] = {
    "The gradients are divided, too: ZeRO-1 divides the optimizer's 12 bytes alone.": slip(gradients=1),
    "The optimizer is divided by all ranks: t and p have divided the parameters already, and ZeRO divides "
    "over dp and cp.": slip(shards="world"),
    "cp replicates the parameters as dp does: ZeRO divides over both.": slip(shards="dp"),
    "The optimizer has 12 bytes a parameter: the float32 copy, and two moments.": slip(moments=8),
    "The table is missing: the first stage has it besides its layers.": slip(table=False),
    "tp cuts the table as well: a rank has V/t rows.": slip(table_cut=False),
    "Stage 3 has one layer whole while it runs: 4 bytes a parameter of it.": slip(gathered=False),
    ALL_LAYERS: slip(of_stage=False),
    "That is in GiB, 2^30 bytes; GB, 1e9, were asked for.": lambda *a: right(*a) * 1e9 / 2**30,
    "That is in bytes; GB were asked for.": lambda *a: right(*a) * 1e9,
}  # fmt: skip
ACTIVATIONS: dict[str, Formula] = {
    "The stage keeps all m microbatches: 1F1B keeps min(m, p), as backward begins after p.": slip(held="m"),
    "p divides twice: stage 0 keeps p microbatches of L/p layers. p cancels, and pipelining does not save "
    "activation memory.": slip(held="one"),
    "A step may have fewer microbatches than stages: min(m, p).": slip(held="p"),
    "t does not divide norms and residuals: with sequence parallelism it divides all 34, not 24 of them.": (
        slip(stream=False)
    ),
    "cp divides the sequence: a rank keeps s/cp places.": slip(seq=False),
    "The scores are missing: 5as/h besides 34, unless they are recomputed.": slip(scores=False),
    "Full recomputation keeps the inputs of all layers, and one layer whole while it runs again.": slip(
        again=False
    ),
    "Interleaved stages keep more: (p - 1) / v microbatches besides p.": slip(v_more=False),
    "Interleaved stages alone keep (p - 1) / v microbatches more: with one chunk it is min(m, p).": slip(
        held="always more"
    ),
    "The (p - 1) / v microbatches of interleaved stages are added to p: they do not multiply it.": slip(
        held="times more"
    ),
    "The activations are missing.": slip(attached=False),
    **{says: STATES[says] for says in list(STATES)[-3:]},
}  # fmt: skip


def question(title: str, plans: list[tuple], slips: dict[str, Formula], weight: float) -> Prediction:
    return Prediction(
        "memory_per_gpu", 0, plans, right, slips, weight, title,
        otherwise="Compare states and activations with the table, one after the other.", tolerance=2e-3,
    )  # fmt: skip


@exercise(points=6, objects=("memory_per_gpu",), references=OF_NUMBERS)
def memory_per_gpu(draw: Draw) -> Iterator[Case]:
    """States are asked for where activations are few: one row of a short sequence."""
    small = gpt(48, 48, 6144, context=64)
    lean = {"recompute": "full", "sequence": True}
    states = [(small, plan(4, 16, 8, zero=zero, **lean), 64) for zero in (0, 1)] + [
        (small, plan(1, 32, 2, zero=3, cp=2, **lean), 32),
        (small, plan(2, 8, 4, zero=1, cp=2, **lean), 64),
    ]
    lecture = [(GPT3, plan(8, 16, 8, zero=1, recompute="none", sequence=True), 1536)]
    kept = [
        (GPT3, plan(16, 8, 8, recompute=recompute, sequence=sequence), batch)
        for recompute, sequence, batch in (
            ("none", True, 1536), ("selective", True, 1536), ("selective", False, 64), ("full", True, 1536),
            ("none", True, 64),
        )
    ]  # fmt: skip
    more = [
        (GPT3, plan(8, 16, 8, chunks=4, recompute="selective", sequence=True), 1536),
        (gpt(32, 32, 4096, context=32_768), plan(2, 4, 4, cp=4, recompute="selective", sequence=True), 64),
    ]
    if draw.hidden:
        for zero, recompute in ((1, "none"), (0, "selective"), (1, "full")):
            shape, layout, batch = drawn(draw, recompute=recompute, sequence=True, zero=zero)
            more.append((shape, layout, batch))
    yield from evaluated(
        [
            question("states: ZeRO 0, 1 and 3", states, STATES, 2),
            question("activations: 175B on 16 x 8 x 8", kept, ACTIVATIONS, 2.5),
            question("175B on 8 x 16 x 8, with ZeRO-1", lecture, {**STATES, **ACTIVATIONS}, 0.5),
            question("chunks, and a long sequence", more, {**ACTIVATIONS, **STATES}, 1),
        ]
    )
