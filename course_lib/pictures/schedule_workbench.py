"""A schedule by hand: you place actions on ranks one by one, and an illegal action is refused with a reason.

    Workbench(3, 4).place("0F0 1F0 2F0 2B0")

In a notebook it is a box of ipywidgets with buttons for each rank, whose chart the kernel draws again. If
widgets cannot be shown, the same output shows the actions placed so far. Without a notebook, `place` and
`undo` do the same, and the bench prints its numbers beside those of generators.

An action can be placed once its input is ready. So no rank ever waits for a missing action, ranks
never wait for each other in a cycle, and the clock can run at every moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from course_lib import pipeline
from course_lib.pictures import colours
from course_lib.pictures.gantt import gantt
from course_lib.pictures.shown import forms, small_png
from course_lib.pipeline.actions import KINDS, Action, Schedule, source
from course_lib.pipeline.memory import peak_activations
from course_lib.pipeline.simulate import simulate
from course_lib.pipeline.text import from_text
from course_lib.pipeline.validate import ScheduleError, validate

GENERATORS = ("gpipe", "one_f_one_b", "zero_bubble_h1")  # of the library, one stage on each rank
BEFORE = {"B": "F", "I": "F", "W": "I"}  # the pass that a stage does before, of the same microbatch
WIDE, HIGH = 9.6, 1.6  # inches of the picture before the first action
BUTTON = "44px"

Generator = Callable[[int, int], Schedule]


class Workbench:
    """A schedule placed by hand. Rank r holds stage r, and each of F, I and W takes 1, so B takes 2.

    stages, microbatches: how many. generators: by name, functions of both for comparison; by default three of
    the library's generators.
    rows: for each rank the actions placed so far, in its order.  refused: how many were refused.
    """

    def __init__(
        self, stages: int, microbatches: int, generators: Mapping[str, Generator] | None = None
    ):
        if stages < 1 or microbatches < 1:
            raise ValueError(
                f"a pipeline has at least one stage and one microbatch, not {stages} and {microbatches}"
            )
        self.stages, self.microbatches = stages, microbatches
        self.generators = None if generators is None else dict(generators)
        self.rows: list[list[Action]] = [[] for _ in range(stages)]
        self.order: list[int] = []  # the ranks in the order of placing, for undo
        self.refused = 0

    # ---- placing

    def place(self, actions: str) -> Workbench:
        """Place actions such as "0F0 1F0", each at the end of its rank's list; returns the bench.

        Raises ScheduleError with the reason at the first illegal action; the actions before it stay.
        ValueError for a text that is not an action.
        """
        (row,) = from_text(",".join(actions.split())) or [[]]
        for action in row:
            if not isinstance(action, Action):
                raise ValueError(f"{action} is a pair. Place single actions, such as 2F0")
            if reason := self.reason(action):
                self.refused += 1
                raise ScheduleError(reason)
            self.rows[action.stage].append(action)
            self.order.append(action.stage)
        return self

    def undo(self) -> Workbench:
        """Take back the last action, if there is one."""
        if self.order:
            self.rows[self.order.pop()].pop()
        return self

    def reason(self, action: Action) -> str:
        """Why an action cannot be placed now; "" if it can."""
        for name, number, most in (
            ("stage", action.stage, self.stages),
            ("microbatch", action.microbatch, self.microbatches),
        ):
            if number >= most:
                return f"{action}: there is no {name} {number}, only 0 to {most - 1}"
        if missing := self._missing(action):
            return f"{action} needs {missing}, which rank {missing.stage} has not done yet"
        rows = [list(row) for row in self.rows]
        rows[action.stage].append(action)
        try:
            validate(self._finished(rows), self.stages, self.microbatches)
        except ScheduleError as error:
            return str(error)
        return ""

    def following(self, rank: int, kind: str) -> Action:
        """The action of this kind that comes next on a rank if its microbatches go in order."""
        row = self.rows[rank]
        kinds = "BI" if kind in "BI" else kind  # a backward is whole or in halves
        done = [action.microbatch for action in row if action.kind in kinds]
        if kind == "W":
            open_halves = {a.microbatch for a in row if a.kind == "I"} - {*done}
            return Action(rank, "W", min(open_halves, default=len(done)))
        return Action(rank, kind, len(done))

    def _missing(self, action: Action, rows: list[list[Action]] | None = None) -> Action | None:
        """The action whose result this one needs, and that no rank has done."""
        done = {each for row in rows or self.rows for each in row}
        own = action._replace(kind=BEFORE[action.kind]) if action.kind in BEFORE else None
        for needed in (own, source(action, self.stages)):
            halves = needed and needed.kind == "B" and needed._replace(kind="I") in done
            if needed is not None and needed not in done and not halves:
                return needed
        return None

    def _finished(self, rows: list[list[Action]]) -> list[list[Action]]:
        """The rows, and behind them all other actions, each as soon as its input is ready.

        The rest can always be done, so the action placed last is at fault for a violation.
        """
        rows, moved = [list(row) for row in rows], True
        while moved:
            moved = False
            for stage, row in enumerate(rows):
                for action in self._left(stage, row):
                    if self._missing(action, rows) is None:
                        row.append(action)
                        moved = True
        return rows

    def _left(self, stage: int, row: list[Action]) -> list[Action]:
        """The actions a stage has not done yet. A backward is whole unless its first half is done."""
        done, every = {*row}, range(self.microbatches)
        halves = [Action(stage, "I", k) in done for k in every]
        left = [Action(stage, "F", k) for k in every]
        left += [Action(stage, "W" if halves[k] else "B", k) for k in every]
        return [action for action in left if action not in done]

    # ---- numbers

    @property
    def missing(self) -> int:
        """How many actions are still to be placed."""
        return sum(len(self._left(stage, row)) for stage, row in enumerate(self.rows))

    def table(self) -> str:
        """The end, the bubble and the most activations on a rank, of this schedule and the generators'."""
        lines = [f"{'':16}{'makespan':>9}{'bubble':>9}{'activations':>13}"]
        if any(self.rows):
            lines.append(numbers("yours", self.rows))
        for name, generator in self._generators().items():
            try:
                lines.append(numbers(name, generator(self.stages, self.microbatches)))
            except ValueError:  # there is none of this size
                lines.append(f"{name:16}{'—':>9}{'—':>9}{'—':>13}")
        left = f"{self.missing} actions are missing" if self.missing else "complete"
        return "\n".join([*lines, f"{left}, {self.refused} refused"])

    def _generators(self) -> dict[str, Generator]:
        if self.generators is not None:
            return self.generators
        return {name: getattr(pipeline, name) for name in GENERATORS}

    def __repr__(self) -> str:
        return self.table()

    # ---- pictures

    def chart(self) -> colours.Picture:
        """The chart of what is placed."""
        if any(self.rows):
            title = f"by hand: {self.stages} ranks, {self.microbatches} microbatches"
            return gantt(simulate(self.rows, checked=True), title)
        figure = colours.picture(WIDE, HIGH)
        words = "Nothing is placed yet. Begin with the forward of microbatch 0 on rank 0."
        figure.text(0.07, 0.5, words, fontsize=colours.TEXT, color=colours.QUIET)
        return figure

    def widget(self) -> Any:
        """The ipywidgets box: for each rank a button for each kind of action, then numbers and the chart.

        A button places the next microbatch of its kind. The reason for a refusal appears below the buttons.
        """
        import ipywidgets as widgets

        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        table = widgets.HTML(layout=widgets.Layout(flex="0 0 auto", min_width="400px"))
        sentence = widgets.Label()
        again = {"undo": self.undo, "start again": self._clear}

        def act(do: Callable[[], object], _button: Any = None) -> None:
            try:
                do()
                sentence.value = ""
            except ScheduleError as error:
                sentence.value = f"{error}."
            image.value = small_png(self.chart())
            table.value = f'<pre style="white-space: pre">{self.table()}</pre>'
            for button in ends:
                button.disabled = not self.order

        def button(word: str, tip: str, do: Callable[[], object], width: str) -> Any:
            made = widgets.Button(description=word, tooltip=tip, layout=widgets.Layout(width=width))
            made.on_click(partial(act, do))
            return made

        def row(rank: int) -> Any:
            name = widgets.Label(f"rank {rank}", layout=widgets.Layout(width="60px"))
            of_kinds = [
                button(kind, f"{meaning} on rank {rank}", partial(self._next, rank, kind), BUTTON)
                for kind, meaning in KINDS.items()
            ]
            return widgets.HBox([name, *of_kinds])

        ends = [button(word, word, do, "110px") for word, do in again.items()]
        act(lambda: None)
        column = widgets.VBox([*map(row, range(self.stages)), widgets.HBox(ends)])
        above = widgets.HBox([column, table], layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([above, sentence, image])

    def _next(self, rank: int, kind: str) -> None:
        self.place(str(self.following(rank, kind)))

    def _clear(self) -> None:
        while self.order:
            self.undo()
        self.refused = 0

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the chart of what is placed for others."""
        return forms(repr(self), self.chart(), self.widget)


def numbers(name: str, schedule: Schedule) -> str:
    """A line of the table."""
    times = simulate(schedule, checked=True)
    most = max(peak_activations(schedule, weight_share=0))
    return f"{name:16}{times.total:>9g}{times.of_total:>9.1%}{most:>13g}"
