"""The score of every wrong answer, so that the policy on points is held over all exercises at once.

    python -m tests.checks.scores write                          of all exercises, which takes hours
    python -m tests.checks.scores write 09_precision_and_memory  those of a notebook
    python -m tests.checks.scores write loss_scaler hybrid       of some exercises
    python -m tests.checks.scores show loss_scaler               the table of an exercise, best first
    python -m tests.checks.scores vary loss_scaler --seeds 6     scores that are others at other seeds

`tests/mutants/<assignment>/scores.json` holds for each wrong cell of each exercise its share of the points,
from 0 to 1, when all visible cases are run. It is measured at three seeds, and kept only if the three are
equal: a score that depends on what was drawn is a fault of the check. `vary` measures at fresh seeds,
and an exercise takes about ten seconds for each of them on an idle machine. `tests/checks/test_policy.py`
holds the policy over the tables, and `tests/checks/test_mutants.py` measures some scores again in every run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autograder.sample.mutants import MUTANTS, Mutant, read_mutants
from course_lib.program import run_program

SEEDS = (11, 20261, 1422992698)
DIGITS = 4  # of a score


@dataclass(frozen=True)
class Scored:
    """A wrong cell with its stored score."""

    mutant: Mutant
    score: float


def table(assignment: str) -> Path:
    return MUTANTS / assignment / "scores.json"


@cache
def stored(assignment: str) -> dict[str, dict[str, float]]:
    """The scores of an assignment by exercise and title; empty if there are none yet."""
    path = table(assignment)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def stored_score(name: str, title: str) -> float | None:
    assignment, _, exercise = name.partition("/")
    return stored(assignment).get(exercise, {}).get(title)


def files(words: Sequence[str]) -> list[Path]:
    """The exercises that one of the words names, by notebook, exercise or both; all without words.

    SystemExit, with a sentence, for a word that names none.
    """
    names = {
        file: {file.parent.name, file.stem, name_of(file)}
        for file in sorted(MUTANTS.glob("*/*.py"))
    }
    for word in words:
        if not any(word in those for those in names.values()):
            raise SystemExit(f"No notebook and no exercise of tests/mutants is called {word}.")
    return [file for file, those in names.items() if not words or those.intersection(words)]


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def scored(file: Path) -> list[Scored]:
    """The wrong cells of an exercise that have a stored score, the best first."""
    scores = stored(file.parent.name).get(file.stem, {})
    cells = [cell for cell in read_mutants(file) if not cell.right and cell.title in scores]
    return sorted((Scored(cell, scores[cell.title]) for cell in cells), key=lambda one: -one.score)


def measured(file: Path, seed: int) -> dict[str, float]:
    """The scores of an exercise's wrong cells when the cases are drawn from `seed`."""
    # These import PyTorch and pytest, which `show` does without.
    from course_lib.checks.judge.find import find
    from tests.checks.test_mutants import drawing_once, judged, judging_only

    with judging_only(drawing_once(find(name_of(file)))):
        return {
            cell.title: round(judged(name_of(file), cell, seed, whole=True)[0].score, DIGITS)
            for cell in read_mutants(file)
            if not cell.right
        }


def write(words: Sequence[str]) -> list[str]:
    """Measure and store; returns a line for each cell whose score is not the same at every seed."""
    unequal = []
    for file in files(words):
        by_seed = [measured(file, seed) for seed in SEEDS]
        scores = dict[str, float]()
        for title, first in by_seed[0].items():
            at_seeds = [found[title] for found in by_seed]
            if len(set(at_seeds)) > 1:
                unequal.append(f"{name_of(file)}: {title}: {at_seeds} at the seeds {SEEDS}")
            else:
                scores[title] = first
        keep(file, scores)
        print(f"{name_of(file)}: {len(scores)} scores", flush=True)
    return unequal


def keep(file: Path, scores: dict[str, float]) -> None:
    assignment = file.parent.name
    stored.cache_clear()
    known = {one.stem for one in file.parent.glob("*.py")}
    both = {**stored(assignment), file.stem: scores}
    kept = {exercise: both[exercise] for exercise in sorted(both) if exercise in known}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    table(assignment).write_text(text + "\n", encoding="utf-8")
    stored.cache_clear()


def show(words: Sequence[str]) -> None:
    for file in files(words):
        print(name_of(file))
        for one in scored(file):
            print(f"  {one.score:6.3f}  {one.mutant.misses or '-':6}  {one.mutant.title}")


def vary(words: Sequence[str], seeds: int) -> list[str]:
    """Measure at fresh seeds; returns a line for each score that is not the stored one."""
    varied = []
    for file in files(words):
        scores = stored(file.parent.name).get(file.stem, {})
        for seed in (random.randrange(2**31) for _ in range(seeds)):
            others = {
                title: score
                for title, score in measured(file, seed).items()
                if score != scores.get(title)
            }
            for title, score in others.items():
                varied.append(
                    f"{name_of(file)}: {title}: {score} at {seed}, stored {scores.get(title)}"
                )
                print(varied[-1], flush=True)
        print(f"{name_of(file)}: {seeds} seeds", flush=True)
    return varied


def main() -> int:
    parser = argparse.ArgumentParser("tests.checks.scores", description="scores of wrong answers")
    parser.add_argument("command", choices=("write", "show", "vary"))
    parser.add_argument("words", nargs="*", help="notebooks or exercises; all when left out")
    parser.add_argument(
        "--seeds", type=int, default=3, help="of vary, for each exercise (default: 3)"
    )
    given = parser.parse_args()
    if given.command == "show":
        show(given.words)
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    if given.command == "vary":
        return 1 if vary(given.words, given.seeds) else 0
    unequal = write(given.words)
    for line in unequal:
        print(line)
    return 1 if unequal else 0


if __name__ == "__main__":
    run_program(main)
