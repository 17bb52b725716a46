"""five_costs: five numbers of one rank and one step, two of them of layouts that no cell has run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.models import PRESETS
from course_lib.planning import Layout
from course_lib.trainer.costs import layout_costs
from course_lib.trainer.layouts import FIFTEEN, ROWS

MODEL = replace(PRESETS["0.8M"], context=128, tied=False)
FLOAT = 4  # bytes
PARAMS = sum(facts.parameters_by_part(MODEL).values())
LAYER = facts.layer_parameters(MODEL)
TABLES = (MODEL.vocab_size + MODEL.context) * MODEL.width  # of the first stage, beside its layers
HEAD = MODEL.vocab_size * MODEL.width + facts.norm_parameters(MODEL)
STREAM = ROWS * MODEL.context * MODEL.width * FLOAT  # bytes of an activation of all rows
TOLERANCE = 0.004

DP_TP = Layout({"dp": 2, "tp": 4}, microbatch=4, recompute="none")
RANK = layout_costs(MODEL, DP_TP, ROWS)["dp"] / FLOAT  # parameters of a rank of tp 4
PP_ZERO = Layout({"pp": 2, "dp": 4}, microbatch=1, zero=3, recompute="none")


@dataclass(frozen=True)
class Asked:
    """A number of rank 0 in one step. slips: {wrong number: its sentence}."""

    layout: Layout
    key: str
    slips: Mapping[float, str]
    otherwise: str

    @property
    def right(self) -> float:
        return layout_costs(MODEL, self.layout, ROWS)[self.key]

    def all_slips(self) -> dict[float, str]:
        """Its own, and those of units."""
        size, unit = self.right, "bytes are asked for."
        if self.key == "held":
            return dict(self.slips)
        units = {8 * size: f"Your number is in bits, but {unit}"}
        for name, factor in (("kB", 1e3), ("KiB", 2**10), ("MB", 1e6), ("MiB", 2**20)):
            units[size / factor] = f"Your number is in {name}, but {unit}"
        units[2 * size] = "A float32 has 4 bytes, not 8."
        units[size / 2] = "A float32 has 4 bytes, not 2."
        units[size / FLOAT] = f"Your number is in elements, but {unit} A float32 has 4 bytes."
        merged = dict(self.slips)  # the first that fits is told
        for wrong, says in units.items():
            merged.setdefault(wrong, says)
        return merged


def gathers(n: int, units: float, params: float = PARAMS) -> float:
    """`units` times (n - 1) / n of the parameters' bytes."""
    return units * (n - 1) / n * FLOAT * params


GATHER_AGAIN = (
    "You counted one microbatch, but here each replica has two, and ZeRO-3 gathers and scatters for each "
    "of them."
)
SHARE = "A rank's own part does not travel, so count (n - 1) / n of the bytes."
SUMS = STREAM * 3 / 2  # an all-reduce over four ranks
QUESTIONS: Mapping[str, Asked] = {
    "zero_3_bytes": Asked(
        FIFTEEN["zero-3 4"], "dp",
        {
            gathers(4, 3): GATHER_AGAIN,
            gathers(4, 4): "Your number is 2/3 of the right one. For each of two microbatches, ZeRO-3 sends "
            "three units, two gathers and a scatter, and a unit is (n - 1) / n of the bytes.",
            gathers(4, 2): "You counted an all-reduce, as in plain data parallelism, but ZeRO-3 gathers "
            "twice and scatters once for each of two microbatches.",
            gathers(4, 5): "The gradients are also scattered after each microbatch, since no rank has room "
            "for whole gradients.",
            FLOAT * 6 * PARAMS: SHARE,
            gathers(4, 12): "Your number is twice the right one. A replica reads 2 of the 8 rows, so it "
            "has two microbatches.",
            gathers(4, 6) / 4: "Your number is a quarter of the right one. Either the 4 bytes of a float32 "
            "are missing, or you divided by the ranks. A rank holds a quarter, but it sends its quarter to "
            "three other ranks.",
        },
        "Count the all-gathers and reduce-scatters of one microbatch, then the microbatches of a replica.",
    ),
    "tp_bytes": Asked(
        FIFTEEN["tp 4"], "tp",
        {
            16 * SUMS: "You counted only the layers, but the embedding's rows are also summed, and so is "
            "the gradient of the head's input.",
            17 * SUMS: "In addition to the layers, there are two sums: the embedding's rows in forward, "
            "and the gradient of the head's input in backward.",
            8 * SUMS: "A layer has four sums, two in forward and two in backward.",
            9 * SUMS: "Your number is half of the right one. Backward has as many sums as forward, and an "
            "all-reduce over 4 ranks sends its bytes 2 * 3/4 times.",
            10 * SUMS: "A layer has four sums, two in forward and two in backward.",
            18 * STREAM: "An all-reduce over 4 ranks sends its bytes 2 * 3/4 times, not once.",
            36 * STREAM: "An all-reduce over 4 ranks sends its bytes 2 * 3/4 times, not twice.",
            9 * SUMS / 2: "tp does not divide the summed activations, because each rank has a term of all "
            "of them.",
            18 * SUMS / 4: "Your number is a quarter of the right one. A float32 has 4 bytes, and tp does "
            "not divide the summed activations, because each rank has a term of all of them.",
            18 * SUMS / ROWS: "Each rank of tp reads all 8 rows.",
        },
        "Count the sums of one layer in both directions, the layers, and the sums before and after them.",
    ),
    "pp_bytes": Asked(
        FIFTEEN["pp 2, v 2"], "pp",
        {
            STREAM: "Your number is right for a pipeline without chunks, but with v = 2 every microbatch "
            "passes this rank twice.",
            2 * STREAM: "Either the gradients or v is missing. Rank 0 sends activations of both of its "
            "stages, but also a gradient of the second.",
            4 * STREAM: "Rank 0's first stage has no stage before it, so no gradient leaves from there.",
            6 * STREAM: "For each microbatch, rank 0 sends two activations and one gradient.",
            12 * STREAM: "A message holds one microbatch of 2 rows, not all 8 rows.",
            3 * STREAM / 2: "Your number is half of the right one. There are four microbatches of 2 rows, "
            "and a float32 has 4 bytes.",
            3 * STREAM / 4: "Your number is a quarter of the right one. There are four microbatches, and a "
            "float32 has 4 bytes.",
        },
        "List the messages of one microbatch that leave the two stages of rank 0, then count the "
        "microbatches.",
    ),
    "dp_bytes": Asked(
        DP_TP, "dp",
        {
            gathers(2, 2): "No rank sums the whole model, because with tp 4 a rank has about a quarter of "
            "it.",
            gathers(2, 2, PARAMS / 4): "tp does not cut everything. Norms, the biases after a sum, and the "
            "table of positions are whole on each rank.",
            gathers(8, 2): "Only the 2 ranks of dp sum a gradient, and each has about a quarter of the "
            "model.",
            gathers(8, 2, PARAMS / 4): "Only the 2 ranks of dp sum a gradient, since ranks of tp hold "
            "different parts.",
            gathers(2, 1, RANK): "Your number is half of the right one, because an all-reduce over 2 ranks "
            "sends its bytes 2 * 1/2 times.",
            gathers(2, 4, RANK): "Your number is twice the right one, because an all-reduce over 2 ranks "
            "sends its bytes 2 * 1/2 times.",
            gathers(2, 2, PARAMS / 8): "dp does not cut the parameters, so both replicas have all of them.",
        },
        "Add up the parameters of one rank of tp, both cut and whole ones, then take an all-reduce over 2.",
    ),
    "held": Asked(
        PP_ZERO, "held",
        {
            2 * LAYER + TABLES: "Your number is right for a stage without ZeRO, but ZeRO-3 leaves each of "
            "4 replicas a quarter of it. (Or your number is in bytes, but parameters are asked for.)",
            PARAMS / 8: "The two stages are not equal, because stage 0 has both tables but no head.",
            PARAMS / 4: "Your number is right without pp, but here rank 0 has two of four layers.",
            PARAMS / 2: "The two stages differ in size, and ZeRO-3 also shards over 4 replicas.",
            2 * LAYER / 4: "Stage 0 has two layers, but also the tables of tokens and positions.",
            (2 * LAYER + HEAD) / 4: "Your number is for the last stage, or for the first without its table "
            "of positions, but rank 0 is on the first.",
            (2 * LAYER + TABLES + HEAD) / 4: "Stage 0 has neither the head nor the last norm.",
            (2 * LAYER + TABLES) / 8: "A stage is shared by the 4 replicas of dp, not by all 8 ranks.",
        },
        "Add up what stage 0 has, then divide by the replicas.",
    ),
}  # fmt: skip


@kit.exercise(points=5, objects=tuple(QUESTIONS), references=REFERENCES, constants=True)
def five_costs(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                name, asked.right, asked.all_slips(), "parameters" if name == "held" else "bytes",
                tolerance=TOLERANCE, otherwise=asked.otherwise,
            )
            for name, asked in QUESTIONS.items()
        ]
    )  # fmt: skip
