"""Calls of `hybrid_step` on a mesh, and the same in one process: losses and gradients, right and mistaken.

A loss is a weighted sum over tokens, so a mistake in a mean is another set of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.meshes import OnMesh
from course_lib.checks.rank.notebooks.four_dimensions.on_a_mesh import StepInstructions
from course_lib.context_parallel import positions, zigzag
from course_lib.models import GPT, GPTConfig

RECIPE = "course_lib.checks.rank.notebooks.four_dimensions.on_a_mesh:steps"
ROWS_ARE_CUT = ("token_embedding", "head", "query", "key", "value", "up", "gate")
COLUMNS_ARE_CUT = ("out.weight", "down.weight")
TIED = "token_embedding.weight"
Held = dict[tuple[int, str], Tensor]  # by rank and name


class Whole(NamedTuple):
    """The loss of each call, and the gradients that all calls add up to."""

    losses: list[float]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Steps:
    """batches: of each call, inputs and targets, (dp, microbatches, rows, seq) each.

    sequence: see `mesh_stages`. chunks: stages of each rank of pp, in turn.
    """

    mesh: OnMesh
    config: GPTConfig
    seed: int
    batches: list[tuple[Tensor, Tensor]]
    sequence: Literal["keep", "regather"] | None = None
    chunks: int = 1

    @property
    def count(self) -> int:
        return self.batches[0][0].shape[1]

    @property
    def tokens(self) -> int:
        """Of a microbatch, on a rank."""
        _, _, rows, seq = self.batches[0][0].shape
        return rows * seq // self.mesh.size("cp")

    # ---- one process

    @cached_property
    def model(self) -> GPT:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return GPT(self.config).double()

    def whole(self, weigh: Callable[[Tensor], Tensor]) -> Whole:
        """weigh: from the targets that count (dp, microbatches, rows, seq) to the weight of each token."""
        losses, model = [], self.model
        model.zero_grad()
        for inputs, targets in self.batches:
            logits = model(inputs.flatten(0, 2))
            each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            loss = (each * weigh((targets != -100).double()).flatten()).sum()
            loss.backward()
            losses.append(float(loss))
        named = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return Whole(losses, named)

    @property
    def targets(self) -> int:
        """How many targets of a call's batch count."""
        return int((self.batches[0][1] != -100).sum())

    @cached_property
    def right(self) -> Whole:
        """The mean over all targets of the batch."""
        return self.whole(lambda mask: mask / mask.sum())

    @cached_property
    def mean_of_replicas(self) -> Whole:
        """The mean over replicas of the mean over each one's targets; one without targets has 0."""
        return self.whole(lambda m: m / m.sum((1, 2, 3), keepdim=True).clamp(min=1) / len(m))

    def mean_of_microbatches(self) -> Whole:
        return self.whole(lambda m: m / m.sum((2, 3), keepdim=True).clamp(min=1) / m.shape[0] / m.shape[1])

    def mean_of_parts(self) -> Whole:
        """Over dp and cp, the mean of the mean over each rank's targets."""

        def weigh(mask: Tensor) -> Tensor:
            weights, n = torch.zeros_like(mask), self.mesh.size("cp")
            for layout in zigzag(mask.shape[-1], n):
                places = positions(layout)
                part = mask[..., places]
                weights[..., places] = part / part.sum((1, 2, 3), keepdim=True).clamp(min=1) / n / len(mask)
            return weights

        return self.whole(weigh)

    @cached_property
    def largest(self) -> float:
        return max(float(gradient.abs().max()) for gradient in self.right.gradients.values())

    # ---- ranks

    def stages_of(self, name: str) -> list[int]:
        """The places on pp that hold the parameter."""
        pp = self.mesh.size("pp")
        if name.startswith("blocks."):
            return [int(name.split(".")[1]) // (self.config.layers // (pp * self.chunks)) % pp]
        if name == TIED and self.config.tied:
            return sorted({0, pp - 1})
        return [0] if "embedding" in name else [pp - 1]

    def cut_along(self, name: str) -> int | None:
        """The dimension along which tp cuts a parameter."""
        if self.mesh.size("tp") == 1:
            return None
        if name.endswith(COLUMNS_ARE_CUT):
            return 1
        return 0 if any(part in ROWS_ARE_CUT for part in name.split(".")) else None

    def part(self, rank: int, name: str, whole: Tensor) -> Tensor:
        dim = self.cut_along(name)
        return whole if dim is None else whole.chunk(self.mesh.size("tp"), dim)[self.mesh.place(rank, "tp")]

    def names(self, rank: int) -> Iterator[str]:
        own = self.mesh.place(rank, "pp")
        return (name for name, _ in self.model.named_parameters() if own in self.stages_of(name))

    def held(self, whole: dict[str, Tensor]) -> Held:
        """Each rank's part of each of its gradients."""
        ranks = range(self.mesh.n)
        return {(r, name): self.part(r, name, whole[name]) for r in ranks for name in self.names(r)}

    def side(self, rank: int) -> kit.RankSide:
        replica, inputs = self.mesh.place(rank, "dp"), {}
        for call, (x, targets) in enumerate(self.batches):
            for k in range(self.count):
                inputs |= {f"{call}.x.{k}": x[replica, k], f"{call}.t.{k}": targets[replica, k]}
        named = dict(self.model.named_parameters())
        parts = {name: self.part(rank, name, named[name]) for name in self.names(rank)}
        outputs = {name: kit.Spec.of(part) for name, part in parts.items()}
        instructions = StepInstructions(
            **self.mesh.described(rank),
            config=asdict(self.config) | {"seed": self.seed},
            count=self.count,
            times=len(self.batches),
            sequence=self.sequence,
            chunks=self.chunks,
            expects={name: spec.agreed() for name, spec in outputs.items()},
        )
        return kit.RankSide({name: tensor.clone() for name, tensor in inputs.items()}, instructions, outputs)


def drawn(
    draw: kit.Draw, mesh: OnMesh, config: GPTConfig, count: int, rows: int, seq: int, calls: int = 1,
    sequence: Literal["keep", "regather"] | None = None, without: bool = False, chunks: int = 1,
) -> Steps:  # fmt: skip
    """Targets that count lie unevenly over replicas, microbatches and places: no mean is another's.

    without: the last of three replicas or more has no target at all. (With two, the mean of the replicas'
    means would be half of the right one, as if that had been divided by 2.)
    """
    shape = (mesh.size("dp"), count, rows, seq)

    def tokens() -> Tensor:
        return torch.randint(config.vocab_size, shape, generator=draw.generator)

    batches = []
    for _ in range(calls):
        targets = tokens()
        targets[:, 0, :, : seq // 4 + 1] = -100  # early places of the first microbatch
        targets[0, -1, 0, 1:] = -100  # nearly a whole row of the first replica
        targets[-1:] = -100 if without else targets[-1:]
        batches.append((tokens(), targets))
    return Steps(mesh, config, draw.integer(0, 1 << 30), batches, sequence, chunks)
