"""Judges of tensors: exact against decoded contributions, close in floating point, left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from course_lib.checks import words
from course_lib.checks.judge.build import GAP, Argument
from course_lib.checks.judge.case import ANY, CHANGED, RIGHT, Finding, Observed, wrong
from course_lib.checks.judge.explain import Language, Mistake, finding
from course_lib.checks.judge.provenance import Provenance
from course_lib.checks.sentence import Sentence

Judge = Callable[[Observed], Finding]


@dataclass(frozen=True)
class Exact:
    """Every member's tensor `name` equals `expected`, element for element.

    expected, home: per member; home[i] is the position of the contributions that element i should hold.
    """

    name: str
    members: Sequence[int]
    expected: Sequence[torch.Tensor]
    provenance: Provenance
    homes: Sequence[np.ndarray]
    language: Language
    hint: Callable[[list[Mistake]], str] | None = None

    def __call__(self, observed: Observed) -> Finding:
        pieces = []
        for k, rank in enumerate(self.members):
            got = observed.tensors[rank][self.name]
            pieces += self.provenance.decode(rank, got, self.expected[k], self.homes[k])
        if not pieces:
            return RIGHT
        return finding(pieces, self.language, self.members, self.hint)


def both(*judges: Judge) -> Judge:
    """The first finding that is not right."""

    def judge(observed: Observed) -> Finding:
        return next((verdict for inner in judges if not (verdict := inner(observed)).ok), RIGHT)

    return judge


def left_alone(name: str, originals: dict[int, torch.Tensor], why: str = "") -> Judge:
    """The argument `name` is unchanged after the call, on every rank."""

    def judge(observed: Observed) -> Finding:
        for rank, before in originals.items():
            changed = (observed.tensors[rank][name] != before).flatten().nonzero().flatten().tolist()
            if changed:
                which = words.which("element", changed)
                return wrong(
                    f"`{name}` was changed on rank {rank} ({which}); it must be left alone.",
                    why,
                    cause=f"{name}{CHANGED}",
                )
        return RIGHT

    return judge


def gaps_left_alone(name: str, arguments: dict[int, Argument]) -> Judge:
    """A strided argument: the memory between its elements was not written."""

    def judge(observed: Observed) -> Finding:
        for rank, argument in arguments.items():
            gaps = argument.gaps(observed.tensors[rank].get(f"{name}.memory", torch.empty(0)))
            if gaps is not None and bool((gaps != GAP).any()):
                return wrong(
                    f"`{name}` is a view with gaps; on rank {rank} the memory between its elements, which "
                    "does not belong to it, was overwritten.",
                    "Work on a contiguous copy and write it back with copy_().",
                    cause="gaps",
                )
        return RIGHT

    return judge


def rounded(name: str, members: Sequence[int], expected: torch.Tensor, bound: torch.Tensor) -> Judge:
    """Floating point: every member's tensor is within `bound` (elementwise) of `expected` (float64)."""

    def judge(observed: Observed) -> Finding:
        for rank in members:
            got = observed.tensors[rank][name].to(torch.float64)
            error = (got - expected).abs()
            bad = (~(error <= bound)).flatten().nonzero().flatten().tolist()
            if bad:
                worst = float(error.nan_to_num(float("inf")).flatten()[bad].max())
                least = float(bound.max())
                which = f"{words.which('element', bad)} {words.verb(bad, 'is', 'are')}"
                return wrong(
                    Sentence(
                        f"on rank {rank}, {which} off by up to {worst:.3g}; rounding explains at most "
                        f"{least:.1g}.",
                        f"on rank {rank}, {which} off by more than rounding explains.",
                    ),
                    cause="rounding" if worst < 100 * least else ANY,
                )
        return RIGHT

    return judge


def same_bits(name: str, members: Sequence[int]) -> Judge:
    """Every member holds the same bits."""

    def judge(observed: Observed) -> Finding:
        first = observed.tensors[members[0]][name]
        for rank in members[1:]:
            differ = (observed.tensors[rank][name] != first).flatten().nonzero().flatten().tolist()
            if differ:
                which = words.which("element", differ)
                return wrong(
                    f"ranks {members[0]} and {rank} hold different bits in {which}: their sums were added in "
                    "different orders.",
                    "Replicas that differ in the last bit drift apart. Add each element in one place, or in "
                    "the same order everywhere.",
                    cause="bits",
                )
        return RIGHT

    return judge


def contributions(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """(sources, positions) int64 from the ranks' integer-valued tensors."""
    return np.stack([t.detach().to(torch.float64).reshape(-1).numpy() for t in tensors]).astype(np.int64)
