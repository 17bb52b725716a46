"""Which rank is slow, and by how much: the right way, and ways to go wrong, as closed forms."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from math import comb
from statistics import fmean as mean

CONFIDENCE = 0.99
Arrivals = list[list[float]]  # [collective][rank]
Found = tuple[int, float] | None
Finder = Callable[[Arrivals, float], Found]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def tail(trials: int, hits: int, chance: float) -> float:
    """The probability of at least so many hits in so many trials."""
    miss = 1 - chance
    return sum(comb(trials, k) * chance**k * miss ** (trials - k) for k in range(hits, trials + 1))


def exactly(trials: int, hits: int, chance: float) -> float:
    return tail(trials, hits, chance) - tail(trials, hits + 1, chance)


# ---- parts from which the right answer and the usual mistakes are made


def last_counts(arrivals: Arrivals) -> list[int]:
    return [sum(times[rank] == max(times) for times in arrivals) for rank in range(len(arrivals[0]))]


def one_last_each(arrivals: Arrivals) -> list[int]:
    """As `index(max(...))` counts: of several that are last, the first of them alone."""
    lasts = [times.index(max(times)) for times in arrivals]
    return [lasts.count(rank) for rank in range(len(arrivals[0]))]


def first_counts(arrivals: Arrivals) -> list[int]:
    return last_counts([[-time for time in times] for times in arrivals])


def against_latest(times: Sequence[float], rank: int) -> float:
    return times[rank] - max(time for other, time in enumerate(times) if other != rank)


def against_first(times: Sequence[float], rank: int) -> float:
    return times[rank] - min(times)


def against_mean(times: Sequence[float], rank: int) -> float:
    return times[rank] - mean(time for other, time in enumerate(times) if other != rank)


def against_mean_of_all(times: Sequence[float], rank: int) -> float:
    return times[rank] - mean(times)


def of_lateness(
    late: Callable[[Sequence[float], int], float], over: Callable[[list[float]], float] = median
) -> Callable[[Arrivals, int], float]:
    return lambda arrivals, rank: over([late(times, rank) for times in arrivals])


LATENESS = of_lateness(against_latest)


def both(arrivals: Arrivals, rank: int) -> bool:
    """Whether the median lies between two different numbers."""
    times = sorted(against_latest(each, rank) for each in arrivals)
    return times[len(times) // 2] != times[(len(times) - 1) // 2]


def when_last(arrivals: Arrivals, rank: int) -> float:
    return median([late for times in arrivals if (late := against_latest(times, rank)) >= 0] or [0.0])


def finder(
    counts: Callable[[Arrivals], list[int]] = last_counts,
    late: Callable[[Arrivals, int], float] = LATENESS,
    *,
    times: Callable[[int], float] = float,
    chance: Callable[[int], float] = lambda n: 1 / n,
    over: Callable[[int, int, float], float] = tail,
    limit: Callable[[float], float] = lambda level: 1 - level,
) -> Finder:
    """times: the factor of the probability, from the number of ranks; over: in place of the tail; limit: from
    the confidence."""

    def find(arrivals: Arrivals, level: float) -> Found:
        n, counted = len(arrivals[0]), counts(arrivals)
        rank = max(range(n), key=lambda r: (counted[r], LATENESS(arrivals, r)))
        probability = times(n) * over(len(arrivals), counted[rank], chance(n))
        return (rank, late(arrivals, rank)) if probability <= limit(level) else None

    return find


RIGHT = finder()


def always(arrivals: Arrivals, level: float) -> Found:
    counted = last_counts(arrivals)
    rank = max(range(len(counted)), key=lambda r: (counted[r], LATENESS(arrivals, r)))
    return rank, LATENESS(arrivals, rank)


def always_by(late: Callable[[Arrivals, int], float], least: float | None = None) -> Finder:
    """The rank of the largest lateness; least: None is returned up to it."""

    def find(arrivals: Arrivals, level: float) -> Found:
        rank = max(range(len(arrivals[0])), key=lambda r: late(arrivals, r))
        return (rank, late(arrivals, rank)) if least is None or late(arrivals, rank) > least else None

    return find


def beyond_share(factor: float) -> Finder:
    """Last more often than so many times its share."""

    def find(arrivals: Arrivals, level: float) -> Found:
        answer = always(arrivals, level)
        assert answer is not None
        often = last_counts(arrivals)[answer[0]] * len(arrivals[0]) > factor * len(arrivals)
        return answer if often else None

    return find


def by_majority(arrivals: Arrivals, level: float) -> Found:
    counted = last_counts(arrivals)
    rank = max(range(len(counted)), key=lambda r: (counted[r], LATENESS(arrivals, r)))
    return (rank, LATENESS(arrivals, rank)) if counted[rank] > len(arrivals) / 2 else None


def share_of_confidence(arrivals: Arrivals, level: float) -> Found:
    """Last in at least that share of the collectives."""
    answer = always(arrivals, level)
    return answer if answer and last_counts(arrivals)[answer[0]] >= level * len(arrivals) else None


ALWAYS = (
    "Some rank is named in every run. However, even among equal ranks, chance makes one rank last a little "
    "more often than the other ranks, so this rank is not a straggler."
)
MEAN = (
    "The rank with the largest mean lateness is named, but a single long pause raises a mean. Instead, "
    "count how often each rank is last, and ask whether chance explains it."
)
LIMIT = (
    "A limit in seconds decides who is named. Instead, ask how likely it is that one of n equal ranks is "
    "last so often, which is n times the binomial tail."
)
MAJORITY = (
    "A rank is named if it is last in more than half of the collectives. With many ranks, far fewer already "
    "exceed chance, but in a few collectives, half of them do not."
)
SHARE = (
    "`confidence` is used as a share of the collectives, but it says how sure the answer has to be. Name a "
    "rank if n times the binomial tail is at most 1 - confidence."
)
FACTOR = (
    "A rank is named if it is last more often than a fixed multiple of its share. In a few collectives, "
    "chance explains such a multiple, while in many collectives much less exceeds chance."
)
FIRST = "The rank that arrives first is named. It waits longest, because it is the fastest."
FIRST_ALWAYS = f"{FIRST} "
IDEAS = (ALWAYS, MEAN, LIMIT, MAJORITY, SHARE, FACTOR, f"{FACTOR} ", FIRST, FIRST_ALWAYS)


def first_always(arrivals: Arrivals, level: float) -> Found:
    counted = first_counts(arrivals)
    rank = max(range(len(counted)), key=lambda r: counted[r])
    return rank, LATENESS(arrivals, rank)


def turned(arrivals: Arrivals, level: float) -> Found:
    """Named where chance is enough."""
    return None if RIGHT(arrivals, level) else always(arrivals, level)


def from_one(arrivals: Arrivals, level: float) -> Found:
    answer = RIGHT(arrivals, level)
    return answer and (answer[0] + 1, answer[1])


# Whom a mistake names. The seconds are judged apart, so a mistake in each of them is told.
WHO: Mapping[str, Finder] = {
    ALWAYS: always,
    MEAN: always_by(of_lateness(against_latest, mean)),
    f"{MEAN} ": always_by(of_lateness(against_mean_of_all, mean)),
    f"{MEAN}  ": always_by(lambda arrivals, rank: mean(times[rank] for times in arrivals)),
    LIMIT: always_by(LATENESS, 0.001),
    f"{LIMIT} ": always_by(of_lateness(against_latest, mean), 0.001),
    f"{LIMIT}  ": always_by(LATENESS, 0.0),
    FIRST: finder(first_counts),
    FIRST_ALWAYS: first_always,
    MAJORITY: by_majority,
    SHARE: share_of_confidence,
    FACTOR: beyond_share(2),
    f"{FACTOR} ": beyond_share(1.5),
    "The probability lacks the factor n. You computed it for one rank, but any of the n ranks can be last "
    "by chance.": (finder(times=lambda n: 1.0)),
    "An equal rank is last with a chance of 1 in n, not 1 in 2.": finder(chance=lambda n: 0.5),
    "An equal rank is last with a chance of 1 in n, not 1 in n - 1.": finder(chance=lambda n: 1 / (n - 1)),
    "The tail begins one too late. It is the probability of at least so many hits, so it includes that "
    "number.": (finder(over=lambda trials, hits, chance: tail(trials, hits + 1, chance))),
    "The tail ends one too early, because a rank can be last in all collectives.": (
        finder(over=lambda trials, hits, chance: tail(trials, hits, chance) - chance**trials)
    ),
    "The probability is computed for exactly so many hits. Chance can produce more, so add up the tail.": (
        finder(over=exactly)
    ),
    "The probability is compared with `confidence`, but it has to be at most 1 - confidence.": (
        finder(limit=lambda level: level)
    ),
    "The comparison is the wrong way around, since chance is not the cause if it is improbable.": turned,
    "Ranks are counted from 0.": from_one,
    "`confidence` is ignored, but 0.99 is only its default.": finder(limit=lambda level: 1 - CONFIDENCE),
    "If several ranks are last at the same time, each of them counts as last.": finder(one_last_each),
}
SECONDS: Mapping[str, Callable[[Arrivals, int], float]] = {
    "The lateness is measured against the first rank. Instead, measure it against the latest of the other "
    "ranks, because only then could all have begun.": of_lateness(against_first),
    "The lateness is measured against the mean of the other ranks. But they would still wait for the last "
    "of them, so take the latest.": of_lateness(against_mean),
    "The lateness is measured against the mean of all ranks. Take the latest of the others instead.": (
        of_lateness(against_mean_of_all)
    ),
    "The lateness is measured against the latest of all ranks, which is often the rank itself. Take the "
    "latest of the others instead.": of_lateness(lambda times, rank: times[rank] - max(times)),
    "The seconds are a mean, but a single long pause moves a mean. Take the median.": (
        of_lateness(against_latest, mean)
    ),
    "The seconds are the largest lateness. Take the median instead.": of_lateness(against_latest, max),
    "The seconds are the sum over all collectives. Take the median instead.": of_lateness(
        against_latest, sum
    ),
    "The seconds are a median over the collectives in which the rank is last. Take all collectives, because "
    "in some the rank is early, which counts as a negative time.": when_last,
    "The lateness is in milliseconds instead of seconds.": lambda arrivals, rank: (
        1000 * LATENESS(arrivals, rank)
    ),
    "The sign is wrong, because a late rank has positive seconds.": (
        lambda arrivals, rank: -LATENESS(arrivals, rank)
    ),
}
