"""memory_per_gpu: states and activations of the GPU that holds most, in GB.

Activations are asked for as a difference: the answer for the sequence, less that for a sequence of one token.
So a mistake in the states costs the lines on states alone, and another unit one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.plans import GPT3, Formula, drawn, gpt, plan
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.planning.by_hand import memory_per_gpu as right

CLOSE = 2e-3  # relative: norms and biases may be counted


def gb(
    shape: kit.Model,
    layout: dict[str, Any],
    batch: int,
    *,
    held: str = "min",
    gradients: int = 0,
    weights: int = 0,
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
    undivided: bool = False,
    both: bool = True,
    v_more: bool = True,
    attached: bool = True,
    t_divides: int = 1,
    scores_cut: bool = False,
    inputs_cut: bool = False,
    states_over_p: str = "layers",
    states_over_t: bool = True,
    gathered_bytes: int = 4,
    gathered_layers: str = "one",
    sequences: bool = True,
    inputs: int = 2,
    selective_scores: bool = False,
    scores_over_t: bool = True,
    scores_times_s: bool = True,
    layers_cut_by_t: str = "sequence",
    of_states: bool = True,
    in_parentheses: bool = True,
    gathered_over_n: bool = False,
) -> float:
    """The count with mistakes: each keyword is one part of it."""
    pp, t, v, h = layout["pp"], layout["tp"], layout["chunks"], shape.width
    replicas = layout["dp"] * layout["cp"]
    n = {"dp": layout["dp"], "world": replicas * pp * t}.get(shards, replicas)
    layers, of_layer = shape.layers / pp, 12 * h**2 / (t if states_over_t else 1)
    of_table = table * shape.vocab_size * h / (t if table_cut and states_over_t else 1)
    params = (shape.layers if states_over_p == "nothing" else layers) * of_layer
    params += of_table / (pp if states_over_p == "all" else 1)
    n = 1 if shards == "nothing" else n
    states = {
        0: (4 + moments) * params,
        1: (2 / (n if weights else 1) + 2 / (n if gradients else 1)) * (params if in_parentheses else 1)
        + moments / n * params,
        3: (4 * (1 if undivided else 1 / n) + moments / n) * params
        + gathered_bytes
        * (of_layer if gathered_layers == "one" else params)
        * (gathered / (n if gathered_over_n else 1)),
    }
    rows = shape.context / (layout["cp"] if seq else 1) * h * (layout["microbatch"] if sequences else 1)
    cut = {"sequence": layout["sequence"] and stream, "always": True, "never": False}[layers_cut_by_t]
    whole = 0 if cut else 10
    products = 5 * shape.heads * (shape.context if scores_times_s else 1) / h * scores
    products /= layout["cp"] if scores_cut else 1
    rows /= t if t_divides == 2 else 1
    t = t if t_divides else 1  # of activations
    kept = {
        "none": rows * (whole + (34 - whole) / t + products / (t if scores_over_t else 1)),
        "selective": rows * (whole + (34 - whole + products * selective_scores) / t),
        "full": inputs * rows / (t if inputs_cut or (layout["sequence"] and stream and both) else 1),
    }
    m = batch / (layout["dp"] * layout["microbatch"])
    more = (pp - 1) / v
    most = pp + more * (v > 1 and v_more)
    in_flight = {
        "min": min(m, most), "max": max(m, most), "p - 1": min(m, most - 1), "m": m, "one": 1, "p": most,
        "batch": min(batch, most),
        "batch / dp": min(batch / layout["dp"], most), "m / cp": min(m / layout["cp"], most),
        "always more": min(m, pp + more), "never fewer": pp + more,
        "chunks never fewer": min(m, most) if v == 1 else most,
        "p - 1 / v": min(m, most if v == 1 else 2 * pp - 1 / v), "times v": v * min(m, most),
        "sequences": layout["microbatch"] * min(m, most),
        "times more": min(m, pp) * (1 + more * (v > 1)),
    }  # fmt: skip
    kept_of = in_flight[held] * (layers if of_stage else shape.layers)
    extra = kept["none"] if layout["recompute"] == "full" and again else 0
    return (
        of_states * states[layout["zero"]] + attached * (kept_of * kept[layout["recompute"]] + extra)
    ) / 1e9


def slip(**change: Any) -> Formula:
    return lambda shape, layout, batch: gb(shape, layout, batch, **change)


POINT = (
    "the GPU that holds most: its share of the states, and a stage's layers for all microbatches in flight"
)
ALL_MICROBATCHES = (
    "The stage keeps all m microbatches, but 1F1B keeps only min(m, p), because backward begins after p of "
    "them."
)
P_CANCELS = (
    "Only 1/p of what the stage keeps is counted, as with one microbatch in flight. But stage 0 keeps p "
    "microbatches of L/p layers, so p cancels, and pipelining does not save activation memory."
)
NO_ACTIVATIONS = "The activations are missing."
ALL_LAYERS = "The activations of all layers are counted, but a stage has only L/p of them."
DIVIDED = (
    "ZeRO-1 divides only the optimizer, so weights and gradients stay on every replica, 4 bytes per "
    "parameter."
)
OTHERWISE = "Print the table's parts for this call: P', sbh, what a layer keeps, and how many are in flight."
OF_STATES = "Print P', of_layer and replicas for this call, then compare your states with the table."
UNITS = {
    "The answers are in GiB, 2^30 bytes, but GB, 1e9 bytes, were asked for.": 1e9 / 2**30,
    "The answers are in bytes, but GB were asked for.": 1e9,
    "The answers are in MB, but GB were asked for.": 1e3,
    "The answers are in Gbit, but GB were asked for, of 8 bits each.": 8,
    "The answers are in bits, but GB were asked for, of 8e9 bits each.": 8e9,
}
STATES: dict[str, Formula] = {
    "The states are missing, so add P' times the bytes of the layout's ZeRO.": slip(of_states=False),
    DIVIDED: slip(gradients=1, weights=1),
    "The gradients are divided as well, but ZeRO-1 divides only the optimizer's 12 bytes.": slip(gradients=1),
    "ZeRO-3 divides all 16 bytes of a parameter, not only the optimizer's bytes.": slip(undivided=True),
    "The optimizer is divided by all ranks. But t and p have divided the parameters already, so ZeRO divides "
    "only over dp and cp.": slip(
        shards="world"
    ),
    "cp replicates the parameters as dp does, so ZeRO divides over both.": slip(shards="dp"),
    "The optimizer has 12 bytes per parameter, because it keeps the float32 copy and two moments.": slip(
        moments=8
    ),
    "All layers of the model are counted, but a stage has only L/p of them.": slip(states_over_p="nothing"),
    "p does not divide the table, because all of it is on the first stage.": slip(states_over_p="all"),
    "P' is divided by t, because tp cuts the layers and also the table.": slip(states_over_t=False),
    "ZeRO divides over replicas = dp cp. Stage 1 divides the optimizer, and stage 3 everything.": slip(
        shards="nothing"
    ),
    "Stage 3 has only one layer whole while it runs, not all of the stage's parameters.": slip(
        gathered_layers="all"
    ),
    "The layer that is whole has weights and gradients, so count 4 bytes per parameter, not 2.": slip(
        gathered_bytes=2
    ),
    "The table is missing, but the first stage also has it, besides its layers.": slip(table=False),
    "tp also cuts the table, so a rank has V/t rows.": slip(table_cut=False),
    "Stage 3 has one layer whole while it runs, so add 4 bytes per parameter of it.": slip(gathered=False),
    "Both parts of ZeRO-1 count per parameter, so put 4 + 12 / replicas in parentheses.": slip(
        in_parentheses=False
    ),
    "Stage 3 divides the 16 bytes, but the layer that is whole while it runs is not divided.": slip(
        gathered_over_n=True
    ),
}  # fmt: skip
ACTIVATIONS: dict[str, Formula] = {
    ALL_MICROBATCHES: slip(held="m"),
    P_CANCELS: slip(held="one"),
    ALL_LAYERS: slip(of_stage=False),
    "The activations are not divided by t, but its ranks keep only parts of what is inside a layer.": slip(
        t_divides=0
    ),
    "t divides what a layer keeps only once, not twice.": slip(t_divides=2),
    "m is the number of one replica's microbatches, batch / (dp microbatch).": slip(held="batch"),
    "m is the number of microbatches, batch / (dp microbatch), because one has several sequences.": slip(
        held="batch / dp"
    ),
    "m is batch / (dp microbatch), because ranks of cp share the sequences of a microbatch.": slip(
        held="m / cp"
    ),
    "Each token attends to all s keys, so cp cuts the scores only once, not twice.": slip(scores_cut=True),
    "A step may have fewer microbatches than stages, so use min(m, p).": slip(held="p"),
    "t does not divide norms and residuals here, but with sequence parallelism it divides all 34, not 24 of "
    "them.": (
        slip(stream=False)
    ),
    "A layer keeps 34. t divides all of them with sequence parallelism, but only 24 without.": slip(
        layers_cut_by_t="never"
    ),
    "A layer keeps 34. t divides only 24 of them without sequence parallelism, but all with it.": slip(
        layers_cut_by_t="always"
    ),
    "cp divides the sequence, so a rank keeps only s/cp tokens.": slip(seq=False),
    "The scores are missing, so add 5as/h to the 34, unless they are recomputed.": slip(scores=False),
    "Full recomputation keeps the inputs of all layers, and also one layer whole while it runs again.": slip(
        again=False
    ),
    "Interleaved stages keep more, so add (p - 1) / v microbatches to p.": slip(v_more=False),
    "Only interleaved stages keep (p - 1) / v microbatches more, so with one chunk it is min(m, p).": slip(
        held="always more"
    ),
    "The stage keeps p + (p - 1) / v microbatches whatever m and v are. But a step has only m, and one chunk "
    "keeps only p, so it is min(m, p) with one chunk.": slip(
        held="never fewer"
    ),
    "A step of p microbatches has no more to keep, also with chunks, so it is min(m, p + (p - 1) / v).": slip(
        held="chunks never fewer"
    ),
    "The (p - 1) / v microbatches of interleaved stages are added to p, so they do not multiply it.": slip(
        held="times more"
    ),
    "Only p - 1 is divided by v, so put it in parentheses, p + (p - 1) / v.": slip(held="p - 1 / v"),
    "A rank's chunks have L/p layers together, so do not multiply what they keep by v.": slip(held="times v"),
    "`kept` has the sequences of a microbatch already, so `in_flight` counts only microbatches.": slip(
        held="sequences"
    ),
    "With sequence parallelism, t also divides the inputs of layers that are recomputed.": (
        slip(both=False)
    ),
    "The inputs of recomputed layers are whole on tp, unless sequence parallelism divides them.": (
        slip(inputs_cut=True)
    ),
    f"{ALL_MICROBATCHES} ": slip(held="max"),
    "1F1B keeps p microbatches on the first stage, not p - 1, because its first backward follows p "
    "forwards.": slip(
        held="p - 1"
    ),
    "A microbatch has several sequences, so sbh = microbatch s/cp h.": slip(sequences=False),
    "With full recomputation a layer keeps its input in 16 bits, so count 2 sbh bytes, not sbh.": slip(
        inputs=1
    ),
    "Selective recomputation does not keep the scores, so count 34, without 5as/h.": slip(
        selective_scores=True
    ),
    "The scores are also divided by t, because a rank has a/t heads.": slip(scores_over_t=False),
    "Each token has scores with all s others, so count 5as/h, not 5a/h.": slip(scores_times_s=False),
    NO_ACTIVATIONS: slip(attached=False),
}  # fmt: skip
# Where p = t = 8, two mistakes give one number.
EIGHT: dict[str, Formula] = {
    "The activations are 8 times too large, but a stage has only L/p layers, and t divides what they "
    "keep.": slip(of_stage=False),
    "The activations are an eighth of the right ones. But t divides what a layer keeps only once, and p "
    "cancels, because stage 0 keeps p microbatches of L/p layers.": slip(held="one"),
}
# Those that miss the point.
IDEAS = (ALL_MICROBATCHES, f"{ALL_MICROBATCHES} ", P_CANCELS, NO_ACTIVATIONS, ALL_LAYERS)

# ---- lines


@dataclass(frozen=True)
class Question:
    """A line of the report. plans: its arguments; states: whether they are part of the number asked for.

    strictly: an answer in another unit than GB is wrong.
    """

    title: str
    plans: Sequence[Plan]
    slips: Mapping[str, Formula]
    weight: float
    states: bool = True
    strictly: bool = False

    @property
    def calls(self) -> list[Plan]:
        return [*self.plans, *(() if self.states else map(of_one_token, self.plans))]

    def of(self, formula: Formula) -> Formula:
        """The number asked for, by a formula of the whole memory."""
        return formula if self.states else lambda *plan: formula(*plan) - formula(*of_one_token(plan))

    @property
    def prediction(self) -> kit.Prediction:
        name = "memory_per_gpu" if self.states else "the activations' part of memory_per_gpu"
        return kit.Prediction(
            name, 0, self.plans, self.of(right), {says: self.of(slip) for says, slip in self.slips.items()},
            otherwise=OF_STATES if self.slips is STATES else OTHERWISE, tolerance=CLOSE, ideas=IDEAS,
            called="memory_per_gpu",
        )  # fmt: skip

    def numbers(self, start: int, observed: kit.Observed, unit: float) -> list[float] | None:
        """In GB; None if a call raised, or gave no number."""
        answers = [observed.answer(start + k) for k in range(len(self.calls))]
        values = [kit.numeric(answer.value) if answer.error is None else None for answer in answers]
        numbers = [value / unit for value in values if value is not None]
        if len(numbers) < len(answers):
            return None
        few = numbers[len(self.plans) :] or [0.0] * len(self.plans)
        return [number - less for number, less in zip(numbers, few, strict=False)]

    def answered(self, start: int, observed: kit.Observed, unit: float) -> list[kit.Answered]:
        numbers = self.numbers(start, observed, unit) or ()
        return [
            (plan, number, kit.equal(number, self.of(right)(*plan), CLOSE))
            for plan, number in zip(self.plans, numbers, strict=False)
        ]

    def line(self, start: int, units: Callable[[kit.Observed], float], alike: Sequence[Placed]) -> kit.Line:
        """alike: the questions about the same slips, which one slip has to explain together."""
        prediction = self.prediction

        def judge(observed: kit.Observed) -> kit.Finding:
            unit = units(observed)
            numbers = self.numbers(start, observed, unit)
            if numbers is None:
                return kit.judge_prediction(prediction, start)(observed)
            if self.strictly and unit != 1:
                says = next(says for says, factor in UNITS.items() if factor == unit)
                return kit.wrong("memory_per_gpu counts in another unit.", says, cause="unit")
            others = [each for question, place in alike for each in question.answered(place, observed, unit)]
            return kit.judge_values(prediction, numbers, others)

        def shows(observed: kit.Observed) -> float:
            answers = self.answered(start, observed, units(observed))
            return float(bool(answers) and kit.intact(prediction, answers))

        return kit.Line(self.title, judge, self.weight, shows=shows, part=self.title)


Placed = tuple[Question, int]  # with the number of its first call
Plan = tuple[Any, ...]


def of_one_token(plan: Plan) -> Plan:
    """The same question about sequences of one token, which keep next to nothing."""
    shape, *rest = plan
    return replace(shape, context=1), *rest


def unit_of(plans: Sequence[Plan]) -> Callable[[kit.Observed], float]:
    """The unit in which most answers are right, as a factor on GB; else 1.

    Some may be right in another unit by chance: states that t = 8 has not divided look like bits.
    """

    def unit(observed: kit.Observed) -> float:
        values = [kit.numeric(observed.answer(k).value) for k in range(len(plans))]

        def answers(factor: float) -> int:
            return sum(
                value is not None and kit.equal(value, factor * right(*plan), CLOSE)
                for value, plan in zip(values, plans, strict=True)
            )

        best = max((1.0, *UNITS.values()), key=answers)
        return best if 2 * answers(best) > len(plans) else 1.0

    return unit


def memory_case(questions: Sequence[Question]) -> kit.Case:
    plans = [plan for question in questions for plan in question.calls]
    starts = accumulate((len(question.calls) for question in questions), initial=0)
    placed = list(zip(questions, starts, strict=False))
    lines = [
        question.line(start, unit_of(plans), [each for each in placed if each[0].slips is question.slips])
        for question, start in placed
    ]
    calls = [kit.call(0, plan) for plan in plans]
    return kit.Case("memory_per_gpu", [kit.evaluating(calls)], lines, recipe=kit.SIZES, alone=True)


@kit.exercise(points=6, objects=("memory_per_gpu",), references=OF_NUMBERS, point=POINT)
def memory_per_gpu(draw: kit.Draw) -> Iterator[kit.Case]:
    small = gpt(48, 48, 6144, context=4)
    lean = {"recompute": "full", "sequence": True}
    states = [(small, plan(4, 16, 8, zero=zero, **lean), 64) for zero in (0, 1)] + [
        (small, plan(1, 32, 2, zero=3, cp=2, **lean), 32),
        (small, plan(2, 8, 4, zero=1, cp=2, **lean), 64),
    ]
    lecture = [(GPT3, plan(8, 16, 8, zero=1, recompute="none", sequence=True), 1536)]

    def kept(*options: tuple[str, bool, int, int]) -> list[Plan]:
        return [
            (GPT3, plan(16, 8, 8, recompute=recompute, sequence=sequence, microbatch=microbatch), batch)
            for recompute, sequence, microbatch, batch in options
        ]

    stages = kept(("none", True, 1, 1536), ("selective", True, 1, 1536), ("selective", False, 2, 1536))
    full = kept(("full", True, 1, 1536), ("full", False, 1, 1536))
    more = [
        *kept(("none", True, 1, 8), ("selective", False, 2, 64)),  # fewer microbatches than stages
        (GPT3, plan(8, 16, 8, chunks=2, recompute="selective", sequence=True), 128),  # as many as stages
        (GPT3, plan(4, 32, 8, chunks=4, recompute="selective", sequence=True), 1536),
        (gpt(32, 32, 4096, context=32_768), plan(2, 4, 4, cp=4, recompute="none", sequence=True), 64),
        (gpt(32, 32, 4096, context=32_768), plan(8, 2, 4, cp=2, recompute="none", sequence=True), 12),
    ]
    if draw.hidden:
        for zero, recompute in ((1, "none"), (0, "selective"), (1, "full")):
            shape, layout, batch = drawn(draw, recompute=recompute, sequence=True, zero=zero)
            more.append((shape, layout, batch))
    yield memory_case(
        [
            Question("states: ZeRO 0, 1 and 3", states, STATES, 2),
            Question("activations: 175B on 16 x 8 x 8", stages, ACTIVATIONS, 1.25, states=False),
            Question("activations: full recomputation", full, ACTIVATIONS, 0.75, states=False),
            Question(
                "activations: chunks, few microbatches, a long sequence", more, ACTIVATIONS, 1, states=False
            ),
            Question(
                "GB of 175B on 8 x 16 x 8, with ZeRO-1",
                lecture,
                {**EIGHT, **STATES, **ACTIVATIONS},
                1,
                strictly=True,
            ),
        ]
    )
