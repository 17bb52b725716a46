"""deal: whole matrices to ranks, so that no rank holds much more than its share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from course_lib.checks import kit, words
from course_lib.checks.notebooks.zero.references import REFERENCE

NAME = "deal"
POINT = "whole matrices, dealt out by their elements"
BY_NUMBER = (
    "The matrices were dealt out in turn, by their number. Give each to the rank with the fewest elements so "
    "far."
)
IN_RUNS = (
    "Each rank got a run of neighbours, as many matrices as the others. Count elements instead of "
    "matrices, and give each matrix to the rank with the fewest elements so far."
)
ONE_RANK = "One rank got all matrices, so the other ranks would only wait for it."
UNSORTED = (
    "The matrices were dealt out in their order, and a large one came late. Begin with the largest, "
    "so that the small ones fill the gaps."
)
# Both ways always give the same lists, but for the order of the ranks.
SMALLEST_FIRST = (
    "The smallest matrices were dealt out first, or matrices were counted and not elements. Begin with the "
    "largest, and give each to the rank with the fewest elements so far."
)
BY_SIDES = (
    "Rows and columns were added, but the elements of a matrix are rows times columns. Give each matrix to "
    "the rank with the fewest elements so far."
)
IN_SORTED_LIST = (
    "The numbers are places in the sorted list. Give each matrix by its place in `shapes`, so sort the "
    "numbers by size and leave `shapes` in its order."
)
IDEAS = (BY_NUMBER, IN_RUNS, ONE_RANK)
Owned = list[list[int]]


@dataclass(frozen=True)
class Dealing:
    """One call: matrices of these shapes for n ranks."""

    shapes: Sequence[Sequence[int]]
    n: int

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def loads(self, owned: Owned) -> list[int]:
        return [sum(self.sizes[k] for k in own) for own in owned]

    def dealt(self, order: Sequence[int], weights: Sequence[int] | None = None) -> Owned:
        """Each matrix, in this order, to the rank with the least weight so far, or the fewest elements."""
        weights = self.sizes if weights is None else weights
        owned: Owned = [[] for _ in range(self.n)]
        for k in order:
            rank = min(range(self.n), key=lambda r: sum(weights[own] for own in owned[r]))
            owned[rank].append(k)
        return owned

    @property
    def largest_first(self) -> list[int]:
        return sorted(range(len(self.shapes)), key=lambda k: -self.sizes[k])

    def largest(self) -> int:
        """Elements of the fullest rank, as the text's rule gives it."""
        return max(self.loads(self.dealt(self.largest_first)))

    def slips(self) -> dict[str, list[Owned]]:
        """The dealings that each mistake gives."""
        numbers = list(range(len(self.shapes)))
        sides = [sum(shape) for shape in self.shapes]
        each, more = divmod(len(numbers), self.n)
        ends = [each * (r + 1) + min(r + 1, more) for r in range(self.n)]
        whole = -(-len(numbers) // self.n)
        return {
            BY_NUMBER: [[numbers[r :: self.n] for r in range(self.n)]],
            IN_RUNS: [
                [numbers[end - each - (r < more) : end] for r, end in enumerate(ends)],
                [numbers[whole * r : whole * (r + 1)] for r in range(self.n)],
            ],
            ONE_RANK: [[numbers, *([] for _ in range(self.n - 1))]],
            UNSORTED: [self.dealt(numbers)],
            SMALLEST_FIRST: [
                self.dealt(self.largest_first[::-1]),
                self.dealt(sorted(numbers, key=self.sizes.__getitem__)),
                self.dealt(self.largest_first, [1] * len(numbers)),
            ],
            BY_SIDES: [self.dealt(sorted(numbers, key=lambda k: -sides[k]), sides)],
            IN_SORTED_LIST: [self.dealt(numbers, sorted(self.sizes, reverse=True))],
        }


def ways(owned: Owned) -> list[list[int]]:
    """The lists without their order, or that of the ranks."""
    return sorted(sorted(own) for own in owned)


def slip(dealings: Sequence[Dealing], came: Sequence[Owned]) -> str:
    """The mistake that gives all these dealings."""
    for says in dealings[0].slips():
        if all(
            any(ways(owned) == ways(wrong) for wrong in dealing.slips()[says])
            for dealing, owned in zip(dealings, came, strict=True)
        ):
            return says
    return ""


def owned_of(dealing: Dealing, answer) -> Owned | kit.Finding:
    """The lists that came, if they are of the form that was asked for."""
    if answer.error is not None:
        error, text, place = answer.error
        if error == "NotImplementedError":
            return kit.unwritten(NAME, place)
        said = kit.error_sentence(NAME, error, text)
        return kit.wrong(said, kit.at(place) if place else "", cause=f"raised {error}")
    value = answer.value
    lists = isinstance(value, list) and all(isinstance(own, list) for own in value)
    if not lists or len(value) != dealing.n:
        came = words.counted(len(value), "list") if lists else kit.came(value)
        said = kit.Sentence(
            f"{NAME} returned {came} for {words.counted(dealing.n, 'rank')}.",
            f"{NAME} returned another form.",
        )
        return kit.wrong(
            said, "It returns n lists of numbers. A rank without a matrix has an empty one.", cause="form"
        )
    count = len(dealing.shapes)
    for own in value:
        for k in own:
            if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k < count:
                said = f"a list holds something that is not the number of a matrix, 0 to {count - 1}."
                return kit.wrong(
                    kit.Sentence(said, "a list holds something that is not a matrix's number."),
                    "A list holds indices into `shapes`, not sizes or shapes.",
                    cause="numbers",
                )
    return value


def once(dealing: Dealing, owned: Owned) -> kit.Finding:
    """Each matrix is on one rank."""
    times = Counter(k for own in owned for k in own)
    for k in range(len(dealing.shapes)):
        if times[k] != 1:
            has = "no rank has" if not times[k] else f"{words.counted(times[k], 'list')} have"
            said = kit.Sentence(f"{has} matrix {k}.", "a matrix is not in one list.")
            why = "Each matrix has one owner, so no matrix is left out, and none is in two lists."
            return kit.wrong(said, why, cause="not once")
    return kit.RIGHT


def fullest(most: Callable[[Dealing], float], what: str) -> Callable[[Dealing, Owned], kit.Finding]:
    """No rank holds more elements than `most` says."""

    def look(dealing: Dealing, owned: Owned) -> kit.Finding:
        if not (finding := once(dealing, owned)).ok:
            return finding
        loads, bound = dealing.loads(owned), most(dealing)
        if max(loads) <= bound:
            return kit.RIGHT
        mean = sum(loads) / dealing.n
        rank = loads.index(max(loads))
        said = kit.Sentence(
            f"rank {rank} holds {words.number(max(loads))} elements, {words.number(max(loads) / mean)} times "
            f"the mean; {what.format(words.number(round(bound)))}.",
            "one rank holds too many elements.",
        )
        return kit.wrong(said, cause="fullest")

    return look


THIRD = fullest(lambda dealing: 4 / 3 * sum(dealing.sizes) / dealing.n, "{} would be a third more than that")
GREEDY = fullest(Dealing.largest, "{} are possible")
Row = tuple[list[Dealing], Callable[[Dealing, Owned], kit.Finding], str, float]


@kit.exercise(points=2, objects=(NAME,), references=REFERENCE, extra=True, point=POINT)
def deal(draw: kit.Draw) -> Iterator[kit.Case]:
    large, small = draw.integer(30, 40), draw.integer(3, 6)
    wide, flat = [large, large + 1], [small, small + 1]
    turns = Dealing(2 * [wide, flat], 2)
    halves = Dealing([wide, wide, flat, flat], 2)
    late = Dealing([[1, small * small], [1, small * small], [2 * small, small]], 2)  # whose sides add to less
    width = draw.integer(4, 9)
    block = [[width, width], [width, 4 * width], [3 * width, width], [4 * width, width]]
    gpt = Dealing(2 * block, 3)
    few = Dealing([wide, flat], 4)
    rows: list[Row] = [
        ([turns, halves], once, "each matrix on one rank", 1.0),
        ([turns, halves], THIRD, "large and small ones: no rank far above the mean", 1.5),
        ([late], GREEDY, "a large matrix that comes last", 1.0),
        ([gpt], GREEDY, "two blocks of a GPT, 3 ranks", 1.0),
        ([few], once, "more ranks than matrices", 0.5),
    ]
    yield case("dealing", rows)
    if draw.hidden:
        drawn = [[draw.integer(2, 30), draw.integer(2, 30)] for _ in range(9)]
        more: list[Row] = [
            ([Dealing(drawn, 4)], GREEDY, "other shapes, 4 ranks", 1.0),
            ([Dealing(drawn[:3], 1)], once, "1 rank", 0.5),
        ]
        yield case("other dealings", more, hidden=True)


def case(title: str, rows: Sequence[Row], hidden: bool = False) -> kit.Case:
    calls: list[Dealing] = []
    for dealings, *_ in rows:
        calls += [dealing for dealing in dealings if dealing not in calls]

    def usual(observed: kit.Observed) -> str:
        """The mistake that explains the lists of all calls."""
        answers = (owned_of(dealing, observed.answer(k)) for k, dealing in enumerate(calls))
        came = [owned for owned in answers if not isinstance(owned, kit.Finding)]
        return slip(calls, came) if len(came) == len(calls) else ""

    def line(dealings: list[Dealing], look, title: str, weight: float) -> kit.Line:
        def judge(observed: kit.Observed) -> kit.Finding:
            for dealing in dealings:
                owned = owned_of(dealing, observed.answer(calls.index(dealing)))
                finding = owned if isinstance(owned, kit.Finding) else look(dealing, owned)
                if finding.cause == "fullest":
                    says = usual(observed)
                    said = (*finding.sentences, says) if says else finding.sentences
                    return kit.wrong(*said, cause=says or "fullest", misses_point=says in IDEAS)
                if not finding.ok:
                    return finding
            return kit.RIGHT

        made = kit.Line(title, judge, weight)
        return kit.telling(made) if look is THIRD else made

    asked = [kit.call(0, [[list(shape) for shape in dealing.shapes], dealing.n]) for dealing in calls]
    lines = [line(*row) for row in rows]
    return kit.Case(title, [kit.evaluating(asked)], lines, recipe=kit.EVALUATE, alone=True, hidden=hidden)
