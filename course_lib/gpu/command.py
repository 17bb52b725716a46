"""python -m course_lib.gpu [--out record.json]: measure everything for which there are GPUs here.

You can send in the file, because notebooks show a record to students who have no such machine. `--rehearse`
runs each body on the CPU, with small sizes. This shows that the bodies run, and writes nothing.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from course_lib.gpu.all import EXPERIMENTS
from course_lib.gpu.experiment import Measured, measure, usable, write_record
from course_lib.gpu.table import in_words, table
from course_lib.runtime.errors import LaunchError, RankError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("record.json"), help="the record")
    parser.add_argument("--only", default="", metavar="NAMES", help="experiments, by commas")
    parser.add_argument("--limit", type=float, default=0, help="seconds; 0: no limit")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU; writes nothing")
    options = parser.parse_args(arguments)
    wanted = [name.strip() for name in options.only.split(",") if name.strip()]
    if unknown := set(wanted) - {each.name for each in EXPERIMENTS}:
        names = ", ".join(each.name for each in EXPERIMENTS)
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}. There are {names}")
    if options.out.exists() and not options.rehearse:
        parser.error(f"{options.out} is there already: name another file with --out")
    if not options.rehearse and not usable():
        print("No GPU here that NCCL could use: nothing was measured, and nothing is written.")
        return 0
    began, runs, failed = time.monotonic(), dict[str, Measured](), False
    for experiment in EXPERIMENTS:
        if wanted and experiment.name not in wanted:
            continue
        if options.limit and time.monotonic() - began > options.limit:
            print(f"{experiment.name}: no time was left", flush=True)
            continue
        try:
            run = measure(experiment, rehearse=options.rehearse)
        except (RankError, LaunchError) as error:
            failed = True
            print(f"{experiment.name}: {in_words(error)}", flush=True)
            continue
        if run is None:
            print(f"{experiment.name}: needs {experiment.ranks} GPUs", flush=True)
            continue
        print(f"{experiment.title}, {run.where}", *table(run, None), sep="\n", flush=True)
        runs[experiment.name] = run
        if not options.rehearse:
            write_record(
                options.out, runs
            )  # after each, so that measured runs are kept, whatever ends this
    return int(failed)
