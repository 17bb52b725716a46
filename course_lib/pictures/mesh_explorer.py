"""A mesh with sliders: sizes and order of the axes, and for each rank its part and its groups.

    mesh_explorer()
    mesh_explorer(axis_ranks=mine)      groups by another function (rank, sizes, axis) -> ranks

In a notebook it is a box of ipywidgets, in which nodes are frames and GPUs are buttons. A click on a GPU
shows its layers, heads, rows and positions, and gives the ranks of its groups the colours of their axes. If
widgets cannot be shown, the same output shows the first setting. `facts.axis_bytes` counts the bytes of each
axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import ceil, prod
from typing import Any

from course_lib.facts.four_dimensions import ACROSS, axis_bytes, wire
from course_lib.facts.transformer import Shape
from course_lib.ledger import wording
from course_lib.mesh.coordinates import axis_ranks as library_axis_ranks
from course_lib.mesh.coordinates import coordinates
from course_lib.mesh.parts import cut, my_part
from course_lib.models.config import GPTConfig
from course_lib.pictures import colours
from course_lib.pictures.colours import Picture
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.mesh_figure import mesh_figure
from course_lib.pictures.shown import forms

AXES = ("pp", "dp", "cp", "tp")
MOST = 64  # GPUs that are shown
NODES = (2, 4, 8)
AxisRanks = Callable[[int, dict[str, int], Any], Sequence[int]]


@dataclass(frozen=True)
class Task:
    """A model and a step. rows: of the global batch; width_bytes: of an element that is sent."""

    shape: Shape
    rows: int
    seq: int
    microbatches: int
    width_bytes: int = 4


TASKS = {
    "small GPT": Task(GPTConfig(256, 128, layers=16, heads=16, width=64), 64, 128, 4),
    "GPT-3": Task(GPTConfig(51_200, 2048, layers=96, heads=96, width=12288), 1536, 2048, 8, 2),
}


@dataclass(frozen=True)
class Setting:
    """The controls' values. sizes: by axis; order: of the axes, outermost first; rank: the chosen GPU."""

    task: str
    sizes: Mapping[str, int] = field(default_factory=lambda: {"pp": 2, "dp": 2, "cp": 2, "tp": 2})
    order: tuple[str, ...] = AXES
    per_node: int = 8
    rank: int = 5

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes in the order of the axes."""
        return {axis: self.sizes[axis] for axis in self.order}

    @property
    def gpus(self) -> int:
        return prod(self.sizes.values())


def mesh_explorer(
    tasks: Mapping[str, Task] | None = None, axis_ranks: AxisRanks | None = None
) -> MeshExplorer:
    """Show the ranks of a mesh, and change it.

    tasks: models with their steps, by name; None: a GPT of 16 layers, and GPT-3. axis_ranks: a function
    (rank, sizes, axis) that gives the ranks of a group; None: the library's. ValueError if there is no task.
    """
    if tasks is not None and not tasks:
        raise ValueError("there is nothing to explore: give at least one task, by its name")
    return MeshExplorer(dict(tasks or TASKS), axis_ranks or library_axis_ranks)


class MeshExplorer:
    """The result of `mesh_explorer`: `marks`, `table` and `chart` say what the widget shows."""

    def __init__(self, tasks: dict[str, Task], axis_ranks: AxisRanks):
        self.tasks, self.axis_ranks = tasks, axis_ranks
        self.first = Setting(next(iter(tasks)))

    def __repr__(self) -> str:
        return self.title(self.first)

    def obstacle(self, setting: Setting) -> str:
        """Why the model cannot be cut for the mesh, or ""."""
        task = self.tasks[setting.task]
        chunks = 2 * setting.sizes["cp"] if setting.sizes["cp"] > 1 else 1
        if task.seq % chunks:
            return f"{task.seq} tokens cannot be cut into {chunks} chunks."
        try:
            self.bytes(setting)
        except ValueError as error:
            return f"{error}."
        return ""

    def crowd(self, setting: Setting) -> str:
        """Why the GPUs are not drawn, or ""; the table of the chosen one is shown nevertheless."""
        most = f"at most {MOST} GPUs are drawn"
        return f"{setting.gpus:,} GPUs: {most}." if setting.gpus > MOST else ""

    def title(self, setting: Setting) -> str:
        """Rank and coordinates: "rank 5 of 16: pp 0, dp 1, cp 0, tp 1"."""
        place = coordinates(setting.rank, setting.mesh)
        named = ", ".join(f"{axis} {k}" for axis, k in place.items())
        return f"rank {setting.rank} of {setting.gpus}: {named}"

    def marks(self, setting: Setting) -> dict[int, str]:
        """The axis along which each rank shares a group with the chosen rank; "" for that rank itself."""
        others = {
            rank: axis
            for axis in setting.order
            for rank in self.axis_ranks(setting.rank, setting.mesh, axis)
            if rank != setting.rank
        }
        return {**others, setting.rank: ""}

    def bytes(self, setting: Setting) -> dict[str, float]:
        """Bytes that the rank sends in a step, by axis. ValueError if the model cannot be cut so."""
        task, stage = self.tasks[setting.task], coordinates(setting.rank, setting.mesh)["pp"]
        return axis_bytes(
            task.shape, setting.mesh, task.microbatches, task.rows, task.seq, stage, task.width_bytes
        )  # fmt: skip

    def part(self, setting: Setting) -> list[str]:
        """The layers, heads, rows and positions of the rank, a line each."""
        task, mesh = self.tasks[setting.task], setting.mesh
        place = coordinates(setting.rank, mesh)
        layers = cut(task.shape.layers, mesh["pp"])[place["pp"]]
        heads = cut(task.shape.heads, mesh["tp"])[place["tp"]]
        rows, positions = my_part(setting.rank, mesh, task.rows, task.seq)
        ends = ["embedding"] * (place["pp"] == 0) + ["head"] * (place["pp"] == mesh["pp"] - 1)
        return [
            f"layers    {span(layers)} of {task.shape.layers}{''.join(f', {end}' for end in ends)}",
            f"heads     {span(heads)} of {task.shape.heads} in each of them",
            f"rows      {span(rows)} of {task.rows:,}, in {task.microbatches} microbatches",
            f"positions {' and '.join(map(span, positions))} of {task.seq:,} in each row",
        ]

    def table(self, setting: Setting) -> str:
        """The rank's part, and for each axis its group, the wire of its groups, and the bytes of a step."""
        sent, mesh = self.bytes(setting), setting.mesh
        lines = [
            self.title(setting),
            *self.part(setting),
            "",
            f"{'axis':6} {'wire':8} {'bytes a step':>14}   its group",
        ]
        for axis in setting.order:
            group, name, link = axis, axis, wire(mesh, axis, setting.per_node)
            if axis == "dp" and mesh["cp"] > 1:  # gradients are summed over both
                group, name = tuple(a for a in setting.order if a in ("dp", "cp")), "dp,cp"
                link = ACROSS if ACROSS in (link, wire(mesh, "cp", setting.per_node)) else link
            ranks = list(self.axis_ranks(setting.rank, mesh, group))
            used = link if len(ranks) > 1 else "-"
            lines.append(f"{name:6} {used:8} {amount(sent[axis]):>14}   {listed(ranks)}")
        return "\n".join(lines)

    def chart(self, setting: Setting) -> Picture:
        """Nodes are frames and GPUs are boxes. The groups of the chosen rank have their axes' fills."""
        return mesh_figure(
            setting.gpus, setting.per_node, self.marks(setting), setting.order, self.title(setting)
        )

    # ---- the widget

    def widget(self) -> Any:
        """The ipywidgets box: sliders, the GPUs as buttons, and the table of the chosen one."""
        import ipywidgets as widgets

        controls, state = self._controls(widgets), {"rank": self.first.rank}
        framed: list[
            tuple[int, int]
        ] = []  # GPUs, and GPUs of a node, for which the frames were made last
        buttons = [widgets.Button(layout=widgets.Layout(width="66px")) for _ in range(MOST)]
        grid = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap"))
        sentence, table = widgets.Label(), widgets.HTML()

        def draw(_change: Any = None) -> None:
            value = {name: control.value for name, control in controls.items()}
            setting = Setting(
                value["model"], {axis: value[axis] for axis in AXES},
                tuple(value["order"].split(" > ")), value["node"],
            )  # fmt: skip
            setting = replace(setting, rank=min(state["rank"], setting.gpus - 1))
            problem = self.obstacle(setting)
            sentence.value = problem or self.crowd(setting)
            # A hidden grid or table takes no room: else an empty page would stand below the sentence.
            grid.layout.display = "none" if sentence.value else ""
            table.layout.display = "none" if problem else ""
            if problem:
                return
            try:
                marks = self.marks(setting)
                table.value = f'<pre style="white-space: pre">{self.table(setting)}</pre>'
            except NotImplementedError:
                sentence.value = "axis_ranks is not written yet."
                return
            if self.crowd(setting):
                return
            for rank, button in enumerate(buttons[: setting.gpus]):
                _dress(button, rank, marks.get(rank))
            # New frames would take the keyboard's focus from the button that was pressed.
            if framed != [(setting.gpus, setting.per_node)]:
                framed[:] = [(setting.gpus, setting.per_node)]
                grid.children = _nodes(widgets, buttons[: setting.gpus], setting.per_node)

        def choose(rank: int) -> Callable[[Any], None]:
            def clicked(_button: Any) -> None:
                state["rank"] = rank
                draw()

            return clicked

        for rank, button in enumerate(buttons):
            button.on_click(choose(rank))
        for control in controls.values():
            control.observe(draw, names="value")
        draw()
        columns = stepped(widgets, controls.values())
        boxes = [widgets.VBox(columns[:4]), widgets.VBox(columns[4:])]
        settings = widgets.HBox(boxes, layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([settings, sentence, grid, table])

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls: a size for each axis, then order, GPUs of a node, and model."""
        width, first = "60px", self.first
        wide = {"description_width": width}
        orders = [" > ".join(order) for order in permutations(AXES)]
        sizes = {
            axis: widgets.SelectionSlider(
                options=[1, 2, 4, 8, 16], value=first.sizes[axis], description=axis, style=wide,
                continuous_update=False,
            )
            for axis in AXES
        }  # fmt: skip
        return {
            **sizes,
            "order": choice(widgets, orders, " > ".join(first.order), "order", width),
            "node": choice(widgets, NODES, first.per_node, "a node", width),
            "model": choice(widgets, self.tasks, first.task, "model", width),
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the first setting's chart for others."""
        return forms(repr(self), self.chart(self.first), self.widget)


def span(part: range) -> str:
    """ "3" or "4 to 7"."""
    return f"{part.start:,}" if len(part) == 1 else f"{part.start:,} to {part.stop - 1:,}"


def amount(nbytes: float) -> str:
    """Bytes, exact for a small model, as the ledger counts them; in a larger unit for a large model."""
    return f"{nbytes:,.0f}" if nbytes < 1e9 else wording.size(nbytes)


def listed(ranks: Sequence[int], most: int = 8) -> str:
    """The ranks; if there are many, the first ones and the last."""
    if len(ranks) <= most:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[: most - 2]))}, ..., {ranks[-1]}"


def _dress(button: Any, rank: int, axis: str | None) -> None:
    """A GPU's button. Colour and name show its axis; black and a white frame mark the chosen GPU.

    The other GPUs have no colours of their own, so that they follow the theme of the page, light or dark.
    """
    chosen, marked = axis == "", bool(axis)
    button.description = f"{rank} {axis}" if axis else str(rank)
    button.style.font_weight = "bold" if chosen else "normal"
    button.style.button_color = (
        colours.INK if chosen else colours.axis_colour(axis) if axis else None
    )
    if hasattr(button.style, "text_color"):  # since ipywidgets 8
        button.style.text_color = "white" if chosen else colours.INK if marked else None
        button.layout.border = "2px solid white" if chosen else None
    elif chosen:
        button.style.button_color, button.description = colours.ALARM, f"[{rank}]"


def _nodes(widgets: Any, buttons: Sequence[Any], per_node: int) -> list[Any]:
    """The GPUs of a node in a frame, four to a row."""
    boxes = []
    for node in range(ceil(len(buttons) / per_node)):
        own = buttons[node * per_node : (node + 1) * per_node]
        rows = [widgets.HBox(list(own[i : i + 4])) for i in range(0, len(own), 4)]
        frame = widgets.Layout(
            border="1px solid #6E6E6E", margin="3px", padding="2px", flex="0 0 auto"
        )
        boxes.append(widgets.VBox([widgets.Label(f"node {node}"), *rows], layout=frame))
    return boxes
