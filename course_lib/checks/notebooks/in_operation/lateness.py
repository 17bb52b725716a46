"""find_straggler: the rank that is last more often than chance has it, and how late it is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean as mean

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.references import REFERENCES

NAME = "find_straggler"
CONFIDENCE = 0.99
TICK = 1 / 4096  # seconds: times are multiples of it, so that differences are exact
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
    "Some rank is named in every run. Among equal ranks one is always last a little more often than the "
    "others, as chance has it. That makes it no straggler."
)
MEAN = (
    "The rank with the largest mean lateness is named. One long pause raises a mean, and chance is not "
    "asked: count how often each rank is last."
)
LIMIT = (
    "A limit in seconds decides. Ask how likely it is that one of n equal ranks is last so often: n times "
    "the binomial tail."
)
MAJORITY = (
    "A rank is named if it is last in more than half of the collectives. With many ranks far fewer are "
    "beyond chance, and in a few collectives half of them are not."
)
SHARE = (
    "`confidence` is used as a share of the collectives. It says how sure the answer has to be: name a rank "
    "if n times the binomial tail is at most 1 - confidence."
)
FACTOR = (
    "A rank is named if it is last more often than a fixed multiple of its share. In a few collectives "
    "chance alone gives that, and in many much less is beyond chance."
)
FIRST = "The rank that comes first is named. It waits most, because it is the fastest."
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
    "The probability lacks the factor n. It is that of one rank, and any of the n may be last by chance.": (
        finder(times=lambda n: 1.0)
    ),
    "The chance of an equal rank is 1 in n, and not 1 in 2.": finder(chance=lambda n: 0.5),
    "The chance of an equal rank is 1 in n, and not 1 in n - 1.": finder(chance=lambda n: 1 / (n - 1)),
    "The tail begins one too late. It is the probability of at least so many hits, that number included.": (
        finder(over=lambda trials, hits, chance: tail(trials, hits + 1, chance))
    ),
    "The tail ends one too early. A rank can be last in all collectives.": (
        finder(over=lambda trials, hits, chance: tail(trials, hits, chance) - chance**trials)
    ),
    "The probability is that of exactly so many hits. Chance has it so often or oftener: add up the tail.": (
        finder(over=exactly)
    ),
    "The probability is compared with `confidence`. It has to be at most 1 - confidence.": (
        finder(limit=lambda level: level)
    ),
    "The comparison is the wrong way around. Chance is not the cause if its probability is small.": turned,
    "Ranks are counted from 0.": from_one,
    "`confidence` is ignored. 0.99 is only its default.": finder(limit=lambda level: 1 - CONFIDENCE),
    "If several ranks are last at the same time, each of them counts as last.": finder(one_last_each),
}
SECONDS: Mapping[str, Callable[[Arrivals, int], float]] = {
    "The lateness is taken against the first rank. The latest of the others is the time at which all could "
    "have begun.": of_lateness(against_first),
    "The lateness is taken against the mean of the others. They would still wait for their own last one: "
    "take the latest of them.": of_lateness(against_mean),
    "The lateness is taken against the mean of all ranks. Take the latest of the others.": (
        of_lateness(against_mean_of_all)
    ),
    "The lateness is taken against the latest of all ranks, which is often the rank itself. Take the latest "
    "of the others.": of_lateness(lambda times, rank: times[rank] - max(times)),
    "The seconds are a mean, which one long pause moves. Take the median.": (
        of_lateness(against_latest, mean)
    ),
    "The seconds are the largest lateness. Take the median.": of_lateness(against_latest, max),
    "The seconds are the sum over all collectives. Take the median.": of_lateness(against_latest, sum),
    "The seconds are a median over the collectives in which the rank is last. Take all of them: in some it "
    "is early, which counts as a negative time.": when_last,
    "The seconds are in milliseconds.": lambda arrivals, rank: 1000 * LATENESS(arrivals, rank),
    "The sign is the other one: a rank that is late has positive seconds.": (
        lambda arrivals, rank: -LATENESS(arrivals, rank)
    ),
}

# ---- made runs


@dataclass(frozen=True)
class Asked:
    """A run and a confidence; None: the default."""

    what: str
    arrivals: Arrivals
    confidence: float | None = None

    @property
    def right(self) -> Found:
        return self.by(RIGHT)

    def by(self, find: Finder) -> Found:
        return find(self.arrivals, CONFIDENCE if self.confidence is None else self.confidence)

    def call(self) -> list:
        named = {} if self.confidence is None else {"confidence": self.confidence}
        return [0, [self.arrivals], named]


def run(draw: kit.Draw, lasts: Sequence[int], ranks: int, delay: tuple[int, int] = (1, 9)) -> Arrivals:
    """Rank lasts[k] is the last of collective k, by a few ticks; the others come in any order before it."""
    arrivals = []
    for k, last in enumerate(lasts):
        times = [128 * k + draw.integer(0, 60) for _ in range(ranks)]
        times[last] = max(time for rank, time in enumerate(times) if rank != last) + draw.integer(*delay)
        arrivals.append([TICK * time for time in times])
    return arrivals


def shuffled(draw: kit.Draw, lasts: Sequence[int]) -> list[int]:
    order = draw.distinct(len(lasts), high=len(lasts) + 1)
    return [lasts[int(place) - 1] for place in order]


def lasts_of(draw: kit.Draw, rank: int, hits: int, of: int, ranks: int) -> list[int]:
    """Rank `rank` is last so often, and the others share the rest."""
    others = [other for other in range(ranks) if other != rank]
    return shuffled(draw, [rank] * hits + [others[k % len(others)] for k in range(of - hits)])


def paused(arrivals: Arrivals, collective: int, rank: int, seconds: float = 2.0) -> Arrivals:
    """The rank is late by so much, once, and all go on after it."""
    times = [list(each) for each in arrivals]
    times[collective][rank] += seconds
    return times[: collective + 1] + [[time + seconds for time in each] for each in times[collective + 1 :]]


def fair(ranks: int, hits: Sequence[int]) -> list[int]:
    return [rank for rank, count in zip(range(ranks), hits, strict=True) for _ in range(count)]


@dataclass(frozen=True)
class Runs:
    slow: list[Asked]
    equal: list[Asked]
    pause: list[Asked]
    many: list[Asked]
    options: list[Asked]

    @property
    def all(self) -> list[Asked]:
        return [*self.slow, *self.equal, *self.pause, *self.many, *self.options]

    @classmethod
    def draw(cls, draw: kit.Draw) -> Runs:
        """No usual mistake gives the answers of another, or the right ones."""
        while True:
            runs = cls.once(draw)
            named = [asked for asked in (*runs.slow, runs.pause[1]) if asked.right]
            who = {
                says.strip(): tuple(_rank(asked.by(find)) for asked in runs.all)
                for says, find in {"": RIGHT, **WHO}.items()
            }
            late = {
                says: tuple(seconds(asked.arrivals, asked.right[0]) for asked in named if asked.right)
                for says, seconds in {"": LATENESS, **SECONDS}.items()
            }
            apart = all(len(set(table.values())) == len(table) for table in (who, late))
            if apart and runs.as_meant():
                return runs

    def as_meant(self) -> bool:
        named = [asked for asked in (*self.slow, self.pause[1]) if asked.right]
        # so that a median which takes the lower one of two is right, too, as torch.median
        if any(both(asked.arrivals, asked.right[0]) for asked in named if asked.right):
            return False
        here = [asked.right is not None for asked in self.all]
        return here == [
            True,
            True,
            False,
            False,
            False,
            True,
            True,
            False,
            True,
            False,
            True,
            False,
            False,
            True,
        ]

    @classmethod
    def once(cls, draw: kit.Draw) -> Runs:
        slow, other, seventh = draw.integer(1, 4), draw.integer(0, 3), draw.integer(0, 8)
        clear = run(draw, lasts_of(draw, slow, 33, 39, 4), 4, (20, 60))
        # By less than a millisecond, but nearly always: no limit in seconds finds it.
        little = run(draw, lasts_of(draw, other, 29, 30, 3), 3, (1, 4))
        ordinary = run(draw, shuffled(draw, fair(4, draw.choice([(12, 9, 9, 9), (9, 8, 11, 11)]))), 4)
        few = run(draw, shuffled(draw, fair(4, (0, 1, 4, 0))), 4, (6, 30))
        once = paused(run(draw, shuffled(draw, fair(4, (9, 10, 10, 10))), 4), 20, slow)
        beside = paused(run(draw, lasts_of(draw, slow, 35, 39, 4), 4, (20, 60)), 9, 0)
        often = run(draw, lasts_of(draw, seventh, 14, 45, 8), 8)  # 0.007 for some rank, 0.02 if 7 are counted
        chance = run(draw, lasts_of(draw, seventh, 12, 40, 8), 8)  # 0.005 for one rank, 0.04 for some rank
        tied = run(draw, [1] * 30, 3)
        for times in tied[:20]:
            times[0] = times[1]
        likely = run(draw, lasts_of(draw, slow, 16, 40, 4), 4)  # 0.1 for some rank
        below = run(draw, lasts_of(draw, slow, 14, 40, 4), 4)  # 0.4 for some rank, 0.2 for exactly 14
        twice = run(draw, [slow] * 2, 4)
        usual = run(draw, lasts_of(draw, slow, 24, 40, 4), 4)  # 0.13 if there were 2 ranks
        return cls(
            [Asked("39 collectives of 4 ranks, one of them slow", clear),
             Asked("30 collectives of 3 ranks, one of them slow by less than a millisecond", little)],
            [Asked("39 collectives of 4 equal ranks", ordinary),
             Asked("5 collectives of 4 equal ranks", few)],
            [Asked("4 equal ranks, of which one makes a pause of two seconds", once),
             Asked("one of 4 ranks slow, and a pause of two seconds on another", beside)],
            [Asked("45 collectives of 8 ranks, one of them slow", often),
             Asked("40 collectives of 8 equal ranks", chance)],
            [Asked("30 collectives, in 20 of which two ranks are last at the same time", tied),
             Asked("a rank that is last in 16 of 40 collectives", likely),
             Asked("a rank that is last in 16 of 40 collectives, with confidence=0.8", likely, 0.8),
             Asked("a rank that is last in 14 of 40 collectives, with confidence=0.8", below, 0.8),
             Asked("a rank that is last in 2 of 2 collectives", twice),
             Asked("a rank that is last in 24 of 40 collectives", usual)],
        )  # fmt: skip


def _rank(answer: Found) -> int | None:
    return None if answer is None else answer[0]


# ---- lines


class Answers:
    """The calls of a case, and what came."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self.asked = list(asked)

    def read(self, observed: kit.Observed, asked: Asked) -> Found | kit.Finding:
        answer = observed.answer(self.asked.index(asked))
        if answer.error is not None:
            return raised(asked, *answer.error)
        value = answer.value
        if value is None:
            return None
        pair = [kit.numeric(each) for each in value] if isinstance(value, list) else []
        if len(pair) != 2 or pair[0] is None or pair[1] is None:
            return kit.wrong(f"{NAME} returns something else than a pair (rank, seconds) or None.")
        if pair[0] not in range(len(asked.arrivals[0]) + 1):  # the last one is that of a count from 1
            hint = "The pair is (rank, seconds), and without a straggler the result is None."
            if pair[0] in range(len(asked.arrivals)):
                hint = "arrivals[k][r] has the collective first, and then the rank."
            return kit.wrong(f"{NAME} names a rank that does not exist.", hint)
        return int(pair[0]), pair[1]

    def readable(self, observed: kit.Observed) -> list[tuple[Asked, Found]]:
        """The calls whose answers have the agreed form, with those."""
        came = [(asked, self.read(observed, asked)) for asked in self.asked]
        return [(asked, answer) for asked, answer in came if not isinstance(answer, kit.Finding)]


def raised(asked: Asked, error: str = "", text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten(NAME, place)
    said = kit.Sentence(f"{asked.what}: {error}: {text}", f"{NAME} raised {kit.error_kind(error)}.")
    return kit.wrong(said, kit.at(place), cause=f"raised {error}")


def named(answer: Found) -> str:
    return "no rank" if answer is None else f"rank {answer[0]}"


def who_line(
    title: str, answers: Answers, runs: Sequence[Asked], weight: float, trivial: bool = False
) -> kit.Line:
    """The right rank, or None, whatever the seconds are."""

    def judge(observed: kit.Observed) -> kit.Finding:
        for asked in runs:
            if isinstance(answer := answers.read(observed, asked), kit.Finding):
                return answer
        read = answers.readable(observed)
        off = [(asked, answer) for asked, answer in read if _rank(answer) != _rank(asked.right)]
        here = [(asked, answer) for asked, answer in off if asked in runs]
        if not here:
            return kit.RIGHT
        asked, answer = here[0]
        says = why(read)
        said = f"{asked.what}: {NAME} names {named(answer)}; {named(asked.right)} is right."
        general = f"{NAME} does not name the right rank for some arrivals, or not None."
        missed = says in {idea.strip() for idea in IDEAS}
        return kit.wrong(kit.Sentence(said, general), says, cause=f"{NAME}: {says}", misses_point=missed)

    def shows(observed: kit.Observed) -> float:
        """Whether the answers are those of a slip alone."""
        read = answers.readable(observed)
        mistake = known(read) if len(read) == len(answers.asked) else ""
        return float(bool(mistake) and mistake not in {idea.strip() for idea in IDEAS})

    return kit.Line(title, judge, weight, trivial=trivial, shows=shows if trivial else None)


def known(read: Sequence[tuple[Asked, Found]]) -> str:
    """The mistake that gives all answers, the right ones as well; one of a part would be a guess."""
    fitting = (
        says.strip()
        for says, find in WHO.items()
        if all(_rank(asked.by(find)) == _rank(answer) for asked, answer in read)
    )
    return next(fitting, "")


def why(read: Sequence[tuple[Asked, Found]]) -> str:
    if mistake := known(read):
        return mistake
    if all(answer is not None for _, answer in read):
        return ALWAYS
    nothing = "The result is None for all arrivals. " if all(answer is None for _, answer in read) else ""
    return nothing + (
        "Count how often each rank is last. If one of n equal ranks is last so often with a probability of "
        "at most 1 - confidence, which is n times the binomial tail, chance is not the cause."
    )


def seconds_line(title: str, answers: Answers, runs: Sequence[Asked], weight: float) -> kit.Line:
    """The seconds where the right rank is named."""

    def judge(observed: kit.Observed) -> kit.Finding:
        came = []
        for asked in runs:
            answer = answers.read(observed, asked)
            if isinstance(answer, kit.Finding):
                return answer
            if answer is None or asked.right is None or answer[0] != asked.right[0]:
                return kit.wrong(f"{asked.what}: its seconds are judged if the right rank is named.")
            came.append((asked, answer, asked.right))
        off = [each for each in came if not near(each[1][1], each[2][1])]
        if not off:
            return kit.RIGHT
        asked, answer, right = off[0]
        fitting = (
            says
            for says, late in SECONDS.items()
            if all(near(f[1], late(a.arrivals, f[0])) for a, f, _ in off)
        )
        late_by = f"rank {answer[0]} is late by {words.number(answer[1])} s"
        said = f"{asked.what}: {late_by}; {words.number(right[1])} "
        otherwise = "Take the median over all collectives of its time minus the latest of the others."
        return kit.wrong(
            kit.Sentence(f"{said}is right.", f"{NAME} gives wrong seconds for some arrivals."),
            next(fitting, otherwise),
        )

    return kit.Line(title, judge, weight)


def near(value: float, right: float) -> bool:
    return abs(value - right) <= 1e-6 * abs(right) + 1e-9


@kit.exercise(
    points=6, objects=(NAME,), references=REFERENCES,
    point="the rank that is last more often than chance has it",
)  # fmt: skip
def find_straggler(draw: kit.Draw) -> Iterator[kit.Case]:
    runs = Runs.draw(draw)
    answers = Answers(runs.all)
    lines = [
        who_line("a slow rank", answers, runs.slow, 1.5),
        who_line("equal ranks: None", answers, runs.equal, 1.5, trivial=True),
        seconds_line("how late it is", answers, [*runs.slow, runs.pause[1]], 1.5),
        who_line("a pause of two seconds", answers, runs.pause, 0.75),
        who_line("eight ranks", answers, runs.many, 0.75),
        who_line("ties, and another confidence", answers, runs.options, 0.5),
    ]
    yield kit.Case("arrivals", [kit.evaluating([asked.call() for asked in answers.asked])], lines,
                   recipe=kit.EVALUATE, alone=True)  # fmt: skip
    if draw.hidden:
        more = Runs.draw(draw)
        others = Answers(more.all)
        lines = [
            who_line("other runs", others, more.all, 0.5),
            seconds_line("their seconds", others, more.slow, 0.5),
        ]
        yield kit.Case("other arrivals", [kit.evaluating([asked.call() for asked in others.asked])], lines,
                       recipe=kit.EVALUATE, alone=True, hidden=True)  # fmt: skip
