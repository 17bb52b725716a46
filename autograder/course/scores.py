"""The points of an executed graded cell, and the sentence that says why points are missing.

The build uses it to require full points of a new notebook, in which only the course's own code ran. Of a
submission the outputs of cells decide nothing: see `autograder.submission.marking`.

nbgrader's own rule is kept (an error is 0, a number as the cell's result is partial credit, else
full points) without its pitfalls: text on stderr costs nothing, the last result counts and not the
first, a check without a result earns nothing, and a result that exceeds the maximum or is not a number
gives a sentence, not full marks.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from nbformat import NotebookNode

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
REASON_LENGTH = 240
UNKNOWN = "some cases of the check failed"


@dataclass(frozen=True)
class Score:
    """Points of one graded cell; `reason` is empty when they are all there."""

    points: float
    maximum: float
    reason: str = ""


def score_cell(cell: NotebookNode) -> Score:
    """The score of an executed, automatically graded code cell.

    A cell of extra credit has no points for nbgrader: it gets 0 of 0, with a reason if the check failed.
    """
    maximum = float(cell.metadata["nbgrader"]["points"])
    if maximum == 0.0:
        return _extra_credit(cell)
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors:
        return Score(0.0, maximum, one_line(f"{errors[0].ename}: {errors[0].evalue}"))
    results = [output for output in cell.outputs if output.output_type == "execute_result"]
    if cell.execution_count is None or (not results and _gives_number(cell)):
        return Score(0.0, maximum, "the check gave no result")
    return _partial(results[-1], maximum, cell) if results else Score(maximum, maximum)


def _extra_credit(cell: NotebookNode) -> Score:
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors:
        return Score(0.0, 0.0, one_line(f"{errors[0].ename}: {errors[0].evalue}"))
    printed = "".join(output.get("text", "") for output in cell.outputs)
    passed = "✓" in printed and "✗" not in printed
    return Score(0.0, 0.0, "" if passed else first_failure(cell) or UNKNOWN)


def _gives_number(cell: NotebookNode) -> bool:
    """Whether the cell ends with the points of a report: then a missing result does not give full marks."""
    return re.search(r"\.points\([^()]*\)\s*\Z", cell.source) is not None


def _partial(result: NotebookNode, maximum: float, cell: NotebookNode) -> Score:
    text = result.data.get("text/plain", "")
    try:
        points = float(text)
    except ValueError:
        points = math.nan
    if not 0.0 <= points <= maximum:
        reason = f"the check's result is {one_line(text)!r}, not a number from 0 to {maximum:g}"
        return Score(0.0, maximum, reason)
    return Score(points, maximum, "" if points == maximum else first_failure(cell) or UNKNOWN)


def first_failure(cell: NotebookNode) -> str:
    """The first failing case in the check's reports, its title and first sentence; "" when none failed."""
    lines = [
        line
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
        for line in output.text.splitlines()
    ]
    for number, line in enumerate(lines):
        if match := re.match(r"( *)✗ (.*)", line):
            title = re.sub(r"\s{2,}.*", "", match[2])
            sentence = _first_sentence(lines[number + 1 :], len(match[1]))
            return one_line(f"{title}: {sentence}" if sentence else title)
    return ""


def _first_sentence(lines: list[str], margin: int) -> str:
    """The first sentence of the paragraph that is indented deeper than `margin`."""
    deeper = itertools.takewhile(lambda line: line[: margin + 1].isspace(), lines)
    # Lines that begin with a bar are what the ranks printed.
    paragraph = " ".join(line.strip() for line in deeper if not line.lstrip().startswith("|"))
    match = re.match(r".*?[.!?](?= |$)", paragraph)
    return match[0] if match else paragraph


def one_line(text: str) -> str:
    """`text` without colours and line breaks, cut to a length that a table can show.

    Characters that cannot be seen become escapes: a terminal would obey them, and a student's exception can
    hold them.
    """
    flat = visible(" ".join(ANSI.sub("", text).split()))
    return flat if len(flat) <= REASON_LENGTH else flat[: REASON_LENGTH - 3] + "..."


def visible(text: str) -> str:
    """`text` with escapes in place of the characters that cannot be printed."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
