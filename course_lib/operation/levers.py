"""Pull one lever on a profile: how long would its step be, according to closed forms?

    lever              what changes                               what stays
    take host out      computing of the rank that is always last  its input, which the spare also reads
    balance            the work of the ranks                      the speed of a slow chip
    prefetch           data, as far as computing can hide it      computing
    save behind        checkpoint: only a memory copy stops it    the write, now behind the next steps
    more microbatches  bubble: half of it for twice as many       the work
    larger messages    messages: 1 instead of 16                  bytes
    faster network     beta: half the seconds for each byte       alpha, the start of a message

After each lever, bytes move again, and the ranks wait again for the last rank. The sizes (16, twice, a spare
as fast as the median) are only examples, because the lesson is in the closed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median
from typing import Any

from .symptoms import Profile

MERGED = 16  # messages that become one
TIMES = 2  # as many microbatches, and as fast a network
COPY = 1 / 30  # share of a save that is the copy: 2 s where the write takes 60 s


def pull(profile: Profile, lever: str) -> Profile:
    """The profile with one of LEVERS pulled. Every number the lever does not touch stays as it is."""
    return settled(replace(profile, **LEVERS[lever](profile)))


def settled(profile: Profile) -> Profile:
    """Let bytes move as alpha and beta say, and the ranks wait for the last: sets `moving` and `waiting`.

    A rank can hide no more than it computes, so `hidden` is limited to that.
    """
    came = arrivals(profile)
    counts = zip(profile.messages, profile.bytes, strict=True)
    return replace(
        profile,
        waiting=[max(came) - seconds for seconds in came],
        moving=[profile.alpha * messages + profile.beta * size for messages, size in counts],
        hidden=list(map(min, profile.hidden, profile.computing)),
    )


def arrivals(profile: Profile) -> list[float]:
    """When each rank reaches the collective, in seconds from the beginning of the step."""
    return [sum(both) for both in zip(profile.data, profile.computing, strict=True)]


def _spare(profile: Profile) -> dict[str, Any]:
    """A spare host, no slower than the median of the others. If no rank is named, no host is taken out."""
    computing = list(profile.computing)
    if profile.late is not None:
        rank = profile.late[0]
        others = computing[:rank] + computing[rank + 1 :]
        computing[rank] = min(computing[rank], median(others))
    return {"computing": computing}


def _balance(profile: Profile) -> dict[str, Any]:
    """Equal work for all. A rank that is always last already has it, but its chip is slow and stays slow."""
    slow = profile.late[0] if profile.late is not None else None
    equal = mean(seconds for rank, seconds in enumerate(profile.computing) if rank != slow)
    return {
        "computing": [
            seconds if rank == slow else equal for rank, seconds in enumerate(profile.computing)
        ]
    }


def _prefetch(profile: Profile) -> dict[str, Any]:
    """The next input is read while the rank computes, so only the time beyond that is left."""
    both = zip(profile.data, profile.computing, strict=True)
    return {"data": [max(0.0, data - computing) for data, computing in both]}


LEVERS: dict[str, Callable[[Profile], dict[str, Any]]] = {
    "take host out": _spare,
    "balance": _balance,
    "prefetch": _prefetch,
    "save behind": lambda run: {"checkpoint": [COPY * seconds for seconds in run.checkpoint]},
    "more microbatches": lambda run: {"bubble": run.bubble / TIMES},
    "larger messages": lambda run: {"messages": [-(-count // MERGED) for count in run.messages]},
    "faster network": lambda run: {"beta": run.beta / TIMES},
}
