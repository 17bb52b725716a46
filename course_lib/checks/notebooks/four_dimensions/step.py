"""hybrid_step: one step on all axes, with the gradients and the loss of one process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Literal

from course_lib.checks import kit, words
from course_lib.checks.judge.meshes import SMALL, OnMesh
from course_lib.checks.notebooks.four_dimensions.references import REFERENCES
from course_lib.checks.notebooks.four_dimensions.step_gradients import Gradients, gradients_line
from course_lib.checks.notebooks.four_dimensions.step_losses import loss_line
from course_lib.checks.notebooks.four_dimensions.steps import RECIPE, Steps, drawn
from course_lib.facts import axis_bytes, least_bytes, vocab_parallel_loss_bytes
from course_lib.models import GPTConfig

NUMBER = 8  # bytes of a float64
SECONDS = 40.0
POINT = "one pass over the microbatches, whose gradients are terms of one sum that is made once, at the end"
AGAIN = "The schedule ran several times. One call takes all microbatches, so that all stages work at a time."
WIRES = ("pp", "tp", "cp")
ORDER = (
    "All members of a group must call its collectives in the same order, even ranks without a loss, and use "
    "the axes in one fixed order on every rank."
)
OTHER_SIZES = (
    "Ranks of pp hold other parameters, so their gradients have other sizes. Reduce only over "
    'mesh.group(("dp", "cp")).'
)
OTHER_DTYPES = "A rank without a loss adds a zero, so give that zero the losses' dtype."
NO_TARGET = (
    "A replica may have no target of its own. So divide by the targets of all replicas, whose number you sum "
    "over dp before `run_schedule` is called."
)
NO_LOSS = (
    "Only the last stage has losses, so on the others `run_schedule` returns an empty dict. Add them up from "
    "a zero, which all ranks have."
)
UNNAMED = "Keep what `run_schedule` returns under the name `losses`, because the last lines add it up."
OF_ONE_NUMBER = (
    "The losses have the shape of `count`. Give `run_schedule` a number, such as count.item(), or a tensor "
    "without dimensions."
)
PIPE = 'The schedule is for the ranks of pp, so give `run_schedule` their group, mesh.group("pp").'
DISAGREE = re.compile(r"^the ranks do not agree on their collective number")
EMPTY = re.compile(r"ZeroDivisionError|division by zero|expects a non-empty TensorList|KeyError: 0")


def replicas_line(steps: Steps, title: str) -> kit.Line:
    """Bytes over dp and cp: one all-reduce over both, or one over each."""
    mesh, calls = steps.mesh, len(steps.batches)
    dp, cp = mesh.size("dp"), mesh.size("cp")

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(mesh.n):
            here = sum(spec.nbytes for spec in observed.case.sides[rank].outputs.values())
            least = calls * least_bytes(dp * cp, here)
            most = calls * (least_bytes(dp, here) + least_bytes(cp, here))
            over = [
                o for k in range(calls) for o in mesh.over(mesh.called(observed, rank, k), rank, "dp", "cp")
            ]
            sent = sum(operation.bytes_sent for operation in over)
            spare = calls * SMALL * 2
            if least - 1 <= sent <= most + spare:
                continue
            fault = f"rank {rank} sent {words.number(round(sent))} bytes to its replicas, "
            if sent < least:
                half = abs(2 * sent - least) <= spare
                said = f"{fault}but {words.number(round(least))} are needed."
                return kit.wrong(said, HALF if half else FEWER, cause="replicas", misses_point=not half)
            times = sent / least
            fault += f"but {words.number(round(least))} are enough."
            gathered = {o.op for o in over if o.nbytes > SMALL} <= {"all_gather"}
            says = GATHERED if gathered else why(times)
            return kit.wrong(fault, says, cause="replicas", misses_point=not gathered)
        return kit.RIGHT

    def why(times: float) -> str:
        if times > steps.count - 0.5:
            return (
                f"Your ranks sent {round(times)} times the bytes of one synchronisation, so reduce only "
                "once, after the last backward, not after every microbatch."
            )
        if abs(times - 2) < 0.1:
            return (
                "Your ranks sent twice the bytes of one synchronisation, so reduce each gradient only once."
            )
        return "One sum of all gradients is enough, when no microbatch is left."

    def shows(observed: kit.Observed) -> float:
        """Whether the terms were summed once, though they are divided by a wrong number, or not kept."""
        gradients = Gradients(steps, observed)
        right = abs(gradients.often(gradients.wanted) - 1) < 1e-6
        summed = right or gradients.of_another_count()[0] or gradients.summed_in_vain()
        return float(bool(summed) and judge(observed).ok)

    return kit.Line(f"bytes to the replicas: {title}", judge, 1, "communication", shows=shows)


HALF = "The gradients are float64, but they travelled in float32. Give the buffer their dtype."
GATHERED = (
    "An all-gather brings all whole gradients to every rank, while an all-reduce brings only their sum."
)
FEWER = "The gradients did not travel in the groups of dp and cp."


def axes_line(steps: Steps, title: str) -> kit.Line:
    """Bytes of the other axes: those of one forward and one backward of every microbatch."""
    mesh, config = steps.mesh, steps.config
    _, _, rows, seq = steps.batches[0][0].shape
    calls = len(steps.batches)
    axes = [axis for axis in WIRES if mesh.size(axis) > 1]
    if steps.sequence is not None:  # the closed form is that of whole tokens between the layers
        axes.remove("tp")

    def wanted(rank: int) -> dict[str, float]:
        count, stage = steps.count, mesh.place(rank, "pp")
        batch = rows * count * mesh.size("dp")
        sent = axis_bytes(config, mesh.sizes, count, batch, seq, stage, NUMBER)
        sent["pp"] += 2 * (steps.chunks - 1) * count * steps.tokens * config.width * NUMBER
        if stage == mesh.size("pp") - 1:  # the loss' numbers, too, have eight bytes here, and not four
            sent["tp"] += count * vocab_parallel_loss_bytes(mesh.size("tp"), steps.tokens)
        return {axis: calls * sent[axis] for axis in axes}

    def sent(observed: kit.Observed, rank: int, axis: str) -> float:
        group = tuple(mesh.ranks(rank, axis))
        operations = (o for k in range(calls) for o in mesh.called(observed, rank, k))
        messages = axis != "tp"
        return sum(
            o.bytes_sent
            for o in operations
            if o.group == group and (o.op == "send") == messages and o.nbytes > SMALL
        )

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in range(mesh.n):
            for axis, bound in wanted(rank).items():
                amount = sent(observed, rank, axis)
                if abs(amount - bound) > 1:
                    fault = f"rank {rank} sent {words.number(round(amount))} bytes along {axis}, "
                    fault += (
                        "but one run of the schedule with all microbatches sends "
                        f"{words.number(round(bound))}."
                    )
                    twice = abs(amount - 2 * bound) <= 1
                    again = axis == "pp" and amount > bound  # each run sums a tied table
                    why = "All microbatches ran twice, but once is enough." if twice else AGAIN * again
                    return kit.wrong(fault, why, cause="axes", misses_point=twice or again)
        return kit.RIGHT

    return kit.Line(f"bytes along {' and '.join(axes)}: {title}", judge, 0.5, "communication")


def case(
    draw: kit.Draw, sizes: dict[str, int], title: str, *, tied: bool = False, modern: bool = False,
    count: int = 3, rows: int = 1, calls: int = 1,
    sequence: Literal["keep", "regather"] | None = None, without: bool = False,
    chunks: int = 1,
) -> kit.Case:  # fmt: skip
    config = GPTConfig(24, 16, layers=2 * chunks, heads=2, width=8, tied=tied)
    if modern:
        config = GPTConfig(**{**asdict(config.modern()), "tied": tied})
    mesh = OnMesh(sizes)
    steps = drawn(draw, mesh, config, count, rows, 16, calls, sequence, without, chunks)
    both = mesh.size("dp") > 1 and mesh.size("cp") > 1
    weight = 3 if calls == 1 else 5  # gradients that add up are told by few cases
    lines = [gradients_line(steps, title, weight, essential=both, exact=modern), loss_line(steps, title)]
    if mesh.size("dp", "cp") > 1:
        lines.append(replicas_line(steps, title))
    if mesh.size("pp", "tp", "cp") > 1:
        lines.append(axes_line(steps, title))
    sides = [steps.side(rank) for rank in range(mesh.n)]
    return kit.Case(title, sides, lines, recipe=RECIPE, groups=mesh.groups, timeout=SECONDS)


def trouble(case: kit.Case, kind: str, text: str) -> str:
    if kind == "deadlock":
        return ORDER
    if "count=0" in text:
        return NO_TARGET
    if "the schedule is for" in text:
        return PIPE
    if "name 'losses' is not defined" in text:
        return UNNAMED
    if "output with shape [] doesn't match the broadcast shape [1]" in text:
        return OF_ONE_NUMBER
    if "pp" not in case.title:
        return ""
    if "float32" in text and "float64" in text:
        return OTHER_DTYPES
    return OTHER_SIZES if DISAGREE.search(text) else NO_LOSS if EMPTY.search(text) else ""


@kit.exercise(
    points=13, objects=("hybrid_step",), references=REFERENCES, hint=trouble, point=POINT,
)  # fmt: skip
def hybrid_step(draw: kit.Draw) -> Iterator[kit.Case]:
    yield case(draw, {"pp": 2, "dp": 2}, "pp 2 x dp 2, tied, two calls", tied=True, calls=2)
    yield case(draw, {"dp": 3, "cp": 2}, "dp 3 x cp 2, a replica without targets", count=5, without=True)
    yield case(draw, {"dp": 2, "tp": 2}, "dp 2 x tp 2", modern=True)
    yield case(
        draw, {"pp": 2, "dp": 2, "tp": 2}, "pp 2 x dp 2 x tp 2, tied, two stages per rank", tied=True,
        count=4, chunks=2,
    )  # fmt: skip
    if draw.hidden:
        yield case(draw, {"pp": 2, "tp": 2}, "pp 2 x tp 2, tied", tied=True, modern=True)
        yield case(draw, {"cp": 2, "dp": 2, "pp": 2}, "cp 2 x dp 2 x pp 2", rows=2)
        yield case(
            draw, {"dp": 2, "cp": 2, "tp": 2}, "dp 2 x cp 2 x tp 2, tokens cut, two calls", tied=True,
            calls=2, sequence="keep",
        )  # fmt: skip
