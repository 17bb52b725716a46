"""A search for the axes that a layout needs to fail: its right results, and the cause of a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from course_lib.checks import kit, words
from course_lib.checks.rank.notebooks.capstone.searching import MOST, SearchReply, SearchScript, Sizes

NAME = "smallest_failing"
ALONE = (
    "You asked only about single axes, but a mistake may need several axes that meet. Begin with the "
    "layout that fails, and set one axis after another to 1."
)
SUBSETS = (
    "There are 2^a layouts, and each call can be a run of minutes, so keep an axis at 1 as soon as the "
    "layout fails without it, and go on from there."
)
AGAIN = (
    "An axis that was needed at first may not be needed once another axis is 1, so go through the rest "
    "once more after a success."
)
TOGETHER = (
    "You left out several axes together, but each can be left out only while the others stay. Leave out "
    "one axis, then ask about the others without it."
)
OTHERS = "You returned the axes that can be set to 1. Return the other ones instead."
STOPPED = "Go on until no axis of the rest can be set to 1."
IN_CIRCLES = (
    "The search asks about the same layouts again and again. Skip an axis that is 1 already, because it "
    "brings you no further, and end as soon as a whole round removes no axis."
)
KEEP = "Set an axis to 1 for good only if the layout still fails then."
ONE_RANK = "If even one rank fails, the layout is not to blame, so the result is {}."
EVERY_AXIS = "Give `fails` all axes in the order of `sizes`, with the size 1 for axes you leave out."
FORM = "Return a dict of axes and their sizes, such as {'dp': 2}."
IDEAS = (ALONE, SUBSETS)

Axes = frozenset[str]


@dataclass(frozen=True)
class Search:
    """A layout, and the sets of axes with which it fails; `sizes` of other axes are 1."""

    name: str
    sizes: dict[str, int]
    failing: frozenset[Axes]

    def described(self) -> SearchScript:
        order = list(self.sizes)
        listed = sorted(sorted(axes, key=order.index) for axes in self.failing)
        return SearchScript(self.name, list(self.sizes.items()), listed)

    @property
    def whole(self) -> Axes:
        return frozenset(axis for axis, size in self.sizes.items() if size > 1)

    @property
    def most(self) -> int:
        """The calls that a search may make."""
        return len(self.sizes) + len(self.sizes) ** 2

    def fails(self, axes: Collection[str]) -> bool:
        return frozenset(axes) in self.failing

    def spare(self, axes: Axes) -> list[str]:
        """The axes without each of which the layout still fails, in order."""
        return [axis for axis in self.sizes if axis in axes and self.fails(axes - {axis})]

    def right(self, axes: Axes) -> bool:
        """Whether it is 1-minimal; {} is, if one rank fails, and then nothing else is."""
        return self.fails(axes) and not self.spare(axes) and (not axes or not self.fails(()))

    def one_round(self, order: Sequence[str]) -> Axes:
        """The result of a search that asks about each axis once."""
        left = self.whole
        for axis in order:
            left = left - {axis} if axis in left and self.fails(left - {axis}) else left
        return left


def needing(name: str, sizes: dict[str, int], *needed: str) -> Search:
    """It fails if all axes of one of `needed` are larger than 1."""
    sets = [frozenset(axes.split()) for axes in needed]
    return exactly(name, sizes, lambda axes: any(axes >= each for each in sets))


def exactly(name: str, sizes: dict[str, int], fails: Callable[[Axes], bool]) -> Search:
    larger = [axis for axis, size in sizes.items() if size > 1]
    subsets = (frozenset(c) for n in range(len(larger) + 1) for c in combinations(larger, n))
    return Search(name, sizes, frozenset(axes for axes in subsets if fails(axes)))


def listed(name: str, sizes: dict[str, int], *sets: str) -> Search:
    """It fails with exactly these sets of axes."""
    return Search(name, sizes, frozenset(frozenset(axes.split()) for axes in sets))


# ---- what came back


@dataclass(frozen=True)
class Account:
    """A search and the rank's reply about it."""

    search: Search
    reply: SearchReply

    @property
    def asked(self) -> list[Axes]:
        return [frozenset(axis for axis, size in call if size > 1) for call in self.reply.calls]

    def named(self) -> Axes:
        """The axes of the result that are larger than 1 there."""
        return frozenset(axis for axis, size in self.reply.result or [] if size > 1)

    def shown(self, sizes: Sizes | dict[str, int] | None = None) -> str:
        return repr(dict(self.search.sizes if sizes is None else sizes))

    def broken(self) -> kit.Finding | None:
        """The finding if there is no result to judge."""
        reply = self.reply
        if reply.no_sizes:
            said = f"`fails` was given a value of type {reply.no_sizes}."
            return kit.wrong(kit.Sentence(said, "`fails` was given no sizes."), EVERY_AXIS, cause="no sizes")
        if reply.endless:
            hint = IN_CIRCLES if self.in_circles() else STOPPED
            return kit.wrong(f"the search had no end after {MOST} calls of `fails`.", hint)
        if reply.error is not None:
            error, text, place = reply.error
            said = kit.Sentence(
                f"{NAME}({self.shown()}, fails) raised {kit.error_in_full(error, text)}.",
                f"{NAME} raised {kit.error_kind(error)}.",
            )
            hint = ""
            if error == "ValueError" and self.search.fails(()):
                hint = ONE_RANK
            elif only_single_axes(self):
                hint = ALONE
            missed = hint in IDEAS
            return kit.wrong(said, kit.at(place) if place else "", hint, cause=f"{error} {hint}",
                             misses_point=missed)  # fmt: skip
        if reply.result is None:
            kind = "None (is there a `return`?)" if reply.kind == "NoneType" else f"a {reply.kind}"
            return kit.wrong(kit.Sentence(f"{NAME} returned {kind}.", f"{NAME} returned no dict."), FORM)
        return None

    def in_circles(self) -> bool:
        """Whether the last two rounds ask about layouts of earlier rounds, and about no others."""
        last = 2 * len(self.search.sizes)
        return set(self.asked[-last:]) <= set(self.asked[:-last])

    def axes(self) -> kit.Finding:
        """Whether the result is one of the right ones."""
        if (finding := self.broken()) is not None:
            return finding
        axes, search = self.named(), self.search
        if search.right(axes):
            return kit.RIGHT
        gives = f"{NAME}({self.shown()}, fails) gives {self.shown(self.reply.result)}"
        if search.fails(()):
            general = f"{NAME} names axes although even one rank fails."
            return kit.wrong(kit.Sentence(f"{gives}, although even one rank fails.", general), ONE_RANK)
        if not search.fails(axes):
            said = kit.Sentence(
                f"{gives}, with which the layout does not fail.",
                f"{NAME} gives axes with which the layout does not fail.",
            )
        else:
            spare = words.listing(search.spare(axes))
            said = kit.Sentence(
                f"{gives}, which still fails without {spare}.", f"{NAME} gives axes that can be left out."
            )
        cause = self.why()
        return kit.wrong(said, cause, misses_point=cause in IDEAS)

    def why(self) -> str:
        """The usual cause of a wrong result."""
        axes, search = self.named(), self.search
        if only_single_axes(self):
            return ALONE
        if search.right(search.whole - axes):
            return OTHERS
        if search.fails(axes):
            rounds = [search.one_round(order) for order in (list(search.sizes), [*search.sizes][::-1])]
            return AGAIN if axes in rounds and axes != search.whole else STOPPED
        return TOGETHER if axes == search.whole - set(search.spare(search.whole)) else KEEP


def only_single_axes(account: Account) -> bool:
    """Whether single axes were asked about, and no other layout but one rank and the whole."""
    whole, asked = account.search.whole, account.asked
    single = any(len(axes) == 1 for axes in asked)
    return len(whole) > 2 and single and all(len(axes) < 2 or axes == whole for axes in asked)
