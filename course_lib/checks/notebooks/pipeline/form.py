"""Judging a schedule by what it does: is it one, how long does it take, how much does it hold?

No schedule is compared with ours: whatever keeps to the closed forms of time and memory is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes, rows_of, schedules_case
from course_lib.checks.notebooks.pipeline.order import Hint
from course_lib.checks.notebooks.pipeline.references import REFERENCES, SCHEDULES
from course_lib.facts.pipeline import pipeline_activations, pipeline_bubble
from course_lib.pipeline import Action, Durations, Pair, Simulation, peak_activations, simulate, violation
from course_lib.pipeline.actions import flat

Look = Callable[[Sizes, Rows], kit.Finding]
EQUAL = Durations()
CLOSE = 1e-9
SCHEDULE = "a schedule that can be done"  # the title that remains if bubble or memory fail
schedule_exercise = partial(kit.exercise, references=REFERENCES, refused=SCHEDULES, besides=SCHEDULE)


def own_stage(sizes: Sizes, rank: int) -> list[int]:
    return [rank]


@dataclass(frozen=True)
class Form:
    """The form that a schedule must have.

    stages: those of a rank; layout: how they lie, in words. kinds: of the actions, with pairs or without;
    copies: of the model. idle, held: how one writes the closed forms of a rank's bubble and activations;
    most_held: of the activations, if it is not that of the facts. weight_share: of an activation that only W
    frees. excess: how many times too many activations the ranks together may hold before the exercise's point
    is missed. disorder, late, heavy: the usual causes of an impossible, a slow, or a large schedule.
    """

    name: str
    disorder: Hint
    late: Hint
    heavy: Hint
    idle: str = "(p-1)(F+B)"
    held: str = "min(m, p-i) on stage i"
    stages: Callable[[Sizes, int], list[int]] = own_stage
    layout: str = "rank i holds stage i"
    kinds: str = "FB"
    pairs: bool = False
    copies: int = 1
    weight_share: int = 0
    excess: float = 1.0
    most_held: Callable[[Sizes, int], float] | None = None

    def bubble(self, sizes: Sizes, lasting: Durations) -> float:
        """The closed form of each rank's idle time."""
        times = (lasting.forward, lasting.input, lasting.weight)
        return pipeline_bubble(self.name, sizes.stages, sizes.microbatches, *times, chunks=sizes.v)

    def activations(self, sizes: Sizes, rank: int) -> float:
        """The closed form of the most activations that a rank holds."""
        if self.most_held is not None:
            return self.most_held(sizes, rank)
        return pipeline_activations(self.name, sizes.stages, sizes.microbatches, rank, sizes.v)

    def line(
        self,
        title: str,
        wanted: Sequence[Sizes],
        looks: Sequence[Look],
        weight: float = 1.0,
        aspect: str = "value",
        edge: bool = False,
    ) -> kit.Line:
        """A line that holds where each of the schedules can be done, and pleases each of the looks.

        edge: sizes at the edge: a schedule that misses the point there may have it elsewhere.
        """

        def judge(observed: kit.Observed) -> kit.Finding:
            for sizes in wanted:
                rows = rows_of(self.name, observed, sizes)
                finding = rows if isinstance(rows, kit.Finding) else self.first(sizes, rows, looks)
                if not finding.ok and edge and finding.misses_point:
                    return replace(finding, cause=f"{finding.cause} at the edge", misses_point=False)
                if not finding.ok:
                    return finding
            return kit.RIGHT

        return kit.Line(title, judge, weight, aspect)

    def larger(self, wanted: Sequence[Sizes], looks: Sequence[Look], weight: float) -> kit.Case:
        """A hidden case of more stages."""
        line = self.line("more stages", wanted, looks, weight)
        return schedules_case("larger", wanted, [line], hidden=True)

    def first(self, sizes: Sizes, rows: Rows, looks: Sequence[Look]) -> kit.Finding:
        """The first that is wrong with a schedule."""
        for look in (self.possible, *looks):
            finding = look(sizes, rows)
            if not finding.ok:
                return finding
        return kit.RIGHT

    def possible(self, sizes: Sizes, rows: Rows) -> kit.Finding:
        """Everything once, where it belongs, of the right kind, and no rank waits for ever."""
        finding = self.misplaced(sizes, rows) or self.foreign(sizes, rows)
        if finding:
            return finding
        said = violation(rows, sizes.stages * sizes.v * self.copies, sizes.microbatches, self.copies)
        if said is None:
            return kit.RIGHT
        sentence = kit.Sentence(
            f"{sizes.call(self.name)}: {said}.",
            f"{self.name} writes a schedule that cannot be done. Let `validate` say what is wrong with it.",
        )
        return kit.wrong(sentence, kit.usual(self.disorder, sizes, rows), cause="not a schedule")

    def misplaced(self, sizes: Sizes, rows: Rows) -> kit.Finding | None:
        """Stages on a rank that does not hold them."""
        for rank, row in enumerate(rows):
            own = self.stages(sizes, rank)
            for index, action in enumerate(flat(row)):
                if action.stage not in own:
                    stages = words.which("stage", own)
                    sentence = kit.Sentence(
                        f"{sizes.call(self.name)}: rank {rank} does {action} as its action {index}, but it "
                        f"holds {stages}: {self.layout}.",
                        f"{self.name} gives a rank actions of a stage it does not hold, because "
                        f"{self.layout}.",
                    )
                    return kit.wrong(sentence, kit.usual(self.disorder, sizes, rows), cause="not a schedule")
        return None

    def foreign(self, sizes: Sizes, rows: Rows) -> kit.Finding | None:
        """Actions of a kind that this schedule does not have; `violation` finds those of no kind at all."""
        for rank, row in enumerate(rows):
            for entry in row:
                kinds = {action.kind for action in flat([entry])}
                if isinstance(entry, Pair) and not self.pairs:
                    what, why = f"the pair {entry}", "here every action is separate"
                elif "B" in kinds and "B" not in self.kinds:
                    what, why = f"{entry}, a whole backward", "here it is cut in two, I and W"
                elif kinds & {"I", "W"} and "W" not in self.kinds:
                    what, why = f"{entry}, half of a backward", "here it is one action, B"
                else:
                    continue
                return kit.wrong(
                    kit.Sentence(
                        f"{sizes.call(self.name)}: rank {rank} has {what}; {why}.",
                        f"{self.name} uses a kind of action that this schedule does not have: {why}.",
                    ),
                    cause="not a schedule",
                )
        return None

    # ---- looks at a schedule that can be done

    def takes(self, *lasting: Durations) -> Look:
        """No rank idles longer than the closed form says."""

        def look(sizes: Sizes, rows: Rows) -> kit.Finding:
            for durations in lasting:
                run = simulate(rows, durations.split(sizes.v), copies=self.copies, checked=True)
                least = self.bubble(sizes, durations)
                if max(run.bubble) > least + CLOSE * run.total:
                    setting = f"{sizes.call(self.name)}, {times(durations, self.kinds)}"
                    return self.slow(sizes, rows, setting, run, least)
            return kit.RIGHT

        return look

    def slow(self, sizes: Sizes, rows: Rows, setting: str, run: Simulation, least: float) -> kit.Finding:
        sentence = kit.Sentence(
            f"{setting}: the step takes {words.number(run.total)}, and a rank idles "
            f"{words.number(max(run.bubble))} of it, but {words.number(least)} is enough, {self.idle}.",
            f"with {self.name} a rank idles longer than {self.idle}.",
        )
        return kit.wrong(sentence, kit.usual(self.late, sizes, rows), cause="time", misses_point=True)

    def holds(self, sizes: Sizes, rows: Rows) -> kit.Finding:
        """No rank holds more activations than the closed form says."""
        peaks = peak_activations(rows, self.weight_share)
        enough = [self.activations(sizes, rank) for rank in range(len(peaks))]
        for rank, (peak, most) in enumerate(zip(peaks, enough, strict=True)):
            if peak > most:
                sentence = kit.Sentence(
                    f"{sizes.call(self.name)}: rank {rank} holds {words.counted(int(peak), 'activation')} at "
                    f"once; {words.number(most)} {words.verb([0] * int(most), 'is', 'are')} enough: "
                    f"{self.held}.",
                    f"with {self.name} a rank holds more activations than {self.held}.",
                )
                return kit.wrong(
                    sentence,
                    kit.usual(self.heavy, sizes, rows),
                    cause="memory",
                    misses_point=sum(peaks) > self.excess * sum(enough),
                )
        return kit.RIGHT


def times(lasting: Durations, kinds: str) -> str:
    """ "F = 1, B = 2", or with the halves of B."""
    if "W" in kinds:
        return f"F = {lasting.forward}, I = {lasting.input}, W = {lasting.weight}"
    return f"F = {lasting.forward}, B = {lasting.of(Action(0, 'B', 0))}"
