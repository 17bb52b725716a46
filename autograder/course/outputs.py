"""Outputs made fit to be kept: no timings, no paths of the machine, widgets under stable names."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOK_METADATA, ROOT
from autograder.course.twin import BuildError

# ipykernel's files of cells, and Colab's: /tmp/ipython-input-4-2084266668.py, or without the 4-
CELL_FILES = re.compile(r"/tmp/(?:ipykernel_\d+/|ipython-input-(?:\d+-)?)\d+\.py")

WIDGETS = "application/vnd.jupyter.widget-state+json"


def _machine_paths() -> list[tuple[re.Pattern[str], str]]:
    """Paths of this machine and their replacements, the longest first."""
    models = {
        sysconfig.get_path("purelib"): "site-packages",
        sysconfig.get_path("stdlib"): "python",
        sys.prefix: "environment",
        str(ROOT): "course",
        str(Path.home()): "~",
    }
    known = sorted((path for path in models if len(path) > 1), key=len, reverse=True)
    patterns = [(re.compile(re.escape(path) + r"(?=[/\s:'\"]|$)"), models[path]) for path in known]
    return [*patterns, (CELL_FILES, "cell")]


def clean(notebook: NotebookNode) -> NotebookNode:
    """The executed notebook, fit to be kept in the repository.

    Raises BuildError if a path of this machine stands in an output that the tests compare.
    """
    paths = _machine_paths()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        varies = "nbval-ignore-output" in cell.metadata.get("tags", [])
        for output in cell.get("outputs", []):
            changed = _replace_paths(output, paths)
            if changed and not varies:
                raise BuildError(
                    f"cell {cell['id']!r} prints a path of this machine, which other machines do "
                    "not have: print something else, or tag the cell nbval-ignore-output."
                )
    widgets = notebook.metadata.get("widgets")
    notebook.metadata = NotebookNode(NOTEBOOK_METADATA)
    if widgets:
        notebook.metadata["widgets"] = widgets
    return _rename_widgets(notebook)


def _texts(output: NotebookNode) -> Iterator[tuple[Any, Any, bool]]:
    """(container, key, compared by the tests?) of every text in an output."""
    for key in ("text", "ename", "evalue"):
        if key in output:
            yield output, key, True
    for index in range(len(output.get("traceback", []))):
        yield output["traceback"], index, False
    data = output.get("data", {})
    yield from ((data, mime, True) for mime in data if isinstance(data[mime], str))


def _replace_paths(output: NotebookNode, paths: list[tuple[re.Pattern[str], str]]) -> bool:
    """Replace this machine's paths in `output`; True if a compared text held one."""
    changed = False
    for container, key, compared in list(_texts(output)):
        if isinstance(key, str) and key.startswith("image/") and key != "image/svg+xml":
            continue
        text = container[key]
        for pattern, stand_in in paths:
            text = pattern.sub(stand_in, text)
        changed |= compared and text != container[key]
        container[key] = text
    return changed


def _rename_widgets(notebook: NotebookNode) -> NotebookNode:
    """Number the widgets' models in the order of their creation: their names are random."""
    models = notebook.metadata.get("widgets", {}).get(WIDGETS, {}).get("state", {})
    text = json.dumps(notebook)
    for number, model in enumerate(models):
        text = text.replace(model, f"{number:032x}")
    return nbformat.reads(text, as_version=4)
