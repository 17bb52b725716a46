"""hybrid_groups: which ranks share a model, and which hold the same shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from course_lib.checks import kit

GROUPS = 0  # of the objects
EXCHANGED = "The two lists are in the wrong order. Return the groups that shard first."
TRANSPOSED = (
    "The groups are transposed. Neighbours hold the same shard and distant ranks share a model, so "
    "most bytes cross between islands. Let neighbours shard, and let ranks of equal place replicate."
)
COUNTED = "`shard` is the number of ranks that share a model, not the number of islands."
EQUALS = (
    "Replicas are the ranks of equal place in their islands: p, p + g, p + 2g, ... for each place p of an "
    "island of g."
)
NEAR = (
    "The ranks of a replica group are neighbours, which hold different shards, so that nothing crosses "
    f"between islands. {EQUALS}"
)
UNSORTED = (
    "The ranks of each group and the groups themselves are in ascending order, so that all ranks make the "
    "groups in one order."
)
SPREAD = (
    "Neighbours should shard, because fast links connect them. Here the ranks of an island are far "
    "apart, so most bytes take the slow links."
)
POINT_MISSED = (EXCHANGED, TRANSPOSED, NEAR, SPREAD)
CUT_OFF = (
    "`shard` does not divide `world_size`, so that some ranks have no group, or an island that has not "
    "`shard` ranks."
)
REFUSE = "Raise ValueError unless world_size % shard is 0."
MOST = 1_000  # ranks of a range that came back
Groups = list[list[int]]


@dataclass(frozen=True)
class Islands:
    """n ranks in islands of g neighbours; r ranks hold the same shard."""

    n: int
    g: int

    @property
    def r(self) -> int:
        return self.n // self.g

    def runs(self, size: int) -> Groups:
        """Neighbours together, `size` to a list."""
        return [list(range(first, first + size)) for first in range(0, self.n, size)]

    def strides(self, stride: int) -> Groups:
        """Ranks at that distance together."""
        return [list(range(place, self.n, stride)) for place in range(stride)]

    @property
    def groups(self) -> tuple[Groups, Groups]:
        return self.runs(self.g), self.strides(self.g)

    @property
    def mistakes(self) -> dict[str, tuple[Groups, Groups]]:
        """The groups that each usual mistake gives. Some are alike if islands have one rank, or are one."""
        g, r = self.g, self.r
        return {
            EXCHANGED: (self.strides(g), self.runs(g)),
            COUNTED: (self.runs(r), self.strides(r)),
            TRANSPOSED: (self.strides(r), self.runs(r)),
            NEAR: (self.runs(g), self.runs(r)),
        }

    def why(self, shards: Groups, replicas: Groups) -> str:
        """The cause of groups that are not a usual mistake's."""
        right_shards, right_replicas = self.groups
        if (in_order(shards), in_order(replicas)) == self.groups:
            return UNSORTED
        if in_order(shards) == right_shards and in_order(replicas) != right_replicas:
            return EQUALS
        if 1 < self.g < self.n and in_order(shards) == self.runs(self.r):  # else it may be an exchange
            return COUNTED
        if in_order(shards) == self.strides(self.r):
            return SPREAD
        ranks = sorted(rank for group in shards for rank in group)
        if {*map(len, shards)} == {self.g} and ranks == list(range(self.n)):
            return "Let neighbours shard, so that the ranks of an island follow one another."
        if ranks and ranks[0] == 1:
            return "Ranks are counted from 0, so they are 0 to n - 1."
        return (
            "Each rank is in one list of each kind. It shards with its neighbours, and replicates "
            "with the ranks of equal place."
        )


def in_order(groups: Groups) -> Groups:
    return sorted(map(sorted, groups))


def listed(value: Any) -> Any:
    """Lists of numbers, from lists, ranges and tensors that came back as plain data."""
    match value:
        case {"range": [int(start), int(stop), int(step)]} if step:
            return list(range(start, stop, step)[:MOST])
        case {"tensor": list(elements), "shape": [_, int(width)]} if width > 0:
            return [elements[k : k + width] for k in range(0, len(elements), width)]
        case {"tensor": list(elements)}:
            return elements
        case list():
            return [listed(item) for item in value]
    return value


def usual(asked: Sequence[Islands], observed: kit.Observed) -> str:
    """The mistake that explains all answers that are not right; "" if none does, or several do."""
    answers = [(islands, observed.answer(k)) for k, islands in enumerate(asked)]
    groups = [(islands, listed(answer.value)) for islands, answer in answers if answer.error is None]
    others = [(islands, value) for islands, value in groups if value != [*islands.groups]]
    explain = [
        says
        for says in (EXCHANGED, COUNTED, TRANSPOSED, NEAR)
        if all(value == [*islands.mistakes[says]] for islands, value in others)
    ]
    return explain[0] if len(explain) == 1 else ""


def groups_judge(asked: Sequence[Islands], index: int) -> Callable[[kit.Observed], kit.Finding]:
    islands = asked[index]
    called = f"hybrid_groups({islands.n}, {islands.g})"

    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index)
        if answer.error is not None:
            return raised(called, *answer.error)
        value = listed(answer.value)
        if value == [*islands.groups]:
            return kit.RIGHT
        if not (isinstance(value, list) and len(value) == 2 and all(map(is_groups, value))):
            return no_pair(called, value, [group for kind in islands.groups for group in kind])
        shards, replicas = value
        general = "hybrid_groups gives other groups than asked for"
        said = kit.Sentence(f"{called} gives {shards} and {replicas}.", f"{general}.")
        why = usual(asked, observed) or islands.why(shards, replicas)
        # one rank to a group, or one group, is the same either way round
        far = why in POINT_MISSED and 1 < islands.g < islands.n
        return kit.wrong(said, why, cause=why, misses_point=far)

    return judge


def no_pair(called: str, value: Any, both: list[list[int]]) -> kit.Finding:
    """both: the groups of both kinds, one behind the other."""
    expected = "a pair of lists of lists of ranks is expected."
    if value is None:
        return kit.wrong(
            f"hybrid_groups returns nothing; {expected}", "Is there a `return` at its end?", cause="no pair"
        )
    said = kit.Sentence(f"{called} gives {shown(value)}; {expected}", f"hybrid_groups gives none; {expected}")
    if value and is_groups(value) and len(value) == len(both):
        why = "Return a pair, (shard_groups, replica_groups), and not one list of all groups."
    elif is_groups(value) and sorted(chain(*value)) == sorted({*chain(*both)}):
        why = "Return both kinds of groups, as a pair (shard_groups, replica_groups)."
    elif value and is_groups(value):
        why = "Return the groups of all ranks, since every rank makes all of them with dist.new_group."
    else:
        why = "Each group is a list of ints, and both kinds of groups are lists of such lists."
    return kit.wrong(said, why, cause="no pair")


def shown(value: Any) -> str:
    return str(value)[:80] if value is None or isinstance(value, list) else kit.came(value)


def is_groups(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(group, list) and all(type(rank) is int for rank in group) for group in value
    )


def refusal_judge(n: int, g: int, index: int) -> Callable[[kit.Observed], kit.Finding]:
    called = f"hybrid_groups({n}, {g})"

    def judge(observed: kit.Observed) -> kit.Finding:
        answer = observed.answer(index)
        if answer.error is None:
            return kit.wrong(
                kit.Sentence(f"{called} gives {shown(listed(answer.value))}.", "it was not refused."),
                f"{CUT_OFF} {REFUSE}" if isinstance(answer.value, list) else REFUSE,
                cause="not refused",
            )
        if answer.error[0] != "ValueError":
            return raised(called, *answer.error, advice=REFUSE)
        return kit.RIGHT

    return judge


def raised(called: str, error: str = "", text: str = "", place: str = "", advice: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("hybrid_groups", place)
    general = f"hybrid_groups raised {kit.error_kind(error)}."
    said = kit.Sentence(f"{called} raised {kit.error_in_full(error, text)}", general)
    return kit.wrong(said, kit.at(place), advice)


def groups_case(draw: kit.Draw) -> kit.Case:
    asked = [Islands(8, 4), Islands(6, 2), Islands(4, 4), Islands(3, 1)]
    refused = [(8, 3), (4, 8)]
    titles = [f"groups: {islands.n} ranks, islands of {islands.g}" for islands in asked]
    refusals = [f"{n} ranks in islands of {g} are refused" for n, g in refused]
    if draw.hidden:
        g, r = draw.integer(2, 6), draw.integer(2, 6)
        asked += [Islands(g * r, g), Islands(16, 8)]
        titles += ["groups: other islands", "groups: two nodes of 8"]
        refused += [(g * r + 1, g)]
        refusals += ["other numbers are refused"]
    pairs = [(islands.n, islands.g) for islands in asked] + refused
    lines = [kit.Line(title, groups_judge(asked, k), 1.25 if k < 2 else 1) for k, title in enumerate(titles)]
    lines += [
        kit.Line(title, refusal_judge(*numbers, k), 0.75)
        for k, (title, numbers) in enumerate(zip(refusals, refused, strict=True), start=len(asked))
    ]
    calls = [[GROUPS, [n, g]] for n, g in pairs]
    return kit.Case("groups", [kit.evaluating(calls)], lines, recipe=kit.EVALUATE, alone=True)
