"""What a student may read of a report on hidden cases.

The kind of every case stands: its title, whether it passed, how it relates to others. So do the judge's
own sentences on what was seen and what usually causes it. What does not: the seed, what the ranks printed,
and whatever a student's code could have filled with the inputs that it was given, since a verdict that
quotes it would carry the inputs out. These parts of sentences are left out or put in general words:

* the text of an exception, and its type where neither Python nor torch has one of that name;
* a place in the code that is no cell and line, and the text of that line;
* the arguments of a call, the right value, and what came back where that may be any text or number;
* the shape of what came back, and sizes and tags of operations.

Digits remain that the judge computed itself, such as how many bytes were sent. They can be made to carry
something, a few digits a case, and only of this student's own inputs: nobody else is given the same.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_lib.checks.engine.report import ASPECTS, Report, ReportLine

OTHER_ERRORS = {  # of torch and of this course's runtime
    "AcceleratorError",
    "CommunicationError",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "OutOfMemoryError",
}
ERRORS = OTHER_ERRORS | {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
OWN_ERROR = "an exception of its own kind"
STUB = "not written yet"  # the judge's refusal, whatever cases were asked for
NUMBER = r"-?[\d,.]*\d(?:e[+-]?\d+)?"
CELL = r"(?:(?:Cell In\[\d{1,5}\]|[Cc]ell \d{1,5}), )?line \d{1,5}"
CALL = r"(?P<who>[A-Za-z_]\w*)\(.*?\)"  # of a function that is evaluated on plain numbers


@dataclass(frozen=True)
class Told:
    """One row of an exercise's table: see `course_lib.checks.engine.report.ReportLine`."""

    title: str
    passed: bool
    note: str
    sentences: list[str]
    output: list[str]


def told(report: dict[str, Any]) -> list[Told]:
    """The rows of a judge's report that its student may read, in the order of the table."""
    whole = Report.from_json(report)
    rows = [line for aspect in ASPECTS for line in whole.lines if line.aspect == aspect]
    return [
        _row(line, hidden=whole.cases == "hidden" or line.hidden or line.title == STUB)
        for line in rows
    ]


def _row(line: ReportLine, hidden: bool) -> Told:
    if not hidden:
        return Told(line.title, line.passed, line.note, list(line.sentences), list(line.output))
    sentences = [kept for said in line.sentences if (kept := sentence(said))]
    return Told(line.title, line.passed, line.note, sentences, [])


def first_loss(report: dict[str, Any]) -> str:
    """The first row that failed and its first sentence, as its student may read them; "" without one."""
    failed = next((row for row in told(report) if not row.passed), None)
    if failed is None:
        return ""
    return f"{failed.title}: {failed.sentences[0]}" if failed.sentences else failed.title


def sentence(said: str) -> str:
    """A sentence about a hidden case as its student may read it; "" when nothing of it may stand."""
    text = " ".join(said.split())
    for pattern, words in RULES:
        text = pattern.sub(words, text)
    return text.strip()


def _raised(match: re.Match[str]) -> str:
    kind = match["kind"]
    return f"{match['who']} raised {kind if kind in ERRORS else OWN_ERROR}."


def _compared(match: re.Match[str]) -> str:
    factor = re.search(rf"{NUMBER} times too (?:many|few)", match["rest"])
    by = f": {factor[0]}" if factor else ""
    return f"{match['who']} gives a wrong number for some arguments{by}."


def _place(match: re.Match[str]) -> str:
    where = re.match(CELL, match["where"])
    return f"{match['before']}at {where[0]}" if where else ""


RANK = r"(?P<rank>rank \d+)"
RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    # an exception: "ring_bytes(3, 10) raised KeyError: ...", "ranks 0 and 1 raised KeyError."
    (re.compile(rf"^{CALL} raised (?P<kind>\w+)\b.*$"), _raised),
    (re.compile(r"^(?P<who>(?:all )?ranks?\b[\d, toand]*) raised (?P<kind>\w+)\b.*$"), _raised),
    # a function of numbers: "ring_bytes(3, 10) gives None, not a number.", "... gives 8; 2 times too many."
    (
        re.compile(rf"^{CALL} gives .*, not a number\.$"),
        r"\g<who> gives no number for some arguments.",
    ),
    (re.compile(rf"^{CALL} gives (?P<rest>{NUMBER}; .*)$"), _compared),
    (
        re.compile(rf"^the mean on {RANK} is {NUMBER}, not {NUMBER}\.$"),
        r"the mean on \g<rank> is wrong.",
    ),
    # what came back instead of a tensor: "f returned float32[3] on rank 0; a tensor ... is expected."
    (
        re.compile(rf"^(?P<who>\w+) returned (?!None on ).* on {RANK}; (?P<rest>a tensor [^;]*)$"),
        r"what \g<who> returned on \g<rank> is not what it should be; \g<rest>",
    ),
    (
        re.compile(rf"^{RANK} returned (?!None;).*; (?P<rest>a tensor [^;]*)$"),
        r"what \g<rank> returned is not what it should be; \g<rest>",
    ),
    (
        re.compile(rf"^after the call (?P<who>`\w+`) is .* on {RANK}; it was (?P<rest>[^;]*)$"),
        r"after the call \g<who> is something else on \g<rank>; it was \g<rest>",
    ),
    # a place and the text of its line: "..., at Cell In[5], line 3: dist.recv(x, src=2)"
    (
        re.compile(
            r"(?P<before>^|, |^NotImplementedError )at (?P<where>(?:.+?, )?line \d+)(?::.*)?$"
        ),
        _place,
    ),
    # what an operation moved: "recv(src=2, tag=7) float32[4]"
    (re.compile(r", tag=-?\d+"), ""),
    (
        re.compile(r"(?P<before>\) )(?P<dtype>(?:b?float|u?int|bool|complex)\w*)\[[\d, ]*\]"),
        r"\g<before>\g<dtype>",
    ),
    # any longer text in quotes: a value that came back
    (
        re.compile(r"(?<=[ (\[,])(?P<quote>['\"])(?:\\.|(?!(?P=quote)).){25,}(?P=quote)"),
        "a longer text",
    ),
]
