"""In the judge: was a rank measured at the moment at which it should have been?

A rank asks for its measurements itself, and a student's code in it can ask for all of them at once, before it
holds what it should not hold. The process that watches notes at each moment how far the rank was.
"""

from __future__ import annotations

from course_lib.checks.judge.case import Finding, Observed, wrong

ELSEWHERE = wrong(
    "Memory was measured at other moments than those of the check.",
    "A check asks for its measurements itself: leave the functions of this library as they are.",
    cause="moments",
    misses_point=True,
)


def asked_early(observed: Observed, rank: int, moment: str, *, begun: float, sent: float) -> Finding | None:
    """A finding if the rank was measured as `moment` before it could have got there.

    begun: operations that it has begun by then; sent: bytes that all ranks' network has carried by then, at
    least. Neither is known on a machine that keeps no board or no counter.
    """
    for at in observed.progress[rank].get(moment, ()) if observed.progress else ():
        if at.rows < begun or (at.sent is not None and at.sent < sent):
            return ELSEWHERE
    return None
