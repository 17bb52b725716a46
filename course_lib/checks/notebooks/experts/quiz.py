"""The questions at the end of notebook 11, with the wrong answers that show an oversight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.experts.references import REFERENCES
from course_lib.facts.experts import MIXTRAL_8X7B, all_to_all_bytes

ALL, USED = MIXTRAL_8X7B.parameters(), MIXTRAL_8X7B.parameters(used=True)
STATES = 16 * ALL / 1e9  # GB
FLOPS = 6 * USED / 1e9  # GFLOP a token
GIGABYTES = {
    16 * USED / 1e9: "Your answer is the parameters a token uses. But all experts are held, and all "
    "of them have gradients and states.",
    16 * 56: "8 experts are not 8 models of 7 billion, because they share attention, norms and embeddings.",
    2 * ALL / 1e9: (
        "You counted only the weights in 16 bits, but gradients and AdamW's states make it 16 bytes."
    ),
    16 * ALL / 2**30: "Your answer is in GiB. A GB has 10^9 bytes.",
    16 * ALL: "Your answer is in bytes. A GB has 10^9.",
    FLOPS: "Your answer is the number of GFLOPs. Write the pair as (GB, GFLOPs).",
    16 * 7: "You counted a model of 7 billion parameters, but the 8 experts hold more.",
}
GIGAFLOPS = {
    2 * USED / 1e9: "You counted only forward, but backward takes twice as many.",
    4 * USED / 1e9: "You counted only backward, but forward comes first.",
    6 * ALL / 1e9: "A token goes through 2 experts of 8, and only the parameters it uses cost FLOPs.",
    2 * ALL / 1e9: "A token goes through 2 experts of 8, forward and backward.",
    STATES: "Your answer is the number of GB. Write the pair as (GB, GFLOPs).",
    FLOPS * 1e9: "Your answer is in FLOPs. A GFLOP has 10^9.",
    FLOPS / 1e3: "Your answer is in TFLOPs. A GFLOP has 10^9.",
}
RANKS, EXPERTS, TOKENS, WIDTH = 8, 64, 4096, 4096
BALANCED = [[2 * TOKENS // EXPERTS] * EXPERTS] * RANKS
SENT = all_to_all_bytes(BALANCED, 0, WIDTH) / 1e6  # MB
MEGABYTES = {
    SENT / 2: (
        "Your answer is half. A token has 2 rows, a number has 2 bytes, and backward sends as many "
        "bytes as forward."
    ),
    SENT / 4: (
        "You counted one all-to-all. A layer has four, because dispatch and combine both run "
        "forward and backward."
    ),
    SENT * RANKS / (RANKS - 1): "One row of 8 is for the rank's own experts, so it is not sent.",
    2 * SENT: "A number in bfloat16 has two bytes.",
    SENT * 1e6: "Your answer is in bytes. A MB has 10^6.",
    SENT * 1e6 / 2**20: "Your answer is in MiB. A MB has 10^6 bytes.",
    SENT * RANKS: "Your answer is the sum over all ranks.",
}
DP, EP, RANK = 3, 4, 6
FACTORS = {
    DP: "Your answer is the number of an expert's replicas, which is the divisor that was used.",
    DP * EP: "Your answer is the divisor of a dense gradient. But an expert's gradient was also divided, "
    "by the 3 ranks of its sum.",
    1: "The rows of an expert come from 12 ranks, and the sum was divided by 3.",
    1 / EP: "The gradients are too large, because the sum was divided by 3 instead of 12.",
}
OPTIMIZERS = ("sgd", "sgd with momentum", "adamw")
SCALED = "SGD's step is as large as the gradient, so a factor in the gradient is one in the step."
DENSE, EXPERT = [*range(DP * EP)], [RANK % EP + EP * dp for dp in range(DP)]
EP_GROUP = [RANK - RANK % EP + ep for ep in range(EP)]
DENSE_LISTS: Mapping[tuple[int, ...], str] = {
    tuple(EXPERT): (
        "You summed only over dp. But ranks of ep have other tokens, and the same dense parameters."
    ),
    tuple(EP_GROUP): "You summed only over ep. But ranks of dp also have other tokens.",
}
EXPERT_LISTS: Mapping[tuple[int, ...], str] = {
    tuple(DENSE): "Ranks of ep hold other experts. The gradients of their rows came by the exchange.",
    tuple(EP_GROUP): "Your answer is the rank's group of ep, whose ranks hold other experts.",
    tuple(DP * (RANK // DP) + dp for dp in range(DP)): "ep is the inner axis, so ranks with the same "
    "coordinate on ep have numbers 4 apart.",
}
HOURS, GPUS = 180_000, 2048
DAYS = HOURS / GPUS / 24
OF_DAYS = {
    HOURS / GPUS: "Your answer is in hours.",
    HOURS / 24: "Your answer is how long one GPU would take. Divide the hours among the GPUs.",
    14.8 * DAYS: "Your answer is for all 14.8 * 10^12 tokens.",
    HOURS / GPUS / 24 / 7: "Your answer is in weeks.",
}
UNANSWERED = [*kit.UNANSWERED, []]
Judge = Callable[[Any], kit.Finding]


def whole(index: int, judge: Judge) -> kit.Line:
    """An answer of one value."""
    name = f"answer_{index + 1}"

    def judged(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index).value
        return kit.wrong(f"{name} is not answered yet.") if answer in UNANSWERED else judge(answer)

    return kit.Line(name, judged)


def part(index: int, place: int, what: str, judge: Callable[[str], Judge]) -> kit.Line:
    """One of the two values of an answer, which counts half."""
    name = f"answer_{index + 1}"
    title = f"{name}, {what}"

    def judge_pair(answer: Any) -> kit.Finding:
        if not isinstance(answer, list) or len(answer) != 2:
            return kit.wrong(f"{name} must be a pair.", "Write it as (first, second).", cause=f"{name} form")
        if answer[place] in UNANSWERED:
            return kit.wrong(f"{title} is not answered yet.")
        return judge(title)(answer[place])

    return replace(whole(index, judge_pair), title=title, weight=0.5)


def number(
    right: float, slips: Mapping[float, str], otherwise: str, tolerance: float = 0.01
) -> Callable[[str], Judge]:
    def of_title(title: str) -> Judge:
        def judge(answer: Any) -> kit.Finding:
            value = kit.numeric(answer)
            if value is None:
                return kit.wrong(f"{title} must be a number.")
            if kit.equal(value, right, tolerance):
                return kit.RIGHT
            slip = next((says for wrong, says in slips.items() if kit.equal(value, wrong, tolerance)), "")
            return kit.wrong(f"{title}: {words.number(value)} is not right.", slip or otherwise)

        return judge

    return of_title


def word(right: str, options: Sequence[str], says: str) -> Callable[[str], Judge]:
    def of_title(title: str) -> Judge:
        def judge(answer: Any) -> kit.Finding:
            said = answer.strip().lower() if isinstance(answer, str) else ""
            if said not in options:
                return kit.wrong(f"{title} must be {words.listing(map(repr, options), 'or')}.")
            return kit.RIGHT if said == right else kit.wrong(f"{title}: {said!r} is not right.", says)

        return judge

    return of_title


def ranks(right: list[int], slips: Mapping[tuple[int, ...], str], otherwise: str) -> Callable[[str], Judge]:
    def of_title(title: str) -> Judge:
        def judge(answer: Any) -> kit.Finding:
            listed = listed_ranks(answer)
            if listed is None:
                return kit.wrong(f"{title} must be a list of ranks.")
            if listed == right:
                return kit.RIGHT
            slip = slips.get(tuple(listed), "")
            if not slip and sorted({*listed, RANK}) == right:
                slip = f"Rank {RANK} itself takes part as well."
            said = words.listing(listed) if len(listed) <= DP * EP else "so many ranks"
            return kit.wrong(f"{title}: {said} is not right.", slip or otherwise)

        return judge

    return of_title


def listed_ranks(answer: Any) -> list[int] | None:
    """A list, a range or a tensor of integers, in order."""
    if isinstance(answer, dict) and isinstance(answer.get("range"), list) and len(answer["range"]) == 3:
        ends = answer["range"]
        if not all(type(end) is int and abs(end) <= DP * EP for end in ends) or ends[2] == 0:
            return None
        answer = [*range(*ends)]
    if isinstance(answer, dict):
        answer = answer.get("tensor")
    if not isinstance(answer, list) or not all(type(rank) is int for rank in answer):
        return None
    return sorted(answer)


@kit.exercise(
    points=5,
    objects=("answer_1", "answer_2", "answer_3", "answer_4", "answer_5"),
    references=REFERENCES,
    constants=True,
)
def questions(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = [
        part(0, 0, "GB", number(STATES, GIGABYTES, "All 46.7 billion parameters take 16 bytes each.")),
        part(0, 1, "GFLOPs", number(
            FLOPS, GIGAFLOPS, "Each of the 12.9 billion parameters in use costs 6 FLOPs.", 0.015
        )),
        whole(1, number(
            SENT, MEGABYTES,
            "Of a token's 2 rows, 7 in 8 leave the rank, four times. A row has 4,096 numbers of 2 bytes.",
        )("answer_2")),
        part(2, 0, "factor", number(EP, FACTORS, "The sum was divided by dp in place of dp * ep.", 1e-9)),
        part(2, 1, "optimizer", word("adamw", OPTIMIZERS, SCALED)),
        part(3, 0, "dense", ranks(
            DENSE, DENSE_LISTS, ("Dense parameters meet on all ranks with other tokens, so on dp and "
                                "ep together.")
        )),
        part(3, 1, "expert", ranks(
            EXPERT, EXPERT_LISTS, "An expert's parameters meet on the ranks that hold the same "
                                  "expert, which are the ranks of dp."
        )),
        whole(4, number(
            DAYS, OF_DAYS, "Divide the GPU hours by the GPUs, and by 24 hours.", 0.015
        )("answer_5")),
    ]  # fmt: skip
    sides = [kit.evaluating([[index, None] for index in range(5)])]
    yield kit.Case("answers", sides, lines, recipe=kit.EVALUATE, alone=True)
