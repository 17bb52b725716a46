"""write_plan: which rank writes which of the pieces that several ranks hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from course_lib.checks import kit, words
from course_lib.checks.notebooks.in_operation.references import REFERENCES
from course_lib.checks.rank.notebooks.in_operation.planning import Box, WriteAnswer, WriteInstructions

RECIPE = "course_lib.checks.rank.notebooks.in_operation.planning:write_plans"
NAME = "write_plan"
POINT = "each piece once, and no rank that writes for all"
EVERYONE = (
    "Every rank writes everything it holds. A piece that several ranks hold is the same on all of them, so "
    "only one rank writes it."
)
ONE_RANK = (
    "One rank writes what all hold while the others wait. Instead, deal the pieces out among the ranks that "
    "hold them."
)
BY_NAME = (
    "A name was taken for a piece. The parts of a cut tensor have one name but several boxes, so a piece is "
    "its name and its box."
)
FIRST_LIST = (
    "Every rank was taken to hold rank 0's list. But ranks can hold different pieces, so look for a piece in "
    "the list of each rank."
)
OWN_PIECES = "An index counts the pieces of the rank that writes, so give each piece to a rank that holds it."
NOT_HELD = f"Another piece is written twice instead. {OWN_PIECES}"
BY_BOX = (
    "A box was taken for a piece. Tensors of the same shape have equal boxes, so a piece is its name and "
    "its box."
)
BY_NUMBER = (
    "The pieces were dealt out by their number. Deal them out by their bytes instead, because a matrix has "
    "as many bytes as a million norms."
)
UNSORTED = (
    "Each piece goes to the rank with the fewest bytes, but a large piece comes last. Deal out the largest "
    "pieces first, so that the small pieces fill what is left."
)
IDEAS = (EVERYONE, ONE_RANK)
Piece = tuple[str, Box, int]
Key = tuple[str, tuple[tuple[int, int], ...]]


def key(piece: Piece) -> Key:
    return piece[0], tuple(piece[1])


@dataclass(frozen=True)
class Held:
    """One call. groups: ranks that hold the same pieces, all of them."""

    pieces: tuple[tuple[Piece, ...], ...]  # of each group
    groups: tuple[tuple[int, ...], ...]

    @property
    def held(self) -> list[list[Piece]]:
        ranks = sum(map(len, self.groups))
        of = {rank: pieces for pieces, group in zip(self.pieces, self.groups, strict=True) for rank in group}
        return [list(of[rank]) for rank in range(ranks)]

    def least(self) -> int:
        """The least bytes that the busiest rank can have."""
        return max(best(pieces, len(group)) for pieces, group in zip(self.pieces, self.groups, strict=True))

    def unsorted(self) -> list[list[int]]:
        """The plan that deals the pieces in their order, each to the holder with the fewest bytes."""
        plan = [list[int]() for _ in self.held]
        busy = [0] * len(plan)
        for pieces, group in zip(self.pieces, self.groups, strict=True):
            for index, piece in enumerate(pieces):
                rank = min(group, key=lambda rank: busy[rank])
                busy[rank] += piece[2]
                plan[rank].append(index)
        return plan


def best(pieces: Sequence[Piece], ranks: int) -> int:
    loads = []
    for owners in product(range(ranks), repeat=max(len(pieces) - 1, 0)):
        busy = [0] * ranks
        for owner, piece in zip((0, *owners), pieces, strict=False):  # the first may go anywhere
            busy[owner] += piece[2]
        loads.append(max(busy))
    return min(loads)


def plan_of(held: Held, answer: WriteAnswer) -> list[list[int]] | kit.Finding:
    if answer.error is not None:
        error, text, place = answer.error
        if error == "NotImplementedError":
            return kit.unwritten(NAME, place)
        said = kit.error_sentence(NAME, error, text)
        return kit.wrong(said, kit.at(place) if place else "", cause=f"raised {error}")
    ranks = held.held
    if answer.misfit or answer.plan is None or len(answer.plan) != len(ranks):
        said = kit.Sentence(
            f"{NAME} gives {answer.misfit or 'another number of lists'}.",
            f"{NAME} gives something in another form.",
        )
        return kit.wrong(
            said, "Return a list for each rank, with the indices of what that rank writes.", cause="form"
        )
    for rank, row in enumerate(answer.plan):
        if beyond := [index for index in row if not 0 <= index < len(ranks[rank])]:
            said = kit.Sentence(
                f"rank {rank} writes piece {beyond[0]}, which it does not hold.",
                "a rank writes what it does not hold.",
            )
            return kit.wrong(said, OWN_PIECES, cause="index")
    return answer.plan


def known(held: Held, plan: list[list[int]]) -> str:
    """The mistake that gives this plan."""
    ranks = held.held
    if len(ranks) > 1 and all(sorted(row) == list(range(len(ranks[r]))) for r, row in enumerate(plan)):
        return EVERYONE
    if any(len(group) > 1 and sum(bool(plan[rank]) for rank in group) == 1 for group in held.groups):
        return ONE_RANK
    if [sorted(row) for row in plan] == held.unsorted():
        return UNSORTED
    counts = [[len(plan[rank]) for rank in group] for group in held.groups]
    return BY_NUMBER if all(max(each) - min(each) <= 1 for each in counts) else ""


def dealt_from_the_first(held: Held, plan: list[list[int]]) -> bool:
    """Whether the numbers of rank 0's list were dealt out to every group, each number once."""
    numbers = sorted(index for row in plan for index in row)
    everywhere = all(any(plan[rank] for rank in group) for group in held.groups)
    return len(held.groups) > 1 and everywhere and numbers == list(range(len(held.held[0])))


def once(held: Held, plan: list[list[int]]) -> kit.Finding:
    ranks = held.held
    written = Counter(key(ranks[rank][index]) for rank, row in enumerate(plan) for index in row)
    wanted = {key(piece) for pieces in ranks for piece in pieces}
    if missing := sorted(wanted - written.keys()):
        name, box = missing[0]
        said = kit.Sentence(f"no rank writes {name!r} {list(box)}.", "no rank writes a piece.")
        if dealt_from_the_first(held, plan):
            return kit.wrong(said, FIRST_LIST)
        named = {other for other, _ in written}
        if any(count > 1 for count in written.values()):
            return kit.wrong(said, NOT_HELD)
        boxes = {other for _, other in written}
        by_box = BY_BOX if all(other in boxes for _, other in missing) else ""
        return kit.wrong(said, BY_NAME if all(other in named for other, _ in missing) else by_box)
    if twice := sorted(piece for piece, count in written.items() if count > 1):
        name, box = twice[0]
        times = words.times(written[twice[0]])
        said = kit.Sentence(f"{name!r} {list(box)} is written {times}.", "a piece is written more than once.")
        says = known(held, plan)
        return kit.wrong(said, says if says == EVERYONE else "", misses_point=says == EVERYONE)
    return kit.RIGHT


def spread(held: Held, plan: list[list[int]]) -> kit.Finding:
    ranks = held.held
    busy = [sum(ranks[rank][index][2] for index in row) for rank, row in enumerate(plan)]
    least = held.least()
    if not (finding := once(held, plan)).ok:
        return finding
    if Fraction(max(busy)) <= Fraction(4, 3) * least:
        return kit.RIGHT
    rank = busy.index(max(busy))
    said = kit.Sentence(
        f"rank {rank} writes {words.number(busy[rank])} bytes, but {words.number(least)} are possible.",
        "one rank writes more than 4/3 of what is possible.",
    )
    says = known(held, plan)
    return kit.wrong(said, says, misses_point=says in IDEAS)


@kit.exercise(points=3, objects=(NAME,), references=REFERENCES, extra=True, point=POINT)
def write_plan(draw: kit.Draw) -> Iterator[kit.Case]:
    def pieces(*sizes: int, box: Box | None = None) -> tuple[Piece, ...]:
        return tuple((f"w{k}", box or [(0, size)], size) for k, size in enumerate(sizes))

    def large() -> int:
        return draw.integer(1000, 1100)

    def small() -> int:
        return draw.integer(1, 20)

    # no two are equally large, and so no two have one box
    a, b, c, d, e, f = (int(each) for each in draw.distinct(6, low=1, high=20))
    four = Held((pieces(large(), a, b, c, large() + 200, d, e, f),), ((0, 1, 2, 3),))
    size = draw.integer(100, 200)
    last = Held((pieces(size, size, 2 * size),), ((0, 1),))
    sizes = [large(), large(), small(), small()]
    left, right = pieces(*sizes, box=[(0, 8), (0, 3)]), pieces(*sizes, box=[(0, 8), (3, 6)])
    # In another order: so the numbers of a plan tell whether it was made from rank 0's list, or by names.
    # The largest piece is only on the last two ranks: a rank without pieces does not have it by chance.
    alone = ("alone", [(0, 5), (0, 2)], large() + 200)
    cut = Held((left, (*right[1:], right[0], alone)), ((0, 1), (2, 3)))
    adjacent = Held((pieces(large(), a, large() + 200, b),), ((0, 1),))
    rows = [
        ([four, last], once, "replicas: each piece once", 1.0),
        ([four, adjacent], spread, "no rank writes more than 4/3 of the least", 1.5),
        ([cut], once, "tensors cut in two, each part on two ranks: once", 1.5),
        ([cut], spread, "their busiest rank", 1.0),
        ([last], spread, "a large piece that comes last", 0.5),
    ]
    yield case("plans", rows)
    if draw.hidden:
        single = Held((pieces(large(), small()),), ((0,),))
        shards = Held(tuple(pieces(large(), box=[(k, k + 1)]) for k in range(3)), ((0,), (1,), (2,)))
        other = Held((pieces(small(), large(), large(), large(), small()),), ((0, 1, 2),))
        more = [([single, shards], once, "nothing to choose", 0.5), ([other], spread, "three ranks", 0.5)]
        yield case("other plans", more, hidden=True)


def case(title: str, rows: Sequence[tuple], hidden: bool = False) -> kit.Case:
    calls: list[Held] = []
    for held, *_ in rows:
        calls += [each for each in held if all(each is not other for other in calls)]

    def line(asked: list[Held], look, title: str, weight: float) -> kit.Line:
        places = [next(k for k, other in enumerate(calls) if other is each) for each in asked]

        def judge(observed: kit.Observed) -> kit.Finding:
            for k in places:
                plan = plan_of(calls[k], observed.values[0].answers[k])
                finding = plan if isinstance(plan, kit.Finding) else look(calls[k], plan)
                if not finding.ok:
                    return finding
            return kit.RIGHT

        made = kit.Line(title, judge, weight)
        return kit.telling(made) if look is spread and len(asked) > 1 else made

    instructions = WriteInstructions([held.held for held in calls])
    sides = [kit.RankSide({}, instructions, {})]
    return kit.Case(title, sides, [line(*row) for row in rows], recipe=RECIPE, alone=True, hidden=hidden)
