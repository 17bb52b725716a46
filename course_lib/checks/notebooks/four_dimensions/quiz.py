"""The questions at the end of notebook 10, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.planning.by_hand import REACHED, SELENE, all_reduce_seconds, ring_seconds

STREAM = 2 * 2048 * 12_288  # bytes of GPT-3's residual stream, one sequence
SIXTEEN = 1e3 * all_reduce_seconds(STREAM, 16, 1, SELENE)
EIGHT = 1e3 * all_reduce_seconds(STREAM, 8, 1, SELENE)
CARD, NVLINK = SELENE["network"] / 8, SELENE["NVLink"] / 2
MILLISECONDS = {
    EIGHT: "Your answer is for t = 8, inside a node. Two nodes hold 16 ranks, so add the rings between them.",
    1e3 * ring_seconds(STREAM, 16, CARD, SELENE["network alpha"]): (
        "Your answer is for one ring through one card. But each of 8 ranks has a card, so sum inside the "
        "node first. Then each card carries 1/8 of the bytes."
    ),
    1e3 * ring_seconds(STREAM, 16, NVLINK, SELENE["NVLink alpha"]): (
        "Your answer is for a node of 16, but here only 8 ranks are in a node, and the others are behind the "
        "network."
    ),
    SIXTEEN - EIGHT: "Your answer is only the part across, but the sum inside the node comes before it.",
    EIGHT + 1e3 * ring_seconds(STREAM, 2, CARD, SELENE["network alpha"]): (
        "After the sum inside the node, each rank sends 1/8 of the bytes across."
    ),
    1e3 * all_reduce_seconds(STREAM, 16, 1, {**SELENE, "NVLink": 2 * SELENE["NVLink"]}): (
        "NVLink's 600 GB/s are both directions together, so a ring sends 300 each way."
    ),
    1e3 * all_reduce_seconds(STREAM, 16, 1, {**SELENE, "network": 8 * SELENE["network"]}): (
        "Networks are quoted in bits, so 200 Gb/s are 25 GB/s."
    ),
    SIXTEEN / 1e3: "Your answer is in seconds, but milliseconds were asked for.",
    4 * SIXTEEN: "Your answer is for a whole layer, with its four all-reduces.",
    SIXTEEN * REACHED: "Links reach 0.8 of their data sheets.",
}  # fmt: skip
REASONS = ("few keys", "nvlink", "small batch", "no bubble")


@kit.exercise(
    points=4,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5"),
    references=OF_NUMBERS,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    yield kit.answers(
        [
            kit.Answer(
                "answer_1", SIXTEEN, slips=MILLISECONDS, unit="milliseconds", tolerance=0.01,
                otherwise=(
                    "Add a ring of 8 inside the node, and a ring of 2 between nodes with 1/8 of the bytes."
                ),
            ),
            kit.Answer(
                "answer_2", 8,
                slips={
                    4: (
                        "Your answer is the printed number, but 8 x 16 x 16 x 4 ranks are 8,192 GPUs, half "
                        "of the row's number."
                    ),
                    128: "Without cp the answer would be 128, but cp takes a factor of 16.",
                    64: "Your answer is the dp of 8,192 GPUs without cp.",
                    16: "8 x 16 x 16 x 16 ranks are 32,768 GPUs.",
                },
                otherwise="Multiply tp, cp, pp and dp in every row.",
            ),
            kit.Answer(
                "answer_3", 16, unit="microbatches", tolerance=1e-3,
                slips={
                    2048: "Your answer is the whole batch, but dp = 128 pipelines share it.",
                    128: "Your answer is dp. But 2,048 sequences on 128 pipelines are 16 each.",
                    1: "A microbatch is one sequence, so a pipeline has 16 of them in a step.",
                },
                otherwise="16 M tokens are 2,048 sequences of 8,192, for 128 pipelines.",
            ),
            kit.Answer(
                "answer_4", 15 / 16,
                slips={
                    15 / 31: (
                        "Your answer is the share of the whole step, (p - 1) / (m + p - 1), not of the ideal "
                        "time."
                    ),
                    15: "Your answer is in slots, so divide by the m slots of the ideal time.",
                    1 / 16: "p - 1 slots are idle, not one.",
                    1: "Count p - 1 slots, not p.",
                },
                otherwise="Use (p - 1) / m with one chunk.",
            ),
            kit.Answer(
                "answer_5", REASONS[:1], options=REASONS,
                slips={
                    "nvlink": "tp = 8 fills the node, so cp goes over the network.",
                    "small batch": (
                        "The tokens per step are the same, 16 M. So compare the bytes of cp with the FLOPs "
                        "between."
                    ),
                    "no bubble": "pp is 16 in both rows, with 16 microbatches.",
                },
            ),
        ]
    )  # fmt: skip
