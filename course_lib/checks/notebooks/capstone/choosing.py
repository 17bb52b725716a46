"""cluster: one layout for a cluster that is given in words, within 5 % of the best of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from course_lib.checks import kit, words
from course_lib.checks.notebooks.capstone.references import REFERENCES
from course_lib.checks.rank.notebooks.capstone.laying_out import LayoutInstructions, LayoutReply
from course_lib.facts import gpu, link
from course_lib.models import PUBLISHED
from course_lib.planning import Cluster, Layout
from course_lib.planning.advisor import A100_EFFICIENCY, OPTIONS, RESERVED, sizes_of
from course_lib.planning.layout import AXES
from course_lib.planning.memory import memory_per_gpu
from course_lib.planning.roofline import Work
from course_lib.planning.step_time import step_seconds

RECIPE = "course_lib.checks.rank.notebooks.capstone.laying_out:as_data"
POINT = "a step that is about as short as the best one's on this cluster"
STATES = "States alone take 16 bytes per parameter. Cut the layers, or shard the states."
ACTIVATIONS = "Activations take much of it. A smaller microbatch, more stages or recomputation help."
ALLOWED = 1.05  # times the seconds of the best
SHAPE, BATCH, GPUS, PER_NODE = PUBLISHED["LLaMA-7B"], 256, 32, 8
CLUSTER = Cluster(GPUS, PER_NODE, gpu("L40S"), link("PCIe 4.0 x16"), link("10 Gb Ethernet"))
WORK = Work(A100_EFFICIENCY, flash=True)
ROOM = CLUSTER.gpu.memory - RESERVED


def seconds(layout: Layout) -> float:
    return step_seconds(SHAPE, layout, BATCH, CLUSTER, WORK)


def nbytes(layout: Layout) -> float:
    return memory_per_gpu(SHAPE, layout, BATCH, flash=WORK.flash)


@cache
def fitting() -> list[tuple[float, Layout]]:
    """All layouts the planner tries that fit, with the seconds of their steps, the fastest first."""
    every = [
        Layout(sizes, microbatch, chunks, zero, recompute, sizes["tp"] > 1)
        for sizes in sizes_of(GPUS)
        for recompute, zero, microbatch, chunks in OPTIONS
    ]
    possible = [layout for layout in every if not layout.obstacle(SHAPE, BATCH) and nbytes(layout) <= ROOM]
    return sorted(((seconds(layout), layout) for layout in possible), key=lambda each: each[0])


def best() -> float:
    return fitting()[0][0]


def read(reply: LayoutReply) -> Layout | kit.Finding:
    if reply.other is not None or not reply.sizes:
        if reply.other in kit.UNANSWERED:
            return kit.wrong("my_layout is not answered yet.", cause="form")
        said = "my_layout must be a Layout."
        return kit.wrong(said, "Write it as Layout({...}, microbatch=..., zero=...).", cause="form")
    try:
        layout = Layout(dict(reply.sizes), **reply.options)
        if not all(type(number) is int for number in (layout.microbatch, layout.chunks, layout.zero)):
            raise TypeError
        return replace(layout, sequence=layout.tp > 1)  # it costs nothing, so a choice without it counts too
    except (TypeError, ValueError):
        return kit.wrong("my_layout has a field that no layout has.", cause="form")


# ---- it can be cut, and fits


def possible(layout: Layout) -> kit.Finding:
    if layout.gpus > GPUS:
        return kit.wrong(
            f"my_layout needs {layout.gpus:,} GPUs, and the cluster has {GPUS}.",
            "pp * dp * cp * tp is the number of GPUs.", cause="gpus",
        )  # fmt: skip
    if layout.gpus < GPUS:
        said = f"my_layout uses {words.counted(layout.gpus, 'GPU')} of {GPUS}."
        return kit.wrong(said, "The others would be idle. Increase one of the axes.", cause="gpus")
    if obstacle := layout.obstacle(SHAPE, BATCH):
        many = layout.dp * layout.microbatch > BATCH
        why = f"A step has {BATCH} sequences, and the batch should stay what it is." if many else ""
        return kit.wrong(f"my_layout cannot be cut. {obstacle[0].upper()}{obstacle[1:]}.", why, cause="cut")
    if (needs := nbytes(layout)) > ROOM:
        said = f"my_layout needs {needs / 1e9:.0f} GB on a GPU, and {ROOM / 1e9:.0f} are left of 48."
        whole = layout.zero == 0 and layout.pp * layout.tp < 4
        why = STATES if whole else ACTIVATIONS
        return kit.wrong(said, why, cause="memory")
    return kit.RIGHT


# ---- it is fast: the first reason that fits is told


def other_order(layout: Layout) -> bool:
    """Whether the same sizes are fast in the usual order of the axes."""
    return better(layout, sizes={axis: layout.sizes[axis] for axis in AXES})


def better(layout: Layout, **changes: object) -> bool:
    """Whether the layout with these options is within the bound."""
    other = replace(layout, **changes)
    return not other.obstacle(SHAPE, BATCH) and nbytes(other) <= ROOM and seconds(other) <= ALLOWED * best()


REASONS: tuple[tuple[Callable[[Layout], bool], str], ...] = (
    (
        lambda each: each.tp > PER_NODE,
        "Its tp leaves the node. Four sums per layer and microbatch then wait for 10 Gb/s.",
    ),
    (
        lambda each: each.tp > 1,
        "Its tp sums four activations per layer and microbatch over PCIe, which has a tenth of NVLink's "
        "bandwidth. The rule 'tp up to the node' is made for NVLink.",
    ),
    (
        lambda each: each.cp > 1,
        "Sequences of 2,048 tokens are short. cp sends keys and values in every layer, and saves nothing "
        "that is needed here.",
    ),
    (
        lambda each: each.zero == 3,
        "ZeRO-3 gathers all parameters twice per microbatch, over 10 Gb/s.",
    ),
    (other_order, "The sizes are good, but axes are listed outermost first. Which of them leaves the node?"),
    (
        lambda each: each.pp == 1,
        "The gradients of the whole model are summed between nodes, over 10 Gb/s. A pipeline sends only "
        "activations there.",
    ),
    (
        lambda each: each.zero == 2 and better(each, zero=1),
        "ZeRO-2 scatters the gradients of every microbatch, and not once per step.",
    ),
    (
        lambda each: each.recompute != "none" and better(each, recompute="none"),
        "More is recomputed than the memory demands. A `Layout` recomputes everything by default, so write "
        'recompute="none".',
    ),
    (
        lambda each: each.chunks > 1 and better(each, chunks=1),
        "The sizes are good. But with v chunks, a microbatch has v times as many messages, and here "
        "they take more time than the bubble loses.",
    ),
    (
        lambda each: any(better(each, microbatch=size) for size in (1, 2) if size < each.microbatch),
        "The sizes are good. A smaller microbatch makes the bubble shorter.",
    ),
    (
        lambda each: better(each, recompute="none", microbatch=1, chunks=1, zero=1),
        "The sizes are good. Small microbatches keep few activations, so nothing needs to be recomputed, and "
        "chunks only add messages here.",
    ),
    (
        lambda each: CLUSTER.crosses(each.replica_ranks()),
        "Replicas of one stage lie in several nodes, so their gradients are summed over 10 Gb/s.",
    ),
    (
        lambda each: each.pp > 4,
        "Each pipeline sends all of its microbatches over 10 Gb/s to the next node. With fewer stages there "
        "are more replicas, so each of them has fewer microbatches to send.",
    ),
)  # fmt: skip


def fast(layout: Layout) -> kit.Finding:
    if possible(layout) is not kit.RIGHT:
        return kit.wrong("a layout that is not possible has no time.", cause="not possible")
    slower = seconds(layout) / best()
    if slower <= ALLOWED:
        return kit.RIGHT
    longer = f"{100 * (slower - 1):.0f} % longer than" if slower < 2 else f"{slower:.1f} times as long as"
    said = f"my_layout fits, and its step is {longer} the best one's."
    why = next((says for holds, says in REASONS if holds(layout)), "")
    return kit.wrong(said, why, cause="slow", misses_point=True)


def line(title: str, judge: Callable[[Layout], kit.Finding]) -> kit.Line:
    def of_reply(observed: kit.Observed) -> kit.Finding:
        layout = read(observed.values[0])
        return layout if isinstance(layout, kit.Finding) else judge(layout)

    return kit.Line(title, of_reply)


@kit.exercise(points=2, objects=("my_layout",), references=REFERENCES, constants=True, point=POINT)
def cluster(draw: kit.Draw) -> Iterator[kit.Case]:
    lines = [
        line("all 32 GPUs, the batch divides, and it fits", possible),
        line("a step at most 5 % longer than the best", fast),
    ]
    sides = [kit.RankSide({}, LayoutInstructions(), {})]
    yield kit.Case("layout", sides, lines, recipe=RECIPE, alone=True)
