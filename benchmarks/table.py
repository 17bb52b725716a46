"""Rows of the benchmark table, and how it is printed."""

from __future__ import annotations

import datetime
import os
import platform
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


def with_rows(text: str, rows: Sequence[Row]) -> str:
    """A page's text, whose rows of the same two first cells are replaced by these."""
    lines = text.split("\n")
    for row in rows:
        begin = f"| {row.what} | {row.against} |"
        lines = [cells(row) if line.startswith(begin) else line for line in lines]
    return "\n".join(lines)


def markdown(rows: Sequence[Row]) -> str:
    """The table as it stands in docs/benchmarks.md."""
    lines = [
        f"Measured on {machine()}.",
        "",
        "| what | against | measured | reach |",
        "|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(cells, rows)])
