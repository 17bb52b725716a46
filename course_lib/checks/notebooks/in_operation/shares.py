"""breakdown: for how long a rank computes, waits for the last rank, and moves bytes.

All times are multiples of a quarter of a second, so that sums are exact in whatever order they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from course_lib.checks import kit
from course_lib.checks.notebooks.in_operation.references import REFERENCES

Interval = tuple[float, float]
Window = tuple[float, float]
KEYS = ("waiting", "moving", "computing", "hidden")
SHOWN = 6  # calls in all, up to which a message lists them


class Calls(list):
    """[rank][k]: issued, waited, done. by_rank: the results of `as_seen`, after which nothing is changed."""

    def __init__(self, ranks: Iterable[list] = ()):
        super().__init__(ranks)
        self.by_rank = dict[int, list[Seen]]()

    def __repr__(self) -> str:
        count = len(self[0])
        return super().__repr__() if count * len(self) <= SHOWN else f"<{count} calls of {len(self)} ranks>"


@dataclass(frozen=True)
class Seen:
    """A collective as one rank sees it. first, last: the calls of the first and of the last rank; last_wait:
    the last rank's `waited`."""

    first: float
    last: float
    last_wait: float
    issued: float
    waited: float
    done: float


def as_seen(calls: Calls, rank: int) -> list[Seen]:
    """Computed once: each mistake's formula asks for it again."""
    if rank not in calls.by_rank:
        issued = list(zip(*([call[0] for call in of_rank] for of_rank in calls), strict=True))
        waited = list(zip(*([call[1] for call in of_rank] for of_rank in calls), strict=True))
        calls.by_rank[rank] = [
            Seen(min(issued[k]), max(issued[k]), max(waited[k]), *call) for k, call in enumerate(calls[rank])
        ]
    return calls.by_rank[rank]


def cut(interval: Interval, window: Window) -> float:
    return max(0.0, min(interval[1], window[1]) - max(interval[0], window[0]))


def total(intervals: Iterable[Interval], window: Window) -> float:
    """Seconds of the window in each of the intervals, added."""
    return sum(cut(interval, window) for interval in intervals)


def union(intervals: Iterable[Interval], window: Window) -> float:
    """Seconds of the window in at least one of the intervals."""
    covered, reached = 0.0, window[0]
    for begin, over in sorted(intervals):
        covered += cut((max(begin, reached), over), window)
        reached = max(reached, over)
    return covered


Pick = Callable[[list[Seen]], list[Interval]]


def waits(steps: list[Seen]) -> list[Interval]:
    return [(s.waited, min(s.last, s.done)) for s in steps]


def moves(steps: list[Seen]) -> list[Interval]:
    return [(max(s.waited, s.last), s.done) for s in steps]


def blocked(steps: list[Seen]) -> list[Interval]:
    return [(s.waited, s.done) for s in steps]


def travels(steps: list[Seen]) -> list[Interval]:
    return [(s.last, s.done) for s in steps]


def from_its_call(steps: list[Seen]) -> list[Interval]:
    return [(s.issued, min(s.last, s.done)) for s in steps]


def of_the_run(steps: list[Seen]) -> list[Seen]:
    """As if all collectives had one last call."""
    last = max((s.last for s in steps), default=0.0)
    return [replace(s, last=last) for s in steps]


def by_waits(steps: list[Seen]) -> list[Seen]:
    """As if a collective were called when a rank begins to wait for it."""
    return [replace(s, last=s.last_wait) for s in steps]


def first_alone(steps: list[Seen]) -> list[Seen]:
    return steps[:1]


def last_alone(steps: list[Seen]) -> list[Seen]:
    return steps[-1:]


def summed(pick: Pick, adapt: Callable[[list[Seen]], list[Seen]] = list) -> kit.Formula:
    return lambda calls, rank, start, end: total(pick(adapt(as_seen(calls, rank))), (start, end))


def less(pick: Pick, adapt: Callable[[list[Seen]], list[Seen]] = list) -> kit.Formula:
    """The window without these intervals."""
    return lambda calls, rank, start, end: end - start - summed(pick, adapt)(calls, rank, start, end)


def uncut(pick: Pick) -> kit.Formula:
    everything = (float("-inf"), float("inf"))
    return lambda calls, rank, start, end: total(pick(as_seen(calls, rank)), everything)


def inside(pick: Pick) -> kit.Formula:
    """Of calls alone that lie inside the window as a whole."""

    def formula(calls: Calls, rank: int, start: float, end: float) -> float:
        steps = [s for s in as_seen(calls, rank) if start <= s.issued and max(s.waited, s.done) <= end]
        return total(pick(steps), (start, end))

    return formula


def signed(pick: Pick) -> kit.Formula:
    """Intervals that end before they begin are taken off."""

    def formula(calls: Calls, rank: int, start: float, end: float) -> float:
        return sum(min(over, end) - max(begin, start) for begin, over in pick(as_seen(calls, rank)))

    return formula


def hidden(calls: Calls, rank: int, start: float, end: float) -> float:
    steps, window = as_seen(calls, rank), (start, end)
    return union([*travels(steps), *blocked(steps)], window) - union(blocked(steps), window)


def hidden_of_each(calls: Calls, rank: int, start: float, end: float) -> float:
    """The hidden time of each collective, added."""
    steps, window = as_seen(calls, rank), (start, end)
    own = union(blocked(steps), window)
    return sum(union([each, *blocked(steps)], window) - own for each in travels(steps))


def hidden_from_its_call(calls: Calls, rank: int, start: float, end: float) -> float:
    steps, window = as_seen(calls, rank), (start, end)
    own = [(s.issued, s.done) for s in steps]
    return union([*own, *blocked(steps)], window) - union(blocked(steps), window)


def before_its_wait(steps: list[Seen]) -> list[Interval]:
    return [(s.last, min(s.waited, s.done)) for s in steps]


def joined(pick: Pick) -> kit.Formula:
    return lambda calls, rank, start, end: union(pick(as_seen(calls, rank)), (start, end))


RIGHT: Mapping[str, kit.Formula] = {
    "waiting": summed(waits),
    "moving": summed(moves),
    "computing": less(blocked),
    "hidden": hidden,
}

ALL_MOVES = (
    "All the time the rank is blocked is counted as moving, but the time before the last rank's call is "
    "waiting, which no faster network shortens."
)
ALL_WAITS = (
    "All the time the rank is blocked is counted as waiting, but bytes move after the last rank's call."
)
FROM_FIRST = "Waiting is counted from the first rank's call, but each rank waits only from its own wait on."
FROM_ISSUED = (
    "Time is counted from `issued`, but an asynchronous call blocks the rank only from `waited` on. The "
    "time before that costs the rank nothing."
)
WITH_HIDDEN = (
    "Hidden time is counted as moving, but bytes that travel while the rank computes cost it nothing."
)
RUN = "One last call is taken for the whole run, but each collective has its own last rank."
NEGATIVE = (
    "A collective that was over before the rank waited for it has cost nothing, so its time is 0 instead of "
    "negative."
)
UNCUT = "Time outside the window is also counted. Cut every interval to the window first."
INSIDE = "A call that is partly outside the window still counts with its part inside."
MOVES_OF_ONE = (
    "Only the bytes of the last collective count, as if all had one last call. But each collective has its "
    "own last rank, so add up all of them."
)
FIRST_ALONE = "Only the first collective counts. Is the `return` inside the loop?"
LAST_ALONE = "Only the last collective counts. Add up all of them instead."
BY_WAITS = (
    "The last rank's call is taken from `waited`, but bytes move as soon as every rank has issued the call."
)
EXCHANGED = "`waiting` and `moving` are exchanged."
MILLISECONDS = "The result is in milliseconds. Return seconds instead."
SHARES = "The result is a share of the window. Return seconds instead."
FIRST_RANK = "The result is the time of rank 0, but `rank` says whose time is asked for."
ALL_RANKS = "The result is the sum over all ranks, but only one rank's time is asked for."
INSIDE_COMPUTING = (
    "`hidden` is part of `computing`, because the rank computes while those bytes travel. Do not subtract it."
)
IDEAS = (ALL_MOVES, ALL_WAITS)
OF_WINDOWS = {UNCUT, INSIDE}
IN_FLIGHT_ONLY = {BY_WAITS, FROM_ISSUED, WITH_HIDDEN, f"{WITH_HIDDEN} ", NEGATIVE, INSIDE_COMPUTING}


def zero(calls: Calls, rank: int, start: float, end: float) -> float:
    return 0.0


def common(right: kit.Formula) -> dict[str, kit.Formula]:
    """Mistakes that any of the four numbers may have."""
    return {
        MILLISECONDS: lambda calls, rank, start, end: 1000 * right(calls, rank, start, end),
        SHARES: lambda calls, rank, start, end: right(calls, rank, start, end) / (end - start),
        FIRST_RANK: lambda calls, rank, start, end: right(calls, 0, start, end),
        ALL_RANKS: lambda calls, rank, start, end: sum(
            right(calls, each, start, end) for each in range(len(calls))
        ),
    }


def minus(right: kit.Formula, other: kit.Formula) -> kit.Formula:
    return lambda *asked: right(*asked) - other(*asked)


def plus(right: kit.Formula, other: kit.Formula) -> kit.Formula:
    return lambda *asked: right(*asked) + other(*asked)


SLIPS: Mapping[str, Mapping[str, kit.Formula]] = {
    "waiting": {
        ALL_MOVES: zero,
        ALL_WAITS: summed(blocked),
        FROM_FIRST: summed(lambda steps: [(s.first, min(s.last, s.done)) for s in steps]),
        FROM_ISSUED: summed(from_its_call),
        RUN: summed(waits, of_the_run),
        FIRST_ALONE: summed(waits, first_alone),
        LAST_ALONE: summed(waits, last_alone),
        BY_WAITS: summed(waits, by_waits),
        EXCHANGED: summed(moves),
        NEGATIVE: signed(waits),
        UNCUT: uncut(waits),
        INSIDE: inside(waits),
        **common(RIGHT["waiting"]),
    },
    "moving": {
        ALL_MOVES: summed(blocked),
        ALL_WAITS: zero,
        WITH_HIDDEN: plus(RIGHT["moving"], hidden),
        f"{WITH_HIDDEN} ": summed(travels),
        MOVES_OF_ONE: summed(moves, of_the_run),
        FIRST_ALONE: summed(moves, first_alone),
        BY_WAITS: summed(moves, by_waits),
        EXCHANGED: summed(waits),
        NEGATIVE: signed(moves),
        UNCUT: uncut(moves),
        INSIDE: inside(moves),
        **common(RIGHT["moving"]),
    },
    "computing": {
        FIRST_ALONE: less(blocked, first_alone),
        LAST_ALONE: less(blocked, last_alone),
        INSIDE_COMPUTING: minus(RIGHT["computing"], hidden),
        FROM_ISSUED: less(lambda steps: [(s.issued, s.done) for s in steps]),
        "The result is the window, but the rank does not compute while it waits or while bytes move.": (
            lambda calls, rank, start, end: end - start
        ),
        "Only `waiting` is subtracted, but the rank is also blocked while bytes move.": less(waits),
        "Only `moving` is subtracted, but the rank is also blocked while it waits.": less(moves),
        "The result is the time the rank is blocked, but `computing` is the rest of the window.": (
            summed(blocked)
        ),
        NEGATIVE: lambda *asked: asked[3] - asked[2] - signed(waits)(*asked) - signed(moves)(*asked),
        UNCUT: lambda calls, rank, start, end: end - start - uncut(blocked)(calls, rank, start, end),
        INSIDE: lambda calls, rank, start, end: end - start - inside(blocked)(calls, rank, start, end),
        **common(RIGHT["computing"]),
    },
    "hidden": {
        "Nothing is hidden in your result. But a rank computes until it waits for a call, so what moves "
        "until then is hidden.": zero,
        "A collective moves from the last rank's call on, so nothing is hidden before that.": (
            hidden_from_its_call
        ),
        "Two collectives that move at the same time are counted twice, but `hidden` counts the time once.": (
            hidden_of_each
        ),
        "Collectives that move at the same time are counted twice, and so is time for which the rank is "
        "blocked in another call. `hidden` is only time in which the rank computes, and counts it once.": (
            summed(before_its_wait)
        ),
        "Time the rank is blocked in another call is counted, but `hidden` is part of `computing`.": (
            joined(before_its_wait)
        ),
        "The time for which the rank is blocked is counted as well, but only what moves while the rank "
        "computes is hidden.": joined(travels),
        f"{NEGATIVE} ": signed(before_its_wait),
        UNCUT: lambda calls, rank, start, end: hidden(calls, rank, -1e6, 1e6),
        **common(hidden),
    },
}
OTHERWISE = {
    "waiting": "A rank waits in a call until the last rank has called, so from `waited` to min(last, done).",
    "moving": "Bytes move from the last rank's call on, but they block the rank only from `waited` on.",
    "computing": "Together, `waiting`, `moving` and `computing` make up the window.",
    "hidden": "Take the time in which a collective moves after all ranks have called it, but leave out the "
    "time for which this rank is blocked. Count it once.",
}  # fmt: skip

# ---- made runs

Order = Sequence[tuple[str, int]]  # "call" and "wait", and the number of the collective


def played(draw: kit.Draw, ranks: int, order: Order, slow: int | None = None) -> Calls:
    """All ranks do the same, each at its own pace. A wait that follows its own call blocks immediately."""
    count = max(k for _, k in order) + 1
    now = [0.25 * draw.integer(1, 12) for _ in range(ranks)]
    issued = [[0.0] * count for _ in range(ranks)]
    calls = Calls([[0.0, 0.0, 0.0] for _ in range(count)] for _ in range(ranks))
    before = ("", -1)
    for what, k in order:
        at_once = what == "wait" and before == ("call", k)
        for rank in range(ranks):
            if not at_once:
                now[rank] += 0.25 * draw.integer(2, 15) + 3.0 * (rank == slow)
        if what == "call":
            for rank in range(ranks):
                issued[rank][k] = now[rank]
        else:
            done = max(of_rank[k] for of_rank in issued) + 0.25 * draw.integer(4, 25)
            for rank in range(ranks):
                calls[rank][k] = [issued[rank][k], now[rank], done]
                now[rank] = max(now[rank], done)
        before = (what, k)
    return calls


def blocking(count: int) -> Order:
    return [each for k in range(count) for each in (("call", k), ("wait", k))]


# The second is called while the first moves. The fourth blocks. The third is over before its wait.
IN_FLIGHT: Order = (
    ("call", 0), ("call", 1), ("wait", 0), ("call", 2), ("wait", 1), ("call", 3), ("wait", 3), ("call", 4),
    ("wait", 2), ("wait", 4),
)  # fmt: skip


def end_of(calls: Calls) -> float:
    return max(max(waited, done) for of_rank in calls for _, waited, done in of_rank)


def whole(calls: Calls, ranks: Iterable[int], after: float = 1.5) -> list[tuple]:
    """A window around all calls."""
    return [(calls, rank, 0.0, end_of(calls) + after) for rank in ranks]


def across(calls: Calls, ranks: Iterable[int]) -> list[tuple]:
    """Windows that begin in the first call and end in the last one."""
    asked = []
    for rank in ranks:
        own = as_seen(calls, rank)
        start = own[0].waited + 0.25 * int(2 * (own[0].done - own[0].waited))
        end = own[-1].waited + 0.25 * int(2 * (own[-1].done - own[-1].waited))
        asked.append((calls, rank, start, end))
    return asked


def told_apart(arguments: Sequence[tuple]) -> bool:
    """Whether no two of the usual mistakes, and no mistake and the right answer, give the same numbers."""
    for key in KEYS:
        formulas = [RIGHT[key], *SLIPS[key].values()]
        if len({tuple(formula(*asked) for asked in arguments) for formula in formulas}) < len(formulas):
            return False
    return True


def told_as_itself(key: str, arguments: Sequence[tuple]) -> bool:
    """Whether no mistake gives another one's numbers wherever that one is wrong: none is told as another."""
    right = [RIGHT[key](*asked) for asked in arguments]
    before: list[list[float]] = []
    for formula in SLIPS[key].values():
        came = [formula(*asked) for asked in arguments]
        off = [k for k, number in enumerate(came) if number != right[k]]
        if off and any(all(other[k] == came[k] for k in off) for other in before):
            return False
        before.append(came)
    return True


@dataclass(frozen=True)
class Drawn:
    blocked: list[tuple]
    flight: list[tuple]
    window: list[tuple]

    @classmethod
    def draw(cls, draw: kit.Draw, ranks: int) -> Drawn:
        while True:
            few, slow = played(draw, ranks, blocking(2)), draw.integer(1, ranks)
            many, flight = played(draw, ranks + 1, blocking(5), slow), played(draw, ranks, IN_FLIGHT)
            cut_short, both = played(draw, ranks, blocking(3)), played(draw, ranks, IN_FLIGHT)
            drawn = cls(
                [*whole(few, range(ranks)), *whole(many, (0, slow))],
                whole(flight, range(ranks)),
                [*across(cut_short, range(ranks)), *across(both, range(1, ranks))],
            )
            apart = told_apart([*drawn.flight, *drawn.window]) and told_as_itself("hidden", drawn.window)
            if drawn.shows_all() and apart:
                return drawn

    def shows_all(self) -> bool:
        """Whether each mistake changes a number in each group, but where it never can: no score is luck."""
        groups = ((self.blocked, KEYS[:3], IN_FLIGHT_ONLY | OF_WINDOWS), (self.flight, KEYS, OF_WINDOWS))
        return all(
            any(formula(*asked) != RIGHT[key](*asked) for asked in arguments)
            for arguments, keys, never in (*groups, (self.window, KEYS, set[str]()))
            for key in keys
            for says, formula in SLIPS[key].items()
            if says not in never and (says != FIRST_RANK or arguments is not self.blocked)
        )

    def questions(self, weights: Mapping[str, Sequence[tuple[str, float]]]) -> Iterator[kit.Prediction]:
        """weights: by the name of the arguments, keys and weights of lines."""
        titles = {
            "blocked": "calls that block", "flight": "calls in flight", "window": "a window that cuts calls"
        }  # fmt: skip
        for name, lines in weights.items():
            for key, weight in lines:
                yield question(key, f"{titles[name]}: {key}", getattr(self, name), weight)


def question(key: str, title: str, arguments: Sequence[tuple], weight: float) -> kit.Prediction:
    return kit.Prediction(
        f'the "{key}" of breakdown', 0, arguments, RIGHT[key], SLIPS[key], weight=weight, title=title,
        otherwise=OTHERWISE[key], pick=kit.entry(key), called="breakdown", ideas=IDEAS,
    )  # fmt: skip


WEIGHTS: Mapping[str, Sequence[tuple[str, float]]] = {
    "blocked": [("waiting", 2), ("moving", 1.5), ("computing", 0.5)],
    "flight": [("waiting", 1), ("moving", 1), ("hidden", 1.5), ("computing", 0.5)],
    "window": [(key, 0.5) for key in KEYS],
}


@kit.exercise(
    points=10, objects=("breakdown",), references=REFERENCES,
    point="waiting for the last rank, apart from moving bytes",
)  # fmt: skip
def breakdown(draw: kit.Draw) -> Iterator[kit.Case]:
    questions = list(Drawn.draw(draw, 3).questions(WEIGHTS))
    nothing = [(Calls([[], []]), 1, 2.0, 5.5), (Calls([[]]), 0, 0.0, 1.25)]
    questions.append(question("computing", "no calls: computing", nothing, 0.5))
    if draw.hidden:
        more = Drawn.draw(draw, 5)
        questions += [question(key, f"six ranks: {key}", more.blocked, 0.5) for key in KEYS[:2]]
        questions.append(question("hidden", "five ranks: hidden", more.flight, 0.5))
    yield from kit.evaluated(questions)
