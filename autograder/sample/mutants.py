"""Answers to the exercises that students could have given, from `tests/mutants/<assignment>/<exercise>.py`.

A cell of such a file is text that could stand in the exercise's solution cell:

    # %% wrong: sends the whole tensor in every round
    # is: idea
    # says: <a pattern, which one of the check's sentences must match>
    <code>

    # %% right: <its difference from ours>
    # on NCCL: <a pattern of the check's remark, if it makes one>
    <code>

`# is:` says what a wrong answer gets wrong, since that decides how much it may keep (docs/points.md):

    idea      it misses what the exercise is about
    slip      it has the idea, and a mistake in another part of what the text asks for
    detail    it is right but for an edge, a last digit or a seldom argument
    form      it cannot be judged: it raises, hangs, changes nothing, or hands back another type or shape than
              was asked for

Where many answers differ little, they are patches on a whole cell of the same file. That may be a right one,
or a cell that serves for nothing else, `# %% base: <title>`; it is right too, unless it has a `# says:` line
about a part that it leaves out. So a reader sees the mistake:

    # %% wrong: the blocks' outputs are added
    # says: the sum of the blocks' outputs
    # base: blocks merged by their logarithms
    -    out = weight * out + other_weight * block
    +    out = out + block
    @@
     def backward(ctx, gradient):
    -    ...

The lines of a hunk that begin with "-" or a blank stand in the base one after the other, once; `@@` divides
hunks. A patch that does not apply is a ValueError. `python -m autograder mutant FILE TITLE` prints the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.course.config import ROOT

MUTANTS = ROOT / "tests" / "mutants"
KINDS = ("wrong", "right", "base")
MISSES = ("idea", "slip", "detail", "form")
HEADER = re.compile(rf"^# %%[ \t]*({'|'.join(KINDS)}):[ \t]*(.+)$", re.MULTILINE)
ABOUT = re.compile(r"^# (is|says|on NCCL|base):[ \t]*(.+)\n?", re.MULTILINE)
DIVIDER = "@@"


@dataclass(frozen=True)
class Mutant:
    """One answer to an exercise, with its title.

    says: for a wrong one, the check's sentence; on_nccl: for a right one, its remark; both are patterns.
    misses: for a wrong one, one of MISSES.
    """

    exercise: str
    right: bool
    title: str
    text: str
    says: str = ""
    on_nccl: str = ""
    misses: str = ""


def read_mutants(path: Path, *, bases: bool = False) -> list[Mutant]:
    """The answers in one exercise's file, in its order; bases: and the cells that only patches use.

    ValueError if a cell is not of this form.
    """
    text = path.read_text(encoding="utf-8")
    heads = list(HEADER.finditer(text))
    if len(heads) != text.count("# %%"):
        raise ValueError(f"{path}: every cell begins with `# %% wrong: title`, right or base")
    if not heads:
        raise ValueError(
            f"{path} holds no answers: a cell begins with `# %% wrong: title`, right or base"
        )
    ends = [head.start() for head in heads[1:]] + [len(text)]
    cells = [(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    whole = {head[2].strip(): body for head, body in cells if "base" not in about(body)}
    mutants = []
    for head, body in cells:
        kind, title, said = head[1], head[2].strip(), about(body)
        where = f"{path}: {title!r}"
        if "says" in said and kind == "right":
            raise ValueError(f"{where}: a right cell has no `# says:` line")
        if "on NCCL" in said and kind == "wrong":
            raise ValueError(f"{where}: only right cells have an `# on NCCL:` line")
        if "is" in said and (kind == "right" or said["is"].strip() not in MISSES):
            raise ValueError(f"{where}: `# is:` of a wrong cell is one of {', '.join(MISSES)}")
        code = ABOUT.sub("", body).strip("\n").rstrip()
        if "base" in said:
            if said["base"] not in whole:
                raise ValueError(f"{where}: there is no whole cell {said['base']!r}")
            code = patched(ABOUT.sub("", whole[said["base"]]).strip("\n").rstrip(), code, where)
        if kind != "base" or bases:
            says, on_nccl = said.get("says", ""), said.get("on NCCL", "")
            right = kind == "right" or (kind == "base" and not says)
            mutants.append(
                Mutant(path.stem, right, title, code, says, on_nccl, said.get("is", "").strip())
            )
    return mutants


def about(body: str) -> dict[str, str]:
    return dict(ABOUT.findall(body))


def patched(base: str, patch: str, where: str) -> str:
    """The base with the patch's hunks; each is looked for in the base as it stands."""
    lines, edits = base.split("\n"), []
    for hunk in hunks(patch.split("\n")):
        old = [line[1:] for line in hunk if not line.startswith("+")]
        new = [line[1:] for line in hunk if not line.startswith("-")]
        places = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
        if len(places) != 1 or not old:
            raise ValueError(
                f"{where}: a hunk's lines stand {len(places)} times in the base:\n"
                + "\n".join(hunk)
            )
        edits.append((places[0], len(old), new))
    for at, length, new in sorted(edits, reverse=True):
        lines[at : at + length] = new
    return "\n".join(lines)


def hunks(lines: Sequence[str]) -> list[list[str]]:
    hunks: list[list[str]] = [[]]
    for line in lines:
        if line == DIVIDER:
            hunks.append([])
        else:
            hunks[-1].append(line)
    return hunks


def wrong_answers(assignment: str, exercise: str, folder: Path = MUTANTS) -> list[Mutant]:
    """The wrong answers to one exercise; none if it has no file, as a question has none."""
    path = folder / assignment / f"{exercise}.py"
    return [mutant for mutant in read_mutants(path) if not mutant.right] if path.exists() else []
