"""The replies of a case's ranks: read if they have the agreed form, else refused."""

from __future__ import annotations

from typing import Any

from course_lib.checks.judge.case import Case, Exercise, Finding, Observed, RankSide, Spec, wrong
from course_lib.checks.sentence import Sentence
from course_lib.checks.wire import Instructions, decode, reply_type
from course_lib.runtime import wire
from course_lib.runtime.run import Outcome

LONGEST = 4_000  # characters of a text, entries of a list: more than the recipes send
LONGEST_TYPE = 80  # characters


def read(exercise: Exercise, case: Case, outcome: Outcome) -> Observed | Finding:
    """The ranks' tensors, or why they are refused."""
    tensors, values, kind = [], [], reply_type(case.recipe)
    for rank, (side, reply) in enumerate(zip(case.sides, outcome.replies, strict=True)):
        header, buffers = reply or ({}, [])
        try:
            rank_tensors = wire.unpack_tensors(header["tensors"], buffers)
            others = {str(k): str(v)[:LONGEST_TYPE] for k, v in dict(header["others"]).items()}
            decoded = decode(kind, plain_data(header["values"]))
        except (wire.WireError, KeyError, TypeError, ValueError):
            return wrong(f"the reply of rank {rank} does not have the agreed form.")
        if not complete(decoded, side) or set(rank_tensors) | set(others) != set(side.outputs):
            return wrong(f"the reply of rank {rank} does not have the agreed form.")
        for name, spec in side.outputs.items():
            if name in others or Spec.of(rank_tensors[name]) != spec:
                got = others.get(name) or str(Spec.of(rank_tensors[name]))
                return misfit(exercise, rank, name, got, str(spec))
        tensors.append(rank_tensors)
        values.append(decoded)
    operations = [outcome.ledger.operations(rank) for rank in range(case.world_size)]
    return Observed(
        case, tensors, values, outcome.ledger, operations, outcome.held, outcome.rose, outcome.progress
    )


def complete(reply: Any, side: RankSide) -> bool:
    """Whether the rank's reply has each run, or call, that it was asked for.

    A type of reply with a method `complete` counts its own parts. In a dict of replies, a type with a method
    `complete_as` is asked with the reply's name.
    """
    instructions = side.instructions or Instructions()
    if isinstance(reply, dict):
        return set(reply) == set(instructions.parts()) and all(
            part.complete_as(name, instructions)
            for name, part in reply.items()
            if hasattr(part, "complete_as")
        )
    if hasattr(reply, "complete") and side.instructions and not reply.complete(instructions):
        return False
    return not hasattr(reply, "answers") or len(reply.answers) == instructions.answers()


def plain_data(value: Any, depth: int = 16) -> Any:
    """`value`, if it is data as the recipes send it. ValueError if it is too long or too deep.

    A rank's code may send any JSON in a recipe's name, and sentences are made of it.
    """
    if isinstance(value, str | list | dict) and len(value) > LONGEST:
        raise ValueError("too long")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("too large a number")
    if isinstance(value, list | dict) and not depth:
        raise ValueError("too deep")
    if isinstance(value, list):
        return [plain_data(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {plain_data(k): plain_data(item, depth - 1) for k, item in value.items()}
    return value


def misfit(exercise: Exercise, rank: int, name: str, got: str, expected: str) -> Finding:
    who = exercise.objects[0]
    if name == "result":
        missing = got == "NoneType"
        got = "None" if missing else got
        rest = f"a tensor {expected} is expected."
        general = f"{who} returned something else on rank {rank}; {rest}"
        said = f"{who} returned {got} on rank {rank}; {rest}"
        return wrong(
            said if missing else Sentence(said, general),
            "Is there a `return` at its end?" if missing else "",
            cause=f"result {got}",
        )
    return wrong(
        Sentence(
            f"after the call `{name}` is {got} on rank {rank}; it was {expected}.",
            f"after the call `{name}` is something else on rank {rank}; it was {expected}.",
        ),
        "It stays the caller's tensor: write into it with copy_(), or work on a copy if it is not the "
        "result.",
        cause=f"{name} {got}",
    )
