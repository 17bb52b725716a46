"""The verdict on every mutant, as a table to compare with: a change of form alone must not change any.

    python -m tests.checks.verdicts record before.jsonl                   all mutants at three seeds
    python -m tests.checks.verdicts record before.jsonl ring_attention    those of an exercise
    python -m tests.checks.verdicts compare before.jsonl after.jsonl

A line of JSON for each mutant and seed: its score and, of each line of the check, whether it passed and what
it says. A verdict in the file is not made again, so a recording that was broken off goes on.
All cases are run. `compare` counts apart verdicts that differ in figures alone, such as seconds, addresses
and bytes that were measured: these differ between two runs of one commit too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autograder.sample.mutants import Mutant, read_mutants
from course_lib.checks.judge import judge
from course_lib.checks.judge.find import find
from course_lib.checks.report import Report
from tests.checks.scores import SEEDS
from tests.checks.test_mutants import FILES, drawing_once, judged

FIGURE = re.compile(r"\d[\d,]*(\.\d+)?")

Key = tuple[str, str, int]


def verdict(report: Report) -> dict:
    return {
        "score": report.score,
        "lines": [
            [line.title, line.passed, line.judged, line.note, *line.sentences]
            for line in report.lines
        ],
    }


def read(path: Path) -> dict[Key, dict]:
    rows = [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []
    return {(row["exercise"], row["title"], row["seed"]): row["verdict"] for row in rows}


def verdicts(words: Sequence[str], seeds: Sequence[int], known: set[Key]) -> Iterator[dict]:
    """The rows that are not known yet, exercise by exercise."""
    for seed in seeds:
        for file in FILES:
            name = f"{file.parent.name}/{file.stem}"
            cells = [cell for cell in read_mutants(file) if (name, cell.title, seed) not in known]
            if cells and (not words or any(word in name for word in words)):
                yield from of_exercise(name, cells, seed)


def of_exercise(name: str, cells: Sequence[Mutant], seed: int) -> Iterator[dict]:
    drawn = drawing_once(find(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "find", lambda _: drawn)
        for cell in cells:
            report, _ = judged(name, cell, seed, whole=True)
            yield {
                "exercise": name,
                "title": cell.title,
                "seed": seed,
                "verdict": verdict(report),
            }


def without_figures(told: dict) -> str:
    return FIGURE.sub("0", json.dumps(told["lines"]))


def compare(before: dict[Key, dict], after: dict[Key, dict]) -> int:
    """Print the differences; return the number of verdicts that are missing or differ beyond figures."""
    differing = figures = 0
    for key, told in before.items():
        now = after.get(key)
        if now is not None and now["score"] == told["score"]:
            if now == told:
                continue
            if without_figures(now) == without_figures(told):
                figures += 1
                continue
        differing += 1
        print(f"{key[0]}: {key[1]}, seed={key[2]}")
        if now is None:
            print("  is missing")
            continue
        if now["score"] != told["score"]:
            print(f"  score {told['score']:.4f} -> {now['score']:.4f}")
        for sign, rows, others in (("-", told, now), ("+", now, told)):
            for row in rows["lines"]:
                if row not in others["lines"]:
                    print(f"  {sign} {row}")
    new = after.keys() - before.keys()
    print(
        f"{len(before)} verdicts: {differing} differ, {figures} more in figures alone; {len(new)} new"
    )
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(
        "tests.checks.verdicts", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("file", type=Path)
    record.add_argument("exercise", nargs="*", help="a part of its name; all when left out")
    record.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    against = commands.add_parser("compare")
    against.add_argument("before", type=Path)
    against.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return 1 if compare(read(given.before), read(given.after)) else 0
    with given.file.open("a") as rows:
        for row in verdicts(given.exercise, given.seeds, set(read(given.file))):
            print(json.dumps(row, ensure_ascii=False), file=rows, flush=True)
            print(f"{row['exercise']}: {row['title']}: {row['verdict']['score']:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
