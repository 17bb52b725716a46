"""Schedules with sliders: stages, microbatches, chunks, durations, and a moment to step through.

    explorer({"gpipe": gpipe, "mine": my_schedule})

In a notebook it is a box of ipywidgets whose chart the kernel redraws. If widgets cannot be shown, the
same output shows the chart of the first schedule.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from course_lib.pictures.colours import Picture
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.gantt import gantt
from course_lib.pictures.shown import forms, small_png
from course_lib.pipeline.actions import Schedule, stage_ranks
from course_lib.pipeline.simulate import Durations, Simulation, simulate
from course_lib.pipeline.validate import validate

MOST_STAGES, MOST_MICROBATCHES, MOST_CHUNKS = 16, 64, 4
STEPS = 100  # steps of the slider for time

Generator = Callable[..., Schedule]


def explorer(
    generators: Mapping[str, Generator],
    copies: Mapping[str, int] | None = None,
    stages: int = 4,
    microbatches: int = 8,
) -> Explorer:
    """Show schedules of any generators.

    generators: by name, functions of (stages, microbatches) and, if they have that parameter, chunks.
    copies: the number of copies of the model, for schedules with more than one: {"dualpipe": 2}.
    stages, microbatches: the first settings of the sliders.
    """
    if not generators:
        raise ValueError("there is nothing to explore: give at least one generator, by its name")
    return Explorer(dict(generators), dict(copies or {}), stages, microbatches)


class Explorer:
    """The result of `explorer`. `simulation(...)` holds the numbers, `chart(...)` is a figure."""

    def __init__(
        self,
        generators: dict[str, Generator],
        copies: dict[str, int],
        stages: int,
        microbatches: int,
    ):
        self.generators, self.copies = generators, copies
        self.stages, self.microbatches = stages, microbatches

    def __repr__(self) -> str:
        return f"Explorer({', '.join(self.generators)})"

    def takes_chunks(self, name: str) -> bool:
        return "chunks" in inspect.signature(self.generators[name]).parameters

    def simulation(
        self, name: str, stages: int, microbatches: int, chunks: int, durations: Durations
    ) -> Simulation:
        """Simulate a schedule; `durations` are for all layers of a rank together.

        Raises ValueError with a sentence if there is no such schedule, or if it is wrong.
        """
        generator, copies = self.generators[name], self.copies.get(name, 1)
        schedule = generator(stages, microbatches, *([chunks] if self.takes_chunks(name) else []))
        validate(schedule, microbatches=microbatches, copies=copies)
        parts = max(1, len(stage_ranks(schedule)) // copies // len(schedule))
        return simulate(schedule, durations.split(parts), copies, checked=True)

    def chart(
        self, name: str, stages: int, microbatches: int, chunks: int, durations: Durations,
        moment: int = STEPS, critical: bool = False,
    ) -> Picture:  # fmt: skip
        """The chart, with a mark after `moment` of 100 steps of time, but none after the last step."""
        simulation = self.simulation(name, stages, microbatches, chunks, durations)
        now = None if moment >= STEPS else simulation.total * moment / STEPS
        title = f"{name}: {stages} ranks, {microbatches} microbatches"
        return gantt(simulation, title, now, critical)

    def widget(self) -> Any:
        """The ipywidgets box: sliders above the chart, or above a sentence if there is no chart.

        A slider without effect is greyed, such as the chunks for most schedules. The square next to the play
        button goes back to the beginning, before the first action. Played at its end, time begins again.
        """
        import ipywidgets as widgets

        controls = self._controls(widgets)
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        sentence = widgets.Label()

        def draw(_change: Any = None) -> None:
            value = {name: control.value for name, control in controls.items()}
            times = (value["forward"], value["input"], value["weight"])
            durations = Durations(*times, communication=value["communication"])
            controls["chunks"].disabled = not self.takes_chunks(value["schedule"])
            try:
                picture = self.chart(
                    value["schedule"], value["stages"], value["microbatches"], value["chunks"],
                    durations, value["time"], value["critical"],
                )  # fmt: skip
            except ValueError as error:
                sentence.value = str(error)
                image.layout.visibility = "hidden"  # it shows other settings; its place is kept
                return
            sentence.value = ""
            image.layout.visibility = "visible"
            image.value = small_png(picture)

        for control in controls.values():
            control.observe(draw, names="value")
        draw()
        play = widgets.Play(value=STEPS, min=0, max=STEPS, interval=250, show_repeat=False)
        widgets.jslink((play, "value"), (controls["time"], "value"))
        *settings, time, critical = stepped(widgets, controls.values())
        columns = [widgets.VBox(settings[:4]), widgets.VBox(settings[4:])]
        return widgets.VBox(
            [widgets.HBox(columns), widgets.HBox([play, time, critical]), sentence, image]
        )

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls, by name; the last two are the moment and the frames."""

        width = "90px"  # "microbatches" fits
        wide = {"description_width": width}

        def whole(name: str, value: int, most: int) -> Any:
            return widgets.IntSlider(
                value=value, min=1, max=most, description=name, continuous_update=False, style=wide
            )

        def seconds(name: str, value: float, least: float) -> Any:
            return widgets.FloatSlider(
                value=value, min=least, max=4, step=0.1, description=name, continuous_update=False,
                style=wide,
            )  # fmt: skip

        names = list(self.generators)
        return {
            "schedule": choice(widgets, names, names[0], "schedule", width),
            "stages": whole("stages", self.stages, MOST_STAGES),
            "microbatches": whole("microbatches", self.microbatches, MOST_MICROBATCHES),
            "chunks": whole("chunks", 2, MOST_CHUNKS),
            "forward": seconds("F", 1, 0.1),
            "input": seconds("I", 1, 0.1),
            "weight": seconds("W", 1, 0.1),
            "communication": seconds("message", 0, 0),
            "time": widgets.IntSlider(value=STEPS, min=0, max=STEPS, description="% of time"),
            "critical": widgets.Checkbox(value=False, description="critical path"),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the first schedule's chart for others."""
        first = self.chart(
            next(iter(self.generators)), self.stages, self.microbatches, 2, Durations()
        )
        return forms(repr(self), first, self.widget)
