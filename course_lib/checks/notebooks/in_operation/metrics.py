"""step_metrics: the loss of all targets, and a step that lasts as long as on its slowest rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.notebooks.in_operation.traffic import given_line
from course_lib.checks.rank.harness import CallInstructions
from course_lib.ledger.operation import Operation

NAME = "step_metrics"
POINT = "the mean over all targets, and the seconds of the slowest rank"
LEAST, MOST = 12, 32  # bytes of a rank's three numbers in float32, and what the contract allows
ROUNDING = 1e-5  # relative, of sums in float32
APART = 1e-3  # relative, of what two mistakes give
LOSS, RATE, SECONDS = KEYS = ("loss", "tokens_per_second", "seconds")
EMPTY, NONE = "a rank without targets", "no targets"

OWN_MEAN = (
    "Each rank gives the mean over its own targets. Add the sums and the numbers of targets of all ranks, "
    "then divide."
)
RANK_0 = "All ranks give rank 0's mean, but the targets of the other ranks also belong to the batch."
MEANS = (
    "The loss is the mean of the ranks' means, so a rank with few targets counts as much as a rank with "
    "many. Add the sums and the numbers of targets, then divide once."
)
SUM_OF_MEANS = (
    "The loss is the sum of the ranks' means. Add the sums and the numbers of targets, then divide once."
)
TWICE = (
    "loss_sum was multiplied by tokens, as if it were a mean, but it is already the sum over the rank's "
    "targets."
)
BY_OWN = (
    "The sum of all ranks was divided by this rank's own number of targets. Instead, divide it by the "
    "number of targets of all ranks."
)
LARGEST = (
    "The largest numbers of the ranks were taken. Instead, add the sums and the numbers of targets of all "
    "ranks."
)
LARGEST_TOKENS = (
    "The tokens are counted only on the rank with the most tokens. Add the tokens of all ranks instead."
)
ONE_HAS_IT = "Some ranks have the right number, but others do not. Use all_reduce, so that all ranks have it."
CUT_OFF = (
    "The sums were cut off to whole numbers, because a tensor of integers has no decimals. Send floats "
    "instead."
)
UNDIVIDED = "The sum was not divided by the number of targets of all ranks."
NTH = "The loss was also divided by the number of ranks. Divide only by the number of targets."
N_TIMES = (
    "The loss is as many times too large as there are ranks, as if the numbers of targets had been averaged "
    "instead of added."
)
NO_MEAN = (
    "A rank without targets has no mean, because 0 / 0 is nan or an error. Add the sums and the numbers of "
    "targets of all ranks first, then divide once."
)
NOT_NAN = (
    "Without any target there is no mean, so the loss is nan. A loss of 0 would look like a perfect model."
)
DIVIDED = (
    "The number of all targets is 0 here, so nothing can be divided by it. Without any target there is no "
    "mean, so the loss is nan."
)
OWN_SECONDS = "Each rank gives its own seconds, but in the next collective it waits for the slowest rank."
SECONDS_OF_0 = "All ranks give rank 0's seconds, but the step lasts as long as on the slowest rank."
MEAN_SECONDS = "The seconds are the mean over the ranks, but the step lasts as long as on the slowest rank."
SUM_SECONDS = "The seconds of the ranks were added, although the ranks work at the same time."
FASTEST = "The seconds belong to the fastest rank, but it waits for the other ranks. Take the maximum."
TIMES_N = (
    "A rank's tokens were multiplied by the number of ranks. Ranks have unequally many tokens, so add them."
)
OWN_TOKENS = "The rate counts only the tokens of one rank. Add the tokens of all ranks."
MEAN_TOKENS = "The tokens were averaged over the ranks. Add them, because the ranks work at the same time."
BY_OWN_SECONDS = (
    "The tokens of all ranks were divided by this rank's own seconds. Divide by the seconds of the slowest "
    "rank instead."
)
RATES = (
    "The ranks' own rates were added. But a fast rank works only once in the time of the slowest rank, and "
    "then waits."
)
BY_MEAN = (
    "The tokens of all ranks were divided by the mean of the seconds. Divide by the seconds of the slowest "
    "rank instead."
)
BY_SUM = (
    "The tokens of all ranks were divided by the sum of the seconds, although the ranks work at the same "
    "time."
)
BY_RANK_0 = (
    "The tokens of all ranks were divided by rank 0's seconds. Divide by the seconds of the slowest rank "
    "instead."
)
BY_FASTEST = (
    "The tokens of all ranks were divided by the fastest rank's seconds. Divide by the seconds of the "
    "slowest rank instead."
)
INVERSE = "The rate is upside down. Divide the tokens by the seconds."
NO_RATE = "The number of tokens was not divided by the seconds."
IDEAS = (
    OWN_MEAN, RANK_0, LARGEST, MEANS, SUM_OF_MEANS,
    OWN_SECONDS, SECONDS_OF_0, MEAN_SECONDS, SUM_SECONDS, FASTEST,
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step; each list has one number per member of the group."""

    sums: Sequence[float]
    tokens: Sequence[int]
    seconds: Sequence[float]

    @property
    def n(self) -> int:
        return len(self.tokens)

    @property
    def right(self) -> dict[str, float]:
        count, slowest = sum(self.tokens), max(self.seconds)
        return {LOSS: ratio(sum(self.sums), count), RATE: count / slowest, SECONDS: slowest}

    def means(self, without: float = math.nan) -> list[float]:
        """The mean of each rank; `without`: of one without targets."""
        return [ratio(own, count, without) for own, count in zip(self.sums, self.tokens, strict=True)]

    def slips(self, key: str) -> list[tuple[str, list[float]]]:
        """The sentence for each mistake, and what each rank then gives."""
        return {LOSS: self.losses, RATE: self.rates, SECONDS: self.times}[key]()

    def losses(self) -> list[tuple[str, list[float]]]:
        total, count, n = sum(self.sums), sum(self.tokens), self.n
        loss = ratio(total, count)
        with_targets = [mean for mean in self.means() if not math.isnan(mean)]
        product = sum(own * count for own, count in zip(self.sums, self.tokens, strict=True))
        everywhere = [
            (RANK_0, self.means()[0]),
            (MEANS, fmean(self.means(0.0))),
            (MEANS, fmean(with_targets) if with_targets else math.nan),
            (SUM_OF_MEANS, sum(self.means(0.0))),
            (TWICE, ratio(product, count)),
            (LARGEST, ratio(max(self.sums), max(self.tokens))),
            (CUT_OFF, ratio(sum(map(int, self.sums)), count)),
            (UNDIVIDED, total),
            (UNDIVIDED, total / n),
            (NTH, loss / n),
            (N_TIMES, loss * n),
        ]
        if 0 in self.tokens:
            everywhere.append((NO_MEAN, math.nan))
        return [
            (OWN_MEAN, self.means()),
            (OWN_MEAN, self.means(0.0)),
            (BY_OWN, [ratio(total, own) for own in self.tokens]),
            *((says, [value] * n) for says, value in everywhere),
        ]

    def rates(self) -> list[tuple[str, list[float]]]:
        count, n, slowest = sum(self.tokens), self.n, max(self.seconds)
        own = [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]
        everywhere = [
            (OWN_TOKENS, own[0]),
            (OWN_TOKENS, self.tokens[0] / slowest),
            (TIMES_N, n * own[0]),
            (TIMES_N, n * self.tokens[0] / slowest),
            (MEAN_TOKENS, count / n / slowest),
            (LARGEST_TOKENS, max(self.tokens) / slowest),
            (RATES, sum(own)),
            (BY_MEAN, count / fmean(self.seconds)),
            (BY_SUM, count / sum(self.seconds)),
            (BY_FASTEST, count / min(self.seconds)),
            (INVERSE, ratio(slowest, count)),
            (NO_RATE, count),
        ]
        if n > 2:  # of two ranks, rank 0 is the slowest or the fastest
            everywhere.append((BY_RANK_0, count / self.seconds[0]))
        return [
            (OWN_TOKENS, own),
            (OWN_TOKENS, [tokens / slowest for tokens in self.tokens]),
            (TIMES_N, [n * rate for rate in own]),
            (TIMES_N, [n * tokens / slowest for tokens in self.tokens]),
            (BY_OWN_SECONDS, [count / seconds for seconds in self.seconds]),
            *((says, [value] * n) for says, value in everywhere),
        ]

    def times(self) -> list[tuple[str, list[float]]]:
        everywhere = [
            (MEAN_SECONDS, fmean(self.seconds)),
            (SUM_SECONDS, sum(self.seconds)),
            (FASTEST, min(self.seconds)),
        ]
        if self.n > 2:
            everywhere.append((SECONDS_OF_0, self.seconds[0]))
        return [(OWN_SECONDS, list(self.seconds)), *((says, [value] * self.n) for says, value in everywhere)]

    def tells_apart(self) -> bool:
        """Whether each usual mistake gives other numbers than the right answer and than other mistakes."""
        for key in KEYS:
            known = [("", [self.right[key]] * self.n), *self.slips(key)]
            for place, (says, values) in enumerate(known):
                if any(says != other and alike(values, row, APART) for other, row in known[:place]):
                    return False
        return True

    @classmethod
    def draw(cls, draw: kit.Draw, n: int, *, without: Sequence[int] = ()) -> Step:
        """without: the members that have no targets."""
        while True:
            tokens = [int(count) for count in draw.distinct(n, low=20, high=400)]
            sums = [int(count * draw.integer(100, 900) / 100) + 0.5 for count in tokens]
            seconds = [int(ticks) / 64 for ticks in draw.distinct(n, low=8, high=128)]
            for rank in without:
                tokens[rank], sums[rank] = 0, 0.0
            step = cls(sums, tokens, seconds)
            if n == 1 or not any(tokens) or step.tells_apart():
                return step


def ratio(number: float, of: float, without: float = math.nan) -> float:
    return number / of if of else without


def near(value: float, other: float, tolerance: float) -> bool:
    if math.isnan(value) or math.isnan(other):
        return math.isnan(value) and math.isnan(other)
    return abs(value - other) <= tolerance * abs(other)


def alike(values: Sequence[float], others: Sequence[float], tolerance: float = ROUNDING) -> bool:
    return all(near(value, other, tolerance) for value, other in zip(values, others, strict=True))


def read(rank: int, result: object, keys: Sequence[str]) -> Mapping[str, float] | kit.Finding:
    """The numbers of a rank under these keys."""
    if result is None:
        return kit.wrong(
            f"{NAME} returns None on rank {rank}.", "Is there a `return` at its end?", cause="none"
        )
    pairs = result.get("dict") if isinstance(result, dict) else None
    expected = f"Return a dict with the keys {words.listing(map(repr, KEYS))}, each with a number."
    if pairs is None:
        return kit.wrong(f"{NAME} does not return a dict on rank {rank}.", expected, cause="form")
    under = {key: kit.numeric(value) for key, value in pairs if isinstance(key, str)}
    numbers = {key: number for key in keys if (number := under.get(key)) is not None}
    missing = next((key for key in keys if key not in numbers), None)
    if missing is not None:
        return kit.wrong(
            f"the dict of rank {rank} has no number under {missing!r}.", expected, cause=f"no {missing}"
        )
    return numbers


def metrics_line(
    title: str, on: kit.Setting, step: Step, keys: Sequence[str], weight: float, trivial: bool = False
) -> kit.Line:
    """Every rank that takes part gives the right numbers under these keys."""

    def judge(observed: kit.Observed) -> kit.Finding:
        came = []
        for rank in on.ranks:
            numbers = read(rank, observed.values[rank].result, keys)
            if isinstance(numbers, kit.Finding):
                return numbers
            came.append(numbers)
        for key in keys:
            values, right = [numbers[key] for numbers in came], step.right[key]
            off = [place for place, value in enumerate(values) if not near(value, right, ROUNDING)]
            if off:
                return another(on.ranks[off[0]], key, values[off[0]], why(key, values))
        return kit.RIGHT

    def another(rank: int, key: str, got: float, says: str) -> kit.Finding:
        said = f"rank {rank} gives the wrong value for {key!r}"
        number, wanted = words.apart(got, step.right[key])
        sentence = kit.Sentence(f"{said}: {number} instead of {wanted}.", f"{said}.")
        # A rank that returns early because it has no targets may have the idea.
        return kit.wrong(sentence, says, misses_point=says in IDEAS and any(step.tokens))

    def why(key: str, values: Sequence[float]) -> str:
        if not any(step.tokens) and key != SECONDS:
            return NOT_NAN if key == LOSS else ""
        says = next((says for says, row in step.slips(key) if alike(values, row)), "")
        return says or (ONE_HAS_IT if any(near(value, step.right[key], ROUNDING) for value in values) else "")

    return kit.Line(title, judge, weight, trivial=trivial)


def too_many(done: Sequence[Operation]) -> str:
    sums = "A sum of two numbers and a maximum of one number are enough, or one all-gather of three numbers."
    if len(done) > 2:
        return f"Each collective costs a latency. {sums}"
    return sums


def trouble(case: kit.Case, kind: str, text: str) -> str:
    """The usual cause of a run that broke off."""
    if "unexpected keyword argument 'group'" in text:
        return "Take `group=None` as the last argument, and pass it to every collective."
    if "division by zero" in text:
        return DIVIDED if case.title == NONE else NO_MEAN
    if kind == "deadlock" and case.title == EMPTY:
        return "All ranks must call the same collectives, so a rank without targets takes part as well."
    return ""


def sides(on: kit.Setting, step: Step) -> list[kit.RankSide]:
    kwargs = {} if on.group is None else {"group": {"group": on.group}}
    return [
        kit.RankSide(
            {},
            CallInstructions([{"value": number} for number in numbers], ["result"], kwargs, plain=True),
            {},
        )
        for numbers in zip(step.sums, step.tokens, step.seconds, strict=True)
    ]


def case(title: str, on: kit.Setting, step: Step, lines: Sequence[kit.Line]) -> kit.Case:
    return on.of_lines(title, sides(on, step), lines)


@kit.exercise(
    points=4, objects=(NAME,), references=REFERENCES, extra=True, hint=trouble, point=POINT
)  # fmt: skip
def step_metrics(draw: kit.Draw) -> Iterator[kit.Case]:
    four = kit.Setting(4)
    step = Step.draw(draw, 4)
    yield case("4 ranks", four, step, [
        metrics_line("4 ranks: the loss", four, step, [LOSS], 1.5),
        metrics_line("the seconds of the step", four, step, [SECONDS], 1),
        metrics_line("tokens per second", four, step, [RATE], 1),
        given_line(
            "at most two collectives, of 32 bytes", four.ranks, LEAST, MOST, calls=2, hint=too_many,
            weight=0.5,
        ),
    ])  # fmt: skip
    three = kit.Setting(3)
    step = Step.draw(draw, 3, without=[draw.integer(1, 3)])
    yield case(EMPTY, three, step, [
        metrics_line("3 ranks, one without targets: the loss", three, step, [LOSS], 0.5),
        metrics_line("seconds, and tokens per second", three, step, [SECONDS, RATE], 0.5),
    ])  # fmt: skip
    two = kit.Setting(2)
    step = Step.draw(draw, 2, without=[0, 1])
    yield case(NONE, two, step, [
        metrics_line("2 ranks without any target: the loss", two, step, [LOSS], 0.5),
        metrics_line("their seconds, and tokens per second", two, step, [SECONDS, RATE], 0.5),
    ])  # fmt: skip
    group = kit.Setting(4, members=(1, 3))
    step = Step.draw(draw, 2)
    yield case("group {1, 3}", group, step, [
        metrics_line("group {1, 3}: the loss", group, step, [LOSS], 0.5),
        metrics_line("its seconds, and tokens per second", group, step, [SECONDS, RATE], 0.5),
    ])  # fmt: skip
    if draw.hidden:
        step = Step.draw(draw, 3)
        yield case("3 ranks", three, step, [metrics_line("3 ranks", three, step, KEYS, 0.5)])
        alone = kit.Setting(1)
        step = Step.draw(draw, 1)
        yield case("1 rank", alone, step, [metrics_line("1 rank", alone, step, KEYS, 0.5, trivial=True)])
