"""Two boxes with controls: the bits of a number, and gradients over the ranges of the formats.

    formats()                one number in all formats; its bits, on and off
    gradients(magnitudes)    a histogram of |gradient| that slides with the loss's scale

In a notebook each is a box of ipywidgets. If widgets cannot be shown, the same output shows one picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.patches import Rectangle
from torch import Tensor

from course_lib.pictures.colours import ALARM, FAINT, FORWARD, INK, QUIET, Picture, picture
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.shown import forms, small_png
from course_lib.precision.formats import FORMATS, Format, round_to

FIELDS = {"sign": "#F3D9C6", "exponent": "#CFE3F1", "mantissa": "#FFFFFF"}
ROWS = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e2m1")


def rounded(value: float, form: Format) -> float:
    """`value` in the format."""
    x = torch.tensor([value], dtype=torch.float64)
    bits = form.exponent_bits, form.mantissa_bits
    return float(round_to(x, *bits, finite=form.finite, nan=form.nan))


def power_of_two(value: float) -> float:
    """`value` in e8m0, as the power of two below it; NaN for 0 and below, which e8m0 cannot represent."""
    if not value > 0 or math.isinf(value):
        return math.nan
    return 2.0 ** min(max(math.frexp(value)[1] - 1, -127), 127)


def code_of(value: float, form: Format) -> int:
    """The bits of a number of the format, as an integer."""
    sign = 1 if math.copysign(1, value) < 0 else 0
    number, top = abs(value), (1 << form.exponent_bits) - 1
    if math.isnan(value):
        code = top << form.mantissa_bits | (1 << form.mantissa_bits) - 1
    elif math.isinf(number):
        code = top << form.mantissa_bits
    elif number < 2.0**form.lowest:
        code = round(number / form.smallest)
    else:
        exponent = math.frexp(number)[1] - 1
        fraction = number / 2.0**exponent - 1
        code = (exponent + form.bias) << form.mantissa_bits | round(
            fraction * 2**form.mantissa_bits
        )
    return sign << (form.bits - 1) | code


def neighbours(value: float, form: Format) -> tuple[float, float]:
    """The next number of the format below and above; infinite or NaN beyond the last."""
    code = code_of(value, form)
    top = 1 << (form.bits - 1)
    sign, magnitude = code & top, code & top - 1
    outward = form.value(sign | magnitude + 1) if magnitude + 1 < top else math.nan
    inward = form.value(sign | magnitude - 1) if magnitude else form.value((top ^ sign) | 1)
    return (outward, inward) if sign else (inward, outward)


def formats(value: float = 0.1, form: str = "fp16") -> Formats:
    """Show one number in all formats, and the bits of one of them."""
    return Formats(value, form)


@dataclass(frozen=True)
class Formats:
    """The result of `formats`. `table(value)` has a row for each format: (name, bits, value, error)."""

    value: float
    form: str = "fp16"

    def __repr__(self) -> str:
        return "\n".join(
            f"{name:5} {got:<14.7g} {bits}" for name, bits, got, _ in self.table(self.value)
        )

    def table(self, value: float) -> list[tuple[str, str, float, float]]:
        rows = []
        for name in ROWS:
            form = FORMATS[name]
            got = rounded(value, form)
            bits = f"{code_of(got, form):0{form.bits}b}"
            split = 1 + form.exponent_bits
            error = abs(got - value) / abs(value) if value and math.isfinite(got) else math.nan
            rows.append((name, f"{bits[0]} {bits[1:split]} {bits[split:]}", got, error))
        got = power_of_two(value)
        error = abs(got - value) / abs(value) if math.isfinite(got) else math.nan
        bits = "1" * 8 if math.isnan(got) else f"{math.frexp(got)[1] + 126:08b}"
        return [*rows, ("e8m0", f"  {bits}", got, error)]

    def html(self, value: float, form: Format) -> str:
        below, above = neighbours(rounded(value, form), form)
        said = f"{form.name}: <b>{rounded(value, form):.9g}</b>, below it {below:.9g}, above it {above:.9g}"
        cells = [
            f"<tr><td>{name}</td><td><code>{bits}</code></td><td>{got:.9g}</td>"
            f"<td>{'' if math.isnan(error) else f'{error:.2%}'}</td></tr>"
            for name, bits, got, error in self.table(value)
        ]
        head = (
            "<tr><th>format</th><th>sign, exponent, mantissa</th><th>value</th><th>off by</th></tr>"
        )
        return f"<p>{said}</p><table>{head}{''.join(cells)}</table>"

    def chart(self) -> Picture:
        """The bits of the number in each format, in boxes, next to its value there."""
        rows = self.table(self.value)
        figure = picture(9.2, 0.5 + 0.27 * len(rows))
        axes = figure.subplots()
        for row, (name, bits, got, error) in enumerate(rows):
            column = 0
            parts = bits.split(" ") if name != "e8m0" else ["", bits.strip(), ""]
            for colour, part in zip(FIELDS.values(), parts, strict=True):
                for bit in part:
                    box = Rectangle(
                        (column, row - 0.4), 0.9, 0.8, facecolor=colour, edgecolor=QUIET, lw=0.4
                    )
                    axes.add_patch(box)
                    axes.text(column + 0.45, row, bit, ha="center", va="center", fontsize=7)
                    column += 1
            off = "" if math.isnan(error) else f", off by {error:.2%}"
            axes.text(column + 0.5, row, f"{got:.7g}{off}", va="center", fontsize=8)
            axes.text(-0.6, row, name, ha="right", va="center", fontsize=8)
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor=QUIET, lw=0.4)
            for colour in FIELDS.values()
        ]
        axes.legend(handles, FIELDS, fontsize=7, frameon=False, loc="lower right")
        axes.set_xlim(-4, 45)
        axes.set_ylim(len(rows) - 0.5, -1)
        axes.set_title(f"{self.value:g} in each format", fontsize=9, loc="left")
        axes.axis("off")
        figure.subplots_adjust(left=0, right=1, bottom=0.02)
        return figure

    def widget(self) -> Any:
        import ipywidgets as widgets

        choose = choice(widgets, ROWS, self.form, "bits of")
        number = widgets.FloatText(value=self.value, description="number")
        bits, shown = widgets.HBox(), widgets.HTML()
        busy = [False]

        def look() -> None:
            shown.value = self.html(number.value, FORMATS[str(choose.value)])

        def lay_out(_change: Any = None) -> None:
            if busy[0]:
                return
            form = FORMATS[str(choose.value)]
            code = code_of(rounded(number.value, form), form)
            buttons = []
            for place in range(form.bits - 1, -1, -1):
                kind = (
                    "danger"
                    if place == form.bits - 1
                    else "info"
                    if place >= form.mantissa_bits
                    else ""
                )
                on = bool(code >> place & 1)
                button = widgets.ToggleButton(
                    value=on, description=str(int(on)), button_style=kind,
                    layout=widgets.Layout(width="26px", padding="0"),
                )  # fmt: skip
                button.observe(read, names="value")
                buttons.append(button)
            bits.children = buttons
            look()

        def read(_change: Any = None) -> None:
            form = FORMATS[str(choose.value)]
            for button in bits.children:
                button.description = str(int(button.value))
            text = "".join(button.description for button in bits.children)
            busy[0] = True
            number.value = form.value(int(text, 2))
            busy[0] = False
            look()

        choose.observe(lay_out, names="value")
        number.observe(lay_out, names="value")
        lay_out()
        return widgets.VBox([widgets.HBox([*stepped(widgets, [choose]), number]), bits, shown])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        return forms(repr(self), self.chart(), self.widget)


def number_line(names: Sequence[str], low: float, high: float) -> Picture:
    """All numbers of each format from low to high, each a tick."""
    figure = picture(8.0, 0.5 + 0.35 * len(names))
    axes = figure.subplots()
    for row, name in enumerate(names):
        form = FORMATS[name]
        first, last = code_of(rounded(low, form), form), code_of(rounded(high, form), form)
        values = [form.value(code) for code in range(first, last + 1)]
        inside = [value for value in values if low <= value <= high]
        axes.vlines(inside, row - 0.3, row + 0.3, color=FORWARD, linewidth=0.6)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(low, high)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def gradients(magnitudes: Tensor, form: str = "fp16") -> Histogram:
    """Show the magnitudes of gradients over a format's range, with a slider for the loss's scale.

    magnitudes: any shape, of float32 gradients; zeros are counted but not drawn.
    """
    logs = magnitudes.detach().flatten().abs().double().log2()
    return Histogram(logs, form)


@dataclass(frozen=True)
class Histogram:
    """The result of `gradients`. `shares(k)`: shares of gradients that are 0 and infinite at scale 2^k."""

    logs: Tensor
    form: str = "fp16"

    def __repr__(self) -> str:
        zero, infinite = self.shares(0)
        return f"{self.form} without a scale: {zero:.1%} of {len(self.logs):,} are 0, {infinite:.1%} infinite"

    def shares(self, scale: int) -> tuple[float, float]:
        form = FORMATS[self.form]
        logs = self.logs + scale
        zero = (
            (logs <= math.log2(form.smallest) - 1).double().mean()
        )  # half the smallest: ties to 0
        halfway = form.largest + 2.0 ** (form.highest - form.mantissa_bits - 1)
        return float(zero), float((logs >= math.log2(halfway)).double().mean())

    def chart(self, scale: int) -> Picture:
        form = FORMATS[self.form]
        figure = picture(8.0, 2.4)
        axes = figure.subplots()
        drawn = (self.logs + scale)[self.logs.isfinite()]
        axes.hist(drawn.tolist(), bins=60, color=FORWARD, linewidth=0)
        low, normal, high = math.log2(form.smallest), form.lowest, math.log2(form.largest)
        axes.axvspan(low, normal, color=FAINT, zorder=0, label=f"{self.form}: subnormal numbers")
        for edge, said in ((low, "smallest and largest number"), (high, None)):
            axes.axvline(edge, color=ALARM, linewidth=1, label=said)
        zero, infinite = self.shares(scale)
        axes.set_title(
            f"scale 2^{scale}: {zero:.1%} become 0, {infinite:.1%} infinite", fontsize=9, loc="left"
        )
        axes.set_xlabel("log2 of the scaled gradient's magnitude", fontsize=8, color=INK)
        figure.subplots_adjust(bottom=0.22)
        axes.set_xlim(-60, 20)
        axes.set_yticks([])
        axes.tick_params(labelsize=8, colors=QUIET)
        axes.legend(fontsize=7, frameon=False, loc="upper left")
        axes.spines[["top", "right", "left"]].set_visible(False)
        return figure

    def widget(self) -> Any:
        import ipywidgets as widgets

        slider = widgets.IntSlider(0, 0, 40, description="log2 scale", continuous_update=False)
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))

        def draw_anew(_change: Any = None) -> None:
            image.value = small_png(self.chart(slider.value))

        slider.observe(draw_anew, names="value")
        draw_anew()
        return widgets.VBox([slider, image])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, Any]:
        return forms(repr(self), self.chart(0), self.widget)
