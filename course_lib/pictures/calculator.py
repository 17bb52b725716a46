"""A GPU's bill with sliders: model, batch, sequence, GPUs, stage, checkpointing, recipe, GPU.

    calculator()

In a notebook it is a box of ipywidgets whose bars the kernel redraws. If widgets cannot be shown, the same
output shows the first setting. Every number comes from `course_lib.facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course_lib.facts import GPUS, RECIPES, gpu, recipe
from course_lib.facts.memory import activation_bytes, logits_bytes
from course_lib.facts.tensor_parallel import saved_layer_bytes
from course_lib.facts.transformer import Shape, layer_parameters, transformer_parameters
from course_lib.pictures.colours import Picture, picture
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.memory_figures import bill_axes, memory_figure
from course_lib.pictures.shown import forms, small_png
from course_lib.planning.memory_timeline import MemoryTimeline

CHECKPOINTS = ("none", "selective", "full")
MOST_GPUS = 12  # as a power of two


@dataclass(frozen=True)
class Setting:
    """The controls' values. batch: sequences per GPU; checkpoint: one of CHECKPOINTS."""

    model: str
    batch: int = 1
    seq: int = 4096
    gpus: int = 8
    stage: int = 0
    checkpoint: str = "none"
    recipe: str = "zero"
    gpu: str = "H100 SXM"


def calculator(
    configs: Mapping[str, Shape] | None = None, measured: MemoryTimeline | None = None
) -> Calculator:
    """Show the bill of a GPU, and change it.

    configs: models by name; None: those of `course_lib.models.PUBLISHED`. measured: the timeline of a real
    run, which is drawn below. ValueError if there is no model.
    """
    if configs is None:
        from course_lib.models import PUBLISHED

        configs = PUBLISHED
    if not configs:
        raise ValueError("there is nothing to calculate: give at least one model, by its name")
    return Calculator(dict(configs), measured)


class Calculator:
    """The result of `calculator`. `bill(setting)` holds the numbers, `sentence(setting)` says if they fit."""

    def __init__(self, configs: dict[str, Shape], measured: MemoryTimeline | None = None):
        self.configs, self.measured = configs, measured
        self.first = Setting("Llama-3-8B" if "Llama-3-8B" in configs else next(iter(configs)))

    def __repr__(self) -> str:
        return self.sentence(self.first)

    def bill(self, setting: Setting) -> dict[str, float]:
        """Bytes on each GPU, by what they hold, as `layout_bytes` counts them, for any recipe.

        checkpoint "selective": without attention's scores, which a flash kernel does not keep either. So the
        other choices are with the flash kernel, and "selective" also leaves out its input and output, because
        attention's part runs again from q, k and v, which are kept.
        """
        shape, named = self.configs[setting.model], recipe(setting.recipe)
        params, n, stage = transformer_parameters(shape), setting.gpus, setting.stage
        weights, gradients = (
            params * each / (n if stage >= least else 1)
            for each, least in ((named.weights, 3), (named.gradients, 2))
        )
        states = params * (named.master + named.moments) / (n if stage >= 1 else 1)
        block = layer_parameters(shape) * (named.weights + named.gradients) if stage == 3 else 0.0
        itemsize = activation_itemsize(setting.recipe)
        return {
            "weights": weights,
            "gradients": gradients,
            "optimizer": states,
            "gathered block": block,
            "activations": self._activations(shape, setting, itemsize),
            "logits": logits_bytes(shape, setting.batch, setting.seq) * (1 if itemsize == 2 else 2 / 3),
        }  # fmt: skip

    @staticmethod
    def _activations(shape: Shape, setting: Setting, itemsize: int) -> float:
        batch, seq = setting.batch, setting.seq
        if setting.checkpoint == "selective":
            tokens, width = batch * seq, shape.heads * shape.head_dim
            again = tokens * (width * itemsize + shape.heads * 4)  # attention's output, and its lse
            return shape.layers * (saved_layer_bytes(shape, batch, seq, itemsize=itemsize) - again)
        full = setting.checkpoint == "full"
        return activation_bytes(shape, batch, seq, itemsize, checkpoint=full)

    def sentence(self, setting: Setting) -> str:
        """Whether it fits, and the largest part: "12.3 GB too much. Largest: the logits, 6.3 GB."."""
        parts = self.bill(setting)
        spare = gpu(setting.gpu).memory - sum(parts.values())
        largest = max(parts, key=lambda part: parts[part])
        fits = f"{spare / 1e9:.1f} GB to spare" if spare >= 0 else f"{-spare / 1e9:.1f} GB too much"
        return f"{fits}. Largest: the {largest}, {parts[largest] / 1e9:.1f} GB."

    def table(self, setting: Setting) -> str:
        """The bill as text, a line for each part."""
        parts = self.bill(setting)
        lines = [f"{part:15} {nbytes / 1e9:10.2f} GB" for part, nbytes in parts.items()]
        return "\n".join([*lines, f"{'together':15} {sum(parts.values()) / 1e9:10.2f} GB"])

    def chart(self, setting: Setting) -> Picture:
        """One bar against the GPU's line."""
        figure = picture(8.6, 1.7)
        axes = figure.subplots()
        bill_axes(axes, {setting.model: self.bill(setting)}, gpu(setting.gpu).memory)
        axes.set_title(self.sentence(setting), fontsize=9, loc="left")
        figure.subplots_adjust(left=0.13, right=0.82, top=0.8, bottom=0.3)
        return figure

    def widget(self) -> Any:
        """The ipywidgets box: controls above the bar, with its table next to it."""
        import ipywidgets as widgets

        controls = self._controls(widgets)
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        table = widgets.HTML(layout=widgets.Layout(flex="0 0 auto", min_width="280px"))

        def draw(_change: Any = None) -> None:
            value = {name: control.value for name, control in controls.items()}
            setting = Setting(**value)
            image.value = small_png(self.chart(setting))
            table.value = f'<pre style="white-space: pre">{self.table(setting)}</pre>'

        for control in controls.values():
            control.observe(draw, names="value")
        draw()
        columns = stepped(widgets, controls.values())
        whole = widgets.Layout(
            flex="0 0 auto"
        )  # in a narrow window a column moves below, and is not cut
        boxes = [
            widgets.VBox(columns[:4], layout=whole), widgets.VBox(columns[4:], layout=whole), table
        ]  # fmt: skip
        below = [image]
        if self.measured is not None:
            run = small_png(memory_figure(self.measured, "measured here"))
            below.append(
                widgets.Image(value=run, format="png", layout=widgets.Layout(max_width="100%"))
            )
        return widgets.VBox(
            [widgets.HBox(boxes, layout=widgets.Layout(flex_flow="row wrap")), *below]
        )

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls by the fields of `Setting`."""
        wide, first = {"description_width": "80px"}, self.first

        return {
            "model": choice(widgets, self.configs, first.model, "model"),
            "batch": widgets.IntSlider(
                value=first.batch, min=1, max=64, description="sequences", style=wide,
                continuous_update=False,
            ),
            "seq": choice(widgets, [2**k for k in range(9, 18)], first.seq, "tokens"),
            "gpus": widgets.SelectionSlider(
                options=[2**k for k in range(MOST_GPUS + 1)], value=first.gpus, description="GPUs",
                style=wide, continuous_update=False,
            ),
            "stage": choice(widgets, [0, 1, 2, 3], first.stage, "stage"),
            "checkpoint": choice(widgets, CHECKPOINTS, first.checkpoint, "checkpoint"),
            "recipe": choice(widgets, [each.name for each in RECIPES], first.recipe, "recipe"),
            "gpu": choice(widgets, [each.name for each in GPUS], first.gpu, "GPU"),
        }  # fmt: skip

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the first setting's bar for others."""
        return forms(repr(self), self.chart(self.first), self.widget)


def activation_itemsize(name: str) -> int:
    """Bytes of an activation under a recipe: 4 where everything is float32, else 2.

    Under autocast some activations stay in float32 (the residual stream, the norms): 2 is a lower bound.
    """
    return 4 if name in ("float32", "sgd") else 2
