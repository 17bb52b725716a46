"""update_bias: balance by a bias, from the counts of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import values_line
from course_lib.checks.judge.layers.runs import LayerRun, layer_case
from course_lib.checks.kit import Slip
from course_lib.checks.notebooks.experts.balance import POINT, forward_line, left_alone, of_all_ranks, trouble
from course_lib.checks.notebooks.experts.references import REFERENCES

REVERSED = (
    "The bias of the popular experts grew, so they get even more tokens. It falls if the count is above the "
    "mean."
)
UNSIGNED = "The step has the size of the count. Take only its sign, so that each step is `speed`."
LOCAL = (
    "The bias follows only this rank's counts, so the biases of the ranks drift apart, and then a "
    "token's experts depend on its rank."
)
MEAN_OF_SIGNS = "The ranks' steps were averaged. Add the counts first, and take the sign of their sum."
SUM_OF_SIGNS = "The ranks' steps were added. Add the counts first, and take the sign of their sum."
AT_MEAN = "An expert with exactly the mean keeps its bias."
ROUNDED = "The mean was rounded to a whole number, so an expert with just as many tokens kept its bias."
NO_SPEED = "`speed` is the size of the step, and its default is 0.001."
MEDIAN = "The counts were compared with their median. Compare them with their mean."
ONLY_UP = "Only experts below the mean were moved. Those above it lose `speed`."
ONLY_DOWN = "Only experts above the mean were moved. Those below it gain `speed`."
ONLY_STEP = "The result is only the step. Add it to the bias."
OWN_MEAN_COUNT = (
    "The counts of all ranks were compared with the mean of this rank's counts. Take both from all ranks."
)


@dataclass(frozen=True)
class Counts:
    """A bias, and the counts (n, E) of the ranks; speed: 0.001 if it is left out."""

    bias: Tensor
    counts: Tensor
    speed: float | None

    @classmethod
    def draw(
        cls, draw: kit.Draw, n: int, totals: Sequence[int], speed: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Counts:  # fmt: skip
        """On no rank the steps are those of its own counts, nor is their mean over the ranks."""
        bias = draw.normal(len(totals)).to(dtype)
        total = torch.tensor(totals)[draw.normal(len(totals)).argsort()]
        while True:
            shares = draw.normal(n, len(totals)).softmax(0)
            counts = (shares * total).long()
            counts[-1] += total - counts.sum(0)
            drawn = cls(bias, counts, speed)
            if n == 1 or drawn.mistakes_show():
                return drawn

    def mistakes_show(self) -> bool:
        """Whether rank 0 has another step by each of these mistakes, and other ranks by their own counts."""
        right, own = self.sign(self.total), torch.stack([self.sign(row) for row in self.counts])
        before = self.total < self.total.mean()
        steps = [
            right, -right, own[0], -own[0], own.mean(0), own.sum(0), self.by_own_mean(0),
            right.clamp(min=0), right.clamp(max=0),
            torch.where(before, 1.0, -1.0).double(),
            torch.where(self.total > self.total.mean(), -1.0, 1.0).double(),
        ]  # fmt: skip
        apart = len({tuple(step.tolist()) for step in steps[:9]}) == 9
        apart &= not any(torch.equal(a, b) for a in steps[1:9] for b in steps[9:])
        return apart and not any(torch.equal(signs, right) for signs in own)

    def by_own_mean(self, rank: int) -> Tensor:
        return (self.counts[rank].double().mean() - self.total).sign()

    @staticmethod
    def sign(counts: Tensor) -> Tensor:
        return (counts.double().mean() - counts).sign()

    @property
    def total(self) -> Tensor:
        return self.counts.sum(0).double()

    def moved(self, step: Tensor, speed: float | None = None) -> Tensor:
        size = speed or self.speed or 0.001
        return (self.bias.double() + size * step).to(self.bias.dtype)

    def slips(self) -> list[Slip]:
        total, right = self.total, self.sign(self.total)
        own = [self.sign(row) for row in self.counts]
        mean, signs = total.mean(), torch.stack(own)
        everything = [
            (REVERSED, lambda k: self.moved(-right)),
            (LOCAL, lambda k: self.moved(own[k])),
            (LOCAL, lambda k: self.moved(-own[k])),
            (UNSIGNED, lambda k: self.moved(mean - total)),
            (UNSIGNED, lambda k: self.moved((mean - total) / mean)),
            (ONLY_UP, lambda k: self.moved(right.clamp(min=0))),
            (ONLY_DOWN, lambda k: self.moved(right.clamp(max=0))),
            (MEAN_OF_SIGNS, lambda k: self.moved(signs.mean(0))),
            (SUM_OF_SIGNS, lambda k: self.moved(signs.sum(0))),
            (AT_MEAN, lambda k: self.moved(torch.where(total < mean, 1.0, -1.0).double())),
            (AT_MEAN, lambda k: self.moved(torch.where(total > mean, -1.0, 1.0).double())),
            (ROUNDED, lambda k: self.moved((mean.floor() - total).sign())),
            (MEDIAN, lambda k: self.moved((total.median() - total).sign())),
            (NO_SPEED, lambda k: self.moved(right, 1.0)),
            (NO_SPEED, lambda k: self.moved(right, 0.001)),
            (ONLY_STEP, lambda k: self.moved(right) - self.bias),
            (OWN_MEAN_COUNT, lambda k: self.moved(self.by_own_mean(k))),
        ]
        return [Slip(says, lambda k, gives=gives: {"y": gives(k)}) for says, gives in everything]

    def run(self, name: str) -> LayerRun:
        kwargs = {} if self.speed is None else {"speed": self.speed}
        inputs = [{"bias": self.bias, "counts": row} for row in self.counts]
        y = self.moved(self.sign(self.total))
        wanted = [{"y": y, "after.bias": self.bias, "after.counts": row} for row in self.counts]
        return LayerRun(name, inputs=inputs, wanted=wanted, kwargs=kwargs, fixed=("bias",))


def bias_line(counts: Counts, run: LayerRun, title: str, weight: float, **more: Any) -> kit.Line:
    return values_line(
        run, title, names=("y",), slips=counts.slips(), weight=weight,
        misfit=lambda name, came, k: "Return the new bias as a tensor of its shape and dtype.", **more,
    )  # fmt: skip


@kit.exercise(points=3, objects=("update_bias",), references=REFERENCES, hint=trouble, point=POINT)
def update_bias(draw: kit.Draw) -> Iterator[kit.Case]:
    two = Counts.draw(draw, 2, [14, 2, 8, 8, 12, 4], speed=0.25)  # two have the mean
    uneven = Counts.draw(draw, 2, [20, 3, 9, 5, 8, 4])  # 8 is just below the mean
    runs = [two.run("two"), uneven.run("uneven")]
    yield layer_case(
        "2 ranks", runs,
        [
            of_all_ranks(bias_line(two, runs[0], "2 ranks", 2), [LOCAL]),
            bias_line(uneven, runs[1], "a mean that is not whole, and the default speed", 1),
            left_alone(runs[0], "bias", "counts"),
            forward_line(runs[0], two.counts.shape[1], 1),
        ],
    )  # fmt: skip
    group = Counts.draw(draw, 2, [12, 3, 6, 4, 5], speed=0.5)  # one has the mean, another the median
    run = group.run("group")
    lines = [bias_line(group, run, "group {1, 3}", 0.5)]
    yield layer_case("group", [run], lines, members=(1, 3), world_size=4)
    if draw.hidden:
        three = Counts.draw(draw, 3, [15, 1, 9, 7, 8], speed=0.125, dtype=torch.float32)
        run = three.run("three")
        yield layer_case("3 ranks", [run], [bias_line(three, run, "3 ranks, float32", 0.5)])
        alone = Counts.draw(draw, 1, [5, 1, 3, 3], speed=0.125)
        run = alone.run("alone")
        yield layer_case("1 rank", [run], [bias_line(alone, run, "1 rank", 0.5, trivial=True)])
