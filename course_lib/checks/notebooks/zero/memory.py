"""memory_per_rank: bytes of model states that a rank keeps, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.checks import kit
from course_lib.facts import zero_memory

REFERENCE = ("course_lib.zero",)
FORMULAS = (*REFERENCE, "course_lib.facts")
Slips = dict[str, kit.Formula]

EVERYWHERE: Slips = {
    "Adam's m and v are 8 bytes a parameter; the float32 copy of the weights is 4 more.": (
        lambda p, n, s, *o: _kept(p, n, s, *o, states=8)
    ),
    "That has the gradients in 32 bits; here weights and gradients have 16.": (
        lambda p, n, s, *o: _kept(p, n, s, *o, gradients=4)
    ),
    "That is all ranks together; one rank's share was asked for.": (
        lambda p, n, s, *o: n * zero_memory(p, n, s, *o)
    ),
    "That is in GB; bytes were asked for.": lambda p, n, s, *o: zero_memory(p, n, s, *o) / 1e9,
    "That divides everything by the ranks; each stage divides one thing more.": (
        lambda p, n, s, *o: 16 * p / n
    ),
    "Replicas keep that many: a stage divides something by the ranks.": (lambda p, n, s, *o: 16 * p),
}
BY_STAGE: dict[int, Slips] = {
    0: {
        "Replicas share nothing: every rank keeps 16 bytes a parameter.": (lambda p, n, s: 4 * p + 12 * p / n)
    },
    1: {
        "The float32 copy belongs to the optimizer's states: it is sharded with m and v.": (
            lambda p, n, s: 8 * p + 8 * p / n
        ),
        "That shards the gradients too; stage 1 shards the optimizer's states alone.": (
            lambda p, n, s: 2 * p + 14 * p / n
        ),
        "Weights and gradients are still there, whole: 4 bytes a parameter.": (lambda p, n, s: 12 * p / n),
    },
    2: {
        "That is stage 1; stage 2 shards the gradients too.": lambda p, n, s: 4 * p + 12 * p / n,
        "The weights are still there, whole: 2 bytes a parameter.": lambda p, n, s: 14 * p / n,
        "Stage 2 shards the states as well: each stage divides what the one before it divides.": (
            lambda p, n, s: 14 * p + 2 * p / n
        ),
    },
    3: {
        "Two bytes a parameter are whole there: stage 3 shards the weights, and all that stage 2 shards.": (
            lambda p, n, s: 2 * p + 14 * p / n
        ),
        "Stage 3 shards states and gradients as well: each stage divides what the one before it divides.": (
            lambda p, n, s: 14 * p + 2 * p / n
        ),
    },
}
OFFLOAD: Slips = {
    "That is without offload: the states, and from stage 2 on the gradient shard, leave the device.": (
        lambda p, n, s, o: zero_memory(p, n, s)
    ),
    "Only the states have left; from stage 2 on the gradient shard goes where the step is done.": (
        lambda p, n, s, o: _kept(p, n, s, states=0)
    ),
    "In stage 3 the parameter shard lies in host memory too (offload_param): nothing stays.": (
        lambda p, n, s, o: 2 * p / n if s == 3 else zero_memory(p, n, s, o)
    ),
    "Everything gone? Before stage 3 the weights stay on the device, in stage 1 the gradients too.": (
        lambda p, n, s, o: 0.0
    ),
    "The gradients stay on the device in stage 1 only; later the host gets their shard.": (
        lambda p, n, s, o: 2 * p + (2 * p if s < 3 else 0)
    ),
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
            weight=2,
            title="stages 1 to 3 with offload",
        )
    )
    yield from kit.evaluated(questions)
