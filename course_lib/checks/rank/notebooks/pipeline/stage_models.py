"""Stages of a small model for a recipe and its judge, from a description in plain data, the same anywhere.

{"kind": "tokens", "seed": 7, "stages": 4, "width": 6}

    tokens     the first stage looks up tokens, the last has a head; the loss is the cross-entropy, and
               targets of -100 do not count
    numbers    linear layers throughout; the loss is the sum of squared errors, and all targets count

A description gives one stage at a time: the seed of one does not give the others'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 11
DEVIATION = 0.4  # of all parameters: biases of 0 would hide what is done to them


class Layers(nn.Module):
    """x + tanh(A x + b): no operation keeps its output, which goes to the next stage, for backward.

    With an embedding in front where `first`, and a head behind where `last`.
    """

    def __init__(self, width: int, first: bool, last: bool):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width) if first else None
        self.linear = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY) if last else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        x = x + torch.tanh(self.linear(x))
        return x if self.head is None else self.head(x)


def build(description: dict, index: int) -> nn.Module:
    """Stage `index` in float64; the caller's random state is left as it was."""
    tokens, last = description["kind"] == "tokens", description["stages"] - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage_seed(description["seed"], index))
        module = Layers(description["width"], tokens and index == 0, tokens and index == last).double()
        with torch.no_grad():
            for param in module.parameters():
                param.normal_(std=DEVIATION)
    return module


def once(description: dict, index: int, shape: Sequence[int], where: torch.device) -> None:
    """A forward and a backward of a microbatch of zeros; only memory of libraries is left of it."""
    inputs = torch.zeros(*shape, dtype=torch.int64, device=where)
    tokens = description["kind"] == "tokens" and index == 0
    wide = torch.zeros(*shape, description["width"], dtype=torch.float64, device=where)
    y = build(description, index).to(where)(inputs if tokens else wide.requires_grad_())
    cross_entropy(y, inputs).backward()


def stage_seed(seed: int, index: int) -> int:
    """One stage's seed does not give another's."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:6], "big")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    return (output - targets).square().sum()


def some(targets: Tensor) -> Tensor:
    return (targets != -100).sum()


def all_of_them(targets: Tensor) -> Tensor:
    return torch.tensor(targets.numel())


LOSSES = {"tokens": (cross_entropy, some), "numbers": (squared_error, all_of_them)}


def boundary(kind: str, width: int, inputs: Tensor) -> tuple[int, ...]:
    """The shape of the message from stage to stage, for these inputs of a microbatch."""
    return (*inputs.shape, width) if kind == "tokens" else tuple(inputs.shape)
