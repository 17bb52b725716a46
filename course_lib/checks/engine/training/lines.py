"""Lines that are judged from a training run: its values, what was sent and when, and what memory held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.engine import words
from course_lib.checks.engine.case import (
    RIGHT,
    Case,
    Finding,
    Line,
    Observed,
    RankSide,
    Spec,
    wrong,
)
from course_lib.checks.engine.sentence import Sentence
from course_lib.checks.engine.training import watching
from course_lib.checks.engine.training.single import Gradient, Tensors, Training, mean, train
from course_lib.ledger.operation import Operation

OPTIMIZERS = ("torch._dynamo",)  # the first optimizer of a process imports it
RECIPES = "course_lib.checks.engine.training.recipes"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 4e-2}
WHAT = {
    "start": "parameter", "grad": "gradient of", "param": "parameter", "end": "parameter",
    "buffer": "buffer",
}  # fmt: skip


def case(recipe: str, title: str, training: Training, lines: Sequence[Line], **more: Any) -> Case:
    """A run of `training` by one of the recipes ("replicas", "sharded_optimizer", "sharded_module")."""
    wanted = outputs(training)
    sides = [RankSide({}, training.instructions(r), wanted) for r in range(training.world_size)]
    watched = training.more.get("memory")
    return Case(
        title, sides, list(lines), recipe=f"{RECIPES}:{recipe}", imports=OPTIMIZERS,
        unrecorded=watching.settled(len(training.steps[0])) if watched else (), **more,
    )  # fmt: skip


def outputs(training: Training) -> dict[str, Spec]:
    """The tensors that a recipe hands back, see `recipes`."""
    model = training.built().to(training.dtype)
    tell, steps, found = set(training.tell), range(len(training.steps[0])), {}
    for name, p in model.named_parameters():
        names = [f"start.{name}"] if "start" in tell else []
        names += [f"grad.{s}.{name}" for s in steps if "grads" in tell and p.requires_grad]
        names += [f"param.{s}.{name}" for s in steps if "params" in tell]
        names += [f"end.{name}"] if "end" in tell else []
        found |= {one: Spec.of(p) for one in names}
    if "buffers" in tell:
        found |= {f"buffer.{name}": Spec.of(b) for name, b in model.named_buffers()}
    return found


# ---- values


@dataclass(frozen=True)
class Mistake:
    """A way to go wrong whose values can be computed: gradient(rank), and the rank whose model is trained."""

    says: str
    gradient: Callable[[int], Gradient] = lambda rank: mean
    own_start: bool = False


def scaled(factor: float) -> Gradient:
    return lambda step, given: {name: factor * one for name, one in mean(step, given).items()}


def only(pick: Callable[[list[list[Tensors]]], list[list[Tensors]]]) -> Gradient:
    """The mean over a part of what was computed: pick(given) in the form of `given`."""
    return lambda step, given: mean(step, pick(given))


def common(n: int) -> list[Mistake]:
    """The mistakes that any data-parallel training can make on n ranks."""
    return [
        Mistake(
            "Each rank went on with the gradients of its own data: nothing was exchanged.",
            lambda rank: only(lambda given: [given[rank]]),
        ),
        Mistake(
            f"That is the sum over the {n} ranks: divide it by their number, once.",
            lambda rank: scaled(n),
        ),
        Mistake(
            f"That is the mean divided by {n} once more: average once, before or after the sum.",
            lambda rank: scaled(1 / n),
        ),
        Mistake(
            "Only the last microbatch was exchanged; gradients of the earlier ones stayed on their ranks.",
            last_exchanged,
        ),
        Mistake(
            "Only the last microbatch counts: the earlier gradients were overwritten, not added to.",
            lambda rank: only(lambda given: [one[-1:] for one in given]),
        ),
        Mistake(
            "Each rank trained the model that it made itself: all are to start from the first rank's.",
            own_start=True,
        ),
    ]  # fmt: skip


def last_exchanged(rank: int) -> Gradient:
    def gradient(step: int, given: list[list[Tensors]]) -> Tensors:
        found = dict(mean(step, [one[-1:] for one in given]))
        for micro in given[rank][:-1]:
            for name, one in micro.items():
                found[name] = found[name] + one if name in found else one.clone()
        return found

    return gradient


def same_as_one_process(
    what: str,
    training: Training,
    title: str,
    *,
    gradient: Gradient = mean,
    mistakes: Iterable[Mistake] = (),
    weight: float = 1.0,
    trivial: bool = False,
    short: bool = False,
) -> Line:
    """Every rank's tensors of kind `what` ("start", "grad", "param", "end") are one process's on all data."""

    def judge(seen: Observed) -> Finding:
        expected = kind(what, train(training, gradient))
        for rank in range(seen.world_size):
            found = {name: seen.tensors[rank][name] for name in expected}
            differ = differing(found, expected, training.dtype)
            if differ:
                says = told(training, differ[0], found, rank, mistakes)
                return wrong(first(differ[0], found, expected, rank, seen), says)
        return RIGHT

    return Line(title, judge, weight, trivial=trivial, short=short)


def kind(what: str, tensors: Tensors) -> Tensors:
    return {name: one for name, one in tensors.items() if name.startswith(f"{what}.")}


def differing(found: Tensors, expected: Tensors, dtype: torch.dtype) -> list[str]:
    """Names whose tensors differ by more than rounding, in order."""
    tolerance = TOLERANCE[dtype]
    overall = max((float(one.abs().max()) for one in expected.values() if one.numel()), default=0.0)
    differ = []
    for name, wanted in expected.items():
        error = (found[name].to(torch.float64) - wanted).abs()
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        bound = tolerance * max(largest, 1e-3 * overall, 1e-12)
        if not bool((error <= bound).all()):  # also where it is not a number
            differ.append(name)
    return differ


def first(name: str, found: Tensors, expected: Tensors, rank: int, seen: Observed) -> Sentence:
    """What is wrong first: which tensor, on which rank, after which step, and by how much."""
    what, _, rest = name.partition(".")
    if what in ("grad", "param"):
        step, _, rest = rest.partition(".")
        when = f"in step {int(step) + 1}" if what == "grad" else f"after step {int(step) + 1}"
    else:
        when = "after the last step" if what == "end" else "after the model was wrapped"
    subject = f"{WHAT[what]} {rest}"
    right = "the first rank's" if what == "start" else "what one process gets from all data"
    general = f"{when}, {subject} on rank {rank} is not {right}"
    without = seen.values[rank].get("without")
    if isinstance(without, list) and name in without:
        return Sentence(
            f"{when}, {subject} on rank {rank} is None; a tensor is expected.", f"{general}."
        )
    error = (found[name].to(torch.float64) - expected[name]).abs()
    worst = int(error.nan_to_num(float("inf")).flatten().argmax())
    got, want = float(found[name].flatten()[worst]), float(expected[name].flatten()[worst])
    return Sentence(f"{general}: an element is {got:.4g} instead of {want:.4g}.", f"{general}.")


def told(
    training: Training, wrong_first: str, found: Tensors, rank: int, mistakes: Iterable[Mistake]
) -> str:
    """The first mistake whose values are the ones that were found, in the step that went wrong first.

    Later steps are not looked at: there the ranks' models differ, which no computation here follows.
    """
    what, step = wrong_first.split(".")[:2]
    prefix = f"{what}.{step}." if what in ("grad", "param") else f"{what}."
    of_that_step = {name: one for name, one in found.items() if name.startswith(prefix)}
    for mistake in mistakes:
        values = train(training, mistake.gradient(rank), rank if mistake.own_start else 0)
        expected = {name: values[name] for name in of_that_step}
        if not differing(of_that_step, expected, training.dtype):
            return mistake.says
    return ""


# ---- traffic


def volume_line(
    least: Sequence[float],
    *,
    most: Sequence[float] | None = None,
    hint: Callable[[float, Observed], str] | None = None,
    weight: float = 1.0,
    title: str = "bytes sent",
    what: str = "",
    between: tuple[int, int] | None = None,
    point: float = float("inf"),
) -> Line:
    """Bytes that each rank sends, collectives counted as the best algorithm sends them (see the ledger).

    Between `least` and `most` (the same when left out). hint: given the ratio, the usual cause. between:
    two places in "begun" of `recipes`, such as (2, 4) for the second step; the whole run when left out.
    point: from that many times too many bytes on, the point of the exercise is missed (see `Exercise`).
    """
    allowed = list(most or least)

    def judge(seen: Observed) -> Finding:
        sent = [sum(one.bytes_sent for one in rank) for rank in within(seen, between)]
        for rank, bytes_of_rank in enumerate(sent):
            if least[rank] - 1 <= bytes_of_rank <= allowed[rank] + 1:
                continue
            many = bytes_of_rank > allowed[rank]
            bound = allowed[rank] if many else least[rank]
            ratio = bytes_of_rank / bound if bound else float("inf")
            enough = "are enough" if many else "are needed"
            return wrong(
                f"rank {rank} sent {words.number(round(bytes_of_rank))} bytes; "
                f"{words.number(round(bound))} {enough}{what}.",
                hint(ratio, seen) if hint else "",
                cause=f"bytes {ratio:.2f}",
                misses_point=ratio >= point,
            )
        return Finding(True, title=f"{title}: {words.number(round(max(sent)))} by the busiest rank")

    return Line(title, judge, weight, "communication")


def within(seen: Observed, between: tuple[int, int] | None) -> list[list[Operation]]:
    """Each rank's operations between two moments; none of a rank that did not tell them as agreed."""
    if between is None:
        return seen.operations
    found = []
    for rank, operations in enumerate(seen.operations):
        told = seen.values[rank].get("begun")
        begun = told if isinstance(told, list) and len(told) > max(between) else []
        first, last = (begun[between[0]], begun[between[1]]) if begun else (0, 0)
        whole = type(first) is int and type(last) is int and 0 <= first <= last
        found.append(operations[first:last] if whole else [])
    return found


def during_backward_line(
    *,
    weight: float = 1.0,
    title: str = "the first bucket leaves while backward runs",
    ops: Sequence[str] = ("all_reduce", "reduce_scatter"),
) -> Line:
    """When backward reaches the first block, an operation of `ops` was begun, and not all were waited for.

    Read from the record: how many operations there were when the gradients of all later blocks were
    complete and those of the first were not. In every step the last backward is looked at.
    """

    def judge(seen: Observed) -> Finding:
        for rank in range(seen.world_size):
            before = 0
            for begun, waited, ended in at_the_first_block(seen, rank):
                fresh = seen.operations[rank][before:begun]
                if not any(one.op in ops for one in fresh):
                    return wrong(
                        f"on rank {rank} nothing had been sent when backward reached the first block: "
                        "all communication came after it.",
                        "Begin a bucket's communication in the hook of its last gradient, with "
                        "async_op=True.",
                        cause="after backward",
                    )
                if waited >= begun:
                    return wrong(
                        f"on rank {rank} every operation begun during backward had been waited for "
                        "before backward went on: nothing overlaps.",
                        "Keep the handle, and wait for it when backward is over.",
                        cause="waited in backward",
                    )
                before = ended
        return RIGHT

    return Line(title, judge, weight, "communication")


def at_the_first_block(seen: Observed, rank: int) -> list[tuple[int, int, int]]:
    """For each step: operations begun and waited for when its last backward reached block 0, and begun by
    the time the next step's first backward began; (0, 0, 0) for what was not told in the agreed form.

    No more counts as begun there than when backward was over, which is noted elsewhere: a class can reach
    the hooks on the model's blocks, and what they noted.
    """
    steps = seen.case.sides[rank].instructions["steps"]
    given = seen.values[rank].get("passes")
    told = given if isinstance(given, list) else []
    found, number = [], 0
    for place, step in enumerate(steps):
        number += len(step)
        entries = told[number - 1] if number <= len(told) else None
        first = (
            next((e for e in entries if counts(e) and e[0] == 0), None)
            if isinstance(entries, list)
            else None
        )
        following = told[number] if number < len(told) else None
        after = (
            following[0][1]
            if isinstance(following, list) and following and counts(following[0])
            else 0
        )
        over = begun_at(seen, rank, 1 + 2 * place)
        found.append((min(first[1], over), first[2], after) if first else (0, 0, 0))
    return found


def begun_at(seen: Observed, rank: int, place: int) -> int:
    """Operations begun at a place in "begun" of `recipes`; 0 where that was not told as agreed."""
    told = seen.values[rank].get("begun")
    begun = told[place] if isinstance(told, list) and place < len(told) else 0
    return begun if type(begun) is int else 0


def counts(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and all(type(one) is int for one in entry)


# ---- memory


def held_line(
    most: Sequence[tuple[str, int, float]],
    *,
    slack: float,
    hint: Callable[[float], str] | None = None,
    weight: float = 1.0,
    title: str = "memory held",
    point: float = float("inf"),
) -> Line:
    """Bytes that each rank holds at some moments, as the kernel counts the process's pages.

    most: (the moment in words, its place in "held" of `recipes`, bytes that are enough there). slack: bytes
    that allocators and libraries may hold besides. point: from so many bytes on, at any of the moments, the
    point of the exercise is missed (see `Exercise`).
    """

    def judge(seen: Observed) -> Finding:
        for rank in range(seen.world_size):
            held = seen.values[rank].get("held")
            for moment, place, enough in most:
                got = (
                    held[place]
                    if isinstance(held, list) and -len(held) <= place < len(held)
                    else None
                )
                if type(got) is not int:
                    return wrong(f"rank {rank} did not tell what it holds {moment}.")
                if got > enough + slack:
                    return wrong(
                        f"rank {rank} holds {megabytes(got)} {moment}; {megabytes(enough)} are enough.",
                        hint(got / enough) if hint else "",
                        cause=f"held {moment}",
                        misses_point=got >= point,
                    )
        return RIGHT

    return Line(title, judge, weight, "memory")


def peak_line(
    enough: float,
    *,
    slack: float,
    hint: Callable[[float], str] | None = None,
    weight: float = 1.0,
    title: str = "peak of memory",
) -> Line:
    """The most that each rank holds whenever forward leaves a block or backward enters one."""

    def judge(seen: Observed) -> Finding:
        for rank in range(seen.world_size):
            got = seen.values[rank].get("highest")
            if type(got) is not int:
                return wrong(f"rank {rank} did not tell what it held at most.")
            if got > enough + slack:
                return wrong(
                    f"rank {rank} holds up to {megabytes(got)} during forward and backward; "
                    f"{megabytes(enough)} are enough.",
                    hint(got / enough) if hint else "",
                    cause="peak",
                )
        return RIGHT

    return Line(title, judge, weight, "memory")


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
