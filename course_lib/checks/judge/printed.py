"""The lines that the ranks of a case printed, to be shown below the first line that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from course_lib.checks import words
from course_lib.checks.judge import faults
from course_lib.runtime.run import Outcome

OUTPUT_LINES, RANK_LINES, OUTPUT_WIDTH = (12, 8, 90)  # shown of a case, the last of each rank; characters
OURS = r"(<string>|<frozen |[^\"]*/(course_lib|site-packages|lib/python[\d.]+)/)"  # not a student's file
# lines of Python after a crash in C code: all but the first one and those of the student's own stack
DUMPED = re.compile(
    rf'  File "{OURS}.*", line \d+ in |Stack \(most recent call first\):|Extension modules:|$'
)
WARNED = re.compile(r".+:\d+: (\w*Warning: .+)")  # as Python prints a warning; a line of code follows
CODE = "  "  # the beginning of that line
QUOTED = 20  # characters: a shorter line may stand in a failure's text by chance


def printed(outcome: Outcome) -> list[str]:
    """The last lines that the ranks printed, for a failing case, and how many more there were.

    Lines that the case's failure quotes anyway are left out, and so are those in which PyTorch reports the
    error that it raises.
    """
    ranks: dict[str, list[int]] = {}
    left_out = 0
    for rank, lines in enumerate(outcome.output):
        shown = warnings_in_a_sentence(lines)
        theirs = (text for text in shown if not (DUMPED.match(text) or faults.STAMPED.match(text)))
        own = list(dict.fromkeys(theirs))
        left_out += len(own[:-RANK_LINES])
        for text in own[-RANK_LINES:]:
            ranks.setdefault(text, []).append(rank)
    headline = outcome.failure.headline if outcome.failure is not None else ""
    said = [
        f"{words.ranks(which)} printed: {cut(text)}"
        for text, which in ranks.items()
        if len(text) < QUOTED or text.strip() not in headline
    ]
    left_out += len(said[OUTPUT_LINES:])
    more = f"... {words.counted(left_out, 'line')} more at least; a launch of your own shows all."
    return said[:OUTPUT_LINES] + ([more] if left_out else [])


def warnings_in_a_sentence(lines: Sequence[str]) -> Iterator[str]:
    """The lines, with the first sentence of each warning in place of its path, its text and its code."""
    warned = False
    for text in lines:
        if warning := WARNED.fullmatch(text):
            yield re.split(r"(?<=\.) ", warning[1])[0]
        elif not (warned and text.startswith(CODE)):
            yield text
        warned = warning is not None


def cut(text: str) -> str:
    """The line; one that is too long for the table is cut and ends in three dots."""
    return text if len(text) <= OUTPUT_WIDTH else f"{text[: OUTPUT_WIDTH - 4]} ..."
