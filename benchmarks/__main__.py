"""`make bench`: run all measurements, print the table; `--write` puts its rows into docs/benchmarks.md.

Name parts to run some alone: `python -m benchmarks launching recording`. Each row is printed as soon as it is
measured, and stderr says how long a part has taken so far and took the last time.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.table import Row, machine, markdown, with_rows
from course_lib.program import run_program

PARTS = (
    "launching",
    "diagnosis",
    "collectives",
    "data_parallel",
    "zero",
    "fsdp",
    "precision",
    "recompute",
    "gpt",
    "tensor_parallel",
    "pipeline",
    "context_parallel",
    "four_dimensions",
    "experts",
    "operation",
    "dry_run",
    "trainer",
    "recording",
    "checks",
)
LONG = ("grading",)  # only when it is named: five minutes
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> int:
    """Returns the exit code, which is 130 if Ctrl-C stopped the measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join((*PARTS, *LONG)))
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the rows into docs/benchmarks.md, in place of their older figures",
    )
    chosen = parser.parse_args()
    unknown = set(chosen.parts) - {*PARTS, *LONG}
    if unknown:
        parser.error(
            f"there is no part {', '.join(sorted(unknown))}; choose from {', '.join((*PARTS, *LONG))}"
        )
    rows: list[Row] = []
    parts = chosen.parts or PARTS
    progress = Progress(sys.stderr, len(parts))
    stopped = False
    try:
        for part in parts:
            for row in progress.watched(part, importlib.import_module(f"benchmarks.{part}").rows()):
                print(
                    f"{part}: {row.what}: {row.value:.4g} (reach {row.reach:.4g}) {row.detail}",
                    flush=True,
                )
                rows.append(row)
    except KeyboardInterrupt:
        stopped = True
    if rows or not stopped:
        print(f"\n{markdown(rows)}")
    if stopped:
        page = f", and {PAGE.name} is as it was" if chosen.write else ""
        measured = "1 row was" if len(rows) == 1 else f"{len(rows)} rows were"
        print(f"\nStopped by Ctrl-C: {measured} measured{page}.", file=sys.stderr)
        return 130
    if chosen.write:
        run = "" if chosen.parts else machine()  # the machine of the other parts' rows stays
        PAGE.write_text(with_rows(PAGE.read_text(), rows, run))
    return 0


if __name__ == "__main__":
    run_program(main)
