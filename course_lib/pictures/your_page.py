"""Your page: the results of the capstone in one HTML file and one PNG.

    page = YourPage("Your page", frames={"fifteen layouts": "section 3"})
    page.add("fifteen layouts", figure, by="your make_step")
    page.show("your_page")        # writes your_page.html and your_page.png, and shows the page

A frame has a title, the result, and the words *your make_step* or *the library's make_step*. A frame whose
result is missing stays empty and names its section. Nothing is graded, and nothing is sent anywhere.
"""

from __future__ import annotations

import base64
import html
import io
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from course_lib.pictures.colours import FAINT, INK, QUIET, SMALL, Picture

COLUMNS, WIDE, HIGH = 2, 8.6, 4.4  # inches of a frame in the PNG
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222;background:#fff}"
    "section{border:1px solid #d9d9d9;padding:.4em 1.2em 1em;margin:1.2em 0}"
    "img{max-width:100%}pre{white-space:pre-wrap}small{color:#6e6e6e}td,th{padding:.1em .7em}"
)


@dataclass(frozen=True)
class Frame:
    """by: whose function made the result, "" if there is none."""

    title: str
    result: Any
    by: str


class YourPage:
    """frames: {title: section}, in their order. A title is filled by `add`; the last result counts."""

    def __init__(self, title: str, frames: Mapping[str, str]):
        self.title, self.sections = title, dict(frames)
        self.frames: dict[str, Frame] = {}

    def add(self, title: str, result: Any, by: str) -> None:
        """A result: a figure, a table, a text, or a dict of numbers. An empty one leaves the frame empty.

        Raises KeyError for a title that the page does not have.
        """
        if title not in self.sections:
            raise KeyError(f"{title!r} is not a frame of the page: {', '.join(self.sections)}")
        if result:
            self.frames[title] = Frame(title, result, by)
        else:
            self.frames.pop(title, None)

    def html(self) -> str:
        """The page, a whole document that needs no other file."""
        parts = [f"<h1>{html.escape(self.title)}</h1>", f"<p>{html.escape(machine())}</p>"]
        for title, section in self.sections.items():
            frame = self.frames.get(title)
            inside = _html(frame.result) if frame else f"<p><small>empty: {section}</small></p>"
            by = f"<small>{html.escape(frame.by)}</small>" if frame else ""
            parts.append(f"<section><h2>{html.escape(title)}</h2>{inside}{by}</section>")
        head = (
            f"<meta charset='utf-8'><title>{html.escape(self.title)}</title><style>{STYLE}</style>"
        )
        return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"

    def png(self) -> Picture:
        """The same as a figure."""
        rows = -(-len(self.sections) // COLUMNS)
        figure = Picture(figsize=(COLUMNS * WIDE, rows * HIGH + 0.8), dpi=80, facecolor="white")
        figure.suptitle(f"{self.title}\n{machine()}", color=INK)
        grid = figure.add_gridspec(rows, COLUMNS, hspace=0.25, wspace=0.06, left=0.03, right=0.97)
        for place, (title, section) in enumerate(self.sections.items()):
            axes, frame = figure.add_subplot(grid[place]), self.frames.get(title)
            axes.set_xticks([]), axes.set_yticks([])
            axes.set_title(title + (f" · {frame.by}" if frame else ""), size=10, color=INK)
            for spine in axes.spines.values():
                spine.set_color(FAINT)
            if frame and isinstance(frame.result, Figure):
                axes.imshow(imread(io.BytesIO(_png(frame.result))))
            else:
                text = _text(frame.result) if frame else f"empty: {section}"
                axes.text(
                    0.02, 0.97, text, va="top", size=SMALL + 0.5 if frame else 10, family="monospace",
                    color=INK if frame else QUIET, transform=axes.transAxes, clip_on=True,
                )  # fmt: skip
        return figure

    def show(self, name: str) -> Shown:
        """Write `name`.html and `name`.png here, and show the page in a notebook."""
        Path(f"{name}.html").write_text(self.html())
        Path(f"{name}.png").write_bytes(_png(self.png()))
        return Shown(self, name)


class Shown:
    """The page in a notebook; a line of text if HTML is not shown."""

    def __init__(self, page: YourPage, name: str):
        self.page, self.name = page, name

    def __repr__(self) -> str:
        page = self.page
        return f"{len(page.frames)} of {len(page.sections)} frames; see {self.name}.html, {self.name}.png"

    def _repr_html_(self) -> str:
        document = html.escape(self.page.html(), quote=True)
        frame = (
            f'<iframe srcdoc="{document}" style="width:100%;height:40em;border:1px solid #d9d9d9">'
        )
        return f"<p>{html.escape(repr(self))}</p>{frame}</iframe>"


def machine() -> str:
    """This machine, its PyTorch and the date."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    where = gpu or f"{platform.machine()}, {torch.get_num_threads()} threads"
    return f"{where}, PyTorch {torch.__version__}, {time.strftime('%Y-%m-%d')}"


def _png(figure: Figure) -> bytes:
    with io.BytesIO() as file:
        figure.savefig(file, format="png", bbox_inches="tight", facecolor="white")
        return file.getvalue()


def _text(result: Any) -> str:
    if isinstance(result, Mapping):
        return "\n".join(f"{name:12} {value:,.0f}" for name, value in result.items())
    return str(result)


def _html(result: Any) -> str:
    if isinstance(result, Figure):
        return f'<img src="data:image/png;base64,{base64.b64encode(_png(result)).decode()}">'
    table = getattr(result, "_repr_html_", None)
    return table() if table else f"<pre>{html.escape(_text(result))}</pre>"
