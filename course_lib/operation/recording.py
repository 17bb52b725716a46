"""The run of the operations room: 16 ranks, 60 steps, and five incidents with quiet stretches between them.

    recording = record(seed=12)
    recording.profiles[17].step(), recording.loss[17]

It has the form of a recorded run, but every number is drawn from a seed, using the model of profiles.py. An
incident costs 15 to 25 % of a step, and everything else costs less than 3 % each. The ranks are replicas of
one stage of a pipeline, so all of them do the same. They meet once per step, when they add up their
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from .lateness import find_straggler
from .levers import arrivals, settled
from .symptoms import Finding, Profile

RANKS, STEPS = 16, 60
LENGTH = 6  # steps of an incident; a save that stops all has one
WINDOW = 4  # steps before a step and after it, in which a straggler is looked for
UNEQUAL: Finding = ("unequal work", None)
GB = 1e9
STATE, ACTIVATIONS = 42 * GB, 14 * GB  # of a rank with as much work as the mean


@dataclass(frozen=True)
class Recording:
    """A profile and a loss for each step, and the steps of each incident by its finding."""

    profiles: list[Profile]
    loss: list[float]
    incidents: dict[Finding, range]


def record(seed: int) -> Recording:
    """A run with an incident in each fifth of its steps, in a drawn order.

    The popular experts can be on the same rank in so many steps that `find_straggler` names it, in one of 200
    runs. Such a run is drawn again.
    """
    draw = Random(seed)
    while True:
        recording = _drawn(draw)
        if all(recording.profiles[step].late is None for step in recording.incidents[UNEQUAL]):
            return recording


def _drawn(draw: Random) -> Recording:
    base, bubble = draw.uniform(0.9, 1.3), draw.uniform(0.02, 0.03)
    steps = [_quiet(draw, base, bubble) for _ in range(STEPS)]
    straggler, reader = draw.sample(range(RANKS), 2)
    changes: list[tuple[Finding, Callable[..., None], int]] = [
        (("straggler", straggler), _straggler, LENGTH),
        (UNEQUAL, _unequal, LENGTH),
        (("data", reader), _slow_data, LENGTH),
        (("checkpoint", None), _checkpoint, 1),
        (("latency", None), _latency, LENGTH),
    ]
    draw.shuffle(changes)
    incidents = dict[Finding, range]()
    fifth = STEPS // len(changes)
    for place, (finding, change, length) in enumerate(changes):
        first = place * fifth + draw.randrange(WINDOW, fifth - LENGTH + 1)
        incidents[finding] = range(first, first + length)
        share = draw.uniform(0.15, 0.25)
        for step in incidents[finding]:
            change(draw, steps[step], finding[1], share / (1 - share) * base)
    loss = [2.2 + 0.8 * (1 + step / 20) ** -0.5 + draw.gauss(0, 0.01) for step in range(STEPS)]
    return Recording(_met(draw, steps), loss, incidents)


def window(step: int) -> range:
    """The steps around this one, in which a straggler is looked for."""
    return range(max(0, step - WINDOW), min(STEPS, step + WINDOW + 1))


def _met(draw: Random, steps: list[dict[str, Any]]) -> list[Profile]:
    """The profiles. Peaks of memory follow from the work; waiting and `late` follow from the arrivals."""
    profiles = []
    for run in steps:
        work = run.pop("work")
        run["peak_memory"] = _near(draw, [STATE + ACTIVATIONS * share for share in work])
        run["hidden"] = _near(draw, [0.3 * seconds for seconds in run["computing"]])
        profiles.append(settled(Profile(**run, waiting=[], moving=[])))
    came = [arrivals(profile) for profile in profiles]
    return [
        replace(profile, late=find_straggler([came[near] for near in window(step)]))
        for step, profile in enumerate(profiles)
    ]


def _near(draw: Random, values: list[float]) -> list[float]:
    return [value * draw.uniform(0.995, 1.005) for value in values]


def _quiet(draw: Random, base: float, bubble: float) -> dict[str, Any]:
    """The parts of a step in which nothing happens. `work` is each rank's work divided by the mean."""
    return {
        "work": [1.0] * RANKS, "computing": _near(draw, [base] * RANKS),
        "data": _near(draw, [0.004] * RANKS), "checkpoint": [0.0] * RANKS, "bubble": bubble * base,
        "messages": [60] * RANKS, "bytes": [int(3e8)] * RANKS, "alpha": 2e-5, "beta": 1 / (25 * GB),
        "memory": 80 * GB,
    }  # fmt: skip


# ---- incidents: each adds about `extra` seconds to a step


def _straggler(draw: Random, run: dict, rank: int, extra: float) -> None:
    """The chip of one rank is slow."""
    run["computing"][rank] += extra


def _unequal(draw: Random, run: dict, rank: None, extra: float) -> None:
    """Two ranks have the popular experts, other ranks in each step. All others have so much less to do."""
    popular = draw.sample(range(RANKS), 2)
    more = [extra / run["computing"][rank] * draw.uniform(0.9, 1) for rank in popular]
    run["work"] = [1 - sum(more) / (RANKS - 2)] * RANKS
    for sick, part in zip(popular, more, strict=True):
        run["work"][sick] = 1 + part
    run["computing"] = [
        share * seconds for share, seconds in zip(run["work"], run["computing"], strict=True)
    ]


def _slow_data(draw: Random, run: dict, rank: int, extra: float) -> None:
    """One rank's input comes from a slow disk."""
    run["data"][rank] += extra


def _checkpoint(draw: Random, run: dict, rank: None, extra: float) -> None:
    """A save stops all ranks until the last has written its part."""
    run["checkpoint"] = [extra] * RANKS


def _latency(draw: Random, run: dict, rank: None, extra: float) -> None:
    """The same bytes in thousands of messages: someone has made the buckets tiny."""
    run["messages"] = [run["messages"][0] + int(extra / run["alpha"])] * RANKS
