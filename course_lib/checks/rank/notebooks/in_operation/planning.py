"""Recipes (see `harness`) that ask for plans: which pieces are read, and which rank writes what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.rank.harness import describe, number_like
from course_lib.checks.wire import Instructions, Place

_describe, _number_like = describe, number_like
MOST = 500  # pieces of a plan that go back
Box = list[tuple[int, int]]
Piece = tuple[int, Box, Box]


@dataclass
class ReadAnswer:
    """The pieces; misfit: words for an answer that has not the agreed form."""

    pieces: list[Piece] | None = None
    misfit: str = ""
    error: Place | None = None


@dataclass
class WriteAnswer:
    """For each rank the indices that came."""

    plan: list[list[int]] | None = None
    misfit: str = ""
    error: Place | None = None


@dataclass
class ReadAnswers:
    answers: list[ReadAnswer]


@dataclass
class WriteAnswers:
    answers: list[WriteAnswer]


@dataclass(frozen=True)
class ReadInstructions(Instructions):
    """calls: the saved boxes, each with its file, and the wanted one."""

    calls: list[tuple[list[tuple[int, Box]], Box]]

    def answers(self) -> int:
        return len(self.calls)


@dataclass(frozen=True)
class WriteInstructions(Instructions):
    """calls: of each rank the pieces that it holds: name, box, bytes."""

    calls: list[list[list[tuple[str, Box, int]]]]

    def answers(self) -> int:
        return len(self.calls)


class Misfit(Exception):
    """An answer of another form; the text says which."""


def whole(value: Any) -> int:
    number = _number_like(value) if not isinstance(value, int) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or number != int(number):
        raise Misfit(f"{type(value).__name__} where a whole number belongs")
    if abs(number) >= 1 << 62:
        raise Misfit("a very large number")
    return int(number)


def listed(value: Any, what: str) -> list:
    if not isinstance(value, list | tuple):
        raise Misfit(f"{type(value).__name__} where {what} belongs")
    return list(value[:MOST])


def box_of(value: Any) -> Box:
    box = []
    for pair in listed(value, "a box"):
        if isinstance(pair, slice):
            raise Misfit("slices where pairs (start, stop) belong")
        ends = listed(pair, "a pair (start, stop)")
        if len(ends) != 2:
            raise Misfit(f"{len(ends)} numbers where a pair (start, stop) belongs")
        box.append((whole(ends[0]), whole(ends[1])))
    return box


def piece_of(value: Any) -> Piece:
    piece = listed(value, "a piece")
    if len(piece) != 3:
        raise Misfit(f"{len(piece)} entries in a piece, which has three")
    return whole(piece[0]), box_of(piece[1]), box_of(piece[2])


def read_plans(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: ReadInstructions
) -> tuple[ReadAnswers, dict[str, Any]]:
    """Each call; an exception is an answer, too."""
    answers = []
    for number, (saved, wanted) in enumerate(instructions.calls):
        try:
            plan = objects[0]([(file, list(box)) for file, box in saved], list(wanted))
            answers.append(ReadAnswer([piece_of(piece) for piece in listed(plan, "a list of pieces")]))
        except Misfit as misfit:
            answers.append(ReadAnswer(misfit=str(misfit)))
        except Exception as error:
            refuse_stub(error, number)
            answers.append(ReadAnswer(error=_describe(error)))
    return ReadAnswers(answers), {}


def write_plans(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: WriteInstructions
) -> tuple[WriteAnswers, dict[str, Any]]:
    """Each call; an exception is an answer, too."""
    answers = []
    for number, held in enumerate(instructions.calls):
        try:
            plan = objects[0]([[(name, list(box), nbytes) for name, box, nbytes in rank] for rank in held])
            rows = [listed(row, "a list of indices") for row in listed(plan, "a list for each rank")]
            answers.append(WriteAnswer([[whole(index) for index in row] for row in rows]))
        except Misfit as misfit:
            answers.append(WriteAnswer(misfit=str(misfit)))
        except Exception as error:
            refuse_stub(error, number)
            answers.append(WriteAnswer(error=_describe(error)))
    return WriteAnswers(answers), {}


def refuse_stub(error: Exception, number: int) -> None:
    """A stub is told by the case and not by its lines."""
    if isinstance(error, NotImplementedError) and not str(error) and number == 0:
        raise error
