"""Right solutions at many seeds, on a machine that is kept busy: none of them may lose a point.

    python -m tests.checks.sweep                                   all of them at one seed
    python -m tests.checks.sweep --seeds 30 07_pipeline            those of a notebook at thirty
    python -m tests.checks.sweep --seed 1422992698 run_schedule    an exercise's at a seed that made trouble

A line for each solution and seed, the whole table where points are missing, and a summary of these.
`test_seeds.py` runs it with `make test-all`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from autograder.sample.mutants import Mutant
from course_lib.checks.judge import judge
from course_lib.checks.judge.find import find
from tests.checks.right_solutions import right_solutions
from tests.checks.test_mutants import drawing_once, judged

CORES = os.cpu_count() or 1
BURN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(1_000_000))\n"


@dataclass(frozen=True)
class Outcome:
    """A right solution, judged by the cases of a seed, hidden ones too."""

    exercise: str
    title: str
    seed: int
    score: float
    seconds: float
    printed: str

    def __str__(self) -> str:
        told = f"{self.exercise}: {self.title}: {self.score:g} at seed={self.seed}, {self.seconds:.1f} s"
        return told if self.score == 1 else f"{told}\n{self.printed}"


def sweep(solutions: Mapping[str, Sequence[Mutant]], seeds: Iterable[int]) -> Iterator[Outcome]:
    """Every solution at every seed. The solutions of an exercise are judged by the same cases, drawn once."""
    for seed in seeds:
        for name, several in solutions.items():
            drawn = drawing_once(find(name), longer=1)  # with the time that students have
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(judge, "find", lambda _, drawn=drawn: drawn)
                for one in several:
                    since = time.monotonic()
                    report, printed = judged(name, one, seed)
                    yield Outcome(
                        name, one.title, seed, report.score, time.monotonic() - since, printed
                    )


@contextmanager
def busy(processes: int) -> Iterator[list[int]]:
    """Within it, so many processes compute without a pause; yields their ids. They end with this process."""
    command = [sys.executable, "-c", BURN, str(os.getpid())]
    burning = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield [one.pid for one in burning]
    finally:
        for one in burning:
            one.kill()
            one.wait()


def drawn_seeds(count: int, first: int) -> list[int]:
    return random.Random(first).sample(range(1 << 31), count)


def chosen(words: Sequence[str]) -> dict[str, list[Mutant]]:
    """The solutions of the exercises whose full names contain one of the words; without words, all."""
    return {
        name: several
        for name, several in right_solutions().items()
        if not words or any(word in name for word in words)
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        "tests.checks.sweep", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("exercise", nargs="*", help="a part of its name; all when left out")
    parser.add_argument("--seeds", type=int, default=1, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, help="this one, instead of those that are drawn")
    parser.add_argument(
        "--busy", type=int, default=CORES, help="processes that keep the machine busy (%(default)s)"
    )
    given = parser.parse_args()
    first = random.SystemRandom().randrange(1 << 31)
    seeds = [given.seed] if given.seed is not None else drawn_seeds(given.seeds, first)
    solutions = chosen(given.exercise)
    if not solutions:
        parser.error(f"no exercise has {' or '.join(given.exercise)} in its name")
    lost: Counter[str] = Counter()
    runs = 0
    with busy(given.busy):
        for one in sweep(solutions, seeds):
            print(one, flush=True)
            runs += 1
            lost[f"{one.exercise}: {one.title}"] += one.score < 1
    print(f"{runs} runs, {sum(lost.values())} of them lost points")
    for title, times in (+lost).most_common():
        print(f"  {times} of {len(seeds)}: {title}")
    return 1 if +lost else 0


if __name__ == "__main__":
    sys.exit(main())
