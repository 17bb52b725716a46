"""Fully sharded data parallelism: how ZeRO-3 is made fast, and the functions that training needs around it.

arguments.py    the shared part: a group's size, arguments that are refused
clip.py         clip_grad_norm_: the norm of a gradient that no rank holds as a whole; all pieces scaled alike
gather_int8.py  all_gather_int8: weights on the wire in eight bits, a scale for each block
hybrid.py       hybrid_groups, hybrid_reduce: sharded inside an island, replicas across islands
layout.py       which piece of which parameter lies where in a flat shard
module.py       PrefetchedModule: parameters sharded, each block gathered before it is needed
optimizer.py    the optimizer's part of a checkpoint, from shards and into shards
parts.py        units_of, Part: the parts of a module, each block and the root; the moments of a backward
pieces.py       Piece: the part of a parameter that a rank holds, as blocks that a checkpoint can hold
planners.py     how torch.distributed.checkpoint writes and reads pieces
precision.py    all_gather_cast, reduce_scatter_mean: weights travel in 16 bits, gradients are summed in 32
schedule.py     fsdp_schedule: a step as a list of actions
sharded.py      names, whole states and refusals of a sharded module
simulate.py     Times, simulate: when each action of a step runs
state.py        checkpoints that N ranks write and M ranks read, and those of `fully_shard`
units.py        Unit: parameters whose gather and whose reduction travel while a rank computes
validate.py     violation, validate: the first mistake of a list

The names are imported when they are first used: so the others can be used while an exercise hides a module.
With `course_lib/exports.py` the folder can be copied out: it imports torch only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exports import exports
from .parts import units_of
from .simulate import Simulation, Times, simulate
from .units import Unit
from .validate import ScheduleError, validate, violation

if TYPE_CHECKING:
    from .clip import clip_grad_norm_
    from .gather_int8 import all_gather_int8
    from .hybrid import hybrid_groups, hybrid_reduce
    from .module import PrefetchedModule
    from .precision import all_gather_cast, reduce_scatter_mean
    from .schedule import fsdp_schedule
    from .state import full_state_dict, load_checkpoint, load_full_state_dict, save_checkpoint

__getattr__, __dir__, __all__ = exports(__name__)
