"""A GPT that is spread over ranks, and one process that trains the same, rightly or with a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.capstone.alone import model_of, one_thread
from course_lib.checks.rank.notebooks.capstone.distributing import SpreadInstructions
from course_lib.facts import layer_parameters, transformer_parameters
from course_lib.ledger.operation import Operation
from course_lib.models import GPTConfig

CONFIG = GPTConfig(vocab_size=48, context=12, layers=3, heads=4, width=24, tied=False)  # 2 and 3 divide all
PARAMETERS, BLOCK = transformer_parameters(CONFIG), layer_parameters(CONFIG)
REST = PARAMETERS - CONFIG.layers * BLOCK  # of the root
ROWS, STEPS, RATE = 12, 3, 0.1
FLOAT = 8  # bytes of a float64
ROUNDING = 1e-9  # of a loss
Losses = list[list[float]]  # of each rank, of each step


@dataclass(frozen=True)
class Spread:
    """One case: n ranks, each with its own rows and the seed of its model.

    batches: of each step, inputs and targets, (ROWS, context) each.
    """

    how: str
    seeds: list[int]
    batches: list[tuple[Tensor, Tensor]]

    @property
    def n(self) -> int:
        return len(self.seeds)

    def part(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = (whole.chunk(self.n)[rank] for whole in self.batches[step])
        return inputs, targets

    def side(self, rank: int) -> kit.RankSide:
        tensors = {}
        for step in range(STEPS):
            inputs, targets = self.part(rank, step)
            tensors |= {f"x.{step}": inputs.clone(), f"t.{step}": targets.clone()}
        instructions = SpreadInstructions(asdict(CONFIG), self.seeds[rank], self.how, RATE, STEPS)
        return kit.RankSide(tensors, instructions, {})

    @cached_property
    def right(self) -> Losses:
        return self.losses(self.seeds[:1] * self.n)

    def losses(
        self, seeds: list[int], shared: Callable[[str], bool] = lambda _: True, times: float = 1
    ) -> Losses:
        """Of ranks whose gradients are averaged where `shared`, and `times` too large there."""
        with one_thread():
            return self.trained(seeds, shared, times)

    def trained(self, seeds: list[int], shared: Callable[[str], bool], times: float) -> Losses:
        models, losses = [model_of(CONFIG, seed) for seed in seeds], [[] for _ in seeds]
        for step in range(STEPS):
            for rank, model in enumerate(models):
                inputs, targets = self.part(rank, step)
                model.zero_grad()
                loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
                loss.backward()
                losses[rank].append(float(loss))
            named = [dict(model.named_parameters()) for model in models]
            for name in named[0]:
                own = [params[name].grad for params in named]
                mean = times * torch.stack([g for g in own if g is not None]).mean(0)
                for params in named:
                    grad = mean if shared(name) else params[name].grad
                    if grad is not None:
                        params[name].data -= RATE * grad
        return losses


def near(returned: Losses, losses: Losses) -> bool:
    pairs = (
        (a, b) for own, other in zip(returned, losses, strict=True) for a, b in zip(own, other, strict=True)
    )
    return all(abs(a - b) <= ROUNDING * abs(b) for a, b in pairs)


# ---- the record


def in_steps(observed: kit.Observed, rank: int) -> list[Operation]:
    """The operations of the steps, or none if the reply does not say when a step began."""
    begun = observed.values[rank].begun
    return observed.operations[rank][begun[0] : begun[-1]] if begun else []


def sent(observed: kit.Observed, rank: int) -> float:
    """Bytes in a step."""
    return sum(operation.bytes_sent for operation in in_steps(observed, rank)) / STEPS


def largest(observed: kit.Observed, rank: int) -> int:
    """Parameters of the largest all-gather."""
    gathers = (o.nbytes for o in in_steps(observed, rank) if o.op == "all_gather")
    return max(gathers, default=0) // FLOAT
