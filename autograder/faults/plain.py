"""Plain nbgrader's grades of the rows, as `python -m benchmarks.plain_nbgrader` measured them once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

STORED = Path(__file__).parent / "plain_nbgrader.json"
RIGHT, WRONG, NOT_RUN = "right", "wrong", "not run, unsafe without a sandbox"


@dataclass(frozen=True)
class Plain:
    """versions: of nbgrader and what it rests on. rows: by name, {"outcome": RIGHT, "score": 6.0, ...}."""

    versions: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict] = field(default_factory=dict)

    def outcome(self, row: str) -> str:
        """RIGHT, WRONG, NOT_RUN, or "" for a row that was not measured."""
        return self.rows.get(row, {}).get("outcome", "")

    def said(self, rows: Iterable[str]) -> str:
        """How many of these rows it gets right, as a sentence; "" if none was measured."""
        outcomes = [outcome for row in rows if (outcome := self.outcome(row))]
        if not outcomes:
            return ""
        unsafe = outcomes.count(NOT_RUN)
        said = (
            f"Plain nbgrader {self.versions['nbgrader']} gets {outcomes.count(RIGHT)} of the "
            f"{len(outcomes) - unsafe} right on which it was measured"
        )
        return said + (f"; {unsafe} would harm the machine and were not run." if unsafe else ".")


def stored() -> Plain:
    """The stored measurement; an empty one if there is none."""
    if not STORED.exists():
        return Plain()
    data = json.loads(STORED.read_text(encoding="utf-8"))
    return Plain(data["versions"], data["rows"])
