"""Have a notebook keep its widgets when the kernel was restarted before it was saved.

JupyterLab saves the states of the widgets that the kernel has, and after a restart it has none. Then the
notebook would say "model not found" in place of each widget when it is opened again. So the server takes the
states from the file as it was before. Where they were never saved, the widget's picture takes its place.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
STATES = "application/vnd.jupyter.widget-state+json"
REFERENCE = re.compile(r"IPY_MODEL_(\w+)")


def keep_widgets(model: dict[str, Any], path: str, contents_manager: Any, **_: Any) -> None:
    """Before a file is written. An error in here does not prevent the saving: Jupyter reports it."""
    notebook = model.get("content")
    if model.get("type") != "notebook" or not notebook:
        return
    kept = notebook.get("metadata", {}).get("widgets", {}).get(STATES)
    lost = [
        data
        for data in views(notebook)
        if data[VIEW]["model_id"] not in (kept or {}).get("state", {})
    ]
    if kept is None or not lost:  # None: the person has turned off that states are saved
        return
    before = states_of(Path(contents_manager.root_dir) / path)
    for data in lost:
        name = data[VIEW]["model_id"]
        if name in before:
            kept["state"] |= connected(name, before)
        elif len(data) > 2:  # more than the widget and its name as text
            del data[VIEW]


def views(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs that show a widget."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [output["data"] for output in outputs if VIEW in output.get("data", {})]


def states_of(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))["metadata"]["widgets"][STATES]["state"]
    except (OSError, ValueError, KeyError):
        return {}


def connected(name: str, states: dict[str, Any]) -> dict[str, Any]:
    """The state of a widget, and of all that refer to it or that it refers to, over any number of steps."""
    near: dict[str, set[str]] = {other: set() for other in states}
    for other, state in states.items():
        for part in near.keys() & REFERENCE.findall(json.dumps(state)):
            near[other].add(part)
            near[part].add(other)
    reached, new = {name}, [name]
    while new:
        more = near[new.pop()] - reached
        reached |= more
        new += more
    return {other: states[other] for other in states if other in reached}


# Jupyter reads this file twice, so that it finds the hook of the first time.
warnings.filterwarnings(
    "ignore", r"Overriding existing pre_save_hook \(keep_widgets\).*\(keep_widgets\)"
)
get_config().ContentsManager.pre_save_hook = keep_widgets  # noqa: F821  # pyright: ignore
