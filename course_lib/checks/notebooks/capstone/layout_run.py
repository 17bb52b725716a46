"""A layout that trains, and one process that trains the same, rightly or with a mistake.

Only losses come back from the ranks. So a mistake is told by the losses that one process has with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain, combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.judge.meshes import OnMesh
from course_lib.checks.notebooks.capstone.alone import model_of, one_thread
from course_lib.checks.rank.notebooks.capstone.stepping import LayoutInstructions
from course_lib.models import GPTConfig
from course_lib.planning import Layout

ROWS, SEQ, STEPS, RATE, MOMENTUM = 12, 16, 3, 0.23, 0.9  # 2, 3 and 4 divide the rows
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Way:
    """A way of training; as it stands, the right one.

    times: of the gradients. weights: "targets": every token weighs 1 / targets of the batch; "replicas",
    "microbatches": the mean of their means; "all": -100 counts, too. again: how often the gradients of the
    step before are in those of a step. still: "cut": layers that tp cuts never move; "all": none does.
    """

    times: float = 1.0
    weights: str = "targets"
    momentum: float = MOMENTUM
    again: float = 0.0
    still: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """losses: before each step; after: of the same batches, after it."""

    losses: list[float]
    after: list[float]


@dataclass(frozen=True)
class LayoutRun:
    """batches: of each step, inputs and targets (ROWS, SEQ)."""

    layout: Layout
    config: GPTConfig
    batches: list[Batch]
    trained: dict[Way, Trained] = field(default_factory=dict)  # so far

    @cached_property
    def mesh(self) -> OnMesh:
        return OnMesh(self.layout.sizes)

    @property
    def m(self) -> int:
        return self.layout.microbatches(ROWS)

    @property
    def n(self) -> int:
        """Ranks of dp x cp."""
        return self.layout.replicas

    @property
    def targets(self) -> int:
        return int((self.batches[0][1] != -100).sum())

    @property
    def right(self) -> list[float]:
        return self.way(Way()).losses

    def side(self, rank: int) -> kit.RankSide:
        tensors = {}
        for step, (inputs, targets) in enumerate(self.batches):
            tensors |= {f"x.{step}": inputs.clone(), f"t.{step}": targets.clone()}
        layout: dict[str, Any] = {
            name: getattr(self.layout, name)
            for name in ("microbatch", "chunks", "zero", "recompute", "sequence", "gradients")
        }
        instructions = LayoutInstructions(
            **self.mesh.described(rank),
            config=asdict(self.config),
            layout=layout,
            rows=ROWS,
            rate=RATE,
            count=STEPS,
        )
        return kit.RankSide(tensors, instructions, {})

    # ---- one process

    def way(self, way: Way) -> Trained:
        if way not in self.trained:
            with one_thread():
                self.trained[way] = self.train(way)
        return self.trained[way]

    def train(self, way: Way) -> Trained:
        model = model_of(self.config, way.seed, drawn_in=torch.float64)
        moving = [p for name, p in model.named_parameters() if not self.stands_still(name, way.still)]
        optimizer, losses, after = torch.optim.SGD(moving or [torch.nn.Parameter(torch.zeros(1))]), [], []
        optimizer.param_groups[0].update(lr=RATE, momentum=way.momentum)
        for batch in self.batches:
            for param in moving:
                param.grad = None if param.grad is None else way.again / way.times * param.grad
            loss = self.loss(model, batch, way.weights)
            loss.backward()
            for param in moving:
                if param.grad is not None:
                    param.grad *= way.times
            optimizer.step()
            losses.append(float(loss))
            with torch.no_grad():
                after.append(float(self.loss(model, batch, way.weights)))
        return Trained(losses, after)

    def loss(self, model: Any, batch: Batch, weights: str) -> Tensor:
        inputs, targets = batch
        each = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
        return (each * self.weigh((targets != -100).double(), weights).flatten()).sum()

    def weigh(self, mask: Tensor, weights: str) -> Tensor:
        """The weight of each token, (ROWS, SEQ)."""
        dp, m = self.layout.dp, self.m
        parts = mask.view(dp, m, -1, mask.shape[-1])
        if weights == "replicas":
            parts = parts / parts.sum((1, 2, 3), keepdim=True).clamp(min=1) / dp
        elif weights == "microbatches":
            parts = parts / parts.sum((2, 3), keepdim=True).clamp(min=1) / dp / m
        else:
            parts = parts / (mask.numel() if weights == "all" else mask.sum())
        return parts.reshape(mask.shape)

    def stands_still(self, name: str, still: str) -> bool:
        """Layers that tp cuts are made again, and all other parameters are norms and positions."""
        exchanged = "norm" not in name and "position" not in name
        return still == "all" or (still == "cut" and exchanged)

    # ---- numbers that a factor can be

    def sets_of_axes(self) -> Iterator[tuple[str, ...]]:
        """Every set of axes that have several ranks, the small ones first."""
        axes = [axis for axis, size in self.layout.sizes.items() if size > 1]
        return chain.from_iterable(combinations(axes, k) for k in range(1, len(axes) + 1))

    def label(self, axes: tuple[str, ...]) -> str:
        return f"the size of {axes[0]}" if len(axes) == 1 else f"the number of ranks of {' x '.join(axes)}"

    def numbers(self) -> dict[str, float]:
        """The numbers that a student could multiply or divide by, each under its name."""
        named = {self.label(axes): float(self.mesh.size(*axes)) for axes in self.sets_of_axes()}
        if self.m > 1:
            named |= {f"{label}, times m": number * self.m for label, number in named.items()}
            named["m, the number of microbatches"] = float(self.m)
        return named | {"the number of targets": float(self.targets)}

    def named(self, times: float) -> str:
        """ "2 is the size of dp or the size of tp", of a factor or its inverse; "" if no number is."""
        number = max(times, 1 / times)
        labels = [label for label, other in self.numbers().items() if abs(number / other - 1) < 1e-6]
        return f"{words.number(round(number))} is {words.listing(labels, 'or')}" if labels else ""

    def factors(self) -> Iterator[float]:
        for number in sorted(set(self.numbers().values()) - {1.0}):
            yield from (1 / number, number)


def drawn(draw: kit.Draw, layout: Layout, config: GPTConfig) -> LayoutRun:
    """Targets that count lie unevenly over replicas, microbatches and places: no mean is another's."""
    shape = (layout.dp, layout.microbatches(ROWS), layout.microbatch, SEQ)

    def tokens() -> Tensor:
        return torch.randint(config.vocab_size, shape, generator=draw.generator)

    batches = []
    for _ in range(STEPS):
        inputs, targets = tokens(), tokens()
        targets[:, 0, :, : SEQ // 4 + 1] = -100  # early places of the first microbatch
        targets[0, -1, 0, 1:] = -100  # nearly a whole row of the first replica
        targets[-1, -1, -1, -3:] = -100
        batches.append((inputs.reshape(ROWS, SEQ), targets.reshape(ROWS, SEQ)))
    return LayoutRun(layout, config, batches)
