"""Shared by the checks of several exercises here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from course_lib.checks import kit
from course_lib.checks.judge.layers.lines import in_form, members, operations, reply_about
from course_lib.checks.judge.layers.runs import LayerRun

FACTOR_N = (
    "The gradient is N times too large. Every rank's backward begins with the whole gradient of the "
    "one loss, and to sum these copies again counts it N times. After a sum, backward sends nothing."
)
BY_LUCK = (
    "In backward PyTorch met a collective that was called on a tensor with a graph, and warned, "
    "because a collective has no backward."
)
WRITE_BACKWARD = (
    "It handed the gradient on as if nothing had been there, which is right here by luck, and may end with "
    "another release. Write the backward yourself, in a torch.autograd.Function."
)

MISSING = re.compile(
    "got an unexpected keyword argument '(group|kv_heads|dropout|gather_output|input_is_parallel|vocab_size)'"
)
IN_A_GROUP = (
    "This case runs in a group of some ranks. Take `group=None`, and hand it to every collective, to "
    "dist.get_rank and to dist.get_world_size. The cases of all ranks are judged without it."
)


def interface(text: str) -> str:
    """The hint for arguments that the student's object, or its backward, leaves out; "" for anything else."""
    if "incorrect number of gradients" in text:
        return (
            "`backward` must return a value for each argument that forward takes after ctx: a gradient for "
            "x, and None for each of the others."
        )
    match = MISSING.search(text)
    if match is None:
        return ""
    if match[1] == "group":
        return IN_A_GROUP
    return f"The docstring has the argument `{match[1]}`. Take it, with its default."


def other_sizes(text: str) -> bool:
    """Whether the ranks called the same collective, but with tensors of different sizes."""
    called = re.findall(r"rank \d+: (\w+) \w+(\[[\d, ]*\])", text)
    return "collective number" in text and len({op for op, _ in called}) == 1 and len(set(called)) > 1


GIVEN = {"after.x": "x", "after.gradient": "the gradient that backward was given"}  # for `and_unwritten`
MANY = 2.0  # times the bytes of a sum: a layer that sends so much forward is cut the wrong way


def total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(tensors)).sum(0)


def columns(run: LayerRun, *names: str) -> list[list[torch.Tensor]]:
    """The right values of these, as lists over the ranks."""
    return [[of_rank[name] for of_rank in run.wanted] for name in names]


def and_unwritten(line: kit.Line, run: LayerRun, what: Mapping[str, str], says: str) -> kit.Line:
    """The line; then, that none of the tensors, by name with words for each, was changed. says: the hint."""

    def unwritten(observed: kit.Observed) -> kit.Finding:
        for k, rank in enumerate(members(observed)):
            for name, called in what.items():
                if not torch.equal(observed.tensors[rank][f"{run.name}.{name}"], run.wanted[k][name]):
                    return kit.wrong(f"on rank {rank} {called} was changed.", says, cause=name)
        return kit.RIGHT

    return replace(line, judge=kit.both(line.judge, unwritten))


def own_work(
    run: LayerRun, title: str = "backward is yours", weight: float = 0.5, point: bool = False
) -> kit.Line:
    """Each operation in backward was begun in a line of the student's, and none is left to PyTorch's guess.

    point: whether the exercise's point is missed otherwise.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in members(observed):
            strange = [
                operation for operation in operations(run, observed, rank, "backward") if not operation.line
            ]
            if strange:
                return kit.wrong(
                    (
                        f"on rank {rank} no line of yours began the {strange[0].op} in backward, but "
                        "PyTorch did."
                    ),
                    "Write the backward yourself, as a torch.autograd.Function whose backward communicates.",
                    cause="PyTorch's",
                    misses_point=point,
                )
            if reply_about(observed, rank, run).by_luck:
                return kit.wrong(BY_LUCK, WRITE_BACKWARD, cause=BY_LUCK, misses_point=point)
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


def shows_its_part(line: kit.Line, run: LayerRun, whole: torch.Tensor) -> kit.Line:
    """The line on the bytes of a layer, which shows whether it has the point though its values are wrong.

    So it is if every rank's weight has rows, or columns, of the whole one, each once, results have their
    forms, and there are no more bytes.
    """

    def shows(observed: kit.Observed) -> float:
        for rank in members(observed):
            own, rows = observed.tensors[rank][f"{run.name}.p.weight"], whole
            if own.shape[1] != rows.shape[1]:
                own, rows = own.T, rows.T
            sums = own.sum(1)
            if not bool(torch.isin(sums, rows.sum(1)).all()) or len(sums.unique()) < len(sums):
                return 0.0
        return float(in_form(run, observed) and line.judge(observed).ok)

    return replace(line, shows=shows)
