"""Parity: a layout whose loss is another one. Which of its axes are needed, so that it fails?

A step on pp 2 x dp 2 x cp 2 x tp 2 is wrong, and the mistake is in one axis, or where two of them meet. Set
one axis after the other to 1 for as long as it still fails. The rest is small enough to be read.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002: a result is 1-minimal
if no single part of it can be left out. With four axes the greedy search needs no halves, unlike their ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def smallest_failing(
    sizes: Mapping[str, int], fails: Callable[[dict[str, int]], bool]
) -> dict[str, int]:
    """The axes of `sizes` without any one of which the layout does not fail, with their sizes.

    fails: a function of sizes with all axes in the same order, some of them 1. It is called at most
        a + a^2 times for a axes, since each call may be a run.

    {} if one rank alone fails. Only axes larger than 1 are named, in the order of `sizes`, which is not
    changed. Where several answers are right, the one that a search from the first axis on finds first.
    Raises ValueError if `sizes` do not fail.
    """
    alone = dict.fromkeys(sizes, 1)
    if fails(dict(alone)):
        return {}
    left = {axis: size for axis, size in sizes.items() if size > 1}
    if not left or not fails({**alone, **left}):
        raise ValueError(f"{dict(sizes)} does not fail: there is nothing to look for")
    smaller = True
    while smaller:  # once more after a success: an axis may have been needed by one that is gone
        smaller = False
        for axis in list(left):
            rest = {name: size for name, size in left.items() if name != axis}
            if rest and fails({**alone, **rest}):
                left, smaller = rest, True
    return left
