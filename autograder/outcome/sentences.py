"""Grading's sentences on events in a notebook's process."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from autograder.outcome import statuses
from autograder.outcome.limits import Limits

LONGEST_QUOTE = 200  # characters
LONGEST_LINE = 60
NOTEBOOK, RANKS = ("the notebook", "it"), ("the ranks of its check", "they")


def of_cell(name: str | None, number: int, source: str) -> str:
    """A cell as a student finds it: by its exercise, or by its number and its first line."""
    if name:
        return f"cell {name!r}"
    first = next(line.strip() for line in source.splitlines() if line.strip())
    shown = first if len(first) <= LONGEST_LINE else f"{first[:LONGEST_LINE]} ..."
    return f"cell In[{number}], which begins with {shown!r}"


def of_limit(limit: str, limits: Limits, error: str = "", whose: tuple[str, str] = NOTEBOOK) -> str:
    """The sentence for a status of `statuses.LIMITS` that a cell or the sandbox reached.

    error: the type of the exception that the cell raised because of it. whose: NOTEBOOK or RANKS.
    """
    who, it = whose
    said = {
        statuses.OUT_OF_MEMORY: f"{who} used more than the {size(limits.memory)} of memory that {it} may use",
        statuses.DISK_FULL: f"{who} wrote more than the {size(limits.disk)} that {it} may write",
        statuses.TOO_MANY_PROCESSES: f"{who} started more processes or threads than {it} may "
        f"({limits.processes})",
        statuses.TOO_MANY_FILES: f"{who} opened more files at a time than {it} may ({limits.descriptors})",
    }.get(limit, f"{who} reached a limit: {limit}")
    return f"{said} ({error})" if error else said


def of_output(printed: int, left_out: int, limits: Limits) -> str:
    """The sentence for a cell that printed so many bytes, or of whose outputs some were left out."""
    if left_out:
        return f"the cell showed more than is kept; {left_out:,} outputs were left out"
    return f"the cell printed {printed:,} bytes; {limits.output:,} are kept"


def of_large(size_of_it: int, kind: str, most: int) -> str:
    """The sentence for an output of a cell that is too large to be kept."""
    return (
        f"an output of {size(size_of_it)} ({kind}) was left out; at most {size(most)} of one are kept: "
        "show less of it"
    )


EXITS = (
    "it called exit() or sys.exit(), which ends only this cell while a notebook is graded: take it out, "
    "and end a function with return"
)


def of_error(error: str, outputs: Sequence[dict]) -> str:
    """The sentence for a cell's exception whose type alone would not explain it; else "".

    outputs: the cell's.
    """
    if error == "SystemExit":
        return EXITS
    if error == "EOFError" and any("input()" in output.get("evalue", "") for output in outputs):
        return (
            "it called input(), which gets no answer while a notebook is graded: write the answer "
            "into the code"
        )
    return ""


def quoted(error: str, outputs: Sequence[dict]) -> str:
    """A cell's exception as the cell shows it: "NameError: name 'x' is not defined". error: the type."""
    shown = [output for output in outputs if output.get("output_type") == "error"]
    text = " ".join(str(shown[-1].get("evalue", "")).split()) if shown else ""
    cut = text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]} ..."
    return f"{error}: {cut}" if cut else error


def of_end(exit_code: int | None) -> str:
    """The sentence for a process that ended by itself; None: it only stopped talking."""
    if exit_code is None:
        return "the notebook's process closed its channel to grading and was ended"
    if exit_code >= 0:
        return f"the notebook's process ended itself (exit code {exit_code})"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"the notebook's process was ended by {name}"


def size(amount: int) -> str:
    """1073741824 -> "1 GB"."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if amount >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount} bytes"
