"""Cases in which chunks of a larger tensor move: an output buffer, an input that is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from course_lib.checks.engine.build import Argument, side
from course_lib.checks.engine.case import Case, Line
from course_lib.checks.engine.explain import Language, Mistake
from course_lib.checks.engine.provenance import Provenance
from course_lib.checks.engine.setting import Setting
from course_lib.checks.engine.traffic import Hint, bytes_line, rounds_line
from course_lib.checks.engine.values import Exact, both, contributions, left_alone
from course_lib.facts import exact_bytes, rounds

OLD = -3  # what output buffers hold before the call


def chunks(length: int, count: int) -> list[tuple[int, int]]:
    """(first, last + 1) of `count` chunks of `length` positions; none when they are empty."""
    return [(k * length, (k + 1) * length) for k in range(count)] if length else []


def with_old(tensors: Sequence[torch.Tensor]) -> Provenance:
    """The sources of a sum, and last what the output held before."""
    return Provenance(
        contributions([*tensors, torch.full_like(tensors[0], OLD)]), summed=len(tensors)
    )


def output_case(
    on: Setting,
    title: str,
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    provenance: Provenance,
    homes: Sequence[np.ndarray],
    language: Language,
    hint: Callable[[list[Mistake]], str],
    why: str = "",
    *,
    needed: int,
) -> Case:
    """f(output, input): every member's output becomes `expected`, its input stays.

    needed: bytes of all ranks together without which that cannot be, see `Case`.
    """
    judge = both(
        Exact("output", on.ranks, expected, provenance, homes, language, hint),
        left_alone("input", dict(zip(on.ranks, inputs, strict=True)), why),
    )
    sides = [
        side(
            {"output": torch.full_like(made, OLD), "input": Argument(given, on.layout)},
            returned=["output", "input"],
            group=on.group,
        )
        for made, given in zip(expected, inputs, strict=True)
    ]
    return on.case(title, sides, judge, needed=needed)


def traffic(
    algorithm: str, n: int, numel: int, cost: Hint, order: Hint, suffix: str = ""
) -> list[Line]:
    """Bytes and rounds of an algorithm on `numel` float32 elements."""
    least = [exact_bytes(algorithm, n, numel, 4, rank) for rank in range(n)]
    return [
        bytes_line(least, hint=cost, weight=4, title=f"bytes sent{suffix}"),
        rounds_line(rounds(algorithm, n), hint=order, title=f"rounds{suffix}"),
    ]


def ring_order(ratio: float, seen: object) -> str:
    return "N - 1 rounds, one message to the right in each; send and receive at the same time."


def ring_trouble(case: Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return (
            "Every rank is to send to its right and receive from its left in the same round: post "
            "both together with dist.batch_isend_irecv."
        )
    return ""
