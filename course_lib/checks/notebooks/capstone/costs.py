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
        units = {8 * size: f"That is in bits, and {unit}"}
        for name, factor in (("kB", 1e3), ("KiB", 2**10), ("MB", 1e6), ("MiB", 2**20)):
            units[size / factor] = f"That is in {name}, and {unit}"
        units[2 * size] = "A float32 has 4 bytes, and not 8."
        units[size / 2] = "A float32 has 4 bytes, and not 2."
        units[size / FLOAT] = f"That is in elements, and {unit} A float32 has 4 bytes."
        merged = dict(self.slips)  # the first that fits is told
        for wrong, says in units.items():
            merged.setdefault(wrong, says)
        return merged


def gathers(n: int, units: float, params: float = PARAMS) -> float:
    """`units` times (n - 1) / n of the parameters' bytes."""
    return units * (n - 1) / n * FLOAT * params


GATHER_AGAIN = (
    "That is one microbatch. Here each replica has two, and ZeRO-3 gathers and scatters for each of them."
)
SHARE = "A rank's own part does not travel: (n - 1) / n of the bytes."
SUMS = STREAM * 3 / 2  # an all-reduce over four ranks
QUESTIONS: Mapping[str, Asked] = {
    "zero_3_bytes": Asked(
        FIFTEEN["zero-3 4"], "dp",
        {
            gathers(4, 3): GATHER_AGAIN,
            gathers(4, 4): "ZeRO-3 gathers the parameters twice for each microbatch, in forward and in "
            "backward, and scatters the gradients once: three units, and not two.",
            gathers(4, 2): "That is an all-reduce, as plain data parallelism has it. ZeRO-3 gathers twice "
            "and scatters once, for each of two microbatches.",
            gathers(4, 5): "The gradients are scattered after each microbatch, too, since no rank has room "
            "for whole ones.",
            FLOAT * 6 * PARAMS: SHARE,
            gathers(4, 12): "That is twice as much. A replica reads 2 of the 8 rows, so it has two "
            "microbatches.",
            gathers(4, 6) / 4: "That is a quarter of it. Either the 4 bytes of a float32 are missing, or you "
            "divided by the ranks. A rank holds a quarter, but it sends its quarter to three others.",
        },
        "Count the gathers and scatters of one microbatch, and then the microbatches of a replica.",
    ),
    "tp_bytes": Asked(
        FIFTEEN["tp 4"], "tp",
        {
            16 * SUMS: "Those are the layers. The embedding's rows are summed as well, and so is the "
            "gradient of the head's input.",
            17 * SUMS: "In addition to the layers there are two sums: the embedding's rows in forward, and "
            "the gradient of the head's input in backward.",
            8 * SUMS: "A layer has two sums in forward and two in backward: four.",
            9 * SUMS: "That is half of it. Backward has as many sums as forward, and an all-reduce over "
            "4 ranks sends 2 * 3/4 of its bytes.",
            10 * SUMS: "A layer has two sums in forward and two in backward: four.",
            18 * STREAM: "An all-reduce over 4 ranks sends 2 * 3/4 of its bytes, and not all of them.",
            36 * STREAM: "An all-reduce over 4 ranks sends 2 * 3/4 of its bytes, and not twice all.",
            9 * SUMS / 2: "tp does not divide the activations that are summed: each rank has a term of all "
            "of them.",
            18 * SUMS / 4: "That is a quarter of it. A float32 has 4 bytes, and tp does not divide the "
            "activations that are summed, because each rank has a term of all of them.",
            18 * SUMS / ROWS: "One rank of tp reads all 8 rows.",
        },
        "Count the sums of one layer in both directions, the layers, and the sums before and after them.",
    ),
    "pp_bytes": Asked(
        FIFTEEN["pp 2, v 2"], "pp",
        {
            STREAM: "That is a pipeline without chunks. With v = 2 every microbatch passes this rank twice.",
            2 * STREAM: "Either gradients are missing, or v is. Rank 0 sends activations of both of its "
            "stages, and a gradient of the second.",
            4 * STREAM: "Its first stage has no stage before it, so no gradient leaves from there.",
            6 * STREAM: "Of each microbatch rank 0 sends two activations and one gradient.",
            12 * STREAM: "A message holds one microbatch of 2 rows, and not all 8.",
            3 * STREAM / 2: "That is half of it. There are four microbatches of 2 rows, and a float32 has 4 "
            "bytes.",
            3 * STREAM / 4: "That is a quarter of it. There are four microbatches, and a float32 has 4 "
            "bytes.",
        },
        "List the messages of one microbatch that leave the two stages of rank 0, and count microbatches.",
    ),
    "dp_bytes": Asked(
        DP_TP, "dp",
        {
            gathers(2, 2): "No rank sums the whole model. With tp 4 a rank has about a quarter of it.",
            gathers(2, 2, PARAMS / 4): "tp does not cut everything. Norms, the biases after a sum, and the "
            "table of positions are whole on each rank.",
            gathers(8, 2): "Only the 2 ranks of dp sum a gradient, and each has about a quarter of it.",
            gathers(8, 2, PARAMS / 4): "Only the 2 ranks of dp sum a gradient. Those of tp hold other parts.",
            gathers(2, 1, RANK): "That is half of it. An all-reduce over 2 ranks sends 2 * 1/2 of its bytes.",
            gathers(2, 4, RANK): "That is twice as much. An all-reduce over 2 ranks sends 2 * 1/2 of its "
            "bytes.",
            gathers(2, 2, PARAMS / 8): "dp does not cut the parameters: both replicas have all.",
        },
        "Sum the parameters of one rank of tp, cut and whole ones, and take an all-reduce over 2.",
    ),
    "held": Asked(
        PP_ZERO, "held",
        {
            2 * LAYER + TABLES: "That is a stage without ZeRO. Stage 3 leaves each of 4 replicas a quarter "
            "of it. (Or those are bytes, and parameters are asked for.)",
            PARAMS / 8: "The two stages are not equal: stage 0 has both tables and no head.",
            PARAMS / 4: "That is without pp: rank 0 has two of four layers.",
            PARAMS / 2: "Two stages are not equally large, and ZeRO-3 shards over 4 replicas.",
            2 * LAYER / 4: "In addition to its two layers, stage 0 has the tables of tokens and positions.",
            (2 * LAYER + HEAD) / 4: "That is the last stage, or the first without its table of positions. "
            "Rank 0 is on the first.",
            (2 * LAYER + TABLES + HEAD) / 4: "Stage 0 has no head, and no last norm.",
            (2 * LAYER + TABLES) / 8: "A stage is shared by the 4 replicas of dp, and not by all 8 ranks.",
        },
        "Add up what stage 0 has, and divide by the replicas.",
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
