"""Which layout? Drop those that cannot be cut or do not fit, and let the clock judge the rest.

    advise(shape, gpus, batch, cluster)   a verdict on every division of the GPUs, the fastest first
    best_layout(...)                      the first layout in this list

The sizes of pp, cp and tp are divisors of the number of GPUs, and dp is what is left. The axes are in the
order pp, dp, cp, tp from the outside. For 1,024 GPUs there are 66 such divisions without cp. A 175B-parameter
model with 1,536 sequences can be cut in 35 of them, because heads, layers and batch also have to be
divisible. For each of these, OPTIONS are tried: recomputation none, selective and full; ZeRO 0 and 1, and 3
without a pipeline; microbatches 1, 2 and 4; chunks 1 to 8. ZeRO-2 is left out, because the clock hides all
its sums of every microbatch behind the layers, which none of the runs in `published.py` has shown. The
verdict is that of the best option. If no option fits, it gives the reason against the leanest option.

This replaces the rules of thumb of Narayanan et al., 2021, section 3, which are tp up to the node, then pp,
then dp. Llama 3's order, section 3.3.2, is the same, with cp between tp and pp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from course_lib.facts.transformer import Shape
from course_lib.planning.layout import Layout
from course_lib.planning.memory import memory_per_gpu
from course_lib.planning.roofline import Work
from course_lib.planning.step_time import step_seconds
from course_lib.planning.topology import Cluster

RESERVED = 4e9  # bytes of a GPU for NCCL's buffers, the context and fragments: of 80 GB 76 are left
OPTIONS: tuple[tuple[str, int, int, int], ...] = tuple(
    (recompute, zero, microbatch, chunks)
    for recompute, zero in product(("none", "selective", "full"), (0, 1, 3))
    for microbatch in (1, 2, 4)
    for chunks in (1, 2, 3, 4, 6, 8)
)
A100_EFFICIENCY = 0.63  # fitted: `published.fitted(published.FITTED)`, 0.629


@dataclass(frozen=True)
class Verdict:
    """A layout with its time and memory, or with the first reason why it was dropped.

    seconds: of a step; None if it was dropped. nbytes: on the fullest GPU; None if it cannot be cut.
    """

    layout: Layout
    seconds: float | None
    nbytes: float | None
    reason: str = ""

    @property
    def fits(self) -> bool:
        return not self.reason


def sizes_of(gpus: int, context: bool = True) -> Iterator[dict[str, int]]:
    """All sizes of the four axes whose product is `gpus`; without context parallelism, only with cp 1."""
    divisors = [n for n in range(1, gpus + 1) if gpus % n == 0]
    for tp, cp, pp in product(divisors, divisors if context else (1,), divisors):
        if gpus % (tp * cp * pp) == 0:
            yield {"pp": pp, "dp": gpus // (tp * cp * pp), "cp": cp, "tp": tp}


def advise(
    shape: Shape,
    gpus: int,
    batch: int,
    cluster: Cluster,
    seq: int | None = None,
    work: Work | None = None,
    options: Sequence[tuple[str, int, int, int]] = OPTIONS,
    context: bool | None = None,
) -> list[Verdict]:
    """A verdict on each way to divide the GPUs: first those that fit, by their time, then the dropped ones.

    batch: sequences of a step; seq: tokens of each, the model's context if not given. work: how a GPU works,
    by default at the efficiency fitted for A100s. options: (recompute, zero, microbatch, chunks). context:
    whether cp can exceed 1; by default if there are at least 32,768 tokens. Cost: about 50 us for each
    option. ValueError if the cluster has another number of GPUs.
    """
    if gpus != cluster.gpus:
        raise ValueError(f"{gpus} GPUs are to be divided, and the cluster has {cluster.gpus}")
    seq = shape.context if seq is None else seq
    work = work or Work(A100_EFFICIENCY)
    context = seq >= 32_768 if context is None else context
    verdicts = [
        judge(shape, sizes, batch, cluster, seq, work, options) for sizes in sizes_of(gpus, context)
    ]
    return sorted(
        verdicts, key=lambda each: (not each.fits, each.seconds or 0.0, each.nbytes or 0.0)
    )


def judge(
    shape: Shape,
    sizes: dict[str, int],
    batch: int,
    cluster: Cluster,
    seq: int,
    work: Work,
    options: Sequence[tuple[str, int, int, int]] = OPTIONS,
) -> Verdict:
    """The best of the options for these sizes, or the first reason why none is possible."""
    room = cluster.gpu.memory - RESERVED
    plain = Layout(sizes, sequence=sizes["tp"] > 1)
    obstacle = plain.obstacle(shape, batch, seq)
    if obstacle:
        return Verdict(plain, None, None, obstacle)
    leanest: Verdict | None = None
    fastest: Verdict | None = None
    for recompute, zero, microbatch, chunks in options:
        layout = Layout(sizes, microbatch, chunks, zero, recompute, sizes["tp"] > 1)
        if (zero and layout.replicas == 1) or layout.obstacle(shape, batch, seq):
            continue
        nbytes = memory_per_gpu(shape, layout, batch, seq, work.flash)
        if nbytes > room:
            if leanest is None or nbytes < (leanest.nbytes or 0.0):
                leanest = Verdict(layout, None, nbytes, _too_much(nbytes, room))
            continue
        seconds = step_seconds(shape, layout, batch, cluster, work, seq)
        if fastest is None or seconds < (fastest.seconds or 0.0):
            fastest = Verdict(layout, seconds, nbytes)
    verdict = fastest or leanest
    if verdict is None:
        return Verdict(plain, None, None, "none of the options divides")
    return verdict


def _too_much(nbytes: float, room: float) -> str:
    return f"memory: {nbytes / 1e9:.0f} GB needed at least, {room / 1e9:.0f} GB free"


def best_layout(
    shape: Shape,
    gpus: int,
    batch: int,
    cluster: Cluster,
    seq: int | None = None,
    work: Work | None = None,
) -> Layout | None:
    """The fastest layout that can be cut and fits, or None."""
    verdict = advise(shape, gpus, batch, cluster, seq, work)[0]
    return verdict.layout if verdict.fits else None
