"""A small run whose losses are the same to the last bit in the rank and in the judge, who makes them, too.

A line is fitted by SGD with momentum, in Python's numbers, one operation after the other. Each rank has a
part of the weights, and its term of every prediction; the terms are summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

ROWS, WIDTH = 3, 2  # of a batch, and of a rank's part of the weights
RATE, MOMENTUM = 0.05, 0.9

Numbers = list[float]
Rows = list[Numbers]
Total = Callable[[Numbers], Numbers]  # of all ranks, from a rank's own terms


class Part:
    """A rank's part of the run, as plain numbers: `weight` and `momentum`."""

    def __init__(self, seed: int, rank: int):
        draw = Random(f"start {seed} {rank}")
        self.weight = [draw.uniform(-1, 1) for _ in range(WIDTH)]
        self.momentum = [0.0] * WIDTH

    def terms(self, inputs: Rows, rank: int) -> Numbers:
        own = slice(rank * WIDTH, (rank + 1) * WIDTH)
        return [sum(w * x for w, x in zip(self.weight, row[own], strict=True)) for row in inputs]

    def update(self, inputs: Rows, errors: Numbers, rank: int) -> None:
        for k in range(WIDTH):
            gradient = sum(error * row[rank * WIDTH + k] for error, row in zip(errors, inputs, strict=True))
            self.momentum[k] = MOMENTUM * self.momentum[k] + gradient / ROWS
            self.weight[k] = self.weight[k] - RATE * self.momentum[k]


def batch(seed: int, number: int, ranks: int) -> tuple[Rows, Numbers]:
    """Inputs (rows, width of all ranks) and targets (rows,) of a step."""
    draw = Random(f"batch {seed} {number}")
    inputs = [[draw.uniform(-1, 1) for _ in range(ranks * WIDTH)] for _ in range(ROWS)]
    return inputs, [draw.uniform(-1, 1) for _ in range(ROWS)]


def errors_of(predictions: Numbers, targets: Numbers) -> tuple[float, Numbers]:
    """The loss, and each row's error."""
    errors = [prediction - target for prediction, target in zip(predictions, targets, strict=True)]
    return sum(error * error for error in errors) / ROWS, errors


def undisturbed(seed: int, steps: int, ranks: int = 1) -> Numbers:
    """The losses of a run that is never killed."""
    parts, losses = [Part(seed, rank) for rank in range(ranks)], Numbers()
    for number in range(steps):
        inputs, targets = batch(seed, number, ranks)
        terms = [part.terms(inputs, rank) for rank, part in enumerate(parts)]
        loss, errors = errors_of(summed(terms), targets)
        for rank, part in enumerate(parts):
            part.update(inputs, errors, rank)
        losses.append(loss)
    return losses


def summed(terms: Sequence[Numbers]) -> Numbers:
    return [sum(column) for column in zip(*terms, strict=True)]
