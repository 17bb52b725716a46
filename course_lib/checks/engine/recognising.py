"""Which of several tensors is it that comes by?

A check that wants to know which microbatch just went through a stage cannot ask the student's code, and the
tensor itself may be a copy, or have come as a message. So it is recognised by its contents. Two things keep
tensors apart, whatever was drawn: `tokens` draws no two that are alike, and a `fingerprint` has several
sums, each with other weights, so that no two different tensors have the same one by chance. (One sum alone,
weighted by the elements' places, is 48 for [8, 8, 8] and for [6, 9, 8].)

`fingerprint` is taken in the rank and in the judge, whose arithmetic may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from course_lib.checks.engine.case import Draw

_detach, _arange, _cos, _stack = torch.Tensor.detach, torch.arange, torch.cos, torch.stack
FREQUENCIES = (1.0, 1.3, 1.7, 2.3)  # of the weights: cosines of the elements' places
CLOSE = 1e-6  # of each sum: rounding is far below, another tensor far above in one of them at least


def fingerprint(x: torch.Tensor) -> list[float]:
    """[how many elements, and their sums, each with other weights]."""
    flat = _detach(x).double().flatten()
    places = _arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    weights = _stack([_cos(frequency * places) for frequency in FREQUENCIES])
    return [len(flat), *(weights @ flat).tolist()]


def recognised(came: Any, known: Sequence[Sequence[float]]) -> int | None:
    """Which of the `known` fingerprints this one is; None if it is none of them, or not a fingerprint."""
    for k, right in enumerate(known):
        if isinstance(came, list) and len(came) == len(right) and all(map(near, came, right)):
            return k
    return None


def near(number: Any, right: float) -> bool:
    bound = CLOSE * (1 + abs(right))
    return type(number) in (int, float) and right - bound <= number <= right + bound


def tokens(draw: Draw, shapes: Sequence[Sequence[int]], vocabulary: int) -> list[torch.Tensor]:
    """Random tokens of the vocabulary in each of the shapes; no two of the tensors begin with the same one.

    ValueError if there are more tensors than tokens.
    """
    if len(shapes) > vocabulary:
        raise ValueError(
            f"{len(shapes)} tensors cannot all begin with another one of {vocabulary} tokens: "
            f"ask for at most {vocabulary}."
        )
    first = draw.distinct(len(shapes), low=0, high=vocabulary)
    found = [torch.randint(vocabulary, tuple(shape), generator=draw.generator) for shape in shapes]
    for one, token in zip(found, first, strict=True):
        one.view(-1)[0] = token
    return found
