"""What can this machine do, and what is wrong with it? `python -m course_lib.doctor`

Every check gives one line, marked "ok", "note" (works, but good to know) or "problem" (something in
the course will fail), and says what to do about it. The exit code is 0 if there is no problem. In
a notebook: `from course_lib import doctor; doctor.report()`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from course_lib.doctor.capability import gpu_code
from course_lib.doctor.finding import Finding
from course_lib.doctor.machine import (
    cores,
    folder,
    memory,
    open_files,
    shared_memory,
    usable_cores,
)
from course_lib.doctor.nvidia import backends, gpu_links, gpus, nccl
from course_lib.doctor.sharing import newer_nccl, shared_gpus
from course_lib.doctor.software import compiled, course, process_handles, python, pytorch, system
from course_lib.doctor.speed import Link, measure_link
from course_lib.runtime.backend import unsaid
from course_lib.runtime.errors import LaunchError, RankError

__all__ = ["Finding", "Link", "examine", "main", "measure_link", "report"]


def report() -> None:
    """Print the table, a line as soon as it is known."""
    summary(print_findings(examine()))


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table, or with "--nccl" whether ranks can share a GPU; 0 if nothing is a problem, else 1.

    With "--nccl --get" a newer NCCL is installed only for the ranks.
    """
    parser = argparse.ArgumentParser(prog="python -m course_lib.doctor", description=__doc__)
    parser.add_argument(
        "--nccl", action="store_true", help="whether several ranks can share a GPU, and how"
    )
    parser.add_argument(
        "--get", action="store_true", help="with --nccl, install a newer NCCL only for the ranks"
    )
    options = parser.parse_args(list(arguments))
    if options.get and not options.nccl:
        parser.error("--get needs --nccl")
    sharing = newer_nccl if options.get else shared_gpus
    findings = [sharing()] if options.nccl else examine()
    return 1 if summary(print_findings(findings)) else 0


def print_findings(findings: Iterable[Finding]) -> list[Finding]:
    printed = []
    for finding in findings:
        print(finding, flush=True)
        printed.append(finding)
    return printed


def summary(findings: list[Finding]) -> int:
    problems = [finding.subject for finding in findings if finding.status == "problem"]
    if problems:
        print(f"\n{len(problems)} to be fixed: {', '.join(problems)}.")
    else:
        print("\nNo problem found.")
    return len(problems)


def examine() -> Iterator[Finding]:
    """All findings, in order; on a system other than Linux only the findings that are possible there."""
    yield system()
    yield python()
    yield pytorch()
    yield course()
    if sys.platform != "linux":
        return
    checks: list[Callable[[], Finding | None]] = [
        compiled, gpus, gpu_code, gpu_links, nccl, backends, process_handles, two_ranks, shared_memory,
        memory, cores, folder, open_files,
    ]  # fmt: skip
    for check in checks:
        finding = check()
        if finding is not None:
            yield finding


def two_ranks() -> Finding:
    """A real launch, which also shows that ranks can be started and can talk."""
    try:
        with unsaid():  # the row of the backend has said it
            measured = measure_link()
    except (RankError, LaunchError, ValueError, OSError) as error:
        text = f"two ranks could not exchange a message: {error}"
        advice = (
            "See what the lines above and below say. If all of them are ok, a firewall on the loopback "
            "interface or a seccomp profile might be in the way."
        )
        return Finding("problem", "two ranks", text, advice)
    if os.getloadavg()[0] > usable_cores() + 1:
        busy = f"{measured}, measured while the machine was busy (load {os.getloadavg()[0]:.0f})"
        return Finding("note", "two ranks", busy, "Measure again when nothing else is running.")
    return Finding("ok", "two ranks", str(measured))
