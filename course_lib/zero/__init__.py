"""ZeRO: which of the N copies of everything did we need?

    shards.py     flat padded shards; memory_per_rank, flatten_and_shard
    stage1.py     Zero1Optimizer: optimizer state sharded
    stage2.py     Zero2Optimizer: gradients too
    stage3.py     Zero3Module: parameters too
    units.py      what Zero3Module gathers at a time
    offload.py    where shards lie: device, host memory, mapped files
    saving.py     state that N ranks save and M ranks load
    transport.py  the reduce-scatter and the all-gather under all of them
    arguments.py  what a sharded optimizer can be made of

The folder imports torch only and can be copied out as it is. The mean over the ranks is part of the
reduce-scatter. What each stage costs is in its docstring and, as functions, in `course_lib.facts`.
"""

from .offload import MappedFile, keep_state
from .saving import merge_state_dicts
from .shards import flatten_and_shard, memory_per_rank
from .stage1 import Zero1Optimizer
from .stage2 import Zero2Optimizer
from .stage3 import Zero3Module

__all__ = [
    "MappedFile",
    "Zero1Optimizer",
    "Zero2Optimizer",
    "Zero3Module",
    "flatten_and_shard",
    "keep_state",
    "memory_per_rank",
    "merge_state_dicts",
]
