"""Data parallelism: the bytes of a step, the exposed share of their time, and the scaling.

n ranks, one bucket or several of equal size; alpha seconds per message, beta seconds per byte. The model
assumes that backward computes gradients at an even pace, and that buckets are sent one at a time.

Source, unless another is named: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel
Training, Proceedings of the VLDB Endowment 13 (2020), section 3.2, for the scheme; the formulas by following
the last bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.facts.costs import least_bytes, seconds


def data_parallel_bytes(
    n: int,
    gradient_bytes: float,
    synchronisations: int = 1,
    counted: bool = False,
    parameters: int = 0,
) -> float:
    """Bytes each rank sends in a step: 2 (n-1)/n of the gradients' bytes, as booked for an all-reduce.

    synchronisations: 1 with no_sync(), however many microbatches are accumulated; K if gradients are sent
    after each of K microbatches.
    counted: True if the ranks count their samples together, which adds 8 bytes to all-reduce.
    parameters: their number, if the ranks look for unused ones, which takes one byte each.

    Source: Patarasuk and Yuan 2009 (see `least_bytes`). 7B parameters, bf16, 8 ranks: 24.5 GB.
    """
    message = synchronisations * gradient_bytes + 8 * counted + parameters
    return least_bytes(n, message)


def synchronization_seconds(
    n: int, gradient_bytes: float, buckets: int, alpha: float, beta: float
) -> float:
    """Time of a step's all-reduces by a ring, in `buckets` messages; more messages pay alpha more often."""
    return buckets * seconds("ring_all_reduce", n, gradient_bytes / buckets, alpha, beta)


def exposed_communication(
    backward: float, communication: float, buckets: int = 1, overlap: bool = True
) -> float:
    """Seconds for which a step waits for its all-reduces after backward has ended.

    backward, communication: seconds of all of each. Without overlap, all communication is exposed. With
    overlap, bucket k of B is ready at k/B of backward, and is sent when the buckets before it have arrived.
    If backward takes longer, only the last bucket is exposed (communication / B). If communication takes
    longer, it starts after the first bucket, so communication - (1 - 1/B) backward is exposed.

    Backward 100 ms, communication 80 ms: 80 ms exposed with one bucket, 8 ms with ten.
    """
    if buckets < 1:
        raise ValueError(f"buckets={buckets}: gradients leave in at least 1")
    if not overlap:
        return communication
    return max(communication / buckets, communication - (1 - 1 / buckets) * backward)


def exposed_after(ready: Sequence[float], took: Sequence[float], backward: float) -> float:
    """As `exposed_communication`, for buckets of any size: when each is ready, and how long it takes."""
    free = 0.0
    for start, seconds_under_way in zip(ready, took, strict=True):
        free = max(free, start) + seconds_under_way
    return max(0.0, free - backward)


def scaling_efficiency(compute: float, exposed: float) -> float:
    """Share of ideal speed: n ranks are n times this as fast as one rank, each with a batch of its own size.

    compute: seconds of one rank's forward, backward and step (weak scaling: the same on n ranks). Compute
    300 ms, 100 ms exposed: 0.75, so 64 ranks do the work of 48.
    """
    return compute / (compute + exposed)
