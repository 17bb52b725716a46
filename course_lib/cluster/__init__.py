"""A cluster that nobody here has: which wire does an axis use, does a layout fit, how long is its step?

topology.py    Cluster, Wire: GPUs in nodes, and the link that a group of ranks shares
layout.py      Layout: how many ranks each axis has, and how a step is cut; the first reason against it
roofline.py    a layer against the clock of one GPU: products, and the bytes of everything else
memory.py      memory_per_gpu: states and activations of the GPU that holds most
step_time.py   step_seconds, step_parts: where a step's time goes
advisor.py     advise: every layout judged, with the first reason why it was dropped; best_layout
strategy.py    strategy_advisor: the verdicts as a widget, with bars of memory and time
replay.py      a recorded run, done again on other wires; a schedule of many stages on the clock
published.py   published steps, row by row, the one constant that is fitted, and how far the rest is off

The names that an exercise asks for are imported when they are first used, so that the others can be used
while these are hidden.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .layout import AXES, Layout
from .topology import Cluster, Wire

if TYPE_CHECKING:
    from .advisor import Verdict, advise, best_layout
    from .memory import memory_per_gpu
    from .step_time import step_seconds

__all__ = [
    "AXES",
    "Cluster",
    "Layout",
    "Verdict",
    "Wire",
    "advise",
    "best_layout",
    "memory_per_gpu",
    "step_seconds",
]

_MODULES = {
    "Verdict": "advisor",
    "advise": "advisor",
    "best_layout": "advisor",
    "memory_per_gpu": "memory",
    "step_seconds": "step_time",
}


def __getattr__(name: str) -> Any:
    """A name that an exercise asks for, from its module. It is not cached: it may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
