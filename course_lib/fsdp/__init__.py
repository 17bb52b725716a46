"""Fully sharded data parallelism: how ZeRO-3 is made fast, and the functions that training needs around it.

arguments.py    the shared part: a group's size, arguments that are refused
clip.py         clip_grad_norm_: the norm of a gradient that no rank holds as a whole; all pieces scaled alike
gather_int8.py  all_gather_int8: weights on the wire in eight bits, a scale for each block
hybrid.py       hybrid_groups, hybrid_reduce: sharded inside an island, replicas across islands
layout.py       which piece of which parameter lies where in a flat shard
optimizer.py    the optimizer's part of a checkpoint, from shards and into shards
pieces.py       Piece: the part of a parameter that a rank holds, as blocks that a checkpoint can hold
planners.py     how torch.distributed.checkpoint writes and reads pieces
precision.py    all_gather_cast, reduce_scatter_mean: weights travel in 16 bits, gradients are summed in 32
state.py        checkpoints that N ranks write and M ranks read, and those of `fully_shard`

The names are imported when they are first used: so the others can be used while an exercise hides a module.
The folder imports torch only and can be copied out as it is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clip import clip_grad_norm_
    from .gather_int8 import all_gather_int8
    from .hybrid import hybrid_groups, hybrid_reduce
    from .precision import all_gather_cast, reduce_scatter_mean
    from .state import full_state_dict, load_checkpoint, load_full_state_dict, save_checkpoint

__all__ = [
    "all_gather_cast",
    "all_gather_int8",
    "clip_grad_norm_",
    "full_state_dict",
    "hybrid_groups",
    "hybrid_reduce",
    "load_checkpoint",
    "load_full_state_dict",
    "reduce_scatter_mean",
    "save_checkpoint",
]

_MODULES = {
    "all_gather_cast": "precision",
    "all_gather_int8": "gather_int8",
    "clip_grad_norm_": "clip",
    "full_state_dict": "state",
    "hybrid_groups": "hybrid",
    "hybrid_reduce": "hybrid",
    "load_checkpoint": "state",
    "load_full_state_dict": "state",
    "reduce_scatter_mean": "precision",
    "save_checkpoint": "state",
}


def __getattr__(name: str) -> Any:
    """A public name, from its module. It is not cached: the module may be hidden later."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
