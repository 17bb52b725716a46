"""local_steps: H steps on each rank alone, and then one outer step of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isclose

import torch

from course_lib.checks import kit, words
from course_lib.checks.judge import training_runs
from course_lib.checks.judge.training_runs.single import Training
from course_lib.checks.notebooks.in_operation.local_ways import (
    GRADIENTS,
    MISCOUNTED,
    STATES,
    LocalRun,
    Way,
    mistakes,
)
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.facts import logical_bytes

RECIPE = "course_lib.checks.rank.notebooks.in_operation.local:trained"
POINT = "steps on each rank alone, after which the ranks send once how far they have moved"
PLAIN_SGD = ("SGD", {"lr": 0.1})
SGD = ("SGD", {"lr": 0.05, "momentum": 0.9})
ADAMW = ("AdamW", {"lr": 0.02})
SOMETIMES = "a parameter with a gradient in some steps of some ranks"
SECONDS = 20.0  # the first optimizer of a process imports for seconds
AVERAGE = (1.0, 0.0)  # the outer step that takes the mean of the ends
PUBLISHED = (0.7, 0.9)
SOME_RANKS = (
    "A parameter has no gradient here in some steps of some ranks. It still has a movement, which can be "
    "zero, so every rank sends start - end of all trained parameters."
)
FROZEN = "Frozen parameters travelled, although they never move. Send only parameters with p.requires_grad."
WITHOUT_MOMENTUM = (
    "torch.optim.SGD refuses nesterov=True if the momentum is zero, so pass nesterov=outer_momentum > 0."
)
ONE_ROW = (
    "Each parameter travelled separately, although each message costs a latency. Put all of them into one "
    "row."
)
DRIFT = (
    "Ranks that differ in the last bit drift apart. So compute the new start only from what all ranks have, "
    "the common start and the sum, and copy it into the parameters."
)


def drawn(
    draw: kit.Draw,
    n: int,
    steps: int,
    every: int,
    outer: tuple[float, float] = AVERAGE,
    *,
    inner: tuple[str, dict] = SGD,
    model: dict | None = None,
    signs: Sequence[Sequence[int]] = (),
    ranks: int = 0,
) -> LocalRun:
    """n ranks with equally many batches of their own; signs[rank][step] fixes that of the first input."""
    toy = {"seed": draw.integer(0, 1 << 31), **(model or {"name": "plain", "width": 4})}

    def batch(rank: int, step: int) -> dict:
        described = {"seed": draw.integer(0, 1 << 30), "samples": 3, "width": toy["width"]}
        return {**described, "sign": signs[rank][step]} if signs else described

    batches = [[[batch(rank, step)] for step in range(steps)] for rank in range(n)]
    more = {"model": toy, "steps_between": every, "outer": list(outer)}  # every rank begins with this model
    return LocalRun(Training(toy, inner, batches, ("end",), more), every, outer, ranks or n)


# ---- lines


def values_line(
    run: LocalRun, title: str, weight: float = 1.0, short: bool = False, trivial: bool = False
) -> kit.Line:
    """Every rank ends with the parameters that one process computes."""

    def judge(observed: kit.Observed) -> kit.Finding:
        members, expected, ends = training_runs.members(observed), run.ends(), ends_of(run, observed)
        for k, rank in enumerate(members):
            wanted = {f"end.{name}": tensor for name, tensor in expected[k].items()}
            if differ := training_runs.differing(ends[k], wanted, run.training.dtype):
                name = differ[0]
                said = f"after {run.steps} steps, {name[4:]} on rank {rank} is not what local steps give"
                sentence = kit.difference(said, ends[k][name], wanted[name], "an element is ")
                sent = any(operation.bytes_sent for operation in observed.operations[rank])
                for mistake in mistakes(run, sent):
                    if gives(run, mistake.way, ends):
                        return kit.wrong(
                            sentence, mistake.says, cause=mistake.says, misses_point=mistake.idea
                        )
                return kit.wrong(sentence)
        return kit.RIGHT

    return kit.Line(title, judge, weight, short=short, trivial=trivial)


def ends_of(run: LocalRun, observed: kit.Observed) -> list[dict[str, torch.Tensor]]:
    named = [f"end.{name}" for name in run.ends()[0]]
    return [
        {name: observed.tensors[rank][name] for name in named} for rank in training_runs.members(observed)
    ]


def gives(run: LocalRun, way: Way, ends: Sequence[dict[str, torch.Tensor]]) -> bool:
    """Whether all ranks end as this way has it."""
    for actual, values in zip(ends, run.ends(way), strict=True):
        wanted = {f"end.{name}": tensor for name, tensor in values.items()}
        if training_runs.differing(actual, wanted, run.training.dtype):
            return False
    return True


def same_bits_line(title: str, weight: float = 0.5) -> kit.Line:
    def judge(observed: kit.Observed) -> kit.Finding:
        first, *others = training_runs.members(observed)
        for rank in others:
            for name, tensor in observed.tensors[first].items():
                if not torch.equal(observed.tensors[rank][name], tensor):
                    said = f"ranks {first} and {rank} end with different bits in {name[4:]}."
                    return kit.wrong(said, DRIFT, cause="bits")
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


def due(run: LocalRun, numel: int) -> float:
    n = len(run.training.steps)
    return run.periods * logical_bytes("all_reduce", n, numel * run.training.dtype.itemsize)


def bytes_line(run: LocalRun, title: str, weight: float = 1.0, point: float = float("inf")) -> kit.Line:
    """point: see `volume_line`; given, right bytes show the exercise's idea."""
    exact, whole = due(run, run.numel()), due(run, run.numel(frozen=True))

    def hint(ratio: float, observed: kit.Observed) -> str:
        if run.steps > run.periods and isclose(ratio, run.steps / run.periods):
            return GRADIENTS
        if whole > exact and isclose(ratio, whole / exact):
            return FROZEN
        if ratio < 1:
            return "Every period, even the last, ends with an all-reduce of everything that is trained."
        return STATES if isclose(ratio, round(ratio)) else ""

    line = kit.volume_line([exact] * run.ranks, hint=hint, weight=weight, title=title, point=point)
    if (due_share := line.shows) is None:
        return line

    def shown(observed: kit.Observed) -> float:
        """A wrong count of the steps can lead to a period more, which is still the exercise's idea."""
        ends = ends_of(run, observed)
        miscounted = any(gives(run, way, ends) for ways in MISCOUNTED.values() for way in ways)
        return 1.0 if miscounted else due_share(observed)

    return replace(line, shows=shown)


def messages_line(run: LocalRun, title: str, weight: float = 0.5) -> kit.Line:
    """An all-reduce for each period, or its two halves."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank, operations in enumerate(observed.operations):
            count = sum(operation.bytes_sent > 0 for operation in operations)
            if count > 2 * run.periods:
                periods = words.counted(run.periods, "period")
                said = f"rank {rank} sent in {words.counted(count, 'operation')} during {periods}."
                return kit.wrong(said, ONE_ROW, cause="operations")
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


# ---- the exercise


def case(title: str, run: LocalRun, lines: Sequence[kit.Line], members: Sequence[int] = ()) -> kit.Case:
    return training_runs.training_case(
        RECIPE, title, run.training, lines, members=members, world_size=run.ranks, timeout=SECONDS
    )


def broken_off(case_of_it: kit.Case, kind: str, text: str) -> str:
    """The usual cause when a run ends early."""
    if "Nesterov momentum requires" in text:
        return WITHOUT_MOMENTUM
    uneven = case_of_it.title == SOMETIMES and kind in ("deadlock", "error", "timeout")
    if "NoneType" in text or uneven:
        return SOME_RANKS
    return training_runs.group_trouble(case_of_it, text)


@kit.exercise(
    points=3, objects=("local_steps",), references=REFERENCES, extra=True, point=POINT, hint=broken_off
)  # fmt: skip
def local_steps(draw: kit.Draw) -> Iterator[kit.Case]:
    run = drawn(draw, 3, 3, 1, inner=PLAIN_SGD)
    yield case("H = 1", run, [values_line(run, "3 ranks, H = 1, the average: as data parallelism", 1)])
    run = drawn(draw, 2, 6, 3)
    yield case("H = 3", run,
        [
            values_line(run, "2 ranks, H = 3, the average of the ends", 1.5),
            bytes_line(run, "bytes: a third of data parallelism's", 2, point=2),
            messages_line(run, "one all-reduce per period"),
        ],
    )  # fmt: skip
    run = drawn(draw, 3, 6, 2, PUBLISHED, inner=ADAMW)
    yield case("outer momentum", run,
        [
            values_line(run, "3 ranks, Nesterov momentum over 3 periods of AdamW", 2),
            same_bits_line("all ranks end with the same bits"),
        ],
    )  # fmt: skip
    run = drawn(draw, 2, 7, 3, (0.8, 0.0))
    yield case("shorter", run, [values_line(run, "7 steps, H = 3: the last period is shorter", 1.5)])
    run = drawn(draw, 2, 4, 2, ranks=3)
    yield case("group", run, [values_line(run, "group {1, 2} of 3 ranks", 1)], members=(1, 2))
    turns = [[1, -1, -1, -1], [-1, -1, -1, 1]]
    # plain SGD, to which no gradient and a gradient of zeros are the same
    run = drawn(draw, 2, 4, 2, inner=PLAIN_SGD, model={"name": "sometimes", "width": 3}, signs=turns)
    yield case(SOMETIMES, run, [values_line(run, SOMETIMES, 1)])
    # three steps, since with two, a count from 0 would average in every step
    run = drawn(draw, 2, 3, 3, model={"name": "traps", "width": 4, "unused": False})
    yield case("traps", run,
        [
            values_line(run, "frozen and tied parameters", 0.5),
            bytes_line(run, "bytes: only what is trained travels", 0.5),
        ],
    )  # fmt: skip
    if draw.hidden:
        run = drawn(draw, 4, 5, 2, (0.5, 0.5), model={"name": "plain", "width": 5, "dtype": "float32"})
        yield case("4 ranks", run, [values_line(run, "4 ranks, float32", 0.5, short=True)])
        run = drawn(draw, 1, 4, 2, PUBLISHED)
        yield case("1 rank", run, [values_line(run, "1 rank", 0.5, trivial=True, short=True)])
