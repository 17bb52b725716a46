"""Collective communication, written on point-to-point messages only.

One file for each idea:

    ring.py      a ring: reduce_scatter, all_gather, ring_all_reduce, hierarchical_all_reduce
    tree.py      trees: broadcast, reduce, double_binary_tree_all_reduce
    doubling.py  partners at distance 1, 2, 4, ...: recursive_doubling_all_reduce,
                 rabenseifner_all_reduce, barrier
    direct.py    straight to where it belongs: scatter, gather, all_to_all
    messages.py  the shared part: a round of messages, tensors as contiguous rows

The folder imports only torch, so it can be copied out as it is.

The functions work in any group and for any number of ranks. They take tensors of any size, contiguous or
not, on the device of the group's backend, and of any dtype that can be sent (and added, if a sum is asked
for). `src` and `dst` are ranks of the whole world, as in torch.distributed. Each docstring states the
function's cost, and `course_lib.facts` provides the costs as functions of N and M.
"""

from .direct import all_to_all, gather, scatter
from .doubling import (
    barrier,
    rabenseifner_all_reduce,
    recursive_doubling_all_reduce,
)
from .ring import (
    all_gather,
    hierarchical_all_reduce,
    reduce_scatter,
    ring_all_reduce,
)
from .tree import broadcast, double_binary_tree_all_reduce, reduce

__all__ = [
    "all_gather",
    "all_to_all",
    "barrier",
    "broadcast",
    "double_binary_tree_all_reduce",
    "gather",
    "hierarchical_all_reduce",
    "rabenseifner_all_reduce",
    "recursive_doubling_all_reduce",
    "reduce",
    "reduce_scatter",
    "ring_all_reduce",
    "scatter",
]
