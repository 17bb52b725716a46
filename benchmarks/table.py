"""Rows of the benchmark table, and how it is printed."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One figure: `value` should be at most `reach`."""

    what: str
    against: str
    value: float
    reach: float
    unit: str = "times"  # "times": a ratio; "s": seconds; "points": between fractions; "count"
    detail: str = ""  # the two numbers behind a ratio

    @property
    def good(self) -> bool:
        return self.value <= self.reach


def machine() -> str:
    import torch

    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = models[0].partition(":")[2].strip() if models else platform.machine()
    return (
        f"{datetime.date.today()}, {os.cpu_count()} cores ({model}), Python "
        f"{platform.python_version()}, PyTorch {torch.__version__}, gloo on the CPU"
    )


def number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.2f} s"
    if unit == "count":
        return f"{value:.0f}"
    if unit == "points":
        return f"{100 * value:.1f} points"
    return f"1/{1 / value:.0f}" if value < 0.1 else f"{value:.2f}"


def cells(row: Row) -> str:
    """The row as it stands in a table."""
    mark = "" if row.good else " (missed)"
    detail = f" ({row.detail})" if row.detail else ""
    measured = f"{number(row.value, row.unit)}{mark}{detail}"
    return f"| {row.what} | {row.against} | {measured} | {number(row.reach, row.unit)} |"


BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
MEASURED = re.compile(r"^Measured on .*", re.MULTILINE)


def with_rows(text: str, rows: Sequence[Row], run: str = "") -> str:
    """A page's text, whose rows of the same two first cells are replaced by these, in every table.

    A row that the page lacks is put at the end of the table between the two marks. run: the date and the
    machine of all rows, for the line above this table, if they were measured together.
    ValueError if the page has no marks.
    """
    before, begin, marked = text.partition(BEGIN)
    table, end, after = marked.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    if run:
        table = MEASURED.sub(f"Measured on {run}.", table, count=1)
    table += "".join(f"{cells(row)}\n" for row in rows if f"\n{_first(row)}" not in text)
    lines = f"{before}{begin}{table}{end}{after}".split("\n")
    for row in rows:
        lines = [cells(row) if line.startswith(_first(row)) else line for line in lines]
    return "\n".join(lines)


def _first(row: Row) -> str:
    return f"| {row.what} | {row.against} |"


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table of their own."""
    lines = [
        f"Measured on {machine()}.",
        "",
        "| what | against | measured | reach |",
        "|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(cells, rows)])
