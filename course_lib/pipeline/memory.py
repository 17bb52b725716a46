"""What the order of the actions alone says of a rank's memory, however long each of them takes."""

from __future__ import annotations

from .actions import Action, Schedule, flat


def peak_activations(schedule: Schedule, weight_share: float = 0) -> list[float]:
    """For each rank, the most activations that it holds at once, in units of one stage and microbatch.

    A forward adds one; the backward that takes it frees it, a backward in halves all but `weight_share`,
    which its W frees. 0: count what awaits B or I. 1: nothing is free before W. Between: the memory of W
    over that of B, 32 / (34 + 5 a s / h) for a transformer (Qi et al. 2024, table 1).
    A pair holds the forward's before it frees the backward's.
    """
    change = {"F": 1, "B": -1, "I": weight_share - 1, "W": -weight_share}
    peaks = []
    for row in schedule:
        held = peak = 0
        for one in flat(row):
            held += change[one.kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def weight_versions(schedule: Schedule) -> dict[Action, int]:
    """The version of its stage's weights that each F and B sees, if every B ends with an update (PipeDream).

    Version k is after k updates. A microbatch whose forward saw an older version than its backward finds
    has a gradient of neither, unless its stage kept that version: the weight stash. On stage i of p,
    1F1B leaves p - 1 - i updates between the two, so p - i versions are kept.
    Raises ValueError on a backward in halves: PipeDream updates after whole ones.
    """
    versions: dict[Action, int] = {}
    updates: dict[int, int] = {}
    for row in schedule:
        for one in flat(row):
            if one.kind not in ("F", "B"):
                raise ValueError(
                    f"{one}: updates follow whole backwards; write B in place of I and W"
                )
            versions[one] = updates.get(one.stage, 0)
            updates[one.stage] = versions[one] + (one.kind == "B")
    return versions
