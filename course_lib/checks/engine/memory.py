"""In the rank: memory is judged on what stays.

gloo's threads let go of a message's tensors a moment after the wait for it is over, and on a busy machine
that moment is long. Bytes that are about to go are kept by no code of a student's. So the judge says how many
bytes are enough, and where more are found they are measured again, until they are no longer too many or the
time is over. What a solution keeps is still there then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

_clock, _sleep, _infinity = time.monotonic, time.sleep, math.inf
LETTING_GO = 1.0  # seconds, of all measurements of a case together
PAUSE, PAUSES = (
    0.005,
    20,
)  # seconds between two measurements, in which other threads run; at least so many


class Patience:
    """Measures bytes; where they are more than `enough`, by what they are called, measures them again."""

    def __init__(self, enough: Mapping[str, float]):
        self.enough = enough
        self.seconds, self.pauses = LETTING_GO, PAUSES

    def measured(self, name: str, measure: Callable[[], int]) -> int:
        """What `measure` gives; the least of several times where that is too many."""
        least, most = measure(), self.enough.get(name, _infinity)
        while least > most and (self.seconds > 0 or self.pauses > 0):
            since = _clock()
            _sleep(PAUSE)
            least = min(least, measure())
            self.seconds -= _clock() - since
            self.pauses -= 1
        return least
