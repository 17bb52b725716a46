"""The costs of a step of replicas: formulas that the student writes.

Two more that the notebook asks for, `samples_each` and `int8_bytes_sent`, are not judged here: it sets them
beside the student's own runs, which `shard_indices` and `int8_all_reduce` judge, and they give no points.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import facts
from course_lib.checks import kit

chosen = facts.topk_count
REFERENCE = ("course_lib.data_parallel", "course_lib.compression", "course_lib.facts")

SENT = {
    "An all-reduce has two phases, so it sends 2 (N-1)/N, not (N-1)/N.": lambda n, m, k, quiet: (
        (n - 1) / n * m * (1 if quiet else k)
    ),
    "A ring all-reduce sends 2 (N-1)/N of the gradients, not all of them.": lambda n, m, k, quiet: (
        m * (1 if quiet else k)
    ),
    "2 M is the limit for many ranks, but N ranks send 2 (N-1)/N M.": lambda n, m, k, quiet: (
        2 * m * (1 if quiet else k)
    ),
    "Under no_sync() nothing is sent, so K microbatches are sent once, together.": lambda n, m, k, quiet: (
        2 * (n - 1) / n * m * k
    ),
    "Without no_sync(), each of the K microbatches is sent.": lambda n, m, k, quiet: 2 * (n - 1) / n * m,
    "Send once with no_sync() and K times without it, not the other way around.": lambda n, m, k, quiet: (
        2 * (n - 1) / n * m * (k if quiet else 1)
    ),
    "The microbatches add up to gradients of the same size, so do not divide by K.": lambda n, m, k, quiet: (
        2 * (n - 1) / n * m / (k if quiet else 1)
    ),
    "Your formula sums over all ranks, but the question asks for one rank's bytes.": lambda n, m, k, quiet: (
        2 * (n - 1) * m * (1 if quiet else k)
    ),
}
EXPOSED = {
    "Your formula assumes no overlap, but messages sent while backward runs are hidden.": lambda b, c, k: c,
    "Your formula holds only if backward takes longer. If communication does, it begins after the first "
    "bucket, backward / buckets, then continues without a pause.": lambda b, c, k: c / k,
    "Communication does not begin with backward, because the first bucket is full only after backward / "
    "buckets.":
        lambda b, c, k: max(c / k, c - b),
    "Even if backward takes longer than all communication, the last bucket leaves when backward ends, so "
    "communication / buckets is exposed.": lambda b, c, k: max(0.0, c - b),
    "Your formula holds only if communication takes longer, but the last bucket is exposed in any case.":
        lambda b, c, k: max(0.0, c - (1 - 1 / k) * b),
    "Your formula includes backward, but the question asks only for the part that sticks out.":
        lambda b, c, k: b + max(c / k, c - (1 - 1 / k) * b),
    "You added the two times, but only the larger one counts.":
        lambda b, c, k: c / k + max(0.0, c - (1 - 1 / k) * b),
}  # fmt: skip
EFFICIENCY = {
    "Your formula is the share that is lost, and the efficiency is the rest.": lambda c, e: e / (c + e),
    "Your fraction is upside down, because efficiency is at most 1.": lambda c, e: (c + e) / c,
    "The step takes compute + exposed, so divide by that, not by compute.": lambda c, e: 1 - e / c,
    "Divide compute by the whole step, compute + exposed.": lambda c, e: c / e if e else 0.0,
}
TOPK = {
    "Indices also travel, with 4 bytes per value.": lambda n, size, f: (n - 1) * chosen(size, f) * 4,
    "Each rank sends its pairs to N - 1 others.": lambda n, size, f: chosen(size, f) * 8,
    "A rank sends to the N - 1 others, not to itself.": lambda n, size, f: n * chosen(size, f) * 8,
    "An all-gather adds nothing on the way, so every pair goes to all N - 1 others.": lambda n, size, f: (
        2 * (n - 1) / n * chosen(size, f) * 8
    ),
    "Your formula is the uncompressed all-reduce times the fraction. But indices cost as much as values, "
    "and an all-gather grows with N.": lambda n, size, f: 2 * (n - 1) / n * 4 * size * f,
    "Indices of 4 bytes are enough below 2^31 elements.": lambda n, size, f: (n - 1) * chosen(size, f) * 12,
}


@kit.exercise(
    points=6,
    objects=("gradient_bytes_sent", "exposed_seconds", "scaling_efficiency", "topk_bytes_sent"),
    references=REFERENCE,
)
def predictions(draw: kit.Draw) -> Iterator[kit.Case]:
    nbytes = 840_000 * draw.integer(10, 100)
    backward = draw.integer(10, 30) / 100
    compute, exposed = draw.integer(20, 60) / 100, draw.integer(5, 15) / 100
    numel = 100_000 * draw.integer(10, 100)
    yield from kit.evaluated(
        [
            kit.Prediction(
                "gradient_bytes_sent",
                index=0,
                arguments=[
                    (8, nbytes, 1, True), (8, nbytes, 1, False), (5, nbytes, 4, True),
                    (2, nbytes, 4, False), (1, nbytes, 3, False),
                ],
                formula=lambda n, m, k, quiet: facts.data_parallel_bytes(n, m, 1 if quiet else k),
                slips=SENT,
                weight=1.5,
            ),
            kit.Prediction(
                "exposed_seconds",
                index=1,
                arguments=[
                    (backward, 0.8 * backward, 1), (backward, 0.8 * backward, 10),
                    (backward, 3 * backward, 10), (backward, backward, 4), (backward, 0.0, 5),
                ],
                formula=facts.exposed_communication,
                slips=EXPOSED,
                weight=2.5,
                otherwise="Follow the last bucket. When is it ready, and when is the wire free?",
            ),
            kit.Prediction(
                "scaling_efficiency",
                index=2,
                arguments=[(compute, exposed), (0.3, 0.1), (compute, 0.0)],
                formula=facts.scaling_efficiency,
                slips=EFFICIENCY,
                otherwise="Divide one rank's own work by the whole step: compute / (compute + exposed).",
            ),
            kit.Prediction(
                "topk_bytes_sent",
                index=3,
                arguments=[(8, numel, 0.01), (100, numel, 0.01), (2, 7, 0.01), (1, numel, 0.1)],
                formula=facts.topk_bytes,
                slips=TOPK,
                otherwise="A rank sends (N-1) k pairs of 8 bytes, with k = max(1, round(fraction * numel)).",
            ),
        ]
    )  # fmt: skip
