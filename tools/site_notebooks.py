"""The notebooks as the site shows them: the student version, with the outputs of the executed solution.

Text and code come from `notebooks/`, where nbgrader's steps have replaced the solutions by stubs and removed
the hidden tests (`autograder.course.release`). The outputs come from `solutions/`, cell by cell. Three of
them would give something away: the report on hidden cases, which follows the visible one, the lines of a
solution that a deadlock or an error quotes, and a function that a cell prints. They are left out. A stepper
becomes a figure with a slider (docs/site/static/stepper.js), and any other widget a picture with a sentence.
"""

from __future__ import annotations

import base64
import copy
import html
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode

from autograder.course.outputs import WIDGETS
from autograder.course.student_version import ClearSolutions, ClearWidgets
from autograder.course.twin import HIDDEN_MARKERS, SOLUTION_MARKERS, grade_id
from course_lib.pictures.shown import SHARPNESS, VIEW

SOLUTION = re.compile(rf"{SOLUTION_MARKERS[0]}\n(.*?){SOLUTION_MARKERS[1]}", re.DOTALL)
REPORT = re.compile(r"^\S.* +[\d.]+ of [\d.]+$", re.MULTILINE)  # the first line of a check's report
LEFT_OUT = "…"
WHOLE_LINE, PART_OF_A_LINE = 6, 12  # characters from which a line is recognised as a solution's
FIGURES = "figures"  # the site's folder of pictures that steppers show
PNG_WIDTH = slice(16, 20)  # bytes of a PNG file, big-endian
STILL = "In Jupyter this figure has controls that change it. The page shows it as it begins."


class DisclosingError(Exception):
    """A notebook cannot be shown as it is; the text says why."""


@dataclass
class Shown:
    """A notebook for the site, and the pictures that it shows by their paths in the site."""

    notebook: NotebookNode
    pictures: dict[str, bytes] = field(default_factory=dict)


def shown(student: NotebookNode, executed: NotebookNode, name: str) -> Shown:
    """The student version with outputs. name: the assignment's, from which its pictures have theirs.

    Raises DisclosingError if the two are not versions of one notebook, or if a check with hidden cases has
    printed more or fewer than two reports.
    """
    if [cell["id"] for cell in student.cells] != [cell["id"] for cell in executed.cells]:
        raise DisclosingError(
            f"{name}: the two versions have other cells. If the student version was worked in, keep a copy, "
            f"then `git restore notebooks/{name}`; if the source was changed, `make notebooks`."
        )
    secrets = secret_lines(executed, student)
    widgets = executed.metadata.get("widgets", {}).get(WIDGETS, {}).get("state", {})
    page = Shown(NotebookNode({**student, "cells": []}))
    heading = name
    for cell, ran in zip(student.cells, executed.cells, strict=True):
        kept = NotebookNode(cell.copy())
        kept.metadata = NotebookNode(tags=kinds(cell))
        page.notebook.cells.append(kept)
        if cell.cell_type == "markdown":
            heading = last_heading(cell.source) or heading
            continue
        about = f"Figure: {heading}"
        kept.metadata["mystnb"] = {"image": {"alt": about}}
        kept.outputs = [
            with_pictures(output, widgets, page.pictures, f"{name}-{cell['id']}", about)
            for output in without_secrets(ran, secrets)
        ]
        kept.execution_count = ran.execution_count
    ClearWidgets().preprocess(page.notebook, {})
    return page


def kinds(cell: NotebookNode) -> list[str]:
    """Classes of the cell in the page: an exercise is to be written, a check judges it."""
    own = cell.metadata.get("nbgrader", {})
    return [kind for kind, key in (("exercise", "solution"), ("check", "locked")) if own.get(key)]


def last_heading(text: str) -> str:
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", without_code, re.MULTILINE)
    return re.sub(r"[`*]", "", headings[-1]) if headings else ""


# --- nothing of a solution -----------------------------------------------------------------------


def secret_lines(executed: NotebookNode, student: NotebookNode) -> list[str]:
    """The lines of all solutions that the student version does not show, the longest first; also as HTML."""
    open_text = "\n".join(cell.source for cell in student.cells)
    lines = {
        line.strip()
        for cell in executed.cells
        for region in SOLUTION.findall(cell.source)
        for line in region.splitlines()
    }
    closed = {line for line in lines if len(line) >= WHOLE_LINE and line not in open_text}
    return sorted(closed | {html.escape(line) for line in closed}, key=len, reverse=True)


def without_secrets(ran: NotebookNode, secrets: list[str]) -> list[NotebookNode]:
    """Copies of an executed cell's outputs without what only an instructor may see."""
    outputs: list[NotebookNode] = copy.deepcopy(ran.get("outputs", []))
    if ran.metadata.get("nbgrader", {}).get("solution"):
        return []
    if HIDDEN_MARKERS[0] in ran.source:
        outputs = without_hidden_reports(outputs, grade_id(ran))
    for output in outputs:
        change_texts(output, lambda text: without_solutions(text, secrets))
    return outputs


def without_hidden_reports(outputs: list[NotebookNode], check: str | None) -> list[NotebookNode]:
    """Of the reports on visible and on hidden cases, which have the same first line, the first alone.

    Everything that was printed after the second began goes with it. The points remain.
    """
    kept, reports = [], 0
    for output in outputs:
        if output.output_type == "stream" and reports < 2:
            heads = list(REPORT.finditer(output.text))
            if reports + len(heads) >= 2:
                output.text = output.text[: heads[1 - reports].start()]
            reports += len(heads)
            kept.append(output)
        elif output.output_type == "execute_result":
            kept.append(output)
    if reports != 2:
        raise DisclosingError(
            f"{check}: {reports} reports where a visible and a hidden one should be"
        )
    return kept


def change_texts(output: NotebookNode, change: Callable[[str], str]) -> None:
    """Apply `change` to every text of an output."""
    for key in ("text", "evalue"):
        if key in output:
            output[key] = change(output[key])
    if "traceback" in output:
        output.traceback = [change(line) for line in output.traceback]
    for kind, text in output.get("data", {}).items():
        if kind.startswith("text/") and isinstance(text, str):
            output.data[kind] = change(text)


def without_solutions(text: str, secrets: Iterable[str]) -> str:
    """`text` with stubs for the functions that it prints, and with "…" for the lines that it quotes."""
    if SOLUTION_MARKERS[0] in text:
        text = as_released(text)
    lines = text.split("\n")
    for secret in secrets:
        for number, line in enumerate(lines):
            alone = line.strip() == secret or line.endswith(f": {secret}")
            if alone or (len(secret) >= PART_OF_A_LINE and secret in line):
                lines[number] = line.replace(secret, LEFT_OUT)
    return "\n".join(lines)


def as_released(code: str) -> str:
    """Code with solutions in it as nbgrader's step hands it out."""
    own = {"solution": True, "grade": False, "grade_id": "printed"}
    cell = nbformat.v4.new_code_cell(code, metadata={"nbgrader": own})
    notebook = nbformat.v4.new_notebook(cells=[cell])
    return ClearSolutions().preprocess(notebook, ResourcesDict())[0].cells[0].source


# --- widgets -------------------------------------------------------------------------------------


def with_pictures(
    output: NotebookNode, widgets: dict[str, Any], pictures: dict[str, bytes], name: str, about: str
) -> NotebookNode:
    """The output, or a figure in its place if it is a widget. `pictures` gets what the figure shows."""
    data = output.get("data", {})
    if VIEW not in data:
        return output
    still = f"{FIGURES}/{name}.png"
    pictures[still] = base64.b64decode(data["image/png"])
    frames = {}
    for number, frame in enumerate(frames_of(data[VIEW]["model_id"], widgets)):
        frames[f"{FIGURES}/{name}-{number}.png"] = frame
    pictures.update(frames)
    figure = stepper(still, frames, about) if frames else picture(still, about)
    return nbformat.v4.new_output(
        "display_data", data={"text/html": figure, "text/plain": data["text/plain"]}
    )


def frames_of(model: str, widgets: dict[str, Any]) -> list[bytes]:
    """The pictures that a slider chooses from: the children of the Stack somewhere in the widget `model`."""
    children = widgets[model]["state"].get("children") or []
    names = [child.removeprefix("IPY_MODEL_") for child in children]
    if widgets[model]["model_name"] == "StackModel":
        return [image_of(widgets[name]) for name in names]
    return [frame for name in names for frame in frames_of(name, widgets)]


def image_of(model: dict[str, Any]) -> bytes:
    (buffer,) = model["buffers"]
    return base64.b64decode(buffer["data"])


def picture(still: str, about: str) -> str:
    return (
        f'<figure class="still"><img src="../{still}" alt="{html.escape(about)}">'
        f"<figcaption>{STILL}</figcaption></figure>"
    )


def stepper(still: str, frames: dict[str, bytes], about: str) -> str:
    """A figure that shows all rounds; `stepper.js` puts a slider over it that chooses one of `frames`.

    They have the width that they have in Jupyter, in CSS's pixels, of which an inch has 96.
    """
    (pixels,) = struct.unpack(">I", next(iter(frames.values()))[PNG_WIDTH])
    width, paths = round(pixels * 96 / SHARPNESS), " ".join(f"../{frame}" for frame in frames)
    return (
        f'<figure class="stepper" data-width="{width}" data-frames="{html.escape(paths)}">'
        f'<img src="../{still}" alt="{html.escape(about)}"></figure>'
    )
