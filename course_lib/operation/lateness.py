"""Which rank is slow: by how often it comes last, and not by blame.

Some rank always comes last. Among n equal ranks each is last in one of n collectives, and by chance more
often: 12 times in 39 collectives of four ranks is ordinary. With c collectives the number of times that one
rank is last is binomial, P(X = m) = C(c, m) (1/n)^m (1 - 1/n)^(c - m), and that *some* rank is last at
least m times has at most n times that rank's probability. If this is below 1 - confidence, chance is not
the cause.

How slow is it? In each collective the rank is late by its time minus the latest of the others: so much sooner
all could have begun. The median of it is not moved by one pause of two seconds, as the mean would be.

The rank that waits most is the fastest. And compare ranks that do the same: in a pipeline the last stage is
late because of its place, so look inside the groups of dp or tp.

The binomial distribution takes the collectives as independent. On a busy machine they are not, because a
rank is late for a while: with 159 collectives of four equal ranks at a load of 15 on two cores, a rank was
named in 2 of 6 runs, with a median below 0.4 ms. So look at the seconds before you call anyone. With 39
collectives at such a load equal ranks were named in 0 of 12 runs, and one slower by 5 ms in 8 of 8, by 2 ms
in 6 of 8.

Sources: the binomial tail with the factor n is Bonferroni's bound. Jiang et al., MegaScale, NSDI 2024:
section 5.1, slow machines (about 0.5 % of them) found by a heat map of each rank's times; section 6.3,
hosts that need about 10 % more time for the same forward, whose removal gained about 0.7 % of MFU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any


def find_straggler(
    arrivals: Sequence[Sequence[float]], confidence: float = 0.99
) -> tuple[int, float] | None:
    """(rank, seconds) of the rank that is last more often than chance has it; None if there is none.

    arrivals[k][r]: the time at which rank r called collective k. If several are last at the same time, each
    counts as last. The seconds are the median over all collectives of the rank's time minus the latest of
    the others; in a single one it may be negative.
    """
    if not arrivals or len(arrivals[0]) < 2:
        return None
    n = len(arrivals[0])
    last = [sum(times[rank] == max(times) for times in arrivals) for rank in range(n)]

    def late(rank: int) -> float:
        others = (max(times[:rank] + times[rank + 1 :]) for times in map(list, arrivals))
        return median(times[rank] - other for times, other in zip(arrivals, others, strict=True))

    rank = max(range(n), key=lambda r: (last[r], late(r)))
    by_chance = n * binomial_tail(len(arrivals), last[rank], 1 / n)
    return (rank, late(rank)) if by_chance <= 1 - confidence else None


def binomial_tail(trials: int, hits: int, probability: float) -> float:
    """The probability of at least so many hits in so many independent trials, each with `probability`."""
    miss = 1 - probability
    return sum(
        comb(trials, k) * probability**k * miss ** (trials - k) for k in range(hits, trials + 1)
    )


def arrivals_of(ledger: Any) -> list[list[float]]:
    """When each rank called each collective in which all ranks took part, of a run's `ledger`."""
    whole = [c for c in ledger.collectives() if len(c.calls) == ledger.world_size]
    return [[collective.calls[r].issued for r in range(ledger.world_size)] for collective in whole]
