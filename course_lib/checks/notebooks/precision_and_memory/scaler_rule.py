"""The rule of a loss scaler, and the mistakes that are made in it, on all ranks of a script at once.

A script is what a run brings: the gradients of each step on each rank, some of them infinite or NaN, and
what the caller does between backward and step. `outcomes` plays it by the rule. With a `Mistake` it plays it
as an answer with that mistake would, so that an answer is recognised by what it did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

MOMENTUM = 0.5  # of the recipe's SGD, whose learning rate is 1
BOUND = 2.0**100  # of gradients that are taken for infinite; those of one script alone are larger
CLIP = 0.5  # the factor of a caller that clips
INFINITY, NAN = float("inf"), float("nan")


# A step is judged by its scale, by the parameters that moved, by their values, and by the result of `step`.
ALL = frozenset({"scale", "taken", "params", "returned"})


@dataclass(frozen=True)
class Options:
    """The scaler's arguments."""

    scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000


@dataclass(frozen=True)
class Script:
    """title: of its line. gradients[step][rank][param]: of the loss, float32, or None; starts[rank][param].

    callers: one word a step for the caller's part between backward and step, "", "clip" or "twice".
    first: how many parameters are in the optimizer's first group. groups: ranks that agree with each other;
    none: all. aspects: those of ALL that its line judges; a mistake in another part costs another line.
    """

    name: str
    title: str
    options: Options
    starts: Sequence[Sequence[Tensor]]
    gradients: Sequence[Sequence[Sequence[Tensor | None]]]
    callers: Sequence[str]
    first: int
    groups: Sequence[Sequence[int]] = ()
    weight: float = 1.0
    aspects: frozenset[str] = ALL

    @property
    def ranks(self) -> int:
        return len(self.starts)

    def group_of(self, rank: int) -> Sequence[int]:
        return next((group for group in self.groups if rank in group), range(self.ranks))


@dataclass
class Played:
    """A step on a rank: the scale before it, the gradients if the caller unscales, whether the step was
    taken, the parameters after it."""

    scale: float
    unscaled: list[Tensor | None]
    taken: bool
    params: list[Tensor]
    refused: bool = True


@dataclass
class ScalerSteps:
    """A script on a rank; last: the scale after the last step."""

    steps: list[Played] = field(default_factory=list)
    last: float = 0.0


@dataclass(frozen=True)
class Mistake:
    """A deviation from the rule; the fields' defaults are the rule.

    agree: how a group's ranks decide from their findings. sees: which gradients count as bad. divided: how
    often gradients are divided by the scale in `unscale_`, in a `step` after it, and in a `step` without it.
    late: good steps beyond `interval` before growth. backoffs: in a skipped step. skips: the action in
    place of a step.
    """

    agree: Literal["any", "own", "all", "majority", "half", "world", "first", "single"] = "any"
    sees: Literal[
        "all", "no NaN", "NaN", "positive", "first group", "first", "last", "sum", "bound", "none"
    ] = "all"
    divided: tuple[int, int, int] = (1, 0, 1)
    late: int = 0
    backoffs: int = 1
    skips: Literal["step", "nothing", "zeros", "good ones"] = "step"
    kept_after_skip: bool = False
    kept_after_growth: bool = False
    counts_skips: bool = False
    grows: bool = True
    backs_off: bool = True
    inverse: bool = False  # backoff is taken for 1 / growth
    refuses: bool = True


RULE = Mistake()


def is_bad(gradients: Sequence[Tensor | None], first: int, mistake: Mistake) -> bool:
    """Whether a rank finds an infinity or NaN among its scaled gradients."""
    if mistake.sees == "none":
        return False
    if mistake.sees == "first group":
        gradients = gradients[:first]
    if mistake.sees == "first":
        gradients = gradients[:1]
    if mistake.sees == "last":
        gradients = [gradient for gradient in gradients if gradient is not None][-1:]
    there = [gradient for gradient in gradients if gradient is not None and gradient.numel()]
    if mistake.sees == "sum":
        return any(not math.isfinite(float(gradient.sum())) for gradient in there)
    if mistake.sees == "bound":
        return any(not bool((gradient.abs() < BOUND).all()) for gradient in there)
    for gradient in there:
        infinite = gradient == INFINITY if mistake.sees == "positive" else gradient.isinf()
        nan = gradient.isnan()
        counted = {"no NaN": infinite, "NaN": nan}.get(mistake.sees, infinite | nan)
        if bool(counted.any()):
            return True
    return False


def decided(script: Script, rank: int, findings: Sequence[bool], mistake: Mistake) -> bool:
    """Whether the rank skips, from the ranks' findings."""
    group = script.group_of(rank)
    votes = [findings[member] for member in group]
    return {
        "any": any(votes), "all": all(votes), "first": votes[0],
        "own": findings[rank], "world": any(findings),
        "single": sum(votes) == 1,
        "majority": sum(votes) > len(votes) / 2, "half": sum(votes) >= len(votes) / 2,
    }[mistake.agree]  # fmt: skip


@dataclass
class State:
    """A rank's scaler and optimizer."""

    scale: float
    params: list[Tensor]
    good: int = 0
    momentum: list[Tensor | None] = field(default_factory=list)

    def step(self, gradients: Sequence[Tensor | None]) -> None:
        for k, gradient in enumerate(gradients):
            if gradient is None:
                continue
            before = self.momentum[k]
            moved = gradient if before is None else MOMENTUM * before + gradient
            self.momentum[k], self.params[k] = moved, self.params[k] - moved

    def update(self, options: Options, skipped: bool, mistake: Mistake) -> None:
        if skipped:
            factor = 1 / options.growth if mistake.inverse else options.backoff
            if mistake.backs_off:
                self.scale *= factor**mistake.backoffs
            if not mistake.kept_after_skip:
                self.good = 0
        if not skipped or mistake.counts_skips:
            self.good += 1
            if self.good >= options.interval + mistake.late:
                self.scale *= options.growth if mistake.grows else 1.0
                if not mistake.kept_after_growth:
                    self.good = 0


def outcomes(script: Script, mistake: Mistake = RULE) -> list[ScalerSteps]:
    """The run of each rank."""
    ranks = range(script.ranks)
    states = [
        State(script.options.scale, [start.double() for start in script.starts[rank]]) for rank in ranks
    ]
    for state in states:
        state.momentum = [None] * len(state.params)
    runs = [ScalerSteps() for _ in ranks]
    for slopes, caller in zip(script.gradients, script.callers, strict=True):
        scaled = [
            [None if g is None else (g * states[rank].scale).float() for g in slopes[rank]] for rank in ranks
        ]
        findings = [is_bad(scaled[rank], script.first, mistake) for rank in ranks]
        for rank, state in enumerate(states):
            skipped = decided(script, rank, findings, mistake)
            runs[rank].steps.append(play(script, state, scaled[rank], caller, skipped, mistake))
    for run, state in zip(runs, states, strict=True):
        run.last = state.scale
    return runs


def play(
    script: Script, state: State, scaled: Sequence[Tensor | None], caller: str, skipped: bool,
    mistake: Mistake,
) -> Played:  # fmt: skip
    """A step on one rank, whose state changes."""
    in_unscale, in_step, alone = mistake.divided
    if caller == "twice" and not mistake.refuses:
        in_unscale *= 2
    scale = state.scale

    def over(times: int) -> list[Tensor | None]:
        return [None if g is None else g.double() / scale**times for g in scaled]

    unscaled = over(in_unscale) if caller else []
    gradients = over(in_unscale + in_step if caller else alone)
    if caller == "clip":
        gradients = [None if g is None else CLIP * g for g in gradients]
    if not skipped or mistake.skips == "nothing":
        state.step(gradients)
    elif mistake.skips == "zeros":
        state.step([None if g is None else torch.zeros_like(g) for g in gradients])
    elif mistake.skips == "good ones":
        state.step([g if g is not None and bool(g.isfinite().all()) else None for g in gradients])
    params = list(state.params)
    taken = not skipped
    state.update(script.options, skipped, mistake)
    return Played(scale, unscaled, taken, params, mistake.refuses or caller != "twice")
