"""The loss of logits that are cut over ranks, in one process and float64: the standard for the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.facts import chunk_sizes

UPSTREAM = 3.0  # the loss's own gradient: backward has to multiply by it


@dataclass(frozen=True)
class Loss:
    """Logits of the whole vocabulary, cut over n ranks, and targets.

    ignored: the index of targets that do not count; kind: the dtype that the ranks are given the logits in.
    """

    n: int
    logits: Tensor
    target: Tensor
    ignored: int = -100
    kind: torch.dtype = torch.float32

    @classmethod
    def draw(cls, draw: kit.Draw, n: int, vocab: int, *shape: int, kind: torch.dtype = torch.float32) -> Loss:
        logits = (3 * draw.normal(*shape, vocab)).to(kind).double()
        return cls(n, logits, targets(draw, vocab, *shape), kind=kind)

    @classmethod
    def large(cls, draw: kit.Draw, n: int, vocab: int, rows: int) -> Loss:
        """Logits around 1,000 and -1,000, so far apart that all but the largest round to nothing."""
        logits = torch.stack([40.0 * torch.randperm(vocab, generator=draw.generator) for _ in range(rows)])
        logits += torch.tensor([1000.0, -1000.0]).repeat(rows)[:rows, None] - 20 * vocab
        return cls(n, logits.double(), targets(draw, vocab, rows))

    def ignoring(self, draw: kit.Draw, index: int = -100) -> Loss:
        """The same with every third target ignored; a target that equals index is, too."""
        some = torch.arange(self.target.numel()).view(self.target.shape) % 3 == 1
        target = self.target.masked_fill(some, index)
        return Loss(self.n, self.logits, target, index, self.kind)

    @property
    def vocab(self) -> int:
        return self.logits.shape[-1]

    @property
    def counts(self) -> Tensor:
        return self.target != self.ignored

    @property
    def each(self) -> Tensor:
        """Of each target, 0 where it is ignored."""
        return self.lse.where(self.counts, 0) - self.of_target

    @property
    def lse(self) -> Tensor:
        return self.logits.logsumexp(-1)

    @property
    def of_target(self) -> Tensor:
        """The target's logit, 0 where it is ignored."""
        at = self.target.where(self.counts, 0)
        return self.logits.gather(-1, at[..., None])[..., 0].where(self.counts, 0)

    @property
    def one_hot(self) -> Tensor:
        return F.one_hot(self.target.where(self.counts, 0), self.vocab) * self.counts[..., None]

    @property
    def one_hot_of_all(self) -> Tensor:
        """With the ignored targets, where they are tokens."""
        there = self.target >= 0
        return F.one_hot(self.target.where(there, 0), self.vocab) * there[..., None]

    def y(self, each: Tensor | None = None) -> Tensor:
        return (self.each if each is None else each).sum() / self.counts.sum()

    def grad(self, k: int, rows: Tensor | None = None) -> Tensor:
        """Rank k's part of the gradient; rows: softmax - 1 at the target, of the targets that count."""
        rows = self.logits.softmax(-1) - self.one_hot if rows is None else rows
        return UPSTREAM / self.counts.sum() * self.part(k, rows * self.counts[..., None])

    def part(self, k: int, tensor: Tensor) -> Tensor:
        return tensor.tensor_split(self.n, -1)[k].contiguous()

    def local(self, k: int) -> tuple[Tensor, Tensor]:
        """Targets counted from the rank's first token, and which of them are elsewhere."""
        sizes = chunk_sizes(self.vocab, self.n)
        local = self.target - sum(sizes[:k])
        return local, (local < 0) | (local >= sizes[k]) | ~self.counts

    def first(self, k: int) -> Tensor:
        local, elsewhere = self.local(k)
        return local.masked_fill(elsewhere, 0)

    def nearest(self, k: int) -> Tensor:
        return self.local(k)[0].clamp(0, chunk_sizes(self.vocab, self.n)[k] - 1)

    def modulo(self, k: int) -> Tensor:
        return self.target % chunk_sizes(self.vocab, self.n)[k]


def targets(draw: kit.Draw, vocab: int, *shape: int) -> Tensor:
    """Targets on every rank: all tokens of the vocabulary, as far as there is room."""
    count = torch.Size(shape).numel()
    order = torch.randperm(count, generator=draw.generator)
    extra = torch.randint(vocab, (count,), generator=draw.generator)
    spread = torch.linspace(0, vocab - 1, min(vocab, count)).long()
    return torch.cat([spread, extra])[:count][order].view(shape)


def run_of(loss: Loss, name: str = "loss", **kwargs: Any) -> LayerRun:
    kind = torch.promote_types(loss.kind, torch.float32)
    logits = [loss.part(k, loss.logits).to(loss.kind) for k in range(loss.n)]
    wanted = [
        {"y": loss.y().to(kind), "grad.logits": loss.grad(k).to(loss.kind), "after.logits": logits[k]}
        for k in range(loss.n)
    ]
    return LayerRun(
        name,
        inputs=[{"logits": part, "target": loss.target} for part in logits],
        wanted=wanted,
        gradient=[torch.tensor(UPSTREAM, dtype=kind)] * loss.n,
        kwargs={"vocab_size": loss.vocab, **kwargs},
    )
