"""Recomputation: activations that are not stored, are stored elsewhere, or never exist as a whole.

    checkpointing.py checkpoint: keep a function's arguments, and run it again in backward
    lazy.py          lazy_checkpoint: the same by hooks on what autograd keeps; it can stop early
    segments.py      best_segment, run_segments: a checkpoint every how many layers
    offload.py       offload_saved: kept tensors wait in a file, or in the host's memory
    in_backward.py   step_in_backward: each parameter's step as soon as its gradient is there
    chunks.py        chunked_loss: cross entropy without the (tokens, vocabulary) matrix

The folder imports torch alone and can be copied out. The names are imported when they are first used: so the
others can be used while an exercise hides a module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .in_backward import step_in_backward
from .offload import Offloaded, offload_saved

if TYPE_CHECKING:
    from .checkpointing import checkpoint
    from .chunks import chunked_loss
    from .lazy import lazy_checkpoint
    from .segments import best_segment, run_segments

__all__ = [
    "Offloaded",
    "best_segment",
    "checkpoint",
    "chunked_loss",
    "lazy_checkpoint",
    "offload_saved",
    "run_segments",
    "step_in_backward",
]

_MODULES = {
    "best_segment": "segments",
    "checkpoint": "checkpointing",
    "chunked_loss": "chunks",
    "lazy_checkpoint": "lazy",
    "run_segments": "segments",
}


def __getattr__(name: str) -> Any:
    """A public name, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
