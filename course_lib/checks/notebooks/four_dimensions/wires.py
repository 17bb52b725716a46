"""`wire`: the link that a group needs, and the mistakes about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from course_lib.checks import kit
from course_lib.facts.four_dimensions import ACROSS, INSIDE
from course_lib.facts.four_dimensions import wire as right_wire

Sizes = Mapping[str, int]
Args = tuple[Any, ...]


def reach(sizes: Sizes, axis: str) -> int:
    names = list(sizes)
    return prod(sizes[name] for name in names[names.index(axis) :])


def named(crosses: Callable[[Sizes, str, int], bool]) -> Callable[..., str]:
    return lambda sizes, axis, per_node: ACROSS if crosses(sizes, axis, per_node) else INSIDE


OWN_SIZE = (
    "The stride contains the size of the axis itself, so a group seems to reach too far. The stride is the "
    "product of the sizes of the axes inside it."
)
TP_ALONE = "tp stays in a node only if it fits, but 16 ranks do not fit into a node of 8."
# Each mistake: (sizes, axis, per_node) -> the name that it gives.
WIRES: dict[str, Callable[..., str]] = {
    "The size of the axis is not enough, because two neighbours on it are as many ranks apart as the axes "
    "inside it hold together. Multiply by this stride.": named(lambda sizes, axis, node: sizes[axis] > node),
    "The stride is not enough, because the group reaches over stride x size ranks.": named(
        lambda sizes, axis, node: reach(sizes, axis) // sizes[axis] >= node
    ),
    OWN_SIZE: named(
        lambda sizes, axis, node: (
            sizes[axis] > 1 and prod(sizes.values()) > node and node % (reach(sizes, axis) * sizes[axis]) != 0
        )
    ),
    f"{OWN_SIZE} ": named(
        lambda sizes, axis, node: sizes[axis] > 1 and node % (reach(sizes, axis) * sizes[axis]) != 0
    ),
    f"{OWN_SIZE}  ": named(
        lambda sizes, axis, node: sizes[axis] > 1 and reach(sizes, axis) * sizes[axis] > node
    ),
    TP_ALONE: named(lambda sizes, axis, node: axis != "tp" and sizes[axis] > 1),
    f"{TP_ALONE} ": named(lambda sizes, axis, node: axis != "tp"),
    "A group that fills its node stays inside it, so stride x size may be equal to per_node.": named(
        lambda sizes, axis, node: reach(sizes, axis) >= node
    ),
    "All ranks are in one node, so no group leaves it, whether its size divides the node or not.": named(
        lambda sizes, axis, node: sizes[axis] > 1 and node % reach(sizes, axis) != 0
    ),
    "An axis of one rank has no neighbours, so it sends nothing over the network.": named(
        lambda sizes, axis, node: node % reach(sizes, axis) != 0 and prod(sizes.values()) > node
    ),
    "A group may be smaller than a node but still cross its border. For example, nodes of 6 cut groups of "
    "4.": named(
        lambda sizes, axis, node: sizes[axis] > 1 and reach(sizes, axis) > node
    ),
    "The axes are counted from the wrong end, because the last one is innermost.": (
        lambda sizes, axis, node: right_wire(dict(reversed(sizes.items())), axis, node)
    ),
}  # fmt: skip


def wire_line(title: str, plans: Sequence[Args], every: Sequence[Args], weight: float) -> kit.Line:
    """The wires of `plans`, which are some of `every`; a mistake has to give all answers."""

    def judge(observed: kit.Observed) -> kit.Finding:
        names = []
        for k, args in enumerate(every):
            answer = observed.answer(k)
            if answer.error is not None:
                return raised(args, *answer.error)
            if answer.value not in (INSIDE, ACROSS):
                return kit.wrong(
                    f"wire gives neither {INSIDE!r} nor {ACROSS!r} for some arguments.", cause="wire form"
                )
            names.append(answer.value)
        pairs = list(zip(every, names, strict=True))
        off = [(args, name) for args, name in pairs if args in plans and name != right_wire(*args)]
        if not off:
            return kit.RIGHT
        why = next(
            (says for says, formula in WIRES.items() if all(formula(*a) == name for a, name in pairs)),
            "A group stays in a node if all ranks do, or if stride x size divides the node.",
        )
        args, name = off[0]
        said = kit.Sentence(f"wire{args!r} gives {name!r}.", "wire gives the other wire for some arguments.")
        return kit.wrong(said, why, cause=f"wire: {why}")

    return kit.Line(title, judge, weight)


def raised(args: Args, error: str = "", text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten("wire", place)
    said = kit.error_sentence("wire", error, text, call=f"wire{args!r}")
    return kit.wrong(said, kit.at(place), cause=f"wire raised {error}")


def wires(groups: Mapping[str, Sequence[Args]], weight: float) -> kit.Case:
    every = [plan for plans in groups.values() for plan in plans]
    lines = [wire_line(title, plans, every, weight) for title, plans in groups.items()]
    calls = [kit.call(1, plan) for plan in every]
    return kit.Case("wires", [kit.evaluating(calls)], lines, recipe=kit.SIZES, alone=True)
