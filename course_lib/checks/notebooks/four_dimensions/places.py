"""coordinates: the coordinate of a rank on each axis, and the ranks that share all coordinates but one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, product
from math import prod
from typing import Any

from course_lib.checks import kit
from course_lib.checks.notebooks.four_dimensions.meshes import (
    Answers,
    Formula,
    Question,
    Sizes,
    everywhere,
    ints,
    title,
)
from course_lib.checks.notebooks.four_dimensions.references import REFERENCES
from course_lib.mesh.coordinates import axis_ranks as right_ranks
from course_lib.mesh.coordinates import coordinates as right_places

# Meshes, with their weights among the coordinates and among the groups. Equal sizes tell few mistakes apart.
VISIBLE: list[tuple[Sizes, float, float]] = [
    ({"pp": 2, "dp": 2, "tp": 2}, 0.5, 0.25),
    ({"pp": 3, "dp": 2, "tp": 4}, 1, 0.5),
    ({"pp": 1, "dp": 5, "tp": 1}, 0.25, 0.25),
    ({"pp": 16, "dp": 8, "tp": 8}, 0.75, 0.25),
]
SMALL = 40  # ranks of a mesh that are all asked for their groups
SAMPLE = 6  # ranks of a larger one: an answer may look at every rank, and at every rank's coordinate for each
REVERSED = (
    "The axes are reversed. Rank 1 differs from rank 0 in the last axis, but yours differs in the first. "
    "Axes are listed outermost first, so the last one varies fastest."
)
WRONG_END = (
    "The strides are taken from the wrong end. A step along an axis is as many ranks as all axes inside it, "
    "behind it in `sizes`, hold together. With equal sizes both ends give the same."
)
OWN_SIZE = (
    "The stride contains the size of the axis itself. But a step along an axis skips only as many ranks as "
    "the axes inside it hold together."
)
BITS = (
    "Bits are cut out of the rank, but this is right for powers of two only. Divide, then take the remainder."
)
NO_REMAINDER = (
    "The coordinate on an inner axis is a remainder, because after the last one the axis begins again."
)


# ---- mistakes in `coordinates`


def reversed_axes(rank: int, sizes: Sizes) -> dict[str, int]:
    places = {}
    for axis, size in sizes.items():
        rank, places[axis] = divmod(rank, size)
    return places


def wrong_end(rank: int, sizes: Sizes) -> dict[str, int]:
    names = list(sizes)
    steps = [prod(list(sizes.values())[: len(names) - 1 - i]) for i in range(len(names))]
    return {axis: rank // step % sizes[axis] for axis, step in zip(names, steps, strict=True)}


def bits(rank: int, sizes: Sizes) -> dict[str, int]:
    places = {}
    for axis, size in reversed(list(sizes.items())):
        places[axis], width = rank & (size - 1), (size - 1).bit_length()
        rank >>= width
    return {axis: places[axis] for axis in sizes}


def no_remainder(rank: int, sizes: Sizes) -> dict[str, int]:
    names = list(sizes)
    return {axis: rank // prod(sizes[inner] for inner in names[i + 1 :]) for i, axis in enumerate(names)}


def own_size(rank: int, sizes: Sizes) -> dict[str, int]:
    return {axis: rank // own_stride(sizes, axis) % size for axis, size in sizes.items()}


def own_stride(sizes: Sizes, axis: str) -> int:
    """The ranks that the axis and all axes inside it hold together, mistaken for the stride."""
    names = list(sizes)
    return prod(sizes[inner] for inner in names[names.index(axis) :])


PLACES: dict[str, Formula] = {
    REVERSED: reversed_axes,
    WRONG_END: wrong_end,
    OWN_SIZE: own_size,
    BITS: bits,
    NO_REMAINDER: no_remainder,
}


# ---- mistakes in `axis_ranks`


def named(axis: Any) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else tuple(axis)


def by_places(places: Formula, rank: int, sizes: Sizes, axis: Any) -> list[int]:
    """The ranks that differ in these axes alone, by another rule for coordinates."""
    own, others = places(rank, sizes), range(prod(sizes.values()))
    kept = [name for name in sizes if name not in named(axis)]
    return [k for k in others if all(places(k, sizes)[name] == own[name] for name in kept)]


def too_far_apart(rank: int, sizes: Sizes, axis: Any, *, first_is_right: bool = False) -> list[int]:
    """The group with strides that contain the axis's own size; first_is_right: its first rank has another."""
    stride = {name: own_stride(sizes, name) for name in named(axis)}
    own = right_places(rank, sizes)
    first = rank - sum(own[name] * stride[name] for name in stride)
    if first_is_right:
        first = right_ranks(rank, sizes, axis)[0]
    places = product(*(range(sizes[name]) for name in stride))
    return [first + sum(k * stride[name] for k, name in zip(at, stride, strict=True)) for at in places]


def without_itself(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return [other for other in right_ranks(rank, sizes, axis) if other != rank]


def from_itself(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    ranks = right_ranks(rank, sizes, axis)
    place = ranks.index(rank)
    return ranks[place:] + ranks[:place]


def steps_from_itself(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    ranks = right_ranks(rank, sizes, axis)
    return [rank + other - ranks[0] for other in ranks]


def itself_first(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return [rank, *without_itself(rank, sizes, axis)]


def backwards(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return right_ranks(rank, sizes, axis)[::-1]


def second_axis_first(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return right_ranks(rank, sizes, named(axis)[::-1])


def in_the_meshs_order(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return right_ranks(rank, sizes, tuple(name for name in sizes if name in named(axis)))


def union(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    joined = {other for name in named(axis) for other in right_ranks(rank, sizes, name)}
    return [other for other in right_ranks(rank, sizes, axis) if other in joined]


def sorted_union(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return sorted(union(rank, sizes, axis))


def first_axis_alone(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    return right_ranks(rank, sizes, named(axis)[0])


def same_place(rank: int, sizes: Sizes, axis: Any) -> list[int]:
    own = right_places(rank, sizes)
    return [
        other
        for other in range(prod(sizes.values()))
        if all(right_places(other, sizes)[name] == own[name] for name in named(axis))
    ]


ORDER = (
    "The group has another order than along the axis, but coordinate 0 comes first, on every rank of the "
    "group."
)
JOINED = (
    "Your groups are the groups of the single axes, joined. But a flattened group holds every combination of "
    "their coordinates."
)
RANKS: dict[str, Formula] = {
    "The rank itself is missing, although it is a member of its own group.": without_itself,
    f"{OWN_SIZE} ": too_far_apart,
    f"{OWN_SIZE}  ": partial(too_far_apart, first_is_right=True),
    "The steps begin at the rank itself, so go to coordinate 0 of the axis first.": steps_from_itself,
    ORDER: from_itself,
    f"{ORDER} ": itself_first,
    f"{ORDER}  ": backwards,
    "Your ranks have the same coordinate on the axis. But a group holds the ranks that differ in the axis "
    "and agree in all others.": same_place,
    **{says: partial(by_places, places) for says, places in PLACES.items()},
}
FLATTENED: dict[str, Formula] = {
    "The flattened group is ordered by its second axis first. But the first axis of the tuple varies "
    "slowest, as in a mesh.": second_axis_first,
    "The flattened group has the order of the mesh. But the first axis of the tuple varies slowest, even if "
    "it is further inside.": in_the_meshs_order,
    JOINED: union,
    f"{JOINED} ": sorted_union,
    "Your answer is only the group of the tuple's first axis.": first_axis_alone,
    **RANKS,
}


# ---- the exercise


def drawn(draw: kit.Draw) -> Sizes:
    """Four axes of unequal sizes, of which dp has three ranks."""
    sizes = [draw.choice([2, 3, 4]), 3, draw.choice([2, 4, 5]), draw.choice([2, 6])]
    return dict(zip(("pp", "dp", "cp", "tp"), sizes, strict=True))


def asked(draw: kit.Draw, sizes: Sizes, axes: Sequence[Any]) -> list[Question]:
    """All ranks of a small mesh, and some of a large one, for their groups along `axes`."""
    n = prod(sizes.values())
    ranks = range(n) if n <= SMALL else sorted({0, n - 1, *(draw.integer(0, n) for _ in range(SAMPLE - 2))})
    return [Question(rank, sizes, (axis,)) for axis in axes for rank in ranks]


def pairs(sizes: Sizes) -> list[tuple[str, ...]]:
    """Every pair of axes, every second one with its inner axis first."""
    return [pair if k % 2 == 0 else pair[::-1] for k, pair in enumerate(combinations(sizes, 2))]


@kit.exercise(points=5, objects=("coordinates", "axis_ranks"), references=REFERENCES)
def coordinates(draw: kit.Draw) -> Iterator[kit.Case]:
    """Half of the points for the coordinates: a group in another order, or without its rank, keeps them."""
    meshes = {title(sizes): (sizes, *weights) for sizes, *weights in VISIBLE}
    if draw.hidden:
        meshes["pp, dp, cp and tp"] = (drawn(draw), 0.5, 0.25)  # a title tells no seed
    places = Answers("coordinates", 0, right_places, read_places, "a dict with a whole number for each axis")
    yield places.case([
        places.line(f"coordinates: {name}", everywhere(sizes), PLACES, weight)
        for name, (sizes, weight, _) in meshes.items()
    ])  # fmt: skip
    ranks = Answers("axis_ranks", 1, right_ranks, ints, "a list of ranks")
    lines = []
    for name, (sizes, _, weight) in meshes.items():
        questions = asked(draw, sizes, list(sizes))
        lines.append(ranks.line(f"groups: {name}", questions, RANKS, weight, throughout=PLACES))
    for name, (sizes, *_) in [*meshes.items()][:2] + [*meshes.items()][4:]:
        questions = asked(draw, sizes, pairs(sizes))
        lines.append(ranks.line(f"flattened groups: {name}", questions, FLATTENED, 0.5, throughout=PLACES))
    yield ranks.case(lines)


def read_places(value: Any) -> dict[str, int] | None:
    """A dict of whole numbers that came back as plain data."""
    pairs = value.get("dict") if isinstance(value, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return None
    whole = all(isinstance(name, str) and type(place) is int for name, place in pairs)
    return dict(pairs) if whole else None
