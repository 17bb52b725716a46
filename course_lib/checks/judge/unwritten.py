"""A stub was met, of the function that is judged or of another one that it calls: the sentence names it."""

from __future__ import annotations

import re

from course_lib.checks.judge.case import Finding, wrong
from course_lib.checks.sentence import Sentence, at

OF = re.compile(r"\bline \d+ of (\w+)(?=: |$)")  # of a stub that was called, see `harness.describe`


def unwritten(called: str, place: str = "", beyond: str = "") -> Finding:
    """The finding for a call of `called` that ended in a stub at `place`; equal ones have one cause.

    beyond: words for what it is not written for, if it is written for something, such as "for all sizes".
    """
    if match := OF.search(place):
        return wrong(calls_a_stub(f"`{called}`", match[1]), cause=f"{called} calls a stub")
    said = f"{called} is not written yet{beyond and ' '}{beyond}."
    return wrong(said, at(place) if beyond else "", cause=f"{called} not written")


def calls_a_stub(who: str, stub: str) -> Sentence:
    return Sentence(
        f"{who} calls `{stub}`, which is not written yet.", f"{who} calls a function that is not written yet."
    )
