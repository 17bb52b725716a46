"""One line of the doctor's report."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

WIDTH = 100
INDENT = 27


@dataclass(frozen=True)
class Finding:
    """One line of the report. `advice` says what to do; it is empty if there is nothing to do."""

    status: Literal["ok", "note", "problem"]
    subject: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        indent = " " * INDENT
        lines = []
        for part in self.text.splitlines():
            lines += textwrap.wrap(part, WIDTH - INDENT) if len(part) < 2 * WIDTH else [part]
        body = f"\n{indent}".join(lines)
        if self.advice:
            # A path that is wider than the column stays whole, to be copied.
            advice = textwrap.fill(
                self.advice, WIDTH - INDENT - 3, break_on_hyphens=False, break_long_words=False
            )
            body += f"\n{indent}-> " + advice.replace("\n", f"\n{indent}   ")
        return f"{self.status:<8} {self.subject:<17} {body}"
