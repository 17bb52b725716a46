"""best_segment: how many layers apart checkpoints lie, so that the worst moment has least memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from course_lib import facts
from course_lib.checks import kit
from course_lib.checks.notebooks.precision_and_memory.references import REFERENCES

Most = Callable[[int, int, float, float], float]


def least(most: Most, larger: bool = True, longest: float = math.inf) -> kit.Formula:
    """The best segment by another count of what is kept: of (layers, every, kept, inside)."""

    def formula(layers: int, kept: float = 1.0, inside: float = 17.0) -> float:
        choices = range(1, min(layers, int(min(longest, layers))) + 1)
        return min(choices, key=lambda k: (most(layers, k, kept, inside), -k if larger else k))

    return formula


def right(layers: int, every: int, kept: float, inside: float) -> float:
    return facts.checkpointed_most(layers, every, kept, inside)


def in_parts(layers: int, every: int, kept: float, inside: float) -> float:
    """With a part of a piece."""
    return layers / every * kept + every * inside


def divisors(layers: int, kept: float = 1.0, inside: float = 17.0) -> float:
    """The best of those k that divide the layers."""
    choices = (k for k in range(1, layers + 1) if layers % k == 0)
    return min(choices, key=lambda k: (right(layers, k, kept, inside), -k))


def square_root(rounded: Callable[[float], float]) -> kit.Formula:
    return lambda layers, kept=1.0, inside=17.0: max(1, rounded(math.sqrt(layers)))


def continuous(rounded: Callable[[float], float]) -> kit.Formula:
    """The minimum without the whole number of pieces, from 1 to the layers."""
    smooth = unbounded(rounded)
    return lambda layers, kept=1.0, inside=17.0: max(1, min(layers, smooth(layers, kept, inside)))


def unbounded(rounded: Callable[[float], float], least: int = 0) -> kit.Formula:
    """As `continuous`, but the result may be greater than the layers."""
    return lambda layers, kept=1.0, inside=17.0: max(least, rounded(math.sqrt(layers * kept / inside)))


CHEN = (
    "Your answer is the square root of the layers, Chen et al.'s rule for layers that keep no more than "
    "their input. But here a layer keeps `inside`."
)
WHOLE = (
    "sqrt(L kept / inside) is the minimum of a smooth curve, but pieces are whole. Try every k, and "
    "count ceil(L/k) of them."
)
SLIPS: dict[str, kit.Formula] = {
    "If two k need equal memory, take the larger one, because it has fewer pieces.": least(
        right, larger=False
    ),
    "Pieces are whole, so count ceil(L/k) inputs instead of L/k.": least(in_parts),
    CHEN: square_root(round),
    f"{CHEN} (Rounded down.)": square_root(math.floor),
    f"{CHEN} (Rounded up.)": square_root(math.ceil),
    WHOLE: continuous(round),
    f"{WHOLE} (Rounded up.)": continuous(math.ceil),
    f"{WHOLE} (Rounded down.)": continuous(math.floor),
    **{
        f"{WHOLE} ({how}, from {least} on.)": unbounded(rounded, least)
        for how, rounded in (("Rounded", round), ("Rounded up", math.ceil), ("Rounded down", math.floor))
        for least in (0, 1)
    },
    "Count ceil(L/k) inputs. L // k leaves out the input of a shorter last piece, and L // k + 1 counts one "
    "too many if k divides L.": least(lambda layers, k, kept, inside: (layers // k) * kept + k * inside),
    "Next to the inputs, one whole segment exists while it is recomputed, so count k layers, not one.": least(
        lambda layers, k, kept, inside: math.ceil(layers / k) * kept + inside
    ),
    "Your answer is the number of pieces, ceil(L/k), but the exercise asks for their length k.": (
        lambda layers, kept=1.0, inside=17.0: math.ceil(layers / facts.best_segment(layers, kept, inside))
    ),
    "A layer's input and its inside were exchanged. Count ceil(L/k) of `kept`, and k of `inside`.": least(
        lambda layers, k, kept, inside: math.ceil(layers / k) * inside + k * kept
    ),
    "Your answer does not depend on kept and inside, although their ratio decides.": least(
        lambda layers, k, kept, inside: math.ceil(layers / k) + 17 * k
    ),
    "Your answer is 1 whatever the layers keep. Try every k from 1 to L instead.": least(right, longest=1),
    "A k that does not divide the layers is as good, because the last piece is shorter, ceil(L/k) of "
    "them.": divisors,
    "Your answer is the memory at the worst moment, but the exercise asks for the k that gives it.": (
        lambda layers, kept=1.0, inside=17.0: min(
            right(layers, k, kept, inside) for k in range(1, layers + 1)
        )
    ),
}


def telling(layers: int, kept: float, inside: float) -> bool:
    """Whether these numbers tell each rule apart from the right one and from the others."""
    numbers = layers, kept, inside
    best = facts.best_segment(*numbers)
    smooth, chen = math.sqrt(layers * kept / inside), math.sqrt(layers)
    others = [
        *({math.floor(root), round(root), math.ceil(root)} for root in (smooth, chen)),
        {divisors(*numbers)}, {facts.best_segment(layers, inside, kept)}, {1, layers},
    ]  # fmt: skip
    apart = sum(map(len, others)) == len(set().union(*others))
    unlike = best not in set().union(*others) and least(in_parts)(*numbers) != best
    return apart and unlike and least(right, larger=False)(*numbers) == best


@kit.exercise(points=4, objects=("best_segment",), references=REFERENCES)
def best_segment(draw: kit.Draw) -> Iterator[kit.Case]:
    """A transformer's numbers, those of Chen et al., and drawn ones; ties, and ends of the range."""
    drawn: list[tuple[int, float, float]] = []
    while len(drawn) < 6:
        numbers = draw.integer(20, 200), float(draw.integer(1, 9)), float(draw.integer(1, 60))
        if telling(*numbers):
            drawn.append(numbers)
    ties = [(4, 3.0, 3.0), (12, 4.0, 4.0), (6, 1.0, 1.0), (2, 5.0, 5.0)]

    def line(title: str, *arguments: tuple, weight: float = 1.0) -> kit.Prediction:
        return kit.Prediction(
            "best_segment", 0, arguments, facts.best_segment, SLIPS, weight, title,
            otherwise="Compute ceil(L/k) kept + k inside for every k from 1 to L, and take the least.",
        )  # fmt: skip

    yield from kit.evaluated(
        [
            line("transformers", (80,), (97,), (126, 2.0, 34.0), (61, 2.0, 12.0), weight=2),
            line("layers that keep their input alone", (100, 1.0, 1.0), (97, 1.0, 1.0), (60, 1.0, 1.0)),
            line("other numbers", *drawn),
            line("equal memory: the larger k", *ties),
            line("one layer; a large input", (1,), (7, 100.0, 1.0), (12, 1.0, 500.0)),
        ]
    )
