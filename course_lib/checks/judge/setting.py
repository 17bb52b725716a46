"""The circumstances of a case: its ranks, its group, its tensors; and its line in the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from course_lib.checks.judge.build import Argument, absent
from course_lib.checks.judge.case import Case, Draw, Finding, Line, Observed, RankSide
from course_lib.checks.judge.traffic import BARRIER, BUILT_IN


@dataclass(frozen=True)
class Setting:
    """One case of an exercise that is a function of tensors.

    n ranks, each with a tensor of `shape`; members: the sub-group that calls, passed as group=, all ranks
    when empty; layout: of the arguments in memory, see `Argument`; more: further lines, judged from the same
    run. The other fields are those of the line, see `Line`.
    """

    n: int
    shape: tuple[int, ...] = ()
    title: str = ""
    members: tuple[int, ...] = ()
    layout: str = "contiguous"
    dtype: torch.dtype = torch.float32
    aspect: str = "value"
    weight: float = 1.0
    short: bool = False
    trivial: bool = False
    more: tuple[Line, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The global ranks that call the function."""
        return list(self.members) or list(range(self.n))

    @property
    def group(self) -> int | None:
        """Which of the case's groups is passed as group=."""
        return 0 if self.members else None

    def numbers(self, draw: Draw, shape: Sequence[int] | None = None) -> list[torch.Tensor]:
        """Integers for each member whose sum is exact in the dtype; distinct where they can be."""
        shape, count = self.shape if shape is None else shape, len(self.ranks)
        if self.dtype.itemsize > 2:
            return [values.to(self.dtype) for values in draw.distinct(count, *shape)]
        return [draw.distinct(*shape, high=250 // count).to(self.dtype) for _ in range(count)]

    def arguments(self, values: Sequence[torch.Tensor]) -> list[Argument]:
        return [Argument(tensor, self.layout) for tensor in values]

    def case(
        self,
        title: str,
        sides: Sequence[RankSide],
        judge: Callable[[Observed], Finding],
        groups: Sequence[Sequence[int]] = (),
        *,
        needed: int,
    ) -> Case:
        """The case with `sides` at the members' ranks; `title` unless the setting has its own."""
        title = self.title or title
        line = Line(title, judge, self.weight, self.aspect, trivial=self.trivial, short=self.short)
        made = self.of_lines(title, sides, [line, *self.more], groups)
        # A barrier carries no values, so it costs the line of `only_messages`, where there is one.
        return replace(made, forbidden=BUILT_IN - BARRIER, needed=needed)

    def of_lines(
        self,
        title: str,
        sides: Sequence[RankSide],
        lines: Sequence[Line],
        groups: Sequence[Sequence[int]] = (),
    ) -> Case:
        """The case with `sides` at the members' ranks, and nothing forbidden."""
        placed = dict(zip(self.ranks, sides, strict=True))
        ranks = [placed.get(rank) or absent() for rank in range(self.n)]
        known = [self.ranks] if self.members else [list(group) for group in groups]
        return Case(title, ranks, list(lines), groups=known)
