"""Parity: if the loss of a layout is wrong, which of its axes are needed for it to fail?

A step on pp 2 x dp 2 x cp 2 x tp 2 is wrong, and the mistake is in one axis, or where two of them meet. Set
one axis after the other to 1 as long as the step still fails. The layout that remains is small enough to
read.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002. A result is 1-minimal
if no single part of it can be left out. With only four axes, the greedy search does not need the halves of
their ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def smallest_failing(
    sizes: Mapping[str, int], fails: Callable[[dict[str, int]], bool]
) -> dict[str, int]:
    """The axes of `sizes`, with their sizes, none of which can be left out if the layout is to fail.

    fails: a function of sizes with all axes in the same order, some of them 1. For a axes, it is called at
        most a + a^2 times, since each call can be a run.

    Returns {} if a single rank fails. Only axes larger than 1 are named, in the order of `sizes`, which is
    not changed. If several answers are right, it returns the answer that a search from the first axis on
    finds first. Raises ValueError if `sizes` do not fail.
    """
    alone = dict.fromkeys(sizes, 1)
    if fails(dict(alone)):
        return {}
    left = {axis: size for axis, size in sizes.items() if size > 1}
    if not left or not fails({**alone, **left}):
        raise ValueError(f"{dict(sizes)} does not fail: there is nothing to look for")
    smaller = True
    while smaller:  # again, since an axis may have been needed only by the one removed
        smaller = False
        for axis in list(left):
            rest = {name: size for name, size in left.items() if name != axis}
            if rest and fails({**alone, **rest}):
                left, smaller = rest, True
    return left
