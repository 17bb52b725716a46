"""The lines of the program at which something happens, also in backward.

In backward, the program's own line can be far away, since PyTorch runs the operations. But with anomaly
detection, each node of the graph knows the forward lines that made it. If the program defines the backward
itself, the line shown is in that backward.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from course_lib.ledger.recorder import LIBRARIES, TORCH
from course_lib.runtime.places import where

ENGINE = "_engine_run_backward"
CALLS = 3  # lines that are shown, the innermost one and its callers
WIDE = 98  # columns of a sentence that is printed
Home = tuple[str, str]  # file and function in which the types were asked for


@dataclass(frozen=True)
class Finding:
    """A mistake, with its sentence, the innermost line ("Cell In[5], line 3") and the text of the line.

    callers: the lines from which the innermost line was called, with their texts. backward: the mistake is in
    the backward of these lines.
    """

    sentence: str
    line: str
    source: str
    callers: tuple[tuple[str, str], ...] = ()
    backward: bool = False

    def __str__(self) -> str:
        places = [(self.line, self.source), *self.callers] if self.line else []
        words = ["backward of " if self.backward else "", *["called at "] * len(self.callers)]
        shown = [f"{word}{line}: {text}" for word, (line, text) in zip(words, places, strict=False)]
        return "\n".join([*shown, textwrap.fill(self.sentence, WIDE)])


def finding(sentence: str, in_backward: str, home: Home) -> Finding:
    """A finding at the line the program has reached; `in_backward` is its sentence below backward.

    home: lines of this function and of its callers are left out, unless it is the innermost one.
    """
    node = torch._C._current_autograd_node()
    places = lines_of(sys._getframe(1), home, until_engine=node is not None)
    backward = not places and node is not None
    if node is not None and backward:
        metadata: Any = node.metadata
        places = lines_of_node(metadata.get("traceback_") or [], home)
    (line, source), *callers = [where(place) for place in places[:CALLS]] or [("", "")]
    said = sentence if node is None else in_backward
    return Finding(said, line, source, tuple(callers), backward)


def lines_of(frame: FrameType | None, home: Home, until_engine: bool) -> list[str]:
    """ "file|line" of the frames outside the libraries, innermost first.

    until_engine: below backward, look only at frames called by backward.
    """
    places = []
    while frame is not None:
        name = frame.f_code.co_filename
        if until_engine and frame.f_code.co_name == ENGINE and name.startswith(TORCH):
            break
        at_home = (name, frame.f_code.co_name) == home
        if not name.startswith(LIBRARIES) and not (at_home and places):
            places.append(f"{name}|{frame.f_lineno}")
        if at_home:
            break
        frame = frame.f_back
    return places


def lines_of_node(traceback: list[str], home: Home) -> list[str]:
    """The same for the traceback kept by anomaly detection: '  File "a.py", line 3, in f\\n    text'."""
    places = []
    for entry in reversed(traceback):
        _, _, rest = entry.partition('File "')
        file, _, rest = rest.partition('", line ')
        number, _, function = rest.partition("\n")[0].partition(", in ")
        at_home = (file, function) == home
        if file and not file.startswith(LIBRARIES) and not (at_home and places):
            places.append(f"{file}|{number.strip()}")
        if at_home:
            break
    return places
