"""A notebook that is run from the top, in a kernel and a folder of its own; the file stays as it is."""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from course_lib.checks.colour import plain

LONG = 20.0  # seconds after which a cell that still runs is named


class CellTooLong(Exception):
    """A cell that ran longer than a cell may."""

    def __init__(self, cell: dict[str, Any]):
        super().__init__("a cell ran too long")
        self.cell = cell


def run(path: Path, minutes: float) -> list[dict[str, Any]]:
    """The notebook's cells after a run in a new kernel; the file is not written. Can raise CellTooLong."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError

    notebook = nbformat.reads(path.read_text(encoding="utf-8-sig"), as_version=4)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    begun: list[Any] = []
    timers: list[threading.Timer] = []

    def on_cell_start(cell: Any, cell_index: int) -> None:
        begun.append(cell)
        _progress(codes, cell)
        for timer in timers:
            timer.cancel()
        timers[:] = [threading.Timer(LONG, _still_runs, [cell, minutes])]
        timers[0].start()

    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name=kernel_of(notebook),
            timeout=math.ceil(60 * minutes),  # older traitlets, as Colab's 5.7, refuse a float here
            allow_errors=True,
            shutdown_kernel="immediate",
            resources={"metadata": {"path": folder}},
            on_cell_start=on_cell_start,
        )
        handlers = _handlers()
        try:
            # Remarks of the kernel's process on itself are not meant for a student.
            client.execute(env={**os.environ, "NO_COLOR": "1"}, stdout=DEVNULL, stderr=DEVNULL)
        except CellTimeoutError as error:
            raise CellTooLong(begun[-1]) from error
        except AssertionError as error:
            if client.km is not None:
                raise
            raise KeyboardInterrupt from error  # nbclient, interrupted, looks for a kernel that it has ended
        finally:
            if client.km is None:  # nbclient would complain about this at the end of the program
                atexit.unregister(client._cleanup_kernel)
            for number, handler in handlers.items():  # nbclient's stay if no kernel started
                signal.signal(number, handler)
            for timer in timers:
                timer.cancel()
            _progress(codes, None)
    return notebook.cells


def _handlers() -> dict[int, Any]:
    """The handlers of the signals that nbclient handles. Only the main thread may set them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in before.items() if handler is not None}


def kernel_of(notebook: Any) -> str:
    """The kernel that the notebook names, or Python's own if another machine had the one it names."""
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager

    name = notebook.metadata.get("kernelspec", {}).get("name", "")
    return name if name in KernelSpecManager().find_kernel_specs() else NATIVE_KERNEL_NAME


def _still_runs(cell: Any, minutes: float) -> None:
    """Two lines for a cell that takes long, so that a wait has a reason, and an end."""
    _progress([], None)
    print(f"    {LONG:g} seconds so far {where(cell)}")
    print(
        f"      (a cell may run for {minutes_in_words(minutes)}; Ctrl-C ends the whole command)",
        flush=True,
    )


def _progress(codes: list[Any], cell: Any) -> None:
    """A line that counts the cells, at a terminal. It is erased at the end."""
    if not sys.stderr.isatty():
        return
    if cell is None:
        sys.stderr.write("\r\x1b[K")
    elif cell in codes:
        sys.stderr.write(f"\r\x1b[K  cell {codes.index(cell) + 1} of {len(codes)}")
    sys.stderr.flush()


def minutes_in_words(minutes: float) -> str:
    return f"{minutes:g} minute{'s' * (minutes != 1)}"


def error_of(cell: dict[str, Any]) -> str:
    """The first line of the cell and its error, if it ended in an error the notebook does not want."""
    if "raises-exception" in cell.get("metadata", {}).get("tags", []):
        return ""
    for output in cell.get("outputs", []):
        if output.get("output_type") == "error":
            kind, text = output.get("ename"), str(output.get("evalue"))
            said = text if text.lower().startswith(f"{kind}: ".lower()) else f"{kind}: {text}"
            said = plain(said).splitlines()[0].removesuffix(".")
            return f"{said}, {where(cell)}"
    return ""


def where(cell: dict[str, Any]) -> str:
    line = next((line for line in cell["source"].splitlines() if line.strip()), "")
    return f"in the cell that begins with {line.strip()!r}"
