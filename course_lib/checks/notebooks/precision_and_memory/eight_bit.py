"""Adam8bit: moments of one byte, judged by the parameters that come of them.

An emulation in float64 (see `eight_bit_rules`) rounds the moments between the steps as codes and scales
would. An element that lies halfway between two codes may take either: from there on its parameter is not
judged. The mistakes are the same emulation with another rule, so that a wrong parameter names its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.notebooks.precision_and_memory.eight_bit_rules import (
    BLOCK,
    CAST,
    FLOAT32,
    LOST,
    NAN,
    OF_ADAMW,
    ROUNDING,
    SLACK,
    SLIPS,
    SMALL,
    JudgedSteps,
    Rule,
)
from course_lib.checks.rank.notebooks.precision_and_memory.eight_bit import AdamInstructions, AdamRun

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.eight_bit:steps"


@dataclass(frozen=True)
class Expected:
    """A run of the recipe: parameters, their gradients by step, and keywords of the class."""

    name: str
    starts: Sequence[Tensor]
    gradients: Sequence[Sequence[Tensor | None]]  # of a parameter, by step
    keywords: Mapping[str, Any]
    saved: int | None = None
    enough: int = 0

    @property
    def steps(self) -> int:
        return len(self.gradients[0])

    @property
    def settings(self) -> dict[str, Any]:
        usual = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        return usual | dict(self.keywords)

    def rule(self, i: int) -> Rule:
        """Of parameter i."""
        return Rule(block=self.settings.get("block", BLOCK), index=i, count=len(self.starts))

    def made(self, i: int, rule: Rule) -> JudgedSteps:
        return rule.run(self.starts[i], self.gradients[i], self.settings)

    def inputs(self) -> dict[str, Tensor]:
        tensors = {f"{self.name}.{i}": start for i, start in enumerate(self.starts)}
        for i, of_param in enumerate(self.gradients):
            tensors |= {f"{self.name}.{i}.{k}": g for k, g in enumerate(of_param) if g is not None}
        return tensors

    def outputs(self) -> dict[str, kit.Spec]:
        return {
            f"{self.name}.{i}.{k}": kit.Spec.of(start)
            for i, start in enumerate(self.starts) for k in range(self.steps)
        }  # fmt: skip

    def instructions(self) -> AdamRun:
        return AdamRun(
            self.name, len(self.starts), self.steps, dict(self.keywords), self.enough > 0, self.saved
        )


def raised(error: str = "", text: str = "", where: str = "", loading: bool = False) -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("Adam8bit", where)
    said = kit.error_sentence("Adam8bit", error, text)
    why = ""
    if "used as indices" in text or "be long, int, byte or bool" in text or "IndexError" in error:
        why = CAST if loading else "Codes are indices, so write numbers[codes.long()]."
    elif loading:
        why = LOST
    elif "shape" in text or "size" in text:
        why = "The last block of a parameter can be shorter, so pad it with zeros and cut them off."
    elif "in-place operation" in text:
        why = "A step stays outside of the graph, so decorate it with @torch.no_grad()."
    return kit.wrong(said, kit.at(where) if where else "", why, cause=why or f"{error} {where}")


def values_line(
    run: Expected,
    title: str,
    weight: float,
    params: Sequence[int],
    last: int | None = None,
    adamw: bool = False,
) -> kit.Line:
    """The parameters of `params` after each step, up to `last`.

    adamw: whether the line is about AdamW's rule, too; else steps by another rule are right, if all are.
    """
    steps = last or run.steps

    def judge(observed: kit.Observed) -> kit.Finding:
        reply, tensors = observed.values[0][run.name], observed.tensors[0]
        if reply.error is not None:
            return raised(*reply.error, loading=reply.loading)
        places = ((i, k) for k in range(steps) for i in params if bool(off(tensors, right_of(i), i, k).any()))
        first = next(places, None)
        if first is None or (not adamw and any(gives(tensors, slip.gives) for slip in OF_ADAMW)):
            return kit.RIGHT
        return step_of(tensors, *first)

    def gives(tensors: Mapping[str, Tensor], slip: Callable[[Rule], Rule]) -> bool:
        """Whether all steps are those of this slip."""
        made = {i: run.made(i, slip(run.rule(i))) for i in params}
        return not any(bool(off(tensors, made[i], i, k).any()) for i in params for k in range(steps))

    def off(tensors: Mapping[str, Tensor], made: JudgedSteps, i: int, k: int) -> Tensor:
        """Which elements of parameter i are not those of `made` after step k."""
        actual, wanted = tensors[f"{run.name}.{i}.{k}"].double(), made.after[k]
        moved = (wanted - run.starts[i].double()).abs()
        room = ROUNDING * run.settings["lr"] + 4e-7 * wanted.abs() + 1e-5 * moved
        return ~((actual - wanted).abs() <= room) & made.sure[k]

    def step_of(tensors: Mapping[str, Tensor], i: int, k: int) -> kit.Finding:
        """Parameter i is wrong after step k."""
        right = right_of(i)
        bad = off(tensors, right, i, k)
        actual, wanted = tensors[f"{run.name}.{i}.{k}"].double(), right.after[k]
        said = kit.difference(
            f"after step {k + 1} a parameter is wrong", torch.where(bad, actual, wanted), wanted
        )
        if bool(actual.isnan().any()):
            if k == 0:  # no moment was stored before
                return kit.wrong(said, NAN, cause=NAN)
            why = "A block of zeros was divided by its scale, but 0 / 0 is NaN. Divide by 1 instead."
            zeros = any(g is not None and bool((g == 0).any()) for g in run.gradients[i])
            return kit.wrong(said, why if zeros else "", cause=why)
        if run.saved is not None and k >= run.saved:
            return kit.wrong(said, LOST, cause=LOST)
        slips = [(slip.says, run.made(i, slip.gives(run.rule(i)))) for slip in SLIPS]
        for until in (run.steps, k + 1):  # a slip that gives all steps; or else all until this one
            for says, made in slips:
                if not any(bool(off(tensors, made, i, n).any()) for n in range(until)):
                    return kit.wrong(said, says, cause=says, misses_point=says == FLOAT32)
        small = run.starts[i].numel() < SMALL
        if small:
            why = (
                "This parameter keeps float32 moments, so it takes the steps of AdamW. Look at the update of "
                "m and v, the bias correction and the weight decay."
            )
        elif k == 0:
            why = (
                "The first step reads no stored moments, so it must be AdamW's. Take it from the float32 "
                "moments, and round them only after it."
            )
        else:
            why = (
                "The step before was right, so look at how moments are stored and read. Each must come back "
                "as the nearest code's number times the scale of its block."
            )
        return kit.wrong(said, why, cause="values")

    @cache
    def right_of(i: int) -> JudgedSteps:
        return run.made(i, run.rule(i))

    return kit.Line(title, judge, weight)


def bytes_line(run: Expected, title: str, weight: float) -> kit.Line:
    elements = sum(start.numel() for start in run.starts)

    def judge(observed: kit.Observed) -> kit.Finding:
        reply = observed.values[0][run.name]
        if reply.error is not None:
            return raised(*reply.error, loading=reply.loading)
        if reply.held <= run.enough:
            return kit.RIGHT
        each = words.number(round(reply.held / elements, 2))
        why = (
            "Keep codes in uint8 and a scale for each block, and let the float32 moments live only for "
            "one step."
        )
        if run.saved is not None:
            why = CAST
        elif reply.held >= 15.9 * elements:
            why = f"Codes in int64 take 8 bytes each. {why}"
        elif reply.held >= 7.9 * elements:
            why = f"Two moments in float32 take 8 bytes. {why}"
        said = kit.Sentence(
            f"the states hold {each} bytes per parameter, but 2 + 8/256 are enough.",
            "the states hold more than 2 + 8/256 bytes per parameter.",
        )
        return kit.wrong(said, why, cause="bytes")

    return kit.Line(title, judge, weight, "memory", enough={f"{run.name}.held": float(run.enough)})


def drawn(draw: kit.Draw, *shape: int) -> Tensor:
    """Gradients of several magnitudes, with an outlier in each thousand elements."""
    x = draw.normal(*shape) * torch.exp2(draw.normal(*shape))
    far = torch.rand(*shape, generator=draw.generator) < 1e-3
    return torch.where(far, 30 * x, x)


def expected(
    draw: kit.Draw, name: str, shapes: Sequence[tuple[int, ...]], steps: int, saved: int | None = None,
    enough: int = 0, **keywords: Any,
) -> Expected:  # fmt: skip
    starts = [draw.normal(*shape) for shape in shapes]
    gradients = [[drawn(draw, *shape) for _ in range(steps)] for shape in shapes]
    return Expected(name, starts, gradients, keywords, saved, enough)


def runs(draw: kit.Draw) -> dict[str, Expected]:
    rows = draw.integer(61, 80)
    lr = (0.01, 0.02, 0.03)[draw.integer(0, 3)]
    main = expected(draw, "main", [(rows, 83), (300,)], 3, lr=lr, weight_decay=0.1, eps=1e-4)
    block = expected(draw, "block", [(4500,)], 3, lr=lr, block=64, betas=[0.8, 0.99], eps=1e-6)
    zeros = expected(draw, "zeros", [(6000,), (5000,)], 3, lr=lr)
    for gradient in zeros.gradients[0]:
        assert gradient is not None
        gradient[256:1024] = 0
    zeros = replace(
        zeros, gradients=[zeros.gradients[0], [zeros.gradients[1][0], None, zeros.gradients[1][2]]]
    )
    elements = 1 << 18
    enough = 2 * elements + 8 * elements // BLOCK + SLACK
    made = [
        main, block, zeros,
        expected(draw, "saved", [(70, 90), (200,)], 4, saved=2, lr=lr),
        expected(draw, "large", [(512, 512)], 2, enough=enough, lr=lr),
        expected(draw, "loaded", [(512, 512)], 2, saved=2, enough=enough, lr=lr),
    ]  # fmt: skip
    return {run.name: run for run in made}


@kit.exercise(
    points=8, objects=("Adam8bit",), references=("course_lib.precision.eight_bit", "course_lib.facts"),
    point="a byte for each moment", besides="AdamW in float32",
)  # fmt: skip
def adam8bit(draw: kit.Draw) -> Iterator[kit.Case]:
    """Three steps, a small parameter, another block, zeros, states that are saved, and bytes."""
    made = runs(draw)
    lines = [
        values_line(made["main"], "a small parameter: AdamW in float32", 2.5, [1], adamw=True),
        values_line(made["main"], "the first step: from float32 moments", 1.0, [0], last=1),
        values_line(made["main"], "three steps, 8 bits between them", 2.0, [0]),
        values_line(made["block"], "block=64, other betas", 0.75, [0]),
        values_line(made["zeros"], "gradients of 0, and none", 0.75, [0, 1]),
        values_line(made["saved"], "states saved and loaded", 0.75, [0, 1]),
        kit.essential(bytes_line(made["large"], "2 + 8/256 bytes a parameter", 1.25)),
        bytes_line(made["loaded"], "as many after load_state_dict", 0.5),
    ]
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, kit.Spec] = {}
    for run in made.values():
        inputs |= run.inputs()
        outputs |= run.outputs()
    instructions = AdamInstructions([run.instructions() for run in made.values()])
    yield kit.Case(
        "Adam8bit", [kit.RankSide(inputs, instructions, outputs)], lines, recipe=RECIPE, alone=True
    )
