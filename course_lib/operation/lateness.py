"""Which rank is slow? Count how often each comes last, instead of guessing.

Some rank always comes last. Each of n equal ranks is last in one of n collectives, and by chance more often.
For example, 12 times in 39 collectives of four ranks is ordinary. With c collectives, the number of times one
given rank is last is binomial, P(X = m) = C(c, m) (1/n)^m (1 - 1/n)^(c - m). The probability that *some* rank
is last at least m times is at most n times as large as for a given rank. If this is below 1 - confidence,
chance is not the cause.

How slow is it? In each collective, the rank is late by its time minus the latest time of the others, because
all ranks could have begun so much sooner. We take the median of this, since a single pause of two seconds
would move the mean, but does not move the median.

The rank that waits most is the fastest. Also, compare only ranks that do the same work. In a pipeline the
last stage is late because of its position, so look inside the groups of dp or tp.

The binomial distribution assumes that the collectives are independent. On a busy machine they are not,
because a rank stays late for a while. With 159 collectives of four equal ranks at a load of 15 on two cores,
a rank was named in 2 of 6 runs, with a median below 0.4 ms. So look at the seconds before you call anyone.
With 39 collectives at such a load, equal ranks were named in 0 of 12 runs. A rank slower by 5 ms was named in
8 of 8, and a rank slower by 2 ms in 6 of 8. So a rank's milliseconds must stand out from the machine's
pauses, whatever share of a step they are. With 10 % of 100 ms, it was named in 10 of 10 runs beside 20 busy
processes.

Sources: the binomial tail with the factor n is Bonferroni's bound. Jiang et al., MegaScale, NSDI 2024,
section 5.1, found slow machines (about 0.5 % of them) with a heat map of each rank's times. Section 6.3
reports hosts that need about 10 % more time for the same forward, and whose removal gained about 0.7 % of
MFU.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any


def find_straggler(
    arrivals: Sequence[Sequence[float]], confidence: float = 0.99
) -> tuple[int, float] | None:
    """(rank, seconds) of the rank that is last more often than by chance; None if there is none.

    arrivals[k][r]: the time at which rank r called collective k. If several ranks are last at the same time,
    each counts as last. The seconds are the median over all collectives of the rank's time minus the latest
    of the others. In a single collective the difference can be negative.
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
    """When each rank called each collective in which all ranks took part, from a run's `ledger`."""
    whole = [c for c in ledger.collectives() if len(c.calls) == ledger.world_size]
    return [[collective.calls[r].issued for r in range(ledger.world_size)] for collective in whole]
