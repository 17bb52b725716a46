"""A training step with sliders: how far ahead units are gathered, and how long each action takes.

    fsdp_explorer()                   the library's generator
    fsdp_explorer(fsdp_schedule)      yours

In a notebook it is a box of ipywidgets, whose picture the kernel redraws. If widgets cannot be shown, the
same output shows one picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from course_lib.facts.fsdp import unit_bytes
from course_lib.facts.hardware import gpu, link
from course_lib.facts.transformer import Shape
from course_lib.fsdp.simulate import Simulation, Times, simulate
from course_lib.models.config import GPTConfig
from course_lib.pictures.colours import Picture
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.fsdp_chart import draw
from course_lib.pictures.shown import forms, small_png

Generator = Callable[..., list[tuple[str, int]]]
HALF, FLOAT = 2, 4  # bytes of a weight in a gather, of a gradient in a reduce
SPEED = 0.4 * gpu("H100").flops  # 40 % of the peak, as large models reach
LINKS = {  # ranks that shard, and the bytes a second that each sends
    "8 GPUs, NVLink": (8, link("NVLink 4").each_way),
    "64 GPUs, network": (64, link("InfiniBand NDR").each_way),
}
LLAMA = {"mlp": "swiglu", "norm": "rms", "positions": "rotary", "bias": False, "tied": False}
MODELS: dict[str, Shape] = {
    "7B": GPTConfig(32000, 4096, 32, 32, 4096, hidden=11008, **LLAMA),  # type: ignore[arg-type]
    "70B": GPTConfig(32000, 4096, 80, 64, 8192, 8, 28672, **LLAMA),  # type: ignore[arg-type]
}
TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
SHOWN = 8  # units of a model in the picture: the others look the same
BUSY, HIDDEN = 0.95, 0.05  # shares of the step


def fsdp_explorer(generator: Generator | None = None) -> Explorer:
    """Show the steps of a generator with `fsdp_schedule`'s parameters; by default the library's."""
    if generator is None:
        from course_lib.fsdp.schedule import (
            fsdp_schedule as generator,  # here: an exercise hides it
        )
    return Explorer(generator)


@dataclass(frozen=True)
class Settings:
    """The positions of the sliders that decide on a schedule."""

    units: int = SHOWN
    forward_prefetch: int = 1
    backward_prefetch: int = 1
    reshard: bool = True
    keep_last: bool = True


def preset(model: str, tokens: int, where: str) -> Times:
    """Milliseconds of a block of a model, with so many tokens on each GPU, over a link."""
    n, each_way = LINKS[where]
    block = unit_bytes(MODELS[model], 1)[0]  # parameters
    forward, wire = 2 * block * tokens / SPEED, (n - 1) / n * block / each_way
    return Times(1e3 * forward, 2e3 * forward, 1e3 * HALF * wire, 1e3 * FLOAT * wire)


def bound(simulation: Simulation) -> str:
    """One sentence on the lane that makes the step as long as it is."""
    total, computed = simulation.total, [e for e in simulation.events if e.lane == "compute"]
    wire = sum(e.end - e.start for e in simulation.events if e.lane == "wire") / total
    ends = (
        computed[0].start + total - computed[-1].end
    ) / total  # before the first, after the last
    between = abs(simulation.exposed - ends)  # no -0 % by rounding
    if between <= HIDDEN:
        return (
            f"The arithmetic bounds the step: the rank waits between computations for {between:.0%} of it. "
            f"The first gather and the last reduce, {ends:.0%}, have nothing to hide behind."
        )
    if wire >= BUSY:
        return (
            f"The wire bounds the step, since it works {wire:.0%} of the time. More tokens, or fewer bytes, "
            "would shorten the waiting, but more prefetch would not."
        )
    return (
        f"For {between:.0%} of the time, the rank waits between computations, although the wire works only "
        f"{wire:.0%} of the time. Gathers could begin sooner."
    )


@dataclass(frozen=True)
class Explorer:
    """The result of `fsdp_explorer`. `simulation(...)` holds the numbers, `chart(...)` is a figure."""

    generator: Generator
    first: Settings = field(default_factory=Settings)
    times: Times = field(default_factory=lambda: preset("7B", 1024, "8 GPUs, NVLink"))

    def __repr__(self) -> str:
        return f"Explorer({getattr(self.generator, '__name__', 'generator')})"

    def simulation(self, settings: Settings, times: Times) -> Simulation:
        """Raises ValueError with a sentence if the generator's list is not a step."""
        schedule = self.generator(*vars(settings).values())
        return simulate(schedule, times, settings.units)

    def chart(self, settings: Settings, times: Times) -> Picture:
        return draw(self.simulation(settings, times), "one step, in milliseconds")

    def widget(self) -> Any:
        """The ipywidgets box: sliders above the picture, or above a sentence if there is none."""
        import ipywidgets as widgets

        controls, presets = self._controls(widgets), self._presets(widgets)
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        sentence = widgets.HTML()
        busy = [False]  # a preset moves four sliders, and the picture is drawn once

        def draw_anew(_change: Any = None) -> None:
            if busy[0]:
                return
            value = {name: control.value for name, control in controls.items()}
            settings = Settings(*(value[name] for name in vars(self.first)))
            try:
                times = Times(*(value[name] for name in vars(self.times)))
                simulation = self.simulation(settings, times)
            except (ValueError, NotImplementedError) as error:
                sentence.value = str(error) or "The generator is not written yet."
                image.layout.visibility = "hidden"  # it shows other settings; its place is kept
                return
            image.layout.visibility = "visible"
            image.value = small_png(draw(simulation, "one step, in milliseconds"))
            sentence.value = bound(simulation)

        def take_preset(_change: Any = None) -> None:
            times = preset(*(control.value for control in presets.values()))
            busy[0] = True
            for name in ("forward", "backward", "gather", "reduce"):
                controls[name].value = round(getattr(times, name), 3)
            busy[0] = False
            draw_anew()

        for control in controls.values():
            control.observe(draw_anew, names="value")
        for control in presets.values():
            control.observe(take_preset, names="value")
        draw_anew()
        schedule, durations = list(controls.values())[:5], list(controls.values())[5:]
        return widgets.VBox(
            [
                widgets.HBox(
                    stepped(widgets, presets.values()), layout=widgets.Layout(flex_flow="row wrap")
                ),
                widgets.HBox([widgets.VBox(schedule), widgets.VBox(durations)]),
                sentence,
                image,
            ]
        )

    def _presets(self, widgets: Any) -> dict[str, Any]:
        width = "60px"
        style = {"description_width": width}
        return {
            "model": choice(widgets, MODELS, "7B", "model", width),
            "tokens": widgets.SelectionSlider(
                options=TOKENS, value=1024, description="tokens", continuous_update=False, style=style
            ),
            "where": choice(widgets, LINKS, "8 GPUs, NVLink", "link", width),
        }  # fmt: skip

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls by name: a schedule's in the order of `Settings`, then those of `Times`."""
        style = {"description_width": "130px"}

        def whole(name: str, value: int, least: int, most: int) -> Any:
            return widgets.IntSlider(
                value=value, min=least, max=most, description=name.replace("_", " "),
                continuous_update=False, style=style,
            )  # fmt: skip

        def yes(name: str, value: bool) -> Any:
            return widgets.Checkbox(value=value, description=name.replace("_", " "), style=style)

        def lasting(name: str, value: float) -> Any:
            return widgets.FloatText(
                value=round(value, 3), step=0.1, description=f"{name}, ms", style=style
            )

        first, times = self.first, vars(self.times)
        return {
            "units": whole("units", first.units, 1, 16),
            "forward_prefetch": whole("forward_prefetch", first.forward_prefetch, 0, 3),
            "backward_prefetch": whole("backward_prefetch", first.backward_prefetch, 0, 3),
            "reshard": yes("reshard", first.reshard),
            "keep_last": yes("keep_last", first.keep_last),
            **{name: lasting(name, times[name]) for name in list(times)[:4]},
            "wires": whole("wires", self.times.wires, 1, 2),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        """The widget for front ends that can show it, a picture for others."""
        return forms(repr(self), self.chart(self.first, self.times), self.widget)
