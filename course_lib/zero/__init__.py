"""ZeRO: which of the N copies of everything did we need?

    stage1.py     Zero1, the algorithm of Zero1Optimizer: optimizer state sharded
    stage2.py     Zero2, the algorithm of Zero2Optimizer: gradients too
    stage3.py     Zero3, the algorithm of Zero3Module: parameters too
    units.py      Unit: the parameters that are gathered, freed and reduced together

These build on the following modules:

    shards.py     flat padded shards: flatten_and_shard, ShardLayout
    gradients.py  gradients in a row, and this rank's shard of their mean
    bucket.py     Bucket: parameters in a row, and the shards the optimizer knows
    transport.py  the reduce-scatter and the all-gather under all of them
    backward.py   when a backward begins and ends

The next modules surround the algorithms, and you do not need them to understand the algorithms:

    optimizers.py         Zero1Optimizer, Zero2Optimizer, as a program uses them
    sharded_optimizer.py  what both have in common: torch.optim's interface, hooks, refusals, saving
    sharded_module.py     Zero3Module, as a program uses it
    saving.py             state that N ranks save and M ranks load
    offload.py            where shards are kept: device, host memory, mapped files
    arguments.py          checks of a sharded optimizer's arguments
    memory.py             memory_per_rank

The last module is for an optimizer that is not elementwise:

    muon.py       ShardedMuon: whole matrices on their owners

Scalers, clippers and everything else that reads gradients between backward and step find the optimizers'
gradients in `optimizer.shards` after `optimizer.average_gradients()`, and Zero3Module's gradients in its
`parameters()`.

The folder imports only torch, so it can be copied out as it is. The mean over the ranks is part of the
reduce-scatter. Each docstring states the cost of its stage, and `course_lib.facts` provides the costs as
functions.
"""

from .memory import memory_per_rank
from .muon import ShardedMuon, deal, muon_step, orthogonalize
from .offload import MappedFile, keep_state
from .optimizers import Zero1Optimizer, Zero2Optimizer
from .saving import merge_state_dicts
from .sharded_module import Zero3Module
from .shards import flatten_and_shard

__all__ = [
    "MappedFile",
    "ShardedMuon",
    "Zero1Optimizer",
    "Zero2Optimizer",
    "Zero3Module",
    "deal",
    "flatten_and_shard",
    "keep_state",
    "memory_per_rank",
    "merge_state_dicts",
    "muon_step",
    "orthogonalize",
]
