"""The cell of a section "On your GPUs": predicted numbers next to numbers measured here or elsewhere."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable
from typing import Any

from IPython.display import HTML, display

from course_lib.gpu.experiment import Experiment, Measured, Row, measure, recorded, why_unused
from course_lib.runtime.errors import LaunchError, RankError, explained
from course_lib.unfinished import NOT_YET, said

PREFIXES = (
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
)
Prediction = Callable[[dict[str, Any], Measured], float]


def on_your_gpus(
    experiment: Experiment,
    predicted: Prediction | None = None,
    *,
    source: bool = True,
    **options: Any,
) -> Measured | None:
    """Print the experiment's rows, measured on this machine's GPUs or from a record, or else a line.

    predicted: predicted(row.of, run), in the row's unit, is printed next to each measured number; `run.card`
    is the GPU's data sheet. source: show the code that runs on each GPU, folded. options: further arguments
    of the experiment's body. Returns the run, or None if there is neither a GPU nor a record.
    """
    if source:
        fold(f"{experiment.title}: the code of each rank", inspect.getsource(experiment.body))
    run, failed = None, ""
    try:
        run = measure(experiment, **options)
    except (RankError, LaunchError) as error:
        failed = in_words(error)
    if failed:
        print(f"{failed}\nA recorded run takes its place, if there is one.")
    elif run is None and (why := why_unused()):
        print(why)
    run = run or recorded(experiment)
    if run is None:
        need = "one GPU" if experiment.ranks == 1 else f"{experiment.ranks} GPUs"
        print(f"{experiment.title}: no GPU run has been recorded yet. It needs {need}.")
        return None
    print(f"{experiment.title}, {run.where}")
    print("\n".join(table(run, predicted)))
    return run


def in_words(error: RankError | LaunchError) -> str:
    return explained(error) if isinstance(error, RankError) else str(error)


def table(run: Measured, predicted: Prediction | None) -> list[str]:
    """A line for each row, and one for a GPU without a data sheet."""
    width = max(len(row.what) for row in run.rows)
    lines, remarks = [], dict[str, None]()
    if predicted:
        lines.append(f"{'':{width}}  {'predicted':>14}  {'measured':>14}  measured / predicted")
    for row in run.rows:
        line = f"{row.what:{width}}"
        guess: Any = None
        if predicted:
            try:
                guess = None if row.value is None else said(predicted, row.of, run)
            except LookupError as missing:
                remarks[f"{missing}, so nothing is predicted."] = None
            line += f"  {text(guess, row.unit):>14}"
        line += f"  {text(row.value, row.unit):>14}"
        if guess and row.value:
            line += f"  {row.value / guess:.2f}"
        lines.append(line.rstrip())
    return lines + list(remarks)


def text(value: Any, unit: str) -> str:
    """A number with its unit, such as "1.25 ms"; "-" for None, "?" for a function not yet written."""
    if value is None or value is NOT_YET:
        return "-" if value is None else "?"
    if unit == "x":
        return f"{value:.3g} x"
    if unit == "tokens/s":
        return f"{value:,.0f} {unit}"
    scale, prefix = next(((s, p) for s, p in PREFIXES if abs(value) >= s), PREFIXES[-1])
    return f"{value / scale:.3g} {prefix}{unit}"


def fold(title: str, code: str) -> None:
    """Show code folded, below a line that opens it."""
    page = (
        f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(code)}</pre></details>"
    )
    display(HTML(page))


def rows_named(run: Measured, **of: Any) -> list[Row]:
    """The rows whose `of` has these entries."""
    return [row for row in run.rows if all(row.of.get(name) == value for name, value in of.items())]
