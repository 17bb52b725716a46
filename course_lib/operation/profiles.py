"""Twelve runs to diagnose: drawn profiles of a step, eleven with a cause, and one healthy.

Every number is drawn from a seed, within limits that keep each cause clear of the rules' limits. A cause
costs 12 to 30 % of the step, and everything else costs less than 3 % each. The sick ranks are also drawn. So
you can recognise a run only by its profile, and not by its position in the list.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from .symptoms import Finding, Profile

RANKS = 8
GB = 1e9


def draw_profiles(seed: int) -> list[tuple[Profile, list[Finding]]]:
    """Twelve profiles and their findings, in a drawn order."""
    draw = Random(seed)
    runs = [_profile(draw, change) for change in CHANGES]
    draw.shuffle(runs)
    return runs


def _profile(draw: Random, change: Callable[..., list[Finding]]) -> tuple[Profile, list[Finding]]:
    """A healthy run, changed by its cause; then the ranks wait for the last rank."""

    def near(value: float) -> list[float]:
        return [value * draw.uniform(0.995, 1.005) for _ in range(RANKS)]

    run: dict[str, Any] = {
        "computing": near(draw.uniform(0.8, 1.6)), "data": near(0.004), "checkpoint": [0.0] * RANKS,
        "messages": [draw.randrange(40, 80)] * RANKS, "alpha": 2e-5, "beta": 1 / (25 * GB),
        "bytes": [draw.randrange(int(2e8), int(4e8))] * RANKS, "memory": 80 * GB,
        "peak_memory": near(draw.uniform(45, 60) * GB), "bubble": 0.0, "late": None,
    }  # fmt: skip
    findings = change(draw, run, draw.randrange(RANKS), draw.uniform(0.12, 0.3))
    wire = run["alpha"] * run["messages"][0] + run["beta"] * run["bytes"][0]
    run["moving"] = near(wire)
    run["hidden"] = [draw.uniform(0.1, 0.5) * seconds for seconds in run["computing"]]
    busy = [
        sum(kinds) for kinds in zip(run["computing"], run["data"], run["checkpoint"], strict=True)
    ]
    run["waiting"] = [max(busy) - seconds for seconds in busy]
    return Profile(**run), findings


# ---- causes: each changes a run, in which `rank` can be the sick one, and costs about `share` of the step


def _healthy(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    return []


def _straggler(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    delay = share / (1 - share) * run["computing"][rank]
    run["computing"][rank] += delay
    run["late"] = rank, delay / draw.randrange(8, 40)  # a step has that many collectives
    return [("straggler", rank)]


def _experts(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    """Popular experts give some ranks more tokens, but other ranks in each layer, so none is always last."""
    for sick in draw.sample(range(RANKS), 2):
        run["computing"][sick] *= 1 + 2 * share * draw.uniform(0.9, 1)
    return [("unequal work", None)]


def _stages(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    """The last stage has the head of a large vocabulary. In its own group no rank is late."""
    for last in (RANKS - 2, RANKS - 1):
        run["computing"][last] *= 1 + 2 * share
    return [("unequal work", None)]


def _bubble(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    run["bubble"] = share / (1 - share) * run["computing"][0]
    return [("bubble", None)]


def _latency(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    run["messages"] = [int(share / (1 - share) * run["computing"][0] / run["alpha"])] * RANKS
    return [("latency", None)]


def _bandwidth(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    run["bytes"] = [int(share / (1 - share) * run["computing"][0] / run["beta"])] * RANKS
    return [("bandwidth", None)]


def _data(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    seconds = share / (1 - share) * run["computing"][0]
    run["data"] = [seconds * draw.uniform(0.995, 1.005) for _ in range(RANKS)]
    return [("data", None)]


def _one_loader(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    """One rank's input is late, so the rank is late. The cause is its loader, not its chip."""
    run["data"][rank] += share / (1 - share) * run["computing"][rank]
    run["late"] = rank, run["data"][rank]
    return [("data", rank)]


def _checkpoint(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    run["checkpoint"] = [share / (1 - share) * run["computing"][0]] * RANKS
    return [("checkpoint", None)]


def _out_of_memory(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    """One rank is near its limit, and the next longer batch would end it. Its step is as fast as others."""
    run["peak_memory"][rank] = draw.uniform(0.97, 0.999) * run["memory"]
    return [("memory", rank)]


def _unequal_memory(draw: Random, run: dict, rank: int, share: float) -> list[Finding]:
    """One rank holds twice what the others hold, such as rank 0 with a state that was never sharded."""
    run["peak_memory"] = [draw.uniform(20, 22) * GB for _ in range(RANKS)]
    run["peak_memory"][rank] = draw.uniform(48, 60) * GB
    return [("memory", rank)]


CHANGES = (
    _healthy, _straggler, _experts, _stages, _bubble, _latency, _bandwidth, _data, _one_loader, _checkpoint,
    _out_of_memory, _unequal_memory,
)  # fmt: skip
