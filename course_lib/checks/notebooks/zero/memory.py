"""memory_per_rank: bytes of model states that a rank keeps, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.checks.notebooks.zero.references import FORMULAS
from course_lib.facts import zero_memory

Slips = dict[str, kit.Formula]

EVERYWHERE: Slips = {
    "Adam's m and v are 8 bytes per parameter, but the float32 copy of the weights is 4 more.": (
        lambda p, n, s, *o: _kept(p, n, s, *o, states=8)
    ),
    "You counted the gradients in 32 bits, but here weights and gradients have 16.": (
        lambda p, n, s, *o: _kept(p, n, s, *o, gradients=4)
    ),
    "You counted all ranks together. Return the share of one rank.": (
        lambda p, n, s, *o: n * zero_memory(p, n, s, *o)
    ),
    "Your result is in GB. Return bytes.": lambda p, n, s, *o: zero_memory(p, n, s, *o) / 1e9,
    "Your result divides everything by the ranks, but each stage divides one thing more.": (
        lambda p, n, s, *o: 16 * p / n
    ),
    "Replicas keep this many bytes, but a stage divides something by the ranks.": (
        lambda p, n, s, *o: 16 * p
    ),
}
BY_STAGE: dict[int, Slips] = {
    0: {
        "Replicas share nothing, so every rank keeps 16 bytes per parameter.": (
            lambda p, n, s: 4 * p + 12 * p / n
        )
    },
    1: {
        (
            "Your result leaves 8 bytes per parameter whole. Weights and gradients are 2 + 2 of them, but "
            "the float32 copy belongs to the optimizer's states, so it is sharded with m and v."
        ): (lambda p, n, s: 8 * p + 8 * p / n),
        "Your result also shards the gradients, but stage 1 shards only the optimizer's states.": (
            lambda p, n, s: 2 * p + 14 * p / n
        ),
        "Weights and gradients are still whole, at 4 bytes per parameter.": (lambda p, n, s: 12 * p / n),
    },
    2: {
        (
            "Your result leaves 4 bytes per parameter whole, but stage 2 also shards the gradients, so only "
            "the 2 bytes of the weights stay whole."
        ): (lambda p, n, s: 4 * p + 12 * p / n),
        "The weights are still whole, at 2 bytes per parameter.": lambda p, n, s: 14 * p / n,
        (
            "Stage 2 also shards the states, because each stage divides everything the stage before it "
            "divides."
        ): (lambda p, n, s: 14 * p + 2 * p / n),
    },
    3: {
        (
            "Your result leaves two bytes per parameter whole. Stage 3 shards the weights as well as "
            "everything that stage 2 shards."
        ): (lambda p, n, s: 2 * p + 14 * p / n),
        (
            "Stage 3 also shards states and gradients, because each stage divides everything the stage "
            "before it divides."
        ): (lambda p, n, s: 14 * p + 2 * p / n),
    },
}
GRADIENTS_STAY = (
    "The gradients stay on the device only in stage 1. In later stages the host gets their shard."
)
OFFLOAD: Slips = {
    "You counted without offload. The states, and from stage 2 on the gradient shard, leave the device.": (
        lambda p, n, s, o: zero_memory(p, n, s)
    ),
    (
        "Only the states have left, but from stage 2 on the gradient shard is moved to the device that "
        "does the step."
    ): (lambda p, n, s, o: _kept(p, n, s, states=0)),
    "In stage 3 both the gradient shard and the parameter shard are in host memory, so nothing stays.": (
        lambda p, n, s, o: 2 * p / n if s == 3 else zero_memory(p, n, s, o)
    ),
    (
        "Your result leaves nothing. But before stage 3 the weights stay on the device, and in stage 1 "
        "also the gradients."
    ): (lambda p, n, s, o: 0.0),
    GRADIENTS_STAY: (lambda p, n, s, o: 2 * p + (2 * p if s < 3 else 0)),
}


def _kept(
    params: float, n: int, stage: int, offload: bool = False, *, gradients: float = 2, states: float = 12
) -> float:
    return zero_memory(params, n, stage, offload, (2, gradients, states))


@kit.exercise(points=6, objects=("memory_per_rank",), references=FORMULAS)
def memory_prediction(draw: kit.Draw) -> Iterator[kit.Case]:
    some = 1_000_000 * draw.integer(20, 900)
    sizes = [(7_000_000_000, 8), (some, 64), (some, 3), (some, 1)]
    questions = [
        kit.Prediction(
            "memory_per_rank",
            index=0,
            arguments=[(params, n, stage) for params, n in sizes],
            formula=zero_memory,
            slips={**BY_STAGE[stage], **EVERYWHERE},
            title=f"stage {stage}" if stage else "stage 0: replicas",
        )
        for stage in range(4)
    ]
    questions.append(
        kit.Prediction(
            "memory_per_rank",
            index=0,
            arguments=[(params, n, stage, True) for stage in (1, 2, 3) for params, n in sizes],
            formula=zero_memory,
            slips={**OFFLOAD, **EVERYWHERE},
            overall=[GRADIENTS_STAY],
            weight=2,
            title="stages 1 to 3 with offload",
        )
    )
    yield from kit.evaluated(questions)
