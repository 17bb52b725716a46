"""The feedback page of one submission: each check's findings, and the notebook as it was run.

It is made from the result and the executed notebook, is one file, loads nothing and runs nothing: its
Content-Security-Policy forbids scripts even if something slipped through `sanitise`. Only the notebook's
cells get here from the folder that was handed in, and of hidden cases only the part that `disclosure` allows.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters import Highlight2HTML
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from autograder.book.standing import ByHand, Standing, added, final_maximum, final_score, others
from autograder.course.twin import SKIP_TAG
from autograder.outcome import statuses, wording
from autograder.outcome.result import BY_HAND, Exercise, Result, write_whole
from autograder.report import pages
from autograder.report.disclosure import Disclosed, disclosed
from autograder.report.sanitise import clean_notebook

TEMPLATES = Path(__file__).resolve().parent / "templates"
TOLD_BELOW = (statuses.GRADED, statuses.BLANK)  # the exercises say why points are missing
PLACE = re.compile(r"at Cell In\[(\d+)\], line (\d+)$")
COLOURED_CELL, COLOURED, LONGEST_CELL = 20_000, 300_000, 100_000  # characters of code
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Shown:
    """One exercise of the page."""

    title: str
    points: str
    reason: str
    rows: list[Disclosed]
    whose: str = ""  # that a person gave the points, and how many the checks gave
    comment: str = ""


def feedback_page(
    result: Result,
    notebook: NotebookNode | None,
    *,
    released: NotebookNode | None = None,
    maximum: float | None = None,
    standing: Standing | None = None,
) -> str:
    """The page's HTML.

    notebook: as it was run; None if none could be read, which makes a short page. released: the student
    version, whose unchanged texts are left out. maximum: the assignment's points, for results that do not
    know them. standing: a person's additions, and the points taken off for being late.
    """
    standing = standing or Standing()
    lines = _lines(notebook)
    return pages.fill(
        "feedback.html.j2",
        policy=POLICY,
        css=pages.styles("style.css", "feedback.css", more=_highlighting()),
        student=result.student,
        assignment=result.assignment,
        score=_score(result, maximum, standing),
        status=result.status,
        tone=wording.tone(result.status),
        said=wording.SAID.get(result.status, ""),
        reason="" if result.status in TOLD_BELOW else result.reason,
        penalty=wording.shown(standing.penalty) if standing.penalty else "",
        changes=result.changes,
        exercises=[_shown(exercise, lines, standing) for exercise in result.exercises],
        by_hand=[
            {
                "title": name.removesuffix("_check"),
                "points": _given(points),
                "comment": points.comment,
            }
            for name, points in others(result, standing).items()
        ],
        added=bool(added(result, standing) or standing.penalty),
        notebook=None if notebook is None else _cells(result, notebook, released, standing),
        sandbox=", ".join(result.sandbox),
        ran=result.status not in wording.WITHOUT_NOTEBOOK,
    )


def write_feedback(result: Result, notebook: NotebookNode | None, page: Path, **more) -> None:
    """Write the page to `page`, whole or not at all. more: as for `feedback_page`."""
    write_whole(page, feedback_page(result, notebook, **more))


def _score(result: Result, maximum: float | None, standing: Standing) -> str:
    points = final_score(result, standing)
    if points is None:
        return "no score yet"
    most = final_maximum(result, standing) if maximum is None else maximum
    return _of(points, most) if most else wording.shown(points)


def _of(points: float, maximum: float) -> str:
    return f"{wording.shown(points)} of {wording.shown(maximum)}"


def _given(by_hand: ByHand) -> str:
    """ "2.5 of 3, and 1 extra"; nothing for a comment alone."""
    parts = [] if by_hand.points is None else [_of(by_hand.points, by_hand.maximum)]
    return ", and ".join(
        [*parts, *([f"{wording.shown(by_hand.extra)} extra"] if by_hand.extra else [])]
    )


def _shown(exercise: Exercise, lines: Mapping[int, list[str]], standing: Standing) -> Shown:
    """An exercise without a report has a reason of its own: its cell never got that far."""
    rows = disclosed(exercise.report) if exercise.report else []
    quoted = [
        replace(row, sentences=[_quoting(said, lines) for said in row.sentences]) for row in rows
    ]
    own = standing.own(exercise)
    by_hand = own is not None and own.points is not None
    judged = exercise.reason != BY_HAND and exercise.attempted
    return Shown(
        wording.title(exercise),
        standing.earned(exercise),
        "" if rows or not judged or by_hand else exercise.reason,
        quoted,
        f"A person gave these points. The checks gave {wording.earned(exercise)}."
        if by_hand and judged
        else "",
        own.comment if own is not None else "",
    )


def _checked(exercise: Exercise, standing: Standing) -> str:
    """ "3 of 8 points, by hand"."""
    said = standing.earned(exercise)
    if not exercise.attempted:
        return said
    points, comma, rest = said.partition(",")
    return f"{points} points{comma}{rest}"


def _lines(notebook: NotebookNode | None) -> dict[int, list[str]]:
    """The lines of the cells that were run, by the number under which they were run."""
    cells = notebook.cells if notebook is not None else []
    return {
        number: cell.source.split("\n")
        for cell in cells
        if cell.cell_type == "code" and (number := cell.get("execution_count"))
    }


def _quoting(said: str, lines: Mapping[int, list[str]]) -> str:
    """A sentence that ends with a place, and the line that stands there in the notebook.

    `disclosure` leaves out the report's own quotation, since a rank could have written it.
    """
    match = PLACE.search(said)
    cell = lines.get(int(match[1]), []) if match else []
    number = int(match[2]) if match else 0
    text = cell[number - 1].strip() if 0 < number <= len(cell) else ""
    return f"{said}: {text}" if text else said


# ---- the notebook's cells


def _cells(
    result: Result,
    notebook: NotebookNode,
    released: NotebookNode | None,
    standing: Standing,
) -> Markup:
    kept = copy.copy(notebook)
    if released is not None:
        known = {cell.source: cell for cell in released.cells}
        kept.cells = [cell for cell in notebook.cells if not _is_ours(cell, known)]
    checked = {
        exercise.grade_id: {
            "number": number,
            "text": f"{wording.title(exercise)}: {_checked(exercise, standing)}",
        }
        for number, exercise in enumerate(result.exercises, start=1)
    }
    remarks = {
        name: ". ".join(text for text in (_given(by_hand), by_hand.comment) if text)
        for name, by_hand in standing.by_hand.items()
        if name not in checked
    }
    resources = {"checked": checked, "remarks": remarks, "metadata": {"path": ""}}
    body, _ = _exporter().from_notebook_node(clean_notebook(kept), resources)
    return Markup(body)  # its parts went through `sanitise`, and the template escapes the rest


def _is_ours(cell: NotebookNode, known: dict[str, NotebookNode]) -> bool:
    """The course's own text, and its cells that grading does not run, as they were handed out."""
    original = known.get(cell.source)
    if original is None or original.cell_type != cell.cell_type:
        return False
    return cell.cell_type != "code" or SKIP_TAG in original.metadata.get("tags", [])


class Highlighting(Highlight2HTML):
    """Code in colours, within limits: on some texts a lexer's time grows as the square.

    left: characters of this notebook that may still be coloured. Longer code is shown in black, and cut.
    """

    left = 0

    def __call__(self, source: str, *arguments: Any, **more: Any) -> str:
        if len(source) <= min(COLOURED_CELL, self.left):
            self.left -= len(source)
            return super().__call__(source, *arguments, **more)
        over = len(source) - LONGEST_CELL
        rest = f"\n... and {over:,} characters more" if over > 0 else ""
        return f'<div class="highlight"><pre>{escape(source[:LONGEST_CELL] + rest)}</pre></div>'


class CellsExporter(HTMLExporter):
    """nbconvert's exporter with our template, for cells without a page around them.

    HTMLExporter parses and writes the whole page a second time, for descriptions of pictures and for the
    keyboard. Our template has the descriptions and needs nothing for the keyboard, which halves the time.
    """

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        colours = Highlighting(pygments_lexer="ipython3", parent=self)
        colours.left = COLOURED
        self.register_filter("highlight_code", colours)
        return TemplateExporter.from_notebook_node(self, nb, self._init_resources(resources), **kw)


@functools.cache
def _exporter() -> CellsExporter:
    """Made once, since that takes longer than a page. It has no preprocessors."""
    exporter = CellsExporter(
        template_name="submission", extra_template_basedirs=[str(TEMPLATES)], preprocessors=[]
    )
    exporter.default_preprocessors = []
    return exporter


@functools.cache
def _highlighting() -> str:
    return HtmlFormatter(style="default").get_style_defs(".highlight")
