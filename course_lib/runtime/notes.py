"""Notes next to the result of a launch, about mistakes on another backend that are not errors here.

COURSE_NCCL_NOTES=off leaves them out.
"""

from __future__ import annotations

import os
import sys
import textwrap

from course_lib.ledger.ledger import Ledger
from course_lib.ledger.on_nccl import remarks

WIDTH = 76  # columns that a notebook shows beside the list of files
_told: set[tuple] = set()


def on_nccl(ledger: Ledger) -> None:
    """After a run that went well over gloo, print what NCCL would do differently, once per line in a cell."""
    if os.environ.get("COURSE_NCCL_NOTES") == "off":
        return
    for remark in remarks(ledger):
        key = (cell(), remark.advice, remark.places)
        if key not in _told:
            _told.add(key)
            note = f"Note: {remark.said} {remark.advice}"
            print(textwrap.fill(note, WIDTH, subsequent_indent="      "))


def cell() -> int:
    """The number of the cell that runs now. Outside of a notebook, everything is one cell."""
    shell = sys.modules.get("IPython")
    shell = shell.get_ipython() if shell is not None else None
    return shell.execution_count if shell is not None else 0
