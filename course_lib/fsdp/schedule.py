"""A training step as a list of actions: when each unit is gathered, computed, freed and reduced.

A sharded model gathers a unit's weights, computes with them and frees them again. Only the order of these
actions decides whether the wire works while the rank computes. So the order is a list, which can be
validated, simulated, drawn and executed:

    ("gather", i)      all-gather the weights of unit i
    ("forward", i)     compute unit i; its weights must be whole
    ("free", i)        keep only this rank's shard of unit i
    ("backward", i)    compute the gradients of unit i; its weights must be whole
    ("reduce", i)      reduce-scatter the gradients of unit i

Two rules make a step fast. First, gather the next units *before* this unit computes, so that they arrive
while it does. Second, in backward, gather unit i - 1 before the reduce of unit i. Messages go over one wire
in their order, and the next backward waits for the gather, but nothing waits for the reduce.

Source: Zhao et al., PyTorch FSDP, VLDB 2023, sections 3.3.2 (backward prefetch) and 3.3.3 (forward prefetch).
"""

from __future__ import annotations

from collections.abc import Iterable

Schedule = list[tuple[str, int]]


def fsdp_schedule(
    units: int,
    forward_prefetch: int = 1,
    backward_prefetch: int = 1,
    reshard: bool = True,
    keep_last: bool = True,
) -> Schedule:
    """The actions of a step, in the order in which the host issues them.

    Units are numbered in the order of forward. Before a unit computes, the next `forward_prefetch` units
    above it are also gathered, or in backward the `backward_prefetch` units below it. At most 1 + prefetch
    units are whole at the same time. reshard: free each unit after its forward. keep_last: but keep the last
    unit, since backward begins with it. Without reshard, nothing is gathered twice, and all units are whole
    at the turn.
    """
    actions: Schedule = []
    whole: set[int] = set()

    def gather(wanted: Iterable[int]) -> None:
        for unit in wanted:
            if unit in range(units) and unit not in whole:
                whole.add(unit)
                actions.append(("gather", unit))

    def free(unit: int) -> None:
        whole.remove(unit)
        actions.append(("free", unit))

    for unit in range(units):
        gather(range(unit, unit + forward_prefetch + 1))
        actions.append(("forward", unit))
        if reshard and not (keep_last and unit == units - 1):
            free(unit)
    for unit in reversed(range(units)):
        gather(range(unit, unit - backward_prefetch - 1, -1))  # i - 1 before the reduce of i
        actions.append(("backward", unit))
        free(unit)
        actions.append(("reduce", unit))
    return actions
