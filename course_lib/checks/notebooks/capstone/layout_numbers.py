"""Numbers that are equal but for rounding, and the words for a factor."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch

from course_lib.checks import words

CLOSE, FLOAT32 = 1e-9, 5e-7  # of a loss; of one that was added up in float32


def near(value: float, other: float) -> bool:
    return abs(value - other) <= CLOSE * max(abs(other), 1e-3)


def all_near(values: Sequence[float], others: Sequence[float], times: float = 1) -> bool:
    return all(near(value, times * other) for value, other in zip(values, others, strict=True))


def right(value: float, other: float) -> bool:
    """`near`, or to seven digits if the value is a float32, perhaps divided by a number of ranks."""
    if near(value, other):
        return True
    multiples = torch.tensor([value * n for n in range(1, 9)], dtype=torch.float64)
    of_float32 = (multiples.float().double() - multiples).abs() <= 1e-14 * abs(value)
    return bool(of_float32.any()) and abs(value - other) <= FLOAT32 * abs(other)


def all_right(values: Sequence[float], others: Sequence[float]) -> bool:
    return all(right(value, other) for value, other in zip(values, others, strict=True))


def share(times: float) -> str:
    """0.5 -> "1/2 of one process'", 2.0 -> "2 times one process'"."""
    part = Fraction(times).limit_denominator(4096)
    return f"{part} of one process'" if part < 1 else f"{words.number(times)} times one process'"
