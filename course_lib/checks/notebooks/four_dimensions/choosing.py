"""best_layout: the fastest layout that can be cut and fits, within 3 % of the best of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.plans import GPT3, GPU, LINKS, Named, Plan, gpt
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.planning import by_hand

ALLOWED = 1.03  # times the seconds of the best
AXES = ("pp", "dp", "cp", "tp")
OPTIONS = ("microbatch", "chunks", "zero", "recompute", "sequence")


@dataclass(frozen=True)
class Task:
    """A cluster, a model and a batch, and what the best layout shows there."""

    title: str
    shape: kit.Model
    gpus: int
    batch: int
    gpu: Named
    links: Named
    too_small: bool = False  # no layout fits, so None is right

    @property
    def args(self) -> tuple[Any, ...]:
        return self.shape, self.gpus, self.batch, self.gpu, self.links

    @property
    def room(self) -> float:
        return self.gpu["memory"] - by_hand.RESERVED

    def gb(self, layout: dict[str, Any]) -> float:
        return by_hand.memory_per_gpu(self.shape, layout, self.batch)

    def seconds(self, layout: dict[str, Any]) -> float:
        return by_hand.step_seconds(self.shape, layout, self.batch, self.gpu, self.links, by_hand.EFFICIENCY)

    @cached_property
    def fastest(self) -> float:
        """The seconds of the fastest layout that can be cut, whether it fits or not."""
        return min(map(self.seconds, by_hand.layouts(self.shape, self.gpus, self.batch)))

    @cached_property
    def fitting(self) -> list[tuple[float, float, dict[str, Any]]]:
        """(seconds, GB, layout) of all that fit, the fastest first."""
        every = by_hand.layouts(self.shape, self.gpus, self.batch)
        judged = [(self.seconds(layout), self.gb(layout), layout) for layout in every]
        return sorted((each for each in judged if each[1] <= self.room), key=lambda each: each[:2])

    def fastest_within(self, room: float) -> float:
        """The seconds of the fastest layout that needs no more than so many GB."""
        every = by_hand.layouts(self.shape, self.gpus, self.batch)
        return min(self.seconds(layout) for layout in every if self.gb(layout) <= room)

    @property
    def best(self) -> float | None:
        return self.fitting[0][0] if self.fitting else None

    def __repr__(self) -> str:
        return f"best_layout({self.shape!r}, {self.gpus}, {self.batch}, {self.gpu!r}, {self.links!r})"


# ---- what a chosen layout misses: a reason, or ""

Reason = Callable[[Task, dict[str, Any]], str]


def cp_alone(task: Task, layout: dict[str, Any]) -> str:
    """The best of those without cp."""
    if layout["cp"] > 1 or task.fitting[0][2]["cp"] == 1:
        return ""
    others = [seconds for seconds, _, each in task.fitting if each["cp"] == 1]
    if others and task.seconds(layout) <= min(others) * ALLOWED:
        return (
            "Your layout is the best with cp = 1. But here a sequence has so many tokens that cutting it "
            "over cp costs less than the network costs tp."
        )
    return ""


def largest_tp(task: Task, layout: dict[str, Any]) -> str:
    if (
        layout["tp"] < max(each["tp"] for _, _, each in task.fitting)
        or task.fitting[0][2]["tp"] == layout["tp"]
    ):
        return ""
    return (
        "Your layout has the largest tp that divides. Look at the node, and also at the cost of four sums "
        "per layer outside."
    )


def leanest(task: Task, layout: dict[str, Any]) -> str:
    if task.gb(layout) > min(gb for _, gb, _ in task.fitting) * 1.01:
        return ""
    return "Your layout has the fewest bytes. But all that fit are allowed, so take the fastest of them."


def always(name: str, value: Any, says: str, of_sizes: str = "") -> Reason:
    """The layout is the best of those with this value, and the best of all has another.

    of_sizes: the sentence if with the same sizes no other value is faster, or fits.
    """

    def reason(task: Task, layout: dict[str, Any]) -> str:
        alike = [seconds for seconds, _, each in task.fitting if each[name] == value]
        if layout[name] != value or task.fitting[0][2][name] == value or not alike:
            return ""
        own = [option for option in (*AXES, "microbatch") if option != name and name not in AXES]
        faster = any(
            each[name] != value and seconds < task.seconds(layout)
            for seconds, _, each in task.fitting
            if all(each[option] == layout[option] for option in own)
        )
        if task.seconds(layout) > alike[0] * (1 + 1e-9):
            return ""
        return says if faster else of_sizes or says

    return reason


def never(name: str, value: Any) -> Reason:
    """The layout is the best of those without this value, and the best of all has it."""

    def reason(task: Task, layout: dict[str, Any]) -> str:
        others = [seconds for seconds, _, each in task.fitting if each[name] != value]
        if layout[name] == value or task.fitting[0][2][name] != value or not others:
            return ""
        if task.seconds(layout) > others[0] * (1 + 1e-9):
            return ""
        return f"Your layout is the best of those without {name} = {value!r}, but the best of all has that."

    return reason


def smaller(axis: str) -> Reason:
    """The layout is the best of those in which the axis has no more ranks, and the best of all has more."""

    def reason(task: Task, layout: dict[str, Any]) -> str:
        most, best = layout[axis], task.fitting[0][2][axis]
        others = [seconds for seconds, _, each in task.fitting if each[axis] <= most]
        if best <= most or not others or task.seconds(layout) > others[0] * (1 + 1e-9):
            return ""
        return (
            f"Your layout is the best of those with {axis} = {most} or less, but the best of all has {best}."
        )

    return reason


def powers_of_two(task: Task, layout: dict[str, Any]) -> str:
    """The best of those whose pp, cp and tp are powers of two."""
    if not all(is_power(layout[axis]) for axis in AXES if axis != "dp"):
        return ""
    others = [
        seconds for seconds, _, each in task.fitting if all(is_power(each[a]) for a in AXES if a != "dp")
    ]
    if not others or task.seconds(layout) > others[0] * (1 + 1e-9):
        return ""
    also = ", or of those without a pipeline" if layout["pp"] == 1 else ""
    return (
        f"Your layout is the best of those whose pp, cp and tp are powers of two{also}, so try every "
        "division of the GPUs."
    )


def is_power(n: int) -> bool:
    return n & (n - 1) == 0


def within_a_node(task: Task, layout: dict[str, Any]) -> str:
    """The best of those whose tp stays in a node."""
    inside = [s for s, _, each in task.fitting if each["tp"] <= task.links["per_node"]]
    if not inside or inside[0] == task.best or task.seconds(layout) > inside[0] * (1 + 1e-9):
        return ""
    return (
        "Your layout is the best of those whose tp stays in a node, but here a larger one pays, because "
        "memory is short."
    )


def at_the_peak(task: Task, layout: dict[str, Any]) -> str:
    """The best if products ran at the data sheet's rate."""

    def seconds(each: dict[str, Any]) -> float:
        return by_hand.step_seconds(task.shape, each, task.batch, task.gpu, task.links, 1.0)

    if seconds(layout) > min(seconds(each) for _, _, each in task.fitting) * (1 + 1e-9):
        return ""
    return "Your layout would be the best if products ran at the data sheet's peak, so pass `efficiency` on."


def no_zero_3(task: Task, layout: dict[str, Any]) -> str:
    others = [seconds for seconds, _, each in task.fitting if each["zero"] < 3]
    if layout["zero"] < 3 and others and task.seconds(layout) <= min(others) * (1 + 1e-9):
        return (
            "Your layout is the best without stage 3 of ZeRO, which hides behind the layers here, so try "
            "FSDP as well."
        )
    return ""


def option(name: str, says: str) -> Reason:
    """The layout has the best's sizes, but not this option of it."""

    def reason(task: Task, layout: dict[str, Any]) -> str:
        best = task.fitting[0][2]
        others = [each for each in OPTIONS if each != name]
        alike = all(layout[each] == best[each] for each in (*AXES, *others))
        return says if alike and layout[name] != best[name] else ""

    return reason


def careful(task: Task, layout: dict[str, Any]) -> str:
    """The best of those that leave twice as much free, or a fifth of the memory."""
    memory = task.gpu["memory"]
    for room in (memory - 2 * by_hand.RESERVED, 0.8 * memory):
        leaner = [seconds for seconds, gb, _ in task.fitting if gb <= room]
        if leaner and task.gb(layout) <= room and task.seconds(layout) <= leaner[0] * (1 + 1e-9):
            return (
                f"Your layout is the best of those that need {room:.0f} GB, but all except 4 GB may be used."
            )
    return ""


REASONS = (
    leanest, careful,
    always(
        "chunks", 1, "Your layout is the best without chunks, so also try v = 2 and v = 4.",
        "Your layout is the best without chunks. But with other sizes they fit, so the step is faster.",
    ),
    powers_of_two,
    always("pp", 1, "Your layout is the best without a pipeline, so also try more stages."),
    always(
        "recompute", "none",
        "Your layout is the best without recomputation, so also try 'selective' and 'full'.",
        "Your layout is the best without recomputation, but other sizes are faster with some.",
    ),
    always(
        "recompute", "full", "More is recomputed than the memory demands.",
        "Your layout is the best with full recomputation, but with other sizes less has to be recomputed.",
    ),
    always(
        "microbatch", 1, "Your layout is the best with one sequence in a microbatch, so also try 2 and 4."
    ),
    largest_tp, cp_alone, within_a_node, no_zero_3, at_the_peak,
    option("chunks", "Chunks make the bubble shorter, so try all of them."),
    option("microbatch", "The microbatch makes the difference, so try all of them."),
)  # fmt: skip
# Values of an option that may not have been tried, told beside a reason that does not speak of this option.
VALUES = {"recompute": tuple(by_hand.RUNS), "microbatch": (4, 2), "chunks": (4, 2), "zero": (1,)}
OTHERWISE = "Compare your layout with the winner of all layouts that fit, by your step_seconds."
NOTHING_DROPPED = (
    "Yours is the fastest of all layouts that can be cut, so your test drops none. memory_per_gpu and "
    'gpu["memory"] are both in GB, so compare them without a factor.'
)
ALL_DROPPED = (
    "It gives None for every cluster. Is there a `return` at its end? If there is, your test drops all "
    'layouts, or the loop ends too early. memory_per_gpu and gpu["memory"] are both in GB, so compare them '
    "without a factor."
)
OF_80 = by_hand.A100["memory"] - by_hand.RESERVED  # GB
FIXED = (
    "Yours is the fastest of all layouts that need at most 76 GB, but this cluster's GPUs have less memory. "
    'So compare with gpu["memory"] - 4.'
)
SAME = (
    "The same axes are chosen for every cluster, but node, network and memory decide what fits and is fast."
)
NEEDED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "has pp > 1": lambda each: each["pp"] > 1,
    "cuts the sequence over cp": lambda each: each["cp"] > 1,
    "recomputes": lambda each: each["recompute"] != "none",
    "has a size that is not a power of two": lambda each: not all(is_power(each[a]) for a in AXES),
}


# ---- the judgement


def read(value: Any) -> Plan | str | None:
    """A layout from an answer, None, or words for something else."""
    if value is None:
        return None
    pairs = value.get("dict") if isinstance(value, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return "neither a dict nor None"
    layout = {name: each for name, each in pairs if isinstance(name, str)}
    missing = [name for name in (*AXES, *OPTIONS) if name not in layout]
    if missing:
        return f"a layout without {missing[0]!r}"
    allowed = {
        "chunks": by_hand.CHUNKS, "microbatch": by_hand.MICROBATCHES, "zero": by_hand.ZERO,
        "recompute": tuple(by_hand.RUNS), "sequence": (layout["tp"] != 1,),
    }  # fmt: skip
    for name, values in allowed.items():
        if name == "sequence" and layout[name] not in values:
            return f"sequence = {layout[name]!r} with tp = {layout['tp']!r}, but sequence is tp > 1"
        if layout[name] not in values:
            return f"{name} = {layout[name]!r}, which is not one of {', '.join(map(repr, values))}"
    if any(type(layout[axis]) is not int or layout[axis] < 1 for axis in AXES):
        return "an axis without a whole number of ranks"
    return Plan({name: layout[name] for name in (*AXES, *OPTIONS)})


def needed(task: Task) -> str:
    """A sentence on the properties shared by all layouts that fit."""
    common = [says for says, has in NEEDED.items() if all(has(each) for _, _, each in task.fitting)]
    return f"Every layout that fits {' and '.join(common)}." if common else ""


def finding(task: Task, chosen: Plan | str | None, why: str, drops_none: bool = False) -> kit.Finding:
    """why: the cause of all layouts that were chosen and are wrong, if one cause explains them.

    drops_none: for each cluster the fastest of all layouts was chosen, whether it fits or not.
    """
    if isinstance(chosen, str):
        return kit.wrong(
            kit.Sentence(f"{task} gives {chosen}.", "best_layout gives no layout."), cause="form"
        )
    if chosen is None:
        if task.best is None:
            return kit.RIGHT
        said = kit.Sentence(
            f"{task} gives None, but {len(task.fitting)} layouts fit.", "best_layout gives None."
        )
        return kit.wrong(said, why or needed(task), cause=why or f"None {needed(task)}")
    general = "best_layout gives a layout"
    if prod(chosen[axis] for axis in AXES) != task.gpus:
        said = f"{task} gives {chosen}, but this is not {task.gpus} GPUs."
        return kit.wrong(kit.Sentence(said, f"{general} for another number of GPUs."), cause="gpus")
    obstacle = by_hand.obstacle(task.shape, chosen, task.batch)
    if obstacle:
        said = f"{task} gives {chosen}, which cannot be cut: {obstacle}."
        otherwise = "Drop such a layout before you time it."
        if "does not divide" in obstacle:
            otherwise = f"Heads, layers, batch and tokens have to divide. {otherwise}"
        return kit.wrong(
            kit.Sentence(said, f"{general} that cannot be cut."),
            why or otherwise,
            cause=f"cut {obstacle[-20:]}",
        )
    if chosen["cp"] > 1 and task.shape.context < by_hand.LONG:
        said = f"{task} gives {chosen}, which cuts sequences of {task.shape.context:,} tokens over cp."
        short = f"cp > 1 is for sequences of {by_hand.LONG:,} tokens or more."
        return kit.wrong(
            kit.Sentence(said, f"{general} that cuts short sequences over cp."), short, cause="short"
        )
    gb = task.gb(chosen)
    if gb > task.room:
        said = f"{task} gives {chosen}, which needs {gb:.1f} GB of {task.room:.0f}."
        fits = gb <= task.gpu["memory"]
        otherwise = (
            "NCCL and fragments take 4 GB of the GPU's memory."
            if fits
            else ("Memory decides first, because a layout that does not fit has no time.")
        )
        if not fits and drops_none:
            otherwise = f"{otherwise} {NOTHING_DROPPED}"
        elif not fits and gb <= OF_80 and task.seconds(chosen) <= task.fastest_within(OF_80) * (1 + 1e-9):
            otherwise = FIXED
        return kit.wrong(
            kit.Sentence(said, f"{general} that does not fit."), why or otherwise, cause="memory"
        )
    seconds = task.seconds(chosen)
    if seconds <= task.fitting[0][0] * ALLOWED:
        return kit.RIGHT
    slower = seconds / task.fitting[0][0] - 1
    said = f"{task} gives {chosen}, whose step is {100 * slower:.0f} % longer than the best one."
    return kit.wrong(
        kit.Sentence(said, f"{general} that fits, but another is more than 3 % faster."),
        why or OTHERWISE,
        cause="slow",
    )


def slow(task: Task, chosen: Plan | str | None) -> bool:
    """Whether it is a layout that fits and can be cut, and another is faster."""
    if not isinstance(chosen, Plan) or prod(chosen[axis] for axis in AXES) != task.gpus:
        return False
    if by_hand.obstacle(task.shape, chosen, task.batch) or task.gb(chosen) > task.room:
        return False
    if chosen["cp"] > 1 and task.shape.context < by_hand.LONG:
        return False
    return task.seconds(chosen) > task.fitting[0][0] * ALLOWED


def drops_none(tasks: Sequence[Task], plans: Sequence[Plan | str | None]) -> bool:
    """Whether every layout is the fastest of all, whether it fits or not."""
    return all(
        isinstance(plan, Plan) and task.seconds(plan) <= task.fastest * (1 + 1e-9)
        for task, plan in zip(tasks, plans, strict=True)
    )


def cause_of(tasks: Sequence[Task], plans: Sequence[Plan | str | None]) -> str:
    """The reason that explains every layout that fits and is slow."""
    sizes = [(plan["tp"], plan["pp"]) for plan in plans if isinstance(plan, Plan)]
    malformed = any(isinstance(plan, str) and plan.startswith("sequence") for plan in plans)
    if not malformed and len(sizes) > 2 and len(set(sizes)) == 1:
        return SAME
    late = [(task, plan) for task, plan in zip(tasks, plans, strict=True) if slow(task, plan)]

    def explaining(reason: Reason) -> str:
        causes = [reason(task, plan) for task, plan in late if isinstance(plan, Plan)]
        return causes[0] if causes and all(causes) else ""

    first = next(filter(None, map(explaining, REASONS)), "")
    untried = (explaining(never(name, v)) for name in VALUES if name[:7] not in first for v in VALUES[name])
    said = [*filter(None, (first, explaining(smaller("dp")), *untried))][:3]
    if len(said) > 1:
        said.append("See which of these was not tried.")
    return " ".join(said) or next(filter(None, map(explaining, map(smaller, AXES))), "")


def case(tasks: Sequence[Task]) -> kit.Case:
    def judge(index: int) -> Callable[[kit.Observed], kit.Finding]:
        def judge_task(observed: kit.Observed) -> kit.Finding:
            answer = observed.answer(index)
            if answer.error is not None:
                error, text, place = answer.error
                if error == "NotImplementedError":
                    return kit.unwritten("best_layout", place)
                general = f"best_layout raised {kit.error_kind(error)}."
                empty = error == "ValueError" and "empty" in text  # of min() without a default
                hint = "If no layout fits, return None." if empty else ""
                return kit.wrong(
                    kit.Sentence(f"{tasks[index]} raised {kit.error_in_full(error, text)}", general),
                    kit.at(place),
                    hint,
                    cause=error,
                )
            plans = [read(observed.answer(k).value) for k in range(len(tasks))]
            cause = cause_of(tasks, plans)
            said = cause if cause == SAME or slow(tasks[index], plans[index]) else ""
            if all(plan is None for plan in plans):
                said = ALL_DROPPED
            return finding(tasks[index], plans[index], said, drops_none(tasks, plans))

        return judge_task

    lines = [kit.Line(task.title, judge(k), trivial=task.too_small) for k, task in enumerate(tasks)]
    calls = [kit.call(0, task.args) for task in tasks]
    return kit.Case("clusters", [kit.evaluating(calls)], lines, recipe=kit.SIZES, alone=True)


@lru_cache(maxsize=2)
def tasks_of(hidden: bool) -> tuple[Task, ...]:
    """Twelve clusters that a student sees, and five that stay hidden.

    Short sequences show three mistakes: one sequence in each microbatch, no `efficiency`, and heads that tp
    does not divide. 96 GPUs of 40 GB show two: tokens that 2 cp tp does not divide, and a tp that stays in
    the node. 24 GPUs of 40 GB show four mistakes: all of the memory, too little of it, ZeRO-3 in a pipeline,
    and powers of two alone. 80 sequences on 48 GPUs show one: chunks although pp does not divide the
    microbatches. The last four show a dp up to 64 and microbatches of 1 and 2 alone; no full recomputation;
    a zigzag of cp chunks and not 2 cp, and no ZeRO-1; chunks of 1 and 2 alone, or that do not divide layers.
    """
    small = Named("{**A100, 'memory': 40}", {**GPU, "memory": 40})
    four = Named("{**SELENE, 'per_node': 4}", {**LINKS, "per_node": 4})
    two = Named("{**SELENE, 'per_node': 2}", {**LINKS, "per_node": 2})
    slower = Named("{**SELENE, 'per_node': 2, 'network': 50e9}", {**two, "network": 50e9})
    faster = Named("{**SELENE, 'per_node': 4, 'network': 400e9}", {**four, "network": 400e9})
    visible = (
        Task("1,024 A100s, 175B", GPT3, 1024, 1536, GPU, LINKS),
        Task("48 A100s in nodes of 4", gpt(96, 24, 3072), 48, 80, GPU, four),
        Task("8 A100s, 175B", GPT3, 8, 8, GPU, LINKS, too_small=True),
        Task("a long context", gpt(40, 40, 5120, 131_072), 64, 16, GPU, LINKS),
        Task("24 A100s of 40 GB", gpt(72, 48, 6144), 24, 36, small, LINKS),
        Task("a small model", gpt(32, 32, 4096), 64, 256, GPU, LINKS),
        Task("short sequences", gpt(36, 42, 5376, 1024), 48, 48, GPU, LINKS),
        Task("96 A100s of 40 GB in nodes of 4", gpt(48, 80, 10_240, 32_768), 96, 384, small, four),
        Task("128 A100s of 40 GB, 400 Gb/s", gpt(24, 40, 5120, 512), 128, 512, small, faster),
        Task("48 A100s of 40 GB, 50 Gb/s", gpt(36, 40, 5120, 3072), 48, 192, small, slower),
        Task("sequences of 50,000 tokens", gpt(48, 24, 3072, 50_000), 64, 12, small, four),
        Task("64 A100s in nodes of 2", gpt(96, 48, 4608), 64, 16, GPU, two),
    )
    if not hidden:
        return visible
    slow_network = Named("{**SELENE, 'network': 10e9}", {**LINKS, "network": 10e9})
    return (
        *visible,
        Task("10 Gb/s", gpt(40, 40, 5120), 128, 512, GPU, slow_network),
        Task("120 A100s of 40 GB in nodes of 4", gpt(60, 80, 10_240), 120, 840, small, four),
        Task("a longer context", gpt(40, 40, 5120, 262_144), 128, 16, GPU, LINKS),
        Task("100 sequences", gpt(36, 30, 3840), 48, 100, small, four),
        Task("nodes of 2", gpt(64, 48, 6144), 128, 256, GPU, two),
    )


@kit.exercise(points=4, objects=("best_layout",), references=OF_NUMBERS)
def best_layout(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(tasks_of(draw.hidden))
