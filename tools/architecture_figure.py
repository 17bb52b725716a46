"""Draw the way of a function from `check` to its verdict: `python tools/architecture_figure.py`.

It writes docs/architecture.svg, which browsers, code hosts and books show alike; the text in it stays text.
The numbers are those of the steps in docs/architecture.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
INK, GREY = "#1f2328", "#57606a"
COLUMN, GUTTER, MARGIN = 284, 60, 20
INSET, BOX = 12, 54  # of a box in its column, and its height
TOP, ROW = 112, 76  # of the first row, and from one row to the next
ROWS = 7
WIDTH = 2 * MARGIN + 3 * COLUMN + 2 * GUTTER
HEIGHT = TOP + ROWS * ROW + MARGIN


@dataclass(frozen=True)
class Column:
    """Where code runs."""

    title: str
    processes: str
    light: str
    dark: str


COLUMNS = (
    Column("The notebook", "your kernel; sandboxed in grading", "#eef5fc", "#cfe2f6"),
    Column("The judge", "your kernel; a worker in grading", "#eef8ef", "#cdeacf"),
    Column("The ranks", "processes; sandboxed in grading", "#fef4e8", "#fbdcb8"),
)


@dataclass(frozen=True)
class Box:
    """An event, and its file in course_lib. number: of the step in the text; 0: it has none."""

    number: int
    title: str
    file: str
    column: int
    row: int

    @property
    def left(self) -> int:
        return MARGIN + self.column * (COLUMN + GUTTER) + INSET

    @property
    def right(self) -> int:
        return self.left + COLUMN - 2 * INSET

    @property
    def top(self) -> int:
        return TOP + self.row * ROW

    @property
    def middle(self) -> int:
        return self.top + BOX // 2


CHECK = Box(1, "check(name, function)", "checks/__init__.py", 0, 0)
SUBMIT = Box(2, "pickle the function", "checks/client.py", 0, 1)
FIND = Box(3, "find the exercise's cases", "checks/judge/find.py", 1, 0)
TASK = Box(4, "make a task for each rank", "checks/judge/judge.py", 1, 1)
RUN = Box(5, "take ranks and watch them", "runtime/run.py", 1, 2)
FORK = Box(0, "the preloaded process forks", "runtime/preload.py", 2, 1)
JOIN = Box(6, "join the process group", "runtime/rank.py", 2, 2)
RECIPE = Box(7, "run the recipe", "checks/rank/harness.py", 2, 3)
FUNCTION = Box(8, "the student's function", "recorded: ledger/recorder.py", 2, 4)
ROWS_OF_IT = Box(0, "rows in shared memory", "ledger/rows.py", 2, 5)
REPLIES = Box(9, "read the replies", "checks/judge/replies.py", 1, 4)
LINES = Box(10, "judge the lines", "checks/notebooks/", 1, 5)
CONCLUDE = Box(11, "weigh them, conclude", "checks/judge/conclude.py", 1, 6)
REPORT = Box(12, "print the table", "checks/report.py", 0, 6)
BOXES = (
    CHECK, SUBMIT, FIND, TASK, RUN, FORK, JOIN, RECIPE, FUNCTION, ROWS_OF_IT,
    REPLIES, LINES, CONCLUDE, REPORT,
)  # fmt: skip
ARROWS = (  # from, to, and the load that goes along it
    (CHECK, SUBMIT, ""),
    (SUBMIT, FIND, "bytes"),
    (FIND, TASK, ""),
    (TASK, RUN, ""),
    (RUN, FORK, "order"),
    (FORK, JOIN, ""),
    (JOIN, RECIPE, ""),
    (RECIPE, FUNCTION, ""),
    (FUNCTION, ROWS_OF_IT, ""),
    (FUNCTION, REPLIES, "tensors"),
    (ROWS_OF_IT, LINES, "ledger"),
    (REPLIES, LINES, ""),
    (LINES, CONCLUDE, ""),
    (CONCLUDE, REPORT, "JSON"),
)


def text(x: float, y: float, words: str, size: int, **more: str) -> str:
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{attributes}>{escape(words)}</text>'


def column(place: int, of: Column) -> Iterator[str]:
    x = MARGIN + place * (COLUMN + GUTTER)
    height = HEIGHT - 2 * MARGIN
    yield f'<rect x="{x}" y="{MARGIN}" width="{COLUMN}" height="{height}" rx="10" fill="{of.light}"/>'
    yield text(x + INSET, MARGIN + 32, of.title, 19, font_weight="bold")
    yield text(x + INSET, MARGIN + 56, of.processes, 13, fill=GREY)


def box(of: Box) -> Iterator[str]:
    dashed = "" if of.number else ' stroke-dasharray="5 4"'
    yield (
        f'<rect x="{of.left}" y="{of.top}" width="{of.right - of.left}" height="{BOX}" rx="6" '
        f'fill="{COLUMNS[of.column].dark}" stroke="{GREY}"{dashed}/>'
    )
    x = of.left + 10
    if of.number:
        yield f'<circle cx="{of.left + 20}" cy="{of.middle}" r="13" fill="{INK}"/>'
        yield text(
            of.left + 20, of.middle + 5, str(of.number), 14, fill="#ffffff", text_anchor="middle"
        )
        x = of.left + 42
    yield text(x, of.top + 23, of.title, 14)
    yield text(x, of.top + 42, of.file, 12, fill=GREY, font_family="monospace")


def arrow(start: Box, end: Box, carries: str) -> Iterator[str]:
    """Down within a column; through the gutter from one column to another."""
    if start.column == end.column:
        x = (start.left + start.right) // 2
        path = f"M{x} {start.top + BOX} V{end.top - 2}"
    else:
        begin, stop = (
            (start.right, end.left - 2)
            if end.column > start.column
            else (start.left, end.right + 2)
        )
        path = f"M{begin} {start.middle} H{(begin + stop) // 2} V{end.middle} H{stop}"
        yield text(
            (begin + stop) / 2, min(start.middle, end.middle) - 7, carries, 13, text_anchor="middle"
        )
    yield f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.6" marker-end="url(#head)"/>'


def figure() -> str:
    """The drawing as SVG, the same at every call."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif" fill="{INK}">',
        "<title>The way of a function from check to its verdict</title>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *(line for place, of in enumerate(COLUMNS) for line in column(place, of)),
        *(line for ends in ARROWS for line in arrow(*ends)),
        *(line for of in BOXES for line in box(of)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    FIGURE.write_text(figure(), encoding="utf-8")
    print(f"{FIGURE.name}: {FIGURE.stat().st_size:,} bytes")
