"""A rank's memory, computed only from the order of its actions, however long each of them takes."""

from __future__ import annotations

from .actions import Action, Schedule, flat


def peak_activations(schedule: Schedule, weight_share: float = 0) -> list[float]:
    """For each rank, the most activations it holds at the same time, in units of one stage and microbatch.

    A forward adds one activation, and its backward B frees it. In a backward in halves, I frees all except
    `weight_share`, and W frees the rest. With weight_share 0, only activations that await B or I count. With
    1, nothing is free before W. Take the memory of W divided by the memory of B for a value in between,
    32 / (34 + 5 a s / h) for a transformer (Qi et al. 2024, table 1). A pair adds the activation of its
    forward before it frees the activation of its backward.
    """
    change = {"F": 1, "B": -1, "I": weight_share - 1, "W": -weight_share}
    peaks = []
    for row in schedule:
        held = peak = 0
        for action in flat(row):
            held += change[action.kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def weight_versions(schedule: Schedule) -> dict[Action, int]:
    """The version of the stage's weights seen by each F and B, if every B ends with an update (PipeDream).

    Version k is the version after k updates. If a microbatch's forward saw an older version than its
    backward, its gradient belongs to neither version, unless the stage kept the older one in a weight stash.
    On stage i of p, 1F1B puts p - 1 - i updates between the two, so p - i versions are kept.
    Raises ValueError on a backward in halves, because PipeDream updates after whole backwards.
    """
    versions: dict[Action, int] = {}
    updates: dict[int, int] = {}
    for row in schedule:
        for action in flat(row):
            if action.kind not in ("F", "B"):
                raise ValueError(
                    f"{action}: updates follow whole backwards; write B in place of I and W"
                )
            versions[action] = updates.get(action.stage, 0)
            updates[action.stage] = versions[action] + (action.kind == "B")
    return versions
