"""A strategy advisor: model, GPUs, links and context in; layouts by their time, and why the others are out.

    strategy_advisor()

In a notebook it is a box of ipywidgets. Bars show what fills the memory and the time of the best layouts. A
table ranks all layouts that fit, and for every other layout it states the first reason why it was dropped. If
widgets cannot be shown, the same output shows the bars of the first question. The numbers come from `advise`,
`memory_parts` and `step_parts`, a model made of data sheets and one fitted constant. It is up to 8 % off on
published steps, and knows no straggler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from html import escape
from typing import Any

from matplotlib.axes import Axes

from course_lib.facts.hardware import GPUS, gpu, link
from course_lib.facts.transformer import Shape, transformer_flops
from course_lib.ledger import wording
from course_lib.pictures import colours
from course_lib.pictures.colours import Picture, picture
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.shown import forms, small_png
from course_lib.planning.advisor import A100_EFFICIENCY, OPTIONS, RESERVED, Verdict, advise
from course_lib.planning.layout import AXES, Layout
from course_lib.planning.memory import memory_parts
from course_lib.planning.roofline import Work
from course_lib.planning.step_time import Step, step_parts
from course_lib.planning.topology import Cluster

PER_NODE = 8
H100_EFFICIENCY = 0.62  # fitted: `published.fitted(published.LLAMA_FITTED)`, 0.618
SYSTEMS = {
    "scores are stored (2021)": Work(A100_EFFICIENCY),
    "flash, sums overlap (2024)": Work(H100_EFFICIENCY, flash=True, causal=True, overlap=True),
}
INSIDE = {"A100": "NVLink 3", "H100": "NVLink 4", "H200": "NVLink 4", "B200": "NVLink 5"}
NETWORKS = ("InfiniBand NDR", "InfiniBand HDR", "100 Gb Ethernet", "10 Gb Ethernet")
MOST_GPUS = 12  # as a power of two
BARS = 6  # layouts whose parts are drawn

MEMORY_FILLS = {  # as in the calculator of notebook 01
    "weights": (colours.FORWARD, ""),
    "gradients": (colours.BACKWARD, "///"),
    "optimizer": (colours.WEIGHT_GRADIENT, "..."),
    "gathered block": (colours.RANKS[4], "xx"),
    "activations": (colours.RANKS[3], "\\\\\\"),
    "logits": (colours.RANKS[5], "++"),
}
TIME_FILLS = {
    "compute": (colours.FORWARD, ""),
    **{axis: (colours.axis_colour(axis), colours.axis_hatch(axis)) for axis in AXES},
    "bubble": (colours.IDLE, ""),
    "optimizer": (colours.WEIGHT_GRADIENT, "++"),
}


@dataclass(frozen=True)
class Question:
    """The controls' values. gpu: of GPUS; network: between nodes of 8; batch: sequences per step."""

    model: str = "GPT-3"
    gpus: int = 1024
    gpu: str = "A100 SXM"
    network: str = "InfiniBand HDR"
    seq: int = 2048
    batch: int = 1536
    system: str = "scores are stored (2021)"

    @property
    def work(self) -> Work:
        return SYSTEMS[self.system]

    @property
    def cluster(self) -> Cluster:
        inside = link(INSIDE[self.gpu.partition(" ")[0]])
        return Cluster(self.gpus, PER_NODE, gpu(self.gpu), inside, link(self.network))


def strategy_advisor(models: Mapping[str, Shape] | None = None) -> StrategyAdvisor:
    """Ask for the best layout of a model on a cluster, and see why.

    models: by name; None: those of `course_lib.models.PUBLISHED`. ValueError if there is no model.
    """
    if models is None:
        from course_lib.models import PUBLISHED

        models = PUBLISHED
    if not models:
        raise ValueError("there is nothing to advise on: give at least one model, by its name")
    return StrategyAdvisor(dict(models))


class StrategyAdvisor:
    """The result of `strategy_advisor`: `verdicts`, `sentence`, `ranking` and `chart` of a question."""

    def __init__(self, models: dict[str, Shape]):
        self.models = models
        self.first = Question("GPT-3" if "GPT-3" in models else next(iter(models)))
        self._advise = lru_cache(maxsize=8)(self._verdicts)

    def __repr__(self) -> str:
        return self.sentence(self.first)

    def verdicts(self, question: Question) -> list[Verdict]:
        """A verdict on each way to divide the GPUs, the fastest first (see `advise`)."""
        return list(self._advise(question))

    def _verdicts(self, question: Question) -> tuple[Verdict, ...]:
        options = [each for each in OPTIONS if each[1] != 3 or question.gpus > 1]
        return tuple(
            advise(
                self.models[question.model], question.gpus, question.batch, question.cluster,
                question.seq, question.work, options,
            )
        )  # fmt: skip

    def sentence(self, question: Question) -> str:
        """The winner, and how many others there are."""
        verdicts = self.verdicts(question)
        best, fitting = verdicts[0], sum(verdict.fits for verdict in verdicts)
        divided = wording.counted(len(verdicts), "division")
        count = (
            f"{wording.counted(question.gpus, 'GPU')}: {fitting} of {divided} can be cut and fit"
        )
        if best.seconds is None or best.nbytes is None:
            return f"{count}. {short(best.layout)}, {best.reason}."
        room, share = usable(question), self.utilization(question, best.seconds)
        return (
            f"{best.layout}: {duration(best.seconds)} a step, {share:.0%} of the peak, "
            f"{best.nbytes / 1e9:.0f} GB of {room:.0f}. {count}."
        )

    def utilization(self, question: Question, seconds: float) -> float:
        """The model's FLOPs per second, as a share of the GPUs' peak. Recomputation does not count."""
        shape, causal = self.models[question.model], question.work.causal
        flops = transformer_flops(shape, question.batch, question.seq, causal=causal)
        return flops / (question.gpus * seconds * gpu(question.gpu).flops)

    def parts(self, question: Question, layout: Layout) -> tuple[dict[str, float], Step]:
        """Bytes of the fullest GPU and seconds of a step, by what they are spent on."""
        shape, batch, seq = self.models[question.model], question.batch, question.seq
        memory = memory_parts(shape, layout, batch, seq, question.work.flash)
        return memory, step_parts(shape, layout, batch, question.cluster, question.work, seq)

    def ranking(self, question: Question) -> str:
        """A line for every layout: those that fit, by their time, then the others with their reasons."""
        lines = [
            f"{'s':>8} {'GB':>4} {'peak':>5}  layout (the dropped ones at the end, with the first reason)"
        ]
        for verdict in self.verdicts(question):
            sizes = f"{short(verdict.layout):24}"
            if verdict.seconds is not None and verdict.nbytes is not None:
                share = self.utilization(question, verdict.seconds)
                how = str(verdict.layout).partition(", ")[2]
                lines.append(
                    f"{verdict.seconds:8.2f} {verdict.nbytes / 1e9:4.0f} {share:5.0%}  {sizes} {how}"
                )
            else:
                lines.append(f"{'dropped':>19}  {sizes} {verdict.reason}")
        return "\n".join(lines)

    def chart(self, question: Question) -> Picture:
        """Bars of memory and time of the best layouts or, if none fits, of the layouts that need least."""
        verdicts = [v for v in self.verdicts(question) if v.fits][:BARS]
        if not verdicts:
            held = [verdict for verdict in self.verdicts(question) if verdict.nbytes is not None]
            verdicts = sorted(held, key=lambda verdict: verdict.nbytes or 0.0)[:BARS]
        figure = picture(9.6, 1.35 + 0.27 * max(1, len(verdicts)))
        left, right = figure.subplots(1, 2, sharey=True)
        parts = [self.parts(question, verdict.layout) for verdict in verdicts]
        names = [short(verdict.layout) for verdict in verdicts]
        memory = [{part: nbytes / 1e9 for part, nbytes in bill.items()} for bill, _ in parts]
        _bars(left, names, memory, MEMORY_FILLS, "GB of the fullest GPU")
        left.axvline(usable(question), color=colours.ALARM, lw=1.4, gid="room")
        seconds = [{each.name: getattr(s, each.name) for each in fields(s)} for _, s in parts]
        _bars(right, names, seconds, TIME_FILLS, "seconds of a step")
        height = figure.get_figheight()
        figure.subplots_adjust(
            left=0.16, right=0.99, top=1 - 0.62 / height, bottom=0.45 / height, wspace=0.06
        )
        return figure

    # ---- the widget

    def widget(self) -> Any:
        """The ipywidgets box: controls, the bars, and the ranking below."""
        import ipywidgets as widgets

        controls = self._controls(widgets)
        sentence = widgets.HTML()
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        table = widgets.HTML(layout=widgets.Layout(max_height="320px", overflow="auto"))

        def draw(_change: Any = None) -> None:
            question = Question(**{name: control.value for name, control in controls.items()})
            image.value = small_png(self.chart(question))
            sentence.value = f"<b>{escape(self.sentence(question))}</b>"
            ranking = escape(self.ranking(question))
            table.value = f'<pre style="white-space: pre; line-height: 1.3">{ranking}</pre>'

        for control in controls.values():
            control.observe(draw, names="value")
        draw()
        columns, whole = stepped(widgets, controls.values()), widgets.Layout(flex="0 0 auto")
        boxes = [widgets.VBox(columns[:4], layout=whole), widgets.VBox(columns[4:], layout=whole)]
        settings = widgets.HBox(boxes, layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([settings, sentence, image, table])

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls by the fields of `Question`."""
        wide, first = {"description_width": "80px"}, self.first

        return {
            "model": choice(widgets, self.models, first.model, "model"),
            "gpus": widgets.SelectionSlider(
                options=[2**k for k in range(MOST_GPUS + 1)], value=first.gpus, description="GPUs",
                style=wide, continuous_update=False,
            ),
            "gpu": choice(widgets, [each.name for each in GPUS], first.gpu, "GPU"),
            "network": choice(widgets, NETWORKS, first.network, "network"),
            "seq": choice(widgets, [2**k for k in range(11, 18)], first.seq, "tokens"),
            "batch": choice(
                widgets, [16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096], first.batch, "sequences"
            ),
            "system": choice(widgets, SYSTEMS, first.system, "attention"),
        }  # fmt: skip

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the first question's bars for others."""
        return forms(repr(self), self.chart(self.first), self.widget)


def usable(question: Question) -> float:
    """GB of a GPU that a layout can fill."""
    return (gpu(question.gpu).memory - RESERVED) / 1e9


def short(layout: Layout) -> str:
    """ "pp 8 dp 32 tp 4", or "one GPU"."""
    return str(layout).partition(",")[0]


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def _bars(
    axes: Axes, names: Sequence[str], bills: Sequence[Mapping[str, float]],
    fills: Mapping[str, tuple[str, str]], unit: str,
) -> None:  # fmt: skip
    """A bar for each name, the first on top, made of the parts that are more than nothing."""
    shown = [part for part in fills if any(bill[part] > 0 for bill in bills)]
    lefts = [0.0] * len(names)
    for part in shown:
        colour, hatch = fills[part]
        sizes = [bill[part] for bill in bills]
        axes.barh(
            range(len(names)), sizes, left=lefts, height=0.72, color=colour, hatch=hatch, label=part,
            edgecolor=colours.QUIET, lw=0.4,
        )  # fmt: skip
        lefts = [left + size for left, size in zip(lefts, sizes, strict=True)]
    axes.set_yticks(range(len(names)), list(names), fontsize=colours.SMALL)
    axes.set_ylim(max(1, len(names)) - 0.4, -0.6)
    axes.set_xlabel(unit, fontsize=colours.SMALL)
    axes.tick_params(labelsize=colours.SMALL, length=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4, frameon=False,
        fontsize=colours.SMALL, columnspacing=1.0, handlelength=1.5, borderaxespad=0.2,
    )  # fmt: skip
