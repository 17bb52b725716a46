"""A number of each rank, and its bounds: the first rank beyond them, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.checks import words


@dataclass(frozen=True)
class Beyond:
    """The number `got` of the rank at `place` among those that take part lies beyond its bound."""

    place: int
    got: float
    bound: float

    @property
    def ratio(self) -> float:
        """How many times the bound it is."""
        return self.got / self.bound if self.bound else float("inf")

    @property
    def number(self) -> str:
        return words.number(round(self.got))

    @property
    def enough(self) -> str:
        """ "4,000 are enough", or "are needed" if the number is too small."""
        return f"{words.number(round(self.bound))} are {'enough' if self.got > self.bound else 'needed'}"


def beyond(
    amounts: Sequence[float], most: Sequence[float], least: Sequence[float] | None = None, spare: float = 1
) -> Beyond | None:
    """The first amount, by place, that is more than `most` or less than `least`; None if all are within.

    least: as `most` when left out, for an amount that is known exactly. spare: by how much it may be off, for
    bounds that are not whole numbers.
    """
    for place, got in enumerate(amounts):
        low, high = (most if least is None else least)[place], most[place]
        if not low - spare <= got <= high + spare:
            return Beyond(place, got, high if got > high else low)
    return None
