"""axis_bytes and wire: the bytes that each axis sends in a step, and (see `wires`) the link for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.checks.notebooks.four_dimensions.wires import Args, Sizes, wires
from course_lib.facts.four_dimensions import axis_bytes as right_bytes
from course_lib.facts.four_dimensions import rank_parameters

FLOAT = 4  # bytes
WHOLE_BYTES = 2e-5  # relative: of a number with a fraction, which has at least 50,000 bytes
UNKNOWN = "axis_bytes: "  # the cause of numbers that no slip explains


class Step:
    """The quantities of a call (shape, sizes, microbatches, batch_rows, seq, stage) that mistakes mix up."""

    def __init__(
        self, shape: kit.Model, sizes: Sizes, microbatches: int, batch_rows: int, seq: int, stage: int = 0,
        width_bytes: int = FLOAT,
    ):  # fmt: skip
        self.pp, self.dp, self.cp, self.tp = (sizes.get(axis, 1) for axis in ("pp", "dp", "cp", "tp"))
        self.shape, self.sizes, self.m, self.stage = shape, sizes, microbatches, stage
        self.width_bytes, asked = width_bytes, (shape, sizes, microbatches, batch_rows, seq, stage)
        self.rows_here = batch_rows // (self.dp * microbatches)
        self.tokens = self.rows_here * seq / self.cp
        self.stream = self.tokens * shape.width * width_bytes
        self.layers = shape.layers // self.pp
        self.first, self.last = stage == 0, stage == self.pp - 1
        self.right, self.of_floats = right_bytes(*asked, width_bytes), right_bytes(*asked)
        self.of_first = right_bytes(*asked[:-1], 0, width_bytes)

    def sums(self, times: float, nbytes: float) -> float:
        """Bytes of so many all-reduces over tp."""
        return times * 2 * (self.tp - 1) / self.tp * nbytes

    @property
    def table(self) -> float:
        """Bytes that a tied table adds to pp."""
        tied = self.shape.tied and self.pp > 1 and (self.first or self.last)
        return self.shape.vocab_size * self.shape.width / self.tp * self.width_bytes if tied else 0.0

    @property
    def loss(self) -> float:
        return self.m * self.last * self.sums(1, 3 * FLOAT * self.tokens)

    def replicas(self, params: float, n: int | None = None) -> float:
        n = self.dp * self.cp if n is None else n
        return 2 * (n - 1) / n * params * self.width_bytes

    @property
    def params(self) -> float:
        return rank_parameters(self.shape, self.sizes, self.stage)

    @property
    def of_layer(self) -> float:
        """Parameters of a layer on a rank."""
        return (12 * self.shape.width**2 + 7 * self.shape.width) / self.tp + 6 * self.shape.width

    @property
    def rows(self) -> float:
        """Parameters of a rank's rows of the table."""
        return self.shape.vocab_size * self.shape.width / self.tp

    @property
    def own_table(self) -> float:
        """Bytes of a tied table with one stage, which are not sent."""
        return self.rows * self.width_bytes if self.shape.tied and self.pp == 1 else 0.0

    @property
    def untied_table(self) -> float:
        """Bytes of a table and of a head with weights of its own, which do not meet."""
        ends = self.pp > 1 and not self.shape.tied and (self.first or self.last)
        return self.rows * self.width_bytes if ends else 0.0

    @property
    def keys(self) -> float:
        """Bytes of the keys and values of a rank's tokens."""
        return (
            2 * self.tokens * self.shape.key_value_heads // self.tp * self.shape.head_dim * self.width_bytes
        )

    @property
    def extra_table(self) -> float:
        """Numbers of the table that a tied model with several stages holds twice."""
        return self.shape.vocab_size * self.shape.width if self.shape.tied and self.pp > 1 else 0


def slip(of: Callable[[Step], float]) -> Callable[..., float]:
    return lambda *args: of(Step(*args))


def ends_once(step: Step, *ends: bool) -> float:
    """Bytes over tp if these ends' all-reduces of M are counted once per step, not for each microbatch."""
    return step.right["tp"] - (step.m - 1) * step.sums(sum(ends), step.stream)


def naive_sums(step: Step) -> float:
    """Bytes over tp if an all-reduce sent twice its bytes, also on a rank alone."""
    of_stream = (4 * step.layers + step.first + step.last) * step.stream
    return 2 * step.m * (of_stream + step.last * 3 * FLOAT * step.tokens)


def without(of: Callable[[Step], float]) -> Callable[..., float]:
    """Bytes over dp and cp if so many of a rank's parameters are forgotten."""
    return slip(lambda step: step.replicas(step.params - of(step)))


def whole_model(step: Step) -> float:
    return sum(rank_parameters(step.shape, {"pp": step.pp}, k) for k in range(step.pp))


POINT = "the bytes of four axes (sums in layers, messages between stages, keys in rings, sums of gradients)"
BITS = "The answers are in bits, but a float32 has 4 bytes, and a byte has 8 bits."
GRADIENTS = "You count an all-reduce of the gradients, but it belongs to dp and cp together, in the entry dp."
TP_GRADIENTS = f"{GRADIENTS} Ranks of tp sum activations inside the layers."
PP_GRADIENTS = f"{GRADIENTS} Ranks of pp send activations to their neighbours."
CP_GRADIENTS = f"{GRADIENTS} Ranks of cp send keys and values around the ring."
IDEAS = (TP_GRADIENTS, PP_GRADIENTS, CP_GRADIENTS)  # those that miss the point
NOT_OVER_DP = "The tokens are not divided by dp, but a replica has only batch_rows / dp of the rows."
RING = "An all-reduce over n ranks sends 2 (n-1)/n of its bytes, not twice its bytes."
FIRST = (
    "Your bytes are those sent by stage 0, but the question was about the last stage or a middle one. Use "
    "`stage`."
)
ELEMENTS = "Your answer counts elements, but each has width_bytes bytes."
ONE_ROW = "A microbatch may have several rows, so count batch_rows / (dp m) of them."
ONE_MICROBATCH = (
    "The tokens of all microbatches are counted together, but a microbatch has only 1/m of the replica's "
    "tokens."
)
LOSS_ONCE = (
    "The loss is counted once per step, but the last stage sums three numbers per token in each of the m "
    "microbatches."
)
ENDS_ONCE = (
    "An all-reduce at the ends of the pipeline is counted once per step. But each of the m microbatches has "
    "the embedding's sum, the sum of the gradient of the head's input, and the sum of the loss."
)
TP = {
    "In an all-reduce over tp a rank sends 2 (n-1)/n of M, so give M to `summed`.": slip(
        lambda s: s.right["tp"] + s.m * (4 * s.layers * s.stream - s.sums(4 * s.layers, s.stream))
    ),
    "The two all-reduces per layer of forward are counted, but backward sums twice as well, at the inputs of "
    "attention and MLP.": slip(
        lambda s: s.right["tp"] - s.m * s.sums(2 * s.layers, s.stream)
    ),
    "Only one all-reduce per layer is counted, but attention and MLP have one each, in forward and also in "
    "backward.": slip(
        lambda s: s.right["tp"] - s.m * s.sums(3 * s.layers, s.stream)
    ),
    "An all-reduce sends 2 (t-1)/t of its bytes, because it is a reduce-scatter and an all-gather.": slip(
        lambda s: s.right["tp"] / 2
    ),
    RING: slip(lambda s: s.right["tp"] * s.tp / max(1, s.tp - 1)),
    ONE_MICROBATCH: slip(lambda s: s.right["tp"] * s.m),
    f"{RING} ": slip(lambda s: naive_sums(s)),
    NOT_OVER_DP: slip(lambda s: s.right["tp"] * s.dp),
    "The tokens are not divided by cp, but a rank sums only the tokens it holds.": slip(
        lambda s: s.right["tp"] * s.cp
    ),
    "The embedding's all-reduce is missing on the first stage. Add exactly one of M per microbatch, so "
    "65,536 bytes of 589,824 in the example.": slip(
        lambda s: s.right["tp"] - s.m * s.first * s.sums(1, s.stream)
    ),
    "The last stage also sums the gradient of the head's input in backward, so add one all-reduce of M per "
    "microbatch.": slip(
        lambda s: s.right["tp"] - s.m * s.last * s.sums(1, s.stream)
    ),
    "The loss is missing on the last stage, although it sums three float32 numbers per token.": slip(
        lambda s: s.right["tp"] - s.loss
    ),
    "Only the layers are counted, so add `tp_ends`. The first stage also sums the embedding. The last stage "
    "also sums the gradient of the head's input, and three numbers per token.": slip(
        lambda s: s.m * s.sums(4 * s.layers, s.stream)
    ),
    "The layers are right, but a stage at either end sums one more M per microbatch. The first stage sums "
    "the embedding in forward, and the last stage the gradient of the head's input.": slip(
        lambda s: s.right["tp"] - s.m * s.sums(s.first + s.last, s.stream)
    ),
    "The three numbers of the loss are float32, so each has four bytes, whatever width_bytes is.": slip(
        lambda s: s.right["tp"] + s.loss * (s.width_bytes / FLOAT - 1)
    ),
    "All layers of the model are counted, but a stage has only layers / pp.": slip(
        lambda s: s.right["tp"] + s.m * s.sums(4 * (s.shape.layers - s.layers), s.stream)
    ),
    "Only one microbatch is counted, but a step has m.": slip(lambda s: s.right["tp"] / s.m),
    "Three all-reduces per layer are counted, but forward has two, and backward also two.": slip(
        lambda s: s.right["tp"] - s.m * s.sums(s.layers, s.stream)
    ),
    LOSS_ONCE: slip(lambda s: s.right["tp"] - (1 - 1 / s.m) * s.loss),
    ENDS_ONCE: slip(lambda s: ends_once(s, s.first, s.last)),
    f"{ENDS_ONCE} ": slip(lambda s: ends_once(s, s.first)),
    f"{ENDS_ONCE}  ": slip(lambda s: ends_once(s, s.last)),
    f"{ENDS_ONCE}   ": slip(lambda s: ends_once(s, s.first, s.last) - (1 - 1 / s.m) * s.loss),
    "The loss sums three numbers per token, not one.": slip(lambda s: s.right["tp"] - 2 / 3 * s.loss),
    "Each element of M has width_bytes, so M = tokens x width x width_bytes.": slip(
        lambda s: (s.right["tp"] - s.loss) / s.width_bytes + s.loss
    ),
    "M has width elements for each token, so M = tokens x width x width_bytes.": slip(
        lambda s: (s.right["tp"] - s.loss) / s.shape.width + s.loss
    ),
    ONE_ROW: slip(lambda s: s.right["tp"] / s.rows_here),
    TP_GRADIENTS: slip(lambda s: s.replicas(s.params, s.tp)),
}  # fmt: skip
PP = {
    "The first stage has no stage before it, and the last has none behind it, so each of them sends in one "
    "direction.": slip(
        lambda s: 2 * s.m * s.stream * (s.pp > 1) + s.table
    ),
    "A stage in the middle has two neighbours, but a stage at an end has one, and a single stage has "
    "none.": slip(
        lambda s: s.m * s.stream + s.table
    ),
    "The two ends sum a tied table's gradient. An all-reduce over 2 ranks sends all its bytes, not half.": (
        slip(lambda s: s.right["pp"] - s.table / 2)
    ),
    "A stage in the middle has two neighbours, so it sends an activation to the next stage and a gradient to "
    "the previous one.": (
        slip(lambda s: s.m * s.stream * (s.pp > 1) + s.table)
    ),
    RING: slip(lambda s: s.right["pp"] + s.table),
    ONE_MICROBATCH: slip(lambda s: (s.right["pp"] - s.table) * s.m + s.table),
    "The messages are multiplied by the layers, but a stage sends only the output of its last layer.": slip(
        lambda s: (s.right["pp"] - s.table) * s.layers + s.table
    ),
    "With one stage, only this stage has the table, so no other stage's gradient is added.": slip(
        lambda s: s.right["pp"] + s.own_table
    ),
    "Only a tied table is summed with the other end, because a head that is not tied has its own "
    "gradient.": slip(
        lambda s: s.right["pp"] + s.untied_table
    ),
    "The tied table is missing, so add `pp_ends`. The first and the last stage sum its gradient once per "
    "step, V/t x h elements.": slip(
        lambda s: s.right["pp"] - s.table
    ),
    "The tied table is cut over tp, so only V/t rows are summed, once.": slip(
        lambda s: s.right["pp"] + s.table * (s.tp - 1)
    ),
    "The table's gradient is summed only once per step, after the last microbatch.": slip(
        lambda s: s.right["pp"] + s.table * (s.m - 1)
    ),
    "The tokens are not divided by cp, but a stage sends only the tokens it holds.": slip(
        lambda s: (s.right["pp"] - s.table) * s.cp + s.table
    ),
    NOT_OVER_DP: slip(lambda s: (s.right["pp"] - s.table) * s.dp + s.table),
    "Each neighbour gets M only once per microbatch, because activations go forward, while gradients come "
    "back from the other side.": slip(
        lambda s: 2 * (s.right["pp"] - s.table) + s.table
    ),
    "Only one microbatch is counted, but a step has m.": slip(
        lambda s: (s.right["pp"] - s.table) / s.m + s.table
    ),
    "Each element of M has width_bytes, so M = tokens x width x width_bytes.": slip(
        lambda s: (s.right["pp"] - s.table) / s.width_bytes + s.table
    ),
    "M has width elements for each token, so M = tokens x width x width_bytes.": slip(
        lambda s: (s.right["pp"] - s.table) / s.shape.width + s.table
    ),
    ONE_ROW: slip(lambda s: (s.right["pp"] - s.table) / s.rows_here + s.table),
    PP_GRADIENTS: slip(lambda s: s.replicas(s.params, s.pp)),
}  # fmt: skip
DP = {
    "`params` counts only the part that the rank holds, so it is not divided by tp once more.": slip(
        lambda s: s.replicas(s.params / s.tp)
    ),
    "The replicas sum gradients, one for each parameter of the rank, and not M, the residual stream.": slip(
        lambda s: s.replicas(s.stream / s.width_bytes)
    ),
    "The gradients of the whole model are counted, but a rank holds only those in its stage, and of these "
    "its part in tp.": (
        slip(lambda s: s.replicas(whole_model(s)))
    ),
    "The gradients of a whole stage are counted, but tp cuts its matrices.": slip(
        lambda s: s.replicas(rank_parameters(s.shape, {"pp": s.pp}, s.stage))
    ),
    "All layers of the model are counted, but a stage has only layers / pp.": slip(
        lambda s: s.replicas(s.params + (s.shape.layers - s.layers) * s.of_layer)
    ),
    "tp cuts the matrices of a layer and also their biases, so count (12h^2 + 7h) / t.": without(
        lambda s: s.layers * (12 * s.shape.width**2 + 7 * s.shape.width) * (1 / s.tp - 1)
    ),
    "Gradients are not sent just once, because an all-reduce over n ranks sends 2 (n-1)/n of its "
    "bytes.": slip(
        lambda s: s.params * s.width_bytes * (s.dp * s.cp > 1)
    ),
    "The model is divided by t p evenly. But norms and the biases behind a sum are whole on every rank of "
    "tp, and the first and the last stage also have the table.": slip(
        lambda s: s.replicas((whole_model(s) - s.extra_table) / (s.pp * s.tp))
    ),
    "The biases of the matrices cut by tp are missing, so add 7h / t in each layer.": without(
        lambda s: s.layers * 7 * s.shape.width / s.tp
    ),
    "The 6h in each layer that are whole on tp are missing. They are the norms and the biases behind a "
    "sum.": without(
        lambda s: s.layers * 6 * s.shape.width
    ),
    "Norms and the biases behind a sum are whole on every rank of tp, so 6h in each layer are not "
    "cut.": without(
        lambda s: s.layers * 6 * s.shape.width * (1 - 1 / s.tp)
    ),
    "The positions are missing, but the first stage has context x h of them.": without(
        lambda s: s.first * s.shape.context * s.shape.width
    ),
    "The table is missing on the first stage, so add V/t x h parameters.": without(
        lambda s: s.first * s.rows
    ),
    "The last stage has the head, V/t x h parameters, even if it is tied to the table.": without(
        lambda s: s.last * (s.pp > 1) * s.rows
    ),
    "If one stage is both the first and the last, it has the tied table only once.": slip(
        lambda s: s.right["dp"] + s.replicas(s.rows * (s.own_table > 0))
    ),
    "The final norm is missing, so add its 2h on the last stage.": without(
        lambda s: s.last * 2 * s.shape.width
    ),
    "Gradients are summed only once per step, because each rank adds up its microbatches first.": slip(
        lambda s: s.right["dp"] * s.m
    ),
    "An all-reduce sends 2 (n-1)/n of its bytes.": slip(lambda s: s.right["dp"] / 2),
    RING: slip(lambda s: 2 * s.params * s.width_bytes),
    "The sum runs over dp and cp together, because ranks of cp hold the same parameters.": slip(
        lambda s: s.replicas(s.params, s.dp)
    ),
    "You sum over dp and then over cp. The values are right, but one sum over both sends less.": (
        slip(lambda s: s.replicas(s.params, s.dp) + s.replicas(s.params, s.cp))
    ),
}  # fmt: skip
CP = {
    "A model may have fewer heads of keys and values than of queries, so only kv_heads / t of them "
    "travel.": slip(
        lambda s: s.right["cp"] * s.shape.heads / s.shape.key_value_heads
    ),
    ONE_MICROBATCH: slip(lambda s: s.right["cp"] * s.m),
    "Keys and values are cut over tp, so a rank has heads / t of them.": slip(lambda s: s.right["cp"] * s.tp),
    "Only forward is counted, but backward sends keys and values again, and also their gradients, cp "
    "times.": slip(
        lambda s: s.m * s.layers * (s.cp - 1) * s.keys
    ),
    "Backward also sends the gradients of keys and values. It sends them cp times, because the last time "
    "brings them home.": slip(
        lambda s: s.m * s.layers * 2 * (s.cp - 1) * s.keys
    ),
    "The gradients travel cp times, not cp - 1, because the last time brings them home.": slip(
        lambda s: s.m * s.layers * 3 * (s.cp - 1) * s.keys
    ),
    NOT_OVER_DP: slip(lambda s: s.right["cp"] * s.dp),
    "The keys travel, and so do the values.": slip(lambda s: s.right["cp"] / 2),
    "With cp = 1 nothing travels, because the rank has all keys.": slip(
        lambda s: s.right["cp"] or s.m * s.layers * s.keys
    ),
    "Keys and values travel cp - 1 times, in forward and also in backward, but their gradients cp "
    "times.": slip(
        lambda s: s.m * s.layers * 4 * s.cp * s.keys * (s.cp > 1)
    ),
    ONE_ROW: slip(lambda s: s.right["cp"] / s.rows_here),
    "The tokens are not divided by cp, but each part has only s/cp of them.": slip(
        lambda s: s.right["cp"] * s.cp
    ),
    "Only one microbatch is counted, but a step has m.": slip(lambda s: s.right["cp"] / s.m),
    "Only one layer is counted, but each layer of the stage sends its own keys.": slip(
        lambda s: s.right["cp"] / s.layers
    ),
    "All layers of the model are counted, but a stage has only layers / pp.": slip(
        lambda s: s.right["cp"] * s.pp
    ),
    CP_GRADIENTS: slip(lambda s: s.replicas(s.params, s.cp)),
}  # fmt: skip
AXES = {
    "tp": (TP, "Count four all-reduces per layer here and microbatch, and add `tp_ends`.", 2),
    "pp": (PP, "An end has one neighbour and a middle stage two. Count M for each, and add `pp_ends`.", 1.25),
    "dp": (DP, "Compare your number of parameters per rank with the text, then use n = dp cp.", 1.25),
    "cp": (CP, "Keys and values go around the ring in forward, then again in backward with gradients.", 1.25),
}  # fmt: skip
for axis, (slips, *_) in AXES.items():
    slips[BITS] = slip(lambda s, axis=axis: 8 * s.right[axis])
    slips[FIRST] = slip(lambda s, axis=axis: s.of_first[axis])
    slips[ELEMENTS] = slip(lambda s, axis=axis: s.right[axis] / s.width_bytes)
IN_16_BITS = {
    BITS: slip(lambda s: 8 * sum(s.right.values())),
    "An element has width_bytes, not always four.": slip(lambda s: sum(s.of_floats.values())),
    "Gradients have width_bytes as well, also in the sum over dp and cp.": slip(
        lambda s: sum(s.right.values()) - s.right["dp"] + s.of_floats["dp"]
    ),
    "The three numbers of the loss are float32, so each has four bytes, whatever width_bytes is.": slip(
        lambda s: sum(s.right.values()) + s.loss * (s.width_bytes / FLOAT - 1)
    ),
}


def predictions(
    plans: Sequence[Args], of_cp: Sequence[Args], in_16_bits: Sequence[Args]
) -> Iterator[kit.Case]:
    """of_cp: plans of grouped keys, whose other axes the notebook's table does not cover."""
    asked = [
        kit.Prediction(
            "axis_bytes", 0, [*plans, *of_cp] if axis == "cp" else plans, of_axis(axis), slips, weight,
            f"axis_bytes: {axis}", otherwise, pick=kit.entry(axis), tolerance=WHOLE_BYTES, ideas=IDEAS,
        )
        for axis, (slips, otherwise, weight) in AXES.items()
    ]  # fmt: skip
    of_width = kit.Prediction(
        "axis_bytes", 0, in_16_bits, lambda *args: sum(right_bytes(*args).values()), IN_16_BITS, 0.75,
        "axis_bytes: in 16 bits, all axes together", "Mend the axes above first, then the widths.",
        pick=together,
    )  # fmt: skip
    (case,) = kit.evaluated([*asked, of_width])
    *lines, of_all = case.lines
    of_axes = [of_its_own(line, axis) for line, axis in zip(lines, AXES, strict=True)]
    yield replace(case, lines=[*of_axes, replace(of_all, shows=None, part="")])  # each axis shows itself


def of_its_own(line: kit.Line, axis: str) -> kit.Line:
    """The line, whose mistake has the cause of no other axis if no slip explains it."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = line.judge(observed)
        unknown = finding.cause == UNKNOWN
        return replace(finding, cause=f"{UNKNOWN}{axis}") if unknown else finding

    return replace(line, judge=judge)


def of_axis(axis: str) -> Callable[..., float]:
    return lambda *args: right_bytes(*args)[axis]


def together(value: Any) -> Any:
    """The sum of an answer's four numbers."""
    numbers = [kit.entry(axis)(value) for axis in AXES]
    misfit = next((each for each in numbers if isinstance(each, kit.Misfit)), None)
    if misfit is not None or any(kit.numeric(each) is None for each in numbers):
        return misfit
    return sum(kit.numeric(each) or 0 for each in numbers)


# ---- the exercise

SMALL = kit.Model(256, 128, 4, 4, 64)
CUBE = {"pp": 2, "dp": 2, "cp": 1, "tp": 2}


def drawn(draw: kit.Draw, tied: bool) -> list[Args]:
    """Both ends and the middle of a pipeline, with unequal axes."""
    pp, dp, cp, tp = 3, draw.integer(2, 4), draw.choice([1, 2, 4]), draw.choice([2, 4])
    sizes = {"pp": pp, "dp": dp, "cp": cp, "tp": tp}
    heads, m = tp * draw.integer(2, 5), draw.integer(2, 7)
    shape = kit.Model(
        vocab_size=tp * draw.integer(50, 99), context=256, layers=pp * draw.integer(2, 5), heads=heads,
        width=8 * heads, tied=tied,
    )  # fmt: skip
    rows = dp * m * draw.integer(1, 4)
    return [(shape, sizes, m, rows, 8 * cp * draw.integer(4, 9), stage) for stage in range(pp)]


@kit.exercise(points=8, objects=("axis_bytes", "wire"), references=OF_NUMBERS, point=POINT)
def axis_bytes(draw: kit.Draw) -> Iterator[kit.Case]:
    untied = kit.Model(256, 128, 12, 4, 64, tied=False)
    plans: list[Args] = [
        (SMALL, CUBE, 4, 8, 64, 0),
        (SMALL, CUBE, 4, 8, 64, 1),
        (SMALL, {"pp": 2, "dp": 2, "cp": 2, "tp": 4}, 4, 24, 64, 0),
        (untied, {"pp": 3, "dp": 3, "cp": 4, "tp": 1}, 5, 30, 128, 1),
        (untied, {"pp": 3, "dp": 3, "cp": 1, "tp": 1}, 5, 30, 128, 2),
        (SMALL, {"dp": 2, "tp": 2}, 2, 8, 64, 0),
    ]
    grouped: Args = (kit.Model(256, 128, 4, 8, 64, kv_heads=2), {"dp": 2, "cp": 4, "tp": 2}, 3, 12, 64)
    if draw.hidden:
        plans += [plan for tied in (True, False, True) for plan in drawn(draw, tied)]
    yield from predictions(plans, [grouped], [(SMALL, CUBE, 4, 8, 64, stage, 2) for stage in (0, 1)])
    eights: list[Args] = [
        (sizes, axis, 8)
        for sizes in ({"pp": 16, "dp": 8, "tp": 8}, {"dp": 4, "tp": 16}, {"tp": 8, "pp": 2, "dp": 2},
                      {"pp": 2, "dp": 2, "cp": 2, "tp": 2})
        for axis in sizes
    ]  # fmt: skip
    others: list[Args] = [
        (sizes, axis, node)
        for sizes, node in (
            ({"pp": 2, "dp": 3, "tp": 4}, 6), ({"dp": 6, "tp": 2}, 4), ({"pp": 12, "dp": 1, "tp": 3}, 6),
            ({"dp": 2, "tp": 3}, 8), ({"pp": 4, "dp": 1, "tp": 4}, 6),
        )
        for axis in sizes
    ]  # fmt: skip
    if draw.hidden:
        tp, node = draw.choice([2, 3, 4]), draw.choice([3, 4, 6, 12])
        sizes = {"pp": draw.integer(2, 5), "dp": draw.integer(2, 7), "cp": 2, "tp": tp}
        others += [(sizes, axis, node) for axis in sizes]
    yield wires({"wire: nodes of 8": eights, "wire: other nodes": others}, 0.75)
