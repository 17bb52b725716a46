"""Adam8bit: moments of one byte, judged by the parameters that come of them.

An emulation in float64 rounds the moments between the steps as codes and scales would. An element that lies
halfway between two codes may take either: from there on its parameter is not judged. The mistakes are the
same emulation with another rule, so that a wrong parameter names its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from course_lib.checks.kit import (
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    Spec,
    at,
    difference,
    error_kind,
    essential,
    exercise,
    words,
    wrong,
)
from course_lib.precision.codes import DYNAMIC_SIGNED, DYNAMIC_UNSIGNED, linear_map

RECIPE = "course_lib.checks.rank.notebooks.precision_and_memory.eight_bit:steps"
SMALL = 4096  # elements: parameters below it keep float32
TIE = 1e-5  # of a block's largest magnitude's share: closer to a tie, either code is right
ROUNDING = 1e-3  # of a learning rate
SLACK = 16_384  # bytes: code tables, counters
BLOCK = 256
SIGNED, UNSIGNED = DYNAMIC_SIGNED.double(), DYNAMIC_UNSIGNED.double()
LOST = (
    "After load_state_dict it takes other steps. Everything that a step reads has to be in "
    "self.state[param]: codes and scales of both moments, and the count of steps."
)
CAST = (
    "load_state_dict of torch.optim.Optimizer casts every state to the parameter's dtype, and the codes came "
    "back as float32. Derive from ByteStates, which leaves dtypes alone."
)


# ---- the emulation


@dataclass(frozen=True)
class Rule:
    """AdamW with moments in 8 bits; each field is a place for a mistake.

    numbers: the codes of m and v; None: nothing is rounded. whole: one scale for a tensor. before: rounded
    before the parameter takes its step. floor: to the number towards 0. small: elements from which on a
    parameter has 8 bits. stored: the moment that is kept is the one with its bias corrected. corrected:
    whether bias is corrected at all. decay: as AdamW has it, or added to the gradient, or without the
    learning rate, or not at all. inside: eps stands in the root. eps: another than was asked for. counted:
    parameter `index` of `count` goes on from the step of the one before it.
    """

    numbers: tuple[Tensor, Tensor] | None = (SIGNED, UNSIGNED)
    block: int = BLOCK
    whole: bool = False
    before: bool = False
    floor: bool = False
    small: int = SMALL
    stored: bool = False
    corrected: bool = True
    decay: Literal["decoupled", "coupled", "without lr", "none"] = "decoupled"
    inside: bool = False
    eps: float | None = None
    counted: bool = False
    index: int = 0
    count: int = 1

    def round(self, x: Tensor, which: int) -> tuple[Tensor, Tensor]:
        """(x as it comes back, which elements lie near a tie)."""
        near = torch.zeros_like(x, dtype=torch.bool)
        if self.numbers is None or x.numel() < self.small:
            return x, near
        numbers = self.numbers[which]
        middles = (numbers[1:] + numbers[:-1]) / 2
        flat, block = x.flatten(), x.numel() if self.whole else self.block
        parts = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
        scales = parts.abs().amax(1, keepdim=True)
        share = parts / scales.where(scales > 0, 1.0)
        place = torch.searchsorted(middles, share)
        gaps = [(share - middles[(place + k).clamp(0, len(middles) - 1)]).abs() for k in (-1, 0)]
        near = torch.minimum(*gaps) < TIE * share.abs()
        back = numbers[place]
        if self.floor:
            back = numbers[torch.searchsorted(numbers, share.abs(), right=True) - 1].copysign(share)
            back = back.clamp(min=float(numbers[0]))
        both = (torch.where(scales > 0, back * scales, 0.0), near)
        rounded, near = (values.flatten()[: len(flat)].view_as(x) for values in both)
        return rounded, near

    def run(self, start: Tensor, gradients: Sequence[Tensor | None], settings: Mapping[str, Any]) -> Run:
        """The parameter after each step, in float64, and which elements are judged there."""
        (beta1, beta2), lr, eps = settings["betas"], settings["lr"], self.eps or settings["eps"]
        decay = settings["weight_decay"]
        shrink = {"decoupled": lr * decay, "without lr": decay}.get(self.decay, 0.0)
        w = start.double()
        m, v, unsure = torch.zeros_like(w), torch.zeros_like(w), torch.zeros_like(w, dtype=torch.bool)
        taken, after, sure = 0, [], []
        for gradient in gradients:
            if gradient is not None:
                taken += 1
                step = (taken - 1) * self.count + self.index + 1 if self.counted else taken
                g = gradient.double() + (decay * w if self.decay == "coupled" else 0.0)
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                first, second = (1 - beta1**step, 1 - beta2**step) if self.corrected else (1.0, 1.0)
                if self.stored:
                    m, v, first, second = m / first, v / second, 1.0, 1.0
                rounded = [self.round(x, which) for which, x in enumerate((m, v))]
                if self.before:
                    (m, v), known = (back for back, _ in rounded), unsure | rounded[0][1] | rounded[1][1]
                    unsure = known
                root = ((v / second) + (eps if self.inside else 0)).sqrt() + (0 if self.inside else eps)
                w = w * (1 - shrink) - lr * (m / first) / root
                after.append(w)
                sure.append(~unsure)
                m, v = (back for back, _ in rounded)
                unsure = unsure | rounded[0][1] | rounded[1][1]
            else:
                after.append(w)
                sure.append(~unsure)
        return Run(after, sure)


@dataclass(frozen=True)
class Run:
    """The parameter after each step, and which of its elements are judged."""

    after: list[Tensor]
    sure: list[Tensor]


Slips = Sequence[tuple[str, Callable[[Rule], Rule]]]
FLOAT32 = "The moments are not rounded at all between the steps: codes are kept, and float32 is not."
LINEAR_M = "m has linear codes: DYNAMIC_SIGNED has numbers in seven decades."
LINEAR_BOTH = (
    "Both moments have linear codes: DYNAMIC_SIGNED and DYNAMIC_UNSIGNED have numbers in seven decades."
)
LINEAR = linear_map(True).double(), torch.linspace(-1, 1, 256, dtype=torch.float64)  # two ways to make it
UNSIGNED_LINEAR = linear_map(False).double()
# In what is kept between the steps.
OF_STATES: Slips = (
    (FLOAT32, lambda rule: replace(rule, numbers=None)),
    (
        "v has linear codes: all of it below 1/510 of the block's largest becomes 0, and m is divided by "
        "eps. DYNAMIC_UNSIGNED has numbers in seven decades.",
        lambda rule: replace(rule, numbers=(SIGNED, UNSIGNED_LINEAR)),
    ),
    *((LINEAR_M, lambda rule, m=m: replace(rule, numbers=(m, UNSIGNED))) for m in LINEAR),
    *((LINEAR_BOTH, lambda rule, m=m: replace(rule, numbers=(m, UNSIGNED_LINEAR))) for m in LINEAR),
    (
        "One scale for the tensor: beside one outlier 99 % of v is 0. Each block of 256 elements has its "
        "own.",
        lambda rule: replace(rule, whole=True),
    ),
    (
        "v has signed codes, of which it uses half: DYNAMIC_UNSIGNED is twice as fine.",
        lambda rule: replace(rule, numbers=(SIGNED, SIGNED)),
    ),
    (
        "The moments were rounded before the step was taken: update the parameter from the float32 ones.",
        lambda rule: replace(rule, before=True),
    ),
    (
        "Codes were rounded towards 0, and the moments drift: take the nearest number.",
        lambda rule: replace(rule, floor=True),
    ),
    (
        f"A parameter of fewer than {SMALL:,} elements has 8 bits: it keeps float32.",
        lambda rule: replace(rule, small=0),
    ),
    (f"`block` was not used: the blocks had {BLOCK} elements.", lambda rule: replace(rule, block=BLOCK)),
)
# In AdamW itself. They cost the line on a parameter in float32, and not those on 8 bits.
OF_ADAMW: Slips = (
    (
        "Bias was corrected twice: the moments are stored as they are, and corrected for the step alone.",
        lambda rule: replace(rule, stored=True),
    ),
    (
        "Bias was not corrected: m / (1 - beta1^t), v / (1 - beta2^t).",
        lambda rule: replace(rule, corrected=False),
    ),
    (
        "Weight decay went into the gradient, and so into the moments. Decoupled, it is w *= 1 - lr * "
        "weight_decay.",
        lambda rule: replace(rule, decay="coupled"),
    ),
    (
        "Weight decay does not know the learning rate: w *= 1 - lr * weight_decay.",
        lambda rule: replace(rule, decay="without lr"),
    ),
    ("weight_decay was not used: w *= 1 - lr * weight_decay.", lambda rule: replace(rule, decay="none")),
    ("eps stands inside the root: sqrt(v) + eps.", lambda rule: replace(rule, inside=True)),
    ("eps was not used: sqrt(v) + group['eps'].", lambda rule: replace(rule, eps=1e-8)),
    (
        "One count of steps for all parameters: each has its own, self.state[param]['step'].",
        lambda rule: replace(rule, counted=True),
    ),
)
SLIPS: Slips = (*OF_STATES, *OF_ADAMW)


# ---- runs


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

    def made(self, i: int, rule: Rule) -> Run:
        return rule.run(self.starts[i], self.gradients[i], self.settings)

    def inputs(self) -> dict[str, Tensor]:
        tensors = {f"{self.name}.{i}": start for i, start in enumerate(self.starts)}
        for i, of_param in enumerate(self.gradients):
            tensors |= {f"{self.name}.{i}.{k}": g for k, g in enumerate(of_param) if g is not None}
        return tensors

    def outputs(self) -> dict[str, Spec]:
        return {
            f"{self.name}.{i}.{k}": Spec.of(start)
            for i, start in enumerate(self.starts) for k in range(self.steps)
        }  # fmt: skip

    def instructions(self) -> dict[str, Any]:
        more = {} if self.saved is None else {"saved": self.saved}
        return {
            "name": self.name, "params": len(self.starts), "steps": self.steps,
            "keywords": dict(self.keywords), "measured": self.enough > 0, **more,
        }  # fmt: skip


def raised(error: str = "", text: str = "", where: str = "", loading: bool = False) -> Finding:
    if error == "NotImplementedError":
        return wrong("Adam8bit is not written yet.", cause="not written")
    said = Sentence(f"Adam8bit raised {error}: {text}", f"Adam8bit raised {error_kind(error)}.")
    why = ""
    if "used as indices" in text or "be long, int, byte or bool" in text or "IndexError" in error:
        why = CAST if loading else "Codes are indices: numbers[codes.long()]."
    elif loading:
        why = LOST
    elif "shape" in text or "size" in text:
        why = "The last block of a parameter may be shorter: pad with zeros, and cut off."
    elif "in-place operation" in text:
        why = "A step is outside of the graph: @torch.no_grad()."
    return wrong(said, at(where) if where else "", why, cause=why or f"{error} {where}")


def values_line(
    run: Expected,
    title: str,
    weight: float,
    params: Sequence[int],
    last: int | None = None,
    adamw: bool = False,
) -> Line:
    """The parameters of `params` after each step, up to `last`.

    adamw: whether the line is about AdamW's rule, too; else steps by another rule are right, if all are.
    """
    steps = last or run.steps

    def judge(observed: Observed) -> Finding:
        reply, tensors = observed.values[0][run.name], observed.tensors[0]
        if reply.error is not None:
            return raised(*reply.error, loading=reply.loading)
        places = ((i, k) for k in range(steps) for i in params if bool(off(tensors, right_of(i), i, k).any()))
        first = next(places, None)
        if first is None or (not adamw and any(gives(tensors, slip) for _, slip in OF_ADAMW)):
            return RIGHT
        return step_of(tensors, *first)

    def gives(tensors: Mapping[str, Tensor], slip: Callable[[Rule], Rule]) -> bool:
        """Whether all steps are those of this slip."""
        made = {i: run.made(i, slip(run.rule(i))) for i in params}
        return not any(bool(off(tensors, made[i], i, k).any()) for i in params for k in range(steps))

    def off(tensors: Mapping[str, Tensor], made: Run, i: int, k: int) -> Tensor:
        """Which elements of parameter i are not those of `made` after step k."""
        actual, wanted = tensors[f"{run.name}.{i}.{k}"].double(), made.after[k]
        moved = (wanted - run.starts[i].double()).abs()
        room = ROUNDING * run.settings["lr"] + 4e-7 * wanted.abs() + 1e-5 * moved
        return ~((actual - wanted).abs() <= room) & made.sure[k]

    def step_of(tensors: Mapping[str, Tensor], i: int, k: int) -> Finding:
        """Parameter i is wrong after step k."""
        right = right_of(i)
        bad = off(tensors, right, i, k)
        actual, wanted = tensors[f"{run.name}.{i}.{k}"].double(), right.after[k]
        said = difference(
            f"after step {k + 1} a parameter is wrong", torch.where(bad, actual, wanted), wanted
        )
        if bool(actual.isnan().any()):
            why = "A block of zeros was divided by its scale: 0 / 0 is NaN. Divide by 1 there."
            zeros = any(g is not None and bool((g == 0).any()) for g in run.gradients[i])
            return wrong(said, why if zeros else "", cause=why)
        if run.saved is not None and k >= run.saved:
            return wrong(said, LOST, cause=LOST)
        slips = [(says, run.made(i, slip(run.rule(i)))) for says, slip in SLIPS]
        for until in (run.steps, k + 1):  # a slip that gives all steps; or else all until this one
            for says, made in slips:
                if not any(bool(off(tensors, made, i, n).any()) for n in range(until)):
                    return wrong(said, says, cause=says, misses_point=says == FLOAT32)
        small = run.starts[i].numel() < SMALL
        generic = "The step is AdamW's, from moments that were rounded to the nearest code."
        if k == 0:
            generic = "The step is AdamW's, taken from the float32 moments: they are rounded after it."
        return wrong(said, "The step is AdamW's." if small else generic, cause="values")

    @cache
    def right_of(i: int) -> Run:
        return run.made(i, run.rule(i))

    return Line(title, judge, weight)


def bytes_line(run: Expected, title: str, weight: float) -> Line:
    elements = sum(start.numel() for start in run.starts)

    def judge(observed: Observed) -> Finding:
        reply = observed.values[0][run.name]
        if reply.error is not None:
            return raised(*reply.error, loading=reply.loading)
        if reply.held <= run.enough:
            return RIGHT
        each = words.number(round(reply.held / elements, 2))
        why = "Keep codes in uint8 and a scale for each block; the float32 moments live for one step."
        if run.saved is not None:
            why = CAST
        elif reply.held >= 7.9 * elements:
            why = f"Two moments in float32 take 8 bytes. {why}"
        said = Sentence(
            f"the states hold {each} bytes a parameter, 2 + 8/256 are enough.",
            "the states hold more than 2 + 8/256 bytes a parameter.",
        )
        return wrong(said, why, cause="bytes")

    return Line(title, judge, weight, "memory", enough={f"{run.name}.held": float(run.enough)})


def drawn(draw: Draw, *shape: int) -> Tensor:
    """Gradients of several magnitudes, with an outlier in each thousand elements."""
    x = draw.normal(*shape) * torch.exp2(draw.normal(*shape))
    far = torch.rand(*shape, generator=draw.generator) < 1e-3
    return torch.where(far, 30 * x, x)


def expected(
    draw: Draw, name: str, shapes: Sequence[tuple[int, ...]], steps: int, saved: int | None = None,
    enough: int = 0, **keywords: Any,
) -> Expected:  # fmt: skip
    starts = [draw.normal(*shape) for shape in shapes]
    gradients = [[drawn(draw, *shape) for _ in range(steps)] for shape in shapes]
    return Expected(name, starts, gradients, keywords, saved, enough)


def runs(draw: Draw) -> dict[str, Expected]:
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


@exercise(
    points=8, objects=("Adam8bit",), references=("course_lib.precision.eight_bit", "course_lib.facts"),
    point="a byte for each moment", besides="AdamW in float32",
)  # fmt: skip
def adam8bit(draw: Draw) -> Iterator[Case]:
    """Three steps, a small parameter, another block, zeros, states that are saved, and bytes."""
    made = runs(draw)
    lines = [
        values_line(made["main"], "a small parameter: AdamW in float32", 2.5, [1], adamw=True),
        values_line(made["main"], "the first step: from float32 moments", 1.0, [0], last=1),
        values_line(made["main"], "three steps, 8 bits between them", 2.0, [0]),
        values_line(made["block"], "block=64, other betas", 0.75, [0]),
        values_line(made["zeros"], "gradients of 0, and none", 0.75, [0, 1]),
        values_line(made["saved"], "states saved and loaded", 0.75, [0, 1]),
        essential(bytes_line(made["large"], "2 + 8/256 bytes a parameter", 1.25)),
        bytes_line(made["loaded"], "as many after load_state_dict", 0.5),
    ]
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Spec] = {}
    for run in made.values():
        inputs |= run.inputs()
        outputs |= run.outputs()
    instructions = {"runs": [run.instructions() for run in made.values()]}
    yield Case("Adam8bit", [RankSide(inputs, instructions, outputs)], lines, recipe=RECIPE, alone=True)
