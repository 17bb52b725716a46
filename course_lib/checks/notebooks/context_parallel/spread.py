"""In the judge: calls on parts of a sequence, and lines about work, memory and overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.judge.functions import OF_A_FIRST_CALL
from course_lib.checks.judge.layers.lines import PAGES, measured_early, members, operations
from course_lib.checks.judge.layers.runs import BACKWARD, BEFORE, FORWARD, MADE, LayerRun, layer_case
from course_lib.checks.rank.notebooks.context_parallel.spread import SpreadCall, SpreadInstructions

OTHERWISE_MADE = (
    "Make scores and sums with products of matrices (@, torch.einsum), because a tensor of all single "
    "products is head_dim times as large, and the check does not see its cost."
)
RECIPE = "course_lib.checks.rank.notebooks.context_parallel.spread:spread"
ROOM = 5_000_000  # bytes that libraries take at the first call
Layout = Sequence[Sequence[range]]


@dataclass(frozen=True)
class SpreadRun(LayerRun):
    """One call on some ranks, see `LayerRun`.

    layout: passed to it; measured: whether bytes are counted; worth: see RECIPE.
    """

    layout: Layout | None = None
    measured: bool = False
    worth: float = 0

    def looked_at(self, moment: str) -> bool:
        return self.measured and moment in ("base", "forward", "backward")

    def by_then(self, begun: Sequence[int], moment: str) -> tuple[int, int]:
        """The call that is measured comes before the one whose operations were told, and begins as many."""
        forward = begun[FORWARD] - begun[MADE]
        backward = begun[BACKWARD] - begun[FORWARD]
        if moment == "backward":
            return begun[BEFORE], max(0, begun[BEFORE] - backward)
        return max(0, begun[BEFORE] - backward), max(0, begun[BEFORE] - backward - forward)

    def instructions(self, k: int, group: int | None) -> SpreadCall:
        layout = None
        if self.layout is not None:
            layout = [[[s.start, s.stop, s.step] for s in spans] for spans in self.layout]
        as_layer = vars(super().instructions(k, group))
        return SpreadCall(**as_layer, measured=self.measured, worth=self.worth, layout=layout)


def spread_case(
    title: str, runs: Sequence[SpreadRun], lines: Sequence[kit.Line], refused: Mapping[str, str], **more: Any
) -> kit.Case:
    """`layer_case`; refused: operators of PyTorch's, see `without_operators`."""
    made = layer_case(title, runs, lines, room=ROOM, **more)
    names = [list(pair) for pair in refused.items()]
    sides = [
        replace(side, instructions=SpreadInstructions(side.instructions.runs, names))
        if side.instructions
        else side
        for side in made.sides
    ]
    return replace(made, sides=sides, recipe=RECIPE)


def watched(observed: kit.Observed, rank: int, run: SpreadRun, direction: str, key: str) -> int:
    """A measured number of a direction; -1 if the run was refused before."""
    done = observed.values[rank][run.name].work.get(direction)
    return -1 if done is None else getattr(done, key)


def work_line(
    run: SpreadRun,
    direction: str,
    most: Sequence[float],
    says: str,
    title: str,
    weight: float = 1.0,
    *,
    least: float = 0.0,
) -> kit.Line:
    """FLOPs of products of matrices in a direction, for each rank: so many at most.

    least: the share of them that every solution has, if it computes by products.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for k, rank in enumerate(members(observed)):
            done = watched(observed, rank, run, direction, "flops")
            if done < 0 or done > most[k]:
                return kit.wrong(
                    f"in {direction}, the products of rank {rank} took {words.number(done)} FLOPs, but "
                    f"{words.number(round(most[k]))} are enough, {words.number(done / most[k])} times fewer.",
                    says,
                    cause=says,
                )
            if done < least * most[k]:
                return kit.wrong(
                    f"in {direction}, the products of rank {rank} took {words.number(done)} FLOPs, but the "
                    f"visible scores need {words.number(round(least * most[k]))} or more.",
                    OTHERWISE_MADE,
                    cause=OTHERWISE_MADE,
                )
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


def alive_line(
    run: SpreadRun, direction: str, most: float, says: Callable[[int], str], title: str, weight: float = 1.0
) -> kit.Line:
    """Bytes alive at any moment beside the inputs: so many at most. says: bytes -> the usual cause.

    Tensors are counted in the rank, exactly, and the pages of the process from outside, with PAGES to spare.
    """

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in members(observed):
            nbytes = watched(observed, rank, run, direction, "alive")
            pages = observed.rose[rank].get(f"{run.name}.pages.{direction}")
            if not pages:
                return kit.wrong(f"rank {rank} was not measured in {direction}.")
            if finding := measured_early(run, observed, rank, [direction]):
                return finding
            before = observed.rose[rank].get(f"{run.name}.pages.base", ())
            took = max([*pages, *(rose - OF_A_FIRST_CALL for rose in before)])
            nbytes = took if took > most + PAGES else nbytes
            if nbytes < 0 or nbytes > most:
                enough = f"{words.number(round(most))} are enough."
                general = (
                    f"at one moment of {direction}, rank {rank} had too many bytes in tensors of its own"
                )
                exact = f"at one moment of {direction}, rank {rank} had {words.number(nbytes)} bytes"
                said = kit.Sentence(
                    f"{exact} in tensors of its own, but {enough}", f"{general}, but {enough}"
                )
                return kit.wrong(said, kit.usual(says, nbytes), cause=f"alive {kit.usual(says, nbytes)}")
        return kit.RIGHT

    return kit.Line(title, judge, weight, "memory", enough={f"{run.name}.{direction}": most})


def overlap_line(
    run: SpreadRun, direction: str, needed: Sequence[float], says: str, title: str, weight: float = 1.0
) -> kit.Line:
    """Bytes that were being received while the rank multiplied matrices: so many at least."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for k, rank in enumerate(members(observed)):
            nbytes = watched(observed, rank, run, direction, "under_way")
            if nbytes < needed[k]:
                return kit.wrong(
                    f"in {direction}, rank {rank} computed while {words.number(max(nbytes, 0))} bytes were "
                    f"on their way to it, but {words.number(round(needed[k]))} could be.",
                    says,
                    cause=says,
                )
        return kit.RIGHT

    return kit.Line(title, judge, weight, "communication")


def calls_line(
    run: SpreadRun, direction: str, most: int, says: str, title: str, weight: float = 0.5
) -> kit.Line:
    """Messages sent, and collectives, that each rank begins in a direction: so many at most."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for rank in members(observed):
            done = [
                operation
                for operation in operations(run, observed, rank, direction)
                if operation.op != "recv"
            ]
            if len(done) > most:
                return kit.wrong(
                    f"in {direction}, rank {rank} sent {words.counted(len(done), 'time')}, but "
                    f"{words.number(most)} {words.verb([0] * most, 'is', 'are')} enough.",
                    says,
                    cause=says,
                )
        return kit.Finding(True, title=f"{title}: {words.number(most)} at most")

    return kit.Line(title, judge, weight, "communication")
