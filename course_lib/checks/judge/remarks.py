"""A remark on a run that was right: the difference that NCCL would make. It costs no points.

Checks run over gloo, which carries a rank's operations side by side, and tells messages apart by their tags.
A report makes a remark only once.
"""

from __future__ import annotations

from course_lib.checks.judge.case import Finding, Line, Observed
from course_lib.checks.judge.conclude import Judged
from course_lib.checks.sentence import Sentence
from course_lib.ledger.on_nccl import remarks

TITLE = "a remark on NCCL (costs no points)"


def on_nccl(observed: Observed, remarked: set[str]) -> list[Judged]:
    """At most one line, which has passed and weighs nothing. remarked: the report's sentences so far."""
    said = []
    for remark in remarks(observed.ledger):
        said.append((Sentence(remark.said, remark.general), remark.advice))
    if not said and observed.case.remark is not None:
        said = [(sentence,) for sentence in observed.case.remark(observed)]
    new = [sentences for sentences in said if sentences[-1] not in remarked]
    if not new:
        return []
    remarked.add(new[0][-1])
    line = Line(TITLE, lambda _: Finding(True), 0.0, "communication")
    return [Judged(observed.case, line, Finding(True, new[0]))]
