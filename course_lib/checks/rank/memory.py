"""In the rank: memory is judged by the bytes that stay.

gloo's threads let go of a message's tensors a moment after the wait for it is over, and on a busy machine
that moment is long. No code of a student's keeps these bytes. So the judge says how many bytes are enough,
and a rank that finds more measures again, until they are no longer too many or the time is over. Memory that
a solution keeps is still there then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from course_lib.runtime.moments import LETTING_GO, PAUSE, PAUSES

_clock, _sleep, _infinity = time.monotonic, time.sleep, math.inf


class Patience:
    """Measures bytes, and measures again where they are more than `enough` has under the same name.

    After one failed wait, a measurement of that name is not repeated; others are, PAUSES times. So a solution
    that keeps memory costs a second.
    """

    def __init__(self, enough: Mapping[str, float]):
        self.enough = enough
        self.in_vain: set[str] = set()

    def measured(self, name: str, measure: Callable[[], int]) -> int:
        """The result of `measure`, or the least of several."""
        least, most = measure(), self.enough.get(name, _infinity)
        if least <= most or name in self.in_vain:
            return least
        deadline, pauses = _clock() + (0.0 if self.in_vain else LETTING_GO), 0
        while least > most and (pauses < PAUSES or _clock() < deadline):
            _sleep(PAUSE)
            least, pauses = min(least, measure()), pauses + 1
        if least > most:
            self.in_vain.add(name)
        return least
