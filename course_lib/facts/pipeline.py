"""Pipelines: a rank's idle time and memory, in closed form, for each schedule of the course.

p ranks (`stages`), m microbatches, v chunks per rank; F, I, W (`forward`, `input`, `weight`): seconds of one
microbatch on all the layers of one rank, B = I + W; communication hidden or free. The bubble is the same on
all ranks, unless a docstring says otherwise. The literature uses two denominators for its fraction: the ideal
time m (F + B), for which GPipe's fraction is (p-1)/m, and the total, for which it is (p-1)/(m+p-1).

Sources: Huang et al., GPipe, NeurIPS 2019, section 2.3. Narayanan et al., PipeDream, SOSP 2019, section 3.3.
Narayanan et al., Megatron-LM, SC 2021, section 2.2. Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024,
sections 2 and 6, table 2. DeepSeek-V3 Technical Report, 2024, table 2. DualPipeV is DualPipe on 2p ranks.
"""

from __future__ import annotations

SCHEDULES = (
    "naive",
    "gpipe",
    "one_f_one_b",
    "interleaved_one_f_one_b",
    "pipedream",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
    "dualpipe",
    "dualpipe_v",
)


def pipeline_bubble(
    schedule: str,
    stages: int,
    microbatches: int,
    forward: float = 1,
    input: float = 1,
    weight: float = 1,
    chunks: int = 1,
    overlapped: float | None = None,
) -> float:
    """Seconds for which a rank idles in a step (`pipedream`: in the whole run).

    zero_bubble_h2 and zero_bubble_v: between a rank's own first action and its last, on the rank that idles
    most. Ranks begin and end at different times, so the next step must follow without a barrier.
    dualpipe and dualpipe_v: on the rank that idles most; on every rank if overlapping saves no time.
    overlapped: seconds of a forward and a backward as one block, F + B if not given.
    Raises ValueError if the formula does not hold.
    """
    _check(schedule, stages, microbatches)
    _check_durations(schedule, forward, input, weight)
    p, backward = stages, input + weight
    if schedule == "naive":
        return microbatches * (p - 1) * (forward + backward)
    if schedule == "interleaved_one_f_one_b":
        return (p - 1) * (forward + backward) / chunks
    if schedule == "zero_bubble_h1":
        return (p - 1) * (forward + input - weight)
    if schedule == "zero_bubble_h2":
        return (p - 1) * (forward + input - 2 * weight)
    if schedule == "zero_bubble_v":
        return 0
    if schedule in ("dualpipe", "dualpipe_v"):
        block = forward + backward if overlapped is None else overlapped
        # 2p half stages for DualPipeV: (2p/2 - 1) / 2
        return (p / 2 - 1 if schedule == "dualpipe" else (p - 1) / 2) * (
            block + backward - 3 * weight
        )
    return (p - 1) * (forward + backward)


def pipeline_bubble_of_ideal(
    schedule: str,
    stages: int,
    microbatches: int,
    forward: float = 1,
    input: float = 1,
    weight: float = 1,
    chunks: int = 1,
) -> float:
    """The bubble over a rank's computing time: (p-1)/m for GPipe and 1F1B. It can exceed 1."""
    ideal = microbatches * (forward + input + weight)
    return pipeline_bubble(schedule, stages, microbatches, forward, input, weight, chunks) / ideal


def pipeline_bubble_of_total(
    schedule: str,
    stages: int,
    microbatches: int,
    forward: float = 1,
    input: float = 1,
    weight: float = 1,
    chunks: int = 1,
) -> float:
    """The bubble over computing and bubble together: (p-1)/(m+p-1) for GPipe and 1F1B. It is below 1."""
    ratio = pipeline_bubble_of_ideal(schedule, stages, microbatches, forward, input, weight, chunks)
    return ratio / (1 + ratio)


def pipeline_activations(
    schedule: str, stages: int, microbatches: int, rank: int, chunks: int = 1
) -> int:
    """The most activations, each of one stage and microbatch, that a rank holds for a later B or I.

    A stage is all layers of a rank, or 1/v of them for interleaved_one_f_one_b, or half of them for
    zero_bubble_v and dualpipe_v. The tensors that W still needs after I are not included. They are up to i
    more on rank i for zero_bubble_h1, and 2i for zero_bubble_h2.
    """
    _check(schedule, stages, microbatches)
    if not 0 <= rank < stages:
        raise ValueError(f"rank {rank} must lie in 0 .. {stages - 1}")
    p, m, below = stages, microbatches, stages - 1 - rank
    return {
        "naive": 1,
        "gpipe": m,
        "one_f_one_b": min(m, below + 1),
        "interleaved_one_f_one_b": min(m * chunks, 2 * below + (chunks - 1) * p + 1),
        "pipedream": min(m, below + 1),
        "zero_bubble_h1": min(m, below + 1),
        "zero_bubble_h2": 2 * below + 1,
        "zero_bubble_v": 2 * p,
        "dualpipe": p + 1,
        "dualpipe_v": 2 * p + 1,
    }[schedule]


def pipeline_bytes_sent(
    stages: int, microbatches: int, rank: int, nbytes: float, chunks: int = 1
) -> float:
    """Bytes a rank sends in a step: activations to the next stage, their gradients to the previous stage.

    nbytes: of one microbatch's activation between two stages, and so of its gradient. chunks: the number of
    stages of a rank. Stages are placed on the ranks in a loop, so each stage of the last rank, except the
    model's last stage, is followed by a stage of the first rank. The result is the same for every schedule on
    such stages. Shared parameters (a tied head) are not included.
    """
    if not 0 <= rank < stages:
        raise ValueError(f"rank {rank} must lie in 0 .. {stages - 1}")
    if stages == 1:
        return 0
    down = chunks - (rank == stages - 1)
    up = chunks - (rank == 0)
    return microbatches * (down + up) * nbytes


def pipedream_versions(stages: int, microbatches: int, rank: int) -> int:
    """Versions of its weights a stage keeps: one for each microbatch between forward and backward."""
    return pipeline_activations("pipedream", stages, microbatches, rank)


def _check(schedule: str, stages: int, microbatches: int) -> None:
    """Raise ValueError unless there is such a schedule, with enough microbatches for the formulas."""
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule is called {schedule!r}; known are {', '.join(SCHEDULES)}")
    least = {
        "zero_bubble_h1": stages,
        "zero_bubble_h2": 2 * stages - 1,
        "zero_bubble_v": 2 * stages - 1,
        "dualpipe": 2 * stages,
        "dualpipe_v": 2 * stages,
    }.get(schedule, 1)
    if stages < 1 or microbatches < least:
        raise ValueError(
            f"{schedule} on {stages} ranks needs at least {least} microbatches, not {microbatches}"
        )
    unit = {"interleaved_one_f_one_b": stages, "dualpipe": 2}.get(schedule, 1)
    if microbatches % unit:
        raise ValueError(f"{schedule} on {stages} ranks needs a multiple of {unit} microbatches")
    if schedule == "dualpipe" and stages % 2:
        raise ValueError(f"dualpipe needs an even number of ranks, not {stages}")


def _check_durations(schedule: str, forward: float, input: float, weight: float) -> None:
    """Raise ValueError if the schedule has waits that its formula does not contain."""
    if schedule == "zero_bubble_v" and not forward == input == weight:
        raise ValueError(
            "zero_bubble_v has no bubble only where forward, input and weight are equal"
        )
    if schedule.startswith("zero_bubble") and weight > min(forward, input):
        raise ValueError(
            f"the bubble of {schedule} is known for a weight no longer than forward and input"
        )
    if schedule.startswith("dualpipe") and not forward == input >= weight:
        raise ValueError(f"the bubble of {schedule} is known for forward = input >= weight")
