"""Which of several tensors is it that comes by?

A check that wants to know which microbatch just went through a stage cannot ask the student's code, and the
tensor itself may be a copy, or have come as a message. So it is recognised by its contents: `tokens` draws no
two tensors that are alike, and the rank tells a `fingerprint`. Its arithmetic may differ from the judge's by
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from course_lib.checks import kit

CLOSE = 1e-6  # of each sum: rounding is far below, another tensor far above in one of them at least


def recognised(came: Any, known: Sequence[Sequence[float]]) -> int | None:
    """Which of the `known` fingerprints this one is; None if it is none of them, or not a fingerprint."""
    for k, right in enumerate(known):
        if isinstance(came, list) and len(came) == len(right) and all(map(near, came, right)):
            return k
    return None


def near(number: Any, right: float) -> bool:
    bound = CLOSE * (1 + abs(right))
    return type(number) in (int, float) and right - bound <= number <= right + bound


def tokens(draw: kit.Draw, shapes: Sequence[Sequence[int]], vocabulary: int) -> list[torch.Tensor]:
    """Random tokens of the vocabulary in each of the shapes; no two of the tensors begin with the same one.

    ValueError if there are more tensors than tokens.
    """
    if len(shapes) > vocabulary:
        raise ValueError(
            f"{len(shapes)} tensors cannot all begin with another one of {vocabulary} tokens: "
            f"ask for at most {vocabulary}."
        )
    first = draw.distinct(len(shapes), low=0, high=vocabulary)
    tensors = [torch.randint(vocabulary, tuple(shape), generator=draw.generator) for shape in shapes]
    for tensor, token in zip(tensors, first, strict=True):
        tensor.view(-1)[0] = token
    return tensors
