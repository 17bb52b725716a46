"""find_straggler: the rank that is last more often than chance has it, and how late it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.lateness_ways import (
    ALWAYS,
    CONFIDENCE,
    IDEAS,
    LATENESS,
    RIGHT,
    SECONDS,
    WHO,
    Arrivals,
    Finder,
    Found,
    both,
)
from course_lib.checks.notebooks.in_operation.references import REFERENCES

NAME = "find_straggler"
TICK = 1 / 4096  # seconds: times are multiples of it, so that differences are exact


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
            [Asked("4 equal ranks, one of which pauses for two seconds", once),
             Asked("4 ranks, one of them slow, and another pauses for two seconds", beside)],
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
            return kit.wrong(f"{NAME} returns neither a pair (rank, seconds) nor None.")
        if pair[0] not in range(len(asked.arrivals[0]) + 1):  # the last one is that of a count from 1
            hint = "The pair is (rank, seconds), but without a straggler the result is None."
            if pair[0] in range(len(asked.arrivals)):
                hint = "In arrivals[k][r], the collective comes first, then the rank."
            return kit.wrong(f"{NAME} names a rank that does not exist.", hint)
        return int(pair[0]), pair[1]

    def readable(self, observed: kit.Observed) -> list[tuple[Asked, Found]]:
        """The calls whose answers have the agreed form, with those."""
        came = [(asked, self.read(observed, asked)) for asked in self.asked]
        return [(asked, answer) for asked, answer in came if not isinstance(answer, kit.Finding)]


def raised(asked: Asked, error: str = "", text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten(NAME, place)
    said = kit.Sentence(
        f"{asked.what}: {kit.error_in_full(error, text)}", f"{NAME} raised {kit.error_kind(error)}."
    )
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
        said = f"{asked.what}: {NAME} names {named(answer)}, but {named(asked.right)} is right."
        general = f"{NAME} names a wrong rank for some arrivals, or wrongly returns None."
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
        "Count how often each rank is last. The probability that any of n equal ranks is last so often is n "
        "times the binomial tail, so chance is not the cause if this is at most 1 - confidence."
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
                return kit.wrong(f"{asked.what}: the seconds are judged only if the right rank is named.")
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
        said = f"{asked.what}: {late_by}, but {words.number(right[1])} "
        otherwise = (
            "For each collective, subtract the latest time of the other ranks from this rank's time. Then "
            "take the median over all collectives."
        )
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
