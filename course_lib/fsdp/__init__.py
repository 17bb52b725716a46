"""Fully sharded data parallelism: how ZeRO-3 is made fast, and the functions training needs around it.

arguments.py       the shared part: a group's size, arguments that are refused
clip.py            clip_grad_norm_: the norm of a gradient of which no rank holds all; all pieces scaled alike
gather_int8.py     all_gather_int8: weights on the wire in eight bits, a scale for each block
hybrid.py          hybrid_groups, hybrid_reduce: sharded inside an island, replicas across islands
inner_backward.py  a backward inside a backward, which a reentrant checkpoint starts
layout.py          where each piece of each parameter is in a flat shard
module.py          PrefetchedModule: parameters sharded, each block gathered before it is needed
optimizer.py       the optimizer's part of a checkpoint, from shards and into shards
parts.py           units_of, Part: the parts of a module, each block and the root; the moments of a backward
pieces.py          Piece: the part of a parameter a rank holds, as blocks that fit into a checkpoint
planners.py        how torch.distributed.checkpoint writes and reads pieces
precision.py       all_gather_cast, reduce_scatter_mean: weights travel in 16 bits, gradients are summed in 32
schedule.py        fsdp_schedule: a step as a list of actions
sharded.py         names, whole states and refusals of a sharded module
simulate.py        Times, simulate: when each action of a step runs
state.py           checkpoints that N ranks write and M ranks read, also for `fully_shard`
units.py           Unit: parameters whose gather and whose reduction travel while a rank computes
validate.py        violation, validate: the first mistake of a list

Each name is imported when it is first used, so that the others work while an exercise hides a module. The
folder imports only torch, so it can be copied out together with `course_lib/exports.py`.
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
