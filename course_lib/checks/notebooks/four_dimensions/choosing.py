"""best_layout: the fastest layout that can be cut and fits, within 3 % of the best of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from course_lib.checks.kit import (
    RIGHT,
    SIZES,
    Case,
    Draw,
    Finding,
    Line,
    Model,
    Observed,
    RankSide,
    Sentence,
    at,
    call,
    error_kind,
    exercise,
    wrong,
)
from course_lib.checks.notebooks.four_dimensions.plans import GPT3, GPU, LINKS, Named, Plan, gpt
from course_lib.checks.notebooks.four_dimensions.references import OF_NUMBERS
from course_lib.facts import step_by_hand as by_hand

ALLOWED = 1.03  # times the seconds of the best
AXES = ("pp", "dp", "cp", "tp")
OPTIONS = ("microbatch", "chunks", "zero", "recompute", "sequence")


@dataclass(frozen=True)
class Task:
    """A cluster, a model and a batch, and what the best layout shows there."""

    title: str
    shape: Model
    gpus: int
    batch: int
    gpu: Named
    links: Named

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
    def fitting(self) -> list[tuple[float, float, dict[str, Any]]]:
        """(seconds, GB, layout) of all that fit, the fastest first."""
        every = by_hand.layouts(self.shape, self.gpus, self.batch)
        judged = [(self.seconds(layout), self.gb(layout), layout) for layout in every]
        return sorted((each for each in judged if each[1] <= self.room), key=lambda each: each[:2])

    @property
    def best(self) -> float | None:
        return self.fitting[0][0] if self.fitting else None

    def __repr__(self) -> str:
        return f"best_layout({self.shape!r}, {self.gpus}, {self.batch}, {self.gpu!r}, {self.links!r})"


# ---- what a chosen layout misses: a reason, or ""


def cp_alone(task: Task, layout: dict[str, Any]) -> str:
    """The best of those without cp."""
    if layout["cp"] > 1 or task.fitting[0][2]["cp"] == 1:
        return ""
    others = [seconds for seconds, _, each in task.fitting if each["cp"] == 1]
    if others and task.seconds(layout) <= min(others) * ALLOWED:
        return (
            "That is the best with cp = 1. Here a sequence has so many tokens that cutting it over cp costs "
            "less than the network costs tp."
        )
    return ""


def across_nodes(task: Task, layout: dict[str, Any]) -> str:
    node = task.links["per_node"]
    if layout["tp"] <= node:
        return ""
    return (
        f"tp = {layout['tp']} leaves the node of {node}: four all-reduces a layer and microbatch go over the "
        "network. Look at the node before you take the largest tp that divides."
    )


def leanest(task: Task, layout: dict[str, Any]) -> str:
    if task.gb(layout) > min(gb for _, gb, _ in task.fitting) * 1.01:
        return ""
    return "That is the layout with the fewest bytes. All that fit are allowed: take the fastest of them."


def no_zero_3(task: Task, layout: dict[str, Any]) -> str:
    others = [seconds for seconds, _, each in task.fitting if each["zero"] < 3]
    if layout["zero"] < 3 and others and task.seconds(layout) <= min(others) * (1 + 1e-9):
        return (
            "That is the best without stage 3 of ZeRO, which hides behind the layers here: try FSDP as well."
        )
    return ""


def option(name: str, says: str) -> Callable[[Task, dict[str, Any]], str]:
    """The layout has the best's sizes, but not this option of it."""

    def reason(task: Task, layout: dict[str, Any]) -> str:
        best = task.fitting[0][2]
        others = [each for each in OPTIONS if each != name]
        alike = all(layout[each] == best[each] for each in (*AXES, *others))
        return says if alike and layout[name] != best[name] else ""

    return reason


REASONS = (
    across_nodes, leanest, cp_alone, no_zero_3,
    option("recompute", "More is recomputed than the memory demands."),
    option("chunks", "Chunks make the bubble shorter: try all of them."),
    option("microbatch", "The microbatch makes the difference: try all of them."),
)  # fmt: skip
OTHERWISE = "Compare it with the winner of all layouts that fit, by your step_seconds."
SAME = "The same axes are chosen for every cluster: node, network and memory decide what fits and is fast."
LONG = "Every layout that fits has cp > 1: cut the long sequence as well."


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
        if layout[name] not in values:
            return f"{name} = {layout[name]!r}, which is not one of {', '.join(map(repr, values))}"
    if any(type(layout[axis]) is not int or layout[axis] < 1 for axis in AXES):
        return "an axis without a whole number of ranks"
    return Plan({name: layout[name] for name in (*AXES, *OPTIONS)})


def finding(task: Task, value: Any, same: bool) -> Finding:
    chosen = read(value)
    if isinstance(chosen, str):
        return wrong(Sentence(f"{task} gives {chosen}.", "best_layout gives no layout."), cause="form")
    if chosen is None:
        if task.best is None:
            return RIGHT
        said = Sentence(f"{task} gives None, and {len(task.fitting)} layouts fit.", "best_layout gives None.")
        return wrong(said, LONG if all(each["cp"] > 1 for _, _, each in task.fitting) else "", cause="None")
    general = "best_layout gives a layout"
    if prod(chosen[axis] for axis in AXES) != task.gpus:
        said = f"{task} gives {chosen}: that is not {task.gpus} GPUs."
        return wrong(Sentence(said, f"{general} of another number of GPUs."), cause="gpus")
    obstacle = by_hand.obstacle(task.shape, chosen, task.batch)
    if obstacle:
        said = f"{task} gives {chosen}, which cannot be cut: {obstacle}."
        why = "Heads, layers, batch and tokens have to divide; drop a layout before you time it."
        return wrong(Sentence(said, f"{general} that cannot be cut."), SAME if same else why, cause="cut")
    gb = task.gb(chosen)
    if gb > task.room:
        said = f"{task} gives {chosen}, which needs {gb:.1f} GB of {task.room:.0f}."
        why = "Memory decides first: a layout that does not fit has no time."
        return wrong(Sentence(said, f"{general} that does not fit."), SAME if same else why, cause="memory")
    seconds = task.seconds(chosen)
    if seconds <= task.fitting[0][0] * ALLOWED:
        return RIGHT
    why = next((cause for reason in REASONS if (cause := reason(task, chosen))), OTHERWISE)
    slower = seconds / task.fitting[0][0] - 1
    said = f"{task} gives {chosen}, whose step is {100 * slower:.0f} % longer than the best's."
    why = SAME if same else why
    return wrong(Sentence(said, f"{general} that fits, and another is more than 3 % faster."), why, cause=why)


def case(tasks: Sequence[Task]) -> Case:
    def judge(index: int) -> Callable[[Observed], Finding]:
        def judge_task(observed: Observed) -> Finding:
            answer = observed.answer(index)
            if answer.error is not None:
                error, text, place = answer.error
                if error == "NotImplementedError":
                    return wrong("best_layout is not written yet.", cause="best_layout not written")
                general = f"best_layout raised {error_kind(error)}."
                return wrong(
                    Sentence(f"{tasks[index]} raised {error}: {text}", general), at(place), cause=error
                )
            plans = [read(observed.answer(k).value) for k in range(len(tasks))]
            sizes = [(plan["tp"], plan["pp"]) for plan in plans if isinstance(plan, Plan)]
            return finding(tasks[index], answer.value, len(sizes) > 2 and len(set(sizes)) == 1)

        return judge_task

    lines = [Line(task.title, judge(k)) for k, task in enumerate(tasks)]
    calls = [call(0, task.args) for task in tasks]
    return Case("clusters", [RankSide({}, {"calls": calls}, {})], lines, recipe=SIZES, alone=True)


@lru_cache(maxsize=4)
def tasks_of(hidden: bool, scale: int) -> tuple[Task, ...]:
    """Six clusters that a student sees, and five that stay hidden; `scale` changes the hidden batches."""
    four = Named("{**SELENE, 'per_node': 4}", {**LINKS, "per_node": 4})
    visible = (
        Task("1,024 A100s, 175B", GPT3, 1024, 1536, GPU, LINKS),
        Task("nodes of 4", GPT3, 512, 1536, GPU, four),
        Task("8 A100s, 175B", GPT3, 8, 8, GPU, LINKS),
        Task("a long context", gpt(40, 40, 5120, 131_072), 64, 16, GPU, LINKS),
        Task("100 heads, 70 layers", gpt(70, 100, 12_800), 1024, 1536, GPU, LINKS),
        Task("a small model", gpt(32, 32, 4096), 64, 256, GPU, LINKS),
    )
    if not hidden:
        return visible
    slow = Named("{**SELENE, 'network': 10e9}", {**LINKS, "network": 10e9})
    small = Named("{**A100, 'memory': 40}", {**GPU, "memory": 40})
    two = Named("{**SELENE, 'per_node': 2}", {**LINKS, "per_node": 2})
    return (
        *visible,
        Task("10 Gb/s", gpt(40, 40, 5120), 128, 512 * scale, GPU, slow),
        Task("40 GB", gpt(80, 64, 8192), 256, 512 * scale, small, LINKS),
        Task("a longer context", gpt(40, 40, 5120, 262_144), 128, 16 * scale, GPU, LINKS),
        Task("a smaller model", gpt(24, 24, 3072), 32, 128 * scale, GPU, LINKS),
        Task("nodes of 2", gpt(64, 48, 6144), 128, 256 * scale, GPU, two),
    )


@exercise(points=4, objects=("best_layout",), references=OF_NUMBERS)
def best_layout(draw: Draw) -> Iterator[Case]:
    yield case(tasks_of(draw.hidden, draw.choice([1, 2])))
