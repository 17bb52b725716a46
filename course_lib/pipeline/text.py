"""Schedules as text, with a row for each rank, which lists its actions in order, separated by commas.

    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1

An action is stage, kind, microbatch; an overlapped pair is (0F3;7B1)OVERLAP_F_B. The files of
`torch.distributed.pipelining` have this format, so `_PipelineScheduleRuntime._load_csv` reads these rows
(format "compute_only"), and puts in the sends and receives itself.
"""

from __future__ import annotations

import re

from .actions import Action, Pair, Schedule

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")


def to_text(schedule: Schedule) -> str:
    """The rows of a schedule, each ended by a newline."""
    return "".join(",".join(map(str, row)) + "\n" for row in schedule)


def from_text(text: str) -> list[list[Action | Pair]]:
    """The schedule of these rows. An empty cell, a pause in PyTorch's files, is left out.

    Every line is a rank, and an empty line is a rank that does nothing.
    Raises ValueError on a cell that is not an action, with the row and the form of a cell.
    """
    return [
        [_parse(cell.strip(), rank) for cell in row.split(",") if cell.strip()]
        for rank, row in enumerate(text.splitlines())
    ]


def _parse(cell: str, rank: int) -> Action | Pair:
    if pair := _PAIR.fullmatch(cell):
        forward, backward = (_single(half.strip(), cell, rank) for half in pair.groups())
        return Pair(forward, backward)
    return _single(cell, cell, rank)


def _single(text: str, cell: str, rank: int) -> Action:
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"row {rank}: {cell!r} is not an action. Write stage, one of F B I W, and microbatch, such as "
            "2F0, or a pair such as (0F3;7B1)OVERLAP_F_B; sends and receives are not written down"
        )
    stage, kind, microbatch = match.groups()
    return Action(int(stage), kind, int(microbatch))
