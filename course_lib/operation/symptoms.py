"""Symptoms, causes and levers: from a step's seconds by rank to the cause.

    kind          in the profile                                          first lever
    straggler     one rank is last, and the others wait for it            take its host out
    unequal work  some ranks compute longer, but none is always last      balance experts, move layers
    data          seconds before the step's input is ready                more loaders, prefetching
    checkpoint    seconds in saves                                        save behind, or less often
    bubble        stages without a microbatch                             more microbatches, interleaving
    latency       moving, and most of it is a start per message           fewer and larger messages
    bandwidth     moving, and most of it is bytes                         overlap, fewer bytes, another axis
    memory        a rank near its limit, or with twice the others' peak   shard, recompute, balance stages

Waiting is not a finding, because it is only the trace of a cause on another rank. A cause counts if it costs
at least 5 % of the step, so a healthy run has none. Memory costs nothing until there is none left, so it
counts by its peak.

Source: the rules and their limits are this course's own. The kinds come from Jiang et al., MegaScale, NSDI
2024, sections 5 and 6, and Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

COSTS = 0.05  # of the step, from which on a cause counts
UNEQUAL = 1.1  # the busiest rank's computing over the mean
FULL = 0.95  # of a GPU's memory

Finding = tuple[str, int | None]


@dataclass(frozen=True)
class Profile:
    """One step. Lists have one number per rank, in seconds except for `messages`, `bytes` and `peak_memory`.

    alpha, beta: seconds per message, and per byte. memory: bytes of a GPU. bubble: seconds during which a
    rank has no microbatch. late: the result of `find_straggler`, in groups of ranks that do the same.
    """

    computing: Sequence[float]
    waiting: Sequence[float]
    moving: Sequence[float]
    hidden: Sequence[float]
    data: Sequence[float]
    checkpoint: Sequence[float]
    messages: Sequence[int]
    bytes: Sequence[int]
    peak_memory: Sequence[float]
    alpha: float
    beta: float
    memory: float
    bubble: float = 0.0
    late: tuple[int, float] | None = None

    def step(self) -> float:
        """Seconds of the step on the rank that takes longest. hidden is a part of computing."""
        kinds = (self.computing, self.waiting, self.moving, self.data, self.checkpoint)
        return self.bubble + max(map(sum, zip(*kinds, strict=True)))


def diagnose(profile: Profile) -> list[Finding]:
    """(kind, rank) of each cause that costs at least 5 % of the step, and of memory that runs out.

    It returns [] if the step is healthy. The rank is the one with the cause, or None if many ranks have it.
    """
    least = COSTS * profile.step()
    findings = list[Finding]()
    apart = [
        _apart(profile.data, least),
        _apart(profile.checkpoint, least),
    ]  # one rank's, or no one's
    for kind, seconds, rank in zip(
        ("data", "checkpoint"), (profile.data, profile.checkpoint), apart, strict=True
    ):
        if rank is not None or median(seconds) >= least:
            findings.append((kind, rank))
    if profile.late is not None and profile.late[0] not in apart:
        if mean(profile.waiting) >= least:
            findings.append(("straggler", profile.late[0]))
    elif profile.late is None and max(profile.computing) > UNEQUAL * mean(profile.computing):
        findings.append(("unequal work", None))
    if profile.bubble >= least:
        findings.append(("bubble", None))
    if (moving := median(profile.moving)) >= least:
        starts = profile.alpha * median(profile.messages)
        findings.append(("latency" if starts > moving / 2 else "bandwidth", None))
    fullest = max(range(len(profile.peak_memory)), key=lambda rank: profile.peak_memory[rank])
    peak = profile.peak_memory[fullest]
    if peak > FULL * profile.memory or peak > 2 * median(profile.peak_memory):
        findings.append(("memory", fullest))
    return findings


def _apart(seconds: Sequence[float], least: float) -> int | None:
    """The only rank that has more than the others, by `least`; None if there is none."""
    *_, second, first = sorted(seconds)
    return list(seconds).index(first) if first - second >= least else None
