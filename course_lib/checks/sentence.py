"""Sentences about a case, and the words that may stand in their place if the case is hidden.

A verdict that quotes a student's code can carry the hidden inputs out: that code has seen them. So a
sentence that quotes a value, an input, the text or the type of an exception, a shape or a line of code must
be a `Sentence`, with the general words that may stand in its place. A plain text quotes nothing of the kind
and is shown as it is.
"""

from __future__ import annotations

import builtins
import linecache
import re

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
PLACE = re.compile(r"(?:(?P<cell>Cell In\[\d{1,5}\]), )?line (?P<line>\d{1,5})(?=: | of \w+(?:: |$)|$)")


class Sentence(str):
    """A sentence that quotes something. general: the same without the quotation; "" to leave it out."""

    general: str

    def __new__(cls, text: str, general: str = "") -> Sentence:
        self = super().__new__(cls, text)
        self.general = general
        return self

    def __getnewargs__(self) -> tuple[str, str]:
        return str(self), self.general


def general(said: str) -> str:
    """The sentence as a hidden case may show it; "" if it may not."""
    return said.general if isinstance(said, Sentence) else said


def error_kind(name: str) -> str:
    """An exception's type if Python, torch or the runtime has one of that name, else OWN_ERROR.

    A name that a student's code made could hold anything.
    """
    return name if name in ERRORS else OWN_ERROR


def error_in_full(name: str, text: str) -> str:
    """As in "ValueError: no group". Without a text, as after a bare `assert`, the name stands by itself."""
    return f"{name}: {text}" if text.strip() else name


def error_sentence(name: str, error: str, text: str, call: str = "") -> Sentence:
    """Say that an object, or the call of it, raised an error, and in general only of which kind it was."""
    said = f"{call or name} raised {error_in_full(error, text)}"
    return Sentence(said, f"{name} raised {error_kind(error)}.")


def general_place(line: str) -> str:
    """ "Cell In[5], line 3: dist.recv(x)" -> "Cell In[5], line 3"; "" for a place outside the cells.

    The cell must have that line: code can claim any number of a line for its own, and so say a number.
    """
    match = PLACE.match(line)
    if match is None:
        return ""
    named = [match["cell"]] if match["cell"] else [f for f in linecache.cache if f.startswith("Cell In[")]
    known = (file for file in named if file in linecache.cache)
    there = any(linecache.getline(file, int(match["line"])).strip() for file in known)
    return match[0] if there else ""


def at(line: str, before: str = "", *, glue: str = ", at ", end: str = "") -> Sentence:
    """`before`, and the place where it happened: "dist.all_reduce was called, at Cell In[5], line 3: ...".

    line: the place and the text of its line. The general words leave the text out, and a place outside the
    cells, too. `end` follows the full text, and any text without a place.
    """
    glue, where = glue if before else "at ", general_place(line)
    return Sentence(
        f"{before}{glue}{line}{end}" if line else f"{before}{end}",
        f"{general(before)}{glue}{where}" if where else f"{general(before)}{end}",
    )
