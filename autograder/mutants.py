"""Wrong answers to the exercises, from `tests/mutants/<assignment>/<exercise>.py`.

Each cell of such a file is what a student could have typed into the exercise's solution cell:

    # %% wrong: sends the whole tensor in every round
    # says: <what the check's message says about it>
    <code>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from autograder.config import ROOT

MUTANTS = ROOT / "tests" / "mutants"
SAYS = re.compile(r"^# says:.*\n", re.MULTILINE)
HEADER = re.compile(r"^# %% (wrong|right): *(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One answer to an exercise: what it does, and its text, without the `# says:` line."""

    exercise: str
    right: bool
    title: str
    text: str


def read_mutants(path: Path) -> list[Mutant]:
    """The answers in one exercise's file, in its order."""
    text = path.read_text(encoding="utf-8")
    heads = list(HEADER.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [
        Mutant(
            path.stem,
            head[1] == "right",
            head[2].strip(),
            SAYS.sub("", text[head.end() : end]).strip(),
        )
        for head, end in zip(heads, ends, strict=True)
    ]


def wrong_answers(assignment: str, exercise: str, folder: Path = MUTANTS) -> list[Mutant]:
    """The wrong answers to one exercise; none where it has no file, as a question has none."""
    path = folder / assignment / f"{exercise}.py"
    return [mutant for mutant in read_mutants(path) if not mutant.right] if path.exists() else []
